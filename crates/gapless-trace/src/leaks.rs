//! Finds lines of a host recording that keep more and more memory, and lines that never freed theirs.
//!
//! A line grows if its allocations stay, all through the run and as fast at its end as before; or if its blocks replace
//! each other and become larger all the time, as those of a list do. A cache that fills and stops, a pool, a warm-up
//! and a buffer that replaces the one before do not grow. The recording is a sample, so every figure has an error; but
//! a line kept memory in any case, because each sample was a block.

mod course;

use crate::naming::Names;
use crate::stacks::{FrameId, StackId};
use crate::trace::{HostSample, SampledBlock, Trace};
use crate::words::{Bytes, Micros};
use rustc_hash::FxHashMap;

pub use course::Course;

/// Estimated bytes of a group of sampled blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Estimate {
    pub bytes: Bytes,
    /// The variance of `bytes`.
    variance: f64,
    /// Sampled blocks.
    pub samples: usize,
}

impl Estimate {
    fn add(&mut self, block: &SampledBlock) {
        self.bytes += block.estimate;
        self.variance += block.variance;
        self.samples += 1;
    }

    /// Two standard errors: the true number is within this of `bytes` in 95 of 100 recordings.
    #[must_use]
    pub fn error(&self) -> Bytes {
        Bytes((2.0 * self.variance.sqrt()) as u64)
    }
}

/// The blocks of one line.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// The stack of most of its bytes.
    pub stack: StackId,
    pub label: String,
    pub kept: Estimate,
    /// Times of the first and the last of their allocations.
    pub first: Micros,
    pub last: Micros,
}

/// A line that keeps more and more.
#[derive(Clone, Debug, PartialEq)]
pub struct Growing {
    pub line: Line,
    /// Bytes a step if the program marked its steps, else bytes a second.
    pub rate: f64,
}

/// Samples that are needed to speak of growth; blocks that are all recorded need fewer.
const SAMPLES: usize = 5;
const EXACT_SAMPLES: usize = 4;
/// The least growth that is reported.
const LEAST: u64 = 64 << 10;
/// A line that begins behind this part of the course is not judged.
const LATEST: f64 = 0.7;
/// Instants at which the bytes of a line are compared.
const POINTS: usize = 8;

/// Place of a lasting block's birth in the course, by the bytes allocated until then, and by time.
#[derive(Clone, Copy)]
struct Birth {
    /// By steps if there are some, else by bytes: pauses of the program, or a busy machine, do not stretch it.
    at: f64,
    time: f64,
    /// Estimated bytes: counts would not do, since the interval between samples changes.
    bytes: f64,
}

/// One line while it is gathered.
#[derive(Default)]
struct Group {
    kept: Estimate,
    births: Vec<Birth>,
    /// True if every block of it was recorded.
    is_exact: bool,
    /// Estimated bytes at each instant, and the variance of the change since the one before.
    levels: [f64; POINTS],
    changes: [f64; POINTS],
    by_stack: FxHashMap<StackId, u64>,
    first: Option<Micros>,
    last: Micros,
}

impl Group {
    fn keep(&mut self, block: &SampledBlock) {
        self.kept.add(block);
        *self.by_stack.entry(block.stack).or_default() += block.estimate.0;
        self.first.get_or_insert(block.born);
        self.last = self.last.max(block.born);
    }

    fn line(&self, names: &Names<'_>) -> Line {
        let most = self.by_stack.iter().max_by_key(|(stack, bytes)| (**bytes, std::cmp::Reverse(stack.0)));
        let stack = most.map_or(StackId::NONE, |(stack, _)| *stack);
        let label = names.label(stack).map_or_else(|| "(no stack)".to_owned(), |label| label.text);
        let first = self.first.unwrap_or_default();
        Line { stack, label, kept: self.kept, first, last: self.last }
    }

