//! The bodies of the fuzz targets. The promise of each is no panic and no runaway memory.
//!
//! `crates/gapless/tests/mutations.rs` has this file as a module and runs the bodies too, with a stable compiler and
//! without libFuzzer.

use gapless_fit::model::Model;
use gapless_fit::read::{Options, ReadError};
use gapless_weights::codec::{Decoder, Kind, Path};
use std::io::Write;

/// A target: its name, its body, and files of `testdata` with the bytes of their heads that the body writes itself.
pub type Target = (&'static str, fn(&[u8]), &'static [&'static str], usize);

pub const TARGETS: &[Target] = &[
    ("container", container, &["cpython/torch_2_0.pickle", "zstd/fast.zst", "zstd/level-3-checksum.zst"], 0),
    ("fit_config", fit_config, &["fit/onnx/shapes.json"], 0),
    ("fit_gguf", fit_gguf, &["fit/gguf/llama.gguf.gz"], 8),
    ("fit_onnx", fit_onnx, &["fit/onnx/mlp.onnx", "fit/onnx/conv.onnx"], 0),
    ("fit_pt2", fit_pt2, &["fit/pt2/mlp.pt2", "fit/pt2/nograd.pt2"], 0),
    ("fit_safetensors", fit_safetensors, &["fit/safetensors/small.safetensors"], 0),
    ("gtrace", gtrace, &["hostile/gtrace_garbage"], 6),
    ("hlo", hlo, &["xla/decode_cache.hlo.pb.gz"], 0),
    ("json", json, &["hostile/json_wrong_size"], 1),
    ("minimalloc", minimalloc, &["hostile/minimalloc_bad_time"], 20),
    ("page", page, &["sizes.csv"], 0),
    ("pickle", pickle, &["cpython/torch_1_13.pickle", "cpython/torch_2_0.pickle"], 1),
    ("rmm", rmm, &["hostile/rmm_bad_size"], 39),
    ("weights", weights, &["weights/streams.bin"], 0),
];

/// Reads, and rebuilds the history of what was accepted.
fn read(bytes: &[u8]) {
    if let Ok(trace) = gapless_ingest::read(bytes, "fuzz", &gapless_ingest::ReadOptions::default()) {
        for device in &trace.devices {
            let _ = gapless_trace::History::rebuild(&trace, device);
        }
    }
}

fn behind(head: &[u8], bytes: &[u8]) -> Vec<u8> {
    [head, bytes].concat()
}

/// A field of a protocol buffer: its key, its length and its bytes.
fn field(key: &[u8], bytes: &[u8]) -> Vec<u8> {
    let mut file = key.to_vec();
    let mut length = bytes.len();
    while length >= 0x80 {
        file.push(length as u8 | 0x80);
        length >>= 7;
    }
    file.push(length as u8);
    behind(&file, bytes)
}

/// Compressed files: the bytes as they are, behind the magic numbers, and truly compressed by gzip.
pub fn container(bytes: &[u8]) {
    read(bytes);
    for magic in [&[0x1f, 0x8b, 8, 0][..], &[0x28, 0xb5, 0x2f, 0xfd]] {
        read(&behind(magic, bytes));
    }
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    if let Ok(file) = gzip.write_all(bytes).and_then(|()| gzip.finish()) {
        read(&file);
    }
}

/// The own format: the bytes follow its magic.
pub fn gtrace(bytes: &[u8]) {
    read(&behind(b"GTRACE", bytes));
}

/// XLA's modules: whole files of a corpus, and the message of buffers behind a module without instructions.
pub fn hlo(bytes: &[u8]) {
    read(bytes);
    read(&field(b"\x0a\x07\x0a\x05jit_f\x1a", bytes));
}

/// Snapshots as JSON: the bytes follow the opening of one.
pub fn json(bytes: &[u8]) {
    read(&behind(b"{\"device_traces\": [[", bytes));
    read(&behind(b"{", bytes));
}

/// MiniMalloc CSV: the bytes follow its header.
pub fn minimalloc(bytes: &[u8]) {
    read(&behind(b"id,lower,upper,size,offset,gaps\n", bytes));
}

/// RMM's CSV log: the bytes follow its header.
pub fn rmm(bytes: &[u8]) {
    read(&behind(b"Thread,Time,Action,Pointer,Size,Stream\n", bytes));
}

/// Pickles: the bytes follow the header of a protocol.
pub fn pickle(bytes: &[u8]) {
    let Some((first, rest)) = bytes.split_first() else { return };
    read(&behind(&[0x80, 2 + first % 4], rest));
}

/// Statistics files: the bytes are a body, sealed as a writer would, so that the code behind the checksum is reached;
/// and a whole file.
pub fn page(bytes: &[u8]) {
    let _ = gapless_stats::layout::decode(bytes);
    if let Ok(page) = gapless_stats::layout::decode(&gapless_stats::layout::seal(bytes, 1)) {
        for card in &page.cards {
            assert!((0.0..=1.0).contains(&card.fragmentation()));
            assert!(card.allocations_per_second() >= 0.0);
        }
    }
}

/// Chunks of every kind, on every path: nothing out of bounds.
pub fn weights(bytes: &[u8]) {
    const KINDS: [Kind; 7] =
        [Kind::Bf16, Kind::Fp16, Kind::Fp32, Kind::One, Kind::Two, Kind::Four, Kind::Eight];
    let [choice, count @ ..] = bytes.first_chunk::<3>().copied().unwrap_or_default();
    let Some(chunk) = bytes.get(3..) else { return };
    let kind = KINDS[usize::from(choice) % KINDS.len()];
    let count = usize::from(u16::from_le_bytes([count[0], count[1]]));
    let mut out = vec![0; count * kind.width()];
    for path in Path::all() {
        let _ = Decoder::new(kind, path, false).chunk(chunk, &mut out);
    }
}

fn check(answer: Result<Model, ReadError>) {
    if let Some(architecture) = answer.ok().and_then(|model| model.architecture) {
        assert!(gapless_fit::parameters::count(&architecture).is_some());
        let _buffers = gapless_fit::parameters::buffers(&architecture);
    }
}

/// Configurations: the bytes follow the opening of one.
pub fn fit_config(bytes: &[u8]) {
    check(gapless_fit::read::config("fuzz", &behind(b"{\"model_type\": \"", bytes)));
    check(gapless_fit::read::config("fuzz", bytes));
}

/// GGUF: the bytes follow the magic and the version.
pub fn fit_gguf(bytes: &[u8]) {
    check(gapless_fit::read::gguf("fuzz", &behind(b"GGUF\x03\0\0\0", bytes)));
}

/// ONNX: the bytes are a model, and then the graph of one.
pub fn fit_onnx(bytes: &[u8]) {
    let options = Options::default();
    check(gapless_fit::read::onnx("fuzz", bytes, &options));
    check(gapless_fit::read::onnx("fuzz", &field(&[0x3a], bytes), &options));
}

/// Archives of torch.export: the bytes are an archive, and then the program of one that is whole.
pub fn fit_pt2(bytes: &[u8]) {
    check(gapless_fit::read::pt2("fuzz", bytes));
    check(gapless_fit::read::pt2("fuzz", &archive(bytes)));
}

/// Safetensors: the bytes are a header of their own length, and then a file.
pub fn fit_safetensors(bytes: &[u8]) {
    check(gapless_fit::read::safetensors("fuzz", &behind(&(bytes.len() as u64).to_le_bytes(), bytes)));
    check(gapless_fit::read::safetensors("fuzz", bytes));
}

/// An archive whose one member, stored, is this program.
fn archive(text: &[u8]) -> Vec<u8> {
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
