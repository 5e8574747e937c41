//! What this process and its relatives may hold together.
//!
//! The budget is a page of counters that processes share: forked children inherit it, and `gapless run` names a file
//! for programs that are started anew. Every process has a slot with its part, so the part of a killed process can be
//! returned. `total == sum of the slots`, except between the two additions of a charge.
//!
//! Held is what was handed out and what is kept for reuse, in granules. A child that was forked is charged for what it
//! takes itself: the memory that it shares with its parent is the parent's.

use crate::{cgroup, sys};
use std::ffi::CStr;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// Processes that have a slot. Those beyond are counted in the total, and their part is not returned if they are
/// killed.
const SLOTS: usize = 4095;
/// How often and how long a request waits for what relatives keep: longer than a tick of their helpers.
const WAITS: u32 = 15;
const WAIT: Duration = Duration::from_millis(100);
/// Says that a file is a budget, and of which form.
const MARK: u64 = u64::from_le_bytes(*b"GAPLHST1");

#[repr(C)]
struct Shared {
    mark: AtomicU64,
    total: AtomicU64,
    /// One more with each request that needs what others keep.
    wanted: AtomicU64,
    slots: [Slot; SLOTS],
}

#[repr(C)]
struct Slot {
    /// 0: free. 1: being taken or emptied.
    pid: AtomicU32,
    /// MiB that the process keeps for reuse, about twice a second.
    kept: AtomicU32,
    /// When the process started, in ticks: numbers are used again.
    start: AtomicU64,
    held: AtomicU64,
}

impl Shared {
    /// Whether somebody wanted memory since `seen` was brought up to date.
    fn is_wanted(&self, seen: &AtomicU64) -> bool {
        let wanted = self.wanted.load(Ordering::Acquire);
        seen.swap(wanted, Ordering::Relaxed) != wanted
    }
}

/// Bytes of the shared page.
pub const BYTES: usize = size_of::<Shared>();

