//! Causal language models: the values that transformers' configuration classes would make of the keys, their defaults
//! included (5.17).

use super::{Outcome, attention, dtype};
use crate::model::{Activation, Decoder, DecoderStyle, Mla, Moe};
use crate::read::error::Fault;
use crate::read::fields::Fields;

/// The values of a family's class for missing keys.
struct Defaults {
    vocab: u64,
    hidden: u64,
    intermediate: u64,
    layers: u64,
    heads: u64,
    /// 0: as many as there are heads.
    kv_heads: u64,
    /// 0: the hidden size divided among the heads.
    head_dim: u64,
    positions: u64,
    tied: bool,
}

const LLAMA: Defaults = Defaults {
    vocab: 32000,
    hidden: 4096,
    intermediate: 11008,
    layers: 32,
    heads: 32,
    kv_heads: 0,
    head_dim: 0,
    positions: 2048,
    tied: false,
};
const MISTRAL: Defaults = Defaults { intermediate: 14336, kv_heads: 8, positions: 4096 * 32, ..LLAMA };
const QWEN2: Defaults =
    Defaults { vocab: 151_936, intermediate: 22016, kv_heads: 32, positions: 32768, ..LLAMA };
const QWEN3: Defaults = Defaults { head_dim: 128, ..QWEN2 };
const QWEN3_MOE: Defaults =
    Defaults { hidden: 2048, intermediate: 6144, layers: 24, kv_heads: 4, head_dim: 0, ..QWEN2 };
const GEMMA: Defaults = Defaults {
    vocab: 256_000,
    hidden: 3072,
    intermediate: 24576,
    layers: 28,
    heads: 16,
    kv_heads: 16,
    head_dim: 256,
    positions: 8192,
    tied: true,
};
const GEMMA2: Defaults =
    Defaults { hidden: 2304, intermediate: 9216, layers: 26, heads: 8, kv_heads: 4, ..GEMMA };
const GEMMA3: Defaults = Defaults { vocab: 262_208, positions: 131_072, ..GEMMA2 };
const PHI3: Defaults = Defaults { vocab: 32064, hidden: 3072, intermediate: 8192, positions: 4096, ..LLAMA };
const NEOX: Defaults = Defaults {
    vocab: 50432,
    hidden: 6144,
    intermediate: 24576,
    layers: 44,
    heads: 64,
    kv_heads: 0,
    head_dim: 0,
    positions: 2048,
    tied: false,
};
const DEEPSEEK_V2: Defaults = Defaults { vocab: 102_400, ..LLAMA };
const DEEPSEEK_V3: Defaults = Defaults {
    vocab: 129_280,
    hidden: 7168,
    intermediate: 18432,
    layers: 61,
    heads: 128,
    kv_heads: 128,
    head_dim: 0,
    positions: 4096,
    tied: false,
};

/// The style of a `model_type`, if it is a decoder's.
pub(crate) fn style(model_type: &str) -> Option<DecoderStyle> {
    Some(match model_type {
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
        "deepseek_v2" => DecoderStyle::DeepseekV2,
        "deepseek_v3" | "kimi_k2" => DecoderStyle::DeepseekV3,
        _ => return None,
    })
}

/// The decoder that `fields` describe.
pub(crate) fn read(style: DecoderStyle, fields: Fields<'_>, notes: &mut Vec<String>) -> Outcome<Decoder> {
    let mut decoder = match style {
        DecoderStyle::Gpt2 => gpt2(fields)?,
        DecoderStyle::Opt => opt(fields)?,
        DecoderStyle::GptNeox => neox(fields)?,
        DecoderStyle::DeepseekV2 | DecoderStyle::DeepseekV3 => deepseek(style, fields)?,
        _ => llama_like(style, fields, notes)?,
    };
    decoder.attention = attention(fields, notes)?;
    decoder.dtype = dtype(fields, notes)?;
    check(&decoder, fields)?;
    Ok(decoder)
}

