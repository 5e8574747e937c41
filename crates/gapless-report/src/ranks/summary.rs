//! The summary of one device of one rank: enough to compare it with its peers, and of bounded size.
//!
//! Comparisons use requested bytes, because block sizes also depend on the blocks that happened to be free. The
//! figures that a user sees (peaks) are those of the single report, to the byte.

use super::cut::{Cut, lasts};
use super::held::{Held, held};
use super::robust::median;
use super::sizes::{self, BySize};
use super::stretches::{self, Pieces};
use crate::analysis::{Analysis, DeviceAnalysis};
use crate::assemble;
use crate::model::{KindBytes, OomInfo, Settings, When};
use gapless_trace::kinds::Kind;
use gapless_trace::steps::{StepEvidence, Steps};
use gapless_trace::{Action, Allocation, Tick, Trace};
use rustc_hash::FxHashMap;

/// The most step rows and large requests that are kept of a device.
const STEPS: usize = 1024;
const LARGEST: usize = 64;
/// The last step reaches into the end of the program if live bytes fall below this share of earlier steps' minimum.
const TORN_DOWN: f64 = 0.95;
/// A recording began late if more than one in so many bytes of the peak were there before.
const LITTLE: u64 = 50;
/// Ranks agree on an inferred step if its beginnings lie no further apart than this part of a step.
const APART: f64 = 0.3;
/// Parts that a run without steps is cut into.
const PARTS: usize = 32;
/// Rows of peaks: long enough that a rank that is a little ahead does not matter.
const ROWS: u64 = 4;

/// The part of a run that a recording has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Seen {
    #[default]
    FromItsStart,
    /// It began when memory was in use already.
    Later,
    /// Only the memory that is in use at the end.
    TheEnd,
}

/// One device of one rank.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    pub device: u32,
    pub(crate) seen: Seen,
    pub events: u64,
    pub allocations: u64,
    pub duration_us: Option<u64>,
    pub peak_allocated: u64,
    pub peak_live: u64,
    /// `None` if the source has no segments.
    pub peak_reserved: Option<u64>,
    pub fragmentation: Option<f64>,
    pub allocated_at: When,
    pub reserved_at: When,
    pub growth_per_step: Option<f64>,
    pub kinds: KindBytes,
    /// The largest holders at peak allocated, as the single report lists them.
    pub top: Vec<(String, u64)>,
    pub steps: Vec<StepRow>,
    pub step_count: u64,
    /// In place of steps, if none were found: equal parts of the run.
    pub(crate) parts: Vec<StepRow>,
    pub curve: Vec<Point>,
    pub settings: Option<Settings>,
    /// True if memory was mapped into expandable segments, by its events.
    pub expandable_seen: bool,
    pub ooms: Vec<OomInfo>,
    /// The moment of the first of them.
    pub(crate) oom_at: Option<When>,
    /// Parts that the reader or the rebuilding repaired or left out.
    pub notes: Vec<String>,
    /// The most that each origin held, by stack.
    pub(crate) held: Vec<Held>,
    /// The same by the size of the requests, for peers that were recorded otherwise; empty if `held` has sizes.
    pub(crate) held_by_size: Vec<Held>,
    /// By steps: bytes born up to the end of each step (row 0: before the first) and live when the last one ends.
    pub(crate) kept_by_step: Vec<u64>,
    /// The same by equal parts of the run's events, at a quiet instant near its end.
    pub(crate) kept_by_part: Vec<u64>,
    /// The beginning of each of these parts.
    pub(crate) parts_at: Vec<When>,
    /// The most transient bytes: peak live bytes less those that are kept.
    pub(crate) swing: u64,
    /// Memory that is there from before the first step until the end, by size.
    pub(crate) base: BySize,
    /// All that is there at the quiet instant and lasts, by size.
    pub(crate) kept: BySize,
    /// Optimizer state at the quiet instant.
    pub(crate) trained: u64,
    /// The largest requests that came and went within the step that needed most.
    pub(crate) largest: Vec<u64>,
    /// True if steps were inferred and not annotated.
    pub(crate) inferred: bool,
    /// The same device cut into parts instead of inferred steps, for runs whose ranks do not agree on their steps.
    pub(crate) without_steps: Option<Box<Summary>>,
    /// Sizes of requests over the run.
    pub(crate) pieces: Pieces,
}

