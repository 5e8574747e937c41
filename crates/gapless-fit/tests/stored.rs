//! Weights as they are stored: sizes of published files, and the layouts that the quantisers' code makes.

use gapless_fit::model::{Architecture, Model};
use gapless_fit::read;
use gapless_fit::weigh::width;
use serde_json::Value;

fn file(name: &str) -> String {
    let path = format!("{}/../../testdata/fit/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(path).expect("test data")
}

/// A configuration of a built-in name or of its own, with its quantisation.
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
        let published =
            row["bytes"].as_f64().or(row["gigabytes"].as_f64().map(|gb| gb * 1e9)).expect("a size");
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

/// Bytes of one tensor of a linear layer of 512 outputs and 1,024 inputs, or nothing.
fn piece(quantized: &str, module: &str, name: &str) -> Option<(Vec<u64>, u64)> {
    let config = format!(
        r#"{{"model_type":"llama","hidden_size":1024,"intermediate_size":512,"num_hidden_layers":2,"num_attention_heads":8,"vocab_size":4096,"quantization_config":{quantized}}}"#
    );
    let model =
        read::config("layer", config.as_bytes()).unwrap_or_else(|error| panic!("{quantized}: {error}"));
    let (architecture, stored) = (model.architecture.expect("known"), model.stored.expect("quantised"));
    let list = gapless_fit::parameters::parameters(&architecture);
    let at = list.iter().position(|p| p.name == format!("{module}.weight")).expect("a layer");
    let layout = stored.weigh(&architecture, 2)[at].layout?;
    let [outputs, inputs] = list[at].shape[..] else { panic!("a matrix") };
    let pieces = layout.pieces(outputs, inputs, 2);
    pieces.into_iter().find(|piece| piece.name == name).map(|piece| (piece.shape, piece.width))
}

const UP: &str = "model.layers.0.mlp.up_proj";

#[test]
fn tensors_of_a_layer_have_the_shapes_that_the_quantisers_write() {
    for (quantized, name, shape, width) in [
        (r#"{"quant_method":"gptq","bits":4,"group_size":128}"#, "qweight", vec![128, 512], 4),
        (r#"{"quant_method":"gptq","bits":3,"group_size":128}"#, "qweight", vec![96, 512], 4),
        (r#"{"quant_method":"gptq","bits":8,"group_size":-1}"#, "qzeros", vec![1, 128], 4),
        (r#"{"quant_method":"gptq","bits":4,"group_size":32,"desc_act":true}"#, "g_idx", vec![1024], 4),
        (r#"{"quant_method":"awq","bits":4,"group_size":128}"#, "qweight", vec![1024, 64], 4),
        (r#"{"quant_method":"awq","bits":4,"group_size":128,"version":"gemv"}"#, "qzeros", vec![512, 1], 4),
        (r#"{"quant_method":"awq","bits":4,"group_size":128}"#, "scales", vec![8, 512], 2),
        (r#"{"load_in_4bit":true,"bnb_4bit_quant_type":"nf4"}"#, "weight", vec![262_144, 1], 1),
        (r#"{"load_in_4bit":true,"bnb_4bit_quant_type":"nf4"}"#, "weight.absmax", vec![8192], 4),
        (
            r#"{"load_in_4bit":true,"bnb_4bit_quant_type":"nf4","bnb_4bit_use_double_quant":true}"#,
            "weight.nested_absmax",
            vec![32],
            4,
        ),
        (r#"{"quant_method":"bitsandbytes","load_in_8bit":true}"#, "SCB", vec![512], 4),
        (r#"{"quant_method":"fp8","weight_block_size":[128,128]}"#, "weight_scale", vec![4, 8], 4),
        (r#"{"quant_method":"fp8","activation_scheme":"static"}"#, "input_scale", vec![1], 4),
        (r#"{"quant_method":"fbgemm_fp8"}"#, "weight_scale", vec![512, 1], 4),
        (r#"{"quant_method":"modelopt","quant_algo":"NVFP4"}"#, "weight_scale", vec![512, 64], 1),
        (
            r#"{"quant_method":"hqq","quant_config":{"weight_quant_params":{"nbits":4,"group_size":64}}}"#,
            "scale",
            vec![8192, 1],
            2,
        ),
        (
            r#"{"quant_method":"aqlm","num_codebooks":2,"nbits_per_codebook":8}"#,
            "codes",
            vec![512, 128, 2],
            1,
        ),
        (r#"{"quant_method":"eetq"}"#, "weight_scales", vec![512], 2),
        (r#"{"quant_method":"quanto","weights":"int4"}"#, "weight._data._data", vec![262_144], 1),
        (
            r#"{"quant_method":"torchao","quant_type":{"default":{"_type":"Int4WeightOnlyConfig","_data":{"group_size":128}}}}"#,
            "weight.scale_and_zero",
            vec![8, 512, 2],
            2,
        ),
        (r#"{"quant_method":"bitnet"}"#, "weight", vec![128, 1024], 1),
    ] {
        assert_eq!(piece(quantized, UP, name), Some((shape, width)), "{quantized}");
    }
}

#[test]
fn schemes_of_compressed_tensors_are_packed_as_their_format_says() {
    let of = |format: &str, weights: &str, more: &str| {
        format!(
            r#"{{"quant_method":"compressed-tensors","format":"{format}","ignore":["lm_head","re:.*layers.1.*"],"config_groups":{{"group_0":{{"targets":["Linear"],"weights":{weights}{more}}}}}}}"#
        )
    };
    let group = r#"{"num_bits":4,"type":"int","strategy":"group","group_size":128,"symmetric":false,"actorder":"group"}"#;
    let packed = of("pack-quantized", group, "");
    assert_eq!(piece(&packed, UP, "weight_packed"), Some((vec![512, 128], 4)));
    assert_eq!(piece(&packed, UP, "weight_scale"), Some((vec![512, 8], 2)));
    assert_eq!(piece(&packed, UP, "weight_zero_point"), Some((vec![64, 8], 4)));
    assert_eq!(piece(&packed, UP, "weight_g_idx"), Some((vec![1024], 4)));
    assert_eq!(piece(&packed, "model.layers.1.mlp.up_proj", "weight_packed"), None, "it is ignored");
    assert_eq!(piece(&packed, "lm_head", "weight_packed"), None, "it is ignored");
    let channel = r#"{"num_bits":8,"type":"float","strategy":"channel","symmetric":true}"#;
    let dynamic = r#","input_activations":{"num_bits":8,"type":"float","strategy":"token","dynamic":true}"#;
    let floats = of("float-quantized", channel, dynamic);
    assert_eq!(piece(&floats, UP, "weight_scale"), Some((vec![512, 1], 2)));
    assert_eq!(piece(&floats, UP, "input_scale"), None, "it is computed anew for each input");
    let still = of(
        "float-quantized",
        channel,
        r#","input_activations":{"num_bits":8,"type":"float","dynamic":false}"#,
    );
    assert!(piece(&still, UP, "input_scale").is_some());
    let four = r#"{"num_bits":4,"type":"float","strategy":"tensor_group","group_size":16,"symmetric":true}"#;
    assert_eq!(piece(&of("nvfp4-pack-quantized", four, dynamic), UP, "global_scales"), Some((vec![2], 4)));
    assert_eq!(piece(&of("mxfp4-pack-quantized", four, ""), UP, "weight_scale"), Some((vec![512, 32], 1)));
    let sparse = r#"{"num_bits":4,"type":"int","strategy":"group","group_size":128,"symmetric":true}"#;
    let meta = piece(&of("marlin-24", sparse, ""), UP, "meta").expect("where values stand");
    assert_eq!(meta.0.iter().product::<u64>() * meta.1, 512 * 1024 / 8, "two bits for each value that stays");
}

#[test]
fn rules_for_single_modules_come_first() {
    let gptq = r#"{"quant_method":"gptq","bits":4,"group_size":128,"dynamic":{"-:.*layers\\.1\\..*":{},"+:.*up_proj":{"bits":8}}}"#;
    assert_eq!(piece(gptq, UP, "qweight"), Some((vec![256, 512], 4)), "eight bits");
    assert_eq!(piece(gptq, "model.layers.1.mlp.up_proj", "qweight"), None, "left out");
    let some = r#"{"quant_method":"gptq","bits":4,"modules_in_block_to_quantize":[["self_attn.q_proj"]]}"#;
    assert!(piece(some, "model.layers.0.self_attn.q_proj", "qweight").is_some());
    assert_eq!(piece(some, UP, "qweight"), None);
    let head = r#"{"quant_method":"gptq","bits":4,"lm_head":true}"#;
    assert!(piece(head, "lm_head", "qweight").is_some());
    let skipped = r#"{"load_in_8bit":true,"llm_int8_skip_modules":["up_proj","lm_head"]}"#;
    assert_eq!(piece(skipped, UP, "weight"), None);
}

#[test]
fn methods_that_are_not_known_are_refused_by_name() {
    for method in ["vptq", "spqr", "higgs", "quark", "exl2", "gguf", "sinq", "something-new"] {
        let config =
            format!(r#"{{"model_type":"llama","quantization_config":{{"quant_method":"{method}"}}}}"#);
        let error = read::config("config.json", config.as_bytes()).expect_err("refused").to_string();
        assert!(error.contains(method), "{error}");
    }
    let mlx = r#"{"model_type":"llama","quantization":{"group_size":64,"bits":4}}"#;
    assert!(read::config("config.json", mlx.as_bytes()).is_err());
}
