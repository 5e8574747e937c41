//! From flags to what is asked: names become values, texts are parsed, and nothing is chosen.

use crate::cli::fit::{
    AttentionArg, CheckpointingArg, EmitTarget, EngineArg, OffloadArg, OptimizerArg, PrecisionArg,
    QuantizeArg, Settings, ZeroArg,
};
use crate::failure::Failure;
use crate::sizes;
use anyhow::Result;
use gapless_fit::ask::{Adapters, Asked, Degrees, Emit, policy};
use gapless_fit::emit::Target;
use gapless_fit::formulas::sharding::Sharding;
use gapless_fit::formulas::weights::Format;
use gapless_fit::model::Attention;
use gapless_fit::search::space::Offload;
use gapless_fit::settings::{Checkpointing, Engine, Lora, LoraTargets, Optimizer, Precision};

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
    let (mut rank, mut base, mut targets) = (None, Format::Half, LoraTargets::All);
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let (key, value) = part.split_once('=').unwrap_or(("r", part));
        match key.trim() {
            "r" | "rank" => {
                let number: u64 = value.trim().parse().map_err(|_| {
                    wrong(format!("--lora {text}: invalid rank {value:?}: use a whole number, such as 16"))
                })?;
                if number == 0 || number > 1 << 16 {
                    return Err(wrong(format!("--lora {text}: a rank is from 1 to 65536")));
                }
                rank = Some(number);
            }
            "base" => {
                base = match value.trim() {
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
                targets = match value.trim() {
                    "all" => LoraTargets::All,
                    "qv" => LoraTargets::QueryValue,
                    other => {
                        return Err(wrong(format!("--lora {text}: targets are all or qv, not {other:?}")));
                    }
                };
            }
            other => return Err(wrong(format!("--lora {text}: {other:?} is not known"))),
        }
    }
    let rank = rank.ok_or_else(|| wrong(format!("--lora {text} names no rank")))?;
    Ok(Adapters { lora: Lora { rank, targets }, base })
}

/// What a flag's weights are kept in; fp8 is a format of served weights around products in bf16.
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
        QuantizeArg::Int8 => Format::Int8,
        QuantizeArg::Int4 => Format::Int4(policy::INT4_GROUP),
        QuantizeArg::Nf4 => Format::Nf4,
        QuantizeArg::Fp8 => Format::Fp8,
    }
}

#[cfg(test)]
mod tests {
    use super::{Format, LoraTargets, adapters};

    #[test]
    fn adapters_are_a_rank_and_what_is_said_beside_it() {
        let of = |text| adapters(text).map(|a| (a.lora.rank, a.lora.targets, a.base)).ok();
        assert_eq!(of("16"), Some((16, LoraTargets::All, Format::Half)));
        assert_eq!(of("r=8,targets=qv,base=nf4"), Some((8, LoraTargets::QueryValue, Format::Nf4)));
        assert_eq!([of("base=nf4"), of("r=0"), of("r=65537"), of("r=4,base=fp7"), of("x=1")], [None; 5]);
    }
}
