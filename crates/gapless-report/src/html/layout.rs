//! Where each allocation stands in the stacked timeline: one rectangle `[start, end) x [y, y + block)` each, at a fixed
//! `y`.
//!
//! Promises: no two rectangles overlap; what lives to the end lies at the bottom, in order of birth, without holes; the
//! top of the stack stays near the peak of the active bytes (1.00 to 1.08 times on recorded training runs, 1.25 on
//! random lifetimes); the same input gives the same picture. Exact packing is not the aim: the page draws the true
//! curves over it, holes stay visible.
//!
//! How: (1) dust, the many smallest blocks that together need less than 1/256 of the peak, share slots by size in a
//! band below everything else. (2) The run falls into parts where nothing lives that ends: steps, mostly, and many of
//! them alike. (3) Within a part what lives to the end is stacked by birth. (4) The rest comes by decreasing lifetime
//! and size: a rectangle falls into the lowest cave that holds it, else onto the skyline. A cave is a valley of the
//! skyline that a rectangle closed from above; it has a floor and a ceiling and is filled like the skyline itself.
//!
//! Time is counted in births: two lifetimes overlap if and only if the later birth lies in both, so only births are
//! positions. Every placement replaces the runs of floor below it by one run, so runs cost O(n log n) in all; caves
//! looked at are bounded per tree node.

use gapless_trace::Allocations;
use rustc_hash::{FxHashMap, FxHasher};
use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};

/// Caves looked at in each node of the tree, at most: more find hardly better places and cost time on a million
/// allocations.
const CAVES_PER_NODE: usize = 24;
/// The same for one allocation in all: of a few, of many.
const CAVES_IN_ALL: [usize; 2] = [96, 32];
/// Dust takes at most this share of the peak ...
const DUST_SHARE: u64 = 256;
/// ... and a cave lower than this share of the peak is not worth keeping: less than a pixel of most screens.
const CAVE_SHARE: u64 = 4096;

/// How much more a lifetime counts than a size in the order of placing. Long lives first make a calm picture, close to
/// the curve everywhere; even weights, that is decreasing area, make a lower one. Measured on recorded runs.
const CALM: u64 = 4;
const TIGHT: u64 = 1;
/// Up to so many allocations the second order is tried where the first is a tenth too high.
const SECOND_TRY: usize = 100_000;

/// Fewer allocations than this are not worth a second thread or a second look for parts.
const MANY: usize = 10_000;
/// How often a part is looked at for parts of its own. Steps within runs within a recording need two looks. Lifetimes
/// at random would give one allocation less at every look, without end.
const LOOKS: u32 = 3;

/// The rectangles' places.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// The lower edge of each allocation, in bytes.
    pub y: Vec<u64>,
    /// The upper edge of the highest one.
    pub height: u64,
}

/// Places every allocation. `forever` is the tick past the end, where what was never freed ends.
#[must_use]
pub fn place(allocations: &Allocations, forever: u32) -> Layout {
    let items = Items::read(allocations, forever);
    let mut y = vec![0u64; items.block.len()];
    let band = dust(&items, forever, &mut y);
    let rest: Vec<u32> = (0..items.block.len() as u32).filter(|&i| !band.contains(&items, i)).collect();
    let above = Parts::find(&items, &rest, forever).stack(&items, &rest, forever, LOOKS);
    for (&i, above) in rest.iter().zip(above) {
        y[i as usize] = band.height.saturating_add(above);
    }
    Layout { height: items.top(&y), y }
}

/// The layout that is given: one place an allocation, 0 where one is missing.
pub(super) fn given(allocations: &Allocations, places: &[u64]) -> Layout {
    let y: Vec<u64> = (0..allocations.len()).map(|i| places.get(i).copied().unwrap_or(0)).collect();
    let tops = y.iter().zip(allocations.iter()).map(|(&y, a)| y.saturating_add(a.block.0));
    Layout { height: tops.max().unwrap_or(0), y }
}

/// Stretches of a run that share nothing but what lives to the end: the steps of a training run. Each is stacked on its
/// own, and those that repeat an earlier one to the tick and byte are stacked as it was.
struct Parts {
    all: Vec<Part>,
    /// For each part the number of the distinct one that it is like, and the first part of each number.
    like: Vec<usize>,
    distinct: Vec<usize>,
}

