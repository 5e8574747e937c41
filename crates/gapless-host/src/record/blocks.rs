//! Entry points of the heap while samples are recorded: samples lie in slots or in the arena of large buffers, and all
//! other blocks come from the core.

use super::frames::Frames;
use super::journal::Journal;
use super::pace::counted;
use super::recorder::{FREED_INSIDE, LOST, RECORDER};
use super::slots;
use crate::core::{self, LARGE, OWN};
use crate::large::is_large;
use crate::local::Inside;
use crate::sampler::{self, Kind};
use crate::sys;
use crate::text::say;
use crate::units::LARGE as EXACT;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The alignment of a request without one.
pub const ANY: usize = 1;

/// Allocates a block. Null if there is no memory.
#[inline]
pub fn allocate(size: usize, alignment: usize, zeroed: bool) -> *mut u8 {
    if is_large(size, alignment) {
        return large(size, alignment, zeroed);
    }
    if passes(size) {
        return sample(size, alignment, zeroed, Plain);
    }
    plain(size, alignment, zeroed)
}

/// Allocates an object of Python.
#[cold]
pub(super) fn allocate_object(size: usize, zeroed: bool) -> *mut u8 {
    struct Object;
    impl Otherwise for Object {
        const OBJECTS: bool = true;
        fn allocate(&self, size: usize, alignment: usize, zeroed: bool) -> *mut u8 {
            plain(size, alignment, zeroed)
        }
    }
    if size >= EXACT {
        large(size, ANY, zeroed)
    } else if passes(size) {
        sample(size, ANY, zeroed, Object)
    } else {
        plain(size, ANY, zeroed)
    }
}

/// Counts the bytes. True if this allocation may be a sample.
#[inline]
fn passes(size: usize) -> bool {
    OWN.sampler().is_some_and(|sampler| sampler.passes(size.max(1)))
}

#[inline]
fn plain(size: usize, alignment: usize, zeroed: bool) -> *mut u8 {
    if alignment == ANY {
        core::allocate(size, zeroed)
    } else {
        core::allocate_aligned(size, alignment, zeroed)
    }
}

/// Supplies a block that is not recorded after all.
trait Otherwise {
    /// True if the blocks are objects of Python.
    const OBJECTS: bool = false;
    fn allocate(&self, size: usize, alignment: usize, zeroed: bool) -> *mut u8;
}

struct Plain;

impl Otherwise for Plain {
    fn allocate(&self, size: usize, alignment: usize, zeroed: bool) -> *mut u8 {
        plain(size, alignment, zeroed)
    }
}

/// Records an allocation at which the sampler stopped.
#[cold]
#[inline(never)]
fn sample<O: Otherwise>(size: usize, alignment: usize, zeroed: bool, otherwise: O) -> *mut u8 {
    let inside = Inside::enter();
    let kind = Kind::of(size);
    let drawn = inside.as_ref().and_then(|_| OWN.sampler()?.draw(size.max(1), sampler::interval(kind)));
    let Some(interval) = drawn else { return otherwise.allocate(size, alignment, zeroed) };
    let mut began = sys::time();
    let mut frames = Frames::new();
    frames.look(<O as Otherwise>::OBJECTS);
    let mut block = std::ptr::null_mut();
    if size > slots::MOST {
        // Rounded up to 64 KiB. It comes before the lock because a budget may make it wait, which is no cost of the
        // recording.
        let before = sys::time();
        block = LARGE.allocate(size, alignment, zeroed);
        began += sys::time().saturating_sub(before);
    }
    let mut recorder = RECORDER.lock();
    recorder.take_freed();
    if size <= slots::MOST
        && let Some(slot) = recorder.slots.take(size, alignment)
    {
        block = slot;
        if zeroed {
            // SAFETY: the slot has at least `size` bytes.
            unsafe { block.write_bytes(0, size) };
        }
    }
    if block.is_null() {
        drop(recorder);
        LOST.fetch_add(1, Ordering::Relaxed);
        return otherwise.allocate(size, alignment, zeroed);
    }
    let now = sys::time().as_nanos() as u64;
    sys::keep_errno(|| {
        recorder.allocated(block, size, interval, frames.native(), frames.places(), now / 1000)
    });
    let written = recorder.journal.as_ref().map_or(0, Journal::written);
    if recorder.pace.count(kind, since(began), now, sys::cpu_nanos, written) {
        sampler::set_intervals(recorder.pace.intervals);
    }
    block
}

/// Nanoseconds since `began`.
fn since(began: Duration) -> u64 {
    sys::time().saturating_sub(began).as_nanos() as u64
}

/// Allocates a large buffer, all of which are recorded.
#[cold]
fn large(size: usize, alignment: usize, zeroed: bool) -> *mut u8 {
    let block = core::allocate_aligned(size, alignment, zeroed);
    tell_large(block, size);
    block
}