/// A step, or as many as it takes to keep the rows bounded.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepRow {
    /// The number of the first one.
    pub step: u32,
    /// When it begins.
    pub(crate) start: When,
    /// The most live bytes, and when that was.
    pub peak: u64,
    pub peak_at: When,
    /// Live bytes at the end.
    pub end: u64,
    /// The fewest live bytes. Transient bytes count from here, so that memory that the first step makes and keeps
    /// does not count, nor does the place where an inferred step ends.
    pub(crate) low: u64,
    pub duration_us: Option<f64>,
}

impl StepRow {
    pub(crate) fn swing(&self) -> u64 {
        self.peak.saturating_sub(self.low)
    }
}

/// The most within a stretch of the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Point {
    pub tick: u32,
    pub time_us: Option<u64>,
    pub allocated: u64,
    pub reserved: u64,
}

impl Summary {
    /// Every device of `analysis` that has allocations, or all if none has.
    #[must_use]
    pub fn of(analysis: &Analysis<'_>) -> Vec<Summary> {
        let busy = |d: &&DeviceAnalysis<'_>| !d.history.allocations.is_empty();
        let any = analysis.devices.iter().any(|d| busy(&d));
        analysis.devices.iter().filter(|d| !any || busy(d)).map(|d| device(analysis, d)).collect()
    }

    /// Its steps, or parts of the run in their place.
    pub(crate) fn rows(&self) -> &[StepRow] {
        if self.steps.is_empty() { &self.parts } else { &self.steps }
    }

    /// The same without its inferred steps.
    fn without_steps(&self) -> Summary {
        let Some(without) = &self.without_steps else { return self.clone() };
        let without = without.as_ref().clone();
        Summary {
            parts: without.parts,
            steps: without.steps,
            held: without.held,
            held_by_size: without.held_by_size,
            kept_by_step: without.kept_by_step,
            swing: without.swing,
            kept_by_part: without.kept_by_part,
            parts_at: without.parts_at,
            base: without.base,
            kept: without.kept,
            trained: without.trained,
            largest: without.largest,
            without_steps: None,
            ..self.clone()
        }
    }

    /// The peak by which ranks are ordered: reserved bytes, or allocated ones if those are not known.
    #[must_use]
    pub fn peak(&self) -> u64 {
        self.peak_reserved.unwrap_or(self.peak_allocated)
    }
}

/// The summaries to compare, in place of `ranks`: without inferred steps if ranks do not agree on them; `None` if
/// they agree. A rank that ended early has fewer steps and does not count.
pub(crate) fn comparable(ranks: &[&Summary]) -> Option<Vec<Summary>> {
    let whole: Vec<&&Summary> = ranks.iter().filter(|rank| rank.inferred && rank.ooms.is_empty()).collect();
    let count = whole.first()?.step_count;
    let place = |rank: &Summary, step: usize| {
        f64::from(rank.steps[step].start.tick) / rank.events.max(1) as f64 * rank.steps.len() as f64
    };
    let apart = |step: usize| {
        let places: Vec<f64> = whole.iter().map(|rank| place(rank, step)).collect();
        let typical = median(&places);
        places.iter().any(|place| (place - typical).abs() > APART)
    };
    let agree = whole.iter().all(|rank| rank.step_count == count) && !(0..whole[0].steps.len()).any(apart);
    (!agree).then(|| ranks.iter().map(|rank| rank.without_steps()).collect())
}

