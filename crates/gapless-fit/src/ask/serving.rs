//! Plans for serving: formats and degrees that hold weights and cache.

use super::error::AskError;
use super::estimate::Estimate;
use super::plans::{Plans, Row};
use super::policy;
use super::question::Question;
use crate::formulas::weights::Format;
use crate::model::Architecture;
use crate::search::profile::Profile;
use crate::search::serve::{ServePlan, Serving};
use crate::search::train::Census;

type Result<T> = std::result::Result<T, AskError>;

/// The plans for serving.
pub(super) fn serve(q: &Question, top: usize) -> Result<Plans> {
    let Architecture::Decoder(decoder) = &q.architecture else {
        return Err(AskError::new(
            "plans for serving are for models that generate text",
            "give more --memory, or another --gpu",
        ));
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
    let mut served = serving.search(&profile, &q.cluster).map_err(|error| AskError::search(&error))?;
    let mut title = "Ways to serve it".to_owned();
    let mut examined = served.examined;
    if served.plans.is_empty() && matches!(serving.formats[0], Format::Half) {
        title = "Nothing fits in 16 bits. Ways to serve it with quantised weights or cache".to_owned();
        serving.formats = policy::FALLBACK_FORMATS.to_vec();
        serving.cache_bytes = policy::FALLBACK_CACHE.to_vec();
        served = serving.search(&profile, &q.cluster).map_err(|error| AskError::search(&error))?;
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
