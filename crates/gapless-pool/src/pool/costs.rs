//! The cost of calls, counted in blocks, pages and list entries that they look at. More blocks must not raise it.

use super::{Pool, PoolKey};
use crate::device::StreamHandle;
use crate::options::Options;
use crate::sim::SimDevice;
use crate::visits;

const MIB: u64 = 1 << 20;
const PLAIN: PoolKey = PoolKey(0, 0);

fn pool(gib: u64) -> Pool<SimDevice> {
    Pool::new(SimDevice::new(gib << 30), Options::default())
}

/// Asks for every figure that PyTorch's statistics have.
fn figures(pool: &mut Pool<SimDevice>) -> usize {
    visits::of(|| {
        pool.catch_up();
        let _ = (pool.stats_shown(), pool.segment_counts(), pool.reserved_by_pool());
        let _ = (pool.lanes(), pool.stranded(), pool.largest_available(), pool.take_crest());
        pool.reset_peaks();
    })
}

#[test]
fn statistics_look_at_no_block() {
    let costs: Vec<usize> = [1_000, 100_000]
        .into_iter()
        .map(|count| {
            let mut pool = pool(64);
            let mut live = Vec::new();
            for i in 0..count {
                let key = if i % 7 == 0 { PoolKey(0, 3) } else { PLAIN };
                let size = if i % 50 == 0 { 3 * MIB / 2 } else { 512 * (1 + i % 9) };
                live.push(pool.alloc(size, StreamHandle(i % 3), key).expect("room"));
            }
            for addr in live.iter().step_by(2) {
                pool.free(*addr).expect("live");
            }
            figures(&mut pool)
        })
        .collect();
    assert_eq!(costs, [0, 0]);
}

/// `2 * holes` tensors of a little more than a MiB, of which every second is freed. No hole is large enough for the
/// next requests, and every hole has an end for a window.
fn riddled(holes: u64) -> (Pool<SimDevice>, Vec<u64>) {
    let size = |i: u64| 1_200_000 + 256 * (i % 9);
    // A limit makes memory scarce, so the pool makes windows.
    let limit = Some(2 * holes * 1_300_000 + (1 << 30));
    let mut pool = Pool::new(SimDevice::new(128 << 30), Options { limit, ..Options::default() });
    let live: Vec<u64> =
        (0..2 * holes).map(|i| pool.alloc(size(i), StreamHandle(0), PLAIN).expect("room")).collect();
    for addr in live.iter().step_by(2) {
        pool.free(*addr).expect("live");
    }
    (pool, live)
}

#[test]
fn a_miss_looks_at_as_much_whatever_lies_free() {
    let misses = |streams: u64, holes: u64| -> usize {
        let (mut pool, _) = riddled(holes);
        let mut kept = Vec::new();
        // The first requests list what the frees left, once.
        let asked = |pool: &mut Pool<SimDevice>, kept: &mut Vec<u64>, count: u64| {
            for i in 0..count {
                let size = (6 + i % 7) * MIB / 2;
                kept.push(pool.alloc(size, StreamHandle(i % streams), PLAIN).expect("room"));
            }
        };
        asked(&mut pool, &mut kept, 100);
        let before = pool.stats().windows_made;
        let costs = visits::of(|| asked(&mut pool, &mut kept, 60));
        assert!(pool.stats().windows_made > before + 30, "requests miss, and get windows");
        costs / 60
    };
    for streams in [1, 4] {
        let (few, many) = (misses(streams, 500), misses(streams, 5_000));
        assert!(many < few + few / 4 + 50, "{few} things at 500 holes, {many} at 5,000, {streams} streams");
        assert!(many < 1500, "{many} things for a request");
    }
}

/// Pages went back before, so the heap has holes in its addresses, which are searched in order too.
#[test]
fn a_miss_beside_holes_in_addresses_looks_at_as_much() {
    let misses = |holes: u64| -> usize {
        let mut pool = pool(256);
        let live: Vec<u64> =
            (0..2 * holes).map(|_| pool.alloc(4 * MIB, StreamHandle(0), PLAIN).expect("room")).collect();
        for addr in live.iter().step_by(2) {
            pool.free(*addr).expect("live");
        }
        assert!(pool.trim() > 0);
        pool.reset_peaks();
        // The requests fill holes that are left, one after the other.
        let mut kept = Vec::new();
        kept.push(pool.alloc(4 * MIB, StreamHandle(0), PLAIN).expect("room"));
        let frees = pool.stats().device_frees;
        let costs = visits::of(|| {
            for _ in 0..30 {
                kept.push(pool.alloc(2 * MIB, StreamHandle(0), PLAIN).expect("room"));
            }
        });
        assert!(frees > 0);
        costs / 30
    };
    let (few, many) = (misses(200), misses(2_000));
    assert!(many <= few + 20, "{few} things at 200 holes, {many} at 2,000");
}
