//! The allocator under random programs: invariants after every step, no two live allocations over the same physical
//! bytes, faults at every device call.

use crate::support::Numbers;
use gapless_pool::{AllocError, FreeError, Options, Pool, PoolKey, SimDevice, StreamHandle};
use std::collections::BTreeMap;

struct Program {
    pool: Pool<SimDevice>,
    numbers: Numbers,
    live: Vec<u64>,
    streams: u64,
    failures: u32,
}

impl Program {
    fn new(seed: u64, capacity: u64, streams: u64) -> Program {
        let mut device = SimDevice::new(capacity);
        device.instant = false;
        Program {
            pool: Pool::new(device, Options::default()),
            numbers: Numbers(seed * 2 + 1),
            live: Vec::new(),
            streams,
            failures: 0,
        }
    }

    fn step(&mut self, most: usize) {
        let n = &mut self.numbers;
        let full = self.live.len() >= most;
        match n.below(100) {
            0 => self.pool.device_mut().finish_all(),
            1 => match n.below(6) {
                0 => drop(self.pool.trim()),
                1 => self.pool.release_pool(PoolKey(1, 0)),
                2 => self.pool.use_pool(PoolKey(1, 0)),
                _ => {}
            },
            2..=9 if !self.live.is_empty() => {
                let at = n.below(self.live.len() as u64) as usize;
                let stream = StreamHandle(n.below(self.streams));
                assert_eq!(self.pool.record_stream(self.live[at], stream), Ok(()));
            }
            10..=59 if !full => {
                let (size, stream) = (n.size(), StreamHandle(n.below(self.streams)));
                let pool = if n.below(12) == 0 { PoolKey(1, 0) } else { PoolKey(0, 0) };
                match self.pool.alloc(size, stream, pool) {
                    Ok(addr) => {
                        assert!(addr.is_multiple_of(512));
                        assert!(self.pool.size_of(addr).is_some_and(|s| s >= size));
                        self.live.push(addr);
                    }
                    Err(AllocError::OutOfMemory { size: asked, .. }) => {
                        assert_eq!(asked, size);
                        self.failures += 1;
                    }
                }
            }
            _ if !self.live.is_empty() => {
                let at = n.below(self.live.len() as u64) as usize;
                let addr = self.live.swap_remove(at);
                assert_eq!(self.pool.free(addr), Ok(()));
            }
            _ => {}
        }
    }

    /// Every allocation is usable, and no physical byte belongs to two.
    fn check_physical(&self) {
        let device = self.pool.device();
        let mut owners: BTreeMap<(u64, u64), (u64, u64)> = BTreeMap::new();
        for (addr, size, _) in self.pool.allocations() {
            assert!(device.is_usable(addr, size), "{size} at {addr:#x}");
            for (page, offset, bytes) in device.physical(addr, size) {
                let before = owners.range(..(page, offset + bytes)).next_back();
                if let Some((&(p, o), &(length, other))) = before {
                    assert!(p != page || o + length <= offset, "{addr:#x} and {other:#x} share page {page}");
                }
                owners.insert((page, offset), (bytes, addr));
            }
        }
    }

    fn check(&self) {
        if let Err(wrong) = self.pool.check() {
            panic!("{wrong}");
        }
    }
}

#[test]
fn random_programs_keep_every_invariant() {
    for seed in 0..40 {
        let capacity = if seed % 3 == 0 { 64 << 20 } else { 4 << 30 };
        let mut program = Program::new(seed, capacity, 1 + seed % 4);
        for i in 0..1500 {
            program.step(120);
            if i % 7 == 0 {
                program.check();
                program.check_physical();
            }
            let stats = program.pool.stats();
            assert!(stats.reserved.current <= capacity && stats.active.current <= stats.reserved.current);
        }
        for addr in std::mem::take(&mut program.live) {
            assert_eq!(program.pool.free(addr), Ok(()));
        }
        // Lent memory is its owner's again when its borrower makes another request, or after a wait.
        program.pool.trim();
        program.check();
        let stats = program.pool.stats();
        assert_eq!((stats.active.current, stats.allocated.current, stats.requested.current), (0, 0, 0));
        assert!(seed % 3 != 0 || program.failures > 0, "a small card runs out");
    }
}

