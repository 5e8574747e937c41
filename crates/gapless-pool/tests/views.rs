//! The views of the pool: segments and blocks add up to the counters, the log of changes leads to the same segments,
//! and a private pool's saved state comes back at its addresses.

use crate::support::Numbers;
use gapless_pool::{
    BlockState, Change, Device, Options, Pool, PoolKey, RestoreError, SegmentView, SimDevice, StreamHandle,
};
use std::collections::BTreeMap;

const MIB: u64 = 1 << 20;
const PRIVATE: PoolKey = PoolKey(0, 7);

fn pool(capacity: u64) -> Pool<SimDevice> {
    let mut device = SimDevice::new(capacity);
    device.instant = false;
    Pool::new(device, Options::default())
}

fn live_bytes(pool: &Pool<SimDevice>) -> u64 {
    pool.live().map(|a| a.requested).sum()
}

fn sum(segments: &[SegmentView], state: BlockState) -> u64 {
    segments.iter().flat_map(|s| &s.blocks).filter(|b| b.state == state).map(|b| b.size).sum()
}

fn check<D: Device>(pool: &Pool<D>) -> Vec<SegmentView> {
    pool.check().expect("the invariants hold");
    let stats = pool.stats();
    let segments = pool.segments();
    assert_eq!(segments.iter().map(|s| s.size).sum::<u64>(), stats.reserved.current);
    assert_eq!(sum(&segments, BlockState::Allocated), stats.allocated.current);
    let (pending, returning) = (sum(&segments, BlockState::Pending), sum(&segments, BlockState::Returning));
    assert_eq!(pending + returning + stats.allocated.current, stats.active.current);
    let shown = pool.stats_shown();
    assert_eq!(pending + stats.allocated.current, shown.active.current, "what returns is not active");
    assert_eq!(shown.active.current, shown.classes.iter().map(|class| class.active.current).sum::<u64>());
    let blocks = segments.iter().flat_map(|s| &s.blocks);
    let active = blocks.filter(|b| matches!(b.state, BlockState::Allocated | BlockState::Pending)).count();
    assert_eq!(active as u64, shown.active_blocks.current);
    let requested = segments.iter().flat_map(|s| &s.blocks).map(|b| b.requested).sum::<u64>();
    assert_eq!(requested, stats.requested.current);
    let lanes = pool.lanes();
    assert_eq!(lanes.iter().map(|lane| lane.reserved).sum::<u64>(), stats.reserved.current);
    assert_eq!(lanes.iter().map(|lane| lane.allocated).sum::<u64>(), stats.allocated.current);
    assert_eq!(lanes.iter().map(|lane| lane.blocks).sum::<u64>(), stats.allocations.current);
    assert_eq!(pool.live().map(|a| a.size).sum::<u64>(), stats.allocated.current);
    let mut end = 0;
    for segment in &segments {
        assert!(segment.addr >= end, "segments do not overlap");
        end = segment.addr + segment.size;
        let mut at = segment.addr;
        for block in &segment.blocks {
            assert_eq!(block.addr, at, "blocks fill their segment");
            at += block.size;
        }
        assert_eq!(at, end);
    }
    for (all, parts) in [
        (stats.allocated, [stats.classes[0].allocated, stats.classes[1].allocated]),
        (stats.active, [stats.classes[0].active, stats.classes[1].active]),
        (stats.requested, [stats.classes[0].requested, stats.classes[1].requested]),
        (stats.reserved, [stats.classes[0].reserved, stats.classes[1].reserved]),
        (stats.pages, [stats.classes[0].pages, stats.classes[1].pages]),
    ] {
        assert_eq!(all.current, parts[0].current + parts[1].current);
        assert_eq!(all.total, parts[0].total + parts[1].total);
    }
    segments
}

/// Mapped addresses, computed from changes alone.
#[derive(Default)]
struct Mapped(BTreeMap<u64, u64>);

impl Mapped {
    fn apply(&mut self, change: Change) {
        match change {
            Change::Mapped { addr, size, .. } => {
                let (mut from, mut to) = (addr, addr + size);
                if let Some((&before, &length)) = self.0.range(..addr).next_back() {
                    assert!(before + length <= addr, "mapped twice");
                    if before + length == addr {
                        from = before;
                    }
                }
                if let Some(&length) = self.0.get(&to) {
                    self.0.remove(&to);
                    to += length;
                }
                self.0.insert(from, to - from);
            }
            Change::Unmapped { addr, size, .. } => {
                let (&from, &length) = self.0.range(..=addr).next_back().expect("mapped before");
                assert!(addr + size <= from + length, "unmapped what was not mapped");
                self.0.remove(&from);
                if addr > from {
                    self.0.insert(from, addr - from);
                }
                if from + length > addr + size {
                    self.0.insert(addr + size, from + length - addr - size);
                }
            }
            Change::Completed { .. } => {}
        }
    }
}

