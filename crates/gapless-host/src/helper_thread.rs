//! The thread that gives memory back. It sleeps without a timer while there is nothing to do.
//!
//! A fork copies only the thread that forks, so the helper is stopped before a fork and started again when it is next
//! needed. So no memory is half given back in a child, and a program that counts its threads around a fork (Python
//! does) finds only its own. Kept memory goes back at the fork, because an idle process makes no call that would start
//! the helper.
//!
//! The helper has a descriptor table of its own, so that its files are not among the program's.
//!
//! The helper must not keep a process alive that would end without it. The process of a C program ends with the last of
//! its threads, so the helper ends with the first thread if that one ends alone (`pthread_exit`). A process that the
//! bare system call made (`clone`) may end with the function that it runs, so it gets no helper. In both, the threads
//! of the program do its work.
//!
//! The C library frees the memory of ended threads while it holds the lock that the start of a thread needs
//! (`pthread_join` of one of thousands). Calls of `free` from the loader's code must not start a helper.

use crate::check::stack::{Stack, object_around};
use crate::helper_wakeup;
use crate::local;
use crate::lock::Lock;
use crate::sys;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// The helper's work: one round, then the time to sleep; `None` to sleep until a signal.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    pub round: fn(),
    pub pause: fn() -> Option<Duration>,
    pub is_idle: fn() -> bool,
}

/// The helper, and the process that started it. A child of the bare system call has only the memory of the helper.
struct Thread(Option<(libc::pthread_t, u32)>);

// SAFETY: the value is a thread's number, which any thread may join.
unsafe impl Send for Thread {}

static THREAD: Lock<Thread> = Lock::new(Thread(None));
static RUNS: AtomicBool = AtomicBool::new(false);
/// The number of the helper that may run. A helper with another number ends.
static NUMBER: AtomicUsize = AtomicUsize::new(0);
/// The helper's work.
static WORK: AtomicPtr<Work> = AtomicPtr::new(std::ptr::null_mut());
/// The kernel's number of the helper that began last.
static KERNELS: AtomicI32 = AtomicI32::new(0);
/// True while the helper is in code of another library, which may wait for a lock of the thread that forks.
static IS_AMONG_OTHERS: AtomicBool = AtomicBool::new(false);
/// The time in milliseconds at which no thread could be started, so that the next try comes later; 0 if none failed.
static REFUSED: AtomicU64 = AtomicU64::new(0);
const AGAIN: u64 = 5000;
/// A time of refusal after which none is started.
const FOR_GOOD: u64 = u64::MAX - AGAIN;
/// The process whose handlers around a fork ran.
static HOME: AtomicU32 = AtomicU32::new(0);
/// True once no helper may start any more.
static ENDED: AtomicBool = AtomicBool::new(false);

/// Enough for a round of work, and for the thread-local variables of all libraries, which lie on the stack.
const STACK: usize = 1 << 20;

/// Called before the first block.
pub fn begin() {
    HOME.store(sys::pid(), Ordering::Relaxed);
}

/// Called when the process's first thread ends, and others go on.
pub fn first_thread_ends() {
    before_fork();
    REFUSED.store(FOR_GOOD, Ordering::Relaxed);
    // SAFETY: `before_fork` was called above, in this thread.
    unsafe { after_fork() };
}

/// Starts the helper if there is none. Never waits.
#[inline]
pub fn ensure(work: &'static Work) {
    if !RUNS.load(Ordering::Relaxed) {
        start(work);
    }
}

/// The same, for a call in `free`.
#[inline]
pub fn ensure_in_free(work: &'static Work) {
    if !RUNS.load(Ordering::Relaxed) && !ENDED.load(Ordering::Relaxed) && !is_called_by_loader() {
        start(work);
    }
}

/// The addresses of the loader's code: from `[0]` to `[1]`.
static LOADER: [AtomicUsize; 2] = [AtomicUsize::new(0), AtomicUsize::new(0)];

unsafe extern "C" {
    /// A function of the loader.
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
    // An unknown caller may be the loader, so a later call starts the helper.
    caller == 0 || (start..end).contains(&caller)
}

