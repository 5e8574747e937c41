//! A range of reserved addresses in units of `UNIT` bytes. Knows which are handed out, which are writable, and which
//! have memory.
//!
//! The lock covers the tables, never a system call: while one thread waits for the kernel, others go on.

use crate::budget::Budget;
use crate::lock::{Guard, Lock};
use crate::space::{Placed, Space};
use crate::sys;
use crate::units::MOST_ALIGNMENT;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Memory goes back in parts of 16 MiB, because a fork waits for the helper, and one part takes about a millisecond.
const PART: usize = 16 << 20;
/// The least that is reserved if addresses are scarce.
const LEAST: usize = 1 << 30;
/// The least that becomes writable at once.
const LEAST_STEP: usize = 4 << 20;
/// The same under a limit on addresses (`ulimit -v`).
const TIGHT_STEP: usize = 1 << 20;
/// The most addresses of an arena that does not reserve them.
const TIGHT_MOST: usize = 16 << 40;

#[derive(Debug)]
pub struct Arena<const UNIT: usize> {
    base: AtomicUsize,
    size: AtomicUsize,
    budget: &'static Budget,
    space: Lock<Option<Space>>,
    /// Units from the start that are writable.
    writable: Lock<u32>,
    /// At most this many bytes become writable at once.
    step: usize,
    /// True if addresses behind the writable part are not reserved, because they are scarce.
    is_tight: AtomicBool,
}

/// The memory of an arena, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    pub live: u64,
    pub kept: u64,
}

impl<const UNIT: usize> Arena<UNIT> {
    /// Addresses become writable in steps. So one call serves many buffers, and a program that locks all its memory
    /// (`mlockall`) does not get terabytes.
    #[must_use]
    pub const fn new(budget: &'static Budget, step: usize) -> Arena<UNIT> {
        Arena {
            base: AtomicUsize::new(0),
            size: AtomicUsize::new(0),
            budget,
            space: Lock::new(None),
            writable: Lock::new(0),
            step,
            is_tight: AtomicBool::new(false),
        }
    }

    /// Reserves addresses at a multiple of `alignment`: `size` bytes, or as many as possible. False if there are none.
    pub fn begin(&self, size: usize, alignment: usize) -> bool {
        let mut space = self.space.lock();
        if space.is_some() {
            return true;
        }
        let mut size = if sys::is_scarce() { size.min(TIGHT_MOST) } else { size };
        while size >= LEAST {
            // If addresses are scarce, the arena takes a part of them, not all.
            if let Some((start, is_chosen)) = sys::reserve_or_choose(size, alignment) {
                let Some(tables) = Space::new((size / UNIT) as u32) else {
                    if !is_chosen {
                        sys::unmap(start, size);
                    }
                    return false;
                };
                *space = Some(tables);
                self.is_tight.store(is_chosen, Ordering::Relaxed);
                self.base.store(start as usize, Ordering::Relaxed);
                self.size.store(size, Ordering::Release);
                return true;
            }
            size /= 4;
        }
        false
    }

    /// Notes that addresses are scarce from now on, and gives up those that are not in use. They are taken again, part
    /// by part, as they are needed, as far as the limit then allows.
    pub fn tighten(&self) {
        let mut writable = self.writable.lock();
        let mut space = self.space.lock();
        let Some(space) = space.as_mut() else { return };
        let was_tight = self.is_tight.swap(true, Ordering::Relaxed);
        let old = if was_tight { *writable as usize * UNIT } else { self.size() };
        *writable = space.tighten().min(*writable);
        let first = *writable as usize * UNIT;
        if first < old {
            sys::unmap(self.address(*writable), old - first);
        }
    }

    /// Takes over addresses that the caller reserved. False if there is no memory for the tables.
    pub fn begin_at(&self, start: *mut u8, size: usize) -> bool {
        let mut space = self.space.lock();
        let Some(tables) = Space::new((size / UNIT) as u32) else { return false };
        *space = Some(tables);
        self.base.store(start as usize, Ordering::Relaxed);
        self.size.store(size, Ordering::Release);
        true
    }

