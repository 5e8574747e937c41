//! What a request and a free do, whichever way PyTorch came: through the plain hooks or the overlay.
//!
//! What is recorded is told under the lock that orders it: of the lane, or of the card. Filters of routings are asked,
//! and stacks for a history or a recording gathered, before the card is locked; trackers, handlers and observers of
//! failures are called after: all of them may throw, or take Python's lock. [`plain`] is the same for callers that
//! nothing may be thrown at.

pub mod plain;

use crate::budgets;
use crate::checked;
use crate::checked::place::Place;
use crate::exception::{self, Kind};
use crate::foreign;
use crate::history::{self, level};
use crate::hooks::{guarded, set_error};
use crate::oom::{self, Seen};
use crate::pressure::{self, Pressure};
use crate::quota::admission;
use crate::recorder::{self, Flight};
use crate::regions;
use crate::routing;
use crate::sharing;
use crate::state::{self, Card};
use crate::suppliers::{self, Refused};
use crate::traced;
use crate::watcher::{Caller, Event, Stack};
use gapless_cuda::streams;
use gapless_pool::{AllocError, Device, DeviceError, FreeError, PoolKey, Refusal, StreamHandle};
use std::ffi::c_void;

/// A request that failed.
enum Failure {
    OutOfMemory(DeviceError),
    /// Found by checked mode, or a supplier's mistake.
    Wrong(String),
    Other(String),
}

impl Failure {
    /// What checked mode found, where another failure is about to be told.
    fn put_off(&self) {
        if let Failure::Wrong(found) = self {
            checked::put_off(found.clone());
        }
    }
}

/// What is asked for, and by whom.
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

/// Memory for `size` bytes, null for none. Throws where there is no memory.
///
/// # Safety
/// Called from C++ that may be thrown through.
#[inline]
pub unsafe fn request(size: usize, device: i32, stream: *mut c_void) -> *mut c_void {
    if size == 0 {
        return std::ptr::null_mut();
    }
    if history::is_watched() || checked::is_on() || traced::is_on() {
        // SAFETY: as the caller says.
        return unsafe { watched_request(size, device, stream) };
    }
    let line = if recorder::is_on() { guarded(0, recorder::stack) } else { 0 };
    if !streams::has_context() {
        streams::bind(device);
    }
    let handle = stream;
    let stream = streams::named(handle as u64) as *mut c_void;
    // SAFETY: as the caller says.
    let for_torch = unsafe { regions::is_for_torch(size) };
    if !for_torch && let Some(addr) = from_front(size as u64, device, stream, regions::current(), line) {
        return addr as *mut c_void;
    }
    // SAFETY: as the caller says.
    unsafe {
        let pool = routing::pool_of(device, handle);
        let pool = if for_torch { regions::exempt::pool_for(pool) } else { pool };
        Request { size: size as u64, device, stream, pool, stack: None, line, who: None }.serve()
    }
}

