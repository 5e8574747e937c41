//! The C functions of regions, which Python calls.

use super::packed::{Decode, Encode, set_codec};
use super::{
    Failure, Keep, Moved, close, forget_kept, kept_at, open, prepare, read_kept, retain, show_files_in,
    shown, sleep, sleeping, switch, wake,
};
use crate::history;
use crate::hooks::{guarded, set_error};
use crate::state;
use std::ffi::{CStr, c_char};
use std::fmt::Write;

/// Codes of [`Keep`], in the order of Python's names.
fn keep_of(code: i32) -> Option<Keep> {
    [Keep::Host, Keep::Discard, Keep::Disk, Keep::Compressed].get(usize::try_from(code).ok()?).copied()
}

/// # Safety
/// `text` is null, or a NUL-terminated string.
unsafe fn text_of(text: *const c_char) -> Option<String> {
    // SAFETY: as the caller says.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
}

/// What is allocated from now on lies in a region; in none where `name` is null. A number to close it by, or -1 with a
/// message in `gapless_last_error`.
///
/// # Safety
/// `name` is null, or a NUL-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_region_open(name: *const c_char, keep: i32) -> i64 {
    if state::is_forked() {
        return 0;
    }
    guarded(-1, || {
        // SAFETY: as the caller says.
        let name = unsafe { text_of(name) };
        let opened = keep_of(keep).ok_or_else(|| format!("invalid keep {keep}: write 0, 1, 2 or 3"));
        opened.and_then(|keep| open(name.as_deref(), keep)).unwrap_or_else(|error| {
            set_error(&error);
            -1
        })
    })
}

/// What regions with [`Keep::Compressed`] are compressed with. The first functions stay.
///
/// # Safety
/// Both do what their types say, for as long as the process lives, and do not unwind.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_region_codec(encode: Option<Encode>, decode: Option<Decode>) {
    if let (Some(encode), Some(decode)) = (encode, decode) {
        // SAFETY: as the caller says.
        unsafe { set_codec(encode, decode) };
    }
}

/// Nothing more is put into the region by this scope.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_region_close(token: i64) {
    if !state::is_forked() {
        guarded((), || close(token));
    }
}

/// Leaves the code and the text of what was done behind: 0, 1 for out of memory, 2 where PyTorch has to tell trackers
/// something before it can be done, -1 for everything else.
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
    // SAFETY: as the caller says.
    unsafe {
        out.add(at).write(moved.copied);
        out.add(at + 1).write(moved.pages);
    }
}

/// A region falls asleep. 0, 2, or -1 with a message in `gapless_last_error`; `out` gets the bytes that were kept and
/// those that the card got back. 2: trackers (NCCL) have to hear first that memory goes, which PyTorch tells them with
/// its next question about a memory fraction; then this is called again.
///
/// # Safety
/// `name` is a NUL-terminated string, `out` is valid for two writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_region_sleep(name: *const c_char, verify: i32, out: *mut u64) -> i32 {
    // SAFETY: as the caller says.
    let name = unsafe { text_of(name) }.unwrap_or_default();
    code_of(in_this_process(|| sleep(&name, verify != 0)).map(|moved| {
        // SAFETY: as the caller says.
        unsafe { tell(out, 0, moved) };
    }))
}

/// A region wakes up. 0, 1 where the card has no memory for it, or -1; `out` gets the bytes that were copied back and
/// those that it holds.
///
/// # Safety
/// As [`gapless_region_sleep`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_region_wake(name: *const c_char, out: *mut u64) -> i32 {
    // SAFETY: as the caller says.
    let name = unsafe { text_of(name) }.unwrap_or_default();
    code_of(in_this_process(|| wake(&name)).map(|moved| {
        // SAFETY: as the caller says.
        unsafe { tell(out, 0, moved) };
    }))
}

/// One region falls asleep and another wakes up. Codes as of both; `out` gets both.
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
    // SAFETY: as the caller says.
    let names = unsafe { (text_of(falling).unwrap_or_default(), text_of(waking).unwrap_or_default()) };
    code_of(in_this_process(|| switch(&names.0, &names.1, verify != 0)).map(|(slept, woke)| {
        // SAFETY: as the caller says.
        unsafe {
            tell(out, 0, slept);
            tell(out, 2, woke);
        }
    }))
}

/// Whether trackers have not heard yet of memory that came or went: PyTorch tells them with its next question about a
/// memory fraction.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_has_untold() -> i32 {
    i32::from(!state::is_forked() && guarded(false, history::has_untold))
}

