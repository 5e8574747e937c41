//! Memory that sleeps: private pools whose physical memory goes back to the device while their addresses stay.
//!
//! # One sleep
//! 1. [`Pool::begin_sleep`] waits for all work, closes the pools' heaps and returns the bytes to keep. Nothing is
//!    unmapped yet: the caller copies them.
//! 2. [`Pool::finish_sleep`] unmaps and releases. [`Pool::finish_wake`] instead undoes the first step.
//!
//! # One waking
//! 1. [`Pool::begin_wake`] puts new memory behind the addresses, all of it or nothing, in pages as large as the pool
//!    allows, and returns the bytes that the caller copies back.
//! 2. [`Pool::finish_wake`] opens the heaps. [`Pool::finish_sleep`] instead undoes the first step.
//!
//! Two pools that do not fit side by side change places page by page: [`Pool::give_up`] releases pages of the one as
//! soon as they are copied, and [`Pool::plan_wake`] and [`Pool::fill_page`] put pages of the other in their place.
//!
//! Between two steps the program may free allocations and make requests; those are served from new pages, which are
//! awake. Sleeping memory is not counted as allocated, active or reserved.
//!
//! A pool of graphs keeps every byte of its pages, because graphs also use memory that is free in it. Other pools keep
//! only their allocations, and their free memory goes back for good.

use super::windows::Window;
use super::{AllocationId, Place, Pool, PoolKey};
use crate::allocations::Allocation;
use crate::device::{Device, DeviceError, PageHandle, Refusal, StreamHandle};
use crate::heap::{GRANULE, Heap, Page};
use crate::ids::HeapId;
use crate::mutants::{self, Mutant};

/// New pages are at most this part of the memory that wakes. So one small block holds no more.
const PART: u64 = 16;
/// The largest page for memory that wakes.
const LARGEST_PAGE: u64 = 1 << 30;
/// A region grows by this part of what it holds.
const AHEAD: u64 = 32;

/// Reason why memory does not go to sleep or wake up. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SleepError {
    /// A capture is open, which forbids waiting and copying.
    Captured,
    /// It sleeps already, or it is awake already.
    Already,
    /// The pool has an allocator of its own, which owns the memory.
    Supplied,
    /// The pool has windows: see [`Pool::keep_at_home`].
    Windows,
    /// Another process maps pages of the pool, and would keep the old memory.
    Shared,
    /// This stream still uses freed memory; `None` if the stream is unknown.
    InUse(Option<StreamHandle>),
    /// No memory to wake up in: the missing bytes, and the device's answer.
    OutOfMemory { missing: u64, device: DeviceError },
    /// The device failed.
    Device(DeviceError),
}

/// The state of a sleeper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Its memory is there, and is being copied out or in.
    Between,
    Asleep,
}

/// A pool that sleeps, or is between sleep and waking.
#[derive(Clone, Copy, Debug)]
struct Sleeper {
    pool: PoolKey,
    phase: Phase,
    /// True if every byte of its pages was kept, because graphs used it.
    is_whole: bool,
}

/// Invariant: a page sleeps only in a heap of a pool that is listed.
#[derive(Debug, Default)]
pub(super) struct Sleepers {
    all: Vec<Sleeper>,
    /// Pools that are made for sleeping. They get large pages.
    regions: Vec<PoolKey>,
}

impl Sleepers {
    fn find(&self, pool: PoolKey) -> Option<&Sleeper> {
        self.all.iter().find(|sleeper| sleeper.pool == pool)
    }

    fn phase(&self, pool: PoolKey) -> Option<Phase> {
        self.find(pool).map(|sleeper| sleeper.phase)
    }

    fn set(&mut self, pools: &[PoolKey], phase: Phase) {
        for sleeper in self.all.iter_mut().filter(|sleeper| pools.contains(&sleeper.pool)) {
            sleeper.phase = phase;
        }
    }

    fn end(&mut self, pools: &[PoolKey]) {
        self.all.retain(|sleeper| !pools.contains(&sleeper.pool));
    }

