//! Plans on one GPU, each simulated from beginning to end.

use super::error::AskError;
use super::estimate::Estimate;
use super::policy;
use super::question::Question;
use super::row::{Plans, Row, UNIT, alone};
use super::words::{describe, terms};
use crate::eager::{Recomputed, Run};
use crate::hardware::Gpu;
use crate::search::cost::CostModel;
use crate::search::holding::Holding;
use crate::search::memory::Layout;
use crate::search::profile::Profile;
use crate::search::space::{Space, divisors};
use crate::settings::Optimizer;
use crate::simulated::{Simulated, context};
use crate::tune;
use gapless_trace::Bytes;

type Result<T> = std::result::Result<T, AskError>;

/// The largest micro-batch of an exact plan. Checkpointing may rise if it was not given.
pub(super) fn largest(q: &Question, row: &Row, simulated: &mut u64) -> Result<Option<u64>> {
    let Some(answer) = row.estimate.as_ref().and_then(|e| e.simulated.as_ref()) else { return Ok(None) };
    let recomputed = if q.given.checkpointing { answer.run.recomputed.clone() } else { Recomputed::All };
    let run = Run { recomputed, ..answer.run.clone() };
    let found = tune::largest_batch(&q.architecture, &run, q.gpu(), q.memory())
        .map_err(|error| AskError::planned(&q.path, &error))?;
    *simulated += found.as_ref().map_or(1, |f| f.looked_at);
    // Recomputing costs bytes too: if the batch at hand fits without it, it may be the larger one.
    Ok(Some(found.map_or(0, |f| f.batch).max(answer.run.batch)))
}

/// Takes a run that was simulated and does not fit, if it needs less than the least known.
pub(super) fn at_least(plans: &mut Plans, q: &Question, run: &Simulated) {
    if run.figures.is_whole {
        let card = smallest_card(run, q.gpu());
        let reserved = run.reserved_on(q.gpu(), Bytes(card));
        plans.at_least((reserved + context(q.gpu())).0, card);
    }
}

/// The memory of the smallest card that holds a run, to a thousandth: its allocator may have to give back memory.
fn smallest_card(run: &Simulated, gpu: &Gpu) -> u64 {
    let of = |allocator: Bytes| policy::card_for(allocator + context(gpu), run.error) >> 20;
    let (mut low, mut high) = (of(run.figures.peak_allocated), of(run.figures.peak_reserved));
    while low + (high >> 10).max(1) < high {
        let middle = low + (high - low) / 2;
        if run.verdict(gpu, Bytes(middle << 20)).fits() {
            high = middle;
        } else {
            low = middle;
        }
    }
    high << 20
}

pub(super) fn simulates(q: &Question) -> bool {
    let mut alone = q.clone();
    alone.offload = None;
    alone.is_simulated()
}

/// Every micro-batch of one optimizer on one GPU, each with as little recomputation as its simulation allows.
pub(super) fn exactly(
    q: &Question,
    profile: &Profile,
    space: &Space,
    optimizer: Optimizer,
    plans: &mut Plans,
) -> Result<()> {
    let local = space.global_batch;
    let micro_batches: Vec<u64> = divisors(local)
        .into_iter()
        .filter(|b| space.micro_batches.is_empty() || space.micro_batches.contains(b))
        .collect();
    let modes = space.checkpointing.len() as u64;
    plans.census.points += micro_batches.len() as u64 * modes;
    for (place, micro_batch) in micro_batches.iter().copied().enumerate() {
        let accumulation = local / micro_batch;
        let run = Run {
            batch: micro_batch,
            accumulation: policy::simulated_passes(accumulation),
            optimizer,
            ..q.run.clone()
        };
        let answer = if q.given.checkpointing {
            plans.simulated += 1;
            let answer =
                Simulated::of(&q.architecture, &run).map_err(|error| AskError::planned(&q.path, &error))?;
            answer.verdict(q.gpu(), q.memory()).fits().then_some(answer)
        } else {
            let tuned = tune::least_recomputation(&q.architecture, &run, q.gpu(), q.memory())
                .map_err(|error| AskError::planned(&q.path, &error))?;
            plans.simulated += tuned.as_ref().map_or(2, |t| t.looked_at);
            tuned.map(|t| t.simulated)
        };
        if answer.is_none() && place == 0 {
            // The smallest micro-batch, recomputed as far as the question allows, needs least.
            let recomputed = if q.given.checkpointing { run.recomputed.clone() } else { Recomputed::All };
            let least = Simulated::of(&q.architecture, &Run { recomputed, ..run.clone() })
                .map_err(|error| AskError::planned(&q.path, &error))?;
            plans.simulated += 1;
            at_least(plans, q, &least);
        }
        plans.census.examined += modes;
        let Some(answer) = answer else {
            // A larger micro-batch needs more.
            plans.census.by_memory += (micro_batches.len() - place - 1) as u64 * modes;
            break;
        };
        plans.census.fit += 1;
        let mut estimate = Estimate::of(q, answer, Some(Bytes::ZERO));
        estimate.gapless_reserved = None;
        let config = alone(q, optimizer, micro_batch, accumulation, &estimate.recomputed);
        let layout = Layout::new(profile, &q.cluster, &config);
        let holdings: Vec<Holding> =
            layout.stages.iter().map(|stage| Holding::new(&layout, stage, &config)).collect();
        let model = CostModel::default();
        let traffic = model.traffic(profile, &q.cluster, &layout, &config);
        let recompute = estimate
            .recomputed
            .iter()
            .filter_map(|&at| profile.order.get(at as usize))
            .map(|&kind| layout.blocks[kind].flops)
            .sum();
        let cost = model.step(&q.cluster, &layout, &traffic, &holdings, &config, recompute);
        let words = describe(&config, estimate.recomputed.len() as u64, 0, profile.blocks());
        let recomputed = estimate.recomputed.clone();
        estimate.shape = None;
        plans.rows.push(Row {
            words,
            exact: true,
            process_total: estimate.process_total(),
            largest_batch: None,
            seconds: cost.total(),
            unit: UNIT,
            cost: terms(&cost),
            config: Some(config),
            recomputed,
            selective: Vec::new(),
            serve: None,
            estimate: Some(estimate),
        });
    }
    Ok(())
}
