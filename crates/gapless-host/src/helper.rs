//! The thread that gives memory back. It sleeps without a clock while there is nothing to do.
//!
//! A fork copies one thread only, so the helper is stopped before and started again when it is next needed: no memory
//! is half given back in a child, and a program that counts its threads around a fork (Python does) finds its own. What
//! is kept goes back at the fork: a process that is idle afterwards makes no call that would start the helper.
//!
//! The helper has descriptors of its own, so that no file that it reads or writes is among the program's.
//!
//! The C library frees what ended threads leave behind while it holds the lock that the start of a thread needs
//! (`pthread_join` of one of thousands). Those calls of `free` come from the loader's code, and start no helper.

use crate::bell;
use crate::check::stack::{Stack, object_around};
use crate::local;
use crate::lock::Lock;
use crate::sys;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// What the helper does: one round of work, then how long to sleep; `None`: until somebody rings.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    pub round: fn(),
    pub pause: fn() -> Option<Duration>,
    pub is_idle: fn() -> bool,
}

struct Thread(Option<libc::pthread_t>);

// SAFETY: the number of a thread, which any thread may join.
unsafe impl Send for Thread {}

static THREAD: Lock<Thread> = Lock::new(Thread(None));
static RUNS: AtomicBool = AtomicBool::new(false);
/// The number of the helper that may run: one that has another number ends.
static NUMBER: AtomicUsize = AtomicUsize::new(0);
/// What the helper does.
static WORK: AtomicPtr<Work> = AtomicPtr::new(std::ptr::null_mut());
/// The kernel's number of the helper that began last.
static KERNELS: AtomicI32 = AtomicI32::new(0);
/// The helper is in code of others, which may wait for what the thread that forks has.
static IS_AMONG_OTHERS: AtomicBool = AtomicBool::new(false);
/// No thread can be had: do not ask again and again. Milliseconds of the moment; 0: none was refused.
static REFUSED: AtomicU64 = AtomicU64::new(0);
const AGAIN: u64 = 5000;
/// No thread is wanted any more.
static ENDED: AtomicBool = AtomicBool::new(false);

/// Room for a round of work, and for the thread-local variables of all libraries, which the C library takes from it.
const STACK: usize = 1 << 20;

/// Starts the helper where there is none. Never waits.
#[inline]
pub fn ensure(work: &'static Work) {
    if !RUNS.load(Ordering::Relaxed) {
        start(work);
    }
}

/// The same in `free`.
#[inline]
pub fn ensure_in_free(work: &'static Work) {
    if !RUNS.load(Ordering::Relaxed) && !ENDED.load(Ordering::Relaxed) && !is_called_by_loader() {
        start(work);
    }
}

/// Where the loader's code lies: `[0]` to `[1]`.
static LOADER: [AtomicUsize; 2] = [AtomicUsize::new(0), AtomicUsize::new(0)];

unsafe extern "C" {
    /// A function of the loader's.
    fn __tls_get_addr();
}

/// Called once, while the process has one thread, if the loader allocates here.
pub fn know_loader() {
    let found = object_around(__tls_get_addr as *const () as usize);
    LOADER[0].store(found.start, Ordering::Relaxed);
    LOADER[1].store(found.end, Ordering::Relaxed);
}

#[cold]
fn is_called_by_loader() -> bool {
    let [start, end] = [&LOADER[0], &LOADER[1]].map(|end| end.load(Ordering::Relaxed));
    if end == 0 {
        return false;
    }
    let caller = Stack::here().caller();
    // Who is not known may be the loader: a later call starts the helper.
    caller == 0 || (start..end).contains(&caller)
}

/// Whether no thread could be had lately.
#[inline]
#[must_use]
pub fn is_refused() -> bool {
    REFUSED.load(Ordering::Relaxed) != 0 && !RUNS.load(Ordering::Relaxed)
}

fn now() -> u64 {
    sys::time().as_millis() as u64 + 1
}

#[cold]
fn start(work: &'static Work) {
    let refused = REFUSED.load(Ordering::Relaxed);
    if ENDED.load(Ordering::Relaxed) || (refused != 0 && now() < refused + AGAIN) {
        return;
    }
    // Somebody is starting or stopping it: the next call will do.
    let Some(mut thread) = THREAD.try_lock() else { return };
    if thread.0.is_some() {
        return;
    }
    WORK.store(std::ptr::from_ref(work).cast_mut(), Ordering::Release);
    // Set before: the start of a thread allocates, and comes here again.
    RUNS.store(true, Ordering::Relaxed);
    match spawn(NUMBER.load(Ordering::Relaxed)) {
        Some(started) => {
            thread.0 = Some(started);
            REFUSED.store(0, Ordering::Relaxed);
        }
        None => {
            RUNS.store(false, Ordering::Relaxed);
            REFUSED.store(now(), Ordering::Relaxed);
        }
    }
}

