//! From flags to a question: names become values and texts are parsed. Choices are made elsewhere.

use crate::cli::fit::{
    AttentionArg, CheckpointingArg, EmitTarget, EngineArg, OffloadArg, OptimizerArg, PrecisionArg,
    QuantizeArg, Settings, ZeroArg,
};
use crate::failure::Failure;
use crate::sizes;
use anyhow::Result;
use gapless_fit::ask::{Adapters, Asked, Degrees, Emit, StreamBudget, policy};
use gapless_fit::emit::Target;
use gapless_fit::formulas::sharding::Sharding;
use gapless_fit::formulas::weights::Format;
use gapless_fit::model::Attention;
use gapless_fit::search::space::Offload;
use gapless_fit::settings::{Checkpointing, Engine, Lora, LoraTargets, Names, Optimizer, Precision};

pub(in crate::commands) fn asked(settings: &Settings) -> Result<Asked> {
    let parse =
        |flag: &str, text: &Option<String>| text.as_deref().map(|text| sizes::memory(flag, text)).transpose();
    Ok(Asked {
        infer: settings.infer,
        batch: settings.batch,
        seq: settings.seq,
        image: settings.image,
        precision: settings.precision.map(precision),
        fp8: settings.precision == Some(PrecisionArg::Fp8),
        optimizer: settings.optimizer.map(optimizer),
        checkpointing: settings.checkpointing.map(checkpointing),
        attention: settings.attention.map(attention),
        adapters: settings.lora.as_deref().map(adapters).transpose()?,
        grad_accum: settings.grad_accum,
        kv_tokens: settings.kv_tokens,
        quantize: settings.quantize.map(quantize),
        engine: settings.engine.map(engine),
        utilization: settings.utilization,
        stream: settings.stream.as_deref().map(stream).transpose()?,
        emit: None,
        sparse: settings.sparsity.is_some(),
        gpu: settings.gpu.clone(),
        memory: parse("--memory", &settings.memory)?,
        gpus: settings.gpus,
        nodes: settings.nodes,
        host_memory: parse("--host-memory", &settings.host_memory)?,
        degrees: Degrees {
            data: settings.dp,
            tensor: settings.tp,
            pipeline: settings.pp,
            context: settings.cp,
            expert: settings.ep,
        },
        zero: settings.zero.map(sharding),
        offload: settings.offload.as_ref().map(|list| Offload {
            optimizer: list.contains(&OffloadArg::Optimizer),
            parameters: list.contains(&OffloadArg::Params),
            activations: list.contains(&OffloadArg::Activations),
        }),
    })
}

/// A budget, or nothing: as much as the card has room for.
fn stream(text: &str) -> Result<StreamBudget> {
    if text.is_empty() {
        return Ok(StreamBudget::Largest);
    }
    Ok(StreamBudget::Given(sizes::memory("--stream", text)?))
}

pub(super) fn emit(target: EmitTarget) -> Emit {
    match target {
        EmitTarget::Torch => Emit::Train(Target::Torch),
        EmitTarget::Fsdp => Emit::Train(Target::Fsdp),
        EmitTarget::Deepspeed => Emit::Train(Target::DeepSpeed),
        EmitTarget::Accelerate => Emit::Train(Target::Accelerate),
        EmitTarget::Vllm => Emit::Serve,
    }
}

