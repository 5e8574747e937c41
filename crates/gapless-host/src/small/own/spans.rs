//! Slices of addresses and their contents: the class of a slice's objects in one byte, which every `free` reads, and
//! the account of the span that begins there.

use super::classes::{Class, NONE, SLICE, WHOLE};
use crate::arena::{Arena, Held};
use crate::budget::Budget;
use crate::lock::Lock;
use crate::space::Placed;
use crate::sys::{self, PAGE};
use crate::units::MIN_ALIGNMENT;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// At most this many bytes become writable at once.
const STEP: usize = 16 << 20;
/// Objects begin at multiples of 16 bytes: so many in a slice.
const STEPS: usize = SLICE / MIN_ALIGNMENT;
/// Addresses of the arena.
const ADDRESSES: usize = 8 << 40;
/// The tables become writable for at least this many slices at once: a page of classes.
const REACHED: usize = PAGE;
/// An area begins at a multiple of this.
const ALIGNMENT: usize = 1 << 30;

/// The first slice of a span, plus one.
pub type SpanNumber = u32;
pub const NO_SPAN: SpanNumber = 0;

/// Objects of one class in neighbouring slices. Only the thread that has the lock of the class reads or writes it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Span {
    /// Objects that were freed.
    pub free: *mut u8,
    /// Links in the list of its class, while it has a free object.
    pub next: SpanNumber,
    pub previous: SpanNumber,
    /// Objects that are out: in a batch, with a thread, or with the program.
    pub used: u32,
    /// Objects that were handed out at least once. Memory behind them was never touched.
    pub carved: u32,
    /// In every slice of the span: the span's number.
    first: SpanNumber,
    padding: u32,
}

/// Bytes in slices; `None` if that number is too large.
fn slices(size: usize) -> Option<u32> {
    u32::try_from(size.div_ceil(SLICE)).ok()
}

#[derive(Debug)]
pub struct Spans {
    arena: Arena<SLICE>,
    classes: AtomicPtr<AtomicU8>,
    accounts: AtomicPtr<Span>,
    /// The part of the arena for which the tables are writable, in steps of 16 bytes. Classes beyond are not read.
    reach: AtomicUsize,
    reaching: Lock<()>,
    /// True if the tables behind them are not reserved.
    is_chosen: AtomicBool,
    /// Free slices that have memory, as of the last free.
    kept: AtomicU32,
    /// Slices of objects that have slices of their own.
    whole: AtomicU64,
}

impl Spans {
    #[must_use]
    pub const fn new(budget: &'static Budget) -> Spans {
        let none = std::ptr::null_mut();
        Spans {
            arena: Arena::new(budget, STEP),
            classes: AtomicPtr::new(none),
            accounts: AtomicPtr::new(std::ptr::null_mut()),
            reach: AtomicUsize::new(0),
            reaching: Lock::new(()),
            is_chosen: AtomicBool::new(false),
            kept: AtomicU32::new(0),
            whole: AtomicU64::new(0),
        }
    }

    /// Reserves addresses, and tables for them. False if there are none.
    pub fn begin(&self) -> bool {
        // This is more than any program needs, and leaves room for other reservations of this kind (128 TiB exist).
        if !self.arena.begin(ADDRESSES, ALIGNMENT) {
            return false;
        }
        let slices = self.arena.size() / SLICE;
        let tables = [1, size_of::<Span>()].map(|size| sys::reserve_or_choose(slices * size, PAGE));
        let [Some((classes, is_chosen)), Some((accounts, both))] = tables else { return false };
        if is_chosen != both {
            return false;
        }
        self.is_chosen.store(is_chosen, Ordering::Relaxed);
        self.accounts.store(accounts.cast(), Ordering::Relaxed);
        self.classes.store(classes.cast(), Ordering::Release);
        true
    }

    /// Makes the tables writable for the slices below `end`. False if there is no memory for them.
    #[inline]
    fn reach(&self, end: u32) -> bool {
        end as usize * STEPS <= self.reach.load(Ordering::Acquire) || self.reach_more(end)
    }

