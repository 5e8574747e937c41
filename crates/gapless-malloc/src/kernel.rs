//! Calls by which a program changes what the allocator may do, or the access rights of its pages. The allocator is told
//! of each, and each goes on to the kernel unchanged.

use gapless_host::{core, helper_thread, sys};
use std::ffi::{c_int, c_uint, c_ulong};

/// Stops the helper first, because the kernel refuses some namespaces to a process with two threads.
///
/// # Safety
/// None beyond those of unshare(2): `flags` is a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unshare(flags: c_int) -> c_int {
    // SAFETY: takes only a number.
    helper_thread::without(|| unsafe { libc::syscall(libc::SYS_unshare, flags) as c_int })
}

/// # Safety
/// None beyond those of setns(2): both are numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn setns(file: c_int, kind: c_int) -> c_int {
    // SAFETY: takes only numbers.
    helper_thread::without(|| unsafe { libc::syscall(libc::SYS_setns, file, kind) as c_int })
}

/// A program that gives up its right to more privileges, or sets a filter of system calls, may be ended by the kernel
/// for calls that it does not expect of itself. The C library's `prctl` takes four numbers after the first.
///
/// # Safety
/// The arguments are valid for `option`, by prctl(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn prctl(option: c_int, a: c_ulong, b: c_ulong, c: c_ulong, d: c_ulong) -> c_int {
    if matches!(option, libc::PR_SET_SECCOMP | libc::PR_SET_NO_NEW_PRIVS) {
        core::confine();
    }
    // SAFETY: the kernel gets the caller's arguments unchanged, which are valid for `option` (the caller's contract).
    unsafe { libc::syscall(libc::SYS_prctl, option, a, b, c, d) as c_int }
}

/// Notes that a program takes rights from pages of a block, because its next owner must get them back.
///
/// # Safety
/// The program may change the rights of these pages, by mprotect(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mprotect(start: *mut u8, bytes: usize, rights: c_int) -> c_int {
    if rights & libc::PROT_WRITE == 0 {
        core::pages_protected(start);
    }
    sys::protect(start, bytes, rights)
}

/// Tells the allocator of a limit on addresses, which counts what the allocator has reserved. Called after the kernel
/// accepted the limit, because one that it refused changes nothing.
fn limits(what: c_uint, limit: *const libc::rlimit) {
    if matches!(what, libc::RLIMIT_AS | libc::RLIMIT_DATA)
        // SAFETY: `limit` is null or valid (setrlimit(2), prlimit(2)): the kernel has accepted it.
        && let Some(limit) = unsafe { limit.as_ref() }
        && limit.rlim_cur != libc::RLIM_INFINITY
    {
        sys::keep_errno(|| core::tighten(usize::try_from(limit.rlim_cur).unwrap_or(usize::MAX)));
    }
}

/// # Safety
/// `limit` is valid for reading, by setrlimit(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn setrlimit(what: c_uint, limit: *const libc::rlimit) -> c_int {
    // SAFETY: the kernel gets the caller's pointer, which is valid for reading (the caller's contract).
    let result = unsafe {
        libc::syscall(libc::SYS_prlimit64, 0, what, limit, std::ptr::null::<libc::rlimit>()) as c_int
    };
    if result == 0 {
        limits(what, limit);
    }
    result
}

/// # Safety
/// `limit` is valid for reading, by setrlimit(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn setrlimit64(what: c_uint, limit: *const libc::rlimit) -> c_int {
    // SAFETY: `limit` is valid for reading (the caller's contract).
    unsafe { setrlimit(what, limit) }
}

/// # Safety
/// `new` is null or valid for reading, and `old` null or valid for writing, by prlimit(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn prlimit(
    pid: libc::pid_t,
    what: c_uint,
    new: *const libc::rlimit,
    old: *mut libc::rlimit,
) -> c_int {
    // SAFETY: the kernel gets the caller's pointers, which are null or valid (the caller's contract).
    let result = unsafe { libc::syscall(libc::SYS_prlimit64, pid, what, new, old) as c_int };
    if result == 0 && (pid == 0 || pid.unsigned_abs() == sys::pid()) {
        limits(what, new);
    }
    result
}

/// # Safety
/// As for [`prlimit`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn prlimit64(
    pid: libc::pid_t,
    what: c_uint,
    new: *const libc::rlimit,
    old: *mut libc::rlimit,
) -> c_int {
    // SAFETY: the pointers are null or valid (the caller's contract).
    unsafe { prlimit(pid, what, new, old) }
}

/// Tightens the allocator first, because all locked memory becomes resident, also tables for unused addresses.
///
/// # Safety
/// None beyond those of mlockall(2): `flags` is a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlockall(flags: c_int) -> c_int {
    core::tighten(sys::memory());
    // SAFETY: takes only a number.
    unsafe { libc::syscall(libc::SYS_mlockall, flags) as c_int }
}
