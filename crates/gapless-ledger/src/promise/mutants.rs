//! Mistakes that can be switched on, to test that the checker finds them. Each was made once, or nearly.
//!
//! Without the feature `mutants`, [`is`] is the constant `false`, and the compiler removes the branches.

#[cfg(feature = "mutants")]
use std::sync::atomic::{AtomicU8, Ordering};

/// A mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Mutant {
    /// GPUs are identified by their indices, which shift when one falls off the bus.
    GpuByIndex = 1,
    /// Thousandths are read as bytes, once the memory is known.
    UnitsWithoutName,
    /// A pod that was deleted once is void for ever, though a backup may bring it back.
    DeadStayDead,
    /// A pod's annotations count alone when a page is founded.
    BelieveClaims,
    /// A read that is refused (429) counts as a proof.
    RefusalIsProof,
    /// A second booking of one pod replaces the first.
    OneOverAnother,
    /// A conflict of a bind counts as its success.
    ConflictIsMine,
    /// A pod that is not bound proves that its entry is void.
    UnboundIsProof,
    /// A bind does not require the version that was booked.
    BindAnyVersion,
    /// A page that was read before a restore is written after it.
    PageOutlivesServer,
}

impl Mutant {
    pub const ALL: [Mutant; 10] = [
        Mutant::GpuByIndex,
        Mutant::UnitsWithoutName,
        Mutant::DeadStayDead,
        Mutant::BelieveClaims,
        Mutant::RefusalIsProof,
        Mutant::OneOverAnother,
        Mutant::ConflictIsMine,
        Mutant::UnboundIsProof,
        Mutant::BindAnyVersion,
        Mutant::PageOutlivesServer,
    ];
}

#[cfg(feature = "mutants")]
static PRESENT: AtomicU8 = AtomicU8::new(0);

/// Switches one mutant on, for the whole process; `None`: all off. Without the feature nothing happens.
pub fn set(mutant: Option<Mutant>) {
    #[cfg(feature = "mutants")]
    PRESENT.store(mutant.map_or(0, |mutant| mutant as u8), Ordering::Relaxed);
    #[cfg(not(feature = "mutants"))]
    let _ = mutant;
}

/// True if a mutant is switched on.
#[cfg(feature = "mutants")]
#[inline]
pub fn is(mutant: Mutant) -> bool {
    PRESENT.load(Ordering::Relaxed) == mutant as u8
}

/// Always false.
#[cfg(not(feature = "mutants"))]
#[inline]
pub const fn is(_: Mutant) -> bool {
    false
}
