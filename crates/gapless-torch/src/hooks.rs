//! The C ABI that PyTorch and the Python package call. [`crate::capi`] has the one for other programs.
//!
//! PyTorch may call its entries from any thread, with or without Python's lock. Only `C-unwind` entries unwind:
//! `gapless_alloc` throws PyTorch's own exception if there is no memory, and exceptions of its functions pass through.

use crate::cxx::Function;
use crate::exception::{self, Kind};
use crate::foreign::{Barred, Filter};
use crate::oom::tail;
use crate::quota::{admission, ticker};
use crate::recorder::{self, Config};
use crate::routing::{self, MempoolId};
use crate::serve::{self, Used};
use crate::state::{self, CardError};
use crate::{budgets, conf, options, overlay, pressure, stats};
use gapless_ledger::Share;
use gapless_pool::{DeviceError, Refusal, StreamHandle};
use gapless_trace::Stage;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_void};
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    static LAST_ERROR: RefCell<CString> = RefCell::new(CString::default());
}

pub(crate) fn set_error(message: &str) {
    let text = CString::new(message.replace('\0', " ")).unwrap_or_default();
    // A thread that ends has no thread-local variables any more, and cannot ask for its last error either.
    let _ = LAST_ERROR.try_with(|last| *last.borrow_mut() = text);
}

/// Runs `work` and catches a panic. A C++ exception in it would end the process, so it calls nothing of
/// [`crate::foreign`].
pub(crate) fn guarded<T>(fallback: T, work: impl FnOnce() -> T) -> T {
    let _barred = Barred::new();
    catch_unwind(AssertUnwindSafe(work)).unwrap_or(fallback)
}

/// Sets the options of this process. 0, or -1 with a message in `gapless_last_error`.
///
/// # Safety
/// `text` is null or a NUL-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_enable(text: *const c_char) -> i32 {
    guarded(-1, || {
        let text = if text.is_null() {
            String::new()
        } else {
            // SAFETY: not null, so `text` ends with NUL (the contract of `gapless_enable` in gapless.h).
            unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
        };
        match options::parse(&text).and_then(state::set_settings) {
            Ok(()) => 0,
            Err(message) => {
                set_error(&message);
                -1
            }
        }
    })
}

/// Records all requests from now on in the file `path`, with the Python lines of the callers if `stacks` is not 0.
/// `limit` bounds the file's bytes if it is not 0. Call it before a card is used. 0, or -1 with a message in
/// `gapless_last_error`.
///
/// # Safety
/// `path` is a NUL-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_record(path: *const c_char, stacks: i32, limit: u64) -> i32 {
    guarded(-1, || {
        // SAFETY: the Python package passes `path` as bytes; ctypes ends them with NUL.
        let path = std::ffi::OsStr::from_bytes(unsafe { CStr::from_ptr(path) }.to_bytes()).into();
        let can_look = stacks == 0 || recorder::frames::can_look();
        match recorder::set(Config { path, stacks: stacks != 0 && can_look, limit }) {
            Ok(()) => 0,
            Err(message) => {
                set_error(&message);
                -1
            }
        }
    })
}

/// Ends the recording and completes its file. Returns the number of events that the file lacks.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_record_end() -> u64 {
    if state::is_forked() {
        return 0;
    }
    guarded(0, recorder::finish)
}

/// A named scope of a device begins (`stage` 0) or ends. It is a step of the program, for recordings and plans.
///
/// # Safety
/// `name` is a NUL-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_mark(name: *const c_char, stage: i32, device: i32) {
    guarded((), || {
        // SAFETY: the Python package passes `name` as bytes; ctypes ends them with NUL.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
        let stage = if stage == 0 { Stage::Start } else { Stage::End };
        recorder::mark(&name, stage, device.max(0) as u32);
        if stage == Stage::End
            && !state::is_forked()
            && let Some(mut card) = state::existing(device)
        {
            card.pool.mark_step();
        }
    });
}

/// The program is between two steps. Plans that wait for the next step are put in place now, so it does not pay for
/// that.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_pause(device: i32) {
    if state::is_forked() {
        return;
    }
    guarded((), || {
        if let Some(mut card) = state::existing(device) {
            card.pool.pause();
        }
    });
}

