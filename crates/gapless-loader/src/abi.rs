//! The C ABI that `python/gapless/weights/_native.py` calls. No function unwinds. A function that fails returns null or
//! a code, and leaves its error as JSON for the thread that called.

use crate::catalogue::Catalogue;
use crate::cuda;
use crate::error::{LoadError, Result};
use crate::load::{Load, State};
use crate::plan::Piece;
use crate::save::{Held, save};
use crate::shared::{Progress, Settings};
use gapless_weights::codec::Path;
use gapless_weights::stream::{decode_into, encode_any};
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::sync::Arc;
use std::time::Duration;

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

fn keep(error: &LoadError) {
    let text = CString::new(error.to_json().to_string()).unwrap_or_default();
    LAST.with(|last| *last.borrow_mut() = text);
}

/// Runs `body` and keeps its error for this thread. A panic becomes an error too.
fn guarded<T>(body: impl FnOnce() -> Result<T>) -> Option<T> {
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body))
        .unwrap_or_else(|panic| Err(LoadError::of_panic(&*panic)));
    result.map_err(|error| keep(&error)).ok()
}

/// A text of the caller; `None` if it is null.
///
/// # Safety
/// `text` must be null, or end with NUL and live through the call.
unsafe fn text<'a>(text: *const c_char) -> Option<&'a CStr> {
    // SAFETY: not null, so `text` ends with NUL: Python passes bytes by ctypes, which live through the call.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) })
}

/// Opens a file or a folder; null if that fails.
///
/// # Safety
/// `path` must be null or end with NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_loader_open(path: *const c_char) -> *const Catalogue {
    // SAFETY: Python passes `path` as bytes; ctypes ends them with NUL.
    let path = unsafe { text(path) };
    guarded(|| Ok(Arc::into_raw(Arc::new(Catalogue::open(&path_of(path)?)?)))).unwrap_or(std::ptr::null())
}

/// Its files and tensors as JSON. The caller frees the text with `gapless_loader_end_text`.
///
/// # Safety
/// `catalogue` must come from `gapless_loader_open`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_loader_describe(catalogue: *const Catalogue) -> *mut c_char {
    // SAFETY: `gapless_loader_open` made the catalogue, and Python closes it only after its last call.
    let catalogue = unsafe { &*catalogue };
    guarded(|| {
        let text = CString::new(catalogue.to_json().to_string()).unwrap_or_default();
        Ok(text.into_raw())
    })
    .unwrap_or(std::ptr::null_mut())
}

/// # Safety
/// `text` must come from `gapless_loader_describe`, and may not be used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_loader_end_text(text: *mut c_char) {
    if !text.is_null() {
        // SAFETY: `gapless_loader_describe` made the text, and Python ends it once.
        drop(unsafe { CString::from_raw(text) });
    }
}

/// # Safety
/// `catalogue` must come from `gapless_loader_open`, and may not be used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_loader_close(catalogue: *const Catalogue) {
    if !catalogue.is_null() {
        // SAFETY: `gapless_loader_open` made the catalogue, and Python closes it once.
        drop(unsafe { Arc::from_raw(catalogue) });
    }
}

/// Begins to load. Writes the loading to `out` before it returns, so that no interrupt can lose it. `driver` names a
/// library to use instead of the machine's driver, or is null. Returns 0 for success.
///
/// # Safety
/// `catalogue` must come from `gapless_loader_open`, `pieces` must have `count` entries, and `settings` and `out` must
/// be valid. Targets and staging memory must be as `Load::start` demands.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_loader_start(
    catalogue: *const Catalogue,
    pieces: *const Piece,
    count: usize,
    settings: *const Settings,
    driver: *const c_char,
    out: *mut *mut Load,
) -> c_int {
    let started = guarded(|| {
        // SAFETY: Python passes a catalogue that is open, an array of `count` pieces, and places for settings and
        // result. It keeps the targets as `Load::start` demands. `Arc::from_raw` owns the added count.
        unsafe {
            Arc::increment_strong_count(catalogue);
            let catalogue = Arc::from_raw(catalogue);
            let pieces = if count == 0 { &[] } else { std::slice::from_raw_parts(pieces, count) };
            let load = Load::start(&catalogue, pieces, *settings, text(driver))?;
            *out = Box::into_raw(Box::new(load));
            Ok(())
        }
    });
    c_int::from(started.is_none())
}

/// Waits at most `milliseconds`: 0 still running, 1 done, 2 failed.
///
/// # Safety
/// `load` must come from `gapless_loader_start`, and `progress` must be valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_loader_wait(
    load: *mut Load,
    milliseconds: u32,
    progress: *mut Progress,
) -> c_int {
    // SAFETY: Python made this loading in the calling method, which alone uses it, and passes a place for the progress.
    let (load, progress) = unsafe { (&mut *load, &mut *progress) };
    let state = guarded(|| Ok(load.wait(Duration::from_millis(u64::from(milliseconds)))));
    *progress = load.progress();
    match state {
        Some(State::Running) => 0,
        Some(State::Done) => 1,
        Some(State::Failed) => {
            if let Some(error) = load.error() {
                keep(&error);
            }
            2
        }
        None => 2,
    }
}

/// # Safety
/// `load` must come from `gapless_loader_start`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_loader_cancel(load: *mut Load) {
    // SAFETY: the caller has a loading of `gapless_loader_start` that it has not ended.
    unsafe { &*load }.cancel();
}

/// Ends a loading: no byte is written to a target afterwards.
///
/// # Safety
/// `load` must come from `gapless_loader_start`, and may not be used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_loader_end(load: *mut Load) {
    if !load.is_null() {
        // SAFETY: `gapless_loader_start` made the loading, and Python ends it once.
        drop(unsafe { Box::from_raw(load) });
    }
}

