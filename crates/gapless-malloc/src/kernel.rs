//! Calls by which a program changes what the allocator may do, or what its pages allow. The allocator hears of each,
//! and each goes on to the kernel as it came.

use gapless_host::{core, helper, sys};
use std::ffi::{c_int, c_uint, c_ulong};

/// The kernel refuses some namespaces to a process with two threads: the helper ends before.
///
/// # Safety
/// As unshare(2) says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unshare(flags: c_int) -> c_int {
    // SAFETY: takes a number only.
    helper::without(|| unsafe { libc::syscall(libc::SYS_unshare, flags) as c_int })
}

/// # Safety
/// As setns(2) says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn setns(file: c_int, kind: c_int) -> c_int {
    // SAFETY: takes numbers only.
    helper::without(|| unsafe { libc::syscall(libc::SYS_setns, file, kind) as c_int })
}

/// A program that gives up its right to more privileges, or sets a filter of system calls, may be ended by the kernel
/// for calls that it does not expect of itself. The C library's `prctl` takes four numbers behind the first.
///
/// # Safety
/// As prctl(2) says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn prctl(option: c_int, a: c_ulong, b: c_ulong, c: c_ulong, d: c_ulong) -> c_int {
    if matches!(option, libc::PR_SET_SECCOMP | libc::PR_SET_NO_NEW_PRIVS) {
        core::confine();
    }
    // SAFETY: as the caller says.
    unsafe { libc::syscall(libc::SYS_prctl, option, a, b, c, d) as c_int }
}

/// Who protects pages of a block and frees it does not mean those who get the memory next.
///
/// # Safety
/// As mprotect(2) says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mprotect(start: *mut u8, bytes: usize, rights: c_int) -> c_int {
    if rights & libc::PROT_WRITE == 0 {
        core::pages_protected(start);
    }
    sys::protect(start, bytes, rights)
}

/// A limit of addresses counts what the allocator has reserved. Called when the kernel took the limit: one that it
/// refused changes nothing.
fn limits(what: c_uint, limit: *const libc::rlimit) {
    if matches!(what, libc::RLIMIT_AS | libc::RLIMIT_DATA)
        // SAFETY: null or valid, as the caller of each function below says.
        && let Some(limit) = unsafe { limit.as_ref() }
        && limit.rlim_cur != libc::RLIM_INFINITY
    {
        sys::keep_errno(|| core::tighten(usize::try_from(limit.rlim_cur).unwrap_or(usize::MAX)));
    }
}

/// # Safety
/// As setrlimit(2) says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn setrlimit(what: c_uint, limit: *const libc::rlimit) -> c_int {
    // SAFETY: as the caller says.
    let result = unsafe {
        libc::syscall(libc::SYS_prlimit64, 0, what, limit, std::ptr::null::<libc::rlimit>()) as c_int
    };
    if result == 0 {
        limits(what, limit);
    }
    result
}

/// # Safety
/// As setrlimit(2) says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn setrlimit64(what: c_uint, limit: *const libc::rlimit) -> c_int {
    // SAFETY: as the caller says.
    unsafe { setrlimit(what, limit) }
}

/// # Safety
/// As prlimit(2) says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn prlimit(
    pid: libc::pid_t,
    what: c_uint,
    new: *const libc::rlimit,
    old: *mut libc::rlimit,
) -> c_int {
    // SAFETY: as the caller says.
    let result = unsafe { libc::syscall(libc::SYS_prlimit64, pid, what, new, old) as c_int };
    if result == 0 && (pid == 0 || pid.unsigned_abs() == sys::pid()) {
        limits(what, new);
    }
    result
}

/// # Safety
/// As prlimit(2) says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn prlimit64(
    pid: libc::pid_t,
    what: c_uint,
    new: *const libc::rlimit,
    old: *mut libc::rlimit,
) -> c_int {
    // SAFETY: as the caller says.
    unsafe { prlimit(pid, what, new, old) }
}

/// What is locked becomes resident, tables for addresses that nobody uses too.
///
/// # Safety
/// As mlockall(2) says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlockall(flags: c_int) -> c_int {
    core::tighten(sys::memory());
    // SAFETY: takes a number only.
    unsafe { libc::syscall(libc::SYS_mlockall, flags) as c_int }
}
