//! `gapless weights` as a process: exit codes, both streams, and the files left on disk.

mod support;

use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use support::Run;

fn run_in(folder: &Path, args: &[&str]) -> Run {
    support::run_in(folder, args, None)
}

/// A shard with one bf16 tensor of `count` values around 0.02, and one that does not compress.
fn shard(path: &Path, name: &str, count: usize) -> Vec<u8> {
    let mut state = count as u64 | 1;
    let mut random = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 24) as f32
    };
    let mut data: Vec<u8> = Vec::new();
    for _ in 0..count {
        let value = (random() + random() + random() - 1.5) * 0.02;
        data.extend(((value.to_bits() >> 16) as u16).to_le_bytes());
    }
    data.extend((0..3000).map(|_| (random() * 256.0) as u8));
    let header = json!({
        "__metadata__": {"format": "pt"},
        name: {"dtype": "BF16", "shape": [count], "data_offsets": [0, 2 * count]},
        format!("{name}.packed"): {"dtype": "U8", "shape": [3000], "data_offsets": [2 * count, 2 * count + 3000]},
    })
    .to_string();
    let whole = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat();
    fs::write(path, &whole).expect("written");
    whole
}

#[test]
fn a_folder_is_packed_resumed_checked_and_restored() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    fs::create_dir(at("model")).expect("made");
    let first = shard(&at("model/model-1.safetensors"), "a", 100_000);
    let second = shard(&at("model/model-2.safetensors"), "b", 70_000);
    let index = json!({"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}).to_string();
    fs::write(at("model/model.safetensors.index.json"), index).expect("written");
    fs::write(at("model/config.json"), "{}").expect("written");

    let done = run_in(folder.path(), &["weights", "pack", "model", "-o", "packed", "--threads", "2"]);
    assert_eq!(done.code, 0, "{}", done.err);
    assert!(done.out.contains("in all") && done.out.contains("1 of 2 tensors compressed"), "{}", done.out);
    let again = run_in(folder.path(), &["weights", "pack", "model", "-o", "packed"]);
    assert_eq!(again.out.matches("packed before").count(), 2, "{}", again.out);
    assert_eq!(run_in(folder.path(), &["weights", "verify", "packed"]).code, 0);

    let restored = run_in(folder.path(), &["weights", "unpack", "packed", "-o", "again"]);
    assert_eq!(restored.code, 0, "{}", restored.err);
    assert!(fs::read(at("again/model-1.safetensors")).expect("there") == first);
    assert!(fs::read(at("again/model-2.safetensors")).expect("there") == second);
    assert!(at("again/config.json").exists() && at("again/model.safetensors.index.json").exists());

    // Flips one bit of the second shard.
    let mut bytes = fs::read(at("packed/model-2.safetensors")).expect("there");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 16;
    fs::write(at("packed/model-2.safetensors"), bytes).expect("written");
    let damaged = run_in(folder.path(), &["weights", "verify", "packed"]);
    assert_eq!(damaged.code, 2);
    assert!(damaged.err.contains("tensor \"b\": bytes") && damaged.err.contains("help"), "{}", damaged.err);
    let refused = run_in(folder.path(), &["weights", "unpack", "packed", "-o", "third"]);
    assert_eq!(refused.code, 2);
    assert!(!at("third/model-2.safetensors").exists());
    let kept = run_in(folder.path(), &["weights", "unpack", "packed", "-o", "third", "--keep-going"]);
    assert_eq!(kept.code, 2);
    assert!(fs::read(at("third/model-1.safetensors")).expect("there") == first);
    assert_eq!(fs::read(at("third/model-2.safetensors")).expect("there").len(), second.len());
}

#[test]
fn a_rank_gets_its_rows_of_every_shard() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    fs::create_dir(at("model")).expect("made");
    let first = shard(&at("model/model-1.safetensors"), "a", 100_001);
    shard(&at("model/model-2.safetensors"), "b", 70_000);
    let map = json!({"a": "model-1.safetensors", "b": "model-2.safetensors"});
    let index = json!({"metadata": {"total_size": 346_002}, "weight_map": map}).to_string();
    fs::write(at("model/model.safetensors.index.json"), index).expect("written");
    assert_eq!(run_in(folder.path(), &["weights", "pack", "model", "-o", "packed"]).code, 0);
    let args =
        ["weights", "unpack", "packed", "-o", "mine", "--rank", "3", "--world", "4", "--limit-rate", "1GB"];
    let done = run_in(folder.path(), &args);
    assert_eq!(done.code, 0, "{}", done.err);
    assert!(done.out.contains("model-1.safetensors  rank 3 of 4  2 tensors"), "{}", done.out);
    let mine = fs::read(at("mine/model-1.safetensors")).expect("there");
    let header = u64::from_le_bytes(*mine.first_chunk().expect("a length")) as usize;
    let told: Value = serde_json::from_slice(&mine[8..8 + header]).expect("JSON");
    // 100,001 rows for 4 ranks: 25,001 each, and the last has the remaining 24,998.
    assert_eq!((&told["a"]["shape"], &told["a.packed"]["shape"]), (&json!([24_998]), &json!([750])));
    let data = 8 + u64::from_le_bytes(*first.first_chunk().expect("a length")) as usize;
    let [from, to] = [0, 1].map(|k| told["a"]["data_offsets"][k].as_u64().expect("a number") as usize);
    assert!(mine[8 + header + from..8 + header + to] == first[data + 2 * 75_003..data + 2 * 100_001]);
    let index: Value =
        serde_json::from_slice(&fs::read(at("mine/model.safetensors.index.json")).expect("there"))
            .expect("JSON");
    assert_eq!(index["metadata"]["total_size"], json!(2 * 24_998 + 750 + 2 * 17_500 + 750));
    assert_eq!(index["weight_map"]["b"], json!("model-2.safetensors"));
}

