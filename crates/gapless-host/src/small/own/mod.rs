//! Our own core for small objects.
//!
//! ```text
//!   cache     a thread's lists of free objects: no lock, no atomic operation
//!   shelf     one for each class: batches that pass between threads, and the spans
//!   spans     slices of 16 KiB from an arena, the class of each in one byte
//!   classes   sizes
//! ```
//!
//! An object may be freed by any thread: it goes into that thread's list, and a full list gives a batch to the shelf.
//! So a thread that only frees feeds one that only allocates, 64 objects at a time. An object above 256 KiB has slices
//! of its own.
//!
//! A thread takes the lock of a shelf, then that of the arena; never two shelves, except around a fork, where all are
//! taken in the order of their classes. A forked child keeps the caches of threads that it does not have, with what is
//! in them, for the threads that it starts: a list is whole at every instruction.

mod cache;
pub mod classes;
mod shelf;
mod spans;

use crate::arena::Held;
use crate::budget::Budget;
use crate::local;
use crate::lock::Lock;
use crate::sampler::{NEVER, Sampler};
use crate::sys;
use cache::{Cache, MIDDLE_BYTES, THREAD_BYTES};
use classes::{CLASSES, COUNT, FINE_MOST, MIDDLE, MOST, NONE, SLICE, WHOLE};
use shelf::Shelf;
use spans::Spans;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, Ordering};

#[derive(Debug)]
pub struct Own {
    spans: Spans,
    shelves: [Place; COUNT],
    caches: Lock<Caches>,
    key: AtomicU32,
    /// Whether entry points may take the short way.
    is_quick: AtomicBool,
    /// Bytes that a new cache hands out before the recorder is asked.
    first_left: AtomicI64,
}

/// What small objects take, in bytes by class. The last class is that of objects above 256 KiB.
#[derive(Clone, Copy, Debug)]
pub struct Figures {
    pub live: [u64; COUNT],
    /// Free, in the lists of threads.
    pub kept: [u64; COUNT],
    /// Threads with lists, and the most that one of them keeps.
    pub threads: u64,
    pub most_kept: u64,
}

/// A shelf on cache lines of its own.
#[derive(Debug)]
#[repr(align(128))]
struct Place(Lock<Shelf>);

/// All caches, and room for further ones.
#[derive(Debug)]
struct Caches {
    all: *mut Cache,
    unused: *mut Cache,
    fresh: *mut Cache,
    left: usize,
}

// SAFETY: memory of ours; who has the lock has the lists.
unsafe impl Send for Caches {}

/// Caches that are made at once.
const MADE: usize = 16;
const NO_KEY: u32 = u32::MAX;

impl Own {
    #[must_use]
    pub const fn new(budget: &'static Budget) -> Own {
        let none = std::ptr::null_mut();
        Own {
            spans: Spans::new(budget),
            shelves: [const { Place(Lock::new(Shelf::new())) }; COUNT],
            caches: Lock::new(Caches { all: none, unused: none, fresh: none, left: 0 }),
            key: AtomicU32::new(NO_KEY),
            is_quick: AtomicBool::new(false),
            first_left: AtomicI64::new(NEVER),
        }
    }

    /// Before the first object. False: there are no addresses, and every request gets null.
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

    /// Lets entry points take the short way from now on, or forbids it, for this thread and those that come.
    pub fn set_quick(&self, is_quick: bool) {
        self.is_quick.store(is_quick, Ordering::Relaxed);
        // SAFETY: this thread's own variable.
        let local = unsafe { &mut *local::get() };
        local.quick = if is_quick { local.own } else { std::ptr::null_mut() };
    }

    /// From now on the short way stops where an allocation may be a sample. While the process has one thread.
    pub fn count_bytes(&self) {
        self.first_left.store(0, Ordering::Relaxed);
        let mut cache = self.caches.lock().all;
        while !cache.is_null() {
            // SAFETY: a cache of ours; the only thread is here.
            unsafe {
                (*cache).sampler.small.left = 0;
                cache = (*cache).next;
            }
        }
    }

