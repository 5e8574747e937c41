//! Fills memory of a card with a pattern, and compares it later: for checked mode.
//!
//! Both run on a stream of their own that neither waits for the program's streams nor makes them wait, and both return
//! when they are done. So the caller must know that no work uses the memory. Captures are not disturbed.

use crate::device::CudaDevice;
use crate::driver::{Handle, SUCCESS, ScrubDriver, Status};
use gapless_pool::DeviceError;

/// The pattern of freed memory: a NaN in float64, float32, float16 and bfloat16, and not a valid index.
pub const PATTERN: u32 = 0x7fde_7fde;
/// Words that are copied to the host at once: 8 MiB.
const CHUNK: usize = 2 << 20;
/// `CU_STREAM_NON_BLOCKING`.
const NON_BLOCKING: u32 = 1;

/// A range that no longer has the pattern everywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// Offset of the first word that differs, in bytes.
    pub offset: u64,
    /// The value of that word.
    pub found: u32,
    /// Number of words that differ.
    pub words: u64,
}

/// One card's stream and staging memory.
#[derive(Debug)]
pub struct Scrubber {
    driver: &'static ScrubDriver,
    stream: Handle,
    staging: Vec<u32>,
}

// SAFETY: a stream is a handle of the driver, which any thread may use; a lock guards the struct.
unsafe impl Send for Scrubber {}

fn check(status: Status) -> Result<(), DeviceError> {
    if status == SUCCESS { Ok(()) } else { Err(DeviceError::Driver(status)) }
}

impl Scrubber {
    /// A scrubber of a card.
    ///
    /// # Errors
    /// If the driver gives no stream.
    pub fn new(device: &CudaDevice) -> Result<Scrubber, DeviceError> {
        let driver = ScrubDriver::get().ok_or(DeviceError::Driver(crate::driver::NOT_SUPPORTED))?;
        let _entered = device.enter();
        let mut stream: Handle = std::ptr::null_mut();
        // SAFETY: a valid out-pointer; the card's context is current.
        check(unsafe { (driver.stream_create)(&mut stream, NON_BLOCKING) })?;
        Ok(Scrubber { driver, stream, staging: Vec::new() })
    }

    /// Fills `[addr, addr + size)`, which must be mapped and unused; both are multiples of four.
    ///
    /// # Errors
    /// If the driver refuses, or if an earlier kernel of the program failed.
    pub fn fill(&mut self, device: &CudaDevice, addr: u64, size: u64) -> Result<(), DeviceError> {
        let _entered = device.enter();
        // SAFETY: callers pass mapped ranges: checked mode from its record, HIP's trial its own. The stream is this
        // card's.
        unsafe {
            check((self.driver.fill)(addr, PATTERN, (size / 4) as usize, self.stream))?;
            check((self.driver.stream_wait)(self.stream))
        }
    }

    /// Compares `[addr, addr + size)` with the pattern. `None` if it has not changed.
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
            // SAFETY: callers pass mapped ranges: checked mode from its record, HIP's trial its own. The staging memory
            // has room, and the call below waits for the copy.
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
    /// Records from now on, before anything is mapped, the page behind each address: in [`CudaDevice::mapped`].
    pub fn keep_mapped(&mut self) {
        self.mapped = Some(crate::mapped::Mapped::default());
    }

    /// Waits for all work that this process has queued on the card.
    ///
    /// # Errors
    /// If work failed.
    pub fn synchronize(&self) -> Result<(), DeviceError> {
        let _entered = self.enter();
        // SAFETY: the card's context is current.
        check(unsafe { (self.driver.synchronize)() })
    }
}
