//! Memory that a driver has registered (`cudaHostRegister`), so that a card can read and write it.
//!
//! * A buffer that is freed while it is registered is *held*: its addresses are not handed out until the program ends
//!   the registration. The driver goes on to use the pages, so they must stay.
//! * A registration that the program ends is *kept*. To register takes milliseconds, and a program that registers one
//!   buffer also registers the next one, which gets the same addresses. The driver is told of the end when the memory
//!   goes back to the kernel, when it moves, or when another range is registered over it.
//!
//! The table makes no calls. The driver is called without its lock.

use crate::lock::Lock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The number of known registrations. Further ones are passed to the driver and not watched.
const MOST: usize = 4096;

/// A range that the driver has registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    pub start: usize,
    pub length: usize,
    pub flags: u32,
    /// The device that was current.
    pub device: i32,
    pub state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The program ended it, and the driver was not told.
    Kept,
    Active,
    /// The buffer at this address was freed meanwhile.
    Held(usize),
}

/// All zeros, so that the table takes no space in the library's file.
const NONE: Entry = Entry { start: 0, length: 0, flags: 0, device: 0, state: State::Kept };

#[derive(Debug)]
struct Table {
    entries: [Entry; MOST],
    count: usize,
}

/// Ends a registration with the driver.
pub type Release = fn(&Entry);

#[derive(Debug)]
pub struct Pinned {
    table: Lock<Table>,
    /// The number of entries, so that a check costs next to nothing if there are none.
    count: AtomicUsize,
    release: AtomicUsize,
    active: AtomicU64,
    kept: AtomicU64,
    reused: AtomicU64,
}

/// The result of a program's request to register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// The driver has registered the range already.
    Known,
    /// The caller must ask the driver, and then call [`Pinned::registered`].
    New,
}

/// The result of a program's request to end a registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Return {
    /// The driver need not be told.
    Kept,
    /// The driver must be told. Then the buffer at this address, if any, is free.
    Over(Option<usize>),
    /// No registration begins there, or the program ended it before.
    Unknown { was_kept: bool },
}

impl Default for Pinned {
    fn default() -> Pinned {
        Pinned::new()
    }
}

impl Pinned {
    #[must_use]
    pub const fn new() -> Pinned {
        Pinned {
            table: Lock::new(Table { entries: [NONE; MOST], count: 0 }),
            count: AtomicUsize::new(0),
            release: AtomicUsize::new(0),
            active: AtomicU64::new(0),
            kept: AtomicU64::new(0),
            reused: AtomicU64::new(0),
        }
    }

    /// Sets the function that tells the driver.
    pub fn release_by(&self, release: Release) {
        self.release.store(release as usize, Ordering::Release);
    }

    /// Bytes of registrations in use, bytes of kept ones, and the number of registrations that needed no driver.
    #[must_use]
    pub fn figures(&self) -> (u64, u64, u64) {
        let read = |value: &AtomicU64| value.load(Ordering::Relaxed);
        (read(&self.active), read(&self.kept), read(&self.reused))
    }

    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count.load(Ordering::Relaxed) == 0
    }

    fn change<T>(&self, work: impl FnOnce(&mut Table) -> T) -> T {
        let mut table = self.table.lock();
        let result = work(&mut table);
        let sum = |of: fn(&Entry) -> bool| {
            let entries = table.entries[..table.count].iter();
            entries.filter(|entry| of(entry)).map(|entry| entry.length as u64).sum::<u64>()
        };
        self.kept.store(sum(|entry| entry.state == State::Kept), Ordering::Relaxed);
        self.active.store(sum(|entry| entry.state != State::Kept), Ordering::Relaxed);
        self.count.store(table.count, Ordering::Relaxed);
        result
    }

    /// Called before a range is registered. Ends kept registrations that overlap it, unless one is of this very range.
    pub fn wants(&self, start: usize, length: usize, flags: u32) -> Request {
        let is_same = |entry: &Entry| {
            entry.state == State::Kept
                && entry.start == start
                && entry.length == length
                && entry.flags == flags
        };
        let known = self.change(|table| {
            let found = table.entries[..table.count].iter_mut().find(|entry| is_same(entry));
            found.map(|entry| entry.state = State::Active).is_some()
        });
        if known {
            self.reused.fetch_add(1, Ordering::Relaxed);
            return Request::Known;
        }
        self.let_go(start, length);
        Request::New
    }

    /// Notes that the driver registered a range.
    pub fn registered(&self, entry: Entry) {
        self.change(|table| {
            if table.count < MOST {
                table.entries[table.count] = entry;
                table.count += 1;
            }
        });
    }

    /// Called before a registration ends. With `may_keep` the memory is of large buffers, whose end is reported here.
    pub fn returns(&self, start: usize, may_keep: bool) -> Return {
        self.change(|table| {
            let Some(at) = table.entries[..table.count].iter().position(|entry| entry.start == start) else {
                return Return::Unknown { was_kept: false };
            };
            match table.entries[at].state {
                State::Kept => return Return::Unknown { was_kept: true },
                State::Active if may_keep => {
                    table.entries[at].state = State::Kept;
                    return Return::Kept;
                }
                State::Active | State::Held(_) => {}
            }
            let state = table.remove(at).state;
            Return::Over(if let State::Held(block) = state { Some(block) } else { None })
        })
    }

    /// Removes the entry with this start.
    pub fn take(&self, start: usize) -> Option<Entry> {
        self.change(|table| {
            let at = table.entries[..table.count].iter().position(|entry| entry.start == start)?;
            Some(table.remove(at))
        })
    }

    /// Called when a buffer is freed. True if it is registered and must wait.
    #[must_use]
    pub fn holds(&self, block: usize, length: usize) -> bool {
        if self.is_empty() {
            return false;
        }
        self.change(|table| {
            let is_used = |entry: &&mut Entry| entry.overlaps(block, length) && entry.state == State::Active;
            let found = table.entries[..table.count].iter_mut().find(is_used);
            found.map(|entry| entry.state = State::Held(block)).is_some()
        })
    }

    /// True if the driver uses a part of a range.
    #[must_use]
    pub fn is_used(&self, start: usize, length: usize) -> bool {
        !self.is_empty()
            && self.change(|table| {
                let entries = table.entries[..table.count].iter();
                entries.into_iter().any(|entry| entry.overlaps(start, length) && entry.state != State::Kept)
            })
    }

    /// Ends kept registrations in a range that loses its memory.
    pub fn let_go(&self, start: usize, length: usize) {
        while !self.is_empty() {
            let found = self.change(|table| {
                let is_kept = |entry: &Entry| entry.overlaps(start, length) && entry.state == State::Kept;
                let at = table.entries[..table.count].iter().position(is_kept)?;
                Some(table.remove(at))
            });
            let Some(entry) = found else { return };
            let release = self.release.load(Ordering::Acquire);
            if release != 0 {
                // SAFETY: `release_by` stored a `Release`.
                unsafe { std::mem::transmute::<usize, Release>(release)(&entry) };
            }
        }
    }

    pub fn before_fork(&self) {
        self.table.acquire();
    }

    /// # Safety
    /// This thread called [`Pinned::before_fork`].
    pub unsafe fn after_fork(&self, in_child: bool) {
        if in_child {
            // A child has no registrations: they are its parent's.
            // SAFETY: this thread has the lock since `before_fork`, and no guard of it is alive.
            unsafe { (*self.table.value()).count = 0 };
            for figure in [&self.active, &self.kept] {
                figure.store(0, Ordering::Relaxed);
            }
            self.count.store(0, Ordering::Relaxed);
        }
        // SAFETY: this thread has the lock since `before_fork` (the caller's contract).
        unsafe { self.table.release() };
    }
}