fn spawn(number: usize) -> Option<libc::pthread_t> {
    sys::keep_errno(|| {
        // SAFETY: valid when zero, and initialised by the call below.
        let mut attributes: libc::pthread_attr_t = unsafe { std::mem::zeroed() };
        // SAFETY: as above.
        let mut all: libc::sigset_t = unsafe { std::mem::zeroed() };
        let mut before = all;
        let mut thread: libc::pthread_t = 0;
        let argument = std::ptr::without_provenance_mut(number);
        // SAFETY: all pointers are to variables of this function. The helper takes no signal: they are the program's.
        let result = unsafe {
            libc::pthread_attr_init(&raw mut attributes);
            libc::pthread_attr_setstacksize(&raw mut attributes, STACK);
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
            let result = libc::pthread_create(&raw mut thread, &raw const attributes, main, argument);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
            libc::pthread_attr_destroy(&raw mut attributes);
            result
        };
        (result == 0).then_some(thread)
    })
}

extern "C" fn main(argument: *mut c_void) -> *mut c_void {
    // SAFETY: stored before the thread began, and lives for good.
    let work = unsafe { &*WORK.load(Ordering::Acquire) };
    // SAFETY: takes nothing.
    KERNELS.store(unsafe { libc::gettid() }, Ordering::Relaxed);
    // SAFETY: a name of at most 15 bytes for this very thread.
    unsafe { libc::pthread_setname_np(libc::pthread_self(), c"gapless-host".as_ptr()) };
    local::set_own_files(gapless_aside::own_table());
    let may_run = || NUMBER.load(Ordering::SeqCst) == argument.addr();
    while may_run() {
        let pause = (work.pause)();
        bell::sleep(pause, || may_run() && (pause.is_some() || (work.is_idle)()));
        // Who rings has only begun: the round comes a pause later.
        if pause.is_some() && may_run() {
            MINE.store(argument.addr(), Ordering::Relaxed);
            (work.round)();
        }
    }
    std::ptr::null_mut()
}

/// The number of the helper that is in a round.
static MINE: AtomicUsize = AtomicUsize::new(0);

/// Whether the helper was told to stop: a long round looks here between its parts.
#[must_use]
pub fn is_stopping() -> bool {
    MINE.load(Ordering::Relaxed) != NUMBER.load(Ordering::SeqCst)
}

/// The helper's way into code of others: a fork does not wait for its end. `None`: the helper was told to stop.
pub fn among_others<T>(work: impl FnOnce() -> T) -> Option<T> {
    IS_AMONG_OTHERS.store(true, Ordering::SeqCst);
    // Who stops the helper changes the number, and then looks here.
    let result = (!is_stopping()).then(work);
    IS_AMONG_OTHERS.store(false, Ordering::SeqCst);
    result
}

/// Before a fork: stops the helper, and lets nobody start one.
pub fn before_fork() {
    THREAD.acquire();
    // SAFETY: this thread has the lock, and no guard is alive.
    let thread = unsafe { &mut *THREAD.value() };
    if let Some(running) = thread.0.take() {
        NUMBER.fetch_add(1, Ordering::SeqCst);
        bell::wake();
        // One that is among others ends by itself, when they let it.
        let waits = !IS_AMONG_OTHERS.load(Ordering::SeqCst);
        // SAFETY: a thread that nobody else joins or detaches.
        sys::uncancelled(|| unsafe {
            if waits {
                libc::pthread_join(running, std::ptr::null_mut());
            } else {
                libc::pthread_detach(running);
            }
        });
        RUNS.store(false, Ordering::Relaxed);
    }
}

/// In a forked child: a helper that was among others is not there.
pub fn after_fork_in_child() {
    IS_AMONG_OTHERS.store(false, Ordering::SeqCst);
}

/// Runs this while the process has no helper: some calls are refused to a process with two threads.
pub fn without<T>(work: impl FnOnce() -> T) -> T {
    before_fork();
    await_kernel();
    let result = work();
    // SAFETY: `before_fork` was called above.
    unsafe { after_fork() };
    result
}

/// The kernel tells that a thread has ended while it still counts it for a moment. One that is among others is not
/// waited for.
fn await_kernel() {
    let helper = KERNELS.swap(0, Ordering::Relaxed);
    let is_counted = || {
        // SAFETY: signal 0 asks only whether the process has this thread.
        helper != 0
            && sys::keep_errno(|| unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), helper, 0) }) == 0
    };
    while is_counted() && !IS_AMONG_OTHERS.load(Ordering::SeqCst) {
        std::thread::yield_now();
    }
}

/// Stops the helper for good, as where it may make no system calls.
pub fn end() {
    before_fork();
    ENDED.store(true, Ordering::Relaxed);
    // SAFETY: `before_fork` was called above.
    unsafe { after_fork() };
    gapless_aside::confine();
}

/// After a fork, in the parent and in the child.
///
/// # Safety
/// [`before_fork`] was called by this thread.
pub unsafe fn after_fork() {
    // SAFETY: as the caller says.
    unsafe { THREAD.release() };
}
