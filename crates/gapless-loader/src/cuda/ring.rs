//! A thread's slots of pinned memory, with a stream of their own. Dropping the ring waits for the stream: no copy is
//! under way afterwards. Memory is pinned when the first slot is needed.

use super::card::Card;
use super::chunk::CHUNK;
use super::driver::{self, Driver, Handle};
use crate::error::Result;
use crate::file::{Buffer, PAGE};
use crate::plan::JOB;
use crate::shared::locked;
use std::ffi::c_void;
use std::ptr::null_mut;

/// Slots of a thread: one is filled while the other is copied.
pub const SLOTS: usize = 2;
/// Chunks that the kernel decodes at a time, at most; a job has about 24 of them.
pub const MOST_CHUNKS: usize = 64;
pub(super) const HEADS: usize = (MOST_CHUNKS * CHUNK).next_multiple_of(PAGE);
pub(super) const READ: usize = JOB + 2 * PAGE;
/// Room for decoded chunks: two of the longest that Gapless writes.
pub(super) const DECODED: usize = 1 << 20;
/// A slot of a loading whose tensors are all plain, and one with room for decoded chunks.
const PLAIN: usize = HEADS + READ + PAGE;
const ON_HOST: usize = HEADS + READ + DECODED + PAGE;
const HUGE_PAGE: usize = 2 << 20;
const ON_CARD: usize = HEADS + READ;
/// Staging memory on the card for each thread.
pub const STAGING: usize = SLOTS * ON_CARD;

/// A stream, its events, and pinned memory, which may be kept for another loading.
#[derive(Debug)]
pub(super) struct Pinned {
    stream: Handle,
    events: [Handle; SLOTS],
    memory: Option<Memory>,
}

/// Pinned memory: the driver's own, or huge pages that were pinned (`mapped` is then where they were mapped).
#[derive(Debug)]
struct Memory {
    at: *mut c_void,
    length: usize,
    mapped: Option<(*mut c_void, usize)>,
}

