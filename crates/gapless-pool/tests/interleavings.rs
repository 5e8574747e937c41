//! The locking under a scheduler that tries many interleavings: `cargo test -p gapless-pool --features shuttle --test
//! interleavings`.

#![cfg(feature = "shuttle")]

use gapless_pool::{Budget, Options, Pool, PoolKey, SharedPool, SimDevice, StreamHandle};
use shuttle::sync::Arc;
use shuttle::thread;

const DEFAULT: PoolKey = PoolKey(0, 0);

/// Threads with streams of their own and a common one, blocks that change hands, peaks that are read and reset.
fn program() {
    let pool = Arc::new(SharedPool::new(Pool::new(SimDevice::new(256 << 20), Options::default())));
    let workers: Vec<_> = (0..3u64)
        .map(|worker| {
            let pool = Arc::clone(&pool);
            thread::spawn(move || {
                let own = StreamHandle(worker);
                let first = pool.alloc(4096, own, DEFAULT).expect("memory");
                let second = pool.alloc((3 + worker) << 20, StreamHandle(9), DEFAULT).expect("memory");
                if worker == 1 {
                    let stats = pool.with(|pool| *pool.stats());
                    assert!(stats.allocated.current <= stats.allocated.peak);
                    pool.with(Pool::reset_peaks);
                }
                assert_eq!(pool.record_stream(second, own), Ok(()));
                assert_eq!(pool.free(first), Ok(()));
                let again = pool.alloc(2048, own, DEFAULT).expect("memory");
                assert_eq!(pool.free(second), Ok(()));
                again
            })
        })
        .collect();
    let left: Vec<u64> = workers.into_iter().map(|worker| worker.join().expect("no panic")).collect();
    // By another thread than the one that asked.
    for addr in &left {
        assert_eq!(pool.free(*addr), Ok(()));
    }
    pool.with(|pool| {
        pool.device_mut().finish_all();
        pool.poll();
        pool.check().expect("a whole state");
        let stats = pool.stats();
        assert_eq!((stats.allocations.current, stats.active.current, stats.requested.current), (0, 0, 0));
        assert_eq!(stats.allocations.total, 9);
    });
}

/// Threads that charge one budget, which has room for some of them: its limit is never passed, and everything comes
/// back.
fn charged() {
    let pool = Arc::new(SharedPool::new(Pool::new(SimDevice::new(256 << 20), Options::default())));
    let budget: &'static Budget = Box::leak(Box::new(Budget::new(8 << 20, 5 << 20)));
    let workers: Vec<_> = (0..3u64)
        .map(|worker| {
            let pool = Arc::clone(&pool);
            thread::spawn(move || {
                let take = |size: u64| pool.alloc_for(size, StreamHandle(worker), DEFAULT, Some(budget)).ok();
                let first = take(2 << 20);
                let second = take((1 + worker) << 20);
                assert!(budget.stats().live <= 8 << 20);
                for addr in [first, second].into_iter().flatten() {
                    assert_eq!(pool.free(addr), Ok(()));
                }
                take(512)
            })
        })
        .collect();
    let left: Vec<u64> = workers.into_iter().filter_map(|worker| worker.join().expect("no panic")).collect();
    assert_eq!(budget.stats().live, 512 * left.len() as u64);
    for addr in left {
        assert_eq!(pool.free(addr), Ok(()));
    }
    let stats = budget.stats();
    assert!(stats.live == 0 && stats.peak <= 8 << 20, "{stats:?}");
}

#[test]
fn charges_in_random_interleavings() {
    shuttle::check_random(charged, 2000);
}

#[test]
fn random_interleavings() {
    shuttle::check_random(program, 2000);
}

#[test]
fn interleavings_with_few_switches() {
    shuttle::check_pct(program, 1000, 3);
}