    #[cold]
    fn reach_more(&self, end: u32) -> bool {
        let _reaching = self.reaching.lock();
        let before = self.reach.load(Ordering::Relaxed) / STEPS;
        let all = self.arena.size() / SLICE;
        let wanted = (end as usize + end as usize / 4).next_multiple_of(REACHED).min(all);
        if before >= end as usize {
            return true;
        }
        let is_chosen = self.is_chosen.load(Ordering::Relaxed);
        let part = |table: *mut u8, size: usize| {
            // SAFETY: `before <= wanted`, and the table has room for every slice of the arena.
            (unsafe { table.add(before * size) }, (wanted - before) * size)
        };
        let (classes, class_bytes) = part(self.classes.load(Ordering::Relaxed).cast(), 1);
        let (accounts, account_bytes) = part(self.accounts.load(Ordering::Relaxed).cast(), size_of::<Span>());
        if !sys::extend(classes, class_bytes, is_chosen) {
            return false;
        }
        let is_open = sys::extend(accounts, account_bytes, is_chosen);
        if is_open {
            self.reach.store(wanted * STEPS, Ordering::Release);
        } else if is_chosen {
            sys::unmap(classes, class_bytes);
        }
        is_open
    }

    /// Takes slices that have room in the tables.
    fn place(&self, len: u32, align: u32) -> Option<Placed> {
        let placed = self.arena.place(len, align, 0, |_, _| {})?;
        if self.reach(placed.start + placed.len) {
            return Some(placed);
        }
        self.free(placed.start);
        None
    }

    /// Notes that addresses are scarce from now on, and gives up those that are not in use.
    pub fn tighten(&self) {
        self.arena.trim(u32::MAX);
        self.arena.tighten();
        let _reaching = self.reaching.lock();
        if self.is_chosen.swap(true, Ordering::Relaxed) {
            return;
        }
        let (reach, all) = (self.reach.load(Ordering::Relaxed) / STEPS, self.arena.size() / SLICE);
        let cut = |table: *mut u8, size: usize| {
            if reach < all {
                // SAFETY: `reach < all`, and the table is reserved for every slice of the arena. Entries behind `reach`
                // are never read or written.
                sys::unmap(unsafe { table.add(reach * size) }, (all - reach) * size);
            }
        };
        cut(self.classes.load(Ordering::Relaxed).cast(), 1);
        cut(self.accounts.load(Ordering::Relaxed).cast(), size_of::<Span>());
    }

    /// The class of the object at an address of ours; `None` for other addresses, and for those at which no object may
    /// begin because they are not aligned.
    #[inline(always)]
    #[must_use]
    pub fn class(&self, block: *const u8) -> Option<u8> {
        // The rotation moves the bits of an address that is not aligned to the top, so one comparison refuses both.
        let steps = self.arena.offset(block).rotate_right(MIN_ALIGNMENT.ilog2());
        // Nothing is in reach before `begin`.
        if steps >= self.reach.load(Ordering::Relaxed) {
            return None;
        }
        let classes = self.classes.load(Ordering::Relaxed);
        // SAFETY: the table has a writable byte for every slice in reach.
        Some(unsafe { (*classes.add(steps / STEPS)).load(Ordering::Relaxed) })
    }

    fn set_class(&self, slice: u32, class: u8) {
        let classes = self.classes.load(Ordering::Relaxed);
        // SAFETY: the arena handed out `slice`, and `place` made its byte writable.
        unsafe { (*classes.add(slice as usize)).store(class, Ordering::Relaxed) };
    }

    fn account(&self, slice: u32) -> *mut Span {
        // SAFETY: the table has an account for every slice of the arena.
        unsafe { self.accounts.load(Ordering::Relaxed).add(slice as usize) }
    }

    #[must_use]
    pub fn get(&self, number: SpanNumber) -> Span {
        // SAFETY: `place` made the account writable, and the calling shelf has the lock of the span's class.
        unsafe { self.account(number - 1).read() }
    }

    pub fn change<T>(&self, number: SpanNumber, change: impl FnOnce(&mut Span) -> T) -> T {
        // SAFETY: `place` made the account writable, the calling shelf has its class's lock, and no closure calls in
        // here.
        change(unsafe { &mut *self.account(number - 1) })
    }

    #[must_use]
    pub fn start(&self, number: SpanNumber) -> *mut u8 {
        self.arena.address(number - 1)
    }

    /// The span that contains an object.
    #[must_use]
    pub fn of(&self, block: *const u8) -> SpanNumber {
        let slice = (self.arena.offset(block) / SLICE) as u32;
        // SAFETY: the slice belongs to a span, and the thread that has the object has the lock of its class.
        unsafe { (*self.account(slice)).first }
    }

    /// True if an object of this class begins at an address of a span.
    #[must_use]
    pub fn begins(&self, block: *const u8, about: Class) -> bool {
        let number = self.of(block);
        number != NO_SPAN
            && (block as usize - self.start(number) as usize).is_multiple_of(about.size as usize)
    }

