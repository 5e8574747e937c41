//! `pthread_create`: the new thread enters the allocator through its gate before the program's code runs in it.

use crate::next::Next;
use gapless_host::{core, heap};
use std::ffi::{c_int, c_void};

type Routine = extern "C-unwind" fn(*mut c_void) -> *mut c_void;
type Create =
    unsafe extern "C" fn(*mut libc::pthread_t, *const libc::pthread_attr_t, Routine, *mut c_void) -> c_int;

static NEXT: Next = Next::new(c"pthread_create");

/// Before the program begins.
pub(crate) fn prepare() {
    NEXT.get();
}

struct Start {
    routine: Routine,
    argument: *mut c_void,
}

/// Ends of threads (`pthread_exit`, cancellation) pass through here as they pass through C.
extern "C-unwind" fn begin(start: *mut c_void) -> *mut c_void {
    let start: *mut Start = start.cast();
    core::thread_begins();
    // SAFETY: `pthread_create` below made it for this thread alone.
    let Start { routine, argument } = unsafe { start.read() };
    // SAFETY: as above, and nobody reads it again.
    unsafe { heap::free(start.cast()) };
    routine(argument)
}

/// # Safety
/// As pthread_create(3) says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_create(
    thread: *mut libc::pthread_t,
    attributes: *const libc::pthread_attr_t,
    routine: Routine,
    argument: *mut c_void,
) -> c_int {
    let next = NEXT.get();
    let start: *mut Start = heap::allocate(size_of::<Start>()).cast();
    if next.is_null() || start.is_null() {
        return libc::EAGAIN;
    }
    // SAFETY: a new block of this size, aligned for pointers.
    unsafe { start.write(Start { routine, argument }) };
    // SAFETY: the C library's own function of this name.
    let create = unsafe { std::mem::transmute::<*mut c_void, Create>(next) };
    // SAFETY: as the caller says; `begin` takes what it is given.
    let result = unsafe { create(thread, attributes, begin, start.cast()) };
    if result != 0 {
        // SAFETY: no thread was made that would free it.
        unsafe { heap::free(start.cast()) };
    }
    result
}