    /// What this thread knows of its next sample. `None` while a thread ends, and without memory.
    #[inline]
    pub fn sampler(&self) -> Option<&'static mut Sampler> {
        // SAFETY: this thread's own variable.
        let own: *mut Cache = unsafe { (*local::get()).own.cast() };
        // SAFETY: this thread's cache, to which nobody else refers.
        match unsafe { own.as_mut() } {
            Some(cache) => Some(&mut cache.sampler),
            None => self.cache().map(|cache| &mut cache.sampler),
        }
    }

    /// The short way: an object of up to 1 KiB out of this thread's list. Null: the long way finds out.
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
        // The recorder counts objects of middle size apart.
        let cache: *mut Cache = local::quick().cast();
        // SAFETY: this thread's cache, to which nobody else refers; its objects are free.
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
        // SAFETY: this thread's cache, to which nobody else refers; its objects are free.
        unsafe {
            let left = (*cache).sampler.small.left - size as i64;
            let list = (*cache).lists.get_unchecked_mut(class as usize);
            // Where the recorder must be asked, or the list is empty, nothing is counted here.
            if left < 0 || list.head.is_null() {
                return std::ptr::null_mut();
            }
            (*cache).sampler.small.left = left;
            list.pop()
        }
    }

    /// The short way: into this thread's list. False: the long way finds out.
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
        // SAFETY: this thread's cache; the table has classes below `COUNT` only.
        let list = unsafe { (*cache).lists.get_unchecked_mut(class as usize) };
        if list.room <= 0 {
            return false;
        }
        // SAFETY: an object of this class, since the class is neither of the two whose lists have no room.
        unsafe { list.push(block) };
        true
    }

    /// This thread's cache. `None` while a thread ends, and without memory.
    fn cache(&self) -> Option<&'static mut Cache> {
        // SAFETY: this thread's own variable.
        let local = unsafe { &mut *local::get() };
        if local.own.is_null() && local.is_ending == 0 {
            let made = self.make_cache();
            if made.is_null() {
                return None;
            }
            local.own = made.cast();
            local.quick =
                if self.is_quick.load(Ordering::Relaxed) { local.own } else { std::ptr::null_mut() };
            let key = self.key.load(Ordering::Relaxed);
            if key != NO_KEY {
                // It may allocate, and comes here again: the cache is there already.
                // SAFETY: a key that `begin` made.
                sys::keep_errno(|| unsafe { libc::pthread_setspecific(key, made.cast()) });
            }
        }
        // SAFETY: a cache that no other thread has.
        unsafe { local.own.cast::<Cache>().as_mut() }
    }

    fn make_cache(&self) -> *mut Cache {
        let mut caches = self.caches.lock();
        if caches.unused.is_null() {
            if caches.left == 0 {
                let Some(fresh) = sys::map(MADE * size_of::<Cache>()) else { return std::ptr::null_mut() };
                (caches.fresh, caches.left) = (fresh.cast(), MADE);
            }
            let made = caches.fresh;
            // SAFETY: one of `left` caches behind each other, all zero, which is a cache with empty lists.
            unsafe {
                caches.fresh = made.add(1);
                (*made).spare = THREAD_BYTES;
                (*made).spare_middle = MIDDLE_BYTES;
                (*made).sampler.small.left = self.first_left.load(Ordering::Relaxed);
                (*made).next = caches.all;
                (*made).is_used = true;
            }
            caches.left -= 1;
            caches.all = made;
            return made;
        }
        let found = caches.unused;
        // SAFETY: a cache that no thread has.
        unsafe {
            caches.unused = (*found).next_unused;
            (*found).is_used = true;
            if std::mem::take(&mut (*found).is_left) {
                (*found).recount();
            }
        }
        found
    }

    /// A thread ends: its objects go back to the shelves.
    ///
    /// # Safety
    /// `cache` is what this thread's key had.
    pub unsafe fn leave(&self, cache: *mut c_void) {
        // SAFETY: this thread's own variable.
        let local = unsafe { &mut *local::get() };
        let is_own = local.own == cache;
        let cache: *mut Cache = cache.cast();
        if !is_own {
            return;
        }
        (local.own, local.quick, local.is_ending) = (std::ptr::null_mut(), std::ptr::null_mut(), 1);
        // SAFETY: the thread had it, and has it no more.
        self.empty(unsafe { &mut *cache });
        let mut caches = self.caches.lock();
        // SAFETY: as above.
        unsafe {
            (*cache).is_used = false;
            (*cache).next_unused = caches.unused;
        }
        caches.unused = cache;
    }

    /// Gives all objects of a cache to the shelves.
    fn empty(&self, cache: &mut Cache) {
        (cache.spare, cache.spare_middle) = (THREAD_BYTES, MIDDLE_BYTES);
        for class in 1..WHOLE {
            let list = &mut cache.lists[class as usize];
            let batch = CLASSES[class as usize].batch;
            let mut count = (list.limit - list.room) as u32;
            if count > 0 {
                let mut shelf = self.shelves[class as usize].0.lock();
                while count > 0 {
                    let part = count.min(batch);
                    // SAFETY: the list has `count` objects.
                    let first = unsafe { list.cut(part) };
                    shelf.give(first, part, class, &self.spans);
                    count -= part;
                }
            }
            (list.limit, list.room) = (0, 0);
        }
    }

    /// An object of a class, when this thread's list may be empty.
    fn one(&self, class: u8) -> *mut u8 {
        let batch = CLASSES[class as usize].batch;
        let Some(cache) = self.cache() else {
            let block = self.shelves[class as usize].0.lock().take(class, 1, &self.spans).0;
            if !block.is_null() {
                // SAFETY: a free object that is this thread's now.
                unsafe { cache::hand_out(block) };
            }
            return block;
        };
        // SAFETY: this thread's list.
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
        // SAFETY: as above; it has at least one.
        unsafe { list.pop() }
    }

    /// An object of a class comes back, when this thread's list may be full.
    fn put(&self, block: *mut u8, class: u8) {
        let batch = CLASSES[class as usize].batch;
        // SAFETY: this thread's own variable.
        let cache = unsafe { (*local::get()).own.cast::<Cache>().as_mut() };
        let Some(cache) = cache else {
            // A thread that only frees, or ends.
            // SAFETY: an object that its owner gave back.
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
            // SAFETY: a full list has at least a batch.
            let first = unsafe { list.cut(batch) };
            self.shelves[class as usize].0.lock().give(first, batch, class, &self.spans);
        }
        // SAFETY: an object of this class that its owner gave back; there is room now.
        unsafe { list.push(block) };
    }

    /// Addresses are scarce from now on: gives up those that nobody uses.
    pub fn tighten(&self, most: usize) {
        self.spans.tighten(most);
    }

    /// The length of an object that has pages of its own; `None` for all others.
    #[must_use]
    pub fn whole_length(&self, block: *const u8) -> Option<usize> {
        match self.spans.class(block)? {
            WHOLE => self.spans.whole_size(block),
            class => Some(CLASSES[class as usize].size as usize).filter(|size| *size > MIDDLE),
        }
    }

    /// What the program has of each class, and what threads keep in their lists, as it is about now.
    #[must_use]
    pub fn figures(&self) -> Figures {
        let mut figures = Figures { live: [0; COUNT], kept: [0; COUNT], threads: 0, most_kept: 0 };
        let caches = self.caches.lock();
        let mut cache = caches.all;
        while !cache.is_null() {
            let mut bytes = 0;
            for (class, about) in CLASSES.iter().enumerate().take(WHOLE as usize).skip(1) {
                // SAFETY: a cache of ours. Its thread may change the list meanwhile: then the number is the old one.
                let count = unsafe {
                    let list = &raw const (*cache).lists[class];
                    (&raw const (*list).limit).read_volatile() - (&raw const (*list).room).read_volatile()
                };
                figures.kept[class] += u64::from(count.max(0).unsigned_abs());
                bytes += u64::from(count.max(0).unsigned_abs()) * u64::from(about.size);
            }
            // SAFETY: as above.
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

    /// Says what is wrong with the tables; for tests.
    #[must_use]
    pub fn fault(&self) -> Option<&'static str> {
        let fault = |class: u8| self.shelves[class as usize].0.lock().fault(class, &self.spans);
        (1..WHOLE).find_map(fault).or_else(|| self.spans.fault())
    }

    /// Before a fork: nobody is in the middle of a change.
    pub fn before_fork(&self) {
        self.caches.acquire();
        self.shelves.iter().for_each(|shelf| shelf.0.acquire());
        self.spans.before_fork();
    }

    /// After it.
    ///
    /// # Safety
    /// [`Own::before_fork`] was called by this thread.
    pub unsafe fn after_fork(&self, in_child: bool) {
        // SAFETY: as the caller says.
        unsafe {
            self.spans.after_fork(in_child);
            self.shelves.iter().for_each(|shelf| shelf.0.release());
            if in_child {
                self.adopt(&mut *self.caches.value());
            }
            self.caches.release();
        }
    }

    /// The caches of threads that a child does not have are for its new threads.
    fn adopt(&self, caches: &mut Caches) {
        // SAFETY: this thread's own variable.
        let own: *mut Cache = unsafe { (*local::get()).own.cast() };
        let mut cache = caches.all;
        while !cache.is_null() {
            // SAFETY: a cache of ours. Its thread is not there, so nobody else writes to it.
            unsafe {
                if (*cache).is_used && cache != own {
                    ((*cache).is_used, (*cache).is_left) = (false, true);
                    (*cache).next_unused = caches.unused;
                    caches.unused = cache;
                }
                cache = (*cache).next;
            }
        }
    }

    /// The class for an alignment; `None`: whole slices.
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
            // SAFETY: a new object of at least this size.
            unsafe { block.write_bytes(0, size) };
        }
        block
    }

    fn try_allocate(&self, size: usize, alignment: usize, zeroed: bool) -> *mut u8 {
        let class = match Self::aligned_class(size, alignment) {
            // Fresh memory is zero: a table that is touched here and there stays small.
            Some(_) if zeroed && size > MIDDLE => return self.whole(size, alignment, true),
            Some(class) => class,
            None => return self.whole(size, alignment, zeroed),
        };
        let block = self.one(class);
        if zeroed && !block.is_null() {
            // SAFETY: a new object of at least this size.
            unsafe { block.write_bytes(0, size) };
        }
        block
    }
}

