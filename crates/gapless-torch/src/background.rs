//! Our own threads inside the program, and hooks for its forks and its end.

use crate::process;
use gapless_cuda::locks::Lock;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

unsafe extern "C" {
    fn pthread_atfork(
        prepare: Option<unsafe extern "C" fn()>,
        parent: Option<unsafe extern "C" fn()>,
        child: Option<unsafe extern "C" fn()>,
    ) -> i32;
    fn atexit(work: extern "C" fn()) -> i32;
    fn sigfillset(set: *mut SignalSet) -> i32;
    fn pthread_sigmask(how: i32, set: *const SignalSet, before: *mut SignalSet) -> i32;
}

/// `sigset_t`: 128 bytes on Linux.
#[repr(C, align(8))]
struct SignalSet([u8; 128]);
const SIG_SETMASK: i32 = 2;

/// Starts a thread that gets no signals, because signals are for the program's own threads.
///
/// # Errors
/// If the system cannot start a thread.
pub fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    without_signals(|| std::thread::Builder::new().name(name.to_owned()).spawn(work))
}

/// Threads that `start` starts get no signals.
pub fn without_signals<T>(start: impl FnOnce() -> T) -> T {
    let mut before = SignalSet([0; 128]);
    let mut all = SignalSet([0; 128]);
    // A new thread inherits this one's mask. SAFETY: both sets have the size of `sigset_t`; the mask is restored below.
    unsafe {
        sigfillset(&raw mut all);
        pthread_sigmask(SIG_SETMASK, &raw const all, &raw mut before);
    }
    let started = start();
    // SAFETY: `before` is the mask that the call above stored.
    unsafe { pthread_sigmask(SIG_SETMASK, &raw const before, std::ptr::null_mut()) };
    started
}

/// Functions to call when the process exits normally, the last one first.
static ENDS: Lock<Vec<fn()>> = Lock::new(Vec::new);

/// Calls the last function of the list. C calls exit handlers in reverse order too.
extern "C" fn end() {
    // A forked child inherits its parent's list, but has none of the parent's threads or files to end.
    if !process::is_forked() {
        let _ = std::panic::catch_unwind(|| {
            let work = ENDS.lock().pop();
            work.into_iter().for_each(|work| work());
        });
    }
}

/// Calls `work` when the process exits normally: before functions that were registered earlier, so before the driver's
/// own. Not in a forked child.
pub fn at_exit(work: fn()) {
    ENDS.lock().push(work);
    // SAFETY: `end` lives as long as the process.
    unsafe { atexit(end) };
}

/// Calls `work` in each forked child. It must not unwind.
pub fn in_forked_child(work: extern "C" fn()) {
    // SAFETY: `work` is a function of this library, which is never unloaded.
    unsafe { pthread_atfork(None, None, Some(work)) };
}

/// Calls these before each fork, and after it in both processes. They must not unwind.
pub fn at_fork(before: extern "C" fn(), after: extern "C" fn()) {
    // SAFETY: functions of this library, which is never unloaded.
    unsafe { pthread_atfork(Some(before), Some(after), Some(after)) };
}

/// True once the process ends: our threads then make no driver calls.
static IS_OVER: AtomicBool = AtomicBool::new(false);
/// Number of our threads that are in driver calls now.
static RUNNING: AtomicUsize = AtomicUsize::new(0);
/// Time that the end of the process waits for those.
const LAST_PATIENCE: Duration = Duration::from_secs(2);

/// While this value lives, a thread of ours may call the driver.
#[derive(Debug)]
#[must_use = "the work ends with it"]
pub struct Running(());

impl Running {
    /// `None` once the process ends: the driver must not be called any more.
    pub fn begin() -> Option<Running> {
        static IS_WATCHED: AtomicBool = AtomicBool::new(false);
        if !IS_WATCHED.swap(true, Ordering::AcqRel) {
            at_exit(stop);
        }
        // Counted before the check: either `stop` sees this thread, or this thread sees that the process ends.
        RUNNING.fetch_add(1, Ordering::SeqCst);
        let running = Running(());
        (!IS_OVER.load(Ordering::SeqCst) && !process::is_forked()).then_some(running)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        RUNNING.fetch_sub(1, Ordering::SeqCst);
    }
}

fn stop() {
    IS_OVER.store(true, Ordering::SeqCst);
    let began = Instant::now();
    while RUNNING.load(Ordering::SeqCst) > 0 && began.elapsed() < LAST_PATIENCE {
        std::thread::sleep(Duration::from_millis(1));
    }
}
