//! The memory that this process and its relatives may hold together.
//!
//! The budget is a page of counters that processes share (`page`): forked children inherit it, and `gapless run` names
//! a file for programs that are started anew. Each process has a slot with its part, so that the part of a killed
//! process can be returned. `total == sum of the slots`, except between the two additions of a charge.
//!
//! Handed-out memory and memory that is kept for reuse both count, in granules. A forked child is charged only for what
//! it takes itself: memory that it shares with its parent is charged to the parent.

mod page;
mod text;

#[cfg(test)]
mod tests;

pub use page::BYTES;
pub use text::{automatic, parse_limit};

use crate::sys;
use page::{Head, MARK, Shared, Slot};
use std::ffi::CStr;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// A request waits this often and this long for memory that relatives keep: longer than a tick of their helpers.
const WAITS: u32 = 15;
const WAIT: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub struct Budget {
    /// 0 if there is none.
    limit: AtomicU64,
    shared: AtomicPtr<Shared>,
    home: AtomicPtr<Home>,
    own: AtomicU64,
    refused: AtomicU64,
    /// Gives back memory that is kept for reuse: a `fn()`, or null.
    relief: AtomicPtr<()>,
    /// Charged memory that another library keeps for reuse, such as a GPU's, and the number of its reports.
    kept_beside: AtomicU64,
    told_beside: AtomicU64,
}

/// The process's place in the shared page. It lies in a page that the kernel empties in every child, even in a child of
/// the bare system call, which calls no handler.
#[derive(Debug)]
struct Home {
    /// One of the words below, or the address of the slot.
    at: AtomicUsize,
    ticket: AtomicU64,
    head: Head,
}

/// In a new process.
const NOWHERE: usize = 0;
/// While a thread looks for a slot.
const MOVING: usize = 1;
/// If all slots are taken.
const CROWDED: usize = 2;
/// Once the process ends.
const LEFT: usize = 3;

/// The counter of a charge besides the total.
enum Part<'a> {
    Of(&'a Slot),
    /// No slot: only the total counts.
    Nobody,
    /// The process ends, so not even the total counts.
    Over,
}

impl Home {
    /// Takes a slot for `held` bytes, which this process holds already.
    fn move_in<'a>(&self, shared: &'a Shared, held: u64) -> Part<'a> {
        let taken = shared.take(&self.head);
        shared.total.fetch_add(held, Ordering::AcqRel);
        let Some((slot, ticket)) = taken else {
            self.at.store(CROWDED, Ordering::Release);
            return Part::Nobody;
        };
        slot.held.fetch_add(held, Ordering::Relaxed);
        self.ticket.store(ticket, Ordering::Relaxed);
        self.at.store(std::ptr::from_ref(slot) as usize, Ordering::Release);
        Part::Of(slot)
    }

    /// The slot of this very process, if it has one.
    fn slot(&self) -> Option<&Slot> {
        let at = self.at.load(Ordering::Acquire);
        // SAFETY: `at` is the address of a slot of the shared page, which is never unmapped.
        let slot = (at > LEFT).then(|| unsafe { &*(at as *const Slot) })?;
        slot.is_of(self.ticket.load(Ordering::Relaxed)).then_some(slot)
    }
}

impl Default for Budget {
    fn default() -> Budget {
        Budget::new()
    }
}

impl Budget {
    #[must_use]
    pub const fn new() -> Budget {
        Budget {
            limit: AtomicU64::new(0),
            shared: AtomicPtr::new(std::ptr::null_mut()),
            home: AtomicPtr::new(std::ptr::null_mut()),
            own: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            relief: AtomicPtr::new(std::ptr::null_mut()),
            kept_beside: AtomicU64::new(0),
            told_beside: AtomicU64::new(0),
        }
    }