fn check(decoder: &Decoder, fields: Fields<'_>) -> Outcome<()> {
    let key = if fields.has("n_head") { "n_head" } else { "num_attention_heads" };
    let one_to_one = matches!(decoder.style, DecoderStyle::Gpt2 | DecoderStyle::Opt | DecoderStyle::GptNeox);
    if one_to_one && !decoder.hidden.is_multiple_of(decoder.heads) {
        return fields
            .fault(key, format!("{} heads do not divide the hidden size {}", decoder.heads, decoder.hidden));
    }
    if decoder.mla.is_none() && !decoder.heads.is_multiple_of(decoder.kv_heads) {
        return fields.fault(
            "num_key_value_heads",
            format!(
                "{} heads cannot share {} heads of keys and values evenly",
                decoder.heads, decoder.kv_heads
            ),
        );
    }
    if decoder.head_dim == 0 {
        return fields
            .fault(key, format!("{} heads leave none of the hidden size {}", decoder.heads, decoder.hidden));
    }
    if let Some(moe) = &decoder.moe
        && moe.top_k > moe.experts
    {
        return fields.fault("num_experts_per_tok", format!("{} of {} experts", moe.top_k, moe.experts));
    }
    Ok(())
}

/// The keys that most families share.
fn base(style: DecoderStyle, fields: Fields<'_>, defaults: &Defaults) -> Outcome<Decoder> {
    let hidden = fields.size("hidden_size", defaults.hidden)?;
    let heads = fields.size("num_attention_heads", defaults.heads)?;
    let kv_heads = match fields.get("num_key_value_heads") {
        Some(value) if value.is_null() => heads,
        Some(_) => fields.size("num_key_value_heads", heads)?,
        None if defaults.kv_heads == 0 => heads,
        None => defaults.kv_heads,
    };
    let head_dim = match fields.optional("head_dim")? {
        Some(0) | None if defaults.head_dim == 0 => hidden / heads,
        Some(head_dim) => head_dim,
        None => defaults.head_dim,
    };
    Ok(Decoder {
        style,
        layers: fields.number_of(&["num_hidden_layers"], defaults.layers)?,
        hidden,
        heads,
        kv_heads,
        head_dim,
        rotary_dim: head_dim,
        embed_dim: None,
        intermediate: fields.size("intermediate_size", defaults.intermediate)?,
        vocab: fields.size("vocab_size", defaults.vocab)?,
        max_positions: fields.size("max_position_embeddings", defaults.positions)?,
        tied: fields.flag("tie_word_embeddings", defaults.tied)?,
        activation: Activation::Silu,
        qkv_bias: false,
        out_bias: false,
        mlp_bias: false,
        post_norm: false,
        parallel_residual: false,
        embed_dropout: 0.0,
        attention_dropout: fields.share("attention_dropout", 0.0)?,
        residual_dropout: 0.0,
        attention: crate::model::Attention::Sdpa,
        sliding_window: None,
        sliding_pattern: 1,
        attention_softcap: false,
        logit_softcap: false,
        moe: None,
        mla: None,
        dtype: None,
    })
}

fn llama_like(style: DecoderStyle, fields: Fields<'_>, notes: &mut Vec<String>) -> Outcome<Decoder> {
    let defaults = match style {
        DecoderStyle::Mistral | DecoderStyle::Mixtral => MISTRAL,
        DecoderStyle::Qwen2 => QWEN2,
        DecoderStyle::Qwen3 => QWEN3,
        DecoderStyle::Qwen3Moe => QWEN3_MOE,
        DecoderStyle::Gemma => GEMMA,
        DecoderStyle::Gemma2 => GEMMA2,
        DecoderStyle::Gemma3 => GEMMA3,
        DecoderStyle::Phi3 => PHI3,
        _ => LLAMA,
    };
    let mut decoder = base(style, fields, &defaults)?;
    decoder.activation = match style {
        DecoderStyle::Gemma2 | DecoderStyle::Gemma3 => {
            fields.activation("hidden_activation", Activation::GeluTanh)?
        }
        // Gemma's first checkpoints say "gelu" and mean the tanh form; transformers reads hidden_act alone.
        DecoderStyle::Gemma => fields.activation("hidden_act", Activation::GeluTanh)?,
        _ => fields.activation("hidden_act", Activation::Silu)?,
    };
    match style {
        DecoderStyle::Llama => {
            decoder.qkv_bias = fields.flag("attention_bias", false)?;
            decoder.out_bias = decoder.qkv_bias;
            decoder.mlp_bias = fields.flag("mlp_bias", false)?;
        }
        DecoderStyle::Qwen2 => decoder.qkv_bias = true,
        DecoderStyle::Qwen3
        | DecoderStyle::Qwen3Moe
        | DecoderStyle::Gemma
        | DecoderStyle::Gemma2
        | DecoderStyle::Gemma3 => {
            decoder.qkv_bias = fields.flag("attention_bias", false)?;
            decoder.out_bias = decoder.qkv_bias;
        }
        DecoderStyle::Phi3 => {
            decoder.residual_dropout = fields.share("resid_pdrop", 0.0)?;
            decoder.rotary_dim = rotary(fields, decoder.head_dim, "partial_rotary_factor", 1.0)?;
        }
        _ => {}
    }
    if matches!(style, DecoderStyle::Gemma2 | DecoderStyle::Gemma3) {
        let cap = |key| match fields.get(key) {
            None => style == DecoderStyle::Gemma2,
            Some(value) => !value.is_null(),
        };
        decoder.attention_softcap = cap("attn_logit_softcapping");
        decoder.logit_softcap = cap("final_logit_softcapping");
    }
    experts(&mut decoder, fields)?;
    sliding(&mut decoder, fields, notes)?;
    Ok(decoder)
}

