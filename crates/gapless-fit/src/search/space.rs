//! The question of a search: the step, the hardware's share, and for each dimension the values that may be tried.

use super::SearchError;
use super::profile::Profile;
use crate::formulas::sharding::Sharding;
use crate::formulas::states::Widths;
use crate::formulas::weights::Format;
use crate::hardware::Cluster;
use crate::settings::{Checkpointing, Lora, Optimizer, Precision};

/// Tensors that live on the host while they are not used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Offload {
    pub optimizer: bool,
    pub parameters: bool,
    pub activations: bool,
}

/// The values that each dimension may take. A fixed dimension has one.
#[derive(Clone, Debug, PartialEq)]
pub struct Space {
    pub global_batch: u64,
    pub length: u64,
    pub precisions: Vec<Precision>,
    pub optimizers: Vec<Optimizer>,
    pub checkpointing: Vec<Checkpointing>,
    pub shardings: Vec<Sharding>,
    pub tensor: Vec<u64>,
    pub pipeline: Vec<u64>,
    pub context: Vec<u64>,
    pub expert: Vec<u64>,
    /// Chunks of an interleaved pipeline; 1 is plain 1F1B.
    pub chunks: Vec<u64>,
    /// Empty: all that divide.
    pub micro_batches: Vec<u64>,
    pub offloads: Vec<Offload>,
    pub lora: Option<Lora>,
    /// Of the frozen base, with adapters.
    pub formats: Vec<Format>,
    /// Sequence parallelism beside tensor parallelism.
    pub sequence_parallel: bool,
    /// Share of the memory left free for fragmentation.
    pub headroom: f64,
}

/// The divisors of n, ascending.
#[must_use]
pub fn divisors(n: u64) -> Vec<u64> {
    let mut low: Vec<u64> = (1..).take_while(|d| d * d <= n).filter(|d| n.is_multiple_of(*d)).collect();
    let high: Vec<u64> = low.iter().rev().map(|d| n / d).filter(|d| d * d > n).collect();
    low.extend(high);
    low
}

impl Space {
    /// Everything free that keeps the training recipe: precision and optimizer stay as given.
    #[must_use]
    pub fn open(
        profile: &Profile,
        cluster: &Cluster,
        global_batch: u64,
        length: u64,
        precision: Precision,
        optimizer: Optimizer,
    ) -> Space {
        let gpus = cluster.gpus().max(1);
        let within = |most: u64| divisors(gpus).into_iter().filter(move |&d| d <= most);
        let heads = profile.heads.max(1);
        let cuts = |t: u64| {
            heads.is_multiple_of(t)
                && (profile.kv_heads.is_multiple_of(t) || t.is_multiple_of(profile.kv_heads.max(1)))
        };
        // Beyond a node, every matrix product would wait for the network.
        let tensor = within(cluster.gpus_per_node.min(heads)).filter(|&t| cuts(t)).collect();
        let expert = if profile.experts > 0 {
            within(profile.experts).filter(|q| profile.experts.is_multiple_of(*q)).collect()
        } else {
            vec![1]
        };
        let free = |optimizer, parameters, activations| Offload { optimizer, parameters, activations };
        let alone = gpus == 1;
        Space {
            global_batch,
            length,
            precisions: vec![precision],
            optimizers: vec![optimizer],
            checkpointing: vec![
                Checkpointing::None,
                Checkpointing::Selective,
                Checkpointing::Full,
                Checkpointing::Optimal,
            ],
            shardings: if alone {
                vec![Sharding::Ddp]
            } else {
                vec![Sharding::Ddp, Sharding::Zero1, Sharding::Zero2, Sharding::Zero3, Sharding::Fsdp]
            },
            tensor,
            pipeline: within(profile.blocks().max(1)).collect(),
            context: within(length.div_ceil(1024).max(1))
                .filter(|c| length.is_multiple_of(2 * c) || *c == 1)
                .collect(),
            expert,
            chunks: vec![1, 2, 4],
            micro_batches: Vec::new(),
            offloads: vec![
                Offload::default(),
                free(true, false, false),
                free(false, false, true),
                free(true, false, true),
                free(true, true, false),
                free(true, true, true),
            ],
            lora: None,
            formats: vec![Format::Half],
            sequence_parallel: true,
            headroom: 0.02,
        }
    }

    /// Refuses a question that makes no sense: something is 0 or empty, or a fixed degree does not divide its count.
    pub fn check(&self, profile: &Profile, cluster: &Cluster) -> Result<(), SearchError> {
        for (what, value) in [
            ("the batch", self.global_batch),
            ("the length", self.length),
            ("the number of GPUs of a node", cluster.gpus_per_node),
            ("the number of nodes", cluster.nodes),
        ] {
            if value == 0 {
                return Err(SearchError::Zero { what });
            }
        }
        for (what, list) in [
            ("the tensor-parallel degree", &self.tensor),
            ("the pipeline-parallel degree", &self.pipeline),
            ("the context-parallel degree", &self.context),
            ("the expert-parallel degree", &self.expert),
            ("the number of chunks", &self.chunks),
        ] {
            if list.is_empty() {
                return Err(SearchError::Empty { what });
            }
            if list.contains(&0) {
                return Err(SearchError::Zero { what });
            }
        }
        if self.micro_batches.contains(&0) {
            return Err(SearchError::Zero { what: "the micro-batch" });
        }
        for (what, empty) in [
            ("the precision", self.precisions.is_empty()),
            ("the optimizer", self.optimizers.is_empty()),
            ("checkpointing", self.checkpointing.is_empty()),
            ("the sharding", self.shardings.is_empty()),
            ("offloading", self.offloads.is_empty()),
            ("the format of weights", self.formats.is_empty()),
        ] {
            if empty {
                return Err(SearchError::Empty { what });
            }
        }
        self.check_degrees(profile, cluster)
    }

