//! Requests and frees of PyTorch, which arrive through the plain hooks or the overlay.
//!
//! Events are recorded under the lock that orders them: the lane's or the card's. Before the card is locked, this
//! module asks the filters of routings and gathers stacks. After it is unlocked, the module calls trackers, handlers
//! and observers of failures. All of these may throw, or take Python's lock, so none may run under the card's lock.
//! [`plain`] does the same for callers that cannot handle an exception.

pub mod plain;

use crate::budgets;
use crate::card::{self, Card};
use crate::cards;
use crate::checked;
use crate::checked::place::Place;
use crate::exception::{self, Kind};
use crate::foreign;
use crate::guard::{guarded, set_error};
use crate::history::{self, level};
use crate::oom::{self, Seen};
use crate::opening;
use crate::outside;
use crate::pools;
use crate::pressure::{self, Pressure};
use crate::process;
use crate::quota::admission;
use crate::recorder::{self, Flight};
use crate::regions;
use crate::sharing;
use crate::suppliers::{self, Refused};
use crate::traced;
use crate::watcher::{Caller, Event, Stack};
use gapless_cuda::streams;
use gapless_pool::{
    AllocError, Device, DeviceError, FreeError, Patience, PoolKey, Refusal, StreamHandle, Unserved,
};
use std::ffi::c_void;

/// A request that failed.
enum Failure {
    OutOfMemory(DeviceError),
    /// An error that checked mode found, or a mistake of a supplier.
    Wrong(String),
    Other(String),
}

impl Failure {
    /// Keeps a finding of checked mode for the next request: this one fails with out-of-memory.
    fn put_off(&self) {
        if let Failure::Wrong(found) = self {
            checked::put_off(found.clone());
        }
    }
}

/// A request and its origin.
struct Request {
    size: u64,
    device: i32,
    stream: *mut c_void,
    pool: PoolKey,
    /// For a history, and for a recording.
    stack: Option<Stack>,
    line: u32,
    /// For checked mode.
    who: Option<Place>,
}

/// Allocates `size` bytes; null for 0 bytes. Throws `torch.OutOfMemoryError` if there is no memory.
///
/// # Safety
/// Called from C++ that handles exceptions, without a guard or a card's lock in between (see [`crate::foreign`]).
#[inline]
pub unsafe fn request(size: usize, device: i32, stream: *mut c_void) -> *mut c_void {
    if size == 0 {
        return std::ptr::null_mut();
    }
    if history::is_watched() || checked::is_on() || traced::is_on() {
        // SAFETY: our caller lets exceptions pass, and no card is locked here.
        return unsafe { watched_request(size, device, stream) };
    }
    let line = if recorder::is_on() { guarded(0, recorder::stack) } else { 0 };
    if !streams::has_context() {
        streams::bind(device);
    }
    let handle = stream;
    let stream = streams::named(handle as u64) as *mut c_void;
    // SAFETY: our caller lets exceptions pass, and no card is locked here.
    let for_torch = unsafe { regions::is_for_torch(size) };
    if !for_torch && let Some(addr) = from_front(size as u64, device, stream, regions::current(), line) {
        return addr as *mut c_void;
    }
    // SAFETY: our caller lets exceptions pass; `from_front` has returned, so no lane is locked either.
    unsafe {
        let pool = pools::pool_of(device, handle);
        let pool = if for_torch { regions::exempt::pool_for(pool) } else { pool };
        Request { size: size as u64, device, stream, pool, stack: None, line, who: None }.serve()
    }
}

/// Takes memory from the stream's own front, without the card's lock. `None` if the front has none.
#[inline]
fn from_front(size: u64, device: i32, stream: *mut c_void, pool: PoolKey, line: u32) -> Option<u64> {
    if process::is_forked() {
        return None;
    }
    let is_recorded = recorder::is_on();
    let budget = budgets::open_on(device);
    guarded(None, || {
        let (fronts, stream) = (cards::fronts(device)?, StreamHandle(stream as u64));
        if is_recorded {
            let tell = |addr| Flight::allocated_at_front(device, Event { addr, size, stream, pool }, line);
            fronts.alloc_for(size, stream, pool, budget, tell)
        } else {
            fronts.alloc_for(size, stream, pool, budget, |_| ())
        }
    })
}

