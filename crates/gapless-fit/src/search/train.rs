//! The search over training configurations: every group of degrees, sharding and offloading, each with its best
//! micro-batch and checkpointing.
//!
//! Points are left out only if that is proven to lose nothing: `by_memory`, if states alone, or a smaller micro-batch,
//! do not fit; `by_cost`, if computing and waiting without any recomputation already costs more than the last plan that
//! is kept; `by_rule`, if a dimension has no meaning (offloaded parameters without a scheme that gathers them, chunks
//! of one stage) or optimal checkpointing covers the point. `examined` and these add up to the whole space.

use super::SearchError;
use super::cost::{Cost, CostModel};
use super::holding::Holding;
use super::memory::{Chosen, Counts, Layout, RankAccount};
use super::profile::Profile;
use super::space::{Config, Space, divisors};
use crate::formulas::sharding::Sharding;
use crate::hardware::Cluster;
use crate::settings::Checkpointing;

/// A configuration that fits.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    pub config: Config,
    pub cost: Cost,
    /// On the worst rank.
    pub account: RankAccount,
    /// Numbers of blocks of each kind on that rank's stage: kept, half recomputed, recomputed.
    pub counts: Counts,
    /// The largest micro-batch that fits with everything else the same (checkpointing may rise if it is optimal).
    pub largest_micro_batch: u64,
}

/// The number of points, and of those that each rule left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Census {
    pub points: u64,
    pub examined: u64,
    pub fit: u64,
    pub by_memory: u64,
    pub by_cost: u64,
    pub by_rule: u64,
}

/// Plans, cheapest first, and the proof that the first is the cheapest.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    pub plans: Vec<Plan>,
    pub census: Census,
    /// If nothing fits: the bytes of the point that needs least.
    pub least_needed: Option<u64>,
}

struct Best {
    plans: Vec<Plan>,
    keep: usize,
}

impl Best {
    /// The cost that a plan has to stay below.
    fn bar(&self) -> f64 {
        if self.plans.len() < self.keep {
            f64::INFINITY
        } else {
            self.plans.last().map_or(f64::INFINITY, |p| p.cost.total())
        }
    }

    fn offer(&mut self, plan: Plan) {
        let place = self.plans.partition_point(|other| other.cost.total() <= plan.cost.total());
        if place < self.keep {
            self.plans.insert(place, plan);
            self.plans.truncate(self.keep);
        }
    }
}

/// The `keep` cheapest plans that fit, each of another group.
pub fn search(
    profile: &Profile,
    cluster: &Cluster,
    space: &Space,
    model: &CostModel,
    keep: usize,
) -> Result<Found, SearchError> {
    space.check(profile, cluster)?;
    let mut best = Best { plans: Vec::new(), keep: keep.max(1) };
    let mut census = Census::default();
    for layout in layouts(profile, cluster, space) {
        Group { profile, cluster, space, model, usable: usable(cluster, space) }.run(
            &layout,
            &mut best,
            &mut census,
        );
    }
    for plan in &mut best.plans {
        plan.largest_micro_batch = largest_micro_batch(profile, cluster, space, &plan.config);
    }
    let least_needed = if best.plans.is_empty() { least(profile, cluster, space) } else { None };
    Ok(Found { plans: best.plans, census, least_needed })
}

fn usable(cluster: &Cluster, space: &Space) -> f64 {
    cluster.gpu.memory() as f64 * (1.0 - space.headroom)
}

/// All points that differ in more than sharding, offloading, micro-batch and checkpointing; those four hold their first
/// value.
fn layouts(profile: &Profile, cluster: &Cluster, space: &Space) -> Vec<Config> {
    let gpus = cluster.gpus();
    let mut configs = Vec::new();
    for &precision in &space.precisions {
        for &optimizer in &space.optimizers {
            for &format in &space.formats {
                for &tensor in &space.tensor {
                    for &pipeline in &space.pipeline {
                        for &context in &space.context {
                            let inner = tensor * pipeline * context;
                            if !gpus.is_multiple_of(inner) || pipeline > profile.blocks() {
                                continue;
                            }
                            let data = gpus / inner;
                            if !space.global_batch.is_multiple_of(data) {
                                continue;
                            }
                            for &expert in &space.expert {
                                if !(data * context * tensor).is_multiple_of(expert) {
                                    continue;
                                }
                                configs.extend(space.chunks.iter().map(|&chunks| Config {
                                    precision,
                                    optimizer,
                                    checkpointing: space.checkpointing[0],
                                    sharding: space.shardings[0],
                                    data,
                                    tensor,
                                    pipeline,
                                    context,
                                    expert,
                                    chunks,
                                    micro_batch: 1,
                                    accumulation: space.global_batch / data,
                                    length: space.length,
                                    offload: space.offloads[0],
                                    lora: space.lora,
                                    format,
                                    sequence_parallel: space.sequence_parallel,
                                }));
                            }
                        }
                    }
                }
            }
        }
    }
    configs
}

