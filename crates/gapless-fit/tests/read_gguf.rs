//! GGUF headers: a file of the reference writer, architectures by llama.cpp's keys, and refusal of false ones.

use flate2::read::GzDecoder;
use gapless_fit::model::{Architecture, Decoder, DecoderStyle, Dtype};
use gapless_fit::{parameters, read};
use std::fs::File;
use std::io::Read;

fn sample() -> Vec<u8> {
    let path = format!("{}/../../testdata/fit/gguf/llama.gguf.gz", env!("CARGO_MANIFEST_DIR"));
    let mut bytes = Vec::new();
    GzDecoder::new(File::open(path).expect("test data")).read_to_end(&mut bytes).expect("gzip");
    bytes
}

/// Writes as the reference writer does.
#[derive(Default)]
struct Writer {
    entries: Vec<Vec<u8>>,
    tensors: Vec<Vec<u8>>,
    data: u64,
}

fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
}

impl Writer {
    fn new(family: &str) -> Writer {
        let mut writer = Writer::default();
        writer
            .entries
            .push([string("general.architecture"), 8u32.to_le_bytes().to_vec(), string(family)].concat());
        writer
    }

    fn int(mut self, key: &str, number: u32) -> Writer {
        self.entries.push([string(key), 4u32.to_le_bytes().to_vec(), number.to_le_bytes().to_vec()].concat());
        self
    }

    fn tensor(mut self, name: &str, shape: &[u64], kind: u32, bytes: u64) -> Writer {
        let mut entry = string(name);
        entry.extend((shape.len() as u32).to_le_bytes());
        for side in shape {
            entry.extend(side.to_le_bytes());
        }
        entry.extend(kind.to_le_bytes());
        entry.extend(self.data.to_le_bytes());
        self.tensors.push(entry);
        self.data += bytes.next_multiple_of(32);
        self
    }

    fn finish(self) -> Vec<u8> {
        let mut bytes = b"GGUF\x03\0\0\0".to_vec();
        bytes.extend((self.tensors.len() as u64).to_le_bytes());
        bytes.extend((self.entries.len() as u64).to_le_bytes());
        bytes.extend(self.entries.concat());
        bytes.extend(self.tensors.concat());
        bytes.resize(bytes.len().next_multiple_of(32) + self.data as usize, 0);
        bytes
    }
}

fn decoder(bytes: &[u8]) -> Decoder {
    match read::gguf("x.gguf", bytes).unwrap_or_else(|error| panic!("{error}")).architecture {
        Some(Architecture::Decoder(decoder)) => decoder,
        other => panic!("{other:?}"),
    }
}

fn refused(bytes: &[u8]) -> String {
    read::gguf("x.gguf", bytes).expect_err("it is refused").to_string()
}

#[test]
fn a_file_of_the_reference_writer_reads() {
    let model = read::gguf("llama.gguf", &sample()).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(model.name, "tiny llama");
    let weights = model.weights.as_ref().expect("weights");
    let bytes = |name: &str| {
        weights.iter().find(|weight| weight.name == name).map(|weight| (weight.shape.clone(), weight.bytes))
    };
    assert_eq!(bytes("token_embd.weight"), Some((vec![40, 256], 40 * 144)));
    assert_eq!(bytes("blk.0.attn_q.weight"), Some((vec![256, 256], 256 * 84)));
    assert_eq!(bytes("blk.0.attn_v.weight"), Some((vec![128, 256], 128 * 110)));
    assert_eq!(bytes("blk.0.ffn_down.weight"), Some((vec![256, 512], 256 * 100)));
    assert_eq!(bytes("output.weight"), Some((vec![40, 256], 40 * 210)));
    assert_eq!(bytes("output_norm.weight"), Some((vec![256], 1024)));
    assert!(weights.iter().all(|weight| (weight.dtype == Some(Dtype::F32)) == weight.name.contains("norm")));
    let llama = decoder(&sample());
    assert_eq!((llama.style, llama.layers, llama.hidden, llama.kv_heads), (DecoderStyle::Llama, 1, 256, 2));
    assert_eq!((llama.vocab, llama.tied, llama.head_dim, llama.intermediate), (40, false, 64, 512));
    let stored: u64 = weights.iter().map(|weight| weight.shape.iter().product::<u64>()).sum();
    assert_eq!(parameters::count(&Architecture::Decoder(llama)), Some(stored));
}

fn base(family: &str) -> Writer {
    Writer::new(family)
        .int(&format!("{family}.block_count"), 2)
        .int(&format!("{family}.embedding_length"), 64)
        .int(&format!("{family}.context_length"), 128)
        .int(&format!("{family}.feed_forward_length"), 96)
        .int(&format!("{family}.attention.head_count"), 4)
        .tensor("token_embd.weight", &[64, 100], 8, 100 * 68)
}

