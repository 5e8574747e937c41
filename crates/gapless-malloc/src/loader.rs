//! `dlclose`: the recorder hears of it, because another library may come to the addresses of the one that goes.

use crate::next::Next;
use gapless_host::heap;
use std::ffi::{c_int, c_void};

static NEXT: Next = Next::new(c"dlclose");

/// Before the program begins.
pub(crate) fn prepare() {
    NEXT.get();
}

/// # Safety
/// As dlclose(3) says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlclose(library: *mut c_void) -> c_int {
    let next = NEXT.get();
    if next.is_null() {
        return 1;
    }
    // SAFETY: the C library's own function of this name.
    let close =
        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_void) -> c_int>(next) };
    // SAFETY: as the caller says.
    let result = unsafe { close(library) };
    heap::modules_changed();
    result
}