struct Group<'a> {
    profile: &'a Profile,
    cluster: &'a Cluster,
    space: &'a Space,
    model: &'a CostModel,
    usable: f64,
}

impl Group<'_> {
    fn run(&self, first: &Config, best: &mut Best, census: &mut Census) {
        let micro_batches = micro_batches(self.space, first);
        let modes = self.space.checkpointing.len() as u64;
        let inner = micro_batches.len() as u64 * modes;
        let groups = (self.space.shardings.len() * self.space.offloads.len()) as u64;
        census.points += groups * inner;
        if !interleaves_well(self.profile, first) {
            census.by_rule += groups * inner;
            return;
        }
        let layout = Layout::new(self.profile, self.cluster, first);
        let traffic = self.model.traffic(self.profile, self.cluster, &layout, first);
        for &sharding in &self.space.shardings {
            for &offload in &self.space.offloads {
                let mut config = Config { sharding, offload, ..*first };
                if is_ruled_out(self.space, &config) {
                    census.by_rule += inner;
                    continue;
                }
                let holdings: Vec<Holding> =
                    layout.stages.iter().map(|stage| Holding::new(&layout, stage, &config)).collect();
                let room = self.usable - layout.overhead;
                let floor = holdings.iter().map(Holding::floor).fold(0.0, f64::max);
                let host = holdings.iter().map(|holding| holding.host).fold(0.0, f64::max);
                if floor > room || host > layout.host {
                    census.by_memory += inner;
                    continue;
                }
                self.points(&mut config, &layout, &traffic, &holdings, &micro_batches, best, census);
            }
        }
    }

    /// The best micro-batch and checkpointing of one group.
    #[allow(clippy::too_many_arguments)]
    fn points(
        &self,
        config: &mut Config,
        layout: &Layout,
        traffic: &super::cost::Traffic,
        holdings: &[Holding],
        micro_batches: &[u64],
        best: &mut Best,
        census: &mut Census,
    ) {
        let room = self.usable - layout.overhead;
        let local = self.space.global_batch / config.data;
        let modes = &self.space.checkpointing;
        let optimal = modes.contains(&Checkpointing::Optimal);
        let mut mine: Option<Plan> = None;
        let mut is_full = false;
        for &micro_batch in micro_batches {
            // The only micro-batch of a step may fit though smaller ones do not: no gradients wait for the next.
            if is_full && micro_batch < local {
                census.by_memory += modes.len() as u64;
                continue;
            }
            (config.micro_batch, config.accumulation) = (micro_batch, local / micro_batch);
            let bound = self.model.step(self.cluster, layout, traffic, holdings, config, 0.0).total();
            let bar = mine.as_ref().map_or(best.bar(), |plan| plan.cost.total().min(best.bar()));
            if bound >= bar {
                census.by_cost += modes.len() as u64;
                continue;
            }
            let mut fits = false;
            for &mode in modes {
                if optimal && mode != Checkpointing::Optimal {
                    census.by_rule += 1;
                    continue;
                }
                if mode == Checkpointing::Selective
                    && !layout.selective_helps
                    && modes.contains(&Checkpointing::None)
                {
                    census.by_rule += 1;
                    continue;
                }
                census.examined += 1;
                config.checkpointing = mode;
                let Some(chosen) = fit_all(layout, holdings, config, room) else { continue };
                fits = true;
                census.fit += 1;
                let recompute = chosen.iter().map(|chosen| chosen.recompute).fold(0.0, f64::max);
                let cost = self.model.step(self.cluster, layout, traffic, holdings, config, recompute);
                if cost.total() < mine.as_ref().map_or(best.bar(), |plan| plan.cost.total()) {
                    mine = Some(plan(layout, holdings, config, cost, &chosen));
                }
            }
            // In a pipeline, larger micro-batches mean fewer in flight, so a larger one may fit again.
            is_full |= !fits && config.pipeline == 1;
        }
        if let Some(plan) = mine {
            best.offer(plan);
        }
    }
}

/// The micro-batches of a layout that may be tried, ascending.
fn micro_batches(space: &Space, layout: &Config) -> Vec<u64> {
    let mut all = divisors(space.global_batch / layout.data);
    all.retain(|b| space.micro_batches.is_empty() || space.micro_batches.contains(b));
    all
}

fn interleaves_well(profile: &Profile, config: &Config) -> bool {
    let cut = config.pipeline * config.chunks;
    config.chunks == 1 || config.pipeline > 1 && profile.blocks().is_multiple_of(cut)
}

/// A shard of one rank is no shard. Parameters come from the host block by block only if the scheme gathers them block
/// by block.
fn is_ruled_out(space: &Space, config: &Config) -> bool {
    let Config { sharding, offload, .. } = *config;
    let gathers = matches!(sharding, Sharding::Zero3 | Sharding::Fsdp);
    let alone = config.data * config.context == 1;
    alone && sharding != Sharding::Ddp && !only(&space.shardings, sharding)
        || offload.parameters && !gathers && !alone
        || config.pipeline > 1 && gathers && config.accumulation > 1 && offload.parameters
}