/// `r=16,targets=qv,base=nf4`, or a bare rank.
fn adapters(text: &str) -> Result<Adapters> {
    let wrong =
        |what: String| anyhow::Error::from(Failure::new(what, "as in --lora r=16 or --lora r=16,base=nf4"));
    let (mut lora, mut base, mut named) = (Lora::all(0), Format::Half, false);
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let bare = matches!(part.trim(), "dora" | "rslora");
        let (key, value) = part.split_once('=').unwrap_or(if bare { (part, "true") } else { ("r", part) });
        let (key, value) = (key.trim(), value.trim());
        match key {
            "r" | "rank" => {
                let number: u64 = value.parse().map_err(|_| {
                    wrong(format!("--lora {text}: invalid rank {value:?}: use a whole number, such as 16"))
                })?;
                if number == 0 || number > 1 << 16 {
                    return Err(wrong(format!("--lora {text}: a rank is from 1 to 65536")));
                }
                (lora.rank, named) = (number, true);
            }
            "base" => {
                base = match value {
                    "bf16" | "fp16" | "16-bit" => Format::Half,
                    "nf4" | "4bit" | "4-bit" => Format::Nf4,
                    "nf4-double" => Format::Nf4Double,
                    "int8" | "8bit" | "8-bit" => Format::Int8,
                    "fp8" => Format::Fp8,
                    "int4" => Format::Int4(policy::INT4_GROUP),
                    other => {
                        return Err(wrong(format!(
                            "--lora {text}: no base format is called {other:?}: bf16, int8, fp8, int4, nf4, nf4-double"
                        )));
                    }
                };
            }
            "targets" => {
                lora.targets = match value {
                    "all" | "all-linear" => LoraTargets::All,
                    "qv" | "default" => LoraTargets::QueryValue,
                    list => LoraTargets::Only(names(list).map_err(|other| {
                        wrong(format!(
                            "--lora {text}: targets are all, default, or names such as q_proj+v_proj, not {other:?}"
                        ))
                    })?),
                };
            }
            "dtype" => {
                lora.narrow = match value {
                    "fp32" | "float32" => false,
                    "bf16" | "fp16" | "16-bit" | "bfloat16" => true,
                    other => {
                        return Err(wrong(format!("--lora {text}: dtype is fp32 or bf16, not {other:?}")));
                    }
                };
            }
            "dora" | "rslora" if matches!(value, "true" | "false") => {
                if key == "dora" {
                    lora.dora = value == "true";
                }
            }
            "dropout" => {
                let share: f64 = value.parse().unwrap_or(-1.0);
                if !(0.0..1.0).contains(&share) {
                    return Err(wrong(format!("--lora {text}: dropout is a share from 0 to below 1")));
                }
                lora.dropout = share > 0.0;
            }
            "save" => {
                for module in value.split('+') {
                    match module {
                        "lm_head" | "embed_out" => lora.save_head = true,
                        "embed_tokens" | "wte" | "embed_in" => lora.save_embedding = true,
                        other => {
                            return Err(wrong(format!(
                                "--lora {text}: save takes lm_head and embed_tokens, not {other:?}"
                            )));
                        }
                    }
                }
            }
            // A scale does not change the size of adapters.
            "alpha" | "lora_alpha" if value.parse::<f64>().is_ok() => {}
            other => return Err(wrong(format!("--lora {text}: {other:?} is not known"))),
        }
    }
    if !named {
        return Err(wrong(format!("--lora {text} names no rank")));
    }
    Ok(Adapters { lora, base })
}

/// Names of linear layers, with plus signs between them.
fn names(list: &str) -> std::result::Result<Names, String> {
    list.split('+').try_fold(Names::default(), |all, name| {
        Names::of(name.trim()).map(|one| all.with(one)).ok_or_else(|| name.trim().to_owned())
    })
}

/// The precision of a flag's weights; fp8 is a format of served weights around products in bf16.
fn precision(precision: PrecisionArg) -> Precision {
    match precision {
        PrecisionArg::Fp32 => Precision::Fp32,
        PrecisionArg::Fp16 => Precision::Fp16,
        PrecisionArg::AmpBf16 => Precision::AmpBf16,
        PrecisionArg::AmpFp16 => Precision::AmpFp16,
        PrecisionArg::Bf16 | PrecisionArg::Fp8 => Precision::Bf16,
        PrecisionArg::Mixed => Precision::Mixed,
        PrecisionArg::MixedFp32Grad => Precision::MixedMainGrad,
    }
}