#[derive(Debug)]
pub struct Budget {
    /// 0: none.
    limit: AtomicU64,
    shared: AtomicPtr<Shared>,
    slot: AtomicPtr<Slot>,
    own: AtomicU64,
    refused: AtomicU64,
    /// What gives back memory that is kept for reuse: a `fn()`, or null.
    relief: AtomicPtr<()>,
    /// Charged memory that another library keeps for reuse, such as a GPU's, and how often it has told.
    kept_beside: AtomicU64,
    told_beside: AtomicU64,
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
            slot: AtomicPtr::new(std::ptr::null_mut()),
            own: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            relief: AtomicPtr::new(std::ptr::null_mut()),
            kept_beside: AtomicU64::new(0),
            told_beside: AtomicU64::new(0),
        }
    }

    /// Sets the limit. What is held already is charged. `file`: the page that relatives share. False: the file is there
    /// but cannot be used.
    #[must_use]
    pub fn limit_to(&self, limit: u64, file: Option<&CStr>) -> bool {
        let page = match file {
            Some(path) => sys::map_file(path, BYTES),
            None => sys::map_shared(BYTES),
        };
        let Some(page) = page else { return false };
        let shared: *mut Shared = page.cast();
        // SAFETY: mapped for good, `BYTES` long, and valid when zero. Others change it with atomic operations only.
        let page = unsafe { &*shared };
        let mark = page.mark.compare_exchange(0, MARK, Ordering::AcqRel, Ordering::Acquire);
        if mark.is_err_and(|found| found != MARK) {
            return false;
        }
        self.shared.store(shared, Ordering::Release);
        self.take_slot(page);
        let held = self.own.load(Ordering::Relaxed);
        page.total.fetch_add(held, Ordering::Relaxed);
        if let Some(slot) = self.slot() {
            slot.held.fetch_add(held, Ordering::Relaxed);
        }
        self.limit.store(limit.max(1), Ordering::Release);
        true
    }

    /// 0: none.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    /// What this process holds.
    #[must_use]
    pub fn own(&self) -> u64 {
        self.own.load(Ordering::Relaxed)
    }

    /// What all relatives hold; this process alone where there is no limit.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.shared().map_or_else(|| self.own(), |shared| shared.total.load(Ordering::Relaxed))
    }

    /// Requests that the limit refused.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// What to call before a request is refused.
    pub fn relieve_by(&self, relief: fn()) {
        self.relief.store(relief as *mut (), Ordering::Release);
    }

    fn shared(&self) -> Option<&Shared> {
        let shared = self.shared.load(Ordering::Acquire);
        // SAFETY: null, or mapped for good.
        unsafe { shared.as_ref() }
    }

    fn slot(&self) -> Option<&Slot> {
        let slot = self.slot.load(Ordering::Acquire);
        // SAFETY: null, or inside of the shared page, which is mapped for good.
        unsafe { slot.as_ref() }
    }

    /// Charges this process. Where the limit is reached, kept memory goes back first, then the parts of processes that
    /// are gone. False: the limit does not allow it, and nothing was charged.
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

    /// Where relatives keep memory for reuse, or another library does in this process, asks for it, and waits until it
    /// was given back.
    fn wait_for_others(&self, bytes: u64) -> bool {
        let Some(shared) = self.shared() else { return false };
        let own = self.slot.load(Ordering::Relaxed).cast_const();
        let is_kept = |slot: &Slot| {
            let kept = slot.pid.load(Ordering::Relaxed) > 1 && slot.kept.load(Ordering::Relaxed) > 0;
            kept && !std::ptr::eq(slot, own)
        };
        // Another library's word may be old: it is waited for until it has told twice more that it keeps nothing.
        let told = self.told_beside.load(Ordering::Relaxed);
        let may_keep = || {
            let is_new = self.told_beside.load(Ordering::Relaxed) >= told + 2;
            told > 0 && (!is_new || self.kept_beside.load(Ordering::Relaxed) > 0)
        };
        if !may_keep() && !shared.slots.iter().any(is_kept) {
            return false;
        }
        shared.wanted.fetch_add(1, Ordering::AcqRel);
        for _ in 0..WAITS {
            sys::wait(&AtomicU32::new(0), 0, Some(WAIT));
            if self.try_charge(bytes) {
                return true;
            }
            if !may_keep() && !shared.slots.iter().any(is_kept) {
                return false;
            }
        }
        false
    }

    /// The helper's round: tells what is kept here, and whether a relative wants it.
    pub fn exchange(&self, kept: u64, seen: &AtomicU64) -> bool {
        let (Some(shared), Some(slot)) = (self.shared(), self.slot()) else { return false };
        let kept = kept.saturating_add(self.kept_beside.load(Ordering::Relaxed));
        slot.kept.store((kept >> 20).min(u64::from(u32::MAX)) as u32, Ordering::Relaxed);
        shared.is_wanted(seen)
    }

    /// Charges memory of another library, which will say by [`Budget::keep_beside`] what it keeps.
    #[must_use]
    pub fn charge_beside(&self, bytes: u64) -> bool {
        let _ = self.told_beside.compare_exchange(0, 1, Ordering::Relaxed, Ordering::Relaxed);
        self.charge(bytes)
    }

    /// The round of another library whose memory is charged here: tells what it keeps, and whether a request of this
    /// process or of a relative wants it.
    pub fn keep_beside(&self, kept: u64, seen: &AtomicU64) -> bool {
        self.kept_beside.store(kept, Ordering::Relaxed);
        self.told_beside.fetch_add(1, Ordering::Relaxed);
        self.shared().is_some_and(|shared| shared.is_wanted(seen))
    }

    fn try_charge(&self, bytes: u64) -> bool {
        if let Some(shared) = self.shared().filter(|_| self.limit() > 0) {
            let total = shared.total.fetch_add(bytes, Ordering::AcqRel).wrapping_add(bytes);
            if total > self.limit() {
                shared.total.fetch_sub(bytes, Ordering::AcqRel);
                return false;
            }
            if let Some(slot) = self.slot() {
                slot.held.fetch_add(bytes, Ordering::Relaxed);
            }
        }
        self.own.fetch_add(bytes, Ordering::Relaxed);
        true
    }

    /// Takes a charge back. A child that gives back what its parent was charged for changes nothing.
    pub fn discharge(&self, bytes: u64) {
        let less = |own: u64| Some(own - own.min(bytes));
        let before = self.own.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).unwrap_or(0);
        let given = before.min(bytes);
        if let Some(shared) = self.shared() {
            shared.total.fetch_sub(given, Ordering::AcqRel);
            if let Some(slot) = self.slot() {
                slot.held.fetch_sub(given, Ordering::Relaxed);
            }
        }
    }

    /// Returns the parts of processes that are gone. True where there were any.
    pub fn reap(&self) -> bool {
        let Some(shared) = self.shared() else { return false };
        let mut found = false;
        for slot in &shared.slots {
            let pid = slot.pid.load(Ordering::Acquire);
            if pid <= 1 || sys::process_start(pid) == Some(slot.start.load(Ordering::Relaxed)) {
                continue;
            }
            if slot.pid.compare_exchange(pid, 1, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                empty(shared, slot);
                found = true;
            }
        }
        found
    }

    fn take_slot(&self, shared: &Shared) {
        let pid = sys::pid();
        let start = sys::process_start(pid).unwrap_or(0);
        // What this process held before it became another program (`exec`) is gone.
        for slot in &shared.slots {
            if slot.pid.load(Ordering::Relaxed) == pid
                && slot.pid.compare_exchange(pid, 1, Ordering::AcqRel, Ordering::Relaxed).is_ok()
            {
                empty(shared, slot);
            }
        }
        let mine = shared
            .slots
            .iter()
            .find(|slot| slot.pid.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed).is_ok());
        if let Some(slot) = mine {
            slot.held.store(0, Ordering::Relaxed);
            slot.kept.store(0, Ordering::Relaxed);
            slot.start.store(start, Ordering::Relaxed);
            slot.pid.store(pid, Ordering::Release);
        }
        self.slot.store(
            mine.map_or(std::ptr::null_mut(), |slot| std::ptr::from_ref(slot).cast_mut()),
            Ordering::Release,
        );
    }

    /// In a forked child: a slot of its own, with nothing in it.
    pub fn after_fork(&self) {
        self.own.store(0, Ordering::Relaxed);
        self.kept_beside.store(0, Ordering::Relaxed);
        self.told_beside.store(0, Ordering::Relaxed);
        if let Some(shared) = self.shared() {
            self.take_slot(shared);
        }
    }

    /// The process ends.
    pub fn leave(&self) {
        if let (Some(shared), Some(slot)) = (self.shared(), self.slot())
            && slot.pid.compare_exchange(sys::pid(), 1, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        {
            self.slot.store(std::ptr::null_mut(), Ordering::Release);
            empty(shared, slot);
        }
    }
}

