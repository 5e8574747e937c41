//! Plans that fit, cheapest first. On one GPU a plan's memory is simulated exactly, block by block and micro-batch by
//! micro-batch. Settings that a simulation does not cover (several GPUs, offloading, adapters) come from the search
//! over closed forms, whose blocks are simulated.

use super::error::AskError;
use super::estimate::Estimate;
use super::exact::{exactly, largest, simulates};
use super::question::Question;
use super::row::{Plans, Row, UNIT, alone, averaged};
use super::words::{describe, terms};
use super::{kept, policy};
use crate::eager::Run;
use crate::emit::{Recipe, Target};
use crate::formulas::overhead;
use crate::formulas::sharding::Sharding;
use crate::formulas::weights::Format;
use crate::model::Architecture;
use crate::profiled::block_profile;
use crate::search::SearchError;
use crate::search::cost::CostModel;
use crate::search::memory::RankAccount;
use crate::search::profile::Profile;
use crate::search::space::{Config, Offload, Space};
use crate::search::train::{self, Census, Plan};
use crate::settings::Lora;
use crate::simulated::context;
use gapless_trace::Bytes;
use gapless_trace::numbers::{plural, verb};
use std::sync::Arc;

type Result<T> = std::result::Result<T, AskError>;

/// The model for the search: its blocks simulated.
pub(super) fn profile(q: &Question) -> Result<Profile> {
    profile_of(q, q.run.lora)
}

/// The same with other adapters. Only decoders are simulated with them: the parameters of their profile come from
/// closed forms, those of other models from the simulated step, which would then count adapters alone.
fn profile_of(q: &Question, lora: Option<Lora>) -> Result<Profile> {
    let lora = lora.filter(|_| matches!(q.architecture, Architecture::Decoder(_)));
    let run = Run { lora, stored: None, ..q.run.clone() };
    block_profile(&q.model.name, &q.architecture, &run).map_err(|error| AskError::planned(&q.path, &error))
}

/// Ranks that each work on their own sequences.
fn data(q: &Question) -> u64 {
    let d = &q.degrees;
    let cut: u64 = [d.tensor, d.pipeline, d.context].iter().map(|d| d.unwrap_or(1)).product();
    d.data.unwrap_or(q.cluster.gpus() / cut.max(1)).max(1)
}

/// The share of a GPU that the search leaves free, so that its plans fit with their error bar.
fn headroom(q: &Question) -> f64 {
    policy::headroom(q.gpu(), policy::closed_form_error(q.is_picture()))
}

/// The account of a configuration, whether it fits or not.
pub(super) fn account(q: &Question, profile: &Profile, config: &Config) -> RankAccount {
    train::account(profile, &q.cluster, config, q.memory().0 as f64 * (1.0 - headroom(q)))
}

/// The space that may be searched: everything that was not given.
fn space(q: &Question, profile: &Profile) -> Space {
    let global = q.run.batch * q.run.accumulation * data(q);
    let mut space = Space::open(profile, &q.cluster, global, q.run.length, q.run.precision, q.run.optimizer);
    let fix = |list: &mut Vec<u64>, degree: Option<u64>| {
        if let Some(degree) = degree {
            *list = vec![degree];
        }
    };
    fix(&mut space.tensor, q.degrees.tensor);
    fix(&mut space.pipeline, q.degrees.pipeline);
    fix(&mut space.context, q.degrees.context);
    fix(&mut space.expert, q.degrees.expert);
    if let Some(sharding) = q.zero {
        space.shardings = vec![sharding];
    }
    if let Some(offload) = q.offload {
        space.offloads = vec![offload];
    }
    if q.given.checkpointing {
        space.checkpointing = vec![q.checkpointing];
    }
    if q.given.accumulation {
        space.micro_batches = vec![q.run.batch];
    }
    if !q.given.optimizer {
        space.optimizers = vec![policy::PLAN_OPTIMIZER];
    }
    space.headroom = headroom(q);
    space.lora = q.run.lora;
    space.formats = vec![averaged(q, q.format, q.stored.as_deref())];
    if matches!(q.architecture, Architecture::Vision(_)) {
        space.context = vec![1];
    }
    space
}