fn optimizer(optimizer: OptimizerArg) -> Optimizer {
    match optimizer {
        OptimizerArg::Adamw => Optimizer::AdamW,
        OptimizerArg::AdamwFused => Optimizer::AdamWFused,
        OptimizerArg::Adamw8bit => Optimizer::AdamW8bit,
        OptimizerArg::PagedAdamw => Optimizer::PagedAdamW,
        OptimizerArg::PagedAdamw8bit => Optimizer::PagedAdamW8bit,
        OptimizerArg::Sgd => Optimizer::Sgd,
        OptimizerArg::SgdMomentum => Optimizer::SgdMomentum,
        OptimizerArg::Adafactor => Optimizer::Adafactor,
        OptimizerArg::Rmsprop => Optimizer::RmsProp,
        OptimizerArg::Adagrad => Optimizer::Adagrad,
        OptimizerArg::Lion => Optimizer::Lion,
        OptimizerArg::Muon => Optimizer::Muon,
    }
}

fn sharding(zero: ZeroArg) -> Sharding {
    match zero {
        ZeroArg::Zero0 => Sharding::Ddp,
        ZeroArg::Zero1 => Sharding::Zero1,
        ZeroArg::Zero2 => Sharding::Zero2,
        ZeroArg::Zero3 => Sharding::Zero3,
        ZeroArg::Fsdp => Sharding::Fsdp,
    }
}

fn checkpointing(checkpointing: CheckpointingArg) -> Checkpointing {
    match checkpointing {
        CheckpointingArg::None => Checkpointing::None,
        CheckpointingArg::Full => Checkpointing::Full,
        CheckpointingArg::Selective => Checkpointing::Selective,
        CheckpointingArg::Auto => Checkpointing::Optimal,
    }
}

fn attention(attention: AttentionArg) -> Attention {
    match attention {
        AttentionArg::Sdpa => Attention::Sdpa,
        AttentionArg::Eager => Attention::Eager,
        AttentionArg::Flash => Attention::Flash,
    }
}

fn engine(engine: EngineArg) -> Engine {
    match engine {
        EngineArg::Vllm => Engine::Vllm,
        EngineArg::Sglang => Engine::Sglang,
        EngineArg::Transformers => Engine::Transformers,
    }
}

fn quantize(format: QuantizeArg) -> Format {
    match format {
        QuantizeArg::None => Format::Half,
        QuantizeArg::Mxfp4 => Format::Mxfp4,
        QuantizeArg::Nvfp4 => Format::Nvfp4,
        QuantizeArg::Int8 => Format::Int8,
        QuantizeArg::Int4 => Format::Int4(policy::INT4_GROUP),
        QuantizeArg::Nf4 => Format::Nf4,
        QuantizeArg::Fp8 => Format::Fp8,
    }
}

#[cfg(test)]
mod tests {
    use super::{Format, Lora, LoraTargets, adapters};

    #[test]
    fn adapters_are_a_rank_and_what_is_said_beside_it() {
        let of = |text| adapters(text).map(|a| (a.lora.rank, a.lora.targets, a.base)).ok();
        assert_eq!(of("16"), Some((16, LoraTargets::All, Format::Half)));
        assert_eq!(of("r=8,targets=qv,base=nf4"), Some((8, LoraTargets::QueryValue, Format::Nf4)));
        let whole = |text| adapters(text).map(|a| a.lora).expect(text);
        let said = Lora { narrow: true, dora: true, dropout: true, save_head: true, ..Lora::all(8) };
        assert_eq!(whole("r=8,dtype=bf16,dora,dropout=0.1,save=lm_head,alpha=16"), said);
        let LoraTargets::Only(names) = whole("r=8,targets=q_proj+down_proj").targets else { panic!("names") };
        assert!(names.has("q_proj") && names.has("down_proj") && !names.has("k_proj"));
        assert_eq!([of("r=4,targets=nothing"), of("r=4,dropout=2"), of("r=4,save=norm")], [None; 3]);
        assert_eq!([of("base=nf4"), of("r=0"), of("r=65537"), of("r=4,base=fp7"), of("x=1")], [None; 5]);
    }
}
