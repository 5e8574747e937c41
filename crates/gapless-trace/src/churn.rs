//! Activity of the allocator: allocations, calls to the device, flushes of the cache, requests that failed.
//!
//! A retry is not recorded as such. It shows as memory given back to the device inside a request, right before memory
//! is taken from the device (or the request fails): the cache was flushed to serve it. The user's own `empty_cache`,
//! and that of a graph capture, looks alike but comes from another stack, or some time before, or while the device had
//! room: at another moment of the run more was held than this request would have needed without the flush.

use crate::events::Action;
use crate::history::History;
use crate::steps::Steps;
use crate::trace::DeviceTrace;
use crate::words::{Bytes, EventIndex, Micros, Tick};

/// A flush and the call after it are one request if they are no further apart than this and stacks do not decide.
const SAME_REQUEST: Micros = Micros(20_000);

/// Activity of the allocator on one device.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Churn {
    pub allocations: usize,
    /// From the first event to the last; `None` without a clock.
    pub duration: Option<Micros>,
    /// Allocations a second; `None` without a clock.
    pub per_second: Option<f64>,
    /// Allocations in a typical step: the median; `None` without steps.
    pub per_step: Option<usize>,
    pub device_calls: DeviceCalls,
    /// Calls after the second step, which a steady run should not need. `None` with fewer than three steps.
    pub steady_calls: Option<DeviceCalls>,
    /// Flushes of the cache to serve a request, in order.
    pub retries: Vec<Retry>,
    pub ooms: Vec<Oom>,
}

/// Calls that take memory from the device or give it back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceCalls {
    pub taken: usize,
    pub given_back: usize,
    pub bytes_taken: Bytes,
    pub bytes_given_back: Bytes,
    /// The ticks after the first and the last of them.
    pub first: Option<Tick>,
    pub last: Option<Tick>,
}

/// The cache was flushed to serve a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    /// After the flush.
    pub tick: Tick,
    /// Bytes given back to the device, and the number of calls.
    pub flushed: Bytes,
    pub calls: usize,
    /// Bytes that were then taken from the device, or refused.
    pub wanted: Bytes,
    pub served: bool,
}

/// A request that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Oom {
    pub tick: Tick,
    /// Bytes of the request, rounded as the allocator rounds.
    pub asked: Bytes,
    /// Bytes that the device had free.
    pub device_free: Bytes,
}

impl DeviceCalls {
    #[must_use]
    pub fn total(&self) -> usize {
        self.taken + self.given_back
    }

    fn add(&mut self, action: Action, size: Bytes, tick: Tick) {
        if matches!(action, Action::SegmentAlloc | Action::SegmentMap) {
            self.taken += 1;
            self.bytes_taken += size;
        } else {
            self.given_back += 1;
            self.bytes_given_back += size;
        }
        self.first.get_or_insert(tick);
        self.last = Some(tick);
    }
}

