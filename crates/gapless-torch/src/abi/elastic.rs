//! Elastic tensors, for the Python package.

use super::{or_error, write_all};
use crate::elastic::pools::{self, Refused};
use crate::elastic::{open, reserve};
use crate::guard::{guarded, set_error};
use crate::process;
use crate::tensors::ManagedTensor;
use std::time::Duration;

fn inside() -> String {
    "the elastic pool failed inside; please report it".to_owned()
}

/// Makes a pool of pages of `page` bytes, with at most `limit` bytes if that is not 0. Returns its number, or -1 with a
/// message in `gapless_last_error`.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_elastic_pool(device: i32, page: u64, limit: u64) -> i64 {
    or_error(guarded(Err(inside()), || open(device, page, limit)), -1)
}

/// Closes a pool: its pages go back once its tensors are gone.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_elastic_close(number: i64) {
    if !process::is_forked() {
        guarded((), || pools::close(number));
    }
}

/// Reserves addresses for `slots` pages, as a tensor of bytes in `out`. Returns the number of the range, or -1 with a
/// message in `gapless_last_error`.
///
/// # Safety
/// `out` is valid for one write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_elastic_new(pool: i64, slots: u64, out: *mut *mut ManagedTensor) -> i64 {
    match guarded(Err(inside()), || reserve(pool, slots)) {
        Ok((range, tensor)) => {
            // SAFETY: the Python package passes a place for one pointer.
            unsafe { out.write(tensor) };
            i64::from(range)
        }
        Err(message) => {
            set_error(&message);
            -1
        }
    }
}

/// Says which slots of a range are wanted (`yes` pairs) and which may be mapped ahead (`ahead` pairs after them). Waits
/// for the former if `waits` is not 0. 0; 1: there is no memory; -1: something else failed. Both leave a message in
/// `gapless_last_error`.
///
/// # Safety
/// `pairs` is valid for `yes + ahead` reads of two numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_elastic_want(
    pool: i64,
    range: u32,
    pairs: *const [u64; 2],
    yes: usize,
    ahead: usize,
    waits: i32,
) -> i32 {
    // SAFETY: the Python package passes an array of `yes + ahead` pairs, which lives until this call returns.
    let pairs = unsafe { std::slice::from_raw_parts(pairs, yes + ahead) };
    let pairs: Vec<(usize, usize)> = pairs.iter().map(|&[from, to]| (from as usize, to as usize)).collect();
    let done = guarded(Err(Refused::Other(inside())), || {
        pools::want(pool, range, &pairs[..yes], &pairs[yes..], waits != 0)
    });
    let (code, message) = match done {
        Ok(()) => return 0,
        Err(Refused::OutOfMemory(message)) => (1, message),
        Err(Refused::Other(message)) => (-1, message),
    };
    set_error(&message);
    code
}

/// Gives the free pages of a pool back to the card, behind work in flight, and waits for that at most `wait` ms.
/// Returns the bytes that the pool gave back.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_elastic_trim(number: i64, wait: u64) -> u64 {
    guarded(0, || pools::trim(number, Duration::from_millis(wait)))
}

/// Writes the figures of a pool in bytes: held, wanted by tensors, mapped ahead or still to be unmapped, free, the
/// limit (0: none). 0, or -1 if there is no such pool.
///
/// # Safety
/// `out` is valid for five writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_elastic_stats(number: i64, out: *mut u64) -> i32 {
    let Some(values) = guarded(None, || pools::stats(number)) else { return -1 };
    // SAFETY: the Python package passes an array of five numbers.
    unsafe { write_all(out, &values) };
    0
}

/// Writes the bytes that the elastic pools of a card hold, and the part of them that no tensor wants.
///
/// # Safety
/// `out` is valid for two writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_elastic_held(device: i32, out: *mut u64) {
    let (held, spare) =
        if process::is_forked() { (0, 0) } else { guarded((0, 0), || pools::figures(device)) };
    // SAFETY: the Python package passes an array of two numbers.
    unsafe { write_all(out, &[held, spare]) };
}
