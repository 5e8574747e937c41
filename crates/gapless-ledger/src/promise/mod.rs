//! Promises of GPU memory to the pods of a cluster: the rules, as pure code. The API server is the one place where all
//! replicas agree. The caller of this module makes the calls to it ([`Ask`]) and passes the answers on ([`Told`]).
//!
//! ```text
//! a node has a page      entries: pod, GPUs by UUID, amount with its unit, the version of the pod that was read
//! book                   read the pod (version v); write an entry with v, if the node has not changed meanwhile
//! bind                   only if the pod still has version v
//! take an entry off      only with a proof, read after the page: the pod is gone, finished, bound to another node, or
//!                        not bound and of another version than v. Such a bind can never succeed any more.
//! ```
//!
//! From this follows: **a bound pod has an entry**, whichever replica bound it, even late and with lost answers. Since
//! a page never holds more than the GPUs have, no byte is promised twice. Two replicas that bind one pod with the same
//! version find the same entry, and bind the same. A change of the pod is a fence, as all earlier binds then fail.
//!
//! A page belongs to one node object (by its uid) and has a sum. If they do not match, a user has edited the page or
//! made the node again. The page is then founded again from the pods that are bound there. A pod's own annotations
//! count only if this replica remembers the same; else the node takes no more pods until that pod is gone.
//!
//! This relies on the API server: reads without a version are consistent, and versions of one object never come
//! back while the API server runs. A backup is restored while it is down, so calls over one connection see one
//! history: a booking reads and writes a page over one connection, and an attempt reads and binds a pod over one.
//! It also assumes that no node is made again, and no page edited, while a bind to that node is on its way; the
//! checker leaves this out.

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
    /// True if the page is this node's and unedited.
    pub is_founded: bool,
    pub entries: Vec<Entry>,
}

impl Node {
    /// Units of each of its GPUs: bytes, or thousandths if the bytes are not known.
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
    /// True if it uses GPUs, or may use them.
    pub is_ours: bool,
    /// The resources that it got by its annotations.
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
    /// A change of the pod without another effect, if it still has this id and version.
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
    /// No answer, or an unclear one (429, 500): the call may have been made, or may still be made.
    Nothing,
}
