//! Bytes that sharding and offloading leave on a rank, and when: the moments of a step that can be its peak.
//!
//! `Holding::fit` adds micro-batch and checkpointing, and picks the fewest operations to recompute.
//! `formulas::deepspeed` has the bytes that DeepSpeed holds.

use super::memory::{BUCKET, Chosen, LIVE, Layout, Moment, RankAccount, Stage};
use super::pick::{Room, choose};
use super::profile::Profile;
use super::space::{Config, Offload};
use crate::checkpoint::chain::{Chain, Measured};
use crate::formulas::deepspeed::{self, Reduced, Zero};
use crate::formulas::sharding::{self, RankParameters, Sharding};
use crate::settings::Precision;

/// Bytes on a rank, before activations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Holding {
    pub weights: f64,
    pub states: f64,
    /// When backward has ended, and from one micro-batch to the next.
    pub gradients: f64,
    pub waiting: f64,
    /// While the loss is computed; if several micro-batches accumulate, `between` too.
    pub at_loss: f64,
    pub between: f64,
    /// When the head's gradients are there, and all activations still are.
    pub at_first: f64,
    /// While blocks' gradients are computed: the moments that can hold most, by the share of blocks that is done.
    pub in_blocks: [Reduced; 3],
    /// When the last block's gradients are there, beside all gradients.
    pub at_end: f64,
    /// Bytes of the optimizer's step beside gradients.
    pub optimizer_step: f64,
    /// While the optimizer is made: weights included.
    pub setup: f64,
    /// On the host: states and weights that were sent there.
    pub host: f64,
}

/// A rank whose holding is counted.
struct Rank<'a> {
    layout: &'a Layout,
    stage: &'a Stage,
    config: &'a Config,
    /// Bytes of a gradient.
    gradient: f64,
    /// Parameters of which this rank keeps the states.
    mine: f64,
    /// Bytes of the optimizer's step for each of them, and for each of the largest tensor.
    every: f64,
    largest: f64,
}

impl Holding {
    #[must_use]
    pub fn new(layout: &Layout, stage: &Stage, config: &Config) -> Holding {
        let (widths, held) = (config.precision.bytes(), config.held());
        let Offload { optimizer: states_away, parameters: weights_away, .. } = config.offload;
        let RankParameters { dense, experts, dense_shards, expert_shards } = stage.parameters;
        let (w, g, k) = config.sharding.divisors(dense_shards);
        let (we, ge, ke) = config.sharding.divisors(expert_shards);
        let split =
            |dense: u64, experts: u64, d: u64, e: u64| dense as f64 / d as f64 + experts as f64 / e as f64;
        let frozen = config.lora.is_some();
        let weight = if frozen { config.format.bits() / 8.0 } else { held.weight as f64 };
        let x = widths.activation as f64;
        // Adapters over 16-bit weights are in 32 bits unless they were asked to be narrow.
        let wide = config.lora.is_some_and(|lora| !lora.narrow);
        let own = if wide { Precision::Fp32.bytes() } else { widths };
        let (held, gradient) = if wide { (own, own.gradient as f64) } else { (held, widths.gradient as f64) };
        let (trained, trained_experts) = (stage.trained.dense, stage.trained.experts);
        let adapters = if frozen { split(trained, 0, w, we) * own.weight as f64 } else { 0.0 };
        let unit = stage.unit as f64;
        let weights =
            if weights_away { 4.0 * unit * x } else { split(dense, experts, w, we) * weight + adapters };
        let all_gradients = split(trained, trained_experts, g, ge) * held.gradient as f64;
        let leaves = states_away && (config.sharding >= Sharding::Zero2 || config.data * config.context == 1);
        let gradients =
            if leaves { all_gradients.min(2.0 * BUCKET as f64 * gradient) } else { all_gradients };
        let mine = split(trained, trained_experts, k, ke);
        let per = held.master as f64 + config.optimizer.state_bytes(own.state);
        let (every, largest) = config.optimizer.transient(own.state);
        // DeepSpeed's estimator: half as much again for buffers.
        let sent = if states_away { mine * (per + 2.0 * gradient) } else { 0.0 }
            + if weights_away { split(dense, experts, w, we) * weight } else { 0.0 };
        let mut holding = Holding {
            host: 1.5 * sent,
            weights,
            gradients,
            waiting: gradients,
            states: if states_away { 0.0 } else { mine * per },
            at_loss: 0.0,
            between: 0.0,
            at_first: 0.0,
            in_blocks: [Reduced::default(); 3],
            at_end: 0.0,
            optimizer_step: if states_away {
                0.0
            } else {
                every * mine + largest * (layout.largest as f64).min(mine)
            },
            setup: 0.0,
        };
        holding.shard(&Rank { layout, stage, config, gradient, mine, every, largest });
        holding
    }

