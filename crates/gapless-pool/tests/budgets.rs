//! Budgets: charged bytes, the end of a charge, and refusals of a limit; against a naive twin, and with threads.

use crate::support::Numbers;
use gapless_pool::{
    AllocError, Budget, DeviceError, Options, Pool, PoolKey, Refusal, SharedPool, SimDevice, StreamHandle,
};
use std::collections::HashMap;

const DEFAULT: PoolKey = PoolKey(0, 0);
const STREAM: StreamHandle = StreamHandle(7);
const MIB: u64 = 1 << 20;

fn budget(limit: u64, soft: u64) -> &'static Budget {
    Box::leak(Box::new(Budget::new(limit, soft)))
}

fn pool() -> Pool<SimDevice> {
    Pool::new(SimDevice::new(4 << 30), Options::default())
}

fn is_refused(result: Result<u64, AllocError>) -> bool {
    matches!(result, Err(AllocError::OutOfMemory { device: DeviceError::Refused(Refusal::Budget), .. }))
}

#[test]
fn a_limit_refuses_and_what_is_given_back_makes_room() {
    let (mut pool, eval) = (pool(), budget(8 * MIB, u64::MAX));
    let first = pool.alloc_for(6 * MIB, STREAM, DEFAULT, Some(eval)).expect("room");
    assert!(is_refused(pool.alloc_for(2 * MIB + 1, STREAM, DEFAULT, Some(eval))));
    pool.alloc(64 * MIB, STREAM, DEFAULT).expect("what is charged to nobody is not limited");
    pool.alloc_for(2 * MIB, STREAM, DEFAULT, Some(eval)).expect("room to the last byte");
    assert!(is_refused(pool.alloc_for(1, STREAM, DEFAULT, Some(eval))));
    pool.free(first).expect("it is there");
    let stats = eval.stats();
    assert_eq!((stats.live, stats.peak, stats.refused), (2 * MIB, 8 * MIB, 2));
    assert_eq!(pool.stats().ooms, 2);
}

#[test]
fn a_charge_ends_when_the_caller_gives_back_though_streams_still_use_it() {
    let mut pool = pool();
    pool.device_mut().instant = false;
    let eval = budget(8 * MIB, u64::MAX);
    let addr = pool.alloc_for(8 * MIB, STREAM, DEFAULT, Some(eval)).expect("room");
    pool.record_stream(addr, StreamHandle(9)).expect("it is there");
    pool.free(addr).expect("it is there");
    assert_eq!((eval.stats().live, pool.stats().active.current), (0, 8 * MIB));
    pool.device_mut().finish_all();
    pool.poll();
    assert_eq!((eval.stats().live, pool.stats().active.current), (0, 0));
    let addr = pool.alloc_for(MIB, STREAM, DEFAULT, Some(eval)).expect("room");
    pool.free_later(addr).expect("it is there");
    assert_eq!(eval.stats().live, 0);
    pool.free_now(addr);
    assert_eq!(eval.stats().live, 0);
}

#[test]
fn private_pools_windows_and_restored_states_are_charged_too() {
    let (mut pool, eval, graph) = (pool(), budget(u64::MAX, u64::MAX), PoolKey(1, 0));
    pool.use_pool(graph);
    let held = pool.alloc_for(3 * MIB, STREAM, graph, Some(eval)).expect("room");
    let saved = pool.save(graph);
    pool.free(held).expect("it is there");
    assert_eq!(eval.stats().live, 0);
    pool.restore(graph, &saved).expect("it was there");
    assert_eq!(eval.stats().live, 3 * MIB);
    pool.restore(graph, &[]).expect("nothing was there");
    assert_eq!(eval.stats().live, 0);
    // Free memory lies in pieces, so the next request gets a window.
    let pieces: Vec<u64> = (0..64).map(|_| pool.alloc(4 * MIB, STREAM, DEFAULT).expect("room")).collect();
    for addr in pieces.iter().step_by(2) {
        pool.free(*addr).expect("it is there");
    }
    let before = pool.stats().windows_made;
    let wide = pool.alloc_for(100 * MIB, STREAM, DEFAULT, Some(eval)).expect("room");
    assert!(pool.stats().windows_made > before, "a window was made");
    assert_eq!(eval.stats().live, 100 * MIB);
    pool.free(wide).expect("it is there");
    assert_eq!(eval.stats().live, 0);
    pool.trim();
    pool.check().expect("every invariant");
}