    pub(super) fn is_region(&self, pool: PoolKey) -> bool {
        self.regions.contains(&pool)
    }
}

impl<D: Device> Pool<D> {
    /// Marks a private pool as made for memory that sleeps. Its free memory may be given back at any time.
    pub fn add_region(&mut self, pool: PoolKey) {
        if !self.sleepers.is_region(pool) {
            self.sleepers.regions.push(pool);
            self.release_pool(pool);
        }
    }

    /// True if a pool sleeps, or is between sleep and waking.
    pub fn sleeps(&self, pool: PoolKey) -> bool {
        self.sleepers.phase(pool).is_some()
    }

    /// Bytes of sleeping allocations in these pools.
    pub fn asleep_in(&self, pools: &[PoolKey]) -> u64 {
        let asleep = self.ids().map(|id| self.allocation(id)).filter(|a| a.is_asleep());
        asleep.filter(|a| pools.contains(&self.lanes[a.lane].pool)).map(|a| a.size).sum()
    }

    /// Bytes of allocations that callers hold in these pools, and bytes of their pages.
    pub fn awake_in(&self, pools: &[PoolKey]) -> (u64, u64) {
        let lanes = self.lanes().into_iter().filter(|lane| pools.contains(&lane.pool));
        lanes.fold((0, 0), |(live, held), lane| (live + lane.allocated, held + lane.reserved))
    }

    /// True if the allocation at `addr` sleeps.
    pub fn is_asleep(&self, addr: u64) -> bool {
        self.find(addr).is_some_and(|id| self.allocation(id).is_asleep())
    }

    /// True if pages are held whose allocations sleep.
    pub(super) fn holds_asleep(&self) -> bool {
        self.heaps().flat_map(Heap::pages).any(|page| page.is_asleep && page.handle.is_some())
    }

