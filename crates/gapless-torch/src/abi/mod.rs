//! Every C function of the library: a guard around one call of a part, which takes and gives C's values. [`torch`] is
//! what PyTorch calls, [`package`] and the files beside it what the Python package calls, and [`programs`] is for other
//! programs.
//!
//! PyTorch may call its entries from any thread, with or without Python's lock. Only `C-unwind` entries unwind:
//! `gapless_alloc` throws PyTorch's own exception if there is no memory, and exceptions of its functions pass through.

pub mod elastic;
pub mod host;
pub mod package;
pub mod programs;
pub mod regions;
pub mod sharing;
pub mod torch;

use crate::guard::set_error;
use std::ffi::{CStr, c_char};

/// A copy of a text; `None` for null.
///
/// # Safety
/// `text` is null or a NUL-terminated string.
unsafe fn text_of(text: *const c_char) -> Option<String> {
    // SAFETY: not null, so `text` ends with NUL: the Python package passes bytes by ctypes.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
}

/// The value, or `failed` after the message is kept for `gapless_last_error`.
fn or_error<T>(done: Result<T, String>, failed: T) -> T {
    done.unwrap_or_else(|message| {
        set_error(&message);
        failed
    })
}

/// 0, or `failed` with a message in `gapless_last_error`.
fn code(done: Result<(), String>, failed: i32) -> i32 {
    or_error(done.map(|()| 0), failed)
}

/// Writes numbers to an array of C.
///
/// # Safety
/// `out` is valid for as many writes.
unsafe fn write_all(out: *mut u64, values: &[u64]) {
    // SAFETY: `out` has room for all values: the Python package passes an array of that many.
    unsafe { out.copy_from_nonoverlapping(values.as_ptr(), values.len()) };
}

/// Writes a NUL-terminated text if its length is less than `room`, and returns the length.
///
/// # Safety
/// `out` is null, or valid for `room` writes.
unsafe fn write_text(out: *mut c_char, room: usize, text: &str) -> usize {
    if text.len() < room && !out.is_null() {
        // SAFETY: `out` has `room` bytes (the caller's buffer), and the text and its NUL are no longer than that.
        unsafe {
            out.copy_from_nonoverlapping(text.as_ptr().cast(), text.len());
            out.add(text.len()).write(0);
        }
    }
    text.len()
}
