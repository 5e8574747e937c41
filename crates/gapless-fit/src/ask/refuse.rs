//! Refuses settings that contradict each other, or that a model cannot take, before anything is simulated.

use super::asked::{Asked, Emit};
use super::error::AskError;
use super::policy;
use crate::eager::Mode;
use crate::model::{Architecture, Counted, DecoderStyle, EncoderStyle, Parameter, Vision};
use crate::settings::Engine;
use gapless_trace::Bytes;

type Result<T> = std::result::Result<T, AskError>;

/// Counts that run nothing, or that are typing errors.
pub(super) fn counts(asked: &Asked) -> Result<()> {
    for (flag, value) in [
        ("--batch", asked.batch),
        ("--seq", asked.seq),
        ("--image", asked.image),
        ("--grad-accum", asked.grad_accum),
        ("--kv-tokens", asked.kv_tokens),
        ("--gpus", asked.gpus),
        ("--nodes", asked.nodes),
        ("--dp", asked.degrees.data),
        ("--tp", asked.degrees.tensor),
        ("--pp", asked.degrees.pipeline),
        ("--cp", asked.degrees.context),
        ("--ep", asked.degrees.expert),
    ] {
        if value == Some(0) {
            return Err(AskError::new(format!("{flag} 0 runs nothing"), "give 1 or more, or leave it out"));
        }
        if value.is_some_and(|value| value > policy::LARGEST_COUNT) {
            return Err(AskError::new(format!("{flag} is more than 2^40"), "check the number"));
        }
    }
    let d = &asked.degrees;
    let degrees = [d.data, d.tensor, d.pipeline, d.context];
    product("GPUs", "--gpus, --nodes and the degrees", &[asked.gpus.max(d.expert), asked.nodes])?;
    product("GPUs", "--gpus, --nodes and the degrees", &degrees)?;
    let gpus = asked.gpus.max(d.data);
    product(
        "sequences of a step",
        "--batch, --grad-accum and --gpus",
        &[asked.batch, asked.grad_accum, gpus, asked.nodes],
    )
}

/// Refuses a batch whose tokens are more than [`policy::LARGEST_COUNT`].
pub(super) fn tokens(batch: u64, length: u64) -> Result<()> {
    product("tokens of a batch", "--batch and --seq", &[Some(batch), Some(length)])
}

fn product(what: &str, flags: &str, factors: &[Option<u64>]) -> Result<()> {
    let product = factors.iter().try_fold(1u64, |n, factor| n.checked_mul(factor.unwrap_or(1)));
    if product.is_none_or(|n| n > policy::LARGEST_COUNT) {
        return Err(AskError::new(format!("the {what} are more than 2^40"), format!("check {flags}")));
    }
    Ok(())
}

/// A run that is larger than anything that is counted.
pub(super) fn beyond() -> AskError {
    AskError::new(
        format!(
            "the run takes more than {} on one GPU, which is more than is counted",
            Bytes(policy::MOST_BYTES)
        ),
        "check --batch and --seq, or the sizes in the configuration",
    )
}

/// Settings that have no meaning for this run, or that exclude each other.
pub(super) fn contradictions(asked: &Asked, mode: Mode) -> Result<()> {
    let no = |what: &str, help: &str| Err(AskError::new(what, help));
    if asked.seq.is_some() && asked.image.is_some() {
        return no("--seq and --image contradict each other", "give --seq for text, --image for pictures");
    }
    if mode == Mode::Infer {
        for (flag, given) in [
            ("--optimizer", asked.optimizer.is_some()),
            ("--checkpointing", asked.checkpointing.is_some()),
            ("--grad-accum", asked.grad_accum.is_some()),
            ("--lora", asked.adapters.is_some()),
            ("--zero", asked.zero.is_some()),
            ("--cp", asked.degrees.context.is_some_and(|d| d > 1)),
            ("--offload", asked.offload.is_some()),
        ] {
            if given {
                return no(&format!("{flag} has no meaning with --infer"), "leave one of them out");
            }
        }
    } else {
        for (flag, given) in [
            ("--kv-tokens", asked.kv_tokens.is_some()),
            ("--sparsity", asked.sparse),
            ("--quantize", asked.quantize.is_some()),
        ] {
            if given {
                let help = if flag == "--quantize" {
                    "weights that are trained are not quantised: --lora r=16,base=nf4 trains adapters on quantised ones; or add --infer"
                } else {
                    "add --infer, or leave it out"
                };
                return no(&format!("{flag} has no meaning when training"), help);
            }
        }
        if asked.fp8 {
            return no(
                "fp8 training keeps its weights, gradients and states in wider types, and which depends on the library",
                "--precision mixed-fp32-grad is Megatron's recipe around fp8 products; --infer --precision fp8 serves 8-bit weights",
            );
        }
    }
    if asked.stream.is_some() {
        streaming(asked, mode)?;
    }
    if mode == Mode::Train && (asked.engine.is_some() || asked.utilization.is_some()) {
        let flag = if asked.engine.is_some() { "--engine" } else { "--utilization" };
        return no(&format!("{flag} has no meaning when training"), "add --infer, or leave it out");
    }
    if asked.utilization.is_some() && !matches!(asked.engine, Some(Engine::Vllm | Engine::Sglang)) {
        return no(
            "--utilization is the share of an engine with a paged cache",
            "add --engine vllm or sglang",
        );
    }
    if asked.utilization.is_some_and(|share| !(share > 0.0 && share <= 1.0)) {
        return no("--utilization is a share of the memory, above 0 and up to 1", "as in --utilization 0.9");
    }
    if asked.engine == Some(Engine::Transformers)
        && (asked.gpus.is_some_and(|n| n > 1) || asked.nodes.is_some_and(|n| n > 1))
    {
        return no(
            "--engine transformers runs on one GPU here",
            "leave out --gpus, or serve with vllm or sglang",
        );
    }
    if asked.quantize.is_some() && asked.fp8 {
        return no(
            "--quantize and --precision fp8 both name the format of the weights",
            "leave one of them out",
        );
    }
    Ok(())
}

