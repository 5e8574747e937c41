//! Pinned host memory for copies that run beside kernels. It is portable: every card can use it.
//!
//! The driver's own allocation touches one page after the other, 0.5 s a GiB. Large requests are mapped as huge pages
//! instead, touched by several threads, and then registered with the driver, which is many times faster.

use crate::device::CudaDevice;
use crate::driver::{
    DriverError, HOST_PORTABLE, Handle, OUT_OF_MEMORY, PinningDriver, RegisterDriver, SUCCESS,
};
use gapless_pool::DeviceError;
use gapless_pool::host::Pinner;
use std::ffi::{c_int, c_void};

/// From this size on, several threads touch the memory.
const LARGE: usize = 64 << 20;
const MOST_THREADS: usize = 16;
const HUGE_PAGE: usize = 2 << 20;

const READ_WRITE: c_int = 3;
const PRIVATE_ANONYMOUS: c_int = 0x22;
const ADVICE_HUGE: c_int = 14;

unsafe extern "C" {
    fn mmap(at: *mut c_void, size: usize, access: c_int, flags: c_int, file: c_int, from: i64)
    -> *mut c_void;
    fn munmap(at: *mut c_void, size: usize) -> c_int;
    fn madvise(at: *mut c_void, size: usize, advice: c_int) -> c_int;
}

/// The driver's pinned memory, through the context of one card.
#[derive(Debug)]
pub struct Pinned {
    driver: &'static PinningDriver,
    card: CudaDevice,
    /// Memory that was mapped here and registered.
    registered: Vec<(u64, usize)>,
}

impl Pinned {
    /// Pins through the context of the card with this number.
    ///
    /// # Errors
    /// If there is no driver or no such card.
    pub fn new(ordinal: i32) -> Result<Pinned, DriverError> {
        Ok(Pinned { card: CudaDevice::new(ordinal)?, driver: PinningDriver::get()?, registered: Vec::new() })
    }

    /// Memory that several threads touch, registered. `None` if that fails; then the driver's own allocation is tried.
    fn pin_large(&mut self, size: usize) -> Option<u64> {
        let driver = RegisterDriver::get()?;
        let room = size.checked_next_multiple_of(HUGE_PAGE)?.checked_add(HUGE_PAGE)?;
        // SAFETY: asks for new memory at any address.
        let base = unsafe { mmap(std::ptr::null_mut(), room, READ_WRITE, PRIVATE_ANONYMOUS, -1, 0) } as usize;
        if base == usize::MAX {
            return None;
        }
        let (start, length) = (base.next_multiple_of(HUGE_PAGE), room - HUGE_PAGE);
        // SAFETY: both ends lie in the memory that was mapped above, outside of the part that is kept.
        unsafe {
            if start > base {
                munmap(base as *mut c_void, start - base);
            }
            if start + length < base + room {
                munmap((start + length) as *mut c_void, base + room - start - length);
            }
            madvise(start as *mut c_void, length, ADVICE_HUGE);
        }
        touch(start, length);
        // SAFETY: mapped above, and stays mapped while it is registered.
        if unsafe { (driver.register)(start as Handle, length, HOST_PORTABLE) } == SUCCESS {
            self.registered.push((start as u64, length));
            return Some(start as u64);
        }
        // SAFETY: mapped above, and no other code knows its address.
        unsafe { munmap(start as *mut c_void, length) };
        None
    }
}

/// Writes to each page, from several threads.
fn touch(start: usize, length: usize) {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let part = length.div_ceil(cores.min(MOST_THREADS)).next_multiple_of(HUGE_PAGE);
    std::thread::scope(|scope| {
        for from in (0..length).step_by(part) {
            let touch = move || {
                for at in (from..(from + part).min(length)).step_by(4096) {
                    // SAFETY: within the memory that the caller has just mapped, in this thread's own part.
                    unsafe { ((start + at) as *mut u8).write_volatile(0) };
                }
            };
            // If the system starts no thread, this one does it.
            if std::thread::Builder::new().spawn_scoped(scope, touch).is_err() {
                touch();
            }
        }
    });
}

impl Pinner for Pinned {
    fn pin(&mut self, size: u64) -> Result<u64, DeviceError> {
        let size = usize::try_from(size).map_err(|_| DeviceError::OutOfMemory)?;
        let _entered = self.card.enter();
        if size >= LARGE
            && let Some(at) = self.pin_large(size)
        {
            return Ok(at);
        }
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
        let registered = self.registered.iter().position(|(at, _)| *at == addr);
        // SAFETY: `pin` gave this memory, and the host pool unpins it only when no copy uses it.
        unsafe {
            match (registered, RegisterDriver::get()) {
                (Some(at), Some(driver)) => {
                    let (_, length) = self.registered.swap_remove(at);
                    // If the driver does not unregister it, it stays mapped.
                    if (driver.unregister)(addr as Handle) == SUCCESS {
                        munmap(addr as *mut c_void, length);
                    }
                }
                _ => {
                    (self.driver.free)(addr as Handle);
                }
            }
        }
    }
}
