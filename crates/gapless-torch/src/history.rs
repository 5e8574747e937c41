//! The history of a card's memory for `torch.cuda.memory._record_memory_history`: a bounded list of events, with
//! stacks.
//!
//! One setting holds for all cards, and each card has its list. Stacks come from a function of PyTorch's that may take
//! Python's lock, so it is called before a card is locked, never after. Trackers may throw. So their entries are queued
//! under the card's lock, in the order of the events, and told after it, before the request or free is over.

mod ring;
mod telling;

use crate::foreign::{self, Observer, Tracker};
use crate::watcher::{Caller, Event, Stack, Watcher};
use gapless_cuda::locks::{Guard, Lock, Signal};
use gapless_pool::{Change, PoolKey, StreamHandle};
use ring::Ring;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicUsize, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

pub use telling::{tell_trackers, tell_trackers_first};

/// Kinds of events; the numbers are PyTorch's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Alloc = 0,
    FreeRequested = 1,
    FreeCompleted = 2,
    SegmentAlloc = 3,
    SegmentFree = 4,
    SegmentMap = 5,
    SegmentUnmap = 6,
    Snapshot = 7,
    Oom = 8,
    Annotate = 9,
}

/// PyTorch's names of all actions, at their numbers.
const NAMES: [&str; 10] = [
    "alloc",
    "free_requested",
    "free_completed",
    "segment_alloc",
    "segment_free",
    "segment_map",
    "segment_unmap",
    "snapshot",
    "oom",
    "annotate",
];

/// Which stacks are kept: none, those of live blocks, those of allocations in the history too, those of frees too.
pub mod level {
    pub const STATE: u8 = 1;
    pub const ALLOC: u8 = 2;
    pub const ALL: u8 = 3;
}

static RECORDING: AtomicBool = AtomicBool::new(false);
/// True while a history is recorded or a tracker listens. Pools then log their changes.
static WATCHED: AtomicBool = AtomicBool::new(false);
static LEVEL: AtomicU8 = AtomicU8::new(0);
static RECORDER: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(1);
/// A bit for each action that the history leaves out.
static SKIPPED: AtomicU16 = AtomicU16::new(0);
static TRACKERS: Lock<Vec<Arc<Tracker>>> = Lock::new(Vec::new);
/// Entries that trackers have not heard yet, and the signal for threads that must wait until they have.
static UNTOLD: Lock<Untold> =
    Lock::new(|| Untold { entries: VecDeque::new(), put: 0, heard: 0, is_telling: false });
static HEARD: Signal = Signal::new();
static OBSERVERS: Lock<Vec<Arc<Observer>>> = Lock::new(Vec::new);
static ANNOTATIONS: Lock<Ring<Annotation>> = Lock::new(Ring::new);

/// Entries with their card, oldest first. `put` entries were queued in all, and trackers have heard the first `heard`.
/// The list has those in between, except the one that a thread is telling now.
struct Untold {
    entries: VecDeque<(i32, Entry)>,
    put: u64,
    heard: u64,
    /// True while a thread tells them.
    is_telling: bool,
}

thread_local! {
    /// Depth of this thread's calls into trackers: a tracker may itself ask for memory. `INSIDE` counts the entries
    /// told in nested calls: they count as heard when the outermost one is.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
    static INSIDE: Cell<u64> = const { Cell::new(0) };
}

thread_local! {
    static COMPILED: RefCell<Vec<Arc<str>>> = const { RefCell::new(Vec::new()) };
    /// The text that the program wants noted with this thread's events.
    static METADATA: RefCell<Option<Arc<str>>> = const { RefCell::new(None) };
}

/// One entry of the list.
#[derive(Clone, Debug)]
pub struct Entry {
    pub action: Action,
    pub addr: u64,
    pub size: u64,
    pub stream: StreamHandle,
    pub pool: PoolKey,
    /// Microseconds since the Unix epoch.
    pub time: i64,
    pub stack: Option<Stack>,
    /// The compiled region in which it happened.
    pub compiled: Option<Arc<str>>,
    pub metadata: Option<Arc<str>>,
    /// The program chose the address.
    pub at_address: bool,
}

/// A mark that `record_function` left.
#[derive(Clone, Debug)]
pub struct Annotation {
    pub device: i8,
    pub time: i64,
    pub pairs: Vec<(String, String)>,
}

/// The settings of a recording.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    pub on: bool,
    pub recorder: usize,
    pub most: usize,
    pub level: u8,
    pub skipped: u16,
}

#[inline]
#[must_use]
pub fn is_watched() -> bool {
    WATCHED.load(Ordering::Relaxed)
}

#[must_use]
pub fn is_recording() -> bool {
    RECORDING.load(Ordering::Relaxed)
}

/// Sets what is recorded from now on. The caller clears the cards' lists.
pub fn set_wanted(wanted: Wanted, clear: bool) {
    let Wanted { on, recorder, most, level, skipped } = wanted;
    RECORDER.store(if on { recorder } else { 0 }, Ordering::Release);
    LEVEL.store(if on { level } else { 0 }, Ordering::Release);
    MOST.store(most.max(1), Ordering::Relaxed);
    SKIPPED.store(skipped, Ordering::Relaxed);
    RECORDING.store(on, Ordering::Release);
    if !on || clear {
        ANNOTATIONS.lock().clear();
    }
    watch();
}

