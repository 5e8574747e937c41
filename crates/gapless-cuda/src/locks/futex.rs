//! Waiting in the kernel for a word to change. Signals end a wait early: callers look again.

use std::sync::atomic::AtomicU32;
use std::time::Duration;

unsafe extern "C" {
    fn syscall(number: i64, ...) -> i64;
}

#[cfg(target_arch = "x86_64")]
const FUTEX: i64 = 202;
#[cfg(not(target_arch = "x86_64"))]
const FUTEX: i64 = 98;
const WAIT_PRIVATE: i32 = 128;
const WAKE_PRIVATE: i32 = 129;

/// `struct timespec` of 64-bit Linux.
#[repr(C)]
struct Time {
    seconds: i64,
    nanoseconds: i64,
}

/// Sleeps while the word is `expected`, not longer than `most`.
pub(super) fn wait(word: &AtomicU32, expected: u32, most: Option<Duration>) {
    let time = most.map(|most| Time {
        seconds: most.as_secs().min(1 << 40) as i64,
        nanoseconds: i64::from(most.subsec_nanos()),
    });
    let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the word is valid for the call, and so is the time where there is one.
    unsafe { syscall(FUTEX, word.as_ptr(), WAIT_PRIVATE, expected, time) };
}

/// Wakes so many of those who wait.
pub(super) fn wake(word: &AtomicU32, count: i32) {
    // SAFETY: the address of the word alone is used.
    unsafe { syscall(FUTEX, word.as_ptr(), WAKE_PRIVATE, count) };
}
