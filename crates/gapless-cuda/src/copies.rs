//! Copies between a card and pinned host memory, each way on a stream of its own.
//!
//! The streams neither wait for the program's streams nor make them wait, so the caller must know that no work uses the
//! memory. Both directions run at once.

use crate::context::enter;
use crate::device::CudaDevice;
use crate::driver::{CopyDriver, Driver, Handle, NOT_SUPPORTED, SUCCESS, Status};
use gapless_pool::DeviceError;

/// `CU_STREAM_NON_BLOCKING`.
const NON_BLOCKING: u32 = 1;

/// One card's two streams.
#[derive(Debug)]
pub struct Copies {
    base: &'static Driver,
    driver: &'static CopyDriver,
    context: Handle,
    out: Handle,
    back: Handle,
}

// SAFETY: streams and contexts are handles of the driver, which any thread may use.
unsafe impl Send for Copies {}
// SAFETY: the handles never change, and any thread may use them.
unsafe impl Sync for Copies {}

fn check(status: Status) -> Result<(), DeviceError> {
    if status == SUCCESS { Ok(()) } else { Err(DeviceError::Driver(status)) }
}

impl Copies {
    /// The streams of a card.
    ///
    /// # Errors
    /// If the driver gives no stream.
    pub fn new(device: &CudaDevice) -> Result<Copies, DeviceError> {
        let driver = CopyDriver::get().ok_or(DeviceError::Driver(NOT_SUPPORTED))?;
        let base = Driver::get().map_err(|_| DeviceError::Driver(NOT_SUPPORTED))?;
        let _entered = device.enter();
        let stream = || {
            let mut stream: Handle = std::ptr::null_mut();
            // SAFETY: a valid out-pointer; the card's context is current.
            check(unsafe { (driver.stream_create)(&mut stream, NON_BLOCKING) }).map(|()| stream)
        };
        Ok(Copies { base, driver, context: device.context(), out: stream()?, back: stream()? })
    }

    /// Queues a copy from the card to the host.
    ///
    /// # Errors
    /// If the driver refuses.
    ///
    /// # Safety
    /// `to` is pinned and valid for `size` bytes until [`Copies::wait_out`] has returned, and `from` stays mapped until
    /// then.
    pub unsafe fn out(&self, to: u64, from: u64, size: u64) -> Result<(), DeviceError> {
        let _entered = enter(self.base, self.context);
        // SAFETY: our caller keeps both ranges valid until the copy ends; the stream is this card's.
        check(unsafe { (self.driver.copy_out)(to as Handle, from, size as usize, self.out) })
    }

    /// Queues a copy from the host to the card.
    ///
    /// # Errors
    /// If the driver refuses.
    ///
    /// # Safety
    /// As [`Copies::out`], with the roles exchanged, until [`Copies::wait_back`].
    pub unsafe fn back(&self, to: u64, from: u64, size: u64) -> Result<(), DeviceError> {
        let _entered = enter(self.base, self.context);
        // SAFETY: our caller keeps both ranges valid until the copy ends; the stream is this card's.
        check(unsafe { (self.driver.copy_back)(to, from as Handle, size as usize, self.back) })
    }

    /// Waits for all copies to the host.
    ///
    /// # Errors
    /// If one failed.
    pub fn wait_out(&self) -> Result<(), DeviceError> {
        self.wait(self.out)
    }

    /// Waits for all copies to the card.
    ///
    /// # Errors
    /// If one failed.
    pub fn wait_back(&self) -> Result<(), DeviceError> {
        self.wait(self.back)
    }

    fn wait(&self, stream: Handle) -> Result<(), DeviceError> {
        let _entered = enter(self.base, self.context);
        // SAFETY: the stream is this card's.
        check(unsafe { (self.driver.stream_wait)(stream) })
    }
}