/// Counts the actions of the allocator on `device`.
#[must_use]
pub fn measure(device: &DeviceTrace, history: &History, steps: &Steps) -> Churn {
    let events = &device.events;
    let mut churn = Churn { allocations: events.count(Action::Alloc), ..Churn::default() };
    if events.has_times() && !events.is_empty() {
        let duration = events.time_at(history.last_tick).since(events.time(EventIndex(0)));
        churn.duration = Some(duration);
        churn.per_second = (duration.0 > 0).then(|| churn.allocations as f64 / duration.as_secs_f64());
    }
    churn.per_step = per_step(history, steps);
    let steady_from = steps.spans.get(2).map(|span| span.start);
    let mut steady = DeviceCalls::default();
    // A run of frees that may belong to a request: calls, bytes, and the last one's position.
    let mut flush: Option<(usize, Bytes, EventIndex)> = None;
    // The held bytes, from those at the beginning, and the most; and the bytes that each retry would have come to
    // without its flush.
    let (mut held, mut most) = (0_i64, 0_i64);
    let mut unflushed: Vec<i64> = Vec::new();
    let actions = events.actions();
    let mut next = 0;
    while let Some(skipped) = position_of_rare(&actions[next..]) {
        // Waiting for other streams is part of a flush; any other action of the program ends it.
        let between = &actions[next..next + skipped];
        if flush.is_some() && between.iter().any(|&action| action != Action::FreeCompleted as u8) {
            flush = None;
        }
        let index = EventIndex((next + skipped) as u32);
        next += skipped + 1;
        let action = events.action(index);
        match action {
            Action::Alloc | Action::FreeRequested | Action::FreeCompleted => {}
            Action::Snapshot => flush = None,
            Action::SegmentFree | Action::SegmentUnmap => {
                let (calls, bytes, _) = flush.unwrap_or((0, Bytes::ZERO, index));
                flush = Some((calls + 1, bytes + events.size(index), index));
            }
            Action::SegmentAlloc | Action::SegmentMap | Action::Oom => {
                let request = flush.take().filter(|&(_, _, at)| same_request(device, at, index));
                if let Some((calls, flushed, at)) = request {
                    let served = action != Action::Oom;
                    let wanted = events.size(index);
                    churn.retries.push(Retry { tick: at.after(), flushed, calls, wanted, served });
                    let needed = held.saturating_add_unsigned(flushed.0).saturating_add_unsigned(wanted.0);
                    unflushed.push(if served { needed } else { i64::MAX });
                }
            }
        }
        match action {
            Action::SegmentAlloc | Action::SegmentMap | Action::SegmentFree | Action::SegmentUnmap => {
                churn.device_calls.add(action, events.size(index), index.after());
                let size = events.size(index).0;
                held = match action {
                    Action::SegmentAlloc | Action::SegmentMap => held.saturating_add_unsigned(size),
                    _ => held.saturating_sub_unsigned(size),
                };
                most = most.max(held);
                if steady_from.is_some_and(|from| index.after() > from) {
                    steady.add(action, events.size(index), index.after());
                }
            }
            Action::Oom => churn.ooms.push(Oom {
                tick: index.after(),
                asked: events.size(index),
                device_free: Bytes(events.addr(index).0),
            }),
            _ => {}
        }
    }
    let mut had_room = unflushed.into_iter().map(|needed| needed <= most);
    churn.retries.retain(|_| had_room.next() == Some(false));
    churn.steady_calls = steady_from.map(|_| steady);
    churn
}

/// Position of the first action that is no allocation and no free: hardly one in a hundred is.
fn position_of_rare(actions: &[u8]) -> Option<usize> {
    const RARE: u8 = Action::SegmentAlloc as u8;
    const PIECE: usize = 64;
    // A whole piece is tested without a branch, many actions at a time.
    let common = |piece: &&[u8]| piece.iter().fold(0, |most, &action| most.max(action)) < RARE;
    let skipped = actions.chunks(PIECE).take_while(common).count() * PIECE;
    let rest = actions.get(skipped..)?;
    rest.iter().position(|&action| action >= RARE).map(|at| skipped + at)
}

/// True if a flush and the call after it serve one request.
fn same_request(device: &DeviceTrace, flush: EventIndex, next: EventIndex) -> bool {
    let events = &device.events;
    let (a, b) = (events.stack(flush), events.stack(next));
    if !a.is_none() && !b.is_none() {
        return a == b;
    }
    !events.has_times() || events.time(next).since(events.time(flush)) <= SAME_REQUEST
}

