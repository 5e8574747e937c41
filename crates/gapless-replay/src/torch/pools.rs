//! Bytes of private pools: the statistic `reserved_bytes_by_private_pools` (2.13 and later).

use super::{Shelf, Torch};
use crate::device::Device;
use gapless_trace::PoolId;

/// One quantity, with all that PyTorch tells of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    pub current: u64,
    pub peak: u64,
    /// Sums of the bytes added and of the bytes taken off.
    pub allocated: u64,
    pub freed: u64,
}

impl Account {
    fn add(&mut self, bytes: u64) {
        self.current += bytes;
        self.allocated += bytes;
        self.peak = self.peak.max(self.current);
    }

    fn sub(&mut self, bytes: u64) {
        self.current -= bytes;
        self.freed += bytes;
    }
}

/// Reserved bytes of one pool. Invariant: `all.current == small.current + large.current`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolReserved {
    pub all: Account,
    pub small: Account,
    pub large: Account,
}

impl PoolReserved {
    fn of(&mut self, small: bool) -> [&mut Account; 2] {
        [&mut self.all, if small { &mut self.small } else { &mut self.large }]
    }

    fn accounts(&mut self) -> [&mut Account; 3] {
        [&mut self.all, &mut self.small, &mut self.large]
    }

    pub(super) fn reset_peaks(&mut self) {
        self.accounts().into_iter().for_each(|a| a.peak = a.current);
    }

    pub(super) fn reset_totals(&mut self) {
        self.accounts().into_iter().for_each(|a| (a.allocated, a.freed) = (0, 0));
    }
}

impl<D: Device> Torch<D> {
    /// The bytes that each private pool holds and held, in the order of first use. A pool that gave everything back
    /// stays in the list.
    pub fn reserved_by_private_pools(&self) -> impl Iterator<Item = (PoolId, PoolReserved)> + '_ {
        self.pools.iter().skip(1).map(|pool| (pool.id, pool.reserved))
    }

    /// `shelf` took `bytes` from the device.
    pub(super) fn took(&mut self, shelf: u16, bytes: u64) {
        self.stats.reserved.add(bytes);
        let Shelf { pool, small, .. } = self.shelves[shelf as usize];
        if pool != 0 {
            self.pools[pool as usize].reserved.of(small).into_iter().for_each(|a| a.add(bytes));
        }
    }

    /// `shelf` gave `bytes` back to the device.
    pub(super) fn gave(&mut self, shelf: u16, bytes: u64) {
        self.stats.reserved.sub(bytes);
        let Shelf { pool, small, .. } = self.shelves[shelf as usize];
        if pool != 0 {
            self.pools[pool as usize].reserved.of(small).into_iter().for_each(|a| a.sub(bytes));
        }
    }
}
