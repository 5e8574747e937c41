//! A Hugging Face `config.json`: its `model_type` decides which family's keys are read, with the defaults of
//! transformers' own class. A type that is not known is read as a Llama-like model where it has all the keys of one,
//! and says so; else the missing keys are named.

mod decoder;
mod encoder;
mod inverted;
mod vision;

use super::error::{Fault, unsupported};
use super::fields::Fields;
use super::json::{Json, brief};
use crate::model::{Architecture, Attention, DecoderStyle, Dtype};
use crate::parameters;

pub(crate) type Outcome<T> = Result<T, Fault>;

/// A configuration is a few kilobytes; one with a vocabulary inside, a few megabytes.
pub(crate) const LARGEST: u64 = 64 << 20;
const VALUES: u64 = 2_000_000;

/// What a Llama-like model cannot be read without.
const NEEDED: [&str; 5] =
    ["hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size"];

/// The architecture that the text of a `config.json` describes; notes say what was assumed. `weights` tells whether the
/// caller can fall back to exact headers: then a type that is not known is a note and `None`, else an error.
pub(crate) fn read(text: &[u8], weights: bool, notes: &mut Vec<String>) -> Outcome<Option<Architecture>> {
    let json = Json::parse(text, VALUES)?;
    if json.object().is_none() {
        return super::error::malformed(
            json.at,
            format!("a configuration is an object, but this is {}", json.kind()),
        );
    }
    from_fields(Fields(&json), weights, notes)
}

/// The same for keys that are parsed.
pub(crate) fn from_fields(
    fields: Fields<'_>,
    weights: bool,
    notes: &mut Vec<String>,
) -> Outcome<Option<Architecture>> {
    let architecture = dispatch(fields, weights, notes)?;
    if let Some(architecture) = &architecture {
        parameters::count(architecture).map_or_else(
            || {
                unsupported(
                    "the sizes multiply to more than 2^60 parameters",
                    "check the configuration's numbers",
                )
            },
            Ok,
        )?;
    }
    Ok(architecture)
}

fn dispatch(fields: Fields<'_>, weights: bool, notes: &mut Vec<String>) -> Outcome<Option<Architecture>> {
    remarks(fields, notes)?;
    let Some(model_type) = fields.text("model_type")? else {
        return unknown("the configuration has no model_type", fields, weights, notes);
    };
    if let Some((style, text)) = text_part(model_type, fields) {
        notes.push(format!(
            "the text part of \"{}\" alone: what it sees and hears with is left out",
            brief(model_type)
        ));
        let mut decoder = decoder::read(style, text, notes)?;
        if decoder.dtype.is_none() {
            decoder.dtype = dtype(fields, notes)?;
        }
        return Ok(Some(Architecture::Decoder(decoder)));
    }
    if let Some(style) = decoder::style(model_type) {
        return Ok(Some(Architecture::Decoder(decoder::read(style, fields, notes)?)));
    }
    Ok(Some(match model_type {
        "gemma3" => Architecture::Decoder(decoder::read(DecoderStyle::Gemma3, fields, notes)?),
        "bert" | "roberta" => Architecture::Encoder(encoder::bert(model_type, fields, notes)?),
        "t5" => Architecture::EncoderDecoder(encoder::t5(fields, notes)?),
        "vit" => Architecture::Vision(vision::vit(fields, notes)?),
        "resnet" => Architecture::Vision(vision::resnet(fields, notes)?),
        "convnext" => Architecture::Vision(vision::convnext(fields, notes)?),
        other if other.starts_with("torchvision_") => {
            Architecture::Vision(vision::torchvision(other, fields)?)
        }
        other => {
            let what = format!("the model_type \"{}\" is not known", brief(other));
            return unknown(&what, fields, weights, notes);
        }
    }))
}

/// The language model within a model of several media, where its family is known.
fn text_part<'a>(model_type: &str, fields: Fields<'a>) -> Option<(DecoderStyle, Fields<'a>)> {
    if decoder::style(model_type).is_some() {
        return None;
    }
    let text = Fields(fields.get("text_config").filter(|text| text.object().is_some())?);
    // Gemma 3's own files leave the inner type out in places.
    let inner = text.text("model_type").ok().flatten().unwrap_or(if model_type == "gemma3" {
        "gemma3_text"
    } else {
        ""
    });
    Some((decoder::style(inner)?, text))
}

