//! Causal language models, as transformers registers their parameters.

use super::{Buffer, List, Role};
use crate::model::{Decoder, DecoderStyle, Dtype, Moe};

pub(super) fn list(decoder: &Decoder, list: &mut List) {
    use DecoderStyle::*;
    match decoder.style {
        Gpt2 => gpt2(decoder, list),
        Opt => opt(decoder, list),
        GptNeox => neox(decoder, list),
        Llama | Mistral | Mixtral | Qwen2 | Qwen3 | Qwen3Moe | Gemma | Gemma2 | Gemma3 | Phi3
        | DeepseekV2 | DeepseekV3 => llama(decoder, list),
    }
}

fn head(decoder: &Decoder, width: u64, list: &mut List) {
    if !decoder.tied {
        list.push("lm_head.weight", &[decoder.vocab, width], Role::Head);
    }
}

/// Conv1D keeps its weight as (from, to).
fn conv1d(name: &str, from: u64, to: u64, list: &mut List) {
    list.push(format!("{name}.weight"), &[from, to], Role::Matrix);
    list.push(format!("{name}.bias"), &[to], Role::Bias);
}

fn gpt2(decoder: &Decoder, list: &mut List) {
    let (hidden, inner) = (decoder.hidden, decoder.intermediate);
    list.push("transformer.wte.weight", &[decoder.vocab, hidden], Role::Embedding);
    list.push("transformer.wpe.weight", &[decoder.max_positions, hidden], Role::Positions);
    for layer in 0..decoder.layers {
        let block = format!("transformer.h.{layer}");
        list.norm(&format!("{block}.ln_1"), hidden);
        conv1d(&format!("{block}.attn.c_attn"), hidden, 3 * hidden, list);
        conv1d(&format!("{block}.attn.c_proj"), hidden, hidden, list);
        list.norm(&format!("{block}.ln_2"), hidden);
        conv1d(&format!("{block}.mlp.c_fc"), hidden, inner, list);
        conv1d(&format!("{block}.mlp.c_proj"), inner, hidden, list);
    }
    list.norm("transformer.ln_f", hidden);
    head(decoder, hidden, list);
}

fn opt(decoder: &Decoder, list: &mut List) {
    /// The embedding of positions begins with rows that padding would take.
    const OFFSET: u64 = 2;
    let hidden = decoder.hidden;
    let width = decoder.embed_dim.unwrap_or(hidden);
    list.push("model.decoder.embed_tokens.weight", &[decoder.vocab, width], Role::Embedding);
    let positions = [decoder.max_positions + OFFSET, hidden];
    list.push("model.decoder.embed_positions.weight", &positions, Role::Positions);
    if decoder.embed_dim.is_some() {
        list.linear("model.decoder.project_out", hidden, width, false);
        list.linear("model.decoder.project_in", width, hidden, false);
    }
    if !decoder.post_norm {
        list.norm("model.decoder.final_layer_norm", hidden);
    }
    for layer in 0..decoder.layers {
        let block = format!("model.decoder.layers.{layer}");
        for name in ["k_proj", "v_proj", "q_proj"] {
            list.linear(&format!("{block}.self_attn.{name}"), hidden, hidden, decoder.qkv_bias);
        }
        list.linear(&format!("{block}.self_attn.out_proj"), hidden, hidden, decoder.out_bias);
        list.norm(&format!("{block}.self_attn_layer_norm"), hidden);
        list.linear(&format!("{block}.fc1"), hidden, decoder.intermediate, decoder.mlp_bias);
        list.linear(&format!("{block}.fc2"), decoder.intermediate, hidden, decoder.mlp_bias);
        list.norm(&format!("{block}.final_layer_norm"), hidden);
    }
    head(decoder, width, list);
}

fn neox(decoder: &Decoder, list: &mut List) {
    let (hidden, inner) = (decoder.hidden, decoder.intermediate);
    list.push("gpt_neox.embed_in.weight", &[decoder.vocab, hidden], Role::Embedding);
    for layer in 0..decoder.layers {
        let block = format!("gpt_neox.layers.{layer}");
        list.norm(&format!("{block}.input_layernorm"), hidden);
        list.norm(&format!("{block}.post_attention_layernorm"), hidden);
        list.linear(&format!("{block}.attention.query_key_value"), hidden, 3 * hidden, decoder.qkv_bias);
        list.linear(&format!("{block}.attention.dense"), hidden, hidden, decoder.out_bias);
        list.linear(&format!("{block}.mlp.dense_h_to_4h"), hidden, inner, decoder.mlp_bias);
        list.linear(&format!("{block}.mlp.dense_4h_to_h"), inner, hidden, decoder.mlp_bias);
    }
    list.norm("gpt_neox.final_layer_norm", hidden);
    head(decoder, hidden, list);
}

fn llama(decoder: &Decoder, list: &mut List) {
    let hidden = decoder.hidden;
    list.push("model.embed_tokens.weight", &[decoder.vocab, hidden], Role::Embedding);
    for layer in 0..decoder.layers {
        let block = format!("model.layers.{layer}");
        attention(decoder, &format!("{block}.self_attn"), list);
        match &decoder.moe {
            Some(moe) if layer >= moe.dense_layers => experts(decoder, moe, &format!("{block}.mlp"), list),
            _ => feed_forward(decoder, &format!("{block}.mlp"), decoder.intermediate, list),
        }
        list.rms(&format!("{block}.input_layernorm"), hidden);
        list.rms(&format!("{block}.post_attention_layernorm"), hidden);
        if matches!(decoder.style, DecoderStyle::Gemma2 | DecoderStyle::Gemma3) {
            list.rms(&format!("{block}.pre_feedforward_layernorm"), hidden);
            list.rms(&format!("{block}.post_feedforward_layernorm"), hidden);
        }
    }
    list.rms("model.norm", hidden);
    head(decoder, hidden, list);
}