fn tell_large(block: *mut u8, size: usize) {
    if !LARGE.contains(block) {
        return;
    }
    let Some(_inside) = Inside::enter() else {
        LOST.fetch_add(1, Ordering::Relaxed);
        return;
    };
    let began = sys::time();
    let mut frames = Frames::new();
    frames.look(false);
    let mut recorder = RECORDER.lock();
    recorder.take_freed();
    let now = sys::time().as_micros() as u64;
    sys::keep_errno(|| recorder.allocated(block, size, 0, frames.native(), frames.places(), now));
    recorder.pace.spend(counted(since(began)));
}

/// # Safety
/// `block` is null, or came from here or from the core and was not freed.
#[inline]
pub unsafe fn free(block: *mut u8) {
    if slots::contains(block) {
        free_slot(block);
        return;
    }
    if LARGE.contains(block) {
        tell_freed(block);
    }
    // SAFETY: `block` is null or an unfreed block (the caller's contract), and not a slot, so the core made it.
    unsafe { core::free(block) }
}

#[cold]
fn tell_freed(block: *mut u8) {
    if let Some(_inside) = Inside::enter() {
        let mut recorder = RECORDER.lock();
        recorder.take_freed();
        sys::keep_errno(|| recorder.freed(block));
    }
}

#[cold]
fn free_slot(block: *mut u8) {
    if slots::usable(block).is_none() {
        say(format_args!("gapless: free({block:p}): no block begins there\n"));
        sys::abort();
    }
    let Some(_inside) = Inside::enter() else {
        free_inside(block.cast());
        return;
    };
    let mut recorder = RECORDER.lock();
    recorder.take_freed();
    sys::keep_errno(|| recorder.freed(block));
    recorder.slots.give(block);
}

/// Leaves the block to the next thread that takes the lock, because this thread may hold it.
fn free_inside(block: *mut usize) {
    let mut next = FREED_INSIDE.load(Ordering::Relaxed);
    loop {
        // SAFETY: a slot of ours that the program gave up.
        unsafe { block.write(next) };
        match FREED_INSIDE.compare_exchange_weak(next, block as usize, Ordering::Release, Ordering::Relaxed) {
            Ok(_) => return,
            Err(other) => next = other,
        }
    }
}

/// True if an address may be a sampled block.
pub fn may_own(block: *const u8) -> bool {
    slots::contains(block)
}

/// # Safety
/// `block` came from here or from the core and was not freed.
pub unsafe fn usable(block: *mut u8) -> usize {
    if slots::contains(block) {
        return slots::usable(block).unwrap_or(0);
    }
    // SAFETY: `block` is an unfreed block (the caller's contract), and not a slot, so the core made it.
    unsafe { core::usable(block) }
}

/// # Safety
/// `block` came from here or from the core and was not freed. It is invalid afterwards, unless null is returned.
pub unsafe fn reallocate(block: *mut u8, size: usize) -> *mut u8 {
    if size > isize::MAX as usize {
        return std::ptr::null_mut();
    }
    let is_slot = slots::contains(block);
    if LARGE.contains(block) && size >= EXACT {
        return reallocate_large(block, size);
    }
    if !is_slot && !LARGE.contains(block) && size < EXACT {
        if passes(size) {
            return sample_moved(block, size);
        }
        // SAFETY: `block` is an unfreed block (the caller's contract), and not a slot, so the core made it.
        return unsafe { core::reallocate(block, size) };
    }
    let moved = allocate(size, ANY, false);
    if !moved.is_null() {
        // SAFETY: `moved` is a new block and `block` a live one, so they do not overlap, and each is long enough.
        unsafe {
            moved.copy_from_nonoverlapping(block, usable(block).min(size));
            free(block);
        }
    }
    moved
}

/// Reallocates a large buffer, whose pages the kernel may move.
#[cold]
fn reallocate_large(block: *mut u8, size: usize) -> *mut u8 {
    // The free is recorded first, because afterwards another thread may have the address.
    // SAFETY: the arena contains the address; if no buffer begins there, the core ends the process.
    let old = unsafe { core::usable(block) };
    tell_freed(block);
    // SAFETY: the caller of `reallocate` promised an unfreed block, which lies in the arena.
    let moved = unsafe { core::reallocate(block, size) };
    if moved.is_null() {
        tell_large(block, old)
    } else {
        tell_large(moved, size)
    }
    moved
}

/// Reallocates a block of the core, which counts as a new one for the sampler.
#[cold]
fn sample_moved(block: *mut u8, size: usize) -> *mut u8 {
    struct Again(*mut u8);
    impl Otherwise for Again {
        fn allocate(&self, size: usize, _: usize, _: bool) -> *mut u8 {
            // SAFETY: the caller of `reallocate` promised an unfreed block, which the core made.
            unsafe { core::reallocate(self.0, size) }
        }
    }
    let moved = sample(size, ANY, false, Again(block));
    if slots::contains(moved) || (!moved.is_null() && LARGE.contains(moved)) {
        // SAFETY: the new block is of the recorder, so `block` was not reallocated and is still there.
        unsafe {
            moved.copy_from_nonoverlapping(block, core::usable(block).min(size));
            core::free(block);
        }
    }
    moved
}
