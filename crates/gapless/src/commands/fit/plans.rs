//! Plans that fit, cheapest first. On one GPU a plan's memory is simulated exactly, block by block and micro-batch by micro-batch; what a
//! simulation does not cover (several GPUs, offloading, adapters) comes from the search over closed forms, whose blocks are simulated.

use super::estimate::Estimate;
use super::question::{Question, simulated_optimizer};
use crate::cli::fit::CheckpointingArg;
use crate::failure::Failure;
use anyhow::Result;
use gapless_fit::answer::Answer;
use gapless_fit::eager::Run;
use gapless_fit::emit::Target;
use gapless_fit::formulas::sharding::Sharding;
use gapless_fit::formulas::states::Optimizer;
use gapless_fit::formulas::weights::Format;
use gapless_fit::model::Architecture;
use gapless_fit::portrait::portrait;
use gapless_fit::search::SearchError;
use gapless_fit::search::cost::{Cost, CostModel};
use gapless_fit::search::memory::{Holding, Layout};
use gapless_fit::search::profile::Profile;
use gapless_fit::search::serve::{ServePlan, Serving};
use gapless_fit::search::space::{Checkpointing, Config, Lora, Offload, Space, divisors};
use gapless_fit::search::train::{self, Census, Plan};
use gapless_fit::tune;
use gapless_trace::Bytes;

/// One plan.
pub(super) struct Row {
    pub(super) words: String,
    /// Whether its memory was simulated.
    pub(super) exact: bool,
    pub(super) estimate: Option<Estimate>,
    pub(super) process_total: Bytes,
    pub(super) largest_batch: Option<u64>,
    pub(super) seconds: f64,
    pub(super) unit: &'static str,
    pub(super) cost: Vec<(&'static str, f64)>,
    pub(super) config: Option<Config>,
    pub(super) recomputed: Vec<u64>,
    pub(super) selective: Vec<u64>,
    pub(super) serve: Option<ServePlan>,
}

pub(super) struct Plans {
    pub(super) title: String,
    pub(super) rows: Vec<Row>,
    pub(super) proof: String,
    pub(super) notes: Vec<String>,
    pub(super) least_needed: Option<u64>,
    pub(super) census: Census,
    /// Runs simulated from beginning to end.
    pub(super) simulated: u64,
}

const UNIT: &str = "a step";

pub(super) fn wrong_search(error: &SearchError) -> anyhow::Error {
    Failure::new(error.to_string(), "`gapless fit --help` shows the degrees and what they divide").into()
}

fn wrong_build(q: &Question, error: &gapless_fit::BuildError) -> anyhow::Error {
    Failure::new(
        format!("{}: {error}", q.path),
        "give the model's config.json, or the name of a built-in model",
    )
    .into()
}

/// The model for the search: its blocks simulated.
pub(super) fn profile(q: &Question) -> Result<Profile> {
    // The search counts adapters itself, over the model as it is.
    let run = Run { lora: None, ..q.run.clone() };
    portrait(&q.model.name, &q.architecture, &run).map_err(|error| wrong_build(q, &error))
}

/// Ranks that each work on their own sequences.
fn data(q: &Question) -> u64 {
    let d = &q.degrees;
    let cut: u64 = [d.tensor, d.pipeline, d.context].iter().map(|d| d.unwrap_or(1)).product();
    d.data.unwrap_or(q.cluster.gpus() / cut.max(1)).max(1)
}

/// What may be tried: everything that was not given.
fn space(q: &Question, profile: &Profile) -> Space {
    let global = q.run.batch * q.run.accumulation * data(q);
    let mut space = Space::open(profile, &q.cluster, global, q.run.length, q.precision, q.optimizer);
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
        space.checkpointing = vec![mode(q.checkpointing)];
    }
    if q.given.accumulation {
        space.micro_batches = vec![q.run.batch];
    }
    if !q.given.optimizer {
        space.optimizers = vec![Optimizer::AdamWFused];
    }
    space.lora = q.lora;
    space.formats = vec![q.format];
    if matches!(q.architecture, Architecture::Vision(_)) {
        space.context = vec![1];
    }
    space
}

fn mode(checkpointing: CheckpointingArg) -> Checkpointing {
    match checkpointing {
        CheckpointingArg::None => Checkpointing::None,
        CheckpointingArg::Full => Checkpointing::Full,
        CheckpointingArg::Selective => Checkpointing::Selective,
        CheckpointingArg::Auto => Checkpointing::Optimal,
    }
}

