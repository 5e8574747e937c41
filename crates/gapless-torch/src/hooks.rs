//! The C ABI that PyTorch and the Python package call. [`crate::capi`] has the one for other programs.
//!
//! Entries that PyTorch calls may come from any thread, with or without Python's lock. None of them unwinds, except
//! those that are `C-unwind`: `gapless_alloc` throws PyTorch's own exception when there is no memory, and what
//! PyTorch's own functions throw goes through.

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
    // A thread that ends has no variables any more; nobody asks it what went wrong.
    let _ = LAST_ERROR.try_with(|last| *last.borrow_mut() = text);
}

/// Runs `work`; a panic in it ends here. A C++ exception would end the process: nothing of [`crate::foreign`] is
/// called in it.
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
            // SAFETY: as the caller says.
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

/// Records all requests from now on into the file `path`, with the Python lines that asked where `stacks` is not 0,
/// within `limit` bytes where that is not 0. Before a card is used. 0, or -1 with a message in `gapless_last_error`.
///
/// # Safety
/// `path` is a NUL-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_record(path: *const c_char, stacks: i32, limit: u64) -> i32 {
    guarded(-1, || {
        // SAFETY: as the caller says.
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

/// Ends the recording, once its file is whole; how many events are missing in it.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_record_end() -> u64 {
    if state::is_forked() {
        return 0;
    }
    guarded(0, recorder::finish)
}

/// A named scope of a device begins (`stage` 0) or ends: a step of the program, for recordings and plans.
///
/// # Safety
/// `name` is a NUL-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_mark(name: *const c_char, stage: i32, device: i32) {
    guarded((), || {
        // SAFETY: as the caller says.
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

/// The program is between two steps: plans that wait for the next one to begin are put in place now, so that it is not
/// held up.
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

/// Calls `callback` with `user` when a request cannot be served, before it fails: it may free memory. Any thread may be
/// the one that calls. Returns a number for [`gapless_remove_pressure`].
#[unsafe(no_mangle)]
pub extern "C" fn gapless_on_pressure(callback: Option<pressure::Callback>, user: *mut c_void) -> u64 {
    guarded(0, || callback.map_or(0, |callback| pressure::add(callback, user)))
}

/// No longer calls it; 1 where it was there. A call that is under way comes to its end.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_remove_pressure(id: u64) -> i32 {
    if state::is_forked() {
        return 0;
    }
    guarded(0, || i32::from(pressure::remove(id)))
}

/// Where a failed request leaves its last events; an empty path: nowhere. Once, before the first failure.
///
/// # Safety
/// `path` is a NUL-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_oom_folder(path: *const c_char) {
    guarded((), || {
        // SAFETY: as the caller says.
        let path = unsafe { CStr::from_ptr(path) }.to_bytes();
        let folder = std::ffi::OsStr::from_bytes(path);
        tail::set_folder((!path.is_empty()).then(|| folder.into()));
    });
}

/// What is allocated from now on is charged to `tag`, up to `limit` bytes; where `soft` (0: none) are passed, what is
/// free is given back. On one card, or, with a negative number, on each by itself. A number to close it by, or -1 with
/// a message in `gapless_last_error`.
///
/// # Safety
/// `tag` is a NUL-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_budget_open(tag: *const c_char, limit: u64, soft: u64, device: i32) -> i64 {
    if state::is_forked() {
        return 0;
    }
    guarded(-1, || {
        // SAFETY: as the caller says.
        let tag = unsafe { CStr::from_ptr(tag) }.to_string_lossy();
        if !budgets::is_tag(&tag) {
            set_error(&format!("invalid tag {tag:?}: use 1 to 63 letters, digits, _, - or /"));
            return -1;
        }
        let soft = if soft == 0 { u64::MAX } else { soft };
        budgets::open(&tag, limit, soft, (device >= 0).then_some(device))
    })
}

/// Nothing more is charged by this scope.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_budget_close(token: i64) {
    if !state::is_forked() {
        guarded((), || budgets::close(token));
    }
}

/// Makes this process one of a tenant's: `a:30GiB`, `a:60%:borrow`. 0, or -1 with a message in `gapless_last_error`.
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
        // SAFETY: as the caller says.
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

/// The process ends: nothing looks around any more.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_ration_end() {
    if !state::is_forked() {
        guarded((), ticker::stop);
    }
}

/// What went wrong in this thread's last call that failed.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_last_error() -> *const c_char {
    LAST_ERROR.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// Memory for `size` bytes on `device`, for work on `stream`. Throws `torch.OutOfMemoryError` where there is none.
///
/// # Safety
/// Called as PyTorch calls an allocator: from C++ that may be thrown through.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn gapless_alloc(size: usize, device: i32, stream: *mut c_void) -> *mut c_void {
    // SAFETY: as the caller says.
    unsafe { serve::request(size, device, stream) }
}

/// Gives memory back. Unknown pointers are ignored.
///
/// # Safety
/// Called as PyTorch calls an allocator: from C++ that may be thrown through.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn gapless_free(
    pointer: *mut c_void,
    _size: usize,
    device: i32,
    _stream: *mut c_void,
) {
    // SAFETY: as the caller says.
    unsafe { serve::give_back(pointer, Some(device)) };
}

