//! Regions, for the Python package.

use super::{text_of, write_text};
use crate::guard::{guarded, set_error};
use crate::history;
use crate::process;
use crate::regions::{
    self, Decode, Encode, Failure, Keep, Moved, close, forget_kept, kept_at, open, prepare, read_kept,
    retain, set_codec, show_files_in, sleep, switch, wake,
};
use std::ffi::c_char;

/// The [`Keep`] of a code. Codes are in the order of Python's names.
fn keep_of(code: i32) -> Option<Keep> {
    [Keep::Host, Keep::Discard, Keep::Disk, Keep::Compressed].get(usize::try_from(code).ok()?).copied()
}

/// Opens a region, to which requests go from now on; a null `name` opens a scope outside of all regions. Returns a
/// number to close it by, or -1 with a message in `gapless_last_error`.
///
/// # Safety
/// `name` is null, or a NUL-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_region_open(name: *const c_char, keep: i32) -> i64 {
    if process::is_forked() {
        return 0;
    }
    guarded(-1, || {
        // SAFETY: `name` is null or ends with NUL: the Python package passes None or bytes by ctypes.
        let name = unsafe { text_of(name) };
        let opened = keep_of(keep).ok_or_else(|| format!("invalid keep {keep}: write 0, 1, 2 or 3"));
        opened.and_then(|keep| open(name.as_deref(), keep)).unwrap_or_else(|error| {
            set_error(&error);
            -1
        })
    })
}

/// Sets the codec of regions with [`Keep::Compressed`]. Only the first call counts.
///
/// # Safety
/// Both functions keep to their types' descriptions as long as the process lives, and do not unwind.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_region_codec(encode: Option<Encode>, decode: Option<Decode>) {
    if let (Some(encode), Some(decode)) = (encode, decode) {
        // SAFETY: both are functions of the library of weights, which stays loaded, and do not unwind.
        unsafe { set_codec(encode, decode) };
    }
}

/// Closes a scope: its region gets no more requests by it.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_region_close(token: i64) {
    if !process::is_forked() {
        guarded((), || close(token));
    }
}

/// Keeps the message of a failure and returns its code: 0 for none, 1 for out of memory, 2 if PyTorch must first tell
/// trackers something, -1 for everything else.
fn code_of(done: Result<(), Failure>) -> i32 {
    match done {
        Ok(()) => 0,
        Err(Failure::OutOfMemory(text)) => {
            set_error(&text);
            1
        }
        Err(Failure::Untold) => 2,
        Err(Failure::Other(text)) => {
            set_error(&text);
            -1
        }
    }
}

/// # Safety
/// `out` is valid for two writes from `at` on.
unsafe fn tell(out: *mut u64, at: usize, moved: Moved) {
    // SAFETY: `out` has two numbers from `at` on: the Python package passes an array of two, or of four for a switch.
    unsafe {
        out.add(at).write(moved.copied);
        out.add(at + 1).write(moved.pages);
    }
}

/// Puts a region to sleep. 0, 2, or -1 with a message in `gapless_last_error`. `out` gets the bytes that were kept, and
/// the bytes that the card got back. 2: trackers (NCCL) must hear first that memory goes. PyTorch tells them with its
/// next question about a memory fraction; then the package calls this again.
///
/// # Safety
/// `name` is a NUL-terminated string, `out` is valid for two writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_region_sleep(name: *const c_char, verify: i32, out: *mut u64) -> i32 {
    // SAFETY: the Python package passes `name` as bytes; ctypes ends them with NUL.
    let name = unsafe { text_of(name) }.unwrap_or_default();
    code_of(in_this_process(|| sleep(&name, verify != 0)).map(|moved| {
        // SAFETY: the Python package passes an array of two numbers.
        unsafe { tell(out, 0, moved) };
    }))
}

/// Wakes a region. 0, 1 if the card has no memory for it, or -1. `out` gets the bytes that were copied back, and the
/// bytes that the region holds.
///
/// # Safety
/// As [`gapless_region_sleep`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_region_wake(name: *const c_char, out: *mut u64) -> i32 {
    // SAFETY: the Python package passes `name` as bytes; ctypes ends them with NUL.
    let name = unsafe { text_of(name) }.unwrap_or_default();
    code_of(in_this_process(|| wake(&name)).map(|moved| {
        // SAFETY: the Python package passes an array of two numbers.
        unsafe { tell(out, 0, moved) };
    }))
}