fn watch() {
    let listeners = !TRACKERS.lock().is_empty();
    WATCHED.store(is_recording() || listeners, Ordering::Release);
}

/// The bit of an action by its name; `None`: there is no such action.
#[must_use]
pub fn action_bit(name: &str) -> Option<u16> {
    NAMES.iter().position(|known| *known == name).map(|at| 1 << at)
}

pub fn add_tracker(tracker: Tracker) {
    TRACKERS.lock().push(Arc::new(tracker));
    watch();
}

pub fn add_observer(observer: Observer) {
    OBSERVERS.lock().push(Arc::new(observer));
}

/// Tells observers that a request failed. They may take Python's lock, so no lock of ours may be held.
///
/// # Safety
/// C++ exceptions may pass the callers: no guard, and no card locked.
pub unsafe fn tell_observers(device: i32, size: u64, total: u64, free: u64) {
    let observers = OBSERVERS.lock().clone();
    let (device, size, total, free) = (i64::from(device), size as usize, total as usize, free as usize);
    for observer in observers {
        // SAFETY: our caller lets exceptions pass. The list of observers is a copy, so its lock is free.
        unsafe { observer.tell(device, size, total, free) };
    }
}

/// The present stack, if the level keeps it. Called before a card is locked.
///
/// # Safety
/// C++ exceptions may pass the callers: no guard, and no card locked.
#[inline]
pub unsafe fn stack(wanted: u8) -> Option<Stack> {
    if LEVEL.load(Ordering::Relaxed) < wanted {
        return None;
    }
    let recorder = RECORDER.load(Ordering::Acquire);
    if recorder == 0 {
        return None;
    }
    // SAFETY: our caller lets exceptions pass, and `recordHistory` received this function as its gatherer.
    let stack = unsafe { foreign::gather(recorder) };
    (!stack.object.is_null()).then_some(stack)
}

/// Notes `text` with this thread's events from now on. Each thread has its own text.
pub fn set_metadata(text: &str) {
    let text = (!text.is_empty()).then(|| Arc::from(text));
    let _ = METADATA.try_with(|said| *said.borrow_mut() = text);
}

#[must_use]
pub fn metadata() -> Option<Arc<str>> {
    METADATA.try_with(|said| said.borrow().clone()).ok().flatten()
}

pub fn enter_compiled(name: &str) {
    let _ = COMPILED.try_with(|stack| stack.borrow_mut().push(Arc::from(name)));
}

pub fn leave_compiled() {
    let _ = COMPILED.try_with(|stack| drop(stack.borrow_mut().pop()));
}

pub fn annotate(device: i8, pairs: Vec<(String, String)>) {
    if !is_recording() {
        return;
    }
    let mut list = ANNOTATIONS.lock();
    list.push(Annotation { device, time: now(), pairs }, MOST.load(Ordering::Relaxed));
}

#[must_use]
pub fn annotations() -> Vec<Annotation> {
    ANNOTATIONS.lock().iter().cloned().collect()
}

fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as i64)
}

/// A card's list, and the stacks of its live blocks.
#[derive(Debug, Default)]
pub struct History {
    entries: Ring<Entry>,
    stacks: HashMap<u64, Stack>,
    /// Memory that was mapped while stacks were kept: by first address, the size and the stack of the mapping request.
    mapped: BTreeMap<u64, (u64, Stack)>,
}

impl History {
    pub fn clear(&mut self) {
        self.entries.clear();
    }

    /// Keeps only the stacks of blocks that are still there. The others were freed while no history was recorded.
    pub fn keep_stacks(&mut self, is_there: impl Fn(u64) -> bool) {
        self.stacks.retain(|&addr, _| is_there(addr));
    }

    #[must_use]
    pub fn entries(&self) -> &Ring<Entry> {
        &self.entries
    }

    /// Forgets which requests mapped memory: from now on its changes are not reported.
    pub fn forget_mapped(&mut self) {
        self.mapped.clear();
    }

    /// The stack of the request that mapped the memory at `addr`.
    #[must_use]
    pub fn mapper_of(&self, addr: u64) -> Option<&Stack> {
        let (begin, (size, stack)) = self.mapped.range(..=addr).next_back()?;
        (addr - begin < *size).then_some(stack)
    }

    /// Notes `stack`, or none, as the mapper of these addresses.
    fn set_mapper(&mut self, addr: u64, size: u64, stack: Option<&Stack>) {
        let end = addr + size;
        let touched = self.mapped.range(..end).filter(|(begin, (size, _))| **begin + size > addr);
        for begin in touched.map(|(begin, _)| *begin).collect::<Vec<u64>>() {
            let Some((size, before)) = self.mapped.remove(&begin) else { continue };
            if begin + size > end {
                self.mapped.insert(end, (begin + size - end, before.clone()));
            }
            if begin < addr {
                self.mapped.insert(begin, (addr - begin, before));
            }
        }
        if let Some(stack) = stack {
            self.mapped.insert(addr, (size, stack.clone()));
        }
    }

