//! PyTorch keeps the newest events in a ring. However many were dropped at the front, the rest leads to the same end,
//! and the rebuilt history says that it began late.

use gapless_ingest::{ReadOptions, open};
use gapless_trace::{DeviceTrace, EventIndex, Events, History, Trace};
use std::collections::HashMap;
use std::path::Path;

/// The device without its first `k` events, as a ring would have kept it.
fn without_first(device: &DeviceTrace, k: usize) -> DeviceTrace {
    let mut rest = Events::with_capacity(device.events.len() - k);
    for index in device.events.indices().skip(k) {
        rest.push(device.events.get(index));
    }
    let mut device = device.clone();
    device.events = rest;
    device
}

fn check(name: &str, steps: usize) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../testdata/traces/{name}.pickle.gz"));
    let trace: Trace = open(&path, &ReadOptions::default()).unwrap_or_else(|error| panic!("{error}"));
    let device = &trace.devices[0];
    let full = History::rebuild(&trace, device).unwrap_or_else(|error| panic!("{name}: {error}"));
    let n = device.events.len();
    // Births after the cut have the same event in both: their blocks must be of one size.
    let born: HashMap<u32, (u64, u64)> =
        full.allocations.iter().map(|a| (a.start.0, (a.addr.0, a.block.0))).collect();
    for step in 1..=steps {
        let k = n * step / (steps + 1);
        let cut = without_first(device, k);
        let history =
            History::rebuild(&trace, &cut).unwrap_or_else(|error| panic!("{name}, first {k} gone: {error}"));
        assert_eq!(history.usage.now(), full.usage.now(), "{name}, first {k} gone");
        let codes: Vec<&str> = history.notes.iter().map(|note| note.code).collect();
        let held = full.allocations.active_at(EventIndex(k as u32 - 1).after()).count();
        assert_eq!(history.preexisting as usize, held, "{name}, first {k} gone");
        assert_eq!(codes, ["recording-began-late"], "{name}, first {k} gone: {:?}", history.notes);
        for allocation in history.allocations.iter().filter(|a| a.start.0 > 0) {
            let theirs = born.get(&(allocation.start.0 + k as u32)).copied();
            assert_eq!(
                theirs,
                Some((allocation.addr.0, allocation.block.0)),
                "{name}, first {k} gone, event {}",
                allocation.start
            );
        }
    }
}

#[test]
fn a_training_run_without_its_beginning_leads_to_the_same_end() {
    check("gpt2_train", 40);
}

#[test]
fn a_run_with_many_streams_without_its_beginning_leads_to_the_same_end() {
    check("multistream", 40);
}

#[test]
fn a_run_with_expandable_segments_without_its_beginning_leads_to_the_same_end() {
    check("mixtral_moe_expandable", 20);
}

#[test]
fn a_run_with_varying_batches_without_its_beginning_leads_to_the_same_end() {
    check("resnet_varbatch", 12);
}
