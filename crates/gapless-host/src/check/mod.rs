//! `GAPLESS_HOST_CHECK=1`: every block lies between guards, freed blocks are poisoned and kept for a while, and an
//! error is reported with the stacks of the allocation and of the frees. Then the process ends by `abort`.
//!
//! ```text
//!   raw            address = raw + front        address + size
//!   │ 0xFA ... 0xFA │ the program's bytes        │ 0xFB ... 0xFB │
//! ```
//!
//! It finds writes before and behind a block (when it is freed, and at the end of the process), double frees, frees of
//! addresses that are no blocks, and writes to freed blocks (when they leave the queue). It does not find reads.

pub mod stack;
pub mod table;

use crate::core;
use crate::lock::Lock;
use crate::sys::{self, Table};
use crate::text::say;
use crate::units::MIN_ALIGNMENT;
use stack::Stack;
use table::{Blocks, Entry};

const GUARD: usize = 32;
const FRONT: u8 = 0xFA;
const BACK: u8 = 0xFB;
const POISON: u8 = 0xFD;
/// Fills the bytes of a new block, so that reads before the first write show.
const FRESH: u8 = 0xFC;
/// Freed blocks wait until there are more than so many bytes, or so many blocks.
const QUEUED_BYTES: usize = 64 << 20;
const QUEUE: usize = 1 << 16;

#[derive(Debug)]
struct State {
    blocks: Blocks,
    /// Freed blocks, in a ring.
    queue: Option<Table<usize>>,
    first: usize,
    count: usize,
    bytes: usize,
}

static STATE: Lock<State> =
    Lock::new(State { blocks: Blocks::new(), queue: None, first: 0, count: 0, bytes: 0 });

fn front(alignment: usize) -> usize {
    GUARD.max(alignment)
}

/// Allocates a guarded block. Null if there is no memory.
pub fn allocate(size: usize, alignment: usize, zeroed: bool) -> *mut u8 {
    let front = front(alignment);
    let Some(all) = size.checked_add(front + GUARD) else { return std::ptr::null_mut() };
    let raw = core::allocate_aligned(all, alignment.max(MIN_ALIGNMENT), zeroed);
    if raw.is_null() {
        return raw;
    }
    let allocated = Stack::here();
    // SAFETY: `raw` has `all` bytes: the front guard, the block, the back guard.
    let address = unsafe {
        raw.write_bytes(FRONT, front);
        let address = raw.add(front);
        if !zeroed {
            address.write_bytes(FRESH, size);
        }
        address.add(size).write_bytes(BACK, GUARD);
        address
    };
    let entry = Entry { address: address as usize, raw: raw as usize, size, allocated, ..Entry::default() };
    STATE.lock().blocks.put(entry);
    address
}

/// True if [`free`] and [`reallocate`] pass an unknown address on to the core.
fn is_from_before(block: *mut u8) -> bool {
    // The loader allocates before the options are known, so such blocks have no guards.
    core::may_own(block) && (block as usize).is_multiple_of(MIN_ALIGNMENT)
}

/// # Safety
/// None: any address is looked up first.
pub unsafe fn free(block: *mut u8) {
    if block.is_null() {
        return;
    }
    let here = Stack::here();
    let mut state = STATE.lock();
    let Some(mut entry) = state.blocks.get(block as usize) else {
        drop(state);
        return free_unknown(block, &here);
    };
    if entry.is_freed {
        drop(state);
        say(format_args!(
            "gapless: double free of {block:p} ({} bytes)\n    freed again here:\n",
            entry.size
        ));
        here.say();
        say(format_args!("    freed first here:\n"));
        entry.freed.say();
        say(format_args!("    allocated here:\n"));
        entry.allocated.say();
        sys::abort();
    }
    check_guards(&entry, Some(&here));
    // SAFETY: the table has the block and its size, and it was not freed.
    unsafe { block.write_bytes(POISON, entry.size) };
    entry.is_freed = true;
    entry.freed = here;
    state.blocks.put(entry);
    enqueue(&mut state, &entry);
    while let Some(oldest) = dequeue(&mut state) {
        drop(state);
        check_poison(&oldest);
        // SAFETY: the core gave this block, which has left the table and is freed here only.
        unsafe { core::free(oldest.raw as *mut u8) };
        state = STATE.lock();
    }
}

fn free_unknown(block: *mut u8, here: &Stack) {
    if is_from_before(block) && !is_inside(block) {
        // SAFETY: the core gave this block before the checks began; if the address is wrong, the core reports that.
        unsafe { core::free(block) };
        return;
    }
    let inside = STATE.lock();
    let mut holder = None;
    inside.blocks.each(|entry| {
        if (block as usize).wrapping_sub(entry.address) < entry.size {
            holder = Some(*entry);
        }
    });
    drop(inside);
    match holder {
        Some(entry) => {
            let offset = block as usize - entry.address;
            say(format_args!(
                "gapless: free of {block:p}, which is {offset} bytes into a block of {} bytes\n    freed here:\n",
                entry.size
            ));
            here.say();
            say(format_args!("    the block was allocated here:\n"));
            entry.allocated.say();
        }
        None => {
            say(format_args!("gapless: free of {block:p}, which no allocation returned\n    freed here:\n"));
            here.say();
        }
    }
    sys::abort();
}