/// CUDA starts. Cards are made on first use, with the settings of now.
///
/// # Safety
/// Called from C++ that may be thrown through.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn gapless_init(device_count: i32) {
    // SAFETY: as the caller says.
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

/// Gives cached memory of a card back; the bytes. None while a capture is open.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_trim(device: i32) -> usize {
    if state::is_forked() {
        return 0;
    }
    guarded(0, || state::existing(device).map_or(0, |mut card| card.trim() as usize))
}

/// Takes memory from a card until `bytes` are held. 0, or -1.
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

/// The allocation that begins at an address: itself, with its size. Throws where none begins there.
///
/// # Safety
/// `size` is null or valid for a write. Called from C++ that may be thrown through.
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
        // SAFETY: as the caller says; no card is locked.
        unsafe { exception::throw(Kind::Error, format!("invalid device pointer: {pointer:?}")) };
        return std::ptr::null_mut();
    };
    if !size.is_null() {
        // SAFETY: as the caller says.
        unsafe { size.write(bytes as usize) };
    }
    pointer
}

/// Another stream uses a block. Throws where it sleeps.
///
/// # Safety
/// Called as PyTorch calls an allocator: from C++ that may be thrown through.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn gapless_record_stream(pointer: *mut c_void, stream: *mut c_void) {
    if serve::record_stream(pointer as u64, StreamHandle(stream as u64)) == Used::Asleep {
        let message = format!("gapless: {}", serve::asleep_text(pointer as u64));
        set_error(&message);
        // SAFETY: as the caller says; no card is locked.
        unsafe { exception::throw(Kind::Error, message) };
    }
}

/// A capture, or a memory pool, begins to take requests.
///
/// # Safety
/// `filter` points at a live `std::function<bool(cudaStream_t)>`, as C++ passes one by value. Called from C++ that
/// may be thrown through.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn gapless_begin_pool(device: i32, id: MempoolId, filter: *const Function) {
    // SAFETY: as the caller says.
    unsafe { routing::begin(device, id, Filter(Function::copy_of(filter))) };
}

/// It takes no more.
///
/// # Safety
/// Called from C++ that may be thrown through.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn gapless_end_pool(device: i32, id: MempoolId) {
    // SAFETY: as the caller says.
    unsafe { routing::end(device, id) };
}

/// One of its users needs what is in it no more.
///
/// # Safety
/// Called from C++ that may be thrown through.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn gapless_release_pool(device: i32, id: MempoolId) {
    // SAFETY: as the caller says.
    unsafe { routing::release(device, id) };
}

/// Writes the statistics of a card as JSON into `out`, NUL-terminated, and returns their length; where that is not less
/// than `room`, nothing is written.
///
/// # Safety
/// `out` is valid for writes of `room` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_stats_json(device: i32, out: *mut c_char, room: usize) -> usize {
    let text = guarded(String::new(), || {
        state::existing(device).map_or_else(|| "{}".to_owned(), |mut card| stats::json(&mut card))
    });
    if text.len() < room && !out.is_null() {
        // SAFETY: as the caller says, and the text with its end fits.
        unsafe {
            out.copy_from_nonoverlapping(text.as_ptr().cast(), text.len());
            out.add(text.len()).write(0);
        }
    }
    text.len()
}

/// Peaks start again from what is held now.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_reset_peaks(device: i32) {
    guarded((), || {
        if let Some(mut card) = state::existing(device) {
            stats::restart_peaks(&mut card);
        }
    });
}

/// Makes PyTorch's own tools answer for this allocator, in builds that are known exactly. 1: this one is not, and
/// `gapless_last_error` says why.
///
/// # Safety
/// Both arguments are NUL-terminated strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_overlay(torch_version: *const c_char, git_version: *const c_char) -> i32 {
    guarded(1, || {
        // SAFETY: as the caller says.
        let (version, git) = unsafe { (CStr::from_ptr(torch_version), CStr::from_ptr(git_version)) };
        recorder::process::set_torch(&version.to_string_lossy());
        told(overlay::install(&version.to_string_lossy(), &git.to_string_lossy()))
    })
}

/// Looks at the running build without a change, so that what the next two do can be tried. As [`gapless_overlay`].
///
/// # Safety
/// Both arguments are NUL-terminated strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_overlay_check(
    torch_version: *const c_char,
    git_version: *const c_char,
) -> i32 {
    guarded(1, || {
        // SAFETY: as the caller says.
        let (version, git) = unsafe { (CStr::from_ptr(torch_version), CStr::from_ptr(git_version)) };
        recorder::process::set_torch(&version.to_string_lossy());
        told(overlay::check(&version.to_string_lossy(), &git.to_string_lossy()))
    })
}

/// Puts a table for trials in place, in a forked child that ends soon: with `answers` 0 one whose every function throws
/// its own number, else one that answers statistics and snapshots with numbers that are known. As [`gapless_overlay`].
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
        // SAFETY: as the caller says.
        let (version, git) = unsafe { (CStr::from_ptr(torch_version), CStr::from_ptr(git_version)) };
        told(overlay::probe::install(&version.to_string_lossy(), &git.to_string_lossy(), answers != 0))
    })
}

/// Where the table of this build has the function of this name; -1 where it has none.
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
        // SAFETY: as the caller says.
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
