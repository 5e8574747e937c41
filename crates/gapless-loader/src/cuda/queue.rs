//! Gives the work of a loading's threads to the card in batches.
//!
//! After each copy that the driver gets alone, the card pauses: for copies of 4 MiB that costs a tenth of the wire.
//! Between the copies of one batch it does not. While two batches are under way, orders of threads are collected for
//! the next one. This needs no thread of its own: each thread that hands over orders, or waits, gives the driver what
//! it can take. Kernels have a stream of their own, on which they follow the copies of their batch.

use super::chunk::Room;
use super::driver::{self, Attributes, Driver, Handle, NOT_READY};
use super::kept::STREAMS;
use crate::error::{LoadError, Result};
use crate::shared::locked;
use std::collections::VecDeque;
use std::ptr::null_mut;
use std::sync::Mutex;
use std::time::Duration;

/// Batches under way: when the card has done one, it continues with the other.
const UNDER_WAY: usize = 2;
/// Questions of a waiting thread before it begins to sleep, and its sleep between two questions.
const QUESTIONS: usize = 4;
const PAUSE: Duration = Duration::from_micros(20);

/// Bytes for the card to copy. They stay unchanged until the ticket is done.
#[derive(Clone, Copy, Debug)]
struct Copy {
    target: u64,
    from: *const u8,
    length: usize,
}

/// A card, which does the work.
pub(super) trait Engine {
    fn driver(&self) -> &Driver;
    /// For copies, and for kernels.
    fn streams(&self) -> [Handle; STREAMS];
    fn decode(&self, decode: &Decode, stream: Handle) -> Result<()>;
}

/// `count` chunks for the kernel, whose descriptors are at `chunks` on the card, with `room` in shared memory. The
/// kernel writes the number of a damaged chunk to `error`, a word of pinned memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Decode {
    pub(super) chunks: u64,
    pub(super) count: u32,
    pub(super) room: Room,
    pub(super) error: u64,
}

/// Orders that a thread hands over together: copies, and then kernels.
#[derive(Debug, Default)]
pub(super) struct Orders {
    copies: Vec<Copy>,
    decodes: Vec<Decode>,
}

impl Orders {
    /// # Safety
    /// The bytes must be pinned, and stay unchanged until the orders' ticket is done.
    pub(super) unsafe fn copy(&mut self, target: u64, from: *const u8, length: usize) {
        if length > 0 {
            self.copies.push(Copy { target, from, length });
        }
    }

    pub(super) fn decode(&mut self, decode: Decode) {
        self.decodes.push(decode);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.copies.is_empty() && self.decodes.is_empty()
    }
}

/// The queue of a loading. A ticket is the number of a thread's orders in the order of arrival, in which they are done.
#[derive(Debug)]
pub(super) struct Queue {
    /// One event is recorded after each batch under way, and the last one between a batch's copies and its kernels.
    events: [Handle; UNDER_WAY + 1],
    /// The most orders of a batch: so few that threads fill slots meanwhile.
    most: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Orders>,
    /// The last ticket of each batch, and its event.
    under_way: VecDeque<(u64, Handle)>,
    batches: usize,
    /// The last tickets that were handed over, given to the driver, and done.
    handed: u64,
    given: u64,
    done: u64,
    /// After an error nothing is given to the driver.
    failed: Option<(&'static str, String)>,
    has_no_batches: bool,
}

// SAFETY: the addresses are of pinned memory, which its threads leave unchanged until the driver has read it.
unsafe impl Send for State {}

impl Queue {
    pub(super) fn new(driver: &Driver, slots: usize) -> Result<Queue> {
        let mut queue = Queue {
            events: [null_mut(); UNDER_WAY + 1],
            most: (slots / (2 * UNDER_WAY)).max(1),
            state: Mutex::default(),
        };
        for at in 0..queue.events.len() {
            // SAFETY: a pointer to a field that lives through the call.
            let status = unsafe { (driver.event)(&raw mut queue.events[at], driver::UNTIMED) };
            if let Err(error) = driver.check("cuEventCreate", status) {
                queue.end(driver);
                return Err(error);
            }
        }
        Ok(queue)
    }

    /// Destroys the events. No thread may use the queue any more.
    pub(super) fn end(&mut self, driver: &Driver) {
        for event in &mut self.events {
            if !event.is_null() {
                // SAFETY: this queue made the event, and no thread uses it any more.
                unsafe { (driver.end_event)(*event) };
                *event = null_mut();
            }
        }
    }

    /// Takes a thread's orders and returns their ticket.
    pub(super) fn hand_over(&self, card: &impl Engine, orders: &mut Orders) -> Result<u64> {
        let mut state = locked(&self.state);
        state.waiting.push_back(std::mem::take(orders));
        state.handed += 1;
        let ticket = state.handed;
        self.advance(card, &mut state)?;
        Ok(ticket)
    }

