//! The state of a pod as one replica sees it. It follows from what is known, so no lost event can leave it wrong.

/// A pod's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Life {
    /// It is known, or not even that, and holds nothing.
    Seen,
    /// This replica chose a place, and nobody else knows of it. It may be dropped at any time.
    Assumed,
    /// A page has an entry. It holds what that says, until a proof comes.
    Booked,
    /// It is bound, and the page says what it holds.
    Bound,
    /// It is bound and uses GPUs, and nobody can tell which: the node takes no more pods.
    Lost,
    /// It is deleted or finished, and holds nothing. A pod that is seen again, from a backup, is not gone.
    Gone,
}

/// What a replica knows of a pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// The last that was heard of it: deleted or finished.
    pub is_gone: bool,
    /// It is there, and bound to a node.
    pub is_bound: bool,
    /// It uses GPUs, or may do so.
    pub is_ours: bool,
    /// A page has an entry for it: if it is bound, that of its node, or else one that this replica remembers and the
    /// pod's annotations confirm.
    pub is_booked: bool,
    pub is_assumed: bool,
}

impl Life {
    /// What follows from these facts. A fact counts more than what this replica only assumes.
    #[must_use]
    pub fn of(facts: Facts) -> Life {
        match facts {
            Facts { is_gone: true, .. } => Life::Gone,
            Facts { is_bound: true, is_booked: false, is_ours: true, .. } => Life::Lost,
            Facts { is_bound: true, .. } => Life::Bound,
            Facts { is_assumed: true, .. } => Life::Assumed,
            Facts { is_booked: true, .. } => Life::Booked,
            _ => Life::Seen,
        }
    }
}