/// Times the kernel alone; 0 for success. Libraries that ship do not have it.
///
/// # Safety
/// As for `gapless_loader_start`; the staging memory must have `room` bytes.
#[cfg(feature = "bench")]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_loader_measure(
    catalogue: *const Catalogue,
    pieces: *const Piece,
    count: usize,
    settings: *const Settings,
    room: u64,
    passes: u32,
    measured: *mut cuda::Measured,
) -> c_int {
    let result = guarded(|| {
        // SAFETY: Python passes an open catalogue, an array of `count` pieces, places for settings and result, and
        // staging memory of `room` bytes, and keeps all of it until this call returns.
        unsafe {
            let pieces = if count == 0 { &[] } else { std::slice::from_raw_parts(pieces, count) };
            *measured = cuda::measure(&*catalogue, pieces, *settings, room, passes, None)?;
        }
        Ok(())
    });
    if result.is_some() { 0 } else { 1 }
}

/// Gives back pinned memory, streams and kernels that were kept for the next loading.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_loader_release() {
    guarded(|| {
        cuda::release();
        Ok(())
    });
}

/// The most threads of a loading to a card if its caller does not set them.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_loader_threads() -> u32 {
    cuda::threads(true).max(cuda::threads(false)) as u32
}

/// Bytes of staging memory on a card for each thread.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_loader_staging() -> u64 {
    cuda::STAGING as u64
}

/// The error of this thread's last call that failed, as JSON; valid until the next call.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_loader_last_error() -> *const c_char {
    LAST.with(|last| last.borrow().as_ptr())
}

#[cfg(unix)]
fn path_of(text: Option<&CStr>) -> Result<std::path::PathBuf> {
    let bytes = text.ok_or(LoadError::Argument("no path was given".into()))?.to_bytes().to_vec();
    Ok(std::path::PathBuf::from(<std::ffi::OsString as std::os::unix::ffi::OsStringExt>::from_vec(bytes)))
}

#[cfg(not(unix))]
fn path_of(text: Option<&CStr>) -> Result<std::path::PathBuf> {
    let text = text.ok_or(LoadError::Argument("no path was given".into()))?;
    Ok(text.to_str().map_err(|_| LoadError::Argument("the path is not UTF-8".into()))?.into())
}

/// Packs one file, as `gapless weights pack` does; 0 for success.
///
/// # Safety
/// Both paths must end in a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_loader_pack(from: *const c_char, to: *const c_char, threads: u32) -> c_int {
    // SAFETY: Python passes both paths as bytes; ctypes ends them with NUL.
    let (from, to) = unsafe { (text(from), text(to)) };
    let result = guarded(|| {
        gapless_weights::pack(&path_of(from)?, &path_of(to)?, threads.max(1) as usize)?;
        Ok(())
    });
    c_int::from(result.is_none())
}

/// Compresses `length` bytes in memory, of any values, to `out`, which has `room` bytes. Returns the stream's bytes; 0
/// on error.
///
/// # Safety
/// `values` and `out` must have that many bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_loader_encode(
    values: *const u8,
    length: usize,
    out: *mut u8,
    room: usize,
) -> usize {
    let encoded = guarded(|| {
        // SAFETY: `values` has `length` bytes: the regions of gapless-torch pass the pointer and length of a slice.
        let values = unsafe { std::slice::from_raw_parts(values, length) };
        let stream = encode_any(values, Path::best());
        if stream.len() > room {
            let message = format!("a stream of {} bytes has no room in {room}", stream.len());
            return Err(LoadError::Argument(message));
        }
        // SAFETY: `out` has `room` bytes, and the check above found that the stream is no longer than that.
        unsafe { std::ptr::copy_nonoverlapping(stream.as_ptr(), out, stream.len()) };
        Ok(stream.len())
    });
    encoded.unwrap_or(0)
}

/// Restores the `length` bytes that [`gapless_loader_encode`] compressed; 0 for success.
///
/// # Safety
/// `stream` must have `bytes` bytes, and `out` have `length`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_loader_decode(
    stream: *const u8,
    bytes: usize,
    out: *mut u8,
    length: usize,
) -> c_int {
    let result = guarded(|| {
        // SAFETY: the regions of gapless-torch pass the pointers and lengths of two slices, which do not overlap.
        let (stream, out) = unsafe {
            (std::slice::from_raw_parts(stream, bytes), std::slice::from_raw_parts_mut(out, length))
        };
        decode_into(stream, out, Path::best(), false)
            .map_err(|error| LoadError::Argument(format!("the stream is damaged: {error}")))
    });
    c_int::from(result.is_none())
}

/// Writes tensors in memory as a file; 0 for success. `header` is the file's, and has `length` bytes.
///
/// # Safety
/// `to` must end with NUL, `header` must have `length` bytes, `held` must have `count` entries, and `settings` must be
/// valid. The tensors must be as `save::save` demands.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_loader_save(
    to: *const c_char,
    header: *const u8,
    length: usize,
    held: *const Held,
    count: usize,
    settings: *const Settings,
    is_packed: c_int,
) -> c_int {
    let result = guarded(|| {
        // SAFETY: Python passes a path that ends with NUL, `length` bytes of header, an array of `count` tensors and
        // its settings. It keeps the tensors unchanged until this call returns.
        unsafe {
            let to = path_of(text(to))?;
            let header = std::slice::from_raw_parts(header, length);
            let held = if count == 0 { &[] } else { std::slice::from_raw_parts(held, count) };
            save(&to, header, held, *settings, is_packed != 0, None)?;
        }
        Ok(())
    });
    c_int::from(result.is_none())
}
