//! What a thread has for itself: a short list of free objects for each class. Nearly every `malloc` and `free` ends
//! here, without a lock and without an atomic operation.
//!
//! A list knows how many more objects it may take (`room`). The lists of "no class" and of whole slices never have
//! room.

use super::classes::{CLASSES, COUNT, MIDDLE};
use crate::sampler::Sampler;
use std::sync::atomic::{Ordering, compiler_fence};

/// A list through the free objects: the first word of each is the address of the next.
#[derive(Debug)]
#[repr(C)]
pub struct List {
    pub head: *mut u8,
    pub room: i32,
    /// `room` plus the objects that are in the list.
    pub limit: i32,
}

#[derive(Debug)]
#[repr(C, align(64))]
pub struct Cache {
    pub sampler: Sampler,
    pub lists: [List; COUNT],
    /// Bytes by which limits may still grow, those of objects of middle size apart.
    pub spare: i64,
    pub spare_middle: i64,
    /// All caches that were ever made, and those that no thread has.
    pub next: *mut Cache,
    pub next_unused: *mut Cache,
    pub is_used: bool,
    /// Its thread was left behind by a fork: `room` may be wrong.
    pub is_left: bool,
}

/// Bytes of objects that one thread may keep, by all of its limits; and by one.
pub const THREAD_BYTES: i64 = 2 << 20;
const LIST_BYTES: i64 = 128 << 10;
/// The same for objects of middle size, of which a list may have two in any case.
pub const MIDDLE_BYTES: i64 = 4 << 20;
const MIDDLE_LIST: i64 = 768 << 10;

/// What the second word of a free object says: that it is free. It differs for each object and each run of a program,
/// so nothing that a program writes there by itself is equal to it.
#[inline(always)]
fn mark(block: *mut u8) -> usize {
    static SPOT: u8 = 0;
    !(block as usize) ^ (&raw const SPOT as usize).rotate_left(17)
}

/// Whether an object was freed, and not handed out since.
///
/// # Safety
/// `block` is an object of ours.
#[inline(always)]
pub unsafe fn is_free(block: *mut u8) -> bool {
    // SAFETY: an object has at least 16 bytes.
    unsafe { block.cast::<usize>().add(1).read() == mark(block) }
}

/// The object is the program's from now on.
///
/// # Safety
/// `block` is a free object of ours.
#[inline(always)]
pub unsafe fn hand_out(block: *mut u8) {
    // SAFETY: as above.
    unsafe { block.cast::<usize>().add(1).write(0) };
}

/// The object is free from now on; ends the process where it was already.
///
/// # Safety
/// `block` is an object of ours.
#[inline(always)]
pub unsafe fn take_back(block: *mut u8) {
    // SAFETY: as above.
    unsafe {
        if is_free(block) {
            crate::wrong::wrong_free("free", block);
        }
        block.cast::<usize>().add(1).write(mark(block));
    }
}

impl List {
    /// # Safety
    /// The list's objects are free, and this thread's.
    #[inline(always)]
    pub unsafe fn pop(&mut self) -> *mut u8 {
        let block = self.head;
        if !block.is_null() {
            // SAFETY: a free object of ours, whose first word is the next one.
            self.head = unsafe { block.cast::<*mut u8>().read() };
            // SAFETY: as above.
            unsafe { hand_out(block) };
            self.room += 1;
        }
        block
    }

    /// # Safety
    /// `block` is an object of this class that nobody uses; the list has room.
    #[inline(always)]
    pub unsafe fn push(&mut self, block: *mut u8) {
        // SAFETY: as the caller says; an object has at least 16 bytes.
        unsafe {
            take_back(block);
            block.cast::<*mut u8>().write(self.head);
        }
        // A child that is forked meanwhile by another thread finds a whole list.
        compiler_fence(Ordering::Release);
        self.head = block;
        self.room -= 1;
    }

    /// Takes the first `count` objects off, as a list of their own.
    ///
    /// # Safety
    /// The list has at least that many, and `count > 0`.
    pub unsafe fn cut(&mut self, count: u32) -> *mut u8 {
        let first = self.head;
        let mut last = first;
        for _ in 1..count {
            // SAFETY: free objects of this thread, each with the next one in its first word.
            last = unsafe { last.cast::<*mut u8>().read() };
        }
        // SAFETY: as above.
        unsafe {
            self.head = last.cast::<*mut u8>().read();
            last.cast::<*mut u8>().write(std::ptr::null_mut());
        }
        self.room += count as i32;
        first
    }
}

impl Cache {
    /// Counts the lists: a thread that was left behind may have been between their two words.
    pub fn recount(&mut self) {
        for list in &mut self.lists {
            let (mut count, mut block) = (0, list.head);
            while !block.is_null() {
                count += 1;
                // SAFETY: free objects, each with the next one in its first word.
                block = unsafe { block.cast::<*mut u8>().read() };
            }
            list.limit = list.limit.max(count);
            list.room = list.limit - count;
        }
    }

    /// A thread that asks the shelf again and again keeps more.
    pub fn raise_limit(&mut self, class: u8) {
        let about = CLASSES[class as usize];
        let list = &mut self.lists[class as usize];
        let more = i64::from(about.batch) * i64::from(about.size);
        let least = list.limit == 0;
        let now = i64::from(list.limit) * i64::from(about.size);
        let is_middle = about.size as usize > MIDDLE;
        let most = if is_middle { MIDDLE_LIST } else { LIST_BYTES };
        let spare = if is_middle { &mut self.spare_middle } else { &mut self.spare };
        if least || (now + more <= most && *spare >= more) {
            let batches = if least { 2 } else { 1 };
            *spare -= batches * more;
            list.limit += (batches * i64::from(about.batch)) as i32;
            list.room += (batches * i64::from(about.batch)) as i32;
        }
    }
}
