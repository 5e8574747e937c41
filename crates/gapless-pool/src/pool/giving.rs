//! Memory given back to the device, and private pools that end.

use super::{Pool, PoolKey, lane_of};
use crate::device::Device;
use crate::free_set::FreeSet;
use crate::heap::Page;

impl<D: Device> Pool<D> {
    /// Gives every wholly free page back to the device, of the default pool and of private pools that nobody uses: after waiting for the
    /// streams' present work. Returns the bytes.
    pub fn trim(&mut self) -> u64 {
        self.wait_for_pending();
        for lane in 0..self.lanes.len() as u32 {
            self.wait_for_lane(lane);
        }
        self.drop_all_idle_windows();
        let before = self.stats.reserved.current;
        for at in 0..2 * self.shards.len() {
            if self.is_trimmed(at as u32) {
                self.give_back_pages(at, u64::MAX);
            }
        }
        before - self.stats.reserved.current
    }

    /// Whether what is free in a heap may be given back: a private pool that is used keeps it, since graphs remember addresses.
    pub(super) fn is_trimmed(&self, heap: u32) -> bool {
        let pool = self.lanes[lane_of(heap) as usize].pool;
        !pool.is_private() || self.released.contains(&pool)
    }

    /// Waits on the host for the present work of a lane's stream.
    pub(super) fn wait_for_lane(&mut self, lane: u32) {
        if let Ok(event) = self.device.record(self.lanes[lane as usize].stream) {
            let _ = self.device.wait(event);
            self.device.discard(event);
        }
    }

    /// Lets go of all windows that no allocation uses. No queued work uses them any more.
    pub(super) fn drop_all_idle_windows(&mut self) {
        while let Some((id, event)) = self.retiring.pop_front() {
            self.device.discard(event);
            self.drop_window(id);
        }
        let mut idle: Vec<u32> =
            self.idle.values().flat_map(FreeSet::iter).map(|entry| entry.block).collect();
        idle.sort_unstable();
        self.idle.clear();
        self.idle_count = 0;
        for id in idle {
            self.drop_window(id);
        }
    }

    /// Gives wholly free pages of a heap back, `most` bytes or a page more. No queued work uses them any more. The bytes.
    pub(super) fn give_back_pages(&mut self, at: usize, most: u64) -> u64 {
        let mut given = 0;
        for page in (0..self.heap(at as u32).pages().len() as u32).rev() {
            if given >= most {
                break;
            }
            let Page { addr, size, windows, .. } = self.heap(at as u32).pages()[page as usize];
            if windows == 0
                && self.heap(at as u32).pages()[page as usize].is_free()
                && let Some(handle) = self.heap_mut(at as u32).give_up(page)
            {
                let _ = self.device.unmap(addr, size);
                given += size;
                self.device.release(handle, size);
                self.count_page_out(at as u32, size);
                self.stats.device_frees += 1;
                self.log_pages(at as u32, addr, size, false);
            }
        }
        self.heap_mut(at as u32).draw_in();
        given
    }

    /// [`Pool::trim`] for one private pool, whether it is used or not: what is free in it goes.
    pub fn trim_pool(&mut self, pool: PoolKey) -> u64 {
        self.wait_for_pending();
        let before = self.stats.reserved.current;
        for at in 0..2 * self.shards.len() {
            let lane = lane_of(at as u32);
            if self.lanes[lane as usize].pool != pool {
                continue;
            }
            self.wait_for_lane(lane);
            self.give_back_pages(at, u64::MAX);
        }
        before - self.stats.reserved.current
    }

    /// A private pool is used: what is in it stays.
    pub fn use_pool(&mut self, pool: PoolKey) {
        self.released.retain(|p| *p != pool);
    }

    /// Nobody uses a private pool any more: what is free in it may be given back.
    pub fn release_pool(&mut self, pool: PoolKey) {
        if pool.is_private() && !self.released.contains(&pool) {
            self.released.push(pool);
        }
    }
}
