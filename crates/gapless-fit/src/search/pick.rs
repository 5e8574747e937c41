//! The number of blocks of a stage to recompute: the fewest operations with which activations fit, over all counts of
//! each kind.
//!
//! Blocks of a kind are alike, so only counts matter. All counts of all kinds but the most numerous are tried; of that
//! one the fewest that fit follows by a division.

use super::memory::{BlockBytes, Chosen, Layout, Stage};
use super::space::Config;
use crate::formulas::pipeline::Schedule;
use crate::settings::Checkpointing;

/// A way to treat the blocks of a kind: retained by all in flight, working set, operations.
#[derive(Clone, Copy)]
struct Way {
    retained: f64,
    working: f64,
    cost: f64,
    host: f64,
}

/// Bytes for activations: of those that stay, with a block's working set, at three moments of the blocks' backward (the
/// share that stays, bytes); and of all, while the loss is computed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    pub blocks: [(f64, f64); 3],
    pub ends: f64,
}

impl Room {
    /// The bytes by which `retained` has to shrink.
    fn excess(&self, retained: f64, working: f64) -> f64 {
        let blocks = self.blocks.iter().map(|&(stays, bytes)| match retained * stays + working - bytes {
            // If nothing stays, less retained bytes cannot help.
            more if more > 0.0 => {
                if stays > 0.0 {
                    more / stays
                } else {
                    f64::INFINITY
                }
            }
            _ => 0.0,
        });
        blocks.fold((retained - self.ends).max(0.0), f64::max)
    }
}

pub(super) fn choose(layout: &Layout, stage: &Stage, config: &Config, room: &Room) -> Option<Chosen> {
    let schedule = if layout.chunks > 1 {
        Schedule::Interleaved(layout.chunks)
    } else {
        Schedule::OneForwardOneBackward
    };
    let in_flight = schedule.in_flight(stage.rank, layout.pipeline, config.accumulation);
    let batch = config.micro_batch as f64;
    let away = config.offload.activations;
    let ways = |block: &BlockBytes| {
        let working = block.backward_working.max(block.forward_working) * batch + block.working_once;
        let way = |retained: f64, once: f64, again: f64, cost: f64| {
            let all = retained * batch * in_flight + once;
            // Activations on the host are fetched one block ahead.
            let buffer = 2.0 * (retained * batch + once);
            Way {
                retained: if away { 0.0 } else { all },
                working: working + again * batch + if away { buffer } else { 0.0 },
                cost,
                host: if away { all } else { 0.0 },
            }
        };
        [
            way(block.kept, block.once, 0.0, 0.0),
            way(block.selective, block.once, block.kept - block.selective, block.core_flops),
            way(block.input, block.input_once, block.kept + block.once / batch, block.flops),
        ]
    };
    let mut kinds: Vec<(usize, u64, [Way; 3])> = Vec::with_capacity(stage.counts.len());
    for (kind, &count) in stage.counts.iter().enumerate() {
        if count > 0 {
            kinds.push((kind, count, ways(&layout.blocks[kind])));
        }
    }
    // The most numerous kind comes last: its count follows from the others'.
    kinds.sort_by_key(|&(_, count, _)| count);
    let mut picker = Picker {
        kinds: &kinds,
        room,
        mode: config.checkpointing,
        selective: layout.selective_helps,
        best: None,
        current: Vec::with_capacity(kinds.len()),
    };
    picker.pick(0, Sum { retained: 0.0, working: 0.0, cost: 0.0, host: 0.0 });
    let (sum, picked) = picker.best?;
    let mut counts = vec![[0; 3]; stage.counts.len()];
    for (&(kind, ..), picked) in kinds.iter().zip(picked) {
        counts[kind] = picked;
    }
    Some(Chosen { recompute: sum.cost, counts, retained: sum.retained, working: sum.working, host: sum.host })
}

#[derive(Clone, Copy)]
struct Sum {
    retained: f64,
    working: f64,
    cost: f64,
    host: f64,
}

struct Picker<'a> {
    kinds: &'a [(usize, u64, [Way; 3])],
    room: &'a Room,
    mode: Checkpointing,
    selective: bool,
    best: Option<(Sum, Vec<[u64; 3]>)>,
    current: Vec<[u64; 3]>,
}

impl Picker<'_> {
    /// Tries every count of the kinds from `place` on; of the last kind, recomputed blocks follow from the bytes left.
    fn pick(&mut self, place: usize, sum: Sum) {
        let Some(&(_, count, ways)) = self.kinds.get(place) else {
            return self.offer(sum);
        };
        match self.mode {
            Checkpointing::None => self.take(place, sum, [count, 0, 0], &ways),
            Checkpointing::Selective => self.take(place, sum, [0, count, 0], &ways),
            Checkpointing::Full => self.take(place, sum, [0, 0, count], &ways),
            Checkpointing::Optimal => {
                let most_half = if self.selective { count } else { 0 };
                let is_last = place + 1 == self.kinds.len();
                for half in 0..=most_half {
                    let rest = count - half;
                    if !is_last {
                        (0..=rest).for_each(|full| self.take(place, sum, [rest - full, half, full], &ways));
                        continue;
                    }
                    // Without any, then with the fewest that fit: one more costs more, one less does not fit.
                    self.take(place, sum, [rest, half, 0], &ways);
                    let [kept, halved, full] = &ways;
                    let retained = sum.retained + rest as f64 * kept.retained + half as f64 * halved.retained;
                    let working = sum
                        .working
                        .max(full.working)
                        .max(kept.working)
                        .max(halved.working * (half.min(1) as f64));
                    let excess = self.room.excess(retained, working);
                    let saves = kept.retained - full.retained;
                    let needed = if excess <= 0.0 { 1 } else { (excess / saves).ceil() as u64 };
                    if rest > 0 && saves > 0.0 {
                        // One more, in case rounding made it too small.
                        self.take(
                            place,
                            sum,
                            [rest - needed.clamp(1, rest), half, needed.clamp(1, rest)],
                            &ways,
                        );
                    }
                    if rest > 0 {
                        // Also if nothing is retained either way: what a block fetches from the host gets smaller.
                        self.take(place, sum, [0, half, rest], &ways);
                    }
                }
            }
        }
    }

    fn take(&mut self, place: usize, sum: Sum, counts: [u64; 3], ways: &[Way; 3]) {
        let mut next = sum;
        for (&count, way) in counts.iter().zip(ways) {
            if count > 0 {
                next.retained += count as f64 * way.retained;
                next.working = next.working.max(way.working);
                next.cost += count as f64 * way.cost;
                next.host += count as f64 * way.host;
            }
        }
        let cheaper = self.best.as_ref().is_none_or(|(best, _)| next.cost < best.cost);
        if next.retained > self.room.ends || !cheaper {
            return;
        }
        self.current.push(counts);
        self.pick(place + 1, next);
        self.current.pop();
    }

    fn offer(&mut self, sum: Sum) {
        let fits = self.room.excess(sum.retained, sum.working) <= 0.0;
        if fits && self.best.as_ref().is_none_or(|(best, _)| sum.cost < best.cost) {
            self.best = Some((sum, self.current.clone()));
        }
    }
}
