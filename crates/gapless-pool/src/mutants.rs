//! Errors that a test can switch on to prove that the checker finds them. Each is a mistake that was made once, or
//! nearly.
//!
//! Without the feature `mutants`, [`is`] is a constant `false`, and the compiler removes every mutant.

#[cfg(feature = "mutants")]
use std::sync::atomic::{AtomicU8, Ordering};

/// A mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Mutant {
    /// Memory of other lanes is lent before a fence proved their work done.
    LendUnsettled = 1,
    /// A lent block goes back to its owner at once.
    ReturnUnsettled,
    /// A plan unmaps pages at once when it moves them.
    MoveUnderWork,
    /// Idle windows are unmapped at once.
    RetireUnderWork,
    /// An event that cannot be recorded counts as passed.
    FailedRecordIsDone,
    /// `trim_pool` takes pages of a pool in use.
    TrimPoolInUse,
    /// An event is queried although its stream is captured.
    TrustUnasked,
    /// An event that a capture took in counts as passed.
    CapturedIsDone,
    /// A fence of a lane is recorded when another lane wants its memory, not in its own turn.
    FenceOutOfTurn,
    /// A page goes back to the device before the windows that leave with it mapped.
    ReleaseBeforeWindows,
    /// `trim` works during a capture.
    TrimInCapture,
    /// The handle of a lane's stream is touched long after it was named.
    DeadLane,
    /// Addresses of windows are never used again.
    AddressesLeak,
    /// Holes in a heap are not filled near the limit.
    AddressesCreep,
    /// Memory falls asleep under work that uses it.
    SleepUnderWork,
    /// Memory falls asleep that another process maps.
    SleepShared,
    /// Pages that an elastic range gives up are unmapped under work that uses them.
    ShrinkUnderWork,
    /// Replays are ignored when the pool of their graphs is released.
    ForgetReplays,
    /// Pages of private pools in use are given back like those of others.
    TrimUsedPools,
    /// Idle windows of private pools are unmapped like all others.
    DropKeptWindows,
    /// Pages go back to the device although a window has them mapped.
    GivePagesOfWindows,
    /// Memory that a window of a private pool uses stays free at home.
    WindowsLeaveHomesFree,
    /// Saved states of private pools leave out allocations in windows.
    SaveWithoutWindows,
    /// A restored state leaves the pages of its windows free at home.
    RestoreLeavesHomesFree,
    /// A lane borrows although one of its freed loans, of another size, is enough.
    BorrowAgain,
    /// A state is restored although its windows have pages in which its other allocations lie.
    RestoreUnchecked,
    /// A wait without the lock settles what was freed meanwhile too.
    SettleLater,
    /// An event is discarded while a caller waits for it.
    DropAwaited,
    /// A request that must wait does so inside of the pool.
    WaitLocked,
}

impl Mutant {
    pub const ALL: [Mutant; 29] = [
        Mutant::LendUnsettled,
        Mutant::ReturnUnsettled,
        Mutant::MoveUnderWork,
        Mutant::RetireUnderWork,
        Mutant::FailedRecordIsDone,
        Mutant::TrimPoolInUse,
        Mutant::TrustUnasked,
        Mutant::CapturedIsDone,
        Mutant::FenceOutOfTurn,
        Mutant::ReleaseBeforeWindows,
        Mutant::TrimInCapture,
        Mutant::DeadLane,
        Mutant::AddressesLeak,
        Mutant::AddressesCreep,
        Mutant::SleepUnderWork,
        Mutant::SleepShared,
        Mutant::ShrinkUnderWork,
        Mutant::ForgetReplays,
        Mutant::TrimUsedPools,
        Mutant::DropKeptWindows,
        Mutant::GivePagesOfWindows,
        Mutant::WindowsLeaveHomesFree,
        Mutant::SaveWithoutWindows,
        Mutant::RestoreLeavesHomesFree,
        Mutant::BorrowAgain,
        Mutant::RestoreUnchecked,
        Mutant::SettleLater,
        Mutant::DropAwaited,
        Mutant::WaitLocked,
    ];
}

#[cfg(feature = "mutants")]
static PRESENT: AtomicU8 = AtomicU8::new(0);

/// Switches one mutant on for the whole process, or all off with `None`. Does nothing without the feature.
pub fn set(mutant: Option<Mutant>) {
    #[cfg(feature = "mutants")]
    PRESENT.store(mutant.map_or(0, |mutant| mutant as u8), Ordering::Relaxed);
    #[cfg(not(feature = "mutants"))]
    let _ = mutant;
}

/// True if a mutant is switched on.
#[cfg(feature = "mutants")]
#[allow(dead_code, reason = "a tree without sites is one that has no fixes to undo")]
#[inline]
pub(crate) fn is(mutant: Mutant) -> bool {
    PRESENT.load(Ordering::Relaxed) == mutant as u8
}

/// Always false.
#[cfg(not(feature = "mutants"))]
#[allow(dead_code, reason = "a tree without sites is one that has no fixes to undo")]
#[inline]
pub(crate) const fn is(_: Mutant) -> bool {
    false
}