    /// Sets the limit. Memory that is held already is charged. `file` is the page that relatives share.
    ///
    /// # Errors
    /// The kernel's error number if the file is there but cannot be used.
    pub fn limit_to(&self, limit: u64, file: Option<&CStr>) -> Result<(), i32> {
        let page = match file {
            Some(path) => sys::map_file(path, BYTES)?,
            None => sys::map_shared(BYTES).ok_or(libc::ENOMEM)?,
        };
        let home = sys::map_for_one(size_of::<Home>()).ok_or(libc::ENOMEM)?;
        let shared: *mut Shared = page.cast();
        // SAFETY: the page is mapped for good, has `BYTES` bytes, and is valid when zero. All processes change it with
        // atomic operations only.
        let page = unsafe { &*shared };
        let mark = page.mark.compare_exchange(0, MARK, Ordering::AcqRel, Ordering::Acquire);
        if mark.is_err_and(|found| found != MARK) {
            return Err(libc::EINVAL);
        }
        let home: *mut Home = home.cast();
        // SAFETY: the page of `home` is mapped for good, and valid when zero.
        unsafe { &*home }.move_in(page, self.own.load(Ordering::Relaxed));
        self.home.store(home, Ordering::Release);
        self.shared.store(shared, Ordering::Release);
        self.limit.store(limit.max(1), Ordering::Release);
        Ok(())
    }

    /// The limit; 0 if there is none.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Bytes that this process holds.
    #[must_use]
    pub fn own(&self) -> u64 {
        self.own.load(Ordering::Relaxed)
    }