    /// The pages that these pools hold.
    pub fn pages_of(&self, pools: &[PoolKey]) -> impl Iterator<Item = PageHandle> + '_ {
        let heaps = self.heaps_of(pools).into_iter();
        heaps.flat_map(|heap| self.heap(heap).pages().iter().filter_map(|page| page.handle))
    }

    fn heaps_of(&self, pools: &[PoolKey]) -> Vec<HeapId> {
        let lanes = self.lanes.iter().filter(|(_, owner)| pools.contains(&owner.pool));
        lanes.flat_map(|(lane, _)| [lane.small(), lane.large()]).collect()
    }

    fn ids_of(&self, pools: &[PoolKey]) -> Vec<AllocationId> {
        let is_of = |id: &AllocationId| pools.contains(&self.lanes[self.allocation(*id).lane].pool);
        self.ids().filter(is_of).collect()
    }

    /// True if graphs use free memory of a pool.
    fn is_of_graphs(&self, pool: PoolKey) -> bool {
        !self.released.contains(&pool)
    }

    /// True if every byte of a heap is kept over its sleep.
    fn is_kept_whole(&self, heap: HeapId) -> bool {
        let pool = self.lanes[heap.lane()].pool;
        self.sleepers.find(pool).is_some_and(|sleeper| sleeper.is_whole)
    }

    /// The ranges of a heap that are kept over its sleep.
    fn kept(&self, heap: HeapId) -> Vec<(u64, u64)> {
        if self.is_kept_whole(heap) {
            self.heap(heap).sleeping_pages(true)
        } else {
            self.heap(heap).sleeping_blocks()
        }
    }

    /// Waits for all work and closes the heaps of these pools. Returns the ranges to keep, by address.
    ///
    /// # Errors
    /// If the pools cannot sleep now. Then nothing has changed.
    pub fn begin_sleep(&mut self, pools: &[PoolKey]) -> Result<Vec<(u64, u64)>, SleepError> {
        if self.quiet {
            return Err(SleepError::Captured);
        }
        if pools.iter().any(|pool| self.sleeps(*pool)) {
            return Err(SleepError::Already);
        }
        if pools.iter().any(|pool| self.supplied.has(*pool)) {
            return Err(SleepError::Supplied);
        }
        let is_shared = |page: PageHandle| self.device.is_shared(page);
        if !mutants::is(Mutant::SleepShared) && self.pages_of(pools).any(is_shared) {
            return Err(SleepError::Shared);
        }
        self.wait_for_pending();
        if !mutants::is(Mutant::SleepUnderWork) {
            self.settle_now().map_err(SleepError::Device)?;
        }
        // All fences are done, so a window still leaves only if the device does not unmap it.
        let is_theirs = |window: &Window| pools.contains(&self.lanes[window.lane()].pool);
        if self.windows.named(is_theirs).is_some() || self.leaving.has_windows() {
            return Err(SleepError::Windows);
        }
        let ids = self.ids_of(pools);
        // No fence covers the work of another context.
        let uses = ids.iter().flat_map(|id| &self.allocation(*id).uses);
        if let Some(&stream) = uses.clone().find(|stream| !self.device.is_covered(**stream)) {
            return Err(SleepError::InUse(Some(stream)));
        }
        if let Some(&id) = ids.iter().find(|id| self.allocation(**id).waits > 0) {
            let mut waiting = self.pending.by_stream();
            let user = waiting.find(|(_, queue)| queue.iter().any(|waiting| waiting.id == id));
            return Err(SleepError::InUse(user.map(|(stream, _)| stream)));
        }
        let heaps = self.heaps_of(pools);
        let sleepers = pools.iter().map(|&pool| {
            let is_whole = self.is_of_graphs(pool);
            Sleeper { pool, phase: Phase::Between, is_whole }
        });
        let sleepers: Vec<Sleeper> = sleepers.collect();
        self.sleepers.all.extend(sleepers);
        for &heap in &heaps {
            if !self.is_kept_whole(heap) {
                self.give_back_pages(heap, u64::MAX);
            }
        }
        for id in ids {
            self.count_free(id);
            self.log_completed(id);
            let Allocation { lane, requested, size, place: Place::Home { heap, block }, .. } =
                *self.allocation(id)
            else {
                // All memory of private pools that sleep lies at home.
                continue;
            };
            self.count_completed(lane, &Place::Home { heap, block }, requested, size, false);
            self.allocation_mut(id).place = Place::Asleep { heap, block };
        }
        for &heap in &heaps {
            self.heap_mut(heap).fall_asleep();
        }
        let mut kept: Vec<(u64, u64)> = heaps.iter().flat_map(|&heap| self.kept(heap)).collect();
        kept.sort_unstable();
        Ok(kept)
    }

    /// Gives the memory of pools between sleep and waking back to the device. Returns the bytes. What the device does
    /// not unmap stays held.
    pub fn finish_sleep(&mut self, pools: &[PoolKey]) -> u64 {
        let mut given = 0;
        for heap in self.heaps_of(pools) {
            for (addr, size) in self.heap(heap).sleeping_pages(true) {
                given += self.take_away(heap, addr, size);
            }
        }
        self.sleepers.set(pools, Phase::Asleep);
        given
    }

    /// Unmaps and releases neighbouring sleeping pages. Returns the bytes; 0 if the device refuses.
    fn take_away(&mut self, heap: HeapId, addr: u64, size: u64) -> u64 {
        if self.device.unmap(addr, size).is_err() {
            return 0;
        }
        self.log_pages(heap, addr, size, false);
        let mut given = 0;
        for (page, bytes) in self.heap_mut(heap).take_handles(addr, size) {
            self.device.release(page, bytes);
            self.count_page_out(heap, bytes);
            given += bytes;
        }
        self.stats.device_frees += 1;
        given
    }

    /// Pages whose memory is still there, of pools that fall asleep, by address.
    pub fn sleeping_pages(&self, pools: &[PoolKey]) -> Vec<(u64, u64)> {
        let heaps = self.heaps_of(pools).into_iter();
        let pages = heaps.flat_map(|heap| self.heap(heap).pages());
        let held = pages.filter(|page| page.is_asleep && page.handle.is_some());
        let mut pages: Vec<(u64, u64)> = held.map(|page| (page.addr, page.size)).collect();
        pages.sort_unstable();
        pages
    }

    /// Gives sleeping pages back to the device before the others of their pools, which count as asleep from now on. The
    /// range is whole neighbouring pages, whose bytes the caller has copied. Returns the bytes; what the device does
    /// not unmap stays held.
    pub fn give_up(&mut self, pools: &[PoolKey], addr: u64, size: u64) -> u64 {
        self.sleepers.set(pools, Phase::Asleep);
        let has = |heap: &HeapId| {
            self.heap(*heap).sleeping_pages(true).iter().any(|r| r.0 <= addr && addr < r.0 + r.1)
        };
        let heap = self.heaps_of(pools).into_iter().find(has);
        heap.map_or(0, |heap| self.take_away(heap, addr, size))
    }

    /// Prepares a waking that fills its pages one by one ([`Pool::fill_page`]). Returns the pages without memory, by
    /// address, each of at most `most` bytes. [`Pool::begin_wake`] follows when all of them are filled;
    /// [`Pool::finish_sleep`] cancels it. `spare` is what the caller will give back meanwhile.
    ///
    /// # Errors
    /// If the memory is not enough even with that. Then nothing has changed.
    pub fn plan_wake(
        &mut self,
        pools: &[PoolKey],
        spare: u64,
        most: u64,
    ) -> Result<Vec<(u64, u64)>, SleepError> {
        if self.quiet {
            return Err(SleepError::Captured);
        }
        if pools.iter().any(|pool| self.sleepers.phase(*pool) != Some(Phase::Asleep)) {
            return Err(SleepError::Already);
        }
        let heaps = self.heaps_of(pools);
        for &heap in &heaps {
            if !self.is_kept_whole(heap) {
                self.let_go_of_free(heap);
            }
        }
        let wanted: u64 = self.stretches(&heaps).iter().map(|(_, _, size)| size).sum();
        self.make_room(wanted.saturating_sub(spare))?;
        let page = (wanted / PART).clamp(GRANULE, LARGEST_PAGE).min(most.max(GRANULE));
        for (heap, addr, size) in self.stretches(&heaps) {
            self.recut(heap, addr, size, 1 << page.ilog2());
        }
        let pages = heaps.iter().flat_map(|&heap| self.heap(heap).pages());
        let empty = pages.filter(|page| page.is_asleep && page.handle.is_none());
        let mut pages: Vec<(u64, u64)> = empty.map(|page| (page.addr, page.size)).collect();
        pages.sort_unstable();
        Ok(pages)
    }

    /// Puts memory behind one page that [`Pool::plan_wake`] returned. False, with no change, if there was no room.
    ///
    /// # Errors
    /// If the device refuses. The page may then have memory that is not granted.
    pub fn fill_page(&mut self, pools: &[PoolKey], addr: u64, size: u64) -> Result<bool, SleepError> {
        if self.room() < size {
            return Ok(false);
        }
        let is_here = |heap: &HeapId| {
            self.heap(*heap).pages().iter().any(|p| p.addr == addr && p.is_asleep && p.handle.is_none())
        };
        // The page is gone if its allocations were freed meanwhile.
        let Some(heap) = self.heaps_of(pools).into_iter().find(is_here) else { return Ok(true) };
        match self.put_memory(heap, addr, size).and_then(|()| self.device.grant(addr, size)) {
            Ok(()) => {
                self.stats.device_allocs += 1;
                Ok(true)
            }
            Err(DeviceError::OutOfMemory) => Ok(false),
            Err(device @ DeviceError::Driver(_)) => Err(SleepError::Device(device)),
            Err(device) => Err(SleepError::OutOfMemory { missing: size, device }),
        }
    }

    /// Creates and maps a sleeping page.
    fn put_memory(&mut self, heap: HeapId, addr: u64, size: u64) -> Result<(), DeviceError> {
        let page: PageHandle = self.device.create(size)?;
        self.device.map(addr, size, page).inspect_err(|_| self.device.release(page, size))?;
        self.heap_mut(heap).put_handle(addr, page);
        self.count_page_in(heap, size);
        self.log_pages(heap, addr, size, true);
        Ok(())
    }

    /// Puts new memory behind the addresses of pools that sleep. Returns the bytes to copy back, as address and size.
    ///
    /// # Errors
    /// If the memory is not enough, or the device refuses. Then the pools sleep on, whole.
    pub fn begin_wake(&mut self, pools: &[PoolKey]) -> Result<Vec<(u64, u64)>, SleepError> {
        if self.quiet {
            return Err(SleepError::Captured);
        }
        if pools.iter().any(|pool| self.sleepers.phase(*pool) != Some(Phase::Asleep)) {
            return Err(SleepError::Already);
        }
        let heaps = self.heaps_of(pools);
        for &heap in &heaps {
            if !self.is_kept_whole(heap) {
                self.let_go_of_free(heap);
            }
        }
        let wanted: u64 = self.stretches(&heaps).iter().map(|(_, _, size)| size).sum();
        self.make_room(wanted)?;
        let page = (wanted / PART).clamp(GRANULE, LARGEST_PAGE);
        for (heap, addr, size) in self.stretches(&heaps) {
            self.recut(heap, addr, size, 1 << page.ilog2());
        }
        for &heap in &heaps {
            if let Err(device) = self.fill_asleep(heap) {
                self.finish_sleep(pools);
                return Err(match device {
                    DeviceError::Driver(_) => SleepError::Device(device),
                    device => SleepError::OutOfMemory { missing: wanted, device },
                });
            }
        }
        self.sleepers.set(pools, Phase::Between);
        let mut kept: Vec<(u64, u64)> = heaps.iter().flat_map(|&heap| self.kept(heap)).collect();
        kept.sort_unstable();
        Ok(kept)
    }

    /// Turns sleeping memory without an allocation into holes, to the granule: it need not wake.
    fn let_go_of_free(&mut self, heap: HeapId) {
        for (_, addr, size) in self.stretches(&[heap]) {
            self.recut(heap, addr, size, GRANULE);
        }
        if self.heap_mut(heap).bury() > 0 {
            self.heap_mut(heap).draw_in();
        }
    }

    /// Sleeping pages without memory as heap, address and size; neighbours are joined.
    fn stretches(&self, heaps: &[HeapId]) -> Vec<(HeapId, u64, u64)> {
        let of = |&heap: &HeapId| {
            self.heap(heap).sleeping_pages(false).into_iter().map(move |(addr, size)| (heap, addr, size))
        };
        heaps.iter().flat_map(of).collect()
    }

    /// Checks that `wanted` bytes can be had. If they cannot, gives free memory back first.
    fn make_room(&mut self, wanted: u64) -> Result<(), SleepError> {
        if self.room() < wanted {
            self.trim_all();
        }
        let room = self.room();
        if room >= wanted {
            return Ok(());
        }
        let is_limit = self.options.limit.is_some_and(|limit| self.stats.reserved.current + wanted > limit);
        let device = if is_limit { DeviceError::Refused(Refusal::Limit) } else { DeviceError::OutOfMemory };
        Err(SleepError::OutOfMemory { missing: wanted - room, device })
    }

    /// Cuts a stretch into pages of `most` bytes, and smaller ones for the rest.
    fn recut(&mut self, heap: HeapId, addr: u64, size: u64, most: u64) {
        let (mut sizes, mut left) = (Vec::new(), size);
        while left > 0 {
            let page = most.min(1 << left.ilog2());
            sizes.push(page);
            left -= page;
        }
        if let Some((behind, by)) = self.heap_mut(heap).recut(addr, &sizes) {
            self.windows.renumber(heap, behind, by);
        }
    }

    /// Creates and maps every page of a heap that sleeps, and grants all of it.
    fn fill_asleep(&mut self, heap: HeapId) -> Result<(), DeviceError> {
        let empty: Vec<(u64, u64)> = {
            let pages = self.heap(heap).pages().iter();
            pages.filter(|page| page.is_asleep && page.handle.is_none()).map(|p| (p.addr, p.size)).collect()
        };
        for (addr, size) in empty {
            self.put_memory(heap, addr, size)?;
        }
        // This includes pages that the device did not unmap: they may never have been granted.
        for (addr, size) in self.heap(heap).sleeping_pages(true) {
            self.device.grant(addr, size)?;
            self.stats.device_allocs += 1;
        }
        Ok(())
    }

    /// Opens the heaps of pools whose memory is there. Returns the allocations that are awake now, by address.
    pub fn finish_wake(&mut self, pools: &[PoolKey]) -> Vec<u64> {
        let mut woken = Vec::new();
        for heap in self.heaps_of(pools) {
            self.heap_mut(heap).wake_up();
        }
        for id in self.ids_of(pools) {
            let Allocation { addr, lane, requested, size, place: Place::Asleep { heap, block }, .. } =
                *self.allocation(id)
            else {
                continue;
            };
            let place = Place::Home { heap, block };
            self.count_out(lane, &place, requested, size);
            self.allocation_mut(id).place = place;
            woken.push(addr);
        }
        self.sleepers.end(pools);
        for heap in self.heaps_of(pools) {
            if !self.is_of_graphs(self.lanes[heap.lane()].pool) {
                // No work has used these pages since they woke.
                self.give_back_pages(heap, u64::MAX);
            }
        }
        woken.sort_unstable();
        woken
    }

    /// Frees an allocation that sleeps. It is no longer in the statistics, and no work uses it.
    pub(super) fn free_asleep(&mut self, id: AllocationId) {
        self.uncharge(id);
        let place = self.allocations_of(id.shard).remove(id.slot);
        if let Place::Asleep { heap, block } = place {
            self.heap_mut(heap).release_asleep(block);
        }
    }

    /// The size of the next page of a region if `left` bytes are missing. Large, because few pages sleep and wake
    /// faster.
    pub(super) fn region_page(&self, heap: HeapId, left: u64) -> Option<u64> {
        self.is_region_heap(heap).then(|| 1 << left.clamp(GRANULE, LARGEST_PAGE).ilog2())
    }

    /// The bytes to take if a region's heap of large requests misses `bytes`: a part of what it holds, so that its
    /// pages are large. What stays free goes back with the first sleep.
    pub(super) fn region_growth(&self, heap: HeapId, bytes: u64) -> Option<u64> {
        let held = self.heap(heap).end() - self.heap(heap).start();
        let ahead = (held / AHEAD).min(LARGEST_PAGE) / GRANULE * GRANULE;
        (heap.is_large() && self.is_region_heap(heap)).then_some(bytes.max(ahead))
    }

    fn is_region_heap(&self, heap: HeapId) -> bool {
        self.sleepers.is_region(self.lanes[heap.lane()].pool)
    }

    /// Compares each pool's state with its pages.
    pub(super) fn check_sleepers(&self) -> Result<(), String> {
        for (lane, shard) in self.lanes.iter().map(|(_, owner)| owner).zip(self.lanes.shards()) {
            let asleep = shard.heaps.iter().flat_map(Heap::pages).filter(|page| page.is_asleep);
            let phase = self.sleepers.phase(lane.pool);
            let is_wrong = |page: &Page| match phase {
                None => true,
                Some(Phase::Asleep) => false,
                Some(Phase::Between) => page.handle.is_none(),
            };
            if let Some(page) = asleep.clone().find(|page| is_wrong(page)) {
                return Err(format!("the page at {:#x} sleeps in a pool that is {phase:?}", page.addr));
            }
        }
        Ok(())
    }
}
