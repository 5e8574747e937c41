//! Plans for serving: formats and degrees that hold weights and cache.

use super::error::AskError;
use super::estimate::Estimate;
use super::policy;
use super::question::Question;
use super::refuse;
use super::row::{Plans, Row, Share, readable};
use crate::formulas::weights::Format;
use crate::formulas::{engine, overhead};
use crate::model::Architecture;
use crate::search::profile::Profile;
use crate::search::serve::{ServePlan, Served, Serving, Weights};
use crate::search::train::Census;
use crate::settings::Engine;
use crate::simulated::context as context_of;
use crate::stored::Stored;
use crate::weigh::{Beside, Table, absorbed, beside};
use gapless_trace::Bytes;
use gapless_trace::numbers::plural;

type Result<T> = std::result::Result<T, AskError>;

/// The model, and the formats and degrees that are searched; `absorbed` bytes of products are kept beside the weights.
fn space(q: &Question, sequences: u64, context: u64, absorbed: u64) -> Result<(Profile, Serving)> {
    let (profile, working) = match &q.architecture {
        Architecture::Decoder(decoder) => {
            (Profile::from_decoder(&q.model.name, decoder), Some(engine::working(decoder)))
        }
        Architecture::Counted(model) if model.text.is_some() => {
            let text = model.text.as_ref().ok_or_else(no_text)?;
            (Profile::from_counted(&q.model.name, model, text, context), None)
        }
        _ => return Err(no_text()),
    };
    let mut serving = Serving::open(&profile, &q.cluster, context, sequences);
    if let Some(working) = working {
        serving.working = working;
    }
    let usual = engine::defaults(q.engine.unwrap_or(Engine::Vllm), q.gpu(), q.cluster.gpus());
    serving.utilization = q.utilization.unwrap_or(usual.utilization);
    (serving.page, serving.activations_inside) = (usual.page, usual.activations_inside);
    serving.graphs = engine::GRAPHS;
    if q.is_paged() {
        (serving.batched_tokens, serving.sampled) = (usual.batched_tokens, usual.sampled);
    } else {
        // The command line sets both.
        serving.batched_tokens =
            serving.batched_tokens.min((sequences * context).next_multiple_of(16)).max(16);
        serving.sampled = sequences.min(256);
    }
    let own = if matches!(q.format, Format::F32) { Format::Half } else { q.format };
    serving.formats = vec![own];
    serving.sparse = q.sparse;
    let weighed = |format: Format, stored: Option<&Stored>, beside: &Beside| {
        let plain = Stored::plain();
        let weighed = stored.unwrap_or(&plain).weigh(&q.architecture, 2);
        Weights {
            format,
            table: Table::new(&q.architecture, &weighed, &profile.order),
            held: beside.held + absorbed,
            working: beside.working,
        }
    };
    serving.weights = vec![weighed(own, q.stored.as_deref(), &q.beside)];
    for format in policy::FALLBACK_FORMATS.into_iter().filter(|format| *format != own) {
        let Some(stored) = Stored::asked(format, q.sparse) else { continue };
        let beside = beside(&stored, &q.architecture, q.engine, q.gpu(), 2);
        serving.weights.push(weighed(format, Some(&stored), &beside));
    }
    if let Some(t) = q.degrees.tensor {
        serving.tensor = vec![t];
    }
    if let Some(p) = q.degrees.pipeline {
        serving.pipeline = vec![p];
    }
    Ok((profile, serving))
}