fn per_step(history: &History, steps: &Steps) -> Option<usize> {
    let starts = &history.allocations.starts;
    let born = |tick: Tick| starts.partition_point(|&s| s <= tick.0);
    let mut counts: Vec<usize> = steps.spans.iter().map(|s| born(s.end) - born(s.start)).collect();
    counts.sort_unstable();
    counts.get(counts.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::steps;
    use crate::testing::{Run, Training};
    use crate::trace::Trace;

    fn churn_of(run: Run) -> (Trace, Churn) {
        let (trace, history) = run.finish();
        let steps = steps::detect(&trace, &trace.devices[0], &history);
        let churn = measure(&trace.devices[0], &history, &steps);
        (trace, churn)
    }

    /// A request that flushes two cached segments to get a third, and one that fails.
    fn flushing(run: &mut Run, pause: bool) {
        for i in 0..2 {
            run.push(Action::SegmentAlloc, 0x1000_0000 * (i + 1), 1 << 20);
        }
        for i in 0..2 {
            run.push(Action::SegmentFree, 0x1000_0000 * (i + 1), 1 << 20);
        }
        if pause {
            run.push(Action::Snapshot, 0, 0);
        }
        run.push(Action::SegmentAlloc, 0x5000_0000, 3 << 20);
        run.push(Action::Alloc, 0x5000_0000, 3 << 20);
        run.push(Action::Oom, 7 << 20, 9 << 20);
    }

    #[test]
    fn a_flush_inside_a_request_is_a_retry() {
        let mut run = Run::new();
        flushing(&mut run, false);
        let (_, churn) = churn_of(run);
        let retry =
            Retry { tick: Tick(4), flushed: Bytes(2 << 20), calls: 2, wanted: Bytes(3 << 20), served: true };
        assert_eq!(churn.retries, [retry]);
        let oom = Oom { tick: Tick(7), asked: Bytes(9 << 20), device_free: Bytes(7 << 20) };
        assert_eq!(churn.ooms, [oom]);
        assert_eq!((churn.device_calls.taken, churn.device_calls.given_back), (3, 2));
        assert_eq!(churn.device_calls.bytes_taken, Bytes(5 << 20));
        assert_eq!(churn.device_calls.last, Some(Tick(5)));
        assert_eq!(churn.steady_calls, None);
    }

    #[test]
    fn a_flush_that_something_separates_from_the_request_is_the_users() {
        let mut run = Run::new();
        flushing(&mut run, true);
        assert_eq!(churn_of(run).1.retries, []);
        let mut run = Run::new();
        run.set_stack(&[("empty_cache", "torch/cuda/memory.py", 1), ("clean", "train.py", 5)]);
        run.push(Action::SegmentAlloc, 0x1000_0000, 1 << 20);
        run.push(Action::SegmentFree, 0x1000_0000, 1 << 20);
        run.set_stack(&[("forward", "model.py", 9)]);
        run.push(Action::SegmentAlloc, 0x1000_0000, 1 << 20);
        assert_eq!(churn_of(run).1.retries, []);
    }

    #[test]
    fn a_flush_where_the_device_had_room_is_nobodys_need() {
        let mut run = Run::new();
        flushing(&mut run, false);
        // 2 MiB were held before the flush and 3 were wanted: later 5 are held, so there was room.
        run.push(Action::SegmentAlloc, 0x6000_0000, 2 << 20);
        assert_eq!(churn_of(run).1.retries, []);
        let mut run = Run::new();
        flushing(&mut run, false);
        run.push(Action::SegmentAlloc, 0x6000_0000, (2 << 20) - 512);
        assert_eq!(churn_of(run).1.retries.len(), 1);
    }

    #[test]
    fn rates_are_per_second_and_per_step() {
        let mut run = Run::new();
        Training { annotate: true, ..Training::default() }.run(&mut run);
        let (trace, churn) = churn_of(run);
        let events = trace.devices[0].events.len();
        assert_eq!(churn.duration, Some(Micros(10 * (events as u64 - 1))));
        let rate = churn.per_second.expect("a clock");
        assert!((rate - churn.allocations as f64 / (1e-5 * (events as f64 - 1.0))).abs() < 1e-6);
        assert_eq!(churn.per_step, Some(89));
        assert_eq!(churn.device_calls, DeviceCalls::default());
        assert_eq!(churn.steady_calls, Some(DeviceCalls::default()));
        assert_eq!((churn.retries.len(), churn.ooms.len()), (0, 0));
    }
}