#[cold]
unsafe fn watched_request(size: usize, device: i32, stream: *mut c_void) -> *mut c_void {
    // SAFETY: `request` calls this, whose caller lets exceptions pass. Guards end before the next call.
    unsafe {
        let for_torch = regions::is_for_torch(size);
        let pool = pools::pool_of(device, stream);
        let pool = if for_torch { regions::exempt::pool_for(pool) } else { pool };
        let stream = streams::named(stream as u64) as *mut c_void;
        let stack = if history::is_watched() { history::stack(level::STATE) } else { None };
        let line = guarded(0, recorder::stack);
        let who = guarded(None, checked::who);
        if let Some(found) = guarded(None, checked::take_found) {
            drop((stack, who));
            return fail(Kind::Error, found);
        }
        let data = Request { size: size as u64, device, stream, pool, stack, line, who }.serve();
        // Trackers register segments of private pools (NCCL) before the program uses the memory.
        if pool.is_private() {
            history::tell_trackers_first();
        } else {
            history::tell_trackers();
        }
        if traced::is_on() {
            traced::tell(traced::Event::Allocated, data);
        }
        data
    }
}

/// Allocates `size` bytes at `address`, if that range is free for this stream. Throws otherwise.
///
/// # Safety
/// As [`request`].
pub unsafe fn request_at(size: usize, device: i32, stream: *mut c_void, address: *mut c_void) -> *mut c_void {
    // SAFETY: our caller lets exceptions pass. `with_card` runs in a guard that has ended before anything is thrown.
    unsafe {
        let pool = pools::pool_of(device, stream);
        let stream = streams::named(stream as u64) as *mut c_void;
        let stack = if history::is_watched() { history::stack(level::STATE) } else { None };
        let line = guarded(0, recorder::stack);
        let who = guarded(None, checked::who);
        let (addr, bytes) = (address as u64, size as u64);
        let inside = || Err("gapless: the allocator failed inside; please report it".to_owned());
        let place = |card: &mut Card| {
            let budget = budgets::open_on(device);
            card.pool.alloc_at(bytes, addr, StreamHandle(stream as u64), pool, budget).map_err(|error| {
                format!("gapless: {bytes} bytes at {addr:#x} cannot be allocated on cuda:{device}: {error}")
            })?;
            checked::handed_out(card, addr, who.as_ref())?;
            if card::is_told() {
                card.tell_alloc(addr, &Caller { stack: stack.as_ref(), line, at_address: true, asks: true });
            }
            Ok(())
        };
        let placed = guarded(inside(), || {
            opening::with_card(device, place).unwrap_or_else(|error| Err(format!("gapless: {error}")))
        });
        history::tell_trackers();
        drop((stack, who));
        match placed {
            Ok(()) => {
                if traced::is_on() {
                    traced::tell(traced::Event::Allocated, address);
                }
                address
            }
            Err(message) => fail(Kind::Error, message),
        }
    }
}

impl Request {
    /// Serves the request from the whole card.
    ///
    /// # Safety
    /// As [`request`].
    unsafe fn serve(self) -> *mut c_void {
        // SAFETY: our caller lets exceptions pass, and no card is locked here.
        match unsafe { self.prepared() } {
            Ok(addr) => addr as *mut c_void,
            // SAFETY: our caller lets exceptions pass; `prepared` holds no lock any more.
            Err(Failure::OutOfMemory(error)) => unsafe { self.refused(error) },
            // SAFETY: our caller lets exceptions pass; `prepared` holds no lock any more.
            Err(Failure::Other(message)) => unsafe { fail(Kind::OutOfMemory, message) },
            Err(Failure::Wrong(message)) => {
                drop(self);
                // SAFETY: our caller lets exceptions pass, and `self` with its stack is dropped.
                unsafe { fail(Kind::Error, message) }
            }
        }
    }

