//! Our own core for small objects.
//!
//! ```text
//!   cache     a thread's lists of free objects: no lock, no atomic operation (threads: which thread has which)
//!   shelf     one for each class: batches that pass between threads, and the spans
//!   spans     slices of 16 KiB from an arena, the class of each in one byte
//!   classes   sizes
//! ```
//!
//! An object may be freed by any thread: it goes into that thread's list, and a full list gives a batch to the shelf.
//! So a thread that only frees supplies one that only allocates. An object above 256 KiB has slices of its own.
//!
//! A thread takes the lock of a shelf, then that of the arena. It never takes two shelves, except around a fork, when
//! all are taken in the order of their classes. A forked child gives the caches of its parent's other threads, with
//! their objects, to the threads that it starts: a list is whole at every instruction.

mod cache;
pub mod classes;
mod shelf;
mod spans;
mod threads;

use crate::arena::Held;
use crate::budget::Budget;
use crate::local;
use crate::lock::Lock;
use crate::sampler::NEVER;
use cache::Cache;
use classes::{CLASSES, COUNT, FINE_MOST, MIDDLE, MOST, NONE, SLICE, WHOLE};
use shelf::Shelf;
use spans::Spans;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, Ordering};
use threads::Caches;

#[derive(Debug)]
pub struct Own {
    spans: Spans,
    shelves: [Place; COUNT],
    caches: Lock<Caches>,
    key: AtomicU32,
    /// True if entry points may take the short way.
    is_quick: AtomicBool,
    /// Bytes that a new cache hands out before the recorder is asked.
    first_left: AtomicI64,
}

/// Bytes of small objects by class. The last class is that of objects above 256 KiB.
#[derive(Clone, Copy, Debug)]
pub struct Figures {
    pub live: [u64; COUNT],
    /// Free objects in the lists of threads.
    pub kept: [u64; COUNT],
    /// The number of threads with lists, and the most that one of them keeps.
    pub threads: u64,
    pub most_kept: u64,
}

/// A shelf on cache lines of its own.
#[derive(Debug)]
#[repr(align(128))]
struct Place(Lock<Shelf>);

const NO_KEY: u32 = u32::MAX;

impl Own {
    #[must_use]
    pub const fn new(budget: &'static Budget) -> Own {
        Own {
            spans: Spans::new(budget),
            shelves: [const { Place(Lock::new(Shelf::new())) }; COUNT],
            caches: Lock::new(Caches::new()),
            key: AtomicU32::new(NO_KEY),
            is_quick: AtomicBool::new(false),
            first_left: AtomicI64::new(NEVER),
        }
    }

    /// Called before the first object. False if there are no addresses; then every request gets null.
    pub fn begin(&self, leave: unsafe extern "C" fn(*mut c_void)) -> bool {
        if !self.spans.begin() {
            return false;
        }
        let mut key: libc::pthread_key_t = 0;
        // SAFETY: `key` is valid for writing, and the library with the destructor is never unloaded.
        if unsafe { libc::pthread_key_create(&raw mut key, Some(leave)) } == 0 {
            self.key.store(key, Ordering::Relaxed);
        }
        true
    }

    /// The short way: takes an object of up to 1 KiB from this thread's list. If it returns null, the long way decides.
    #[inline(always)]
    #[must_use]
    pub fn quick_allocate(size: usize) -> *mut u8 {
        if size > FINE_MOST {
            return std::ptr::null_mut();
        }
        Self::quick_of(size, classes::fine(size))
    }

    /// The same for larger objects.
    #[inline(always)]
    #[must_use]
    pub fn quick_allocate_more(size: usize) -> *mut u8 {
        if size <= FINE_MOST || size > MOST {
            return std::ptr::null_mut();
        }
        if size <= MIDDLE {
            return Self::quick_of(size, classes::coarse(size));
        }
        // The recorder counts objects of middle size separately.
        let cache: *mut Cache = local::quick().cast();
        // SAFETY: this thread's cache, to which no other reference is alive; the objects in its lists are free.
        unsafe {
            if cache.is_null() || (*cache).sampler.small.left < NEVER / 2 {
                return std::ptr::null_mut();
            }
            (*cache).lists.get_unchecked_mut(classes::middle(size) as usize).pop()
        }
    }

