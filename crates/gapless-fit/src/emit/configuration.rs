//! Configuration files of DeepSpeed and Accelerate, and which plans each target can realise.

use super::{EmitError, File, Recipe, Target};
use crate::formulas::sharding::Sharding;
use crate::search::memory::{BUCKET, LIVE};
use crate::search::space::{Config, Offload, Space};
use crate::settings::{Optimizer, Precision};
use serde_json::{Map, Value, json};

/// Leaves in a space only values that the target can realise.
pub(super) fn restrict(target: Target, space: &mut Space) {
    for degrees in
        [&mut space.tensor, &mut space.pipeline, &mut space.context, &mut space.expert, &mut space.chunks]
    {
        degrees.retain(|&degree| degree == 1);
    }
    let mixed = |p: &Precision| matches!(p, Precision::Mixed | Precision::MixedMainGrad);
    // Autocast in fp16 needs a scaler of gradients, and no script has one.
    space.precisions.retain(|p| *p != Precision::AmpFp16);
    let both = |offload: &Offload| offload.optimizer == offload.parameters;
    match target {
        Target::Torch => {
            space.shardings.retain(|sharding| *sharding == Sharding::Ddp);
            space.precisions.retain(|p| !mixed(p) && *p != Precision::Bf16Fp32States);
            space.offloads.retain(|offload| !offload.optimizer && !offload.parameters);
        }
        Target::Fsdp => {
            // With one rank there is nothing to share: its shard is the whole.
            let shared = space.shardings.contains(&Sharding::Fsdp);
            space
                .shardings
                .retain(|sharding| *sharding == if shared { Sharding::Fsdp } else { Sharding::Ddp });
            space.offloads.retain(both);
        }
        Target::DeepSpeed => {
            space.shardings.retain(|sharding| *sharding != Sharding::Fsdp);
            space.precisions.retain(|p| mixed(p) || *p == Precision::Fp32);
        }
        Target::Accelerate => {
            space.shardings.retain(|sharding| matches!(sharding, Sharding::Fsdp | Sharding::Ddp));
            space.precisions.retain(|p| *p != Precision::Fp16);
            space.offloads.retain(both);
        }
    }
}

/// An error if the target cannot realise the plan.
pub(super) fn check(recipe: &Recipe, target: Target) -> Result<(), EmitError> {
    let config = &recipe.config;
    let cannot = |what: String, hint| Err(EmitError::Cannot { target: target.name(), what, hint });
    torchvision(recipe, target)?;
    for (what, degree) in [
        ("pipeline", config.pipeline),
        ("expert", config.expert),
        ("tensor", config.tensor),
        ("context", config.context),
    ] {
        if degree > 1 {
            // A model has to be rewritten for these; a script that only looks as if it did would be worse than none.
            return cannot(
                format!("{what} parallelism of {degree}"),
                "search without it, or set these degrees in Megatron-LM",
            );
        }
    }
    adapters(recipe, target)?;
    if config.precision == Precision::AmpFp16 {
        return cannot(
            format!("precision {}", config.precision.name()),
            "autocast in fp16 needs a scaler of gradients, which the script does not have: plan with amp-bf16",
        );
    }
    target_takes(config, target)
}

/// A network of torchvision is emitted for torch alone.
fn torchvision(recipe: &Recipe, target: Target) -> Result<(), EmitError> {
    let cannot = |what: String, hint| Err(EmitError::Cannot { target: target.name(), what, hint });
    if !recipe.is_torchvision() {
        return Ok(());
    }
    if target != Target::Torch {
        return cannot("a network of torchvision".to_owned(), "emit it for torch");
    }
    if !recipe.selective.is_empty() {
        return cannot("a network of torchvision recomputed in part".to_owned(), "recompute whole blocks");
    }
    let kind = recipe.model["model_type"].as_str();
    if recipe.config.optimizer == Optimizer::Muon
        && !matches!(kind, Some("torchvision_vit" | "torchvision_convnext"))
    {
        return cannot("muon".to_owned(), "its blocks have no matrices: plan with adamw or sgd-momentum");
    }
    Ok(())
}