    fn grows(&self) -> bool {
        let count = self.births.len();
        let needed = if self.is_exact { EXACT_SAMPLES } else { SAMPLES };
        let rise = self.levels[POINTS - 1] - self.levels[0];
        if count < needed || rise < LEAST as f64 {
            return false;
        }
        // From the line's beginning: the run before it may be long.
        let begin = self.births.iter().map(|birth| birth.at).fold(1.0, f64::min);
        if begin > LATEST {
            return false;
        }
        let times = || self.births.iter().map(|birth| birth.time);
        let (first, last) = (times().fold(1.0, f64::min), times().fold(0.0, f64::max));
        // It goes on until the end, and is no burst.
        if last < 0.75 || last - first < 0.2 {
            return false;
        }
        // The births must raise the level, not replace frees: since the course began, since the line did, and in its
        // second half. In a full cache the oldest entries are younger than the course.
        let begun = point_behind(first);
        if ![0, begun, begun.max(POINTS / 2)].into_iter().all(|point| self.rises_from(point)) {
            return false;
        }
        let within = |at: f64| (at - begin) / (1.0 - begin);
        let share = |from: f64| {
            let later = self.births.iter().filter(|birth| within(birth.at) > from);
            let later: f64 = later.map(|birth| birth.bytes).sum();
            later / self.kept.bytes.0 as f64
        };
        // As fast at the end as before, but for chance, which is large with few births: the births in the second half
        // and in the last quarter by three standard errors, and the mean of all births by 2.3.
        let count = self.effective();
        let even = |part: f64| part - 3.0 * (part * (1.0 - part) / count).sqrt();
        let sum: f64 = self.births.iter().map(|birth| within(birth.at) * birth.bytes).sum();
        let mean = sum / self.kept.bytes.0 as f64;
        // A line that kept more before the course than in it has slowed down already: perhaps it fills.
        let (allowed, least) = if self.levels[0] > rise { (1.0, 0.42) } else { (2.3, 0.36) };
        mean > (0.5 - allowed / (12.0 * count).sqrt()).min(least)
            && share(0.5) > even(0.5).min(0.28)
            && share(0.75) > even(0.25).min(0.12)
            && self.widest_gap(begin) <= 0.45 * (1.0 - begin)
    }

    /// The number of births of one weight that would be as uncertain as these.
    fn effective(&self) -> f64 {
        let sum: f64 = self.births.iter().map(|birth| birth.bytes).sum();
        let squares: f64 = self.births.iter().map(|birth| birth.bytes * birth.bytes).sum();
        sum * sum / squares.max(1.0)
    }

    /// True if the level rose since this instant by most of the bytes that were born since and stay, so that they do
    /// not only replace freed ones.
    fn rises_from(&self, point: usize) -> bool {
        let since = point as f64 / (POINTS - 1) as f64;
        let later = self.births.iter().filter(|birth| birth.time > since);
        let born: f64 = later.map(|birth| birth.bytes).sum();
        self.levels[POINTS - 1] - self.levels[point] >= 0.67 * born
    }

    /// Counts a block at the instants at which it is there.
    fn level(&mut self, block: &SampledBlock, points: &[Micros; POINTS]) {
        let is_at = |time: &Micros| block.born <= *time && block.died.is_none_or(|died| died > *time);
        let mut before = points.first().is_some_and(is_at);
        for (at, time) in points.iter().enumerate() {
            let now = is_at(time);
            self.levels[at] += if now { block.estimate.0 as f64 } else { 0.0 };
            self.changes[at] += if now != before { block.variance } else { 0.0 };
            before = now;
        }
    }

    /// True if its blocks replace each other by larger ones, all the time.
    fn swells(&self) -> bool {
        let (first, last) = (self.levels[0], self.levels[POINTS - 1]);
        let rises = |at: &usize| {
            let by = self.levels[*at] - self.levels[at - 1];
            by > 0.01 * last && by > 2.0 * self.changes[*at].sqrt()
        };
        let falls = |at: usize| self.levels[at - 1] - self.levels[at] > 0.01 * last;
        let risen = (1..POINTS).filter(rises).count();
        let late = last - self.levels[POINTS - 3];
        let chance = 2.0 * (self.changes[POINTS - 2] + self.changes[POINTS - 1]).sqrt();
        last - first >= LEAST as f64
            && last >= 1.3 * first
            && risen + 2 >= POINTS - 1
            // As fast at the end as before: a table that fills is not.
            && late > 0.12 * (last - first) + chance
            && (POINTS - 2..POINTS).any(|at| rises(&at))
            && !(1..POINTS).any(falls)
    }

    fn widest_gap(&self, begin: f64) -> f64 {
        let mut all = vec![begin, 1.0];
        all.extend(self.births.iter().map(|birth| birth.at.clamp(0.0, 1.0)));
        all.sort_by(f64::total_cmp);
        all.windows(2).map(|pair| pair[1] - pair[0]).fold(0.0, f64::max)
    }
}