/// True if no thread could be started lately.
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
    // Another thread is starting or stopping the helper, so a later call does it.
    let Some(mut thread) = THREAD.try_lock() else { return };
    if thread.0.is_some() {
        return;
    }
    let here = sys::pid();
    if here != HOME.load(Ordering::Relaxed) {
        REFUSED.store(now(), Ordering::Relaxed);
        return;
    }
    WORK.store(std::ptr::from_ref(work).cast_mut(), Ordering::Release);
    // Set first, because the start of a thread allocates and comes here again.
    RUNS.store(true, Ordering::Relaxed);
    match spawn(NUMBER.load(Ordering::Relaxed)) {
        Some(started) => {
            thread.0 = Some((started, here));
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
        // SAFETY: valid when zero, and initialised by the call below.
        let mut all: libc::sigset_t = unsafe { std::mem::zeroed() };
        let mut before = all;
        let mut thread: libc::pthread_t = 0;
        let argument = std::ptr::without_provenance_mut(number);
        // SAFETY: all pointers point to variables of this function. The helper blocks all signals: the program gets
        // them.
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
    // SAFETY: `start` stored a reference to a static before this thread began.
    let work = unsafe { &*WORK.load(Ordering::Acquire) };
    // SAFETY: takes no argument.
    KERNELS.store(unsafe { libc::gettid() }, Ordering::Relaxed);
    // SAFETY: a name of at most 15 bytes for this very thread.
    unsafe { libc::pthread_setname_np(libc::pthread_self(), c"gapless-host".as_ptr()) };
    local::set_own_files(gapless_aside::own_table());
    let may_run = || NUMBER.load(Ordering::SeqCst) == argument.addr();
    while may_run() {
        let pause = (work.pause)();
        helper_wakeup::sleep(pause, || may_run() && (pause.is_some() || (work.is_idle)()));
        // A thread that rings has only begun its work, so the round comes a pause later.
        if pause.is_some() && may_run() {
            MINE.store(argument.addr(), Ordering::Relaxed);
            (work.round)();
        }
    }
    std::ptr::null_mut()
}

/// The number of the helper that is in a round.
static MINE: AtomicUsize = AtomicUsize::new(0);

/// True if the helper was told to stop. A long round checks this between its parts.
#[must_use]
pub fn is_stopping() -> bool {
    MINE.load(Ordering::Relaxed) != NUMBER.load(Ordering::SeqCst)
}

/// Calls code of other libraries from the helper. A fork does not wait for it. `None` if the helper was told to stop.
pub fn among_others<T>(work: impl FnOnce() -> T) -> Option<T> {
    IS_AMONG_OTHERS.store(true, Ordering::SeqCst);
    // A thread that stops the helper changes the number first, and then looks at this flag.
    let result = (!is_stopping()).then(work);
    IS_AMONG_OTHERS.store(false, Ordering::SeqCst);
    result
}

/// Called before a fork: stops the helper, and lets no thread start one.
pub fn before_fork() {
    THREAD.acquire();
    // SAFETY: `acquire` gave this thread the lock, and no guard of it is alive.
    let thread = unsafe { &mut *THREAD.value() };
    if let Some((running, owner)) = thread.0.take() {
        NUMBER.fetch_add(1, Ordering::SeqCst);
        helper_wakeup::wake();
        // A helper in code of other libraries ends by itself when that code returns.
        let waits = !IS_AMONG_OTHERS.load(Ordering::SeqCst);
        // SAFETY: `running` was taken out of `THREAD`, so no other thread joins or detaches it.
        sys::uncancelled(|| unsafe {
            if owner != sys::pid() {
                // A process of the bare system call does not have this thread.
            } else if waits {
                libc::pthread_join(running, std::ptr::null_mut());
            } else {
                libc::pthread_detach(running);
            }
        });
        RUNS.store(false, Ordering::Relaxed);
    }
}

/// Called in a forked child, which does not have the helper that was in code of other libraries.
pub fn after_fork_in_child() {
    begin();
    // The thread that forked is the first thread of the child.
    let _ = REFUSED.compare_exchange(FOR_GOOD, 0, Ordering::Relaxed, Ordering::Relaxed);
    IS_AMONG_OTHERS.store(false, Ordering::SeqCst);
}

/// Runs `work` while the process has no helper, because the kernel refuses some calls to a process with two threads.
pub fn without<T>(work: impl FnOnce() -> T) -> T {
    before_fork();
    await_kernel();
    let result = work();
    // SAFETY: `before_fork` was called above, in this thread.
    unsafe { after_fork() };
    result
}

/// Waits until the kernel no longer counts the helper, which it does for a moment after it reports the thread's end.
/// Does not wait for a helper in code of other libraries.
fn await_kernel() {
    let helper = KERNELS.swap(0, Ordering::Relaxed);
    let is_counted = || {
        // SAFETY: signal 0 only asks if the process has this thread.
        helper != 0
            && sys::keep_errno(|| unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), helper, 0) }) == 0
    };
    while is_counted() && !IS_AMONG_OTHERS.load(Ordering::SeqCst) {
        std::thread::yield_now();
    }
}

/// Stops the helper for good, for example because it may make no system calls.
pub fn end() {
    before_fork();
    ENDED.store(true, Ordering::Relaxed);
    // SAFETY: `before_fork` was called above, in this thread.
    unsafe { after_fork() };
    gapless_aside::confine();
}

/// After a fork, in the parent and in the child.
///
/// # Safety
/// This thread called [`before_fork`].
pub unsafe fn after_fork() {
    // SAFETY: this thread has the lock since `before_fork` (the caller's contract).
    unsafe { THREAD.release() };
}
