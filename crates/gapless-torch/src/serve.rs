//! What a request and a free do, whichever way PyTorch came: through the plain hooks or the overlay.
//!
//! What is recorded is told under the lock that orders it: of the lane, or of the card.
//! Stacks for a history or a recording are gathered before the card is locked, observers of failures are called after: both may take Python's lock.

use crate::budgets;
use crate::exception::{self, Kind};
use crate::history::{self, level};
use crate::hooks::{guarded, set_error};
use crate::recorder;
use crate::state::{self, CARDS, Card};
use gapless_pool::{AllocError, PoolKey, StreamHandle};
use gapless_trace::Action;
use std::cell::Cell;
use std::ffi::c_void;

/// A request that failed.
enum Failure {
    /// With what observers are told: the card's size, or what of it may be held, and what of it is free.
    OutOfMemory {
        message: String,
        total: u64,
        free: u64,
    },
    Other(String),
}

/// Memory for `size` bytes, null for none. Throws where there is no memory.
///
/// # Safety
/// Called from C++ that may be thrown through.
#[inline]
pub unsafe fn request(size: usize, device: i32, stream: *mut c_void) -> *mut c_void {
    if size == 0 {
        return std::ptr::null_mut();
    }
    if history::is_watched() {
        // SAFETY: as the caller says.
        return unsafe { watched_request(size, device, stream) };
    }
    let is_recorded = recorder::is_on();
    let budget = budgets::open_on(device);
    let line = if is_recorded { guarded(0, recorder::stack) } else { 0 };
    let quick = || {
        let (fronts, size, stream, pool) =
            (state::fronts(device)?, size as u64, StreamHandle(stream as u64), PoolKey(0, 0));
        if is_recorded {
            let tell = |addr| recorder::note(Action::Alloc, device, line, (addr, size), stream, pool);
            fronts.alloc_for(size, stream, pool, budget, tell)
        } else {
            fronts.alloc_for(size, stream, pool, budget, |_| ())
        }
    };
    if !state::is_forked()
        && let Some(addr) = guarded(None, quick)
    {
        return addr as *mut c_void;
    }
    let inside = || Failure::Other("the allocator failed inside; please report it".to_owned());
    let served = guarded(Err(inside()), || {
        state::with_card(device, |card| {
            let served =
                card.alloc(size as u64, stream, budget).map_err(|error| explain(card, device, error));
            if is_recorded {
                match &served {
                    Ok(addr) => card.record_alloc(device, *addr, line),
                    Err(Failure::OutOfMemory { free, .. }) => {
                        card.record_failure(device, *free, size as u64, stream, line);
                    }
                    Err(Failure::Other(_)) => {}
                }
            }
            served
        })
        .unwrap_or_else(|error| Err(Failure::Other(error.to_string())))
    });
    match served {
        Ok(addr) => addr as *mut c_void,
        // SAFETY: as the caller says.
        Err(failure) => unsafe { fail(device, size as u64, failure) },
    }
}

#[cold]
unsafe fn watched_request(size: usize, device: i32, stream: *mut c_void) -> *mut c_void {
    // SAFETY: as the caller says.
    let stack = unsafe { history::stack(level::STATE) };
    let line = guarded(0, recorder::stack);
    let inside = || Failure::Other("the allocator failed inside; please report it".to_owned());
    let served = guarded(Err(inside()), || {
        let budget = budgets::open_on(device);
        state::with_card(device, |card| match card.alloc(size as u64, stream, budget) {
            Ok(addr) => {
                card.note_alloc(device, addr, stack);
                card.record_alloc(device, addr, line);
                Ok(addr)
            }
            Err(error) => {
                let failure = explain(card, device, error);
                if let Failure::OutOfMemory { free, .. } = failure {
                    card.note_failure(device, size as u64, stream, free, stack);
                    card.record_failure(device, free, size as u64, stream, line);
                }
                Err(failure)
            }
        })
        .unwrap_or_else(|error| Err(Failure::Other(error.to_string())))
    });
    match served {
        Ok(addr) => addr as *mut c_void,
        // SAFETY: as the caller says.
        Err(failure) => unsafe { fail(device, size as u64, failure) },
    }
}

#[cold]
fn explain(card: &mut Card, device: i32, error: AllocError) -> Failure {
    use gapless_pool::Device;
    let AllocError::OutOfMemory { size, device: reason } = error;
    let (free, total) = card.pool.device_mut().memory();
    let total = card.pool.limit().unwrap_or(total);
    Failure::OutOfMemory { message: card.explain(device, size, reason), total, free }
}

/// # Safety
/// Called where C++ may be thrown through.
#[cold]
unsafe fn fail(device: i32, size: u64, failure: Failure) -> *mut c_void {
    let message = match failure {
        Failure::OutOfMemory { message, total, free } => {
            // SAFETY: as the caller says; no card is locked.
            unsafe { history::tell_observers(device, size, total, free) };
            message
        }
        Failure::Other(message) => message,
    };
    set_error(&message);
    // SAFETY: as the caller says.
    unsafe { exception::throw(Kind::OutOfMemory, message) };
    std::ptr::null_mut()
}

thread_local! {
    /// Where this thread's last free went: its next one goes there too, as a rule.
    static LAST: Cell<i32> = const { Cell::new(0) };
}

/// Gives memory back; of the card `device`, or of whichever has it. Whether there was something to give back.
///
/// # Safety
/// Called from C++ that may be thrown through.
#[inline]
pub unsafe fn give_back(pointer: *mut c_void, device: Option<i32>) -> bool {
    if pointer.is_null() || state::is_forked() {
        return true;
    }
    // SAFETY: as the caller says.
    let stack = if history::is_watched() { unsafe { history::stack(level::ALL) } } else { None };
    guarded(true, || {
        let free_on = |device: i32| {
            let addr = pointer as u64;
            let is_recorded = recorder::is_on();
            let quick = |fronts: &gapless_pool::Fronts| {
                if !is_recorded {
                    return fronts.free(addr);
                }
                fronts.free_after(addr, |size, stream, pool| {
                    recorder::note(Action::FreeCompleted, device, 0, (addr, size), stream, pool);
                })
            };
            if !history::is_watched() && state::fronts(device).is_some_and(quick) {
                return true;
            }
            let Some(mut card) = state::existing(device) else { return false };
            if !history::is_watched() {
                return if is_recorded { card.free_recorded(device, addr) } else { card.free(addr) };
            }
            if !card.pool.is_live(addr) {
                return false;
            }
            card.note_free(device, addr, stack.clone());
            let freed = card.free(addr);
            card.note_changes(device, stack.as_ref());
            freed
        };
        if let Some(device) = device {
            return free_on(device);
        }
        let last = LAST.get();
        if free_on(last) {
            return true;
        }
        let found = (0..CARDS as i32).filter(|&device| device != last).find(|&device| free_on(device));
        if let Some(device) = found {
            LAST.set(device);
        }
        found.is_some()
    })
}
