//! The pool for many threads: one thread gets the same addresses as on the plain machine, and many keep its invariants.

use crate::support::Numbers;
use gapless_pool::{Options, Pool, PoolKey, SharedPool, SimDevice, StreamHandle};
use std::collections::VecDeque;
use std::sync::Mutex;

const DEFAULT: PoolKey = PoolKey(0, 0);

#[test]
fn one_thread_sees_the_plain_machine() {
    for seed in 0..30 {
        let mut numbers = Numbers(seed * 2 + 1);
        let capacity = if seed % 3 == 0 { 96 << 20 } else { 4 << 30 };
        let machine = || {
            let mut device = SimDevice::new(capacity);
            device.instant = false;
            Pool::new(device, Options::default())
        };
        let (mut plain, shared) = (machine(), SharedPool::new(machine()));
        let mut live = Vec::new();
        for i in 0..2500 {
            match numbers.below(100) {
                0 => {
                    plain.device_mut().finish_all();
                    shared.with(|pool| pool.device_mut().finish_all());
                }
                1 => {
                    assert_eq!(plain.trim(), shared.with(Pool::trim));
                }
                2 => {
                    plain.reset_peaks();
                    shared.with(Pool::reset_peaks);
                }
                3..=6 if !live.is_empty() => {
                    let addr = live[numbers.below(live.len() as u64) as usize];
                    let stream = StreamHandle(numbers.below(3));
                    assert_eq!(plain.record_stream(addr, stream), shared.record_stream(addr, stream));
                }
                7..=57 if live.len() < 120 => {
                    let (size, stream) = (numbers.size(), StreamHandle(numbers.below(3)));
                    let key = if numbers.below(12) == 0 { PoolKey(1, 0) } else { DEFAULT };
                    let served = plain.alloc(size, stream, key);
                    assert_eq!(served, shared.alloc(size, stream, key), "seed {seed}, step {i}");
                    live.extend(served.ok());
                }
                58 => assert_eq!(plain.free(12345), shared.free(12345)),
                _ if !live.is_empty() => {
                    let addr = live.swap_remove(numbers.below(live.len() as u64) as usize);
                    assert_eq!(plain.free(addr), Ok(()));
                    assert_eq!(shared.free(addr), Ok(()));
                    if numbers.below(20) == 0 {
                        assert_eq!(plain.free(addr), shared.free(addr), "a second time");
                    }
                }
                _ => {}
            }
            if i % 10 == 0 {
                assert_eq!(*plain.stats(), shared.with(|pool| *pool.stats()), "seed {seed}, step {i}");
            }
        }
        shared.with(|pool| pool.check()).expect("a whole state");
    }
}

#[test]
fn many_threads_keep_the_invariants() {
    let pool = SharedPool::new(Pool::new(SimDevice::new(2 << 30), Options::default()));
    // Other threads free them than those that allocated them.
    let passed: Mutex<Vec<u64>> = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for thread in 0..6u64 {
            let (pool, passed) = (&pool, &passed);
            scope.spawn(move || {
                let mut numbers = Numbers(thread * 77 + 5);
                let mut live: Vec<u64> = Vec::new();
                for i in 0..4000 {
                    // Two threads share a stream.
                    let stream = StreamHandle(thread / 2 * 8);
                    if numbers.below(100) < 52 && live.len() < 40 {
                        if let Ok(addr) = pool.alloc(numbers.size() / 4 + 1, stream, DEFAULT) {
                            live.push(addr);
                        }
                    } else if !live.is_empty() {
                        let addr = live.swap_remove(numbers.below(live.len() as u64) as usize);
                        match numbers.below(8) {
                            0 => passed.lock().expect("a lock").push(addr),
                            1 => {
                                assert_eq!(pool.record_stream(addr, StreamHandle(24)), Ok(()));
                                assert_eq!(pool.free(addr), Ok(()));
                            }
                            _ => assert_eq!(pool.free(addr), Ok(())),
                        }
                    }
                    if let Some(addr) = passed.lock().expect("a lock").pop() {
                        assert_eq!(pool.free(addr), Ok(()));
                    }
                    if i % 500 == 0 {
                        pool.with(|pool| pool.check()).expect("a whole state");
                    }
                }
                for addr in live {
                    assert_eq!(pool.free(addr), Ok(()));
                }
            });
        }
    });
    for addr in passed.into_inner().expect("a lock") {
        assert_eq!(pool.free(addr), Ok(()));
    }
    pool.with(|pool| {
        pool.device_mut().finish_all();
        pool.poll();
        pool.check().expect("a whole state");
        // Freed loans may still wait for their owners.
        let stats = pool.stats_shown();
        assert_eq!((stats.active.current, stats.allocated.current, stats.requested.current), (0, 0, 0));
        assert!(stats.allocated.peak <= stats.reserved.peak);
    });
}

