//! No allocator at all: every request goes straight to the device (`cudaMalloc`), every free as well (`cudaFree`).
//!
//! Blocks are rounded to 512 bytes, and that size counts as reserved and is charged to the card. The real driver cuts
//! small requests out of 2 MiB slabs, so it holds more than this by up to one slab; how it places them is not
//! documented. This model shows the floor in bytes and the ceiling in driver time: each `cudaFree` waits for the device
//! on top of its price.

use crate::allocator::{Allocator, Inventory, Lane, LaneIndex, Oom, Slot, Stats};
use crate::device::Device;
use crate::models::ledger::{Ledger, round_up};
use crate::models::recipe::Recipe;
use crate::models::segments::Segments;
use crate::models::settings::{Keys, SettingsError, settings};
use gapless_trace::{Bytes, DeviceAddr};
use std::str::FromStr;

const UNIT: u64 = 512;

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ExactSettings {}

impl Recipe for ExactSettings {
    const NAME: &'static str = "exact";
    const ABOUT: &'static str = "no caching: every request goes to the device";
    const KEYS: Keys = &[];

    fn build<D: Device + 'static>(
        &self,
        device: D,
        lanes: &[Lane],
    ) -> Result<Box<dyn Allocator>, SettingsError> {
        Ok(Box::new(Exact::new(device, lanes, self)))
    }
}

impl FromStr for ExactSettings {
    type Err = SettingsError;

    fn from_str(text: &str) -> Result<ExactSettings, SettingsError> {
        settings(Self::NAME, Self::KEYS, text).map(|_| ExactSettings {})
    }
}

#[derive(Clone, Debug)]
pub struct Exact<D> {
    ledger: Ledger,
    segments: Segments<D>,
}

impl<D: Device> Exact<D> {
    #[must_use]
    pub fn new(device: D, _lanes: &[Lane], _settings: &ExactSettings) -> Exact<D> {
        Exact { ledger: Ledger::default(), segments: Segments::new(device) }
    }
}

impl<D: Device> Allocator for Exact<D> {
    fn alloc(&mut self, slot: Slot, size: Bytes, lane: LaneIndex) -> Result<DeviceAddr, Oom> {
        let rounded = round_up(size.0, UNIT);
        match self.segments.take(rounded, &mut self.ledger.stats) {
            Some(addr) => Ok(self.ledger.hold(slot, size, lane, (addr, rounded, 0))),
            None => Err(self.ledger.oom(size, rounded, self.segments.available())),
        }
    }

    fn free_requested(&mut self, slot: Slot) {
        self.ledger.free_requested(slot);
    }

    fn free_completed(&mut self, slot: Slot) {
        if let Some(held) = self.ledger.free_completed(slot) {
            self.segments.give(held.addr, &mut self.ledger.stats);
        }
    }

    fn stats(&self) -> &Stats {
        &self.ledger.stats
    }

    fn inventory(&self) -> Inventory {
        self.segments.inventory(&self.ledger)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost;
    use crate::device::SimDevice;

    #[test]
    fn every_request_and_every_free_is_a_device_call() {
        let mut exact = Exact::new(SimDevice::new(2048), &[], &ExactSettings {});
        exact.alloc(0, Bytes(513), 0).expect("room");
        exact.alloc(1, Bytes(1024), 0).expect("room");
        assert_eq!(exact.alloc(2, Bytes(1), 0).expect_err("full").asked, Bytes(512));
        exact.free_requested(0);
        assert_eq!(exact.stats().reserved.current, 2048, "a stream still uses it");
        exact.free_completed(0);
        exact.free(1);
        let stats = exact.stats();
        assert_eq!((stats.reserved.current, stats.reserved.peak), (0, 2048));
        assert_eq!((stats.device_allocs, stats.device_frees, stats.ooms), (2, 2, 1));
        assert_eq!(stats.driver_ns, 2 * (cost::malloc(1024) + cost::free(1024)));
    }
}