    /// True if an address lies in the arena.
    #[inline]
    #[must_use]
    pub fn contains(&self, block: *const u8) -> bool {
        self.offset(block) < self.size.load(Ordering::Relaxed)
    }

    /// The distance of an address from the start; more than the size if the address is outside.
    #[inline]
    #[must_use]
    pub fn offset(&self, block: *const u8) -> usize {
        (block as usize).wrapping_sub(self.base.load(Ordering::Relaxed))
    }

    /// Reserved bytes; 0 before [`Arena::begin`], or if no addresses could be reserved.
    #[inline]
    #[must_use]
    pub fn size(&self) -> usize {
        self.size.load(Ordering::Acquire)
    }

    #[must_use]
    pub fn address(&self, unit: u32) -> *mut u8 {
        (self.base.load(Ordering::Relaxed) + unit as usize * UNIT) as *mut u8
    }

    /// The unit that begins at an address; `None` if the address is inside of a unit.
    #[must_use]
    pub fn unit(&self, block: *const u8) -> Option<u32> {
        let offset = self.offset(block);
        offset.is_multiple_of(UNIT).then_some((offset / UNIT) as u32)
    }

    pub fn space(&self) -> Guard<'_, Option<Space>> {
        self.space.lock()
    }

    /// A place that is charged and writable. `prepare` is called with memory that becomes writable.
    pub fn place(
        &self,
        len: u32,
        align: u32,
        phase: u32,
        prepare: impl FnOnce(*mut u8, usize),
    ) -> Option<Placed> {
        // The arena begins at a multiple of [`MOST_ALIGNMENT`]. For a larger alignment the phase counts from address 0.
        let base = (self.base.load(Ordering::Relaxed) / UNIT) as u32;
        let phase = if align as usize * UNIT > MOST_ALIGNMENT {
            phase.wrapping_sub(base) & (align - 1)
        } else {
            phase
        };
        let placed = self.space.lock().as_mut()?.allocate(len, align, phase)?;
        if self.charge(placed, prepare) {
            return Some(placed);
        }
        if let Some(space) = self.space.lock().as_mut() {
            space.cancel(placed.start);
        }
        None
    }

    /// Makes a buffer longer in place. Returns the new part; `None` if there is no room behind it, and `Some(None)` if
    /// there is room, but no memory.
    pub fn grow(&self, start: u32, len: u32, prepare: impl FnOnce(*mut u8, usize)) -> Option<Option<Placed>> {
        let (old, part) = {
            let mut guard = self.space.lock();
            let space = guard.as_mut()?;
            (space.length(start)?, space.grow(start, len)?)
        };
        if self.charge(part, prepare) {
            return Some(Some(part));
        }
        if let Some(space) = self.space.lock().as_mut() {
            space.undo_grow(start, old);
        }
        Some(None)
    }

    /// Charges the units without memory, and makes all of them writable.
    fn charge(&self, placed: Placed, prepare: impl FnOnce(*mut u8, usize)) -> bool {
        let bytes = u64::from(placed.len - placed.backed) * UNIT as u64;
        if !self.budget.charge(bytes) {
            return false;
        }
        let is_writable = self.make_writable(placed.start + placed.len, prepare);
        if !is_writable {
            self.budget.discharge(bytes);
        }
        is_writable
    }

    fn make_writable(&self, end: u32, prepare: impl FnOnce(*mut u8, usize)) -> bool {
        let mut writable = self.writable.lock();
        if end <= *writable {
            return true;
        }
        let most = (self.size.load(Ordering::Relaxed) / UNIT) as u32;
        let is_tight = self.is_tight.load(Ordering::Relaxed);
        // An eighth more each time, so that a process that needs little may write to little, and one that needs much
        // calls the kernel rarely.
        let grown = (*writable as usize * UNIT / 8).next_multiple_of(LEAST_STEP);
        let step = if is_tight { TIGHT_STEP } else { grown.clamp(LEAST_STEP, self.step) };
        let start = self.address(*writable);
        let length = |wanted: u32| (wanted - *writable) as usize * UNIT;
        let make = |wanted: u32| sys::extend(start, length(wanted), is_tight);
        // A whole step, or only what is needed if a step is too much.
        let wanted =
            [end.next_multiple_of((step / UNIT) as u32).min(most), end].into_iter().find(|end| make(*end));
        let Some(wanted) = wanted else { return false };
        prepare(start, length(wanted));
        *writable = wanted;
        true
    }

    /// Calls `work` with the writable part. No more of the arena becomes writable meanwhile.
    pub fn with_writable(&self, work: impl FnOnce(*mut u8, usize)) {
        let writable = self.writable.lock();
        work(self.address(0), *writable as usize * UNIT);
    }

    /// The length of the buffer that begins at an address; `None` if no buffer begins there.
    #[must_use]
    pub fn usable(&self, block: *const u8) -> Option<usize> {
        let unit = self.unit(block)?;
        self.space.lock().as_ref()?.length(unit).map(|len| len as usize * UNIT)
    }

    /// Gives back kept memory, at most so many units. Returns the bytes.
    pub fn trim(&self, most: u32) -> u64 {
        self.trim_around(most, |_, _| {}, |_, _| {})
    }

    /// [`Arena::trim`], with a call before each part loses its memory, and one after that.
    pub fn trim_around(
        &self,
        most: u32,
        before: impl Fn(*mut u8, usize),
        after: impl Fn(*mut u8, usize),
    ) -> u64 {
        let mut left = most;
        let mut given = 0;
        while left > 0 {
            let part = left.min((PART / UNIT) as u32);
            let taken = self.space.lock().as_mut().and_then(|space| space.take_kept(part));
            let Some((from, to)) = taken else { break };
            let bytes = (to - from) as usize * UNIT;
            before(self.address(from), bytes);
            let gone = sys::keep_errno(|| sys::discard(self.address(from), bytes));
            if gone {
                after(self.address(from), bytes);
            }
            if let Some(space) = self.space.lock().as_mut() {
                space.put_back((from, to), gone);
            }
            if !gone {
                break;
            }
            self.budget.discharge(bytes as u64);
            given += bytes as u64;
            left -= to - from;
        }
        given
    }

    #[must_use]
    pub fn held(&self) -> Held {
        let guard = self.space.lock();
        let bytes = |units: u32| u64::from(units) * UNIT as u64;
        guard
            .as_ref()
            .map_or_else(Held::default, |space| Held { live: bytes(space.live()), kept: bytes(space.kept()) })
    }

    /// Units that no request needed since the last call.
    pub fn low_water(&self) -> u32 {
        self.space.lock().as_mut().map_or(0, Space::low_water)
    }

    /// Describes an error in the tables; for tests.
    #[must_use]
    pub fn fault(&self) -> Option<&'static str> {
        self.space.lock().as_ref().and_then(Space::fault)
    }

    /// Called before a fork: takes the locks, so that no thread is in the middle of a change.
    pub fn before_fork(&self) {
        self.writable.acquire();
        self.space.acquire();
    }

    /// Called after a fork, in the parent.
    ///
    /// # Safety
    /// This thread called [`Arena::before_fork`].
    pub unsafe fn after_fork(&self) {
        // SAFETY: this thread has the lock since `before_fork` (the caller's contract).
        unsafe { self.space.release() };
        // SAFETY: the same holds for this lock.
        unsafe { self.writable.release() };
    }

    /// Called after a fork, in the child. Memory that other threads were giving back is free again. Returns the kept
    /// units.
    ///
    /// # Safety
    /// This thread called [`Arena::before_fork`], in the parent.
    pub unsafe fn after_fork_in_child(&self) -> u32 {
        // SAFETY: this thread took the locks in `before_fork`, in the parent (the caller's contract).
        unsafe { self.after_fork() };
        let mut guard = self.space.lock();
        let Some(space) = guard.as_mut() else { return 0 };
        let mut at = 0;
        while let Some((from, to)) = space.busy_from(at) {
            space.put_back((from, to), false);
            at = from;
        }
        space.kept()
    }
}
