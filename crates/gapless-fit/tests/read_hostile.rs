//! Small samples of every format, cut at every byte and with every bit turned: an answer or an error, never a panic.

use flate2::read::GzDecoder;
use gapless_fit::model::Architecture;
use gapless_fit::read::{self, Options, ReadError};
use gapless_fit::{model::Model, parameters};
use std::fs;
use std::io::Read;

fn sample(name: &str) -> Vec<u8> {
    let bytes =
        fs::read(format!("{}/../../testdata/fit/{name}", env!("CARGO_MANIFEST_DIR"))).expect("test data");
    if !name.ends_with(".gz") {
        return bytes;
    }
    let mut content = Vec::new();
    GzDecoder::new(&bytes[..]).read_to_end(&mut content).expect("gzip");
    content
}

fn check(answer: &Result<Model, ReadError>) {
    match answer {
        Ok(model) => {
            if let Some(architecture) = &model.architecture {
                assert!(parameters::count(architecture).is_some());
                let _buffers = parameters::buffers(architecture);
                if let Architecture::Graph(graph) = architecture {
                    let places = graph.nodes.iter().flat_map(|node| node.inputs.iter().chain(&node.outputs));
                    assert!(places.chain(&graph.outputs).all(|at| (*at as usize) < graph.tensors.len()));
                }
            }
            let _total: u64 = model.weights.iter().flatten().map(|weight| weight.bytes).sum();
        }
        Err(error) => assert!(error.to_string().len() < 2000, "{error}"),
    }
}

/// Cuts at every `step`-th byte below `reach` and shortly before the end, and turns of every bit of every `step`-th
/// byte below `reach`.
fn torment(bytes: &[u8], reach: usize, step: usize, read: impl Fn(&[u8]) -> Result<Model, ReadError>) {
    let reach = reach.min(bytes.len());
    for end in (0..reach).step_by(step).chain([bytes.len() - 41]) {
        let answer = read(&bytes[..end]);
        assert!(answer.is_err(), "cut at {end}");
        check(&answer);
    }
    let mut turned = bytes.to_vec();
    for at in (0..reach).step_by(step) {
        for bit in 0..8 {
            turned[at] ^= 1 << bit;
            check(&read(&turned));
            turned[at] ^= 1 << bit;
        }
        for byte in [0, 0x7f, 0x80, 0xff] {
            let old = std::mem::replace(&mut turned[at], byte);
            check(&read(&turned));
            turned[at] = old;
        }
    }
}

#[test]
fn configurations() {
    let text = br#"{"model_type":"deepseek_v3","hidden_size":64,"num_hidden_layers":3,"n_routed_experts":8,"q_lora_rank":null,"dtype":"bfloat16"}"#;
    torment(text, text.len(), 1, |bytes| read::config("x", bytes));
}

#[test]
fn safetensors() {
    let bytes = sample("safetensors/small.safetensors");
    torment(&bytes, bytes.len(), 1, |bytes| read::safetensors("x", bytes));
}

#[test]
fn gguf() {
    let bytes = sample("gguf/llama.gguf.gz");
    torment(&bytes, 2400, 1, |bytes| read::gguf("x", bytes));
}

#[test]
fn onnx() {
    let read = |bytes: &[u8]| read::onnx("x", bytes, &Options::default());
    let bytes = sample("onnx/mlp.onnx");
    // A file of fields that is cut between two of them is a shorter file: only cuts within the graph are errors.
    torment(&bytes, bytes.len() - 40, 1, read);
    torment(&sample("onnx/conv.onnx"), 2000, 3, read);
    torment(&sample("onnx/block.onnx"), 19_000, 61, read);
}

#[test]
fn pt2() {
    let read = |bytes: &[u8]| read::pt2("x", bytes);
    let bytes = sample("pt2/mlp_old_layout.pt2");
    torment(&bytes, bytes.len(), 5, read);
    torment(&sample("pt2/joint.pt2"), 7000, 29, read);
    // Past the checksum, which catches all of these: the graph's own text.
    let text = graph_text(&bytes);
    for at in (0..text.len()).step_by(7) {
        for byte in [b'9', b'"', b'-', b'{', b'}'] {
            let mut turned = text.clone();
            turned[at] = byte;
            check(&read(&stored(&turned)));
        }
    }
}

fn graph_text(archive: &[u8]) -> Vec<u8> {
    let find = |what: &[u8], from: usize| {
        from + archive[from..].windows(what.len()).position(|window| window == what).expect("there")
    };
    let begin = find(b"{\"graph_module\"", 0);
    let end = find(b"PK\x03\x04", begin);
    archive[begin..end].to_vec()
}

/// An archive of one stored member.
fn stored(text: &[u8]) -> Vec<u8> {
    const NAME: &[u8] = b"serialized_exported_program.json";
    let mut crc = flate2::Crc::new();
    crc.update(text);
    let size = (text.len() as u32).to_le_bytes();
    let common = [
        &[20, 0, 0, 0, 0, 0, 0, 0, 0, 0][..],
        &crc.sum().to_le_bytes(),
        &size,
        &size,
        &[NAME.len() as u8, 0, 0, 0],
    ]
    .concat();
    let member = [b"PK\x03\x04", &common[..], NAME, text].concat();
    let entry = [b"PK\x01\x02\x14\0", &common[..], &[0; 14], NAME].concat();
    let lengths = [(entry.len() as u32).to_le_bytes(), (member.len() as u32).to_le_bytes()].concat();
    [&member[..], &entry, b"PK\x05\x06\0\0\0\0\x01\0\x01\0", &lengths, &[0, 0]].concat()
}
