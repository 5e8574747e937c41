//! Pinned memory for rings.

use super::driver::{Driver, PORTABLE};
use crate::error::Result;
use std::ffi::c_void;
use std::ptr::null_mut;

/// Slots of a thread: one is filled while the other is copied.
pub const SLOTS: usize = 2;
#[cfg(target_os = "linux")]
const HUGE_PAGE: usize = 2 << 20;

/// Pinned memory: the driver's own, or mapped huge pages that were pinned. `mapped` is the mapping of the latter.
#[derive(Debug)]
pub(super) struct Pinned {
    pub(super) at: *mut c_void,
    pub(super) length: usize,
    mapped: Option<(*mut c_void, usize)>,
}

impl Pinned {
    pub(super) fn new(driver: &Driver, length: usize, is_huge: bool) -> Result<Pinned> {
        if is_huge && let Some(memory) = Pinned::huge(driver, length) {
            return Ok(memory);
        }
        let mut at = null_mut();
        // SAFETY: a pointer to a variable that lives through the call.
        let status = unsafe { (driver.host_alloc)(&raw mut at, length, PORTABLE) };
        driver.check("cuMemHostAlloc", status)?;
        Ok(Pinned { at, length, mapped: None })
    }

    /// Pins huge pages: few pages are pinned faster than many. `None` if that is not possible.
    #[cfg(target_os = "linux")]
    fn huge(driver: &Driver, length: usize) -> Option<Pinned> {
        let length = length.next_multiple_of(HUGE_PAGE);
        let whole = length + HUGE_PAGE;
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: the mapping is new, so nothing else uses it. The advised and pinned range lies within it.
        unsafe {
            let map = libc::mmap(null_mut(), whole, access, kind, -1, 0);
            if map == libc::MAP_FAILED {
                return None;
            }
            let at = (map as usize).next_multiple_of(HUGE_PAGE) as *mut c_void;
            // If the kernel has no huge pages, these are small ones.
            libc::madvise(at, length, libc::MADV_HUGEPAGE);
            // A child does not need it. Its pages must stay the parent's, because the card reads these.
            libc::madvise(at, length, libc::MADV_DONTFORK);
            if (driver.host_register)(at, length, PORTABLE) != 0 {
                libc::munmap(map, whole);
                return None;
            }
            Some(Pinned { at, length, mapped: Some((map, whole)) })
        }
    }

    #[cfg(not(target_os = "linux"))]
    fn huge(_: &Driver, _: usize) -> Option<Pinned> {
        None
    }

    /// Gives the memory back. The card must not use it any more.
    pub(super) fn end(self, driver: &Driver) {
        // SAFETY: this value owns the memory, and the card does not use it any more.
        unsafe {
            match self.mapped {
                None => {
                    (driver.host_free)(self.at);
                }
                Some((map, whole)) => {
                    // If the driver still takes it for pinned, it must not become other memory, so it stays mapped.
                    let _is_over = (driver.host_unregister)(self.at) == 0;
                    #[cfg(target_os = "linux")]
                    if _is_over {
                        libc::munmap(map, whole);
                    }
                    #[cfg(not(target_os = "linux"))]
                    let _ = (map, whole);
                }
            }
        }
    }
}
