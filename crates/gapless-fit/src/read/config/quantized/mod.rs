//! `quantization_config` of a configuration, and the files that some tools write beside it: the format of each layer.
//!
//! A method whose files are not known is refused by its name, because a guess would be a wrong verdict. Keys have the
//! defaults of transformers' own classes (5.23) and of the tools that write them.

mod compressed;
mod other;

use super::Outcome;
use crate::read::error::unsupported;
use crate::read::fields::Fields;
use crate::read::json::{Json, Value, brief};
use crate::stored::{Layout, Origin, Pattern, Rule, ScaleType, Scales, Stored};

/// The format that a configuration names; `None` if its weights are as the architecture has them.
pub(crate) fn read(fields: Fields<'_>) -> Outcome<Option<Stored>> {
    let is_object = |json: &&Json| json.object().is_some();
    let own = fields.get("quantization_config").filter(is_object);
    let text =
        || fields.get("text_config").and_then(|text| text.get("quantization_config")).filter(is_object);
    let older = || fields.get("compression_config").filter(is_object);
    if let Some(json) = own.or_else(text).or_else(older) {
        return method(Fields(json)).map(Some);
    }
    if fields.get("quantization").is_some_and(|json| json.object().is_some()) {
        return refuse(
            "mlx",
            "MLX's checkpoints run on Apple's devices: give the original model, or one for GPUs",
        );
    }
    Ok(None)
}

/// The whole of `quantize_config.json` (AutoGPTQ, AutoAWQ) or `hf_quant_config.json` (modelopt).
pub(crate) fn beside(json: &Json) -> Outcome<Stored> {
    method(Fields(json.get("quantization").filter(|inner| inner.object().is_some()).unwrap_or(json)))
}

fn refuse<T>(method: &str, why: &str) -> Outcome<T> {
    unsupported(
        format!("weights quantised by \"{}\" are not known", brief(method)),
        format!(
            "{why}; with the .safetensors files beside the configuration (their headers are enough), \
             `gapless weights info` prints their bytes"
        ),
    )
}

fn method(fields: Fields<'_>) -> Outcome<Stored> {
    let named = fields.text("quant_method")?;
    let name = match named {
        Some(name) => name,
        None if fields.has("load_in_4bit") || fields.has("load_in_8bit") => "bitsandbytes",
        None if fields.has("quant_algo") => "modelopt",
        None if fields.has("config_groups") => "compressed-tensors",
        None if fields.text("version")?.is_some_and(|v| v.eq_ignore_ascii_case("gemm")) => "awq",
        None if fields.has("bits") && fields.has("desc_act") => "gptq",
        None => return refuse("unnamed", "add its quant_method, as \"gptq\""),
    };
    let mut stored = match name {
        "gptq" | "gptq_marlin" => gptq(fields)?,
        "awq" | "awq_marlin" => awq(fields)?,
        "auto-round" | "auto_round" | "intel/auto-round" => auto_round(fields)?,
        "bitsandbytes" | "bitsandbytes_4bit" | "bitsandbytes_8bit" => bitsandbytes(fields)?,
        "fp8" | "mxfp8" => fp8(name, fields)?,
        "fbgemm_fp8" => bytes("fbgemm_fp8", "FP8, a scale for each output", Scales::Channel, true),
        "mxfp4" => mxfp4(),
        "compressed-tensors" | "compressed_tensors" | "sparseml" => compressed::read(fields)?,
        "modelopt" | "modelopt_fp4" | "modelopt_mixed" => other::modelopt(fields)?,
        "torchao" => other::torchao(fields)?,
        "hqq" => other::hqq(fields)?,
        "aqlm" => other::aqlm(fields)?,
        "eetq" => whole("eetq", "EETQ, int8", Layout::Eetq),
        "quanto" => other::quanto(fields)?,
        "bitnet" => whole("bitnet", "BitNet, two bits", Layout::BitNet),
        "gguf" => {
            return refuse(name, "give the .gguf file itself: each of its tensors has a type of its own");
        }
        "vptq" | "spqr" | "higgs" | "quark" | "fp_quant" | "fouroversix" | "sinq" | "metal" | "gemma"
        | "nvfp4" | "exl2" | "exl3" | "marlin" | "squeezellm" | "deepspeedfp" | "experts_int8" | "ascend"
        | "quip" => {
            return refuse(name, "its tensors have sizes that only its own files tell");
        }
        other => return refuse(other, "it is a method that this version does not know"),
    };
    // Modules that a tool left alone come before any other rule.
    let mut skipped = skips(fields)?;
    skipped.append(&mut stored.rules);
    stored.rules = skipped;
    Ok(stored)
}

