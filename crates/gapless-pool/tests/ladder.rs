//! The measures before a request fails: each rung alone, in order, no unnecessary waits, and a fault at every device
//! call.

use crate::support::Numbers;
use gapless_pool::{AllocError, DeviceError, Options, Pool, PoolKey, Rung, SimDevice, StreamHandle};

const MIB: u64 = 1 << 20;
const OWN: StreamHandle = StreamHandle(1);
const KEY: PoolKey = PoolKey(0, 0);

/// A pool over a card of this size, whose events are done when the test completes them.
fn pool(capacity: u64) -> Pool<SimDevice> {
    let mut device = SimDevice::new(capacity);
    device.instant = false;
    Pool::new(device, Options::default())
}

fn alloc(pool: &mut Pool<SimDevice>, size: u64) -> u64 {
    pool.alloc(size, OWN, KEY).expect("memory")
}

/// Frees a block that another stream still uses.
fn free_used_by(pool: &mut Pool<SimDevice>, addr: u64, stream: u64) {
    assert_eq!(pool.record_stream(addr, StreamHandle(stream)), Ok(()));
    assert_eq!(pool.free(addr), Ok(()));
}

fn rungs(pool: &Pool<SimDevice>) -> [u64; 4] {
    pool.stats().ladder
}

fn check(pool: &Pool<SimDevice>) {
    pool.check().expect("a whole state");
}

#[test]
fn one_pending_block_that_is_large_enough_is_waited_for_and_no_other() {
    let mut pool = pool(96 * MIB);
    let blocks: Vec<u64> = [16, 16, 32, 32].map(|mib| alloc(&mut pool, mib * MIB)).to_vec();
    // The small ones are older, and each on a stream of its own.
    for (addr, stream) in blocks[..3].iter().zip(2..) {
        free_used_by(&mut pool, *addr, stream);
    }
    let again = alloc(&mut pool, 30 * MIB);
    assert_eq!(pool.device().host_waits, 1, "for the third one alone");
    assert_eq!(again, blocks[2]);
    assert_eq!(rungs(&pool), [1, 0, 0, 0]);
    assert_eq!((pool.stats().waits, pool.stats().retries, pool.stats().ooms), (1, 1, 0));
    // The others still wait.
    let pending = pool.allocations().filter(|(.., is_live)| !is_live).count();
    assert_eq!(pending, 2);
    check(&pool);
}

#[test]
fn of_several_the_oldest_are_waited_for_and_only_until_it_is_enough() {
    let mut pool = pool(128 * MIB);
    let blocks: Vec<u64> = (0..8).map(|_| alloc(&mut pool, 16 * MIB)).collect();
    // The blocks do not touch; each is used by its own stream, in an order other than that of the addresses.
    for (at, stream) in [(6, 9), (2, 8), (0, 7), (4, 6)] {
        free_used_by(&mut pool, blocks[at], stream);
    }
    let window = alloc(&mut pool, 32 * MIB);
    assert_eq!(pool.device().host_waits, 2);
    assert_eq!(rungs(&pool), [1, 0, 0, 0]);
    let mut waiting: Vec<u64> =
        pool.allocations().filter(|(.., is_live)| !is_live).map(|(addr, ..)| addr).collect();
    waiting.sort_unstable();
    assert_eq!(waiting, [blocks[0], blocks[4]], "the newest two");
    assert!(pool.device().is_usable(window, 32 * MIB));
    check(&pool);
}

#[test]
fn a_wait_on_a_stream_completes_what_came_before_on_it() {
    let mut pool = pool(64 * MIB);
    let blocks: Vec<u64> = [8, 8, 24, 24].map(|mib| alloc(&mut pool, mib * MIB)).to_vec();
    for &addr in &blocks[..3] {
        free_used_by(&mut pool, addr, 5);
    }
    // The newest alone is large enough. With it the older two become free, and all three one block.
    assert_eq!(alloc(&mut pool, 24 * MIB), blocks[0]);
    assert_eq!(alloc(&mut pool, 16 * MIB), blocks[0] + 24 * MIB);
    assert_eq!(pool.device().host_waits, 1);
    check(&pool);
}

#[test]
fn nothing_is_waited_for_where_all_of_it_would_not_be_enough() {
    let mut pool = pool(64 * MIB);
    let blocks: Vec<u64> = (0..4).map(|_| alloc(&mut pool, 16 * MIB)).collect();
    free_used_by(&mut pool, blocks[0], 5);
    let error = pool.alloc(40 * MIB, OWN, KEY).expect_err("16 MiB are free at most");
    assert_eq!(error, AllocError::OutOfMemory { size: 40 * MIB, device: DeviceError::OutOfMemory });
    assert_eq!((pool.device().host_waits, pool.stats().waits, pool.stats().ooms), (0, 0, 1));
    check(&pool);
}

