//! The device under the models: segments taken and given back, with counts and prices of the calls.

use crate::allocator::{Inventory, Stats};
use crate::cost;
use crate::device::Device;
use crate::models::ledger::Ledger;
use gapless_trace::{Bytes, DeviceAddr};
use std::collections::BTreeMap;

#[derive(Clone, Debug)]
pub(super) struct Segments<D> {
    device: D,
    /// Address to size.
    spans: BTreeMap<u64, u64>,
}

impl<D: Device> Segments<D> {
    pub(super) fn new(device: D) -> Segments<D> {
        Segments { device, spans: BTreeMap::new() }
    }

    pub(super) fn take(&mut self, size: u64, stats: &mut Stats) -> Option<u64> {
        let addr = self.device.malloc(size)?;
        self.spans.insert(addr, size);
        stats.segments.add(1);
        stats.reserved.add(size);
        stats.device_allocs += 1;
        stats.driver_ns += cost::malloc(size);
        Some(addr)
    }

    /// Gives the segment at `addr` back.
    pub(super) fn give(&mut self, addr: u64, stats: &mut Stats) {
        let Some(size) = self.spans.remove(&addr) else {
            debug_assert!(false, "no segment at {addr:#x}");
            return;
        };
        self.device.free(addr, size);
        stats.segments.sub(1);
        stats.reserved.sub(size);
        stats.device_frees += 1;
        stats.driver_ns += cost::free(size);
    }

    pub(super) fn total(&self) -> u64 {
        self.device.total()
    }

    pub(super) fn available(&self) -> u64 {
        self.device.available()
    }

    pub(super) fn inventory(&self, ledger: &Ledger) -> Inventory {
        let spans = self.spans.iter().map(|(&addr, &size)| (DeviceAddr(addr), Bytes(size))).collect();
        Inventory::of(spans, ledger.blocks())
    }
}
