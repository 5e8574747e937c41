//! Configuration files of DeepSpeed and Accelerate, and which plans each target can realise.

use super::{EmitError, File, Recipe, Target};
use crate::formulas::sharding::Sharding;
use crate::formulas::states::{Optimizer, Precision};
use crate::search::memory::BUCKET;
use serde_json::{Map, Value, json};

/// Whether the target can realise the plan.
pub(super) fn check(recipe: &Recipe, target: Target) -> Result<(), EmitError> {
    let config = &recipe.config;
    let cannot = |what: String, hint| Err(EmitError::Cannot { target: target.name(), what, hint });
    let megatron = "take a plan without it, or set these degrees in Megatron-LM";
    if config.pipeline > 1 {
        return cannot(format!("{} pipeline stages", config.pipeline), megatron);
    }
    if config.expert > 1 {
        return cannot(format!("expert parallelism of {}", config.expert), megatron);
    }
    if config.lora.is_some() {
        return cannot("adapters".to_owned(), "wrap the model with peft in build()");
    }
    let inner = config.tensor * config.context;
    if inner > 1 && target != Target::Accelerate {
        return cannot("tensor or context parallelism".to_owned(), "emit it for accelerate");
    }
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
            if config.offload.parameters && config.sharding != Sharding::Zero3 {
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
            if inner > 1 && !gathers {
                return cannot("tensor or context parallelism without fsdp".to_owned(), "shard by fsdp");
            }
        }
    }
    Ok(())
}

fn stage(sharding: Sharding) -> u64 {
    match sharding {
        Sharding::Ddp => 0,
        Sharding::Zero1 => 1,
        Sharding::Zero2 => 2,
        Sharding::Zero3 | Sharding::Fsdp => 3,
    }
}

pub(super) fn deepspeed(recipe: &Recipe) -> File {
    let config = &recipe.config;
    let stage = stage(config.sharding);
    let mut zero = Map::new();
    let mut set = |key: &str, value: Value| zero.insert(key.to_owned(), value);
    set("stage", json!(stage));
    set("overlap_comm", json!(stage > 0));
    set("contiguous_gradients", json!(true));
    set("reduce_bucket_size", json!(BUCKET));
    if stage == 3 {
        set("stage3_prefetch_bucket_size", json!(BUCKET));
        set("stage3_param_persistence_threshold", json!(100_000));
        set("stage3_max_live_parameters", json!(BUCKET * 4));
        set("stage3_max_reuse_distance", json!(BUCKET * 4));
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
    if gathers && config.tensor * config.context > 1 {
        text += &format!(
            "parallelism_config:\n  parallelism_config_dp_replicate_size: 1\n  parallelism_config_dp_shard_size: {}\n  \
             parallelism_config_tp_size: {}\n  parallelism_config_cp_size: {}\n",
            config.data, config.tensor, config.context
        );
    }
    text += &format!("rdzv_backend: static\nsame_network: true\nuse_cpu: {}\n", false);
    File { name: "accelerate.yaml", text }
}
