//! The JSON contract `gapless.fit/1` as types: `schema/gapless.fit.schema.json` describes each field.

use super::SCHEMA;
use gapless_fit::ask::{Answer, Estimate, Plans, Question, Row, Streamed, StreamedPass};
use gapless_fit::formulas::Term;
use gapless_fit::model::Attention;
use gapless_fit::search::serve::ServePlan;
use gapless_fit::search::space::Config;
use gapless_fit::simulated::Verdict;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// An answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fit {
    pub schema: String,
    pub model: ModelInfo,
    pub settings: SettingsInfo,
    pub device: DeviceInfo,
    /// True if the question's configuration fits.
    pub fits: bool,
    /// The first plan that fits, if the configuration that was asked for does not.
    pub fits_with: Option<FitsWith>,
    pub tight: bool,
    pub peak_allocated: Option<u64>,
    pub peak_reserved: Option<u64>,
    pub process_total: Option<u64>,
    pub context: Option<u64>,
    pub communication: Option<u64>,
    pub host: Option<u64>,
    /// Bytes that a serving engine takes of the device. It fills its whole share with cache.
    pub engine_takes: Option<u64>,
    pub gapless_reserved: Option<u64>,
    pub floor: Option<u64>,
    pub error: Option<f64>,
    pub method: Option<String>,
    pub components: BTreeMap<String, u64>,
    pub peak_at: Option<PeakInfo>,
    pub phases: Vec<PhaseInfo>,
    pub blocks: Option<u64>,
    pub recomputed: Vec<u64>,
    pub plans: Vec<PlanInfo>,
    pub search: Option<SearchInfo>,
    pub notes: Vec<String>,
    /// Only if it was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_batch: Option<u64>,
    /// Only if it was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<Vec<TermInfo>>,
    /// Only if it was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub streamed: Option<StreamedInfo>,
}

