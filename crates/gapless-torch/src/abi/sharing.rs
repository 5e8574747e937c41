//! Shared weights, for the Python package.

use super::{code, or_error, text_of, write_all};
use crate::guard::{guarded, set_error};
use crate::sharing::passing;
use crate::sharing::weights::{self, Refused};
use crate::tensors::ManagedTensor;
use std::ffi::c_char;

fn inside() -> String {
    "sharing failed inside; please report it".to_owned()
}

/// Offers `count` storages, each an address and a size, with a text about them, under `name` if that is not null.
/// Writes the handle, NUL-terminated, to `out`. 0; or -1 with a message in `gapless_last_error`, and in `which` the
/// number of the storage that it is about, or `count`.
///
/// # Safety
/// `storages` is valid for `2 * count` reads, `text` for `length`; `out` for `room` writes, `which` for one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_share(
    device: i32,
    storages: *const [u64; 2],
    count: usize,
    text: *const u8,
    length: usize,
    name: *const c_char,
    out: *mut u8,
    room: usize,
    which: *mut usize,
) -> i32 {
    // SAFETY: the Python package passes an array of `count` pairs, `length` bytes of text, and a name that is null or
    // ends with NUL. All of them live until this call returns.
    let (storages, text, name) = unsafe {
        (std::slice::from_raw_parts(storages, count), std::slice::from_raw_parts(text, length), text_of(name))
    };
    let storages: Vec<(u64, u64)> = storages.iter().map(|&[addr, size]| (addr, size)).collect();
    let shared =
        guarded(Err(Refused::from(inside())), || weights::share(device, &storages, text, name.as_deref()));
    let refused = match shared {
        Ok(handle) if handle.len() < room => {
            // SAFETY: the Python package passes a buffer of `room` bytes, which is more than the handle has.
            unsafe {
                out.copy_from_nonoverlapping(handle.as_ptr(), handle.len());
                out.add(handle.len()).write(0);
            }
            return 0;
        }
        Ok(_) => Refused::from("there is no room for the handle".to_owned()),
        Err(refused) => refused,
    };
    set_error(&refused.why);
    // SAFETY: the Python package passes a place for one number.
    unsafe { which.write(refused.at.unwrap_or(count)) };
    -1
}

/// Ends an offer. 0, or -1 with a message in `gapless_last_error`.
///
/// # Safety
/// `handle` is a NUL-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_unshare(handle: *const c_char) -> i32 {
    // SAFETY: the Python package passes `handle` as bytes; ctypes ends them with NUL.
    let handle = unsafe { text_of(handle) }.unwrap_or_default();
    code(guarded(Err(inside()), || weights::unshare(&handle)), -1)
}

/// Asks for an offer, for the card `device`. Returns its number here, or -1 with a message in `gapless_last_error`.
///
/// # Safety
/// `handle` is a NUL-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_attach_ask(device: i32, handle: *const c_char) -> i64 {
    // SAFETY: the Python package passes `handle` as bytes; ctypes ends them with NUL.
    let handle = unsafe { text_of(handle) }.unwrap_or_default();
    or_error(guarded(Err(inside()), || weights::ask(device, &handle)).map(weights::keep_asked), -1)
}

/// Writes the text of an offer if there is room for it, and returns its length. 0 if there is no such offer.
///
/// # Safety
/// `out` is valid for `room` writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_attach_text(asked: i64, out: *mut u8, room: usize) -> usize {
    guarded(0, || {
        weights::with_asked(asked, |asked| {
            let text = asked.text();
            if text.len() <= room {
                // SAFETY: the Python package passes a buffer of `room` bytes, and the text is no longer than that.
                unsafe { out.copy_from_nonoverlapping(text.as_ptr(), text.len()) };
            }
            text.len()
        })
        .unwrap_or(0)
    })
}

/// Number of storages of an offer, by the number that `gapless_attach_ask` gave; 0 if there is no such offer.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_attach_count(asked: i64) -> usize {
    guarded(0, || weights::with_asked(asked, weights::Asked::count).unwrap_or(0))
}

/// Maps an offer and forgets it here. Writes a tensor of bytes for each storage; together they keep the mapping. 0, or
/// -1 with a message in `gapless_last_error` and nothing mapped.
///
/// # Safety
/// `out` is valid for as many writes as `gapless_attach_count` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_attach_map(asked: i64, out: *mut *mut ManagedTensor) -> i32 {
    let mapped = guarded(Err(inside()), || weights::attach_asked(asked)).map(|tensors| {
        for (at, tensor) in tensors.into_iter().enumerate() {
            // SAFETY: the Python package passes an array with a place for each of `gapless_attach_count` tensors.
            unsafe { out.add(at).write(tensor) };
        }
    });
    code(mapped, -1)
}

/// Gives up an offer that was asked for and not mapped.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_attach_end(asked: i64) {
    guarded((), || drop(weights::take_asked(asked)));
}

/// Writes the bytes of other processes' pages that this process has mapped, and of its own pages that it offers.
///
/// # Safety
/// `out` is valid for two writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_shared_bytes(out: *mut u64) {
    let (attached, offered) = weights::figures();
    // SAFETY: the Python package passes an array of two numbers.
    unsafe { write_all(out, &[attached, offered]) };
}

/// Copies `size` bytes from the host to the card's address `addr`, and returns when they are there. 0, or -1 with a
/// message in `gapless_last_error`.
///
/// # Safety
/// `from` is valid for `size` reads.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_upload(device: i32, addr: u64, from: *const u8, size: u64) -> i32 {
    let done = guarded(Err(inside()), || {
        // SAFETY: the Python package passes a buffer of `size` bytes, which lives until this call returns.
        weights::upload(device, addr, unsafe { std::slice::from_raw_parts(from, size as usize) })
    });
    code(done, -1)
}

/// Number of attempts to accept a reader, for tests.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_sharing_accepts() -> u64 {
    passing::accepts()
}
