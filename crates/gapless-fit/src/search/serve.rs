//! Serving: weights, cache and the activation peak of a batch, over formats and degrees; the number of tokens that fit,
//! and the plans, cheapest first.
//!
//! The cost is GPU-seconds for a generated token when as many sequences run at once as asked (or as fit): a decode step
//! reads the weights that are active and the whole cache once, and reduces twice a block over tensor-parallel ranks.

use super::SearchError;
use super::memory::{Layout, Stage};
use super::profile::Profile;
use super::space::{Config, Offload, divisors};
use crate::formulas::engine::{self, Working};
use crate::formulas::overhead;
use crate::formulas::sharding::Sharding;
use crate::formulas::weights::Format;
use crate::hardware::Cluster;
use crate::settings::{Checkpointing, Optimizer, Precision};
use crate::simulated::RESERVE;
use crate::weigh::Table;

/// The settings of the server, and the values that may be tried.
#[derive(Clone, Debug, PartialEq)]
pub struct Serving {
    /// Tokens of context of one sequence, and sequences at once over all replicas.
    pub context: u64,
    pub sequences: u64,
    /// Tokens of one forward at most: vLLM's `max_num_batched_tokens`.
    pub batched_tokens: u64,
    pub formats: Vec<Format>,
    /// Bytes of the weights in those of the formats whose tensors are known one by one.
    pub weights: Vec<Weights>,
    /// Bytes of an element of the cache.
    pub cache_bytes: Vec<u64>,
    pub tensor: Vec<u64>,
    pub pipeline: Vec<u64>,
    /// True if experts may be spread over the tensor-parallel ranks instead of cut.
    pub expert: Vec<bool>,
    /// vLLM's `gpu_memory_utilization`.
    pub utilization: f64,
    /// Half of the weights pruned, 2:4.
    pub sparse: bool,
    /// Tokens of one page of the cache.
    pub page: u64,
    /// Elements that a forward pass holds of a token within a block.
    pub working: Working,
    /// Sequences that are sampled at once in the pass that sizes the cache.
    pub sampled: u64,
    /// True if activations come out of the share of the memory, false if out of the rest.
    pub activations_inside: bool,
    /// Memory for CUDA graphs, outside the share.
    pub graphs: u64,
}

/// A model's weights in a format.
#[derive(Clone, Debug, PartialEq)]
pub struct Weights {
    pub format: Format,
    pub table: Table,
    /// Bytes that the engine adds over all ranks, and on each rank within a pass.
    pub held: u64,
    pub working: u64,
}

/// A way to serve.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ServePlan {
    pub format: Format,
    pub cache_bytes: u64,
    pub tensor: u64,
    pub pipeline: u64,
    pub expert_parallel: bool,
    pub replicas: u64,
    pub sparse: bool,
    /// On the worst rank, bytes.
    pub weights: u64,
    pub cache_per_token: u64,
    pub activations: u64,
    pub overhead: u64,
    /// Tokens that fit in the cache of one replica.
    pub tokens: u64,
    pub seconds_per_token: f64,
    pub context: u64,
    pub batched_tokens: u64,
    pub utilization: f64,
    pub page: u64,
    pub graphs: u64,
}

impl ServePlan {
    /// Pages of the cache of one replica.
    #[must_use]
    pub fn pages(&self) -> u64 {
        self.tokens / self.page.max(1)
    }

    /// Bytes that a process takes of a GPU with a cache of so many tokens of each replica.
    #[must_use]
    pub fn needs(&self, tokens: u64) -> u64 {
        self.weights + self.activations + self.overhead + self.graphs + self.cache_per_token * tokens
    }

    /// Bytes that are left of a GPU of `memory` bytes once the engine runs, its graphs included.
    #[must_use]
    pub fn left(&self, memory: u64) -> u64 {
        let cache = self.tokens * self.cache_per_token;
        memory.saturating_sub(self.weights + self.activations + self.overhead + self.graphs + cache)
    }
}

/// Plans that hold all sequences, cheapest first; and the number of points looked at.
#[derive(Clone, Debug, PartialEq)]
pub struct Served {
    pub plans: Vec<ServePlan>,
    pub examined: u64,
    /// Of the plans that do not hold them, the one that needs least.
    pub nearest: Option<ServePlan>,
    /// The least bytes of a GPU with which any of them would.
    pub least: Option<u64>,
}

/// Tokens of one page of vLLM's cache.
pub const PAGE: u64 = 16;

