//! mimalloc 3 as a core for small objects: the other one, for comparison and as an oracle.

use super::Small;
use crate::budget::Budget;
use crate::sys;
use crate::units::GRANULE;
use libmimalloc_sys::{mi_free, mi_malloc, mi_malloc_aligned, mi_realloc, mi_zalloc, mi_zalloc_aligned};
use std::ffi::{c_int, c_long, c_void};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// mimalloc 3, in areas of addresses that we reserve, so that its memory is charged to the budget.
#[derive(Debug)]
pub struct Mimalloc {
    budget: &'static Budget,
    areas: [Area; AREAS],
    count: AtomicUsize,
    held: AtomicU64,
    /// An area is being added.
    adding: AtomicBool,
    /// No area could be reserved: mimalloc takes its memory itself, and it is not charged.
    alone: AtomicBool,
}

/// One reserved range.
#[derive(Debug)]
struct Area {
    start: AtomicUsize,
    size: AtomicUsize,
    /// One bit a granule, in a table that is mapped for good: whether it is charged.
    charged: AtomicUsize,
}

/// mimalloc itself has room for 160.
const AREAS: usize = 128;
/// The first is small: a program that locks all its memory (`mlockall`) gets all of it.
const FIRST: usize = 1 << 30;
/// mimalloc divides what is larger.
const LARGEST: usize = 16 << 30;

type CommitFunction = extern "C" fn(bool, *mut c_void, usize, *mut bool, *mut c_void) -> bool;

unsafe extern "C" {
    fn mi_process_init();
    fn mi_thread_init();
    fn mi_option_set(option: c_int, value: c_long);
    fn mi_usable_size(block: *const c_void) -> usize;
    fn mi_collect(force: bool);
    fn mi_manage_memory(
        start: *mut c_void,
        size: usize,
        is_committed: bool,
        is_pinned: bool,
        is_zero: bool,
        numa_node: c_int,
        exclusive: bool,
        commit: CommitFunction,
        argument: *mut c_void,
        arena: *mut c_void,
    ) -> bool;
}

/// Positions in mimalloc's list of options.
const DISALLOW_OS_ALLOC: c_int = 17;

impl Mimalloc {
    #[must_use]
    pub const fn new(budget: &'static Budget) -> Mimalloc {
        Mimalloc {
            budget,
            areas: [const {
                Area { start: AtomicUsize::new(0), size: AtomicUsize::new(0), charged: AtomicUsize::new(0) }
            }; AREAS],
            count: AtomicUsize::new(0),
            held: AtomicU64::new(0),
            adding: AtomicBool::new(false),
            alone: AtomicBool::new(false),
        }
    }

    /// Before the first block. Where addresses are scarce (`ulimit -v`), mimalloc takes its memory itself.
    pub fn begin(&'static self) {
        // SAFETY: may be called at any time, and more than once.
        unsafe { mi_process_init() };
        if self.add_area() {
            // SAFETY: a known option; no other thread runs yet.
            unsafe { mi_option_set(DISALLOW_OS_ALLOC, 1) };
        } else {
            self.alone.store(true, Ordering::Relaxed);
        }
    }

    /// A new thread.
    pub fn enter(&self) {
        // SAFETY: may be called at any time, and more than once.
        unsafe { mi_thread_init() };
    }

    /// More addresses. False: there are none, or another thread is adding some. The core lives for good: it is only
    /// made as a static.
    fn add_area(&self) -> bool {
        let count = self.count.load(Ordering::Acquire);
        if count == AREAS || self.adding.swap(true, Ordering::Acquire) {
            return false;
        }
        let size = (FIRST << count.min(8)).min(LARGEST);
        let added = self.reserve_area(&self.areas[count], size);
        if added {
            self.count.store(count + 1, Ordering::Release);
            let area = &self.areas[count];
            let start = area.start.load(Ordering::Relaxed);
            let this = std::ptr::from_ref(self).cast_mut().cast();
            // SAFETY: the range was reserved for this, stays for good, and reads as zeros; `commit` charges it and
            // needs no call, since all of it is writable.
            let managed = unsafe {
                let arena = std::ptr::null_mut();
                mi_manage_memory(
                    start as *mut c_void,
                    size,
                    false,
                    false,
                    true,
                    -1,
                    false,
                    commit,
                    this,
                    arena,
                )
            };
            if !managed {
                self.count.store(count, Ordering::Release);
            }
        }
        self.adding.store(false, Ordering::Release);
        added
    }

    fn reserve_area(&self, area: &Area, size: usize) -> bool {
        let Some(charged) = sys::map(size / GRANULE / 8) else { return false };
        let start = sys::reserve(size, LARGEST.min(size)).filter(|&start| {
            let usable = sys::commit(start, size);
            if !usable {
                sys::unmap(start, size);
            }
            usable
        });
        let Some(start) = start else {
            sys::unmap(charged, size / GRANULE / 8);
            return false;
        };
        area.charged.store(charged as usize, Ordering::Relaxed);
        area.size.store(size, Ordering::Relaxed);
        area.start.store(start as usize, Ordering::Release);
        true
    }