fn device(analysis: &Analysis<'_>, d: &DeviceAnalysis<'_>) -> Summary {
    let trace = analysis.trace;
    let (history, events) = (&d.history, &d.device.events);
    let usage = &history.usage;
    let time = |tick: Tick| assemble::when(d, tick).time_us;
    let curve = history.curve.points.iter().map(|p| Point {
        tick: p.tick.0,
        time_us: time(p.tick),
        allocated: p.allocated.0,
        reserved: p.reserved.0,
    });
    let inferred = matches!(d.steps.evidence, StepEvidence::None | StepEvidence::Recurring { .. });
    let none = Steps { spans: Vec::new(), unfinished: None, evidence: StepEvidence::None, ..d.steps };
    let without = || Box::new(cut(trace, &Cut { d, steps: &none }));
    let notes = assemble::origin(analysis, "").1.notes;
    let before =
        history.allocations.iter().filter(|a| a.start == Tick(0)).map(|a| a.requested.0).sum::<u64>();
    Summary {
        device: d.device.device,
        seen: if events.is_empty() {
            Seen::TheEnd
        } else if before > usage.live.peak.0 / LITTLE {
            Seen::Later
        } else {
            Seen::FromItsStart
        },
        events: events.len() as u64,
        allocations: events.count(Action::Alloc) as u64,
        duration_us: time(history.last_tick),
        peak_allocated: usage.allocated.peak.0,
        peak_live: usage.live.peak.0,
        peak_reserved: history.has_segments.then_some(usage.reserved.peak.0),
        fragmentation: usage.fragmentation().filter(|_| !events.is_empty()),
        allocated_at: assemble::when(d, usage.allocated.peak_at),
        reserved_at: assemble::when(d, usage.reserved.peak_at),
        growth_per_step: d.growth.as_ref().map(|g| g.slope),
        kinds: assemble::kinds_at(d, usage.allocated.peak_at),
        top: assemble::holder_rows(trace, d, usage.allocated.peak_at, 3)
            .into_iter()
            .map(|h| (h.label, h.bytes))
            .collect(),
        step_count: d.steps.spans.len() as u64,
        curve: curve.collect(),
        settings: trace.settings.as_ref().map(assemble::settings),
        expandable_seen: history.segments.iter().any(|s| s.expandable),
        oom_at: assemble::ooms(d).first().map(|oom| assemble::when(d, Tick(oom.tick))),
        ooms: assemble::ooms(d),
        notes: notes
            .into_iter()
            .filter(|note| note.device.is_none_or(|device| device == d.device.device))
            .map(|note| note.text)
            .collect(),
        // Allocations from before the recording have no request in it.
        pieces: stretches::pieces(
            history.allocations.iter().filter(|a| a.start > Tick(0)).map(|a| a.requested.0),
        ),
        inferred,
        without_steps: (inferred && !d.steps.spans.is_empty()).then(without),
        ..cut(trace, &Cut { d, steps: &d.steps })
    }
}

/// The members of a summary that depend on the steps; the others are empty.
fn cut(trace: &Trace, d: &Cut<'_, '_>) -> Summary {
    let live = Live::new(d);
    let quiet = live.quiet();
    let steps = steps(d, &live);
    let kept_by_part = kept_by_part(d, quiet);
    let [held, held_by_size] = held(trace, d);
    Summary {
        parts: if steps.is_empty() { parts(&live, &kept_by_part) } else { Vec::new() },
        steps: fold(steps),
        held,
        held_by_size,
        kept_by_step: kept_by_step(d, quiet),
        swing: d.history.usage.live.peak.0.saturating_sub(kept_by_part.last().copied().unwrap_or(0)),
        kept_by_part,
        parts_at: parts_at(d, quiet),
        base: base(d, quiet),
        kept: by_size(d, quiet, |_| true),
        trained: trained(d, quiet),
        largest: largest(d, &live),
        ..Summary::default()
    }
}

/// Live bytes at every tick.
struct Live<'a, 't> {
    d: &'a Cut<'a, 't>,
    levels: Vec<u64>,
}

impl<'a, 't> Live<'a, 't> {
    fn new(d: &'a Cut<'a, 't>) -> Live<'a, 't> {
        let mut change = vec![0i64; d.history.last_tick.0 as usize + 2];
        for a in d.history.allocations.iter() {
            change[a.start.0 as usize] += a.requested.0 as i64;
            change[a.freed.0 as usize] -= a.requested.0 as i64;
        }
        let mut now = 0i64;
        let level = |by: &i64| {
            now += by;
            now.max(0) as u64
        };
        Live { d, levels: change.iter().map(level).collect() }
    }

    fn at(&self, tick: Tick) -> u64 {
        self.levels.get(tick.0 as usize).copied().unwrap_or(0)
    }

