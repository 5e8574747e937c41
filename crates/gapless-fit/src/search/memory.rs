//! Bytes of one point of the space on its worst rank.
//!
//! `Layout` holds the bytes that follow from model and degrees, for a micro-batch of one sequence, on each pipeline
//! stage that can be the worst; `holding` those that follow from sharding and offloading on one of them, and adds
//! micro-batch and checkpointing. A stage holds `in flight x retained` of all its blocks and the working set of the
//! worst block at once: for equal blocks that is its peak, for different ones an upper bound (`checkpoint::chain`
//! refines it for a single stage).

use super::profile::Profile;
use super::space::Config;
use crate::formulas::head::{self, Loss};
use crate::formulas::overhead;
use crate::formulas::parameters::Divided;
use crate::formulas::sharding::{self, Degrees, RankParameters};
use crate::hardware::Cluster;
use crate::settings::Lora;

/// Elements of DeepSpeed's buckets, here and in the files that `emit` writes: a tenth of its default, which alone would
/// take 9 GB.
pub const BUCKET: u64 = 50_000_000;
/// Elements of weights that ZeRO 3 keeps gathered.
pub const LIVE: u64 = 4 * BUCKET;

/// Bytes and operations of a block for one sequence on one rank.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BlockBytes {
    pub kept: f64,
    /// Once, not for each sequence.
    pub once: f64,
    pub selective: f64,
    pub input: f64,
    /// Once, not for each sequence.
    pub input_once: f64,
    pub forward_working: f64,
    pub backward_working: f64,
    /// Once, not for each sequence.
    pub working_once: f64,
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
    /// Those of them that are trained.
    pub trained: RankParameters,
    /// Parameters of the largest unit that is gathered at once.
    pub unit: u64,
    /// Parameters outside of all blocks, which stay gathered from the first use to the last; and those of them whose
    /// gradients come first: the head's, or those of the embedding that it shares.
    pub root: u64,
    pub head: u64,
    /// True if the head's matrix is the embedding's on this stage.
    pub tied: bool,
    /// Operations of one sequence's forward.
    pub flops: f64,
}

/// A model under given degrees.
#[derive(Clone, Debug)]
pub struct Layout {
    pub blocks: Vec<BlockBytes>,
    pub stages: Vec<Stage>,
    /// The loss of one sequence, and of its boundary tensors.
    pub head: f64,
    /// Of the head, once whatever the sequences.
    pub head_once: f64,
    /// When the embedding's gradients are computed.
    pub ending: f64,
    pub overhead: f64,
    pub tensor: u64,
    pub pipeline: u64,
    pub chunks: u64,
    pub largest: u64,
    pub host: f64,
    pub selective_helps: bool,
}

/// A moment that can be a step's peak: the bytes beside weights, states and overhead.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Moment {
    pub phase: &'static str,
    pub gradients: f64,
    pub activations: f64,
    pub gathered: f64,
    pub working: f64,
    pub head: f64,
    pub optimizer_step: f64,
}

impl Moment {
    #[must_use]
    pub fn total(&self) -> f64 {
        self.gradients + self.activations + self.gathered + self.working + self.head + self.optimizer_step
    }
}

/// Bytes by component, on the worst rank.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RankAccount {
    pub stage: u64,
    pub weights: f64,
    pub gradients: f64,
    pub states: f64,
    /// Bytes that sharding holds while a block's gradients are computed.
    pub gathered: f64,
    pub activations: f64,
    pub working: f64,
    pub head: f64,
    /// Beside gradients.
    pub optimizer_step: f64,
    pub overhead: f64,
    /// The moment that holds most.
    pub at: Moment,
    /// The bytes at that moment, overhead included.
    pub peak: f64,
    /// Of the host's memory, if something is offloaded.
    pub host: f64,
}

/// Numbers of blocks of each kind that are kept, half recomputed, recomputed.
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
                    input_once: kind.input_once / t,
                    forward_working: x * kind.forward_working * tokens / t + ring,
                    backward_working: x * kind.backward_working * tokens / t + ring,
                    working_once: kind.working_once / t,
                    flops: kind.flops * tokens / t + core,
                    core_flops: core,
                }
            })
            .collect();
        let stages = stages(profile, config, &blocks, tokens / t);
        // `model(...).loss` frees the logits before backward.
        let vocab = head::factor(config.precision, Loss::Released) * profile.vocab as f64 / t;
        let communicators = [
            config.data * config.context,
            config.tensor,
            config.pipeline.min(2),
            config.context,
            config.expert,
        ];
        let overhead = overhead::context(true).value
            + overhead::TRAINING_THREADS * overhead::cublas_workspace(cluster.gpu.compute_capability).value
            + overhead::nccl(&communicators, cluster.gpu.is_rocm()).value;
        Layout {
            selective_helps: profile.selective
                && profile.kinds.iter().any(|kind| kind.kept(config.precision).scores > 0.0),
            blocks,
            stages,
            head: tokens * (vocab + x * 5.0 * profile.hidden as f64 / wide),
            head_once: profile.head_once.map_or_else(
                || {
                    head::autocast_copy(profile.vocab, profile.hidden, config.tensor, config.precision).value
                        as f64
                },
                |bytes| bytes / t,
            ),
            ending: profile.ending / t,
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
        let ends = [(rank == 0, &profile.first), (is_last, &profile.last)];
        let root = ends.iter().filter(|(here, _)| *here).map(|(_, end)| unit(end)).sum();
        let head = if is_last { unit(if profile.tied { &profile.first } else { &profile.last }) } else { 0 };
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
        stages.push(Stage {
            rank,
            is_last,
            counts,
            parameters,
            trained,
            unit: largest,
            root,
            head,
            tied: profile.tied && is_last && rank == 0,
            flops,
        });
    }
    stages
}