#[test]
fn architectures_follow_the_keys() {
    let mixtral =
        decoder(&base("llama").int("llama.expert_count", 8).int("llama.expert_used_count", 2).finish());
    assert_eq!(mixtral.style, DecoderStyle::Mixtral);
    assert_eq!(mixtral.moe.map(|moe| (moe.experts, moe.top_k, moe.expert_intermediate)), Some((8, 2, 96)));
    let qwen2 = decoder(&base("qwen2").tensor("blk.0.attn_q.bias", &[64], 0, 256).finish());
    assert_eq!(
        (qwen2.style, qwen2.qkv_bias, qwen2.out_bias, qwen2.tied),
        (DecoderStyle::Qwen2, true, false, true)
    );
    let gemma2 = decoder(
        &base("gemma2")
            .int("gemma2.attention.sliding_window", 32)
            .int("gemma2.attention.key_length", 48)
            .finish(),
    );
    assert_eq!((gemma2.sliding_window, gemma2.sliding_pattern, gemma2.head_dim), (Some(32), 2, 48));
    let deepseek = base("deepseek2")
        .int("deepseek2.expert_count", 4)
        .int("deepseek2.expert_used_count", 2)
        .int("deepseek2.expert_feed_forward_length", 24)
        .int("deepseek2.expert_shared_count", 1)
        .int("deepseek2.leading_dense_block_count", 1)
        .int("deepseek2.attention.kv_lora_rank", 32)
        .int("deepseek2.attention.key_length", 24)
        .int("deepseek2.attention.value_length", 16)
        .int("deepseek2.rope.dimension_count", 8)
        .tensor("blk.1.exp_probs_b.bias", &[4], 0, 16)
        .finish();
    let deepseek = decoder(&deepseek);
    let mla = deepseek.mla.expect("latent attention");
    assert_eq!(deepseek.style, DecoderStyle::DeepseekV3);
    assert_eq!((mla.q_rank, mla.kv_rank, mla.nope_dim, mla.rope_dim, mla.value_dim), (None, 32, 16, 8, 16));
    let model = read::gguf("x.gguf", &base("newthing").finish()).expect("reads");
    assert!(
        model.architecture.is_none() && model.notes[0].contains("\"newthing\" is not known"),
        "{:?}",
        model.notes
    );
}

#[test]
fn headers_that_lie_are_refused() {
    let good = base("llama").finish();
    let patched = |at: usize, bytes: &[u8]| {
        let mut bad = good.clone();
        bad[at..at + bytes.len()].copy_from_slice(bytes);
        refused(&bad)
    };
    assert!(patched(0, b"GGUX").contains("does not begin with GGUF"));
    assert!(patched(4, &1u32.to_le_bytes()).contains("version 1 is not read"));
    assert!(patched(4, &3u32.to_be_bytes()).contains("big-endian"));
    assert!(patched(4, &9u32.to_le_bytes()).contains("version 9 is not known"));
    assert!(
        patched(8, &u64::MAX.to_le_bytes())
            .contains("byte 8: 18446744073709551615 tensors: the limit is 1000000")
    );
    assert!(patched(8, &900_000u64.to_le_bytes()).contains("the file ends at byte"));
    assert!(patched(16, &900_000u64.to_le_bytes()).contains("900000 metadata entries"));
    assert!(patched(24, &u64::MAX.to_le_bytes()).contains("in the middle of a key of the metadata"));
    assert!(refused(&good[..good.len() - 32]).contains("the table needs"));
    for (bytes, want) in [
        (base("llama").tensor("x", &[33], 8, 0).finish(), "rows of 33 are not whole blocks of Q8_0"),
        (base("llama").tensor("x", &[1], 99, 0).finish(), "has the type 99"),
        (base("llama").tensor("x", &[1; 5], 0, 0).finish(), "has 5 sides"),
        (base("llama").tensor("x", &[1 << 40, 1 << 40], 0, 0).finish(), "more elements than can be counted"),
        (base("llama").tensor("token_embd.weight", &[1], 0, 4).finish(), "stands twice in the table"),
        (base("llama").int("llama.block_count", 2).finish(), "stands twice in the metadata"),
        (base("llama").tensor("x", &[64], 0, 0).tensor("y", &[64], 0, 256).finish(), "overlaps"),
        (Writer::new("llama").finish(), "key \"llama.block_count\": is missing"),
        (base("llama").int("llama.attention.head_count_kv", 3).finish(), "do not share"),
        (
            base("llama").int("llama.expert_count", 2).int("llama.expert_used_count", 5).finish(),
            "5 of 2 experts",
        ),
        (base("llama").int("general.alignment", 3).finish(), "must be a power of two"),
    ] {
        let error = refused(&bytes);
        assert!(error.contains(want), "{want}: {error}");
    }
}
