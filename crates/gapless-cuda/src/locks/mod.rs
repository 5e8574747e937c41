//! Locks, signals and values set once, for which a forked child never waits.
//!
//! A forked child has only the thread that forked. A lock that another thread of the parent held at that moment is
//! never opened in the child, so an exit handler, a free or a question about memory would wait for ever. Therefore each
//! lock notes the process that took it ([`generation`]). A child that finds a lock that was taken before the fork takes
//! it, and begins with a fresh value. The old value may be half changed, so it is never looked at.
//!
//! The standard library's locks and its `OnceLock` ignore forks. This crate and the library that PyTorch loads use
//! these instead. A test of that library finds uses of the others.

mod futex;
#[cfg(debug_assertions)]
pub mod order;
mod set_once;

pub use set_once::SetOnce;

use std::cell::UnsafeCell;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

/// Number of forks between this process and the first one that used a lock.
static GENERATION: AtomicU32 = AtomicU32::new(0);

unsafe extern "C" {
    fn pthread_atfork(
        prepare: Option<unsafe extern "C" fn()>,
        parent: Option<unsafe extern "C" fn()>,
        child: Option<unsafe extern "C" fn()>,
    ) -> i32;
}

unsafe extern "C" fn in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

/// The generation of this process in a line of forks.
#[inline]
#[must_use]
pub fn generation() -> u32 {
    static IS_WATCHED: AtomicBool = AtomicBool::new(false);
    if !IS_WATCHED.load(Ordering::Acquire) && !IS_WATCHED.swap(true, Ordering::AcqRel) {
        // SAFETY: `in_child` is a function of this library, which is never unloaded.
        unsafe { pthread_atfork(None, None, Some(in_child)) };
    }
    GENERATION.load(Ordering::Relaxed)
}

/// States in the word of a lock. 0 means open; otherwise the bits above the state have the holder's generation.
const HELD: u32 = 1;
/// Held, and a thread may be waiting.
const AWAITED: u32 = 2;
const STATES: u32 = 3;
/// Looks at a lock before a thread sleeps: most holders release it within some hundred nanoseconds.
const LOOKS: u32 = 100;

/// A lock that knows its process.
pub struct Lock<T> {
    word: AtomicU32,
    /// Made when the lock is first taken.
    value: UnsafeCell<Option<T>>,
    fresh: fn() -> T,
    #[cfg(debug_assertions)]
    listed: known::Entry,
}

// SAFETY: the lock gives the value to one thread at a time.
unsafe impl<T: Send> Sync for Lock<T> {}
// SAFETY: the value moves with the lock.
unsafe impl<T: Send> Send for Lock<T> {}

impl<T> fmt::Debug for Lock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Lock")
    }
}

/// Holds a lock as long as it lives.
#[derive(Debug)]
pub struct Guard<'a, T> {
    lock: &'a Lock<T>,
    generation: u32,
    /// The guard stays with its thread.
    here: PhantomData<*mut T>,
}

// SAFETY: a shared guard only gives shared access to the value.
unsafe impl<T: Sync> Sync for Guard<'_, T> {}

impl<T> Lock<T> {
    /// A lock for a `static`. `fresh` makes its value, also in a forked child that cannot use its parent's.
    #[track_caller]
    pub const fn new(fresh: fn() -> T) -> Lock<T> {
        Lock {
            word: AtomicU32::new(0),
            value: UnsafeCell::new(None),
            fresh,
            #[cfg(debug_assertions)]
            listed: known::Entry::new(std::panic::Location::caller()),
        }
    }

    /// A lock inside of another value, with its own value. Only a forked child calls `fresh`.
    #[track_caller]
    pub const fn with(value: T, fresh: fn() -> T) -> Lock<T> {
        Lock {
            word: AtomicU32::new(0),
            value: UnsafeCell::new(Some(value)),
            fresh,
            #[cfg(debug_assertions)]
            listed: known::Entry::unlisted(std::panic::Location::caller()),
        }
    }

