//! Requests, frees and limits through the table. PyTorch's own wrapper of plug-ins, a map under one lock, is bypassed,
//! because the allocator knows its blocks itself.

use super::layout::{CUDA, DataPtr, Device, MempoolId};
use super::{Refusal, This, answer, must_exist, refuse};
use crate::card;
use crate::cards;
use crate::foreign::{self, Deleter, Torch};
use crate::opening;
use crate::process;
use crate::{checked, conf, history, outside, serve, suppliers};
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};

/// Looks up PyTorch's functions. False if one is missing.
pub(super) fn prepare() -> bool {
    foreign::torch().is_some()
}

fn torch() -> &'static Torch {
    // Entries are installed only after `prepare` returned true.
    foreign::torch().unwrap_or_else(|| std::process::abort())
}

/// The current device of this thread.
///
/// # Safety
/// C++ exceptions may pass the callers: no guard, and no card locked.
pub(super) unsafe fn current_device() -> i8 {
    // SAFETY: our caller lets exceptions pass, and no card is locked here.
    unsafe { torch().current_device() }
}

type Request = unsafe fn(usize, i32, *mut c_void) -> *mut c_void;

#[inline]
unsafe fn request(ask: Request, size: usize, device: i8, stream: *mut c_void) -> *mut c_void {
    // SAFETY: an entry of the table calls this for PyTorch's C++, which handles exceptions; no card is locked.
    unsafe {
        let data = ask(size, i32::from(device), stream);
        if torch().is_profiling() {
            report(data, 1, Some(device));
        }
        data
    }
}

unsafe fn give_back(pointer: *mut c_void) -> bool {
    // SAFETY: an entry of the table calls this for PyTorch's C++, which handles exceptions; no card is locked.
    unsafe {
        if torch().is_profiling() {
            report(pointer, -1, None);
        }
        serve::give_back(pointer, None)
    }
}

/// Reports to PyTorch's profiler a block that was allocated (`sign` 1), or that is about to be freed (-1).
#[cold]
unsafe fn report(pointer: *mut c_void, sign: i64, device: Option<i8>) {
    if pointer.is_null() || process::is_forked() {
        return;
    }
    let found = crate::guard::guarded(None, || {
        let mut found = None;
        cards::for_each_at(pointer as u64, |index, card| {
            if found.is_none()
                && device.is_none_or(|device| i32::from(device) == index)
                && let Some(size) = card.pool.size_of(pointer as u64)
            {
                let stats = card.pool.stats();
                // Sleeping memory is not counted as allocated.
                let gone = if sign < 0 && !card.pool.is_asleep(pointer as u64) { size } else { 0 };
                found = Some((index, size, stats.allocated.current - gone, stats.reserved.current));
            }
        });
        found
    });
    if let Some((index, size, allocated, reserved)) = found {
        let device = Device { kind: CUDA, index: index as i8 };
        // SAFETY: PyTorch's C++ handles exceptions; the guard has ended and the card is unlocked.
        unsafe {
            torch().report(pointer, sign * size as i64, allocated as usize, reserved as usize, device);
        }
    }
}

/// `allocate(n)`.
pub(super) unsafe extern "C-unwind" fn allocate(out: *mut DataPtr, _: This, size: usize) -> *mut DataPtr {
    let torch = torch();
    // SAFETY: PyTorch's C++ called and handles exceptions; this frame owns nothing. `out` is its place for the result.
    unsafe {
        let index = torch.current_device();
        let data = match size {
            0 => std::ptr::null_mut(),
            _ => request(serve::request_for_tensor, size, index, torch.current_stream(index)),
        };
        out.write(DataPtr { data, deleter: delete, context: data, device: Device { kind: CUDA, index } });
    }
    out
}

/// `allocateWithAddress(n, address)`: memory at exactly this address, or an error that says why not.
pub(super) unsafe extern "C-unwind" fn allocate_at(
    out: *mut DataPtr,
    _: This,
    size: usize,
    address: *mut c_void,
) -> *mut DataPtr {
    let torch = torch();
    // SAFETY: PyTorch's C++ called and handles exceptions; this frame owns nothing. `out` is its place for the result.
    unsafe {
        let index = torch.current_device();
        let data = serve::request_at(size, i32::from(index), torch.current_stream(index), address);
        if torch.is_profiling() {
            report(data, 1, Some(index));
        }
        out.write(DataPtr { data, deleter: delete, context: data, device: Device { kind: CUDA, index } });
    }
    out
}

/// The deleter of a tensor. Nothing can be thrown from here, so unknown pointers are ignored.
pub(super) unsafe extern "C-unwind" fn delete(pointer: *mut c_void) {
    // SAFETY: PyTorch's C++ called, and no guard or lock of ours is around this call.
    unsafe { give_back(pointer) };
}