/// The first instant that is not before this time of the course, and has others behind it.
fn point_behind(time: f64) -> usize {
    let at = (time * (POINTS - 1) as f64).ceil();
    (at.max(0.0) as usize).min(POINTS - 2)
}

/// The lines that keep more and more, the most bytes first, with their rates.
#[must_use]
pub fn growing(trace: &Trace, sample: &HostSample) -> Vec<Growing> {
    let Some(course) = Course::of(trace, sample) else { return Vec::new() };
    let names = Names::of(trace);
    let mut keys = Keys::new(&names);
    let mut groups: FxHashMap<Vec<FrameId>, Group> = FxHashMap::default();
    let points = course.points();
    let within = |block: &&SampledBlock| block.born > course.from && block.born <= course.to;
    let total: f64 = sample.blocks.iter().filter(within).map(|block| block.estimate.0 as f64).sum();
    let mut allocated = 0.0;
    for block in sample.blocks.iter().filter(|block| block.born <= course.to) {
        allocated += if block.born > course.from { block.estimate.0 as f64 } else { 0.0 };
        if block.died.is_some_and(|died| died <= course.from) {
            continue;
        }
        let group = groups
            .entry(keys.of(block.stack).clone())
            .or_insert_with(|| Group { is_exact: true, ..Group::default() });
        group.level(block, &points);
        let stays = block.died.is_none_or(|died| died > course.to);
        if stays && block.born > course.from {
            group.is_exact &= block.variance == 0.0;
            let time = course.at(block.born);
            let at = if course.has_steps() { time } else { allocated / total };
            group.births.push(Birth { at, time, bytes: block.estimate.0 as f64 });
            group.keep(block);
        }
    }
    let mut found: Vec<Growing> = groups
        .values()
        .filter(|group| group.kept.samples > 0 && (group.grows() || group.swells()))
        .map(|group| Growing {
            line: group.line(&names),
            rate: (group.levels[POINTS - 1] - group.levels[0]).max(0.0) / course.length(),
        })
        .collect();
    found.sort_by(|a, b| order(&a.line, &b.line));
    found
}

/// The lines whose blocks were never freed, the most bytes first.
#[must_use]
pub fn never_freed(trace: &Trace, sample: &HostSample) -> Vec<Line> {
    lines(trace, sample.blocks.iter().filter(|block| block.died.is_none()))
}

/// The lines that hold memory at `time`, the most bytes first.
#[must_use]
pub fn holders(trace: &Trace, sample: &HostSample, time: Micros) -> Vec<Line> {
    let is_live = |block: &&SampledBlock| block.born <= time && block.died.is_none_or(|died| died > time);
    lines(trace, sample.blocks.iter().filter(is_live))
}

/// All that is live at `time`.
#[must_use]
pub fn live_at(sample: &HostSample, time: Micros) -> Estimate {
    let mut sum = Estimate::default();
    let is_live = |block: &&SampledBlock| block.born <= time && block.died.is_none_or(|died| died > time);
    sample.blocks.iter().filter(is_live).for_each(|block| sum.add(block));
    sum
}

fn lines<'a>(trace: &Trace, blocks: impl Iterator<Item = &'a SampledBlock>) -> Vec<Line> {
    let names = Names::of(trace);
    let mut keys = Keys::new(&names);
    let mut groups: FxHashMap<Vec<FrameId>, Group> = FxHashMap::default();
    for block in blocks {
        groups.entry(keys.of(block.stack).clone()).or_default().keep(block);
    }
    let mut found: Vec<Line> = groups.values().map(|group| group.line(&names)).collect();
    found.sort_by(order);
    found
}

fn order(a: &Line, b: &Line) -> std::cmp::Ordering {
    b.kept.bytes.cmp(&a.kept.bytes).then_with(|| a.label.cmp(&b.label)).then(a.stack.0.cmp(&b.stack.0))
}

/// The frames that name each stack: stacks of one name are one line.
struct Keys<'a> {
    names: &'a Names<'a>,
    known: FxHashMap<StackId, Vec<FrameId>>,
}

impl<'a> Keys<'a> {
    fn new(names: &'a Names<'a>) -> Keys<'a> {
        Keys { names, known: FxHashMap::default() }
    }

    fn of(&mut self, stack: StackId) -> &Vec<FrameId> {
        self.known.entry(stack).or_insert_with(|| self.names.parts(stack))
    }
}

#[cfg(test)]
mod tests;
