//! The stated cost model: seconds of a step, from operations, bytes over links, bytes over PCIe and idle stages.
//!
//! Operations run at `efficiency` of the device's dense peak, less if a micro-batch is small (T / (T +
//! `half_speed_tokens`)). A ring all-reduce of n bytes over g ranks moves 2 n (g - 1) / g over the slowest link of the
//! group, a gather or a scatter half of that. Tensor, context and expert traffic delays the step, and so does an update
//! on the host; data-parallel traffic and offloading hide behind the share `overlap` of the computing time. Ranks are
//! laid out tensor first, then context, data, pipeline, so that the heaviest traffic stays within a node.

use super::holding::Holding;
use super::memory::{Layout, Stage};
use super::profile::Profile;
use super::space::Config;
use crate::formulas::pipeline::Schedule;
use crate::formulas::sharding::Sharding;
use crate::hardware::Cluster;

/// The constants of the model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CostModel {
    pub efficiency: f64,
    pub half_speed_tokens: f64,
    pub overlap: f64,
    /// Of the host, for an optimizer that runs there, bytes a second for each GPU.
    pub host_bytes: f64,
}

impl Default for CostModel {
    fn default() -> CostModel {
        CostModel { efficiency: 0.5, half_speed_tokens: 512.0, overlap: 0.5, host_bytes: 20e9 }
    }
}

/// Seconds of a step, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    pub compute: f64,
    pub recompute: f64,
    pub bubble: f64,
    pub tensor: f64,
    pub pipeline: f64,
    pub context: f64,
    pub expert: f64,
    pub data: f64,
    pub offload: f64,
    pub optimizer: f64,
}

impl Cost {
    #[must_use]
    pub fn total(&self) -> f64 {
        let waits = self.tensor + self.pipeline + self.context + self.expert + self.data + self.offload;
        self.compute + self.recompute + self.bubble + waits + self.optimizer
    }
}

/// Traffic that degrees alone decide, for one sequence, in seconds; and the time of computing.
#[derive(Clone, Copy, Debug)]
pub struct Traffic {
    /// Forward of one sequence on the slowest stage, at full efficiency.
    forward: f64,
    /// Operations a second.
    speed: f64,
    tensor: f64,
    context: f64,
    expert: f64,
    pipeline: f64,
    tokens: f64,
}

impl CostModel {
    #[must_use]
    pub fn traffic(&self, profile: &Profile, cluster: &Cluster, layout: &Layout, config: &Config) -> Traffic {
        let (t, c, q) = (config.tensor, config.context, config.expert);
        let widths = config.precision.bytes();
        let x = widths.activation as f64;
        let tflops = if widths.activation == 4 { cluster.gpu.fp32_tflops } else { cluster.gpu.half_tflops };
        let speed = tflops * 1e12 * self.efficiency;
        let tokens = config.length as f64 / c as f64;
        let slowest = layout.stages.iter().map(|stage| stage.flops).fold(0.0, f64::max);
        let per_stage = |value: &dyn Fn(usize) -> f64| {
            let sum = |stage: &Stage| {
                stage.counts.iter().enumerate().map(|(kind, &n)| n as f64 * value(kind)).sum()
            };
            layout.stages.iter().map(sum).fold(0.0, f64::max)
        };
        let share = |degree: u64| (degree - 1) as f64 / degree as f64;
        // Two all-reduces forward and two backward, of the residual's width.
        let reduced = per_stage(&|kind| 4.0 * 2.0 * x * profile.kinds[kind].input * tokens);
        // Keys and values go around once forward; backward they go again, and their gradients with them.
        let ring = per_stage(&|kind| 3.0 * x * profile.kinds[kind].kv * tokens * (c - 1) as f64 / t as f64);
        // To the experts and back, forward and backward.
        let routed = per_stage(&|kind| 4.0 * x * profile.kinds[kind].routed * tokens / t as f64);
        let boundary = if config.pipeline > 1 {
            2.0 * x * profile.hidden as f64 * tokens * config.chunks as f64
                / t as f64
                / cluster.bandwidth(cluster.gpus_per_node + 1)
        } else {
            0.0
        };
        Traffic {
            forward: slowest / speed,
            speed,
            tensor: reduced * share(t) / cluster.bandwidth(t),
            context: ring / cluster.bandwidth(t * c),
            expert: routed * share(q) / cluster.bandwidth(t * c * q.div_ceil(t * c).max(1)),
            pipeline: boundary,
            tokens,
        }
    }

