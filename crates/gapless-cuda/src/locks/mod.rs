//! Locks, signals and values set once that a forked child never waits for.
//!
//! A child has only the thread that forked. A lock that another thread of the parent held at that moment is never
//! opened in the child, and an exit handler, a free or a question about memory would wait for it for ever. So each lock
//! notes in which process it was taken ([`generation`]). Where a child finds one that was taken before it was forked,
//! it takes the lock and begins with a fresh value: the old one may be half changed, so it is left as it is and never
//! looked at.
//!
//! The standard library's locks and its `OnceLock` know nothing of forks. This crate and the library that PyTorch loads
//! use these instead, and a test of that library looks for the others.

mod futex;
mod set_once;

pub use set_once::SetOnce;

use std::cell::UnsafeCell;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

/// How many forks lie between this process and the first one that used a lock.
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

/// Which process of a line of forks this is.
#[inline]
#[must_use]
pub fn generation() -> u32 {
    static IS_WATCHED: AtomicBool = AtomicBool::new(false);
    if !IS_WATCHED.load(Ordering::Acquire) && !IS_WATCHED.swap(true, Ordering::AcqRel) {
        // SAFETY: a function that lives as long as the process.
        unsafe { pthread_atfork(None, None, Some(in_child)) };
    }
    GENERATION.load(Ordering::Relaxed)
}

/// The word of a lock: 0 where it is open; else one of these, and the generation of who took it above them.
const HELD: u32 = 1;
/// Guard, and a thread may be waiting.
const AWAITED: u32 = 2;
const STATES: u32 = 3;
/// Looks at a lock before a thread sleeps: holders are mostly done within some hundred nanoseconds.
const LOOKS: u32 = 100;

/// A lock that knows its process.
pub struct Lock<T> {
    word: AtomicU32,
    /// Made by the first one who takes the lock.
    value: UnsafeCell<Option<T>>,
    fresh: fn() -> T,
    #[cfg(debug_assertions)]
    listed: known::Entry,
}

// SAFETY: the lock lets one thread at a time to the value.
unsafe impl<T: Send> Sync for Lock<T> {}
// SAFETY: the value goes with the lock.
unsafe impl<T: Send> Send for Lock<T> {}

impl<T> fmt::Debug for Lock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Lock")
    }
}

/// A lock that is held, until this goes.
#[derive(Debug)]
pub struct Guard<'a, T> {
    lock: &'a Lock<T>,
    generation: u32,
    /// Stays with its thread.
    here: PhantomData<*mut T>,
}

// SAFETY: a shared guard gives no more than the value, shared.
unsafe impl<T: Sync> Sync for Guard<'_, T> {}

impl<T> Lock<T> {
    /// A lock of a `static`. `fresh` makes its value, also for a forked child that cannot have its parent's.
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

    /// A lock inside of something else, with its value; `fresh` is for a forked child alone.
    pub const fn with(value: T, fresh: fn() -> T) -> Lock<T> {
        Lock {
            word: AtomicU32::new(0),
            value: UnsafeCell::new(Some(value)),
            fresh,
            #[cfg(debug_assertions)]
            listed: known::Entry::unlisted(),
        }
    }

    /// Waits for the lock, whatever happened to its last holder: a panic leaves what it guards as the last completed
    /// step had it.
    #[inline]
    pub fn lock(&self) -> Guard<'_, T> {
        let generation = generation();
        #[cfg(debug_assertions)]
        self.listed.list(&self.word);
        if self
            .word
            .compare_exchange(0, stamp(generation, HELD), Ordering::Acquire, Ordering::Relaxed)
            .is_err()
        {
            self.wait(generation);
        }
        self.held(generation)
    }

    /// The value, where no other thread has it.
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

    /// The caller has taken the lock.
    #[inline]
    fn held(&self, generation: u32) -> Guard<'_, T> {
        let held = Guard { lock: self, generation, here: PhantomData };
        // SAFETY: as the caller says.
        unsafe { (*self.value.get()).get_or_insert_with(self.fresh) };
        held
    }

    /// The value, for the only one who knows of the lock.
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
                // A thread that has slept may not be the last one.
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

    /// The value of a thread that is not in this process: it may be half changed.
    #[cold]
    fn begin_anew(&self) {
        // SAFETY: the caller has the lock. The old value is neither looked at nor dropped.
        unsafe { self.value.get().write(None) };
    }
}

