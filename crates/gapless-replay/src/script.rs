//! The requests of a trace, in order, without the actions of the allocator.
//!
//! A recording mixes the actions of the program (requests, frees, calls to empty the cache) with those of the allocator
//! (segments taken and returned, retries). A replay on another allocator must repeat the first and leave out the
//! second. `build.rs` separates them, once, and everything else works on a [`Script`].

mod build;
mod pools;
mod ranges;

use crate::allocator::{Lane, LaneIndex, Slot};
use gapless_trace::{Bytes, DeviceAddr, PoolId, Tick};

/// One action of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    Alloc {
        slot: Slot,
        size: Bytes,
        lane: LaneIndex,
    },
    /// Given back, and no other stream used it.
    Free {
        slot: Slot,
    },
    /// Given back while another stream may still use it.
    FreeRequested {
        slot: Slot,
    },
    /// The other streams are done with it.
    FreeCompleted {
        slot: Slot,
    },
    /// A request that the recorded run failed to serve. The program went on without it, or ended there
    /// ([`Script::ended_by`]).
    Failed {
        size: Bytes,
        lane: LaneIndex,
    },
    /// Of one pool of the script's list, or of all.
    EmptyCache {
        pool: Option<u16>,
    },
    ReleasePool {
        pool: u16,
    },
}

/// A call of the recorded allocator to its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceCall {
    pub kind: DeviceCallKind,
    pub addr: DeviceAddr,
    pub size: Bytes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceCallKind {
    Malloc,
    Free,
    Map,
    Unmap,
}

/// The requests of one device of a run.
#[derive(Clone, Debug, Default)]
pub struct Script {
    pub ops: Vec<Op>,
    /// For each op, the instant after it in the trace's own count.
    pub ticks: Vec<Tick>,
    pub lanes: Vec<Lane>,
    pub pools: Vec<PoolId>,
    /// Number of slots that the ops name.
    pub slots: u32,
    /// Number of first ops that stand for memory from before the recording.
    pub preexisting: u32,
    /// Events of the trace that the ops stand for.
    pub events: u32,
    pub recorded: Recorded,
}

/// The actions of the recorded allocator, op by op: for the replay that must equal them.
#[derive(Clone, Debug, Default)]
pub struct Recorded {
    /// Device calls in order.
    pub calls: Vec<DeviceCall>,
    /// For ops with device calls: the op, and one past its last call. The calls of an op follow those of the op before.
    pub by_op: Vec<(u32, u32)>,
    /// The address of each slot.
    pub addrs: Vec<DeviceAddr>,
    /// Slots at or around addresses that the program chose, in order.
    pub exact: Vec<Slot>,
    /// Segments that were there before the first event.
    pub initial: Vec<InitialSegment>,
    /// Bytes that the process would have held with each request that was refused at first.
    pub refused: Vec<Bytes>,
    /// True if the trace has the device calls at all.
    pub has_segments: bool,
}

/// A segment, or mapped stretch, that was there before the recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InitialSegment {
    pub addr: DeviceAddr,
    pub size: Bytes,
    pub lane: Lane,
    pub small: bool,
    pub expandable: bool,
    /// Active blocks in it, by address.
    pub blocks: Vec<InitialBlock>,
}

/// An active block from before the recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InitialBlock {
    pub slot: Slot,
    pub addr: DeviceAddr,
    pub size: Bytes,
    pub requested: Bytes,
    /// Given back already, and still used by another stream.
    pub pending: bool,
}

impl Script {
    /// The allocation that `op` makes, as slot, size and lane.
    #[must_use]
    pub fn alloc(&self, op: usize) -> Option<(Slot, Bytes, LaneIndex)> {
        match self.ops[op] {
            Op::Alloc { slot, size, lane } => Some((slot, size, lane)),
            _ => None,
        }
    }

    /// The request that failed and ended the run: the program asked for nothing after it. A run survives only if this
    /// request is served.
    #[must_use]
    pub fn ended_by(&self) -> Option<u32> {
        let asks = |op: &Op| matches!(op, Op::Alloc { .. } | Op::Failed { .. });
        let last = self.ops.iter().rposition(asks)?;
        matches!(self.ops[last], Op::Failed { .. }).then_some(last as u32)
    }
}
