//! Constructive passes: every buffer in some order, each as low as it goes. O(n log n) for the order; a placement reads
//! what is alive nearby (see [`shelves`](crate::shelves)).

use crate::compact::Compact;
use crate::shelves::Shelves;

/// In which order a pass takes the buffers.
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
}

/// The orders that are tried, the ones that won most often first (measured on the tensors and generated instances).
const ORDERS: [Order; 11] = [
    Order::Weight(0.25),
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

/// Above this many buffers the first pass takes them as they begin: it is the fastest, and a plan is wanted soon.
const HURRY: usize = 200_000;

pub(crate) fn orders(count: usize) -> impl Iterator<Item = Order> {
    let hurried = (count > HURRY).then_some(Order::Start);
    hurried.into_iter().chain(ORDERS.into_iter().filter(move |order| hurried != Some(*order)))
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

    /// The offsets, or none where the peak would reach `below` or the pass was stopped.
    pub(crate) fn run(&mut self, order: Order, below: i64, stop: &dyn Fn() -> bool) -> Option<&[i64]> {
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

/// The buffers in this order; equal ones by position, so that the order is the same everywhere.
pub(crate) fn ordered(c: &Compact, order: Order) -> Vec<u32> {
    let fullest = match order {
        Order::FullestThenLength | Order::Rocks { .. } => fullest_sections(c),
        _ => Vec::new(),
    };
    let peak = fullest.iter().copied().max().unwrap_or(1).max(1);
    let mut keyed: Vec<(f64, i64, u32)> = (0..c.len())
        .map(|item| {
            let length = f64::from(c.last[item] - c.first[item]);
            let size = c.size[item];
            let (major, minor) = match order {
                Order::Weight(power) => ((size as f64).ln() + power * length.ln(), size),
                Order::FullestThenLength => ((fullest[item] * 5 / peak) as f64, length as i64),
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

/// For each buffer the most bytes alive in a section of its lifetime, by a sparse table of maxima.
fn fullest_sections(c: &Compact) -> Vec<i64> {
    let mut table: Vec<Vec<i64>> = vec![c.live()];
    loop {
        let width = 1 << (table.len() - 1);
        let Some(last) = table.last().filter(|last| last.len() > width) else { break };
        let next = (0..last.len() - width).map(|at| last[at].max(last[at + width])).collect();
        table.push(next);
    }
    (0..c.len())
        .map(|item| {
            let (first, last) = (c.first[item] as usize, c.last[item] as usize);
            let row = (last - first).ilog2() as usize;
            table[row][first].max(table[row][last - (1 << row)])
        })
        .collect()
}
