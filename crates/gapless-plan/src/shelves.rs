//! Finds the lowest free place for a buffer: the structure behind every first-fit pass.
//!
//! Placed buffers are kept by length: level j holds those that cover at most 4^j sections, in blocks of 4^j sections,
//! so a buffer stands in at most two blocks of its level. A block is sorted by offset. A query walks the blocks that
//! its lifetime touches on all levels at once: its candidate only ever moves up, past the end of each buffer in its
//! way, so each block is read once from the bottom and no merging is needed. For b buffers alive nearby a query reads
//! O(b) entries in sequence; there are no lists of overlapping pairs, and memory is O(n).

use crate::compact::Compact;

#[derive(Clone, Copy, Debug)]
struct Entry {
    offset: i64,
    end: i64,
    first: u32,
    last: u32,
    item: u32,
}

#[derive(Clone, Debug)]
pub struct Shelves {
    /// Blocks of all levels, one level after the other.
    blocks: Vec<Vec<Entry>>,
    /// First block of each level in `blocks`.
    base: Vec<usize>,
    /// Read positions of a query, kept to save allocations.
    heads: Vec<(u32, u32)>,
}

const STEP_BITS: u32 = 2;

fn level_of(length: u32) -> usize {
    let bits = u32::BITS - (length.max(1) - 1).leading_zeros();
    bits.div_ceil(STEP_BITS) as usize
}

impl Shelves {
    pub fn new(sections: usize) -> Shelves {
        let mut base = vec![0];
        let mut count = 0;
        for level in 0..=level_of(sections.max(1) as u32) {
            count += (sections >> (level as u32 * STEP_BITS)) + 1;
            base.push(count);
        }
        Shelves { blocks: vec![Vec::new(); count], base, heads: Vec::new() }
    }

    pub fn clear(&mut self) {
        for block in &mut self.blocks {
            block.clear();
        }
    }

    pub fn insert(&mut self, compact: &Compact, item: u32, offset: i64) {
        let (first, last) = (compact.first[item as usize], compact.last[item as usize]);
        let entry = Entry { offset, end: offset + compact.size[item as usize], first, last, item };
        for at in self.home(first, last) {
            let block = &mut self.blocks[at];
            let position = block.partition_point(|other| other.offset < offset);
            block.insert(position, entry);
        }
    }

    pub fn remove(&mut self, compact: &Compact, item: u32, offset: i64) {
        let (first, last) = (compact.first[item as usize], compact.last[item as usize]);
        for at in self.home(first, last) {
            let block = &mut self.blocks[at];
            let mut position = block.partition_point(|other| other.offset < offset);
            while position < block.len() && block[position].offset == offset {
                if block[position].item == item {
                    block.remove(position);
                    break;
                }
                position += 1;
            }
        }
    }

    fn home(&self, first: u32, last: u32) -> std::ops::RangeInclusive<usize> {
        let level = level_of(last - first);
        let shift = level as u32 * STEP_BITS;
        self.base[level] + (first >> shift) as usize..=self.base[level] + ((last - 1) >> shift) as usize
    }

    /// The placed buffers alive somewhere in `[first, last)`, as (offset, end, item) in order.
    pub fn neighbours(&self, first: u32, last: u32, into: &mut Vec<(i64, i64, u32)>) {
        into.clear();
        for level in 0..self.base.len() - 1 {
            let shift = level as u32 * STEP_BITS;
            let base = self.base[level];
            for at in (first >> shift) as usize..=((last - 1) >> shift) as usize {
                for entry in &self.blocks[base + at] {
                    // An entry that stands in two blocks is taken from the first one that the query touches.
                    let seen = ((entry.first.max(first)) >> shift) as usize != at;
                    if entry.first < last && first < entry.last && !seen {
                        into.push((entry.offset, entry.end, entry.item));
                    }
                }
            }
        }
        into.sort_unstable();
    }

