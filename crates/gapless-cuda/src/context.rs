//! A call to the driver in a card's context, and the meaning of its answers.

use crate::driver::{CAPTURE_RELAXED, Driver, Handle, OUT_OF_MEMORY, SUCCESS, Status};
use crate::unified;
use gapless_pool::DeviceError;
use std::cell::Cell;

/// Makes the card's context current for a call, and keeps the call from ending captures of other streams.
pub(crate) struct Entered<'a> {
    driver: &'a Driver,
    mode: i32,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        let mut context: Handle = std::ptr::null_mut();
        // SAFETY: out-pointers of our own. These calls undo those in `enter`.
        unsafe {
            (self.driver.exchange_capture_mode)(&mut self.mode);
            (self.driver.pop_context)(&mut context);
        }
    }
}

thread_local! {
    /// Number of times that this thread has entered the driver.
    static ENTRIES: Cell<u64> = const { Cell::new(0) };
}

/// Number of times that the calling thread has entered the driver through this crate.
#[must_use]
pub fn entries() -> u64 {
    ENTRIES.get()
}

pub(crate) fn enter(driver: &'static Driver, context: Handle) -> Entered<'static> {
    // A thread that ends may free memory after its thread-local variables are gone.
    let _ = ENTRIES.try_with(|entries| entries.set(entries.get() + 1));
    let mut mode = CAPTURE_RELAXED;
    // SAFETY: `CudaDevice::new` retained the context, which is never released.
    unsafe {
        (driver.push_context)(context);
        (driver.exchange_capture_mode)(&mut mode);
    }
    Entered { driver, mode }
}

pub(crate) fn check(status: Status) -> Result<(), DeviceError> {
    match status {
        SUCCESS => Ok(()),
        OUT_OF_MEMORY => Err(DeviceError::OutOfMemory),
        other => Err(DeviceError::Driver(other)),
    }
}

/// Free and total bytes of a card, from the driver's figures, corrected if the memory is the host's.
pub(crate) fn told(is_unified: bool, free: u64, total: u64) -> (u64, u64) {
    if is_unified { (unified::free_of(free, total), total) } else { (free, total) }
}
