//! The greedy planners of other projects, written anew from their published descriptions, for comparison.
//!
//! | name | order | place |
//! |---|---|---|
//! | `XlaBestFit` | size, largest first | the smallest gap that is large enough, else on top |
//! | `TfliteGreedyBySize` | size, largest first; then earliest start | the smallest gap between neighbours, or on top |
//! | `TflmGreedy` | size, largest first; then longest | the lowest gap that is large enough |
//! | `TvmGreedyBySize` | size, largest first; then most conflicts | the lowest gap |
//! | `TvmGreedyByConflicts` | most conflicts first; then size | the lowest gap |
//! | `TvmHillClimb` | swaps in the order above, kept when not worse or by chance | the lowest gap |
//! | `OnnxRuntime` | as the program allocates | the smallest gap among the live ones, else on top |
//!
//! Gaps within lifetimes are filled and fixed offsets ignored: these planners know neither.

use gapless_plan::compact::Compact;
use gapless_plan::rng::Rng;
use gapless_plan::shelves::{Shelves, round_up};
use gapless_plan::{Plan, Problem, bound};
use gapless_trace::Bytes;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Baseline {
    XlaBestFit,
    TfliteGreedyBySize,
    TflmGreedy,
    TvmGreedyBySize,
    TvmGreedyByConflicts,
    TvmHillClimb,
    OnnxRuntime,
}

impl Baseline {
    pub(crate) const ALL: [Baseline; 7] = [
        Baseline::XlaBestFit,
        Baseline::TfliteGreedyBySize,
        Baseline::TflmGreedy,
        Baseline::TvmGreedyBySize,
        Baseline::TvmGreedyByConflicts,
        Baseline::TvmHillClimb,
        Baseline::OnnxRuntime,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Baseline::XlaBestFit => "XLA best-fit",
            Baseline::TfliteGreedyBySize => "TFLite greedy by size",
            Baseline::TflmGreedy => "TFLM greedy",
            Baseline::TvmGreedyBySize => "TVM greedy by size",
            Baseline::TvmGreedyByConflicts => "TVM greedy by conflicts",
            Baseline::TvmHillClimb => "TVM hill-climb",
            Baseline::OnnxRuntime => "ONNX Runtime pattern",
        }
    }

    /// The plan this planner would make. Hill-climbing makes as many passes as TVM does, 500.
    pub(crate) fn plan(self, problem: &Problem) -> Plan {
        let compact = Compact::of_problem(problem);
        let mut packer = Packer::new(&compact);
        let order = self.order(&compact);
        match self {
            Baseline::XlaBestFit | Baseline::TfliteGreedyBySize | Baseline::OnnxRuntime => {
                packer.run(&order, Gap::Smallest)
            }
            Baseline::TvmHillClimb => packer.climb(order, 500),
            _ => packer.run(&order, Gap::Lowest),
        };
        let mut offsets = vec![Bytes::ZERO; problem.len()];
        for (slot, offset) in packer.offsets.iter().enumerate() {
            offsets[compact.original[slot] as usize] = Bytes((offset * compact.unit) as u64);
        }
        Plan::of_offsets(problem, offsets)
    }

    fn order(self, c: &Compact) -> Vec<u32> {
        let mut order: Vec<u32> = (0..c.len() as u32).collect();
        let size = |item: &u32| std::cmp::Reverse(c.size[*item as usize]);
        let first = |item: &u32| c.first[*item as usize];
        let length = |item: &u32| std::cmp::Reverse(c.last[*item as usize] - c.first[*item as usize]);
        match self {
            Baseline::XlaBestFit => order.sort_by_key(size),
            Baseline::TfliteGreedyBySize => order.sort_by_key(|item| (size(item), first(item))),
            Baseline::TflmGreedy => order.sort_by_key(|item| (size(item), length(item))),
            Baseline::TvmGreedyBySize | Baseline::TvmHillClimb => {
                let conflicts = conflicts(c);
                order.sort_by_key(|item| (size(item), std::cmp::Reverse(conflicts[*item as usize])));
            }
            Baseline::TvmGreedyByConflicts => {
                let conflicts = conflicts(c);
                order.sort_by_key(|item| (std::cmp::Reverse(conflicts[*item as usize]), size(item)));
            }
            // Sections are the program's order of allocations, up to those that begin together.
            Baseline::OnnxRuntime => order.sort_by_key(|item| (first(item), *item)),
        }
        order
    }
}

/// The number of others that each buffer is alive with: all, less those that end before it begins or begin after it
/// ends.
fn conflicts(c: &Compact) -> Vec<usize> {
    let mut begin = vec![0usize; c.sections + 2];
    let mut end = vec![0usize; c.sections + 2];
    for slot in 0..c.len() {
        begin[c.first[slot] as usize + 1] += 1;
        end[c.last[slot] as usize + 1] += 1;
    }
    for at in 1..begin.len() {
        begin[at] += begin[at - 1];
        end[at] += end[at - 1];
    }
    // begin[s]: begun before section s; end[s + 1]: ended at or before section s.
    (0..c.len()).map(|slot| begin[c.last[slot] as usize] - end[c.first[slot] as usize + 1] - 1).collect()
}