#[test]
fn nothing_is_waited_for_during_a_capture() {
    let mut pool = pool(64 * MIB);
    let blocks: Vec<u64> = (0..4).map(|_| alloc(&mut pool, 16 * MIB)).collect();
    free_used_by(&mut pool, blocks[0], 5);
    pool.set_quiet(true);
    assert!(pool.alloc(16 * MIB, OWN, KEY).is_err());
    assert_eq!((pool.device().host_waits, rungs(&pool)), (0, [0; 4]));
    pool.set_quiet(false);
    assert_eq!(alloc(&mut pool, 16 * MIB), blocks[0]);
    check(&pool);
}

#[test]
fn small_blocks_are_waited_for_last_and_together() {
    let mut pool = pool(64 * MIB);
    let small: Vec<u64> = (0..64).map(|_| alloc(&mut pool, 512)).collect();
    let large = alloc(&mut pool, 40 * MIB);
    let rest = alloc(&mut pool, 20 * MIB);
    for &addr in &small {
        free_used_by(&mut pool, addr, 3);
    }
    free_used_by(&mut pool, rest, 4);
    alloc(&mut pool, 18 * MIB);
    assert_eq!(pool.device().host_waits, 1, "the small ones are older, and of no use");
    let _ = large;
    check(&pool);
}

#[test]
fn what_is_pending_and_what_the_device_has_left_serve_together() {
    let mut pool = pool(64 * MIB);
    let blocks: Vec<u64> = (0..3).map(|_| alloc(&mut pool, 16 * MIB)).collect();
    free_used_by(&mut pool, blocks[0], 5);
    // 16 MiB are pending, 16 MiB are left on the card.
    let large = alloc(&mut pool, 32 * MIB);
    assert!(pool.device().is_usable(large, 32 * MIB));
    assert_eq!((pool.device().host_waits, rungs(&pool)), (1, [1, 0, 0, 0]));
    check(&pool);
}

#[test]
fn free_pages_of_small_requests_are_given_back_for_a_large_one() {
    let mut pool = pool(64 * MIB);
    let small: Vec<u64> = (0..48).map(|_| alloc(&mut pool, MIB)).collect();
    for &addr in &small {
        assert_eq!(pool.free(addr), Ok(()));
    }
    assert_eq!(pool.stats().reserved.current, 48 * MIB);
    let large = alloc(&mut pool, 40 * MIB);
    assert!(pool.device().is_usable(large, 40 * MIB));
    assert_eq!(rungs(&pool), [0, 0, 1, 0]);
    let left = pool.stats().reserved.current;
    assert!(left <= 64 * MIB && left > 60 * MIB, "no more was given back than was missing: {left}");
    check(&pool);
    // Small requests still find the rest.
    alloc(&mut pool, MIB);
    check(&pool);
}

#[test]
fn the_default_pool_gives_free_pages_back_for_a_private_one() {
    let mut pool = pool(64 * MIB);
    let blocks: Vec<u64> = (0..3).map(|_| alloc(&mut pool, 20 * MIB)).collect();
    assert_eq!(pool.free(blocks[0]), Ok(()));
    assert_eq!(pool.free(blocks[2]), Ok(()));
    let private = pool.alloc(30 * MIB, OWN, PoolKey(1, 0)).expect("memory of the default pool");
    assert!(pool.device().is_usable(private, 30 * MIB));
    assert_eq!(rungs(&pool), [0, 0, 1, 0]);
    check(&pool);
}

#[test]
fn a_private_pool_shrinks_once_nobody_uses_it_and_not_before() {
    let mut pool = pool(64 * MIB);
    let graph = PoolKey(1, 0);
    pool.use_pool(graph);
    let captured = pool.alloc(48 * MIB, OWN, graph).expect("memory");
    assert_eq!(pool.free(captured), Ok(()));
    // The graph will write there when it is replayed.
    assert!(pool.alloc(40 * MIB, OWN, KEY).is_err());
    assert!(pool.device().is_usable(captured, 48 * MIB));
    assert_eq!(pool.stats().reserved.current, 48 * MIB);
    pool.release_pool(graph);
    let large = alloc(&mut pool, 40 * MIB);
    assert!(pool.device().is_usable(large, 40 * MIB));
    assert_eq!(rungs(&pool), [0, 0, 0, 1]);
    check(&pool);
}

#[test]
fn a_limit_of_the_process_is_kept_on_every_rung() {
    let options = Options { limit: Some(64 * MIB), ..Options::default() };
    let mut pool = Pool::new(SimDevice::new(1 << 30), options);
    let small: Vec<u64> = (0..32).map(|_| alloc(&mut pool, MIB)).collect();
    let kept = alloc(&mut pool, 16 * MIB);
    small.iter().for_each(|&addr| assert_eq!(pool.free(addr), Ok(())));
    alloc(&mut pool, 46 * MIB);
    assert!(pool.stats().reserved.current <= 64 * MIB);
    assert!(pool.alloc(4 * MIB, OWN, KEY).is_err());
    assert_eq!(pool.free(kept), Ok(()));
    check(&pool);
}

