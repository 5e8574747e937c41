//! Functions of the C++ library, and the types of pointers that C++ code hands over.

use crate::guard::check;
use std::ffi::c_void;

/// Functions by their types. `operator new`.
pub(crate) type New = unsafe extern "C-unwind" fn(usize) -> *mut c_void;
/// Copies or destroys the callable of a `std::function`.
pub(crate) type Manager = unsafe extern "C-unwind" fn(*mut c_void, *const c_void, i32) -> bool;
/// Calls it. Its true type depends on the function's.
pub(crate) type Invoker = unsafe extern "C-unwind" fn();
/// Frees the memory of a tensor. It is ours; PyTorch calls it.
pub type Deleter = unsafe extern "C-unwind" fn(*mut c_void);
/// `__cxa_throw`.
pub(crate) type Throw = unsafe extern "C-unwind" fn(*mut c_void, *const c_void, *const c_void) -> !;

/// Memory that C++ frees.
///
/// # Safety
/// As [`Filter::accepts`](super::Filter::accepts); `new` is `operator new`.
pub(crate) unsafe fn new_bytes(new: New, size: usize) -> *mut u8 {
    check("operator new");
    // SAFETY: `new` is `operator new`, which takes any size and throws if there is no memory.
    unsafe { new(size).cast() }
}

/// Copies the callable of a `std::function` that has `manager`.
///
/// # Safety
/// As [`Filter::accepts`](super::Filter::accepts); `from` is the callable of a live function with that manager, and
/// `to` has room for one.
pub(crate) unsafe fn copy_callable(manager: Manager, to: *mut c_void, from: *const c_void) {
    const COPY: i32 = 2;
    check("the copy of a function");
    // SAFETY: the manager is that of `from`, which is live, and `to` has room for a callable.
    unsafe { manager(to, from, COPY) };
}

/// Destroys a callable. Destructors do not throw, so this may be called anywhere.
///
/// # Safety
/// `callable` is live, has this manager and is not used afterwards.
pub(crate) unsafe fn destroy_callable(manager: Manager, callable: *mut c_void) {
    const DESTROY: i32 = 3;
    // SAFETY: the manager is that of `callable`, which is live; its owner does not use it any more.
    unsafe { manager(callable, callable, DESTROY) };
}

/// Throws a C++ exception.
///
/// # Safety
/// As [`Filter::accepts`](super::Filter::accepts); `throw` is `__cxa_throw`, and the others its arguments: exception,
/// type and destructor.
pub(crate) unsafe fn throw(
    throw: Throw,
    object: *mut c_void,
    kind: *const c_void,
    destructor: *const c_void,
) -> ! {
    check("a throw");
    // SAFETY: `throw` is `__cxa_throw`, and `exception` built the object, its type and its destructor for it.
    unsafe { throw(object, kind, destructor) }
}
