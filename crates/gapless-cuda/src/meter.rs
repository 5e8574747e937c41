//! What is asked of a card without its lock, and the wait for all its work.
//!
//! A program may capture streams that nobody knows of, and a wait must not end those captures. On an H200
//! (`torch-bench/live/capture_rules.py`): `cuCtxSynchronize` ends every open capture. The frees of memory end none,
//! and wait, but keep all other threads from queueing work meanwhile. `cuModuleUnload` ends none, waits, and keeps
//! nobody from anything. So a module that does nothing is loaded, and unloaded to wait.

use crate::device::{check, enter, told};
use crate::driver::{Driver, Handle, SUCCESS, WaitDriver};
use crate::locks::Lock;
use gapless_pool::DeviceError;

/// How full a card is, asked without the card's lock; and a wait for its work.
#[derive(Clone, Copy, Debug)]
pub struct Meter {
    pub(crate) driver: &'static Driver,
    pub(crate) context: Handle,
    pub(crate) is_unified: bool,
}

// SAFETY: the context is the driver's handle, which any thread may use, and `CudaDevice::new` retained it for good.
unsafe impl Send for Meter {}
// SAFETY: as above.
unsafe impl Sync for Meter {}

impl Meter {
    /// [`Device::wait_for_all`](gapless_pool::Device::wait_for_all), without the card's lock.
    ///
    /// # Errors
    /// As there.
    pub fn wait_for_all(&self) -> Result<(), DeviceError> {
        let _entered = enter(self.driver, self.context);
        if let Some(driver) = WaitDriver::get() {
            if let Some(module) = spare(driver, self.context) {
                // SAFETY: a module of this context, which nobody else has.
                let waited = check(unsafe { (driver.module_unload)(module) });
                keep_spare(driver, self.context);
                return waited;
            }
            let mut addr = 0;
            // SAFETY: an out-pointer of our own, and the address that came.
            unsafe {
                if (driver.alloc)(&mut addr, WAITING_BYTES) == SUCCESS {
                    return check((driver.free)(addr));
                }
            }
        }
        // SAFETY: the context was entered.
        check(unsafe { (self.driver.synchronize)() })
    }

    /// What the card has free, and in all; `None`: the driver does not answer any more.
    #[must_use]
    pub fn memory(&self) -> Option<(u64, u64)> {
        let _entered = enter(self.driver, self.context);
        let (mut free, mut total) = (0usize, 0usize);
        // SAFETY: out-pointers of our own.
        let status = unsafe { (self.driver.mem_info)(&mut free, &mut total) };
        (status == SUCCESS).then_some(told(self.is_unified, free as u64, total as u64))
    }
}

/// What is taken from a card that loads no module, to wait with its free.
const WAITING_BYTES: usize = 2 << 20;

/// The module, as the driver compiles it.
const MODULE: &[u8] =
    b".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry gapless_waits()\n{\nret;\n}\n\0";

/// Modules that are loaded and do nothing, with their contexts: one each.
static SPARES: Lock<Vec<(usize, usize)>> = Lock::new(Vec::new);

fn load(driver: &WaitDriver) -> Option<Handle> {
    let mut module: Handle = std::ptr::null_mut();
    // SAFETY: an out-pointer of our own, and text that ends with a zero; the callers have entered the context.
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

/// The next wait finds a module: to load one takes longer than to unload it.
fn keep_spare(driver: &WaitDriver, context: Handle) {
    let spares = || SPARES.lock();
    if spares().iter().any(|(of, _)| *of == context as usize) {
        return;
    }
    if let Some(module) = load(driver) {
        spares().push((context as usize, module as usize));
    }
}
