//! The rules of the device, and the messages of violations.

use std::fmt;

/// A rule that the allocator must keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Rule {
    /// Memory is handed out only if all earlier work on its physical bytes happens before the first work of the new
    /// owner.
    HandOut,
    /// Two live allocations share no physical byte.
    SharedBytes,
    /// Addresses are unmapped only if the host knows that all work through them is done.
    UnmapInUse,
    /// Addresses of a live allocation, or of a graph that can be replayed, stay mapped.
    UnmapLive,
    /// A page is released only if the host knows that all work on it is done.
    ReleaseInUse,
    /// A page is released only if it is mapped nowhere.
    ReleaseMapped,
    /// A page is mapped only at addresses at which nothing is mapped.
    MapOverMapped,
    /// Calls use only ranges that were reserved, created or mapped before.
    BadRange,
    /// Pages that another process maps stay mapped here, and are not released.
    Exported,
    /// Work uses only addresses that are mapped and granted when it is queued.
    Access,
    /// The mapping with which work was queued is still there when it runs.
    StaleRun,
    /// No call of the allocator ends a capture, whenever the capture began.
    CaptureHarmed,
    /// The host does not wait while a capture is open that the program reported.
    WaitInCapture,
    /// A trim during a capture gives nothing back.
    TrimInCapture,
    /// A trim of a private pool that is in use gives nothing back.
    TrimPoolInUse,
    /// A graph's addresses lie over the physical bytes with which it was captured.
    GraphMoved,
    /// A graph's bytes serve no request outside of its pool while the graph can be replayed.
    GraphShared,
    /// The handle of a destroyed stream is not used, except in the free of a block that was announced on it.
    DeadStream,
    /// The host waits only if native PyTorch would synchronise too.
    HostWait,
    /// The pool waits only if its caller does not do so outside of it.
    WaitLocked,
    /// Events are used only between their creation and their end.
    UnknownEvent,
    /// Addresses are used again: those that were ever mapped are not many times the bytes that were mapped at once.
    Addresses,
    /// A request is served while the card has room for it.
    RefusedWithRoom,
    /// A free of an allocation that the caller holds succeeds.
    FreeRefused,
    /// After everything was freed, a trim gives everything back.
    Kept,
    /// A restore frees what was live; if it fails, it changes nothing.
    Restore,
    /// The pool's own invariants hold.
    Broken,
    /// The allocator does not panic.
    Panic,
}

impl Rule {
    pub const ALL: [Rule; 28] = [
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
        Rule::WaitLocked,
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

/// A violation of a rule, with a description.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    pub rule: Rule,
    /// The operation during which it was found, counted from 0.
    pub at: usize,
    pub text: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} in operation {}: {}", self.rule, self.at, self.text)
    }
}
