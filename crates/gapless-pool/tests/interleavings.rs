//! The locking under a scheduler that tries many interleavings: `cargo test -p gapless-pool --features shuttle --test
//! interleavings`.

#![cfg(feature = "shuttle")]

use gapless_pool::{Budget, Keeper, Options, Pool, PoolKey, Shared, SharedPool, SimDevice, StreamHandle};
use shuttle::sync::{Arc, Mutex};
use shuttle::thread;

const DEFAULT: PoolKey = PoolKey(0, 0);

/// Threads with streams of their own and a common one, blocks that are freed by other threads, peaks that are reset.
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
    // Frees a block that another thread allocated.
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

/// Threads that charge one budget, which has room for some of them: its limit is never exceeded, and all charges end.
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

/// The events of a watcher: an address was handed out, or freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    Out(u64),
    Back(u64),
}

/// A pool with the keeper of the allocator below PyTorch: every other time that it is left, each request must come
/// through the whole pool.
struct Card {
    pool: Pool<SimDevice>,
    left: u32,
}

impl Keeper for Card {
    type Device = SimDevice;

    fn pool_mut(&mut self) -> &mut Pool<SimDevice> {
        &mut self.pool
    }

    fn about_to_leave(&mut self) -> bool {
        self.left += 1;
        self.left.is_multiple_of(2)
    }
}

/// Events that are reported under the locks arrive in the order in which they happened, whichever way a request went:
/// no address is handed out twice before it is freed.
fn told() {
    let pool = Pool::new(SimDevice::new(256 << 20), Options::default());
    let card = Arc::new(Shared::new(Card { pool, left: 0 }));
    let list: Arc<Mutex<Vec<Told>>> = Arc::default();
    let tell = |list: &Mutex<Vec<Told>>, what| list.lock().expect("no panic").push(what);
    let workers: Vec<_> = (0..3u64)
        .map(|worker| {
            let (card, list) = (Arc::clone(&card), Arc::clone(&list));
            thread::spawn(move || {
                let ask = |size: u64, stream: StreamHandle| {
                    let out = |addr| tell(&list, Told::Out(addr));
                    let at_front = card.fronts().alloc_then(size, stream, DEFAULT, out);
                    at_front.unwrap_or_else(|| {
                        card.with(|card| {
                            let addr = card.pool.alloc(size, stream, DEFAULT).expect("memory");
                            tell(&list, Told::Out(addr));
                            addr
                        })
                    })
                };
                let give = |addr: u64| {
                    let is_done = card.fronts().free_after(addr, |_, _, _| tell(&list, Told::Back(addr)));
                    if !is_done {
                        card.with(|card| {
                            assert_eq!(card.pool.free(addr), Ok(()));
                            tell(&list, Told::Back(addr));
                        });
                    }
                };
                // All threads use this stream, so that blocks pass from one to another.
                let first = ask(4096, StreamHandle(9));
                give(first);
                let second = ask(4096, StreamHandle(9));
                let third = ask(2 << 20, StreamHandle(worker));
                give(second);
                third
            })
        })
        .collect();
    let mut left: Vec<u64> = workers.into_iter().map(|worker| worker.join().expect("no panic")).collect();
    let mut live: Vec<u64> = Vec::new();
    for &what in &*list.lock().expect("no panic") {
        match what {
            Told::Out(addr) => {
                assert!(!live.contains(&addr), "{addr:#x} was handed out twice");
                live.push(addr);
            }
            Told::Back(addr) => {
                let at = live.iter().position(|&other| other == addr).expect("somebody had it");
                live.swap_remove(at);
            }
        }
    }
    live.sort_unstable();
    left.sort_unstable();
    assert_eq!(live, left);
    card.with(|card| card.pool.check()).expect("a whole state");
}

#[test]
fn what_is_told_is_in_order_in_random_interleavings() {
    shuttle::check_random(told, 2000);
}

#[test]
fn what_is_told_is_in_order_with_few_switches() {
    shuttle::check_pct(told, 1000, 3);
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