    #[inline(always)]
    fn quick_of(size: usize, class: u8) -> *mut u8 {
        let cache: *mut Cache = local::quick().cast();
        if cache.is_null() {
            return std::ptr::null_mut();
        }
        // SAFETY: this thread's cache, to which no other reference is alive; the objects in its lists are free.
        unsafe {
            let left = (*cache).sampler.small.left - size as i64;
            let list = (*cache).lists.get_unchecked_mut(class as usize);
            // If the recorder must be asked, or the list is empty, the long way counts the bytes.
            if left < 0 || list.head.is_null() {
                return std::ptr::null_mut();
            }
            (*cache).sampler.small.left = left;
            list.pop()
        }
    }

    /// The short way: puts the block into this thread's list. If it returns false, the long way decides.
    ///
    /// # Safety
    /// `block` is null, or a block that was not freed.
    #[inline(always)]
    #[must_use]
    pub unsafe fn quick_free(&self, block: *mut u8) -> bool {
        let cache: *mut Cache = local::quick().cast();
        if cache.is_null() {
            return false;
        }
        let Some(class) = self.spans.class(block) else { return false };
        // SAFETY: this thread's cache; the table contains only classes below `COUNT`.
        let list = unsafe { (*cache).lists.get_unchecked_mut(class as usize) };
        if list.room <= 0 {
            return false;
        }
        // SAFETY: an object of this class that its owner gave up (the caller's contract), as only such lists have room.
        unsafe { list.push(block) };
        true
    }

    /// Takes an object of a class; this thread's list may be empty.
    fn one(&self, class: u8) -> *mut u8 {
        let batch = CLASSES[class as usize].batch;
        let Some(cache) = self.cache() else {
            let block = self.shelves[class as usize].0.lock().take(class, 1, &self.spans).0;
            if !block.is_null() {
                // SAFETY: a free object that the shelf just gave to this thread.
                unsafe { cache::hand_out(block) };
            }
            return block;
        };
        // SAFETY: this thread's list, whose objects are free.
        let block = unsafe { cache.lists[class as usize].pop() };
        if !block.is_null() {
            return block;
        }
        let (first, count) = self.shelves[class as usize].0.lock().take(class, batch, &self.spans);
        if first.is_null() {
            return first;
        }
        cache.raise_limit(class);
        let list = &mut cache.lists[class as usize];
        list.head = first;
        list.room -= count as i32;
        // SAFETY: this thread's list, which now has at least one free object.
        unsafe { list.pop() }
    }

    /// Frees an object of a class that begins at `block`; this thread's list may be full.
    fn put(&self, block: *mut u8, class: u8) {
        let batch = CLASSES[class as usize].batch;
        // SAFETY: null or this thread's cache, to which no other reference is alive.
        let cache = unsafe { (*local::get()).own.cast::<Cache>().as_mut() };
        let Some(cache) = cache else {
            // This thread has no cache: it only frees, or it ends.
            // SAFETY: an object of this class that its owner gave up.
            unsafe {
                cache::take_back(block);
                block.cast::<*mut u8>().write(std::ptr::null_mut());
            }
            self.shelves[class as usize].0.lock().give(block, 1, class, &self.spans);
            return;
        };
        let list = &mut cache.lists[class as usize];
        if list.limit == 0 {
            cache.raise_limit(class);
        }
        let list = &mut cache.lists[class as usize];
        if list.room <= 0 {
            // SAFETY: a full list has at least one batch.
            let first = unsafe { list.cut(batch) };
            self.shelves[class as usize].0.lock().give(first, batch, class, &self.spans);
        }
        // SAFETY: an object of this class that its owner gave up; the list has room now.
        unsafe { list.push(block) };
    }

    /// Notes that addresses are scarce from now on, and gives up unused ones.
    pub fn tighten(&self) {
        self.spans.tighten();
    }

