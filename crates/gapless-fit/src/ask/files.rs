//! The first plan, or the given configuration, as files that run.

use super::error::AskError;
use super::plans;
use super::question::Question;
use super::row::{Row, alone};
use super::{Answer, Emit};
use crate::emit::{File, Recipe, ServeRecipe, Target, vllm};
use crate::search::space::Config;
use crate::settings::{Checkpointing, LoraTargets};
use serde_json::Value;
use std::path::Path;

type Result<T> = std::result::Result<T, AskError>;

/// The files that realise the given configuration if it fits, else the first plan.
///
/// # Errors
/// When nothing fits, or when `emit` cannot realise the plan that does.
pub fn files(q: &Question, answer: &Answer, emit: Emit) -> Result<Vec<File>> {
    match emit {
        Emit::Serve => serve(q, answer),
        Emit::Train(target) => train(q, answer, target),
    }
}

fn nothing(q: &Question) -> AskError {
    AskError::new(
        format!("nothing fits on {}, so there is nothing to write down", q.gpu_name),
        "leave more of the configuration free, or give more --gpus or --memory",
    )
}

fn serve(q: &Question, answer: &Answer) -> Result<Vec<File>> {
    if q.trains() {
        return Err(AskError::new("--emit vllm serves a model", "add --infer"));
    }
    let plan = answer
        .plans
        .as_ref()
        .and_then(|plans| plans.rows.iter().find_map(|row| row.serve))
        .ok_or_else(|| nothing(q))?;
    let recipe =
        ServeRecipe { model: q.path.clone(), plan, sequences: q.run.batch.div_ceil(plan.replicas.max(1)) };
    Ok(vec![vllm(&recipe).map_err(|error| AskError::new(error.to_string(), "plan with another --quantize"))?])
}

fn train(q: &Question, answer: &Answer, target: Target) -> Result<Vec<File>> {
    if !q.trains() {
        return Err(AskError::new(
            format!("--emit {} trains a model", target.name()),
            "leave out --infer, or --emit vllm",
        ));
    }
    let (config, recomputed, selective, peak) = chosen(q, answer)?;
    let recipe = Recipe {
        name: q.model.name.clone(),
        model: configuration(q)?,
        weights: None,
        attention: q.attention(),
        usual_targets: LoraTargets::usual(&q.architecture),
        blocks: answer
            .estimate
            .as_ref()
            .map(|e| e.blocks)
            .filter(|blocks| *blocks > 0)
            .map_or_else(|| plans::profile(q).map(|p| p.blocks()), Ok)?,
        config,
        recompute: recomputed,
        selective,
        predicted_peak_allocated: peak,
        gpus_per_node: q.cluster.gpus_per_node,
        nodes: q.cluster.nodes,
        steps: u64::from(super::policy::STEPS),
    };
    recipe.emit(target).map_err(|error| {
        AskError::new(error.to_string(), "another --emit target, or a --precision and --zero that it knows")
    })
}

type Chosen = (Config, Vec<u64>, Vec<u64>, Option<u64>);

/// The given configuration if it fits, else the first plan; the peak only if exactly that was simulated.
fn chosen(q: &Question, answer: &Answer) -> Result<Chosen> {
    let of_row = |row: &Row| {
        let peak = row.estimate.as_ref().filter(|_| row.exact).map(|e| e.peak_allocated.0);
        row.config.map(|config| (config, row.recomputed.clone(), row.selective.clone(), peak))
    };
    if let Some(plans) = &answer.plans {
        if !plans.keeps_recipe {
            return Err(AskError::new(
                format!("{} fits only with another recipe, so there is nothing to write down", q.model.name),
                "ask for that recipe itself, as with --optimizer or --lora: the plans without --emit name it",
            ));
        }
        return plans.rows.first().and_then(of_row).ok_or_else(|| nothing(q));
    }
    let estimate = answer.estimate.as_ref().ok_or_else(|| nothing(q))?;
    if let Some(config) = answer.config {
        let every = (0..estimate.blocks.max(plans::profile(q)?.blocks())).collect();
        let recomputed = if config.checkpointing == Checkpointing::Full { every } else { Vec::new() };
        return Ok((config, recomputed, Vec::new(), None));
    }
    let micro_batch = estimate.simulated.as_ref().map_or(q.run.batch, |a| a.run.batch);
    let config = alone(q, q.run.optimizer, micro_batch, q.run.accumulation, &estimate.recomputed);
    Ok((config, estimate.recomputed.clone(), Vec::new(), Some(estimate.peak_allocated.0)))
}

/// The model's config.json, which the script builds it from; for a network of torchvision its row of the table of
/// names.
fn configuration(q: &Question) -> Result<Value> {
    let path = Path::new(&q.path);
    let file = if path.is_dir() { path.join("config.json") } else { path.to_owned() };
    let (text, is_named) = match std::fs::read_to_string(&file) {
        Ok(text) if file.extension().is_some_and(|e| e == "json") => (text, false),
        _ => (crate::read::preset_config(&q.path).map(str::to_owned).unwrap_or_default(), true),
    };
    let unknown = || {
        AskError::new(
            format!("{}: scripts are written from a config.json, or for a built-in model", q.path),
            "give a config.json, its folder, or a name of `gapless fit --list`",
        )
    };
    let mut value: Value = serde_json::from_str(&text).map_err(|_| unknown())?;
    let kind = value.get("model_type").and_then(Value::as_str).ok_or_else(unknown)?.to_owned();
    // The script makes its own weights, in the plan's format.
    if let Some(keys) = value.as_object_mut() {
        keys.remove("quantization_config");
        if kind == "kimi_k2" {
            keys.insert("model_type".to_owned(), "deepseek_v3".into());
        }
    }
    if kind.starts_with("torchvision_") && !is_named {
        return Err(AskError::new(
            format!("{}: which function of torchvision.models makes this network is not in the file", q.path),
            "give the built-in name of the network, as resnet50 or convnext_base",
        ));
    } else if kind.starts_with("torchvision_") {
        // A name of the table is the function of torchvision.models that makes it.
        value["name"] = q.model.name.clone().into();
        if value.get("num_classes").is_none() {
            value["num_classes"] = TORCHVISION_CLASSES.into();
        }
    } else if matches!(kind.as_str(), "resnet" | "convnext") {
        return Err(AskError::new(
            format!(
                "{}: its step is followed as torchvision runs it, so a script of transformers would be another one",
                q.path
            ),
            "give the built-in name of the network, as resnet50 or convnext_base",
        ));
    }
    Ok(value)
}

/// Classes of torchvision's networks if the configuration names no other number.
const TORCHVISION_CLASSES: u64 = 1000;
