//! The part of a run in which growth is looked for, and the place of an instant in it.

use super::POINTS;
use crate::stacks::StackId;
use crate::trace::{HostSample, SampledBlock, Trace};
use crate::words::Micros;
use rustc_hash::FxHashMap;

/// Steps after the first that are needed to measure in steps.
const STEPS: usize = 5;
/// Samples that are not taken for a whole run: those that a program makes when it ends.
const TAIL: usize = 8;
/// Samples that must be left behind the imports.
const ENOUGH: usize = 64;
/// The longest end of a program: a longer quiet time is work.
const TEARING: Micros = Micros(500_000);

#[derive(Clone, Debug)]
pub struct Course {
    pub(super) from: Micros,
    pub(super) to: Micros,
    /// Beginnings of steps in it; empty: time counts.
    steps: Vec<Micros>,
}

impl Course {
    /// Without the beginning, in which everything grows, and without the end, in which a program frees everything.
    #[must_use]
    pub fn of(trace: &Trace, sample: &HostSample) -> Option<Course> {
        if sample.steps.len() > STEPS {
            let steps = sample.steps[1..].to_vec();
            let (from, to) = (*steps.first()?, *steps.last()?);
            return Some(Course { from, to, steps });
        }
        let blocks = &sample.blocks[imported(trace, sample)..];
        let (first, last) = (blocks.first()?.born, blocks.last()?.born);
        let length = last.since(first).0;
        let part = |hundredths: u64| Micros(first.0 + length / 100 * hundredths + length % 100);
        // The end of a short run may take a fifth of its time, but it allocates next to nothing.
        let tail = (blocks.len() / 100).max(TAIL.min(blocks.len() / 10));
        let end = blocks[blocks.len() - 1 - tail].born;
        let to = if is_torn_down(blocks, end, part(70), last) {
            end.max(part(30))
        } else {
            end.clamp(part(70), part(95))
        };
        let course = Course { from: Micros(first.0 + length / 4), to, steps: Vec::new() };
        (course.from < course.to).then_some(course)
    }

    /// From 0 to 1.
    pub(super) fn at(&self, time: Micros) -> f64 {
        if self.steps.is_empty() {
            return time.since(self.from).0 as f64 / self.to.since(self.from).0.max(1) as f64;
        }
        let step = self.steps.partition_point(|start| *start <= time);
        step as f64 / self.steps.len() as f64
    }

    /// Instants in it, evenly.
    pub(super) fn points(&self) -> [Micros; POINTS] {
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
    pub(super) fn length(&self) -> f64 {
        if self.steps.is_empty() {
            self.to.since(self.from).as_secs_f64().max(1e-6)
        } else {
            (self.steps.len() - 1).max(1) as f64
        }
    }

    /// True if the rate is of steps.
    #[must_use]
    pub fn has_steps(&self) -> bool {
        !self.steps.is_empty()
    }
}

/// True if the program ends at `end`: it allocates next to nothing from then on, and by `later` most of its memory is
/// freed. On a busy machine that takes a large part of a short run.
fn is_torn_down(blocks: &[SampledBlock], end: Micros, later: Micros, last: Micros) -> bool {
    if end >= later || last.since(end).0 > TEARING.0 {
        return false;
    }
    let live = |at: Micros| -> f64 {
        let is_live = |block: &&SampledBlock| block.born <= at && block.died.is_none_or(|died| died > at);
        blocks.iter().filter(is_live).map(|block| block.estimate.0 as f64).sum()
    };
    live(later) < live(end) / 2.0
}

/// The first block behind the imports with which a program of Python begins. A short run is little else than imports,
/// so its own allocations would be a burst at the end. 0: there are none, or nearly all of the run is one.
fn imported(trace: &Trace, sample: &HostSample) -> usize {
    let mut known: FxHashMap<StackId, bool> = FxHashMap::default();
    let mut is_import = |stack: StackId| {
        *known.entry(stack).or_insert_with(|| {
            let files = trace.stacks.get(stack).iter().map(|frame| trace.frames.get(*frame).file);
            files.into_iter().any(|file| trace.strings.get(file).starts_with("<frozen importlib"))
        })
    };
    let (mut imports, mut end) = (0, 0);
    for (at, block) in sample.blocks.iter().enumerate() {
        if is_import(block.stack) {
            imports += 1;
            // The interpreter's own beginning, and single lines between imports.
            if imports * 10 >= (at + 1) * 7 {
                end = at + 1;
            }
        }
    }
    let left = sample.blocks.len() - end;
    if left >= ENOUGH.max(sample.blocks.len() / 50) { end } else { 0 }
}