    /// The length of an object that has pages of its own; `None` for others.
    #[must_use]
    pub fn whole_length(&self, block: *const u8) -> Option<usize> {
        match self.spans.class(block)? {
            WHOLE => self.spans.whole_size(block),
            class => Some(CLASSES[class as usize].size as usize).filter(|size| *size > MIDDLE),
        }
    }

    /// Approximate present figures: the program's bytes of each class, and those in the lists of threads.
    #[must_use]
    pub fn figures(&self) -> Figures {
        let mut figures = Figures { live: [0; COUNT], kept: [0; COUNT], threads: 0, most_kept: 0 };
        let caches = self.caches.lock();
        let mut cache = caches.all;
        while !cache.is_null() {
            let mut bytes = 0;
            for (class, about) in CLASSES.iter().enumerate().take(WHOLE as usize).skip(1) {
                // SAFETY: a cache of ours, which stays mapped. If its thread changes the list meanwhile, an old number
                // is read.
                let count = unsafe {
                    let list = &raw const (*cache).lists[class];
                    (&raw const (*list).limit).read_volatile() - (&raw const (*list).room).read_volatile()
                };
                figures.kept[class] += u64::from(count.max(0).unsigned_abs());
                bytes += u64::from(count.max(0).unsigned_abs()) * u64::from(about.size);
            }
            // SAFETY: a cache of ours, which stays mapped.
            unsafe {
                figures.threads += u64::from((*cache).is_used);
                cache = (*cache).next;
            }
            figures.most_kept = figures.most_kept.max(bytes);
        }
        drop(caches);
        for class in 1..WHOLE {
            let out = self.shelves[class as usize].0.lock().out();
            let (size, kept) = (u64::from(CLASSES[class as usize].size), &mut figures.kept[class as usize]);
            figures.live[class as usize] = out.saturating_sub(*kept) * size;
            *kept *= size;
        }
        figures.live[WHOLE as usize] = self.spans.whole();
        figures
    }

    /// Bytes of free slices that have memory.
    #[must_use]
    pub fn kept(&self) -> u64 {
        self.spans.kept()
    }

    /// Gives back memory of free slices. Takes no lock of a shelf.
    pub fn trim(&self, all: bool) -> u64 {
        self.spans.trim(all)
    }

    /// Describes an error in the tables; for tests.
    #[must_use]
    pub fn fault(&self) -> Option<&'static str> {
        let fault = |class: u8| self.shelves[class as usize].0.lock().fault(class, &self.spans);
        (1..WHOLE).find_map(fault).or_else(|| self.spans.fault())
    }

    /// Called before a fork: takes all locks, so that no thread is in the middle of a change.
    pub fn before_fork(&self) {
        self.caches.acquire();
        self.shelves.iter().for_each(|shelf| shelf.0.acquire());
        self.spans.before_fork();
    }

    /// Called after a fork.
    ///
    /// # Safety
    /// This thread called [`Own::before_fork`].
    pub unsafe fn after_fork(&self, in_child: bool) {
        // SAFETY: this thread has all these locks since `before_fork` (the caller's contract), and no guard is alive.
        unsafe {
            self.spans.after_fork(in_child);
            self.shelves.iter().for_each(|shelf| shelf.0.release());
            if in_child {
                self.adopt(&mut *self.caches.value());
            }
            self.caches.release();
        }
    }

    /// The class for an alignment; `None` for whole slices.
    fn aligned_class(size: usize, alignment: usize) -> Option<u8> {
        if size > MOST || alignment > SLICE {
            return None;
        }
        let first = classes::of(size.max(1));
        (first..WHOLE).find(|class| (CLASSES[*class as usize].size as usize).is_multiple_of(alignment))
    }

    fn whole(&self, size: usize, alignment: usize, zeroed: bool) -> *mut u8 {
        let align = (alignment / SLICE).max(1) as u32;
        let Some((block, is_zero)) = self.spans.make_whole(size.max(1), align) else {
            return std::ptr::null_mut();
        };
        if zeroed && !is_zero {
            // SAFETY: the block is new and has at least `size` bytes.
            unsafe { block.write_bytes(0, size) };
        }
        block
    }

    fn try_allocate(&self, size: usize, alignment: usize, zeroed: bool) -> *mut u8 {
        let class = match Self::aligned_class(size, alignment) {
            // Fresh memory is zero without a write, so a table of which little is touched stays small.
            Some(_) if zeroed && size > MIDDLE => return self.whole(size, alignment, true),
            Some(class) => class,
            None => return self.whole(size, alignment, zeroed),
        };
        let block = self.one(class);
        if zeroed && !block.is_null() {
            // SAFETY: the block is new and has at least `size` bytes.
            unsafe { block.write_bytes(0, size) };
        }
        block
    }
}

