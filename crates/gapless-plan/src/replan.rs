//! Incremental planning: an old plan and a changed list of buffers in, a plan that moves as little as possible out.
//!
//! Unchanged buffers keep their offsets: the old plan was valid, so these are valid together. Each changed or new
//! buffer goes to the lowest place that is free throughout its lifetime. If that would raise the peak, room is made by
//! moving the fewest bytes, if that helps. One changed buffer costs one pass over the list: O(n + k log k) for k
//! buffers alive with it.

use gapless_trace::Bytes;
use rustc_hash::FxHashMap;

use crate::bound;
use crate::problem::{Lifetime, Plan, Problem};

/// The new plan and the buffers, by position, whose offset is not their old one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replan {
    pub plan: Plan,
    /// Buffers that had an old offset and have another now.
    pub moved: Vec<usize>,
    /// Buffers that had none.
    pub placed: Vec<usize>,
}

/// For each new buffer its old offset, matched by name, if the place is as good as before: nothing but its hint
/// changed, or it only shrank in size or lifetime.
#[must_use]
pub fn carry_over(old: &Problem, plan: &Plan, new: &Problem) -> Vec<Option<Bytes>> {
    let named = old.has_names() || new.has_names();
    let by_name: FxHashMap<String, usize> = if named {
        (0..old.len()).map(|index| (old.name(index), index)).collect()
    } else {
        FxHashMap::default()
    };
    let keep = |index: usize| {
        let at = if named { by_name.get(&new.name(index)).copied()? } else { index };
        let (before, after) = (old.buffers().get(at)?, &new.buffers()[index]);
        let offset = *plan.offsets.get(at)?;
        let fits = after.size <= before.size
            && before.lifetime.contains(after.lifetime)
            && before.gaps == after.gaps
            && offset.0 % after.alignment.0 == 0
            && after.fixed.is_none_or(|fixed| fixed == offset);
        fits.then_some(offset)
    };
    (0..new.len()).map(keep).collect()
}

/// Plans anew. `kept` holds the offsets that may stay, as [`carry_over`] gives them; they must be valid together.
/// A fixed buffer goes to its place and pushes out others there.
#[must_use]
pub fn replan(problem: &Problem, kept: &[Option<Bytes>]) -> Replan {
    let mut work = Work {
        problem,
        offsets: (0..problem.len()).map(|index| kept.get(index).copied().flatten()).collect(),
    };
    let mut open: Vec<usize> = (0..problem.len()).filter(|index| work.offsets[*index].is_none()).collect();
    let placed: Vec<usize> = open.clone();
    let ends = work.offsets.iter().zip(problem.buffers());
    let old_peak =
        ends.filter_map(|(offset, buffer)| Some((*offset)? + buffer.size)).max().unwrap_or_default();
    let limit = old_peak.max(bound::lower_bound(problem));

    let mut moved = Vec::new();
    for index in open.clone() {
        if let Some(fixed) = problem.buffers()[index].fixed {
            let pushed = work.push_out(index, fixed);
            work.offsets[index] = Some(fixed);
            moved.extend(pushed.iter().copied());
            open.extend(pushed);
        }
    }
    open.retain(|index| work.offsets[*index].is_none());
    open.sort_by_key(|index| (std::cmp::Reverse(problem.buffers()[*index].size), *index));
    for index in open {
        moved.extend(work.settle(index, limit));
    }
    moved.sort_unstable();
    moved.dedup();
    moved.retain(|index| kept.get(*index).copied().flatten() != work.offsets[*index]);
    let offsets = work.offsets.iter().map(|offset| offset.unwrap_or_default()).collect();
    Replan { plan: Plan::of_offsets(problem, offsets), moved, placed }
}

struct Work<'a> {
    problem: &'a Problem,
    offsets: Vec<Option<Bytes>>,
}

