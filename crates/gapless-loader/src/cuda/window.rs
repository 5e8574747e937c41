//! Windows of a mapped file that are pinned for a short time: the card copies straight from the page cache.
//!
//! No thread reads the mapping. Pages that a truncation takes from the file stay pinned until the copy is done. Pages
//! that it took before cannot be pinned; then the range is read, which reports the error. Short ranges are left to the
//! ring, because a driver may copy them with the CPU.

use super::driver;
use super::ring::Ring;
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
    /// The offset in the file that is mapped at `at`.
    first: u64,
    /// After the window is closed: the ticket with which its orders are done.
    ticket: u64,
}

/// A thread's windows, newest last: that one is open until [`Windows::close`]. The owner must call [`Windows::end`].
#[derive(Default)]
pub(super) struct Windows(VecDeque<Window>);

impl Windows {
    /// Maps and pins a range of a file. False if that is not possible.
    #[cfg(target_os = "linux")]
    pub(super) fn open(&mut self, ring: &Ring<'_>, input: &Input, range: &Range<u64>) -> Result<bool> {
        use std::os::fd::AsRawFd;
        while self.0.len() >= DEPTH {
            ring.wait(self.0[0].ticket)?;
            self.end_first(ring);
        }
        let driver = &ring.card.driver;
        let first = range.start / PAGE as u64 * PAGE as u64;
        let length = ((range.end - first) as usize).next_multiple_of(PAGE);
        let (read, shared, file) = (libc::PROT_READ, libc::MAP_SHARED, input.file().as_raw_fd());
        // SAFETY: a new mapping of an open file, which no thread reads.
        let at = unsafe { libc::mmap(null_mut(), length, read, shared, file, first as libc::off_t) };
        if at == libc::MAP_FAILED {
            return Ok(false);
        }
        // SAFETY: the mapping lives until `end_first`.
        if unsafe { (driver.host_register)(at, length, driver::READ_ONLY | driver::PORTABLE) } != 0 {
            // SAFETY: the mapping is new, and no code has its address.
            unsafe { libc::munmap(at, length) };
            return Ok(false);
        }
        self.0.push_back(Window { at, length, first, ticket: 0 });
        Ok(true)
    }

    #[cfg(not(target_os = "linux"))]
    pub(super) fn open(&mut self, _: &Ring<'_>, _: &Input, _: &Range<u64>) -> Result<bool> {
        Ok(false)
    }

    /// Orders a copy of a part of the newest window to `target`.
    pub(super) fn copy(&self, ring: &mut Ring<'_>, at: u64, length: usize, target: u64) -> Result<()> {
        let window = self
            .0
            .back()
            .filter(|window| at >= window.first && at - window.first + length as u64 <= window.length as u64);
        let Some(window) = window else {
            return Err(crate::error::LoadError::Argument("a range is not in the window".into()));
        };
        // SAFETY: the range lies in the pinned window, which stays until the ticket that `close` notes.
        unsafe { ring.copy(target, window.at.cast::<u8>().add((at - window.first) as usize), length) };
        Ok(())
    }

    /// Hands over the orders of the newest window. The window ends when they are done.
    pub(super) fn close(&mut self, ring: &mut Ring<'_>) -> Result<()> {
        let Some(window) = self.0.back_mut() else { return Ok(()) };
        window.ticket = ring.hand_over()?;
        Ok(())
    }

    /// Waits for all orders that the thread has handed over, and ends all windows. Later orders are never handed over.
    pub(super) fn end(&mut self, ring: &Ring<'_>) {
        ring.finish();
        while !self.0.is_empty() {
            self.end_first(ring);
        }
    }

    /// Unpins and unmaps the oldest window. No copy from it may be under way.
    fn end_first(&mut self, ring: &Ring<'_>) {
        let Some(window) = self.0.pop_front() else { return };
        // SAFETY: this thread owns the window, and the caller has waited for its copies.
        unsafe {
            // If the driver still takes the range for pinned, it must not become other memory, so it stays mapped.
            let _is_over = (ring.card.driver.host_unregister)(window.at) == 0;
            #[cfg(target_os = "linux")]
            if _is_over {
                libc::munmap(window.at, window.length);
            }
        }
    }
}
