//! The Python scripts: templates with the plan and the model's configuration written in.

use super::{File, Recipe, Target};
use crate::formulas::sharding::Sharding;
use crate::model::Attention;
use crate::settings::{Lora, LoraTargets, Precision};
use serde_json::{Value, json};

const COMMON: &str = include_str!("templates/common.py");
/// How the model is built, cut into blocks and fed: of transformers, or of torchvision.
const TRANSFORMERS: &str = include_str!("templates/transformers.py");
const TORCHVISION: &str = include_str!("templates/torchvision.py");

pub(super) fn write(recipe: &Recipe, target: Target) -> File {
    let (name, template) = match target {
        Target::Torch => ("train.py", include_str!("templates/torch.py")),
        Target::Fsdp => ("train_fsdp.py", include_str!("templates/fsdp.py")),
        Target::DeepSpeed => ("train_deepspeed.py", include_str!("templates/deepspeed.py")),
        Target::Accelerate => ("train_accelerate.py", include_str!("templates/accelerate.py")),
    };
    // The plan goes in last: whatever a name contains, it is not taken for a placeholder.
    let text = template
        .replace("@COMMON@\n", COMMON)
        .replace("@MODEL@\n", if recipe.is_torchvision() { TORCHVISION } else { TRANSFORMERS })
        .replace("@FILE@", name)
        .replace("@GPUS_PER_NODE@", &recipe.gpus_per_node.to_string())
        .replace("@NODES@", &recipe.nodes.to_string());
    let (before, rest) = text.split_once("@TITLE@").unwrap_or(("", &text));
    let (head, rest) = rest.split_once("@PLAN@").unwrap_or((rest, ""));
    let (middle, tail) = rest.split_once("@CONFIG@").unwrap_or((rest, ""));
    let text = [
        before,
        &title(recipe),
        head,
        &literal(&plan(recipe, target)),
        middle,
        &literal(&recipe.model),
        tail,
    ]
    .concat();
    File { name, text }
}

/// JSON for a raw Python string in triple quotes: quotes, which could end it, are written as escapes of JSON.
fn literal(value: &Value) -> String {
    let text = serde_json::to_string_pretty(value).expect("a value prints");
    text.replace('\'', "\\u0027")
}

/// One line of prose, without characters that could end a docstring.
fn title(recipe: &Recipe) -> String {
    let config = &recipe.config;
    let name: String = recipe.name.chars().filter(|c| !c.is_control() && *c != '"' && *c != '\\').collect();
    let recomputed = match (recipe.recompute.len(), recipe.selective.len()) {
        (0, 0) => "no gradient checkpointing".to_owned(),
        (full, 0) => format!("gradient checkpointing of {full} of {} blocks", recipe.blocks),
        (full, half) => {
            format!("gradient checkpointing of {full} of {} blocks, {half} in part", recipe.blocks)
        }
    };
    format!(
        "{name}: {}, {}, micro-batch {} x {} of {}, {recomputed}.",
        config.precision.name(),
        config.optimizer.name(),
        config.micro_batch,
        config.accumulation,
        config.length
    )
}

/// As peft's LoraConfig takes them.
fn adapters(recipe: &Recipe, lora: Lora) -> Value {
    let targets = match lora.targets {
        LoraTargets::All => json!("all-linear"),
        LoraTargets::Only(names) => json!(names.list().collect::<Vec<_>>()),
        LoraTargets::QueryValue => json!(recipe.usual_targets),
    };
    let mut save = Vec::new();
    if lora.save_head {
        save.push(if recipe.model["model_type"] == "gpt_neox" { "embed_out" } else { "lm_head" });
    }
    if lora.save_embedding {
        save.push(match recipe.model["model_type"].as_str() {
            Some("gpt2") => "wte",
            Some("gpt_neox") => "embed_in",
            _ => "embed_tokens",
        });
    }
    json!({
        "rank": lora.rank,
        "targets": targets,
        "narrow": lora.narrow,
        "dora": lora.dora,
        "dropout": if lora.dropout { 0.05 } else { 0.0 },
        "save": save,
        "base": recipe.config.format.name(),
    })
}

fn plan(recipe: &Recipe, target: Target) -> Value {
    let config = &recipe.config;
    let half = if config.precision == Precision::Fp16 { "float16" } else { "bfloat16" };
    let wide = matches!(config.precision, Precision::Fp32 | Precision::AmpBf16);
    let mixed = matches!(config.precision, Precision::Mixed | Precision::MixedMainGrad);
    // A target that shards keeps the fp32 weights and computes with gathered copies in 16 bits; DeepSpeed makes its
    // master copies itself.
    let weight_type = if wide || mixed && target != Target::DeepSpeed { "float32" } else { half };
    let compute_type = if config.precision == Precision::Fp32 { "float32" } else { half };
    let reduce_type = match config.precision {
        Precision::Fp32 | Precision::MixedMainGrad | Precision::AmpBf16 => "float32",
        _ => half,
    };
    json!({
        "name": recipe.name,
        "blocks": recipe.blocks,
        "weights": recipe.weights,
        "attention": match recipe.attention {
            Attention::Sdpa => "sdpa",
            Attention::Eager => "eager",
            Attention::Flash => "flash_attention_2",
        },
        "weight_type": weight_type,
        "compute_type": compute_type,
        "reduce_type": reduce_type,
        "autocast": config.precision == Precision::AmpBf16 && target != Target::Accelerate,
        "optimizer": config.optimizer.name(),
        "learning_rate": 1e-4,
        "micro_batch": config.micro_batch,
        "accumulation": config.accumulation,
        "length": config.length,
        "recompute": recipe.recompute,
        "selective": recipe.selective,
        "reshard_after_forward": config.sharding != Sharding::Zero2,
        "sharded": matches!(config.sharding, Sharding::Zero3 | Sharding::Fsdp),
        "offload_parameters": config.offload.parameters,
        "offload_activations": config.offload.activations,
        "lora": config.lora.map(|lora| adapters(recipe, lora)),
        "predicted_peak_allocated": recipe.predicted_peak_allocated,
        "steps": recipe.steps,
    })
}
