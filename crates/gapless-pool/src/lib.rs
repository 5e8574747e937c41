//! The allocator that runs live, as a deterministic machine over a small [`device::Device`] trait: the code that serves
//! a training process is the code that replays its trace.
//!
//! Read [`pool`] first: it has the vocabulary, and tells one request in numbered steps. [`heap`] is the hot path.
//! [`ids`] has the numbers of lanes, heaps, pages and fences, one type each. [`host`] is another machine: pinned host
//! memory for what leaves the device for a while.

mod addresses;
mod allocations;
pub mod blocks;
pub mod budget;
pub mod device;
pub mod elastic;
pub mod free_set;
pub mod fronts;
pub mod heap;
pub mod host;
pub mod ids;
pub mod marks;
pub mod mutants;
pub mod options;
pub mod pool;
mod ranges;
mod shard;
pub mod shared;
pub mod sim;
pub mod stats;
pub mod steps;
mod stretches;
pub mod supplied;
mod sync;
mod tally;
mod visits;

pub use budget::Budget;
pub use device::{Device, DeviceError, EventHandle, PageHandle, Refusal, StreamHandle};
pub use fronts::Fronts;
pub use options::Options;
pub use pool::{
    AllocError, AllocationView, Behind, BlockState, BlockView, Change, ExactError, FreeError, Freed,
    HeapWaste, Hole, Holes, LaneView, Patience, Pool, PoolKey, PrivateFree, RestoreError, Rung, Saved,
    SegmentCounts, SegmentView, SleepError, Unserved, Wait, Waste,
};
pub use shared::{Keeper, Shared, SharedPool, Whole};
pub use sim::SimDevice;
pub use stats::{ClassStats, Gauge, Stats};
pub use steps::{Period, PlanStats, Planner, Recurring, Spot, Ticket};
pub use supplied::Returned;