    /// The stack with which the block at `addr` was allocated.
    #[must_use]
    pub fn stack_of(&self, addr: u64) -> Option<&Stack> {
        self.stacks.get(&addr)
    }

    /// Records a note about a live block.
    pub fn annotated(&mut self, device: i32, what: Event, note: &str, stack: Option<Stack>) {
        self.put(device, Entry { metadata: Some(Arc::from(note)), ..entry(Action::Annotate, what, stack) });
    }

    /// Records one action, for the list and for the trackers.
    pub fn add(&mut self, device: i32, action: Action, what: Event, stack: Option<Stack>) {
        self.put(device, entry(action, what, stack));
    }

    fn put(&mut self, device: i32, entry: Entry) {
        if has_trackers() {
            tell_later(device, entry.clone());
        }
        if is_recording() && SKIPPED.load(Ordering::Relaxed) & (1 << entry.action as u16) == 0 {
            self.entries.push(entry, MOST.load(Ordering::Relaxed));
        }
    }
}

impl Watcher for History {
    fn is_on(&self) -> bool {
        is_watched()
    }

    fn allocated(&mut self, device: i32, what: Event, by: &Caller<'_>) {
        match by.stack {
            Some(stack) => drop(self.stacks.insert(what.addr, stack.clone())),
            None => drop(self.stacks.remove(&what.addr)),
        }
        let at_address = by.at_address;
        self.put(device, Entry { at_address, ..entry(Action::Alloc, what, by.stack.cloned()) });
    }

    fn given_back(&mut self, device: i32, what: Event, by: &Caller<'_>, _is_free: bool) {
        let stack = by.stack.or_else(|| self.stacks.get(&what.addr)).cloned();
        self.add(device, Action::FreeRequested, what, stack);
    }

    fn changed(&mut self, device: i32, changes: &[Change], by: &Caller<'_>) {
        for change in changes {
            match *change {
                Change::Completed { addr, requested, stream, pool } => {
                    let allocated = self.stacks.remove(&addr);
                    let stack = by.stack.cloned().or(allocated);
                    let what = Event { addr, size: requested, stream, pool };
                    self.add(device, Action::FreeCompleted, what, stack);
                }
                Change::Mapped { addr, size, stream, pool } => {
                    self.set_mapper(addr, size, by.stack.filter(|_| by.asks));
                    let what = Event { addr, size, stream, pool };
                    self.add(device, Action::SegmentMap, what, by.stack.cloned());
                }
                Change::Unmapped { addr, size, stream, pool } => {
                    self.set_mapper(addr, size, None);
                    let what = Event { addr, size, stream, pool };
                    self.add(device, Action::SegmentUnmap, what, by.stack.cloned());
                }
            }
        }
    }

    fn failed(&mut self, device: i32, what: Event, by: &Caller<'_>) {
        self.add(device, Action::Oom, what, by.stack.cloned());
    }
}

/// An event of this thread at this moment.
fn entry(action: Action, Event { addr, size, stream, pool }: Event, stack: Option<Stack>) -> Entry {
    let stack = stack.filter(|_| LEVEL.load(Ordering::Relaxed) >= level::ALLOC);
    // A thread that ends frees tensors after its thread-local variables are gone.
    let compiled = COMPILED.try_with(|stack| stack.borrow().last().cloned()).ok().flatten();
    Entry {
        action,
        addr,
        size,
        stream,
        pool,
        time: now(),
        stack,
        compiled,
        metadata: metadata(),
        at_address: false,
    }
}

#[must_use]
pub fn has_trackers() -> bool {
    !TRACKERS.lock().is_empty()
}

fn untold() -> Guard<'static, Untold> {
    UNTOLD.lock()
}

fn tell_later(device: i32, entry: Entry) {
    let mut untold = untold();
    untold.put += 1;
    untold.entries.push_back((device, entry));
}

/// True if there are entries that trackers have not heard.
#[must_use]
pub fn has_untold() -> bool {
    let untold = untold();
    untold.is_telling || !untold.entries.is_empty()
}

/// Queues an entry that only trackers hear.
pub fn announce(device: i32, action: Action, what: Event) {
    tell_later(device, entry(action, what, None));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cxx::SharedPtr;

    #[test]
    fn who_had_memory_mapped_is_known_until_it_is_unmapped() {
        let stack = SharedPtr::NULL;
        let mut history = History::default();
        history.set_mapper(100, 50, Some(&stack));
        history.set_mapper(150, 10, None);
        let knows = |history: &History| {
            [99, 100, 119, 120, 129, 130, 149, 150].map(|at| history.mapper_of(at).is_some())
        };
        assert_eq!(knows(&history), [false, true, true, true, true, true, true, false]);
        history.set_mapper(120, 10, None);
        assert_eq!(knows(&history), [false, true, true, false, false, true, true, false]);
        history.set_mapper(90, 40, Some(&stack));
        assert_eq!(knows(&history), [true, true, true, true, true, true, true, false]);
        history.set_mapper(0, 1000, None);
        assert!(history.mapped.is_empty());
    }
}