    /// [`Request::attempt`], after the supplier of the pool gave the memory that the pool lacks.
    ///
    /// # Safety
    /// As [`request`].
    unsafe fn prepared(&self) -> Result<u64, Failure> {
        if suppliers::is_used() {
            let stream = StreamHandle(self.stream as u64);
            // SAFETY: our caller lets exceptions pass, and no card is locked here.
            unsafe { suppliers::prepare(self.device, self.size, stream, self.pool) }.map_err(|refused| {
                match refused {
                    Refused::Memory(error) => Failure::OutOfMemory(error),
                    ours @ Refused::Ours { .. } => Failure::Wrong(ours.to_string()),
                }
            })?;
        }
        let served = self.attempt();
        if !suppliers::is_used() || !matches!(served, Err(Failure::OutOfMemory(_))) {
            return served;
        }
        // SAFETY: our caller lets exceptions pass; `attempt` has unlocked the card.
        if unsafe { suppliers::reclaim(self.device) } { self.attempt() } else { served }
    }

    fn attempt(&self) -> Result<u64, Failure> {
        let is_lent =
            |failure: &Failure| matches!(failure, Failure::OutOfMemory(DeviceError::Refused(Refusal::Lent)));
        admission::when_lent(self.device, self.size, is_lent, || self.attempt_once())
    }

    fn attempt_once(&self) -> Result<u64, Failure> {
        let inside = || Failure::Other("the allocator failed inside; please report it".to_owned());
        guarded(Err(inside()), || {
            let attempt = |card: &mut Card, patience: &mut Patience| {
                let budget = budgets::open_on(self.device);
                let addr = match card.alloc(self.size, self.stream, self.pool, budget, patience) {
                    Ok(addr) => addr,
                    Err(Unserved::Later(wait)) => return Err(wait),
                    Err(Unserved::Failed(AllocError::OutOfMemory { device, .. })) => {
                        return Ok(Err(Failure::OutOfMemory(device)));
                    }
                };
                if let Err(found) = checked::handed_out(card, addr, self.who.as_ref()) {
                    return Ok(Err(Failure::Wrong(found)));
                }
                if card::is_told() {
                    card.tell_alloc(addr, &self.caller());
                }
                streams::bind(self.device);
                Ok(Ok(addr))
            };
            outside::until_answered(self.device, attempt)
                .unwrap_or_else(|error| Err(Failure::Other(error.to_string())))
        })
    }

    /// The card has no memory: asks everyone who may free some, and then fails.
    ///
    /// # Safety
    /// As [`request`].
    #[cold]
    unsafe fn refused(self, error: DeviceError) -> *mut c_void {
        // SAFETY: the closure runs below `pressure::ask`, which has no guard around it; no card is locked.
        let again = || unsafe { self.prepared() }.inspect_err(Failure::put_off).ok();
        // SAFETY: our caller lets exceptions pass, and no card is locked here.
        let is_freed = foreign::torch().is_some_and(|torch| unsafe { torch.ask_callbacks() });
        let is_closed = guarded(false, sharing::close_all);
        if (is_freed || is_closed)
            && let Some(addr) = again()
        {
            return addr as *mut c_void;
        }
        let (served, handlers) = self.ask_handlers(again);
        if let Some(addr) = served {
            return addr as *mut c_void;
        }
        let message = match self.seen(error, handlers) {
            Some(seen) => {
                let (limit, total, free) = (seen.facts.limit, seen.facts.total, seen.facts.free);
                let total = limit.map_or(total, |limit| limit.bytes);
                // SAFETY: our caller lets exceptions pass; `seen` has unlocked the card.
                unsafe {
                    history::tell_trackers();
                    history::tell_observers(self.device, self.size, total, free);
                    self.tell_profiler(&seen);
                }
                explained(seen)
            }
            None => PLAIN.to_owned(),
        };
        drop(self);
        // SAFETY: our caller lets exceptions pass, and `self` with its stack is dropped.
        unsafe { fail(Kind::OutOfMemory, message) }
    }

