//! Bytes of one point of the space on its worst rank.
//!
//! `Layout` holds what follows from model and degrees, for a micro-batch of one sequence, on each pipeline stage that
//! can be the worst; `Holding` what follows from sharding and offloading on one of them; `Holding::fit` adds
//! micro-batch and checkpointing, and picks the fewest operations to recompute. A stage holds `in flight x retained` of
//! all its blocks and the working set of the worst block at once: for equal blocks that is its peak, for different ones
//! an upper bound (`checkpoint::chain` refines it for a single stage).

use super::pick::choose;
use super::profile::Profile;
use super::space::{Config, Offload};
use crate::checkpoint::chain::{Chain, Measured};
use crate::formulas::head::{self, Loss};
use crate::formulas::overhead;
use crate::formulas::parameters::Divided;
use crate::formulas::sharding::{self, Degrees, RankParameters, Sharding};
use crate::hardware::Cluster;
use crate::settings::Lora;

/// Elements of DeepSpeed's buckets, here and in what `emit` writes: a tenth of its default, which alone would take 9
/// GB.
pub const BUCKET: u64 = 50_000_000;

/// Bytes and operations of a block for one sequence on one rank.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BlockBytes {
    pub kept: f64,
    /// Once, not for each sequence.
    pub once: f64,
    pub selective: f64,
    pub input: f64,
    pub forward_working: f64,
    pub backward_working: f64,
    pub flops: f64,
    pub core_flops: f64,
}

/// A pipeline stage.
#[derive(Clone, Debug, PartialEq)]
pub struct Stage {
    pub rank: u64,
    pub is_last: bool,
    /// Blocks of each kind.
    pub counts: Vec<u64>,
    pub parameters: RankParameters,
    /// Of those, what is trained.
    pub trained: RankParameters,
    /// Parameters of the largest unit that is gathered at once.
    pub unit: u64,
    /// Operations of one sequence's forward.
    pub flops: f64,
}

/// What degrees make of a model.
#[derive(Clone, Debug)]
pub struct Layout {
    pub blocks: Vec<BlockBytes>,
    pub stages: Vec<Stage>,
    /// The loss of one sequence, and of its boundary tensors.
    pub head: f64,
    /// Of the head, once whatever the sequences.
    pub head_once: f64,
    pub overhead: f64,
    pub tensor: u64,
    pub pipeline: u64,
    pub chunks: u64,
    pub largest: u64,
    pub host: f64,
    pub selective_helps: bool,
}

/// Bytes by component, on the worst rank.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Account {
    pub stage: u64,
    pub weights: f64,
    pub gradients: f64,
    pub states: f64,
    pub gathered: f64,
    pub activations: f64,
    pub working: f64,
    pub head: f64,
    pub optimizer_step: f64,
    pub overhead: f64,
    /// The largest phase, overhead included.
    pub peak: f64,
    /// Of the host's memory, where something is offloaded.
    pub host: f64,
}

/// How many blocks of each kind are kept, half recomputed, recomputed.
pub type Counts = Vec<[u64; 3]>;

/// A stage's fewest operations to recompute, for one micro-batch of one sequence.
#[derive(Clone, Debug, PartialEq)]
pub struct Chosen {
    pub recompute: f64,
    pub counts: Counts,
    pub retained: f64,
    pub working: f64,
    /// Activations on the host.
    pub host: f64,
}

impl Layout {
    #[must_use]
    pub fn new(profile: &Profile, cluster: &Cluster, config: &Config) -> Layout {
        let (t, c) = (config.tensor as f64, config.context as f64);
        let tokens = config.length as f64 / c;
        let x = config.precision.bytes().activation as f64;
        let residual = config.precision.residual() as f64;
        let wide = if config.sequence_parallel { t } else { 1.0 };
        let blocks: Vec<BlockBytes> = profile
            .kinds
            .iter()
            .map(|kind| {
                let kept = kind.kept(config.precision);
                let scores = kept.scores * config.length as f64 * tokens / t;
                let all = tokens * (kept.wide / wide + kept.cut / t) + scores;
                let ring = if config.context > 1 { 4.0 * x * kind.kv * tokens / t } else { 0.0 };
                let core = kind.core_flops * config.length as f64 * tokens / t;
                BlockBytes {
                    kept: all,
                    once: kept.once / t,
                    selective: all - scores,
                    input: residual * kind.input * tokens / wide,
                    forward_working: x * kind.forward_working * tokens / t + ring,
                    backward_working: x * kind.backward_working * tokens / t + ring,
                    flops: kind.flops * tokens / t + core,
                    core_flops: core,
                }
            })
            .collect();
        let stages = stages(profile, config, &blocks, tokens / t);
        // `model(...).loss` lets go of the logits before backward.
        let vocab = head::factor(config.precision, Loss::Released) * profile.vocab as f64 / t;
        let communicators = [
            config.data * config.context,
            config.tensor,
            config.pipeline.min(2),
            config.context,
            config.expert,
        ];
        let overhead = overhead::context(true).value
            + overhead::cublas_workspace(cluster.gpu.compute_capability).value
            + overhead::nccl(&communicators, cluster.gpu.is_rocm()).value;
        Layout {
            selective_helps: profile.selective
                && profile.kinds.iter().any(|kind| kind.kept(config.precision).scores > 0.0),
            blocks,
            stages,
            head: tokens * (vocab + x * 5.0 * profile.hidden as f64 / wide),
            head_once: head::autocast_copy(profile.vocab, profile.hidden, config.tensor, config.precision)
                .value as f64,
            overhead: overhead as f64,
            tensor: config.tensor,
            pipeline: config.pipeline,
            chunks: config.chunks,
            largest: profile.largest.div_ceil(config.tensor),
            host: cluster.host_memory as f64,
        }
    }
}

