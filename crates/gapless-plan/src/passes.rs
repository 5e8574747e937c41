//! Constructive passes: every buffer in some order, each as low as it goes. O(n log n) for the order; a placement reads
//! the buffers alive nearby (see [`shelves`](crate::shelves)).

use crate::compact::Compact;
use crate::shelves::Shelves;

/// The order in which a pass takes the buffers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Order {
    /// By size times the length of the lifetime to this power, largest first.
    Weight(f64),
    /// By the fullest section they are alive in, in fifths of the peak; then longest first.
    FullestThenLength,
    /// By the length of the lifetime in powers of two, longest first; then by size.
    LengthClass,
    /// Those of at least one part in `share` of the peak first, by weight; then the others, those alive in the fullest
    /// sections first, in so many steps of the peak, and by weight among themselves.
    Rocks { share: i64, power: f64, steps: f64, sand: f64 },
    /// As they begin; of those that begin together the longest first.
    Start,
    /// By the fullest section, then longest first, from both ends: see [`two_ended`].
    TwoEnded,
}

/// The orders that are tried, the ones that won most often first (measured on the tensors and generated instances).
const ORDERS: [Order; 12] = [
    Order::Weight(0.25),
    Order::TwoEnded,
    Order::Rocks { share: 100, power: 0.25, steps: 20.0, sand: 0.25 },
    Order::Weight(0.0),
    Order::FullestThenLength,
    Order::Weight(0.5),
    Order::Rocks { share: 1000, power: 0.0, steps: 5.0, sand: 1.0 },
    Order::LengthClass,
    Order::Weight(0.125),
    Order::Weight(1.0),
    Order::Weight(4.0),
    Order::Start,
];

/// Rounds of a pass from both ends.
const TWO_ENDED_ROUNDS: u32 = 4;

/// Above this many buffers the first pass takes them as they begin: it is the fastest, and gives a plan soon.
const HURRY: usize = 200_000;

pub(crate) fn orders(count: usize) -> impl Iterator<Item = Order> {
    let hurried = (count > HURRY).then_some(Order::Start);
    // Two ends take two structures: with so many buffers, time and memory are better spent on other orders.
    let skipped = move |order: &Order| hurried.is_some() && [Order::Start, Order::TwoEnded].contains(order);
    hurried.into_iter().chain(ORDERS.into_iter().filter(move |order| !skipped(order)))
}

/// Passes over one problem; keeps its structures from one to the next.
pub(crate) struct Pass<'a> {
    compact: &'a Compact,
    shelves: Shelves,
    offsets: Vec<i64>,
}

impl<'a> Pass<'a> {
    pub(crate) fn new(compact: &'a Compact) -> Pass<'a> {
        Pass { compact, shelves: Shelves::new(compact.sections), offsets: vec![0; compact.len()] }
    }

    /// The offsets, or none if the peak would reach `below` or the pass was stopped.
    pub(crate) fn run(&mut self, order: Order, below: i64, stop: &dyn Fn() -> bool) -> Option<&[i64]> {
        if order == Order::TwoEnded && self.compact.align.is_empty() {
            self.offsets = two_ended(self.compact, crate::bound::live_peak(self.compact), stop)?;
            return Some(&self.offsets);
        }
        let order = ordered(self.compact, order);
        self.run_order(&order, below, stop)
    }

    pub(crate) fn run_order(&mut self, order: &[u32], below: i64, stop: &dyn Fn() -> bool) -> Option<&[i64]> {
        let c = self.compact;
        self.shelves.clear();
        for (count, item) in order.iter().enumerate() {
            let slot = *item as usize;
            let (first, last, size) = (c.first[slot], c.last[slot], c.size[slot]);
            let place = self.shelves.lowest(first, last, size, c.align_of(slot), 0, below - 1)?;
            self.shelves.insert(c, *item, place);
            self.offsets[slot] = place;
            if count % 256 == 255 && stop() {
                return None;
            }
        }
        Some(&self.offsets)
    }
}

/// Passes between the floor and a ceiling: buffers alive at the local peak go to the lowest place; the rest hangs from
/// the ceiling.
///
/// Stacks are the reason: tensors saved on the way to a peak are released in reverse, and those made on the way down
/// stay for long. From one side they would leave holes in each other; from two sides the free place is always one. A
/// buffer that does not fit under the ceiling is put on top of all and comes first in the next round, from the ceiling,
/// and from the other side if that did not help.
fn two_ended(c: &Compact, ceiling: i64, stop: &dyn Fn() -> bool) -> Option<Vec<i64>> {
    let mut order = ordered(c, Order::TwoEnded);
    let mut frame = Frame::new(c, ceiling);
    let mut best: Option<(i64, Vec<i64>)> = None;
    let mut failures = vec![0u32; c.len()];
    for _ in 0..TWO_ENDED_ROUNDS {
        frame.clear();
        let Some(failed) = frame.fill(&order, stop) else { break };
        let tops = frame.offsets.iter().zip(&c.size).map(|(offset, size)| offset + size);
        let peak = tops.max().unwrap_or(0);
        if best.as_ref().is_none_or(|(least, _)| peak < *least) {
            best = Some((peak, frame.offsets.clone()));
        }
        // If many fail, another order would not help.
        if failed.is_empty() || failed.len() > c.len() / 100 {
            break;
        }
        for item in failed {
            let slot = item as usize;
            failures[slot] += 1;
            frame.low[slot] = failures[slot].is_multiple_of(2);
        }
        order.sort_by_key(|item| std::cmp::Reverse(failures[*item as usize]));
    }
    best.map(|(_, offsets)| offsets)
}

/// A plan between the floor and a ceiling.
pub(crate) struct Frame<'a> {
    compact: &'a Compact,
    ceiling: i64,
    pub(crate) offsets: Vec<i64>,
    /// True for buffers that go to the lowest place; the others hang.
    low: Vec<bool>,
    up: Shelves,
    /// The same plan upside down: the lowest place there is the highest here.
    down: Shelves,
}

