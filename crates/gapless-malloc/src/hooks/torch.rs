//! torch's tensors on the CPU: `libc10.so` takes their memory from `posix_memalign` and gives it to `free`
//! (`c10::alloc_cpu`, `c10::free_cpu`). These two calls of this one library lead here. torch's own allocator object
//! stays, so its profiler and its error messages work as before.

use super::rebind::rebind;
use super::{of_program, serves};
use gapless_host::{heap, sys};
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

/// The program's own functions.
static MEMALIGN: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
static FREE: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// Leads torch's calls here. Returns 0 if that is done, now or before; -1 if `libc10.so` is not loaded, or does not
/// make these calls.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_host_hook_torch() -> c_int {
    let (Some(memalign), Some(given)) = (of_program(c"posix_memalign"), of_program(c"free")) else {
        return -1;
    };
    MEMALIGN.store(memalign, Ordering::Release);
    FREE.store(given, Ordering::Release);
    // `free` first, because a block of ours must never reach the C library.
    let is_done = rebind(c"libc10.so", c"free", free as *const c_void)
        && rebind(c"libc10.so", c"posix_memalign", posix_memalign as *const c_void);
    if is_done { 0 } else { -1 }
}

unsafe extern "C" fn posix_memalign(block: *mut *mut u8, alignment: usize, size: usize) -> c_int {
    if serves(size) {
        // SAFETY: torch passes a pointer that is valid for writing (posix_memalign(3)).
        return unsafe { crate::aligned_at(block, alignment, size) };
    }
    type Memalign = unsafe extern "C" fn(*mut *mut u8, usize, usize) -> c_int;
    // SAFETY: the program's function of this name has this type, and was stored before this one could be called.
    unsafe {
        std::mem::transmute::<*mut c_void, Memalign>(MEMALIGN.load(Ordering::Acquire))(block, alignment, size)
    }
}

unsafe extern "C" fn free(block: *mut u8) {
    if heap::may_own(block) {
        // SAFETY: a block of ours that its owner frees.
        unsafe { heap::free(block) };
        return;
    }
    let given = FREE.load(Ordering::Acquire);
    if given.is_null() {
        sys::abort();
    }
    // SAFETY: the program's function of this name has this type, and gets a block that is not ours.
    unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut u8)>(given)(block) }
}