/// `rest[from..to]`, upon what was there to stay before it.
#[derive(Clone, Copy)]
struct Part {
    from: usize,
    to: usize,
    ground: u64,
}

impl Parts {
    fn find(items: &Items, rest: &[u32], forever: u32) -> Parts {
        let mut parts = Parts { all: Vec::new(), like: Vec::new(), distinct: Vec::new() };
        let mut known: FxHashMap<u64, Vec<usize>> = FxHashMap::default();
        let (mut from, mut open_until, mut stays) = (0, 0, 0u64);
        let mut base = 0u64;
        for at in 0..=rest.len() {
            let ends = rest.get(at).is_none_or(|&i| items.start[i as usize] >= open_until);
            if at > from && ends {
                parts.add(items, rest, Part { from, to: at, ground: base }, forever, &mut known);
                base = base.saturating_add(std::mem::take(&mut stays));
                from = at;
            }
            if let Some(&i) = rest.get(at) {
                if items.end[i as usize] >= forever {
                    stays = stays.saturating_add(items.block[i as usize]);
                } else {
                    open_until = open_until.max(items.end[i as usize]);
                }
            }
        }
        parts
    }

    fn add(
        &mut self,
        items: &Items,
        rest: &[u32],
        part: Part,
        forever: u32,
        known: &mut FxHashMap<u64, Vec<usize>>,
    ) {
        let shape = |part: &Part| {
            let zero = items.start[rest[part.from] as usize];
            rest[part.from..part.to].iter().map(move |&i| {
                let i = i as usize;
                let end = if items.end[i] >= forever { u32::MAX } else { items.end[i] - zero };
                (items.start[i] - zero, end, items.block[i])
            })
        };
        let mut hasher = FxHasher::default();
        shape(&part).for_each(|item| item.hash(&mut hasher));
        let same = known.entry(hasher.finish()).or_default();
        let like =
            same.iter().copied().find(|&number| shape(&self.all[self.distinct[number]]).eq(shape(&part)));
        self.like.push(like.unwrap_or_else(|| {
            self.distinct.push(self.all.len());
            same.push(self.distinct.len() - 1);
            self.distinct.len() - 1
        }));
        self.all.push(part);
    }

    /// The places of `rest`, from 0 up. `looks` says how often parts may still be taken apart.
    fn stack(&self, items: &Items, rest: &[u32], forever: u32, looks: u32) -> Vec<u64> {
        let distinct = self.stack_distinct(items, rest, forever, looks);
        let mut y = Vec::with_capacity(rest.len());
        for (part, &like) in self.all.iter().zip(&self.like) {
            y.extend(distinct[like].iter().map(|&above| part.ground.saturating_add(above)));
        }
        y
    }

    /// The places of the distinct parts' allocations, above each part's ground.
    fn stack_distinct(&self, items: &Items, rest: &[u32], forever: u32, looks: u32) -> Vec<Vec<u64>> {
        let one = |&first: &usize| {
            let part = &self.all[first];
            stack_best(items, &rest[part.from..part.to], forever, looks)
        };
        let size = |&first: &usize| self.all[first].to - self.all[first].from;
        let total: usize = self.distinct.iter().map(size).sum();
        if self.distinct.len() < 2 || total < MANY || looks < LOOKS {
            return self.distinct.iter().map(one).collect();
        }
        // About half of the work for each of two threads; parts stay in order, so the result does not depend on it.
        let mut sum = 0;
        let mut early = 0;
        while sum * 2 < total {
            sum += size(&self.distinct[early]);
            early += 1;
        }
        let (early, late) = self.distinct.split_at(early);
        std::thread::scope(|scope| {
            let early = scope.spawn(|| early.iter().map(one).collect::<Vec<_>>());
            let late: Vec<_> = late.iter().map(one).collect();
            // A panic over there is ours.
            let mut all = early.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            all.extend(late);
            all
        })
    }
}

