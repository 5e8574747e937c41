//! Splitting: buffers alive throughout go to the bottom, and times that no other buffer connects are planned apart.
//! Both are without loss, and both are repeated within the parts. Parts that are alike are planned once.
//!
//! A training run is the case in point: weights live throughout, and each step is a part of its own, much like the
//! next.

use rustc_hash::FxHashMap;

use crate::compact::Compact;

/// Parts and the buffers under them. Every slot of the whole is in `under` or in exactly one part.
#[derive(Debug, Default)]
pub(crate) struct Split {
    /// Distinct parts, and the height at which each begins (the highest of its copies).
    pub(crate) parts: Vec<Compact>,
    /// Slots of the whole with their final offsets.
    pub(crate) under: Vec<(u32, i64)>,
    pub(crate) copies: Vec<Copy>,
}

/// One place where a part occurs: its slots in the order of the part's, and the height it begins at.
#[derive(Debug)]
pub(crate) struct Copy {
    pub(crate) part: usize,
    pub(crate) base: i64,
    pub(crate) slots: Vec<u32>,
}

/// The most looks at a buffer, on average.
const MOST_PEELS: usize = 64;

impl Split {
    /// Everything in one part.
    pub(crate) fn whole(compact: &Compact) -> Split {
        let slots: Vec<u32> = (0..compact.len() as u32).collect();
        let mut split = Split::default();
        split.add(compact, slots, 0, &mut FxHashMap::default());
        split
    }

    /// Alignments must be 1: the buffers under a part would have to keep it aligned.
    pub(crate) fn of(compact: &Compact) -> Split {
        let mut split = Split::default();
        let mut known: FxHashMap<Vec<(u32, u32, i64)>, usize> = FxHashMap::default();
        let mut open: Vec<(Vec<u32>, i64)> = vec![((0..compact.len() as u32).collect(), 0)];
        // Lifetimes nested in each other like dolls would be peeled one by one: O(n) of them cost O(n^2).
        let mut work = compact.len() * MOST_PEELS;
        while let Some((mut slots, mut base)) = open.pop() {
            if slots.len() > work {
                split.add(compact, slots, base, &mut known);
                continue;
            }
            work -= slots.len();
            slots.sort_unstable_by_key(|slot| (compact.first[*slot as usize], *slot));
            for mut run in runs(compact, &slots) {
                let first = run.iter().map(|slot| compact.first[*slot as usize]).min().unwrap_or(0);
                let last = run.iter().map(|slot| compact.last[*slot as usize]).max().unwrap_or(0);
                let below = base;
                let before = run.len();
                run.retain(|slot| {
                    let slot = *slot as usize;
                    let throughout = compact.first[slot] == first && compact.last[slot] == last;
                    if throughout {
                        split.under.push((slot as u32, base));
                        base += compact.size[slot];
                    }
                    !throughout
                });
                if run.len() < before && !run.is_empty() {
                    open.push((run, base));
                } else if !run.is_empty() {
                    split.add(compact, run, base, &mut known);
                }
                base = below;
            }
        }
        split
    }

    fn add(
        &mut self,
        whole: &Compact,
        mut slots: Vec<u32>,
        base: i64,
        known: &mut FxHashMap<Vec<(u32, u32, i64)>, usize>,
    ) {
        if slots.is_empty() {
            return;
        }
        let start = slots.iter().map(|slot| whole.first[*slot as usize]).min().unwrap_or(0);
        let shape = |slot: u32| {
            let slot = slot as usize;
            (whole.first[slot] - start, whole.last[slot] - start, whole.size[slot])
        };
        slots.sort_by_key(|slot| (shape(*slot), *slot));
        let shapes: Vec<(u32, u32, i64)> = slots.iter().map(|slot| shape(*slot)).collect();
        let part = if let Some(part) = known.get(&shapes) {
            *part
        } else {
            let mut part = Compact { unit: whole.unit, ..Compact::default() };
            for (at, slot) in slots.iter().enumerate() {
                part.first.push(shapes[at].0);
                part.last.push(shapes[at].1);
                part.size.push(shapes[at].2);
                part.original.push(*slot);
                if !whole.align.is_empty() {
                    part.align.push(whole.align[*slot as usize]);
                }
            }
            part.close_up();
            self.parts.push(part);
            known.insert(shapes, self.parts.len() - 1);
            self.parts.len() - 1
        };
        self.copies.push(Copy { part, base, slots });
    }
}

/// Slots sorted by their first section, cut at times that no lifetime reaches across.
fn runs(compact: &Compact, slots: &[u32]) -> Vec<Vec<u32>> {
    let mut runs: Vec<Vec<u32>> = Vec::new();
    let mut end = 0;
    for slot in slots {
        match runs.last_mut() {
            Some(run) if compact.first[*slot as usize] < end => run.push(*slot),
            _ => runs.push(vec![*slot]),
        }
        end = end.max(compact.last[*slot as usize]);
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::{Buffer, Problem};

    #[test]
    fn what_lives_throughout_lies_under_and_equal_steps_are_one_part() {
        let mut buffers = vec![Buffer::new(0, 30, 100)];
        for step in 0..3 {
            let begin = step * 10;
            buffers.extend([
                Buffer::new(begin, begin + 10, 7),
                Buffer::new(begin, begin + 3, 3),
                Buffer::new(begin + 2, begin + 5, 5),
                Buffer::new(begin + 4, begin + 7, 4),
                Buffer::new(begin + 6, begin + 10, 6),
            ]);
        }
        let problem = Problem::new(buffers).unwrap();
        let split = Split::of(&Compact::of_problem(&problem));
        // The weight lies at the bottom, in each step the buffer that spans it comes next, and the rest is a part.
        assert_eq!(split.parts.len(), 1, "{split:?}");
        assert!(split.under.contains(&(0, 0)));
        let all: usize = split.under.len() + split.copies.iter().map(|copy| copy.slots.len()).sum::<usize>();
        assert_eq!(all, problem.len());
        assert_eq!(split.copies.len(), 3);
        assert!(split.copies.iter().all(|copy| copy.base == 107));
    }

    #[test]
    fn nested_lifetimes_are_peeled_for_a_while_and_none_is_lost() {
        let buffers = (0..1000i64).map(|at| Buffer::new(at, 2 * 1000 - at, 1 + at as u64 % 7)).collect();
        let compact = Compact::of_problem(&Problem::new(buffers).unwrap());
        let split = Split::of(&compact);
        let all: usize = split.under.len() + split.copies.iter().map(|copy| copy.slots.len()).sum::<usize>();
        assert_eq!(all, 1000);
    }

    #[test]
    fn every_buffer_is_in_exactly_one_place() {
        let problem = crate::generated::heavy_tailed(500, 1.1, 3.0, 9);
        let compact = Compact::of_problem(&problem);
        let split = Split::of(&compact);
        let mut seen = vec![0; compact.len()];
        let slots = split.copies.iter().flat_map(|copy| copy.slots.iter().copied());
        for slot in slots.chain(split.under.iter().map(|(slot, _)| *slot)) {
            seen[slot as usize] += 1;
        }
        assert!(seen.iter().all(|count| *count == 1));
        assert!(split.copies.len() > 1);
    }
}