/// The configuration that the flags name, where they name one.
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
    fixed.check(profile, &q.cluster).map_err(|error| wrong_search(&error))?;
    Ok(Config {
        checkpointing: mode(q.checkpointing),
        sharding: fixed.shardings[0],
        data: data(q),
        tensor: d.tensor.unwrap_or(1),
        pipeline: d.pipeline.unwrap_or(1),
        context: d.context.unwrap_or(1),
        expert: d.expert.unwrap_or(1),
        offload: fixed.offloads[0],
        ..alone(q, q.optimizer, q.run.batch, q.run.accumulation, &[])
    })
}

/// The configuration of a run on one GPU, all of whose memory is there.
pub(super) fn alone(
    q: &Question,
    optimizer: Optimizer,
    micro_batch: u64,
    accumulation: u64,
    recomputed: &[u64],
) -> Config {
    Config {
        precision: q.precision,
        optimizer,
        checkpointing: if recomputed.is_empty() { Checkpointing::None } else { Checkpointing::Optimal },
        sharding: Sharding::Ddp,
        data: 1,
        tensor: 1,
        pipeline: 1,
        context: 1,
        expert: 1,
        chunks: 1,
        micro_batch,
        accumulation,
        length: q.run.length,
        offload: Offload::default(),
        lora: q.lora,
        format: q.format,
        sequence_parallel: true,
    }
}

/// The plans for training.
pub(super) fn train(q: &Question, target: Option<Target>, top: usize) -> Result<Plans> {
    let profile = profile(q)?;
    let mut space = space(q, &profile);
    if let Some(target) = target {
        target.restrict(&mut space);
    }
    space.check(&profile, &q.cluster).map_err(|error| match (target, &error) {
        (Some(target), SearchError::Empty { what }) => Failure::new(
            format!("--emit {} knows none of the values that {what} was given", target.name()),
            "torch knows fp32, bf16 and amp-bf16 on plain data parallelism, deepspeed mixed and fp32; fsdp and accelerate shard",
        )
        .into(),
        _ => wrong_search(&error),
    })?;
    let mut plans = Plans {
        title: "Plans that keep the recipe".to_owned(),
        rows: Vec::new(),
        proof: String::new(),
        notes: Vec::new(),
        least_needed: None,
        census: Census::default(),
        simulated: 0,
    };
    collect(q, &profile, &space, top, &mut plans)?;
    if plans.rows.is_empty() && !q.given.optimizer && q.lora.is_none() {
        let kept = plans.least_needed;
        plans.title =
            "Nothing fits that keeps the recipe. Plans with another optimizer, or with adapters".to_owned();
        for optimizer in [Optimizer::AdamW8bit, Optimizer::Adafactor, Optimizer::Sgd] {
            let other = Space { optimizers: vec![optimizer], ..space.clone() };
            collect(q, &profile, &other, top, &mut plans)?;
        }
        if matches!(q.architecture, Architecture::Decoder(_)) && target.is_none() {
            for format in [Format::Half, Format::Nf4] {
                let adapters = Space {
                    optimizers: vec![Optimizer::AdamWFused],
                    lora: Some(Lora { rank: 16 }),
                    formats: vec![format],
                    ..space.clone()
                };
                collect(q, &profile, &adapters, top, &mut plans)?;
            }
        }
        plans.least_needed = plans.least_needed.or(kept);
    }
    plans.rows.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    plans.rows.truncate(top.max(1));
    for row in plans.rows.iter_mut().filter(|row| row.exact) {
        row.largest_batch = largest(q, row, &mut plans.simulated)?;
    }
    let c = &plans.census;
    let simulated = if plans.simulated > 0 {
        format!("{} runs were simulated from beginning to end; ", plans.simulated)
    } else {
        String::new()
    };
    let nothing = if plans.rows.is_empty() {
        "nothing in this space fits"
    } else {
        "nothing cheaper in this space fits"
    };
    plans.proof = format!(
        "{simulated}{} configurations: {} priced, {} left out because states alone or a smaller batch do not fit, {} because they cost more \
         before anything is recomputed, {} because another covers them; {nothing}",
        c.points, c.examined, c.by_memory, c.by_cost, c.by_rule
    );
    let m = CostModel::default();
    plans.notes.push(format!(
        "times are estimates to compare plans by: {} % of the dense peak, links as the vendor prints them, {} % of traffic hidden",
        m.efficiency * 100.0,
        m.overlap * 100.0
    ));
    Ok(plans)
}

/// Plans of one space: exact where one GPU can be simulated, from the search otherwise.
fn collect(q: &Question, profile: &Profile, space: &Space, top: usize, plans: &mut Plans) -> Result<()> {
    let alone = q.cluster.gpus() == 1 && space.lora.is_none();
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
        .map_err(|error| wrong_search(&error))?;
    let c = &mut plans.census;
    c.points += found.census.points;
    c.examined += found.census.examined;
    c.fit += found.census.fit;
    c.by_memory += found.census.by_memory;
    c.by_cost += found.census.by_cost;
    c.by_rule += found.census.by_rule;
    plans.least_needed = match (plans.least_needed, found.least_needed) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    };
    plans.rows.extend(found.plans.iter().map(|plan| searched(q, profile, plan)));
    Ok(())
}

