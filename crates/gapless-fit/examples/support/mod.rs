//! Measured cells: settings, the model's numbers from its configuration, and the folders of the files.

#![allow(dead_code)] // each program uses a part

use gapless_fit::eager::{Mode, Recomputed, Run};
use gapless_fit::model::Architecture;
use gapless_fit::settings::{Optimizer, Precision};
use serde_json::Value;

pub(crate) fn run_of(cell: &Value) -> Run {
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
        recomputed: if cell["checkpointing"] == true { Recomputed::All } else { Recomputed::None },
        ..Run::default()
    }
}

/// The architecture of a cell's configuration, or of its torchvision name.
pub(crate) fn architecture(config: &Value) -> Option<Architecture> {
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

/// The folder of test data.
pub(crate) fn folder() -> String {
    format!("{}/../../testdata/fit", env!("CARGO_MANIFEST_DIR"))
}

/// The cells of a file, with their configurations.
pub(crate) fn cells(folder: &str, file: &str) -> Vec<(Value, Value)> {
    let text = std::fs::read_to_string(file).expect("a file of cells");
    text.lines()
        .map(|line| {
            let cell: Value = serde_json::from_str(line).expect("a cell");
            let name = cell["model"].as_str().unwrap_or_default();
            let config = match &cell["config"] {
                Value::Null => std::fs::read_to_string(format!("{folder}/models/{name}/config.json"))
                    .map_or_else(
                        |_| Value::String(name.to_owned()),
                        |text| serde_json::from_str(&text).expect("JSON"),
                    ),
                inline => inline.clone(),
            };
            (cell, config)
        })
        .collect()
}

/// Recordings, operator by operator.
pub(crate) fn oplogs() -> Vec<Value> {
    let file = std::fs::File::open(format!("{}/oplogs.jsonl.gz", folder())).expect("recordings");
    let mut text = String::new();
    std::io::Read::read_to_string(&mut flate2::read::GzDecoder::new(file), &mut text).expect("gzip");
    text.lines().map(|line| serde_json::from_str(line).expect("a recording")).collect()
}

/// A cell in one line.
pub(crate) fn label(cell: &Value) -> String {
    format!(
        "{} {}x{} {}{} {} {}",
        cell["model"].as_str().unwrap_or_default(),
        cell["batch"],
        cell["seq"],
        cell["precision"].as_str().unwrap_or_default(),
        if cell["checkpointing"] == true { " ckpt" } else { "" },
        cell["optimizer"].as_str().unwrap_or_default(),
        cell["mode"].as_str().unwrap_or_default()
    )
}