/// The configuration that the flags name, if they name one.
pub(super) fn given(q: &Question, profile: &Profile) -> Result<Config> {
    let d = &q.degrees;
    let mut fixed = space(q, profile);
    for (list, degree) in [
        (&mut fixed.tensor, d.tensor),
        (&mut fixed.pipeline, d.pipeline),
        (&mut fixed.context, d.context),
        (&mut fixed.expert, d.expert),
    ] {
        *list = vec![degree.unwrap_or(1)];
    }
    fixed.shardings = vec![q.zero.unwrap_or(Sharding::Ddp)];
    fixed.offloads = vec![q.offload.unwrap_or_default()];
    fixed.chunks = vec![1];
    fixed.check(profile, &q.cluster).map_err(|error| AskError::search(&error))?;
    Ok(Config {
        checkpointing: q.checkpointing,
        sharding: fixed.shardings[0],
        data: data(q),
        tensor: d.tensor.unwrap_or(1),
        pipeline: d.pipeline.unwrap_or(1),
        context: d.context.unwrap_or(1),
        expert: d.expert.unwrap_or(1),
        offload: fixed.offloads[0],
        ..alone(q, q.run.optimizer, q.run.batch, q.run.accumulation, &[])
    })
}

/// The plans for training.
pub(super) fn train(q: &Question, target: Option<Target>, top: usize) -> Result<Plans> {
    let profile = profile(q)?;
    let mut space = space(q, &profile);
    if let Some(target) = target {
        target.restrict(&mut space);
        // The files have one optimizer: the one that the answer names.
        space.optimizers = vec![q.run.optimizer];
    }
    space.check(&profile, &q.cluster).map_err(|error| match (target, &error) {
        (Some(target), SearchError::Empty { what }) => AskError::new(
            format!("--emit {} knows none of the values that {what} was given", target.name()),
            "torch knows fp32, bf16 and amp-bf16 on plain data parallelism, deepspeed mixed and fp32; fsdp and accelerate shard",
        ),
        _ => AskError::search(&error),
    })?;
    let mut plans = Plans {
        title: "Plans that keep the recipe".to_owned(),
        keeps_recipe: true,
        rows: Vec::new(),
        proof: String::new(),
        notes: Vec::new(),
        least_needed: None,
        least_card: None,
        share: None,
        census: Census::default(),
        simulated: 0,
    };
    collect(q, &profile, &space, top, &mut plans)?;
    let kept = (plans.least_needed, plans.least_card);
    if plans.rows.is_empty() && q.run.lora.is_some() && q.stored.is_none() && target.is_none() {
        plans.keeps_recipe = false;
        plans.title =
            "Nothing fits that keeps the recipe. Plans with the frozen weights in 4 bits (QLoRA)".to_owned();
        for format in policy::FALLBACK_BASES.into_iter().filter(|format| *format != Format::Half) {
            below(q, &profile, &space, format, top, &mut plans)?;
        }
    }
    if plans.rows.is_empty() && !q.given.optimizer && q.run.lora.is_none() && target.is_none() {
        plans.keeps_recipe = false;
        plans.title =
            "Nothing fits that keeps the recipe. Plans with another optimizer, or with LoRA".to_owned();
        for optimizer in policy::FALLBACK_OPTIMIZERS {
            let other = Space { optimizers: vec![optimizer], ..space.clone() };
            collect(q, &profile, &other, top, &mut plans)?;
        }
        if matches!(q.architecture, Architecture::Decoder(_)) {
            let lora = Lora::all(policy::FALLBACK_RANK);
            let profile = profile_of(q, Some(lora))?;
            let optimizers = vec![policy::PLAN_OPTIMIZER];
            let adapters = Space { optimizers, lora: Some(lora), ..space.clone() };
            for format in policy::FALLBACK_BASES {
                below(q, &profile, &adapters, format, top, &mut plans)?;
            }
        }
    }
    if !plans.rows.is_empty() {
        // A fallback fits: the least is the recipe's own.
        (plans.least_needed, plans.least_card) = kept;
    }
    plans.rows.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    plans.rows.truncate(top.max(1));
    for row in plans.rows.iter_mut().filter(|row| row.exact) {
        row.largest_batch = largest(q, row, &mut plans.simulated)?;
    }
    let c = &plans.census;
    let simulated = if plans.simulated > 0 {
        format!(
            "{} {} simulated from beginning to end; ",
            plural(plans.simulated, "run"),
            verb(plans.simulated, "was", "were")
        )
    } else {
        String::new()
    };
    let nothing = if plans.rows.is_empty() {
        "nothing in this space fits"
    } else {
        "nothing cheaper in this space fits"
    };
    plans.proof = format!(
        "{simulated}of {}, the search priced {}; it left out {} whose weights and optimizer state, or whose \
         smaller batch, already do not fit, {} that cost more before anything is recomputed, and {} that another one \
         covers; {nothing}",
        plural(c.points, "configuration"),
        c.examined,
        c.by_memory,
        c.by_cost,
        c.by_rule
    );
    let m = CostModel::default();
    plans.notes.push(format!(
        "times are estimates to compare plans by: {} % of the dense peak, links as the vendor prints them, {} % of traffic hidden",
        m.efficiency * 100.0,
        m.overlap * 100.0
    ));
    Ok(plans)
}

