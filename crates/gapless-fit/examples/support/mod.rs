//! Cells as measured: settings, and the model's numbers from its configuration.

use gapless_fit::eager::{Checkpointing, Mode, Optimizer, Precision, Run};
use gapless_fit::model::{
    Activation, Architecture, Attention, Decoder, DecoderStyle, Encoder, EncoderStyle, Mla, Moe, Vision,
};
use serde_json::Value;

pub fn run_of(cell: &Value) -> Run {
    let text = |key: &str| cell[key].as_str().unwrap_or_default();
    Run {
        mode: if text("mode") == "infer" { Mode::Infer } else { Mode::Train },
        batch: cell["batch"].as_u64().unwrap(),
        length: cell["seq"].as_u64().unwrap(),
        precision: match text("precision") {
            "bf16" => Precision::Bf16,
            "fp16" => Precision::Fp16,
            "amp-bf16" => Precision::AmpBf16,
            _ => Precision::Fp32,
        },
        optimizer: match text("optimizer") {
            "adamw-fused" => Optimizer::AdamWFused,
            "sgd" => Optimizer::Sgd,
            "sgd-momentum" => Optimizer::SgdMomentum,
            "adafactor" => Optimizer::Adafactor,
            "rmsprop" => Optimizer::RmsProp,
            "adagrad" => Optimizer::Adagrad,
            "muon" => Optimizer::Muon,
            _ => Optimizer::AdamW,
        },
        checkpointing: if cell["checkpointing"] == true { Checkpointing::All } else { Checkpointing::None },
        ..Run::default()
    }
}

