//! A thread's slots of pinned memory, and its orders to the card. Dropping the ring waits for the orders, so no copy is
//! under way afterwards. Memory is pinned when the first slot is needed.

use super::card::Card;
use super::chunk::{CHUNK, Room};
use super::pinned::{Pinned, SLOTS};
use super::queue::{Decode, Orders};
use crate::error::Result;
use crate::file::{Buffer, PAGE};
use crate::plan::JOB;
use crate::shared::locked;

/// The most chunks that the kernel decodes at a time; a job has about 48 of them.
pub const MOST_CHUNKS: usize = 128;
pub(super) const HEADS: usize = (MOST_CHUNKS * CHUNK).next_multiple_of(PAGE);
pub(super) const READ: usize = JOB + 2 * PAGE;
/// Room for decoded chunks: two of the longest that Gapless writes.
pub(super) const DECODED: usize = 1 << 20;
/// A slot of a loading whose tensors are all plain, and one with room for decoded chunks.
const PLAIN: usize = HEADS + READ + PAGE;
pub(super) const ON_HOST: usize = HEADS + READ + DECODED + PAGE;
const ON_CARD: usize = HEADS + READ;
/// Staging memory on the card for each thread.
pub const STAGING: usize = SLOTS * ON_CARD;

/// A slot. Invariant: until its ticket is done, the card may read it.
#[derive(Debug)]
pub(super) struct Slot {
    at: *mut u8,
    length: usize,
    /// Its staging memory on the card; 0 if there is none.
    pub(super) staging: u64,
    ticket: u64,
}

#[derive(Debug)]
pub(super) struct Ring<'a> {
    pub(super) card: &'a Card,
    thread: usize,
    pinned: Option<Pinned>,
    /// Empty until memory is pinned.
    pub(super) slots: Vec<Slot>,
    /// Orders for the next ticket.
    orders: Orders,
    /// The last ticket; 0 before the first.
    ticket: u64,
}

impl<'a> Ring<'a> {
    pub(super) fn new(card: &'a Card, thread: usize) -> Ring<'a> {
        let pinned = locked(&card.base.rings).pop();
        Ring { card, thread, pinned, slots: Vec::new(), orders: Orders::default(), ticket: 0 }
    }

    /// Pins the slots' memory with or without room for decoded chunks, unless it is pinned already.
    pub(super) fn pin(&mut self, is_plain: bool) -> Result<()> {
        let length = if is_plain { PLAIN } else { ON_HOST };
        if self.slots.first().is_some_and(|slot| slot.length >= length) {
            return Ok(());
        }
        self.wait(self.ticket)?;
        self.slots.clear();
        if self.pinned.as_ref().is_none_or(|pinned| pinned.length < SLOTS * length) {
            if let Some(pinned) = self.pinned.take() {
                pinned.end(&self.card.driver);
            }
            self.pinned = Some(Pinned::new(&self.card.driver, SLOTS * length, self.card.is_huge)?);
        }
        let Some(pinned) = &self.pinned else { return Ok(()) };
        for slot in 0..SLOTS {
            let staging = match self.card.staging {
                0 => 0,
                staging => staging + (self.thread * STAGING + slot * ON_CARD) as u64,
            };
            // SAFETY: the memory has room for all slots. The error word is at the beginning of a page.
            let at = unsafe {
                let at = pinned.at.cast::<u8>().add(slot * length);
                at.add(length - PAGE).cast::<u32>().write(0);
                at
            };
            self.slots.push(Slot { at, length, staging, ticket: 0 });
        }
        Ok(())
    }

    /// Waits until the card has read a slot. Returns the kernel's error: 1 + the number of a damaged chunk, or 0.
    pub(super) fn settle(&mut self, slot: usize) -> Result<u32> {
        self.wait(self.slots[slot].ticket)?;
        // SAFETY: the word belongs to the slot, at the beginning of a page. The card writes it, if at all, before the
        // ticket is done.
        unsafe { Ok(self.slots[slot].error().read_volatile()) }
    }

    /// Orders a copy to the card.
    ///
    /// # Safety
    /// The bytes must be pinned, and stay unchanged until the next ticket is done.
    pub(super) unsafe fn copy(&mut self, target: u64, from: *const u8, length: usize) {
        // SAFETY: the bytes are pinned, and our caller keeps them unchanged until the ticket is done.
        unsafe { self.orders.copy(target, from, length) };
    }

    /// Orders the kernel for a slot, whose descriptors and bytes are ordered to be on the card by then.
    pub(super) fn decode(&mut self, slot: usize, count: usize, room: Room) {
        let slot = &self.slots[slot];
        let (count, error) = (count as u32, slot.error() as u64);
        self.orders.decode(Decode { chunks: slot.staging, count, room, error });
    }

    /// Hands over all orders and returns their ticket.
    pub(super) fn hand_over(&mut self) -> Result<u64> {
        if !self.orders.is_empty() {
            // After an error the driver may have a part of the orders. Then no ticket is done; `finish` waits for the
            // card.
            self.ticket = u64::MAX;
            self.ticket = self.card.queue.hand_over(self.card, &mut self.orders)?;
        }
        Ok(self.ticket)
    }

    /// Hands over all orders. The slot must stay unchanged until they are done.
    pub(super) fn hand_over_slot(&mut self, slot: usize) -> Result<()> {
        self.slots[slot].ticket = self.hand_over()?;
        Ok(())
    }

    pub(super) fn wait(&self, ticket: u64) -> Result<()> {
        self.card.queue.wait(self.card, ticket)
    }

    /// Waits for all orders that were handed over. False after an error: then this waits for what the driver has.
    pub(super) fn finish(&self) -> bool {
        self.wait(self.ticket).or_else(|_| self.card.sync()).is_ok()
    }

    /// Copies bytes that need not be pinned, and waits for the copy.
    pub(super) fn copy_now(&self, target: u64, bytes: &[u8]) -> Result<()> {
        // SAFETY: the bytes live until the wait; the target is as `Load::start` demands.
        let status = unsafe {
            (self.card.driver.to_card)(target, bytes.as_ptr().cast(), bytes.len(), self.card.stream())
        };
        self.card.driver.check("cuMemcpyHtoDAsync", status)?;
        self.card.sync()
    }
}

impl Slot {
    /// Descriptors, bytes of the file, decoded chunks: the slot without its error word. The ring's one thread asks for
    /// a slot's parts once at a time, and drops them before the ring.
    pub(super) fn parts(&self) -> (Buffer, Buffer, Buffer) {
        // SAFETY: three ranges of the slot that do not overlap, each at the beginning of a page.
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
        // SAFETY: the two ranges are adjacent in the slot, and no code writes them while they are borrowed.
        unsafe { std::slice::from_raw_parts(self.at, HEADS + end.min(READ)) }
    }

    /// The address on the card for bytes of the file.
    pub(super) fn bytes_on_card(&self) -> u64 {
        self.staging + HEADS as u64
    }

    pub(super) fn error(&self) -> *mut u32 {
        // SAFETY: the last page of the slot.
        unsafe { self.at.add(self.length - PAGE).cast() }
    }
}

impl Drop for Ring<'_> {
    fn drop(&mut self) {
        let is_done = self.finish();
        let Some(pinned) = self.pinned.take() else { return };
        if self.card.is_kept && is_done {
            locked(&self.card.base.rings).push(pinned);
        } else {
            pinned.end(&self.card.driver);
        }
    }
}
