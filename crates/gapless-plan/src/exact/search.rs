//! Depth-first search for a plan within a capacity: complete, so that "no" is a proof.
//!
//! Plans are built from the bottom up. The state is one number for each unplaced buffer: `low`, the lowest offset that
//! the placed buffers below leave it. From these follow, for each section, its floor (the least `low` of the buffers in
//! it). A *valley* is a run of sections of equal floor with higher floors on both sides: only buffers wholly inside it
//! can lie on its floor. At one section of one valley the search asks: which buffer lies on the floor here? The answers
//! exclude each other: one of the buffers inside the valley that cover the section, or none; "none" raises the floor
//! there to the next height that anything could rest on. Every plan, once all its buffers are let down, is reached by
//! exactly one sequence of answers.
//!
//! Pruning: in each section the unplaced buffers are jobs with release dates `low` on one machine with the deadline
//! `capacity` (the section bound); failed states are remembered by hash; parts of time that no unplaced buffer
//! connects are searched apart, the smallest first.

use crate::compact::Compact;
use crate::options::Tricks;
use crate::rng::{Rng, mix};

/// 2^17 states of 16 bytes: 2 MiB, which stays in the second-level cache and is cleared quickly.
const MEMO_BITS: u32 = 17;

/// Weight that one failure adds to its section. Larger values follow the last failure too closely: on the challenging
/// set 0.002 solved all of 88 runs within 50,000 nodes, 0.01 left 3 to 7, and 0.03 up to 14.
const FAILURE_WEIGHT: f64 = 0.002;

/// The deepest that the search goes, in buffers: each is placed once, and floors are raised now and then.
pub(crate) const DEPTH_PER_BUFFER: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Fits,
    DoesNotFit,
    /// The budget of nodes ran out, or the search was stopped.
    Unknown,
}

/// The order in which the buffers that may lie at one place are tried.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Order {
    pub(crate) value: Value,
    /// Strength of the random changes to the order of buffers: 0 for none.
    pub(crate) noise: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    Area,
    Size,
    Length,
    /// Sections covered first, then size.
    LengthSize,
}

pub(crate) struct Search<'a> {
    compact: &'a Compact,
    capacity: i64,
    low: Vec<i64>,
    pub(crate) place: Vec<i64>,
    /// A permutation of the buffers; each open component owns a range of it.
    items: Vec<u32>,
    trail: Vec<(u32, i64)>,
    floor: Vec<i64>,
    total: Vec<i64>,
    count: Vec<i32>,
    fill: Vec<i64>,
    least: Vec<i64>,
    valley: Vec<(u32, u32)>,
    weight: Vec<f64>,
    keys: Vec<f64>,
    options: Tricks,
    heat: f64,
    failed: Failed,
    pub(crate) nodes: u64,
    limit: u64,
    depth: usize,
    candidates: Vec<u32>,
}