/// True if an address lies inside of a known block.
fn is_inside(block: *mut u8) -> bool {
    let mut found = false;
    STATE.lock().blocks.each(|entry| {
        found |= (block as usize).wrapping_sub(entry.address) < entry.size.max(1);
    });
    found
}

/// # Safety
/// `block` is a block of ours.
pub unsafe fn usable(block: *mut u8) -> usize {
    let known = STATE.lock().blocks.get(block as usize);
    match known {
        Some(entry) => entry.size,
        // SAFETY: the core gave this block before the checks began; if the address is wrong, the core reports that.
        None => unsafe { core::usable(block) },
    }
}

/// # Safety
/// `block` is a block of ours.
pub unsafe fn reallocate(block: *mut u8, size: usize) -> *mut u8 {
    let known = STATE.lock().blocks.get(block as usize);
    let old = match known {
        Some(entry) if entry.is_freed => {
            say(format_args!("gapless: realloc of {block:p}, which was freed before\n    realloc here:\n"));
            Stack::here().say();
            say(format_args!("    freed here:\n"));
            entry.freed.say();
            sys::abort()
        }
        Some(entry) => entry.size,
        None if is_from_before(block) => {
            // SAFETY: the core gave this block before the checks began.
            unsafe { core::usable(block) }
        }
        None => {
            free_unknown(block, &Stack::here());
            return std::ptr::null_mut();
        }
    };
    let moved = allocate(size, MIN_ALIGNMENT, false);
    if !moved.is_null() {
        // SAFETY: `moved` is a new block and `block` a live one; both have at least the smaller length.
        unsafe {
            moved.copy_from_nonoverlapping(block, old.min(size));
            free(block);
        }
    }
    moved
}

fn enqueue(state: &mut State, entry: &Entry) {
    if state.queue.is_none() {
        state.queue = Table::new(QUEUE);
    }
    let at = (state.first + state.count) % QUEUE;
    if let Some(queue) = state.queue.as_mut() {
        queue.set(at, entry.address);
        state.count += 1;
        state.bytes += entry.size;
    }
}

/// The oldest freed block, if there are too many.
fn dequeue(state: &mut State) -> Option<Entry> {
    if state.count < QUEUE && state.bytes <= QUEUED_BYTES {
        return None;
    }
    let address = state.queue.as_ref()?.get(state.first);
    state.first = (state.first + 1) % QUEUE;
    state.count -= 1;
    let entry = state.blocks.get(address)?;
    state.bytes -= entry.size;
    state.blocks.remove(address);
    Some(entry)
}

/// The first byte of a range that is not `value`.
fn changed(start: usize, length: usize, value: u8) -> Option<usize> {
    // SAFETY: the range is a guard or a queued block, which are mapped until the core gets the block back.
    let bytes = unsafe { std::slice::from_raw_parts(start as *const u8, length) };
    bytes.iter().position(|&byte| byte != value)
}

fn check_guards(entry: &Entry, freed: Option<&Stack>) {
    let front = entry.address - entry.raw;
    let before = changed(entry.raw, front, FRONT);
    let behind = changed(entry.address + entry.size, GUARD, BACK);
    let (where_, distance) = match (before, behind) {
        (Some(at), _) => ("before the start", front - at),
        (None, Some(at)) => ("behind the end", at + 1),
        (None, None) => return,
    };
    say(format_args!(
        "gapless: the program wrote {distance} bytes {where_} of {:#x} ({} bytes)\n    allocated here:\n",
        entry.address, entry.size
    ));
    entry.allocated.say();
    match freed {
        Some(stack) => {
            say(format_args!("    found when it was freed here:\n"));
            stack.say();
        }
        None => say(format_args!("    found at the end of the process\n")),
    }
    sys::abort();
}

fn check_poison(entry: &Entry) {
    let Some(at) = changed(entry.address, entry.size, POISON) else { return };
    say(format_args!(
        "gapless: the program wrote to byte {at} of {:#x} ({} bytes) after it was freed\n    freed here:\n",
        entry.address, entry.size
    ));
    entry.freed.say();
    say(format_args!("    allocated here:\n"));
    entry.allocated.say();
    sys::abort();
}

/// Called when the process ends: checks every block that is left.
pub fn end() {
    let state = STATE.lock();
    state.blocks.each(|entry| if entry.is_freed { check_poison(entry) } else { check_guards(entry, None) });
}

pub fn before_fork() {
    STATE.acquire();
}

/// # Safety
/// This thread called [`before_fork`].
pub unsafe fn after_fork() {
    // SAFETY: this thread has the lock since `before_fork` (the caller's contract), and no guard of it is alive.
    unsafe { STATE.release() };
}
