//! Weights as they are stored: sizes of published files, and the layouts that the quantisers' code makes.

use gapless_fit::model::{Architecture, Model};
use gapless_fit::read;
use gapless_fit::weigh::width;
use serde_json::Value;

fn file(name: &str) -> String {
    let path = format!("{}/../../testdata/fit/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(path).expect("test data")
}

/// A configuration of a built-in name or of its own, with how it is quantised.
fn model(name: &Value, quantized: &Value) -> Model {
    let text = name.as_str().map_or_else(
        || name.to_string(),
        |name| read::preset_config(name).unwrap_or_else(|| panic!("{name} is built in")).to_owned(),
    );
    let mut config: Value = serde_json::from_str(&text).expect("JSON");
    if !quantized.is_null() {
        config["quantization_config"] = quantized.clone();
    }
    read::config("published", config.to_string().as_bytes()).expect("a model")
}

fn stored_bytes(model: &Model) -> u64 {
    let architecture = model.architecture.as_ref().expect("an architecture");
    let stored = model.stored.as_ref().expect("it is quantised");
    stored.bytes(architecture, width(architecture))
}

/// The layer that predicts a second token, which the files have and no model loads: one more layer, its own copies of
/// embedding and head, and the projection that joins two hidden states.
fn with_second_token(model: &Model) -> u64 {
    let mut longer = model.clone();
    let Some(Architecture::Decoder(d)) = &mut longer.architecture else { panic!("a decoder") };
    d.layers += 1;
    let beside = 2 * (2 * d.vocab * d.hidden + 2 * d.hidden * d.hidden + 3 * d.hidden);
    stored_bytes(&longer) + beside
}

#[test]
fn published_checkpoints_have_the_size_that_is_counted() {
    let mut worst = (0.0f64, String::new());
    let mut count = 0;
    for line in file("published.jsonl").lines() {
        let row: Value = serde_json::from_str(line).expect("a row");
        let name = row["repository"].as_str().expect("a repository");
        assert!(row["source"].as_str().is_some_and(|source| !source.is_empty()), "{name} has no source");
        let model = model(&row["model"], &row["quantization_config"]);
        let counted =
            if row["multi_token_layers"] == 1 { with_second_token(&model) } else { stored_bytes(&model) };
        let published = row["bytes"].as_f64().or(row["gigabytes"].as_f64().map(|gb| gb * 1e9)).expect("a size");
        let error = (counted as f64 / published - 1.0).abs();
        assert!(error <= 0.005, "{name}: {counted} counted, {published} published, {:+.3} %", error * 100.0);
        if error > worst.0 {
            worst = (error, name.to_owned());
        }
        count += 1;
    }
    assert!(count >= 30, "{count} published checkpoints");
    println!("{count} checkpoints, worst {:.3} % ({})", worst.0 * 100.0, worst.1);
}

#[test]
fn the_sizes_that_an_index_names_are_met_to_the_byte() {
    for (name, bytes) in [("gpt-oss-20b", 13_761_264_768), ("gpt-oss-120b", 65_248_815_744)] {
        assert_eq!(stored_bytes(&read::open(name).expect("built in")), bytes, "{name}");
    }
}