impl Table {
    fn remove(&mut self, at: usize) -> Entry {
        self.count -= 1;
        self.entries.swap(at, self.count);
        self.entries[self.count]
    }
}

impl Entry {
    fn overlaps(&self, start: usize, length: usize) -> bool {
        self.start < start + length && start < self.start + self.length
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    static ENDED: AtomicU32 = AtomicU32::new(0);

    fn entry(start: usize, length: usize) -> Entry {
        Entry { start, length, flags: 0, device: 0, state: State::Active }
    }

    #[test]
    fn registrations_are_kept_used_again_and_end_with_their_memory() {
        let pinned = Pinned::new();
        pinned.release_by(|_| {
            ENDED.fetch_add(1, Ordering::Relaxed);
        });
        let ended = || ENDED.load(Ordering::Relaxed);
        assert!(pinned.is_empty() && !pinned.holds(0x1000, 0x1000));
        assert_eq!(pinned.wants(0x1000, 0x1000, 0), Request::New);
        pinned.registered(entry(0x1000, 0x1000));
        assert_eq!(pinned.figures(), (0x1000, 0, 0));
        assert!(pinned.is_used(0x1800, 8) && !pinned.is_used(0x2000, 8));
        assert_eq!(pinned.returns(0x1000, true), Return::Kept);
        assert_eq!(pinned.returns(0x1000, true), Return::Unknown { was_kept: true }, "taken back twice");
        assert_eq!(pinned.figures(), (0, 0x1000, 0));
        // The same range again costs nothing. With other flags or another length the old registration ends first.
        assert_eq!(pinned.wants(0x1000, 0x1000, 0), Request::Known);
        assert_eq!(pinned.figures(), (0x1000, 0, 1));
        assert_eq!(pinned.returns(0x1000, true), Return::Kept);
        assert_eq!((pinned.wants(0x1000, 0x1000, 2), ended()), (Request::New, 1));
        pinned.registered(entry(0x1000, 0x1000));
        pinned.registered(entry(0x8000, 0x1000));
        assert_eq!(pinned.returns(0x8000, true), Return::Kept);
        pinned.let_go(0x0, 0x10000);
        assert_eq!(ended(), 2, "what is in use stays");
        // A buffer that is freed while it is registered waits for the end of the registration.
        assert!(pinned.holds(0x1000, 0x1000));
        assert_eq!(pinned.returns(0x1000, true), Return::Over(Some(0x1000)));
        assert_eq!(pinned.returns(0x1000, true), Return::Unknown { was_kept: false });
        assert!(pinned.is_empty());
        pinned.registered(entry(0x40, 16));
        assert_eq!(pinned.returns(0x40, false), Return::Over(None), "small objects are not kept");
    }
}