/// `raw_deleter()`.
pub(super) unsafe extern "C-unwind" fn raw_deleter(_: This) -> Deleter {
    delete
}

/// `raw_alloc(n)`.
pub(super) unsafe extern "C-unwind" fn raw_alloc(_: This, size: usize) -> *mut c_void {
    if size == 0 {
        return std::ptr::null_mut();
    }
    let torch = torch();
    // SAFETY: PyTorch's C++ called and handles exceptions; this frame owns nothing.
    unsafe {
        let device = torch.current_device();
        request(serve::request, size, device, torch.current_stream(device))
    }
}

/// `raw_alloc_with_stream(n, stream)`.
pub(super) unsafe extern "C-unwind" fn raw_alloc_with_stream(
    _: This,
    size: usize,
    stream: *mut c_void,
) -> *mut c_void {
    if size == 0 {
        return std::ptr::null_mut();
    }
    // SAFETY: PyTorch's C++ called and handles exceptions; this frame owns nothing.
    unsafe { request(serve::request, size, torch().current_device(), stream) }
}

/// `raw_delete(pointer)`.
pub(super) unsafe extern "C-unwind" fn raw_delete(_: This, pointer: *mut c_void) {
    // SAFETY: PyTorch's C++ called and handles exceptions; no card is locked.
    unsafe {
        if !give_back(pointer) {
            // If checked mode found an error, it is more exact.
            let found = checked::take_found();
            answer((), || refuse(found.unwrap_or_else(|| format!("invalid device pointer: {pointer:?}"))));
        }
    }
}

/// `emptyCache(pool)`.
pub(super) unsafe extern "C-unwind" fn empty_cache(_: This, id: MempoolId) {
    if process::is_forked() {
        return;
    }
    // SAFETY: PyTorch's C++ called and handles exceptions; no card is locked after `answer`.
    unsafe {
        answer((), || {
            for device in 0..process::CARDS as i32 {
                if id == MempoolId::default() {
                    outside::trim(device);
                } else {
                    outside::trim_pool(device, id.into());
                }
            }
            Ok(())
        });
        history::tell_trackers();
        suppliers::give_back();
    }
}

/// `getMemoryFraction(device)`. It also tells trackers the queued entries: the Python package asks for it before and
/// after regions sleep and wake.
pub(super) unsafe extern "C-unwind" fn memory_fraction(_: This, device: i8) -> f64 {
    // SAFETY: PyTorch's C++ called and handles exceptions; no card is locked.
    unsafe {
        history::tell_trackers_first();
        answer(1.0, || {
            must_exist(device)?;
            Ok(cards::existing(i32::from(device)).map_or_else(conf::memory_fraction, |card| card.fraction))
        })
    }
}

/// `setMemoryFraction(fraction, device)`.
pub(super) unsafe extern "C-unwind" fn set_memory_fraction(_: This, fraction: f64, device: i8) {
    // SAFETY: PyTorch's C++ called and handles exceptions; no card is locked.
    unsafe {
        answer((), || {
            if !(0.0..=1.0).contains(&fraction) {
                let fraction = fraction.to_string().to_lowercase();
                return refuse(format!("invalid fraction:{fraction}. Please set within [0, 1]."));
            }
            must_exist(device)?;
            on_card(device, |card| card.set_fraction(fraction))
        });
    }
}

/// The last argument of `enable`.
static ENABLED: AtomicBool = AtomicBool::new(true);

/// `enable(on)`: memory is cached in any case, but programs that switch it off ask for the value later.
pub(super) unsafe extern "C-unwind" fn enable(_: This, on: bool) {
    ENABLED.store(on, Ordering::Relaxed);
}

/// `isEnabled()`.
pub(super) unsafe extern "C-unwind" fn is_enabled(_: This) -> bool {
    ENABLED.load(Ordering::Relaxed)
}

/// `cacheInfo(device, largest)`: `largest` keeps a larger size that the caller found before.
pub(super) unsafe extern "C-unwind" fn cache_info(_: This, device: i8, largest: *mut usize) {
    // SAFETY: PyTorch's C++ called and handles exceptions; `largest` is its variable.
    unsafe {
        let most = answer(0, || on_card(device, |card| card.pool.largest_available() as usize));
        *largest = most.max(*largest);
    }
}

/// Runs `work` on a card.
pub(super) fn on_card<T>(device: i8, work: impl FnOnce(&mut card::Card) -> T) -> Result<T, Refusal> {
    opening::with_card(i32::from(device), work).or_else(|error| refuse(format!("gapless: {error}")))
}