fn experts(decoder: &mut Decoder, fields: Fields<'_>) -> Outcome<()> {
    decoder.moe = match decoder.style {
        DecoderStyle::Mixtral => Some(Moe {
            experts: fields.number_of(&["num_local_experts", "num_experts"], 8)?,
            top_k: fields.size("num_experts_per_tok", 2)?,
            expert_intermediate: decoder.intermediate,
            shared: 0,
            shared_intermediate: 0,
            dense_layers: 0,
            groups: 1,
            top_groups: 1,
        }),
        DecoderStyle::Qwen3Moe => Some(Moe {
            experts: fields.number_of(&["num_experts", "num_local_experts"], 128)?,
            top_k: fields.size("num_experts_per_tok", 8)?,
            expert_intermediate: fields.size("moe_intermediate_size", 768)?,
            shared: 0,
            shared_intermediate: 0,
            dense_layers: leading_dense(decoder.layers, fields)?,
            groups: 1,
            top_groups: 1,
        }),
        _ => None,
    };
    Ok(())
}

/// The number of Qwen 3's dense layers, if they are the first ones.
fn leading_dense(layers: u64, fields: Fields<'_>) -> Outcome<u64> {
    let step = fields.size("decoder_sparse_step", 1)?;
    let listed = fields.sizes("mlp_only_layers")?.unwrap_or_default();
    let dense = |layer: u64| listed.contains(&layer) || !(layer + 1).is_multiple_of(step);
    let leading = (0..layers).take_while(|layer| dense(*layer)).count() as u64;
    if (leading..layers).any(dense) {
        let key = if step == 1 { "mlp_only_layers" } else { "decoder_sparse_step" };
        return fields.fault(key, "dense layers after layers with experts are not modelled");
    }
    Ok(leading)
}