    /// A step's seconds, `recompute` operations for each sequence included. A lower bound of the group's cost with
    /// `recompute` 0.
    #[must_use]
    pub fn step(
        &self,
        cluster: &Cluster,
        layout: &Layout,
        traffic: &Traffic,
        holdings: &[Holding],
        config: &Config,
        recompute: f64,
    ) -> Cost {
        let m = config.accumulation as f64;
        let sequences = m * config.micro_batch as f64;
        let tokens = traffic.tokens * config.micro_batch as f64;
        let slowness = (tokens + self.half_speed_tokens) / tokens;
        let compute = 3.0 * traffic.forward * sequences * slowness;
        let again = recompute / traffic.speed * sequences * slowness;
        let schedule = if config.chunks > 1 {
            Schedule::Interleaved(config.chunks)
        } else {
            Schedule::OneForwardOneBackward
        };
        let bubble = schedule.bubble(config.pipeline, config.accumulation) * (compute + again);
        // A forward that runs again reduces again: a third more if all of it does.
        let repeated = 1.0 + 0.5 * (again / (compute / 3.0)).min(1.0);
        let (data, offload, optimizer) = self.states(cluster, layout, holdings, config);
        let hidden = self.overlap * compute;
        let away = if config.offload.activations {
            let bytes: f64 = layout
                .stages
                .iter()
                .map(|stage| stage.counts.iter().zip(&layout.blocks).map(|(&n, b)| n as f64 * b.kept).sum())
                .fold(0.0, f64::max);
            2.0 * bytes * sequences / (cluster.gpu.host_gbs * 1e9)
        } else {
            0.0
        };
        let moved = data + offload + away;
        let exposed = (moved - hidden).max(0.0) / moved.max(f64::MIN_POSITIVE);
        Cost {
            compute,
            recompute: again,
            bubble,
            tensor: traffic.tensor * sequences * repeated,
            pipeline: traffic.pipeline * sequences,
            context: traffic.context * sequences * repeated,
            expert: traffic.expert * sequences * repeated,
            data: data * exposed,
            offload: (offload + away) * exposed,
            optimizer,
        }
    }

    /// Seconds of data-parallel traffic, of offloaded states, and of the update itself.
    fn states(
        &self,
        cluster: &Cluster,
        layout: &Layout,
        holdings: &[Holding],
        config: &Config,
    ) -> (f64, f64, f64) {
        let widths = config.precision.bytes();
        let ranks = config.data * config.context;
        let span = ranks * config.tensor;
        let bandwidth = cluster.bandwidth(span);
        let share = (ranks - 1) as f64 / ranks as f64;
        let (mut traffic, mut away, mut update) = (0f64, 0f64, 0f64);
        for (stage, holding) in layout.stages.iter().zip(holdings) {
            let weights = (stage.parameters.dense + stage.parameters.experts) as f64;
            let trained = (stage.trained.dense + stage.trained.experts) as f64;
            let gradients = trained * widths.gradient as f64;
            let gathered = weights * widths.activation as f64;
            let bytes = match config.sharding {
                Sharding::Ddp | Sharding::Zero1 => 2.0 * gradients,
                // Reduced into shards after every micro-batch, weights gathered once.
                Sharding::Zero2 => gradients * config.accumulation as f64 + gathered,
                Sharding::Zero3 | Sharding::Fsdp => (gradients + 2.0 * gathered) * config.accumulation as f64,
            };
            traffic = traffic.max(bytes * share / bandwidth);
            let host = cluster.gpu.host_gbs * 1e9;
            let (_, _, k) = config.sharding.divisors(ranks);
            let mine = trained / k as f64;
            if config.offload.optimizer {
                // Gradients leave while backward runs; the step waits for the update and for the weights' way back.
                away = away.max(mine * widths.gradient as f64 / host);
                // Of the host's memory: weight, gradient and two states are read, all but the gradient written.
                let states = mine * (4.0 * 4.0 + 3.0 * 4.0) / self.host_bytes;
                update = update.max(states + mine * widths.weight as f64 / host);
            } else {
                let touched = 2.0 * (holding.states + holding.weights.min(mine * 4.0)) + holding.gradients;
                update = update.max(touched / (cluster.gpu.memory_gbs * 1e9));
            }
            if config.offload.parameters {
                away += 2.0 * weights
                    / if config.sharding.divisors(ranks).0 > 1 { ranks as f64 } else { 1.0 }
                    * widths.weight as f64
                    * config.accumulation as f64
                    / host;
            }
        }
        (traffic, away, update)
    }
}