/// Sharding, precision and offloading that the target can realise.
fn target_takes(config: &Config, target: Target) -> Result<(), EmitError> {
    let cannot = |what: String, hint| Err(EmitError::Cannot { target: target.name(), what, hint });
    let mixed = matches!(config.precision, Precision::Mixed | Precision::MixedMainGrad);
    let gathers = matches!(config.sharding, Sharding::Zero3 | Sharding::Fsdp);
    let shards = config.sharding != Sharding::Ddp;
    match target {
        Target::Torch => {
            if shards {
                return cannot(
                    format!("sharding by {}", config.sharding.name()),
                    "emit it for fsdp or deepspeed",
                );
            }
            if mixed || config.precision == Precision::Bf16Fp32States {
                return cannot(
                    format!("precision {}", config.precision.name()),
                    "emit it for fsdp or deepspeed, or train in amp-bf16",
                );
            }
            if config.offload.optimizer || config.offload.parameters {
                return cannot("offloaded states".to_owned(), "emit it for fsdp or deepspeed");
            }
        }
        Target::Fsdp => {
            if !(gathers || config.sharding == Sharding::Zero2 || config.data == 1) {
                return cannot(format!("sharding by {}", config.sharding.name()), "emit it for deepspeed");
            }
            if config.offload.optimizer != config.offload.parameters {
                return cannot(
                    "offloading of the optimizer or of parameters alone".to_owned(),
                    "fully_shard moves both or none: emit it for deepspeed",
                );
            }
        }
        Target::DeepSpeed => {
            if !(mixed || config.precision == Precision::Fp32) {
                return cannot(
                    format!("precision {}", config.precision.name()),
                    "DeepSpeed keeps fp32 master copies: plan with mixed or fp32",
                );
            }
            if config.offload.parameters && config.sharding != Sharding::Zero3 && config.data > 1 {
                return cannot("offloaded parameters".to_owned(), "they need zero 3");
            }
            let adam = matches!(config.optimizer, Optimizer::AdamW | Optimizer::AdamWFused);
            if config.offload.optimizer && !adam {
                return cannot(format!("{} on the host", config.optimizer.name()), "only AdamW runs there");
            }
        }
        Target::Accelerate => {
            if config.precision == Precision::Fp16 {
                return cannot("weights in fp16".to_owned(), "train in amp-bf16 or mixed");
            }
            if matches!(config.sharding, Sharding::Zero1 | Sharding::Zero2) {
                return cannot(format!("sharding by {}", config.sharding.name()), "emit it for deepspeed");
            }
            if config.offload.optimizer != config.offload.parameters {
                return cannot(
                    "offloading of the optimizer or of parameters alone".to_owned(),
                    "fully_shard moves both or none: emit it for deepspeed",
                );
            }
        }
    }
    Ok(())
}

/// Adapters are peft's; the frozen weights take bitsandbytes' formats.
fn adapters(recipe: &Recipe, target: Target) -> Result<(), EmitError> {
    let config = &recipe.config;
    let Some(lora) = config.lora else { return Ok(()) };
    let cannot = |what: String, hint| Err(EmitError::Cannot { target: target.name(), what, hint });
    if recipe.is_torchvision() {
        return cannot(
            "adapters on a network of torchvision".to_owned(),
            "peft's default layers are those of transformers: give a model of transformers",
        );
    }
    let base = config.format.name();
    if !matches!(base, "16-bit" | "nf4" | "nf4-double" | "int8") {
        return cannot(
            format!("frozen weights in {base} from random ones"),
            "only a checkpoint has them: nf4, nf4-double, int8 or 16-bit are made as the script loads",
        );
    }
    let quantised = base != "16-bit";
    let shards = config.sharding != Sharding::Ddp;
    if quantised && (shards || config.offload.parameters) {
        return cannot(
            format!("{base} weights cut into shards"),
            "bitsandbytes' tensors of bytes cannot be sharded: emit it for torch, with a copy on each GPU",
        );
    }
    if shards
        && !lora.narrow
        && matches!(target, Target::Fsdp | Target::Accelerate)
        && config.precision != Precision::Fp32
    {
        return cannot(
            "fp32 adapters over 16-bit weights".to_owned(),
            "fully_shard wants one type in a block: --lora r=16,dtype=bf16",
        );
    }
    Ok(())
}

