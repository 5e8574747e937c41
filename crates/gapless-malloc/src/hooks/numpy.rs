//! numpy's data: the functions in its default handler are replaced. A handler that is set the usual way
//! (`PyDataMem_SetHandler`) holds for one context only, and threads begin with an empty one.

use super::serves;
use gapless_host::heap;
use std::ffi::{c_int, c_void};
use std::sync::OnceLock;

/// As in numpy's headers since 1.22: the second half of `PyDataMem_Handler`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Allocator {
    context: *mut c_void,
    malloc: unsafe extern "C" fn(*mut c_void, usize) -> *mut u8,
    calloc: unsafe extern "C" fn(*mut c_void, usize, usize) -> *mut u8,
    realloc: unsafe extern "C" fn(*mut c_void, *mut u8, usize) -> *mut u8,
    free: unsafe extern "C" fn(*mut c_void, *mut u8, usize),
}

// SAFETY: functions and a context that any thread may use, because numpy calls them from all of its threads.
unsafe impl Send for Allocator {}
// SAFETY: the same holds for shared references.
unsafe impl Sync for Allocator {}

/// The previous functions.
static BEFORE: OnceLock<Allocator> = OnceLock::new();

/// Replaces the functions of a handler. Returns 0 if that is done, now or before.
///
/// # Safety
/// `handler` is the allocator in numpy's default handler, is writable, and no other thread changes it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_host_hook_numpy(handler: *mut Allocator) -> c_int {
    // SAFETY: `handler` is valid, and no other thread changes it (the caller's contract).
    let now = unsafe { handler.read() };
    if std::ptr::fn_addr_eq(now.malloc, malloc as unsafe extern "C" fn(*mut c_void, usize) -> *mut u8) {
        return 0;
    }
    if BEFORE.set(now).is_err() {
        return -1;
    }
    // SAFETY: `handler` is writable, and no other thread changes it (the caller's contract); the functions are never
    // unloaded.
    unsafe { handler.write(Allocator { context: now.context, malloc, calloc, realloc, free }) };
    0
}

/// The previous handler. The functions below are called only after `gapless_host_hook_numpy` has stored it.
fn before() -> &'static Allocator {
    BEFORE.get().unwrap_or_else(|| gapless_host::sys::abort())
}

unsafe extern "C" fn malloc(_: *mut c_void, size: usize) -> *mut u8 {
    if serves(size) {
        return heap::allocate(size);
    }
    // SAFETY: numpy's own function, with its own context.
    unsafe { (before().malloc)(before().context, size) }
}

unsafe extern "C" fn calloc(_: *mut c_void, count: usize, size: usize) -> *mut u8 {
    match count.checked_mul(size) {
        Some(bytes) if serves(bytes) => heap::allocate_zeroed(bytes),
        // SAFETY: numpy's own function, with its own context.
        _ => unsafe { (before().calloc)(before().context, count, size) },
    }
}

unsafe extern "C" fn realloc(_: *mut c_void, block: *mut u8, size: usize) -> *mut u8 {
    if heap::may_own(block) {
        // SAFETY: a block of ours, which numpy has not freed.
        return unsafe { heap::reallocate(block, size.max(1)) };
    }
    // SAFETY: numpy's own function, with its own context and a block that is not ours.
    unsafe { (before().realloc)(before().context, block, size) }
}

unsafe extern "C" fn free(_: *mut c_void, block: *mut u8, size: usize) {
    // SAFETY: numpy passes a block that it has not freed: one of ours, or one of its own function.
    unsafe {
        if heap::may_own(block) {
            heap::free(block);
        } else {
            (before().free)(before().context, block, size);
        }
    }
}
