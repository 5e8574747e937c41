//! Seeded instances of the kinds that planners are measured on. The same seed gives the same instance everywhere.

use gapless_plan::rng::Rng;
use gapless_plan::{Buffer, Problem};

/// A random guillotine dissection of `time x memory` into `count` buffers: a perfect packing exists, with the peak
/// `memory`. Each cut goes through the rectangle that comes next in a queue ordered by area, largest first.
///
/// # Panics
/// Never: rectangles of width and height 1 are not cut, and the result has fewer buffers if none is left to cut.
#[must_use]
pub fn guillotine(count: usize, time: i64, memory: u64, seed: u64) -> Problem {
    use std::collections::BinaryHeap;
    let mut rng = Rng::new(seed);
    let mut heap = BinaryHeap::new();
    let mut done: Vec<(i64, i64, i64)> = Vec::new();
    let area = |width: i64, height: i64| i128::from(width) * i128::from(height);
    heap.push((area(time, memory as i64), 0i64, time, memory as i64));
    while heap.len() + done.len() < count {
        let Some((_, start, end, height)) = heap.pop() else { break };
        let width = end - start;
        let in_time = if width <= 1 || height <= 1 { width > 1 } else { rng.below(2) == 0 };
        if width <= 1 && height <= 1 {
            done.push((start, end, height));
        } else if in_time {
            let cut = start + 1 + rng.below(width as u64 - 1) as i64;
            heap.push((area(cut - start, height), start, cut, height));
            heap.push((area(end - cut, height), cut, end, height));
        } else {
            let cut = 1 + rng.below(height as u64 - 1) as i64;
            heap.push((area(width, cut), start, end, cut));
            heap.push((area(width, height - cut), start, end, height - cut));
        }
    }
    done.extend(heap.into_iter().map(|(_, start, end, height)| (start, end, height)));
    shuffle(&mut done, &mut rng);
    problem(done.into_iter().map(|(start, end, size)| Buffer::new(start, end, size as u64)).collect())
}

/// Starts uniform over `10 * count` ticks, lifetimes Pareto of this shape from `shortest` up, sizes log-uniform from
/// 512 B to 64 MiB.
#[must_use]
pub fn heavy_tailed(count: usize, shape: f64, shortest: f64, seed: u64) -> Problem {
    let mut rng = Rng::new(seed);
    let horizon = (count as f64 * 10.0) as u64;
    let buffers = (0..count).map(|_| {
        let start = rng.below(horizon) as i64;
        let length = (shortest * (1.0 - rng.unit()).powf(-1.0 / shape)).min(horizon as f64);
        let size = 512.0 * (131_072f64.ln() * rng.unit()).exp();
        Buffer::new(start, (start + length as i64).min(horizon as i64).max(start + 1), size as u64)
    });
    problem(buffers.collect())
}

/// The way in which sizes of a training run repeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layers {
    /// A few kinds of layers, repeated, the same in every step: most models.
    Alike,
    /// Every layer has sizes of its own, the same in every step.
    Unlike,
    /// Every layer has sizes of its own in every step: shapes that depend on the data.
    UnlikeEachStep,
}

/// Training steps of layers that are alike; see [`training_of`].
#[must_use]
pub fn training(count: usize, per_step: usize, seed: u64) -> Problem {
    training_of(count, per_step, Layers::Alike, seed)
}

/// Training steps: weights that stay, activations saved on the way forward and released in reverse, temporaries
/// between, gradients that live from backward to the step's end. About `per_step` buffers a step.
#[must_use]
pub fn training_of(count: usize, per_step: usize, sizes: Layers, seed: u64) -> Problem {
    let mut rng = Rng::new(seed);
    let mut buffers = Vec::with_capacity(count);
    let layers = (per_step / 8).max(1);
    let size = |rng: &mut Rng, low: f64, high: f64| {
        let bytes = low * ((high / low).ln() * rng.unit()).exp();
        (bytes as u64).next_multiple_of(512)
    };
    let steps = count.div_ceil(layers * 8).max(1);
    let step_time = layers as i64 * 20;
    let horizon = step_time * steps as i64;
    let mut kind = || {
        let mut shape = [0; 8];
        for value in &mut shape {
            *value = size(&mut rng, 4096.0, 16_777_216.0);
        }
        shape
    };
    let kinds = [kind(), kind(), kind(), kind()];
    let mut shapes: Vec<[u64; 8]> = match sizes {
        Layers::Alike => (0..layers).map(|layer| kinds[layer % kinds.len()]).collect(),
        Layers::Unlike | Layers::UnlikeEachStep => (0..layers).map(|_| kind()).collect(),
    };
    for shape in &shapes {
        buffers.push(Buffer::new(0, horizon, shape[0]));
    }
    'steps: for step in 0..steps as i64 {
        if sizes == Layers::UnlikeEachStep && step > 0 {
            shapes.fill_with(&mut kind);
        }
        let begin = step * step_time;
        let middle = begin + layers as i64 * 8;
        for (layer, shape) in shapes.iter().enumerate() {
            let forward = begin + layer as i64 * 8;
            let backward = middle + (layers - 1 - layer) as i64 * 12;
            for (at, (start, end)) in [
                (forward, backward + 6),
                (forward + 1, backward + 4),
                (forward + 1, forward + 3),
                (forward + 2, forward + 9),
                (backward, backward + 14),
                (backward + 2, backward + 5),
                (backward + 3, begin + step_time),
            ]
            .into_iter()
            .enumerate()
            {
                if buffers.len() == count {
                    break 'steps;
                }
                buffers.push(Buffer::new(start, end.min(horizon), shape[at + 1]));
            }
        }
    }
    problem(buffers)
}

fn shuffle<T>(values: &mut [T], rng: &mut Rng) {
    for at in (1..values.len()).rev() {
        values.swap(at, rng.below(at as u64 + 1) as usize);
    }
}

/// The generators keep every rule of a problem; so the empty default is never used.
fn problem(buffers: Vec<Buffer>) -> Problem {
    Problem::new(buffers).unwrap_or_default()
}
