//! The memory of the process without checks: small or large, by size. Also the handlers of a fork, and the helper's
//! work.

use crate::budget::Budget;
use crate::cgroup;
use crate::decay::{Decay, TICK};
use crate::helper_thread::{self, Work};
use crate::helper_wakeup;
use crate::huge::Trouble;
use crate::invalid_free::abort_on_invalid_free;
use crate::large::{Large, is_large};
use crate::lock::{self, Lock};
use crate::options::Options;
use crate::pinned::Pinned;
use crate::small::Own;
use crate::sys;
use crate::text::{Size, say};
use crate::units::{GRANULE, LARGE as FROM, MIN_ALIGNMENT, MOST_SIZE};
use std::ffi::c_void;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

pub static BUDGET: Budget = Budget::new();
pub static LARGE: Large = Large::new(&BUDGET);
pub static OWN: Own = Own::new(&BUDGET);
/// Memory that a driver allocated itself.
pub static PINNED: Pinned = Pinned::new();

static DECAY: Lock<Decay> = Lock::new(Decay::new());
static TROUBLE: Lock<Option<Trouble>> = Lock::new(None);
/// Steps that the program reported, and those that the helper has seen.
static STEPS: AtomicU64 = AtomicU64::new(0);
static SEEN_STEPS: AtomicU64 = AtomicU64::new(0);
/// Requests of relatives that the helper has answered.
static SEEN_WANTED: AtomicU64 = AtomicU64::new(0);
static WORK: Work = Work { round, pause, is_idle };

/// Freed buffers above this go back at once, because there is no helper or addresses are scarce.
static KEPT_MOST: AtomicU64 = AtomicU64::new(u64::MAX);
/// The most that is kept without a helper.
const KEPT_CONFINED: u64 = 64 << 20;
/// True if addresses are scarce: memory goes back with its addresses. An eighth of the program's limit is kept.
static IS_TIGHT: AtomicBool = AtomicBool::new(false);
const KEPT_PART: usize = 8;
/// True once the program took access rights from pages of a block.
static HAS_PROTECTED: AtomicBool = AtomicBool::new(false);

/// The helper watches small objects, even in an idle process, if they hold more than this.
const MUCH_SMALL: u64 = 32 << 20;
/// The helper looks at what small objects keep once in this number of rounds.
const SMALL_ROUNDS: u32 = 4;
static ROUNDS: AtomicU32 = AtomicU32::new(0);
/// Called in each round: writes statistics.
static PUBLISH: Lock<Option<fn()>> = Lock::new(None);

/// A large buffer shrinks into a small object below this, because a granule for a few bytes would be a waste.
const TO_SMALL: usize = FROM / 4;

/// Called before the first block, and before any library registers handlers around a fork. Handlers registered first
/// run last before the fork and first after it, so other libraries' handlers never run while this thread has our locks.
pub fn begin() {
    if let Some(limit) = sys::address_limit() {
        sys::addresses_are_scarce();
        keep_part_of(limit);
    }
    helper_thread::begin();
    BUDGET.relieve_by(relieve);
    OWN.begin(leave);
    // SAFETY: the handlers are functions of this library, which is never unloaded.
    unsafe { libc::pthread_atfork(Some(before_fork), Some(after_fork), Some(after_fork_in_child)) };
}

unsafe extern "C" fn leave(cache: *mut c_void) {
    if sys::is_first_thread() {
        helper_thread::first_thread_ends();
    }
    // SAFETY: the value of the key that `begin` made.
    unsafe { OWN.leave(cache) };
    BUDGET.thread_ends();
}

/// Bytes that small objects have taken from the kernel, in use or not.
#[must_use]
pub fn small_held() -> u64 {
    OWN.held()
}

/// Called when the environment can be read. Ends the process if the options cannot be applied.
pub fn configure(options: &Options) {
    if let Some(limit) = options.limit
        && let Err(wrong) = BUDGET.limit_to(limit, options.limit_file)
        && !(wrong == libc::EACCES && limit_as_another_user(limit))
    {
        say(format_args!(
            "gapless: the budget's page cannot be used\n  GAPLESS_HOST_LIMIT_FILE must name a file that `gapless run` \
             made, or be unset\n"
        ));
        sys::exit(2);
    }
    if let Some(wanted) = options.huge {
        LARGE.use_huge_pages(wanted);
    }
}

/// A program that runs as another user (`su`) may not open the page of the user who started it.
fn limit_as_another_user(limit: u64) -> bool {
    let is_limited = BUDGET.limit_to(limit, None).is_ok();
    if is_limited {
        say(format_args!(
            "gapless: process {} runs as another user, so it has a budget of {} of its own\n",
            sys::pid(),
            Size(limit)
        ));
    }
    is_limited
}