/// Stacks one part from 0 up: calm, or tight where that is clearly lower.
fn stack_best(items: &Items, rest: &[u32], forever: u32, looks: u32) -> Vec<u64> {
    if rest.len() < 2 {
        return vec![0; rest.len()];
    }
    // A part may fall apart further once what lives to its own end is set aside: a recording of several runs. Not where
    // something of it stays for good: later parts stand upon that, so it has to be at the bottom.
    if rest.len() > MANY && looks > 0 && rest.iter().all(|&i| items.end[i as usize] < forever) {
        let last_birth = items.start[rest[rest.len() - 1] as usize];
        let parts = Parts::find(items, rest, last_birth + 1);
        if parts.all.len() > 1 {
            return parts.stack(items, rest, last_birth + 1, looks - 1);
        }
    }
    let mut y = vec![0; rest.len()];
    stack(items, rest, forever, CALM, &mut y);
    if rest.len() <= SECOND_TRY {
        let top =
            |y: &[u64]| rest.iter().zip(y).map(|(&i, y)| y + items.block[i as usize]).max().unwrap_or(0);
        let (height, peak) = (top(&y), items.peak(rest));
        if height > peak + peak / 10 {
            let mut second = vec![0; rest.len()];
            stack(items, rest, forever, TIGHT, &mut second);
            if top(&second) < height {
                return second;
            }
        }
    }
    y
}

/// The three columns that matter here, close together.
struct Items {
    start: Vec<u32>,
    end: Vec<u32>,
    block: Vec<u64>,
}

impl Items {
    fn read(allocations: &Allocations, forever: u32) -> Items {
        let n = allocations.len();
        let mut items =
            Items { start: Vec::with_capacity(n), end: Vec::with_capacity(n), block: Vec::with_capacity(n) };
        for a in allocations.iter() {
            items.start.push(a.start.0);
            // An empty lifetime would be no rectangle; a reader cannot produce one, a caller's mistake must not hang
            // us.
            items.end.push(a.end.0.max(a.start.0 + 1));
            items.block.push(a.block.0);
        }
        // What is freed after the last birth and outlived everything freed before it lived to the end, as far as
        // stacking goes: a program that drops its model when it is done.
        let last_birth = items.start.last().copied().unwrap_or(0);
        let life = |i: usize| items.end[i] - items.start[i];
        let longest = (0..n).filter(|&i| items.end[i] <= last_birth).map(life).max().unwrap_or(0);
        let torn_down: Vec<usize> =
            (0..n).filter(|&i| items.end[i] > last_birth && life(i) / 3 > longest / 2).collect();
        for i in torn_down {
            items.end[i] = forever;
        }
        items
    }

    /// The most bytes that allocations of `some` hold at once.
    fn peak(&self, some: &[u32]) -> u64 {
        let mut changes: Vec<(u32, i64)> = some
            .iter()
            .flat_map(|&i| {
                let (i, block) = (i as usize, self.block[i as usize] as i64);
                [(self.start[i], block), (self.end[i], -block)]
            })
            .collect();
        // Frees at a tick come before births at it: smaller first.
        changes.sort_unstable();
        let (mut now, mut peak) = (0, 0);
        for (_, change) in changes {
            now += change;
            peak = peak.max(now);
        }
        peak as u64
    }

    fn top(&self, y: &[u64]) -> u64 {
        y.iter().zip(&self.block).map(|(&y, &block)| y.saturating_add(block)).max().unwrap_or(0)
    }
}

/// The band of dust: every block up to `largest` bytes is in it.
struct Band {
    largest: Option<u64>,
    height: u64,
}

impl Band {
    fn contains(&self, items: &Items, i: u32) -> bool {
        self.largest.is_some_and(|largest| items.block[i as usize] <= largest)
    }
}

/// Slots of one size: those in use at once at most, and the free ones while going through time.
#[derive(Default)]
struct Slots {
    count: u64,
    base: u64,
    free: Vec<u32>,
}

