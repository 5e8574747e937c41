//! Whole models: the tensors that change, the files beside them, and no half-written file left.

mod made;

use gapless_weights::error::Error;
use gapless_weights::input::Input;
use gapless_weights::listing::list;
use gapless_weights::pace::Pace;
use gapless_weights::quantize::experts::Experts;
use gapless_weights::quantize::matrix::{Kind, largest, rows, whole_scale};
use gapless_weights::quantize::scheme::Scheme;
use gapless_weights::quantize::{Done, Options};
use gapless_weights::survey::survey;
use gapless_weights::{Work, pack, quantize};
use made::{Tensor, file};
use serde_json::{Value as Json, json};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// bf16 values between -`size` and `size`.
fn matrix(seed: u64, count: u64, size: f32) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut one = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let value = ((state >> 40) as f32 / (1u64 << 23) as f32 - 1.0) * size;
        (value.to_bits() >> 16) as u16
    };
    (0..count).flat_map(|_| one().to_le_bytes()).collect()
}

/// A model of two shards; queries and keys are in different ones.
fn model(folder: &Path) {
    fs::create_dir_all(folder).unwrap();
    let weights = |name, seed, rows: u64, columns: u64, size| -> Tensor<'static> {
        (name, "BF16", vec![rows, columns], matrix(seed, rows * columns, size))
    };
    file(
        &folder.join("model-00001-of-00002.safetensors"),
        &[
            weights("model.embed_tokens.weight", 1, 11, 256, 1.0),
            weights("model.layers.0.self_attn.q_proj.weight", 2, 300, 256, 0.1),
            weights("model.layers.0.mlp.down_proj.weight", 3, 33, 128, 0.1),
            ("model.layers.0.input_layernorm.weight", "BF16", vec![256], matrix(4, 256, 1.0)),
            ("counts", "I64", vec![1], 7u64.to_le_bytes().to_vec()),
        ],
    );
    file(
        &folder.join("model-00002-of-00002.safetensors"),
        &[
            weights("model.layers.0.self_attn.k_proj.weight", 5, 65, 256, 0.4),
            weights("model.layers.0.mlp.odd.weight", 6, 5, 250, 0.4),
            weights("lm_head.weight", 7, 11, 256, 0.4),
            ("model.layers.0.self_attn.k_proj.bias", "BF16", vec![65], matrix(8, 65, 1.0)),
        ],
    );
    let mut map = BTreeMap::new();
    for shard in ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"] {
        for tensor in Input::open(&folder.join(shard)).unwrap().header().unwrap().tensors {
            map.insert(tensor.name, shard);
        }
    }
    let index = json!({"metadata": {"total_size": 1, "kept": "yes"}, "weight_map": map});
    fs::write(folder.join("model.safetensors.index.json"), index.to_string()).unwrap();
    fs::write(folder.join("config.json"), "{\"model_type\": \"llama\", \"rope_theta\": 1e6}").unwrap();
    fs::write(folder.join("tokenizer.json"), "[1]").unwrap();
}

fn options(scheme: Scheme) -> Options {
    Options { scheme, ignore: Vec::new(), experts: Experts::Auto, work: 2.into() }
}

/// All tensors of a folder: type, shape, data and file.
fn tensors(folder: &Path) -> BTreeMap<String, (String, Vec<u64>, Vec<u8>, String)> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if !name.ends_with(".safetensors") {
            continue;
        }
        let input = Input::open(&path).unwrap();
        let header = input.header().unwrap();
        for tensor in &header.tensors {
            let bytes = input.bytes(header.data() + tensor.begin, tensor.bytes() as usize).unwrap();
            let width = gapless_formats::safetensors::bits(&tensor.dtype).unwrap() / 8;
            assert_eq!(tensor.begin % width, 0, "{} does not begin at a multiple of its size", tensor.name);
            all.insert(
                tensor.name.clone(),
                (tensor.dtype.clone(), tensor.shape.clone(), bytes, name.clone()),
            );
        }
    }
    all
}

