//! The recorder's cost for a request and a free: the pool's own fast path over a simulated device, with and without it.
//!
//! `cargo run --release -p gapless-torch --example record_cost`

use gapless_pool::{Options, Pool, PoolKey, SharedPool, SimDevice, StreamHandle};
use gapless_torch::recorder::{Config, Entry, Recorder, scribe};
use gapless_trace::Action;
use std::time::Instant;

const PAIRS: u64 = 2_000_000;
const STREAM: StreamHandle = StreamHandle(0);
const POOL: PoolKey = PoolKey(0, 0);

/// Nanoseconds a pair, the least of several rounds, because other work of the machine only adds.
fn least(mut round: impl FnMut()) -> f64 {
    let mut best = f64::MAX;
    for _ in 0..7 {
        let began = Instant::now();
        round();
        best = best.min(began.elapsed().as_nanos() as f64 / PAIRS as f64);
    }
    best
}

fn main() {
    let shared = SharedPool::new(Pool::new(SimDevice::new(64 << 30), Options::default()));
    let sizes = [1000, 70_000, 5 << 20, 512, 300 << 10];
    // After this, the pool's lock is not needed for the rest.
    let warm: Vec<u64> =
        sizes.iter().map(|&size| shared.alloc(size, STREAM, POOL).expect("memory")).collect();
    warm.into_iter().for_each(|addr| shared.free(addr).expect("a block"));
    let size_of = |i: u64| sizes[i as usize % sizes.len()];

    let plain = least(|| {
        for i in 0..PAIRS {
            let addr = shared.alloc(size_of(i), STREAM, POOL).expect("memory");
            shared.free(addr).expect("a block");
        }
    });

    let path = std::env::temp_dir().join(format!("gapless-record-cost-{}.gtrace", std::process::id()));
    let config = Config { path: path.clone(), stacks: false, limit: 0 };
    let recorder = Recorder::new(config, 1 << 17);
    let recorded = std::thread::scope(|scope| {
        let written = scope.spawn(|| {
            scribe::run(&recorder, |open| {
                open();
                Vec::new()
            })
        });
        let note = |action, addr, size| {
            recorder.push(&Entry {
                action,
                device: 0,
                stack: 0,
                module: 0,
                addr,
                size,
                stream: STREAM,
                pool: POOL,
                time: recorder.clock.now(),
            });
        };
        let fronts = shared.fronts();
        let recorded = least(|| {
            for i in 0..PAIRS {
                let size = size_of(i);
                let addr = fronts.alloc_then(size, STREAM, POOL, |addr| note(Action::Alloc, addr, size));
                let addr = addr.expect("served without the pool's lock");
                fronts.free_after(addr, |size, _, _| note(Action::FreeCompleted, addr, size));
            }
        });
        recorder.end();
        written.join().expect("the scribe").expect("a file");
        recorded
    });
    let bytes = std::fs::metadata(&path).map_or(0, |file| file.len());
    let _ = std::fs::remove_file(&path);
    let clock = least(|| {
        for _ in 0..PAIRS {
            std::hint::black_box(recorder.clock.now());
        }
    });
    println!("a pair without the recorder   {plain:8.1} ns");
    println!("a pair with it                {recorded:8.1} ns, {:.2} times", recorded / plain);
    println!(
        "an event                      {:8.1} ns, {clock:.1} ns of it to read the clock",
        (recorded - plain) / 2.0
    );
    println!(
        "the file                      {:8.2} bytes an event",
        bytes as f64 / recorder.written().max(1) as f64
    );
    println!("events lost                   {:8} of {}", recorder.lost(), 14 * PAIRS);
}