#[test]
fn a_soft_limit_gives_free_memory_back_once_and_refuses_nothing() {
    let (mut pool, eval) = (pool(), budget(u64::MAX, 16 * MIB));
    let free = pool.alloc(256 * MIB, STREAM, DEFAULT).expect("room");
    pool.free(free).expect("it is there");
    // These requests are served from the same free memory; the rest of it goes back.
    let first = pool.alloc_for(12 * MIB, STREAM, DEFAULT, Some(eval)).expect("room");
    assert_eq!((pool.stats().device_frees, eval.stats().pressed), (0, 0));
    let second = pool.alloc_for(12 * MIB, STREAM, DEFAULT, Some(eval)).expect("a soft limit refuses nothing");
    assert!(pool.stats().device_frees > 0 && pool.stats().reserved.current < 64 * MIB);
    assert_eq!((eval.stats().pressed, eval.stats().live, eval.stats().refused), (1, 24 * MIB, 0));
    let third = pool.alloc_for(12 * MIB, STREAM, DEFAULT, Some(eval)).expect("room");
    assert_eq!(eval.stats().pressed, 1, "it is passed already");
    for addr in [first, second, third] {
        pool.free(addr).expect("it is there");
    }
    pool.alloc_for(17 * MIB, STREAM, DEFAULT, Some(eval)).expect("room");
    assert_eq!(eval.stats().pressed, 2, "well below it and above it again");
}

#[test]
fn memory_that_work_used_at_a_soft_limit_goes_back_with_the_first_request_after_it() {
    let mut pool = pool();
    pool.device_mut().instant = false;
    let eval = budget(u64::MAX, 16 * MIB);
    let free = pool.alloc(256 * MIB, STREAM, DEFAULT).expect("room");
    pool.free(free).expect("it is there");
    let ask =
        |pool: &mut Pool<SimDevice>| pool.alloc_for(12 * MIB, STREAM, DEFAULT, Some(eval)).expect("room");
    let waits = pool.stats().waits;
    let mut held: Vec<u64> = (0..3).map(|_| ask(&mut pool)).collect();
    assert!(pool.stats().reserved.current >= 256 * MIB, "work uses it");
    pool.set_quiet(true);
    pool.device_mut().finish_all();
    held.push(ask(&mut pool));
    assert!(pool.stats().reserved.current >= 256 * MIB, "a capture forbids it");
    pool.set_quiet(false);
    held.push(ask(&mut pool));
    pool.device_mut().finish_all();
    held.push(ask(&mut pool));
    assert!(pool.stats().reserved.current < 128 * MIB, "the work is done: {:?}", pool.stats().reserved);
    assert_eq!((eval.stats().pressed, pool.stats().waits), (1, waits));
    // The owed memory went back, so free memory is kept again until the next crossing.
    let free = pool.alloc(256 * MIB, STREAM, DEFAULT).expect("room");
    pool.free(free).expect("it is there");
    pool.device_mut().finish_all();
    held.push(ask(&mut pool));
    assert!(pool.stats().reserved.current >= 256 * MIB);
    assert_eq!(eval.stats().pressed, 1);
    for addr in held {
        pool.free(addr).expect("it is there");
    }
    pool.check().expect("every invariant");
}

#[test]
fn a_limit_that_changes_concerns_what_comes() {
    let (mut pool, eval) = (pool(), budget(8 * MIB, u64::MAX));
    pool.alloc_for(6 * MIB, STREAM, DEFAULT, Some(eval)).expect("room");
    eval.set_limits(4 * MIB, u64::MAX);
    assert!(is_refused(pool.alloc_for(1, STREAM, DEFAULT, Some(eval))));
    eval.set_limits(16 * MIB, u64::MAX);
    pool.alloc_for(10 * MIB, STREAM, DEFAULT, Some(eval)).expect("room");
    eval.reset_peak();
    assert_eq!(eval.stats().peak, 16 * MIB);
}