impl<'a> Search<'a> {
    pub(crate) fn new(compact: &'a Compact, capacity: i64, options: Tricks) -> Search<'a> {
        let (n, s) = (compact.len(), compact.sections);
        Search {
            compact,
            capacity,
            low: vec![0; n],
            place: vec![0; n],
            items: (0..n as u32).collect(),
            trail: Vec::new(),
            floor: vec![0; s + 1],
            total: vec![0; s + 1],
            count: vec![0; s + 1],
            fill: vec![0; s + 1],
            least: vec![0; s + 1],
            valley: vec![(0, 0); s + 1],
            weight: vec![1.0; s + 1],
            keys: vec![0.0; n],
            options,
            heat: if options.weigh_failures { FAILURE_WEIGHT } else { 0.0 },
            failed: Failed::new(if options.remember_failures { MEMO_BITS } else { 0 }),
            nodes: 0,
            limit: 0,
            depth: 0,
            candidates: Vec::new(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.compact.len()
    }

    /// Searches from the root until the budget of nodes is used up. States that earlier calls refuted stay refuted.
    pub(crate) fn run(
        &mut self,
        order: Order,
        seed: u64,
        budget: u64,
        stop: &(dyn Fn() -> bool + Sync),
    ) -> Answer {
        let mut rng = Rng::new(seed);
        self.limit = self.nodes + budget;
        self.trail.clear();
        self.candidates.clear();
        self.depth = 0;
        self.low.fill(0);
        let c = self.compact;
        for slot in 0..c.len() {
            let length = f64::from(c.last[slot] - c.first[slot]);
            let size = c.size[slot] as f64;
            let key = match order.value {
                Value::Area => length * size,
                Value::Size => size,
                Value::Length => length,
                Value::LengthSize => length * 1e6 + size,
            };
            self.keys[slot] = key * (1.0 + order.noise * (rng.unit() - 0.5));
        }
        let n = c.len();
        if n == 0 {
            return Answer::Fits;
        }
        self.solve_parts(0, n, stop)
    }

    /// The items of the range, which may fall into several components: all of them must be solved.
    fn solve_parts(&mut self, from: usize, to: usize, stop: &(dyn Fn() -> bool + Sync)) -> Answer {
        if from == to {
            return Answer::Fits;
        }
        let c = self.compact;
        self.items[from..to].sort_unstable_by_key(|item| (c.first[*item as usize], *item));
        let mut parts: Vec<(usize, usize)> = Vec::new();
        let mut start = from;
        let mut end = c.last[self.items[from] as usize];
        for at in from + 1..to {
            let item = self.items[at] as usize;
            if c.first[item] >= end {
                parts.push((start, at));
                start = at;
            }
            end = end.max(c.last[item]);
        }
        parts.push((start, to));
        parts.sort_by_key(|(start, end)| end - start);
        for (start, end) in parts {
            match self.solve(start, end, stop) {
                Answer::Fits => {}
                other => return other,
            }
        }
        Answer::Fits
    }

    /// One component: its items are connected in time.
    fn solve(&mut self, from: usize, to: usize, stop: &(dyn Fn() -> bool + Sync)) -> Answer {
        if self.depth >= self.compact.len() * DEPTH_PER_BUFFER + 64 {
            return Answer::Unknown;
        }
        if self.nodes >= self.limit || (self.nodes % 256 == 255 && stop()) {
            return Answer::Unknown;
        }
        self.nodes += 1;
        let c = self.compact;
        // Nearly sorted already: a child's order is its parent's but for the few items that moved up.
        insertion_sort(&mut self.items[from..to], |item| -self.low[item as usize]);
        let mut begin = c.sections;
        let mut end = 0;
        let mut key = 0u128;
        for item in &self.items[from..to] {
            let item = *item as usize;
            begin = begin.min(c.first[item] as usize);
            end = end.max(c.last[item] as usize);
            let part = mix((item as u64) << 40 ^ self.low[item] as u64);
            key = key.wrapping_add(u128::from(part) << 64 | u128::from(mix(part ^ 0xabcd_ef01_2345_6789)));
        }
        if self.failed.contains(key) {
            return Answer::DoesNotFit;
        }
        self.total[begin..end].fill(0);
        let mut worst = None;
        for item in &self.items[from..to] {
            let item = *item as usize;
            let (first, last) = (c.first[item] as usize, c.last[item] as usize);
            let (low, size) = (self.low[item], c.size[item]);
            let room = self.capacity - low;
            let mut most = 0;
            for (total, floor) in self.total[first..last].iter_mut().zip(&mut self.floor[first..last]) {
                *total += size;
                *floor = low;
                most = most.max(*total);
            }
            if most > room && self.options.section_bound {
                worst = Some((first, last, room));
                break;
            }
        }
        if !self.options.section_bound
            && (begin..end).any(|section| self.floor[section] + self.total[section] > self.capacity)
        {
            return Answer::DoesNotFit;
        }
        if let Some((first, last, room)) = worst {
            for section in first..last {
                if self.total[section] > room {
                    self.weight[section] += self.heat;
                }
            }
            return Answer::DoesNotFit;
        }
        if self.total[begin..end].contains(&0) {
            return self.solve_parts(from, to, stop);
        }
        self.find_valleys(begin, end);
        let Some((section, base)) = self.choose(from, to, begin, end) else {
            self.failed.insert(key);
            return Answer::DoesNotFit;
        };
        self.depth += 1;
        let answer = self.branch(from, to, section, base, stop);
        self.depth -= 1;
        if answer == Answer::DoesNotFit {
            self.failed.insert(key);
        }
        answer
    }

    /// Finds the valley of each section, or an empty interval.
    fn find_valleys(&mut self, begin: usize, end: usize) {
        let mut at = begin;
        while at < end {
            let floor = self.floor[at];
            let mut next = at + 1;
            while next < end && self.floor[next] == floor {
                next += 1;
            }
            let left = at == begin || self.floor[at - 1] > floor;
            let right = next == end || self.floor[next] > floor;
            let valley = if left && right { (at as u32, next as u32) } else { (0, 0) };
            self.valley[at..next].fill(valley);
            at = next;
        }
    }

    /// The section to ask about, or none if some section has no answer left.
    fn choose(&mut self, from: usize, to: usize, begin: usize, end: usize) -> Option<(usize, i64)> {
        let c = self.compact;
        self.count[begin..=end].fill(0);
        self.fill[begin..=end].fill(0);
        self.least[begin..end].fill(i64::MAX);
        for item in &self.items[from..to] {
            let item = *item as usize;
            let (first, last) = (c.first[item] as usize, c.last[item] as usize);
            if c.last[item] <= self.valley[first].1 && self.floor[first] == self.low[item] {
                self.count[first] += 1;
                self.count[last] -= 1;
                self.fill[first] += c.size[item];
                self.fill[last] -= c.size[item];
                let start = self.valley[first].0 as usize;
                self.least[start] = self.least[start].min(c.size[item]);
            }
        }
        let plain = c.align.is_empty();
        let (mut count, mut fill) = (0, 0);
        let mut best: Option<(f64, usize)> = None;
        for section in begin..end {
            count += self.count[section];
            fill += self.fill[section];
            let (start, stop) = self.valley[section];
            if start == stop {
                continue;
            }
            let floor = self.floor[section];
            let slack = self.capacity - floor - self.total[section];
            let left = if start as usize == begin { i64::MAX } else { self.floor[start as usize - 1] };
            let right = if stop as usize == end { i64::MAX } else { self.floor[stop as usize] };
            let wall = left.min(right);
            // Up to the lower wall only buffers inside the valley can fill the section; the rest is waste.
            if self.options.valley_fill && plain && wall != i64::MAX && fill + slack < wall - floor {
                self.weight[section] += self.heat;
                return None;
            }
            // With alignment, a floor may rise by any step, and buffers inside that are not yet low enough may fill it.
            let step = self.least[start as usize].min(if wall == i64::MAX { i64::MAX } else { wall - floor });
            let options = f64::from(count) + if slack >= step || !plain { 1.0 } else { 0.0 };
            if options == 0.0 {
                self.weight[section] += self.heat;
                return None;
            }
            let score = if self.options.fewest_answers {
                // Fewest answers first; among equals, sections that failed often, low ones, and those with little to
                // waste.
                options / self.weight[section]
                    + (0.5 * floor as f64 + 2.0 * slack as f64) / self.capacity as f64
            } else {
                floor as f64
            };
            if best.is_none_or(|(least, _)| score < least) {
                best = Some((score, section));
            }
        }
        best.map(|(_, section)| (section, self.floor[section]))
    }

    fn branch(
        &mut self,
        from: usize,
        to: usize,
        section: usize,
        base: i64,
        stop: &(dyn Fn() -> bool + Sync),
    ) -> Answer {
        let c = self.compact;
        let slack = self.capacity - base - self.total[section];
        let (left, right) = self.valley[section];
        // If nothing lies on the floor here, the lowest buffer here rests on one of these.
        let mut next = i64::MAX;
        let mark = self.candidates.len();
        for item in &self.items[from..to] {
            let item = *item as usize;
            let covers = (c.first[item] as usize) <= section && section < c.last[item] as usize;
            if covers {
                if self.low[item] == base {
                    self.candidates.push(item as u32);
                } else {
                    next = next.min(self.low[item]);
                }
            } else if c.first[item] < right && c.last[item] > left {
                next = next.min(self.low[item] + c.size[item]);
            }
        }
        let keys = &self.keys;
        self.candidates[mark..]
            .sort_unstable_by(|a, b| keys[*b as usize].total_cmp(&keys[*a as usize]).then(a.cmp(b)));
        let mut at = mark;
        let mut answer = Answer::DoesNotFit;
        while at < self.candidates.len() {
            let item = self.candidates[at] as usize;
            at += 1;
            let twin = self.candidates[mark..at - 1].iter().any(|other| {
                let other = *other as usize;
                c.first[other] == c.first[item]
                    && c.last[other] == c.last[item]
                    && c.size[other] == c.size[item]
                    && c.align_of(other) == c.align_of(item)
            });
            if twin {
                continue;
            }
            let undo = self.trail.len();
            self.put(from, to, item);
            answer = if from + 1 == to { Answer::Fits } else { self.solve(from + 1, to, stop) };
            if answer == Answer::Fits {
                return answer;
            }
            self.undo(undo);
            if answer == Answer::Unknown {
                break;
            }
        }
        let rest = answer != Answer::Unknown && next != i64::MAX && next - base <= slack;
        self.candidates.truncate(mark);
        if rest {
            let undo = self.trail.len();
            for at in from..to {
                let item = self.items[at] as usize;
                if (c.first[item] as usize) <= section
                    && section < c.last[item] as usize
                    && self.low[item] < next
                {
                    self.raise(item, next);
                }
            }
            answer = self.solve(from, to, stop);
            if answer != Answer::Fits {
                self.undo(undo);
            }
        }
        answer
    }

    /// Puts the item on its lowest place and moves it to the front of the range.
    fn put(&mut self, from: usize, to: usize, item: usize) {
        let c = self.compact;
        let at = (from..to).find(|at| self.items[*at] as usize == item).unwrap_or(from);
        self.items[from..=at].rotate_right(1);
        self.place[item] = self.low[item];
        let top = self.low[item] + c.size[item];
        for at in from + 1..to {
            let other = self.items[at] as usize;
            if c.first[other] < c.last[item] && c.first[item] < c.last[other] && self.low[other] < top {
                self.raise(other, top);
            }
        }
    }

    fn raise(&mut self, item: usize, height: i64) {
        self.trail.push((item as u32, self.low[item]));
        let align = self.compact.align_of(item);
        self.low[item] = if align > 1 { (height + align - 1) / align * align } else { height };
    }

    fn undo(&mut self, mark: usize) {
        while self.trail.len() > mark {
            if let Some((item, low)) = self.trail.pop() {
                self.low[item as usize] = low;
            }
        }
    }
}

fn insertion_sort(items: &mut [u32], key: impl Fn(u32) -> i64) {
    for at in 1..items.len() {
        let item = items[at];
        let value = key(item);
        let mut hole = at;
        while hole > 0 && key(items[hole - 1]) > value {
            items[hole] = items[hole - 1];
            hole -= 1;
        }
        items[hole] = item;
    }
}

/// States known to fail, by hash; two slots a bucket, the younger replaces the second.
struct Failed {
    slots: Vec<u128>,
    mask: usize,
}

impl Failed {
    fn new(bits: u32) -> Failed {
        if bits == 0 {
            return Failed { slots: Vec::new(), mask: 0 };
        }
        Failed { slots: vec![0; 1 << bits], mask: (1 << bits) - 2 }
    }

    fn contains(&self, key: u128) -> bool {
        if self.slots.is_empty() {
            return false;
        }
        let at = key as usize & self.mask;
        self.slots[at] == key || self.slots[at + 1] == key
    }

    fn insert(&mut self, key: u128) {
        if self.slots.is_empty() {
            return;
        }
        let at = key as usize & self.mask;
        self.slots[at + 1] = self.slots[at];
        self.slots[at] = key;
    }
}