    /// Waits for the lock. A panic of the last holder does not matter: it leaves the value as its last completed step
    /// made it.
    #[inline]
    pub fn lock(&self) -> Guard<'_, T> {
        let generation = generation();
        #[cfg(debug_assertions)]
        {
            self.listed.list(&self.word);
            order::entering(self.listed.place());
        }
        if self
            .word
            .compare_exchange(0, stamp(generation, HELD), Ordering::Acquire, Ordering::Relaxed)
            .is_err()
        {
            self.wait(generation);
        }
        self.held(generation)
    }

    /// The value, if no other thread has it.
    pub fn try_lock(&self) -> Option<Guard<'_, T>> {
        let generation = generation();
        let word = self.word.load(Ordering::Relaxed);
        if word != 0 && is_of(word, generation) {
            return None;
        }
        self.word
            .compare_exchange(word, stamp(generation, HELD), Ordering::Acquire, Ordering::Relaxed)
            .ok()?;
        if word != 0 {
            self.begin_anew();
        }
        Some(self.held(generation))
    }

    /// The guard of a lock that the caller has taken.
    #[inline]
    fn held(&self, generation: u32) -> Guard<'_, T> {
        #[cfg(debug_assertions)]
        order::entered(self.listed.place());
        let held = Guard { lock: self, generation, here: PhantomData };
        // SAFETY: the caller has taken the lock for this guard, so no other thread uses the value.
        unsafe { (*self.value.get()).get_or_insert_with(self.fresh) };
        held
    }

    /// The value. `&mut self` proves that no other thread has the lock.
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut().get_or_insert_with(self.fresh)
    }

    #[cold]
    fn wait(&self, generation: u32) {
        let mut looks = 0;
        loop {
            let word = self.word.load(Ordering::Relaxed);
            let is_left = word != 0 && !is_of(word, generation);
            if word == 0 || is_left {
                // A thread that has slept may not be the last waiter, so it keeps the mark.
                let wanted = stamp(generation, if looks > LOOKS { AWAITED } else { HELD });
                if self.word.compare_exchange(word, wanted, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                    if is_left {
                        self.begin_anew();
                    }
                    return;
                }
                continue;
            }
            looks += 1;
            if looks <= LOOKS {
                std::hint::spin_loop();
                continue;
            }
            let awaited = stamp(generation, AWAITED);
            let is_marked = word == awaited
                || self.word.compare_exchange(word, awaited, Ordering::Relaxed, Ordering::Relaxed).is_ok();
            if is_marked {
                futex::wait(&self.word, awaited, None);
            }
        }
    }

    /// Replaces the value of a thread that is not in this process: it may be half changed.
    #[cold]
    fn begin_anew(&self) {
        // SAFETY: the caller has the lock. The old value is neither read nor dropped.
        unsafe { self.value.get().write(None) };
    }
}

fn stamp(generation: u32, state: u32) -> u32 {
    generation << 2 | state
}

fn is_of(word: u32, generation: u32) -> bool {
    word & !STATES == generation << 2
}

/// Opens a lock that was taken in this generation. A lock from before a fork belongs to the child: if another thread of
/// the child has taken it, that thread keeps it.
fn open(word: &AtomicU32, generation: u32) {
    let held = stamp(generation, HELD);
    if word.compare_exchange(held, 0, Ordering::Release, Ordering::Relaxed).is_ok() {
        return;
    }
    let awaited = stamp(generation, AWAITED);
    if word.compare_exchange(awaited, 0, Ordering::Release, Ordering::Relaxed).is_ok() {
        futex::wake(word, 1);
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: this guard has the lock.
        unsafe { (*self.lock.value.get()).as_ref() }.expect("made when the lock was taken")
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this guard has the lock.
        unsafe { (*self.lock.value.get()).as_mut() }.expect("made when the lock was taken")
    }
}

impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        #[cfg(debug_assertions)]
        order::left(self.lock.listed.place());
        open(&self.lock.word, self.generation);
    }
}

/// A `Condvar` for [`Lock`]: holders of a lock wait for it. Waits may end early.
#[derive(Debug, Default)]
pub struct Signal(AtomicU32);

impl Signal {
    #[must_use]
    pub const fn new() -> Signal {
        Signal(AtomicU32::new(0))
    }

