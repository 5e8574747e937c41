//! The device's calls, each with the rules that apply to it.

use super::clock::Clock;
use super::streams::{OTHER_CONTEXT, OWN_CONTEXT};
use super::violation::Rule;
use super::world::{Event, PER_THREAD, World};
use gapless_pool::device::{Device, DeviceError, EventHandle, PageHandle, StreamHandle};
use gapless_pool::marks::{self, Calls};
use std::cell::RefCell;
use std::rc::Rc;

/// A driver's answer to a handle that it cannot use.
const INVALID_HANDLE: DeviceError = DeviceError::Driver(400);
const FAILED: DeviceError = DeviceError::Driver(999);
/// Its answer to a query of an event that a capture took in.
const CAPTURED_EVENT: DeviceError = DeviceError::Driver(1);

/// The allocator's view of a [`World`].
#[derive(Clone, Debug)]
pub struct TimedDevice(Rc<RefCell<World>>);

impl TimedDevice {
    pub(crate) fn new(world: Rc<RefCell<World>>) -> TimedDevice {
        TimedDevice(world)
    }
}

impl World {
    /// True if this call fails on purpose.
    pub(crate) fn fails(&mut self) -> bool {
        match &mut self.fail_in {
            None => false,
            Some(0) => {
                self.fail_in = None;
                self.counts.failures += 1;
                self.call.had_failure = true;
                true
            }
            Some(left) => {
                *left -= 1;
                false
            }
        }
    }

    /// Records an event on a stream, captured or not.
    fn record(&mut self, event: u64, handle: u64) -> Result<(), DeviceError> {
        self.enter();
        self.counts.records += 1;
        let Some(line) = self.line_of(handle) else {
            if !self.call.announced.contains(&handle) {
                self.broken((
                    Rule::DeadStream,
                    format!("an event is recorded on stream {handle}, which is gone"),
                ));
            }
            return Err(INVALID_HANDLE);
        };
        // Only this event covers a stream of another context.
        let is_ours = self.streams.line(line).context != OTHER_CONTEXT;
        if (is_ours && self.fails()) || handle == PER_THREAD {
            return Err(INVALID_HANDLE);
        }
        let capture = self.capture_of(line);
        self.counts.captured_records += u64::from(capture.is_some());
        let clock = self.streams.line(line).clock.clone();
        self.events.insert(event, Event { clock, capture });
        Ok(())
    }

    /// The clock of an event, for a query or a wait.
    pub(crate) fn clock_of(&mut self, event: EventHandle) -> Result<Clock, DeviceError> {
        self.enter();
        // A capture is not harmed by queries of events that are not its own (seen on an H200, in all three modes).
        match self.events.get(&event.0).cloned() {
            Some(Event { clock, capture: None }) => Ok(clock),
            Some(Event { capture: Some(capture), .. }) => {
                if self.is_open(capture) {
                    let text = format!("event {} is asked about, and belongs to an open capture", event.0);
                    self.broken((Rule::CaptureHarmed, text));
                }
                Err(CAPTURED_EVENT)
            }
            None => {
                self.broken((Rule::UnknownEvent, format!("event {} is not there", event.0)));
                Err(INVALID_HANDLE)
            }
        }
    }
}

/// One mark, call by call.
struct Mark<'a> {
    world: &'a mut World,
    event: u64,
    stream: u64,
}

impl Calls for Mark<'_> {
    fn record(&mut self) -> Result<(), DeviceError> {
        self.world.record(self.event, self.stream)
    }

    fn is_captured(&mut self) -> bool {
        self.world.enter();
        self.world.line_of(self.stream).is_some_and(|line| self.world.is_captured(line))
    }
}

impl Device for TimedDevice {
    fn reserve(&mut self, size: u64) -> Result<u64, DeviceError> {
        let mut world = self.0.borrow_mut();
        world.enter();
        if world.fails() {
            return Err(DeviceError::OutOfMemory);
        }
        let addr = world.memory.reserve(size);
        world.call.had_failure |= addr.is_none();
        world.counts.unreserved += u64::from(addr.is_none());
        addr.ok_or(DeviceError::OutOfMemory)
    }

    fn unreserve(&mut self, addr: u64, size: u64) {
        let mut world = self.0.borrow_mut();
        let result = world.memory.unreserve(addr, size);
        world.keeps(result);
    }

    fn create(&mut self, size: u64) -> Result<PageHandle, DeviceError> {
        let mut world = self.0.borrow_mut();
        world.enter();
        if world.fails() {
            return Err(DeviceError::OutOfMemory);
        }
        world.memory.create(size).map(PageHandle).ok_or(DeviceError::OutOfMemory)
    }

