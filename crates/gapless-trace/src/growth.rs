//! Growth from step to step, and the allocations that cause it.
//!
//! A leak is memory that each later step leaves behind. The first step does not count (optimizer state is created in
//! it), and varying shapes are not a leak: the slope is the median over pairs of steps (Theil-Sen), of the bytes at the
//! steps' ends.

use crate::allocations::AllocationId;
use crate::history::History;
use crate::stacks::StackId;
use crate::steps::Steps;
use crate::sweep;
use crate::words::Bytes;
use rustc_hash::FxHashMap;

/// Steps beyond the first that are needed to speak of growth.
const MIN_STEPS: usize = 3;
/// Pairs of steps grow with their square: of more steps than this, an even sample is compared.
const MAX_COMPARED: usize = 256;

/// Memory over the steps of one device.
#[derive(Clone, Debug, PartialEq)]
pub struct Growth {
    /// Live bytes at the end of each step.
    pub at_end: Vec<Bytes>,
    /// The most live bytes in each step.
    pub peaks: Vec<Bytes>,
    /// Bytes a step by which `at_end` grows (negative: shrinks), robustly, without the first steps.
    pub slope: f64,
    /// Allocations that each later step leaves behind, the most bytes first.
    pub growers: Vec<Grower>,
}

/// Allocations of one origin that later steps leave behind for ever.
#[derive(Clone, Debug, PartialEq)]
pub struct Grower {
    /// Their origin; [`StackId::NONE`] if no stack was recorded: then they share a size class.
    pub stack: StackId,
    /// The smallest and the largest request among them.
    pub sizes: (Bytes, Bytes),
    /// Bytes (requested) left behind by a typical step: the median over the steps that leave some.
    pub per_step: Bytes,
    /// Steps that leave some behind.
    pub steps: usize,
    /// Steps that were examined: all but the first and the last.
    pub of_steps: usize,
    pub count: usize,
    pub total: Bytes,
    pub example: AllocationId,
}

impl Growth {
    /// True if this growth matters: at this rate a thousand steps add more than a fiftieth of the peak. A list of
    /// losses does not.
    #[must_use]
    pub fn is_notable(&self) -> bool {
        let peak = self.peaks.iter().copied().max().unwrap_or_default();
        self.slope > 0.0 && self.slope * 1000.0 > peak.0 as f64 / 50.0
    }

    /// The number of further steps that fit into `free` bytes at this rate; `None` if nothing grows.
    #[must_use]
    pub fn steps_until(&self, free: Bytes) -> Option<u64> {
        (self.slope >= 1.0).then(|| (free.0 as f64 / self.slope) as u64)
    }
}

/// The growth of memory over `steps`; `None` with fewer than three steps after the first.
#[must_use]
pub fn measure(history: &History, steps: &Steps) -> Option<Growth> {
    let n = steps.spans.len();
    if n < MIN_STEPS + 1 {
        return None;
    }
    let (at_end, peaks) = levels(history, steps);
    // The second step may still differ (caches, lazily made tensors); with enough steps it need not count.
    let first = if n > MIN_STEPS + 2 { 2 } else { 1 };
    let slope = theil_sen(&at_end[first..]);
    Some(Growth { slope, growers: growers(history, steps), at_end, peaks })
}

/// Live bytes at each step's end, and the most in each step.
fn levels(history: &History, steps: &Steps) -> (Vec<Bytes>, Vec<Bytes>) {
    let a = &history.allocations;
    let spans = &steps.spans;
    let (mut at_end, mut peaks) = (vec![Bytes::ZERO; spans.len()], vec![Bytes::ZERO; spans.len()]);
    let mut step = 0;
    sweep::levels(&a.starts, &a.freed, &a.requested, history.last_tick, |tick, level| {
        // A step's peak is over its ticks and that of its end, which may be the next one's start.
        while let Some(span) = spans.get(step).filter(|span| span.start <= tick) {
            peaks[step] = peaks[step].max(Bytes(level));
            if tick < span.end.min(history.last_tick) {
                break;
            }
            at_end[step] = Bytes(level);
            step += 1;
        }
    });
    (at_end, peaks)
}

/// The median slope over all pairs, of an even sample.
fn theil_sen(values: &[Bytes]) -> f64 {
    let stride = values.len().div_ceil(MAX_COMPARED).max(1);
    let points: Vec<(f64, f64)> =
        values.iter().enumerate().step_by(stride).map(|(i, v)| (i as f64, v.0 as f64)).collect();
    let mut slopes = Vec::with_capacity(points.len() * points.len() / 2);
    for (i, a) in points.iter().enumerate() {
        slopes.extend(points[i + 1..].iter().map(|b| (b.1 - a.1) / (b.0 - a.0)));
    }
    if slopes.is_empty() {
        return 0.0;
    }
    let middle = slopes.len() / 2;
    *slopes.select_nth_unstable_by(middle, f64::total_cmp).1
}

/// One group while it is gathered.
struct Group {
    example: u32,
    count: usize,
    total: u64,
    sizes: (u64, u64),
    /// The last step seen, and the bytes of each step that left some.
    step: usize,
    by_step: Vec<u64>,
}

