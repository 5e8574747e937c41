//! The allocator of one device.
//!
//! # Words
//! * A **page** is a physical page of the card: 2 MiB, times a power of two. Its **home** is where it was mapped first.
//! * A **heap** is a range of addresses with pages behind it, cut into blocks (`heap.rs`).
//! * A **lane** is a stream in a memory pool ([`lanes`]). It has two heaps: one for small requests, one for large ones.
//! * A **shard** is a lane's heaps and counters, which a thread can use without the rest of the pool (`shard.rs`).
//! * A **window** is a second range of addresses, where free pages lie side by side ([`windows`]).
//! * A **pending** free waits until other streams are done with its block ([`pending`]).
//! * A **fence** of a lane is an event on its stream, recorded when the stream asks for memory ([`fences`]). Memory is
//!   **settled** when a fence shows that no work uses it. Only settled memory is **lent** to another lane.
//!
//! Lanes, heaps, pages, windows and fences have numbers of their own types (`ids.rs`). Sizes and addresses are `u64`,
//! in bytes. [`Lanes`], [`Windows`], [`Pending`], [`Fences`] and [`Heap`] each state their invariants as equations and
//! have a `check()`, which [`Pool::check`] calls.
//!
//! # One request
//! 1. [`streams`]: the pool finds the stream's lane, or makes one.
//! 2. The lane's own heap serves the request, best fit. This is the only step on the hot path.
//! 3. [`waiting`]: the pool looks which pending frees are done, and tries the heap again.
//! 4. [`missing`]: a block that this lane borrowed and gave back last serves it; or, in [`mapping`], a window of this
//!    size that is still mapped.
//! 5. [`growth`]: the heap grows, as long as little more is held than was ever in use. If memory is scarce, no more may
//!    be held than that.
//! 6. [`missing`]: another lane lends a settled block.
//! 7. [`mapping`]: free pages are **harvested**: they are mapped a second time, side by side, in a new window. Only
//!    what is then still missing comes from the device. Nothing is copied, and nothing waits.
//! 8. [`ladder`]: before the request fails, the pool takes its slow measures, from cheap to expensive.
//!
//! A window stays mapped when its allocation is freed. In a loop of equal steps the next request of its size finds it,
//! so soon no step needs the driver.
//!
//! A request in a private pool takes steps 1 to 3, a window of its own pool, and then 7 and 8 with memory of its own
//! lane alone: graphs remember addresses ([`mapping`]).
//!
//! A lane's memory is used in the order of its stream. Lent memory comes back behind a fence too. So the pool never
//! makes one stream wait for another.

mod asking;
mod behind;
mod check;
mod checkpoint;
#[cfg(test)]
mod costs;
mod counting;
mod exact;
mod fences;
mod giving;
mod growth;
mod holes;
mod ladder;
mod lanes;
mod leaving;
mod loans;
mod log;
mod mapping;
mod missing;
mod pending;
mod pieces;
mod planned;
mod sleeping;
mod streams;
mod supplying;
mod view;
mod waiting;
mod waste;
mod windows;

pub use crate::heap::{SMALL, UNIT};
pub use crate::ids::PoolKey;
pub use asking::{Patience, Unserved, Wait};
pub use behind::Behind;
pub use checkpoint::{RestoreError, Saved};
pub use exact::ExactError;
pub use fences::Freed;
pub use holes::{Hole, Holes, PrivateFree};
pub use ladder::Rung;
pub use log::Change;
pub use sleeping::SleepError;
pub use view::{AllocationView, BlockState, BlockView, LaneView, SegmentCounts, SegmentView};
pub use waste::{HeapWaste, Waste};