    fn release(&mut self, page: PageHandle, size: u64) {
        let world = &mut *self.0.borrow_mut();
        world.enter();
        let result = world.memory.release(page.0, size, &world.host);
        world.keeps(result);
    }

    fn map(&mut self, addr: u64, size: u64, page: PageHandle) -> Result<(), DeviceError> {
        let mut world = self.0.borrow_mut();
        world.enter();
        if world.fails() {
            return Err(FAILED);
        }
        let result = world.memory.map(addr, size, page.0);
        let is_mapped = result.is_ok() || matches!(result, Err((Rule::Addresses, _)));
        world.keeps(result);
        if is_mapped { Ok(()) } else { Err(FAILED) }
    }

    fn grant(&mut self, addr: u64, size: u64) -> Result<(), DeviceError> {
        let mut world = self.0.borrow_mut();
        world.enter();
        if world.fails() {
            return Err(FAILED);
        }
        let result = world.memory.grant(addr, size);
        world.keeps(result).ok_or(FAILED)
    }

    fn unmap(&mut self, addr: u64, size: u64) -> Result<(), DeviceError> {
        let world = &mut *self.0.borrow_mut();
        world.enter();
        if world.fails() {
            return Err(FAILED);
        }
        world.counts.unmaps += 1;
        let result = world.memory.unmap(addr, size, &world.host);
        let is_unmapped = !matches!(result, Err((Rule::BadRange, _)));
        world.keeps(result);
        if is_unmapped { Ok(()) } else { Err(FAILED) }
    }

    fn record(&mut self, stream: StreamHandle) -> Result<EventHandle, DeviceError> {
        let world = &mut *self.0.borrow_mut();
        world.next_event += 1;
        let event = world.next_event;
        match marks::mark(&mut Mark { world, event, stream: stream.0 }) {
            Ok(()) => Ok(EventHandle(event)),
            Err(error) => {
                world.events.remove(&event);
                Err(error)
            }
        }
    }

    fn is_done(&mut self, event: EventHandle) -> Result<bool, DeviceError> {
        let mut world = self.0.borrow_mut();
        let clock = world.clock_of(event)?;
        if world.fails() {
            return Err(FAILED);
        }
        let is_done = world.streams.is_done(&clock);
        if is_done {
            world.host.join(&clock);
        }
        Ok(is_done)
    }

    fn wait(&mut self, event: EventHandle) -> Result<(), DeviceError> {
        let mut world = self.0.borrow_mut();
        let clock = world.clock_of(event)?;
        world.counts.waits += 1;
        if world.capture.is_some() {
            world.broken((Rule::WaitInCapture, "the host waits during a capture".to_owned()));
        }
        if !world.streams.is_done(&clock) && !world.call.may_wait && !world.call.had_failure {
            world.broken((Rule::HostWait, "the host waits for streams".to_owned()));
        }
        if world.call.is_asking {
            world.broken((Rule::WaitLocked, "the pool waits, and not its caller".to_owned()));
        }
        if world.fails() {
            return Err(FAILED);
        }
        world.host_wait(&clock);
        Ok(())
    }

    fn wait_for_all(&mut self) -> Result<(), DeviceError> {
        let mut world = self.0.borrow_mut();
        world.enter();
        world.counts.waits += 1;
        if world.capture.is_some() {
            world.broken((Rule::WaitInCapture, "the host waits during a capture".to_owned()));
        }
        let clock = world.streams.all(OWN_CONTEXT);
        if !world.streams.is_done(&clock) && !world.call.may_wait && !world.call.had_failure {
            world.broken((Rule::HostWait, "the host waits for the card".to_owned()));
        }
        if world.call.is_asking {
            world.broken((Rule::WaitLocked, "the pool waits, and not its caller".to_owned()));
        }
        if world.fails() {
            return Err(FAILED);
        }
        world.host_wait(&clock);
        Ok(())
    }

    fn is_covered(&self, stream: StreamHandle) -> bool {
        let world = self.0.borrow();
        world.line_of(stream.0).is_none_or(|line| world.streams.line(line).context == OWN_CONTEXT)
    }

    fn is_shared(&self, page: PageHandle) -> bool {
        self.0.borrow().memory.is_exported(page.0)
    }

    fn discard(&mut self, event: EventHandle) {
        let mut world = self.0.borrow_mut();
        if world.events.remove(&event.0).is_none() {
            world.broken((Rule::UnknownEvent, format!("event {} is discarded and was not there", event.0)));
        }
    }

    fn memory(&mut self) -> (u64, u64) {
        let world = self.0.borrow();
        (world.memory.capacity - world.memory.used, world.memory.capacity)
    }
}
