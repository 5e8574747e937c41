//! Fused experts are split as llm-compressor splits them, or stay as they are with a reason.

mod made;

use gapless_weights::input::Input;
use gapless_weights::listing::list;
use gapless_weights::quantize;
use gapless_weights::quantize::experts::{Experts, Halves};
use gapless_weights::quantize::scheme::Scheme;
use gapless_weights::quantize::{Done, Options};
use gapless_weights::survey::survey;
use made::{Tensor, file, made, print};
use serde_json::{Value as Json, json};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

const PARENT: &str = "model.layers.0.mlp.experts";

fn options(scheme: Scheme, experts: Experts) -> Options {
    Options { scheme, ignore: Vec::new(), experts, work: 2.into() }
}

/// Type, shape and data of tensors, by their names.
type Found = BTreeMap<String, (String, Vec<u64>, Vec<u8>)>;

/// Every tensor of a folder.
fn tensors(folder: &Path) -> Found {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|ending| ending != "safetensors") {
            continue;
        }
        let input = Input::open(&path).unwrap();
        let header = input.header().unwrap();
        for tensor in &header.tensors {
            let bytes = input.bytes(header.data() + tensor.begin, tensor.bytes() as usize).unwrap();
            all.insert(tensor.name.clone(), (tensor.dtype.clone(), tensor.shape.clone(), bytes));
        }
    }
    all
}

/// A folder of these tensors, each in a shard of its own, and a config.json of this model type.
fn model(folder: &Path, model_type: &str, tensors: &[Tensor<'_>]) {
    fs::create_dir_all(folder).unwrap();
    for (at, tensor) in tensors.iter().enumerate() {
        file(&folder.join(format!("model-{at}.safetensors")), std::slice::from_ref(tensor));
    }
    fs::write(folder.join("config.json"), json!({"model_type": model_type}).to_string()).unwrap();
}

/// Experts of a layer, [3, 2 * 32, 64] and [3, 64, 32], or transposed.
fn fused(by_columns: bool) -> [Tensor<'static>; 2] {
    let shape = |a, b| if by_columns { vec![3, b, a] } else { vec![3, a, b] };
    [
        ("model.layers.0.mlp.experts.gate_up_proj", "BF16", shape(64, 64), made("BF16", 0, 1, 3 * 64 * 64)),
        ("model.layers.0.mlp.experts.down_proj", "BF16", shape(64, 32), made("BF16", 0, 2, 3 * 64 * 32)),
    ]
}

fn linear() -> Tensor<'static> {
    ("model.layers.0.self_attn.o_proj.weight", "BF16", vec![64, 64], made("BF16", 0, 3, 64 * 64))
}

