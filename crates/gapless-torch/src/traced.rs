//! torch's tracing of GPU memory, which its CUDA sanitizer (`torch.cuda._sanitizer`) turns on: each allocation and each
//! free of torch is told to callbacks in Python, as torch's own allocator does. torch's wrapper of plug-ins tells
//! nothing, so that this holds with the plain hooks too.
//!
//! torch has one flag for it, which is read with each request. While it is off that is all.

use crate::cxx::{find, find_global};
use crate::interpreter::DOOR;
use crate::state;
use gapless_cuda::locks::SetOnce;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

/// What happened to a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Event {
    Freed = 0,
    Allocated = 1,
}

/// Python's function: what happened, and the address. It takes Python's lock itself, and lets nothing out.
pub type Callback = unsafe extern "C" fn(c_int, u64);

static OFF: AtomicBool = AtomicBool::new(false);
/// torch's flag, once it was looked up.
static FLAG: AtomicPtr<AtomicBool> = AtomicPtr::new((&raw const OFF).cast_mut());
static CALLBACK: AtomicUsize = AtomicUsize::new(0);

/// Whether torch traces.
#[inline]
#[must_use]
pub fn is_on() -> bool {
    // SAFETY: our own flag, or a `bool` of libc10, which stays loaded. torch sets it once, before it traces.
    unsafe { (*FLAG.load(Ordering::Relaxed)).load(Ordering::Relaxed) }
}

/// Sets who is told. 0; -1: this torch has no such flag, and nothing is told.
///
/// # Safety
/// The function may be called by any thread until the process ends.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_on_trace(callback: Option<Callback>) -> i32 {
    let flag = find(&[c"libc10.so"], c"_ZN3c104impl8GPUTrace9haveStateE");
    let (Some(callback), Some(flag)) = (callback, flag) else { return -1 };
    CALLBACK.store(callback as usize, Ordering::Release);
    FLAG.store(flag.cast(), Ordering::Release);
    0
}

/// Python's functions around a call: an exception may be on its way through the frames whose tensors are freed, and is
/// kept.
struct Python {
    take_lock: unsafe extern "C" fn() -> c_int,
    leave_lock: unsafe extern "C" fn(c_int),
    fetch: unsafe extern "C" fn(*mut *mut c_void, *mut *mut c_void, *mut *mut c_void),
    restore: unsafe extern "C" fn(*mut c_void, *mut c_void, *mut c_void),
}

fn python() -> Option<&'static Python> {
    static FOUND: SetOnce<Option<Python>> = SetOnce::new();
    macro_rules! function {
        ($name:literal, $kind:ty) => {{
            let found = find_global(&[], $name)?;
            // SAFETY: Python's headers give this name this type.
            unsafe { std::mem::transmute::<*mut c_void, $kind>(found) }
        }};
    }
    let look_up = || {
        type Fetch = unsafe extern "C" fn(*mut *mut c_void, *mut *mut c_void, *mut *mut c_void);
        type Restore = unsafe extern "C" fn(*mut c_void, *mut c_void, *mut c_void);
        Some(Python {
            take_lock: function!(c"PyGILState_Ensure", unsafe extern "C" fn() -> c_int),
            leave_lock: function!(c"PyGILState_Release", unsafe extern "C" fn(c_int)),
            fetch: function!(c"PyErr_Fetch", Fetch),
            restore: function!(c"PyErr_Restore", Restore),
        })
    };
    FOUND.get_or_init(look_up).as_ref()
}

/// Tells Python of a block. No lock of ours is held.
#[cold]
pub fn tell(event: Event, pointer: *mut c_void) {
    let callback = CALLBACK.load(Ordering::Acquire);
    if callback == 0 || pointer.is_null() || state::is_forked() {
        return;
    }
    let (Some(python), Some(_visit)) = (python(), DOOR.enter()) else { return };
    let mut error = [std::ptr::null_mut(); 3];
    let [kind, value, traceback] = &mut error;
    // SAFETY: Python is there and does not go, as the visit says; its lock is held around both halves of the
    // exception; the callback is the one that was set.
    unsafe {
        let callback = std::mem::transmute::<usize, Callback>(callback);
        let before = (python.take_lock)();
        (python.fetch)(kind, value, traceback);
        callback(event as c_int, pointer as u64);
        (python.restore)(*kind, *value, *traceback);
        (python.leave_lock)(before);
    }
}