/// The largest micro-batch of an exact plan, checkpointing free to rise where it was not given.
fn largest(q: &Question, row: &Row, simulated: &mut u64) -> Result<Option<u64>> {
    let Some(answer) = row.estimate.as_ref().and_then(|e| e.answer.as_ref()) else { return Ok(None) };
    let checkpointing = if q.given.checkpointing {
        answer.run.checkpointing.clone()
    } else {
        gapless_fit::eager::Checkpointing::All
    };
    let run = Run { checkpointing, ..answer.run.clone() };
    let found = tune::largest_batch(&q.architecture, &run, q.gpu(), q.memory())
        .map_err(|error| wrong_build(q, &error))?;
    *simulated += found.as_ref().map_or(1, |f| f.looked_at);
    // Recomputing costs bytes too: where nothing had to be, the batch at hand may be the larger one.
    Ok(Some(found.map_or(0, |f| f.batch).max(answer.run.batch)))
}

fn simulates(q: &Question) -> bool {
    let mut alone = q.clone();
    alone.offload = None;
    alone.is_simulated() && alone.lora.is_none()
}

/// Every micro-batch of one optimizer on one GPU, each with as little recomputation as its simulation allows.
fn exactly(
    q: &Question,
    profile: &Profile,
    space: &Space,
    optimizer: Optimizer,
    plans: &mut Plans,
) -> Result<()> {
    let Some(stepped) = simulated_optimizer(optimizer) else { return Ok(()) };
    let local = space.global_batch;
    let micro_batches: Vec<u64> = divisors(local)
        .into_iter()
        .filter(|b| space.micro_batches.is_empty() || space.micro_batches.contains(b))
        .collect();
    let modes = space.checkpointing.len() as u64;
    plans.census.points += micro_batches.len() as u64 * modes;
    for (place, micro_batch) in micro_batches.iter().copied().enumerate() {
        let accumulation = local / micro_batch;
        // Gradients are there from the second pass on; more passes change nothing.
        let run = Run {
            batch: micro_batch,
            accumulation: accumulation.min(2),
            optimizer: stepped,
            ..q.run.clone()
        };
        let answer = if q.given.checkpointing {
            plans.simulated += 1;
            let answer = Answer::of(&q.architecture, &run).map_err(|error| wrong_build(q, &error))?;
            answer.verdict(q.gpu(), q.memory()).fits().then_some(answer)
        } else {
            let tuned = tune::least_recomputation(&q.architecture, &run, q.gpu(), q.memory())
                .map_err(|error| wrong_build(q, &error))?;
            plans.simulated += tuned.as_ref().map_or(2, |t| t.looked_at);
            tuned.map(|t| t.answer)
        };
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

/// A plan of the search over closed forms.
fn searched(q: &Question, profile: &Profile, plan: &Plan) -> Row {
    let recipe = gapless_fit::emit::Recipe::from_plan(profile, plan, serde_json::Value::Null, 1, 1);
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

/// What is not nothing, largest first.
fn terms(cost: &Cost) -> Vec<(&'static str, f64)> {
    let mut terms = vec![
        ("compute", cost.compute),
        ("recompute", cost.recompute),
        ("bubble", cost.bubble),
        ("tensor", cost.tensor),
        ("pipeline", cost.pipeline),
        ("context", cost.context),
        ("expert", cost.expert),
        ("data", cost.data),
        ("offload", cost.offload),
        ("optimizer", cost.optimizer),
    ];
    terms.retain(|(_, seconds)| *seconds > 0.0);
    terms.sort_by(|a, b| b.1.total_cmp(&a.1));
    terms
}

/// A configuration as one says it.
pub(super) fn describe(c: &Config, full: u64, half: u64, blocks: u64) -> String {
    let mut words = Vec::new();
    if c.gpus() > 1 {
        for (name, degree) in
            [("dp", c.data), ("tp", c.tensor), ("pp", c.pipeline), ("cp", c.context), ("ep", c.expert)]
        {
            if degree > 1 {
                words.push(format!("{name} {degree}"));
            }
        }
        if c.chunks > 1 {
            words.push(format!("{} chunks a stage", c.chunks));
        }
        words.push(c.sharding.name().to_owned());
    }
    words.push(format!("micro-batch {} x {}", c.micro_batch, c.accumulation));
    words.push(match (full, half) {
        (0, 0) => "nothing recomputed".to_owned(),
        (full, 0) if full == blocks => "all blocks recomputed".to_owned(),
        (0, half) => format!("attention core of {half} of {blocks} blocks recomputed"),
        (full, 0) => format!("{full} of {blocks} blocks recomputed"),
        (full, half) => format!("{full} of {blocks} blocks recomputed, the attention core of {half}"),
    });
    words.push(c.optimizer.name().to_owned());
    if let Some(lora) = c.lora {
        words.push(format!("adapters of rank {} on {} weights", lora.rank, c.format.name()));
    }
    let away: Vec<&str> = [
        (c.offload.optimizer, "optimizer"),
        (c.offload.parameters, "parameters"),
        (c.offload.activations, "activations"),
    ]
    .iter()
    .filter(|(away, _)| *away)
    .map(|(_, name)| *name)
    .collect();
    if !away.is_empty() {
        words.push(format!("{} on the host", away.join(" and ")));
    }
    words.join(" · ")
}

/// The plans for serving.
pub(super) fn serve(q: &Question, top: usize) -> Result<Plans> {
    let Architecture::Decoder(decoder) = &q.architecture else {
        return Err(Failure::new(
            "plans for serving are for models that generate text",
            "give more --memory, or another --gpu",
        )
        .into());
    };
    let profile = Profile::from_decoder(&q.model.name, decoder);
    let sequences = q.run.batch;
    let context = q.kv_tokens.map_or(q.run.length, |tokens| tokens.div_ceil(sequences));
    let mut serving = Serving::open(&profile, &q.cluster, context, sequences);
    serving.formats = vec![if matches!(q.format, Format::F32) { Format::Half } else { q.format }];
    serving.sparse = q.sparse;
    serving.batched_tokens = serving.batched_tokens.min((sequences * context).next_multiple_of(16)).max(16);
    if let Some(t) = q.degrees.tensor {
        serving.tensor = vec![t];
    }
    if let Some(p) = q.degrees.pipeline {
        serving.pipeline = vec![p];
    }
    let mut served = serving.search(&profile, &q.cluster).map_err(|error| wrong_search(&error))?;
    let mut title = "Ways to serve it".to_owned();
    let mut examined = served.examined;
    if served.plans.is_empty() && matches!(serving.formats[0], Format::Half) {
        title = "Nothing fits in 16 bits. Ways to serve it with quantised weights or cache".to_owned();
        serving.formats = vec![Format::Fp8, Format::Int8, Format::Int4(128), Format::Nf4];
        serving.cache_bytes = vec![2, 1];
        served = serving.search(&profile, &q.cluster).map_err(|error| wrong_search(&error))?;
        examined += served.examined;
    }
    let least = served.nearest.map(|plan| {
        plan.weights + plan.activations + plan.overhead + plan.cache_per_token * context * sequences
    });
    let rows = served
        .plans
        .iter()
        .take(top.max(1))
        .map(|plan| serve_row(q, plan, context * sequences))
        .collect::<Vec<_>>();
    let nothing = if rows.is_empty() {
        "nothing in this space fits"
    } else {
        "the first is the cheapest of all that hold the cache"
    };
    Ok(Plans {
        title,
        proof: format!("{examined} configurations looked at, none left out; {nothing}"),
        notes: vec!["times are estimates to compare plans by: weights and cache read once a token at 70 % of the memory's speed".to_owned()],
        least_needed: if rows.is_empty() { least } else { None },
        rows,
        census: Census { points: examined, examined, ..Census::default() },
        simulated: 0,
    })
}

fn serve_row(q: &Question, plan: &ServePlan, tokens: u64) -> Row {
    let mut words = vec![format!("{} weights", plan.format.name())];
    if plan.cache_bytes == 1 {
        words.push("fp8 cache".to_owned());
    }
    for (name, degree) in [("tp", plan.tensor), ("pp", plan.pipeline), ("replicas", plan.replicas)] {
        if degree > 1 {
            words.push(format!("{name} {degree}"));
        }
    }
    if plan.expert_parallel {
        words.push("experts spread".to_owned());
    }
    words.push(format!("room for {} tokens of cache", plan.tokens));
    let cache = plan.cache_per_token * tokens.div_ceil(plan.replicas.max(1));
    let estimate = Estimate::serving(q, plan, cache);
    Row {
        words: words.join(" · "),
        exact: false,
        process_total: estimate.process_total(),
        estimate: Some(estimate),
        largest_batch: Some(plan.tokens / plan.context.max(1)),
        seconds: plan.seconds_per_token,
        unit: "of GPU time a token",
        cost: Vec::new(),
        config: None,
        recomputed: Vec::new(),
        selective: Vec::new(),
        serve: Some(*plan),
    }
}
