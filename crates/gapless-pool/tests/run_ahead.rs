//! With a bound on how far the host may run ahead, memory that waits for other streams stays below it, and a request
//! waits for the oldest of it, not for more.

use gapless_pool::{Options, Patience, Pool, PoolKey, SimDevice, StreamHandle, Unserved, Wait};

const MIB: u64 = 1 << 20;
const DEFAULT: PoolKey = PoolKey(0, 0);
const OWN: StreamHandle = StreamHandle(0);
const OTHER: StreamHandle = StreamHandle(7);

fn pool(run_ahead: Option<u64>) -> Pool<SimDevice> {
    let mut device = SimDevice::new(4096 * MIB);
    device.instant = false;
    Pool::new(device, Options { run_ahead, ..Options::default() })
}

/// Gathers `count` times into a new tensor that another stream uses when it is freed. That stream is far behind.
fn gathered(pool: &mut Pool<SimDevice>, sizes: &[u64], count: usize) -> u64 {
    for at in 0..count {
        let addr = pool.alloc(sizes[at % sizes.len()], OWN, DEFAULT).expect("memory");
        pool.record_stream(addr, OTHER).expect("it is live");
        pool.free(addr).expect("it is live");
    }
    pool.check().expect("a whole state");
    pool.stats().reserved.peak
}

#[test]
fn what_waits_for_other_streams_stays_below_the_bound() {
    for sizes in [vec![32 * MIB], vec![2 * MIB, 60 * MIB], vec![8 * MIB, 24 * MIB + 512, 40 * MIB, 4096]] {
        let largest = *sizes.iter().max().expect("some");
        let free = gathered(&mut pool(None), &sizes, 60);
        assert!(free >= 10 * largest, "{free}: without a bound all of it waits");
        for bound in [0, 32 * MIB, 128 * MIB] {
            let mut pool = pool(Some(bound));
            let most = gathered(&mut pool, &sizes, 60);
            // The request itself, slack, and a page at each end.
            assert!(most <= bound + 2 * largest + 24 * MIB, "{most} with a bound of {bound}, {sizes:?}");
            let waits = pool.device().host_waits;
            assert!((1..=60).contains(&waits), "{waits} waits with a bound of {bound}");
            assert_eq!(pool.stats().ooms, 0);
        }
    }
}

/// The stream that is behind has free memory of its own, which the gathering stream cannot use.
#[test]
fn free_memory_of_other_streams_lifts_no_bound() {
    for bound in [0, 64 * MIB, 256 * MIB] {
        let mut pool = pool(Some(bound));
        let addr = pool.alloc(512 * MIB, OTHER, DEFAULT).expect("memory");
        pool.free(addr).expect("it is live");
        let before = pool.stats().reserved.current;
        let most = gathered(&mut pool, &[32 * MIB], 97) - before;
        assert!(most <= bound + 88 * MIB, "{most} with a bound of {bound}");
    }
}

#[test]
fn below_the_bound_or_with_memory_at_hand_nothing_waits() {
    let mut pool = pool(Some(512 * MIB));
    gathered(&mut pool, &[32 * MIB], 15);
    assert_eq!(pool.device().host_waits, 0);
    let mut pool = self::pool(Some(MIB));
    let kept = pool.alloc(256 * MIB, OWN, DEFAULT).expect("memory");
    pool.free(kept).expect("it is live");
    gathered(&mut pool, &[32 * MIB], 7);
    assert_eq!(pool.device().host_waits, 0, "free memory serves all of them");
}

#[test]
fn a_caller_waits_for_the_oldest_with_the_pool_unlocked() {
    let mut pool = pool(Some(32 * MIB));
    let addrs = [0, 1].map(|_| pool.alloc(32 * MIB, OWN, DEFAULT).expect("memory"));
    let mut events = Vec::new();
    for addr in addrs {
        pool.record_stream(addr, OTHER).expect("it is live");
        pool.free(addr).expect("it is live");
        events.push(pool.device().last_event());
    }
    let mut patience = Patience::default();
    let asked = pool.alloc_asking(32 * MIB, OWN, DEFAULT, None, &mut patience);
    let Err(Unserved::Later(Wait::Event(event))) = asked else { panic!("{asked:?}") };
    assert_eq!(event, events[0]);
    pool.device_mut().finish(event);
    pool.end_wait(Wait::Event(event), true);
    let served = pool.alloc_asking(32 * MIB, OWN, DEFAULT, None, &mut patience);
    assert_eq!(served.ok(), Some(addrs[0]));
    assert_eq!(pool.device().host_waits, 0);
}