/// Called when the process ends: returns its part of the budget to its relatives.
pub fn end() {
    BUDGET.leave();
}

/// Called before the program forbids itself most system calls (`seccomp`): other calls are made now, or never.
pub fn confine() {
    LARGE.settle();
    let _ = sys::most_at_once();
    helper_thread::end();
    KEPT_MOST.fetch_min(KEPT_CONFINED, Ordering::Relaxed);
}

/// Called when the program limits its address space, or locks all its memory: then reserved addresses would count.
pub fn tighten(most: usize) {
    sys::addresses_are_scarce();
    LARGE.tighten();
    OWN.tighten();
    keep_part_of(most);
}

fn keep_part_of(most: usize) {
    KEPT_MOST.fetch_min((most / KEPT_PART) as u64, Ordering::Relaxed);
    IS_TIGHT.store(true, Ordering::Relaxed);
}

/// Notes that the program took access rights from pages that may be blocks of ours.
pub fn pages_protected(start: *const u8) {
    if LARGE.reaches(start) || OWN.reaches(start) {
        HAS_PROTECTED.store(true, Ordering::Relaxed);
    }
}

/// Restores access to all of a block, because its next owner may write there.
#[cold]
fn unprotect(block: *mut u8) {
    let length = if LARGE.contains(block) { LARGE.usable(block) } else { OWN.whole_length(block) };
    if let Some(length) = length {
        sys::keep_errno(|| sys::commit(block, length));
    }
}

/// Lets the helper call this function in every round, about twice a second. It starts with the first large buffer.
pub fn publish_by(publish: fn()) {
    *PUBLISH.lock() = Some(publish);
}

/// Called when the limit is reached: gives back what is kept for reuse.
fn relieve() {
    LARGE.trim(u32::MAX);
    OWN.trim(true);
}

/// Gives back all idle memory. Returns the bytes.
pub fn trim() -> u64 {
    let given = LARGE.trim(u32::MAX);
    let before = small_held();
    OWN.collect(true);
    given + before.saturating_sub(small_held())
}

/// Notes that a step of the program begins.
pub fn step() {
    STEPS.fetch_add(1, Ordering::Relaxed);
}

/// Allocates a block. Null if there is no memory.
#[inline]
pub fn allocate(size: usize, zeroed: bool) -> *mut u8 {
    if size < FROM { OWN.allocate(size, zeroed) } else { large(size, MIN_ALIGNMENT, zeroed) }
}

/// Allocates a block at a multiple of `alignment`, a power of two.
pub fn allocate_aligned(size: usize, alignment: usize, zeroed: bool) -> *mut u8 {
    if is_large(size, alignment) {
        large(size, alignment, zeroed)
    } else if alignment <= MIN_ALIGNMENT && size >= alignment {
        OWN.allocate(size, zeroed)
    } else {
        OWN.allocate_aligned(size, alignment, zeroed)
    }
}

fn large(size: usize, alignment: usize, zeroed: bool) -> *mut u8 {
    // From here on the sum of these two cannot overflow.
    if size > MOST_SIZE || alignment > MOST_SIZE {
        return std::ptr::null_mut();
    }
    if sys::is_beyond(if alignment > GRANULE { size + alignment } else { size }) {
        return std::ptr::null_mut();
    }
    let mut block = LARGE.allocate(size, alignment, zeroed);
    if block.is_null() && BUDGET.limit() > 0 {
        // Memory that small objects keep may be enough.
        OWN.collect(true);
        block = LARGE.allocate(size, alignment, zeroed);
    }
    if block.is_null() && LARGE.is_absent() && alignment <= GRANULE {
        // There are no addresses for an arena, so the small core serves large requests too.
        return OWN.allocate_aligned(size, alignment, zeroed);
    }
    tend();
    block
}

/// Starts the helper if there is none. If no thread can be started, this thread does the helper's work twice a second.
#[inline]
fn tend() {
    helper_thread::ensure(&WORK);
    if helper_thread::is_refused() {
        tend_here();
    }
}

#[cold]
fn tend_here() {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let most = if BUDGET.limit() > 0 { 0 } else { KEPT_CONFINED };
    let kept = LARGE.held().kept;
    if kept > most {
        LARGE.trim(((kept - most) / GRANULE as u64) as u32 + 1);
    }
    let now = sys::time().as_millis() as u64;
    let last = LAST.load(Ordering::Relaxed);
    let is_due = now >= last + TICK.as_millis() as u64;
    if is_due && LAST.compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
        let surplus = DECAY.lock().tick(LARGE.low_water());
        LARGE.trim(surplus);
        let _ = BUDGET.exchange(LARGE.held().kept, &SEEN_WANTED);
        if OWN.kept() > MUCH_SMALL {
            OWN.collect(false);
        }
    }
}