/// Calls `callback` with `user` before a request fails: it may free memory. Any thread may call it. Returns a number
/// for [`gapless_remove_pressure`].
#[unsafe(no_mangle)]
pub extern "C" fn gapless_on_pressure(callback: Option<pressure::Callback>, user: *mut c_void) -> u64 {
    guarded(0, || callback.map_or(0, |callback| pressure::add(callback, user)))
}

/// Removes a callback; 1 if there was one. A call that is under way is not interrupted.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_remove_pressure(id: u64) -> i32 {
    if state::is_forked() {
        return 0;
    }
    guarded(0, || i32::from(pressure::remove(id)))
}

/// The folder for the last events before a failed request; an empty path: none. Only the first call counts.
///
/// # Safety
/// `path` is a NUL-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_oom_folder(path: *const c_char) {
    guarded((), || {
        // SAFETY: `path` ends with NUL (the contract of `gapless_oom_folder` in gapless.h).
        let path = unsafe { CStr::from_ptr(path) }.to_bytes();
        let folder = std::ffi::OsStr::from_bytes(path);
        tail::set_folder((!path.is_empty()).then(|| folder.into()));
    });
}

/// Charges allocations from now on to `tag`, up to `limit` bytes. Above `soft` bytes (0: no such limit) free memory is
/// given back. A negative `device` means each card by itself. Returns a number to close the scope by, or -1 with a
/// message in `gapless_last_error`.
///
/// # Safety
/// `tag` is a NUL-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_budget_open(tag: *const c_char, limit: u64, soft: u64, device: i32) -> i64 {
    if state::is_forked() {
        return 0;
    }
    guarded(-1, || {
        // SAFETY: the Python package passes `tag` as bytes; ctypes ends them with NUL.
        let tag = unsafe { CStr::from_ptr(tag) }.to_string_lossy();
        if !budgets::is_tag(&tag) {
            set_error(&format!("invalid tag {tag:?}: use 1 to 63 letters, digits, _, - or /"));
            return -1;
        }
        let soft = if soft == 0 { u64::MAX } else { soft };
        budgets::open(&tag, limit, soft, (device >= 0).then_some(device))
    })
}

/// Ends the scope: allocations are no longer charged by it.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_budget_close(token: i64) {
    if !state::is_forked() {
        guarded((), || budgets::close(token));
    }
}

/// Adds this process to a tenant: `a:30GiB`, `a:60%:borrow`. 0, or -1 with a message in `gapless_last_error`.
///
/// # Safety
/// `text` is a NUL-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_tenant(text: *const c_char) -> i32 {
    guarded(-1, || {
        if state::is_forked() {
            set_error(&CardError::Forked.to_string());
            return -1;
        }
        // SAFETY: the Python package passes `text` as bytes; ctypes ends them with NUL.
        let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
        let share = text.parse::<Share>().map_err(|error| error.to_string());
        match share.and_then(admission::set_share) {
            Ok(()) => 0,
            Err(message) => {
                set_error(&message);
                -1
            }
        }
    })
}

/// Stops the ticker, because the process ends.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_ration_end() {
    if !state::is_forked() {
        guarded((), ticker::stop);
    }
}

/// The message of this thread's last call that failed.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_last_error() -> *const c_char {
    LAST_ERROR.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// Allocates `size` bytes on `device`, for work on `stream`. Throws `torch.OutOfMemoryError` if there is no memory.
///
/// # Safety
/// Called as PyTorch calls an allocator: from C++ that handles exceptions.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn gapless_alloc(size: usize, device: i32, stream: *mut c_void) -> *mut c_void {
    // SAFETY: PyTorch's C++ handles exceptions, and no guard or lock of ours is around this call.
    unsafe { serve::request(size, device, stream) }
}

/// Gives memory back. Unknown pointers are ignored.
///
/// # Safety
/// Called as PyTorch calls an allocator: from C++ that handles exceptions.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn gapless_free(
    pointer: *mut c_void,
    _size: usize,
    device: i32,
    _stream: *mut c_void,
) {
    // SAFETY: PyTorch's C++ handles exceptions, and no guard or lock of ours is around this call.
    unsafe { serve::give_back(pointer, Some(device)) };
}