fn empty(shared: &Shared, slot: &Slot) {
    let held = slot.held.swap(0, Ordering::AcqRel);
    shared.total.fetch_sub(held, Ordering::AcqRel);
    slot.pid.store(0, Ordering::Release);
}

/// A limit in bytes from `8589934592`, `8GiB`, `1.5g` (binary), `8GB` (decimal), or `auto`: 90 % of what the cgroup or
/// the machine has.
///
/// # Errors
/// What is wrong with the text.
pub fn parse_limit(text: &[u8]) -> Result<u64, &'static str> {
    let text = text.trim_ascii();
    if text.eq_ignore_ascii_case(b"auto") {
        return automatic().ok_or("auto: neither the cgroup nor /proc/meminfo says how much memory there is");
    }
    match gapless_size::parse(text) {
        Ok(size) if size.bytes == 0 => Err("zero bytes are no budget"),
        Ok(size) => Ok(size.bytes),
        Err(wrong) => Err(wrong.words()),
    }
}

/// 90 % of the cgroup's limit, or of the machine's memory where that is less.
#[must_use]
pub fn automatic() -> Option<u64> {
    let mut buffer = [0; 4096];
    let machine = sys::kib_line(sys::read_file(c"/proc/meminfo", &mut buffer), b"MemTotal:");
    let least = [machine, cgroup::limit()].into_iter().flatten().min()?;
    Some(least / 10 * 9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read_as_people_write_them() {
        // One grammar with `--host-limit`: GB is decimal, G and GiB are binary.
        for (text, bytes) in [("1048576", 1 << 20), ("20GB", 20_000_000_000), ("20G", 20 << 30), (" 7 B ", 7)]
        {
            assert_eq!(parse_limit(text.as_bytes()), Ok(bytes), "{text}");
        }
        for line in include_str!("../../../testdata/sizes.csv").lines().filter(|line| !line.starts_with('#'))
        {
            let fields: Vec<&str> = line.split('|').collect();
            let wanted = fields[1].parse::<u64>().ok().filter(|&bytes| bytes > 0);
            assert_eq!(parse_limit(fields[0].as_bytes()).ok(), wanted, "{line}");
        }
        for wrong in ["", "GiB", "1x", "-1", "0", "99999999TiB"] {
            assert!(parse_limit(wrong.as_bytes()).is_err(), "{wrong}");
        }
        let auto = parse_limit(b"auto").expect("a machine with /proc");
        assert!(auto > 1 << 20);
    }

    #[test]
    fn charges_stop_at_the_limit_and_come_back() {
        let budget = Budget::new();
        assert!(budget.charge(100), "no limit yet");
        assert!(budget.limit_to(1_000, None));
        assert_eq!(budget.total(), 100, "what was held counts");
        assert!(budget.charge(900));
        assert!(!budget.charge(1));
        assert_eq!((budget.own(), budget.total()), (1_000, 1_000), "a refusal charges nothing");
        budget.discharge(400);
        assert!(budget.charge(400));
        budget.discharge(5_000);
        assert_eq!((budget.own(), budget.total()), (0, 0), "more than was held comes never back");
        budget.leave();
    }

    #[test]
    fn what_a_relative_keeps_is_asked_for_before_a_request_is_refused() {
        let budget = Budget::new();
        assert!(budget.limit_to(1_000, None));
        let shared = budget.shared().expect("a page");
        let relative = std::os::unix::process::parent_id();
        let slot = &shared.slots[17];
        slot.start.store(sys::process_start(relative).expect("a parent"), Ordering::Relaxed);
        slot.pid.store(relative, Ordering::Relaxed);
        shared.total.fetch_add(900, Ordering::Relaxed);
        assert!(!budget.charge(500), "it keeps nothing");
        assert_eq!(shared.wanted.load(Ordering::Relaxed), 0, "so nobody is asked");
        slot.kept.store(1, Ordering::Relaxed);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while shared.wanted.load(Ordering::Relaxed) == 0 {
                    std::thread::yield_now();
                }
                shared.total.fetch_sub(900, Ordering::Relaxed);
            });
            assert!(budget.charge(500));
        });
        assert_eq!((budget.total(), budget.refused()), (500, 1));
        let seen = AtomicU64::new(0);
        assert!(
            budget.exchange(3 << 20, &seen) && !budget.exchange(3 << 20, &seen),
            "a relative's side, once"
        );
    }

    #[test]
    fn what_another_library_keeps_is_asked_for_in_its_own_process() {
        let budget = Budget::new();
        assert!(budget.limit_to(1_000, None));
        assert!(!budget.charge(1_001), "there is nobody who keeps anything");
        let seen = AtomicU64::new(0);
        // It has told nothing yet.
        assert!(budget.charge_beside(900));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !budget.keep_beside(900, &seen) {
                    std::thread::yield_now();
                }
                budget.discharge(900);
                budget.keep_beside(0, &seen);
            });
            assert!(budget.charge(500));
        });
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !budget.keep_beside(0, &seen) {
                    std::thread::yield_now();
                }
                budget.keep_beside(0, &seen);
            });
            assert!(!budget.charge(600), "it keeps nothing");
        });
        assert_eq!((budget.total(), budget.refused()), (500, 2));
    }

    #[test]
    fn a_process_that_became_another_program_holds_nothing_of_the_old_one() {
        let budget = Budget::new();
        assert!(budget.limit_to(1_000, None));
        assert!(budget.charge(700));
        // The new program's budget knows nothing of the old one but the page.
        let shared = budget.shared().expect("a page");
        let new = Budget::new();
        new.shared.store(std::ptr::from_ref(shared).cast_mut(), Ordering::Relaxed);
        new.take_slot(shared);
        assert_eq!(new.total(), 0);
    }

    #[test]
    fn the_part_of_a_process_that_is_gone_is_returned() {
        let budget = Budget::new();
        assert!(budget.limit_to(1_000, None));
        assert!(budget.charge(10));
        let shared = budget.shared().expect("a page");
        let gone = std::process::Command::new("true").spawn().and_then(|mut child| {
            let pid = child.id();
            child.wait().map(|_| pid)
        });
        let slot = &shared.slots[17];
        slot.pid.store(gone.expect("a process"), Ordering::Relaxed);
        slot.held.store(900, Ordering::Relaxed);
        shared.total.fetch_add(900, Ordering::Relaxed);
        assert!(!budget.try_charge(500));
        assert!(budget.charge(500), "the charge looks for such processes");
        assert!(!budget.reap(), "this process lives");
        assert_eq!(budget.total(), 510);
    }
}
