//! Which pod was promised what of the GPUs of a cluster: the rules, as pure code. The API server is the one place where
//! all replicas agree; whoever drives this module asks it ([`Ask`]) and tells the answers ([`Told`]).
//!
//! ```text
//! a node has a page      entries: pod, GPUs by UUID, amount with its unit, the version of the pod that was read
//! book                   read the pod (version v); write an entry with v, if the node has not changed meanwhile
//! bind                   only if the pod still has version v
//! take an entry off      only with a proof, read after the page: the pod is gone, finished, bound to another node, or
//!                        not bound and of another version than v. Such a bind can never succeed any more.
//! ```
//!
//! From this follows: **a bound pod has an entry**, whoever bound it, however late, and whatever answers were lost; and
//! since a page never holds more than the GPUs have, no byte is promised twice. Two replicas that bind one pod with the
//! same version find the same entry, and bind the same. A change of the pod is a fence: it ends all binds before it.
//!
//! A page belongs to one node object (by its uid) and has a sum. If that is not so, somebody has edited it or made
//! the node anew. It is then founded again from the pods that are bound there. What a pod's own annotations say is
//! believed only if this replica remembers the same; else the node takes no more pods until that pod is gone.
//!
//! Relied on: reads without a version are consistent, and versions of one object never come back while the API server
//! runs. A backup is restored while it is down, so calls over one connection see one history: a booking reads and
//! writes a page over one connection, and an attempt reads and binds a pod over one. A node is not made anew, or its
//! page edited, while a bind to it is on its way: the checker leaves this out.

pub mod attempt;
pub mod booking;
pub mod entry;
pub mod life;
pub mod mutants;

pub use attempt::{Attempt, Step};
pub use booking::{Booking, NotBooked};
pub use entry::{Amount, Claim, Entry};
pub use life::Life;

/// A node as it was read.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Node {
    pub version: String,
    /// The UUIDs of its GPUs.
    pub gpus: Vec<String>,
    /// Bytes of each GPU, if known.
    pub capacity: Option<u64>,
    /// The page is this node's, and as it was written.
    pub is_founded: bool,
    pub entries: Vec<Entry>,
}

impl Node {
    /// Units of each of its GPUs: bytes, or thousandths if nobody knows the bytes.
    #[must_use]
    pub fn units(&self) -> u64 {
        self.capacity.unwrap_or(1000)
    }
}

/// A pod as it was read.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pod {
    pub uid: String,
    /// `NAMESPACE/NAME`.
    pub name: String,
    pub version: String,
    /// The node that it is bound to; empty if it is not.
    pub node: String,
    pub is_finished: bool,
    /// It uses GPUs, or may do so.
    pub is_ours: bool,
    /// What its annotations say that it got.
    pub claim: Option<Claim>,
}

/// A call to the API server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Ask {
    Node,
    /// The pod of this name.
    Pod(String),
    /// All pods that are bound to the node.
    BoundPods,
    /// The page of the node, if the node still has this version.
    Write(String, Vec<Entry>),
    /// A change of the pod that means nothing, if it still has this id and version.
    Touch {
        name: String,
        uid: String,
        version: String,
    },
    /// A bind of the entry's pod, if the pod still has the entry's id and version.
    Bind(Entry),
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Told {
    Node(Node),
    Pod(Option<Pod>),
    BoundPods(Vec<Pod>),
    Done,
    /// A precondition does not hold (409), or the object is not there (404).
    Conflict,
    /// No answer, or one that says nothing (429, 500): the call was made, will be made, or not.
    Nothing,
}
