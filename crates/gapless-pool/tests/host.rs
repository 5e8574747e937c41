//! The pinned host pool under random programs: no byte handed out twice, the invariants after every step, tight
//! rounding, limits, and a host that refuses.

use crate::support::Numbers;
use gapless_pool::DeviceError;
use gapless_pool::host::{GRAIN, HostError, HostPool, HostStats, Pinner, SLAB};
use std::collections::BTreeMap;

/// A host with a limit on pinned memory, which also refuses the call with the number `fault`.
#[derive(Debug, Default)]
struct Host {
    capacity: u64,
    pinned: BTreeMap<u64, u64>,
    next: u64,
    calls: u64,
    fault: Option<u64>,
}

impl Pinner for Host {
    fn pin(&mut self, size: u64) -> Result<u64, DeviceError> {
        self.calls += 1;
        if Some(self.calls) == self.fault {
            return Err(DeviceError::Driver(1));
        }
        if self.pinned.values().sum::<u64>() + size > self.capacity {
            return Err(DeviceError::OutOfMemory);
        }
        // Slabs touch, so that a merge across slabs would show.
        self.next = self.next.max(1 << 40);
        let addr = self.next;
        self.next += size;
        self.pinned.insert(addr, size);
        Ok(addr)
    }

    fn unpin(&mut self, addr: u64, size: u64) {
        assert_eq!(self.pinned.remove(&addr), Some(size), "given back as it was taken");
    }
}

fn pool(capacity: u64) -> HostPool<Host> {
    HostPool::new(Host { capacity, ..Host::default() })
}

/// Live blocks, recorded apart from the pool: address to end.
#[derive(Default)]
struct Twin(BTreeMap<u64, u64>);

impl Twin {
    fn take(&mut self, addr: u64, size: u64, host: &Host) {
        let end = addr + size.max(1);
        assert!(self.0.range(..end).next_back().is_none_or(|(_, &other)| other <= addr), "handed out twice");
        let slab = host.pinned.range(..=addr).next_back().expect("a slab below it");
        assert!(end <= slab.0 + slab.1, "within one slab");
        self.0.insert(addr, end);
    }
}

fn size(numbers: &mut Numbers) -> u64 {
    match numbers.below(12) {
        0 => SLAB + numbers.below(3 * SLAB),
        1 => [1, GRAIN - 1, GRAIN, GRAIN + 1, SLAB - 1, SLAB, SLAB + 1][numbers.below(7) as usize],
        _ => 1 + numbers.next() % (1 << (10 + numbers.below(16))),
    }
}

#[test]
fn random_programs_never_get_a_byte_twice() {
    for seed in 0..60 {
        let mut numbers = Numbers(seed * 2 + 1);
        let mut pool = pool(if seed % 3 == 0 { 6 * SLAB } else { 1 << 40 });
        let limit = (seed % 4 == 1).then_some(5 * SLAB + 12345);
        let mut twin = Twin::default();
        for step in 0..800 {
            match numbers.below(100) {
                0 => drop(pool.trim()),
                1..=54 => {
                    let size = size(&mut numbers);
                    match pool.alloc(size, limit) {
                        Ok(addr) => {
                            assert!(addr.is_multiple_of(GRAIN));
                            twin.take(addr, size, pool.pinner_mut());
                        }
                        Err(error) => {
                            assert!(seed % 3 == 0 || limit.is_some(), "seed {seed}, step {step}: {error}");
                        }
                    }
                    assert!(limit.is_none_or(|limit| pool.stats().reserved <= limit));
                }
                55..=97 if !twin.0.is_empty() => {
                    let at = numbers.below(twin.0.len() as u64) as usize;
                    let addr = *twin.0.keys().nth(at).expect("a live block");
                    twin.0.remove(&addr);
                    assert!(pool.free(addr));
                    assert!(!pool.free(addr), "a second time");
                }
                _ => assert!(!pool.free(12345)),
            }
            pool.check();
        }
        for addr in std::mem::take(&mut twin.0).into_keys() {
            assert!(pool.free(addr));
        }
        pool.check();
        pool.trim();
        let HostStats { live, allocated, reserved, slabs, peak_reserved, .. } = pool.stats();
        assert_eq!((live, allocated, reserved, slabs), (0, 0, 0, 0), "everything went back");
        assert!(peak_reserved > 0 && pool.pinner_mut().pinned.is_empty());
    }
}

