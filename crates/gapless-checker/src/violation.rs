//! The rules of the device, and what is said when one is broken.

use std::fmt;

/// A rule that the allocator keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Rule {
    /// Memory is handed out when all earlier work on its physical bytes happens before the first work of the new
    /// owner.
    HandOut,
    /// Two live allocations share no physical byte.
    SharedBytes,
    /// Addresses are unmapped when the host knows that all work through them is done.
    UnmapInUse,
    /// Addresses of a live allocation, or of a graph that can be replayed, stay mapped.
    UnmapLive,
    /// A page is released when the host knows that all work on it is done.
    ReleaseInUse,
    /// A page is released when it is mapped nowhere.
    ReleaseMapped,
    /// Nothing is mapped where something is.
    MapOverMapped,
    /// Ranges are those that were reserved, created and mapped.
    BadRange,
    /// Pages that another process maps stay mapped here, and are not released.
    Exported,
    /// Work uses addresses that are mapped and granted when it is queued.
    Access,
    /// The mapping that work was queued with is there when it runs.
    StaleRun,
    /// No capture is ended from outside, by whichever call and at whichever moment it began.
    CaptureHarmed,
    /// The host waits for nothing while a capture is open that the program told of.
    WaitInCapture,
    /// A trim during a capture gives nothing back.
    TrimInCapture,
    /// A trim of a private pool that is in use gives nothing back.
    TrimPoolInUse,
    /// A graph finds its addresses over the physical bytes that it was captured with.
    GraphMoved,
    /// A graph's bytes serve nobody outside of its pool while it can be replayed.
    GraphShared,
    /// The handle of a destroyed stream is not touched, but in the free of a block that was announced on it.
    DeadStream,
    /// The host waits only where native PyTorch would synchronise too.
    HostWait,
    /// Events are used between their making and their end.
    UnknownEvent,
    /// Addresses are used again: those that were ever mapped are not many times what was mapped at once.
    Addresses,
    /// A request is served while the card has room for it.
    RefusedWithRoom,
    /// What the caller holds can be given back.
    FreeRefused,
    /// After everything was freed, a trim gives everything back.
    Kept,
    /// A restore frees what was live, and changes nothing where it fails.
    Restore,
    /// The pool's own invariants hold.
    Broken,
    /// The allocator does not panic.
    Panic,
}

impl Rule {
    pub const ALL: [Rule; 27] = [
        Rule::HandOut,
        Rule::SharedBytes,
        Rule::UnmapInUse,
        Rule::UnmapLive,
        Rule::ReleaseInUse,
        Rule::ReleaseMapped,
        Rule::MapOverMapped,
        Rule::BadRange,
        Rule::Exported,
        Rule::Access,
        Rule::StaleRun,
        Rule::CaptureHarmed,
        Rule::WaitInCapture,
        Rule::TrimInCapture,
        Rule::TrimPoolInUse,
        Rule::GraphMoved,
        Rule::GraphShared,
        Rule::DeadStream,
        Rule::HostWait,
        Rule::UnknownEvent,
        Rule::Addresses,
        Rule::RefusedWithRoom,
        Rule::FreeRefused,
        Rule::Kept,
        Rule::Restore,
        Rule::Broken,
        Rule::Panic,
    ];

    /// The rule with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Rule> {
        Rule::ALL.into_iter().find(|rule| format!("{rule:?}").eq_ignore_ascii_case(name))
    }
}

/// A rule that was broken, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    pub rule: Rule,
    /// The operation during which it was noticed, counted from 0.
    pub at: usize,
    pub text: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} in operation {}: {}", self.rule, self.at, self.text)
    }
}
