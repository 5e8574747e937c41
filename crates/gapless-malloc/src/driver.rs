//! Calls of a driver that the helper needs. A driver works through descriptors of the process, and the helper has a
//! descriptor table of its own. So a thread that shares the program's table makes the call, and the helper waits for
//! it.
//!
//! The thread starts with the first buffer that the program registers, in the call that registers it. A forked child
//! has neither this thread nor registrations; it gets a thread with its own first buffer.

use gapless_host::local;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};

type Call = Box<dyn FnOnce() + Send>;

struct Caller {
    pid: u32,
    calls: Sender<Call>,
}

/// Only tried, never waited for: in a forked child a thread that does not exist there may hold it.
static CALLER: Mutex<Option<Caller>> = Mutex::new(None);
const STACK: usize = 256 << 10;

/// Called by a thread of the program.
pub(crate) fn begin() {
    let Ok(mut caller) = CALLER.try_lock() else { return };
    let pid = std::process::id();
    if local::has_own_files() || caller.as_ref().is_some_and(|caller| caller.pid == pid) {
        return;
    }
    let (calls, queue) = channel();
    let thread = std::thread::Builder::new().name("gapless-driver".to_owned()).stack_size(STACK);
    if without_signals(|| thread.spawn(move || serve(&queue))).is_ok() {
        *caller = Some(Caller { pid, calls });
    }
}

fn serve(queue: &Receiver<Call>) {
    while let Ok(call) = queue.recv() {
        call();
    }
}

/// Makes a call of a driver and waits for its end.
pub(crate) fn run(call: impl FnOnce() + Send + 'static) {
    if !local::has_own_files() {
        return call();
    }
    let calls = CALLER.try_lock().ok().and_then(|caller| Some(caller.as_ref()?.calls.clone()));
    let Some(calls) = calls else { return call() };
    let (tell, done) = channel();
    let all = Box::new(move || {
        call();
        let _ = tell.send(());
    });
    if calls.send(all).is_ok() {
        let _ = done.recv();
    }
}

/// Blocks signals in the new thread, because they are for threads of the program.
fn without_signals<T>(work: impl FnOnce() -> T) -> T {
    // SAFETY: valid when zero, and filled by the calls below.
    let (mut all, mut before): (libc::sigset_t, libc::sigset_t) = unsafe { std::mem::zeroed() };
    // SAFETY: both are variables of this function.
    unsafe {
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
    }
    let result = work();
    // SAFETY: `before` is a variable of this function, filled above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut()) };
    result
}