/// Puts one region to sleep and wakes another. Codes as of both; `out` gets the numbers of both.
///
/// # Safety
/// Both names are NUL-terminated strings, `out` is valid for four writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_region_switch(
    falling: *const c_char,
    waking: *const c_char,
    verify: i32,
    out: *mut u64,
) -> i32 {
    // SAFETY: the Python package passes both names as bytes; ctypes ends them with NUL.
    let names = unsafe { (text_of(falling).unwrap_or_default(), text_of(waking).unwrap_or_default()) };
    code_of(in_this_process(|| switch(&names.0, &names.1, verify != 0)).map(|(slept, woke)| {
        // SAFETY: the Python package passes an array of four numbers.
        unsafe {
            tell(out, 0, slept);
            tell(out, 2, woke);
        }
    }))
}

/// 1 if trackers have not heard of all memory that came or went. PyTorch tells them with its next question about a
/// memory fraction.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_has_untold() -> i32 {
    i32::from(!process::is_forked() && guarded(false, history::has_untold))
}

fn in_this_process<T>(work: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    if process::is_forked() {
        return Err(Failure::Other(process::CardError::Forked.to_string()));
    }
    let inside = || Failure::Other("the allocator failed inside; please report it".to_owned());
    guarded(Err(inside()), work)
}

/// Pins `bytes` of host memory through card `device`, for regions that will sleep. 0, or -1 with a message.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_region_prepare(device: i32, bytes: u64) -> i32 {
    code_of(in_this_process(|| prepare(device, bytes).map_err(Failure::Other)))
}

/// 1 if the allocation at `pointer` sleeps.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_is_asleep(pointer: u64) -> i32 {
    if process::is_forked() {
        return 0;
    }
    guarded(0, || i32::from(regions::is_asleep(pointer)))
}

/// Copies the kept bytes of sleeping memory at `pointer`. 0, 1 if none are kept, or -1 with a message.
///
/// # Safety
/// `out` is valid for `size` writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_region_read(pointer: u64, size: usize, out: *mut u8) -> i32 {
    if process::is_forked() || size == 0 {
        return 1;
    }
    // SAFETY: the Python package passes a buffer of `size` bytes, and `size` is not 0.
    let into = unsafe { std::slice::from_raw_parts_mut(out, size) };
    match guarded(Ok(false), || read_kept(pointer, into)) {
        Ok(true) => 0,
        Ok(false) => 1,
        Err(error) => {
            set_error(&error);
            -1
        }
    }
}

/// The place where the host keeps `size` bytes of sleeping memory at `pointer` in one piece; null if there is none.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_region_kept_at(pointer: u64, size: u64) -> *const u8 {
    if process::is_forked() {
        return std::ptr::null();
    }
    guarded(None, || kept_at(pointer, size)).map_or(std::ptr::null(), |at| at as *const u8)
}

/// Sets if the host keeps a region's bytes when it wakes (1), at the same place for the next sleep, or not (0). -1
/// drops bytes that it kept. 0, or -1 with a message in `gapless_last_error`.
///
/// # Safety
/// `name` is a NUL-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_region_retain(name: *const c_char, how: i32) -> i32 {
    // SAFETY: the Python package passes `name` as bytes; ctypes ends them with NUL.
    let name = unsafe { text_of(name) }.unwrap_or_default();
    code_of(in_this_process(|| {
        let done = if how < 0 { forget_kept(&name) } else { retain(&name, how != 0) };
        done.map_err(Failure::Other)
    }))
}

/// Gives files of regions that are kept on disk names in this folder from now on; null: no names.
///
/// # Safety
/// `folder` is null, or a NUL-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_region_files(folder: *const c_char) {
    // SAFETY: `folder` is null or ends with NUL: the Python package passes None or bytes by ctypes.
    let folder = unsafe { text_of(folder) };
    guarded((), || show_files_in(folder.map(Into::into)));
}

/// Writes every region as NUL-terminated JSON to `text`, if it is less than `room`, and returns its length.
///
/// # Safety
/// `text` is valid for `room` writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_regions_json(text: *mut c_char, room: usize) -> usize {
    // SAFETY: the Python package passes a buffer of `room` bytes.
    unsafe { write_json(regions::json, text, room) }
}

/// Writes the sleeping addresses as JSON: each region's name, and its ranges as address and size. As
/// [`gapless_regions_json`].
///
/// # Safety
/// `text` is valid for `room` writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_asleep_json(text: *mut c_char, room: usize) -> usize {
    // SAFETY: the Python package passes a buffer of `room` bytes.
    unsafe { write_json(regions::asleep_json, text, room) }
}

/// # Safety
/// `text` is valid for `room` writes.
unsafe fn write_json(make: fn() -> String, text: *mut c_char, room: usize) -> usize {
    let json = if process::is_forked() { "[]".to_owned() } else { guarded("[]".to_owned(), make) };
    // SAFETY: `text` has `room` bytes (the package's buffer).
    unsafe { write_text(text, room, &json) }
}
