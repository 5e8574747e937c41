//! The value of a hole in a GPU: shadow prices of a linear program over the mix.
//!
//! The program chooses the number of GPUs for each pattern of partial sizes (at most 1,000 thousandths together) or a
//! whole pod. It maximises the thousandths in use. The mix is scaled to the capacity. Every size is used at least t
//! and at most 1.3 times its part of the mix, and whole GPUs at most t times; t is from 0.7 to 1.3 and is chosen by
//! the program. Patterns are generated when they improve the program, by a knapsack over the prices. With w = price
//! of a size, the value of a hole of r is the largest sum of (size - w) over sizes that fit in it.

use super::simplex::{Column, prices};
use crate::mix::{Mix, demand};
use crate::words::WHOLE;

/// The most sizes of the program; rarer ones are left out.
const MOST_SIZES: usize = 40;
const LEAST: f64 = 0.7;
const MOST: f64 = 1.3;

/// The value of a hole of r, for r = 0 to 1,000.
pub fn hole_values(mix: &Mix, units: u64, gpus: u64) -> Vec<f64> {
    let Some(sizes) = Sizes::of(mix, units).filter(|_| gpus > 0) else {
        return vec![0.0; WHOLE as usize + 1];
    };
    let worth = sizes.worth(LEAST).or_else(|| sizes.worth(0.0)).unwrap_or_else(|| sizes.plain());
    best_sums(&worth)
}

/// The sizes of partial requests and their counts per GPU of the cluster.
struct Sizes {
    sizes: Vec<(u32, f64)>,
    whole: f64,
}

impl Sizes {
    /// `None` if no pod asks for a GPU.
    fn of(mix: &Mix, units: u64) -> Option<Sizes> {
        let total: f64 =
            mix.parts.iter().map(|part| (demand(&part.request, units) * part.count) as f64).sum();
        if total == 0.0 {
            return None;
        }
        // Counts such that the demand is 1,000 thousandths: one GPU.
        let scale = f64::from(WHOLE) / total;
        let mut counts = vec![0.0; WHOLE as usize + 1];
        for part in mix.parts.iter().filter(|part| part.request.gpus > 0) {
            let count = part.count as f64 * f64::from(part.request.gpus) * scale;
            counts[part.request.milli_of(units).clamp(1, WHOLE) as usize] += count;
        }
        let whole = counts[WHOLE as usize];
        let partial = counts.iter().enumerate().take(WHOLE as usize);
        let mut sizes: Vec<(u32, f64)> =
            partial.filter(|&(_, &count)| count > 0.0).map(|(size, &count)| (size as u32, count)).collect();
        let mass = |&(size, count): &(u32, f64)| f64::from(size) * count;
        sizes.sort_by(|a, b| mass(b).total_cmp(&mass(a)).then(a.0.cmp(&b.0)));
        sizes.truncate(MOST_SIZES);
        sizes.sort_by_key(|&(size, _)| size);
        Some(Sizes { sizes, whole })
    }

    /// The value of each size beyond its price; the last one is a whole GPU. `None` if the sizes cannot all be placed
    /// at least `least` times, or no optimum was found.
    fn worth(&self, least: f64) -> Option<Vec<(u32, f64)>> {
        let n = self.sizes.len();
        // Rows: GPUs; most of each size; least of each size; whole GPUs; the forced part of t; the rest of t.
        let (gpus, most, fewest, whole, forced, free) = (0, 1, 1 + n, 1 + 2 * n, 2 + 2 * n, 3 + 2 * n);
        let mut limits = vec![0.0; 4 + 2 * n];
        limits[gpus] = 1.0;
        for (i, &(_, count)) in self.sizes.iter().enumerate() {
            limits[most + i] = MOST * count;
        }
        limits[forced] = least;
        limits[free] = MOST - least;
        let t = |gain: f64, row: usize| {
            let mut takes = vec![(row, 1.0), (whole, -self.whole)];
            takes.extend(self.sizes.iter().enumerate().map(|(i, &(_, count))| (fewest + i, count)));
            Column { gain, takes }
        };
        let fixed = [
            Column { gain: f64::from(WHOLE), takes: vec![(gpus, 1.0), (whole, 1.0)] },
            // The gain exceeds all others, so that t reaches `least` if that is possible.
            t(if least > 0.0 { 1e5 } else { 0.0 }, forced),
            t(0.0, free),
        ];
        let pattern = |price: &[f64]| {
            let worth: Vec<(u32, f64)> = self
                .sizes
                .iter()
                .enumerate()
                .map(|(i, &(size, _))| (size, f64::from(size) - price[most + i] + price[fewest + i]))
                .collect();
            let counts = best_pattern(&worth);
            let mut gain = 0.0;
            let mut takes = vec![(gpus, 1.0)];
            for (i, &count) in counts.iter().enumerate().filter(|&(_, &count)| count > 0) {
                gain += f64::from(self.sizes[i].0) * f64::from(count);
                takes.push((most + i, f64::from(count)));
                takes.push((fewest + i, -f64::from(count)));
            }
            (takes.len() > 1).then_some(Column { gain, takes })
        };
        let price = prices(&limits, &fixed, pattern)?;
        if least > 0.0 && price[forced] < 1.0 {
            return None;
        }
        let mut worth: Vec<(u32, f64)> = (0..n)
            .map(|i| {
                let size = self.sizes[i].0;
                (size, f64::from(size) - (price[most + i] - price[fewest + i]))
            })
            .collect();
        if self.whole > 0.0 {
            worth.push((WHOLE, f64::from(WHOLE) - price[whole]));
        }
        worth.iter().all(|(_, worth)| worth.is_finite()).then_some(worth)
    }

    /// Without prices, the value of a size is its thousandths.
    fn plain(&self) -> Vec<(u32, f64)> {
        let whole = (self.whole > 0.0).then_some((WHOLE, f64::from(WHOLE)));
        self.sizes.iter().map(|&(size, _)| (size, f64::from(size))).chain(whole).collect()
    }
}

/// The largest sum of worths of sizes that fit, each as often as wanted, for every r.
fn best_sums(worth: &[(u32, f64)]) -> Vec<f64> {
    let mut best = vec![0.0f64; WHOLE as usize + 1];
    for r in 1..=WHOLE as usize {
        best[r] = best[r - 1];
        for &(size, worth) in worth.iter().filter(|&&(size, _)| size as usize <= r) {
            best[r] = best[r].max(best[r - size as usize] + worth);
        }
    }
    best
}

/// The count of each size in the best pattern of a whole GPU.
fn best_pattern(worth: &[(u32, f64)]) -> Vec<u32> {
    let best = best_sums(worth);
    let mut counts = vec![0; worth.len()];
    let mut r = WHOLE as usize;
    while r > 0 && best[r] > 0.0 {
        let fits = |&(_, &(size, worth)): &(usize, &(u32, f64))| {
            size as usize <= r && worth > 0.0 && best[r - size as usize] + worth >= best[r]
        };
        match worth.iter().enumerate().find(fits) {
            Some((i, &(size, _))) => {
                counts[i] += 1;
                r -= size as usize;
            }
            None => r -= 1,
        }
    }
    counts
}