/// PyTorch initialises CUDA. Each card is made on its first use, with the settings that hold now.
///
/// # Safety
/// Called from C++ that handles exceptions.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn gapless_init(device_count: i32) {
    // SAFETY: PyTorch's C++ handles exceptions, and no guard or lock of ours is around this call.
    if let Some(settings) = unsafe { overlay::settings::now() } {
        conf::note(settings.text);
    }
    state::set_device_count(device_count);
}

/// `torch.cuda.empty_cache()`.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_reset() {
    if state::is_forked() {
        return;
    }
    guarded((), || {
        state::for_each(|_, card| {
            card.trim();
        });
    });
}

/// Gives cached memory of a card back and returns the bytes; 0 during a capture.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_trim(device: i32) -> usize {
    if state::is_forked() {
        return 0;
    }
    guarded(0, || state::existing(device).map_or(0, |mut card| card.trim() as usize))
}

/// Takes memory from a card until the pool holds `bytes`. 0, or -1 with a message in `gapless_last_error`.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_reserve(device: i32, bytes: u64) -> i32 {
    let is_lent = |error: &DeviceError| *error == DeviceError::Refused(Refusal::Lent);
    let hold = || match state::with_card(device, |card| card.pool.hold(bytes, StreamHandle(0))) {
        Ok(held) => held.map(Ok),
        Err(no_card) => Ok(Err(no_card)),
    };
    guarded(-1, || {
        let why = match admission::when_lent(device, bytes, is_lent, hold) {
            Ok(Ok(())) => return 0,
            Ok(Err(no_card)) => no_card.to_string(),
            Err(error) => state::existing(device).map(|card| card.why_not(error)).unwrap_or_default(),
        };
        set_error(&why);
        -1
    })
}

/// `torch.cuda.set_per_process_memory_fraction`.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_memory_fraction(fraction: f64, device: i32) {
    guarded((), || {
        let _: Result<(), CardError> = state::with_card(device, |card| card.set_fraction(fraction));
    });
}

/// Returns the pointer and the size of the allocation that begins there. Throws if none begins there.
///
/// # Safety
/// `size` is null or valid for a write. Called from C++ that handles exceptions.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn gapless_base_alloc(pointer: *mut c_void, size: *mut usize) -> *mut c_void {
    let found = guarded(None, || {
        let mut found = None;
        state::for_each_at(pointer as u64, |_, card| {
            found = found.or_else(|| card.pool.containing(pointer as u64));
        });
        found
    });
    let Some((_, bytes)) = found.filter(|(base, _)| *base == pointer as u64) else {
        // SAFETY: PyTorch's C++ handles exceptions; the guard above has ended, and no card is locked.
        unsafe { exception::throw(Kind::Error, format!("invalid device pointer: {pointer:?}")) };
        return std::ptr::null_mut();
    };
    if !size.is_null() {
        // SAFETY: not null, so PyTorch passes a place for the size.
        unsafe { size.write(bytes as usize) };
    }
    pointer
}

/// Notes that another stream uses a block. Throws if the block sleeps.
///
/// # Safety
/// Called as PyTorch calls an allocator: from C++ that handles exceptions.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn gapless_record_stream(pointer: *mut c_void, stream: *mut c_void) {
    if serve::record_stream(pointer as u64, StreamHandle(stream as u64)) == Used::Asleep {
        let message = format!("gapless: {}", serve::asleep_text(pointer as u64));
        set_error(&message);
        // SAFETY: PyTorch's C++ handles exceptions, and no card is locked here.
        unsafe { exception::throw(Kind::Error, message) };
    }
}

/// A capture or a memory pool begins to take requests.
///
/// # Safety
/// `filter` points to a live `std::function<bool(cudaStream_t)>`, passed by value. Called from C++ that handles
/// exceptions.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn gapless_begin_pool(device: i32, id: MempoolId, filter: *const Function) {
    // SAFETY: PyTorch's C++ handles exceptions, and `filter` is its argument, which lives until this call returns.
    unsafe { routing::begin(device, id, Filter(Function::copy_of(filter))) };
}

/// A capture or a memory pool takes no more requests.
///
/// # Safety
/// Called from C++ that handles exceptions.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn gapless_end_pool(device: i32, id: MempoolId) {
    // SAFETY: PyTorch's C++ handles exceptions, and no guard or lock of ours is around this call.
    unsafe { routing::end(device, id) };
}