#[derive(Clone, Copy)]
enum Gap {
    Lowest,
    Smallest,
}

struct Packer<'a> {
    compact: &'a Compact,
    shelves: Shelves,
    offsets: Vec<i64>,
    around: Vec<(i64, i64, u32)>,
}

impl<'a> Packer<'a> {
    fn new(compact: &'a Compact) -> Packer<'a> {
        Packer {
            compact,
            shelves: Shelves::new(compact.sections),
            offsets: vec![0; compact.len()],
            around: Vec::new(),
        }
    }

    fn run(&mut self, order: &[u32], gap: Gap) -> i64 {
        self.shelves.clear();
        let mut peak = 0;
        for item in order {
            let slot = *item as usize;
            let place = match gap {
                Gap::Lowest => self.lowest(slot),
                Gap::Smallest => self.smallest(slot),
            };
            self.offsets[slot] = place;
            self.shelves.insert(self.compact, *item, place);
            peak = peak.max(place + self.compact.size[slot]);
        }
        peak
    }

    fn lowest(&mut self, slot: usize) -> i64 {
        let c = self.compact;
        let (first, last, size) = (c.first[slot], c.last[slot], c.size[slot]);
        self.shelves.lowest(first, last, size, c.align_of(slot), 0, i64::MAX).unwrap_or(0)
    }

    fn smallest(&mut self, slot: usize) -> i64 {
        let c = self.compact;
        let (size, align) = (c.size[slot], c.align_of(slot));
        let mut around = std::mem::take(&mut self.around);
        self.shelves.neighbours(c.first[slot], c.last[slot], &mut around);
        let mut top = 0;
        let mut best: Option<(i64, i64)> = None;
        for (offset, end, _) in &around {
            let place = round_up(top, align);
            let room = offset - place;
            if room >= size && best.is_none_or(|(least, _)| room < least) {
                best = Some((room, place));
            }
            top = top.max(*end);
        }
        self.around = around;
        best.map_or_else(|| round_up(top, align), |(_, place)| place)
    }

    /// Swaps a buffer at the peak with one that is placed before it.
    fn climb(&mut self, mut order: Vec<u32>, passes: u32) -> i64 {
        let mut rng = Rng::new(0);
        let mut current = self.run(&order, Gap::Lowest);
        let (mut best, mut best_offsets) = (current, self.offsets.clone());
        let goal = bound::live_peak(self.compact);
        for pass in 1..passes {
            if best <= goal {
                break;
            }
            let c = self.compact;
            let at_peak: Vec<usize> = (0..order.len())
                .filter(|at| {
                    let slot = order[*at] as usize;
                    *at > 0 && self.offsets[slot] + c.size[slot] == current
                })
                .collect();
            if at_peak.is_empty() {
                break;
            }
            let high = at_peak[rng.below(at_peak.len() as u64) as usize];
            let low = rng.below(high as u64) as usize;
            order.swap(high, low);
            let peak = self.run(&order, Gap::Lowest);
            // As TVM does: a worse order is kept now and then, less and less often.
            let chance = (50.0 * (1.0 - f64::from(pass) / f64::from(passes)) / 100.0).max(0.0);
            if peak <= current || rng.unit() < chance * 0.1 {
                current = peak;
            } else {
                order.swap(high, low);
                current = self.run(&order, Gap::Lowest);
            }
            if peak < best {
                best = peak;
                self.run(&order, Gap::Lowest);
                best_offsets.clone_from(&self.offsets);
            }
        }
        self.offsets = best_offsets;
        best
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gapless_plan::validate;
    use gapless_problems::generate;

    #[test]
    fn every_baseline_gives_a_valid_plan() {
        for problem in [
            generate::heavy_tailed(300, 1.5, 200.0, 1),
            generate::guillotine(200, 1 << 20, 1 << 20, 2),
            generate::training(300, 60, 3),
        ] {
            for baseline in Baseline::ALL {
                validate(&problem, &baseline.plan(&problem), None).unwrap();
            }
        }
    }

    #[test]
    fn conflicts_are_counted_as_pairs_that_overlap() {
        let problem = generate::heavy_tailed(200, 1.2, 300.0, 5);
        let counted = conflicts(&Compact::of_problem(&problem));
        for (index, buffer) in problem.buffers().iter().enumerate() {
            let others = problem.buffers().iter().filter(|other| other.lifetime.overlaps(buffer.lifetime));
            assert_eq!(counted[index], others.count() - 1);
        }
    }
}