fn read(path: &Path) -> Json {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

fn refused(result: Result<Done, Error>, part: &str) {
    let error = result.unwrap_err();
    assert!(error.to_string().contains(part), "{error}");
    assert!(!error.help().is_empty());
}

#[test]
fn every_scheme_writes_a_model_whose_index_and_configuration_hold() {
    let room = tempfile::tempdir().unwrap();
    let from = room.path().join("model");
    model(&from);
    let before = tensors(&from);
    for scheme in Scheme::ALL {
        let to = room.path().join(scheme.name());
        let done = quantize(&from, &to, &options(scheme)).unwrap();
        let after = tensors(&to);
        let index = read(&to.join("model.safetensors.index.json"));
        let map: BTreeMap<String, Json> =
            after.iter().map(|(name, tensor)| (name.clone(), json!(tensor.3))).collect();
        assert_eq!(index["weight_map"], json!(map));
        let total: usize = after.values().map(|tensor| tensor.2.len()).sum();
        assert_eq!(index["metadata"], json!({"total_size": total, "kept": "yes"}));
        assert_eq!(done.after, total as u64);
        let config = read(&to.join("config.json"));
        assert_eq!(config["model_type"], "llama");
        assert_eq!(config["quantization_config"], done.config);
        assert_eq!(fs::read(to.join("tokenizer.json")).unwrap(), b"[1]");
        for name in ["model.embed_tokens.weight", "lm_head.weight", "counts"] {
            assert_eq!(before[name], after[name]);
        }
        // The arithmetic has its own test; this one checks places in files.
        let most = |name: &str| largest(Kind::Bf16, &before[name].2).unwrap();
        let attention = ["model.layers.0.self_attn.q_proj.weight", "model.layers.0.self_attn.k_proj.weight"];
        let shared = attention.iter().map(|name| most(name)).fold(0.0, f32::max);
        let mut taken = vec!["model.layers.0.mlp.down_proj.weight"];
        taken.extend(attention);
        if scheme.multiple() == 1 {
            taken.push("model.layers.0.mlp.odd.weight");
        }
        for name in &taken {
            let (_, shape, bytes, _) = &before[*name];
            let whole = whole_scale(Kind::Bf16, if attention.contains(name) { shared } else { most(name) });
            let rows = rows(scheme, Kind::Bf16, bytes, shape[1] as usize, whole).unwrap();
            let kept = rows.kept.iter().sum();
            let parts = scheme.parts("BF16", shape[0], shape[1], kept);
            let module = name.strip_suffix(".weight").unwrap();
            for (part, bytes) in parts.iter().zip([&rows.weights, &rows.scales]) {
                let found = &after[&format!("{module}.{}", part.name)];
                assert_eq!((&*found.0, &found.1), (part.dtype, &part.shape));
                assert_eq!(&found.2, bytes, "{} {name} {}", scheme.name(), part.name);
            }
            match scheme {
                Scheme::Nvfp4 => {
                    assert_eq!(after[&format!("{module}.weight_global_scale")].2, whole.to_le_bytes());
                }
                Scheme::W4a16 => {
                    let expected = [shape[0].to_le_bytes(), shape[1].to_le_bytes()].concat();
                    assert_eq!(after[&format!("{module}.weight_shape")].2, expected);
                }
                Scheme::Sparse24 | Scheme::SparseBitmask => {
                    let expected = [shape[0].to_le_bytes(), shape[1].to_le_bytes()].concat();
                    assert_eq!(after[&format!("{module}.shape")].2, expected);
                    let offsets = after.get(&format!("{module}.row_offsets"));
                    assert_eq!(offsets.is_some(), scheme == Scheme::SparseBitmask);
                    let mut sum = 0;
                    for (offset, kept) in
                        offsets.iter().flat_map(|found| found.2.as_chunks::<8>().0).zip(&rows.kept)
                    {
                        assert_eq!(u64::from_le_bytes(*offset), sum);
                        sum += kept;
                    }
                }
                _ => {}
            }
            let layer = done.layers.iter().find(|layer| layer.name == **name).unwrap();
            let limit = match scheme {
                Scheme::Fp8 | Scheme::Fp8Block | Scheme::W8a8 => 0.05,
                Scheme::Sparse24 | Scheme::SparseBitmask => 0.5,
                _ => 0.2,
            };
            assert!(layer.error > 0.0 && layer.error < limit, "{} {}", scheme.name(), layer.error);
        }
        assert_eq!(done.layers.len(), taken.len());
        let described = &config["quantization_config"];
        let described = if scheme.is_sparse() { &described["sparsity_config"] } else { described };
        let ignore = described["ignore"].as_array().unwrap();
        assert!(ignore.contains(&json!("lm_head")) && ignore.contains(&json!("model.embed_tokens")));
        assert_eq!(ignore.contains(&json!("model.layers.0.mlp.odd")), scheme.multiple() > 1);
        assert!(done.worst().is_some());
    }
}

#[test]
fn one_thread_and_five_write_the_same_bytes() {
    let room = tempfile::tempdir().unwrap();
    let from = room.path().join("big.safetensors");
    let tensor: Tensor<'_> = ("a.weight", "BF16", vec![1300, 1024], matrix(9, 1300 * 1024, 0.1));
    file(&from, &[tensor]);
    for scheme in Scheme::ALL {
        let mut results = Vec::new();
        for threads in [1, 5] {
            let to = room.path().join(format!("{}-{threads}", scheme.name()));
            let done = quantize(&from, &to, &Options { work: threads.into(), ..options(scheme) }).unwrap();
            results.push((fs::read(&to).unwrap(), done.layers));
        }
        assert!(results[0] == results[1], "{}", scheme.name());
    }
}

#[test]
fn patterns_leave_modules_and_tell_when_they_fit_none() {
    let room = tempfile::tempdir().unwrap();
    let from = room.path().join("model");
    model(&from);
    let ignore = vec!["*.k_proj".to_owned(), "model.layers.9.*".to_owned()];
    let to = room.path().join("out");
    let done = quantize(&from, &to, &Options { ignore, ..options(Scheme::Fp8) }).unwrap();
    assert_eq!(done.unmatched, ["model.layers.9.*"]);
    assert!(done.left.iter().any(|left| left.name.ends_with("k_proj.weight")));
    assert!(done.config["ignore"].as_array().unwrap().contains(&json!("model.layers.0.self_attn.k_proj")));
    let ignore = vec!["re:.*k_proj".to_owned()];
    let result = quantize(&from, &room.path().join("b"), &Options { ignore, ..options(Scheme::Fp8) });
    refused(result, "regular expression");
}

#[test]
fn a_matrix_with_infinite_values_is_left_and_named() {
    let room = tempfile::tempdir().unwrap();
    let from = room.path().join("a.safetensors");
    let mut bad = matrix(3, 64 * 128, 0.1);
    bad[9001] = 0x7f;
    bad[9000] = 0x80;
    let good = matrix(4, 64 * 128, 0.1);
    let shape = vec![64, 128];
    file(&from, &[("a.weight", "BF16", shape.clone(), bad.clone()), ("b.weight", "BF16", shape, good)]);
    for scheme in Scheme::ALL {
        let to = room.path().join(scheme.name());
        let done = quantize(&from, &to, &options(scheme)).unwrap();
        assert_eq!(done.layers.len(), 1, "{}", scheme.name());
        assert_eq!(done.left[0].name, "a.weight");
        assert!(done.left[0].why.contains("infinite"));
        let input = Input::open(&to).unwrap();
        let header = input.header().unwrap();
        let kept = header.tensors.iter().find(|tensor| tensor.name == "a.weight").unwrap();
        assert_eq!(input.bytes(header.data() + kept.begin, bad.len()).unwrap(), bad);
    }
}

#[test]
fn what_cannot_be_done_is_refused_and_leaves_nothing() {
    let room = tempfile::tempdir().unwrap();
    let at = |name: &str| room.path().join(name);
    let fp8 = options(Scheme::Fp8);
    model(&at("model"));
    refused(quantize(&at("none"), &at("out"), &fp8), "there is no such file");
    refused(quantize(&at("model"), &at("model"), &fp8), "not empty");
    refused(quantize(&at("model"), &at("model/deep/out"), &fp8), "within the input");

    model(&at("again"));
    fs::write(at("again/config.json"), "{\"quantization_config\": {}}").unwrap();
    refused(quantize(&at("again"), &at("out"), &fp8), "quantised already");
    fs::write(at("again/config.json"), "{").unwrap();
    refused(quantize(&at("again"), &at("out"), &fp8), "not JSON");
    fs::write(at("again/config.json"), "[]").unwrap();
    refused(quantize(&at("again"), &at("out"), &fp8), "not a JSON object");

    let shape = vec![2, 4];
    let weight: Tensor<'_> = ("a.weight", "BF16", shape.clone(), matrix(1, 8, 1.0));
    file(&at("scaled.safetensors"), &[weight.clone(), ("a.weight_scale", "F32", vec![1], vec![0; 4])]);
    refused(quantize(&at("scaled.safetensors"), &at("out"), &fp8), "quantised already");
    refused(quantize(&at("scaled.safetensors"), &at("scaled.safetensors"), &fp8), "this is the input");
    refused(quantize(&at("scaled.safetensors"), &at("out"), &options(Scheme::Nvfp4)), "no tensor can be");

    fs::create_dir(at("twice")).unwrap();
    file(&at("twice/a.safetensors"), std::slice::from_ref(&weight));
    file(&at("twice/b.safetensors"), std::slice::from_ref(&weight));
    refused(quantize(&at("twice"), &at("out"), &fp8), "another file of the folder");

    file(&at("large.safetensors"), &[("a.weight", "BF16", vec![64, 128], matrix(1, 64 * 128, 1.0))]);
    pack(&at("large.safetensors"), &at("packed.safetensors"), 1).unwrap();
    refused(quantize(&at("packed.safetensors"), &at("out"), &fp8), "packed");

    // A cut shard is found before the first byte is written, or while shards are written.
    model(&at("cut"));
    let shard = at("cut/model-00002-of-00002.safetensors");
    let bytes = fs::read(&shard).unwrap();
    fs::write(&shard, &bytes[..bytes.len() - 9]).unwrap();
    assert!(matches!(quantize(&at("cut"), &at("out"), &fp8), Err(Error::Format { .. })));

    let left: Vec<String> = fs::read_dir(room.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .filter(|name| name == "out" || name.ends_with(".part"))
        .collect();
    assert!(left.is_empty(), "{left:?}");
    assert!(!at("model/deep").exists());
}

#[test]
fn matrices_of_conv1d_are_refused_with_and_without_a_configuration() {
    let room = tempfile::tempdir().unwrap();
    let at = |name: &str| room.path().join(name);
    let weight = |name, rows: u64, columns: u64| -> Tensor<'static> {
        (name, "BF16", vec![rows, columns], matrix(rows, rows * columns, 0.1))
    };
    let all = [
        weight("h.0.attn.c_attn.weight", 16, 48),
        weight("h.0.attn.c_proj.weight", 16, 16),
        weight("h.0.mlp.c_fc.weight", 16, 64),
        weight("h.0.mlp.c_proj.weight", 64, 16),
        weight("wte.weight", 50, 16),
    ];
    file(&at("alone.safetensors"), &all);
    refused(quantize(&at("alone.safetensors"), &at("out"), &options(Scheme::Fp8)), "Conv1D");
    // The same as a part of another model, some of whose matrices are in Linear layers.
    fs::create_dir(at("model")).unwrap();
    file(&at("model/a.safetensors"), &[&all[1..], &[weight("encoder.q_proj.weight", 8, 16)]].concat());
    fs::write(at("model/config.json"), json!({"decoder": {"model_type": "gpt2"}}).to_string()).unwrap();
    let done = quantize(&at("model"), &at("out"), &options(Scheme::Fp8)).unwrap();
    assert_eq!(done.layers.iter().map(|layer| &*layer.name).collect::<Vec<_>>(), ["encoder.q_proj.weight"]);
    assert_eq!(done.left.iter().filter(|left| left.why.contains("Conv1D")).count(), 3);
    // StarCoder has the same names on Linear layers: three times as many outputs as inputs.
    file(&at("linear.safetensors"), &[weight("h.0.attn.c_attn.weight", 48, 16)]);
    assert_eq!(quantize(&at("linear.safetensors"), &at("b"), &options(Scheme::Fp8)).unwrap().layers.len(), 1);
}

#[test]
fn output_layers_that_no_file_has_are_told_to_engines() {
    let room = tempfile::tempdir().unwrap();
    for (model_type, name) in [("bert", "cls.predictions.decoder"), ("whisper", "proj_out"), ("llama", "")] {
        let from = room.path().join(model_type);
        model(&from);
        let config = json!({"model_type": model_type, "vocab_size": 33});
        fs::write(from.join("config.json"), config.to_string()).unwrap();
        let done =
            quantize(&from, &room.path().join(format!("{model_type}-fp8")), &options(Scheme::Fp8)).unwrap();
        let ignore = done.config["ignore"].as_array().unwrap();
        assert_eq!(ignore.contains(&json!(name)), !name.is_empty(), "{ignore:?}");
        // 33 rows within a layer are no vocabulary.
        assert!(done.layers.iter().any(|layer| layer.name == "model.layers.0.mlp.down_proj.weight"));
    }
}

#[test]
fn models_of_several_parts_are_told_under_any_prefix_where_that_is_clear() {
    let room = tempfile::tempdir().unwrap();
    let from = room.path().join("model");
    fs::create_dir(&from).unwrap();
    let weight = |name, columns: u64| -> Tensor<'static> {
        (name, "BF16", vec![8, columns], matrix(columns, 8 * columns, 0.1))
    };
    file(
        &from.join("a.safetensors"),
        &[
            weight("text.model.layers.0.mlp.up.weight", 128),
            weight("text.model.layers.0.mlp.down.weight", 100),
            weight("vision.layers.0.mlp.up.weight", 100),
        ],
    );
    for (config, expected) in [
        (json!({"model_type": "a", "text_config": {"model_type": "b"}}), true),
        (json!({"model_type": "a"}), false),
    ] {
        fs::write(from.join("config.json"), config.to_string()).unwrap();
        let to = room.path().join(format!("out-{expected}"));
        let done = quantize(&from, &to, &options(Scheme::W4a16)).unwrap();
        let ignore = done.config["ignore"].as_array().unwrap();
        assert_eq!(ignore.contains(&json!(r"re:(.*\.)?layers\.0\.mlp\.down$")), expected, "{ignore:?}");
        // The text's `up` is quantised, and would match the pattern too.
        assert!(!ignore.contains(&json!(r"re:(.*\.)?layers\.0\.mlp\.up$")), "{ignore:?}");
        assert!(ignore.contains(&json!("vision.layers.0.mlp.up")));
    }
}

