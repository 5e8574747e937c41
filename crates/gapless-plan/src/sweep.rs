//! The plan of last resort: a sweep over time with a best-fit free list, O(n log n) however many are alive together.
//!
//! First-fit over shelves reads all buffers that are alive with one; if those are a hundred thousand, a first plan of a
//! million would take minutes. This one takes a second or two and is seldom good, but there is a plan.

use std::collections::{BTreeMap, BTreeSet};

use crate::compact::Compact;

/// Offsets for all buffers. Alignments must be 1.
pub(crate) fn sweep(c: &Compact) -> Vec<i64> {
    let mut moments: Vec<(u32, bool, std::cmp::Reverse<u32>, u32)> = Vec::with_capacity(c.len() * 2);
    for slot in 0..c.len() {
        // Ends come before starts; of those that start together the longest is placed first, lowest.
        moments.push((c.first[slot], true, std::cmp::Reverse(c.last[slot]), slot as u32));
        moments.push((c.last[slot], false, std::cmp::Reverse(0), slot as u32));
    }
    moments.sort_unstable();
    let mut offsets = vec![0; c.len()];
    let mut free = Free::default();
    for (_, start, _, slot) in moments {
        let slot = slot as usize;
        if start {
            offsets[slot] = free.take(c.size[slot]);
        } else {
            free.give(offsets[slot], c.size[slot]);
        }
    }
    offsets
}

/// Free places below `top`, disjoint and never touching: by offset, and by size. All above `top` is free too.
#[derive(Default)]
struct Free {
    top: i64,
    by_offset: BTreeMap<i64, i64>,
    by_size: BTreeSet<(i64, i64)>,
}

impl Free {
    fn take(&mut self, size: i64) -> i64 {
        if let Some((room, offset)) = self.by_size.range((size, 0)..).next().copied() {
            self.remove(offset, room);
            if room > size {
                self.insert(offset + size, room - size);
            }
            return offset;
        }
        // A free place right below the top grows with it.
        let last = self.by_offset.last_key_value().map(|(offset, room)| (*offset, *room));
        let offset = match last.filter(|(offset, room)| offset + room == self.top) {
            Some((offset, room)) => {
                self.remove(offset, room);
                offset
            }
            None => self.top,
        };
        self.top = offset + size;
        offset
    }

    fn give(&mut self, offset: i64, size: i64) {
        let (mut start, mut end) = (offset, offset + size);
        if let Some((before, room)) =
            self.by_offset.range(..offset).next_back().map(|(at, room)| (*at, *room))
            && before + room == start
        {
            self.remove(before, room);
            start = before;
        }
        if let Some(room) = self.by_offset.get(&end).copied() {
            self.remove(end, room);
            end += room;
        }
        self.insert(start, end - start);
    }

    fn insert(&mut self, offset: i64, room: i64) {
        self.by_offset.insert(offset, room);
        self.by_size.insert((room, offset));
    }

    fn remove(&mut self, offset: i64, room: i64) {
        self.by_offset.remove(&offset);
        self.by_size.remove(&(room, offset));
    }
}

/// The number of (buffer, buffer alive when it begins) pairs, which a first-fit pass may have to read.
pub(crate) fn crowd(c: &Compact) -> u64 {
    let mut change = vec![0i64; c.sections + 1];
    let mut starts = vec![0u64; c.sections + 1];
    for slot in 0..c.len() {
        change[c.first[slot] as usize] += 1;
        change[c.last[slot] as usize] -= 1;
        starts[c.first[slot] as usize] += 1;
    }
    let mut alive = 0i64;
    change.iter().zip(&starts).fold(0u64, |sum, (change, starts)| {
        alive += change;
        sum.saturating_add(starts.saturating_mul(alive as u64))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::{Plan, Problem};
    use crate::validate::validate;
    use gapless_trace::Bytes;

    fn check(problem: &Problem) -> f64 {
        let compact = Compact::of_problem(problem);
        let mut offsets = vec![Bytes::ZERO; problem.len()];
        for (slot, offset) in sweep(&compact).into_iter().enumerate() {
            offsets[compact.original[slot] as usize] = Bytes((offset * compact.unit) as u64);
        }
        let plan = Plan::of_offsets(problem, offsets);
        validate(problem, &plan, None).unwrap();
        plan.peak.share_of(crate::bound::lower_bound(problem))
    }

    #[test]
    fn the_sweep_is_valid_and_not_absurd() {
        assert!(check(&crate::generated::heavy_tailed(2000, 1.3, 200.0, 1)) < 1.5);
        assert!(check(&crate::generated::training(2000, 200, 1)) < 1.5);
        assert!(check(&crate::generated::guillotine(500, 1 << 30, 1 << 30, 1)) < 3.0);
    }
}