#[test]
fn what_is_pinned_is_what_was_asked_for_and_less_than_a_slab() {
    // Sizes just above powers of two, with which doubling would cost most.
    let mut pool = pool(1 << 40);
    let sizes: Vec<u64> = (0..200).map(|i| (1 << (16 + i % 12)) + 1 + i).collect();
    for &size in &sizes {
        pool.alloc(size, None).expect("memory");
    }
    let asked: u64 = sizes.iter().sum();
    let stats = pool.stats();
    assert_eq!(stats.live, asked);
    assert!(stats.allocated <= asked + 200 * GRAIN);
    // This fits into the rest of the last slab; best fit fills the others.
    assert!(stats.reserved <= asked + asked / 20 + SLAB, "{} for {asked}", stats.reserved);
    // A request larger than a slab gets a slab of its own size.
    pool.alloc(3 * SLAB + 5, None).expect("memory");
    assert_eq!(pool.stats().reserved, stats.reserved + 3 * SLAB + GRAIN);
}

#[test]
fn a_limit_is_kept_and_named() {
    let mut pool = pool(1 << 40);
    let limit = Some(SLAB + SLAB / 2);
    let first = pool.alloc(SLAB, limit).expect("fits");
    pool.alloc(SLAB / 2, limit).expect("the second slab is cut to the limit");
    let error = pool.alloc(1, limit).expect_err("nothing is left");
    assert_eq!(error, HostError::Limit { size: GRAIN, reserved: SLAB + SLAB / 2, limit: SLAB + SLAB / 2 });
    assert!(error.to_string().contains("raise host_limit"), "{error}");
    assert!(pool.free(first));
    // For a request of another size the free slab goes first.
    pool.alloc(SLAB - GRAIN, limit).expect("fits again");
    pool.check();
}

#[test]
fn an_absurd_size_is_an_error() {
    let mut pool = pool(1 << 40);
    for size in [u64::MAX, u64::MAX - GRAIN, 1 << 60] {
        assert!(pool.alloc(size, None).is_err());
        assert!(pool.alloc(size, Some(1 << 30)).is_err());
    }
    pool.check();
    assert_eq!(pool.stats(), HostStats::default());
}

#[test]
fn a_host_that_refuses_at_any_call_leaves_the_pool_whole() {
    for fault in 1..12 {
        let mut numbers = Numbers(7);
        let mut pool = pool(1 << 40);
        pool.pinner_mut().fault = Some(fault);
        let mut live = Vec::new();
        for _ in 0..40 {
            let size = size(&mut numbers);
            match pool.alloc(size, None) {
                Ok(addr) => live.push(addr),
                Err(error) => assert!(error.to_string().contains("CUDA error 1"), "{error}"),
            }
            if numbers.below(3) == 0 && !live.is_empty() {
                assert!(pool.free(live.swap_remove(0)));
            }
            pool.check();
        }
    }
}

#[test]
fn little_memory_is_taken_without_the_rest_of_a_slab() {
    let mut pool = pool(SLAB / 4);
    let addr = pool.alloc(SLAB / 8, None).expect("the exact size, where a slab is refused");
    assert_eq!(pool.stats().reserved, SLAB / 8);
    assert!(pool.alloc(SLAB / 4, None).is_err());
    assert!(pool.free(addr));
    pool.alloc(SLAB / 4, None).expect("after the slab without use went back");
    pool.check();
}
