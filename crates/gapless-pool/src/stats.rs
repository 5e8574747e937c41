//! The pool's counters. Names have the same meaning as in PyTorch's statistics.

/// A quantity: its present value, its peak, and the sum of all that was ever added.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gauge {
    pub current: u64,
    pub peak: u64,
    pub total: u64,
}

impl Gauge {
    #[inline]
    pub fn add(&mut self, amount: u64) {
        self.current += amount;
        self.total += amount;
        self.peak = self.peak.max(self.current);
    }

    #[inline]
    pub fn sub(&mut self, amount: u64) {
        debug_assert!(self.current >= amount, "{} - {amount}", self.current);
        self.current = self.current.wrapping_sub(amount);
    }
}

/// Requests of one size class: the quantities of [`Stats`], of that class alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassStats {
    pub allocations: Gauge,
    pub allocated: Gauge,
    pub requested: Gauge,
    pub active_blocks: Gauge,
    pub active: Gauge,
    pub reserved: Gauge,
    pub pages: Gauge,
}

/// The pool's counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Allocations in callers' hands, and their block bytes. `requested` counts until the block is free again.
    pub allocations: Gauge,
    pub allocated: Gauge,
    pub requested: Gauge,
    /// The same until the block is free again, so pending frees count.
    pub active_blocks: Gauge,
    pub active: Gauge,
    /// Physical memory that is held, and the number of its pages.
    pub reserved: Gauge,
    pub pages: Gauge,
    /// The same for small requests, and for large ones.
    pub classes: [ClassStats; 2],
    /// Calls that took memory from the device, and that gave it back.
    pub device_allocs: u64,
    pub device_frees: u64,
    /// Requests that a window served, and windows that were made for requests.
    pub window_hits: u64,
    pub windows_made: u64,
    /// Windows that were mapped for private pools.
    pub private_windows: u64,
    /// Pages that were mapped a second time instead of taken from the device.
    pub harvested: u64,
    /// Pages that other streams lent.
    pub lent: u64,
    /// Times that the host waited for streams.
    pub waits: u64,
    pub retries: u64,
    /// Requests that would have failed without the ladder, by the rung that served them (`Rung`).
    pub ladder: [u64; 4],
    pub ooms: u64,
}

impl Stats {
    /// Moves held bytes from one class to the other, as if they had been given back and taken anew.
    #[inline]
    pub(crate) fn move_reserved(&mut self, bytes: u64, from: usize, to: usize) {
        if bytes > 0 {
            self.classes[from].reserved.sub(bytes);
            self.classes[to].reserved.add(bytes);
            self.reserved.total += bytes;
        }
    }
}