#[test]
fn segments_add_up_and_the_log_leads_to_them() {
    for seed in 0..30 {
        let mut n = Numbers(seed);
        let mut pool = pool(if seed % 4 == 0 { 96 * MIB } else { 8 << 30 });
        pool.set_log(true);
        let (mut live, mut mapped) = (Vec::new(), Mapped::default());
        let mut completed = 0;
        for _ in 0..900 {
            match n.below(20) {
                0 => {
                    pool.device_mut().finish_all();
                    pool.poll();
                    let shown = pool.stats_shown();
                    assert_eq!(shown.active.current, shown.allocated.current, "all work is done");
                    assert_eq!(shown.requested.current, live_bytes(&pool), "all work is done");
                }
                1 if n.below(8) == 0 => drop(pool.trim()),
                2 if !live.is_empty() => {
                    let at = n.below(live.len() as u64) as usize;
                    pool.record_stream(live[at], StreamHandle(9)).expect("live");
                }
                3..=12 if live.len() < 60 => {
                    let most = if n.below(2) == 0 { MIB } else { 40 * MIB };
                    let size = 1 + n.below(most);
                    let key = if n.below(8) == 0 { PRIVATE } else { PoolKey(0, 0) };
                    live.extend(pool.alloc(size, StreamHandle(n.below(2)), key));
                }
                _ if !live.is_empty() => {
                    let at = n.below(live.len() as u64) as usize;
                    pool.free(live.swap_remove(at)).expect("live");
                }
                _ => {}
            }
            let changes = pool.take_changes();
            completed += changes.iter().filter(|c| matches!(c, Change::Completed { .. })).count() as u64;
            changes.into_iter().for_each(|change| mapped.apply(change));
            let segments = check(&pool);
            // Segments of different classes may touch; ranges of the log join there.
            assert_eq!(mapped.0.values().sum::<u64>(), pool.stats().reserved.current);
            for s in &segments {
                let (&from, &length) = mapped.0.range(..=s.addr).next_back().expect("mapped");
                assert!(s.addr + s.size <= from + length);
            }
            let blocks = pool.stats_shown().active_blocks;
            assert_eq!(completed, blocks.total - blocks.current, "what returns was told with its free");
        }
        assert!(seed % 4 == 0 || pool.stats().windows_made > 0, "windows were seen");
    }
}

#[test]
fn a_private_pools_state_comes_back() {
    for seed in 100..130 {
        let mut n = Numbers(seed);
        let mut pool = pool(4 << 30);
        pool.use_pool(PRIVATE);
        let mut live: Vec<u64> = Vec::new();
        let other = pool.alloc(5 * MIB, StreamHandle(0), PoolKey(0, 0)).expect("room");
        let mut churn = |pool: &mut Pool<SimDevice>, live: &mut Vec<u64>, steps| {
            for _ in 0..steps {
                if n.below(5) < 3 {
                    let most = if n.below(2) == 0 { MIB } else { 20 * MIB };
                    let size = 1 + n.below(most);
                    live.push(pool.alloc(size, StreamHandle(n.below(2)), PRIVATE).expect("room"));
                } else if !live.is_empty() {
                    let at = n.below(live.len() as u64) as usize;
                    pool.free(live.swap_remove(at)).expect("live");
                }
            }
        };
        churn(&mut pool, &mut live, 40);
        let saved = pool.save(PRIVATE);
        let then = pool.allocations_in(PRIVATE);
        assert_eq!(
            saved.iter().map(|s| s.addr).collect::<Vec<_>>(),
            then.iter().map(|a| a.addr).collect::<Vec<_>>()
        );
        churn(&mut pool, &mut live, 60);
        let mut before: Vec<u64> = pool.allocations_in(PRIVATE).iter().map(|a| a.addr).collect();
        let mut freed = pool.restore(PRIVATE, &saved).expect("nothing was given back");
        before.sort_unstable();
        freed.sort_unstable();
        assert_eq!(freed, before);
        assert_eq!(pool.allocations_in(PRIVATE), then);
        check(&pool);
        assert!(pool.allocation_at(other).is_some_and(|a| a.is_live), "other pools are left alone");
        // And back to nothing.
        assert_eq!(pool.restore(PRIVATE, &[]).expect("nothing is needed").len(), then.len());
        assert_eq!(pool.stats().allocated.current, 5 * MIB);
        check(&pool);
    }
}