use crate::allocations::{Allocation, Allocations, Place};
use crate::budget::Budget;
use crate::device::{Device, DeviceError, StreamHandle};
use crate::heap::{Heap, LARGEST};
use crate::ids::{Fence, HeapId, LaneId};
use crate::mutants::{self, Mutant};
use crate::options::Options;
use crate::shard::{Amount, rounded};
use crate::stats::Stats;
use crate::steps::Planner;
use crate::supplied::Supplied;
use asking::{Awaited, Manner};
use fences::Fences;
use lanes::{Lane, Lanes};
use leaving::Leaving;
use pending::Pending;
use sleeping::Sleepers;
use std::collections::BTreeSet;
use windows::Windows;

/// A request looks at this many cached windows at most.
const TRIES: usize = 24;

/// Reason of a failed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllocError {
    /// No memory is left: the size that was requested, and the device's last error.
    OutOfMemory { size: u64, device: DeviceError },
}

/// Reason of a refused free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FreeError {
    /// No allocation begins at this address.
    Unknown { addr: u64 },
    /// The allocation was freed before and still waits for other streams.
    Twice { addr: u64 },
    /// The allocation sleeps: no memory lies behind its addresses.
    Asleep { addr: u64 },
}

/// The number of an allocation: the lane in whose addresses it begins, and its slot there. Allocations in windows and
/// in supplied memory have [`LaneId::NONE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AllocationId {
    shard: LaneId,
    slot: u32,
}

/// The allocator.
#[derive(Debug)]
pub struct Pool<D> {
    device: D,
    /// The card's total memory; 0 until the pool has asked for it.
    card: u64,
    options: Options,
    lanes: Lanes,
    /// Allocations in windows and in supplied memory.
    elsewhere: Allocations,
    windows: Windows,
    /// Memory of private pools that have an allocator of their own.
    supplied: Supplied,
    /// The fences of each lane, and the frees that wait for them.
    fences: Fences,
    leaving: Leaving,
    pending: Pending,
    /// Private pools that the program has released.
    released: BTreeSet<PoolKey>,
    emptied: growth::Emptied,
    /// Private pools without windows, because their memory may be put to sleep.
    stays_home: BTreeSet<PoolKey>,
    /// After a soft limit was exceeded: lanes whose free memory goes back once these fences are done.
    owed: Vec<(LaneId, Fence)>,
    /// Pools whose memory sleeps.
    sleepers: Sleepers,
    /// True while the caller has a capture open.
    quiet: bool,
    /// The way in which the present call waits.
    manner: Manner,
    /// The events that callers wait for.
    awaited: Awaited,
    clock: u64,
    stats: Stats,
    /// By size class: lent blocks that their borrower freed and that their owner cannot use yet.
    returning: [Amount; 2],
    /// The highest number of active bytes since the last [`Pool::take_crest`].
    crest: u64,
    /// Changes since the last [`Pool::take_changes`]; `None` if no log is kept.
    log: Option<Vec<Change>>,
    /// Plans steps that repeat; `None` if no planner is set.
    planner: Option<Box<dyn Planner>>,
}

impl<D: Device> Pool<D> {
    pub fn new(device: D, options: Options) -> Pool<D> {
        Pool {
            device,
            card: 0,
            options,
            lanes: Lanes::default(),
            elsewhere: Allocations::default(),
            windows: Windows::default(),
            supplied: Supplied::default(),
            fences: Fences::default(),
            leaving: Leaving::default(),
            pending: Pending::default(),
            released: BTreeSet::new(),
            emptied: growth::Emptied::NEVER,
            stays_home: BTreeSet::new(),
            owed: Vec::new(),
            sleepers: Sleepers::default(),
            quiet: false,
            manner: Manner::Waits,
            awaited: Awaited::default(),
            clock: 0,
            stats: Stats::default(),
            returning: [Amount::default(); 2],
            crest: 0,
            log: None,
            planner: None,
        }
    }

    pub fn device(&self) -> &D {
        &self.device
    }

    pub fn device_mut(&mut self) -> &mut D {
        &mut self.device
    }

    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    pub fn options(&self) -> &Options {
        &self.options
    }