/// Groups of allocations that most later steps leave behind. The last step is left out, because its blocks may yet be
/// freed.
fn growers(history: &History, steps: &Steps) -> Vec<Grower> {
    let a = &history.allocations;
    let spans = &steps.spans[1..steps.spans.len() - 1];
    let (Some(from), Some(over)) = (spans.first(), steps.spans.last()) else { return Vec::new() };
    let mut groups: FxHashMap<(u32, u32, u16), Group> = FxHashMap::default();
    let mut step = 0;
    let begin = a.starts.partition_point(|&s| s <= from.start.0);
    for i in begin..a.len() {
        while step < spans.len() && a.starts[i] > spans[step].end.0 {
            step += 1;
        }
        let Some(span) = spans.get(step) else { break };
        // Alive beyond the last step: freed when the run is torn down, or never.
        if a.starts[i] <= span.start.0 || a.freed[i] <= over.end.0 {
            continue;
        }
        let size = a.requested[i];
        let class = if a.stacks[i] == 0 { size.max(1).ilog2() } else { 0 };
        let group = groups.entry((a.stacks[i], class, a.streams[i])).or_insert_with(|| Group {
            example: i as u32,
            count: 0,
            total: 0,
            sizes: (size, size),
            step: usize::MAX,
            by_step: Vec::new(),
        });
        group.count += 1;
        group.total += size;
        group.sizes = (group.sizes.0.min(size), group.sizes.1.max(size));
        if group.step != step {
            group.step = step;
            group.by_step.push(0);
        }
        if let Some(bytes) = group.by_step.last_mut() {
            *bytes += size;
        }
    }
    let mut growers: Vec<Grower> = groups
        .into_iter()
        .filter(|(_, g)| g.by_step.len() >= 2 && g.by_step.len() * 5 >= spans.len() * 3)
        .map(|((stack, _, _), mut g)| {
            let middle = g.by_step.len() / 2;
            Grower {
                stack: StackId(stack),
                sizes: (Bytes(g.sizes.0), Bytes(g.sizes.1)),
                per_step: Bytes(*g.by_step.select_nth_unstable(middle).1),
                steps: g.by_step.len(),
                of_steps: spans.len(),
                count: g.count,
                total: Bytes(g.total),
                example: AllocationId(g.example),
            }
        })
        .collect();
    growers.sort_by(|a, b| b.total.cmp(&a.total).then(a.example.cmp(&b.example)));
    growers
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::holders::stack_label;
    use crate::steps;
    use crate::testing::{Optimizer, Run, Training};
    use crate::trace::Trace;

    fn grown(training: Training) -> (Trace, Option<Growth>) {
        let mut run = Run::new();
        training.run(&mut run);
        let (trace, history) = run.finish();
        let steps = steps::detect(&trace, &trace.devices[0], &history);
        let growth = measure(&history, &steps);
        (trace, growth)
    }

    #[test]
    fn a_stack_that_keeps_4_mib_a_step_is_found_with_its_rate() {
        for rows in [32, 0] {
            let options =
                Training { leak: 4 << 20, stacks: true, annotate: true, rows, ..Training::default() };
            let (trace, growth) = grown(options);
            let growth = growth.expect("ten steps");
            assert_eq!(growth.slope, f64::from(4 << 20));
            assert!(growth.is_notable());
            assert_eq!(growth.growers.len(), 1);
            let grower = &growth.growers[0];
            assert_eq!((grower.per_step, grower.steps, grower.of_steps), (Bytes(4 << 20), 8, 8));
            assert_eq!(grower.total, Bytes(32 << 20));
            assert_eq!(stack_label(&trace, grower.stack).expect("a stack").text, "train.py:77 append");
            assert_eq!(growth.steps_until(Bytes::GIB), Some(256));
        }
    }

    #[test]
    fn a_leak_shows_without_stacks_and_annotations_too() {
        let (_, growth) = grown(Training { leak: 4 << 20, steps: 12, ..Training::default() });
        let growth = growth.expect("twelve steps");
        assert_eq!(growth.slope, f64::from(4 << 20));
        assert_eq!(growth.growers[0].sizes, (Bytes(4 << 20), Bytes(4 << 20)));
    }

    #[test]
    fn a_list_of_losses_is_counted_and_no_alarm() {
        let (_, growth) = grown(Training { leak: 512, annotate: true, ..Training::default() });
        let growth = growth.expect("ten steps");
        assert_eq!(growth.slope, 512.0);
        assert_eq!(growth.growers[0].per_step, Bytes(512));
        assert!(!growth.is_notable());
    }

    #[test]
    fn optimizer_state_and_varying_shapes_are_no_leak() {
        for optimizer in [Optimizer::Momentum, Optimizer::Adam] {
            let (_, growth) = grown(Training { optimizer, rows: 0, annotate: true, ..Training::default() });
            let growth = growth.expect("ten steps");
            assert_eq!(growth.slope, 0.0);
            assert_eq!(growth.growers, []);
            assert!(growth.peaks.iter().zip(&growth.at_end).all(|(peak, end)| peak > end));
        }
    }

    #[test]
    fn few_steps_say_nothing_of_growth() {
        let (_, growth) = grown(Training { steps: 3, annotate: true, leak: 4 << 20, ..Training::default() });
        assert_eq!(growth, None);
        let (_, growth) = grown(Training { steps: 4, annotate: true, leak: 4 << 20, ..Training::default() });
        assert_eq!(growth.map(|g| g.slope), Some(f64::from(4 << 20)));
    }
}
