//! State that outlives a loading: the card's context, the compiled kernel, and rings of pinned memory and their
//! streams.
//!
//! Pinning memory and compiling the kernel take longer than loading a gigabyte. So they are kept for the next loading
//! if the settings say so, until `release`. At the process's end nothing is given back: the driver may be gone.

use super::driver::{Driver, Handle};
use super::pinned::Pinned;
use crate::error::Result;
use crate::shared::locked;
use std::ffi::{CStr, CString, c_int};
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, OnceLock};

/// Streams of a loading, which its threads share: one for copies, and one for kernels, which run beside the copies.
pub(super) const STREAMS: usize = 2;

/// A card's context, and what is kept with it.
#[derive(Debug)]
pub struct Base {
    pub driver: Driver,
    pub device: c_int,
    pub context: Handle,
    pub(super) kernel: OnceLock<Option<Kernel>>,
    /// Streams that are not in use, those of a loading together.
    pub(super) streams: Mutex<Vec<[Handle; STREAMS]>>,
    /// Rings that are not in use.
    pub(super) rings: Mutex<Vec<Pinned>>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Kernel {
    pub(super) module: Handle,
    pub(super) function: Handle,
    /// Shared memory that a block may have.
    pub(super) shared: usize,
}

// SAFETY: it has handles of the driver, which any thread may use. The thread that takes a ring owns its pinned memory.
unsafe impl Send for Base {}
// SAFETY: it has handles of the driver, which any thread may use; mutexes guard the lists.
unsafe impl Sync for Base {}

/// The card's context, current for this thread while the value lives.
#[derive(Debug)]
pub struct Current<'a>(&'a Base);

impl Drop for Current<'_> {
    fn drop(&mut self) {
        let mut old = null_mut();
        // SAFETY: undoes the push of `Base::current` on the same thread.
        unsafe { (self.0.driver.pop)(&raw mut old) };
    }
}

type Known = (u32, Option<CString>, Arc<Base>);
static KEPT: Mutex<Vec<Known>> = Mutex::new(Vec::new());

impl Base {
    /// The card's base: the kept one, or a new one, which is kept if `is_kept`.
    pub(super) fn open(device: u32, library: Option<&CStr>, is_kept: bool) -> Result<Arc<Base>> {
        let mut all = locked(&KEPT);
        let is_same = |known: &&Known| known.0 == device && known.1.as_deref() == library;
        if is_kept && let Some(known) = all.iter().find(is_same) {
            return Ok(Arc::clone(&known.2));
        }
        let driver = Driver::open(library)?;
        let (mut number, mut context) = (0, null_mut());
        // SAFETY: pointers to variables that live through each call.
        unsafe {
            driver.check("cuInit", (driver.init)(0))?;
            driver.check("cuDeviceGet", (driver.device)(&raw mut number, device as c_int))?;
            driver.check("cuDevicePrimaryCtxRetain", (driver.retain)(&raw mut context, number))?;
        }
        let (kernel, streams, rings) = (OnceLock::new(), Mutex::default(), Mutex::default());
        let base = Arc::new(Base { driver, device: number, context, kernel, streams, rings });
        if is_kept {
            all.push((device, library.map(CStr::to_owned), Arc::clone(&base)));
        }
        Ok(base)
    }

    /// Makes the card's context current for this thread.
    pub fn current(&self) -> Result<Current<'_>> {
        // SAFETY: the context is retained as long as the base lives.
        self.driver.check("cuCtxPushCurrent", unsafe { (self.driver.push)(self.context) })?;
        Ok(Current(self))
    }
}

/// Gives back everything that is kept, on all cards. Loadings under way give back their part at their end.
pub fn release() {
    let all = std::mem::take(&mut *locked(&KEPT));
    drop(all);
}

impl Drop for Base {
    fn drop(&mut self) {
        // SAFETY: the threads that used these have ended. A failure here cannot be handled.
        unsafe {
            if (self.driver.push)(self.context) == 0 {
                for ring in locked(&self.rings).drain(..) {
                    ring.end(&self.driver);
                }
                for stream in locked(&self.streams).drain(..).flatten() {
                    (self.driver.end_stream)(stream);
                }
                if let Some(Some(kernel)) = self.kernel.get() {
                    (self.driver.end_module)(kernel.module);
                }
                let mut old = null_mut();
                (self.driver.pop)(&raw mut old);
            }
            (self.driver.release)(self.device);
        }
    }
}
