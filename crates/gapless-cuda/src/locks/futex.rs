//! Waits in the kernel until a word changes. A signal ends a wait early, so callers check the word again.

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

/// Sleeps while the word is `expected`, for at most `most`.
pub(super) fn wait(word: &AtomicU32, expected: u32, most: Option<Duration>) {
    let time = most.map(|most| Time {
        seconds: most.as_secs().min(1 << 40) as i64,
        nanoseconds: i64::from(most.subsec_nanos()),
    });
    let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the word is valid during the call, and `time` is null or valid.
    unsafe { syscall(FUTEX, word.as_ptr(), WAIT_PRIVATE, expected, time) };
}

/// Wakes at most `count` waiting threads.
pub(super) fn wake(word: &AtomicU32, count: i32) {
    // SAFETY: the kernel uses only the word's address.
    unsafe { syscall(FUTEX, word.as_ptr(), WAKE_PRIVATE, count) };
}