pub fn architecture(config: &Value) -> Option<Architecture> {
    if let Some(name) = config.as_str() {
        return vision(name);
    }
    let n = |keys: &[&str]| keys.iter().find_map(|k| config[*k].as_u64());
    let kind = config["model_type"].as_str()?;
    let attention = match config["attn"].as_str().or(config["attn_implementation"].as_str()) {
        Some("eager") => Attention::Eager,
        _ => Attention::Sdpa,
    };
    let style = match kind {
        "gpt2" => DecoderStyle::Gpt2,
        "gpt_neox" => DecoderStyle::GptNeox,
        "opt" => DecoderStyle::Opt,
        "llama" => DecoderStyle::Llama,
        "mistral" => DecoderStyle::Mistral,
        "mixtral" => DecoderStyle::Mixtral,
        "qwen2" => DecoderStyle::Qwen2,
        "qwen3" => DecoderStyle::Qwen3,
        "qwen3_moe" => DecoderStyle::Qwen3Moe,
        "gemma" => DecoderStyle::Gemma,
        "gemma2" => DecoderStyle::Gemma2,
        "gemma3_text" => DecoderStyle::Gemma3,
        "phi3" => DecoderStyle::Phi3,
        "deepseek_v3" => DecoderStyle::DeepseekV3,
        "bert" => {
            return Some(Architecture::Encoder(Encoder {
                style: EncoderStyle::Bert,
                layers: n(&["num_hidden_layers"])?,
                hidden: n(&["hidden_size"])?,
                heads: n(&["num_attention_heads"])?,
                intermediate: n(&["intermediate_size"])?,
                vocab: n(&["vocab_size"])?,
                max_positions: n(&["max_position_embeddings"]).unwrap_or(512),
                token_types: 2,
                tied: true,
                activation: Activation::Gelu,
                hidden_dropout: 0.1,
                attention_dropout: 0.1,
                attention,
                dtype: None,
            }));
        }
        "vit" => {
            return Some(Architecture::Vision(Vision::HfVit {
                layers: n(&["num_hidden_layers"])?,
                hidden: n(&["hidden_size"])?,
                heads: n(&["num_attention_heads"])?,
                intermediate: n(&["intermediate_size"])?,
                patch: 16,
                image: 224,
                classes: 2,
            }));
        }
        _ => return None,
    };
    let f = |key: &str, default: f64| config[key].as_f64().unwrap_or(default);
    let hidden = n(&["hidden_size", "n_embd"])?;
    let heads = n(&["num_attention_heads", "n_head"])?;
    let gpt2 = style == DecoderStyle::Gpt2;
    let neox = style == DecoderStyle::GptNeox;
    let opt = style == DecoderStyle::Opt;
    let gemma = matches!(style, DecoderStyle::Gemma | DecoderStyle::Gemma2 | DecoderStyle::Gemma3);
    let tied = config["tie_word_embeddings"].as_bool().unwrap_or(gpt2 || opt || gemma);
    let deepseek = style == DecoderStyle::DeepseekV3;
    Some(Architecture::Decoder(Decoder {
        style,
        layers: n(&["num_hidden_layers", "n_layer"])?,
        hidden,
        heads,
        kv_heads: n(&["num_key_value_heads"]).unwrap_or(heads),
        head_dim: n(&["head_dim"]).unwrap_or(hidden / heads),
        intermediate: n(&["intermediate_size", "ffn_dim"]).unwrap_or(4 * hidden),
        vocab: n(&["vocab_size"]).unwrap_or(50257),
        max_positions: n(&["max_position_embeddings", "n_positions"]).unwrap_or(if opt { 2048 } else { 1024 }),
        tied,
        activation: match style {
            DecoderStyle::Gpt2 => Activation::GeluNew,
            DecoderStyle::GptNeox => Activation::Gelu,
            DecoderStyle::Opt => Activation::Relu,
            _ if gemma => Activation::GeluTanh,
            _ => Activation::Silu,
        },
        qkv_bias: gpt2 || neox || opt || style == DecoderStyle::Qwen2,
        out_bias: gpt2 || neox || opt,
        mlp_bias: gpt2 || neox || opt,
        embed_dropout: f("embd_pdrop", if gpt2 { 0.1 } else { 0.0 }),
        attention_dropout: f("attn_pdrop", if gpt2 { 0.1 } else { 0.0 }),
        residual_dropout: f("resid_pdrop", if gpt2 || opt { 0.1 } else { 0.0 }),
        attention,
        sliding_window: match style {
            DecoderStyle::Mistral => match &config["sliding_window"] {
                Value::Null if config.get("sliding_window").is_none() => Some(4096),
                v => v.as_u64(),
            },
            DecoderStyle::Gemma2 | DecoderStyle::Gemma3 => Some(n(&["sliding_window"]).unwrap_or(4096)),
            _ => None,
        },
        sliding_pattern: match style {
            DecoderStyle::Gemma2 => 2,
            DecoderStyle::Gemma3 => 6,
            _ => 1,
        },
        attention_softcap: style == DecoderStyle::Gemma2,
        logit_softcap: style == DecoderStyle::Gemma2,
        moe: n(&["num_local_experts", "num_experts", "n_routed_experts"]).map(|experts| {
            let inner = n(&["moe_intermediate_size", "intermediate_size"]).unwrap();
            let shared = n(&["n_shared_experts"]).unwrap_or(0);
            Moe {
                experts,
                top_k: n(&["num_experts_per_tok"]).unwrap_or(2),
                expert_intermediate: inner,
                shared,
                shared_intermediate: shared * inner,
                dense_layers: n(&["first_k_dense_replace"]).unwrap_or(0),
                groups: n(&["n_group"]).unwrap_or(1),
                top_groups: n(&["topk_group"]).unwrap_or(1),
            }
        }),
        mla: deepseek.then(|| Mla {
            q_rank: n(&["q_lora_rank"]),
            kv_rank: n(&["kv_lora_rank"]).unwrap(),
            nope_dim: n(&["qk_nope_head_dim"]).unwrap(),
            rope_dim: n(&["qk_rope_head_dim"]).unwrap(),
            value_dim: n(&["v_head_dim"]).unwrap(),
        }),
        dtype: None,
    }))
}

fn vision(name: &str) -> Option<Architecture> {
    let classes = 1000;
    let resnet = |blocks: [u64; 4], bottleneck, base_width| Vision::ResNet {
        blocks: blocks.to_vec(),
        bottleneck,
        groups: 1,
        base_width,
        classes,
    };
    let vit = |layers, hidden, heads, intermediate, patch| Vision::Vit {
        layers,
        hidden,
        heads,
        intermediate,
        patch,
        image: 224,
        classes,
    };
    let convnext = |channels: [u64; 4], blocks: [u64; 4]| Vision::ConvNext {
        channels: channels.to_vec(),
        blocks: blocks.to_vec(),
        classes,
    };
    Some(Architecture::Vision(match name {
        "resnet18" => resnet([2, 2, 2, 2], false, 64),
        "resnet50" => resnet([3, 4, 6, 3], true, 64),
        "resnet101" => resnet([3, 4, 23, 3], true, 64),
        "wide_resnet50_2" => resnet([3, 4, 6, 3], true, 128),
        "vit_b_16" => vit(12, 768, 12, 3072, 16),
        "vit_l_16" => vit(24, 1024, 16, 4096, 16),
        "convnext_tiny" => convnext([96, 192, 384, 768], [3, 3, 9, 3]),
        "convnext_base" => convnext([128, 256, 512, 1024], [3, 3, 27, 3]),
        "vgg16" => Vision::Vgg {
            layers: vec![64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0],
            batch_norm: false,
            classes,
        },
        _ => return None,
    }))
}
