//! The C ABI for programs that are not PyTorch: `include/gapless.h` declares and describes it.
//!
//! No function here unwinds or throws. A function that fails leaves a code and a message for the thread that called.

use crate::card::Card;
use crate::cards;
use crate::guard::{guarded, set_error};
use crate::opening;
use crate::outside;
use crate::process;
use crate::serve::plain::{self, Refused};
use crate::stats;
use gapless_pool::Device;
use std::cell::Cell;
use std::ffi::c_void;

/// `GAPLESS_ABI` of the header.
const ABI: i32 = 1;

// The codes of the header.
const OK: i32 = 0;
const OUT_OF_MEMORY: i32 = 1;
const INVALID_ARGUMENT: i32 = 2;
const UNAVAILABLE: i32 = 3;

thread_local! {
    static LAST_CODE: Cell<i32> = const { Cell::new(OK) };
}

/// `gapless_mem_stats_t` of the header. New fields go to the end.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemStats {
    pub allocated: u64,
    pub allocated_peak: u64,
    pub reserved: u64,
    pub reserved_peak: u64,
    pub requested: u64,
    pub allocations: u64,
    pub allocations_total: u64,
    pub failures: u64,
    pub limit: u64,
    pub device_free: u64,
    pub device_total: u64,
}

impl MemStats {
    fn of(card: &mut Card) -> MemStats {
        let (device_free, device_total) = card.pool.device_mut().memory();
        let stats = card.pool.stats();
        MemStats {
            allocated: stats.allocated.current,
            allocated_peak: stats.allocated.peak,
            reserved: stats.reserved.current,
            reserved_peak: stats.reserved.peak,
            requested: stats.requested.current,
            allocations: stats.allocations.current,
            allocations_total: stats.allocations.total,
            failures: card.failed,
            limit: card.most().unwrap_or(0),
            device_free,
            device_total,
        }
    }
}

/// Keeps the result's code, and its message if it failed, for this thread.
fn code_of(done: Result<(), Refused>) -> i32 {
    let code = match done {
        Ok(()) => OK,
        Err(refused) => {
            let (code, message) = match refused {
                Refused::OutOfMemory(message) => (OUT_OF_MEMORY, message),
                Refused::Argument(message) => (INVALID_ARGUMENT, message),
                Refused::Unavailable(message) => (UNAVAILABLE, message),
            };
            set_error(&message);
            code
        }
    };
    LAST_CODE.set(code);
    code
}

#[unsafe(no_mangle)]
pub extern "C" fn gapless_mem_abi() -> i32 {
    ABI
}

#[unsafe(no_mangle)]
pub extern "C" fn gapless_mem_last_code() -> i32 {
    LAST_CODE.get()
}

#[unsafe(no_mangle)]
pub extern "C" fn gapless_mem_alloc(size: usize, device: i32, stream: *mut c_void) -> *mut c_void {
    if size == 0 {
        LAST_CODE.set(OK);
        return std::ptr::null_mut();
    }
    let served = plain::request(size as u64, device, stream as u64);
    let addr = *served.as_ref().unwrap_or(&0);
    code_of(served.map(drop));
    addr as *mut c_void
}

#[unsafe(no_mangle)]
pub extern "C" fn gapless_mem_free(pointer: *mut c_void) -> i32 {
    code_of(plain::give_back(pointer as u64, None))
}

#[unsafe(no_mangle)]
pub extern "C" fn gapless_mem_free_on(pointer: *mut c_void, stream: *mut c_void) -> i32 {
    code_of(plain::give_back(pointer as u64, Some(stream as u64)))
}

#[unsafe(no_mangle)]
pub extern "C" fn gapless_mem_record_stream(pointer: *mut c_void, stream: *mut c_void) -> i32 {
    code_of(plain::use_on(pointer as u64, stream as u64))
}

/// # Safety
/// `out` is null, or valid for a write of `room` bytes (gapless.h passes the size of the caller's structure).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_mem_stats(device: i32, out: *mut MemStats, room: usize) -> i32 {
    if out.is_null() {
        return code_of(Err(Refused::Argument(
            "gapless_mem_stats: the place for the result is NULL".to_owned(),
        )));
    }
    let found = guarded(MemStats::default(), || {
        // A card that was not used has nothing to report.
        let card = if process::is_forked() { None } else { cards::existing(device) };
        card.map_or_else(MemStats::default, |mut card| MemStats::of(&mut card))
    });
    // SAFETY: `out` has `room` bytes: the caller's header passes the size of its own structure, which may be older or
    // newer. All of it is zeroed, and the fields that both have are copied.
    unsafe {
        out.cast::<u8>().write_bytes(0, room);
        out.cast::<u8>().copy_from_nonoverlapping((&raw const found).cast(), room.min(size_of::<MemStats>()));
    }
    code_of(Ok(()))
}

#[unsafe(no_mangle)]
pub extern "C" fn gapless_mem_reset_peaks(device: i32) {
    guarded((), || {
        if !process::is_forked()
            && let Some(mut card) = cards::existing(device)
        {
            stats::restart_peaks(&mut card);
        }
    });
}

#[unsafe(no_mangle)]
pub extern "C" fn gapless_mem_trim(device: i32) -> u64 {
    guarded(0, || outside::trim(device))
}

#[unsafe(no_mangle)]
pub extern "C" fn gapless_mem_set_limit(device: i32, bytes: u64) -> i32 {
    let inside = Err(Refused::Unavailable("the allocator failed inside; please report it".to_owned()));
    code_of(guarded(inside, || {
        let limit = (bytes > 0).then_some(bytes);
        opening::with_card(device, |card| card.set_limit(limit))
            .map_err(|error| Refused::Unavailable(error.to_string()))
    }))
}

/// The file and line at which the lock number `at` was made, for tests that fork while it is held. Returns the length
/// of the text; 0 if there is no such lock.
///
/// # Safety
/// `out` is valid for `room` writes.
#[cfg(debug_assertions)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_lock_place(at: usize, out: *mut u8, room: usize) -> usize {
    let Some(place) = gapless_cuda::locks::known::place(at) else { return 0 };
    let size = place.len().min(room);
    // SAFETY: `out` has `room` bytes (the test's buffer), and `size` is no more than that.
    unsafe { out.copy_from_nonoverlapping(place.as_ptr(), size) };
    size
}

/// Takes that lock and keeps it. 0 if there is none.
#[cfg(debug_assertions)]
#[unsafe(no_mangle)]
pub extern "C" fn gapless_lock_hold(at: usize) -> i32 {
    i32::from(gapless_cuda::locks::known::hold(at))
}

/// Releases the lock that [`gapless_lock_hold`] took.
#[cfg(debug_assertions)]
#[unsafe(no_mangle)]
pub extern "C" fn gapless_lock_let_go(at: usize) {
    gapless_cuda::locks::known::let_go(at);
}