#[test]
fn random_programs_are_charged_as_a_twin_counts() {
    for seed in 1..40 {
        let mut numbers = Numbers(seed);
        let mut pool = Pool::new(SimDevice::new(256 * MIB), Options::default());
        pool.device_mut().instant = false;
        let budgets = [
            None,
            Some(budget(40 * MIB, 30 * MIB)),
            Some(budget(u64::MAX, 20 * MIB)),
            Some(budget(90 * MIB, u64::MAX)),
        ];
        let mut held: Vec<(u64, usize)> = Vec::new();
        let mut live: HashMap<usize, u64> = HashMap::new();
        let mut peak: HashMap<usize, u64> = HashMap::new();
        for _ in 0..400 {
            match numbers.below(8) {
                0..=4 => {
                    let (size, at) = (numbers.size(), numbers.below(4) as usize);
                    let stream = StreamHandle(numbers.below(2));
                    if numbers.below(10) == 0 {
                        pool.device_mut().fail_in = Some(numbers.below(4) as u32);
                    }
                    let sum = live.get(&at).copied().unwrap_or(0) + size.div_ceil(512) * 512;
                    let limit = budgets[at].map_or(u64::MAX, |b| b.stats().limit);
                    match pool.alloc_for(size, stream, DEFAULT, budgets[at]) {
                        Ok(addr) => {
                            assert!(sum <= limit, "seed {seed}");
                            held.push((addr, at));
                            live.insert(at, sum);
                            let most = peak.entry(at).or_default();
                            *most = sum.max(*most);
                        }
                        Err(AllocError::OutOfMemory { device, .. }) => {
                            let by_budget = device == DeviceError::Refused(Refusal::Budget);
                            assert_eq!(by_budget, sum > limit, "seed {seed}");
                        }
                    }
                    pool.device_mut().fail_in = None;
                }
                5 if !held.is_empty() => {
                    let (addr, _) = held[numbers.below(held.len() as u64) as usize];
                    pool.record_stream(addr, StreamHandle(5)).expect("it is there");
                }
                6 => pool.device_mut().finish_all(),
                _ if !held.is_empty() => {
                    let (addr, at) = held.swap_remove(numbers.below(held.len() as u64) as usize);
                    *live.entry(at).or_default() -= pool.size_of(addr).expect("its size");
                    pool.free(addr).expect("it is there");
                }
                _ => {}
            }
            for (at, budget) in budgets.iter().enumerate().filter_map(|(at, b)| b.map(|b| (at, b.stats()))) {
                assert_eq!(budget.live, live.get(&at).copied().unwrap_or(0), "seed {seed}");
                assert_eq!(budget.peak, peak.get(&at).copied().unwrap_or(0), "seed {seed}");
            }
        }
        pool.check().expect("every invariant");
    }
}

#[test]
fn threads_never_pass_a_limit_and_everything_comes_back() {
    let shared = SharedPool::new(pool());
    let eval = budget(64 * MIB, 48 * MIB);
    std::thread::scope(|scope| {
        for thread in 1..=4 {
            let shared = &shared;
            scope.spawn(move || {
                let (mut numbers, stream) = (Numbers(thread), StreamHandle(thread));
                let mut held = Vec::new();
                for _ in 0..4000 {
                    if numbers.below(5) < 3 {
                        let charged = (numbers.below(4) > 0).then_some(eval);
                        let result = shared.alloc_for(1 + numbers.below(4 * MIB), stream, DEFAULT, charged);
                        match result {
                            Ok(addr) => held.push(addr),
                            refused => assert!(is_refused(refused)),
                        }
                        assert!(eval.stats().live <= 64 * MIB);
                    } else if !held.is_empty() {
                        let addr = held.swap_remove(numbers.below(held.len() as u64) as usize);
                        shared.free(addr).expect("it is there");
                    }
                }
                for addr in held {
                    shared.free(addr).expect("it is there");
                }
            });
        }
    });
    let stats = eval.stats();
    assert_eq!(stats.live, 0);
    assert!(stats.refused > 0 && stats.peak <= 64 * MIB && stats.peak > 48 * MIB, "{stats:?}");
    shared.with(|pool| pool.check().expect("every invariant"));
}