/// What the configuration says beside the architecture that changes what is stored or which head runs.
fn remarks(fields: Fields<'_>, notes: &mut Vec<String>) -> Outcome<()> {
    if let Some(quantized) = fields.get("quantization_config").filter(|value| value.object().is_some()) {
        let method = quantized.get("quant_method").and_then(Json::text).unwrap_or("unnamed");
        notes.push(format!(
            "the checkpoint is quantised ({}): parameters are counted as before it",
            brief(method)
        ));
    }
    let first = fields.get("architectures").and_then(Json::list).and_then(|list| list.first()?.text());
    let heads =
        ["ForCausalLM", "LMHeadModel", "ForMaskedLM", "ForConditionalGeneration", "ForImageClassification"];
    if let Some(class) = first.filter(|class| !heads.iter().any(|head| class.ends_with(head))) {
        notes.push(format!(
            "the configuration names {}: the family's usual head is counted instead of its own",
            brief(class)
        ));
    }
    Ok(())
}

fn unknown(
    what: &str,
    fields: Fields<'_>,
    weights: bool,
    notes: &mut Vec<String>,
) -> Outcome<Option<Architecture>> {
    let missing: Vec<&str> = NEEDED.into_iter().filter(|key| !fields.has(key)).collect();
    // Keys of structures that a Llama-like reading would leave out: its answer would not be a rough one but a wrong
    // one.
    let foreign: Vec<&str> = [
        "num_experts",
        "num_local_experts",
        "n_routed_experts",
        "kv_lora_rank",
        "text_config",
        "state_size",
        "ssm_cfg",
        "num_decoder_layers",
        "is_encoder_decoder",
        "linear_num_key_heads",
    ]
    .into_iter()
    .filter(|key| fields.has(key) && fields.flag(key, true).unwrap_or(true))
    .collect();
    if missing.is_empty() && foreign.is_empty() {
        notes.push(format!(
            "{what}: it has the keys of a Llama-like model and is read as one, which may be wrong"
        ));
        return Ok(Some(Architecture::Decoder(decoder::read(DecoderStyle::Llama, fields, notes)?)));
    }
    let why = if missing.is_empty() {
        format!("{what}, and {} is not part of a Llama-like model", quoted(&foreign))
    } else {
        format!("{what}, and a Llama-like reading lacks {}", quoted(&missing))
    };
    if weights {
        notes.push(format!("{why}: only the weights are known"));
        return Ok(None);
    }
    unsupported(
        why,
        "add the keys, put the model's .safetensors files beside it to have its weights at least, or export the model with \
         torch.export.save",
    )
}

fn quoted(keys: &[&str]) -> String {
    keys.join(", ")
}

/// How the configuration asks for attention; sdpa is what transformers chooses.
fn attention(fields: Fields<'_>, notes: &mut Vec<String>) -> Outcome<Attention> {
    for key in ["attn_implementation", "_attn_implementation"] {
        let Some(name) = fields.text(key)? else { continue };
        return Ok(match name {
            "sdpa" => Attention::Sdpa,
            "eager" => Attention::Eager,
            name if name.contains("flash") => Attention::Flash,
            name => {
                notes.push(format!("{key} \"{}\" is not modelled: sdpa is assumed", brief(name)));
                Attention::Sdpa
            }
        });
    }
    Ok(Attention::Sdpa)
}

/// The dtype of the weights, where the configuration names it.
fn dtype(fields: Fields<'_>, notes: &mut Vec<String>) -> Outcome<Option<Dtype>> {
    for key in ["dtype", "torch_dtype"] {
        let Some(name) = fields.get(key).and_then(|value| value.text()) else { continue };
        let known = match name.trim_start_matches("torch.") {
            "float64" => Dtype::F64,
            "float32" | "float" => Dtype::F32,
            "float16" | "half" => Dtype::F16,
            "bfloat16" => Dtype::Bf16,
            name if name.starts_with("float8") => Dtype::F8,
            "auto" => return Ok(None),
            name => {
                notes.push(format!("{key} \"{}\" is not known and is left out", brief(name)));
                return Ok(None);
            }
        };
        return Ok(Some(known));
    }
    Ok(None)
}
