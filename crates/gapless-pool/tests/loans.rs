//! A stream can take at once what it freed, even if it was lent: natively nothing waits for it, and nothing fails.

use gapless_pool::{Options, Pool, PoolKey, SimDevice, StreamHandle};

const MIB: u64 = 1 << 20;
const PLAIN: PoolKey = PoolKey(0, 0);
const OWNER: StreamHandle = StreamHandle(1);
const BORROWER: StreamHandle = StreamHandle(2);

/// A pool whose owner freed 1,700 MiB, which other lanes may borrow.
fn with_free_memory() -> (Pool<SimDevice>, u64) {
    let mut device = SimDevice::new(8 << 30);
    device.instant = false;
    let mut pool = Pool::new(device, Options { limit: Some(3 << 30), ..Options::default() });
    pool.alloc(1, BORROWER, PLAIN).expect("room");
    let all = pool.alloc(1700 * MIB, OWNER, PLAIN).expect("room");
    pool.free(all).expect("live");
    // Its next request records the fence.
    let one = pool.alloc(1, OWNER, PLAIN).expect("room");
    pool.device_mut().finish_all();
    pool.poll();
    (pool, one)
}

/// The borrower's next requests are its turns; then all of its work is done.
fn let_borrower_go_on(pool: &mut Pool<SimDevice>) {
    for _ in 0..3 {
        pool.alloc(1, BORROWER, PLAIN).expect("its turn");
        pool.device_mut().finish_all();
        pool.poll();
    }
}

#[test]
fn an_owner_has_its_memory_again_while_its_borrower_stands_still() {
    for is_quiet in [false, true] {
        for sizes in [&[800, 750][..], &[800, 300, 420, 780], &[400, 400, 790, 10]] {
            let (mut pool, _) = with_free_memory();
            pool.set_quiet(is_quiet);
            // No work of the borrower is ever done from here on.
            for size in &sizes[..sizes.len() - 1] {
                let b = pool.alloc(size * MIB, BORROWER, PLAIN).expect("room");
                pool.free(b).expect("live");
                pool.check().expect("the invariants hold");
            }
            let last = sizes[sizes.len() - 1] * MIB;
            pool.alloc(last, BORROWER, PLAIN).expect("of what it gave back");
            pool.check().expect("the invariants hold");
            assert!(pool.stats().lent > 0);
            let waits = pool.device().host_waits;
            pool.alloc(1700 * MIB, OWNER, PLAIN).expect("what it freed");
            pool.check().expect("the invariants hold");
            assert_eq!(pool.device().host_waits, waits, "{sizes:?}: nothing waits");
        }
    }
}

/// Neighbouring blocks count as one, the rest of a block can be taken too, and the owner gets all of it back.
#[test]
fn what_was_given_back_serves_other_sizes_and_returns_whole() {
    let (mut pool, _) = with_free_memory();
    let before = pool.stats_shown().active.current;
    let [a, b] = [500, 300].map(|size| pool.alloc(size * MIB, BORROWER, PLAIN).expect("room"));
    let held = pool.stats().reserved.current;
    pool.free(a).expect("live");
    pool.free(b).expect("live");
    let both = pool.alloc(800 * MIB, BORROWER, PLAIN).expect("both together");
    assert_eq!(both, a.min(b));
    pool.free(both).expect("live");
    let parts: Vec<u64> =
        [200, 2, 598].iter().map(|size| pool.alloc(size * MIB, BORROWER, PLAIN).expect("a part")).collect();
    pool.check().expect("the invariants hold");
    assert_eq!(pool.stats().reserved.current, held, "nothing was taken from the device");
    assert!(parts.iter().all(|part| (both..both + 800 * MIB).contains(part)), "{parts:x?}");
    for part in parts {
        pool.free(part).expect("live");
        pool.check().expect("the invariants hold");
    }
    assert_eq!(pool.stats_shown().active.current, before);
    let_borrower_go_on(&mut pool);
    let whole = pool.alloc(1700 * MIB, OWNER, PLAIN).expect("whole again");
    assert!(!pool.is_in_window(whole));
    pool.check().expect("the invariants hold");
}

/// The same with borrowed memory in a window over pieces.
#[test]
fn part_of_a_window_that_was_given_back_serves_a_smaller_request() {
    let mut device = SimDevice::new(8 << 30);
    device.instant = false;
    let limit = Some(640 * MIB);
    let mut pool = Pool::new(device, Options { limit, slack: 0, ..Options::default() });
    pool.alloc(1, BORROWER, PLAIN).expect("room");
    let held: Vec<u64> = (0..60).map(|_| pool.alloc(10 * MIB, OWNER, PLAIN).expect("room")).collect();
    for addr in held.iter().step_by(2) {
        pool.free(*addr).expect("live");
    }
    pool.alloc(1, OWNER, PLAIN).expect("room");
    pool.device_mut().finish_all();
    pool.poll();
    let window = pool.alloc(96 * MIB, BORROWER, PLAIN).expect("pieces side by side");
    assert!(pool.is_in_window(window));
    pool.free(window).expect("live");
    let part = pool.alloc(33 * MIB, BORROWER, PLAIN).expect("part of it");
    assert_eq!(part, window);
    pool.check().expect("the invariants hold");
    let more = pool.alloc(5 * MIB, BORROWER, PLAIN).expect("of what is left");
    pool.check().expect("the invariants hold");
    let active = pool.stats_shown().active.current;
    pool.free(part).expect("live");
    pool.free(more).expect("live");
    assert_eq!(pool.stats_shown().active.current, active - 38 * MIB);
    let_borrower_go_on(&mut pool);
    pool.check().expect("the invariants hold");
    assert_eq!(pool.stats().active.current, pool.stats().allocated.current, "all of it is the owner's");
}