/// # Safety
/// `block` is null, or came from here and was not freed.
#[inline]
pub unsafe fn free(block: *mut u8) {
    if HAS_PROTECTED.load(Ordering::Relaxed) {
        unprotect(block);
    }
    if LARGE.contains(block) {
        free_large(block);
    } else if OWN.may_own(block) {
        // SAFETY: `block` was allocated here and was not freed (the caller's contract), and it lies in `OWN`.
        unsafe { OWN.free(block) };
        if OWN.kept() > MUCH_SMALL {
            tend_in_free();
            helper_wakeup::signal();
        }
    } else if !block.is_null() {
        abort_on_invalid_free("free", block);
    }
}

#[cold]
#[inline(never)]
fn free_large(block: *mut u8) {
    if !LARGE.free(block) {
        abort_on_invalid_free("free", block);
    }
    tend_in_free();
    let most = KEPT_MOST.load(Ordering::Relaxed);
    if most != u64::MAX && LARGE.held().kept > most {
        if IS_TIGHT.load(Ordering::Relaxed) {
            LARGE.tighten();
        } else {
            LARGE.trim(u32::MAX);
        }
    }
}

#[inline]
fn tend_in_free() {
    helper_thread::ensure_in_free(&WORK);
    if helper_thread::is_refused() {
        sys::keep_errno(tend_here);
    }
}

/// # Safety
/// `block` came from here and was not freed.
pub unsafe fn usable(block: *mut u8) -> usize {
    if LARGE.contains(block) {
        return LARGE.usable(block).unwrap_or_else(|| abort_on_invalid_free("malloc_usable_size", block));
    }
    if !OWN.may_own(block) {
        abort_on_invalid_free("malloc_usable_size", block);
    }
    // SAFETY: `block` was allocated here and was not freed (the caller's contract), and it lies in `OWN`.
    unsafe { OWN.usable(block) }
}

/// # Safety
/// `block` came from here and was not freed. It is invalid afterwards, unless null is returned.
pub unsafe fn reallocate(block: *mut u8, size: usize) -> *mut u8 {
    if size > MOST_SIZE || sys::is_beyond(size) {
        return std::ptr::null_mut();
    }
    let is_large = LARGE.contains(block);
    if is_large && size >= TO_SMALL {
        let moved = LARGE.reallocate(block, size).unwrap_or_else(|| abort_on_invalid_free("realloc", block));
        tend();
        return moved;
    }
    if !is_large && size < FROM {
        if !OWN.may_own(block) {
            abort_on_invalid_free("realloc", block);
        }
        // SAFETY: `block` was allocated here and was not freed (the caller's contract), and it lies in `OWN`.
        return unsafe { OWN.reallocate(block, size) };
    }
    // First, because a block that was freed before may be part of the new one.
    // SAFETY: `block` was allocated here and was not freed (the caller's contract).
    let old = unsafe { usable(block) };
    let moved = allocate(size, false);
    if !moved.is_null() {
        // SAFETY: `moved` is a new block and `block` a live one, so they do not overlap, and each is long enough.
        unsafe {
            moved.copy_from_nonoverlapping(block, old.min(size));
            free(block);
        }
    }
    moved
}

/// True if an address may be a block of ours.
#[must_use]
pub fn may_own(block: *const u8) -> bool {
    LARGE.contains(block) || OWN.may_own(block)
}

// ---- the helper ----

/// Large allocations at the last round. If there were more since, the helper goes on; if not, it may sleep.
static SEEN: AtomicU64 = AtomicU64::new(0);

fn is_idle() -> bool {
    LARGE.held().kept == 0
        && LARGE.counters.allocations.load(Ordering::Relaxed) == SEEN.load(Ordering::Relaxed)
}

/// The helper ticks while it has something to do. If it slept until the next free, each free would have to wake it.
fn pause() -> Option<Duration> {
    let has_work = !is_idle() || small_held() > MUCH_SMALL || PUBLISH.lock().is_some();
    if !has_work {
        DECAY.lock().rest();
        LARGE.low_water();
    }
    has_work.then_some(TICK)
}