/// Blocks spread evenly, the remainder over the first stages; of stages that are alike only the first, which holds
/// most.
fn stages(profile: &Profile, config: &Config, blocks: &[BlockBytes], head_share: f64) -> Vec<Stage> {
    let p = config.pipeline;
    let n = profile.blocks();
    let degrees = Degrees {
        data: config.data,
        tensor: config.tensor,
        context: config.context,
        expert: config.expert,
        expert_tensor: 1,
    };
    let mut stages: Vec<Stage> = Vec::new();
    for rank in 0..p {
        let from = rank * (n / p) + rank.min(n % p);
        let to = from + n / p + u64::from(rank < n % p);
        let mut counts = vec![0; profile.kinds.len()];
        for &kind in &profile.order[from as usize..to as usize] {
            counts[kind] += 1;
        }
        let is_last = rank + 1 == p;
        // With one chunk after another on each stage, kinds mix: the worst stage is still one of these.
        if stages.iter().any(|s| s.counts == counts && s.rank > 0 && !s.is_last && !is_last) {
            continue;
        }
        let mut sum = Divided::default();
        let mut add = |d: &Divided, times: u64| {
            sum.sharded += d.sharded * times;
            sum.replicated += d.replicated * times;
            sum.experts += d.experts * times;
        };
        for (kind, &count) in profile.kinds.iter().zip(&counts) {
            add(&kind.parameters, count);
        }
        let mut flops: f64 =
            blocks.iter().zip(&counts).map(|(block, &count)| block.flops * count as f64).sum();
        if rank == 0 {
            add(&profile.first, 1);
        }
        if is_last {
            add(&profile.last, 1);
            flops += profile.head_flops() * head_share;
            // A tied head on another stage than the embedding has a copy of it.
            if profile.tied && p > 1 {
                add(&profile.first, 1);
            }
        }
        let parameters = sharding::rank_parameters(&sum, &degrees);
        let unit = |d: &Divided| {
            let rank = sharding::rank_parameters(d, &degrees);
            rank.dense + rank.experts
        };
        let largest = profile.kinds.iter().map(|kind| unit(&kind.parameters)).max().unwrap_or(0);
        let trained = match config.lora {
            None => parameters,
            Some(Lora { rank, .. }) => {
                let per: f64 =
                    profile.kinds.iter().zip(&counts).map(|(kind, &count)| kind.adapter * count as f64).sum();
                RankParameters {
                    dense: (per * rank as f64 / config.tensor as f64) as u64,
                    experts: 0,
                    ..parameters
                }
            }
        };
        stages.push(Stage { rank, is_last, counts, parameters, trained, unit: largest, flops });
    }
    stages
}

/// What sharding and offloading leave on a rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Holding {
    pub weights: f64,
    pub gradients: f64,
    pub states: f64,
    pub gathered: f64,
    pub optimizer_step: f64,
    /// On the host: states and weights that were sent there.
    pub host: f64,
}