/// ZeRO's stage: offloading needs at least one that supports it.
fn stage(config: &Config) -> u64 {
    let shards = match config.sharding {
        Sharding::Ddp => 0,
        Sharding::Zero1 => 1,
        Sharding::Zero2 => 2,
        Sharding::Zero3 | Sharding::Fsdp => 3,
    };
    let offload = match (config.offload.parameters, config.offload.optimizer) {
        (true, _) => 3,
        // With one rank, gradients leave the GPU as they are made.
        (false, true) if config.data == 1 => 2,
        (false, true) => 1,
        (false, false) => 0,
    };
    shards.max(offload)
}

pub(super) fn deepspeed(recipe: &Recipe) -> File {
    let config = &recipe.config;
    let stage = stage(config);
    let mut zero = Map::new();
    let mut set = |key: &str, value: Value| zero.insert(key.to_owned(), value);
    set("stage", json!(stage));
    set("overlap_comm", json!(stage > 0));
    set("contiguous_gradients", json!(true));
    set("reduce_bucket_size", json!(BUCKET));
    if stage == 3 {
        set("stage3_prefetch_bucket_size", json!(BUCKET));
        set("stage3_param_persistence_threshold", json!(100_000));
        set("stage3_max_live_parameters", json!(LIVE));
        set("stage3_max_reuse_distance", json!(LIVE));
    } else {
        set("allgather_bucket_size", json!(BUCKET));
    }
    let host = json!({"device": "cpu", "pin_memory": true});
    if config.offload.optimizer {
        set("offload_optimizer", host.clone());
    }
    if config.offload.parameters {
        set("offload_param", host);
    }
    let mut all = json!({
        "train_batch_size": config.global_batch(),
        "train_micro_batch_size_per_gpu": config.micro_batch,
        "gradient_accumulation_steps": config.accumulation,
        "gradient_clipping": 1.0,
        "zero_allow_untested_optimizer": true,
        "zero_optimization": zero,
    });
    match config.precision {
        Precision::Mixed => all["bf16"] = json!({"enabled": true}),
        Precision::MixedMainGrad => {
            all["bf16"] = json!({"enabled": true});
            all["data_types"] = json!({"grad_accum_dtype": "fp32"});
        }
        _ => {}
    }
    if config.offload.optimizer {
        all["optimizer"] = json!({"type": "AdamW", "params": {"lr": 1e-4, "weight_decay": 0.01}});
    }
    let text = serde_json::to_string_pretty(&all).expect("a value prints") + "\n";
    File { name: "ds_config.json", text }
}

pub(super) fn accelerate(recipe: &Recipe) -> File {
    let config = &recipe.config;
    let gathers = matches!(config.sharding, Sharding::Zero3 | Sharding::Fsdp);
    let gpus = config.gpus();
    let kind = match (gathers, gpus) {
        (true, _) => "FSDP",
        (false, 1) => "'NO'",
        (false, _) => "MULTI_GPU",
    };
    let mixed = matches!(config.precision, Precision::Mixed | Precision::MixedMainGrad | Precision::AmpBf16);
    let mut text = format!(
        "compute_environment: LOCAL_MACHINE\ndebug: false\ndistributed_type: {kind}\ndowncast_bf16: 'no'\n\
         enable_cpu_affinity: false\n"
    );
    if gathers {
        text += &format!(
            "fsdp_config:\n  fsdp_activation_checkpointing: false\n  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n  \
             fsdp_cpu_ram_efficient_loading: false\n  fsdp_offload_params: {}\n  fsdp_reshard_after_forward: true\n  \
             fsdp_state_dict_type: SHARDED_STATE_DICT\n  fsdp_version: 2\n",
            config.offload.parameters
        );
    }
    text += &format!(
        "machine_rank: 0\nmain_training_function: main\nmixed_precision: '{}'\nnum_machines: {}\nnum_processes: {gpus}\n",
        if mixed { "bf16" } else { "no" },
        recipe.nodes
    );
    text += &format!("rdzv_backend: static\nsame_network: true\nuse_cpu: {}\n", false);
    File { name: "accelerate.yaml", text }
}
