//! The C library's registration of handlers around a fork. Libraries register theirs in their constructors, some before
//! ours runs. Ours must be the first, so that it runs last before a fork and first after it: a handler that waits for
//! another thread, or holds a lock of its library, must not find the allocator's locks taken.

use crate::next::Next;
use gapless_host::heap;
use std::ffi::{c_int, c_void};

static NEXT: Next = Next::new(c"__register_atfork");

/// Called before the C library's own name leads here.
pub(crate) fn prepare() {
    NEXT.get();
    heap::prepare();
}

type Handler = Option<unsafe extern "C" fn()>;

/// The function that `pthread_atfork` calls.
///
/// # Safety
/// The handlers stay callable until `library`, the caller's `__dso_handle`, is unloaded (pthread_atfork(3)).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __register_atfork(
    prepare: Handler,
    parent: Handler,
    child: Handler,
    library: *mut c_void,
) -> c_int {
    // Registers our own handlers the first time, through this very function.
    heap::prepare();
    let next = NEXT.get();
    if next.is_null() {
        return libc::ENOMEM;
    }
    type Register = unsafe extern "C" fn(Handler, Handler, Handler, *mut c_void) -> c_int;
    // SAFETY: the C library's function of this name has this type, and gets the caller's handlers (the caller's
    // contract).
    unsafe { std::mem::transmute::<*mut c_void, Register>(next)(prepare, parent, child, library) }
}
