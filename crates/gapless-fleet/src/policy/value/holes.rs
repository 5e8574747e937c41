//! The thousandths that a single GPU is expected to take from random requests.
//!
//! h(r, c) = sum of s (m + h(r - m, c - k)) / (0.03 + sum of s), over GPU requests that fit (m <= r, k <= c) and accept
//! the model. s is the share of all pods. A request for g whole GPUs counts g times, with m = 1000 and k = its CPUs /
//! g. The table has r in tens and a grid of CPUs, and is linear between.

use crate::ledger::Model;
use crate::mix::Mix;
use crate::words::WHOLE;

/// The weight of the case that no further request comes, beside the shares of requests.
const STOP: f64 = 0.03;
const TENS: usize = WHOLE as usize / 10;
/// The most items of a table, because a list may have as many requests as pods.
const MOST_ITEMS: usize = 512;
/// Cells between 0 CPUs and the most.
const CELLS: usize = 128;

/// A request's part on one GPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Item {
    milli: u32,
    cpus: f64,
    share: f64,
}

/// The GPU requests of the mix that accept this model, merged if they are alike on one GPU.
pub(super) fn items(mix: &Mix, model: &Model) -> Vec<Item> {
    let mut items: Vec<Item> = Vec::new();
    for part in &mix.parts {
        let request = &part.request;
        if request.gpus == 0 || !request.accepts(&model.name) || request.units_of(model.units) > model.units {
            continue;
        }
        let item = Item {
            milli: request.milli_of(model.units),
            cpus: request.cpu_milli as f64 / 1000.0 / f64::from(request.gpus),
            share: part.count as f64 / mix.total as f64 * f64::from(request.gpus),
        };
        let is_full = items.len() >= MOST_ITEMS;
        // The mix begins with the most frequent requests. Rarer ones count with their nearest item.
        let distance =
            |seen: &Item| f64::from(seen.milli.abs_diff(item.milli)) / 10.0 + (seen.cpus - item.cpus).abs();
        let nearest = items.iter_mut().min_by(|a, b| distance(a).total_cmp(&distance(b)));
        match nearest.filter(|nearest| is_full || distance(nearest) == 0.0) {
            Some(nearest) => nearest.share += item.share,
            None => items.push(item),
        }
    }
    items
}

/// The table of h.
#[derive(Clone, Debug)]
pub(super) struct Holes {
    /// Rows of r = 0, 10, ..., 1000, each with CELLS + 1 numbers and one more, so that a cell has a right neighbour.
    table: Vec<f64>,
    /// CPUs of a cell, inverted.
    per_cpu: f64,
}

const WIDTH: usize = CELLS + 2;

impl Holes {
    pub(super) fn new(items: &[Item], most_cpu: u64) -> Holes {
        let cell = (most_cpu as f64 / 1000.0 / CELLS as f64).max(1.0);
        let mut holes = Holes { table: vec![0.0; (TENS + 2) * WIDTH], per_cpu: 1.0 / cell };
        for ten in 1..=TENS {
            for c in 0..=CELLS {
                let cpus = c as f64 * cell;
                let (mut sum, mut shares) = (0.0, 0.0);
                for item in items {
                    if item.milli as usize <= ten * 10 && item.cpus <= cpus {
                        // Rounded down, so that it is never the row that is being filled.
                        let rest = (ten * 10 - item.milli as usize) / 10;
                        let rest = if rest == ten { ten - 1 } else { rest };
                        let after = holes.row(rest, cpus - item.cpus);
                        sum += item.share * (f64::from(item.milli) + after);
                        shares += item.share;
                    }
                }
                holes.table[ten * WIDTH + c] = sum / (STOP + shares);
            }
            holes.table[ten * WIDTH + CELLS + 1] = holes.table[ten * WIDTH + CELLS];
        }
        // Interpolation at r = 1000 reads a row above it.
        holes.table.copy_within(TENS * WIDTH..(TENS + 1) * WIDTH, (TENS + 1) * WIDTH);
        holes
    }

    fn row(&self, ten: usize, cpus: f64) -> f64 {
        let at = (cpus * self.per_cpu).min(CELLS as f64);
        let cell = at as usize;
        let part = at - cell as f64;
        let row = &self.table[ten * WIDTH..(ten + 1) * WIDTH];
        row[cell] + part * (row[cell + 1] - row[cell])
    }

    /// h of `r` thousandths and `cpus` CPUs.
    pub(super) fn at(&self, r: usize, cpus: f64) -> f64 {
        let (ten, rest) = (r / 10, r % 10);
        let low = self.row(ten, cpus);
        if rest == 0 {
            return low;
        }
        low + rest as f64 / 10.0 * (self.row(ten + 1, cpus) - low)
    }

    /// h with as many CPUs as any node has.
    pub(super) fn full(&self, r: usize) -> f64 {
        self.at(r, f64::MAX)
    }
}