    /// Waits until a ticket's orders are done.
    pub(super) fn wait(&self, card: &impl Engine, ticket: u64) -> Result<()> {
        for question in 0.. {
            {
                let mut state = locked(&self.state);
                if state.done >= ticket {
                    return Ok(());
                }
                self.advance(card, &mut state)?;
                if state.done >= ticket {
                    return Ok(());
                }
            }
            if question < QUESTIONS { std::thread::yield_now() } else { std::thread::sleep(PAUSE) }
        }
        Ok(())
    }

    /// Notes the batches that are done, and gives the driver the next ones. After an error nothing more is given, and
    /// every caller gets that error.
    fn advance(&self, card: &impl Engine, state: &mut State) -> Result<()> {
        if let Some((call, reason)) = &state.failed {
            return Err(LoadError::Cuda { call, reason: reason.clone() });
        }
        let result = self.try_to_advance(card, state);
        if let Err(error) = &result {
            state.waiting.clear();
            state.failed = Some(match error {
                LoadError::Cuda { call, reason } => (call, reason.clone()),
                other => ("the card", other.to_string()),
            });
        }
        result
    }

    fn try_to_advance(&self, card: &impl Engine, state: &mut State) -> Result<()> {
        while let Some((last, event)) = state.under_way.front() {
            // SAFETY: the event was recorded when its batch was given.
            match unsafe { (card.driver().event_query)(*event) } {
                NOT_READY => break,
                status => card.driver().check("cuEventQuery", status)?,
            }
            state.done = *last;
            state.under_way.pop_front();
        }
        while state.under_way.len() < UNDER_WAY && !state.waiting.is_empty() {
            let count = state.waiting.len().min(self.most);
            let orders: Vec<Orders> = state.waiting.drain(..count).collect();
            state.given += count as u64;
            let event = self.events[state.batches % UNDER_WAY];
            state.batches += 1;
            self.give(card, &orders, event, &mut state.has_no_batches)?;
            state.under_way.push_back((state.given, event));
        }
        Ok(())
    }

    /// Gives the driver a batch, and records `event` after it.
    fn give(
        &self,
        card: &impl Engine,
        orders: &[Orders],
        event: Handle,
        has_no_batches: &mut bool,
    ) -> Result<()> {
        let (driver, [copies, kernels], copied) = (card.driver(), card.streams(), self.events[UNDER_WAY]);
        copy(driver, orders.iter().flat_map(|orders| &orders.copies), copies, has_no_batches)?;
        let has_kernels = orders.iter().any(|orders| !orders.decodes.is_empty());
        if has_kernels {
            // SAFETY: this loading made the event and the streams, and they live until its threads have ended.
            unsafe {
                driver.check("cuEventRecord", (driver.record)(copied, copies))?;
                driver.check("cuStreamWaitEvent", (driver.stream_wait)(kernels, copied, 0))?;
            }
            orders.iter().flat_map(|orders| &orders.decodes).try_for_each(|it| card.decode(it, kernels))?;
        }
        let stream = if has_kernels { kernels } else { copies };
        // SAFETY: this loading made the event and the stream, and they live until its threads have ended.
        driver.check("cuEventRecord", unsafe { (driver.record)(event, stream) })
    }
}

/// Begins copies: all at once if the driver can (12.8 and later), else one by one.
fn copy<'a>(
    driver: &Driver,
    copies: impl Iterator<Item = &'a Copy> + Clone,
    stream: Handle,
    has_no_batches: &mut bool,
) -> Result<()> {
    if let Some(batch) = driver.batch
        && !*has_no_batches
        && copies.clone().nth(1).is_some()
    {
        let mut targets: Vec<u64> = copies.clone().map(|copy| copy.target).collect();
        let mut sources: Vec<u64> = copies.clone().map(|copy| copy.from as u64).collect();
        let mut lengths: Vec<usize> = copies.clone().map(|copy| copy.length).collect();
        let (mut attributes, mut first, mut failed) = (Attributes::in_turn(), 0, usize::MAX);
        // SAFETY: the lists have as many targets, sources and lengths as the call says, and one set of attributes for
        // all, from the first copy on. The ranges are those of the copies below.
        let status = unsafe {
            batch(
                targets.as_mut_ptr(),
                sources.as_mut_ptr(),
                lengths.as_mut_ptr(),
                targets.len(),
                &raw mut attributes,
                &raw mut first,
                1,
                &raw mut failed,
                stream,
            )
        };
        if status == 0 {
            return Ok(());
        }
        // A driver that refuses batches copies one by one; one that failed reports it again. Copying twice is harmless.
        *has_no_batches = true;
    }
    for copy in copies {
        // SAFETY: the bytes are pinned and unchanged (`Orders::copy`), and the target is as `Load::start` demands.
        let status = unsafe { (driver.to_card)(copy.target, copy.from.cast(), copy.length, stream) };
        driver.check("cuMemcpyHtoDAsync", status)?;
    }
    Ok(())
}
