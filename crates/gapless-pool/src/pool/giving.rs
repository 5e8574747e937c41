//! Memory that goes back to the device, and the end of private pools.

use super::{Pool, PoolKey};
use crate::device::Device;
use crate::heap::Page;
use crate::ids::{HeapId, PageId};
use crate::mutants::{self, Mutant};

/// Released private pools keep at most this much free.
const RELEASED_MOST: u64 = 64 << 20;

impl<D: Device> Pool<D> {
    /// Gives every wholly free page of the default pool and of released private pools back to the device, after a wait
    /// for the present work of all streams. Does nothing during a capture. Returns the bytes.
    pub fn trim(&mut self) -> u64 {
        let given = self.trim_all();
        if given > 0 {
            self.note_emptied();
        }
        given
    }

    /// [`Pool::trim`] by the pool's own decision.
    pub(super) fn trim_all(&mut self) -> u64 {
        self.trim_where(Self::is_trimmed)
    }

    fn trim_where(&mut self, is_trimmed: impl Fn(&Self, HeapId) -> bool) -> u64 {
        if self.quiet && !mutants::is(Mutant::TrimInCapture) {
            return 0;
        }
        let before = self.stats.reserved.current;
        if self.asks() {
            if !self.are_frees_done() {
                return 0;
            }
        } else {
            self.wait_for_pending();
        }
        let heaps: Vec<HeapId> = self.lanes.heap_ids().filter(|&heap| is_trimmed(self, heap)).collect();
        let is_empty = |&heap: &HeapId| {
            let pool = self.lanes[heap.lane()].pool;
            self.heap(heap).is_bare() && !self.supplied.holds_of(pool)
        };
        if heaps.iter().all(is_empty) {
            return before - self.stats.reserved.current;
        }
        // No fence covers a supplier's segments, so they go after a wait in which nothing is freed.
        let has_segments = heaps.iter().any(|&heap| self.supplied.holds_of(self.lanes[heap.lane()].pool));
        let is_settled = if has_segments { self.settle_now().is_ok() } else { self.settle_or_ask(false) };
        if !is_settled {
            return before - self.stats.reserved.current;
        }
        self.give_back_supplied(&heaps);
        self.drop_all_idle_windows();
        for heap in heaps {
            self.give_back_settled(heap, u64::MAX);
        }
        before - self.stats.reserved.current
    }

    /// [`Pool::trim`] without a wait: gives back pages that no work uses any more. The other pages stay free until the
    /// next call. Does not ask suppliers to take their segments back. Returns the bytes.
    pub fn trim_behind_work(&mut self) -> u64 {
        self.trim_behind(true)
    }

    /// [`Pool::trim_behind_work`] for released private pools, once they hold `RELEASED_MOST` free bytes: a request in a
    /// capture cannot use what they keep.
    pub fn trim_released(&mut self) -> u64 {
        let is_released = |pool: PoolKey| pool.is_private() && self.released.contains(&pool);
        let lanes = self.lanes().into_iter().filter(|lane| is_released(lane.pool));
        let free: u64 = lanes.map(|lane| lane.reserved.saturating_sub(lane.allocated)).sum();
        if free >= RELEASED_MOST { self.trim_behind(false) } else { 0 }
    }

    fn trim_behind(&mut self, is_of_all: bool) -> u64 {
        if self.quiet {
            return 0;
        }
        let before = self.stats.reserved.current;
        self.poll();
        let is_wanted = |pool: PoolKey| is_of_all || pool.is_private();
        let heaps = self.lanes.heap_ids().filter(|heap| is_wanted(self.lanes[heap.lane()].pool));
        let heaps: Vec<HeapId> = heaps.filter(|&heap| self.is_trimmed(heap)).collect();
        // Windows of released pools go before their pages. Those of the default pool keep theirs for one more request.
        for lane in self.windows.lanes() {
            if self.lanes[lane].pool.is_private() && self.is_trimmed(lane.large()) {
                self.drop_idle_windows_of(lane);
            }
        }
        for heap in heaps {
            self.give_back_settled(heap, u64::MAX);
        }
        if is_of_all {
            self.drop_all_idle_windows();
        }
        before.saturating_sub(self.stats.reserved.current)
    }

    /// True if free pages could be given back as soon as work or a capture ends.
    pub fn keeps_free_pages(&self) -> bool {
        let mut heaps = self.lanes.heap_ids().filter(|&heap| self.is_trimmed(heap));
        self.is_waiting_for_work() || heaps.any(|heap| self.heap(heap).whole() > 0)
    }