/// Plans of a space with adapters on weights in a format.
fn below(
    q: &Question,
    profile: &Profile,
    space: &Space,
    format: Format,
    top: usize,
    plans: &mut Plans,
) -> Result<()> {
    let stored = kept::below(&q.architecture, format);
    let mut q = q.clone();
    (q.run.lora, q.format) = (space.lora, format);
    q.run.stored = stored.clone().map(Arc::new);
    q.stored.clone_from(&q.run.stored);
    let formats = vec![averaged(&q, format, stored.as_ref())];
    collect(&q, profile, &Space { formats, ..space.clone() }, top, plans)
}

/// Plans of one space: exact if one GPU can be simulated, else from the search.
fn collect(q: &Question, profile: &Profile, space: &Space, top: usize, plans: &mut Plans) -> Result<()> {
    let alone = q.cluster.gpus() == 1;
    let mut rest = space.clone();
    if alone && space.offloads.contains(&Offload::default()) && simulates(q) {
        for &optimizer in &space.optimizers {
            exactly(q, profile, space, optimizer, plans)?;
        }
        rest.offloads.retain(|offload| *offload != Offload::default());
        if rest.offloads.is_empty() {
            return Ok(());
        }
    }
    let found = train::search(profile, &q.cluster, &rest, &CostModel::default(), top.max(1))
        .map_err(|error| AskError::search(&error))?;
    let c = &mut plans.census;
    c.points += found.census.points;
    c.examined += found.census.examined;
    c.fit += found.census.fit;
    c.by_memory += found.census.by_memory;
    c.by_cost += found.census.by_cost;
    c.by_rule += found.census.by_rule;
    if let Some(least) = found.least_needed {
        plans.at_least(total_of(q, least), card_of(q, least));
    }
    let rows = found.plans.iter().map(|plan| searched(q, profile, plan));
    plans.rows.extend(rows.filter(|row| row.estimate.as_ref().is_some_and(|e| e.verdict.fits())));
    Ok(())
}

/// The process's total if the search counted so many bytes, its own constant for the driver included.
fn total_of(q: &Question, counted: u64) -> u64 {
    let allocated = Bytes(counted.saturating_sub(overhead::context(true).value));
    (policy::typically_reserved(allocated) + context(q.gpu())).0
}

/// The memory of the card on which the search would take so many bytes: [`policy::headroom`], turned round.
fn card_of(q: &Question, counted: u64) -> u64 {
    let more = context(q.gpu()).0.saturating_sub(overhead::context(true).value);
    let total = policy::typically_reserved(Bytes(counted)).0 + more;
    policy::card_for(Bytes(total), policy::closed_form_error(q.is_picture()))
}

/// A plan of the search over closed forms.
fn searched(q: &Question, profile: &Profile, plan: &Plan) -> Row {
    let recipe = Recipe::from_plan(profile, plan, serde_json::Value::Null, 1, 1);
    let estimate =
        Estimate::closed(q, &plan.config, &plan.account, profile.parameters(), recipe.recompute.clone());
    let counts = |which: usize| plan.counts.iter().map(|c| c[which]).sum::<u64>();
    let blocks: u64 = plan.counts.iter().flatten().sum();
    Row {
        words: describe(&plan.config, counts(2), counts(1), blocks),
        exact: false,
        process_total: estimate.process_total(),
        estimate: Some(estimate),
        largest_batch: Some(plan.largest_micro_batch),
        seconds: plan.cost.total(),
        unit: UNIT,
        cost: terms(&plan.cost),
        config: Some(plan.config),
        recomputed: recipe.recompute,
        selective: recipe.selective,
        serve: None,
    }
}