fn sliding(decoder: &mut Decoder, fields: Fields<'_>, notes: &mut Vec<String>) -> Outcome<()> {
    let window = match (decoder.style, fields.get("sliding_window")) {
        (DecoderStyle::Mistral | DecoderStyle::Gemma2 | DecoderStyle::Gemma3, None) => Some(4096),
        (DecoderStyle::Qwen2 | DecoderStyle::Qwen3 | DecoderStyle::Qwen3Moe, given) => {
            if !fields.flag("use_sliding_window", false)? {
                return Ok(());
            }
            if given.is_none() { Some(4096) } else { fields.optional("sliding_window")? }
        }
        (
            DecoderStyle::Mistral
            | DecoderStyle::Mixtral
            | DecoderStyle::Phi3
            | DecoderStyle::Gemma2
            | DecoderStyle::Gemma3,
            _,
        ) => fields.optional("sliding_window")?,
        _ => return Ok(()),
    };
    let Some(window) = window.filter(|window| *window > 0) else { return Ok(()) };
    let kinds: Option<Vec<bool>> = fields
        .get("layer_types")
        .and_then(|kinds| kinds.list())
        .map(|kinds| kinds.iter().map(|kind| kind.text() == Some("sliding_attention")).collect());
    let layers = decoder.layers;
    let slides: Vec<bool> = match (decoder.style, kinds) {
        (
            DecoderStyle::Qwen2 | DecoderStyle::Qwen3 | DecoderStyle::Gemma2 | DecoderStyle::Gemma3,
            Some(kinds),
        ) => {
            if kinds.len() as u64 != layers {
                return fields.fault("layer_types", format!("{} entries for {layers} layers", kinds.len()));
            }
            kinds
        }
        (DecoderStyle::Qwen2 | DecoderStyle::Qwen3, None) => {
            let from = fields.optional("max_window_layers")?.unwrap_or(28);
            (0..layers).map(|layer| layer >= from).collect()
        }
        (DecoderStyle::Gemma2, None) => (0..layers).map(|layer| (layer + 1) % 2 != 0).collect(),
        (DecoderStyle::Gemma3, None) => {
            let pattern = fields.size("sliding_window_pattern", 6)?;
            (0..layers).map(|layer| (layer + 1) % pattern != 0).collect()
        }
        _ => vec![true; layers as usize],
    };
    if !slides.contains(&true) {
        return Ok(());
    }
    // A stack that ends before its first full layer has the pattern of any longer one.
    let first_full = slides.iter().position(|slides| !slides).map_or(1, |at| at as u64 + 1);
    let regular = |pattern: u64| {
        (1u64..).zip(&slides).all(|(layer, slides)| *slides == (pattern == 1 || layer % pattern != 0))
    };
    if regular(first_full) && (first_full > 1 || slides[0]) {
        decoder.sliding_window = Some(window);
        decoder.sliding_pattern = first_full;
    } else {
        notes.push(
            "the layers that slide follow no regular pattern: the cache is counted as if every layer kept all tokens"
                .into(),
        );
    }
    Ok(())
}

/// Elements of a head that rotate.
fn rotary(fields: Fields<'_>, head_dim: u64, key: &str, default: f64) -> Outcome<u64> {
    let nested = ["rope_parameters", "rope_scaling"]
        .iter()
        .filter_map(|outer| fields.get(outer))
        .find(|inner| inner.get("partial_rotary_factor").is_some());
    let share = match nested {
        Some(inner) => Fields(inner).share("partial_rotary_factor", default)?,
        None => fields.share(key, default)?,
    };
    Ok((head_dim as f64 * share) as u64)
}

fn gpt2(fields: Fields<'_>) -> Outcome<Decoder> {
    let hidden = fields.size_of(&["n_embd", "hidden_size"], 768)?;
    let heads = fields.size_of(&["n_head", "num_attention_heads"], 12)?;
    let common = base(DecoderStyle::Gpt2, fields, &LLAMA)?;
    if fields.flag("add_cross_attention", false)? {
        return fields.fault("add_cross_attention", "cross attention is not modelled");
    }
    Ok(Decoder {
        layers: fields.number_of(&["n_layer", "num_hidden_layers"], 12)?,
        hidden,
        heads,
        kv_heads: heads,
        head_dim: hidden / heads,
        rotary_dim: 0,
        intermediate: fields.optional_size("n_inner")?.unwrap_or(4 * hidden),
        vocab: fields.size("vocab_size", 50257)?,
        max_positions: fields.size_of(&["n_positions", "max_position_embeddings", "n_ctx"], 1024)?,
        tied: fields.flag("tie_word_embeddings", true)?,
        activation: fields.activation("activation_function", Activation::GeluNew)?,
        qkv_bias: true,
        out_bias: true,
        mlp_bias: true,
        embed_dropout: fields.share("embd_pdrop", 0.1)?,
        attention_dropout: fields.share("attn_pdrop", 0.1)?,
        residual_dropout: fields.share("resid_pdrop", 0.1)?,
        ..common
    })
}