/// All files below a folder, with their contents.
fn tree(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let (mut found, mut open) = (BTreeMap::new(), vec![folder.to_owned()]);
    while let Some(at) = open.pop() {
        for entry in fs::read_dir(&at).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                open.push(path);
            } else {
                found.insert(
                    path.strip_prefix(folder).expect("below").to_owned(),
                    fs::read(&path).expect("there"),
                );
            }
        }
    }
    found
}

#[test]
fn a_pipeline_of_several_models_is_packed_and_restored_whole() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    for name in ["unet", "text_encoder", "scheduler"] {
        fs::create_dir_all(at("pipe").join(name)).expect("made");
    }
    shard(&at("pipe/unet/model-1.safetensors"), "a", 50_000);
    shard(&at("pipe/unet/model-2.safetensors"), "b", 40_000);
    let map = json!({"a": "model-1.safetensors", "b": "model-2.safetensors"});
    let index = json!({"metadata": {"total_size": 186_000}, "weight_map": map}).to_string();
    fs::write(at("pipe/unet/model.safetensors.index.json"), &index).expect("written");
    shard(&at("pipe/text_encoder/model.safetensors"), "a", 30_000);
    fs::write(at("pipe/scheduler/config.json"), "{}").expect("written");
    fs::write(at("pipe/model_index.json"), "{}").expect("written");
    // A large file without weights that can be packed is copied too.
    fs::File::create(at("pipe/model.gguf")).and_then(|file| file.set_len(300 << 20)).expect("made");

    let done = run_in(folder.path(), &["weights", "pack", "pipe", "-o", "packed"]);
    assert_eq!((done.code, done.err.as_str()), (0, ""), "{}", done.out);
    assert!(done.out.contains("text_encoder/model.safetensors  "), "{}", done.out);
    let again = run_in(folder.path(), &["weights", "pack", "pipe", "-o", "packed"]);
    assert_eq!(again.out.matches("packed before").count(), 3, "{}{}", again.out, again.err);
    let restored = run_in(folder.path(), &["weights", "unpack", "packed", "-o", "again"]);
    assert_eq!(restored.code, 0, "{}", restored.err);
    assert!(tree(&at("pipe")) == tree(&at("again")));
    assert_eq!(run_in(folder.path(), &["weights", "verify", "packed"]).code, 0);
    // The same names in two folders are two tensors.
    let info = run_in(folder.path(), &["weights", "info", "packed", "--format", "json"]);
    let info: Value = serde_json::from_str(&info.out).expect("JSON");
    let names: Vec<&str> = info["tensors"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|tensor| tensor["name"].as_str().expect("a name"))
        .collect();
    assert!(names.contains(&"unet/a") && names.contains(&"text_encoder/a"), "{names:?}");
    // Each index has the bytes of its own folder.
    let rank =
        run_in(folder.path(), &["weights", "unpack", "packed", "-o", "r", "--rank", "0", "--world", "2"]);
    assert_eq!(rank.code, 0, "{}", rank.err);
    let index: Value =
        serde_json::from_slice(&fs::read(at("r/unet/model.safetensors.index.json")).expect("there"))
            .expect("JSON");
    assert_eq!(index["metadata"]["total_size"], json!(93_000));
}