impl Work<'_> {
    /// Places that are taken while this buffer is alive: (start, end, buffer), sorted.
    fn around(&self, index: usize) -> Vec<(u64, u64, usize)> {
        let buffer = &self.problem.buffers()[index];
        let alive = |other: &crate::problem::Buffer| {
            buffer.lifetime.overlaps(other.lifetime)
                && (buffer.gaps.is_empty() && other.gaps.is_empty()
                    || buffer.pieces().any(|piece| other.pieces().any(|its: Lifetime| piece.overlaps(its))))
        };
        let mut around: Vec<(u64, u64, usize)> = Vec::new();
        for (at, (other, offset)) in self.problem.buffers().iter().zip(&self.offsets).enumerate() {
            if let Some(offset) = offset
                && at != index
                && other.size.0 > 0
                && alive(other)
            {
                around.push((offset.0, offset.0 + other.size.0, at));
            }
        }
        around.sort_unstable();
        around
    }

    /// Places the buffer, below the limit if a few others can make room for it. Returns the buffers moved for it.
    fn settle(&mut self, index: usize, limit: Bytes) -> Vec<usize> {
        let buffer = &self.problem.buffers()[index];
        let (size, align) = (buffer.size.0, buffer.alignment.0);
        let around = self.around(index);
        let free = lowest(&around, size, align);
        if free + size <= limit.0 || size == 0 {
            self.offsets[index] = Some(Bytes(free));
            return Vec::new();
        }
        let Some((start, victims)) = self.cheapest_room(index, &around, limit.0) else {
            self.offsets[index] = Some(Bytes(free));
            return Vec::new();
        };
        // Try it: each buffer that was pushed out must find a place below the peak that the plan would have without.
        let before: Vec<(usize, Option<Bytes>)> = victims.iter().map(|at| (*at, self.offsets[*at])).collect();
        for at in &victims {
            self.offsets[*at] = None;
        }
        self.offsets[index] = Some(Bytes(start));
        for at in &victims {
            let other = &self.problem.buffers()[*at];
            let place = lowest(&self.around(*at), other.size.0, other.alignment.0);
            if place + other.size.0 >= free + size {
                for (at, offset) in before {
                    self.offsets[at] = offset;
                }
                self.offsets[index] = Some(Bytes(free));
                return Vec::new();
            }
            self.offsets[*at] = Some(Bytes(place));
        }
        victims
    }

    /// The place under the limit in which the fewest bytes lie in the way, and their buffers, largest first. `None` if
    /// something fixed or too many are in the way everywhere.
    fn cheapest_room(
        &self,
        index: usize,
        around: &[(u64, u64, usize)],
        limit: u64,
    ) -> Option<(u64, Vec<usize>)> {
        const MOST_VICTIMS: usize = 32;
        let buffer = &self.problem.buffers()[index];
        let (size, align) = (buffer.size.0, buffer.alignment.0);
        let starts = around.iter().map(|(_, end, _)| end.next_multiple_of(align)).chain([0]);
        let mut best: Option<(u64, u64)> = None;
        for start in starts.filter(|start| start + size <= limit) {
            let (mut bytes, mut count) = (0, 0);
            for (other, end, at) in around {
                if *other >= start + size {
                    break;
                }
                if *end > start {
                    let fixed = self.problem.buffers()[*at].fixed.is_some();
                    bytes += if fixed { limit } else { end - other };
                    count += if fixed { MOST_VICTIMS + 1 } else { 1 };
                    if best.is_some_and(|(least, _)| bytes >= least) || count > MOST_VICTIMS {
                        break;
                    }
                }
            }
            if count <= MOST_VICTIMS && best.is_none_or(|(least, _)| bytes < least) {
                best = Some((bytes, start));
            }
        }
        let (_, start) = best?;
        let mut victims: Vec<usize> = around
            .iter()
            .filter(|(other, end, _)| *other < start + size && start < *end)
            .map(|(_, _, at)| *at)
            .collect();
        victims.sort_by_key(|at| (std::cmp::Reverse(self.problem.buffers()[*at].size), *at));
        Some((start, victims))
    }

    /// Takes off the buffers in the way.
    fn push_out(&mut self, index: usize, offset: Bytes) -> Vec<usize> {
        let end = offset.0 + self.problem.buffers()[index].size.0;
        let around = self.around(index).into_iter();
        let in_the_way = around.filter(|(start, its_end, _)| *start < end && offset.0 < *its_end);
        let pushed: Vec<usize> = in_the_way.map(|(_, _, at)| at).collect();
        for at in &pushed {
            self.offsets[*at] = None;
        }
        pushed
    }
}

/// The lowest multiple of `align` at which `size` bytes are free.
fn lowest(around: &[(u64, u64, usize)], size: u64, align: u64) -> u64 {
    let mut place = 0;
    for (start, end, _) in around {
        if *start >= place + size {
            break;
        }
        if *end > place {
            place = end.next_multiple_of(align);
        }
    }
    place
}
