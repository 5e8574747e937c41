//! The entry to the process's memory, plain or checked. It keeps the C library's promises about sizes, alignments and
//! `errno`; the entry points of `gapless-malloc` only translate.

use crate::check;
use crate::core::{self, AroundFork, OWN};
use crate::helper_thread;
use crate::options::Options;
use crate::record;
use crate::small::Own;
use crate::small::own::classes::MIDDLE;
use crate::sys;
use crate::units::MIN_ALIGNMENT;
use std::sync::atomic::{AtomicU32, Ordering};

const NEW: u32 = 0;
/// The first block is being prepared. A call in this state comes from the same thread.
const BEGINNING: u32 = 1;
const PLAIN: u32 = 2;
const CHECKED: u32 = 3;
const RECORDED: u32 = 4;

static STATE: AtomicU32 = AtomicU32::new(NEW);

/// True if a sample of the allocations is recorded.
#[inline]
fn is_recorded() -> bool {
    STATE.load(Ordering::Relaxed) == RECORDED
}

/// True if the plain path can be taken at once.
#[inline]
fn is_plain() -> bool {
    STATE.load(Ordering::Relaxed) == PLAIN
}

/// Prepares the heap if it is new. Returns true if blocks are checked.
#[cold]
fn settle() -> bool {
    if STATE.compare_exchange(NEW, BEGINNING, Ordering::AcqRel, Ordering::Acquire).is_ok() {
        core::begin();
        OWN.set_quick(true);
        STATE.store(PLAIN, Ordering::Release);
    }
    STATE.load(Ordering::Acquire) == CHECKED
}

/// Prepares the heap, with its handlers around a fork, if it is new.
pub fn prepare() {
    settle();
}

/// Called when the environment can be read, before the program's own code.
pub fn configure() -> Options {
    settle();
    helper_thread::know_loader();
    sys::begin_files();
    let options = Options::read();
    core::configure(&options);
    if options.check {
        OWN.set_quick(false);
    }
    if options.check {
        core::set_around_fork(AroundFork {
            before: check::before_fork,
            after: check::after_fork,
            in_child: check::after_fork,
        });
        STATE.store(CHECKED, Ordering::Release);
    } else if let Some(config) = options.record {
        core::set_around_fork(AroundFork {
            before: record::before_fork,
            after: record::after_fork,
            in_child: record::after_fork_in_child,
        });
        record::begin(config);
        OWN.count_bytes();
        STATE.store(RECORDED, Ordering::Release);
        record::objects::hook();
    }
    options
}

/// Called when the process ends.
pub fn end() {
    if STATE.load(Ordering::Acquire) == CHECKED {
        check::end();
    }
    if is_recorded() {
        record::end();
    }
    core::end();
}

/// Notes that a step of the program begins.
pub fn step() {
    core::step();
    if is_recorded() {
        record::step();
    }
}

/// Notes that a library was unloaded.
pub fn modules_changed() {
    if is_recorded() {
        record::modules_changed();
    }
}

#[inline]
fn or_errno(block: *mut u8) -> *mut u8 {
    if block.is_null() {
        sys::set_errno(libc::ENOMEM);
    }
    block
}

#[inline]
#[must_use]
pub fn allocate(size: usize) -> *mut u8 {
    let block = Own::quick_allocate(size);
    if block.is_null() { allocate_other(size) } else { block }
}

/// Has the C calling convention, which does not unwind. So `malloc` can jump here and needs no stack frame of its own.
#[inline(never)]
extern "C" fn allocate_other(size: usize) -> *mut u8 {
    let block = Own::quick_allocate_more(size);
    if !block.is_null() {
        return block;
    }
    if is_plain() {
        return or_errno(core::allocate(size, false));
    }
    if is_recorded() {
        return or_errno(record::allocate(size, record::ANY, false));
    }
    allocate_slow(size, MIN_ALIGNMENT, false)
}

#[inline]
#[must_use]
pub fn allocate_zeroed(size: usize) -> *mut u8 {
    let mut block = Own::quick_allocate(size);
    if block.is_null() && size <= MIDDLE {
        block = Own::quick_allocate_more(size);
    }
    if !block.is_null() {
        // SAFETY: `block` is new and has at least `size` bytes.
        unsafe { block.write_bytes(0, size) };
        return block;
    }
    if is_plain() {
        return or_errno(core::allocate(size, true));
    }
    if is_recorded() {
        return or_errno(record::allocate(size, record::ANY, true));
    }
    allocate_slow(size, MIN_ALIGNMENT, true)
}

/// `alignment` is a power of two.
#[must_use]
pub fn allocate_aligned(size: usize, alignment: usize) -> *mut u8 {
    if is_plain() {
        return or_errno(core::allocate_aligned(size, alignment, false));
    }
    if is_recorded() {
        return or_errno(record::allocate(size, alignment, false));
    }
    allocate_slow(size, alignment, false)
}

#[cold]
fn allocate_slow(size: usize, alignment: usize, zeroed: bool) -> *mut u8 {
    or_errno(if settle() {
        check::allocate(size, alignment, zeroed)
    } else {
        core::allocate_aligned(size, alignment, zeroed)
    })
}

/// # Safety
/// `block` is null, or came from here and was not freed.
#[inline]
pub unsafe fn free(block: *mut u8) {
    // SAFETY: `block` is null, or a block of this heap that was not freed (the caller's contract).
    if !unsafe { OWN.quick_free(block) } {
        // SAFETY: the caller's contract holds here too, because `quick_free` did not free the block.
        unsafe { free_other(block) };
    }
}

/// # Safety
/// `block` is null, or came from here and was not freed.
#[cold]
#[inline(never)]
unsafe extern "C" fn free_other(block: *mut u8) {
    // SAFETY: `block` is null, or a block of this heap that was not freed (the caller's contract); `STATE` names its
    // maker.
    unsafe {
        match STATE.load(Ordering::Relaxed) {
            CHECKED => check::free(block),
            RECORDED => record::free(block),
            _ => core::free(block),
        }
    }
}

/// # Safety
/// `block` is null, or came from here and was not freed. It is invalid afterwards, unless null is returned.
#[must_use]
pub unsafe fn reallocate(block: *mut u8, size: usize) -> *mut u8 {
    if block.is_null() {
        return allocate(size);
    }
    // SAFETY: `block` is a block of this heap that was not freed (the caller's contract); `STATE` names its maker.
    or_errno(unsafe {
        match STATE.load(Ordering::Relaxed) {
            CHECKED => check::reallocate(block, size),
            RECORDED => record::reallocate(block, size),
            _ => core::reallocate(block, size),
        }
    })
}

/// True if an address may be a block of this heap.
#[must_use]
pub fn may_own(block: *const u8) -> bool {
    core::may_own(block) || (is_recorded() && record::may_own(block))
}

/// # Safety
/// `block` is null, or came from here and was not freed.
#[must_use]
pub unsafe fn usable(block: *mut u8) -> usize {
    if block.is_null() {
        return 0;
    }
    // SAFETY: `block` is a block of this heap that was not freed (the caller's contract); `STATE` names its maker.
    unsafe {
        match STATE.load(Ordering::Relaxed) {
            CHECKED => check::usable(block),
            RECORDED => record::usable(block),
            _ => core::usable(block),
        }
    }
}