#[test]
fn another_model_in_the_same_place_is_packed_however_old_it_is() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    for name in ["base", "tuned"] {
        fs::create_dir(at(name)).expect("made");
    }
    let base = shard(&at("base/model.safetensors"), "a", 50_000);
    let mut tuned = base.clone();
    let place = tuned.len() - 4000;
    tuned[place] ^= 1;
    fs::write(at("tuned/model.safetensors"), &tuned).expect("written");
    let file = fs::File::open(at("tuned/model.safetensors")).expect("there");
    file.set_modified(std::time::SystemTime::UNIX_EPOCH).expect("set");
    for (name, wanted) in [("base", &base), ("tuned", &tuned)] {
        let done = run_in(folder.path(), &["weights", "pack", name, "-o", "packed"]);
        assert_eq!(done.code, 0, "{}", done.err);
        assert!(!done.out.contains("packed before"), "{}", done.out);
        run_in(folder.path(), &["weights", "unpack", "packed", "-o", "again"]);
        assert!(&fs::read(at("again/model.safetensors")).expect("there") == wanted);
    }
}

#[test]
fn the_index_of_another_model_is_not_left_beside_new_shards() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    for name in ["many", "one"] {
        fs::create_dir_all(at(name).join("unet")).expect("made");
    }
    shard(&at("many/unet/model-1.safetensors"), "a", 5000);
    let index = json!({"weight_map": {"a": "model-1.safetensors"}}).to_string();
    fs::write(at("many/unet/model.safetensors.index.json"), index).expect("written");
    shard(&at("one/unet/model.safetensors"), "a", 6000);
    assert_eq!(run_in(folder.path(), &["weights", "pack", "many", "-o", "out"]).code, 0);
    assert_eq!(run_in(folder.path(), &["weights", "pack", "many", "-o", "out"]).code, 0);
    for verb in ["pack", "unpack"] {
        let refused = run_in(folder.path(), &["weights", verb, "one", "-o", "out"]);
        assert_eq!(refused.code, 2);
        assert!(refused.err.contains("the index of another model"), "{}", refused.err);
        assert!(!at("out/unet/model.safetensors").exists());
    }
}

#[test]
fn names_cannot_write_to_the_terminal() {
    let folder = tempfile::tempdir().expect("a folder");
    let name = format!("red \u{1b}[31m\n{}", "x".repeat(100_000));
    shard(&folder.path().join("a.safetensors"), &name, 5000);
    let text = run_in(folder.path(), &["weights", "info", "a.safetensors"]);
    let words: Vec<&str> = text.out.split_whitespace().collect();
    assert!(words.join(" ").contains("red \\u{1b}[31m\\n") && !text.out.contains('\u{1b}'), "{}", text.out);
    assert!(text.out.len() < 5000);
}

