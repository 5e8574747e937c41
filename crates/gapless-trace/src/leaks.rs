//! Which lines of a host recording keep more and more memory, and which never freed theirs.
//!
//! A line grows if what it allocates stays, all through the run and as fast at its end as before; or if its blocks
//! replace each other and become larger all the time, as those of a list do. A cache that fills and stops, a pool, a
//! warm-up and a buffer that replaces the one before do not. The recording is a sample, so every figure has an error;
//! what a line kept is real in any case, because each sample was a block.

use crate::naming::Names;
use crate::stacks::{FrameId, StackId};
use crate::trace::{HostSample, SampledBlock, Trace};
use crate::words::{Bytes, Micros};
use rustc_hash::FxHashMap;

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

    /// Two standard errors: the truth lies within this of `bytes` in 95 of 100 recordings.
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
    /// When the first and the last of them were allocated.
    pub first: Micros,
    pub last: Micros,
}

/// A line that keeps more and more.
#[derive(Clone, Debug, PartialEq)]
pub struct Growing {
    pub line: Line,
    /// Bytes a step where the program told its steps, else bytes a second.
    pub rate: f64,
}

/// Samples that are needed to speak of growth; blocks that are all recorded need fewer.
const SAMPLES: usize = 5;
const EXACT_SAMPLES: usize = 4;
/// Growth that is worth a word.
const LEAST: u64 = 64 << 10;
/// A line that begins behind this part of the course is not judged.
const LATEST: f64 = 0.7;
/// Instants at which the bytes of a line are compared.
const POINTS: usize = 8;
/// Steps after the first that are needed to measure in steps.
const STEPS: usize = 5;

/// The part of a run in which growth is looked for, and where in it an instant lies.
#[derive(Clone, Debug)]
pub struct Course {
    from: Micros,
    to: Micros,
    /// Beginnings of steps in it; empty: time counts.
    steps: Vec<Micros>,
}

impl Course {
    /// Without the beginning, in which everything grows, and without the end, in which a program frees what it has.
    #[must_use]
    pub fn of(sample: &HostSample) -> Option<Course> {
        if sample.steps.len() > STEPS {
            let steps = sample.steps[1..].to_vec();
            let (from, to) = (*steps.first()?, *steps.last()?);
            return Some(Course { from, to, steps });
        }
        let (first, last) = (sample.blocks.first()?.born, sample.blocks.last()?.born);
        let length = last.since(first).0;
        let course = Course {
            from: Micros(first.0 + length / 4),
            to: Micros(first.0 + length / 100 * 95 + length % 100),
            steps: Vec::new(),
        };
        (course.from < course.to).then_some(course)
    }

    /// From 0 to 1.
    fn at(&self, time: Micros) -> f64 {
        if self.steps.is_empty() {
            return time.since(self.from).0 as f64 / self.to.since(self.from).0.max(1) as f64;
        }
        let step = self.steps.partition_point(|start| *start <= time);
        step as f64 / self.steps.len() as f64
    }

    /// Instants in it, evenly.
    fn points(&self) -> [Micros; POINTS] {
        std::array::from_fn(|at| {
            if self.steps.is_empty() {
                let length = u128::from(self.to.since(self.from).0);
                Micros(self.from.0 + (length * at as u128 / (POINTS as u128 - 1)) as u64)
            } else {
                self.steps[(self.steps.len() - 1) * at / (POINTS - 1)]
            }
        })
    }

    /// Steps, or seconds.
    fn length(&self) -> f64 {
        if self.steps.is_empty() {
            self.to.since(self.from).as_secs_f64().max(1e-6)
        } else {
            (self.steps.len() - 1).max(1) as f64
        }
    }

    /// Whether the rate is of steps.
    #[must_use]
    pub fn has_steps(&self) -> bool {
        !self.steps.is_empty()
    }
}

