//! modelopt, torchao, HQQ, AQLM and quanto.

use super::{Outcome, bits, bytes, compressed, group, in_groups, refuse, whole};
use crate::read::fields::Fields;
use crate::read::json::Json;
use crate::stored::{Layout, ScaleType, Scales, Stored};

pub(super) fn modelopt(fields: Fields<'_>) -> Outcome<Stored> {
    let algorithm = fields.text("quant_algo")?.unwrap_or_default().to_ascii_uppercase();
    let size = group(fields, &["group_size"], 16)?;
    Ok(match algorithm.as_str() {
        "FP8" => bytes("fp8", "modelopt, FP8", Scales::Tensor, true),
        "FP8_PER_CHANNEL_PER_TOKEN" => bytes("fp8", "modelopt, FP8 by channel", Scales::Channel, false),
        "FP8_PB_WO" | "FP8_BLOCK_SCALES" => {
            bytes("fp8", "modelopt, FP8 in blocks", Scales::Block(128, 128), false)
        }
        "NVFP4" | "NVFP4_AWQ" | "W4A4_NVFP4" => {
            whole("nvfp4", "modelopt, NVFP4", Layout::Float4 { group: size.max(1), globals: 2 })
        }
        "W4A16_NVFP4" => {
            whole("nvfp4", "modelopt, NVFP4 weights", Layout::Float4 { group: size.max(1), globals: 1 })
        }
        "MXFP8" => {
            let layout = Layout::Bytes {
                scales: Scales::Group(32),
                scale: ScaleType::Byte,
                zeros: false,
                inputs: false,
            };
            whole("mxfp8", "modelopt, MXFP8", layout)
        }
        "MXFP4" | "W4A8_MXFP4_FP8" => {
            whole("mxfp4", "modelopt, MXFP4", Layout::Float4 { group: 32, globals: 0 })
        }
        _ if fields.has("config_groups") => compressed::read(fields)?,
        other => return refuse(&format!("modelopt {other}"), "FP8 and NVFP4 are known"),
    })
}

pub(super) fn torchao(fields: Fields<'_>) -> Outcome<Stored> {
    let Some(kind) = fields.get("quant_type") else { return refuse("torchao", "it names no quant_type") };
    // A name, or a class with its values below "default".
    let own = kind.get("default").unwrap_or(kind);
    let name = own.text().or_else(|| own.get("_type").and_then(Json::text)).unwrap_or_default();
    let values = own.get("_data").or_else(|| fields.get("quant_type_kwargs")).map(Fields);
    let size = |usual| values.map_or(Ok(usual), |values| group(values, &["group_size"], usual));
    let plain: String =
        name.chars().filter(char::is_ascii_alphanumeric).map(|letter| letter.to_ascii_lowercase()).collect();
    Ok(match plain.trim_end_matches("config") {
        "int4weightonly" => {
            let size = size(128)?;
            whole("torchao int4", in_groups("torchao", 4, size), Layout::Tiles4 { group: size })
        }
        "int8weightonly" | "int8dynamicactivationint8weight" => {
            let layout = Layout::Bytes {
                scales: Scales::Channel,
                scale: ScaleType::Model,
                zeros: false,
                inputs: false,
            };
            whole("torchao int8", "torchao, int8", layout)
        }
        "float8weightonly" | "float8dynamicactivationfloat8weight" => {
            bytes("torchao fp8", "torchao, float8", Scales::Channel, false)
        }
        other => return refuse(&format!("torchao {other}"), "int4, int8 and float8 of weights are known"),
    })
}

pub(super) fn hqq(fields: Fields<'_>) -> Outcome<Stored> {
    let own = fields.get("quant_config").filter(|json| json.object().is_some());
    let own = own.and_then(|json| json.get("weight_quant_params")).or(own).map_or(fields, Fields);
    let (bits, group) = (bits(own, &["nbits", "bits"], 4)?, group(own, &["group_size"], 64)?);
    Ok(whole("hqq", in_groups("HQQ", bits, group), Layout::Hqq { bits, group }))
}

pub(super) fn aqlm(fields: Fields<'_>) -> Outcome<Stored> {
    let layout = Layout::Aqlm {
        books: fields.size("num_codebooks", 1)?.min(64),
        bits: fields.size("nbits_per_codebook", 16)?.min(24),
        group: fields.size("in_group_size", 8)?,
        outputs: fields.size("out_group_size", 1)?,
    };
    Ok(whole("aqlm", "AQLM, codebooks", layout))
}

pub(super) fn quanto(fields: Fields<'_>) -> Outcome<Stored> {
    let name = fields.text("weights")?.unwrap_or("int8");
    let bits = match name {
        "int8" | "float8" => 8,
        "int4" => 4,
        "int2" => 2,
        other => return refuse(&format!("quanto {other}"), "float8, int8, int4 and int2 are known"),
    };
    Ok(whole("quanto", format!("quanto, {name}"), Layout::Quanto { bits }))
}