#[test]
fn info_is_a_table_and_json() {
    let folder = tempfile::tempdir().expect("a folder");
    shard(&folder.path().join("a.safetensors"), "w", 50_000);
    let text = run_in(folder.path(), &["weights", "info", "a.safetensors"]);
    assert_eq!(text.code, 0, "{}", text.err);
    assert!(text.out.contains("BF16") && text.out.contains("exponent"), "{}", text.out);
    let json = run_in(folder.path(), &["weights", "info", "a.safetensors", "--format", "json", "--full"]);
    let json: Value = serde_json::from_str(&json.out).expect("JSON");
    assert_eq!(support::schema::against("weights", &json), [] as [String; 0]);
    assert_eq!(json["bytes"], 103_000);
    assert_eq!(json["tensors"].as_array().expect("a list").len(), 2);
    let ratio = json["types"][0]["packed_ratio"].as_f64().expect("a ratio");
    assert!((0.6..0.72).contains(&ratio), "{ratio}");
}

#[test]
fn bad_input_is_told_in_words() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    shard(&at("a.safetensors"), "w", 2000);
    fs::write(at("cut.safetensors"), &fs::read(at("a.safetensors")).expect("there")[..500]).expect("written");
    fs::write(at("text.safetensors"), "not a model at all, only words").expect("written");
    fs::create_dir(at("empty")).expect("made");
    let cases: &[(&[&str], &str)] = &[
        (&["pack", "missing.safetensors", "-o", "x"], "missing.safetensors"),
        (&["pack", "cut.safetensors", "-o", "x"], "promises"),
        (&["pack", "text.safetensors", "-o", "x"], "this is text"),
        (&["pack", "empty", "-o", "x"], "no .safetensors file"),
        (&["pack", "a.safetensors", "-o", "a.safetensors"], "it is the input"),
        (&["pack", "a.safetensors", "-o", "missing/x"], "cannot write"),
        (&["verify", "cut.safetensors"], "promises"),
        (&["info", "text.safetensors"], "this is text"),
        (&["pack", "a.safetensors", "-o", "x", "--threads", "0"], "--threads"),
        (&["pack", "a.safetensors", "-o", "x", "--limit-rate", "fast"], "--limit-rate: invalid size"),
        (&["unpack", "a.safetensors", "-o", "x", "--limit-rate", "0"], "--limit-rate: invalid size"),
        (
            &["quantize", "a.safetensors", "-o", "x", "--scheme", "fp8", "--limit-rate", "0"],
            "--limit-rate: invalid size",
        ),
        (&["unpack", "a.safetensors", "-o", "x", "--rank", "2", "--world", "2"], "invalid --rank 2"),
        (&["unpack", "a.safetensors", "-o", "x", "--rank", "2"], "--world"),
        (&["unpack", "cut.safetensors", "-o", "x", "--rank", "0", "--world", "2"], "promises"),
        (
            &["unpack", "a.safetensors", "-o", "a.safetensors", "--rank", "0", "--world", "2"],
            "it is the input",
        ),
    ];
    for (args, wanted) in cases {
        let args: Vec<&str> = [&["weights"], *args].concat();
        let done = run_in(folder.path(), &args);
        assert_eq!(done.code, 2, "{args:?}: {}{}", done.out, done.err);
        assert!(done.err.contains(wanted), "{args:?}: {}", done.err);
        assert!(!at("x").join("a.safetensors").exists() && !at("x").is_file(), "{args:?}");
    }
    let parts = fs::read_dir(folder.path()).expect("read").filter(|entry| {
        entry.as_ref().is_ok_and(|entry| entry.file_name().to_string_lossy().ends_with(".part"))
    });
    assert_eq!(parts.count(), 0);
}

