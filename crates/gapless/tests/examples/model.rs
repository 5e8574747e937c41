//! A small model for examples that name a folder `model/`: a Llama of two layers in bf16, in two safetensors shards
//! with an index and a `config.json`. It is the same in every run.

use serde_json::{Map, Value, json};
use std::fs;
use std::path::Path;

const HIDDEN: usize = 512;
const INTERMEDIATE: usize = 1024;
const VOCABULARY: usize = 1024;

pub(crate) fn write(folder: &Path) {
    fs::create_dir_all(folder).expect("made");
    let mut map = Map::new();
    for shard in 0..2 {
        let name = format!("model-{:05}-of-00002.safetensors", shard + 1);
        let mut tensors: Vec<(String, [usize; 2])> = Vec::new();
        match shard {
            0 => tensors.push(("model.embed_tokens.weight".to_owned(), [VOCABULARY, HIDDEN])),
            _ => tensors.push(("lm_head.weight".to_owned(), [VOCABULARY, HIDDEN])),
        }
        for (part, shape) in [
            ("self_attn.q_proj", [HIDDEN, HIDDEN]),
            ("self_attn.k_proj", [HIDDEN, HIDDEN]),
            ("self_attn.v_proj", [HIDDEN, HIDDEN]),
            ("self_attn.o_proj", [HIDDEN, HIDDEN]),
            ("mlp.gate_proj", [INTERMEDIATE, HIDDEN]),
            ("mlp.up_proj", [INTERMEDIATE, HIDDEN]),
            ("mlp.down_proj", [HIDDEN, INTERMEDIATE]),
        ] {
            tensors.push((format!("model.layers.{shard}.{part}.weight"), shape));
        }
        map.extend(tensors.iter().map(|(tensor, _)| (tensor.clone(), json!(name))));
        fs::write(folder.join(name), file(&tensors, shard + 1)).expect("written");
    }
    let index = json!({ "metadata": {}, "weight_map": map });
    fs::write(folder.join("model.safetensors.index.json"), index.to_string()).expect("written");
    let config = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16",
        "hidden_size": HIDDEN, "intermediate_size": INTERMEDIATE, "vocab_size": VOCABULARY,
        "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 8, "rms_norm_eps": 1e-6,
        "max_position_embeddings": 2048, "tie_word_embeddings": false,
    });
    fs::write(folder.join("config.json"), config.to_string()).expect("written");
}

/// A safetensors file: the header's length, the header, the values.
fn file(tensors: &[(String, [usize; 2])], seed: u64) -> Vec<u8> {
    let mut header = Map::new();
    let mut end = 0;
    for (name, shape) in tensors {
        let begin = end;
        end += shape[0] * shape[1] * 2;
        let entry = json!({ "dtype": "BF16", "shape": shape, "data_offsets": [begin, end] });
        header.insert(name.clone(), entry);
    }
    let mut text = Value::Object(header).to_string();
    text.push_str(&" ".repeat(text.len().wrapping_neg() % 8));
    let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
    bytes.extend(text.as_bytes());
    let mut state = seed;
    bytes.extend((0..end / 2).flat_map(|_| value(&mut state).to_le_bytes()));
    bytes
}

/// A bf16 near to a normal distribution of deviation 0.02: the sum of four uniform numbers.
fn value(state: &mut u64) -> u16 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    let sum: u32 = (0..4).map(|part| (*state >> (part * 12 + 12) & 0xfff) as u32).sum();
    let number = (f64::from(sum) / 4096.0 - 2.0) * 0.0346;
    ((number as f32).to_bits() >> 16) as u16
}
