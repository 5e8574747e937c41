//! `cargo xtask bench pool`: the cost of a cached request and its free, for one thread and for threads on streams of
//! their own, beside one lock around the plain machine; and the same while a plan of the step is followed.

#[path = "../tests/support/mod.rs"]
mod support;

use gapless_pool::{Options, Pool, PoolKey, SharedPool, SimDevice, StreamHandle};
use std::collections::VecDeque;
use std::sync::{Barrier, Mutex};
use std::time::{Duration, Instant};

const DEFAULT: PoolKey = PoolKey(0, 0);
const PAIRS: u32 = 400_000;
/// Requests of a step that stay until its end; as many others do not.
const STEP: usize = 300;
/// Blocks that each thread holds while it frees the oldest and requests the next.
const HELD: usize = 32;
/// A mix of small and large sizes, as in a training step.
const SIZES: [u64; 8] = [512, 4096, 70_000, 600_000, 2 << 20, 5 << 20, 24 << 20, 3 << 10];

fn pool() -> Pool<SimDevice> {
    Pool::new(SimDevice::new(64 << 30), Options::default())
}

/// Nanoseconds of a request and its free as each thread sees them, and their number a second for all threads together.
fn run(
    threads: u64,
    alloc: impl Fn(u64, StreamHandle) -> u64 + Sync,
    free: impl Fn(u64) + Sync,
) -> (f64, f64) {
    let start = Barrier::new(threads as usize);
    let times: Mutex<Vec<Duration>> = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (start, times, alloc, free) = (&start, &times, &alloc, &free);
            scope.spawn(move || {
                let stream = StreamHandle(16 * (thread + 1));
                let mut sizes = SIZES.iter().copied().cycle();
                let mut held: VecDeque<u64> = sizes.by_ref().take(HELD).map(|s| alloc(s, stream)).collect();
                let mut turn = |pairs: u32| {
                    for size in sizes.by_ref().take(pairs as usize) {
                        free(held.pop_front().expect("something is held"));
                        held.push_back(alloc(size, stream));
                    }
                };
                start.wait();
                turn(10_000);
                start.wait();
                let began = Instant::now();
                turn(PAIRS);
                times.lock().expect("a lock").push(began.elapsed());
                start.wait();
                held.into_iter().for_each(free);
            });
        }
    });
    let times = times.into_inner().expect("a lock");
    let longest = times.iter().max().copied().unwrap_or_default().as_secs_f64();
    let mean = times.iter().map(Duration::as_secs_f64).sum::<f64>() / threads as f64;
    (mean * 1e9 / f64::from(PAIRS), threads as f64 * f64::from(PAIRS) / longest / 1e6)
}

/// Nanoseconds of a request and its free in a step of large requests that repeats, and the part that its plan served.
fn run_step(is_planned: bool) -> (f64, f64) {
    let mut pool = pool();
    if is_planned {
        pool.set_planner(Some(Box::new(support::planner::AtOnce)));
    }
    let pool = SharedPool::new(pool);
    let stream = StreamHandle(16);
    let mut saved = Vec::with_capacity(STEP);
    let mut step = || {
        for i in 0..STEP as u64 {
            saved.push(pool.alloc((2 << 20) + i * 512, stream, DEFAULT).expect("memory"));
            let temporary = pool.alloc((3 << 20) + i % 7 * 4096, stream, DEFAULT).expect("memory");
            pool.free(temporary).expect("its own");
        }
        while let Some(addr) = saved.pop() {
            pool.free(addr).expect("its own");
        }
    };
    (0..6).for_each(|_| step());
    let served = |pool: &SharedPool<SimDevice>| pool.with(|pool| pool.plan_stats().served);
    let before = served(&pool);
    let (steps, began) = (400_u32, Instant::now());
    (0..steps).for_each(|_| step());
    let pairs = 2.0 * f64::from(steps) * STEP as f64;
    (began.elapsed().as_secs_f64() * 1e9 / pairs, (served(&pool) - before) as f64 / pairs)
}

fn main() {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get) as u64;
    println!("a cached request and its free; {cores} cores; median of 5");
    println!(
        "{:>8} {:>16} {:>12} {:>10} {:>22} {:>10}",
        "threads", "ns a pair", "M pairs/s", "ratio", "one lock: M pairs/s", "gathered"
    );
    let median = |mut list: Vec<(f64, f64)>| {
        list.sort_by(|a, b| a.1.total_cmp(&b.1));
        list[list.len() / 2]
    };
    let mut first = 0.0;
    for threads in [1, 2, 4, 8, 16].into_iter().filter(|&n| n <= cores.max(2)) {
        let (mut apart, mut locked, mut gathered) = (Vec::new(), Vec::new(), 0);
        for _ in 0..5 {
            let shared = SharedPool::new(pool());
            let run_apart = run(
                threads,
                |size, stream| shared.alloc(size, stream, DEFAULT).expect("memory"),
                |addr| shared.free(addr).expect("its own"),
            );
            apart.push(run_apart);
            gathered = shared.fronts().gathers();
            let plain = Mutex::new(pool());
            locked.push(run(
                threads,
                |size, stream| plain.lock().expect("a lock").alloc(size, stream, DEFAULT).expect("memory"),
                |addr| plain.lock().expect("a lock").free(addr).expect("its own"),
            ));
        }
        let ((ns, rate), (_, other)) = (median(apart), median(locked));
        if threads == 1 {
            first = rate;
        }
        println!("{threads:>8} {ns:>16.0} {rate:>12.2} {:>10.2} {other:>22.2} {gathered:>10}", rate / first);
    }
    let median = |is_planned: bool| {
        let mut list: Vec<(f64, f64)> = (0..5).map(|_| run_step(is_planned)).collect();
        list.sort_by(|a, b| a.0.total_cmp(&b.0));
        list[2]
    };
    let ((plain, _), (planned, share)) = (median(false), median(true));
    println!(
        "a step of {} large requests: {plain:.0} ns a pair; planned {planned:.0} ns, {:.1} % of it from the plan",
        2 * STEP,
        100.0 * share
    );
}
