//! Bytes that sharding leaves on one rank: data-parallel schemes, and the divisors of tensor, pipeline and expert
//! parallelism.

use super::Term;
use super::parameters::Divided;

/// How data-parallel ranks share states.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Sharding {
    /// A full copy on every rank; buckets are views of the gradients.
    Ddp,
    /// Optimizer states and master copies.
    Zero1,
    /// And gradients.
    Zero2,
    /// And weights.
    Zero3,
    /// As ZeRO-3, by torch's `fully_shard` around each block.
    Fsdp,
}

impl Sharding {
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Sharding::Ddp => "ddp",
            Sharding::Zero1 => "zero1",
            Sharding::Zero2 => "zero2",
            Sharding::Zero3 => "zero3",
            Sharding::Fsdp => "fsdp",
        }
    }

    /// The divisors of weights, gradients and optimizer states over `degree` ranks.
    #[must_use]
    pub fn divisors(self, degree: u64) -> (u64, u64, u64) {
        match self {
            Sharding::Ddp => (1, 1, 1),
            Sharding::Zero1 => (1, 1, degree),
            Sharding::Zero2 => (1, degree, degree),
            Sharding::Zero3 | Sharding::Fsdp => (degree, degree, degree),
        }
    }
}

/// Weights (w), gradients (g) and optimizer bytes (K, master copies included) of Ψ parameters on one of N ranks.
#[must_use]
pub fn states(
    parameters: u64,
    weight: f64,
    gradient: f64,
    optimizer: f64,
    sharding: Sharding,
    degree: u64,
) -> Term {
    let (w, g, k) = sharding.divisors(degree);
    let psi = parameters as f64;
    let equation = match sharding {
        Sharding::Ddp => "(w + g + K) Ψ",
        Sharding::Zero1 => "w Ψ + g Ψ + K Ψ / N",
        Sharding::Zero2 => "w Ψ + (g + K) Ψ / N",
        Sharding::Zero3 | Sharding::Fsdp => "(w + g + K) Ψ / N",
    };
    Term::bytes(
        "model states on a rank",
        psi * (weight / w as f64 + gradient / g as f64 + optimizer / k as f64),
        equation,
        &[("w", weight), ("g", gradient), ("K", optimizer), ("Ψ", psi), ("N", degree as f64)],
        "Rajbhandari et al. 2020 (ZeRO), table 1",
    )
}

/// Buckets of an all-reduce that are no views of the gradients.
#[must_use]
pub fn ddp_buckets(parameters: u64, gradient: f64) -> Term {
    let psi = parameters as f64;
    Term::bytes(
        "all-reduce buckets",
        gradient * psi,
        "g Ψ, unless gradient_as_bucket_view=True",
        &[("g", gradient), ("Ψ", psi)],
        "torch.nn.parallel.DistributedDataParallel",
    )
}

/// Bytes that FSDP holds beyond its shards: U parameters of the largest unit, x compute bytes, r reduction bytes.
#[must_use]
pub fn fsdp_transient(unit: u64, compute: f64, reduce: f64) -> Term {
    let u = unit as f64;
    let forward = 3.0 * u * compute;
    let backward = 2.0 * u * compute + u * compute + u * reduce;
    Term::bytes(
        "gathered units",
        forward.max(backward),
        "max(2 U x + U x, 2 U x + U x + U r): this unit and the next gathered, a copy out, gradients and their reduction",
        &[("U", u), ("x", compute), ("r", reduce)],
        "torch.distributed.fsdp.fully_shard with its default prefetch",
    )
}

/// Parallel degrees inside one model replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Degrees {
    pub data: u64,
    pub tensor: u64,
    pub context: u64,
    pub expert: u64,
    pub expert_tensor: u64,
}

/// A rank's parameters, dense and expert, and the degree over which ZeRO shards each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankParameters {
    pub dense: u64,
    pub experts: u64,
    pub dense_shards: u64,
    /// Not N: the ranks that hold the same expert.
    pub expert_shards: u64,
}

/// Three divisors: matrices by t, norms and routers by 1, routed experts by q t_e; and two ZeRO degrees.
#[must_use]
pub fn rank_parameters(divided: &Divided, degrees: &Degrees) -> RankParameters {
    let Degrees { data, tensor, context, expert, expert_tensor } = *degrees;
    RankParameters {
        dense: divided.sharded.div_ceil(tensor) + divided.replicated,
        experts: divided.experts.div_ceil(expert * expert_tensor),
        dense_shards: data * context,
        expert_shards: (data * tensor * context / (expert * expert_tensor)).max(1),
    }
}

/// ZeRO-Offload: the bytes that stay on the device (16-bit weights and one bucket of gradients), and those on the host.
#[must_use]
pub fn offload(parameters: u64, degree: u64, bucket: u64) -> (Term, Term) {
    let psi = parameters as f64;
    let device = Term::bytes(
        "on the device with offloaded optimizer",
        2.0 * psi + 2.0 * bucket as f64,
        "2 Ψ + 2 bucket",
        &[("Ψ", psi), ("bucket", bucket as f64)],
        "Ren et al. 2021 (ZeRO-Offload)",
    );
    let host = Term::bytes(
        "on the host",
        1.5 * 16.0 * psi / degree as f64,
        "1.5 16 Ψ / N",
        &[("Ψ", psi), ("N", degree as f64)],
        "DeepSpeed's estimator: additional_buffer_factor 1.5",
    );
    (device, host)
}
