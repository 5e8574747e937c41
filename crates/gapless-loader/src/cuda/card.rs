//! One card for one loading: its kept base, the event that the loading follows, and its queue.

use super::driver::{self, Driver, Handle};
use super::kept::{Base, Current, Kernel, STREAMS};
use super::pinned::SLOTS;
use super::queue::{Decode, Engine, Queue};
use crate::error::{LoadError, Result};
use crate::shared::{Settings, locked, ways};
use std::ffi::{CStr, c_void};
use std::ptr::null_mut;
use std::sync::Arc;

/// The kernel for compute capability 7.5 and later; the driver compiles it for the card.
const PTX: &str = concat!(include_str!("../kernel/decode.ptx"), "\0");
const THREADS: u32 = 256;

/// The state of a card that the loading's threads share.
#[derive(Debug)]
pub struct Card {
    pub driver: Driver,
    pub(super) base: Arc<Base>,
    /// Recorded on the caller's stream before the first copy.
    before: Handle,
    /// For copies, and for kernels.
    streams: [Handle; STREAMS],
    pub(super) queue: Queue,
    pub staging: u64,
    pub(super) is_kept: bool,
    pub(super) is_huge: bool,
}

// SAFETY: it has handles of the driver, which any thread may use.
unsafe impl Send for Card {}
// SAFETY: it has handles of the driver, which any thread may use; a mutex guards the queue.
unsafe impl Sync for Card {}

impl Card {
    /// A card for a loading with this number of threads.
    pub fn open(device: u32, settings: Settings, threads: usize, library: Option<&CStr>) -> Result<Card> {
        let (is_kept, is_huge) = (settings.has(ways::KEPT), settings.has(ways::HUGE));
        let base = Base::open(device, library, is_kept)?;
        let driver = base.driver;
        let _relaxed = driver.relaxed();
        // SAFETY: the stream is the caller's, and exists (`Load::start`, `save`).
        if unsafe { driver.is_captured(settings.stream as Handle) } {
            let what =
                "the current stream is being captured into a CUDA graph: load before or after the capture";
            return Err(LoadError::Argument(what.into()));
        }
        let (mut event, queue) = {
            let _current = base.current()?;
            (null_mut(), Queue::new(&driver, threads * SLOTS)?)
        };
        // If one of the calls fails, dropping this gives back what exists by then.
        let mut card = Card {
            driver,
            base,
            before: null_mut(),
            streams: [null_mut(); STREAMS],
            queue,
            staging: settings.staging,
            is_kept,
            is_huge,
        };
        let base = Arc::clone(&card.base);
        let _current = base.current()?;
        // SAFETY: a pointer to a variable that lives through the call. The stream is the caller's, and exists
        // (`Load::start`).
        unsafe {
            driver.check("cuEventCreate", (driver.event)(&raw mut event, driver::UNTIMED))?;
            card.before = event;
            driver.check("cuEventRecord", (driver.record)(event, settings.stream as Handle))?;
        }
        let kept = locked(&base.streams).pop();
        match kept {
            Some(streams) => card.streams = streams,
            None => {
                for at in 0..STREAMS {
                    // SAFETY: a pointer to a value that lives through the call.
                    let status = unsafe { (driver.stream)(&raw mut card.streams[at], driver::NON_BLOCKING) };
                    driver.check("cuStreamCreate", status)?;
                }
            }
        }
        for stream in card.streams {
            // SAFETY: the event was recorded.
            let status = unsafe { (driver.stream_wait)(stream, event, 0) };
            driver.check("cuStreamWaitEvent", status)?;
        }
        Ok(card)
    }

    /// The stream of copies, which run after the earlier work of the caller's stream.
    pub fn stream(&self) -> Handle {
        self.streams[0]
    }

    /// Waits for all copies and kernels.
    pub(super) fn sync(&self) -> Result<()> {
        // All of them, even if one has failed.
        // SAFETY: this card made the streams.
        let statuses = self.streams.map(|stream| unsafe { (self.driver.stream_sync)(stream) });
        statuses.into_iter().try_for_each(|status| self.driver.check("cuStreamSynchronize", status))
    }

    /// Makes the card's context current for this thread.
    pub fn current(&self) -> Result<Current<'_>> {
        self.base.current()
    }

    fn kernel(&self) -> Option<Kernel> {
        *self.base.kernel.get_or_init(|| {
            let (mut module, mut function, mut shared) = (null_mut(), null_mut(), 0);
            // SAFETY: the PTX ends with NUL; the pointers are to variables that live through each call.
            unsafe {
                let d = &self.driver;
                if (d.module)(&raw mut module, PTX.as_ptr().cast()) != 0 {
                    return None;
                }
                let found = (d.function)(&raw mut function, module, c"gapless_decode".as_ptr()) == 0
                    && (d.attribute)(&raw mut shared, driver::SHARED_AT_MOST, self.base.device) == 0
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

    /// Shared memory that a block of the kernel may have. 0 if the host decodes chunks: without a staging area, or if
    /// the driver cannot compile the kernel.
    pub fn shared(&self) -> usize {
        if self.staging == 0 { 0 } else { self.kernel().map_or(0, |kernel| kernel.shared) }
    }
}

impl Engine for Card {
    fn driver(&self) -> &Driver {
        &self.driver
    }

    fn streams(&self) -> [Handle; STREAMS] {
        self.streams
    }

    fn decode(&self, decode: &Decode, stream: Handle) -> Result<()> {
        let Decode { mut chunks, count, room, mut error } = *decode;
        let Some(kernel) = self.kernel() else {
            return Err(LoadError::NoDriver("the kernel cannot be loaded"));
        };
        let mut table = room.a as u32;
        let mut arguments: [*mut c_void; 3] =
            [(&raw mut chunks).cast(), (&raw mut table).cast(), (&raw mut error).cast()];
        // SAFETY: the kernel's three arguments in their types. Each descriptor was checked against the bytes of its
        // chunk, and the targets are as `Load::start` demands.
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
        let base = Arc::clone(&self.base);
        let Ok(_current) = base.current() else { return };
        self.queue.end(&self.driver);
        if !self.before.is_null() {
            // SAFETY: the threads that waited for the event have ended. A failure here cannot be handled.
            unsafe { (self.driver.end_event)(self.before) };
        }
        if self.is_kept && self.streams.iter().all(|stream| !stream.is_null()) {
            locked(&self.base.streams).push(self.streams);
            return;
        }
        for stream in self.streams.into_iter().filter(|stream| !stream.is_null()) {
            // SAFETY: this value owns the stream, and the threads that used it have ended.
            unsafe { (self.driver.end_stream)(stream) };
        }
    }
}
