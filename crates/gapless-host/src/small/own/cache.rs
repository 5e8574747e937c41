//! A thread's own part: a short list of free objects for each class. Nearly every `malloc` and `free` ends here,
//! without a lock and without an atomic operation.
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
    /// `room` plus the number of objects in the list.
    pub limit: i32,
}

#[derive(Debug)]
#[repr(C, align(64))]
pub struct Cache {
    pub sampler: Sampler,
    pub lists: [List; COUNT],
    /// Bytes by which limits may still grow; those of objects of middle size are counted separately.
    pub spare: i64,
    pub spare_middle: i64,
    /// Chains of all caches that were ever made, and of those that no thread has.
    pub next: *mut Cache,
    pub next_unused: *mut Cache,
    pub is_used: bool,
    /// True if its thread does not exist after a fork: then `room` may be wrong.
    pub is_left: bool,
}

/// Bytes of objects that one thread may keep in all lists, and in one.
pub const THREAD_BYTES: i64 = 2 << 20;
const LIST_BYTES: i64 = 128 << 10;
/// The same for objects of middle size, of which each list may have two in any case.
pub const MIDDLE_BYTES: i64 = 4 << 20;
const MIDDLE_LIST: i64 = 768 << 10;

/// The mark in the second word of a free object. It differs for each object and in each run, so a program does not
/// write it by accident.
#[inline(always)]
fn mark(block: *mut u8) -> usize {
    static SPOT: u8 = 0;
    !(block as usize) ^ (&raw const SPOT as usize).rotate_left(17)
}

/// True if an object was freed, and not handed out since.
///
/// # Safety
/// `block` is an object of ours.
#[inline(always)]
pub unsafe fn is_free(block: *mut u8) -> bool {
    // SAFETY: `block` is an object of ours (the caller's contract), so it has at least 16 bytes.
    unsafe { block.cast::<usize>().add(1).read() == mark(block) }
}

/// Takes the mark off an object that becomes the program's.
///
/// # Safety
/// `block` is a free object of ours.
#[inline(always)]
pub unsafe fn hand_out(block: *mut u8) {
    // SAFETY: `block` is an object of ours (the caller's contract), so it has at least 16 bytes.
    unsafe { block.cast::<usize>().add(1).write(0) };
}

/// Marks an object as free. Ends the process if it was free already.
///
/// # Safety
/// `block` is an object of ours.
#[inline(always)]
pub unsafe fn take_back(block: *mut u8) {
    // SAFETY: `block` is an object of ours (the caller's contract), so it has at least 16 bytes.
    unsafe {
        if is_free(block) {
            crate::invalid_free::abort_on_invalid_free("free", block);
        }
        block.cast::<usize>().add(1).write(mark(block));
    }
}

impl List {
    /// # Safety
    /// The list's objects are free, and the list is this thread's.
    #[inline(always)]
    pub unsafe fn pop(&mut self) -> *mut u8 {
        let block = self.head;
        if !block.is_null() {
            // SAFETY: a free object of ours, whose first word is the address of the next.
            self.head = unsafe { block.cast::<*mut u8>().read() };
            // SAFETY: `block` is a free object of ours, which just left the list.
            unsafe { hand_out(block) };
            self.room += 1;
        }
        block
    }

    /// # Safety
    /// `block` is an object of this class that its owner gave up; the list has room.
    #[inline(always)]
    pub unsafe fn push(&mut self, block: *mut u8) {
        // SAFETY: `block` is an object that its owner gave up (the caller's contract), so it has at least 16 bytes.
        unsafe {
            take_back(block);
            block.cast::<*mut u8>().write(self.head);
        }
        // If another thread forks in between, the child finds a whole list.
        compiler_fence(Ordering::Release);
        self.head = block;
        self.room -= 1;
    }

    /// Takes the first `count` objects off as a list of their own.
    ///
    /// # Safety
    /// The list has at least that many, and `count > 0`.
    pub unsafe fn cut(&mut self, count: u32) -> *mut u8 {
        let first = self.head;
        let mut last = first;
        for _ in 1..count {
            // SAFETY: the list has `count` objects (the caller's contract), each with the next one in its first word.
            last = unsafe { last.cast::<*mut u8>().read() };
        }
        // SAFETY: `last` is the last of these objects.
        unsafe {
            self.head = last.cast::<*mut u8>().read();
            last.cast::<*mut u8>().write(std::ptr::null_mut());
        }
        self.room += count as i32;
        first
    }
}

impl Cache {
    /// Counts the lists anew: a thread that the fork did not copy may have been between writes of the two words.
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

    /// Raises a list's limit, because a thread that asks the shelf again and again should keep more.
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
