//! Safetensors headers and folders: exact weights, and refusal of false ones.

use gapless_fit::model::Dtype;
use gapless_fit::read;
use std::fs;
use std::path::{Path, PathBuf};

fn file(header: &str, data: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.resize(bytes.len() + data, 0);
    bytes
}

fn refused(bytes: &[u8]) -> String {
    read::safetensors("x.safetensors", bytes).expect_err("it is refused").to_string()
}

fn folder(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("gapless-fit-read-{}-{name}", std::process::id()));
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).expect("a folder");
    path
}

fn open(path: &Path) -> Result<gapless_fit::model::Model, read::ReadError> {
    read::open(path.to_str().expect("UTF-8"))
}

#[test]
fn a_configuration_has_the_name_of_its_folder_or_its_own() {
    let folder = folder("names");
    for (file, name) in [
        ("config.json", folder.file_name().and_then(|name| name.to_str()).expect("a name")),
        ("deep.json", "deep"),
    ] {
        fs::write(folder.join(file), r#"{"model_type": "llama", "num_hidden_layers": 2}"#).expect("a file");
        assert_eq!(open(&folder.join(file)).expect("it reads").name, name, "{file}");
    }
}

#[test]
fn a_file_of_the_reference_implementation_reads() {
    let path = format!("{}/../../testdata/fit/safetensors/small.safetensors", env!("CARGO_MANIFEST_DIR"));
    let model = read::open(&path).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(model.architecture, None);
    let mut weights: Vec<_> = model
        .weights
        .expect("weights")
        .into_iter()
        .map(|one| (one.name, one.shape, one.dtype, one.bytes))
        .collect();
    weights.sort();
    assert_eq!(
        weights,
        [
            ("a.bias".into(), vec![3], Some(Dtype::Bf16), 6),
            ("a.weight".into(), vec![3, 4], Some(Dtype::F32), 48),
            ("e".into(), vec![0, 7], Some(Dtype::F16), 0),
            ("n".into(), vec![], Some(Dtype::I64), 8),
        ]
    );
}

#[test]
fn headers_that_lie_are_refused_with_the_byte() {
    let tensor = |dtype: &str, shape: &str, offsets: &str| {
        format!(r#"{{"a":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}}}"#)
    };
    for (header, data, want) in [
        (tensor("F32", "[2]", "[0,8]"), 4, "the header promises 8 bytes of it and 4 are there"),
        (tensor("F32", "[2]", "[0,8]"), 9, "1 bytes after the last tensor belong to none"),
        (tensor("F32", "[2]", "[4,12]"), 12, "byte 13: tensor \"a\" leaves a hole before it"),
        (tensor("F32", "[2]", "[0,4]"), 4, "needs 8 bytes, its data_offsets hold 4"),
        (tensor("F33", "[2]", "[0,8]"), 8, "the dtype \"F33\" is not known"),
        (tensor("F32", "[-2]", "[0,8]"), 8, "not a list of sizes"),
        (tensor("F32", "[18446744073709551615,18446744073709551615]", "[0,8]"), 8, "more elements than can be counted"),
        (tensor("F32", "[2]", "[8,0]"), 8, "before it begins"),
        (tensor("F32", "[2]", "[0]"), 8, "not two sizes"),
        (r#"{"a":3}"#.into(), 0, "it has no dtype"),
        (r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}}"#.into(), 6, "overlaps"),
        (r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"a":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}}"#.into(), 8, "stands twice"),
        (format!("{{\"a\":{}{}}}", "[".repeat(5000), "]".repeat(5000)), 0, "nested deeper than 64"),
        ("[]".into(), 0, "does not begin with {"),
        ("{".into(), 0, "the file ends at byte 9"),
    ] {
        let error = refused(&file(&header, data));
        assert!(error.contains(want), "{header}: {error}");
    }
    assert!(
        refused(&u64::MAX.to_le_bytes())
            .contains("a header of 18446744073709551615 bytes: the limit is 100000000")
    );
    assert!(
        refused(&99_000_000u64.to_le_bytes())
            .contains("the file ends at byte 8, in the middle of the header")
    );
    assert!(refused(b"\x10\0\0").contains("in the middle of the length of the header"));
}

#[test]
fn a_folder_gives_architecture_and_exact_weights() {
    let path = folder("whole");
    fs::write(path.join("config.json"), r#"{"model_type":"newthing"}"#).expect("written");
    let header = r#"{"a":{"dtype":"BF16","shape":[4],"data_offsets":[0,8]}}"#;
    fs::write(path.join("model.safetensors"), file(header, 8)).expect("written");
    let model = open(&path).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!((model.architecture, model.weights.map(|weights| weights[0].bytes)), (None, Some(8)));
    assert!(model.notes[0].contains("only the weights are known"), "{:?}", model.notes);
    fs::write(path.join("config.json"), r#"{"model_type":"gpt2","n_layer":1}"#).expect("written");
    let model = open(&path.join("config.json")).unwrap_or_else(|error| panic!("{error}"));
    assert!(model.architecture.is_some());
    assert!(model.notes[0].contains("store 4 elements"), "{:?}", model.notes);
    fs::remove_file(path.join("model.safetensors")).expect("removed");
    assert_eq!(open(&path).expect("reads").weights, None);
    fs::remove_file(path.join("config.json")).expect("removed");
    let error = open(&path).expect_err("empty").to_string();
    assert!(error.contains("neither config.json nor .safetensors"), "{error}");
    let _ = fs::remove_dir_all(path);
}

#[test]
fn shards_are_read_through_their_index() {
    let path = folder("shards");
    let one = r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
    let two = r#"{"b":{"dtype":"F16","shape":[3],"data_offsets":[0,6]}}"#;
    fs::write(path.join("1.safetensors"), file(one, 8)).expect("written");
    fs::write(path.join("2.safetensors"), file(two, 6)).expect("written");
    let index = |text: &str| fs::write(path.join("model.safetensors.index.json"), text).expect("written");
    let error = || open(&path).expect_err("refused").to_string();
    index(r#"{"metadata":{"total_size":14},"weight_map":{"a":"1.safetensors","b":"2.safetensors"}}"#);
    let weights = open(&path).expect("reads").weights.expect("weights");
    assert_eq!(weights.iter().map(|weight| weight.bytes).collect::<Vec<_>>(), [8, 6]);
    for name in ["../1.safetensors", "/etc/passwd", "sub/1.safetensors", "..", "", "C:\\\\x"] {
        index(&format!(r#"{{"weight_map":{{"a":"{name}"}}}}"#));
        assert!(error().contains("is not the name of a file in this folder"), "{name}: {}", error());
    }
    index(r#"{"weight_map":{"a":"1.safetensors","c":"2.safetensors"}}"#);
    assert!(error().contains("tensor \"b\" is here, but not in the index"), "{}", error());
    index(r#"{"weight_map":{"a":"1.safetensors","x":"1.safetensors","b":"2.safetensors"}}"#);
    assert!(error().contains("tensor \"x\" is in the index, but not here"), "{}", error());
    index(r#"{"weight_map":{"a":"1.safetensors","b":"3.safetensors"}}"#);
    assert!(
        error().contains("3.safetensors: there is no such file; it is named in the index"),
        "{}",
        error()
    );
    index("{}");
    assert!(error().contains("the index has no weight_map"), "{}", error());
    let _ = fs::remove_dir_all(path);
}
