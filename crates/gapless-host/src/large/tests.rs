use super::*;
use crate::pinned::{Entry, Request, Return, State};
use std::cell::Cell;

const MIB: usize = 1 << 20;

thread_local! {
    static NODE: Cell<usize> = const { Cell::new(0) };
}
static ASKED: AtomicU64 = AtomicU64::new(0);
static PREFERRED: AtomicU64 = AtomicU64::new(0);

fn two() -> usize {
    2
}

fn one() -> usize {
    1
}

fn here() -> usize {
    ASKED.fetch_add(1, Ordering::Relaxed);
    NODE.get()
}

fn prefer(_: *mut u8, _: usize, node: usize) {
    PREFERRED.fetch_or(1 << node, Ordering::Relaxed);
}

#[test]
fn a_buffer_goes_back_to_the_node_that_its_memory_lies_on() {
    static BUDGET: Budget = Budget::new();
    static LARGE: Large = Large::on(&BUDGET, Topology { nodes: two, here, prefer });
    let on = |node: usize, size: usize| {
        NODE.set(node);
        LARGE.allocate(size, 16, false)
    };
    let first = on(0, 8 * MIB);
    let second = on(1, 8 * MIB);
    let distance = (second as usize).abs_diff(first as usize);
    assert!(LARGE.contains(first) && LARGE.contains(second) && distance >= 64 << 30, "{distance:#x}");
    assert_eq!(PREFERRED.load(Ordering::Relaxed), 0b11, "each range was bound to its node");
    // A thread of the other node frees it, and its own node uses it again.
    NODE.set(1);
    assert!(LARGE.free(first));
    assert_eq!(LARGE.held(), Held { live: 8 << 20, kept: 8 << 20 });
    let third = on(1, 8 * MIB);
    assert_ne!(third, first, "node 1 does not get memory of node 0");
    assert_eq!(on(0, 8 * MIB), first);
    // A buffer that grows stays on its node, on whichever node the thread runs.
    let beside = on(0, MIB);
    NODE.set(1);
    let grown = LARGE.reallocate(first, 64 * MIB).expect("a buffer");
    assert!((grown as usize).abs_diff(first as usize) < 64 << 30, "still of node 0");
    for block in [second, third, beside, grown] {
        assert!(LARGE.usable(block).is_some() && LARGE.free(block));
        assert!(!LARGE.free(block), "twice");
    }
    assert_eq!(LARGE.fault(), None);
    assert_eq!(LARGE.held().live, 0);
    assert_eq!(LARGE.trim(u32::MAX), LARGE.counters.given_back.load(Ordering::Relaxed));
    assert_eq!(LARGE.held().kept, 0);
}

#[test]
fn a_machine_of_one_node_is_never_asked_where_a_thread_runs() {
    static BUDGET: Budget = Budget::new();
    fn never() -> usize {
        panic!("one node")
    }
    fn not_bound(_: *mut u8, _: usize, _: usize) {
        panic!("one node")
    }
    static LARGE: Large = Large::on(&BUDGET, Topology { nodes: one, here: never, prefer: not_bound });
    let block = LARGE.allocate(5 * MIB, 16, true);
    assert!(LARGE.free(block));
    assert_eq!(LARGE.allocate(5 * MIB, 16, true), block);
}

static ENDED: AtomicU64 = AtomicU64::new(0);

#[test]
fn memory_that_a_driver_uses_is_not_given_back_moved_or_handed_out() {
    static BUDGET: Budget = Budget::new();
    static LARGE: Large = Large::on(&BUDGET, Topology { nodes: one, here, prefer });
    LARGE.pinned.release_by(|entry| {
        ENDED.fetch_add(entry.length as u64, Ordering::Relaxed);
    });
    let register = |block: *mut u8, length: usize| {
        let request = LARGE.pinned.wants(block as usize, length, 0);
        if request == Request::New {
            let (start, state) = (block as usize, State::Active);
            LARGE.pinned.registered(Entry { start, length, flags: 0, device: 0, state });
        }
        request
    };
    let block = LARGE.allocate(8 * MIB, 16, false);
    assert_eq!(register(block, 8 * MIB), Request::New);
    // It is freed while it is registered, so it is held until the registration ends.
    assert!(LARGE.free(block));
    assert_eq!(LARGE.held(), Held { live: 8 << 20, kept: 0 });
    assert_ne!(LARGE.allocate(8 * MIB, 16, false), block);
    assert_eq!(LARGE.pinned.returns(block as usize, true), Return::Over(Some(block as usize)));
    assert!(LARGE.free(block));
    // The registration ends before the buffer is freed: it is kept, and used again with the memory.
    let again = LARGE.allocate(8 * MIB, 16, false);
    assert_eq!((again, register(again, 8 * MIB)), (block, Request::New));
    assert_eq!(LARGE.pinned.returns(again as usize, true), Return::Kept);
    assert!(LARGE.free(again));
    assert_eq!(LARGE.allocate(8 * MIB, 16, false), block);
    assert_eq!(register(block, 8 * MIB), Request::Known, "no call of the driver");
    assert_eq!(LARGE.pinned.figures(), (8 << 20, 0, 1));
    // At a larger place: the bytes are copied, and the old pages stay for the driver.
    // SAFETY: `block` is a live buffer of 8 MiB.
    unsafe { block.write_bytes(7, 8 * MIB) };
    let beside = LARGE.allocate(MIB, 16, false);
    let moved = LARGE.reallocate(block, 32 * MIB).expect("a buffer");
    assert_ne!(moved, block);
    // SAFETY: both buffers are live and have at least 8 MiB.
    assert_eq!(unsafe { (block.read(), moved.add(8 * MIB - 1).read()) }, (7, 7));
    assert_eq!(LARGE.pinned.returns(block as usize, true), Return::Over(Some(block as usize)));
    assert!(LARGE.free(block) && LARGE.free(moved) && LARGE.free(beside));
    // Before memory goes back to the kernel, its registration ends.
    let last = LARGE.allocate(8 * MIB, 16, false);
    assert_eq!(register(last, 8 * MIB), Request::New);
    assert_eq!(LARGE.pinned.returns(last as usize, true), Return::Kept);
    assert!(LARGE.free(last));
    let before = ENDED.load(Ordering::Relaxed);
    LARGE.trim(u32::MAX);
    assert_eq!(ENDED.load(Ordering::Relaxed) - before, 8 << 20);
    assert_eq!((LARGE.fault(), LARGE.pinned.figures().1), (None, 0));
}