    /// A degree that the user fixed has to divide; a list of several is filtered instead.
    fn check_degrees(&self, profile: &Profile, cluster: &Cluster) -> Result<(), SearchError> {
        let gpus = cluster.gpus();
        let fixed = |list: &[u64]| if let [one] = list { Some(*one) } else { None };
        let divides = |what, degree: u64, of, count: u64| {
            if count.is_multiple_of(degree) {
                return Ok(());
            }
            let near: Vec<String> = divisors(count).iter().map(u64::to_string).collect();
            Err(SearchError::DoesNotDivide {
                what,
                degree,
                of,
                count,
                hint: format!("these do: {}", near.join(", ")),
            })
        };
        let mut product = 1;
        for (what, list) in [
            ("the tensor-parallel degree", &self.tensor),
            ("the pipeline-parallel degree", &self.pipeline),
            ("the context-parallel degree", &self.context),
        ] {
            if let Some(degree) = fixed(list) {
                divides(what, degree, "the number of GPUs", gpus)?;
                product *= degree;
            }
        }
        divides("the product of the degrees,", product, "the number of GPUs", gpus)?;
        if let Some(t) = fixed(&self.tensor) {
            divides("the tensor-parallel degree", t, "the number of heads", profile.heads)?;
        }
        if let Some(p) = fixed(&self.pipeline).filter(|&p| p > profile.blocks()) {
            return Err(SearchError::Contradiction {
                first: format!("{p} pipeline stages"),
                second: format!("{} blocks", profile.blocks()),
                hint: "a stage needs at least one block".to_owned(),
            });
        }
        if let Some(c) = fixed(&self.context) {
            divides("the context-parallel degree", c, "the length", self.length)?;
        }
        if let Some(q) = fixed(&self.expert).filter(|&q| q > 1) {
            if profile.experts == 0 {
                return Err(SearchError::Contradiction {
                    first: format!("expert parallelism of {q}"),
                    second: "a model without experts".to_owned(),
                    hint: "leave it at 1".to_owned(),
                });
            }
            divides("the expert-parallel degree", q, "the number of experts", profile.experts)?;
        }
        if let (Some(v), Some(p)) = (fixed(&self.chunks).filter(|&v| v > 1), fixed(&self.pipeline)) {
            if p == 1 {
                return Err(SearchError::Contradiction {
                    first: format!("{v} chunks a stage"),
                    second: "one pipeline stage".to_owned(),
                    hint: "chunks interleave stages: raise the pipeline degree or leave them at 1".to_owned(),
                });
            }
            divides("stages times chunks,", p * v, "the number of blocks", profile.blocks())?;
        }
        if let Some(b) = fixed(&self.micro_batches) {
            divides("the micro-batch", b, "the batch", self.global_batch)?;
        }
        let shards = self.shardings.iter().all(|sharding| *sharding != Sharding::Ddp);
        if shards && gpus == 1 {
            return Err(SearchError::Contradiction {
                first: format!("sharding by {}", self.shardings[0].name()),
                second: "one GPU".to_owned(),
                hint: "there is nobody to share with: add GPUs, or leave the sharding free".to_owned(),
            });
        }
        let keeps = |sharding: &Sharding| !matches!(sharding, Sharding::Zero3 | Sharding::Fsdp);
        if gpus > 1 && self.offloads.iter().all(|o| o.parameters) && self.shardings.iter().all(keeps) {
            return Err(SearchError::Contradiction {
                first: "parameters on the host".to_owned(),
                second: format!("sharding by {}", self.shardings[0].name()),
                hint: "parameters are fetched block by block only with zero 3 or fsdp".to_owned(),
            });
        }
        if !(0.0..1.0).contains(&self.headroom) {
            return Err(SearchError::Contradiction {
                first: format!("a headroom of {}", self.headroom),
                second: "a share of the memory".to_owned(),
                hint: "give a number from 0 to below 1".to_owned(),
            });
        }
        Ok(())
    }
}

/// One point of the space.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Config {
    pub precision: Precision,
    pub optimizer: Optimizer,
    pub checkpointing: Checkpointing,
    pub sharding: Sharding,
    pub data: u64,
    pub tensor: u64,
    pub pipeline: u64,
    pub context: u64,
    pub expert: u64,
    pub chunks: u64,
    pub micro_batch: u64,
    /// Micro-batches a step on each rank.
    pub accumulation: u64,
    pub length: u64,
    pub offload: Offload,
    pub lora: Option<Lora>,
    pub format: Format,
    pub sequence_parallel: bool,
}

impl Config {
    #[must_use]
    pub fn global_batch(&self) -> u64 {
        self.data * self.micro_batch * self.accumulation
    }

    #[must_use]
    pub fn gpus(&self) -> u64 {
        self.data * self.tensor * self.pipeline * self.context
    }

    /// Bytes that a rank holds between steps. `fully_shard` keeps its shards in the parameters' own type, which is that
    /// of the master copies; it casts a unit as it gathers it, and gives gradients in the parameters' type
    /// (`_fsdp_param.py`, `foreach_reduce` of `_fsdp_collectives.py`).
    #[must_use]
    pub fn held(&self) -> Widths {
        let widths = self.precision.bytes();
        let Offload { optimizer, parameters, .. } = self.offload;
        let trains_all = self.lora.is_none() && !optimizer && !parameters;
        if self.sharding != Sharding::Fsdp || widths.master == 0 || !trains_all {
            return widths;
        }
        Widths { weight: widths.master, gradient: widths.master.max(widths.gradient), master: 0, ..widths }
    }
}