/// Where a block that stays was born: in the course by what was allocated until then, and by time.
#[derive(Clone, Copy)]
struct Birth {
    /// By steps where there are some. Else by bytes: a program that waits, or a machine that is busy, does not stretch
    /// it.
    at: f64,
    time: f64,
    /// Counts would not do: the interval between samples changes.
    bytes: f64,
}

/// One line while it is gathered.
#[derive(Default)]
struct Group {
    kept: Estimate,
    /// Blocks from before that went meanwhile.
    gone: u64,
    births: Vec<Birth>,
    /// Whether every block of it was recorded.
    is_exact: bool,
    /// Estimated bytes at each instant, and the variance of what changed since the one before.
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
        if count < needed || self.kept.bytes.0.saturating_sub(self.gone) < LEAST {
            return false;
        }
        // What goes is not made up for by what comes.
        if self.gone as f64 > 0.4 * self.kept.bytes.0 as f64 {
            return false;
        }
        // From where the line began: what comes before it may be long.
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
        let within = |at: f64| (at - begin) / (1.0 - begin);
        let share = |from: f64| {
            let later = self.births.iter().filter(|birth| within(birth.at) > from);
            let later: f64 = later.map(|birth| birth.bytes).sum();
            later / self.kept.bytes.0 as f64
        };
        // As fast at the end as before: a fifth of the time has a good part of a fifth of the births.
        share(0.5) > 0.28 && share(0.75) > 0.12 && self.widest_gap(begin) <= 0.45 * (1.0 - begin)
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