/// `--stream` is answered for one forward pass on one GPU.
fn streaming(asked: &Asked, mode: Mode) -> Result<()> {
    let several =
        [asked.gpus, asked.nodes, asked.degrees.tensor, asked.degrees.pipeline, asked.degrees.expert];
    let (what, help) = if mode == Mode::Train {
        ("--stream predicts forward passes alone", "add --infer, or leave it out")
    } else if matches!(asked.engine, Some(Engine::Vllm | Engine::Sglang)) || asked.emit.is_some() {
        (
            "--stream is for modules of PyTorch: engines load and move weights their own way",
            "leave out --engine and --emit, or give --engine transformers",
        )
    } else if several.iter().any(|count| count.is_some_and(|count| count > 1)) {
        ("--stream predicts one GPU", "leave out --gpus, --nodes and the degrees")
    } else {
        return Ok(());
    };
    Err(AskError::new(what, help))
}

/// A model whose forward pass is not followed: weights and a paged cache are all that can be told.
pub(super) fn counted(path: &str, asked: &Asked, model: &Counted) -> Result<()> {
    let paged =
        matches!(asked.engine, Some(Engine::Vllm | Engine::Sglang)) || asked.emit == Some(Emit::Serve);
    if asked.infer && paged && model.text.is_some() {
        return Ok(());
    }
    let count: u64 = model.parameters.iter().map(Parameter::elements).sum();
    let what = format!(
        "{path}: the activations of model_type \"{}\" are not modelled. What is exact: {count} parameters, {} in 16 bits{}",
        model.model_type,
        Bytes(2 * count),
        if asked.infer {
            String::new()
        } else {
            format!(
                "; weights, gradients and AdamW's states in bf16 take {} before any activation",
                Bytes(8 * count)
            )
        }
    );
    let any = "`gapless.estimate(model, ...)` in Python takes any PyTorch module; `torch.export.save` makes a .pt2 file";
    let help = if model.text.is_some() {
        format!("{any}; `--infer --engine vllm` or sglang answers what serving takes")
    } else {
        any.to_owned()
    };
    Err(AskError::new(what, help).estimable())
}

/// Settings that an exported graph cannot change: it has its own.
pub(super) fn graph_contradictions(asked: &Asked) -> Result<()> {
    for (flag, given) in [
        ("--precision", asked.precision.is_some() || asked.fp8),
        ("--checkpointing", asked.checkpointing.is_some()),
        ("--attention", asked.attention.is_some()),
        ("--lora", asked.adapters.is_some()),
        ("--quantize", asked.quantize.is_some()),
        ("--sparsity", asked.sparse),
        ("--kv-tokens", asked.kv_tokens.is_some()),
        ("--gpus", asked.gpus.is_some_and(|n| n > 1)),
    ] {
        if given {
            return Err(AskError::new(
                format!("{flag} cannot change an exported graph"),
                "export it so, or give the model's config.json",
            ));
        }
    }
    Ok(())
}