    /// Adds the bytes that come and go with the kind of sharding.
    fn shard(&mut self, rank: &Rank<'_>) {
        let Rank { layout, stage, config, gradient, mine, every, largest } = *rank;
        let widths = config.precision.bytes();
        let RankParameters { dense, experts, .. } = stage.parameters;
        let (states_away, frozen) = (config.offload.optimizer, config.lora.is_some());
        let (unit, weights) = (stage.unit as f64, self.weights);
        // fp32 weights under autocast are gathered as they are.
        let compute = if config.precision.is_autocast() { 4.0 } else { widths.activation as f64 };
        match config.sharding {
            Sharding::Ddp => {
                // A gradient is copied into its bucket.
                let copied = config.data * config.context > 1 && !frozen;
                self.at_first = if copied { stage.head as f64 * gradient } else { 0.0 };
                self.at_end = if stage.rank == 0 && !frozen { layout.ending } else { 0.0 };
            }
            Sharding::Fsdp => {
                let root = stage.root as f64 * compute;
                // The gradients of parameters outside the blocks wait for the last of them.
                let waiting = if frozen { 0.0 } else { stage.head as f64 * compute };
                self.at_loss = root + unit * compute;
                self.at_first = self.at_loss + waiting;
                let blocks =
                    root + waiting + sharding::fsdp_transient(stage.unit, compute, gradient).value as f64;
                self.in_blocks = [Reduced { done: 0.0, bytes: blocks }; 3];
                self.at_end = blocks;
            }
            Sharding::Zero1 | Sharding::Zero2 => {
                let zero = Zero { partition: mine, ..zero(layout, stage, config) };
                let buckets = zero.buckets().value as f64;
                self.at_first = buckets + zero.at_first();
                if config.sharding == Sharding::Zero1 {
                    // Stage 1 frees its buffers only at the last micro-batch.
                    self.between = buckets;
                }
                self.at_end = buckets;
                self.in_blocks = zero.in_blocks().map(|at| Reduced { bytes: buckets + at.bytes, ..at });
                if !states_away {
                    // Only stage 1 keeps more than its partition, until the last micro-batch.
                    self.gradients = zero.gradients().value as f64;
                    if config.sharding == Sharding::Zero2 {
                        self.waiting = self.gradients;
                    }
                    let step = zero.step(widths.master as f64, every + largest).value as f64;
                    self.optimizer_step = (step - self.gradients).max(0.0);
                }
                // The weights are there, and their flat copy.
                self.setup = weights + zero.parameters * widths.weight as f64;
            }
            Sharding::Zero3 => {
                let zero = Zero { partition: mine, ..zero(layout, stage, config) };
                let bucket = zero.buckets().value as f64 / 2.0;
                let live = deepspeed::live((dense + experts) as f64, LIVE as f64, compute).value as f64;
                self.at_loss = bucket + live;
                self.at_first = bucket + live + zero.gradient * zero.head;
                // A full bucket is copied once more to be reduced.
                let reduced = Reduced { done: zero.done(1.0), bytes: 2.0 * bucket + live };
                let before = Reduced { done: 0.0, bytes: bucket + live };
                self.in_blocks = [before, reduced, reduced];
                self.at_end = bucket + live;
                if !states_away {
                    let master = if widths.master > widths.gradient { widths.master as f64 } else { 0.0 };
                    self.optimizer_step = bucket + (master + every + largest) * mine;
                }
            }
        }
    }

    /// Bytes that are there whatever the batch and checkpointing: a lower bound of the peak.
    #[must_use]
    pub fn floor(&self) -> f64 {
        let ended = self.gradients + self.at_end.max(self.optimizer_step);
        (self.weights + self.states + ended.max(self.gathered())).max(self.setup)
    }

    fn loss(&self, config: &Config) -> f64 {
        self.at_loss + if config.accumulation > 1 { self.between } else { 0.0 }
    }

    /// The most that sharding holds while blocks' gradients are computed.
    fn gathered(&self) -> f64 {
        self.in_blocks.iter().map(|at| at.bytes).fold(0.0, f64::max)
    }

    /// The fewest operations to recompute with which the stage stays within `room` (overhead taken off); none if
    /// nothing fits.
    #[must_use]
    pub fn fit(&self, layout: &Layout, stage: &Stage, config: &Config, room: f64) -> Option<Chosen> {
        let base = self.weights + self.states;
        if base + self.gradients + self.optimizer_step > room || self.setup > room {
            return None;
        }
        let waiting = if accumulates(config) { self.waiting } else { 0.0 };
        let left = room - base - waiting;
        let ends = self.at_first.max(self.loss(config) + head(layout, stage, config));
        let chosen = choose(
            layout,
            stage,
            config,
            &Room { blocks: self.in_blocks.map(|at| (1.0 - at.done, left - at.bytes)), ends: left - ends },
        )?;
        if self.host + chosen.host > layout.host {
            return None;
        }
        let end = base + self.at_end + self.gradients + chosen.working;
        (accumulates(config) || end <= room).then_some(chosen)
    }