fn opt(fields: Fields<'_>) -> Outcome<Decoder> {
    let hidden = fields.size("hidden_size", 768)?;
    let heads = fields.size("num_attention_heads", 12)?;
    let common = base(DecoderStyle::Opt, fields, &LLAMA)?;
    let bias = fields.flag("enable_bias", true)?;
    if !fields.flag("layer_norm_elementwise_affine", true)? {
        return fields.fault("layer_norm_elementwise_affine", "norms without weights are not modelled");
    }
    let before = fields.flag("do_layer_norm_before", true)?;
    if before && fields.flag("_remove_final_layer_norm", false)? {
        return fields.fault("_remove_final_layer_norm", "a stack without its last norm is not modelled");
    }
    Ok(Decoder {
        layers: fields.number_of(&["num_hidden_layers"], 12)?,
        hidden,
        heads,
        kv_heads: heads,
        head_dim: hidden / heads,
        rotary_dim: 0,
        embed_dim: fields.optional_size("word_embed_proj_dim")?.filter(|width| *width != hidden),
        intermediate: fields.size("ffn_dim", 3072)?,
        vocab: fields.size("vocab_size", 50272)?,
        max_positions: fields.size("max_position_embeddings", 2048)?,
        tied: fields.flag("tie_word_embeddings", true)?,
        activation: fields.activation("activation_function", Activation::Relu)?,
        qkv_bias: bias,
        out_bias: bias,
        mlp_bias: bias,
        post_norm: !before,
        residual_dropout: fields.share("dropout", 0.1)?,
        ..common
    })
}

fn neox(fields: Fields<'_>) -> Outcome<Decoder> {
    let common = base(DecoderStyle::GptNeox, fields, &NEOX)?;
    let bias = fields.flag("attention_bias", true)?;
    let dropout = fields.share("hidden_dropout", 0.0)?;
    let head_dim = common.hidden / common.heads;
    Ok(Decoder {
        kv_heads: common.heads,
        head_dim,
        rotary_dim: rotary(fields, head_dim, "rotary_pct", 0.25)?,
        activation: fields.activation("hidden_act", Activation::Gelu)?,
        qkv_bias: bias,
        out_bias: bias,
        mlp_bias: true,
        parallel_residual: fields.flag("use_parallel_residual", true)?,
        embed_dropout: dropout,
        residual_dropout: dropout,
        ..common
    })
}

fn deepseek(style: DecoderStyle, fields: Fields<'_>) -> Outcome<Decoder> {
    let third = style == DecoderStyle::DeepseekV3;
    let common = base(style, fields, if third { &DEEPSEEK_V3 } else { &DEEPSEEK_V2 })?;
    let q_rank = match fields.get("q_lora_rank") {
        None => Some(1536),
        Some(_) => fields.optional_size("q_lora_rank")?,
    };
    let mla = Mla {
        q_rank,
        kv_rank: fields.size("kv_lora_rank", 512)?,
        nope_dim: fields.size("qk_nope_head_dim", 128)?,
        rope_dim: fields.size("qk_rope_head_dim", 64)?,
        value_dim: fields.size("v_head_dim", 128)?,
    };
    let expert = fields.size("moe_intermediate_size", if third { 2048 } else { 1407 })?;
    if !mla.rope_dim.is_multiple_of(2) {
        return fields.fault("qk_rope_head_dim", format!("{} elements cannot turn in pairs", mla.rope_dim));
    }
    let shared = fields.size("n_shared_experts", if third { 1 } else { 2 })?;
    let top_k = match (fields.optional_size("num_experts_per_tok")?, third) {
        (Some(top_k), _) => top_k,
        (None, true) => 8,
        (None, false) => return fields.fault("num_experts_per_tok", "is missing, and has no default"),
    };
    let group = |key, default| -> Result<u64, Fault> { Ok(fields.optional(key)?.unwrap_or(default).max(1)) };
    let bias = fields.flag("attention_bias", false)?;
    let dense = fields.optional("first_k_dense_replace")?.unwrap_or(if third { 3 } else { 0 });
    Ok(Decoder {
        kv_heads: common.heads,
        head_dim: mla.nope_dim + mla.rope_dim,
        rotary_dim: mla.rope_dim,
        activation: fields.activation("hidden_act", Activation::Silu)?,
        qkv_bias: bias,
        out_bias: bias,
        mlp_bias: !third && fields.flag("mlp_bias", false)?,
        moe: Some(Moe {
            experts: fields
                .number_of(&["n_routed_experts", "num_local_experts"], if third { 256 } else { 64 })?,
            top_k,
            expert_intermediate: expert,
            shared,
            shared_intermediate: expert * shared,
            dense_layers: dense.min(common.layers),
            groups: group("n_group", if third { 8 } else { 1 })?,
            top_groups: group("topk_group", if third { 4 } else { 1 })?,
        }),
        mla: Some(mla),
        ..common
    })
}