/// Modules that keep the model's own type.
fn skips(fields: Fields<'_>) -> Outcome<Vec<Rule>> {
    const KEYS: [&str; 9] = [
        "modules_to_not_convert",
        "llm_int8_skip_modules",
        "ignore",
        "ignored_layers",
        "exclude_modules",
        "skip_modules",
        "linear_weights_not_to_quantize",
        "modules_to_not_quantize",
        "ignored_modules",
    ];
    let mut rules = Vec::new();
    for key in KEYS {
        let Some(list) = fields.get(key).and_then(Json::list) else { continue };
        for text in list.iter().filter_map(Json::text) {
            rules.push(Rule {
                modules: pattern(fields, key, text.trim_end_matches(".weight"))?,
                layout: None,
            });
        }
    }
    Ok(rules)
}

fn pattern(fields: Fields<'_>, key: &str, text: &str) -> Outcome<Pattern> {
    Pattern::read(text).map_or_else(|what| fields.fault(key, what), Ok)
}

/// One layout for linear layers and experts, and the head as it was.
fn whole(method: &'static str, words: impl Into<String>, layout: Layout) -> Stored {
    Stored {
        method,
        words: words.into(),
        rules: Vec::new(),
        linears: Some(layout),
        experts: Some(layout),
        head: None,
        origin: Origin::Checkpoint,
        total: None,
    }
}

/// Bytes with scales of 32 bits.
fn bytes(method: &'static str, words: &str, scales: Scales, inputs: bool) -> Stored {
    whole(method, words, Layout::Bytes { scales, scale: ScaleType::Float32, zeros: false, inputs })
}

/// A group of values: -1, 0 and null stand for the whole row.
fn group(fields: Fields<'_>, keys: &[&str], usual: u64) -> Outcome<u64> {
    let Some((key, json)) = keys.iter().find_map(|key| fields.get(key).map(|json| (*key, json))) else {
        return Ok(usual);
    };
    match json.value {
        Value::Null => Ok(0),
        Value::Int(number) if number <= 0 => Ok(0),
        _ => fields.size(key, usual),
    }
}

fn bits(fields: Fields<'_>, keys: &[&str], usual: u64) -> Outcome<u64> {
    let key = keys.iter().find(|key| fields.has(key)).unwrap_or(&keys[0]);
    match fields.size(key, usual)? {
        bits @ 1..=8 => Ok(bits),
        other => fields.fault(key, format!("must be from 1 to 8 bits, but is {other}")),
    }
}

fn in_groups(name: &str, bits: u64, group: u64) -> String {
    if group == 0 {
        format!("{name}, {bits} bits")
    } else {
        format!("{name}, {bits} bits in groups of {group}")
    }
}

fn gptq(fields: Fields<'_>) -> Outcome<Stored> {
    let (bits, group) = (bits(fields, &["bits", "w_bit"], 4)?, group(fields, &["group_size"], 128)?);
    let layout = Layout::Gptq { bits, group };
    let mut stored = whole("gptq", in_groups("GPTQ", bits, group), layout);
    if fields.flag("lm_head", false)? {
        stored.head = Some(layout);
    }
    // GPTQModel's own rules for single modules.
    if let Some(dynamic) = fields.get("dynamic").and_then(Json::object) {
        for (name, own) in dynamic {
            let own = Fields(own);
            let (expression, skipped) = match name.strip_prefix("-:") {
                Some(expression) => (expression, true),
                None => (name.strip_prefix("+:").unwrap_or(name), false),
            };
            let modules = pattern(fields, "dynamic", &format!("re:{expression}"))?;
            let single = Layout::Gptq {
                bits: self::bits(own, &["bits"], bits)?,
                group: self::group(own, &["group_size"], group)?,
            };
            stored.rules.push(Rule { modules, layout: (!skipped).then_some(single) });
        }
    }
    // The list has the modules of a block that were quantised; all others were left.
    if let Some(list) = fields.get("modules_in_block_to_quantize").and_then(Json::list) {
        let inner = list.iter().flat_map(|entry| match entry.list() {
            Some(names) => names.iter().collect::<Vec<_>>(),
            None => vec![entry],
        });
        for name in inner.filter_map(Json::text) {
            let modules = pattern(fields, "modules_in_block_to_quantize", name)?;
            stored.rules.push(Rule { modules, layout: Some(layout) });
        }
        (stored.linears, stored.experts) = (None, None);
    }
    Ok(stored)
}

