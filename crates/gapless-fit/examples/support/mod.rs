//! Cells as measured: settings, and the model's numbers from its configuration.

use gapless_fit::eager::{Checkpointing, Mode, Optimizer, Precision, Run};
use gapless_fit::model::Architecture;
use serde_json::Value;

pub fn run_of(cell: &Value) -> Run {
    let text = |key: &str| cell[key].as_str().unwrap_or_default();
    Run {
        mode: if text("mode") == "infer" { Mode::Infer } else { Mode::Train },
        batch: cell["batch"].as_u64().unwrap(),
        length: cell["seq"].as_u64().unwrap(),
        precision: match text("precision") {
            "bf16" => Precision::Bf16,
            "fp16" => Precision::Fp16,
            "amp-bf16" => Precision::AmpBf16,
            _ => Precision::Fp32,
        },
        optimizer: match text("optimizer") {
            "adamw-fused" => Optimizer::AdamWFused,
            "sgd" => Optimizer::Sgd,
            "sgd-momentum" => Optimizer::SgdMomentum,
            "adafactor" => Optimizer::Adafactor,
            "rmsprop" => Optimizer::RmsProp,
            "adagrad" => Optimizer::Adagrad,
            "muon" => Optimizer::Muon,
            _ => Optimizer::AdamW,
        },
        checkpointing: if cell["checkpointing"] == true { Checkpointing::All } else { Checkpointing::None },
        ..Run::default()
    }
}

/// What a cell's configuration, or torchvision name, describes.
pub fn architecture(config: &Value) -> Option<Architecture> {
    if let Some(name) = config.as_str() {
        return gapless_fit::read::open(name).ok()?.architecture;
    }
    // Recordings name the attention by a shorter key.
    let mut config = config.clone();
    if let Some(how) = config["attn"].as_str().map(str::to_owned) {
        config["attn_implementation"] = Value::String(how);
    }
    gapless_fit::read::config("cell", config.to_string().as_bytes()).ok()?.architecture
}
