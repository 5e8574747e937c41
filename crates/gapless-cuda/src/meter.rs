//! Questions to a card that need no lock, and a wait for all its work.
//!
//! A program may capture streams without telling us, and a wait must not end those captures. On an H200
//! (`torch-bench/live/capture_rules.py`), `cuCtxSynchronize` ends every open capture. The functions that free memory
//! end none, and wait, but keep all other threads from queueing work meanwhile. `cuModuleUnload` ends none, waits, and
//! does not disturb other threads. So this loads a module that does nothing, and unloads it to wait.

use crate::context::{check, enter, told};
use crate::driver::{Driver, Handle, SUCCESS, WaitDriver};
use crate::locks::Lock;
use gapless_pool::{DeviceError, EventHandle};

/// A card's memory, asked without the card's lock, and a wait for its work.
#[derive(Clone, Copy, Debug)]
pub struct Meter {
    pub(crate) driver: &'static Driver,
    pub(crate) context: Handle,
    pub(crate) is_unified: bool,
}

// SAFETY: the context is a handle of the driver, which any thread may use. `CudaDevice::new` retained it for good.
unsafe impl Send for Meter {}
// SAFETY: the handle never changes, and any thread may use it.
unsafe impl Sync for Meter {}

impl Meter {
    /// [`Device::wait_for_all`](gapless_pool::Device::wait_for_all), without the card's lock.
    ///
    /// # Errors
    /// If the driver refuses, or if work failed.
    pub fn wait_for_all(&self) -> Result<(), DeviceError> {
        let _entered = enter(self.driver, self.context);
        if let Some(driver) = WaitDriver::get() {
            if let Some(module) = spare(driver, self.context) {
                // SAFETY: a module of this context, which `spare` removed from the list, so no other thread has it.
                let waited = check(unsafe { (driver.module_unload)(module) });
                keep_spare(driver, self.context);
                return waited;
            }
            let mut addr = 0;
            // SAFETY: an out-pointer of our own, and the address that the driver wrote there.
            unsafe {
                if (driver.alloc)(&mut addr, WAITING_BYTES) == SUCCESS {
                    return check((driver.free)(addr));
                }
            }
        }
        // SAFETY: the context was entered.
        check(unsafe { (self.driver.synchronize)() })
    }

    /// [`Device::wait`](gapless_pool::Device::wait), without the card's lock. The pool keeps the event meanwhile.
    ///
    /// # Errors
    /// If the driver refuses.
    pub fn wait(&self, event: EventHandle) -> Result<(), DeviceError> {
        let _entered = enter(self.driver, self.context);
        // SAFETY: an event of the card's device, which the pool discards only after this wait.
        check(unsafe { (self.driver.event_wait)(event.0 as Handle) })
    }

    /// Free and total bytes of the card; `None` if the driver does not answer any more.
    #[must_use]
    pub fn memory(&self) -> Option<(u64, u64)> {
        let _entered = enter(self.driver, self.context);
        let (mut free, mut total) = (0usize, 0usize);
        // SAFETY: out-pointers of our own.
        let status = unsafe { (self.driver.mem_info)(&mut free, &mut total) };
        (status == SUCCESS).then_some(told(self.is_unified, free as u64, total as u64))
    }
}

/// Bytes that are allocated and freed to wait, on a driver that loads no module.
const WAITING_BYTES: usize = 2 << 20;

/// The module as text, which the driver compiles.
const MODULE: &[u8] =
    b".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry gapless_waits()\n{\nret;\n}\n\0";

/// Loaded modules that do nothing, one for each context.
static SPARES: Lock<Vec<(usize, usize)>> = Lock::new(Vec::new);

fn load(driver: &WaitDriver) -> Option<Handle> {
    let mut module: Handle = std::ptr::null_mut();
    // SAFETY: an out-pointer of our own, and text that ends with NUL; the callers have entered the context.
    let loaded = unsafe { (driver.module_load)(&mut module, MODULE.as_ptr().cast()) };
    (loaded == SUCCESS && !module.is_null()).then_some(module)
}

fn spare(driver: &WaitDriver, context: Handle) -> Option<Handle> {
    let mut spares = SPARES.lock();
    let at = spares.iter().position(|(of, _)| *of == context as usize);
    let kept = at.map(|at| spares.swap_remove(at).1 as Handle);
    drop(spares);
    kept.or_else(|| load(driver))
}

/// Loads a module for the next wait, because loading takes longer than unloading.
fn keep_spare(driver: &WaitDriver, context: Handle) {
    let spares = || SPARES.lock();
    if spares().iter().any(|(of, _)| *of == context as usize) {
        return;
    }
    if let Some(module) = load(driver) {
        spares().push((context as usize, module as usize));
    }
}