    /// A new span, all of it free. `None` if there is no memory.
    #[must_use]
    pub fn make(&self, class: u8, about: Class) -> Option<SpanNumber> {
        let placed = self.place(about.slices, 1)?;
        let number = placed.start + 1;
        let (free, next, previous) = (std::ptr::null_mut(), NO_SPAN, NO_SPAN);
        let span = Span { free, next, previous, used: 0, carved: 0, first: number, padding: 0 };
        for slice in placed.start..placed.start + placed.len {
            // SAFETY: `place` made the accounts writable, and no other thread has these slices.
            unsafe { self.account(slice).write(span) };
            self.set_class(slice, class);
        }
        Some(number)
    }

    /// Gives back a span that is wholly free.
    pub fn end(&self, number: SpanNumber, about: Class) {
        let start = number - 1;
        (start..start + about.slices).for_each(|slice| self.set_class(slice, NONE));
        self.free(start);
    }

    fn free(&self, start: u32) {
        if let Some(space) = self.arena.space().as_mut() {
            space.free(start, true);
            self.kept.store(space.kept(), Ordering::Relaxed);
        }
    }

    /// Bytes of free slices that have memory, as of the last free.
    #[must_use]
    pub fn kept(&self) -> u64 {
        u64::from(self.kept.load(Ordering::Relaxed)) * SLICE as u64
    }

    /// Slices for one object, at a multiple of `align` slices. Returns true with it if all its bytes are zero.
    #[must_use]
    pub fn make_whole(&self, size: usize, align: u32) -> Option<(*mut u8, bool)> {
        let placed = self.place(slices(size)?, align)?;
        self.set_class(placed.start, WHOLE);
        self.whole.fetch_add(u64::from(placed.len), Ordering::Relaxed);
        Some((self.arena.address(placed.start), placed.backed == 0))
    }

    /// Frees such an object. False if none begins there.
    #[must_use]
    pub fn end_whole(&self, block: *mut u8) -> bool {
        let (Some(start), Some(bytes)) = (self.arena.unit(block), self.whole_size(block)) else {
            return false;
        };
        self.whole.fetch_sub((bytes / SLICE) as u64, Ordering::Relaxed);
        self.set_class(start, NONE);
        self.free(start);
        true
    }

    /// Bytes of objects that have slices of their own.
    #[must_use]
    pub fn whole(&self) -> u64 {
        self.whole.load(Ordering::Relaxed) * SLICE as u64
    }

    /// Makes such an object longer or shorter in place. False if there is no room, or no memory.
    #[must_use]
    pub fn resize_whole(&self, block: *mut u8, size: usize) -> bool {
        let (Some(len), Some(start), Some(old)) =
            (slices(size), self.arena.unit(block), self.whole_size(block))
        else {
            return false;
        };
        let old = (old / SLICE) as u32;
        if len > old {
            let has_grown = self.arena.grow(start, len, |_, _| {}).flatten().is_some();
            self.whole.fetch_add(if has_grown { u64::from(len - old) } else { 0 }, Ordering::Relaxed);
            return has_grown;
        }
        if len < old
            && let Some(space) = self.arena.space().as_mut()
        {
            space.shrink(start, len);
            self.whole.fetch_sub(u64::from(old - len), Ordering::Relaxed);
        }
        true
    }

    #[must_use]
    pub fn whole_size(&self, block: *const u8) -> Option<usize> {
        self.arena.usable(block)
    }

    #[must_use]
    pub fn contains(&self, block: *const u8) -> bool {
        self.arena.contains(block)
    }

    #[must_use]
    pub fn held(&self) -> Held {
        self.arena.held()
    }

    /// Gives back memory of free slices: of all, or of those unused since the last call. Returns the bytes.
    pub fn trim(&self, all: bool) -> u64 {
        let surplus = self.arena.low_water();
        self.arena.trim(if all { u32::MAX } else { surplus })
    }

    /// Describes an error in the tables; for tests.
    #[must_use]
    pub fn fault(&self) -> Option<&'static str> {
        self.arena.fault()
    }

    /// Called before a fork.
    pub fn before_fork(&self) {
        self.reaching.acquire();
        self.arena.before_fork();
    }

    /// # Safety
    /// This thread called [`Spans::before_fork`].
    pub unsafe fn after_fork(&self, in_child: bool) {
        // SAFETY: this thread has these locks since `before_fork` (the caller's contract).
        unsafe {
            if in_child {
                self.arena.after_fork_in_child();
            } else {
                self.arena.after_fork();
            }
            self.reaching.release();
        }
    }
}