    /// The most from `start` to before `end`, and the first tick of it.
    fn most(&self, start: Tick, end: Tick) -> (u64, Tick) {
        let (mut most, mut at) = (0, start);
        for tick in start.0..end.0.max(start.0 + 1) {
            let level = self.at(Tick(tick));
            if level > most {
                (most, at) = (level, Tick(tick));
            }
        }
        (most, at)
    }

    fn least(&self, start: Tick, end: Tick) -> u64 {
        (start.0..end.0.max(start.0 + 1)).map(|tick| self.at(Tick(tick))).min().unwrap_or(0)
    }

    /// The last step that ends before the program frees its memory, and the least that is live in it. The last of all
    /// may reach into the end of the program, where the model is freed.
    fn last_whole(&self) -> Option<(usize, u64)> {
        let spans = &self.d.steps.spans;
        let low = |at: usize| self.least(spans[at].start, spans[at].end);
        let last = spans.len().checked_sub(1)?;
        if last < 2 {
            return Some((last, low(last)));
        }
        let (before, least) = (low(last - 1), low(last));
        let is_torn_down = (least as f64) < TORN_DOWN * before as f64;
        Some(if is_torn_down { (last - 1, before) } else { (last, least) })
    }

    /// An instant near the end at which little is transient: the end of the last whole step, or else the instant of
    /// fewest live bytes between 72 and 97 % of the run. The very end is left out: a program may free all it has there.
    fn quiet(&self) -> Tick {
        if let Some((step, _)) = self.last_whole() {
            return Tick(self.d.steps.spans[step].end.0.min(self.d.history.last_tick.0));
        }
        let last = u64::from(self.d.history.last_tick.0);
        let (from, to) = ((last * 72 / 100) as u32, (last * 97 / 100) as u32);
        let least = (from..=to.max(from)).min_by_key(|&tick| self.at(Tick(tick)));
        Tick(least.unwrap_or(last as u32))
    }
}

fn steps(d: &Cut<'_, '_>, live: &Live<'_, '_>) -> Vec<StepRow> {
    let spans = &d.steps.spans;
    let time = |tick: Tick| assemble::when(d, tick).time_us;
    let whole = live.last_whole();
    let row = |(i, span): (usize, &gapless_trace::steps::StepSpan)| {
        let (peak, at) = live.most(span.start, span.end);
        let end = live.at(Tick(span.end.0.saturating_sub(1)));
        // A step lasts until the next one begins, if that follows at once: waiting for data is part of a step.
        let until = match spans.get(i + 1) {
            Some(next) if next.start == span.end => next.start,
            _ => Tick(span.end.0.saturating_sub(1)),
        };
        StepRow {
            step: i as u32,
            start: assemble::when(d, span.start),
            peak,
            peak_at: assemble::when(d, at),
            end,
            low: match whole {
                // Memory that the program frees at its end is not transient.
                Some((last, low)) if i > last => low,
                _ => live.least(span.start, span.end),
            },
            duration_us: time(until).zip(time(span.start)).map(|(a, b)| a.saturating_sub(b) as f64),
        }
    };
    spans.iter().enumerate().map(row).collect()
}

fn parts(live: &Live<'_, '_>, kept: &[u64]) -> Vec<StepRow> {
    let last = u64::from(live.d.history.last_tick.0);
    let kept = kept.last().copied().unwrap_or(0);
    let row = |part: u64| {
        let (start, end) = (part * last / ROWS, (part + 1) * last / ROWS);
        let (peak, at) = live.most(Tick(start as u32), Tick(end as u32));
        StepRow {
            step: part as u32,
            start: assemble::when(live.d, Tick(start as u32)),
            peak,
            peak_at: assemble::when(live.d, at),
            end: kept,
            low: kept,
            duration_us: None,
        }
    };
    (0..ROWS).map(row).collect()
}

/// At most [`STEPS`] rows: the highest peak, the last end and the mean duration of the steps that share a row.
fn fold(rows: Vec<StepRow>) -> Vec<StepRow> {
    let each = rows.len().div_ceil(STEPS).max(1);
    let joined = |rows: &[StepRow]| {
        let first_highest = rows.iter().rev().max_by_key(|row| row.peak).copied().unwrap_or_default();
        let durations: Vec<f64> = rows.iter().filter_map(|row| row.duration_us).collect();
        StepRow {
            step: rows.first().map_or(0, |row| row.step),
            start: rows.first().map(|row| row.start).unwrap_or_default(),
            end: rows.last().map_or(0, |row| row.end),
            low: first_highest.low,
            duration_us: (!durations.is_empty())
                .then(|| durations.iter().sum::<f64>() / durations.len() as f64),
            ..first_highest
        }
    };
    rows.chunks(each).map(joined).collect()
}

