//! Pinned host memory and figures of a card, for the Python package.

use super::{or_error, write_all};
use crate::guard::guarded;
use crate::{cards, offload, pinned, process, stats};
use gapless_pool::host::HostStats;
use std::ffi::c_void;

/// Pinned host memory for `size` bytes; the pool holds at most `limit` bytes if that is not 0. A new pool uses the
/// context of card `device`. Null with a message in `gapless_last_error` if there is none.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_host_alloc(device: i32, size: u64, limit: u64) -> *mut c_void {
    let inside = Err("the host pool failed inside; please report it".to_owned());
    or_error(guarded(inside, || offload::alloc(device, size, limit)), 0) as *mut c_void
}

/// Frees a block that no copy uses any more. 0, or -1 if there is no such block.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_host_free(pointer: *mut c_void) -> i32 {
    guarded(-1, || if offload::free(pointer as u64) { 0 } else { -1 })
}

/// Unpins memory that is not in use, and returns its bytes.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_host_trim() -> u64 {
    if process::is_forked() {
        return 0;
    }
    guarded(0, offload::trim)
}

/// Writes the host pool's figures: live, allocated, reserved, peak allocated, peak reserved (bytes), slabs.
///
/// # Safety
/// `out` is valid for six writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_host_stats(out: *mut u64) {
    let none = HostStats::default();
    let stats = if process::is_forked() { none } else { guarded(none, offload::stats) };
    let HostStats { live, allocated, reserved, peak_allocated, peak_reserved, slabs } = stats;
    // SAFETY: the Python package passes an array of six numbers.
    unsafe { write_all(out, &[live, allocated, reserved, peak_allocated, peak_reserved, slabs]) };
}

/// A tensor gives up a block of `gapless_host_alloc`. The block is free once the work that is queued now is done.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_pinned_free(device: i32, pointer: *mut c_void) {
    if !process::is_forked() {
        guarded((), || pinned::give_up(device, pointer as u64));
    }
}

/// Frees the blocks that can be used again. Returns the number of those that still wait.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_pinned_look() -> usize {
    if process::is_forked() {
        return 0;
    }
    guarded(0, pinned::still_waiting)
}

/// Writes a card's figures: active and reserved bytes, and the limit (0: none). If `is_new` is not 0, also the most
/// that was active since the last such call, and the stranded bytes. 0, or -1 if the card was not used yet.
///
/// # Safety
/// `out` is valid for five writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_usage(device: i32, is_new: i32, out: *mut u64) -> i32 {
    let found = guarded(None, || {
        let mut card = cards::existing(device)?;
        Some(stats::usage(&mut card, is_new != 0))
    });
    let Some(values) = found else { return -1 };
    // SAFETY: the Python package passes an array of five numbers.
    unsafe { write_all(out, &values) };
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_driver_there_is_an_error_and_nothing_else() {
        // On a machine with a driver the calls give memory. The test accepts both.
        let at = gapless_host_alloc(0, 1 << 20, 0);
        if at.is_null() {
            assert_eq!(gapless_host_free(8 as *mut c_void), -1);
            assert_eq!(gapless_host_trim(), 0);
        } else {
            assert_eq!((gapless_host_free(at), gapless_host_free(at)), (0, -1));
            assert!(gapless_host_trim() > 0);
        }
        let mut stats = [9; 6];
        // SAFETY: room for six numbers.
        unsafe { gapless_host_stats(stats.as_mut_ptr()) };
        assert_eq!(stats[0], 0);
        // SAFETY: room for five numbers.
        assert_eq!(unsafe { gapless_usage(63, 1, stats.as_mut_ptr()) }, -1);
    }
}