/// The plans for serving.
pub(super) fn serve(q: &Question, top: usize) -> Result<Plans> {
    let sequences = q.run.batch;
    let context = q.kv_tokens.map_or(q.run.length, |tokens| tokens.div_ceil(sequences));
    let absorbed = if q.is_paged() { absorbed(&q.architecture, 2) } else { 0 };
    let (profile, mut serving) = space(q, sequences, context, absorbed)?;
    let ways = |serving: &Serving| -> Result<(Vec<Row>, Served)> {
        let served = serving.search(&profile, &q.cluster).map_err(|error| AskError::search(&error))?;
        let rows = served.plans.iter().map(|plan| serve_row(q, plan, context * sequences));
        let rows = rows.filter(|row| row.estimate.as_ref().is_some_and(|e| e.verdict.fits()));
        Ok((rows.take(top.max(1)).collect(), served))
    };
    let (mut rows, mut served) = ways(&serving)?;
    let mut notes = Vec::new();
    let by = q.engine.filter(|_| q.is_paged()).unwrap_or(Engine::Vllm).name();
    let mut title = format!("Ways to serve it with {by}");
    if absorbed > 0 {
        notes.push(format!(
            "latent attention keeps products of its projections beside them: {}",
            Bytes(absorbed)
        ));
    }
    let mut keeps_recipe = true;
    let mut examined = served.examined;
    // The total of the process, as for every plan: also the bytes that the driver takes beyond the search's constant.
    let beyond = context_of(q.gpu()).0.saturating_sub(overhead::context(true).value);
    let needed = |served: &Served| served.least.map(|least| least + beyond);
    let mut least = needed(&served);
    if rows.is_empty() && matches!(serving.formats[0], Format::Half) {
        keeps_recipe = false;
        title = format!("Nothing fits in 16 bits. Ways to serve it with {by} and quantised weights or cache");
        serving.formats = policy::FALLBACK_FORMATS.to_vec();
        serving.cache_bytes = policy::FALLBACK_CACHE.to_vec();
        (rows, served) = ways(&serving)?;
        examined += served.examined;
        if rows.is_empty() {
            least = [least, needed(&served)].into_iter().flatten().min();
        }
    }
    let least = least.filter(|_| rows.is_empty() || !keeps_recipe);
    if rows.is_empty() && least.is_some_and(|least| least > policy::MOST_BYTES) {
        return Err(refuse::beyond());
    }
    let on_card = |memory: u64| -> Result<bool> {
        let mut q = q.clone();
        q.cluster.gpu.memory_mib = memory >> 20;
        let (_, larger) = space(&q, sequences, context, absorbed)?;
        let formats =
            Serving { formats: serving.formats.clone(), cache_bytes: serving.cache_bytes.clone(), ..larger };
        let served = formats.search(&profile, &q.cluster).map_err(|error| AskError::search(&error))?;
        let mut rows = served.plans.iter().map(|plan| serve_row(&q, plan, context * sequences));
        Ok(rows.any(|row| row.estimate.is_some_and(|e| e.verdict.fits())))
    };
    let card = least.filter(|_| rows.is_empty()).map(|least| smallest_card(least, on_card)).transpose()?;
    let share = if rows.is_empty() && least.is_some_and(|least| least <= q.memory().0) {
        let holds = |serving: &Serving| Ok(!ways(serving)?.0.is_empty());
        Some(Share { taken: serving.utilization, enough: enough(&serving, holds)? })
    } else {
        None
    };
    let nothing = if rows.is_empty() {
        "nothing in this space fits"
    } else {
        "the first is the cheapest of all that hold the cache"
    };
    notes.push(
        "times are estimates to compare plans by: weights and cache read once a token at 70 % of the memory's speed"
            .to_owned(),
    );
    if q.is_paged() {
        notes.push(format!(
            "the engine fills its share of the GPU, {:.1} %, with cache that nobody asked for yet",
            serving.utilization * 100.0
        ));
    }
    Ok(Plans {
        title,
        keeps_recipe,
        proof: format!("{} looked at, none left out; {nothing}", plural(examined, "configuration")),
        notes,
        least_needed: least,
        least_card: card.flatten().map(readable),
        share,
        rows,
        census: Census { points: examined, examined, ..Census::default() },
        simulated: 0,
    })
}

/// The smallest share of the card, in hundredths, at which the engine holds what was asked.
fn enough(serving: &Serving, holds: impl Fn(&Serving) -> Result<bool>) -> Result<Option<f64>> {
    let first = (serving.utilization * 100.0).floor() as u32 + 1;
    for hundredths in first..=policy::LARGEST_SHARE {
        let share = f64::from(hundredths) / 100.0;
        if holds(&Serving { utilization: share, ..serving.clone() })? {
            return Ok(Some(share));
        }
    }
    Ok(None)
}

/// The memory of the smallest card that `holds` what needs so many bytes, to a thousandth.
fn smallest_card(needs: u64, holds: impl Fn(u64) -> Result<bool>) -> Result<Option<u64>> {
    let (mut low, mut high) = (needs, needs);
    while !holds(high)? {
        if high > 2 * policy::MOST_BYTES {
            return Ok(None);
        }
        (low, high) = (high, high + high / 4 + (1 << 20));
    }
    while low + (high >> 10).max(1 << 20) < high {
        let middle = low + (high - low) / 2;
        if holds(middle)? {
            high = middle;
        } else {
            low = middle;
        }
    }
    Ok(Some(high))
}

fn no_text() -> AskError {
    AskError::new(
        "plans for serving are for models that generate text",
        "give more --memory, or another --gpu",
    )
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
    words.push(if q.is_paged() {
        format!(
            "{} of {}: room for {} of cache · {} left",
            plural(plan.pages(), "block"),
            plan.page,
            plural(plan.tokens, "token"),
            Bytes(plan.left(q.memory().0))
        )
    } else {
        format!("room for {} of cache", plural(plan.tokens, "token"))
    });
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