#[test]
fn a_rate_bounds_what_is_read_of_every_shard() {
    let room = tempfile::tempdir().unwrap();
    let from = room.path().join("model");
    model(&from);
    let pace = std::sync::Arc::new(Pace::new(1 << 40));
    for scheme in [Scheme::Fp8, Scheme::Nvfp4] {
        let before = std::sync::Arc::strong_count(&pace);
        let booked = pace.booked();
        let work = Work { threads: 2, pace: Some(pace.clone()) };
        let to = room.path().join(scheme.name());
        let done = quantize(&from, &to, &Options { work, ..options(scheme) }).unwrap();
        let read = pace.booked() - booked;
        assert!(read >= done.before, "{read} of {} bytes were booked", done.before);
        assert_eq!(std::sync::Arc::strong_count(&pace), before);
    }
}

#[test]
fn mutated_files_are_errors_or_results_but_never_panics() {
    let room = tempfile::tempdir().unwrap();
    let from = room.path().join("a.safetensors");
    let to = room.path().join("b.safetensors");
    let weight: Tensor<'_> = ("a.weight", "BF16", vec![4, 128], matrix(1, 512, 1.0));
    file(&from, &[weight, ("b.weight", "F16", vec![4, 32], matrix(2, 128, 1.0))]);
    let whole = fs::read(&from).unwrap();
    let mut state = 99u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize
    };
    let (mut results, mut errors) = (0, 0);
    for round in 0..600 {
        let mut bytes = whole.clone();
        for _ in 0..1 + next() % 3 {
            // Mostly the header.
            let at = next() % if round % 4 == 0 { bytes.len() } else { 220 };
            bytes[at] = next() as u8;
        }
        if round % 9 == 0 {
            bytes.truncate(next() % bytes.len());
        }
        fs::write(&from, &bytes).unwrap();
        let scheme = Scheme::ALL[round % 6];
        match quantize(&from, &to, &Options { work: 1.into(), ..options(scheme) }) {
            Ok(_) => {
                results += 1;
                Input::open(&to).unwrap().header().unwrap();
            }
            Err(error) => {
                errors += 1;
                assert!(!error.to_string().is_empty());
            }
        }
    }
    assert!(results > 20 && errors > 100, "{results} results, {errors} errors");
}