impl Serving {
    /// Everything free but the format, which is the model's own; the engine is vLLM with a batch of 8192 tokens.
    #[must_use]
    pub fn open(profile: &Profile, cluster: &Cluster, context: u64, sequences: u64) -> Serving {
        let gpus = divisors(cluster.gpus().max(1));
        let heads = profile.heads.max(1);
        let tensor = gpus.iter().copied().filter(|&t| heads.is_multiple_of(t) && t <= cluster.gpus_per_node);
        Serving {
            context,
            sequences,
            batched_tokens: 8192,
            formats: vec![Format::Half],
            weights: Vec::new(),
            cache_bytes: vec![2],
            tensor: tensor.collect(),
            pipeline: gpus.iter().copied().filter(|&p| p <= profile.blocks()).collect(),
            expert: if profile.experts > 0 { vec![false, true] } else { vec![false] },
            utilization: 0.9,
            sparse: false,
            page: PAGE,
            working: Working {
                cut: profile.kinds.iter().map(|kind| kind.forward_working).fold(0.0, f64::max),
                whole: 2.0 * profile.hidden as f64,
            },
            sampled: 256,
            activations_inside: true,
            graphs: 0,
        }
    }

    fn check(&self, cluster: &Cluster) -> Result<(), SearchError> {
        for (what, value) in [
            ("the context", self.context),
            ("the number of sequences", self.sequences),
            ("the number of batched tokens", self.batched_tokens),
            ("the page of the cache", self.page),
            ("the number of GPUs", cluster.gpus()),
        ] {
            if value == 0 {
                return Err(SearchError::Zero { what });
            }
        }
        for (what, list) in
            [("the tensor-parallel degree", &self.tensor), ("the pipeline-parallel degree", &self.pipeline)]
        {
            if list.is_empty() {
                return Err(SearchError::Empty { what });
            }
            if list.contains(&0) {
                return Err(SearchError::Zero { what });
            }
        }
        if self.formats.is_empty() || self.cache_bytes.is_empty() {
            return Err(SearchError::Empty { what: "the format of weights or cache" });
        }
        if let ([t], [p]) = (&self.tensor[..], &self.pipeline[..]) {
            let gpus = cluster.gpus();
            if !gpus.is_multiple_of(t * p) {
                let hint = "give degrees whose product divides it".to_owned();
                let what = "the product of the degrees,";
                return Err(SearchError::DoesNotDivide {
                    what,
                    degree: t * p,
                    of: "the number of GPUs",
                    count: gpus,
                    hint,
                });
            }
        }
        if !(self.utilization > 0.0 && self.utilization <= 1.0) {
            return Err(SearchError::Contradiction {
                first: format!("a utilization of {}", self.utilization),
                second: "a share of the memory".to_owned(),
                hint: "give a number above 0 and up to 1".to_owned(),
            });
        }
        Ok(())
    }

    /// All ways that hold all sequences.
    pub fn search(&self, profile: &Profile, cluster: &Cluster) -> Result<Served, SearchError> {
        self.check(cluster)?;
        let mut plans = Vec::new();
        let mut nearest: Option<ServePlan> = None;
        let mut least: Option<u64> = None;
        let mut examined = 0;
        for &format in &self.formats {
            for &cache_bytes in &self.cache_bytes {
                for &tensor in &self.tensor {
                    for &pipeline in &self.pipeline {
                        for &expert in &self.expert {
                            if !cluster.gpus().is_multiple_of(tensor * pipeline) {
                                continue;
                            }
                            examined += 1;
                            let plan =
                                self.plan(profile, cluster, format, cache_bytes, tensor, pipeline, expert);
                            let share = self.sequences.div_ceil(plan.replicas);
                            let asked = share * self.context.next_multiple_of(self.page);
                            let held = (self.sequences * self.context).div_ceil(plan.replicas);
                            let needs = plan.needs(held);
                            least = Some(least.map_or(needs, |least| least.min(needs)));
                            if plan.tokens >= asked {
                                plans.push(plan);
                            } else if nearest.is_none_or(|near| needs < near.needs(held)) {
                                nearest = Some(plan);
                            }
                        }
                    }
                }
            }
        }
        plans.sort_by(|a, b| a.seconds_per_token.total_cmp(&b.seconds_per_token));
        Ok(Served { plans, examined, nearest, least })
    }

    /// Bytes of weights, and of cache for a token, on the rank that holds most of each.
    fn held(
        &self,
        profile: &Profile,
        cluster: &Cluster,
        config: &Config,
        known: Option<&Weights>,
        cache_bytes: u64,
    ) -> (f64, f64) {
        let layout = Layout::new(profile, cluster, config);
        let bits = if self.sparse { config.format.bits() / 2.0 + 1.0 } else { config.format.bits() };
        let t = config.tensor as f64;
        let kv = |kind: usize| {
            let kind = &profile.kinds[kind];
            let heads = profile.kv_heads.max(1);
            // Heads are copied if there are more ranks than heads; a latent is whole on every rank.
            let cut = if kind.latent { 1.0 } else { heads as f64 / heads.div_ceil(config.tensor) as f64 };
            kind.kv * cache_bytes as f64 / cut
        };
        let mut worst = (0f64, 0f64);
        for stage in &layout.stages {
            // Embeddings and head stay in 16 bits whatever the blocks' format.
            let ends = if stage.rank == 0 { profile.first.total() } else { 0 }
                + if stage.is_last { profile.last.total() } else { 0 };
            let ends = (ends as f64 / t).min((stage.parameters.dense + stage.parameters.experts) as f64);
            let blocks = (stage.parameters.dense + stage.parameters.experts) as f64 - ends;
            let weights = match known {
                Some(known) => {
                    rank(known, profile.tied, stage, config)
                        + known.held as f64 / (t * config.pipeline as f64)
                }
                None => blocks * bits / 8.0 + ends * 2.0,
            };
            let cache: f64 = stage.counts.iter().enumerate().map(|(kind, &n)| n as f64 * kv(kind)).sum();
            worst = (worst.0.max(weights), worst.1.max(cache));
        }
        worst
    }