    /// Releases the lock, waits for the signal, and takes the lock again.
    #[must_use]
    pub fn wait<'a, T>(&self, held: Guard<'a, T>) -> Guard<'a, T> {
        self.wait_at_most(held, None)
    }

    /// [`Signal::wait`], for at most `most`.
    #[must_use]
    pub fn wait_for<'a, T>(&self, held: Guard<'a, T>, most: Duration) -> Guard<'a, T> {
        self.wait_at_most(held, Some(most))
    }

    fn wait_at_most<'a, T>(&self, held: Guard<'a, T>, most: Option<Duration>) -> Guard<'a, T> {
        let (lock, given) = (held.lock, self.0.load(Ordering::Relaxed));
        drop(held);
        futex::wait(&self.0, given, most);
        lock.lock()
    }

    pub fn notify_all(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
        futex::wake(&self.0, i32::MAX);
    }
}

/// The locks of `static`s, in builds for tests: a test forks while each of them is held.
#[cfg(debug_assertions)]
pub mod known {
    use super::{HELD, generation, open, stamp};
    use std::panic::Location;
    use std::ptr;
    use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

    /// Locks that were taken at least once.
    static FIRST: AtomicPtr<Entry> = AtomicPtr::new(ptr::null_mut());

    #[derive(Debug)]
    pub(super) struct Entry {
        place: &'static Location<'static>,
        /// True for the lock of a `static`.
        is_static: bool,
        is_listed: AtomicBool,
        word: AtomicPtr<AtomicU32>,
        next: AtomicPtr<Entry>,
    }

    impl Entry {
        pub(super) const fn new(place: &'static Location<'static>) -> Entry {
            Entry { is_static: true, ..Entry::unlisted(place) }
        }

        pub(super) const fn unlisted(place: &'static Location<'static>) -> Entry {
            Entry {
                place,
                is_static: false,
                is_listed: AtomicBool::new(false),
                word: AtomicPtr::new(ptr::null_mut()),
                next: AtomicPtr::new(ptr::null_mut()),
            }
        }

        /// The place in the source where the lock is made.
        pub(super) fn place(&self) -> &'static Location<'static> {
            self.place
        }

        pub(super) fn list(&self, word: &AtomicU32) {
            if !self.is_static || self.is_listed.swap(true, Ordering::AcqRel) {
                return;
            }
            self.word.store(ptr::from_ref(word).cast_mut(), Ordering::Relaxed);
            // At the end, so that the numbers of other locks stay.
            let own = ptr::from_ref(self).cast_mut();
            let mut end = &FIRST;
            while let Err(other) =
                end.compare_exchange(ptr::null_mut(), own, Ordering::AcqRel, Ordering::Acquire)
            {
                // SAFETY: only locks of `static`s are listed, which are never freed.
                end = unsafe { &(*other).next };
            }
        }
    }

    fn all() -> impl Iterator<Item = &'static Entry> {
        let mut next = FIRST.load(Ordering::Acquire);
        std::iter::from_fn(move || {
            // SAFETY: only locks of `static`s are listed, which are never freed.
            let entry = unsafe { next.as_ref() }?;
            next = entry.next.load(Ordering::Acquire);
            Some(entry)
        })
    }

    /// The place in the source of the lock number `at`, as `file:line`.
    #[must_use]
    pub fn place(at: usize) -> Option<String> {
        all().nth(at).map(|entry| format!("{}:{}", entry.place.file(), entry.place.line()))
    }

    /// Takes a lock, like a thread that is interrupted while it has it. False if there is no such lock.
    #[must_use]
    pub fn hold(at: usize) -> bool {
        let Some(entry) = all().nth(at) else { return false };
        // SAFETY: only locks of `static`s are listed, which are never freed.
        let word = unsafe { &*entry.word.load(Ordering::Relaxed) };
        while word
            .compare_exchange(0, stamp(generation(), HELD), Ordering::Acquire, Ordering::Relaxed)
            .is_err()
        {
            std::thread::yield_now();
        }
        true
    }

    /// Opens a lock that [`hold`] took.
    pub fn let_go(at: usize) {
        if let Some(entry) = all().nth(at) {
            // SAFETY: only locks of `static`s are listed, which are never freed.
            open(unsafe { &*entry.word.load(Ordering::Relaxed) }, generation());
        }
    }
}

#[cfg(test)]
mod tests;