/// Quantises a model of these tensors; returns the summary, and the tensors of the result.
fn quantised(model_type: &str, all: &[Tensor<'_>], options: &Options) -> (Done, Found) {
    let room = tempfile::tempdir().unwrap();
    let (from, to) = (room.path().join("model"), room.path().join("out"));
    model(&from, model_type, all);
    let done = quantize(&from, &to, options).unwrap();
    let found = tensors(&to);
    let config: Json = serde_json::from_slice(&fs::read(to.join("config.json")).unwrap()).unwrap();
    assert_eq!(config["quantization_config"], done.config);
    (done, found)
}

#[test]
fn every_layout_and_scheme_is_byte_for_byte_that_of_llm_compressor() {
    let golden: Json = serde_json::from_str(include_str!("../../../testdata/weights/experts.json")).unwrap();
    let cases = golden["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 6 * 3 * 3);
    for case in cases {
        let text = |key: &str| case[key].as_str().unwrap();
        let scheme = Scheme::ALL.into_iter().find(|scheme| scheme.name() == text("scheme")).unwrap();
        let all: Vec<Tensor<'_>> = case["inputs"]
            .as_array()
            .unwrap()
            .iter()
            .map(|input| {
                let shape: Vec<u64> =
                    input["shape"].as_array().unwrap().iter().map(|size| size.as_u64().unwrap()).collect();
                let (family, seed) = (case["family"].as_u64().unwrap(), input["seed"].as_u64().unwrap());
                let bytes = made(text("dtype"), family, seed, shape.iter().product());
                (input["name"].as_str().unwrap(), text("dtype"), shape, bytes)
            })
            .collect();
        // The model's type implies halves; pairs are asked for.
        let (model_type, experts) = match text("layout") {
            "rows-halves" => ("qwen3_5_moe", Experts::Auto),
            "columns-halves" => ("llama4", Experts::Auto),
            _ => ("gpt_oss", Experts::Split(Halves::Pairs)),
        };
        for threads in [1, 3] {
            let asked = Options { work: threads.into(), ..options(scheme, experts) };
            let (done, found) = quantised(model_type, &all, &asked);
            let what = format!("{} {} {}", scheme.name(), text("layout"), text("dtype"));
            let expected = case["parts"].as_object().unwrap();
            assert_eq!(found.len(), expected.len(), "{what}");
            for (name, part) in expected {
                let (dtype, shape, bytes) = &found[&format!("{PARENT}.{name}")];
                assert_eq!(part, &json!([dtype, shape, print(bytes)]), "{what} {name}");
            }
            assert_eq!(done.layers.len(), 2 * 3, "{what}");
            assert!(done.left.is_empty(), "{what}: {:?}", done.left);
            assert_eq!(done.config["ignore"], json!(["lm_head"]));
        }
    }
}

#[test]
fn experts_whose_layout_is_not_known_stay_and_engines_are_told() {
    for (model_type, experts, why) in [
        ("newest_moe", Experts::Auto, "model_type newest_moe: how they hold gate and up is not known"),
        ("gpt_oss", Experts::Auto, "no engine is known to load them split"),
        ("llama4", Experts::Leave, "--experts leave"),
    ] {
        for by_columns in [false, true] {
            let [gate_up, down] = fused(by_columns);
            let all = [gate_up.clone(), down.clone(), linear()];
            let (done, found) = quantised(model_type, &all, &options(Scheme::Fp8, experts));
            assert_eq!(done.layers.len(), 1);
            assert_eq!(done.left.len(), 2);
            assert!(done.left.iter().all(|left| left.why.contains(why)), "{:?}", done.left);
            for (name, dtype, shape, bytes) in [gate_up, down] {
                assert_eq!(found[name], (dtype.to_owned(), shape, bytes));
            }
            let ignore = done.config["ignore"].as_array().unwrap();
            assert!(ignore.contains(&json!(r"re:(.*\.)?layers\.0\.mlp\.experts\.\d+\..*")), "{ignore:?}");
        }
    }
}

#[test]
fn all_tensors_of_a_layers_experts_are_split_or_none() {
    let said = Experts::Split(Halves::Halves);
    let [gate_up, down] = fused(false);
    let mut odd = down.clone();
    (odd.2, odd.3) = (vec![3, 64, 33], made("BF16", 0, 2, 3 * 64 * 33));
    let mut wide = down.clone();
    (wide.1, wide.3) = ("F32", made("F32", 0, 2, 3 * 64 * 32));
    let bias: Tensor<'_> =
        ("model.layers.0.mlp.experts.down_proj_bias", "BF16", vec![3, 63], made("BF16", 0, 4, 3 * 63));
    let wide_bias: Tensor<'_> =
        ("model.layers.0.mlp.experts.down_proj_bias", "F32", vec![3, 64], made("F32", 0, 4, 3 * 64));
    for (all, scheme, ignore, why) in [
        (vec![gate_up.clone()], Scheme::Fp8, "", "is not in the model"),
        (vec![gate_up.clone(), odd], Scheme::Fp8, "", "the shapes [3, 64, 64] and [3, 64, 33]"),
        (vec![gate_up.clone(), wide], Scheme::Fp8, "", "types BF16 and F32"),
        (vec![gate_up.clone(), down.clone()], Scheme::W4a16, "", "multiples of 128"),
        (vec![gate_up.clone(), down.clone(), bias], Scheme::Fp8, "", "the shape or type of their bias"),
        (vec![gate_up.clone(), down.clone(), wide_bias], Scheme::Fp8, "", "the shape or type of their bias"),
        (
            vec![gate_up.clone(), down.clone()],
            Scheme::Fp8,
            "*.experts.down_proj",
            "--ignore *.experts.down_proj",
        ),
    ] {
        let wide: Tensor<'_> =
            ("model.layers.0.self_attn.o_proj.weight", "BF16", vec![2, 128], made("BF16", 0, 3, 2 * 128));
        let all = [all, vec![wide]].concat();
        let ignore = Some(ignore.to_owned()).filter(|text| !text.is_empty()).into_iter().collect();
        let asked = Options { ignore, ..options(scheme, said) };
        let (done, found) = quantised("llama4", &all, &asked);
        assert_eq!(done.layers.len(), 1, "{why}");
        assert!(
            !done.left.is_empty() && done.left.iter().all(|left| left.why.contains(why)),
            "{:?}",
            done.left
        );
        for (name, dtype, shape, bytes) in all.into_iter().filter(|tensor| tensor.0.contains("experts")) {
            assert_eq!(found[name], (dtype.to_owned(), shape, bytes), "{why}");
        }
        assert!(done.unmatched.is_empty());
    }
}

#[test]
fn one_expert_that_cannot_be_quantised_is_stored_apart_and_named() {
    for by_columns in [false, true] {
        for (scheme, ignore) in [(Scheme::Fp8, ""), (Scheme::Nvfp4, ""), (Scheme::Mxfp4, "*.1.up_proj")] {
            let [mut gate_up, down] = fused(by_columns);
            // Row 5 and column 7 of the second expert's up_proj.
            let at = 64 * 64 + if by_columns { 7 * 64 + 32 + 5 } else { (32 + 5) * 64 + 7 };
            if ignore.is_empty() {
                gate_up.3[2 * at..2 * at + 2].copy_from_slice(&0x7f80u16.to_le_bytes());
            }
            let ignored = Some(ignore.to_owned()).filter(|text| !text.is_empty()).into_iter().collect();
            let asked = Options { ignore: ignored, ..options(scheme, Experts::Auto) };
            let (done, found) = quantised("llama4", &[gate_up.clone(), down], &asked);
            let name = format!("{PARENT}.1.up_proj.weight");
            assert_eq!(done.layers.len(), 8);
            assert_eq!(done.left.len(), 1);
            assert_eq!(done.left[0].name, name);
            assert!(done.left[0].why.contains(if ignore.is_empty() { "infinite" } else { "--ignore" }));
            let mut expected = Vec::new();
            for row in 0..32 {
                for column in 0..64 {
                    let at =
                        64 * 64 + if by_columns { column * 64 + 32 + row } else { (32 + row) * 64 + column };
                    expected.extend_from_slice(&gate_up.3[2 * at..2 * at + 2]);
                }
            }
            assert!(found[&name] == ("BF16".to_owned(), vec![32, 64], expected), "{}", scheme.name());
            let ignore = done.config["ignore"].as_array().unwrap();
            assert!(ignore.contains(&json!(format!("{PARENT}.1.up_proj"))));
        }
    }
}

#[test]
fn gate_and_up_of_an_expert_share_a_scale_and_experts_do_not() {
    let [mut gate_up, down] = fused(true);
    // Up of the first expert and gate of the second have the largest values: 2 and 4 at input 0 and output 40 or 3.
    for (at, value) in [(40, 2f32), (64 * 64 + 3, 4.0)] {
        gate_up.3[2 * at..2 * at + 2].copy_from_slice(&((value.to_bits() >> 16) as u16).to_le_bytes());
    }
    let (_, found) = quantised("llama4", &[gate_up, down], &options(Scheme::Nvfp4, Experts::Auto));
    let scale = |expert: usize, part: &str| {
        let bytes = &found[&format!("{PARENT}.{expert}.{part}.weight_global_scale")].2;
        f32::from_le_bytes(bytes[..].try_into().unwrap())
    };
    for (expert, largest) in [(0, 2.0), (1, 4.0)] {
        for part in ["gate_proj", "up_proj"] {
            // The largest fp4 value times the largest fp8 one, over the largest of the matrices.
            assert_eq!(scale(expert, part), 6.0 * 448.0 / largest, "{expert} {part}");
        }
    }
    assert!(scale(2, "gate_proj") == scale(2, "up_proj") && scale(2, "up_proj") > 6.0 * 448.0 / 2.0);
}

#[test]
fn what_an_engine_is_known_to_fail_with_is_said() {
    for (model_type, scheme, expected) in [
        ("qwen3_5_moe", Scheme::Nvfp4, "outputs are wrong"),
        ("qwen3_5_moe", Scheme::W8a8, "cannot load experts"),
        ("qwen3_5_moe", Scheme::Fp8, ""),
        ("qwen3_vl_moe", Scheme::Fp8, "that are split"),
        ("llama4", Scheme::Nvfp4, ""),
    ] {
        let (done, _) = quantised(model_type, &fused(false), &options(scheme, Experts::Auto));
        assert_eq!(done.notes.len(), usize::from(!expected.is_empty()), "{model_type} {}", scheme.name());
        assert!(done.notes.iter().all(|note| note.contains(expected)), "{:?}", done.notes);
        let (done, _) = quantised(model_type, &[linear()], &options(scheme, Experts::Auto));
        assert!(done.notes.is_empty(), "{:?}", done.notes);
    }
}

#[test]
fn the_sizes_that_info_tells_are_those_of_the_result() {
    let room = tempfile::tempdir().unwrap();
    let from = room.path().join("model");
    let [gate_up, down] = fused(true);
    model(&from, "llama4", &[gate_up, down, linear()]);
    let figures = survey(&list(&from).unwrap(), false).unwrap();
    for row in figures.quantised {
        let scheme = Scheme::ALL.into_iter().find(|scheme| scheme.name() == row.scheme).unwrap();
        let to = room.path().join(row.scheme);
        match quantize(&from, &to, &options(scheme, Experts::Auto)) {
            Ok(done) => assert_eq!(done.after, row.bytes, "{}", row.scheme),
            Err(_) => assert_eq!((scheme, row.tensors), (Scheme::W4a16, 0)),
        }
    }
}

#[test]
fn a_file_that_claims_very_many_experts_is_not_split() {
    let all: [Tensor<'_>; 3] = [
        ("experts.gate_up_proj", "BF16", vec![65_537, 2, 1], made("BF16", 0, 1, 65_537 * 2)),
        ("experts.down_proj", "BF16", vec![65_537, 1, 1], made("BF16", 0, 2, 65_537)),
        linear(),
    ];
    let (done, _) = quantised("llama4", &all, &options(Scheme::Fp8, Experts::Auto));
    assert_eq!(done.layers.len(), 1);
    assert!(done.left.iter().all(|left| left.why.contains("the limit is 65536")), "{:?}", done.left);
}

#[test]
fn names_that_splitting_would_give_twice_are_refused() {
    let room = tempfile::tempdir().unwrap();
    let from = room.path().join("model");
    let [gate_up, down] = fused(false);
    let there: Tensor<'_> =
        ("model.layers.0.mlp.experts.2.up_proj.weight", "BF16", vec![2, 2], made("BF16", 0, 5, 4));
    model(&from, "llama4", &[gate_up, down, there]);
    let error = quantize(&from, &room.path().join("out"), &options(Scheme::Fp8, Experts::Auto)).unwrap_err();
    assert!(error.to_string().contains("experts.2.up_proj.weight"), "{error}");
    assert!(!room.path().join("out").exists());
}
