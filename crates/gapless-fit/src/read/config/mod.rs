//! A Hugging Face `config.json`: its `model_type` decides which family's keys are read, with the defaults of
//! transformers' own class. A type that is not known is refused with a next step, whatever keys it has: two types with
//! the same keys can be two architectures, as ALBERT shows, which shares one layer's weights among all.

mod counted;
mod decoder;
mod encoder;
mod inverted;
mod quantized;
mod vision;

use super::error::{Fault, unsupported};
use super::fields::Fields;
use super::json::{Json, brief};
use super::nearest::distance;
use crate::model::{Architecture, Attention, DecoderStyle, Dtype};
use crate::parameters;
use crate::stored::Stored;

pub(crate) type Outcome<T> = Result<T, Fault>;

/// A configuration is a few kilobytes; one with a vocabulary inside, a few megabytes.
pub(crate) const LARGEST: u64 = 64 << 20;
const VALUES: u64 = 2_000_000;

/// The architecture that the text of a `config.json` describes; notes list the assumptions. `weights` is true if the
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
        if let Some(class) = fields.get("_class_name").and_then(Json::text) {
            return diffusers(class, weights, notes);
        }
        return unknown(None, weights, notes);
    };
    if let Some((inner, text)) = text_part(model_type, fields) {
        let mut read = if let Some(style) = decoder::style(&inner) {
            Some(Architecture::Decoder(decoder::read(style, text, notes)?))
        } else {
            counted::read(&inner, text, notes)?.map(|model| Architecture::Counted(Box::new(model)))
        };
        let own = match &mut read {
            Some(Architecture::Decoder(decoder)) => Some(&mut decoder.dtype),
            Some(Architecture::Counted(model)) if model.text.is_some() => Some(&mut model.dtype),
            _ => None,
        };
        if let Some(own) = own {
            if let Some(other) = other_part(fields) {
                return not_text_alone(model_type, other, weights, notes);
            }
            notes.push(format!(
                "the text part of \"{}\" alone: what it sees and hears with is left out",
                brief(model_type)
            ));
            if own.is_none() {
                *own = dtype(fields, notes)?;
            }
            return Ok(read);
        }
    }
    if let Some(style) = decoder::style(model_type) {
        return Ok(Some(Architecture::Decoder(decoder::read(style, fields, notes)?)));
    }
    Ok(Some(match model_type {
        "gemma3" => Architecture::Decoder(decoder::read(DecoderStyle::Gemma3, fields, notes)?),
        "bert" | "roberta" | "xlm-roberta" | "camembert" => {
            Architecture::Encoder(encoder::bert(model_type, fields, notes)?)
        }
        "t5" | "mt5" => Architecture::EncoderDecoder(encoder::t5(model_type, fields, notes)?),
        "vit" => Architecture::Vision(vision::vit(fields, notes)?),
        "resnet" => Architecture::Vision(vision::resnet(fields, notes)?),
        "convnext" => Architecture::Vision(vision::convnext(fields, notes)?),
        other if other.starts_with("torchvision_") => {
            Architecture::Vision(vision::torchvision(other, fields)?)
        }
        other => match counted::read(other, fields, notes)? {
            Some(model) => Architecture::Counted(Box::new(model)),
            None => return unknown(Some(other), weights, notes),
        },
    }))
}

/// The language model within a model of several media, by its own type.
fn text_part<'a>(model_type: &str, fields: Fields<'a>) -> Option<(String, Fields<'a>)> {
    if decoder::style(model_type).is_some() || model_type == "clip" {
        return None;
    }
    let text = Fields(fields.get("text_config").filter(|text| text.object().is_some())?);
    // Gemma 3's own files leave the inner type out in places.
    let inner = text.text("model_type").ok().flatten().unwrap_or(if model_type == "gemma3" {
        "gemma3_text"
    } else {
        ""
    });
    Some((inner.to_owned(), text))
}

/// The part beside the text that a configuration describes: for pictures or sound.
fn other_part(fields: Fields<'_>) -> Option<&str> {
    const NO_PARTS: [&str; 4] =
        ["text_config", "quantization_config", "compression_config", "generation_config"];
    let parts =
        fields.0.object()?.iter().filter(|(key, value)| key.ends_with("_config") && value.object().is_some());
    parts.map(|(key, _)| key.as_str()).find(|key| !NO_PARTS.contains(key))
}