    /// The lowest offset at or above `from`, a multiple of `align`, at which `size` bytes are free throughout `[first,
    /// last)`; `None` if it would end above `limit`.
    pub fn lowest(
        &mut self,
        first: u32,
        last: u32,
        size: i64,
        align: i64,
        from: i64,
        limit: i64,
    ) -> Option<i64> {
        self.heads.clear();
        for level in 0..self.base.len() - 1 {
            let shift = level as u32 * STEP_BITS;
            let range = self.base[level] + (first >> shift) as usize
                ..=self.base[level] + ((last - 1) >> shift) as usize;
            for at in range {
                if !self.blocks[at].is_empty() {
                    self.heads.push((at as u32, 0));
                }
            }
        }
        let mut place = round_up(from, align);
        loop {
            let before = place;
            let mut head = 0;
            while head < self.heads.len() {
                let (at, mut position) = self.heads[head];
                let block = &self.blocks[at as usize];
                let mut reach = place + size;
                while let Some(entry) = block.get(position as usize) {
                    if entry.offset >= reach {
                        break;
                    }
                    position += 1;
                    if entry.end > place && entry.first < last && first < entry.last {
                        place = round_up(entry.end, align);
                        reach = place + size;
                    }
                }
                if position as usize == block.len() {
                    self.heads.swap_remove(head);
                } else {
                    self.heads[head].1 = position;
                    head += 1;
                }
                if place > limit - size {
                    return None;
                }
            }
            if place == before {
                return (place <= limit - size).then_some(place);
            }
        }
    }
}

pub fn round_up(value: i64, align: i64) -> i64 {
    if align <= 1 { value } else { (value + align - 1) / align * align }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::Lifetime;
    use crate::rng::Rng;

    /// The naive twin: every offset from the bottom up, against every placed buffer.
    fn naive(c: &Compact, placed: &[(u32, i64)], slot: usize, align: i64, from: i64) -> i64 {
        let free = |place: i64| {
            placed.iter().all(|(other, offset)| {
                let other = *other as usize;
                let apart = c.last[other] <= c.first[slot] || c.last[slot] <= c.first[other];
                apart || place + c.size[slot] <= *offset || offset + c.size[other] <= place
            })
        };
        (0..).map(|step| round_up(from, align) + step * align).find(|place| free(*place)).unwrap_or(0)
    }

    #[test]
    fn queries_inserts_and_removals_agree_with_a_naive_twin() {
        let mut rng = Rng::new(1);
        for _ in 0..20 {
            let spans: Vec<(Lifetime, i64)> = (0..80)
                .map(|_| {
                    let start = rng.below(200) as i64;
                    let length = 1 + (rng.below(14) * rng.below(14)) as i64;
                    (Lifetime::new(start, start + length), 1 + rng.below(9) as i64)
                })
                .collect();
            let c = Compact::of_spans(&spans);
            let mut shelves = Shelves::new(c.sections);
            let mut placed: Vec<(u32, i64)> = Vec::new();
            let mut around = Vec::new();
            for step in 0..200u64 {
                if step % 3 == 2 && !placed.is_empty() {
                    let (item, offset) = placed.swap_remove(rng.below(placed.len() as u64) as usize);
                    shelves.remove(&c, item, offset);
                    continue;
                }
                let slot = rng.below(80) as usize;
                if placed.iter().any(|(item, _)| *item as usize == slot) {
                    continue;
                }
                let (align, from) = (1 + rng.below(4) as i64, rng.below(10) as i64);
                let (first, last, size) = (c.first[slot], c.last[slot], c.size[slot]);
                let expected = naive(&c, &placed, slot, align, from);
                assert_eq!(shelves.lowest(first, last, size, align, from, i64::MAX), Some(expected));
                assert_eq!(shelves.lowest(first, last, size, align, from, expected + size - 1), None);
                shelves.neighbours(first, last, &mut around);
                let overlap = |item: u32| c.first[item as usize] < last && first < c.last[item as usize];
                assert_eq!(around.len(), placed.iter().filter(|(item, _)| overlap(*item)).count());
                shelves.insert(&c, slot as u32, expected);
                placed.push((slot as u32, expected));
            }
        }
    }
}