#[test]
fn memory_at_a_chosen_address_is_just_that_or_nothing() {
    let mut pool = pool(1 << 30);
    let (stream, other, default) = (StreamHandle(0), StreamHandle(9), PoolKey(0, 0));
    for size in [2000, 8 * MIB] {
        let addrs: Vec<u64> = (0..3).map(|_| pool.alloc(size, stream, default).expect("room")).collect();
        pool.free(addrs[1]).expect("live");
        let counted = *pool.stats();
        for (size, addr, stream) in [
            (size, addrs[0], stream),
            (size, addrs[1] + 1, stream),
            (size, addrs[1], other),
            (0, addrs[1], stream),
            (size + 512, addrs[1], stream),
            (u64::MAX, addrs[1], stream),
            (size, 512, stream),
            (size, u64::MAX - 511, stream),
        ] {
            assert!(pool.alloc_at(size, addr, stream, default, None).is_err(), "{size} at {addr:#x}");
            assert!(pool.alloc_at(size, addr, stream, PRIVATE, None).is_err(), "{size} at {addr:#x}");
        }
        assert_eq!(pool.stats().allocated, counted.allocated, "nothing changed");
        assert_eq!(pool.alloc_at(size - 1, addrs[1], stream, default, None), Ok(addrs[1]));
        check(&pool);
        assert!(pool.allocation_at(addrs[1]).is_some_and(|a| a.is_live && a.requested == size - 1));
        for addr in addrs {
            pool.free(addr).expect("live");
        }
        // Inside of a free block: the parts before and behind stay free. In a private pool, which has no windows.
        let whole = pool.alloc(4 * size, stream, PRIVATE).expect("room");
        pool.free(whole).expect("live");
        let inside = whole + (size / 512) * 512;
        assert_eq!(pool.alloc_at(size, inside, stream, PRIVATE, None), Ok(inside));
        check(&pool);
        pool.free(inside).expect("live");
    }
}

#[test]
fn a_state_whose_memory_is_gone_is_refused_and_nothing_changes() {
    let mut pool = pool(1 << 30);
    let addr = pool.alloc(8 * MIB, StreamHandle(0), PRIVATE).expect("room");
    let saved = pool.save(PRIVATE);
    pool.free(addr).expect("live");
    assert_eq!(pool.trim_pool(PRIVATE), 0, "a pool in use keeps its pages: graphs remember addresses");
    pool.release_pool(PRIVATE);
    assert!(pool.trim_pool(PRIVATE) >= 8 * MIB);
    assert_eq!(pool.stats().reserved.current, 0);
    assert_eq!(pool.restore(PRIVATE, &saved), Err(RestoreError::Gone { addr }));
    check(&pool);
}

#[test]
fn private_pools_keep_their_addresses_and_lend_them_on_when_they_end() {
    let mut pool = pool(1 << 30);
    let mut seen = Vec::new();
    for round in 0..200 {
        let key = PoolKey(0, 1 + round);
        pool.use_pool(key);
        let a = pool.alloc(3 * MIB, StreamHandle(0), key).expect("room");
        seen.push(a);
        pool.free(a).expect("live");
        assert_eq!(pool.trim(), 0, "a pool that is used keeps its memory");
        pool.release_pool(key);
        assert!(pool.trim_pool(key) > 0);
    }
    seen.dedup();
    assert_eq!(seen.len(), 1, "each pool has the addresses of the one before");
    check(&pool);
}

#[test]
fn what_one_request_can_get_is_there() {
    let mut pool = pool(1 << 30);
    let held: Vec<u64> =
        (0..20).map(|_| pool.alloc(10 * MIB, StreamHandle(0), PoolKey(0, 0)).expect("room")).collect();
    for addr in held.iter().step_by(2) {
        pool.free(*addr).expect("live");
    }
    let most = pool.largest_available();
    assert!(most > 824 * MIB);
    pool.alloc(most, StreamHandle(0), PoolKey(0, 0)).expect("what was said to be there");
    check(&pool);
}

#[test]
fn everything_can_be_granted_again() {
    let mut pool = pool(1 << 30);
    let held: Vec<u64> =
        (0..20).map(|_| pool.alloc(10 * MIB, StreamHandle(0), PoolKey(0, 0)).expect("room")).collect();
    for addr in held.iter().step_by(2) {
        pool.free(*addr).expect("live");
    }
    pool.alloc(95 * MIB, StreamHandle(0), PoolKey(0, 0)).expect("a window");
    assert!(pool.stats().windows_made > 0);
    assert_eq!(pool.grant_again(), Ok(()));
    pool.trim();
    assert_eq!(pool.grant_again(), Ok(()));
    check(&pool);
}