/// Sums up to each part.
fn running(parts: Vec<u64>) -> Vec<u64> {
    let mut sum = 0;
    let add = |part: u64| {
        sum += part;
        sum
    };
    parts.into_iter().map(add).collect()
}

fn kept_by_step(d: &Cut<'_, '_>, end: Tick) -> Vec<u64> {
    let spans = &d.steps.spans;
    if spans.is_empty() {
        return Vec::new();
    }
    let rows = spans.len().min(STEPS);
    let mut parts = vec![0; rows + 1];
    for id in d.history.allocations.active_at(end) {
        let a = d.history.allocations.get(id);
        // Allocations between two steps count to the one before.
        let part = spans.partition_point(|span| span.start <= a.start);
        let part = if part == 0 { 0 } else { (part - 1) * rows / spans.len() + 1 };
        parts[part] += a.requested.0;
    }
    running(parts)
}

fn kept_by_part(d: &Cut<'_, '_>, quiet: Tick) -> Vec<u64> {
    let mut parts = vec![0; PARTS];
    let length = u64::from(quiet.0) + 1;
    for id in d.history.allocations.active_at(quiet) {
        let a = d.history.allocations.get(id);
        // Without steps, every instant has transient memory, so only lasting allocations count.
        if d.steps.spans.is_empty() && !lasts(d, &a) {
            continue;
        }
        parts[(u64::from(a.start.0) * PARTS as u64 / length) as usize] += a.requested.0;
    }
    running(parts)
}

fn parts_at(d: &Cut<'_, '_>, quiet: Tick) -> Vec<When> {
    let begins = |part: usize| (part as u64 * (u64::from(quiet.0) + 1)).div_ceil(PARTS as u64) as u32;
    (0..PARTS).map(|part| assemble::when(d, Tick(begins(part)))).collect()
}

fn base(d: &Cut<'_, '_>, quiet: Tick) -> BySize {
    let first = d.steps.spans.first().map_or(quiet, |span| span.start);
    by_size(d, quiet, |a| a.start <= first)
}

/// Lasting allocations at the quiet instant that are `wanted`.
fn by_size(d: &Cut<'_, '_>, quiet: Tick, wanted: impl Fn(&Allocation) -> bool) -> BySize {
    let mut classes: FxHashMap<u16, u64> = FxHashMap::default();
    for id in d.history.allocations.active_at(quiet) {
        let a = d.history.allocations.get(id);
        if wanted(&a) && lasts(d, &a) {
            *classes.entry(sizes::class(a.requested.0)).or_default() += a.requested.0;
        }
    }
    let mut sizes: BySize = classes.into_iter().collect();
    sizes.sort_unstable();
    sizes
}

fn trained(d: &Cut<'_, '_>, quiet: Tick) -> u64 {
    let a = &d.history.allocations;
    let state = a.active_at(quiet).filter(|&id| d.kinds.of(id) == Kind::OptimizerState);
    state.map(|id| a.get(id).requested.0).sum()
}

fn largest(d: &Cut<'_, '_>, live: &Live<'_, '_>) -> Vec<u64> {
    let swing = |span: &&gapless_trace::steps::StepSpan| {
        live.most(span.start, span.end).0.saturating_sub(live.at(Tick(span.end.0.saturating_sub(1))))
    };
    let heaviest = d.steps.spans.iter().rev().max_by_key(swing);
    let (from, to) = heaviest.map_or((Tick(0), d.history.forever()), |span| (span.start, span.end));
    let a = &d.history.allocations;
    let born = a.born_before(from)..a.born_before(to);
    let mut requests: Vec<u64> = born
        .map(|i| a.get(gapless_trace::AllocationId(i as u32)))
        .filter(|a| !lasts(d, a))
        .map(|a| a.requested.0)
        .collect();
    requests.sort_unstable_by(|x, y| y.cmp(x));
    requests.truncate(LARGEST);
    requests
}