fn attention(decoder: &Decoder, name: &str, list: &mut List) {
    let hidden = decoder.hidden;
    if let Some(mla) = &decoder.mla {
        let queries = decoder.heads * (mla.nope_dim + mla.rope_dim);
        match mla.q_rank {
            None => list.linear(&format!("{name}.q_proj"), hidden, queries, false),
            Some(rank) => {
                list.linear(&format!("{name}.q_a_proj"), hidden, rank, decoder.qkv_bias);
                list.rms(&format!("{name}.q_a_layernorm"), rank);
                list.linear(&format!("{name}.q_b_proj"), rank, queries, false);
            }
        }
        let latent = mla.kv_rank + mla.rope_dim;
        list.linear(&format!("{name}.kv_a_proj_with_mqa"), hidden, latent, decoder.qkv_bias);
        list.rms(&format!("{name}.kv_a_layernorm"), mla.kv_rank);
        let expanded = decoder.heads * (mla.nope_dim + mla.value_dim);
        list.linear(&format!("{name}.kv_b_proj"), mla.kv_rank, expanded, false);
        list.linear(&format!("{name}.o_proj"), decoder.heads * mla.value_dim, hidden, decoder.out_bias);
        return;
    }
    let (queries, keys) = (decoder.heads * decoder.head_dim, decoder.kv_heads * decoder.head_dim);
    if decoder.style == DecoderStyle::Phi3 {
        list.linear(&format!("{name}.o_proj"), queries, hidden, decoder.out_bias);
        list.linear(&format!("{name}.qkv_proj"), hidden, queries + 2 * keys, decoder.qkv_bias);
        return;
    }
    list.linear(&format!("{name}.q_proj"), hidden, queries, decoder.qkv_bias);
    list.linear(&format!("{name}.k_proj"), hidden, keys, decoder.qkv_bias);
    list.linear(&format!("{name}.v_proj"), hidden, keys, decoder.qkv_bias);
    list.linear(&format!("{name}.o_proj"), queries, hidden, decoder.out_bias);
    if decoder.style.has_head_norms() {
        list.rms(&format!("{name}.q_norm"), decoder.head_dim);
        list.rms(&format!("{name}.k_norm"), decoder.head_dim);
    }
}

fn feed_forward(decoder: &Decoder, name: &str, inner: u64, list: &mut List) {
    if decoder.style == DecoderStyle::Phi3 {
        list.linear(&format!("{name}.gate_up_proj"), decoder.hidden, 2 * inner, decoder.mlp_bias);
    } else {
        list.linear(&format!("{name}.gate_proj"), decoder.hidden, inner, decoder.mlp_bias);
        list.linear(&format!("{name}.up_proj"), decoder.hidden, inner, decoder.mlp_bias);
    }
    list.linear(&format!("{name}.down_proj"), inner, decoder.hidden, decoder.mlp_bias);
}

fn experts(decoder: &Decoder, moe: &Moe, name: &str, list: &mut List) {
    let router = |list: &mut List| {
        list.push(format!("{name}.gate.weight"), &[moe.experts, decoder.hidden], Role::Router);
    };
    let first = decoder.style == DecoderStyle::Mixtral;
    if first {
        router(list);
    }
    let inner = moe.expert_intermediate;
    list.push(
        format!("{name}.experts.gate_up_proj"),
        &[moe.experts, 2 * inner, decoder.hidden],
        Role::Expert,
    );
    list.push(format!("{name}.experts.down_proj"), &[moe.experts, decoder.hidden, inner], Role::Expert);
    if !first {
        router(list);
    }
    if moe.shared > 0 {
        feed_forward(decoder, &format!("{name}.shared_experts"), moe.shared_intermediate, list);
    }
}

pub(super) fn buffers(decoder: &Decoder) -> Vec<Buffer> {
    let mut buffers = Vec::new();
    let mut push =
        |name: String, shape: &[u64], dtype| buffers.push(Buffer { name, shape: shape.to_vec(), dtype });
    let gemma = matches!(decoder.style, DecoderStyle::Gemma | DecoderStyle::Gemma2 | DecoderStyle::Gemma3);
    if gemma {
        push("model.embed_tokens.embed_scale".into(), &[], Dtype::F32);
    }
    if let (DecoderStyle::DeepseekV3, Some(moe)) = (decoder.style, &decoder.moe) {
        for layer in moe.dense_layers..decoder.layers {
            push(
                format!("model.layers.{layer}.mlp.gate.e_score_correction_bias"),
                &[moe.experts],
                Dtype::F32,
            );
        }
    }
    let root = if decoder.style == DecoderStyle::GptNeox { "gpt_neox" } else { "model" };
    let rotary = [decoder.rotary_dim / 2];
    if decoder.style == DecoderStyle::Gemma3 {
        let slides = decoder.sliding_window.is_some();
        let full = !slides || (decoder.sliding_pattern > 1 && decoder.layers >= decoder.sliding_pattern);
        // One pair for each kind of layer that there is.
        for (kind, there) in [("sliding_attention", slides), ("full_attention", full)] {
            if there {
                push(format!("{root}.rotary_emb.{kind}_inv_freq"), &rotary, Dtype::F32);
                push(format!("{root}.rotary_emb.{kind}_original_inv_freq"), &rotary, Dtype::F32);
            }
        }
    } else if decoder.rotary_dim > 0 {
        push(format!("{root}.rotary_emb.inv_freq"), &rotary, Dtype::F32);
        push(format!("{root}.rotary_emb.original_inv_freq"), &rotary, Dtype::F32);
    }
    buffers
}