fn dust(items: &Items, forever: u32, y: &mut [u64]) -> Band {
    let n = items.block.len();
    // Which slot of its size each allocation takes, by running through time once. The ends at a tick are a linked list.
    let mut first_end = vec![u32::MAX; forever as usize + 1];
    let mut next_end = vec![u32::MAX; n];
    let mut slot = vec![0u32; n];
    let mut class_of: FxHashMap<u64, u32> = FxHashMap::default();
    let mut classes: Vec<(u64, Slots)> = Vec::new();
    let mut class = vec![0u32; n];
    let mut tick = 0;
    let (mut active, mut peak) = (0u64, 0u64);
    for i in 0..n {
        while tick <= items.start[i].min(forever) {
            let mut ended = first_end[tick as usize];
            while ended != u32::MAX {
                active -= items.block[ended as usize];
                classes[class[ended as usize] as usize].1.free.push(slot[ended as usize]);
                ended = next_end[ended as usize];
            }
            tick += 1;
        }
        let block = items.block[i];
        active += block;
        peak = peak.max(active);
        let at = *class_of.entry(block).or_insert_with(|| {
            classes.push((block, Slots::default()));
            classes.len() as u32 - 1
        });
        class[i] = at;
        let slots = &mut classes[at as usize].1;
        slot[i] = slots.free.pop().unwrap_or_else(|| {
            slots.count += 1;
            slots.count as u32 - 1
        });
        let end = &mut first_end[items.end[i].min(forever) as usize];
        // An end at or before the running tick would be missed: keep such a block for good, which is merely less tight.
        if items.end[i] >= tick {
            next_end[i] = std::mem::replace(end, i as u32);
        }
    }

    let mut by_size: Vec<u32> = (0..classes.len() as u32).collect();
    by_size.sort_unstable_by_key(|&at| classes[at as usize].0);
    let mut band = Band { largest: None, height: 0 };
    for at in by_size {
        let (block, slots) = &mut classes[at as usize];
        let height = band.height.saturating_add(slots.count.saturating_mul(*block));
        if height > peak / DUST_SHARE {
            break;
        }
        slots.base = band.height;
        band = Band { largest: Some(*block), height };
    }
    for i in 0..n as u32 {
        if band.contains(items, i) {
            let i = i as usize;
            y[i] = classes[class[i] as usize].1.base + u64::from(slot[i]) * items.block[i];
        }
    }
    band
}

/// 256 times the binary logarithm, straight lines between the powers of two: the same on every machine.
fn log2(value: u64) -> u64 {
    let value = value.max(1);
    let whole = u64::from(value.ilog2());
    let fraction = if whole >= 8 { value >> (whole - 8) } else { value << (8 - whole) } & 255;
    whole << 8 | fraction
}

/// Stacks `rest` from 0 up, `y[at]` for `rest[at]`; a lifetime counts `weight` times as much as a size.
fn stack(items: &Items, rest: &[u32], forever: u32, weight: u64, y: &mut [u64]) {
    let starts: Vec<u32> = rest.iter().map(|&i| items.start[i as usize]).collect();
    // (key, position of birth, position of the first birth after its end), smallest key first.
    let mut order: Vec<(u64, u32, u32)> = Vec::with_capacity(rest.len());
    let mut base = 0u64;
    let mut skyline = Floor::Tall(BTreeMap::from([(0, 0)]));
    for (at, &i) in rest.iter().enumerate() {
        let (start, end, block) = (items.start[i as usize], items.end[i as usize], items.block[i as usize]);
        if end >= forever {
            y[at] = base;
            base = base.saturating_add(block);
            skyline.append(at as u32, base);
        } else {
            let after = at + starts[at..].partition_point(|&s| s < end);
            let key = weight * log2(u64::from(end - start)) + log2(block);
            order.push((u64::MAX - key, at as u32, after as u32));
        }
    }
    order.sort_unstable();

    let peak_estimate =
        base.max(order.iter().map(|o| items.block[rest[o.1 as usize] as usize]).max().unwrap_or(0));
    let mut sky = Cave { end: rest.len() as u32, start: 0, ceiling: u64::MAX, floor: skyline };
    let mut caves = Caves::new(rest.len(), peak_estimate / CAVE_SHARE);
    let mut closed = Vec::new();
    for &(_, at, after) in &order {
        let block = items.block[rest[at as usize] as usize];
        y[at as usize] = if let Some((low, cave)) = caves.lowest(at, after, block) {
            caves.place(cave, at, after, low, block, &mut closed);
            low
        } else {
            // The sky has no ceiling, so this always fits.
            let low = sky.fit(at, after, block).unwrap_or(0);
            sky.place(at, after, low, block, &mut closed);
            low
        };
        for cave in closed.drain(..) {
            caves.add(cave);
        }
    }
}