/// Weights that stream from the host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StreamedInfo {
    pub budget: u64,
    pub weights: u64,
    pub tables: u64,
    pub widest: u64,
    pub link_bytes_per_second: f64,
    pub passes: Vec<StreamedPassInfo>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StreamedPassInfo {
    pub length: u64,
    pub moved: u64,
    pub link_seconds: f64,
    pub work_seconds: Option<f64>,
    pub least_seconds: f64,
    pub hidden_from: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelInfo {
    pub path: String,
    pub name: String,
    pub parameters: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SettingsInfo {
    pub mode: String,
    pub batch: u64,
    pub length: u64,
    pub grad_accum: u64,
    pub precision: String,
    pub optimizer: Option<String>,
    pub checkpointing: Option<String>,
    pub attention: String,
    pub lora_rank: Option<u64>,
    pub weights: String,
    pub kv_tokens: Option<u64>,
    pub engine: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceInfo {
    pub name: String,
    pub memory: u64,
    pub gpus_per_node: u64,
    pub nodes: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PeakInfo {
    pub step: Option<u32>,
    pub phase: String,
    pub part: String,
    pub op: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PhaseInfo {
    pub phase: String,
    pub peak: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SearchInfo {
    pub points: u64,
    pub examined: u64,
    pub fit: u64,
    pub left_out_by_memory: u64,
    pub left_out_by_cost: u64,
    pub left_out_by_rule: u64,
    pub simulated: u64,
    pub least_needed: Option<u64>,
    pub least_card: Option<u64>,
}

/// The first plan, if the configuration that was asked for does not fit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FitsWith {
    pub plan: String,
    /// True if it changes nothing but micro-batch, recomputation, layout and offloading to the host.
    pub keeps_recipe: bool,
    pub process_total: u64,
    pub error: Option<f64>,
    pub config: Option<ConfigInfo>,
    pub serve: Option<ServeInfo>,
}

/// One plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlanInfo {
    pub plan: String,
    pub exact: bool,
    pub peak_allocated: Option<u64>,
    pub peak_reserved: Option<u64>,
    pub process_total: u64,
    pub error: Option<f64>,
    pub components: BTreeMap<String, u64>,
    pub largest_batch: Option<u64>,
    pub seconds: f64,
    pub per: String,
    pub cost: BTreeMap<String, f64>,
    pub recompute: Vec<u64>,
    pub config: Option<ConfigInfo>,
    pub serve: Option<ServeInfo>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ConfigInfo {
    pub precision: String,
    pub optimizer: String,
    pub sharding: String,
    pub data: u64,
    pub tensor: u64,
    pub pipeline: u64,
    pub context: u64,
    pub expert: u64,
    pub chunks: u64,
    pub micro_batch: u64,
    pub accumulation: u64,
    pub length: u64,
    pub offload_optimizer: bool,
    pub offload_parameters: bool,
    pub offload_activations: bool,
    pub lora_rank: Option<u64>,
    pub weights: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ServeInfo {
    pub weights: String,
    pub cache_bytes: u64,
    pub tensor: u64,
    pub pipeline: u64,
    pub replicas: u64,
    pub expert_parallel: bool,
    pub tokens: u64,
    /// Pages of the cache in one replica, and tokens of a page.
    pub blocks: u64,
    pub block_size: u64,
    pub cache_per_token: u64,
    pub weight_bytes: u64,
    pub activations: u64,
    pub graphs: u64,
    pub utilization: f64,
}

/// One number with its equation, inputs and source.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TermInfo {
    pub name: String,
    pub value: u64,
    pub equation: String,
    pub inputs: BTreeMap<String, f64>,
    pub source: String,
}

impl Fit {
    #[must_use]
    pub fn of(q: &Question, answer: &Answer, terms: Option<&[Term]>) -> Fit {
        Fit {
            plans: answer.plans.as_ref().map_or_else(Vec::new, |plans| plans.rows.iter().map(plan).collect()),
            fits_with: fits_with(answer),
            search: answer.plans.as_ref().map(search),
            max_batch: answer.largest.as_ref().map(|largest| largest.as_ref().map_or(0, |found| found.batch)),
            why: terms.map(|terms| terms.iter().map(term).collect()),
            streamed: answer.streamed.as_ref().map(streamed),
            ..Fit::of_estimate(q, answer.estimate.as_ref(), answer.fits)
        }
    }

    /// Without plans, largest batch and terms: a side of a comparison.
    pub(super) fn of_estimate(q: &Question, e: Option<&Estimate>, fits: bool) -> Fit {
        let parameters = || gapless_fit::parameters::count(&q.architecture);
        Fit {
            schema: SCHEMA.to_owned(),
            model: ModelInfo {
                path: q.path.clone(),
                name: q.model.name.clone(),
                parameters: e.map(|e| e.parameters).or_else(parameters),
            },
            settings: settings(q),
            device: DeviceInfo {
                name: q.gpu_name.clone(),
                memory: q.memory().0,
                gpus_per_node: q.cluster.gpus_per_node,
                nodes: q.cluster.nodes,
            },
            fits,
            fits_with: None,
            tight: e.is_some_and(|e| e.verdict == Verdict::FitsTightly),
            peak_allocated: e.map(|e| e.peak_allocated.0),
            peak_reserved: e.map(|e| e.peak_reserved.0),
            process_total: e.map(|e| e.process_total().0),
            context: e.map(|e| e.context.0),
            communication: e.map(|e| e.outside.0),
            host: e.map(|e| e.host.0),
            engine_takes: e.and_then(|e| e.taken).map(|taken| taken.0),
            gapless_reserved: e.and_then(|e| e.gapless_reserved).map(|b| b.0),
            floor: e.and_then(|e| e.floor).map(|b| b.0),
            error: e.map(|e| e.error),
            method: e.map(|e| e.method.name().to_owned()),
            components: e.map_or_else(BTreeMap::new, components),
            peak_at: e.map(|e| PeakInfo {
                step: e.peak_at.step,
                phase: e.peak_at.phase.to_owned(),
                part: e.peak_at.part.clone(),
                op: e.peak_at.op.clone(),
            }),
            phases: e.map_or_else(Vec::new, phases),
            blocks: e.map(|e| e.blocks),
            recomputed: e.map_or_else(Vec::new, |e| e.recomputed.clone()),
            plans: Vec::new(),
            search: None,
            notes: q.notes.clone(),
            max_batch: None,
            why: None,
            streamed: None,
        }
    }
}

fn streamed(s: &Streamed) -> StreamedInfo {
    let pass = |pass: &StreamedPass| StreamedPassInfo {
        length: pass.length,
        moved: pass.moved.0,
        link_seconds: pass.link,
        work_seconds: pass.work,
        least_seconds: pass.least(),
        hidden_from: pass.hidden_from.map(|bytes| bytes.0),
    };
    StreamedInfo {
        budget: s.budget.0,
        weights: s.weights.0,
        tables: s.tables.0,
        widest: s.widest.0,
        link_bytes_per_second: s.link,
        passes: s.passes.iter().map(pass).collect(),
    }
}

fn settings(q: &Question) -> SettingsInfo {
    let run = &q.run;
    SettingsInfo {
        mode: if q.trains() { "train" } else { "infer" }.to_owned(),
        batch: run.batch,
        length: run.length,
        grad_accum: run.accumulation,
        precision: run.precision.name().to_owned(),
        optimizer: q.trains().then(|| run.optimizer.name().to_owned()),
        checkpointing: q.trains().then(|| q.checkpointing.name().to_owned()),
        attention: match q.attention() {
            Attention::Sdpa => "sdpa",
            Attention::Eager => "eager",
            Attention::Flash => "flash",
        }
        .to_owned(),
        lora_rank: run.lora.map(|lora| lora.rank),
        weights: q.format.name().to_owned(),
        kv_tokens: q.kv_tokens,
        engine: q.engine.map(|engine| engine.name().to_owned()),
    }
}

fn components(e: &Estimate) -> BTreeMap<String, u64> {
    e.components.iter().map(|(name, bytes)| ((*name).to_owned(), *bytes)).collect()
}

fn phases(e: &Estimate) -> Vec<PhaseInfo> {
    let phases = e.shape.iter().flat_map(|shape| &shape.phases);
    phases.map(|(name, _, peak)| PhaseInfo { phase: (*name).to_owned(), peak: *peak }).collect()
}

fn search(plans: &Plans) -> SearchInfo {
    SearchInfo {
        points: plans.census.points,
        examined: plans.census.examined,
        fit: plans.census.fit,
        left_out_by_memory: plans.census.by_memory,
        left_out_by_cost: plans.census.by_cost,
        left_out_by_rule: plans.census.by_rule,
        simulated: plans.simulated,
        least_needed: plans.least_needed,
        least_card: plans.least_card,
    }
}

fn plan(row: &Row) -> PlanInfo {
    let e = row.estimate.as_ref();
    PlanInfo {
        plan: row.words.clone(),
        exact: row.exact,
        peak_allocated: e.map(|e| e.peak_allocated.0),
        peak_reserved: e.map(|e| e.peak_reserved.0),
        process_total: row.process_total.0,
        error: e.map(|e| e.error),
        components: e.map_or_else(BTreeMap::new, components),
        largest_batch: row.largest_batch,
        seconds: row.seconds,
        per: if row.serve.is_some() { "token" } else { "step" }.to_owned(),
        cost: row.cost.iter().map(|(name, seconds)| ((*name).to_owned(), *seconds)).collect(),
        recompute: row.recomputed.clone(),
        config: row.config.as_ref().map(config),
        serve: row.serve.as_ref().map(serve),
    }
}

fn fits_with(answer: &Answer) -> Option<FitsWith> {
    let row = answer.fits_with()?;
    Some(FitsWith {
        plan: row.words.clone(),
        keeps_recipe: answer.plans.as_ref().is_some_and(|plans| plans.keeps_recipe),
        process_total: row.process_total.0,
        error: row.estimate.as_ref().map(|e| e.error),
        config: row.config.as_ref().map(config),
        serve: row.serve.as_ref().map(serve),
    })
}

fn config(c: &Config) -> ConfigInfo {
    ConfigInfo {
        precision: c.precision.name().to_owned(),
        optimizer: c.optimizer.name().to_owned(),
        sharding: c.sharding.name().to_owned(),
        data: c.data,
        tensor: c.tensor,
        pipeline: c.pipeline,
        context: c.context,
        expert: c.expert,
        chunks: c.chunks,
        micro_batch: c.micro_batch,
        accumulation: c.accumulation,
        length: c.length,
        offload_optimizer: c.offload.optimizer,
        offload_parameters: c.offload.parameters,
        offload_activations: c.offload.activations,
        lora_rank: c.lora.map(|lora| lora.rank),
        weights: c.format.name().to_owned(),
    }
}

fn serve(p: &ServePlan) -> ServeInfo {
    ServeInfo {
        weights: p.format.name().to_owned(),
        cache_bytes: p.cache_bytes,
        tensor: p.tensor,
        pipeline: p.pipeline,
        replicas: p.replicas,
        expert_parallel: p.expert_parallel,
        tokens: p.tokens,
        blocks: p.pages(),
        block_size: p.page,
        cache_per_token: p.cache_per_token,
        weight_bytes: p.weights,
        activations: p.activations,
        graphs: p.graphs,
        utilization: p.utilization,
    }
}

fn term(term: &Term) -> TermInfo {
    TermInfo {
        name: term.name.to_owned(),
        value: term.value,
        equation: term.equation.to_owned(),
        inputs: term.inputs.iter().map(|(symbol, value)| ((*symbol).to_owned(), *value)).collect(),
        source: term.source.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::Fit;
    use gapless_fit::ask::{Asked, Question, Wishes, ask, terms};

    #[test]
    fn the_contract_reads_back_what_it_wrote() {
        let asked = Asked { batch: Some(2), seq: Some(64), ..Asked::default() };
        let q = Question::read("gpt2", &asked).expect("a question");
        let answer = ask(&q, &Wishes { optimize: true, ..Wishes::default() }).expect("an answer");
        let terms = terms(&q, &answer).expect("terms");
        let fit = Fit::of(&q, &answer, Some(&terms));
        assert!(fit.fits && !fit.plans.is_empty() && fit.why.is_some());
        assert_eq!(fit.components.values().sum::<u64>(), fit.peak_allocated.expect("simulated"));
        let text = super::super::json(&q, &answer, Some(&terms)).expect("JSON");
        assert_eq!(serde_json::from_str::<Fit>(&text).expect("the contract"), fit);
    }
}