    /// # Safety
    /// As [`request`].
    unsafe fn tell_profiler(&self, seen: &Seen) {
        // SAFETY: our caller lets exceptions pass, and no card is locked here.
        let Some(torch) = foreign::torch().filter(|torch| unsafe { torch.is_profiling() }) else { return };
        // SAFETY: our caller lets exceptions pass, and no card is locked here.
        unsafe {
            torch.report_failure(self.size, seen.facts.allocated, seen.facts.reserved, self.device as i8)
        };
    }

    /// Asks the program's handlers until `again` succeeds. Also returns how many were asked.
    fn ask_handlers(&self, again: impl FnMut() -> Option<u64>) -> (Option<u64>, usize) {
        let (served, handlers) = pressure::ask(|| guarded(None, || self.pressure()), again);
        if served.is_some() {
            guarded((), || {
                let _ = opening::with_card(self.device, |card| card.helped += 1);
            });
        }
        (served, handlers)
    }

    /// Counts and records the failure, and returns the card's state at that moment.
    fn seen(&self, error: DeviceError, handlers: usize) -> Option<Seen> {
        // Catches up first, so that the report's list of holders is complete.
        guarded((), || drop(recorder::catch_up()));
        let mut seen = guarded(None, || opening::with_card(self.device, |card| self.look(card, error)).ok())?;
        seen.facts.handlers = handlers;
        Some(seen)
    }

    /// The message for a handler, and the number of frees so far. `None` if no handler may be asked now.
    fn pressure(&self) -> Option<(Pressure, u64)> {
        let mut card = cards::existing(self.device).filter(|card| card.routings.is_empty())?;
        let total = card.pool.device_mut().memory().1;
        // Freeing memory cannot help a request that is larger than the card or its limit.
        if self.size > card.pool.limit().unwrap_or(total).min(total) {
            return None;
        }
        let (stats, stream) = (*card.pool.stats(), StreamHandle(self.stream as u64));
        let told = Pressure {
            device: self.device,
            requested: self.size,
            missing: card.pool.shortfall(self.size, stream, PoolKey(0, 0)),
            allocated: stats.allocated.current,
            reserved: stats.reserved.current,
            limit: card.pool.limit().unwrap_or(0),
        };
        Some((told, stats.allocations.total - stats.allocations.current))
    }

    /// Counts and records the failure, and describes it.
    fn look(&self, card: &mut Card, error: DeviceError) -> Seen {
        card.failed += 1;
        let seen = oom::look(card, (self.size, StreamHandle(self.stream as u64), self.pool), error);
        let free = seen.facts.free;
        if card::is_told() {
            card.tell_failure(free, self.size, self.stream, &self.caller());
        }
        seen
    }

    fn caller(&self) -> Caller<'_> {
        Caller { stack: self.stack.as_ref(), line: self.line, at_address: false, asks: true }
    }
}

/// The size from which PyTorch's own allocator refuses a tensor without looking at the card, and its message.
const EXABYTE: usize = 1 << 60;
const ABSURD: &str = "CUDA out of memory. Tried to allocate more than 1EB memory.";

/// [`request`] for a tensor. As in PyTorch, a size that no card has fails at once and is not counted as a failure.
///
/// # Safety
/// As [`request`].
#[inline]
pub unsafe fn request_for_tensor(size: usize, device: i32, stream: *mut c_void) -> *mut c_void {
    if size >= EXABYTE {
        // SAFETY: our caller lets exceptions pass, and no card is locked here.
        return unsafe { fail(Kind::OutOfMemory, ABSURD.to_owned()) };
    }
    // SAFETY: the contract of `request` is the same.
    unsafe { request(size, device, stream) }
}

/// The message of a failure of which nothing else is known.
const PLAIN: &str = "CUDA out of memory.";

fn explained(seen: Seen) -> String {
    guarded(PLAIN.to_owned(), || oom::explain(seen))
}

/// # Safety
/// As [`request`].
#[cold]
unsafe fn fail(kind: Kind, message: String) -> *mut c_void {
    set_error(&message);
    // SAFETY: our caller lets exceptions pass, and no card is locked here.
    unsafe { exception::throw(kind, message) };
    std::ptr::null_mut()
}

