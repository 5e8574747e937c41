//! Options, recordings, handlers, budgets, statistics and the overlay, for the Python package and `gapless.h`.

use super::{code, or_error, text_of, write_text};
use crate::guard::{self, guarded};
use crate::oom::tail;
use crate::quota::{tenant, ticker};
use crate::recorder::{self, Config, modules};
use crate::tensors::{self, ManagedTensor};
use crate::{
    budgets, cards, hip, interpreter, opening, options, outside, overlay, pressure, process, stats, traced,
};
use gapless_trace::Stage;
use std::ffi::{CStr, c_char, c_void};
use std::os::unix::ffi::OsStrExt;

/// Sets the options of this process. 0, or -1 with a message in `gapless_last_error`.
///
/// # Safety
/// `text` is null or a NUL-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_enable(text: *const c_char) -> i32 {
    guarded(-1, || {
        // SAFETY: `text` is null or ends with NUL (the contract of `gapless_enable` in gapless.h).
        let text = unsafe { text_of(text) }.unwrap_or_default();
        code(options::parse(&text).and_then(opening::set_settings), -1)
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
        code(recorder::set(Config { path, stacks: stacks != 0 && can_look, limit }), -1)
    })
}

/// Ends the recording and completes its file. Returns the number of events that the file lacks.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_record_end() -> u64 {
    if process::is_forked() {
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
            && !process::is_forked()
            && let Some(mut card) = cards::existing(device)
        {
            card.pool.mark_step();
        }
    });
}

/// The program is between two steps. Plans that wait for the next step are put in place now, so it does not pay for
/// that.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_pause(device: i32) {
    if process::is_forked() {
        return;
    }
    guarded((), || {
        if let Some(mut card) = cards::existing(device) {
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
    if process::is_forked() {
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
    if process::is_forked() {
        return 0;
    }
    guarded(-1, || {
        // SAFETY: the Python package passes `tag` as bytes; ctypes ends them with NUL.
        let tag = unsafe { CStr::from_ptr(tag) }.to_string_lossy();
        let soft = if soft == 0 { u64::MAX } else { soft };
        or_error(budgets::open(&tag, limit, soft, (device >= 0).then_some(device)), -1)
    })
}

/// Ends the scope: allocations are no longer charged by it.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_budget_close(token: i64) {
    if !process::is_forked() {
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
        // SAFETY: the Python package passes `text` as bytes; ctypes ends them with NUL.
        let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
        code(tenant::set_share(&text), -1)
    })
}

/// Stops the ticker, because the process ends.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_ration_end() {
    if !process::is_forked() {
        guarded((), ticker::stop);
    }
}

/// The message of this thread's last call that failed.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_last_error() -> *const c_char {
    guard::last_error()
}

/// Gives cached memory of a card back and returns the bytes; 0 during a capture.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_trim(device: i32) -> usize {
    if process::is_forked() {
        return 0;
    }
    guarded(0, || outside::trim(device) as usize)
}

/// Takes memory from a card until the pool holds `bytes`. 0, or -1 with a message in `gapless_last_error`.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_reserve(device: i32, bytes: u64) -> i32 {
    guarded(-1, || code(outside::hold(device, bytes), -1))
}

/// Writes the statistics of a card as NUL-terminated JSON to `out` and returns the length. Writes nothing unless the
/// length is less than `room`.
///
/// # Safety
/// `out` is valid for writes of `room` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_stats_json(device: i32, out: *mut c_char, room: usize) -> usize {
    let text = guarded(String::new(), || {
        cards::existing(device).map_or_else(|| "{}".to_owned(), |mut card| stats::json(&mut card))
    });
    // SAFETY: `out` has `room` bytes (the caller's buffer).
    unsafe { write_text(out, room, &text) }
}

/// Peaks start again from the present values.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_reset_peaks(device: i32) {
    guarded((), || {
        if let Some(mut card) = cards::existing(device) {
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
        code(overlay::install(&version.to_string_lossy(), &git.to_string_lossy()), 1)
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
        code(overlay::check(&version.to_string_lossy(), &git.to_string_lossy()), 1)
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
        code(overlay::probe::install(&version.to_string_lossy(), &git.to_string_lossy(), answers != 0), 1)
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

// ---- modules, traces and tensors ----

/// The address of this thread's number: four bytes, valid as long as the thread lives.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_module_cell() -> *mut u32 {
    modules::cell()
}

/// Sets the note for requests with this number.
///
/// # Safety
/// `note` is a NUL-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_module_name(number: u32, note: *const c_char) {
    // SAFETY: the Python package passes `note` as bytes; ctypes ends them with NUL.
    guarded((), || modules::name(number, &unsafe { CStr::from_ptr(note) }.to_string_lossy()));
}

/// Notes that the module with this number owns the block at `addr`, for which `size` bytes were requested.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_module_block(device: i32, addr: u64, size: u64, number: u32) {
    guarded((), || modules::own(device, addr, size, number));
}

/// Sets the callback for torch's traces. 0, or -1 if this torch has no such flag; then nothing is reported.
///
/// # Safety
/// Any thread may call the function until the process ends.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_on_trace(callback: Option<traced::Callback>) -> i32 {
    // SAFETY: our caller passes a function that any thread may call until the process ends.
    let is_set = callback.is_some_and(|callback| unsafe { traced::set_callback(callback) });
    if is_set { 0 } else { -1 }
}

/// Drops a tensor that could not be handed to PyTorch.
///
/// # Safety
/// `tensor` came from this library, and is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_tensor_drop(tensor: *mut ManagedTensor) {
    // SAFETY: the Python package passes a tensor that this library gave it, and drops it once.
    unsafe { tensors::drop_tensor(tensor) };
}

/// 0 if this process uses AMD's cards and the card with this number can do what Gapless needs. -1 if not, with the
/// reason in `gapless_last_error`. It starts HIP, so the caller asks in a child process.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_try_hip(device: i32) -> i32 {
    guarded(-1, || code(hip::try_out(device), -1))
}

/// Called by Python's functions for the end of the process: no thread enters Python any more.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_python_ends() {
    interpreter::end();
}

/// Number of the calling thread's driver calls through this library.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_driver_entries() -> u64 {
    gapless_cuda::context::entries()
}