    pub fn set_limit(&mut self, limit: Option<u64>) {
        self.options.limit = limit;
    }

    /// Turns windows of private pools on or off. Windows that exist stay while their pools are in use.
    pub fn set_private_windows(&mut self, on: bool) {
        self.options.private_windows = on;
    }

    /// Every heap, for inspection.
    pub fn heaps(&self) -> impl Iterator<Item = &Heap> {
        self.lanes.shards().flat_map(|shard| &shard.heaps)
    }

    #[inline]
    fn heap(&self, heap: HeapId) -> &Heap {
        self.lanes.heap(heap)
    }

    #[inline]
    fn heap_mut(&mut self, heap: HeapId) -> &mut Heap {
        self.lanes.heap_mut(heap)
    }

    #[inline]
    fn find(&self, addr: u64) -> Option<AllocationId> {
        let home = self.lanes.holding(addr).unwrap_or(LaneId::NONE);
        let slot = self.allocations_in_shard(home).find(addr)?;
        Some(AllocationId { shard: home, slot })
    }

    /// Every allocation.
    fn ids(&self) -> impl Iterator<Item = AllocationId> + '_ {
        let shards = self.lanes.ids().chain(std::iter::once(LaneId::NONE));
        shards.flat_map(|shard| {
            self.allocations_in_shard(shard).slots().map(move |slot| AllocationId { shard, slot })
        })
    }

    #[inline]
    fn allocations_in_shard(&self, shard: LaneId) -> &Allocations {
        if shard == LaneId::NONE { &self.elsewhere } else { &self.lanes.shard(shard).allocations }
    }

    #[inline]
    fn allocations_of(&mut self, shard: LaneId) -> &mut Allocations {
        if shard == LaneId::NONE { &mut self.elsewhere } else { &mut self.lanes.shard_mut(shard).allocations }
    }

    #[inline]
    fn allocation(&self, id: AllocationId) -> &Allocation {
        &self.allocations_in_shard(id.shard)[id.slot]
    }

    #[inline]
    fn allocation_mut(&mut self, id: AllocationId) -> &mut Allocation {
        &mut self.allocations_of(id.shard)[id.slot]
    }

    /// Live and pending allocations: address, size, and true if the caller still holds it.
    pub fn allocations(&self) -> impl Iterator<Item = (u64, u64, bool)> + '_ {
        self.ids().map(|id| {
            let a = self.allocation(id);
            (a.addr, a.size, a.waits == 0)
        })
    }

    /// The block size of the allocation at `addr`.
    pub fn size_of(&self, addr: u64) -> Option<u64> {
        self.find(addr).map(|id| self.allocation(id).size)
    }

    /// The limit on held bytes.
    pub fn limit(&self) -> Option<u64> {
        self.options.limit
    }

    /// Beginning and size of the allocation that contains `addr`. Looks at all allocations.
    pub fn containing(&self, addr: u64) -> Option<(u64, u64)> {
        if let Some(size) = self.size_of(addr) {
            return Some((addr, size));
        }
        self.allocations()
            .find(|(start, size, _)| (*start..start + size).contains(&addr))
            .map(|(s, n, _)| (s, n))
    }

    /// While quiet, the pool records no events: a capture is open, and an event would end it or become part of it.
    pub fn set_quiet(&mut self, quiet: bool) {
        self.quiet = quiet;
    }

    // ---- requests ----

    /// Memory for `size` bytes, to be used on `stream`.
    ///
    /// # Errors
    /// If no memory is left after every rung of the ladder.
    pub fn alloc(&mut self, size: u64, stream: StreamHandle, pool: PoolKey) -> Result<u64, AllocError> {
        self.alloc_for(size, stream, pool, None)
    }

    /// [`Pool::alloc`], charged to a budget until it is given back.
    ///
    /// # Errors
    /// As [`Pool::alloc`], and if the budget has no room.
    pub fn alloc_for(
        &mut self,
        size: u64,
        stream: StreamHandle,
        pool: PoolKey,
        budget: Option<&'static Budget>,
    ) -> Result<u64, AllocError> {
        if size > LARGEST {
            self.stats.ooms += 1;
            return Err(AllocError::OutOfMemory { size, device: DeviceError::OutOfMemory });
        }
        let rounded = rounded(size);
        let served = self
            .ask(budget, rounded, stream, pool)
            .and_then(|()| self.serve(size, rounded, stream, pool, budget));
        served.map_err(|device| AllocError::OutOfMemory { size, device })
    }

    fn serve(
        &mut self,
        size: u64,
        rounded: u64,
        stream: StreamHandle,
        pool: PoolKey,
        budget: Option<&'static Budget>,
    ) -> Result<u64, DeviceError> {
        let lane = self.lane(stream, pool)?;
        self.turn(lane, stream);
        if self.supplied.has(pool) {
            return self.serve_supplied(lane, size, rounded, budget);
        }
        // With a log, every request polls: PyTorch's own allocator completes frees at the next request, and the history
        // must show them at the same place.
        if !self.pending.is_empty() && (self.log.is_some() || self.lanes.shard_mut(lane).is_poll_due()) {
            self.poll();
        }
        let heap = if rounded <= SMALL { lane.small() } else { lane.large() };
        if rounded > SMALL && self.lanes.shard_mut(lane).steps.as_ref().is_some_and(|steps| steps.needs_pool)
        {
            self.attend(lane, Some(rounded));
        }
        let mut found = self.lanes.shard_mut(lane).take(heap.class(), rounded);
        if found.is_none() && self.is_waiting_for_work() {
            self.poll();
            found = self.lanes.shard_mut(lane).take(heap.class(), rounded);
        }
        if found.is_none() && self.is_too_far_ahead(lane, rounded) && self.await_oldest()? {
            return self.serve(size, rounded, stream, pool, budget);
        }
        if let Some((block, as_expected)) = found {
            return Ok(self.hand_out(lane, size, rounded, Place::Home { heap, block }, as_expected, budget));
        }
        match self.miss(lane, heap, rounded) {
            Ok(place) => Ok(self.hand_out(lane, size, rounded, place, false, budget)),
            Err(device) => {
                self.stats.ooms += u64::from(!self.is_put_off());
                Err(device)
            }
        }
    }

    /// Notes that another stream uses the allocation at `addr`. Its block is then free only after the work that this
    /// stream has queued when the allocation is freed.
    pub fn record_stream(&mut self, addr: u64, stream: StreamHandle) -> Result<(), FreeError> {
        let id = self.find(addr).ok_or(FreeError::Unknown { addr })?;
        if self.allocation(id).is_asleep() {
            return Err(FreeError::Asleep { addr });
        }
        let own = self.lanes[self.allocation(id).lane].stream;
        let uses = &mut self.allocation_mut(id).uses;
        if stream != own && !uses.contains(&stream) {
            uses.push(stream);
        }
        Ok(())
    }

    /// Frees the allocation at `addr`.
    ///
    /// # Errors
    /// If nothing is allocated there, or it was freed before. Then nothing changes.
    pub fn free(&mut self, addr: u64) -> Result<(), FreeError> {
        let id = self.find(addr).ok_or(FreeError::Unknown { addr })?;
        if self.allocation(id).is_asleep() {
            self.free_asleep(id);
            return Ok(());
        }
        let allocation = self.allocation_mut(id);
        if allocation.waits > 0 {
            return Err(FreeError::Twice { addr });
        }
        let (size, uses) = (allocation.size, std::mem::take(&mut allocation.uses));
        if let Some(budget) = allocation.budget.take() {
            budget.give(size);
        }
        self.count_free(id);
        let mut is_known = true;
        for stream in uses {
            is_known &= self.wait_for(stream, id);
        }
        // Lent memory goes back to its owner only when no work uses it any more.
        let is_lent = self.is_lent(id) && !mutants::is(Mutant::ReturnUnsettled);
        let is_unknown = !(is_known || mutants::is(Mutant::FailedRecordIsDone));
        if is_unknown {
            self.wait_for_card(id);
        }
        if is_lent {
            self.wait_for_turn(id);
            self.look_if_lent_only(id);
        }
        if self.allocation(id).waits == 0 {
            self.complete(id);
        }
        Ok(())
    }

    /// True if an allocation lies in memory of another lane.
    fn is_lent(&self, id: AllocationId) -> bool {
        let Allocation { lane, ref place, .. } = *self.allocation(id);
        match place {
            Place::Home { heap, .. } => heap.lane() != lane,
            Place::Window { parts, .. } => parts.iter().any(|(heap, _)| heap.lane() != lane),
            Place::Supplied { .. } | Place::Asleep { .. } => false,
        }
    }

    #[inline]
    fn hand_out(
        &mut self,
        lane: LaneId,
        requested: u64,
        size: u64,
        place: Place,
        as_expected: bool,
        budget: Option<&'static Budget>,
    ) -> u64 {
        let (addr, shard) = match &place {
            Place::Home { heap, block } | Place::Asleep { heap, block } => {
                (self.heap(*heap).block(*block).addr, heap.lane())
            }
            Place::Window { window, .. } => (self.windows.get(*window).addr(), LaneId::NONE),
            Place::Supplied { addr, .. } => (*addr, LaneId::NONE),
        };
        let born = self.lanes.shard_mut(lane).served(size, as_expected);
        if let Some(budget) = budget {
            budget.charge(size);
        }
        self.count_out(lane, &place, requested, size);
        let allocation = Allocation {
            addr,
            size,
            requested,
            lane,
            place,
            uses: Vec::new(),
            waits: 0,
            waits_for_turn: false,
            is_lent_only: false,
            is_settled: false,
            is_noted: false,
            born,
            budget,
        };
        let slot = self.allocations_of(shard).add(allocation);
        if self.log.is_some() {
            self.log_window(AllocationId { shard, slot }, true);
        }
        addr
    }

    /// Removes an allocation. Its block or window is still taken.
    #[inline]
    fn end(&mut self, id: AllocationId) -> Place {
        let Allocation { size, requested, lane, born, is_lent_only, .. } = *self.allocation(id);
        self.lanes.shard_mut(lane).ended(size, born);
        if self.log.is_some() {
            if !is_lent_only {
                self.log_completed(id);
            }
            self.log_window(id, false);
        }
        let place = self.allocations_of(id.shard).remove(id.slot);
        self.count_completed(lane, &place, requested, size, is_lent_only);
        place
    }

    /// Makes the memory of an allocation free for other requests.
    #[inline]
    fn complete(&mut self, id: AllocationId) {
        let Allocation { lane, is_settled, .. } = *self.allocation(id);
        match self.end(id) {
            Place::Home { heap, block } => self.release(lane, heap, block, is_settled),
            Place::Asleep { heap, block } => self.heap_mut(heap).release_asleep(block),
            Place::Window { window, parts } => {
                for (heap, block) in parts {
                    self.release(lane, heap, block, is_settled);
                }
                self.windows.rest(window);
            }
            Place::Supplied { addr, .. } => self.supplied.release(addr),
        }
    }

    /// Frees a block of an allocation of `lane`. If it is settled, no fence has to cover it; a block in another lane's
    /// heap was lent and is settled by now.
    #[inline]
    fn release(&mut self, lane: LaneId, heap: HeapId, block: u32, is_settled: bool) {
        if heap.lane() == lane && !is_settled {
            self.heap_mut(heap).release(block);
        } else {
            self.heap_mut(heap).release_behind(block, Fence::PAST);
        }
    }
}
