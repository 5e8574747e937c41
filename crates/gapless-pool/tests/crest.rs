//! The highest active bytes between two calls, which offload plans with: exact on one stream, never too low on several.

use crate::support::Numbers;
use gapless_pool::{Options, Pool, PoolKey, SharedPool, SimDevice, StreamHandle};

#[test]
fn the_crest_is_the_most_since_the_last_look() {
    for (seed, streams) in (0..20).map(|seed| (seed, 1 + seed % 3)) {
        let mut numbers = Numbers(seed * 2 + 1);
        let pool = SharedPool::new(Pool::new(SimDevice::new(8 << 30), Options::default()));
        let (mut live, mut active, mut most) = (Vec::new(), 0, 0);
        for step in 0..3000 {
            match numbers.below(100) {
                0..=3 => {
                    let (crest, peak, now) = pool.with(|pool| {
                        // A lent block stays active until no work uses it, but is not shown.
                        (pool.take_crest(), pool.stats().active.peak, pool.stats_shown().active.current)
                    });
                    assert_eq!(now, active, "what the test counts");
                    assert!(crest >= most, "seed {seed}, step {step}: {crest} < {most}");
                    if streams == 1 {
                        assert_eq!(crest, most, "seed {seed}, step {step}");
                        assert!(crest <= peak);
                    }
                    most = active;
                }
                4..=55 if live.len() < 100 => {
                    let stream = StreamHandle(numbers.below(streams));
                    let addr = pool.alloc(numbers.size(), stream, PoolKey(0, 0)).expect("memory");
                    let size = pool.with(|pool| pool.size_of(addr)).expect("a live block");
                    active += size;
                    most = most.max(active);
                    live.push((addr, size));
                }
                _ if !live.is_empty() => {
                    let (addr, size) = live.swap_remove(numbers.below(live.len() as u64) as usize);
                    assert_eq!(pool.free(addr), Ok(()));
                    active -= size;
                }
                _ => {}
            }
        }
    }
}

#[test]
fn looking_changes_no_peak() {
    let mut pool = Pool::new(SimDevice::new(8 << 30), Options::default());
    let one = pool.alloc(64 << 20, StreamHandle(0), PoolKey(0, 0)).expect("memory");
    assert_eq!(pool.free(one), Ok(()));
    assert_eq!((pool.take_crest(), pool.take_crest()), (64 << 20, 0));
    assert_eq!(pool.stats().active.peak, 64 << 20);
}