/// A private pool has one user less.
///
/// # Safety
/// Called from C++ that handles exceptions.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn gapless_release_pool(device: i32, id: MempoolId) {
    // SAFETY: PyTorch's C++ handles exceptions, and no guard or lock of ours is around this call.
    unsafe { routing::release(device, id) };
}

/// Writes the statistics of a card as NUL-terminated JSON to `out` and returns the length. Writes nothing unless the
/// length is less than `room`.
///
/// # Safety
/// `out` is valid for writes of `room` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_stats_json(device: i32, out: *mut c_char, room: usize) -> usize {
    let text = guarded(String::new(), || {
        state::existing(device).map_or_else(|| "{}".to_owned(), |mut card| stats::json(&mut card))
    });
    if text.len() < room && !out.is_null() {
        // SAFETY: `out` has `room` bytes (the caller's buffer), and the text and its NUL are no longer than that.
        unsafe {
            out.copy_from_nonoverlapping(text.as_ptr().cast(), text.len());
            out.add(text.len()).write(0);
        }
    }
    text.len()
}

/// Peaks start again from the present values.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_reset_peaks(device: i32) {
    guarded((), || {
        if let Some(mut card) = state::existing(device) {
            stats::restart_peaks(&mut card);
        }
    });
}

/// Makes PyTorch's own tools report on this allocator, in builds whose layout is known exactly. 1 if this build's is
/// not, with the reason in `gapless_last_error`.
///
/// # Safety
/// Both arguments are NUL-terminated strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_overlay(torch_version: *const c_char, git_version: *const c_char) -> i32 {
    guarded(1, || {
        // SAFETY: the Python package passes both as bytes; ctypes ends them with NUL.
        let (version, git) = unsafe { (CStr::from_ptr(torch_version), CStr::from_ptr(git_version)) };
        recorder::process::set_torch(&version.to_string_lossy());
        told(overlay::install(&version.to_string_lossy(), &git.to_string_lossy()))
    })
}

/// Inspects the running build without changing it, so that a child can try the next two. As [`gapless_overlay`].
///
/// # Safety
/// Both arguments are NUL-terminated strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_overlay_check(
    torch_version: *const c_char,
    git_version: *const c_char,
) -> i32 {
    guarded(1, || {
        // SAFETY: the Python package passes both as bytes; ctypes ends them with NUL.
        let (version, git) = unsafe { (CStr::from_ptr(torch_version), CStr::from_ptr(git_version)) };
        recorder::process::set_torch(&version.to_string_lossy());
        told(overlay::check(&version.to_string_lossy(), &git.to_string_lossy()))
    })
}

/// Installs a table for trials, in a forked child that ends soon. If `answers` is 0, every function of the table throws
/// its own number; else it answers statistics and snapshots with known numbers. As [`gapless_overlay`].
///
/// # Safety
/// Both strings are NUL-terminated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_overlay_try(
    torch_version: *const c_char,
    git_version: *const c_char,
    answers: i32,
) -> i32 {
    guarded(1, || {
        // SAFETY: the Python package passes both as bytes; ctypes ends them with NUL.
        let (version, git) = unsafe { (CStr::from_ptr(torch_version), CStr::from_ptr(git_version)) };
        told(overlay::probe::install(&version.to_string_lossy(), &git.to_string_lossy(), answers != 0))
    })
}

/// The place of the function `name` in the table of this build; -1 if it has none.
///
/// # Safety
/// All arguments are NUL-terminated strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_overlay_word(
    torch_version: *const c_char,
    git_version: *const c_char,
    name: *const c_char,
) -> i32 {
    guarded(-1, || {
        // SAFETY: the Python package passes all three as bytes; ctypes ends them with NUL.
        let text = |text| unsafe { CStr::from_ptr(text) }.to_string_lossy();
        overlay::word(&text(torch_version), &text(git_version), &text(name)).map_or(-1, |word| word as i32)
    })
}

/// 0, or 1 with a message in `gapless_last_error`.
fn told(done: Result<(), String>) -> i32 {
    match done {
        Ok(()) => 0,
        Err(why) => {
            set_error(&why);
            1
        }
    }
}