/// Memory of the stream's own front, without the card's lock, where it has some.
#[inline]
fn from_front(size: u64, device: i32, stream: *mut c_void, pool: PoolKey, line: u32) -> Option<u64> {
    if state::is_forked() {
        return None;
    }
    let is_recorded = recorder::is_on();
    let budget = budgets::open_on(device);
    guarded(None, || {
        let (fronts, stream) = (state::fronts(device)?, StreamHandle(stream as u64));
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
    // SAFETY: as the caller says.
    unsafe {
        let for_torch = regions::is_for_torch(size);
        let pool = routing::pool_of(device, stream);
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
        // Who registers segments of private pools has done so when they are used.
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

/// Memory for `size` bytes at `address`, of what this stream has free. Throws where it is not free.
///
/// # Safety
/// Called from C++ that may be thrown through.
pub unsafe fn request_at(size: usize, device: i32, stream: *mut c_void, address: *mut c_void) -> *mut c_void {
    // SAFETY: as the caller says.
    unsafe {
        let pool = routing::pool_of(device, stream);
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
            if state::is_told() {
                card.tell_alloc(addr, &Caller { stack: stack.as_ref(), line, at_address: true, asks: true });
            }
            Ok(())
        };
        let placed = guarded(inside(), || {
            state::with_card(device, place).unwrap_or_else(|error| Err(format!("gapless: {error}")))
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
    /// Serves it from the whole card.
    ///
    /// # Safety
    /// Called from C++ that may be thrown through.
    unsafe fn serve(self) -> *mut c_void {
        // SAFETY: as the caller says.
        match unsafe { self.prepared() } {
            Ok(addr) => addr as *mut c_void,
            // SAFETY: as the caller says.
            Err(Failure::OutOfMemory(error)) => unsafe { self.refused(error) },
            // SAFETY: as the caller says.
            Err(Failure::Other(message)) => unsafe { fail(Kind::OutOfMemory, message) },
            Err(Failure::Wrong(message)) => {
                drop(self);
                // SAFETY: as the caller says.
                unsafe { fail(Kind::Error, message) }
            }
        }
    }

    /// [`Request::attempt`], after the pool's own supplier gave what is missing.
    ///
    /// # Safety
    /// As [`Request::serve`].
    unsafe fn prepared(&self) -> Result<u64, Failure> {
        if suppliers::is_used() {
            let stream = StreamHandle(self.stream as u64);
            // SAFETY: as the caller says; no card is locked.
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
        // SAFETY: as the caller says; no card is locked.
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
            let attempt = |card: &mut Card| {
                let addr = card
                    .alloc(self.size, self.stream, self.pool, budgets::open_on(self.device))
                    .map_err(|AllocError::OutOfMemory { device, .. }| Failure::OutOfMemory(device))?;
                checked::handed_out(card, addr, self.who.as_ref()).map_err(Failure::Wrong)?;
                if state::is_told() {
                    card.tell_alloc(addr, &self.caller());
                }
                streams::bind(self.device);
                Ok(addr)
            };
            state::with_card(self.device, attempt)
                .unwrap_or_else(|error| Err(Failure::Other(error.to_string())))
        })
    }

    /// The card has nothing: the program's handlers are asked, and then it fails.
    ///
    /// # Safety
    /// As [`Request::serve`].
    #[cold]
    unsafe fn refused(self, error: DeviceError) -> *mut c_void {
        // SAFETY: as the caller says.
        let again = || unsafe { self.prepared() }.inspect_err(Failure::put_off).ok();
        // SAFETY: as the caller says; no card is locked.
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
                // SAFETY: as the caller says; no card is locked.
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
        // SAFETY: as the caller says.
        unsafe { fail(Kind::OutOfMemory, message) }
    }

    /// # Safety
    /// As [`Request::serve`]; no card is locked.
    unsafe fn tell_profiler(&self, seen: &Seen) {
        // SAFETY: as the caller says.
        let Some(torch) = foreign::torch().filter(|torch| unsafe { torch.is_profiling() }) else { return };
        // SAFETY: as the caller says.
        unsafe {
            torch.report_failure(self.size, seen.facts.allocated, seen.facts.reserved, self.device as i8)
        };
    }

    /// Asks the program's handlers until `again` has something; and how many were asked.
    fn ask_handlers(&self, again: impl FnMut() -> Option<u64>) -> (Option<u64>, usize) {
        let (served, handlers) = pressure::ask(|| guarded(None, || self.pressure()), again);
        if served.is_some() {
            guarded((), || {
                let _ = state::with_card(self.device, |card| card.helped += 1);
            });
        }
        (served, handlers)
    }

    /// The card at the moment of the failure, which is counted and recorded.
    fn seen(&self, error: DeviceError, handlers: usize) -> Option<Seen> {
        // So that who holds what is known up to now.
        guarded((), || drop(recorder::catch_up()));
        let mut seen = guarded(None, || state::with_card(self.device, |card| self.look(card, error)).ok())?;
        seen.facts.handlers = handlers;
        Some(seen)
    }

    /// What a handler is told, and how many frees there were; `None`: none may be asked now.
    fn pressure(&self) -> Option<(Pressure, u64)> {
        let mut card = state::existing(self.device).filter(|card| card.routings.is_empty())?;
        let total = card.pool.device_mut().memory().1;
        // No help is enough for what does not fit at all.
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

    /// The failure as it is told, recorded, and left behind.
    fn look(&self, card: &mut Card, error: DeviceError) -> Seen {
        card.failed += 1;
        let seen = oom::look(card, (self.size, StreamHandle(self.stream as u64), self.pool), error);
        let free = seen.facts.free;
        if state::is_told() {
            card.tell_failure(free, self.size, self.stream, &self.caller());
        }
        seen
    }

    fn caller(&self) -> Caller<'_> {
        Caller { stack: self.stack.as_ref(), line: self.line, at_address: false, asks: true }
    }
}

/// A tensor's size that PyTorch's own allocator refuses without a look at the card, and what it says then.
const EXABYTE: usize = 1 << 60;
const ABSURD: &str = "CUDA out of memory. Tried to allocate more than 1EB memory.";

/// [`request`] for a tensor: a size that no card can have is refused at once, and counts for nothing.
///
/// # Safety
/// As [`request`].
#[inline]
pub unsafe fn request_for_tensor(size: usize, device: i32, stream: *mut c_void) -> *mut c_void {
    if size >= EXABYTE {
        // SAFETY: as the caller says.
        return unsafe { fail(Kind::OutOfMemory, ABSURD.to_owned()) };
    }
    // SAFETY: as the caller says.
    unsafe { request(size, device, stream) }
}

/// What a failure says where nothing more is known.
const PLAIN: &str = "CUDA out of memory.";

fn explained(seen: Seen) -> String {
    guarded(PLAIN.to_owned(), || oom::explain(seen))
}

/// # Safety
/// Called where C++ may be thrown through.
#[cold]
unsafe fn fail(kind: Kind, message: String) -> *mut c_void {
    set_error(&message);
    // SAFETY: as the caller says.
    unsafe { exception::throw(kind, message) };
    std::ptr::null_mut()
}

/// Gives memory back; of the card `device`, or of whichever has it. Whether there was something to give back.
///
/// # Safety
/// Called from C++ that may be thrown through.
#[inline]
pub unsafe fn give_back(pointer: *mut c_void, device: Option<i32>) -> bool {
    if pointer.is_null() || state::is_forked() {
        return true;
    }
    // SAFETY: as the caller says.
    let stack = if history::is_watched() { unsafe { history::stack(level::ALL) } } else { None };
    // Before it is free: another thread may get the address, and would be told first.
    if traced::is_on() {
        traced::tell(traced::Event::Freed, pointer);
    }
    let given = given_back(pointer, device, stack.as_ref());
    // SAFETY: as the caller says.
    unsafe { history::tell_trackers() };
    given
}

/// [`give_back`] without what may throw.
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
            if !history::is_watched() && who.is_none() && state::fronts(device).is_some_and(quick) {
                return true;
            }
            let Some(mut card) = state::existing(device) else { return false };
            checked::about_to_free(&mut card, addr, who.as_ref());
            if !state::is_told() {
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
        let is_freed = state::cards_at(pointer as u64).any(free_on);
        if !is_freed {
            checked::not_there(pointer as u64, None, who.as_ref());
        }
        is_freed
    })
}

/// What is at an address that another stream uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Used {
    Here,
    Nothing,
    /// It sleeps: no work can use it.
    Asleep,
}

/// Another stream uses what is at `addr`.
pub fn record_stream(addr: u64, stream: StreamHandle) -> Used {
    if state::is_forked() {
        return Used::Nothing;
    }
    let stream = StreamHandle(streams::named(stream.0));
    guarded(Used::Nothing, || {
        let is_at_front =
            |&card: &i32| state::fronts(card).is_some_and(|fronts| fronts.record_stream(addr, stream));
        let mut found = state::cards_at(addr).find(is_at_front);
        let mut is_asleep = false;
        if found.is_none() {
            state::for_each_at(addr, |index, card| match card.pool.record_stream(addr, stream) {
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

/// What is said where work would use memory that sleeps.
#[must_use]
pub fn asleep_text(addr: u64) -> String {
    format!(
        "the memory at {addr:#x} sleeps: wake its region (gapless.regions() lists them) before it is used"
    )
}
