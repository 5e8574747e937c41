//! Decoders for tests and benches, by their public numbers.

use gapless_fit::model::{Activation, Attention, Decoder, DecoderStyle, Mla, Moe};

pub(crate) fn llama(
    layers: u64,
    hidden: u64,
    heads: u64,
    kv_heads: u64,
    intermediate: u64,
    vocab: u64,
) -> Decoder {
    Decoder {
        style: DecoderStyle::Llama,
        layers,
        hidden,
        heads,
        kv_heads,
        head_dim: hidden / heads,
        rotary_dim: hidden / heads,
        embed_dim: None,
        intermediate,
        vocab,
        max_positions: 8192,
        tied: false,
        activation: Activation::Silu,
        qkv_bias: false,
        out_bias: false,
        mlp_bias: false,
        embed_dropout: 0.0,
        attention_dropout: 0.0,
        residual_dropout: 0.0,
        attention: Attention::Sdpa,
        sliding_window: None,
        sliding_pattern: 0,
        attention_softcap: false,
        logit_softcap: false,
        post_norm: false,
        parallel_residual: false,
        moe: None,
        mla: None,
        dtype: None,
    }
}

pub(crate) fn llama3_8b() -> Decoder {
    llama(32, 4096, 32, 8, 14336, 128_256)
}

pub(crate) fn llama3_70b() -> Decoder {
    llama(80, 8192, 64, 8, 28672, 128_256)
}

pub(crate) fn deepseek_v3() -> Decoder {
    Decoder {
        style: DecoderStyle::DeepseekV3,
        mla: Some(Mla { q_rank: Some(1536), kv_rank: 512, nope_dim: 128, rope_dim: 64, value_dim: 128 }),
        moe: Some(Moe {
            experts: 256,
            top_k: 8,
            expert_intermediate: 2048,
            shared: 1,
            shared_intermediate: 2048,
            dense_layers: 3,
            groups: 8,
            top_groups: 4,
        }),
        head_dim: 128,
        ..llama(61, 7168, 128, 128, 18432, 129_280)
    }
}