    /// Whether its blocks replace each other by larger ones, all the time.
    fn swells(&self) -> bool {
        let (first, last) = (self.levels[0], self.levels[POINTS - 1]);
        let rises = |at: &usize| {
            let by = self.levels[*at] - self.levels[at - 1];
            by > 0.01 * last && by > 2.0 * self.changes[*at].sqrt()
        };
        let falls = |at: usize| self.levels[at - 1] - self.levels[at] > 0.01 * last;
        let risen = (1..POINTS).filter(rises).count();
        last - first >= LEAST as f64
            && last >= 1.3 * first
            && risen + 2 >= POINTS - 1
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

/// The lines that keep more and more, the most bytes first, and what the rates are of.
#[must_use]
pub fn growing(trace: &Trace, sample: &HostSample) -> Vec<Growing> {
    let Some(course) = Course::of(sample) else { return Vec::new() };
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
        let is_old = block.born <= course.from;
        let went = is_old && !stays && block.died.is_some_and(|died| died > course.from);
        if went {
            group.gone += block.estimate.0;
        } else if stays && !is_old {
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

/// Who holds memory at `time`, the most bytes first.
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
mod tests {
    use super::*;
    use crate::stacks::Frame;

    /// A run of 1,000 ms; `blocks`: line, birth and death in ms (0: never), KiB.
    fn run(blocks: &[(u32, u64, u64, u64)], steps: &[u64]) -> (Trace, HostSample) {
        let mut trace = Trace::default();
        let name = trace.strings.intern("work");
        let file = trace.strings.intern("train.py");
        let mut sample = HostSample::default();
        // The run's own first and last allocations.
        let around = [(0, 0, 1, 1), (0, 1000, 0, 1)];
        let mut all: Vec<_> = blocks.iter().chain(&around).copied().collect();
        all.sort_by_key(|(_, born, ..)| *born);
        for (line, born, died, kib) in all {
            let frame = trace.frames.intern(Frame { name, file, line });
            sample.blocks.push(SampledBlock {
                born: Micros(born * 1000),
                died: (died > 0).then_some(Micros(died * 1000)),
                size: Bytes(kib << 10),
                estimate: Bytes(kib << 10),
                variance: ((kib << 10) as f64).powi(2),
                stack: trace.stacks.intern(&[frame]),
            });
        }
        sample.steps = steps.iter().map(|ms| Micros(ms * 1000)).collect();
        sample.end = Micros(1_010_000);
        (trace, sample)
    }

    fn found(blocks: &[(u32, u64, u64, u64)], steps: &[u64]) -> Vec<String> {
        let (trace, sample) = run(blocks, steps);
        growing(&trace, &sample).into_iter().map(|growing| growing.line.label).collect()
    }

    #[test]
    fn a_line_that_keeps_all_it_allocates_grows_with_and_without_steps() {
        let leak: Vec<_> = (1..60).map(|i| (7, i * 16, 0, 16)).collect();
        assert_eq!(found(&leak, &[]), ["train.py:7 work"]);
        let steps: Vec<u64> = (0..20).map(|i| i * 50).collect();
        assert_eq!(found(&leak, &steps), ["train.py:7 work"]);
        let (trace, sample) = run(&leak, &steps);
        let rate = growing(&trace, &sample)[0].rate;
        assert!((45_000.0..60_000.0).contains(&rate), "50 KiB a step: {rate}");
        // Freed when all is torn down: it grew before.
        let freed: Vec<_> = leak.iter().map(|&(line, born, _, kib)| (line, born, 1005, kib)).collect();
        assert_eq!(found(&freed, &steps), ["train.py:7 work"]);
    }

    #[test]
    fn a_buffer_that_becomes_larger_and_larger_grows_and_one_that_stops_does_not() {
        let swell = |until: u64| -> Vec<(u32, u64, u64, u64)> {
            (1..60)
                .filter(|i| i * 16 < until)
                .map(|i| (7, i * 16, if (i + 1) * 16 < until { (i + 1) * 16 } else { 0 }, i * 100))
                .collect()
        };
        let exact = |blocks: &[(u32, u64, u64, u64)]| {
            let (trace, mut sample) = run(blocks, &[]);
            sample.blocks.iter_mut().for_each(|block| block.variance = 0.0);
            growing(&trace, &sample).into_iter().map(|growing| growing.line.label).collect::<Vec<_>>()
        };
        assert_eq!(exact(&swell(1000)), ["train.py:7 work"]);
        assert_eq!(exact(&swell(600)), [""; 0]);
        assert_eq!(
            found(&swell(1000), &[]),
            [""; 0],
            "one sample in so many bytes does not tell it from chance"
        );
    }

    #[test]
    fn caches_that_stop_pools_warm_ups_and_replacements_do_not_grow() {
        let fills: Vec<_> = (1..60).map(|i| (7, i * 9, 0, 16)).collect();
        assert_eq!(found(&fills, &[]), [""; 0], "a cache that is full after half of the run");
        let ring: Vec<_> = (1..120).map(|i| (7, i * 8, (i + 30) * 8, 16)).collect();
        assert_eq!(found(&ring, &[]), [""; 0], "the oldest of thirty goes");
        let warm: Vec<_> = (1..60).map(|i| (7, i, 0, 16)).collect();
        assert_eq!(found(&warm, &[]), [""; 0], "a beginning");
        let churn: Vec<_> = (1..900).map(|i| (7, i, i + 3, 64)).collect();
        assert_eq!(found(&churn, &[]), [""; 0], "what comes goes");
        let late: Vec<_> = (1..30).map(|i| (7, 800 + i, 0, 16)).collect();
        assert_eq!(found(&late, &[]), [""; 0], "one burst is no growth");
    }

    #[test]
    fn what_was_never_freed_is_listed_by_line_with_its_error() {
        let (trace, sample) = run(&[(3, 10, 0, 64), (3, 20, 0, 64), (4, 20, 30, 999)], &[]);
        let lines = never_freed(&trace, &sample);
        assert_eq!(
            (lines[0].label.as_str(), lines[0].kept.bytes, lines[0].kept.samples),
            ("train.py:3 work", Bytes(128 << 10), 2)
        );
        assert_eq!(lines[0].kept.error().0, (2.0 * 2f64.sqrt() * 65536.0) as u64);
        assert!(lines.iter().all(|line| line.label != "train.py:4 work"));
        assert_eq!(live_at(&sample, Micros(25_000)).bytes, Bytes((64 + 64 + 999) << 10));
    }
}