fn in_this_process<T>(work: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    if state::is_forked() {
        return Err(Failure::Other(state::CardError::Forked.to_string()));
    }
    let inside = || Failure::Other("the allocator failed inside; please report it".to_owned());
    guarded(Err(inside()), work)
}

/// Pins `bytes` of host memory through card `device`, for regions that will sleep. 0, or -1 with a message.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_region_prepare(device: i32, bytes: u64) -> i32 {
    code_of(in_this_process(|| prepare(device, bytes).map_err(Failure::Other)))
}

/// Whether what was allocated at `pointer` sleeps.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_is_asleep(pointer: u64) -> i32 {
    if state::is_forked() {
        return 0;
    }
    guarded(0, || {
        let mut found = 0;
        state::for_each(|_, card| {
            let start = card.pool.containing(pointer).map(|(start, _)| start);
            found |= i32::from(start.is_some_and(|start| card.pool.is_asleep(start)));
        });
        found
    })
}

/// Copies the bytes that are kept for sleeping memory at `pointer`. 0, 1 where none are kept, or -1 with a message.
///
/// # Safety
/// `out` is valid for `size` writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_region_read(pointer: u64, size: usize, out: *mut u8) -> i32 {
    if state::is_forked() || size == 0 {
        return 1;
    }
    // SAFETY: as the caller says.
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

/// Where the host keeps `size` bytes of sleeping memory at `pointer`, side by side; null where it does not.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_region_kept_at(pointer: u64, size: u64) -> *const u8 {
    if state::is_forked() {
        return std::ptr::null();
    }
    guarded(None, || kept_at(pointer, size)).map_or(std::ptr::null(), |at| at as *const u8)
}

/// Whether the host keeps a region's bytes when it wakes (1), at the same place for the next sleep, or not (0); -1
/// drops those that it kept. 0, or -1 with a message in `gapless_last_error`.
///
/// # Safety
/// `name` is a NUL-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_region_retain(name: *const c_char, how: i32) -> i32 {
    // SAFETY: as the caller says.
    let name = unsafe { text_of(name) }.unwrap_or_default();
    code_of(in_this_process(|| {
        let done = if how < 0 { forget_kept(&name) } else { retain(&name, how != 0) };
        done.map_err(Failure::Other)
    }))
}

/// Files of regions that are kept on disk have names in this folder from now on; null: they have none.
///
/// # Safety
/// `folder` is null, or a NUL-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_region_files(folder: *const c_char) {
    // SAFETY: as the caller says.
    let folder = unsafe { text_of(folder) };
    guarded((), || show_files_in(folder.map(Into::into)));
}

/// Every region as JSON, in `text`, which has `room` bytes. The length, without the end mark; nothing is written where
/// the room is too small.
///
/// # Safety
/// `text` is valid for `room` writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_regions_json(text: *mut c_char, room: usize) -> usize {
    // SAFETY: as the caller says.
    unsafe { write_json(json, text, room) }
}

/// The addresses that sleep as JSON: each region's name, and its ranges as address and size. As
/// [`gapless_regions_json`].
///
/// # Safety
/// `text` is valid for `room` writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_asleep_json(text: *mut c_char, room: usize) -> usize {
    // SAFETY: as the caller says.
    unsafe { write_json(asleep_json, text, room) }
}

/// # Safety
/// `text` is valid for `room` writes.
unsafe fn write_json(make: fn() -> String, text: *mut c_char, room: usize) -> usize {
    let json = if state::is_forked() { "[]".to_owned() } else { guarded("[]".to_owned(), make) };
    if json.len() < room {
        // SAFETY: as the caller says.
        unsafe {
            text.cast::<u8>().copy_from_nonoverlapping(json.as_ptr(), json.len());
            text.add(json.len()).write(0);
        }
    }
    json.len()
}

fn json() -> String {
    let mut text = "[".to_owned();
    for region in shown() {
        let keep = region.keep.name();
        let separator = if text.len() > 1 { "," } else { "" };
        // Names are checked when a region is opened: nothing in them needs escaping.
        let _ = write!(
            text,
            "{separator}{{\"name\":\"{}\",\"keep\":\"{keep}\",\"live\":{},\"held\":{},\"asleep\":{},\"host\":{}}}",
            region.name, region.live, region.held, region.asleep, region.host
        );
    }
    text + "]"
}

fn asleep_json() -> String {
    let mut text = "[".to_owned();
    for (name, ranges) in sleeping() {
        let separator = if text.len() > 1 { "," } else { "" };
        let ranges: Vec<String> = ranges.iter().map(|(addr, size)| format!("[{addr},{size}]")).collect();
        let _ = write!(text, "{separator}[\"{name}\",[{}]]", ranges.join(","));
    }
    text + "]"
}
