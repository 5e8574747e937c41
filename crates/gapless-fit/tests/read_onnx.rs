//! ONNX files: shapes against those that ONNX's own inference finds, and files with false figures.

use gapless_fit::model::{Architecture, Dtype, Graph};
use gapless_fit::read::{self, Options};
use serde_json::Value;
use std::fs;

fn folder() -> String {
    format!("{}/../../testdata/fit/onnx", env!("CARGO_MANIFEST_DIR"))
}

fn graph(name: &str, batch: u64) -> Graph {
    let options = Options { batch: Some(batch) };
    let model = read::open_with(&format!("{}/{name}.onnx", folder()), &options)
        .unwrap_or_else(|error| panic!("{error}"));
    match model.architecture {
        Some(Architecture::Graph(graph)) => *graph,
        other => panic!("{other:?}"),
    }
}

#[test]
fn inferred_shapes_equal_those_of_onnx() {
    let text = fs::read(format!("{}/shapes.json", folder())).expect("test data");
    let truth: Value = serde_json::from_slice(&text).expect("JSON");
    let mut compared = 0;
    for (name, shapes) in truth.as_object().expect("models") {
        let graph = graph(name, 4);
        for (tensor, shape) in shapes.as_object().expect("tensors") {
            let ours = graph
                .tensors
                .iter()
                .find(|one| one.name == *tensor)
                .unwrap_or_else(|| panic!("{name}: no {tensor}"));
            let theirs: Vec<u64> = shape
                .as_array()
                .expect("a shape")
                .iter()
                .map(|side| side.as_u64().expect("a size"))
                .collect();
            assert_eq!(ours.shape, theirs, "{name}: {tensor}");
            compared += 1;
        }
    }
    assert!(compared > 100);
}

#[test]
fn parameters_inputs_and_operators_are_the_files_own() {
    let graph = graph("mlp", 3);
    let name = |at: &u32| graph.tensors[*at as usize].name.as_str();
    assert_eq!(
        graph.parameters.iter().map(name).collect::<Vec<_>>(),
        ["a.weight", "a.bias", "b.weight", "b.bias"]
    );
    assert_eq!(graph.inputs.iter().map(name).collect::<Vec<_>>(), ["x"]);
    assert_eq!(graph.tensors[graph.outputs[0] as usize].shape, [3, 4]);
    assert_eq!(graph.nodes[0].op, "onnx.Gemm");
    assert!(graph.nodes[0].attributes.contains(&("transB".into(), vec![1])));
}

/// A field of a message: its number and bytes.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut out = vec![number << 3 | 2];
    let mut length = bytes.len();
    while length >= 0x80 {
        out.push(length as u8 | 0x80);
        length >>= 7;
    }
    out.push(length as u8);
    out.extend(bytes);
    out
}

fn varint(number: u8, value: u8) -> Vec<u8> {
    vec![number << 3, value]
}

fn value(name: &str, dims: &[&[u8]]) -> Vec<u8> {
    let shape: Vec<u8> = dims.iter().flat_map(|dim| field(1, dim)).collect();
    let tensor = [varint(1, 1), field(2, &shape)].concat();
    [field(1, name.as_bytes()), field(2, &field(1, &tensor))].concat()
}

fn node(op: &str, inputs: &[&str], outputs: &[&str]) -> Vec<u8> {
    let names = |number: u8, names: &[&str]| -> Vec<u8> {
        names.iter().flat_map(|name| field(number, name.as_bytes())).collect()
    };
    field(1, &[names(1, inputs), names(2, outputs), field(4, op.as_bytes())].concat())
}

fn file(parts: &[Vec<u8>]) -> Vec<u8> {
    field(7, &parts.concat())
}

fn refused(bytes: &[u8]) -> String {
    read::onnx("x.onnx", bytes, &Options::default()).expect_err("it is refused").to_string()
}

#[test]
fn a_batch_may_be_open_and_nothing_else() {
    let batch = [&field(2, b"batch")[..], &varint(1, 8)];
    let bytes =
        file(&[field(11, &value("x", &batch)), node("Relu", &["x"], &["y"]), field(12, &value("y", &[]))]);
    let model =
        read::onnx("x.onnx", &bytes, &Options { batch: Some(7) }).unwrap_or_else(|error| panic!("{error}"));
    assert!(model.notes[0].contains("7 is taken"), "{:?}", model.notes);
    let length = [&varint(1, 2)[..], &field(2, b"length")];
    let error = refused(&file(&[field(11, &value("x", &length))]));
    assert!(error.contains("axis 1 of the input \"x\" is open (length)"), "{error}");
}

#[test]
fn files_that_lie_are_refused() {
    let x = field(11, &value("x", &[&varint(1, 2)]));
    for (bytes, want) in [
        (
            file(&[x.clone(), node("Mystery", &["x"], &["y"])]),
            "made by the node Mystery \"\", is not known; store shapes",
        ),
        (file(&[x.clone(), node("Relu", &["z"], &["y"])]), "uses \"z\" before anything makes it"),
        (file(&[x.clone(), node("Relu", &["x"], &["x"])]), "two nodes make \"x\""),
        (file(&[x.clone(), field(12, &value("q", &[]))]), "no node makes the output \"q\""),
        (field(1, b"abc"), "there is no graph"),
        ([file(std::slice::from_ref(&x)), file(std::slice::from_ref(&x))].concat(), "a second graph"),
        (vec![7 << 3 | 2, 100, 0], "a field of 100 bytes passes the end of its message"),
        (
            vec![1 << 3, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f],
            "a number of more than 64 bits",
        ),
        (vec![1 << 3 | 3], "the wire type 3 is not known"),
        (
            field(
                7,
                &field(
                    5,
                    &[varint(2, 1), vec![1 << 3, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1]]
                        .concat(),
                ),
            ),
            "a side of -1",
        ),
        (field(7, &field(5, &[varint(2, 8), field(8, b"s")].concat())), "the element type 8"),
        (b"\0\0\0".to_vec(), "a field without a number"),
    ] {
        let error = refused(&bytes);
        assert!(error.contains(want), "{want}: {error}");
    }
}

#[test]
fn a_cast_changes_the_dtype() {
    let graph = graph("block", 2);
    let cast = graph.nodes.iter().find(|node| node.op == "onnx.Cast").expect("a cast");
    assert!(matches!(graph.tensors[cast.outputs[0] as usize].dtype, Dtype::F32 | Dtype::I64 | Dtype::Bool));
}
