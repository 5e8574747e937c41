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
        for at in 0..self.lanes.len() {
            if let Ok(event) = self.device.record(self.lanes[at].stream) {
                let _ = self.device.wait(event);
                self.device.discard(event);
            }
        }
        while let Some((id, event)) = self.retiring.pop_front() {
            self.device.discard(event);
            self.drop_window(id);
        }
        let idle: Vec<u32> = self.idle.values().flat_map(FreeSet::iter).map(|entry| entry.block).collect();
        self.idle.clear();
        self.idle_count = 0;
        for id in idle {
            self.drop_window(id);
        }
        let before = self.stats.reserved.current;
        for at in 0..2 * self.shards.len() {
            let pool = self.lanes[lane_of(at as u32) as usize].pool;
            if pool.is_private() && !self.released.contains(&pool) {
                continue;
            }
            self.give_back_pages(at);
        }
        before - self.stats.reserved.current
    }

    /// Gives every wholly free page of a heap back. No queued work uses them any more.
    fn give_back_pages(&mut self, at: usize) {
        for page in 0..self.heap(at as u32).pages().len() as u32 {
            let Page { addr, size, windows, .. } = self.heap(at as u32).pages()[page as usize];
            if windows == 0
                && self.heap(at as u32).pages()[page as usize].is_free()
                && let Some(handle) = self.heap_mut(at as u32).give_up(page)
            {
                let _ = self.device.unmap(addr, size);
                self.device.release(handle, size);
                self.count_page_out(at as u32, size);
                self.stats.device_frees += 1;
                self.log_pages(at as u32, addr, size, false);
            }
        }
        self.heap_mut(at as u32).draw_in();
    }

    /// [`Pool::trim`] for one private pool, whether it is used or not: what is free in it goes.
    pub fn trim_pool(&mut self, pool: PoolKey) -> u64 {
        self.wait_for_pending();
        let before = self.stats.reserved.current;
        for at in 0..2 * self.shards.len() {
            let lane = self.lanes[lane_of(at as u32) as usize];
            if lane.pool != pool {
                continue;
            }
            if let Ok(event) = self.device.record(lane.stream) {
                let _ = self.device.wait(event);
                self.device.discard(event);
            }
            self.give_back_pages(at);
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