/// A card that is full in every way: pending frees, free pages of small requests, a released private pool.
fn full() -> (Pool<SimDevice>, Vec<u64>) {
    let mut pool = pool(128 * MIB);
    let private = pool.alloc(20 * MIB, OWN, PoolKey(1, 0)).expect("memory");
    let small: Vec<u64> = (0..20).map(|_| alloc(&mut pool, MIB)).collect();
    let blocks: Vec<u64> = (0..5).map(|_| alloc(&mut pool, 16 * MIB)).collect();
    let other = pool.alloc(4 * MIB, StreamHandle(2), KEY).expect("memory");
    small.iter().for_each(|&addr| assert_eq!(pool.free(addr), Ok(())));
    assert_eq!(pool.free(private), Ok(()));
    pool.release_pool(PoolKey(1, 0));
    free_used_by(&mut pool, blocks[1], 3);
    free_used_by(&mut pool, blocks[3], 4);
    (pool, vec![blocks[0], blocks[2], blocks[4], other])
}

#[test]
fn a_fault_at_any_device_call_of_the_ladder_leaves_the_state_whole() {
    let size = 70 * MIB;
    let (mut plain, _) = full();
    alloc(&mut plain, size);
    assert_eq!(rungs(&plain), [0, 0, 0, 1], "all of it is needed");
    let mut failed = 0;
    for call in 0..200 {
        let (mut pool, live) = full();
        pool.device_mut().fail_in = Some(call);
        let first = pool.alloc(size, OWN, KEY);
        let is_over = pool.device().fail_in.is_some();
        pool.device_mut().fail_in = None;
        check(&pool);
        for &addr in &live {
            assert!(pool.is_live(addr) && pool.device().is_usable(addr, 4 * MIB));
        }
        failed += u32::from(first.is_err());
        let addr = first.unwrap_or_else(|_| alloc(&mut pool, size));
        assert!(pool.device().is_usable(addr, size), "after a fault at call {call}");
        check(&pool);
        if is_over {
            assert!(call > 8, "the ladder calls the device");
            return;
        }
    }
    panic!("the ladder never ends ({failed} failed)");
}

/// Requests on a card that is always nearly full, compared with the free memory: they fail only if nothing could serve
/// them.
#[test]
fn random_programs_fail_only_where_too_little_is_free() {
    let (mut refused, mut served) = (0u32, [0u64; 4]);
    for seed in 1..60u64 {
        let mut pool = pool(96 * MIB);
        let mut numbers = Numbers(seed * 7919);
        let mut live: Vec<u64> = Vec::new();
        for _ in 0..400 {
            match numbers.below(10) {
                0..=5 => {
                    let size =
                        if numbers.below(3) == 0 { numbers.size() } else { (1 + numbers.below(24)) * MIB };
                    let stream = StreamHandle(1 + numbers.below(3));
                    let before = pool.device().host_waits;
                    match pool.alloc(size, stream, KEY) {
                        Ok(addr) => live.push(addr),
                        Err(_) => {
                            refused += 1;
                            // All wholly free pages together, of any stream and size class, are not enough.
                            let free: u64 = pool
                                .heaps()
                                .flat_map(gapless_pool::heap::Heap::pages)
                                .filter(|page| page.is_free())
                                .map(|page| page.size)
                                .sum();
                            let room = 96 * MIB - pool.stats().reserved.current;
                            assert!(free + room < size, "{size} of {free} and {room} (seed {seed})");
                            // The frees that still wait would not have helped.
                            let pending: u64 =
                                pool.allocations().filter(|a| !a.2).map(|(_, bytes, _)| bytes).sum();
                            let all = pool.stats().reserved.current - pool.stats().active.current;
                            assert!(
                                pending == 0
                                    || pending + all + room < size
                                    || pool.device().host_waits == before
                            );
                        }
                    }
                }
                6..=8 if !live.is_empty() => {
                    let addr = live.swap_remove(numbers.below(live.len() as u64) as usize);
                    if numbers.below(2) == 0 {
                        assert_eq!(pool.record_stream(addr, StreamHandle(1 + numbers.below(4))), Ok(()));
                    }
                    assert_eq!(pool.free(addr), Ok(()));
                }
                _ => pool.device_mut().finish_all(),
            }
        }
        check(&pool);
        for (sum, more) in served.iter_mut().zip(rungs(&pool)) {
            *sum += more;
        }
    }
    assert!(refused > 100, "{refused}");
    assert!(served[Rung::Wait as usize] > 100 && served[Rung::Trim as usize] > 10, "{served:?}");
}