#[test]
fn a_panic_with_the_whole_pool_in_hand_loses_nothing() {
    let pool = SharedPool::new(Pool::new(SimDevice::new(1 << 30), Options::default()));
    let kept = pool.alloc(3 << 20, StreamHandle(1), DEFAULT).expect("memory");
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        pool.with(|_| panic!("in the middle"));
    }));
    assert!(panicked.is_err());
    let other = pool.alloc(3 << 20, StreamHandle(1), DEFAULT).expect("memory");
    assert!(other != kept && pool.free(kept).is_ok() && pool.free(other).is_ok());
    pool.with(|pool| pool.check()).expect("a whole state");
}

/// Streams that each free and request the same again, in any order, at the very peak: whatever other streams do
/// meanwhile, each is served by its own heap. Neither the peaks' room nor a missing page may make them borrow.
#[test]
fn many_lanes_at_the_peak_keep_to_themselves() {
    const SIZES: [u64; 8] = [512, 4096, 70_000, 600_000, 2 << 20, 5 << 20, 24 << 20, 3 << 10];
    for lanes in [3_usize, 8, 16, 40] {
        let mut numbers = Numbers(lanes as u64 * 2 + 1);
        let pool = SharedPool::new(Pool::new(SimDevice::new(64 << 30), Options::default()));
        let alloc = |lane: usize, turn: &mut usize| {
            *turn += 1;
            pool.alloc(SIZES[*turn % SIZES.len()], StreamHandle(16 * (lane as u64 + 1)), PoolKey(0, 0))
                .expect("memory")
        };
        let mut turns = vec![0; lanes];
        let mut held: Vec<VecDeque<u64>> = vec![VecDeque::new(); lanes];
        while held.iter().any(|held| held.len() < 4 * SIZES.len()) {
            let lane = numbers.below(lanes as u64) as usize;
            if held[lane].len() < 4 * SIZES.len() {
                held[lane].push_back(alloc(lane, &mut turns[lane]));
            }
        }
        // Locks the whole pool now and then: no lane may lose its share of room by that.
        let (before, mut looks) = (pool.fronts().gathers(), 0);
        for i in 0..20_000 {
            let lane = numbers.below(lanes as u64) as usize;
            if held[lane].len() < 4 * SIZES.len() {
                held[lane].push_back(alloc(lane, &mut turns[lane]));
            } else {
                pool.free(held[lane].pop_front().expect("something is held")).expect("its own");
            }
            if i % 100 == 0 {
                looks += 1;
                pool.with(|pool| pool.check()).expect("a sound pool");
            }
        }
        assert_eq!(pool.fronts().gathers() - before, looks, "{lanes} lanes");
        let stats = pool.with(|pool| *pool.stats());
        assert_eq!(stats.lent, 0, "{lanes} lanes");
        assert!(stats.reserved.peak <= stats.active.peak / 100 * 102, "{lanes} lanes: {stats:?}");
    }
}

/// An idle lane that once held much does not take room from a lane that works.
#[test]
fn an_idle_lane_is_in_nobodys_way() {
    let pool = SharedPool::new(Pool::new(SimDevice::new(64 << 30), Options::default()));
    let (idle, busy) = (StreamHandle(16), StreamHandle(32));
    let large: Vec<u64> = (0..64).map(|_| pool.alloc(64 << 20, idle, DEFAULT).expect("memory")).collect();
    large.into_iter().for_each(|addr| pool.free(addr).expect("its own"));
    pool.with(Pool::trim);
    let step = || {
        let held: Vec<u64> =
            (0..200).map(|i| pool.alloc((4 + i % 7) << 20, busy, DEFAULT).expect("memory")).collect();
        held.into_iter().for_each(|addr| pool.free(addr).expect("its own"));
        // As the end of a training step does.
        pool.with(Pool::mark_step);
    };
    (0..3).for_each(|_| step());
    let before = pool.fronts().gathers();
    (0..50).for_each(|_| step());
    assert_eq!(
        pool.fronts().gathers() - before,
        50,
        "one look a step, and no request through the whole pool"
    );
}