/// Bytes of the point of the space that needs least, each with the most recomputation that is allowed; `None` if the
/// host is too small for all.
fn least(profile: &Profile, cluster: &Cluster, space: &Space) -> Option<u64> {
    let modes = &space.checkpointing;
    let most = modes.iter().copied().max().unwrap_or(Checkpointing::Full);
    let checkpointing = if most == Checkpointing::Optimal { Checkpointing::Full } else { most };
    let mut least: Option<f64> = None;
    for first in layouts(profile, cluster, space).iter().filter(|first| interleaves_well(profile, first)) {
        let layout = Layout::new(profile, cluster, first);
        let ways = space.shardings.iter().flat_map(|s| space.offloads.iter().map(move |o| (*s, *o)));
        for (sharding, offload) in ways {
            let config = Config { sharding, offload, checkpointing, ..*first };
            if is_ruled_out(space, &config) {
                continue;
            }
            let holdings: Vec<Holding> =
                layout.stages.iter().map(|stage| Holding::new(&layout, stage, &config)).collect();
            for micro_batch in micro_batches(space, first) {
                let accumulation = space.global_batch / first.data / micro_batch;
                let config = Config { micro_batch, accumulation, ..config };
                let Some(chosen) = fit_all(&layout, &holdings, &config, f64::MAX / 4.0) else { continue };
                let stages = layout.stages.iter().zip(&holdings).zip(&chosen);
                let peak = stages
                    .map(|((stage, holding), chosen)| holding.account(&layout, stage, &config, chosen).peak)
                    .fold(0.0, f64::max);
                least = Some(least.map_or(peak, |least| least.min(peak)));
            }
        }
    }
    least.map(|least| least.ceil() as u64)
}

fn only(shardings: &[Sharding], sharding: Sharding) -> bool {
    shardings.iter().all(|other| *other == sharding)
}

fn fit_all(layout: &Layout, holdings: &[Holding], config: &Config, room: f64) -> Option<Vec<Chosen>> {
    layout
        .stages
        .iter()
        .zip(holdings)
        .map(|(stage, holding)| holding.fit(layout, stage, config, room))
        .collect()
}

fn plan(layout: &Layout, holdings: &[Holding], config: &Config, cost: Cost, chosen: &[Chosen]) -> Plan {
    let accounts = layout.stages.iter().zip(holdings).zip(chosen);
    let (account, counts) = accounts
        .map(|((stage, holding), chosen)| (holding.account(layout, stage, config, chosen), &chosen.counts))
        .max_by(|a, b| a.0.peak.total_cmp(&b.0.peak))
        .map(|(account, counts)| (account, counts.clone()))
        .unwrap_or_default();
    Plan { config: *config, cost, account, counts, largest_micro_batch: config.micro_batch }
}

/// The largest micro-batch that fits, whether or not it divides the batch, with the same number of micro-batches.
#[must_use]
pub fn largest_micro_batch(profile: &Profile, cluster: &Cluster, space: &Space, config: &Config) -> u64 {
    let layout = Layout::new(profile, cluster, config);
    let holdings: Vec<Holding> =
        layout.stages.iter().map(|stage| Holding::new(&layout, stage, config)).collect();
    let room = usable(cluster, space) - layout.overhead;
    let fits =
        |micro_batch: u64| fit_all(&layout, &holdings, &Config { micro_batch, ..*config }, room).is_some();
    let (mut low, mut high) = (0, 1);
    while fits(high) && high < 1 << 32 {
        (low, high) = (high, high * 2);
    }
    while low + 1 < high {
        let middle = low + (high - low) / 2;
        if fits(middle) {
            low = middle;
        } else {
            high = middle;
        }
    }
    low
}

/// The account of one given point, whether it fits or not: with everything recomputed that can be, if nothing less
/// fits. `RankAccount::host` has the bytes of the host that it needs, however much there is.
///
/// Optimal checkpointing recomputes as little as `usable` bytes of the device allow.
#[must_use]
pub fn account(profile: &Profile, cluster: &Cluster, config: &Config, usable: f64) -> RankAccount {
    let mut layout = Layout::new(profile, cluster, config);
    layout.host = f64::MAX;
    let mut worst = RankAccount::default();
    for stage in &layout.stages {
        let holding = Holding::new(&layout, stage, config);
        let within = |config: &Config, room: f64| holding.fit(&layout, stage, config, room);
        let all = f64::MAX / 4.0;
        let chosen = if config.checkpointing == Checkpointing::Optimal {
            let full = Config { checkpointing: Checkpointing::Full, ..*config };
            within(config, usable - layout.overhead).or_else(|| within(&full, all))
        } else {
            within(config, all)
        };
        if let Some(chosen) = chosen {
            let account = holding.account(&layout, stage, config, &chosen);
            let host = worst.host.max(account.host);
            if account.peak > worst.peak {
                worst = account;
            }
            worst.host = host;
        }
    }
    worst
}