impl Holding {
    #[must_use]
    pub fn new(layout: &Layout, stage: &Stage, config: &Config) -> Holding {
        let widths = config.precision.bytes();
        let Offload { optimizer: states_away, parameters: weights_away, .. } = config.offload;
        let RankParameters { dense, experts, dense_shards, expert_shards } = stage.parameters;
        let (w, g, k) = config.sharding.divisors(dense_shards);
        let (we, ge, ke) = config.sharding.divisors(expert_shards);
        let split =
            |dense: u64, experts: u64, d: u64, e: u64| dense as f64 / d as f64 + experts as f64 / e as f64;
        let frozen = config.lora.is_some();
        let weight = if frozen { config.format.bits() / 8.0 } else { widths.weight as f64 };
        let x = widths.activation as f64;
        let (trained, trained_experts) = (stage.trained.dense, stage.trained.experts);
        let adapters = if frozen { split(trained, 0, w, we) * widths.weight as f64 } else { 0.0 };
        let gathers = matches!(config.sharding, Sharding::Zero3 | Sharding::Fsdp);
        let unit = stage.unit as f64;
        let weights =
            if weights_away { 4.0 * unit * x } else { split(dense, experts, w, we) * weight + adapters };
        let all_gradients = split(trained, trained_experts, g, ge) * widths.gradient as f64;
        let leaves = states_away && (config.sharding >= Sharding::Zero2 || config.data * config.context == 1);
        let gradients =
            if leaves { all_gradients.min((2 * BUCKET * widths.gradient) as f64) } else { all_gradients };
        let mine = split(trained, trained_experts, k, ke);
        let per = widths.master as f64 + config.optimizer.state_bytes(widths.state);
        let (every, largest) = config.optimizer.transient(widths.state);
        let mut gathered = 0.0;
        if gathers {
            // fp32 weights under autocast are gathered as they are.
            let compute = if config.precision.is_autocast() { 4.0 } else { x };
            gathered += sharding::fsdp_transient(stage.unit, compute, widths.gradient as f64).value as f64;
        }
        if matches!(config.sharding, Sharding::Zero1 | Sharding::Zero2 | Sharding::Zero3) {
            let bucket = BUCKET.min(trained + trained_experts);
            gathered += sharding::deepspeed_buckets(bucket, bucket).value as f64;
        }
        // DeepSpeed's estimator: half as much again for buffers.
        let sent = if states_away { mine * (per + 2.0 * widths.gradient as f64) } else { 0.0 }
            + if weights_away { split(dense, experts, w, we) * weight } else { 0.0 };
        Holding {
            host: 1.5 * sent,
            weights,
            gradients,
            states: if states_away { 0.0 } else { mine * per },
            gathered,
            optimizer_step: if states_away {
                0.0
            } else {
                every * mine + largest * (layout.largest as f64).min(mine)
            },
        }
    }

    /// What is there whatever the batch and checkpointing: a lower bound of the peak.
    #[must_use]
    pub fn floor(&self) -> f64 {
        self.weights + self.states + self.gathered + self.gradients.max(0.0)
    }

    /// Bytes that are left for activations, of `room`.
    fn left(&self, room: f64, accumulates: bool) -> f64 {
        room - self.weights - self.states - self.gathered - if accumulates { self.gradients } else { 0.0 }
    }

    /// The fewest operations to recompute with which the stage stays within `room` (overhead taken off); none where
    /// nothing fits.
    #[must_use]
    pub fn fit(&self, layout: &Layout, stage: &Stage, config: &Config, room: f64) -> Option<Chosen> {
        if self.weights + self.states + self.gradients + self.optimizer_step > room {
            return None;
        }
        let accumulates = config.accumulation > 1 || config.pipeline > 1;
        let left = self.left(room, accumulates);
        let batch = config.micro_batch as f64;
        let head = if stage.is_last { layout.head * batch + layout.head_once } else { 0.0 };
        let chosen = choose(layout, stage, config, left, head)?;
        if self.host + chosen.host > layout.host {
            return None;
        }
        // The end of backward, where gradients that did not accumulate are all there, with one block's working set.
        let end = self.gradients + chosen.working;
        (accumulates || end <= left).then_some(chosen)
    }

    /// The components of a fitting point.
    #[must_use]
    pub fn account(&self, layout: &Layout, stage: &Stage, config: &Config, chosen: &Chosen) -> Account {
        let accumulates = config.accumulation > 1 || config.pipeline > 1;
        let head =
            if stage.is_last { layout.head * config.micro_batch as f64 + layout.head_once } else { 0.0 };
        let base = self.weights + self.states;
        let running = base
            + self.gathered
            + if accumulates { self.gradients } else { 0.0 }
            + chosen.retained
            + chosen.working.max(head);
        let ending = base + self.gathered + self.gradients + chosen.working;
        let stepping = base + self.gradients + self.optimizer_step;
        Account {
            stage: stage.rank,
            weights: self.weights,
            gradients: self.gradients,
            states: self.states,
            gathered: self.gathered,
            activations: chosen.retained,
            working: chosen.working,
            head,
            optimizer_step: self.optimizer_step,
            overhead: layout.overhead,
            peak: layout.overhead + running.max(ending).max(stepping),
            host: self.host + chosen.host,
        }
    }
}

/// One stage alone as a chain, for `checkpoint` to choose block by block: gradients that accumulate are part of its
/// base.
#[must_use]
pub fn chain(profile: &Profile, layout: &Layout, holding: &Holding, config: &Config) -> Chain {
    let accumulates = config.accumulation > 1;
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
            input: (bytes.input * batch) as u64,
            saved: (bytes.kept * batch + bytes.once) as u64,
            forward_working: (bytes.forward_working * batch) as u64,
            backward_working: (bytes.backward_working * batch) as u64,
            output_gradient: (bytes.input * batch / widths.activation as f64) as u64,
            gradient: gradient(profile.kinds[kind].parameters.total()),
            forward_cost: (bytes.flops * batch) as u64,
        }
        .block()
    });
    let base = holding.weights
        + holding.states
        + holding.gathered
        + if accumulates { holding.gradients } else { 0.0 };
    Chain {
        base: (base + layout.overhead) as u64,
        blocks: blocks.collect(),
        head_peak: (layout.head * batch + layout.head_once) as u64,
        head_gradient: gradient(profile.last.total()),
    }
}