/// Gives memory back. `device` names the card; without it, every card that may own the address is tried. False if no
/// card has such an allocation.
///
/// # Safety
/// As [`request`].
#[inline]
pub unsafe fn give_back(pointer: *mut c_void, device: Option<i32>) -> bool {
    if pointer.is_null() || process::is_forked() {
        return true;
    }
    // SAFETY: our caller lets exceptions pass, and no card is locked here.
    let stack = if history::is_watched() { unsafe { history::stack(level::ALL) } } else { None };
    // Reported before the free: afterwards another thread may get the address and would report its allocation first.
    if traced::is_on() {
        traced::tell(traced::Event::Freed, pointer);
    }
    let given = given_back(pointer, device, stack.as_ref());
    // SAFETY: our caller lets exceptions pass; `given_back` has unlocked the card.
    unsafe { history::tell_trackers() };
    given
}

/// The part of [`give_back`] that cannot throw.
#[inline]
fn given_back(pointer: *mut c_void, device: Option<i32>, stack: Option<&Stack>) -> bool {
    let who = guarded(None, checked::who);
    guarded(true, || {
        let free_on = |device: i32| {
            let addr = pointer as u64;
            let is_recorded = recorder::is_on();
            let quick = |fronts: &gapless_pool::Fronts| {
                if !is_recorded {
                    return fronts.free(addr);
                }
                fronts.free_after(addr, |size, stream, pool| {
                    Flight::freed_at_front(device, Event { addr, size, stream, pool });
                })
            };
            if !history::is_watched() && who.is_none() && cards::fronts(device).is_some_and(quick) {
                return true;
            }
            let Some(mut card) = cards::existing(device) else { return false };
            checked::about_to_free(&mut card, addr, who.as_ref());
            if !card::is_told() {
                return card.free(addr);
            }
            card.free_told(addr, &Caller { stack, ..Caller::NOBODY })
        };
        if let Some(device) = device {
            let freed = free_on(device);
            if !freed {
                checked::not_there(pointer as u64, Some(device), who.as_ref());
            }
            return freed;
        }
        let is_freed = cards::cards_at(pointer as u64).any(free_on);
        if !is_freed {
            checked::not_there(pointer as u64, None, who.as_ref());
        }
        is_freed
    })
}

/// State of an address that another stream uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Used {
    Here,
    Nothing,
    /// The memory sleeps: no work can use it.
    Asleep,
}

/// Notes that `stream` uses the allocation at `addr`.
pub fn record_stream(addr: u64, stream: StreamHandle) -> Used {
    if process::is_forked() {
        return Used::Nothing;
    }
    let stream = StreamHandle(streams::named(stream.0));
    guarded(Used::Nothing, || {
        let is_at_front =
            |&card: &i32| cards::fronts(card).is_some_and(|fronts| fronts.record_stream(addr, stream));
        let mut found = cards::cards_at(addr).find(is_at_front);
        let mut is_asleep = false;
        if found.is_none() {
            cards::for_each_at(addr, |index, card| match card.pool.record_stream(addr, stream) {
                Ok(()) => found = Some(index),
                Err(FreeError::Asleep { .. }) => is_asleep = true,
                Err(_) => {}
            });
        }
        match found {
            Some(card) => {
                streams::note(card, stream.0);
                Used::Here
            }
            None if is_asleep => Used::Asleep,
            None => Used::Nothing,
        }
    })
}

/// The size of the allocation that begins at `addr`.
#[must_use]
pub fn size_at(addr: u64) -> Option<u64> {
    guarded(None, || {
        let mut found = None;
        cards::for_each_at(addr, |_, card| found = found.or_else(|| card.pool.containing(addr)));
        found.filter(|(base, _)| *base == addr).map(|(_, bytes)| bytes)
    })
}

/// The message if work would use memory that sleeps.
#[must_use]
pub fn asleep_text(addr: u64) -> String {
    format!(
        "the memory at {addr:#x} sleeps: wake its region (gapless.regions() lists them) before it is used"
    )
}