    /// Gives back the memory that work still used when a soft limit was exceeded. False if that work is not done yet.
    pub(super) fn pay_owed(&mut self) -> bool {
        if self.quiet {
            return self.owed.is_empty();
        }
        self.poll();
        let before = self.owed.len();
        let mut owed = std::mem::take(&mut self.owed);
        owed.retain(|&(lane, due)| !self.fences.is_done(lane, due));
        let is_more_settled = owed.len() < before;
        self.owed = owed;
        if is_more_settled {
            self.trim_behind_work();
        }
        self.owed.is_empty()
    }

    /// Lists the lanes with free pages, which go back to the device behind the lanes' next turns.
    pub(super) fn owe(&mut self) {
        for lane in self.lanes.ids() {
            let due = self.fences.open(lane);
            let shard = self.lanes.shard_mut(lane);
            let has_free = shard.heaps.iter().any(|heap| heap.whole() > 0);
            if has_free && !self.owed.iter().any(|(owing, _)| *owing == lane) {
                shard.turn_is_wanted = true;
                self.owed.push((lane, due));
            }
        }
    }

    /// True if free pages of a heap may be given back. A private pool in use keeps them, because graphs remember
    /// addresses.
    pub(super) fn is_trimmed(&self, heap: HeapId) -> bool {
        let pool = self.lanes[heap.lane()].pool;
        !pool.is_private() || self.released.contains(&pool) || mutants::is(Mutant::TrimUsedPools)
    }

    /// Gives back wholly free pages of a heap until `most` bytes are reached, those in use behind a fence. Returns the
    /// bytes.
    pub(super) fn give_back_pages(&mut self, heap: HeapId, most: u64) -> u64 {
        self.give_back_where(heap, most, |_| true)
    }

    /// [`Pool::give_back_pages`] for those that no work uses any more.
    pub(super) fn give_back_settled(&mut self, heap: HeapId, most: u64) -> u64 {
        let done = self.fences.done(heap.lane());
        self.give_back_where(heap, most, |page| page.freed <= done)
    }

    fn give_back_where(&mut self, heap: HeapId, most: u64, may_go: impl Fn(&Page) -> bool) -> u64 {
        let mut given = 0;
        for page in (0..self.heap(heap).pages().len()).rev().map(PageId::new) {
            if given >= most {
                break;
            }
            // Pages at the end may have left the heap with an earlier one.
            let Some(there) = self.heap(heap).pages().get(page.index()) else { continue };
            let is_mapped_again = there.windows > 0 && !mutants::is(Mutant::GivePagesOfWindows);
            if !is_mapped_again && there.is_free() && may_go(there) {
                given += there.size;
                self.give_back_page(heap, page);
            }
        }
        given
    }

    /// Gives back a wholly free page that no window has mapped.
    pub(super) fn give_back_page(&mut self, heap: HeapId, page: PageId) {
        if let Some(handle) = self.heap_mut(heap).give_up(page) {
            self.home_leaves(heap, page, Some(handle));
        }
    }

    /// [`Pool::trim`] for one private pool. A pool in use keeps what it has.
    pub fn trim_pool(&mut self, pool: PoolKey) -> u64 {
        if !self.released.contains(&pool) && !mutants::is(Mutant::TrimPoolInUse) {
            return 0;
        }
        self.trim_where(|this, heap| this.lanes[heap.lane()].pool == pool)
    }

    /// Marks a private pool as used: its memory stays.
    pub fn use_pool(&mut self, pool: PoolKey) {
        self.released.remove(&pool);
    }

    /// Marks a private pool as released: its free memory may be given back. Replays of its graphs may still run on
    /// memory that was freed long before, so the present fence covers all of it.
    pub fn release_pool(&mut self, pool: PoolKey) {
        self.stays_home.remove(&pool);
        if !pool.is_private() || !self.released.insert(pool) || mutants::is(Mutant::ForgetReplays) {
            return;
        }
        let heaps: Vec<HeapId> = {
            let of = |heap: &HeapId| self.lanes[heap.lane()].pool == pool;
            self.lanes.heap_ids().filter(of).collect()
        };
        for heap in heaps {
            self.fences.wall(heap.lane());
            let fence = self.fences.open(heap.lane());
            self.heap_mut(heap).used_until(fence);
        }
    }

    /// Keeps all memory of a private pool at home, without windows, because it may sleep one day and other pages will
    /// then lie behind its addresses. Holds until the pool is released.
    pub fn keep_at_home(&mut self, pool: PoolKey) {
        if pool.is_private() {
            self.stays_home.insert(pool);
        }
    }
}
