//! A history that is rebuilt while the file of its events is still being read, by a thread of its own.
//!
//! Some things stand behind the events in a file, or follow from all of them: settings, kinds of events that are left
//! out, pools. The most common case is assumed. [`Ahead::history`] compares it with the actual one, and gives a history
//! only if [`History::rebuild`] would give the same. An event that contradicts the assumptions ends the following: the
//! caller then rebuilds the history from all events, and gets any error from there.

use super::{Heap, final_pools};
use crate::curve::{Curve, CurvePoint};
use crate::events::{Action, Events};
use crate::history::History;
use crate::initial;
use crate::mapped::LargeRanges;
use crate::sweep;
use crate::trace::{DeviceTrace, Source, Trace};
use crate::usage::Usage;
use crate::words::{Bytes, EventIndex, Tick};

/// Collects the events of a recording as they come, and rebuilds their history.
#[derive(Debug)]
pub struct Follower {
    /// Its events alone are in use.
    device: DeviceTrace,
    /// `None`: an event contradicts the assumptions.
    heap: Option<Heap<()>>,
}

impl Follower {
    /// A follower with room for about this many events.
    #[must_use]
    pub fn with_room_for(events: usize) -> Follower {
        let mut device = DeviceTrace::new(0);
        let source = Source { torch_rules: true, ..Source::default() };
        let trace = Trace { source, ..Trace::default() };
        let mut heap = Heap::new(&trace, &device);
        heap.ahead = true;
        heap.one_stream = true;
        heap.history.has_segments = true;
        // A block that is never freed ends past every tick, and the points of the curve are not known yet.
        heap.history.last_tick = Tick(u32::MAX - 1);
        heap.history.curve = Curve::without_points();
        // One allocation for each three events; the kernel does not back memory that is never used.
        heap.history.allocations.reserve(events / 3);
        let heap = heap.on(());
        device.events = Events::with_capacity(events);
        Follower { device, heap: Some(heap) }
    }

    /// Takes the next events out of `batch`.
    pub fn follow(&mut self, batch: &mut Events) {
        let from = self.device.events.len() as u32;
        self.device.events.append(batch);
        let Some(heap) = self.heap.take() else { return };
        let events = &self.device.events;
        let mut heap = heap.on(&self.device);
        if !events.has_one_stream() {
            if std::mem::take(&mut heap.one_stream) {
                heap.history.streams = vec![heap.history.usage];
            }
            let streams =
                (from..events.len() as u32).map(|i| events.stream(EventIndex(i))).max().unwrap_or(0);
            let known = heap.history.streams.len().max(usize::from(streams) + 1);
            heap.history.streams.resize(known, Usage::default());
        }
        if heap.go_through(from..events.len() as u32, false).is_ok() {
            self.heap = Some(heap.on(()));
        }
    }

    /// All events, and the history that the assumptions give.
    #[must_use]
    pub fn finish(self) -> (Events, Ahead) {
        (self.device.events, Ahead { heap: self.heap })
    }
}

/// The state of a [`Follower`] that has seen all events.
#[derive(Debug)]
pub struct Ahead {
    heap: Option<Heap<()>>,
}

impl Ahead {
    /// The history of `device`, which has the events that were followed and no others; `None` if one of the
    /// assumptions does not hold.
    pub(crate) fn history(self, trace: &Trace, device: &DeviceTrace) -> Option<History> {
        let heap = self.heap?.on(device);
        let events = &device.events;
        let large = LargeRanges::of(device, trace.source.is_gapless());
        let as_assumed = trace.source.torch_rules
            && heap.sizes_are_right(trace)
            && large.each_map_tells()
            && final_pools(device, &large).is_empty()
            // Else one free stands for both.
            && events.count(Action::FreeRequested) > 0
            && events.count(Action::FreeCompleted) > 0
            && heap.repairs.trimmed_blocks == 0
            && initial::final_state(device).is_ok()
            && heap.compare_with_final() == 0;
        as_assumed.then(|| heap.close())
    }
}

impl<D> Heap<D> {
    /// The same heap with another device.
    fn on<E>(self, device: E) -> Heap<E> {
        Heap {
            device,
            settings: self.settings,
            torch_rules: self.torch_rules,
            two_classes: self.two_classes,
            one_stream: self.one_stream,
            arena: self.arena,
            runs: self.runs,
            infos: self.infos,
            info_ids: self.info_ids,
            group_ids: self.group_ids,
            pieces: self.pieces,
            final_pools: self.final_pools,
            large: self.large,
            history: self.history,
            native_segments: self.native_segments,
            repairs: self.repairs,
            asked_whether_expandable: self.asked_whether_expandable,
            ahead: self.ahead,
        }
    }
}

impl Heap<&DeviceTrace> {
    /// True if blocks have the sizes that the settings of `trace` give them.
    fn sizes_are_right(&self, trace: &Trace) -> bool {
        let Some(settings) = &trace.settings else { return true };
        settings.max_split_size == self.settings.max_split_size
            && settings.roundup_power2_divisions.iter().all(|&divisions| divisions <= 1)
            && (settings.expandable_segments == self.settings.expandable_segments
                || !self.asked_whether_expandable)
    }

    /// Adds the number of events, which was not known while they came.
    fn close(mut self) -> History {
        let history = &mut self.history;
        let unknown = history.forever().0;
        history.last_tick = Tick(self.device.events.len() as u32);
        let forever = history.forever();
        for tick in history.allocations.freed.iter_mut().chain(&mut history.allocations.ends) {
            *tick = if *tick == unknown { forever.0 } else { *tick };
        }
        for span in history.segments.iter_mut().filter(|span| span.end.0 == unknown) {
            span.end = forever;
        }
        history.streams.resize(self.device.streams.len(), Usage::default());
        history.curve = curve_of(history);
        self.finish()
    }
}

/// The curve that all states of a history would have recorded.
fn curve_of(history: &History) -> Curve {
    let mut curve = Curve::for_ticks(history.last_tick);
    let stride = curve.stride();
    let maxima = |starts: &[u32], ends: &[u32], amounts: &[u64]| {
        let mut maxima: Vec<Bytes> = Vec::with_capacity(Curve::POINTS as usize);
        let (mut most, mut left) = (0, stride);
        sweep::levels(starts, ends, amounts, history.last_tick, |_, level| {
            most = most.max(level);
            left -= 1;
            if left == 0 {
                maxima.push(Bytes(most));
                (most, left) = (0, stride);
            }
        });
        if left < stride {
            maxima.push(Bytes(most));
        }
        maxima
    };
    let a = &history.allocations;
    let mut spans: Vec<_> = history.segments.iter().map(|s| (s.start.0, s.end.0, s.size.0)).collect();
    spans.sort_unstable();
    let (taken, (returned, sizes)): (Vec<_>, (Vec<_>, Vec<_>)) =
        spans.into_iter().map(|(start, end, size)| (start, (end, size))).unzip();
    // Independent passes: a second core halves their time.
    let ((allocated, active), (live, reserved)) = gapless_threads::both(
        "curve",
        || (maxima(&a.starts, &a.freed, &a.blocks), maxima(&a.starts, &a.ends, &a.blocks)),
        || (maxima(&a.starts, &a.freed, &a.requested), maxima(&taken, &returned, &sizes)),
    );
    for (i, tick) in (0..live.len()).zip((0..).step_by(stride as usize)) {
        curve.push(CurvePoint {
            tick: Tick(tick),
            live: live[i],
            allocated: allocated[i],
            active: active[i],
            reserved: reserved[i],
        });
    }
    curve
}

#[cfg(test)]
mod tests;