    /// Bytes that all relatives hold; without a limit, those of this process.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.shared().map_or_else(|| self.own(), |shared| shared.total.load(Ordering::Relaxed))
    }

    /// The number of requests that the limit refused.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Sets the function that is called before a request is refused.
    pub fn relieve_by(&self, relief: fn()) {
        self.relief.store(relief as *mut (), Ordering::Release);
    }

    fn shared(&self) -> Option<&Shared> {
        let shared = self.shared.load(Ordering::Acquire);
        // SAFETY: null, or a page that `limit_to` mapped for good.
        unsafe { shared.as_ref() }
    }

    fn home(&self) -> Option<&Home> {
        let home = self.home.load(Ordering::Acquire);
        // SAFETY: null, or a page that `limit_to` mapped for good, which is valid when the kernel has emptied it.
        unsafe { home.as_ref() }
    }

    /// The place where this process's part is counted. A process without a slot gets one.
    fn part(&self) -> Part<'_> {
        let Some(home) = self.home() else { return Part::Over };
        match home.slot() {
            Some(slot) if !slot.is_orphan() => Part::Of(slot),
            _ => self.settle(home),
        }
    }

    #[cold]
    fn settle<'a>(&'a self, home: &'a Home) -> Part<'a> {
        let Some(shared) = self.shared() else { return Part::Over };
        loop {
            let at = home.at.load(Ordering::Acquire);
            match at {
                LEFT => return Part::Over,
                CROWDED => return Part::Nobody,
                MOVING => {
                    // SAFETY: takes no argument.
                    unsafe { libc::sched_yield() };
                    continue;
                }
                _ => {}
            }
            if let Some(slot) = home.slot() {
                // The thread that showed that this process lives has ended.
                slot.adopt();
                return Part::Of(slot);
            }
            if home.at.compare_exchange(at, MOVING, Ordering::AcqRel, Ordering::Relaxed).is_err() {
                continue;
            }
            // A child begins with nothing. A process whose slot was emptied by mistake takes its part along.
            if at == NOWHERE {
                self.forget();
            }
            return home.move_in(shared, self.own.load(Ordering::Relaxed));
        }
    }

    /// Charges this process. If the limit is reached, kept memory goes back first, then the parts of ended processes.
    /// False if the limit does not allow the charge; then nothing was charged.
    #[must_use]
    pub fn charge(&self, bytes: u64) -> bool {
        if bytes == 0 || self.try_charge(bytes) {
            return true;
        }
        let relief = self.relief.load(Ordering::Acquire);
        if !relief.is_null() {
            // SAFETY: `relieve_by` stored a `fn()`.
            unsafe { std::mem::transmute::<*mut (), fn()>(relief)() };
            if self.try_charge(bytes) {
                return true;
            }
        }
        let charged = (self.reap() && self.try_charge(bytes)) || self.wait_for_others(bytes);
        if !charged {
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
        charged
    }

    /// Asks relatives, or another library in this process, for memory that they keep, and waits until it is given back.
    fn wait_for_others(&self, bytes: u64) -> bool {
        let Some(shared) = self.shared() else { return false };
        let own = self.home().and_then(Home::slot).map_or(std::ptr::null(), std::ptr::from_ref);
        let is_kept = |slot: &Slot| slot.keeps() && !std::ptr::eq(slot, own);
        // The other library's last report may be old, so two further reports that it keeps nothing are awaited.
        let told = self.told_beside.load(Ordering::Relaxed);
        let may_keep = || {
            let is_new = self.told_beside.load(Ordering::Relaxed) >= told + 2;
            told > 0 && (!is_new || self.kept_beside.load(Ordering::Relaxed) > 0)
        };
        if !may_keep() && !shared.slots().iter().any(is_kept) {
            return false;
        }
        shared.wanted.fetch_add(1, Ordering::AcqRel);
        for _ in 0..WAITS {
            sys::wait(&AtomicU32::new(0), 0, Some(WAIT));
            if self.try_charge(bytes) {
                return true;
            }
            if !may_keep() && !shared.slots().iter().any(is_kept) {
                return false;
            }
        }
        false
    }

    /// Called in the helper's round: reports the kept bytes. True if a relative wants them.
    pub fn exchange(&self, kept: u64, seen: &AtomicU64) -> bool {
        let Some(shared) = self.shared() else { return false };
        let kept = kept.saturating_add(self.kept_beside.load(Ordering::Relaxed));
        if let Part::Of(slot) = self.part() {
            slot.kept.store((kept >> 20).min(u64::from(u32::MAX)) as u32, Ordering::Relaxed);
        }
        shared.reap(false);
        shared.is_wanted(seen)
    }

    /// Charges memory of another library, which reports with [`Budget::keep_beside`] what it keeps.
    #[must_use]
    pub fn charge_beside(&self, bytes: u64) -> bool {
        let _ = self.told_beside.compare_exchange(0, 1, Ordering::Relaxed, Ordering::Relaxed);
        self.charge(bytes)
    }

    /// Called in the round of another library whose memory is charged here: reports the bytes that it keeps. True if a
    /// request of this process or of a relative wants them.
    pub fn keep_beside(&self, kept: u64, seen: &AtomicU64) -> bool {
        self.kept_beside.store(kept, Ordering::Relaxed);
        self.told_beside.fetch_add(1, Ordering::Relaxed);
        self.shared().is_some_and(|shared| shared.is_wanted(seen))
    }

    fn try_charge(&self, bytes: u64) -> bool {
        if let Some(shared) = self.shared() {
            // Before the total changes, because a new process forgets what its parent holds.
            let part = self.part();
            if !matches!(part, Part::Over) {
                let total = shared.total.fetch_add(bytes, Ordering::AcqRel).wrapping_add(bytes);
                if total > self.limit() {
                    shared.total.fetch_sub(bytes, Ordering::AcqRel);
                    return false;
                }
            }
            if let Part::Of(slot) = part {
                slot.held.fetch_add(bytes, Ordering::Relaxed);
            }
        }
        self.own.fetch_add(bytes, Ordering::Relaxed);
        true
    }

    /// Ends a charge. If a child gives back memory that was charged to its parent, nothing changes.
    pub fn discharge(&self, bytes: u64) {
        let part = self.part();
        let less = |own: u64| Some(own - own.min(bytes));
        let before = self.own.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).unwrap_or(0);
        let given = before.min(bytes);
        let (Some(shared), Part::Of(_) | Part::Nobody) = (self.shared(), &part) else { return };
        shared.total.fetch_sub(given, Ordering::AcqRel);
        if let Part::Of(slot) = part {
            slot.held.fetch_sub(given, Ordering::Relaxed);
        }
    }

    /// Returns the parts of ended processes. True if there were any.
    pub fn reap(&self) -> bool {
        self.shared().is_some_and(|shared| shared.reap(true))
    }

    fn forget(&self) {
        self.own.store(0, Ordering::Relaxed);
        self.kept_beside.store(0, Ordering::Relaxed);
        self.told_beside.store(0, Ordering::Relaxed);
    }

    /// Called in a forked child: takes a slot of its own, with nothing in it.
    pub fn after_fork(&self) {
        self.forget();
        if let Some(home) = self.home() {
            home.at.store(NOWHERE, Ordering::Release);
            self.part();
        }
    }

    /// Called when a thread ends. If it showed that the process lives, another thread does so from the next charge on.
    pub fn thread_ends(&self) {
        if let Some(slot) = self.home().and_then(Home::slot) {
            slot.orphan();
        }
    }

    /// Called when the process ends.
    pub fn leave(&self) {
        let (Some(shared), Some(home)) = (self.shared(), self.home()) else { return };
        let slot = home.slot();
        home.at.store(LEFT, Ordering::Release);
        self.own.store(0, Ordering::Relaxed);
        if let Some(slot) = slot {
            shared.leave(slot);
        }
    }
}