impl Own {
    /// A block; null where there is no memory.
    pub fn allocate(&self, size: usize, zeroed: bool) -> *mut u8 {
        self.allocate_aligned(size, 1, zeroed)
    }

    /// A block at a multiple of `alignment`, a power of two; null where there is no memory.
    pub fn allocate_aligned(&self, size: usize, alignment: usize, zeroed: bool) -> *mut u8 {
        let block = self.try_allocate(size, alignment, zeroed);
        if !block.is_null() {
            return block;
        }
        // No addresses, or no budget: what is idle may be enough.
        self.collect(true);
        self.try_allocate(size, alignment, zeroed)
    }

    /// # Safety
    /// `block` came from this core and was not freed; it is invalid afterwards unless null is returned.
    pub unsafe fn reallocate(&self, block: *mut u8, size: usize) -> *mut u8 {
        // SAFETY: as the caller says.
        let old = unsafe { self.usable(block) };
        if size <= old && (size > old / 2 || old <= 64) {
            return block;
        }
        if size > MIDDLE && self.spans.class(block) == Some(WHOLE) && self.spans.resize_whole(block, size) {
            return block;
        }
        let moved = self.allocate(size, false);
        if !moved.is_null() {
            // SAFETY: two blocks, each at least as long as the smaller of the two.
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
            Some(NONE) | None => crate::wrong::wrong_free("free", block),
            Some(WHOLE) => self.spans.end_whole(block),
            Some(class) => self.put(block, class),
        }
    }

    /// # Safety
    /// `block` came from this core and was not freed.
    pub unsafe fn usable(&self, block: *mut u8) -> usize {
        match self.spans.class(block) {
            Some(NONE) | None => None,
            Some(WHOLE) => self.spans.whole_size(block),
            Some(class) => Some(CLASSES[class as usize].size as usize),
        }
        .unwrap_or_else(|| crate::wrong::wrong_free("malloc_usable_size", block))
    }

    /// Gives back what is idle; `all`: also what was freed just now.
    pub fn collect(&self, all: bool) {
        if all && let Some(cache) = self.cache() {
            self.empty(cache);
        }
        for class in 1..WHOLE {
            self.shelves[class as usize].0.lock().settle(class, &self.spans);
        }
        self.trim(all);
    }

    /// Bytes that it holds from the kernel.
    #[must_use]
    pub fn held(&self) -> u64 {
        let Held { live, kept } = self.spans.held();
        live + kept
    }

    /// Whether an address can be one of its blocks.
    #[must_use]
    pub fn may_own(&self, block: *const u8) -> bool {
        self.spans.contains(block)
    }
}

#[cfg(test)]
mod tests;