    /// The components of a point.
    #[must_use]
    pub fn account(&self, layout: &Layout, stage: &Stage, config: &Config, chosen: &Chosen) -> RankAccount {
        let head = head(layout, stage, config);
        let base = self.weights + self.states;
        let moments = self.moments(config, chosen, head);
        let at = moments.into_iter().max_by(|a, b| a.total().total_cmp(&b.total())).unwrap_or_default();
        RankAccount {
            stage: stage.rank,
            weights: self.weights,
            gradients: self.gradients,
            states: self.states,
            gathered: self.gathered(),
            activations: chosen.retained,
            working: chosen.working,
            head,
            optimizer_step: self.optimizer_step,
            overhead: layout.overhead,
            at,
            peak: layout.overhead + base + at.total(),
            host: self.host + chosen.host,
        }
    }

    fn moments(&self, config: &Config, chosen: &Chosen, head: f64) -> [Moment; 8] {
        let waiting = if accumulates(config) { self.waiting } else { 0.0 };
        let running =
            |phase| Moment { phase, gradients: waiting, activations: chosen.retained, ..Moment::default() };
        let ended = |phase| Moment { phase, gradients: self.gradients, ..Moment::default() };
        let blocks = |at: &Reduced| Moment {
            gathered: at.bytes,
            activations: chosen.retained * (1.0 - at.done),
            working: chosen.working,
            ..running("backward")
        };
        // Weights and states are counted apart.
        let setup = (self.setup - self.weights - self.states).max(0.0);
        [
            Moment { gathered: self.loss(config), head, ..running("loss") },
            Moment { gathered: self.at_first, ..running("backward") },
            blocks(&self.in_blocks[0]),
            blocks(&self.in_blocks[1]),
            blocks(&self.in_blocks[2]),
            Moment { gathered: self.at_end, working: chosen.working, ..ended("end of backward") },
            Moment { optimizer_step: self.optimizer_step, ..ended("optimizer step") },
            Moment { phase: "setup", gathered: setup, ..Moment::default() },
        ]
    }
}

/// True if gradients are there before backward: they accumulate, or are in buffers that are made once, as those of
/// DistributedDataParallel and ZeRO 3.
fn accumulates(config: &Config) -> bool {
    let buffers =
        matches!(config.sharding, Sharding::Ddp | Sharding::Zero3) && config.data * config.context > 1;
    config.accumulation > 1 || config.pipeline > 1 || buffers
}

/// A stage as DeepSpeed sees it; the partition is left open.
fn zero(layout: &Layout, stage: &Stage, config: &Config) -> Zero {
    let parameters = (stage.trained.dense + stage.trained.experts) as f64;
    Zero {
        parameters,
        partition: parameters,
        largest: (layout.largest as f64).min(parameters),
        head: if config.lora.is_some() { 0.0 } else { stage.head as f64 },
        tied: stage.tied,
        block: stage.unit as f64,
        blocks: stage.counts.iter().sum::<u64>() as f64,
        bucket: BUCKET as f64,
        gradient: config.precision.bytes().gradient as f64,
    }
}

/// Bytes of the loss on the last stage.
fn head(layout: &Layout, stage: &Stage, config: &Config) -> f64 {
    if stage.is_last { layout.head * config.micro_batch as f64 + layout.head_once } else { 0.0 }
}

/// One stage alone as a chain, for `checkpoint` to choose block by block: gradients that accumulate are part of its
/// base.
#[must_use]
pub fn chain(profile: &Profile, layout: &Layout, holding: &Holding, config: &Config) -> Chain {
    let accumulates = accumulates(config);
    let batch = config.micro_batch as f64;
    let widths = config.precision.bytes();
    let total: u64 = profile.parameters().max(1);
    // A block's share of the gradients that the stage holds.
    let gradient = |parameters: u64| {
        if accumulates { 0 } else { (holding.gradients * parameters as f64 / total as f64) as u64 }
    };
    let blocks = profile.order.iter().map(|&kind| {
        let bytes = &layout.blocks[kind];
        Measured {
            input: (bytes.input * batch + bytes.input_once) as u64,
            saved: (bytes.kept * batch + bytes.once) as u64,
            forward_working: (bytes.forward_working * batch + bytes.working_once) as u64,
            backward_working: (bytes.backward_working * batch + bytes.working_once) as u64,
            output_gradient: (bytes.input * batch / widths.activation as f64) as u64,
            gradient: gradient(profile.kinds[kind].parameters.total()),
            forward_cost: (bytes.flops * batch) as u64,
        }
        .block()
    });
    // A chain knows no share of gathered bytes that is gone already: the most that any block finds.
    let gathered = holding.gathered();
    let base = holding.weights + holding.states + gathered + if accumulates { holding.waiting } else { 0.0 };
    Chain {
        base: (base + layout.overhead) as u64,
        blocks: blocks.collect(),
        head_peak: (holding.at_first.max(holding.at_loss + layout.head * batch + layout.head_once) - gathered)
            .max(0.0) as u64,
        head_gradient: gradient(profile.last.total()),
    }
}