/// Room between a floor and a ceiling, over the births `[start, end)`.
/// Invariant: no run of the floor is higher than the ceiling.
struct Cave {
    start: u32,
    end: u32,
    ceiling: u64,
    floor: Floor,
}

/// Runs of constant height: (first birth, height), by birth. Few: a vector. The sky has as many as there are steps in
/// it: a tree.
enum Floor {
    Short(Vec<(u32, u64)>),
    Tall(BTreeMap<u32, u64>),
}

impl Floor {
    fn append(&mut self, at: u32, height: u64) {
        match self {
            Floor::Short(runs) => runs.push((at, height)),
            Floor::Tall(runs) => {
                runs.insert(at, height);
            }
        }
    }

    /// The highest floor over `[from, to)`, unless it passes `limit`.
    fn highest(&self, from: u32, to: u32, limit: u64) -> Option<u64> {
        let mut highest = 0;
        match self {
            Floor::Short(runs) => {
                let first = runs.partition_point(|r| r.0 <= from).saturating_sub(1);
                for &(_, height) in runs[first..].iter().take_while(|r| r.0 < to) {
                    if height > limit {
                        return None;
                    }
                    highest = highest.max(height);
                }
            }
            Floor::Tall(runs) => {
                highest = runs.range(..=from).next_back().map_or(0, |(_, &height)| height);
                for &height in runs.range(from + 1..to.max(from + 1)).map(|(_, height)| height) {
                    highest = highest.max(height);
                }
            }
        }
        (highest <= limit).then_some(highest)
    }

    /// Puts one run of `height` over `[from, to)`, the cave ending at `end`; the runs that were there go into `under`.
    fn replace(&mut self, from: u32, to: u32, end: u32, height: u64, under: &mut Vec<(u32, u64)>) {
        under.clear();
        match self {
            Floor::Short(runs) => {
                let first = runs.partition_point(|r| r.0 <= from).saturating_sub(1);
                let past = runs.partition_point(|r| r.0 < to);
                under.extend_from_slice(&runs[first..past]);
                let tail = under.last().map_or(0, |r| r.1);
                let keep_head = under.first().is_some_and(|r| r.0 < from);
                let keep_tail = to < end && runs.get(past).is_none_or(|r| r.0 > to);
                let new = [(from, height), (to, tail)];
                runs.splice(
                    first + usize::from(keep_head)..past,
                    new[..1 + usize::from(keep_tail)].iter().copied(),
                );
            }
            Floor::Tall(runs) => {
                let head = runs.range(..=from).next_back().map_or(0, |(_, &h)| h);
                under.push((from, head));
                under.extend(runs.range(from + 1..to.max(from + 1)).map(|(&at, &h)| (at, h)));
                for run in &under[1..] {
                    runs.remove(&run.0);
                }
                runs.insert(from, height);
                let tail = under[under.len() - 1].1;
                if to < end {
                    runs.entry(to).or_insert(tail);
                }
            }
        }
        if let Some(head) = under.first_mut() {
            head.0 = from;
        }
    }
}

impl Cave {
    /// The lowest place for `block` over `[from, to)`.
    fn fit(&self, from: u32, to: u32, block: u64) -> Option<u64> {
        self.floor.highest(from, to, self.ceiling.checked_sub(block)?)
    }

    /// Puts a rectangle there; the valleys that it closes from above become caves in `closed`.
    fn place(&mut self, from: u32, to: u32, low: u64, block: u64, closed: &mut Vec<Cave>) {
        let mut under = Vec::new();
        self.floor.replace(from, to, self.end, low.saturating_add(block), &mut under);
        let mut runs = under.as_slice();
        while let Some(&(start, height)) = runs.first() {
            let valley = runs.iter().take_while(|r| r.1 < low).count();
            if height < low {
                let end = runs.get(valley).map_or(to, |r| r.0);
                closed.push(Cave { start, end, ceiling: low, floor: Floor::Short(runs[..valley].to_vec()) });
            }
            runs = &runs[valley.max(1)..];
        }
    }
}

