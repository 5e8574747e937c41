//! Pinned memory, of which rings are made.

use super::driver::{Driver, PORTABLE};
use crate::error::Result;
use std::ffi::c_void;
use std::ptr::null_mut;

/// Slots of a thread: one is filled while the other is copied.
pub const SLOTS: usize = 2;
#[cfg(target_os = "linux")]
const HUGE_PAGE: usize = 2 << 20;

/// Pinned memory: the driver's own, or huge pages that were pinned (`mapped` is then where they were mapped).
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
        // SAFETY: a pointer to a value that lives through the call.
        let status = unsafe { (driver.host_alloc)(&raw mut at, length, PORTABLE) };
        driver.check("cuMemHostAlloc", status)?;
        Ok(Pinned { at, length, mapped: None })
    }

    /// Few pages are pinned faster than many. None where that cannot be done.
    #[cfg(target_os = "linux")]
    fn huge(driver: &Driver, length: usize) -> Option<Pinned> {
        let length = length.next_multiple_of(HUGE_PAGE);
        let whole = length + HUGE_PAGE;
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: new memory of nobody else, a part of which is advised, touched by the driver, and pinned.
        unsafe {
            let map = libc::mmap(null_mut(), whole, access, kind, -1, 0);
            if map == libc::MAP_FAILED {
                return None;
            }
            let at = (map as usize).next_multiple_of(HUGE_PAGE) as *mut c_void;
            // Where the kernel has no huge pages, these are small ones.
            libc::madvise(at, length, libc::MADV_HUGEPAGE);
            // A child has no use for it, and its pages must stay the parent's, which the card reads.
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

    /// Gives the memory back. The card does not use it any more.
    pub(super) fn end(self, driver: &Driver) {
        // SAFETY: the memory is this value's own.
        unsafe {
            match self.mapped {
                None => {
                    (driver.host_free)(self.at);
                }
                Some((map, whole)) => {
                    // A range that the driver takes for pinned must not become other memory: then it stays.
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