impl Own {
    /// Allocates a block. Null if there is no memory.
    pub fn allocate(&self, size: usize, zeroed: bool) -> *mut u8 {
        self.allocate_aligned(size, 1, zeroed)
    }

    /// Allocates a block at a multiple of `alignment`, a power of two. Null if there is no memory.
    pub fn allocate_aligned(&self, size: usize, alignment: usize, zeroed: bool) -> *mut u8 {
        let block = self.try_allocate(size, alignment, zeroed);
        if !block.is_null() {
            return block;
        }
        // Addresses or budget are used up, but idle memory may be enough.
        self.collect(true);
        self.try_allocate(size, alignment, zeroed)
    }

    /// # Safety
    /// `block` came from this core and was not freed; it is invalid afterwards unless null is returned.
    pub unsafe fn reallocate(&self, block: *mut u8, size: usize) -> *mut u8 {
        // SAFETY: `block` is an unfreed block of this core (the caller's contract).
        let old = unsafe { self.usable(block) };
        if size <= old && (size > old / 2 || old <= 64) {
            return block;
        }
        if size > MIDDLE && self.spans.class(block) == Some(WHOLE) && self.spans.resize_whole(block, size) {
            return block;
        }
        let moved = self.allocate(size, false);
        if !moved.is_null() {
            // SAFETY: `moved` is a new block and `block` a live one, so they do not overlap, and each is long enough.
            unsafe {
                moved.copy_from_nonoverlapping(block, old.min(size));
                self.free(block);
            }
        }
        moved
    }

    /// # Safety
    /// `block` came from this core and was not freed.
    pub unsafe fn free(&self, block: *mut u8) {
        match self.spans.class(block) {
            Some(NONE) | None => crate::invalid_free::abort_on_invalid_free("free", block),
            Some(WHOLE) if self.spans.end_whole(block) => {}
            Some(class) if class != WHOLE && self.spans.begins(block, CLASSES[class as usize]) => {
                self.put(block, class);
            }
            Some(_) => crate::invalid_free::abort_on_invalid_free("free", block),
        }
    }

    /// # Safety
    /// `block` came from this core and was not freed.
    pub unsafe fn usable(&self, block: *mut u8) -> usize {
        match self.spans.class(block) {
            Some(NONE) | None => None,
            Some(WHOLE) => self.spans.whole_size(block),
            Some(class) => {
                let about = CLASSES[class as usize];
                // SAFETY: an object of ours begins there.
                let is_live = self.spans.begins(block, about) && !unsafe { cache::is_free(block) };
                is_live.then_some(about.size as usize)
            }
        }
        .unwrap_or_else(|| crate::invalid_free::abort_on_invalid_free("malloc_usable_size", block))
    }

    /// Gives back idle memory; with `all`, also what was freed just now.
    pub fn collect(&self, all: bool) {
        if all && let Some(cache) = self.cache() {
            self.empty(cache);
        }
        for class in 1..WHOLE {
            self.shelves[class as usize].0.lock().settle(class, &self.spans);
        }
        self.trim(all);
    }

    /// Bytes taken from the kernel.
    #[must_use]
    pub fn held(&self) -> u64 {
        let Held { live, kept } = self.spans.held();
        live + kept
    }

    /// True if an object was ever near an address.
    #[must_use]
    pub fn reaches(&self, address: *const u8) -> bool {
        self.spans.class(address).is_some()
    }

    /// True if an address may be a block of this core.
    #[must_use]
    pub fn may_own(&self, block: *const u8) -> bool {
        self.spans.contains(block)
    }
}

#[cfg(test)]
mod tests;
