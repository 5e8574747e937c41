//! Windows of a mapped file that are pinned for a moment: the card copies straight from the page cache.
//!
//! No thread reads the mapping. Pages that a truncation takes from the file stay pinned until the copy is done; pages
//! that it took before cannot be pinned, and then the range is read, which tells what is wrong. Short ranges are left
//! to the ring: a driver may copy them with the CPU.

use super::card::Card;
use super::driver::{self, Handle};
use crate::error::Result;
use crate::file::PAGE;
use gapless_weights::input::Input;
use std::collections::VecDeque;
use std::ffi::c_void;
use std::ops::Range;
use std::ptr::null_mut;

/// Ranges of fewer bytes are not mapped.
pub(super) const LEAST: u64 = 256 << 10;
/// Windows of a thread: one is pinned while another is copied.
const DEPTH: usize = 2;

struct Window {
    at: *mut c_void,
    length: usize,
    /// The place in the file that is mapped at `at`.
    first: u64,
    event: Handle,
}

/// A thread's windows. Dropping them waits for the stream.
pub(super) struct Windows<'a> {
    card: &'a Card,
    stream: Handle,
    /// The newest one last: it is open until [`Windows::close`].
    held: VecDeque<Window>,
    events: Vec<Handle>,
}

impl<'a> Windows<'a> {
    pub(super) fn new(card: &'a Card, stream: Handle) -> Windows<'a> {
        Windows { card, stream, held: VecDeque::new(), events: Vec::new() }
    }

    /// Maps and pins a range of a file. False where that cannot be done.
    #[cfg(target_os = "linux")]
    pub(super) fn open(&mut self, input: &Input, range: &Range<u64>) -> Result<bool> {
        use std::os::fd::AsRawFd;
        while self.held.len() >= DEPTH {
            self.end_first()?;
        }
        let driver = &self.card.driver;
        let event = match self.events.pop() {
            Some(event) => event,
            None => {
                let mut event = null_mut();
                // SAFETY: a pointer to a value that lives through the call.
                driver.check("cuEventCreate", unsafe { (driver.event)(&raw mut event, driver::SLEEPING) })?;
                event
            }
        };
        let first = range.start / PAGE as u64 * PAGE as u64;
        let length = ((range.end - first) as usize).next_multiple_of(PAGE);
        let (read, shared, file) = (libc::PROT_READ, libc::MAP_SHARED, input.file().as_raw_fd());
        // SAFETY: a new mapping of an open file, which no thread reads.
        let at = unsafe { libc::mmap(null_mut(), length, read, shared, file, first as libc::off_t) };
        if at == libc::MAP_FAILED {
            self.events.push(event);
            return Ok(false);
        }
        // SAFETY: the mapping is alive until `end`.
        if unsafe { (driver.host_register)(at, length, driver::READ_ONLY | driver::PORTABLE) } != 0 {
            // SAFETY: nobody uses the mapping.
            unsafe { libc::munmap(at, length) };
            self.events.push(event);
            return Ok(false);
        }
        self.held.push_back(Window { at, length, first, event });
        Ok(true)
    }

    #[cfg(not(target_os = "linux"))]
    pub(super) fn open(&mut self, _: &Input, _: &Range<u64>) -> Result<bool> {
        Ok(false)
    }

    /// Begins to copy a part of the window that was opened last to `target`.
    pub(super) fn copy(&self, at: u64, length: usize, target: u64) -> Result<()> {
        let window = self
            .held
            .back()
            .filter(|window| at >= window.first && at - window.first + length as u64 <= window.length as u64);
        let Some(window) = window else {
            return Err(crate::error::LoadError::Argument("a range is not in the window".into()));
        };
        let driver = &self.card.driver;
        // SAFETY: the range lies in the pinned window, which stays until its event; `Load::start` was promised the
        // target.
        let status = unsafe {
            let from = window.at.cast::<u8>().add((at - window.first) as usize);
            (driver.to_card)(target, from.cast(), length, self.stream)
        };
        driver.check("cuMemcpyHtoDAsync", status)
    }

    /// No more is copied from the window that was opened last. It ends when its copies are done.
    pub(super) fn close(&self) -> Result<()> {
        let (driver, Some(window)) = (&self.card.driver, self.held.back()) else { return Ok(()) };
        // SAFETY: event and stream are this thread's.
        driver.check("cuEventRecord", unsafe { (driver.record)(window.event, self.stream) })
    }

    /// Waits for the oldest window's copies, and ends it.
    fn end_first(&mut self) -> Result<()> {
        if let Some(window) = self.held.front() {
            let driver = &self.card.driver;
            // SAFETY: the event was recorded behind the copies.
            driver.check("cuEventSynchronize", unsafe { (driver.event_sync)(window.event) })?;
        }
        if let Some(window) = self.held.pop_front() {
            self.end(&window);
            self.events.push(window.event);
        }
        Ok(())
    }

    /// Unpins and unmaps. No copy from the window is under way.
    fn end(&self, window: &Window) {
        // SAFETY: the window is this thread's own, and the caller has waited for its copies.
        unsafe {
            (self.card.driver.host_unregister)(window.at);
            #[cfg(target_os = "linux")]
            libc::munmap(window.at, window.length);
        }
    }
}

impl Drop for Windows<'_> {
    fn drop(&mut self) {
        // SAFETY: the stream is the ring's of this thread, which outlives the windows.
        unsafe { (self.card.driver.stream_sync)(self.stream) };
        while let Some(window) = self.held.pop_front() {
            self.end(&window);
            self.events.push(window.event);
        }
        for event in self.events.drain(..) {
            // SAFETY: the event is this value's own, and nothing waits for it.
            unsafe { (self.card.driver.end_event)(event) };
        }
    }
}
