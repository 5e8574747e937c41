//! An answer for programs: schema `gapless.fit/1`.

use super::estimate::Estimate;
use super::plans::{Plans, Row};
use super::question::Question;
use gapless_fit::answer::Verdict;
use gapless_fit::formulas::Term;
use gapless_fit::tune::LargestBatch;
use serde_json::{Map, Value, json};

pub(super) const SCHEMA: &str = "gapless.fit/1";

pub(super) struct Parts<'a> {
    pub(super) plans: Option<&'a Plans>,
    pub(super) largest: Option<Option<&'a LargestBatch>>,
    pub(super) why: Option<&'a [Term]>,
}

pub(super) fn value(q: &Question, e: Option<&Estimate>, fits: bool, parts: &Parts<'_>) -> Value {
    let plans: Vec<Value> = parts.plans.map_or_else(Vec::new, |plans| plans.rows.iter().map(row).collect());
    let mut all = json!({
        "schema": SCHEMA,
        "model": {
            "path": q.path,
            "name": q.model.name,
            "parameters": e.map(|e| e.parameters).or_else(|| gapless_fit::parameters::count(&q.architecture)),
        },
        "settings": settings(q),
        "device": {
            "name": q.gpu_name,
            "memory": q.memory().0,
            "gpus_per_node": q.cluster.gpus_per_node,
            "nodes": q.cluster.nodes,
        },
        "fits": fits,
        "tight": e.is_some_and(|e| e.verdict == Verdict::FitsTightly),
        "peak_allocated": e.map(|e| e.peak_allocated.0),
        "peak_reserved": e.map(|e| e.peak_reserved.0),
        "process_total": e.map(|e| e.process_total().0),
        "context": e.map(|e| e.context.0),
        "communication": e.map(|e| e.outside.0),
        "gapless_reserved": e.and_then(|e| e.gapless_reserved).map(|b| b.0),
        "floor": e.and_then(|e| e.floor).map(|b| b.0),
        "error": e.map(|e| e.error),
        "method": e.map(|e| e.method.name()),
        "components": e.map_or_else(|| json!({}), components),
        "peak_at": e.map(peak_at),
        "phases": e.and_then(|e| e.shape.as_ref()).map_or_else(Vec::new, |shape| {
            shape.phases.iter().map(|(name, _, peak)| json!({"phase": name, "peak": peak})).collect::<Vec<_>>()
        }),
        "blocks": e.map(|e| e.blocks),
        "recomputed": e.map_or_else(Vec::new, |e| e.recomputed.clone()),
        "plans": plans,
        "search": parts.plans.map(|plans| json!({
            "points": plans.census.points,
            "examined": plans.census.examined,
            "fit": plans.census.fit,
            "left_out_by_memory": plans.census.by_memory,
            "left_out_by_cost": plans.census.by_cost,
            "left_out_by_rule": plans.census.by_rule,
            "simulated": plans.simulated,
            "least_needed": plans.least_needed,
        })),
        "notes": q.notes,
    });
    if let Some(largest) = parts.largest {
        all["max_batch"] = json!(largest.map_or(0, |found| found.batch));
    }
    if let Some(terms) = parts.why {
        all["why"] = terms.iter().map(term).collect();
    }
    all
}

fn settings(q: &Question) -> Value {
    json!({
        "mode": if q.trains() { "train" } else { "infer" },
        "batch": q.run.batch,
        "length": q.run.length,
        "grad_accum": q.run.accumulation,
        "precision": q.precision.name(),
        "optimizer": q.trains().then(|| q.optimizer.name()),
        "checkpointing": q.trains().then(|| format!("{:?}", q.checkpointing).to_lowercase()),
        "attention": format!("{:?}", q.run.attention(super::question::own_attention(&q.architecture))).to_lowercase(),
        "lora_rank": q.lora.map(|l| l.rank),
        "weights": q.format.name(),
        "kv_tokens": q.kv_tokens,
    })
}

fn components(e: &Estimate) -> Value {
    Value::Object(
        e.components.iter().map(|(name, bytes)| ((*name).to_owned(), json!(bytes))).collect::<Map<_, _>>(),
    )
}

fn peak_at(e: &Estimate) -> Value {
    json!({
        "step": e.peak_at.step,
        "phase": e.peak_at.phase,
        "part": e.peak_at.part,
        "op": e.peak_at.op,
    })
}

fn row(row: &Row) -> Value {
    let cost: Map<String, Value> =
        row.cost.iter().map(|(name, seconds)| ((*name).to_owned(), json!(seconds))).collect();
    let e = row.estimate.as_ref();
    json!({
        "plan": row.words,
        "exact": row.exact,
        "peak_allocated": e.map(|e| e.peak_allocated.0),
        "peak_reserved": e.map(|e| e.peak_reserved.0),
        "process_total": row.process_total.0,
        "components": e.map_or_else(|| json!({}), components),
        "largest_batch": row.largest_batch,
        "seconds": row.seconds,
        "per": if row.serve.is_some() { "token" } else { "step" },
        "cost": cost,
        "recompute": row.recomputed,
        "config": row.config.map(|c| json!({
            "precision": c.precision.name(),
            "optimizer": c.optimizer.name(),
            "sharding": c.sharding.name(),
            "data": c.data,
            "tensor": c.tensor,
            "pipeline": c.pipeline,
            "context": c.context,
            "expert": c.expert,
            "chunks": c.chunks,
            "micro_batch": c.micro_batch,
            "accumulation": c.accumulation,
            "length": c.length,
            "offload_optimizer": c.offload.optimizer,
            "offload_parameters": c.offload.parameters,
            "offload_activations": c.offload.activations,
            "lora_rank": c.lora.map(|l| l.rank),
            "weights": c.format.name(),
        })),
        "serve": row.serve.map(|p| json!({
            "weights": p.format.name(),
            "cache_bytes": p.cache_bytes,
            "tensor": p.tensor,
            "pipeline": p.pipeline,
            "replicas": p.replicas,
            "expert_parallel": p.expert_parallel,
            "tokens": p.tokens,
        })),
    })
}

pub(super) fn term(term: &Term) -> Value {
    let inputs: Map<String, Value> =
        term.inputs.iter().map(|(symbol, value)| ((*symbol).to_owned(), json!(value))).collect();
    json!({
        "name": term.name,
        "value": term.value,
        "equation": term.equation,
        "inputs": inputs,
        "source": term.source,
    })
}