impl Memory {
    fn new(driver: &Driver, length: usize, is_huge: bool) -> Result<Memory> {
        if is_huge && let Some(memory) = Memory::huge(driver, length) {
            return Ok(memory);
        }
        let mut at = null_mut();
        // SAFETY: a pointer to a value that lives through the call.
        let status = unsafe { (driver.host_alloc)(&raw mut at, length, driver::PORTABLE) };
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
            if (driver.host_register)(at, length, driver::PORTABLE) != 0 {
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
    fn end(self, driver: &Driver) {
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
    fn new(card: &Card) -> Result<Pinned> {
        let mut pinned = Pinned { stream: card.stream()?, events: [null_mut(); SLOTS], memory: None };
        for event in &mut pinned.events {
            // SAFETY: a pointer to a value that lives through the call.
            let status = unsafe { (card.driver.event)(event, driver::SLEEPING) };
            if let Err(error) = card.driver.check("cuEventCreate", status) {
                pinned.end(&card.driver);
                return Err(error);
            }
        }
        Ok(pinned)
    }

    /// Gives all of it back. Nothing is under way on the stream, and the card's context is current.
    pub(super) fn end(self, driver: &Driver) {
        // SAFETY: all of it is this value's own.
        unsafe {
            for event in self.events.into_iter().filter(|event| !event.is_null()) {
                (driver.end_event)(event);
            }
            (driver.end_stream)(self.stream);
        }
        if let Some(memory) = self.memory {
            memory.end(driver);
        }
    }
}

/// A slot. Invariant: while `is_busy`, the card may read it.
#[derive(Debug)]
pub(super) struct Slot {
    at: *mut u8,
    length: usize,
    /// Its staging on the card; 0 where there is none.
    pub(super) staging: u64,
    event: Handle,
    is_busy: bool,
}

#[derive(Debug)]
pub(super) struct Ring<'a> {
    pub(super) card: &'a Card,
    pub(super) stream: Handle,
    thread: usize,
    /// Taken when the ring is dropped.
    pinned: Option<Pinned>,
    /// Empty until memory is pinned.
    pub(super) slots: Vec<Slot>,
}

impl<'a> Ring<'a> {
    pub(super) fn new(card: &'a Card, thread: usize) -> Result<Ring<'a>> {
        let kept = locked(&card.base.rings).pop();
        let pinned = match kept {
            Some(pinned) => {
                if let Err(error) = card.follow(pinned.stream) {
                    pinned.end(&card.driver);
                    return Err(error);
                }
                pinned
            }
            None => Pinned::new(card)?,
        };
        Ok(Ring { card, stream: pinned.stream, thread, pinned: Some(pinned), slots: Vec::new() })
    }

    /// Pins the slots' memory, if that was not done yet: with room for decoded chunks, or without.
    pub(super) fn pin(&mut self, is_plain: bool) -> Result<()> {
        let length = if is_plain { PLAIN } else { ON_HOST };
        if self.slots.first().is_some_and(|slot| slot.length >= length) {
            return Ok(());
        }
        self.sync()?;
        let Some(pinned) = &mut self.pinned else { return Ok(()) };
        self.slots.clear();
        if pinned.memory.as_ref().is_none_or(|memory| memory.length < SLOTS * length) {
            if let Some(memory) = pinned.memory.take() {
                memory.end(&self.card.driver);
            }
            pinned.memory = Some(Memory::new(&self.card.driver, SLOTS * length, self.card.is_huge)?);
        }
        let Some(memory) = &pinned.memory else { return Ok(()) };
        for slot in 0..SLOTS {
            let staging = match self.card.staging {
                0 => 0,
                staging => staging + (self.thread * STAGING + slot * ON_CARD) as u64,
            };
            // SAFETY: the memory has room for all slots; the word of errors stands on a boundary of a page.
            let at = unsafe {
                let at = memory.at.cast::<u8>().add(slot * length);
                at.add(length - PAGE).cast::<u32>().write(0);
                at
            };
            self.slots.push(Slot { at, length, staging, event: pinned.events[slot], is_busy: false });
        }
        Ok(())
    }

    /// Waits until the card has read a slot; gives what its kernel found damaged: 1 + the number of a chunk.
    pub(super) fn settle(&mut self, slot: usize) -> Result<u32> {
        let slot = &mut self.slots[slot];
        if slot.is_busy {
            // SAFETY: the event was recorded.
            let status = unsafe { (self.card.driver.event_sync)(slot.event) };
            self.card.driver.check("cuEventSynchronize", status)?;
            slot.is_busy = false;
        }
        // SAFETY: the word is the slot's own, on a boundary of a page; the card has written it, if at all, before the
        // event.
        unsafe { Ok(slot.error().read_volatile()) }
    }

    /// Marks a slot as the card's until what was put on the stream is done.
    pub(super) fn hand_over(&mut self, slot: usize) -> Result<()> {
        let slot = &mut self.slots[slot];
        slot.is_busy = true;
        // SAFETY: event and stream are this ring's.
        let status = unsafe { (self.card.driver.record)(slot.event, self.stream) };
        self.card.driver.check("cuEventRecord", status)
    }

    /// Copies bytes to the card. They must stay as they are until the stream has done it.
    pub(super) fn copy(&self, target: u64, bytes: &[u8]) -> Result<()> {
        // SAFETY: the bytes are there; `Load::start` was promised the target.
        let status =
            unsafe { (self.card.driver.to_card)(target, bytes.as_ptr().cast(), bytes.len(), self.stream) };
        self.card.driver.check("cuMemcpyHtoDAsync", status)
    }

    pub(super) fn sync(&self) -> Result<()> {
        // SAFETY: the stream is this ring's.
        let status = unsafe { (self.card.driver.stream_sync)(self.stream) };
        self.card.driver.check("cuStreamSynchronize", status)
    }
}

impl Slot {
    /// Descriptors, bytes of the file, decoded chunks: the slot but its error word. The ring's one thread asks for a
    /// slot's parts once at a time, and drops them before the ring.
    pub(super) fn parts(&self) -> (Buffer, Buffer, Buffer) {
        // SAFETY: three ranges of the slot that do not overlap, each on a boundary of a page.
        unsafe {
            (
                Buffer::over(self.at, HEADS),
                Buffer::over(self.at.add(HEADS), READ),
                Buffer::over(self.at.add(HEADS + READ), self.length - PLAIN),
            )
        }
    }

    /// Descriptors and bytes of the file as one range, up to `end` of the latter.
    pub(super) fn front(&self, end: usize) -> &[u8] {
        // SAFETY: the two ranges are one; nobody writes them while they are lent.
        unsafe { std::slice::from_raw_parts(self.at, HEADS + end.min(READ)) }
    }

    pub(super) fn error(&self) -> *mut u32 {
        // SAFETY: inside the slot.
        unsafe { self.at.add(self.length - PAGE).cast() }
    }
}

impl Drop for Ring<'_> {
    fn drop(&mut self) {
        let Some(pinned) = self.pinned.take() else { return };
        // SAFETY: the stream is this ring's.
        let status = unsafe { (self.card.driver.stream_sync)(self.stream) };
        if self.card.is_kept && status == 0 {
            locked(&self.card.base.rings).push(pinned);
        } else {
            pinned.end(&self.card.driver);
        }
    }
}