fn awq(fields: Fields<'_>) -> Outcome<Stored> {
    let (bits, group) =
        (bits(fields, &["bits", "w_bit"], 4)?, group(fields, &["group_size", "q_group_size"], 128)?);
    let version = fields.text("version")?.or(fields.text("format")?).unwrap_or("gemm").to_ascii_lowercase();
    let layout = match version.as_str() {
        "gemm" | "exllama" | "ipex" => Layout::AwqGemm { bits, group },
        "gemv" | "gemv_fast" | "llm-awq" => Layout::AwqGemv { bits, group },
        other => return refuse(&format!("awq in the version {other}"), "gemm and gemv are known"),
    };
    Ok(whole("awq", in_groups("AWQ", bits, group), layout))
}

fn auto_round(fields: Fields<'_>) -> Outcome<Stored> {
    let packing = fields.text("packing_format")?.unwrap_or("auto_round:auto_gptq");
    let mut stored = if packing.contains("awq") { awq(fields)? } else { gptq(fields)? };
    stored.words = stored.words.replace("GPTQ", "AutoRound").replace("AWQ", "AutoRound");
    if let Some(extra) = fields.get("extra_config").and_then(Json::object) {
        for (name, own) in extra {
            let own = Fields(own);
            let width = own.optional("bits")?.unwrap_or(16);
            let group = self::group(own, &["group_size"], group(fields, &["group_size"], 128)?)?;
            let layout = (width <= 8).then_some(match stored.linears {
                Some(Layout::AwqGemm { .. }) => Layout::AwqGemm { bits: width, group },
                _ => Layout::Gptq { bits: width, group },
            });
            stored.rules.push(Rule { modules: pattern(fields, "extra_config", name)?, layout });
        }
    }
    // Only modules in blocks are quantised; a head beside them stays.
    stored.head = None;
    Ok(stored)
}

fn bitsandbytes(fields: Fields<'_>) -> Outcome<Stored> {
    let flag = |key: &str| -> Outcome<bool> {
        Ok(fields.flag(key, false)? || fields.flag(&format!("_{key}"), false)?)
    };
    if flag("load_in_8bit")? || fields.text("quant_method")? == Some("bitsandbytes_8bit") {
        return Ok(whole("bitsandbytes int8", "bitsandbytes, int8", Layout::Bits8));
    }
    let kind = fields.text("bnb_4bit_quant_type")?.unwrap_or("fp4");
    if !matches!(kind, "nf4" | "fp4") {
        return refuse(&format!("bitsandbytes {kind}"), "nf4 and fp4 are known");
    }
    let nested = fields.flag("bnb_4bit_use_double_quant", false)?;
    let twice = if nested { ", scales quantised too" } else { "" };
    let method = match (kind, nested) {
        ("nf4", true) => "nf4-double",
        ("nf4", false) => "nf4",
        _ => "fp4",
    };
    Ok(whole(method, format!("bitsandbytes, {kind}{twice}"), Layout::Bits4 { nested }))
}

fn fp8(name: &str, fields: Fields<'_>) -> Outcome<Stored> {
    let inputs = fields.text("activation_scheme")? == Some("static");
    if name == "mxfp8" {
        let scales = Scales::Group(32);
        let layout = Layout::Bytes { scales, scale: ScaleType::Byte, zeros: false, inputs };
        return Ok(whole("mxfp8", "MXFP8", layout));
    }
    let block = fields.sizes("weight_block_size")?;
    Ok(match block.as_deref() {
        Some([rows, columns]) if *rows > 0 && *columns > 0 => {
            let words = format!("FP8 in blocks of {rows} x {columns}");
            bytes("fp8", &words, Scales::Block(*rows, *columns), inputs)
        }
        None => bytes("fp8", "FP8, a scale for each weight", Scales::Tensor, inputs),
        Some(_) => return fields.fault("weight_block_size", "must be two sizes above 0"),
    })
}

/// gpt-oss: the experts alone.
fn mxfp4() -> Stored {
    let layout = Layout::Float4 { group: 32, globals: 0 };
    Stored { linears: None, ..whole("mxfp4", "MXFP4 (experts alone)", layout) }
}
