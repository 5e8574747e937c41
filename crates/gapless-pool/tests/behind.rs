//! The memory that the pool reports behind an allocation is what the device has mapped there, in heaps and in windows.

use crate::support::Numbers;
use gapless_pool::{Behind, Options, Pool, PoolKey, SimDevice, StreamHandle};

const MIB: u64 = 1 << 20;

/// Page, offset in it, and bytes, as [`SimDevice::physical`] returns them.
fn told(pool: &Pool<SimDevice>, addr: u64, size: u64) -> Vec<(u64, u64, u64)> {
    let Some(Behind::Pages { offset, pages }) = pool.behind(addr) else { panic!("pages behind {addr:#x}") };
    let (mut from, mut left, mut found) = (offset, size, Vec::new());
    for (page, bytes) in pages {
        assert!(from < bytes && left > 0, "each page is touched");
        let here = left.min(bytes - from);
        found.push((page.0, from, here));
        (from, left) = (0, left - here);
    }
    assert_eq!(left, 0);
    found
}

#[test]
fn pages_behind_allocations_are_those_that_the_device_has_mapped() {
    let (mut windows, mut several) = (0, 0);
    for seed in 1..=40 {
        let mut numbers = Numbers(seed);
        let mut pool = Pool::new(SimDevice::new(600 * MIB), Options::default());
        let mut held: Vec<u64> = Vec::new();
        for _ in 0..400 {
            let stream = StreamHandle(numbers.below(2));
            if numbers.below(5) < 3 {
                let size = match numbers.below(4) {
                    0 => 1 + numbers.below(MIB),
                    1 => MIB + numbers.below(8 * MIB),
                    _ => 8 * MIB + numbers.below(80 * MIB),
                };
                held.extend(pool.alloc(size, stream, PoolKey(0, 0)));
            } else if !held.is_empty() {
                let at = numbers.below(held.len() as u64) as usize;
                pool.free(held.swap_remove(at)).expect("it is held");
            }
            for allocation in pool.live() {
                let (addr, size) = (allocation.addr, allocation.size);
                let told = told(&pool, addr, size);
                several += usize::from(told.len() > 1);
                assert_eq!(told, pool.device().physical(addr, size), "seed {seed}, {addr:#x}");
            }
        }
        windows += pool.stats().windows_made;
        assert_eq!(pool.behind(7), None);
    }
    assert!(windows > 50 && several > 1000, "{windows} windows, {several} over several pages");
}