    fn area_of(&self, address: usize) -> Option<&Area> {
        let areas = &self.areas[..self.count.load(Ordering::Acquire).min(AREAS)];
        areas.iter().find(|area| {
            address.wrapping_sub(area.start.load(Ordering::Relaxed)) < area.size.load(Ordering::Relaxed)
        })
    }

    /// Counts the granules of a range that are not charged, or charged; with `change`, also turns them over. Gives
    /// bytes. mimalloc calls for ranges that it owns at that time, so nobody else changes them.
    fn turn(&self, start: usize, size: usize, charged: bool, change: bool) -> u64 {
        let Some(area) = self.area_of(start) else { return 0 };
        let first = (start - area.start.load(Ordering::Relaxed)) / GRANULE;
        let table = area.charged.load(Ordering::Relaxed) as *const AtomicU64;
        let mut count = 0;
        for granule in first..first + size.div_ceil(GRANULE) {
            // SAFETY: the table has a bit for every granule of the area, in whole words (areas are whole GiB).
            let word = unsafe { &*table.add(granule / 64) };
            let bit = 1 << (granule % 64);
            if (word.load(Ordering::Relaxed) & bit != 0) == charged {
                continue;
            }
            count += 1;
            if change {
                word.fetch_xor(bit, Ordering::Relaxed);
            }
        }
        count * GRANULE as u64
    }

    /// mimalloc said no: because the budget did, or because no addresses are left. What it keeps goes back first;
    /// then it gets more addresses, unless the budget refused again.
    #[cold]
    fn again(&self, attempt: impl Fn() -> *mut u8) -> *mut u8 {
        // SAFETY: may be called at any time.
        unsafe { mi_collect(true) };
        let refused = self.budget.refused();
        let block = attempt();
        let is_budget = self.budget.refused() != refused;
        if !block.is_null() || is_budget || self.alone.load(Ordering::Relaxed) || !self.add_area() {
            return block;
        }
        attempt()
    }
}

/// mimalloc wants memory, or gives it back.
extern "C" fn commit(
    wanted: bool,
    start: *mut c_void,
    size: usize,
    is_zero: *mut bool,
    this: *mut c_void,
) -> bool {
    // SAFETY: the argument that `add_area` gave: a core that lives for good.
    let core = unsafe { &*this.cast::<Mimalloc>() };
    let bytes = core.turn(start as usize, size, wanted, false);
    if wanted {
        if !core.budget.charge(bytes) {
            return false;
        }
        if !is_zero.is_null() {
            // SAFETY: mimalloc's own variable. A granule that is not charged was never used, or was discarded.
            unsafe { is_zero.write(bytes == size as u64) };
        }
        core.turn(start as usize, size, true, true);
        core.held.fetch_add(bytes, Ordering::Relaxed);
        return true;
    }
    if !sys::keep_errno(|| sys::discard(start.cast(), size)) {
        return false;
    }
    core.turn(start as usize, size, false, true);
    core.held.fetch_sub(bytes, Ordering::Relaxed);
    core.budget.discharge(bytes);
    true
}

impl Small for Mimalloc {
    #[inline]
    fn allocate(&self, size: usize, zeroed: bool) -> *mut u8 {
        // SAFETY: any size is allowed.
        let attempt = || unsafe { if zeroed { mi_zalloc(size) } else { mi_malloc(size) } }.cast::<u8>();
        let block = attempt();
        if block.is_null() { self.again(attempt) } else { block }
    }

    fn allocate_aligned(&self, size: usize, alignment: usize, zeroed: bool) -> *mut u8 {
        // SAFETY: any size is allowed; the heap checked the alignment.
        let attempt = || unsafe {
            if zeroed { mi_zalloc_aligned(size, alignment) } else { mi_malloc_aligned(size, alignment) }
                .cast::<u8>()
        };
        let block = attempt();
        if block.is_null() { self.again(attempt) } else { block }
    }

    unsafe fn reallocate(&self, block: *mut u8, size: usize) -> *mut u8 {
        // SAFETY: as the caller says.
        let attempt = || unsafe { mi_realloc(block.cast(), size) }.cast::<u8>();
        let moved = attempt();
        if moved.is_null() { self.again(attempt) } else { moved }
    }

    #[inline]
    unsafe fn free(&self, block: *mut u8) {
        // SAFETY: as the caller says.
        unsafe { mi_free(block.cast()) }
    }

    unsafe fn usable(&self, block: *mut u8) -> usize {
        // SAFETY: as the caller says.
        unsafe { mi_usable_size(block.cast()) }
    }

    fn collect(&self, all: bool) {
        // SAFETY: may be called at any time.
        unsafe { mi_collect(all) }
    }

    fn held(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }

    fn may_own(&self, block: *const u8) -> bool {
        self.alone.load(Ordering::Relaxed) || self.area_of(block as usize).is_some()
    }
}