#[test]
fn what_was_lent_and_given_back_is_requested_by_nobody() {
    let mut pool = pool(64 * MIB);
    let (owner, borrower, plain) = (StreamHandle(1), StreamHandle(2), PoolKey(0, 0));
    let a = pool.alloc(40 * MIB, owner, plain).expect("room");
    pool.free(a).expect("live");
    let settle = |pool: &mut Pool<SimDevice>| {
        pool.poll();
        pool.device_mut().finish_all();
        pool.poll();
    };
    pool.alloc(1, borrower, plain).expect("room");
    // The owner's next request records the fence that shows when its freed memory is no longer used.
    pool.alloc(1, owner, plain).expect("room");
    settle(&mut pool);
    let requested = pool.stats().requested.current;
    let b = pool.alloc(40 * MIB, borrower, plain).expect("the owner's memory");
    assert!(pool.stats().lent > 0);
    pool.free(b).expect("live");
    let stats = pool.stats();
    assert!(stats.active.current > 40 * MIB, "its pages wait for a fence");
    assert_eq!(stats.requested.current, requested, "as on PyTorch's own allocator");
    assert_eq!(stats.classes[1].requested.current, 0);
    check(&pool);
    pool.alloc(1, borrower, plain).expect("room");
    settle(&mut pool);
    let requested = requested + 1;
    assert_eq!(pool.stats().requested.current, requested);
    assert!(pool.stats().active.current < 40 * MIB);
    check(&pool);
}

#[test]
fn a_note_ends_with_the_allocation_that_it_is_about() {
    let mut pool = pool(1 << 30);
    for (size, is_shared) in [(512, false), (40 * MIB, false), (3 * MIB, true)] {
        let addr = pool.alloc(size, StreamHandle(1), PoolKey(0, 0)).expect("room");
        assert!(!pool.is_noted(addr), "nobody noted anything");
        pool.note(addr);
        assert!(pool.is_noted(addr) && !pool.is_noted(addr + 512));
        if is_shared {
            pool.record_stream(addr, StreamHandle(2)).expect("live");
        }
        pool.free(addr).expect("live");
        pool.device_mut().finish_all();
        pool.poll();
        assert!(!pool.is_noted(addr));
        let again = pool.alloc(size, StreamHandle(1), PoolKey(0, 0)).expect("room");
        assert_eq!(again, addr, "the same place");
        assert!(!pool.is_noted(again), "and another allocation");
    }
}

/// As in PyTorch's own allocator, a block that another stream used is handed out again by the next request of its lane
/// once that stream's work is done, even if other memory is free.
#[test]
fn a_block_that_another_stream_used_is_reused_by_the_next_request() {
    let mut pool = pool(1 << 30);
    let (own, other) = (StreamHandle(1), StreamHandle(2));
    let first = pool.alloc(512, own, PoolKey(0, 0)).expect("memory");
    pool.record_stream(first, other).expect("it is there");
    pool.free(first).expect("it is there");
    let second = pool.alloc(512, own, PoolKey(0, 0)).expect("memory");
    assert_ne!(second, first, "its work is not done");
    pool.device_mut().finish_all();
    assert_eq!(pool.alloc(512, own, PoolKey(0, 0)), Ok(first));
}

#[test]
fn what_streams_are_done_with_is_not_active_after_the_next_request() {
    for seed in 0..8 {
        let (own, stalled, reader) = (StreamHandle(0), StreamHandle(5), StreamHandle(9));
        let (mut pool, mut numbers) = (pool(1 << 30), Numbers(seed));
        let block = pool.alloc(16 * MIB, own, PoolKey(0, 0)).expect("memory");
        assert_eq!(pool.record_stream(block, stalled), Ok(()));
        assert_eq!(pool.free(block), Ok(()));
        let mut tiny = pool.alloc(64, own, PoolKey(0, 0)).expect("memory");
        for step in 0..100 {
            let block = pool.alloc(512 + numbers.below(8 * MIB), own, PoolKey(0, 0)).expect("memory");
            assert_eq!(pool.record_stream(block, reader), Ok(()));
            assert_eq!(pool.free(block), Ok(()));
            let event = pool.device().last_event();
            pool.device_mut().finish(event);
            // PyTorch polls only at requests, so work that was done since then still counts as active.
            let before = pool.stats().active.current;
            pool.catch_up();
            let after = pool.stats().active.current;
            pool.catch_up();
            assert_eq!(
                after,
                pool.stats().active.current,
                "seed {seed}, step {step}: nothing was asked between"
            );
            assert!(after <= before);
            assert_eq!(pool.free(tiny), Ok(()));
            tiny = pool.alloc(64, own, PoolKey(0, 0)).expect("memory");
            pool.catch_up();
            let stats = pool.stats();
            let beyond = stats.active.current - stats.allocated.current;
            assert_eq!(beyond, 16 * MIB, "seed {seed}, step {step}: the stalled block alone");
        }
        check(&pool);
    }
}