fn stamp(generation: u32, state: u32) -> u32 {
    generation << 2 | state
}

fn is_of(word: u32, generation: u32) -> bool {
    word & !STATES == generation << 2
}

/// Opens a lock that was taken in this generation. One that a fork lies behind is the child's own matter: where another
/// thread of the child has taken it, it stays that one's.
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
        open(&self.lock.word, self.generation);
    }
}

/// What threads wait for that hold a lock: a `Condvar` for [`Lock`]. Waits may end early.
#[derive(Debug, Default)]
pub struct Signal(AtomicU32);

impl Signal {
    #[must_use]
    pub const fn new() -> Signal {
        Signal(AtomicU32::new(0))
    }

    /// Opens the lock until the signal is given.
    #[must_use]
    pub fn wait<'a, T>(&self, held: Guard<'a, T>) -> Guard<'a, T> {
        self.wait_at_most(held, None)
    }

    /// [`Signal::wait`], not longer than `most`.
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

/// Which locks of `static`s there are, in builds for tests: these fork while each of them is held.
#[cfg(debug_assertions)]
pub mod known {
    use super::{HELD, generation, open, stamp};
    use std::panic::Location;
    use std::ptr;
    use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

    /// The locks that were taken at least once.
    static FIRST: AtomicPtr<Entry> = AtomicPtr::new(ptr::null_mut());

    #[derive(Debug)]
    pub(super) struct Entry {
        place: Option<&'static Location<'static>>,
        is_listed: AtomicBool,
        word: AtomicPtr<AtomicU32>,
        next: AtomicPtr<Entry>,
    }

    impl Entry {
        pub(super) const fn new(place: &'static Location<'static>) -> Entry {
            Entry { place: Some(place), ..Entry::unlisted() }
        }

        pub(super) const fn unlisted() -> Entry {
            Entry {
                place: None,
                is_listed: AtomicBool::new(false),
                word: AtomicPtr::new(ptr::null_mut()),
                next: AtomicPtr::new(ptr::null_mut()),
            }
        }

        pub(super) fn list(&self, word: &AtomicU32) {
            if self.place.is_none() || self.is_listed.swap(true, Ordering::AcqRel) {
                return;
            }
            self.word.store(ptr::from_ref(word).cast_mut(), Ordering::Relaxed);
            let own = ptr::from_ref(self).cast_mut();
            let mut first = FIRST.load(Ordering::Acquire);
            loop {
                self.next.store(first, Ordering::Relaxed);
                match FIRST.compare_exchange(first, own, Ordering::AcqRel, Ordering::Acquire) {
                    Ok(_) => return,
                    Err(other) => first = other,
                }
            }
        }
    }

    fn all() -> impl Iterator<Item = &'static Entry> {
        let mut next = FIRST.load(Ordering::Acquire);
        std::iter::from_fn(move || {
            // SAFETY: only locks of `static`s are listed, and they stay.
            let entry = unsafe { next.as_ref() }?;
            next = entry.next.load(Ordering::Relaxed);
            Some(entry)
        })
    }

    /// Where the lock number `at` was made, as `file:line`.
    #[must_use]
    pub fn place(at: usize) -> Option<String> {
        all().nth(at)?.place.map(|place| format!("{}:{}", place.file(), place.line()))
    }

    /// Takes a lock as a thread would that is interrupted while it has it. Whether there is such a lock.
    #[must_use]
    pub fn hold(at: usize) -> bool {
        let Some(entry) = all().nth(at) else { return false };
        // SAFETY: as in `all`.
        let word = unsafe { &*entry.word.load(Ordering::Relaxed) };
        while word
            .compare_exchange(0, stamp(generation(), HELD), Ordering::Acquire, Ordering::Relaxed)
            .is_err()
        {
            std::thread::yield_now();
        }
        true
    }

    /// Opens what [`hold`] took.
    pub fn let_go(at: usize) {
        if let Some(entry) = all().nth(at) {
            // SAFETY: as in `all`.
            open(unsafe { &*entry.word.load(Ordering::Relaxed) }, generation());
        }
    }
}

#[cfg(test)]
mod tests;