#[test]
fn what_info_says_a_scheme_takes_is_what_it_takes() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    model(&at("bf16"));
    // Scales have the type of the weights, and not every matrix has the name or the columns that a scheme takes.
    fs::create_dir(at("mixed")).unwrap();
    let single =
        |rows: u64, columns: u64| (0..rows * columns).flat_map(|n| (n as f32).sin().to_le_bytes()).collect();
    file(
        &at("mixed").join("model.safetensors"),
        &[
            ("a.weight", "F32", vec![70, 256], single(70, 256)),
            ("a.bias", "F32", vec![70], single(70, 1)),
            ("b.weight", "F32", vec![6, 48], single(6, 48)),
            ("c.table", "F32", vec![4, 256], single(4, 256)),
            ("d.weight", "F16", vec![3, 128], matrix(9, 3 * 128, 0.5)),
            ("e.weight", "F32", vec![0, 128], Vec::new()),
        ],
    );
    for input in ["bf16", "mixed"] {
        let listing = list(&at(input)).unwrap();
        let said = survey(&listing, false).unwrap().quantised;
        let schemes = Scheme::ALL.into_iter().filter(|scheme| !scheme.is_sparse());
        assert_eq!(said.len(), schemes.clone().count());
        for (said, scheme) in said.iter().zip(schemes) {
            assert_eq!(said.scheme, scheme.name());
            let done =
                quantize(&at(input), &at(&format!("{input}-{}", scheme.name())), &options(scheme)).unwrap();
            let found = (done.layers.len(), done.after);
            assert_eq!((said.tensors, said.bytes), found, "{input} as {}", scheme.name());
        }
    }
}
