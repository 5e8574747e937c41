//! A history in the order of births: positions between allocations instead of ticks, and the transient bytes at each.
//!
//! Position `i` is the instant right before allocation `i` is born, after all frees that precede it; position `n` is
//! the end. Counting births makes steps of one program equally long, whatever their shapes and segments.

use crate::events::Action;
use crate::history::History;
use crate::trace::DeviceTrace;
use crate::words::{EventIndex, Tick};

/// `deaths` has one entry an allocation, `transient` one a position: `transient.len() == deaths.len() + 1`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Curve {
    /// The first position at which the allocation is freed; [`Curve::NEVER`] if it lives for ever, or until the run is
    /// torn down.
    pub(crate) deaths: Vec<u32>,
    /// Bytes in use, at each position, of allocations that are freed some day.
    pub(crate) transient: Vec<u64>,
    /// The number of allocations born before each position that live for ever.
    pub(crate) permanent: Vec<u32>,
    /// The first position that is not before the recording: allocations below it were there already.
    pub(crate) first: u32,
}

impl Curve {
    pub(crate) const NEVER: u32 = u32::MAX;

    pub(crate) fn new(history: &History) -> Curve {
        let a = &history.allocations;
        let n = a.len();
        let last = history.last_tick.0;
        // births[t]: the number of allocations born at tick t or before, which is the position of tick t. Births are in
        // order, so that it is filled in stretches.
        let mut births: Vec<u32> = Vec::with_capacity(last as usize + 1);
        for (i, &start) in a.starts.iter().enumerate() {
            let from = (start.min(last) as usize).max(births.len());
            births.resize(from, i as u32);
        }
        births.resize(last as usize + 1, n as u32);
        // A run that ends in the recording frees its model behind the last birth. A block that clearly outlived all
        // blocks freed before stayed for the whole run all the same; any other is the last step's own.
        let last_birth = a.starts.last().copied().unwrap_or(0);
        let mut deaths: Vec<u32> = Vec::with_capacity(n);
        let mut longest = None;
        for (i, &freed) in (0u32..).zip(&a.freed) {
            let death = births.get(freed as usize).map_or(Curve::NEVER, |&death| death.max(i + 1));
            if freed <= last_birth {
                longest = longest.max(Some(death - i));
            }
            deaths.push(death);
        }
        let longest = longest.unwrap_or(u32::MAX);
        let torn_down = |i: usize| a.freed[i] > last_birth && (n - i) as u64 * 2 > u64::from(longest) * 3;
        let mut change = vec![0i64; n + 1];
        let mut permanent = vec![0u32; n + 1];
        for (i, death) in deaths.iter_mut().enumerate() {
            let size = a.blocks[i] as i64;
            let forever = *death == Curve::NEVER || torn_down(i);
            permanent[i + 1] = permanent[i] + u32::from(forever);
            if forever {
                *death = Curve::NEVER;
                continue;
            }
            change[i + 1] += size;
            change[*death as usize] -= size;
        }
        let mut now = 0i64;
        // In place of the changes.
        let transient = change
            .into_iter()
            .map(|c| {
                now += c;
                now.max(0) as u64
            })
            .collect();
        Curve { deaths, transient, permanent, first: history.preexisting.min(n as u32) }
    }

    pub(crate) fn end(&self) -> u32 {
        self.deaths.len() as u32
    }

    /// The tick of a position: before the device calls that serve the allocation born there.
    pub(crate) fn tick(&self, device: &DeviceTrace, history: &History, position: u32) -> Tick {
        let Some(&start) = history.allocations.starts.get(position as usize) else {
            return history.last_tick;
        };
        let mut tick = start.saturating_sub(1);
        while tick > 0 {
            match device.events.action(EventIndex(tick - 1)) {
                Action::SegmentAlloc | Action::SegmentFree | Action::SegmentMap | Action::SegmentUnmap => {
                    tick -= 1;
                }
                _ => break,
            }
        }
        Tick(tick)
    }

    /// The position of a tick: the first allocation born after it.
    pub(crate) fn position(history: &History, tick: Tick) -> u32 {
        history.allocations.starts.partition_point(|&s| s <= tick.0) as u32
    }

    /// The position with the fewest transient bytes in `from .. to`, the last of equals.
    pub(crate) fn lowest(&self, from: u32, to: u32) -> u32 {
        let mut best = from;
        for i in from..to.min(self.end() + 1) {
            if self.transient[i as usize] <= self.transient[best as usize] {
                best = i;
            }
        }
        best
    }

    /// Of the valleys in `from .. to` (as low as its lowest, within a fiftieth of the range) the nearest to `wish`, at
    /// its deepest.
    pub(crate) fn low_near(&self, from: u32, to: u32, wish: u32) -> u32 {
        let to = to.min(self.end() + 1);
        if from >= to {
            return wish.min(self.end());
        }
        let at = |i: u32| self.transient[i as usize];
        let window = &self.transient[from as usize..to as usize];
        let (low, high) = window.iter().fold((u64::MAX, 0), |(l, h), &t| (l.min(t), h.max(t)));
        let enough = low + (high - low) / 50;
        let nearest =
            (from..to).filter(|&i| at(i) <= enough).min_by_key(|&i| i.abs_diff(wish)).unwrap_or(from);
        let valley = (from..=nearest).rev().take_while(|&i| at(i) <= enough).last().unwrap_or(nearest);
        (valley..to)
            .take_while(|&i| at(i) <= enough)
            .min_by_key(|&i| (at(i), i.abs_diff(wish)))
            .unwrap_or(nearest)
    }
}
