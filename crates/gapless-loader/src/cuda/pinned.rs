//! Pinned memory with events: what a ring is made of, and what is kept of it.

use super::driver::{Driver, Handle, PORTABLE, SLEEPING};
use crate::error::Result;
use std::ffi::c_void;
use std::ptr::null_mut;

/// Slots of a thread: one is filled while the other is copied.
pub const SLOTS: usize = 2;
#[cfg(target_os = "linux")]
const HUGE_PAGE: usize = 2 << 20;

/// Events, and pinned memory, which may be kept for another loading.
#[derive(Debug)]
pub(super) struct Pinned {
    pub(super) events: [Handle; SLOTS],
    pub(super) memory: Option<Memory>,
}

/// Pinned memory: the driver's own, or huge pages that were pinned (`mapped` is then where they were mapped).
#[derive(Debug)]
pub(super) struct Memory {
    pub(super) at: *mut c_void,
    pub(super) length: usize,
    mapped: Option<(*mut c_void, usize)>,
}

impl Memory {
    pub(super) fn new(driver: &Driver, length: usize, is_huge: bool) -> Result<Memory> {
        if is_huge && let Some(memory) = Memory::huge(driver, length) {
            return Ok(memory);
        }
        let mut at = null_mut();
        // SAFETY: a pointer to a value that lives through the call.
        let status = unsafe { (driver.host_alloc)(&raw mut at, length, PORTABLE) };
        driver.check("cuMemHostAlloc", status)?;
        Ok(Memory { at, length, mapped: None })
    }

    /// Few pages are pinned faster than many. None where that cannot be done.
    #[cfg(target_os = "linux")]
    fn huge(driver: &Driver, length: usize) -> Option<Memory> {
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
            if (driver.host_register)(at, length, PORTABLE) != 0 {
                libc::munmap(map, whole);
                return None;
            }
            Some(Memory { at, length, mapped: Some((map, whole)) })
        }
    }

    #[cfg(not(target_os = "linux"))]
    fn huge(_: &Driver, _: usize) -> Option<Memory> {
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
                    (driver.host_unregister)(self.at);
                    #[cfg(target_os = "linux")]
                    libc::munmap(map, whole);
                    #[cfg(not(target_os = "linux"))]
                    let _ = (map, whole);
                }
            }
        }
    }
}

impl Pinned {
    pub(super) fn new(driver: &Driver) -> Result<Pinned> {
        let mut pinned = Pinned { events: [null_mut(); SLOTS], memory: None };
        for event in &mut pinned.events {
            // SAFETY: a pointer to a value that lives through the call.
            let status = unsafe { (driver.event)(event, SLEEPING) };
            if let Err(error) = driver.check("cuEventCreate", status) {
                pinned.end(driver);
                return Err(error);
            }
        }
        Ok(pinned)
    }

    /// Gives all of it back. The card uses nothing of it any more, and its context is current.
    pub(super) fn end(self, driver: &Driver) {
        for event in self.events.into_iter().filter(|event| !event.is_null()) {
            // SAFETY: the event is this value's own.
            unsafe { (driver.end_event)(event) };
        }
        if let Some(memory) = self.memory {
            memory.end(driver);
        }
    }
}
