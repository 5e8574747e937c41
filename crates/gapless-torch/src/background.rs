//! Threads of our own inside somebody else's program; its forks, and its end.

use crate::state;
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

/// Starts a thread that gets no signals: those are for the program's own threads.
///
/// # Errors
/// When none can be started.
pub fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    without_signals(|| std::thread::Builder::new().name(name.to_owned()).spawn(work))
}

/// Threads that `start` starts get no signals.
pub fn without_signals<T>(start: impl FnOnce() -> T) -> T {
    let mut before = SignalSet([0; 128]);
    let mut all = SignalSet([0; 128]);
    // A new thread inherits this one's mask. SAFETY: sets of the right size; the mask is put back below.
    unsafe {
        sigfillset(&raw mut all);
        pthread_sigmask(SIG_SETMASK, &raw const all, &raw mut before);
    }
    let started = start();
    // SAFETY: as above.
    unsafe { pthread_sigmask(SIG_SETMASK, &raw const before, std::ptr::null_mut()) };
    started
}

/// What is called when the process ends by itself, the last one first.
static ENDS: Lock<Vec<fn()>> = Lock::new(Vec::new);

/// Calls the last of them: C keeps the order.
extern "C" fn end() {
    // A forked child has its parent's list of what to do at the end, and nothing of its parent's to end.
    if !state::is_forked() {
        let _ = std::panic::catch_unwind(|| {
            let work = ENDS.lock().pop();
            work.into_iter().for_each(|work| work());
        });
    }
}

/// Has `work` called when the process ends by itself: before what was registered earlier, so before the driver's own
/// end. Not in a forked child.
pub fn at_exit(work: fn()) {
    ENDS.lock().push(work);
    // SAFETY: a function that lives as long as the process.
    unsafe { atexit(end) };
}

/// Has `work` called in each forked child. It must not unwind.
pub fn in_forked_child(work: extern "C" fn()) {
    // SAFETY: a function that lives as long as the process.
    unsafe { pthread_atfork(None, None, Some(work)) };
}

/// Has these called before each fork, and after it in both processes. They must not unwind.
pub fn at_fork(before: extern "C" fn(), after: extern "C" fn()) {
    // SAFETY: functions that live as long as the process.
    unsafe { pthread_atfork(Some(before), Some(after), Some(after)) };
}

/// The process ends: threads of our own do not call the driver any more.
static IS_OVER: AtomicBool = AtomicBool::new(false);
/// How many of them do now.
static RUNNING: AtomicUsize = AtomicUsize::new(0);
/// How long the end of the process waits for these.
const LAST_PATIENCE: Duration = Duration::from_secs(2);

/// Work of a thread of our own that calls the driver, as long as this lives.
#[derive(Debug)]
#[must_use = "the work ends with it"]
pub struct Running(());

impl Running {
    /// `None`: the driver is not to be called any more.
    pub fn begin() -> Option<Running> {
        static IS_WATCHED: AtomicBool = AtomicBool::new(false);
        if !IS_WATCHED.swap(true, Ordering::AcqRel) {
            at_exit(stop);
        }
        // Counted first: who ends the process sees the work, or the work sees the end.
        RUNNING.fetch_add(1, Ordering::SeqCst);
        let running = Running(());
        (!IS_OVER.load(Ordering::SeqCst) && !state::is_forked()).then_some(running)
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