#[test]
fn a_model_is_quantised_with_a_table_of_errors() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    fs::create_dir(at("model")).expect("made");
    let values: Vec<u8> = (0..64 * 128u32)
        .flat_map(|at| ((((at * 37 % 101) as f32 - 50.0) * 0.01).to_bits() >> 16).to_le_bytes()[..2].to_vec())
        .collect();
    let header = json!({
        "a.down_proj.weight": {"dtype": "BF16", "shape": [64, 128], "data_offsets": [0, 16384]},
        "lm_head.weight": {"dtype": "BF16", "shape": [32, 256], "data_offsets": [16384, 32768]},
    })
    .to_string();
    let whole = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &values, &values].concat();
    fs::write(at("model/model.safetensors"), whole).expect("written");
    fs::write(at("model/config.json"), "{\"model_type\": \"llama\"}").expect("written");

    let quantize = |scheme: &str, more: &[&str]| {
        let args = [&["weights", "quantize", "model", "-o", scheme, "--scheme", scheme], more].concat();
        run_in(folder.path(), &args)
    };
    for scheme in ["fp8", "fp8-block", "w8a8", "w4a16", "mxfp4", "nvfp4", "sparse-24", "sparse-bitmask"] {
        let done = quantize(scheme, &["--format", "json"]);
        assert_eq!(done.code, 0, "{}", done.err);
        let json: Value = serde_json::from_str(&done.out).expect("JSON");
        assert_eq!(support::schema::against("weights-quantize", &json), [] as [String; 0]);
        assert_eq!(json["worst"], "a.down_proj.weight");
        let config = fs::read(at(scheme).join("config.json")).expect("there");
        let config: Value = serde_json::from_slice(&config).expect("JSON");
        assert_eq!(config["quantization_config"], json["quantization_config"]);
    }
    let again = quantize("fp8", &[]);
    assert_eq!(again.code, 2);
    assert!(again.out.is_empty() && again.err.contains("not empty"), "{}", again.err);
    let text = run_in(
        folder.path(),
        &[
            "weights",
            "quantize",
            "model/model.safetensors",
            "-o",
            "one.safetensors",
            "--scheme",
            "w8a8",
            "--ignore",
            "x",
        ],
    );
    assert_eq!(text.code, 0, "{}", text.err);
    assert!(text.out.contains("worst: a.down_proj.weight"), "{}", text.out);
    assert!(
        text.err.contains("--ignore x matches no tensor") && text.err.contains("config.json"),
        "{}",
        text.err
    );
}

#[test]
fn fused_experts_are_split_as_the_user_says_or_left_with_a_reason() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    let header = json!({
        "layers.0.mlp.experts.gate_up_proj": {"dtype": "BF16", "shape": [2, 32, 8], "data_offsets": [0, 1024]},
        "layers.0.mlp.experts.down_proj": {"dtype": "BF16", "shape": [2, 8, 16], "data_offsets": [1024, 1536]},
        "layers.0.o_proj.weight": {"dtype": "BF16", "shape": [8, 8], "data_offsets": [1536, 1664]},
    })
    .to_string();
    let values: Vec<u8> = (0..832u32).flat_map(|at| [(at % 251) as u8, 0x3d]).collect();
    let whole = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &values].concat();
    fs::write(at("a.safetensors"), whole).expect("written");
    for (experts, layers, left) in [("auto", 1, 2), ("leave", 1, 2), ("halves", 7, 0), ("pairs", 7, 0)] {
        let args =
            ["weights", "quantize", "a.safetensors", "-o", experts, "--scheme", "fp8", "--experts", experts];
        let done = run_in(folder.path(), &[&args[..], &["--format", "json", "--limit-rate", "1GB"]].concat());
        assert_eq!(done.code, 0, "{}", done.err);
        let json: Value = serde_json::from_str(&done.out).expect("JSON");
        assert_eq!(support::schema::against("weights-quantize", &json), [] as [String; 0]);
        let count = |key: &str| json[key].as_array().expect("a list").len();
        assert_eq!((count("layers"), count("left")), (layers, left), "{experts}");
        if experts == "auto" {
            let why = json["left"][0]["reason"].as_str().expect("a reason");
            assert!(
                why.contains("a model without config.json") && why.contains("--experts halves or pairs"),
                "{why}"
            );
        }
    }
    let halves = fs::read(at("halves")).expect("there");
    assert_ne!(halves, fs::read(at("pairs")).expect("there"), "the layouts differ");
}
