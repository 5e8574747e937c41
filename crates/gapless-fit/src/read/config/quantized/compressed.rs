//! compressed-tensors: groups of modules, each with a scheme; the format says how a scheme is packed.

use super::{Outcome, group, pattern, refuse, whole};
use crate::read::fields::Fields;
use crate::read::json::Json;
use crate::stored::{Layout, Origin, Rule, ScaleType, Scales, Stored};

pub(super) fn read(fields: Fields<'_>) -> Outcome<Stored> {
    // Older files have the quantisation one level deeper.
    let inner = fields.get("quantization_config").filter(|json| json.object().is_some()).map(Fields);
    let fields = inner.unwrap_or(fields);
    let format = fields.text("format")?.unwrap_or("dense");
    let mut stored = Stored {
        method: "compressed-tensors",
        words: format!("compressed-tensors, {format}"),
        rules: Vec::new(),
        linears: None,
        experts: None,
        head: None,
        origin: Origin::Checkpoint,
        total: None,
    };
    let sparsity = fields.get("sparsity_config").map(Fields);
    let sparse = match sparsity {
        Some(own) => own.text("format")?.unwrap_or("dense"),
        None => "dense",
    };
    let Some(groups) = fields.get("config_groups").and_then(Json::object) else {
        return match sparse {
            "dense" => Ok(stored),
            "sparse-24-bitmask" => Ok(whole(
                "compressed-tensors",
                "2:4 sparse, with a mask",
                Layout::Bits { thousandths: 9_000 },
            )),
            other => {
                refuse(&format!("compressed-tensors {other}"), "how much of it is left is only in its files")
            }
        };
    };
    for (_, scheme) in groups {
        let scheme = Fields(scheme);
        let Some(weights) = scheme.get("weights").filter(|json| json.object().is_some()).map(Fields) else {
            continue;
        };
        let own = scheme.text("format")?.unwrap_or(format);
        let layout = layout(own, scheme, weights)?;
        let targets = scheme.get("targets").and_then(Json::list).unwrap_or_default();
        for target in targets.iter().filter_map(Json::text) {
            if target == "Linear" || target == "LinearBase" {
                (stored.linears, stored.experts, stored.head) = (layout, layout, layout);
            } else if target == "FusedMoE" || target == "MoE" {
                stored.experts = layout;
            } else {
                stored.rules.push(Rule { modules: pattern(fields, "targets", target)?, layout });
            }
        }
    }
    // The method is named after the layout that most modules have.
    if let Some(layout) = stored.linears.or(stored.experts).or(stored.rules.first().and_then(|r| r.layout)) {
        stored.method = match layout {
            Layout::Packed { bits: 4, .. } => "w4a16",
            Layout::Packed { bits: 8, .. } => "w8a16",
            Layout::Float4 { group: 16, .. } => "nvfp4",
            Layout::Float4 { .. } => "mxfp4",
            Layout::Marlin24 { .. } => "w4a16-2:4",
            Layout::Bytes { scale: ScaleType::Float32, .. } => "fp8",
            _ => "compressed-tensors",
        };
    }
    Ok(stored)
}

/// The layout of a scheme; `None` if it keeps its weights.
fn layout(format: &str, scheme: Fields<'_>, weights: Fields<'_>) -> Outcome<Option<Layout>> {
    let bits = super::bits(weights, &["num_bits"], 8)?;
    let size = group(weights, &["group_size"], 0)?;
    let strategy = match weights.text("strategy")? {
        Some(strategy) => strategy,
        None if size > 0 => "group",
        None => "tensor",
    };
    let scales = match strategy {
        "tensor" => Scales::Tensor,
        "channel" | "token" => Scales::Channel,
        "group" | "tensor_group" => Scales::Group(size.max(1)),
        "block" => {
            let block = weights.sizes("block_structure")?;
            match block.as_deref() {
                Some([rows, columns]) => Scales::Block(*rows, *columns),
                _ => Scales::Block(128, 128),
            }
        }
        other => {
            return refuse(
                &format!("compressed-tensors by {other}"),
                "tensor, channel, group and block are known",
            );
        }
    };
    let zeros = !weights.flag("symmetric", true)?;
    let activations = scheme.get("input_activations").filter(|json| json.object().is_some()).map(Fields);
    let stands = match activations {
        Some(own) => !own.get("dynamic").is_some_and(|d| d.text() == Some("local") || d.value == TRUE),
        None => false,
    };
    let floats = weights.text("type")? == Some("float");
    let index = matches!(weights.text("actorder").ok().flatten(), Some("group"));
    Ok(Some(match format {
        "dense" => return Ok(None),
        "pack-quantized" => Layout::Packed { bits, scales, zeros, index },
        "marlin-24" => Layout::Marlin24 { bits, group: size },
        "nvfp4-pack-quantized" => Layout::Float4 { group: 16, globals: 1 + u64::from(activations.is_some()) },
        "mxfp4-pack-quantized" => Layout::Float4 { group: 32, globals: 0 },
        "mxfp6-pack-quantized" => Layout::Float6,
        "mxfp8-quantized" => {
            Layout::Bytes { scales: Scales::Group(32), scale: ScaleType::Byte, zeros: false, inputs: false }
        }
        "int-quantized" | "float-quantized" | "naive-quantized" | "mixed-precision" if bits == 8 => {
            let zeros = zeros && !floats;
            Layout::Bytes { scales, scale: ScaleType::Model, zeros, inputs: stands }
        }
        "mixed-precision" if floats && bits == 4 => Layout::Float4 { group: size.max(1), globals: 2 },
        "mixed-precision" | "int-quantized" => Layout::Packed { bits, scales, zeros, index },
        other => {
            return refuse(
                &format!("compressed-tensors {other}"),
                "its files are packed in a way that is not known here",
            );
        }
    }))
}

const TRUE: crate::read::json::Value = crate::read::json::Value::Bool(true);
