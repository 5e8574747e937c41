//! The caches of threads: made at a thread's first object, emptied at its end, adopted after a fork.

use super::cache::{Cache, MIDDLE_BYTES, THREAD_BYTES};
use super::classes::{CLASSES, WHOLE};
use super::{NO_KEY, Own};
use crate::sampler::Sampler;
use crate::{local, sys};
use std::ffi::c_void;
use std::sync::atomic::Ordering;

/// All caches, and room for further ones.
#[derive(Debug)]
pub(super) struct Caches {
    pub(super) all: *mut Cache,
    unused: *mut Cache,
    fresh: *mut Cache,
    left: usize,
}

impl Caches {
    pub(super) const fn new() -> Caches {
        let none = std::ptr::null_mut();
        Caches { all: none, unused: none, fresh: none, left: 0 }
    }
}

// SAFETY: the memory is ours, and only the thread that has the lock uses the lists.
unsafe impl Send for Caches {}

/// This number of caches is made at once.
const MADE: usize = 16;

impl Own {
    /// Lets entry points take the short way from now on, or forbids it, in this thread and in new ones.
    pub fn set_quick(&self, is_quick: bool) {
        self.is_quick.store(is_quick, Ordering::Relaxed);
        // SAFETY: the pointer is to this thread's own variable, and no other reference to it is alive.
        let local = unsafe { &mut *local::get() };
        local.quick = if is_quick { local.own } else { std::ptr::null_mut() };
    }

    /// Makes the short way stop at allocations that may be samples. Called while the process has one thread.
    pub fn count_bytes(&self) {
        self.first_left.store(0, Ordering::Relaxed);
        let mut cache = self.caches.lock().all;
        while !cache.is_null() {
            // SAFETY: a cache of ours, which stays mapped; this is the only thread.
            unsafe {
                (*cache).sampler.small.left = 0;
                cache = (*cache).next;
            }
        }
    }

    /// The sampler of this thread. `None` while the thread ends, or if there is no memory.
    #[inline]
    pub fn sampler(&self) -> Option<&'static mut Sampler> {
        // SAFETY: the pointer is to this thread's own variable.
        let own: *mut Cache = unsafe { (*local::get()).own.cast() };
        // SAFETY: null or this thread's cache, to which no other reference is alive.
        match unsafe { own.as_mut() } {
            Some(cache) => Some(&mut cache.sampler),
            None => self.cache().map(|cache| &mut cache.sampler),
        }
    }

    /// This thread's cache. `None` while the thread ends, or if there is no memory.
    pub(super) fn cache(&self) -> Option<&'static mut Cache> {
        // SAFETY: the pointer is to this thread's own variable, and no other reference to it is alive.
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
                // This call may allocate and come here again; by now the cache is set.
                // SAFETY: `begin` made the key.
                sys::keep_errno(|| unsafe { libc::pthread_setspecific(key, made.cast()) });
            }
        }
        // SAFETY: null, or a cache that no other thread has.
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
            // SAFETY: one of `left` unused caches side by side. All bytes are zero, which is a cache with empty lists.
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
        // SAFETY: a cache in the list of unused ones, which no thread has.
        unsafe {
            caches.unused = (*found).next_unused;
            (*found).is_used = true;
            if std::mem::take(&mut (*found).is_left) {
                (*found).recount();
            }
        }
        found
    }

    /// Called when a thread ends: gives its objects to the shelves.
    ///
    /// # Safety
    /// `cache` is the value of this thread's key.
    pub unsafe fn leave(&self, cache: *mut c_void) {
        // SAFETY: the pointer is to this thread's own variable, and no other reference to it is alive.
        let local = unsafe { &mut *local::get() };
        let is_own = local.own == cache;
        let cache: *mut Cache = cache.cast();
        if !is_own {
            return;
        }
        (local.own, local.quick, local.is_ending) = (std::ptr::null_mut(), std::ptr::null_mut(), 1);
        // SAFETY: it was this thread's cache, and the thread's variable no longer points to it.
        self.empty(unsafe { &mut *cache });
        let mut caches = self.caches.lock();
        // SAFETY: still this thread's cache, until it is in the list of unused ones.
        unsafe {
            (*cache).is_used = false;
            (*cache).next_unused = caches.unused;
        }
        caches.unused = cache;
    }

    /// Gives all objects of a cache to the shelves.
    pub(super) fn empty(&self, cache: &mut Cache) {
        (cache.spare, cache.spare_middle) = (THREAD_BYTES, MIDDLE_BYTES);
        for class in 1..WHOLE {
            let list = &mut cache.lists[class as usize];
            let batch = CLASSES[class as usize].batch;
            let mut count = (list.limit - list.room) as u32;
            if count > 0 {
                let mut shelf = self.shelves[class as usize].0.lock();
                while count > 0 {
                    let part = count.min(batch);
                    // SAFETY: the list has `count` objects, and `part <= count`.
                    let first = unsafe { list.cut(part) };
                    shelf.give(first, part, class, &self.spans);
                    count -= part;
                }
            }
            (list.limit, list.room) = (0, 0);
        }
    }

    /// Gives the caches of threads that a child does not have to its new threads.
    pub(super) fn adopt(&self, caches: &mut Caches) {
        // SAFETY: the pointer is to this thread's own variable.
        let own: *mut Cache = unsafe { (*local::get()).own.cast() };
        let mut cache = caches.all;
        while !cache.is_null() {
            // SAFETY: a cache of ours, which stays mapped. The child does not have its thread, so no other thread
            // writes to it.
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
}
