//! One card for one loading: its context, its kernel, and the event that the loading follows.

use super::chunk::Room;
use super::driver::{self, Driver, Handle};
use crate::error::Result;
use crate::shared::Settings;
use std::ffi::{CStr, c_int, c_void};
use std::ptr::null_mut;
use std::sync::OnceLock;

/// The kernel for compute capability 7.5 and later; the driver compiles it for the card.
const PTX: &str = concat!(include_str!("../kernel/decode.ptx"), "\0");
const THREADS: u32 = 256;

/// What the loading's threads share of a card.
#[derive(Debug)]
pub struct Card {
    pub driver: Driver,
    device: c_int,
    context: Handle,
    /// Recorded on the caller's stream before the first copy.
    before: Handle,
    pub staging: u64,
    kernel: OnceLock<Option<Kernel>>,
}

#[derive(Clone, Copy, Debug)]
struct Kernel {
    module: Handle,
    function: Handle,
    /// Shared memory that a block may have.
    shared: usize,
}

// SAFETY: handles of the driver, which any thread may use.
unsafe impl Send for Card {}
// SAFETY: as above.
unsafe impl Sync for Card {}

/// The card's context, current for this thread while the value lives.
#[derive(Debug)]
pub struct Current<'a>(&'a Card);

impl Drop for Current<'_> {
    fn drop(&mut self) {
        let mut old = null_mut();
        // SAFETY: undoes the push of `Card::current` on the same thread.
        unsafe { (self.0.driver.pop)(&raw mut old) };
    }
}

impl Card {
    pub fn open(device: u32, settings: Settings, library: Option<&CStr>) -> Result<Card> {
        let driver = Driver::open(library)?;
        let (mut number, mut context) = (0, null_mut());
        // SAFETY: pointers to values that live through each call.
        unsafe {
            driver.check("cuInit", (driver.init)(0))?;
            driver.check("cuDeviceGet", (driver.device)(&raw mut number, device as c_int))?;
            driver.check("cuDevicePrimaryCtxRetain", (driver.retain)(&raw mut context, number))?;
        }
        let mut card = Card {
            driver,
            device: number,
            context,
            before: null_mut(),
            staging: settings.staging,
            kernel: OnceLock::new(),
        };
        let mut event = null_mut();
        {
            let _current = card.current()?;
            // SAFETY: as above; the stream is the caller's, as `Load::start` was promised.
            unsafe {
                driver.check("cuEventCreate", (driver.event)(&raw mut event, driver::SLEEPING))?;
                driver.check("cuEventRecord", (driver.record)(event, settings.stream as Handle))?;
            }
        }
        card.before = event;
        Ok(card)
    }

    /// Makes the card's context current for this thread.
    pub fn current(&self) -> Result<Current<'_>> {
        // SAFETY: the context is retained as long as the card lives.
        self.driver.check("cuCtxPushCurrent", unsafe { (self.driver.push)(self.context) })?;
        Ok(Current(self))
    }

    /// A new stream whose work follows what the caller's stream had to do.
    pub fn stream(&self) -> Result<Handle> {
        let mut stream = null_mut();
        // SAFETY: a pointer to a value that lives through the call; the event was recorded.
        unsafe {
            self.driver
                .check("cuStreamCreate", (self.driver.stream)(&raw mut stream, driver::NON_BLOCKING))?;
            self.driver.check("cuStreamWaitEvent", (self.driver.stream_wait)(stream, self.before, 0))?;
        }
        Ok(stream)
    }

    fn kernel(&self) -> Option<Kernel> {
        *self.kernel.get_or_init(|| {
            let (mut module, mut function, mut shared) = (null_mut(), null_mut(), 0);
            // SAFETY: the PTX ends in a zero; pointers to values that live through each call.
            unsafe {
                let d = &self.driver;
                if (d.module)(&raw mut module, PTX.as_ptr().cast()) != 0 {
                    return None;
                }
                let found = (d.function)(&raw mut function, module, c"gapless_decode".as_ptr()) == 0
                    && (d.attribute)(&raw mut shared, driver::SHARED_AT_MOST, self.device) == 0
                    && shared > 4096
                    && (d.set_function)(function, driver::DYNAMIC_SHARED, shared - 1024) == 0;
                if !found {
                    (d.end_module)(module);
                    return None;
                }
            }
            Some(Kernel { module, function, shared: shared as usize })
        })
    }

    /// Shared memory that a block of the kernel may have; 0 where chunks are decoded on the host: without a staging
    /// area, or where the driver cannot compile the kernel.
    pub fn shared(&self) -> usize {
        if self.staging == 0 { 0 } else { self.kernel().map_or(0, |kernel| kernel.shared) }
    }

    /// Decodes `count` chunks whose descriptors stand at `chunks` on the card. The kernel writes what is damaged to
    /// `error`, a word of pinned memory.
    pub(super) fn decode(
        &self,
        chunks: u64,
        count: u32,
        room: Room,
        error: u64,
        stream: Handle,
    ) -> Result<()> {
        let Some(kernel) = self.kernel() else {
            return Err(crate::error::LoadError::NoDriver("the kernel cannot be loaded"));
        };
        let (mut chunks, mut table, mut error) = (chunks, room.a as u32, error);
        let mut arguments: [*mut c_void; 3] =
            [(&raw mut chunks).cast(), (&raw mut table).cast(), (&raw mut error).cast()];
        // SAFETY: the kernel's three arguments in their types. Each descriptor was checked against the bytes that it
        // stands for, and `Load::start` was promised the targets.
        let status = unsafe {
            (self.driver.launch)(
                kernel.function,
                count,
                1,
                1,
                THREADS,
                1,
                1,
                (room.a + room.b) as u32,
                stream,
                arguments.as_mut_ptr(),
                null_mut(),
            )
        };
        self.driver.check("cuLaunchKernel", status)
    }
}

impl Drop for Card {
    fn drop(&mut self) {
        // SAFETY: the threads that used these have ended. What fails here cannot be helped.
        unsafe {
            if (self.driver.push)(self.context) == 0 {
                if let Some(Some(kernel)) = self.kernel.get() {
                    (self.driver.end_module)(kernel.module);
                }
                if !self.before.is_null() {
                    (self.driver.end_event)(self.before);
                }
                let mut old = null_mut();
                (self.driver.pop)(&raw mut old);
            }
            (self.driver.release)(self.device);
        }
    }
}