/// All caves, found by a birth that they contain: an interval tree over births. A cave is kept at the smallest node
/// that covers it.
struct Caves {
    all: Vec<Cave>,
    lowest_worth: u64,
    looks: usize,
    size: u32,
    /// The newest cave of each node, or NONE.
    heads: Vec<u32>,
    /// One for each cave.
    entries: Vec<Entry>,
}

/// What decides at a glance whether a cave may do: most do not, and the cave itself lies elsewhere in memory.
#[derive(Clone, Copy)]
struct Entry {
    start: u32,
    end: u32,
    /// From the lowest floor to the ceiling.
    room: u64,
    next: u32,
}

const NONE: u32 = u32::MAX;

impl Caves {
    fn new(births: usize, lowest_worth: u64) -> Caves {
        let size = births.max(1).next_power_of_two() as u32;
        Caves {
            all: Vec::new(),
            lowest_worth: lowest_worth.max(1),
            looks: CAVES_IN_ALL[usize::from(births > SECOND_TRY)],
            size,
            heads: vec![NONE; 2 * size as usize],
            entries: Vec::new(),
        }
    }

    fn add(&mut self, cave: Cave) {
        let Floor::Short(runs) = &cave.floor else { return };
        let room = cave.ceiling - runs.iter().map(|r| r.1).min().unwrap_or(0);
        if room < self.lowest_worth {
            return;
        }
        // The smallest node over [start, end): the births' numbers agree above their highest differing bit.
        let (first, last) = (cave.start + self.size, cave.end - 1 + self.size);
        let node = (first >> (u32::BITS - (first ^ last).leading_zeros())) as usize;
        self.entries.push(Entry { start: cave.start, end: cave.end, room, next: self.heads[node] });
        self.heads[node] = self.all.len() as u32;
        self.all.push(cave);
    }

    fn place(&mut self, cave: u32, from: u32, to: u32, low: u64, block: u64, closed: &mut Vec<Cave>) {
        let own = &mut self.all[cave as usize];
        own.place(from, to, low, block, closed);
        if let Floor::Short(runs) = &own.floor
            && runs.len() <= 8
        {
            self.entries[cave as usize].room = own.ceiling - runs.iter().map(|r| r.1).min().unwrap_or(0);
        }
    }

    /// The lowest place for `block` over `[from, to)` in any cave, and that cave. Full caves on the way are forgotten.
    fn lowest(&mut self, from: u32, to: u32, block: u64) -> Option<(u64, u32)> {
        let mut best: Option<(u64, u32)> = None;
        // A place for a thin one matters little.
        let most = if block < self.lowest_worth * 4 { CAVES_PER_NODE / 4 } else { CAVES_PER_NODE };
        let (first, last) = (from + self.size, to - 1 + self.size);
        // A cave that holds the interval lies at the smallest node over it, or above.
        let mut node = first >> (u32::BITS - (first ^ last).leading_zeros());
        let mut left = self.looks;
        while node > 0 && left > 0 {
            let mut before = NONE;
            let mut at = self.heads[node as usize];
            let mut here = most.min(left);
            left -= here;
            while at != NONE && here > 0 {
                let Entry { start, end, room, next } = self.entries[at as usize];
                if room < self.lowest_worth {
                    match self.entries.get_mut(before as usize) {
                        Some(entry) => entry.next = next,
                        None => self.heads[node as usize] = next,
                    }
                    at = next;
                    continue;
                }
                here -= 1;
                if start <= from && to <= end && block <= room {
                    let cave = &self.all[at as usize];
                    if best.is_none_or(|(low, _)| low + block <= cave.ceiling)
                        && let Some(low) = cave.fit(from, to, block)
                        && best.is_none_or(|(lowest, _)| low < lowest)
                    {
                        best = Some((low, at));
                    }
                }
                before = at;
                at = next;
            }
            left += here;
            node /= 2;
        }
        best
    }
}