#[test]
fn ten_million_operations() {
    let mut program = Program::new(77, 3 << 30, 3);
    for i in 0..10_000_000u32 {
        program.step(150);
        if i % 250_000 == 0 {
            program.check();
            program.check_physical();
        }
    }
    program.check();
    program.check_physical();
    let stats = program.pool.stats();
    assert!(stats.allocations.total > 3_000_000 && stats.windows_made > 0 && stats.lent > 0);
}

#[test]
fn the_same_program_gives_the_same_addresses() {
    let run = || {
        let mut program = Program::new(5, 1 << 30, 3);
        let mut seen = Vec::new();
        for _ in 0..3000 {
            program.step(100);
            seen.push(program.live.last().copied());
        }
        (seen, *program.pool.stats())
    };
    assert_eq!(run(), run());
}

#[test]
fn a_fault_at_any_device_call_leaves_the_state_whole() {
    for call in 0..400 {
        let mut program = Program::new(11, 1 << 30, 2);
        program.pool.device_mut().fail_in = Some(call);
        for i in 0..300 {
            program.step(60);
            if i % 10 == 0 || program.pool.device().fail_in.is_none() && i < 40 {
                program.check();
            }
        }
        program.check();
        program.check_physical();
        // A request that failed because of a fault is served at the next try.
        program.pool.device_mut().fail_in = None;
        let addr = program.pool.alloc(3 << 20, StreamHandle(0), PoolKey(0, 0)).expect("memory");
        assert_eq!(program.pool.free(addr), Ok(()));
    }
}

#[test]
fn frees_that_make_no_sense_change_nothing() {
    let mut pool = Pool::new(SimDevice::new(1 << 30), Options::default());
    let stream = StreamHandle(0);
    let addr = pool.alloc(100, stream, PoolKey(0, 0)).expect("memory");
    assert_eq!(pool.free(addr + 512), Err(FreeError::Unknown { addr: addr + 512 }));
    assert_eq!(pool.free(0), Err(FreeError::Unknown { addr: 0 }));
    assert_eq!(pool.free(addr), Ok(()));
    assert_eq!(pool.free(addr), Err(FreeError::Unknown { addr }));
    pool.device_mut().instant = false;
    let addr = pool.alloc(100, stream, PoolKey(0, 0)).expect("memory");
    assert_eq!(pool.record_stream(addr, StreamHandle(7)), Ok(()));
    assert_eq!(pool.free(addr), Ok(()));
    assert_eq!(pool.free(addr), Err(FreeError::Twice { addr }));
    assert!(pool.alloc(u64::MAX, stream, PoolKey(0, 0)).is_err());
    pool.check().expect("a whole state");
}

#[test]
fn free_memory_in_pieces_serves_a_request_as_large_as_all_of_it() {
    let mut pool = Pool::new(SimDevice::new(1 << 30), Options::default());
    let (stream, key) = (StreamHandle(0), PoolKey(0, 0));
    let blocks: Vec<u64> = (0..64).map(|_| pool.alloc(8 << 20, stream, key).expect("memory")).collect();
    let held = pool.stats().reserved.current;
    for pair in blocks.chunks(2) {
        assert_eq!(pool.free(pair[0]), Ok(()));
    }
    let large = pool.alloc(256 << 20, stream, key).expect("the free halves, side by side");
    assert_eq!(pool.stats().reserved.current, held, "nothing was taken from the device");
    assert!(pool.device().is_usable(large, 256 << 20));
    assert_eq!(pool.free(large), Ok(()));
    let maps = pool.device().maps;
    let again = pool.alloc(256 << 20, stream, key).expect("the same window");
    assert_eq!((again, pool.device().maps), (large, maps), "and the second time nothing was mapped");
    pool.check().expect("a whole state");
}

