//! Pinned host memory from the driver, for copies that run beside kernels. It is portable: every card can use it, no
//! matter which card's context pinned it.

use crate::device::CudaDevice;
use crate::driver::{DriverError, HOST_PORTABLE, Handle, OUT_OF_MEMORY, PinningDriver, SUCCESS};
use gapless_pool::DeviceError;
use gapless_pool::host::Pinner;

/// The driver's pinned memory, through the context of one card.
#[derive(Debug)]
pub struct Pinned {
    driver: &'static PinningDriver,
    card: CudaDevice,
}

impl Pinned {
    /// Through the card with this number.
    ///
    /// # Errors
    /// When there is no driver or no such card.
    pub fn new(ordinal: i32) -> Result<Pinned, DriverError> {
        Ok(Pinned { card: CudaDevice::new(ordinal)?, driver: PinningDriver::get()? })
    }
}

impl Pinner for Pinned {
    fn pin(&mut self, size: u64) -> Result<u64, DeviceError> {
        let size = usize::try_from(size).map_err(|_| DeviceError::OutOfMemory)?;
        let _entered = self.card.enter();
        let mut at: Handle = std::ptr::null_mut();
        // SAFETY: a valid out-pointer.
        match unsafe { (self.driver.alloc)(&mut at, size, HOST_PORTABLE) } {
            SUCCESS => Ok(at as u64),
            OUT_OF_MEMORY => Err(DeviceError::OutOfMemory),
            other => Err(DeviceError::Driver(other)),
        }
    }

    fn unpin(&mut self, addr: u64, _size: u64) {
        let _entered = self.card.enter();
        // SAFETY: `pin` gave it, and who freed its blocks promised that no copy uses them.
        unsafe { (self.driver.free)(addr as Handle) };
    }
}
