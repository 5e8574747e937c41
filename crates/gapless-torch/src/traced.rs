//! torch's tracing of GPU memory, which its CUDA sanitizer (`torch.cuda._sanitizer`) turns on: torch's own allocator
//! reports each allocation and each free to callbacks in Python. torch's wrapper of plug-ins reports nothing, so this
//! module does it, with the plain hooks too.
//!
//! torch has one flag for it, which each request reads. While it is off, that is the only cost.

use crate::cxx::{find, find_global};
use crate::interpreter::DOOR;
use crate::process;
use gapless_cuda::locks::SetOnce;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

/// Kind of an event of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Event {
    Freed = 0,
    Allocated = 1,
}

/// Python's function: the event, and the address. It takes Python's lock itself, and raises nothing.
pub type Callback = unsafe extern "C" fn(c_int, u64);

static OFF: AtomicBool = AtomicBool::new(false);
/// torch's flag, after it was looked up.
static FLAG: AtomicPtr<AtomicBool> = AtomicPtr::new((&raw const OFF).cast_mut());
static CALLBACK: AtomicUsize = AtomicUsize::new(0);

/// True if torch traces.
#[inline]
#[must_use]
pub fn is_on() -> bool {
    // SAFETY: our own flag, or a `bool` of libc10, which stays loaded. torch sets it once, before it traces.
    unsafe { (*FLAG.load(Ordering::Relaxed)).load(Ordering::Relaxed) }
}

/// Sets the callback. False if this torch has no such flag; then nothing is reported.
///
/// # Safety
/// Any thread may call the function until the process ends.
pub(crate) unsafe fn set_callback(callback: Callback) -> bool {
    let Some(flag) = find(&[c"libc10.so"], c"_ZN3c104impl8GPUTrace9haveStateE") else { return false };
    CALLBACK.store(callback as usize, Ordering::Release);
    FLAG.store(flag.cast(), Ordering::Release);
    true
}

/// Python's functions around a call. They keep an exception that is on its way through the frames whose tensors are
/// freed.
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

/// Reports a block to Python. No lock of ours is held.
#[cold]
pub fn tell(event: Event, pointer: *mut c_void) {
    let callback = CALLBACK.load(Ordering::Acquire);
    if callback == 0 || pointer.is_null() || process::is_forked() {
        return;
    }
    let (Some(python), Some(_visit)) = (python(), DOOR.enter()) else { return };
    let mut error = [std::ptr::null_mut(); 3];
    let [kind, value, traceback] = &mut error;
    // SAFETY: the visit keeps Python alive. Its lock is held from the fetch of the exception to its restoration.
    // `CALLBACK` has a function that [`set_callback`] got.
    unsafe {
        let callback = std::mem::transmute::<usize, Callback>(callback);
        let before = (python.take_lock)();
        (python.fetch)(kind, value, traceback);
        callback(event as c_int, pointer as u64);
        (python.restore)(*kind, *value, *traceback);
        (python.leave_lock)(before);
    }
}