    #[allow(clippy::too_many_arguments)]
    fn plan(
        &self,
        profile: &Profile,
        cluster: &Cluster,
        format: Format,
        cache_bytes: u64,
        tensor: u64,
        pipeline: u64,
        expert_parallel: bool,
    ) -> ServePlan {
        // Experts are divided by the tensor degree either way: cut, or spread.
        let config = Config {
            precision: Precision::Bf16,
            optimizer: Optimizer::Sgd,
            checkpointing: Checkpointing::None,
            sharding: Sharding::Ddp,
            data: 1,
            tensor,
            pipeline,
            context: 1,
            expert: if profile.experts > 0 { tensor.min(profile.experts) } else { 1 },
            chunks: 1,
            micro_batch: 1,
            accumulation: 1,
            length: self.context,
            offload: Offload::default(),
            lora: None,
            format,
            sequence_parallel: false,
        };
        let known = self.weights.iter().find(|weights| weights.format == format);
        let t = tensor as f64;
        let (weights, cache) = self.held(profile, cluster, &config, known, cache_bytes);
        let activations =
            engine::activations(self.working, self.batched_tokens, self.sampled, profile.vocab, tensor).value
                as f64
                + known.map_or(0.0, |weights| weights.working as f64 / t);
        let overhead = overhead::context(true).value
            + overhead::cublas_workspace(cluster.gpu.compute_capability).value
            + overhead::nccl(&[tensor, pipeline.min(2)], cluster.gpu.is_rocm()).value;
        let memory = cluster.gpu.memory() as f64;
        let share = memory * self.utilization - if self.activations_inside { activations } else { 0.0 };
        let all = memory * (1.0 - RESERVE) - activations - self.graphs as f64;
        let room = share.min(all) - weights - overhead as f64;
        let page = self.page as f64;
        let pages = if cache > 0.0 { (room / (cache * page)).floor().max(0.0) } else { 0.0 };
        let replicas = cluster.gpus() / (tensor * pipeline);
        let running = self.sequences.div_ceil(replicas).max(1) as f64;
        let held = (running * self.context as f64).min(pages * page);
        let step = pipeline as f64
            * ((weights + cache * held) / (cluster.gpu.memory_gbs * 1e9 * 0.7)
                + if tensor > 1 {
                    // Two reductions a block: a kernel's latency, and the bytes.
                    let blocks = profile.blocks() as f64 / pipeline as f64;
                    let bytes = 2.0 * running * 2.0 * profile.hidden as f64 * (t - 1.0) / t;
                    2.0 * blocks * (10e-6 + bytes / cluster.bandwidth(tensor))
                } else {
                    0.0
                });
        let fits = (held / self.context as f64).clamp(1e-9, running);
        ServePlan {
            format,
            cache_bytes,
            tensor,
            pipeline,
            expert_parallel,
            replicas,
            sparse: self.sparse,
            weights: weights as u64,
            cache_per_token: cache as u64,
            activations: activations as u64,
            overhead,
            tokens: (pages as u64) * self.page,
            seconds_per_token: step * tensor as f64 / fits,
            context: self.context,
            batched_tokens: self.batched_tokens,
            utilization: self.utilization,
            page: self.page,
            graphs: self.graphs,
        }
    }
}

/// Bytes of the weights of a stage on one rank.
fn rank(weights: &Weights, tied: bool, stage: &Stage, config: &Config) -> f64 {
    let (t, e, table) = (config.tensor, config.expert, &weights.table);
    let blocks =
        stage.counts.iter().zip(&table.kinds).map(|(count, kind)| *count as f64 * kind.on_rank(t, e));
    let first = table.first.on_rank(t, e);
    let mut all: f64 = blocks.sum();
    if stage.rank == 0 {
        all += first;
    }
    if stage.is_last {
        all += table.last.on_rank(t, e);
        // A tied head on another stage than the embedding has a copy of it.
        if tied && config.pipeline > 1 {
            all += first;
        }
    }
    all
}