/// Tokens, or pixels a side.
pub(super) fn length(asked: &Asked, architecture: &Architecture, notes: &mut Vec<String>) -> Result<u64> {
    if let Architecture::Vision(vision) = architecture {
        if asked.seq.is_some() {
            return Err(AskError::new(
                "--seq has no meaning for a model of pictures",
                "give --image, the pixels a side",
            ));
        }
        let own = if let Vision::Vit { image, .. } = vision { *image } else { policy::USUAL_IMAGE };
        let image = asked.image.unwrap_or(own);
        if let Vision::Vit { patch, .. } = vision
            && !image.is_multiple_of(*patch)
        {
            let help = format!("give a multiple of {patch}, as {}", image.next_multiple_of(*patch));
            return Err(AskError::new(
                format!("--image {image} does not divide into patches of {patch} pixels"),
                help,
            ));
        }
        if image < policy::SMALLEST_IMAGE {
            return Err(AskError::new(
                format!("--image {image} is less than these models can halve five times"),
                format!("give {} or more", policy::SMALLEST_IMAGE),
            ));
        }
        return Ok(image);
    }
    if asked.image.is_some() {
        return Err(AskError::new(
            "--image has no meaning for a model of text",
            "give --seq, the tokens of a sequence",
        ));
    }
    if matches!(architecture, Architecture::Graph(_)) {
        if asked.seq.is_some() {
            return Err(AskError::new(
                "--seq cannot change an exported graph: its shapes are its own",
                "export it with other shapes, or give its config.json",
            ));
        }
        return Ok(1);
    }
    let (most, learned) = match architecture {
        Architecture::Decoder(d) => {
            (d.max_positions, matches!(d.style, DecoderStyle::Gpt2 | DecoderStyle::Opt))
        }
        // RoBERTa's first two positions are padding's.
        Architecture::Encoder(e) => {
            let padding = u64::from(e.style == EncoderStyle::Roberta) * 2;
            (e.max_positions.saturating_sub(padding), true)
        }
        Architecture::EncoderDecoder(_) => (policy::T5_LENGTH, false),
        Architecture::Counted(c) => (c.text.as_ref().map_or(u64::MAX, |text| text.max_positions), false),
        Architecture::Vision(_) | Architecture::Graph(_) => (u64::MAX, false),
    };
    let most = if most == 0 { u64::MAX } else { most };
    let length = asked.seq.unwrap_or(policy::USUAL_LENGTH.min(most));
    if length > most && learned {
        return Err(AskError::new(
            format!("--seq {length} is more than the {most} positions that the model has learned"),
            format!("give --seq {most} or less"),
        ));
    }
    if length > most && !matches!(architecture, Architecture::EncoderDecoder(_)) {
        notes.push(format!("{length} tokens are more than the {most} that the configuration names"));
    }
    Ok(length)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::{Optimizer, Precision};

    fn what(asked: &Asked, mode: Mode) -> Option<String> {
        contradictions(asked, mode).err().map(|error| error.what)
    }

    #[test]
    fn a_count_is_from_1_to_2_to_the_40th() {
        let of = |batch| counts(&Asked { batch: Some(batch), ..Asked::default() }).err().map(|e| e.what);
        assert_eq!(of(0).as_deref(), Some("--batch 0 runs nothing"));
        assert_eq!(of(1), None);
        assert_eq!(of(1 << 40), None);
        assert_eq!(of((1 << 40) + 1).as_deref(), Some("--batch is more than 2^40"));
    }

    #[test]
    fn what_trains_has_no_meaning_when_serving_and_the_other_way_round() {
        let sgd = Asked { optimizer: Some(Optimizer::Sgd), ..Asked::default() };
        assert_eq!(what(&sgd, Mode::Infer).as_deref(), Some("--optimizer has no meaning with --infer"));
        assert_eq!(what(&sgd, Mode::Train), None);
        let cache = Asked { kv_tokens: Some(1), ..Asked::default() };
        assert_eq!(what(&cache, Mode::Train).as_deref(), Some("--kv-tokens has no meaning when training"));
        assert_eq!(what(&cache, Mode::Infer), None);
    }

    #[test]
    fn eight_bits_serve_and_do_not_train() {
        let fp8 = Asked { fp8: true, ..Asked::default() };
        assert!(what(&fp8, Mode::Train).is_some_and(|what| what.starts_with("fp8 training")));
        assert_eq!(what(&fp8, Mode::Infer), None);
    }

    #[test]
    fn an_exported_graph_keeps_what_it_was_exported_with() {
        let asked = Asked { precision: Some(Precision::Fp32), ..Asked::default() };
        let error = graph_contradictions(&asked).expect_err("refused");
        assert_eq!(error.what, "--precision cannot change an exported graph");
        assert!(graph_contradictions(&Asked { gpus: Some(1), ..Asked::default() }).is_ok());
    }
}
