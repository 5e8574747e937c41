//! Filling memory of a card with a pattern, and looking whether it is still there: for checked mode.
//!
//! Both run on a stream of their own that neither waits for the program's streams nor makes them wait, and both
//! return when they are done. So the caller says when memory is quiet. Captures of other streams are not disturbed.

use crate::device::CudaDevice;
use crate::driver::{Handle, SUCCESS, ScrubDriver, Status};
use gapless_pool::DeviceError;

/// What freed memory is filled with: a NaN in float64, float32, float16 and bfloat16, and no index into anything.
pub const PATTERN: u32 = 0x7fde_7fde;
/// Words that are copied to the host at once: 8 MiB.
const CHUNK: usize = 2 << 20;
/// `CU_STREAM_NON_BLOCKING`.
const NON_BLOCKING: u32 = 1;

/// A range that no longer has the pattern everywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// Where the first other word is, in bytes from the beginning.
    pub offset: u64,
    /// What is there.
    pub found: u32,
    /// How many words are not the pattern.
    pub words: u64,
}

/// One card's stream and staging memory.
#[derive(Debug)]
pub struct Scrubber {
    driver: &'static ScrubDriver,
    stream: Handle,
    staging: Vec<u32>,
}

// SAFETY: a stream is the driver's handle, which any thread may use; the struct is behind a lock.
unsafe impl Send for Scrubber {}

fn check(status: Status) -> Result<(), DeviceError> {
    if status == SUCCESS { Ok(()) } else { Err(DeviceError::Driver(status)) }
}

impl Scrubber {
    /// A scrubber of a card.
    ///
    /// # Errors
    /// When the driver gives no stream.
    pub fn new(device: &CudaDevice) -> Result<Scrubber, DeviceError> {
        let driver = ScrubDriver::get().ok_or(DeviceError::Driver(crate::driver::NOT_SUPPORTED))?;
        let _entered = device.enter();
        let mut stream: Handle = std::ptr::null_mut();
        // SAFETY: a valid out-pointer; the card's context is current.
        check(unsafe { (driver.stream_create)(&mut stream, NON_BLOCKING) })?;
        Ok(Scrubber { driver, stream, staging: Vec::new() })
    }

    /// Fills `[addr, addr + size)`, which nobody uses; both are multiples of four.
    ///
    /// # Errors
    /// When the driver refuses, or an earlier kernel of the program failed.
    pub fn fill(&mut self, device: &CudaDevice, addr: u64, size: u64) -> Result<(), DeviceError> {
        let _entered = device.enter();
        // SAFETY: the range is mapped, as the caller says; the stream is this card's.
        unsafe {
            check((self.driver.fill)(addr, PATTERN, (size / 4) as usize, self.stream))?;
            check((self.driver.stream_wait)(self.stream))
        }
    }

    /// Whether `[addr, addr + size)` still has the pattern; `None`: everywhere.
    ///
    /// # Errors
    /// As [`Scrubber::fill`].
    pub fn change(
        &mut self,
        device: &CudaDevice,
        addr: u64,
        size: u64,
    ) -> Result<Option<Change>, DeviceError> {
        let _entered = device.enter();
        let mut change: Option<Change> = None;
        let (mut at, words) = (0, size / 4);
        while at < words {
            let count = (words - at).min(CHUNK as u64) as usize;
            if self.staging.len() < count {
                self.staging.resize(count, 0);
            }
            let to = self.staging.as_mut_ptr().cast();
            // SAFETY: the range is mapped, as the caller says; the staging memory has room, and the copy is over
            // when the call below returns.
            unsafe {
                check((self.driver.copy_out)(to, addr + 4 * at, 4 * count, self.stream))?;
                check((self.driver.stream_wait)(self.stream))?;
            }
            let others = self.staging[..count].iter().zip(at..).filter(|(word, _)| **word != PATTERN);
            for (&found, word) in others {
                change.get_or_insert(Change { offset: 4 * word, found, words: 0 }).words += 1;
            }
            at += count as u64;
        }
        Ok(change)
    }
}

impl CudaDevice {
    /// Keeps from now on, before anything is mapped, which page lies behind which address: in [`CudaDevice::mapped`].
    pub fn keep_mapped(&mut self) {
        self.mapped = Some(crate::mapped::Mapped::default());
    }

    /// Waits for everything that was ever queued on the card by this process.
    ///
    /// # Errors
    /// When work failed.
    pub fn synchronize(&self) -> Result<(), DeviceError> {
        let _entered = self.enter();
        // SAFETY: the card's context is current.
        check(unsafe { (self.driver.synchronize)() })
    }
}