#[test]
fn what_is_free_is_given_back_and_taken_again() {
    let mut pool = Pool::new(SimDevice::new(1 << 30), Options::default());
    let (stream, key) = (StreamHandle(0), PoolKey(0, 0));
    let kept = pool.alloc(5 << 20, stream, key).expect("memory");
    let blocks: Vec<u64> = (0..40).map(|_| pool.alloc(9 << 20, stream, key).expect("memory")).collect();
    blocks.iter().for_each(|&addr| assert_eq!(pool.free(addr), Ok(())));
    let large = pool.alloc(300 << 20, stream, key).expect("memory");
    assert_eq!(pool.free(large), Ok(()));
    let held = pool.stats().reserved.current;
    let given = pool.trim();
    assert!(given > 300 << 20 && pool.stats().reserved.current == held - given);
    assert!(pool.stats().reserved.current <= 32 << 20, "only the pages under what is kept");
    pool.check().expect("a whole state");
    for _ in 0..3 {
        let again: Vec<u64> = (0..40).map(|_| pool.alloc(9 << 20, stream, key).expect("memory")).collect();
        again.iter().for_each(|&addr| assert!(pool.device().is_usable(addr, 9 << 20)));
        again.iter().for_each(|&addr| assert_eq!(pool.free(addr), Ok(())));
        pool.check().expect("a whole state");
        pool.trim();
    }
    assert!(pool.device().is_usable(kept, 5 << 20));
    assert_eq!(pool.free(kept), Ok(()));
    pool.trim();
    assert_eq!(pool.stats().reserved.current, 0);
}

#[test]
fn windows_beyond_the_number_that_is_kept_go_without_waiting() {
    let options = Options { windows: 2, ..Options::default() };
    let mut pool = Pool::new(SimDevice::new(4 << 30), options);
    let (stream, key) = (StreamHandle(0), PoolKey(0, 0));
    for round in 0..30u64 {
        let blocks: Vec<u64> = (0..32).map(|_| pool.alloc(8 << 20, stream, key).expect("memory")).collect();
        blocks.iter().step_by(2).for_each(|&addr| assert_eq!(pool.free(addr), Ok(())));
        let large = pool.alloc((40 + 3 * round) << 20, stream, key).expect("memory");
        assert!(pool.device().is_usable(large, (40 + 3 * round) << 20));
        assert_eq!(pool.free(large), Ok(()));
        blocks.iter().skip(1).step_by(2).for_each(|&addr| assert_eq!(pool.free(addr), Ok(())));
        pool.check().expect("a whole state");
    }
    assert!(pool.stats().windows_made > 10 && pool.device().unmaps > 0 && pool.device().host_waits == 0);
}

#[test]
fn repeated_steps_soon_need_no_driver_call() {
    let mut pool = Pool::new(SimDevice::new(8 << 30), Options::default());
    let (stream, key) = (StreamHandle(0), PoolKey(0, 0));
    let mut calls = Vec::new();
    for _ in 0..12 {
        let before = (pool.device().creates, pool.device().maps);
        let mut numbers = Numbers(99);
        let mut saved = Vec::new();
        for _ in 0..300 {
            let size = numbers.size() * 4;
            saved.push(pool.alloc(size, stream, key).expect("memory"));
            let temporary = pool.alloc(numbers.size() * 8, stream, key).expect("memory");
            assert_eq!(pool.free(temporary), Ok(()));
        }
        while let Some(addr) = saved.pop() {
            let gradient = pool.alloc(numbers.size() * 4, stream, key).expect("memory");
            assert_eq!(pool.free(addr), Ok(()));
            assert_eq!(pool.free(gradient), Ok(()));
        }
        calls.push((pool.device().creates - before.0, pool.device().maps - before.1));
    }
    assert!(calls[0].0 > 0);
    assert!(calls[6..].iter().all(|&c| c == (0, 0)), "{calls:?}");
}

#[test]
fn without_fences_memory_goes_between_streams_only_before_a_request_would_fail() {
    const MIB: u64 = 1 << 20;
    let mut device = SimDevice::new(96 * MIB);
    (device.instant, device.has_no_fences) = (false, true);
    let mut pool = Pool::new(device, Options::default());
    let (one, other, key) = (StreamHandle(1), StreamHandle(2), PoolKey(0, 0));
    let first = pool.alloc(32 * MIB, one, key).expect("room");
    assert_eq!(pool.free(first), Ok(()));
    let second = pool.alloc(32 * MIB, other, key).expect("room");
    assert_eq!((pool.stats().lent, pool.device().host_waits), (0, 0), "there was room beside it");
    let third = pool.alloc(60 * MIB, other, key).expect("what the first stream freed");
    assert!(pool.stats().lent > 0 && pool.device().host_waits == 1, "the host waited for all work");
    for addr in [second, third] {
        assert_eq!(pool.free(addr), Ok(()));
    }
    assert!(pool.trim() >= 90 * MIB && pool.stats().reserved.current == 0, "everything goes back");
    assert_eq!(pool.check(), Ok(()));
}
