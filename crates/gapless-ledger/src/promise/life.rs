//! The state of a pod for one replica. It is computed from facts, so no lost event can leave it wrong.

/// A pod's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Life {
    /// It has no resources; it may even be unknown.
    Seen,
    /// This replica alone has chosen a place for it. It may be dropped at any time.
    Assumed,
    /// A page has an entry. It holds those resources until a proof removes the entry.
    Booked,
    /// It is bound, and the page has its resources.
    Bound,
    /// It is bound and uses unknown GPUs, so the node takes no more pods.
    Lost,
    /// It is deleted or finished, and has no resources. A pod that is seen again, from a backup, is not gone.
    Gone,
}

/// A replica's facts on a pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// By the last event it is deleted or finished.
    pub is_gone: bool,
    /// It exists and is bound to a node.
    pub is_bound: bool,
    /// It uses GPUs, or may use them.
    pub is_ours: bool,
    /// A page has an entry for it: if it is bound, that of its node, or else one that this replica remembers and the
    /// pod's annotations confirm.
    pub is_booked: bool,
    pub is_assumed: bool,
}

impl Life {
    /// The state that follows from these facts. A bound pod takes precedence over an assumption.
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