/// A model of several media: its text alone would be another model, with another verdict.
fn not_text_alone(
    model_type: &str,
    other: &str,
    weights: bool,
    notes: &mut Vec<String>,
) -> Outcome<Option<Architecture>> {
    let what = format!(
        "\"{}\" is more than its text: the part in \"{}\" is not known",
        brief(model_type),
        brief(other)
    );
    if weights {
        notes.push(format!("{what}: only the weights are known"));
        return Ok(None);
    }
    unsupported(
        what,
        format!(
            "`gapless estimate config.json` runs all of it on torch, without a GPU; without the key \"{}\" the \
             text model alone is answered",
            brief(other)
        ),
    )
}

/// The format of the weights that the text of a `config.json` describes; `None` if they are as the architecture has
/// them.
pub(crate) fn stored(text: &[u8]) -> Outcome<Option<Stored>> {
    quantized::read(Fields(&Json::parse(text, VALUES)?))
}

/// The same for a file that a tool wrote beside the configuration.
pub(crate) fn stored_beside(text: &[u8]) -> Outcome<Stored> {
    quantized::beside(&Json::parse(text, VALUES)?)
}

/// Notes on keys beside the architecture that change which head runs.
fn remarks(fields: Fields<'_>, notes: &mut Vec<String>) -> Outcome<()> {
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

/// A type that is not known: only weights beside it can still be read.
fn unknown(
    model_type: Option<&str>,
    weights: bool,
    notes: &mut Vec<String>,
) -> Outcome<Option<Architecture>> {
    let what = match model_type {
        Some(name) => format!("the model_type \"{}\" is not known", brief(name)),
        None => "the configuration has no model_type".to_owned(),
    };
    if weights {
        notes.push(format!("{what}: only the weights are known"));
        return Ok(None);
    }
    let first = match model_type {
        Some(name) => {
            let near = nearest(name);
            format!("the nearest known type is \"{near}\", and it may be another architecture")
        }
        None => "add its model_type, as \"llama\", if it has one of the known types".to_owned(),
    };
    unsupported(
        what,
        format!(
            "{first}; `gapless.estimate(model, ...)` in Python takes any PyTorch module, and `torch.export.save` makes a .pt2 \
             file that `gapless fit` reads; .safetensors files beside the configuration give its weights at least"
        ),
    )
}

/// A configuration of diffusers, which names its class instead of a type.
fn diffusers(class: &str, weights: bool, notes: &mut Vec<String>) -> Outcome<Option<Architecture>> {
    let what = format!("the class \"{}\" of diffusers is not known", brief(class));
    if weights {
        notes.push(format!("{what}: only the weights are known"));
        return Ok(None);
    }
    unsupported(what, "`gapless.estimate(model, ...)` in Python takes any PyTorch module")
}

/// Every `model_type` that is read, in no order. A test opens each.
pub(crate) fn types() -> impl Iterator<Item = &'static str> {
    FOLLOWED.iter().chain(counted::TYPES).copied()
}

/// Types whose forward pass is simulated.
const FOLLOWED: &[&str] = &[
    "bert",
    "camembert",
    "convnext",
    "deepseek_v2",
    "deepseek_v3",
    "gemma",
    "gemma2",
    "gemma3",
    "gemma3_text",
    "gpt2",
    "gpt_neox",
    "kimi_k2",
    "llama",
    "mistral",
    "mixtral",
    "mt5",
    "opt",
    "phi3",
    "qwen2",
    "qwen3",
    "qwen3_moe",
    "resnet",
    "roberta",
    "t5",
    "vit",
    "xlm-roberta",
];

/// The known type whose name is nearest.
fn nearest(model_type: &str) -> &'static str {
    let short: String = model_type.chars().take(60).collect();
    types().min_by_key(|known| distance(&short, known)).unwrap_or("llama")
}

/// The attention that the configuration asks for; transformers' own choice is sdpa.
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

/// The dtype of the weights, if the configuration names it.
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
