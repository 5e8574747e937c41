//! A thread's slots of pinned memory, and a stream that it shares with a few other threads. Dropping the ring waits for
//! the stream: no copy is under way afterwards. Memory is pinned when the first slot is needed.

use super::card::Card;
use super::chunk::CHUNK;
use super::driver::Handle;
use super::pinned::{Memory, Pinned, SLOTS};
use crate::error::Result;
use crate::file::{Buffer, PAGE};
use crate::plan::JOB;
use crate::shared::locked;

/// Chunks that the kernel decodes at a time, at most; a job has about 48 of them.
pub const MOST_CHUNKS: usize = 128;
pub(super) const HEADS: usize = (MOST_CHUNKS * CHUNK).next_multiple_of(PAGE);
pub(super) const READ: usize = JOB + 2 * PAGE;
/// Room for decoded chunks: two of the longest that Gapless writes.
pub(super) const DECODED: usize = 1 << 20;
/// A slot of a loading whose tensors are all plain, and one with room for decoded chunks.
const PLAIN: usize = HEADS + READ + PAGE;
const ON_HOST: usize = HEADS + READ + DECODED + PAGE;
const ON_CARD: usize = HEADS + READ;
/// Staging memory on the card for each thread.
pub const STAGING: usize = SLOTS * ON_CARD;

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
            Some(pinned) => pinned,
            None => Pinned::new(&card.driver)?,
        };
        let stream = card.stream(thread);
        Ok(Ring { card, stream, thread, pinned: Some(pinned), slots: Vec::new() })
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

    /// Where bytes of the file go on the card.
    pub(super) fn bytes_on_card(&self) -> u64 {
        self.staging + HEADS as u64
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
