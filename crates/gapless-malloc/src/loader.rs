//! `dlclose`: tells the recorder, because another library may come to the addresses of the one that goes.

use crate::next::Next;
use gapless_host::heap;
use std::ffi::{c_int, c_void};

static NEXT: Next = Next::new(c"dlclose");

/// Called before the program begins.
pub(crate) fn prepare() {
    NEXT.get();
}

/// # Safety
/// `library` is a handle that `dlopen` returned (dlclose(3)).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlclose(library: *mut c_void) -> c_int {
    let next = NEXT.get();
    if next.is_null() {
        return 1;
    }
    // SAFETY: the C library's function of this name has this type.
    let close =
        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_void) -> c_int>(next) };
    // SAFETY: the C library gets the caller's handle (the caller's contract).
    let result = unsafe { close(library) };
    heap::modules_changed();
    result
}