impl<'a> Frame<'a> {
    pub(crate) fn new(compact: &'a Compact, ceiling: i64) -> Frame<'a> {
        Frame {
            compact,
            ceiling,
            offsets: vec![0; compact.len()],
            low: stands(compact),
            up: Shelves::new(compact.sections),
            down: Shelves::new(compact.sections),
        }
    }

    fn clear(&mut self) {
        self.up.clear();
        self.down.clear();
    }

    /// Puts it there unless something is in its way.
    pub(crate) fn put_if_free(&mut self, item: u32, place: i64) -> bool {
        let c = self.compact;
        let slot = item as usize;
        let size = c.size[slot];
        let free = self.up.lowest(c.first[slot], c.last[slot], size, 1, place, place + size) == Some(place);
        if free {
            self.put(item, place);
        }
        free
    }

    fn put(&mut self, item: u32, place: i64) {
        let size = self.compact.size[item as usize];
        self.up.insert(self.compact, item, place);
        self.down.insert(self.compact, item, self.ceiling - place - size);
        self.offsets[item as usize] = place;
    }

    /// Puts these on their side, in this order. Returns those that stick out of the ceiling; none when stopped.
    pub(crate) fn fill(&mut self, items: &[u32], stop: &dyn Fn() -> bool) -> Option<Vec<u32>> {
        let (c, ceiling) = (self.compact, self.ceiling);
        let mut failed = Vec::new();
        for (count, item) in items.iter().enumerate() {
            let slot = *item as usize;
            let (first, last, size) = (c.first[slot], c.last[slot], c.size[slot]);
            let place = if self.low[slot] {
                self.up.lowest(first, last, size, 1, 0, ceiling)
            } else {
                self.down.lowest(first, last, size, 1, 0, ceiling).map(|depth| ceiling - depth - size)
            };
            if place.is_none() {
                failed.push(*item);
            }
            let place = place.or_else(|| self.up.lowest(first, last, size, 1, 0, i64::MAX))?;
            self.put(*item, place);
            if count % 256 == 255 && stop() {
                return None;
            }
        }
        Some(failed)
    }
}

/// For each buffer, true if the most bytes around its lifetime (as long again on both sides) are alive within it.
fn stands(c: &Compact) -> Vec<bool> {
    let fullest = Fullest::new(c);
    let sections = c.sections as u32;
    (0..c.len())
        .map(|item| {
            let (first, last) = (c.first[item], c.last[item]);
            let length = last - first;
            let around = fullest.within(first.saturating_sub(length), (last + length).min(sections));
            fullest.within(first, last) == around
        })
        .collect()
}

/// The buffers in this order; equal ones by position, so that the order is the same everywhere.
pub(crate) fn ordered(c: &Compact, order: Order) -> Vec<u32> {
    let fullest = match order {
        Order::FullestThenLength | Order::TwoEnded | Order::Rocks { .. } => fullest_sections(c),
        _ => Vec::new(),
    };
    let peak = fullest.iter().copied().max().unwrap_or(1).max(1);
    let mut keyed: Vec<(f64, i64, u32)> = (0..c.len())
        .map(|item| {
            let length = f64::from(c.last[item] - c.first[item]);
            let size = c.size[item];
            let (major, minor) = match order {
                Order::Weight(power) => ((size as f64).ln() + power * length.ln(), size),
                Order::FullestThenLength | Order::TwoEnded => {
                    ((fullest[item] as f64 / peak as f64 * 5.0).floor(), length as i64)
                }
                Order::Rocks { share, power, .. } if size >= peak / share => {
                    (1e9 + (size as f64).ln() + power * length.ln(), size)
                }
                Order::Rocks { steps, sand, .. } => {
                    let step = (fullest[item] as f64 / peak as f64 * steps).floor();
                    (step * 1e4 + (size as f64).ln() + sand * length.ln(), size)
                }
                Order::LengthClass => (length.log2().floor(), size),
                Order::Start => (-f64::from(c.first[item]), length as i64),
            };
            (major, minor, item as u32)
        })
        .collect();
    keyed.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(b.1.cmp(&a.1)).then(a.2.cmp(&b.2)));
    keyed.into_iter().map(|(_, _, item)| item).collect()
}

/// For each buffer the most bytes alive in a section of its lifetime.
fn fullest_sections(c: &Compact) -> Vec<i64> {
    let fullest = Fullest::new(c);
    (0..c.len()).map(|item| fullest.within(c.first[item], c.last[item])).collect()
}

/// The most bytes alive in any interval of sections, by a sparse table of maxima.
struct Fullest(Vec<Vec<i64>>);

impl Fullest {
    fn new(c: &Compact) -> Fullest {
        let mut table: Vec<Vec<i64>> = vec![c.live()];
        loop {
            let width = 1 << (table.len() - 1);
            let Some(last) = table.last().filter(|last| last.len() > width) else { break };
            let next = (0..last.len() - width).map(|at| last[at].max(last[at + width])).collect();
            table.push(next);
        }
        Fullest(table)
    }

    /// The interval must not be empty.
    fn within(&self, first: u32, last: u32) -> i64 {
        let (first, last) = (first as usize, last as usize);
        let row = (last - first).ilog2() as usize;
        self.0[row][first].max(self.0[row][last - (1 << row)])
    }
}