fn round() {
    let rounds = ROUNDS.fetch_add(1, Ordering::Relaxed);
    SEEN.store(LARGE.counters.allocations.load(Ordering::Relaxed), Ordering::Relaxed);
    let steps = STEPS.load(Ordering::Relaxed);
    let surplus = {
        let mut decay = DECAY.lock();
        if SEEN_STEPS.swap(steps, Ordering::Relaxed) != steps {
            decay.step();
        }
        decay.tick(LARGE.low_water())
    };
    let kept = LARGE.held().kept;
    let is_wanted = BUDGET.exchange(kept, &SEEN_WANTED);
    let most = if kept > 0 && (is_wanted || cgroup::is_short()) { u32::MAX } else { surplus };
    // In parts, so that a fork need not wait for all of them.
    let mut left = most;
    while left > 0 && !helper_thread::is_stopping() {
        let part = left.min(256);
        // A driver that is told of memory that goes may wait for locks of the thread that forks.
        let trim = || LARGE.trim(part);
        let given = if LARGE.pinned.is_empty() { Some(trim()) } else { helper_thread::among_others(trim) };
        if given.unwrap_or(0) == 0 {
            break;
        }
        left -= part;
    }
    if rounds.is_multiple_of(SMALL_ROUNDS) && small_held() > MUCH_SMALL {
        OWN.collect(false);
    }
    watch_huge_pages();
    let publish = *PUBLISH.lock();
    if let Some(publish) = publish {
        helper_thread::among_others(publish);
    }
}

fn watch_huge_pages() {
    if !LARGE.has_huge_pages() {
        return;
    }
    let now = Trouble::now();
    let before = TROUBLE.lock().replace(now);
    if before.is_some_and(|before| now.hurts(before)) {
        LARGE.use_huge_pages(false);
    }
}

// ---- around a fork ----

/// Handlers of a recorder, or of checked mode, around a fork. The thread that forks calls each of them before it takes
/// the allocator's locks, or after it opens them.
#[derive(Clone, Copy, Debug)]
pub struct AroundFork {
    pub before: fn(),
    pub after: unsafe fn(),
    pub in_child: unsafe fn(),
}

static RECORDER: OnceLock<AroundFork> = OnceLock::new();

/// Called once, while the process has one thread.
pub fn set_around_fork(recorder: AroundFork) {
    let _ = RECORDER.set(recorder);
}

/// True if the process had one thread when it forked. Then no other thread could have a lock, so none was taken: after
/// a fork the first write to each page copies it, in the parent and in the child, and the locks lie in a dozen of them.
static WAS_ALONE: AtomicBool = AtomicBool::new(false);

extern "C" fn before_fork() {
    let is_alone = sys::is_alone() && RECORDER.get().is_none();
    if WAS_ALONE.load(Ordering::Relaxed) != is_alone {
        WAS_ALONE.store(is_alone, Ordering::Relaxed);
    }
    if !is_alone {
        helper_thread::before_fork();
    }
    // The helper's next round comes after a later call, and an idle process makes none, so kept memory goes back now.
    // That costs little: after the fork the first write to a page that both have costs as much as a fresh page.
    if LARGE.pinned.is_empty() {
        LARGE.trim(u32::MAX);
    }
    if OWN.kept() > MUCH_SMALL {
        OWN.trim(true);
    }
    if is_alone {
        return;
    }
    if let Some(recorder) = RECORDER.get() {
        (recorder.before)();
    }
    take_locks();
}

fn take_locks() {
    PUBLISH.acquire();
    DECAY.acquire();
    TROUBLE.acquire();
    OWN.before_fork();
    PINNED.before_fork();
    LARGE.before_fork();
    lock::hand_over();
}

extern "C" fn after_fork() {
    if WAS_ALONE.load(Ordering::Relaxed) {
        return;
    }
    lock::take_back();
    // SAFETY: `before_fork` took all of these locks in this thread, and no guard of them is alive.
    unsafe {
        LARGE.after_fork();
        PINNED.after_fork(false);
        OWN.after_fork(false);
        TROUBLE.release();
        DECAY.release();
        PUBLISH.release();
        if let Some(recorder) = RECORDER.get() {
            (recorder.after)();
        }
        helper_thread::after_fork();
    }
}

extern "C" fn after_fork_in_child() {
    BUDGET.after_fork();
    helper_thread::after_fork_in_child();
    if WAS_ALONE.load(Ordering::Relaxed) {
        if LARGE.is_absent() && PINNED.is_empty() {
            return;
        }
        // The code below opens the locks, so this thread takes them first.
        helper_thread::before_fork();
        take_locks();
    }
    lock::take_back();
    // SAFETY: the thread that forked has all of these locks, taken in `before_fork` or just now. The child has no
    // other.
    unsafe {
        LARGE.after_fork_in_child();
        PINNED.after_fork(true);
        OWN.after_fork(true);
        TROUBLE.release();
        DECAY.release();
        PUBLISH.release();
        if let Some(recorder) = RECORDER.get() {
            (recorder.in_child)();
        }
        helper_thread::after_fork();
    }
}
