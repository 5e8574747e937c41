//! Decoders without experts.

use super::{Build, Outcome, Sizes, attention, gated, shared_evenly};
use crate::parameters::Role;
use crate::read::fields::Fields;

/// Sizes of classes with GPT-2's names for them.
fn gpt_sizes(fields: Fields<'_>, usual: [u64; 5]) -> Outcome<Sizes> {
    let [vocab, hidden, layers, heads, positions] = usual;
    let hidden = fields.size_of(&["n_embd", "hidden_size"], hidden)?;
    shared_evenly(fields, hidden, &["n_head", "num_attention_heads"], heads)?;
    let heads = fields.size_of(&["n_head", "num_attention_heads"], heads)?;
    let inner = fields.optional_size("n_inner")?.unwrap_or(4 * hidden);
    Ok(Sizes {
        vocab: fields.size("vocab_size", vocab)?,
        hidden,
        inner,
        layers: fields.number_of(&["n_layer", "num_hidden_layers"], layers)?,
        heads,
        kv_heads: heads,
        head_dim: hidden / heads,
        positions: fields.size_of(&["n_positions", "max_position_embeddings"], positions)?,
    })
}

pub(super) fn phi(fields: Fields<'_>, mut build: Build) -> Outcome<Build> {
    let s = Sizes::read(fields, [51200, 2048, 8192, 24, 32, 0, 2048])?;
    let normed = fields.flag("qk_layernorm", false)?;
    build.llama_blocks(&s, fields, |list, block, _| {
        attention(list, &format!("{block}.self_attn"), &s, true, "dense", true);
        if normed {
            list.norm(&format!("{block}.self_attn.q_layernorm"), s.head_dim);
            list.norm(&format!("{block}.self_attn.k_layernorm"), s.head_dim);
        }
        list.linear(&format!("{block}.mlp.fc1"), s.hidden, s.inner, true);
        list.linear(&format!("{block}.mlp.fc2"), s.inner, s.hidden, true);
        list.norm(&format!("{block}.input_layernorm"), s.hidden);
    })?;
    build.list.norm("model.final_layernorm", s.hidden);
    build.generates_from_head(&s, fields, false, true)
}

pub(super) fn falcon(fields: Fields<'_>, mut build: Build) -> Outcome<Build> {
    let mut s = Sizes::read(fields, [65024, 4544, 1, 32, 71, 0, 2048])?;
    let heads = fields.number_of(&["num_attention_heads", "n_head"], s.heads)?;
    let hidden = s.hidden;
    let new = fields.flag("new_decoder_architecture", false)?;
    let parallel = fields.flag("parallel_attn", true)?;
    let bias = fields.flag("bias", false)?;
    let norms = fields.optional("num_ln_in_parallel_attn")?.unwrap_or(if new { 2 } else { 1 });
    s.heads = heads.max(1);
    s.head_dim = hidden / s.heads;
    s.kv_heads = match (new, fields.flag("multi_query", true)?) {
        (true, _) => fields.optional_size("num_kv_heads")?.unwrap_or(s.heads),
        (false, true) => 1,
        (false, false) => s.heads,
    };
    s.layers = fields.number_of(&["num_hidden_layers", "n_layer"], 32)?;
    s.inner = fields.optional_size("ffn_hidden_size")?.unwrap_or(4 * hidden);
    build.embedding("transformer.word_embeddings.weight", s.vocab, hidden);
    build.each("num_hidden_layers", s.layers, fields, |list, at| {
        let block = format!("transformer.h.{at}");
        let wide = s.queries() + 2 * s.keys();
        list.linear(&format!("{block}.self_attention.query_key_value"), hidden, wide, bias);
        list.linear(&format!("{block}.self_attention.dense"), hidden, hidden, bias);
        list.linear(&format!("{block}.mlp.dense_h_to_4h"), hidden, s.inner, bias);
        list.linear(&format!("{block}.mlp.dense_4h_to_h"), s.inner, hidden, bias);
        if new && norms == 2 {
            list.norm(&format!("{block}.ln_attn"), hidden);
            list.norm(&format!("{block}.ln_mlp"), hidden);
        } else {
            if !parallel {
                list.norm(&format!("{block}.post_attention_layernorm"), hidden);
            }
            list.norm(&format!("{block}.input_layernorm"), hidden);
        }
    })?;
    build.list.norm("transformer.ln_f", hidden);
    build.generates_from_head(&s, fields, true, false)
}

pub(super) fn bloom(fields: Fields<'_>, mut build: Build) -> Outcome<Build> {
    let mut s = gpt_sizes(fields, [250_880, 64, 2, 8, 1 << 20])?;
    s.inner = 4 * s.hidden;
    let hidden = s.hidden;
    build.embedding("transformer.word_embeddings.weight", s.vocab, hidden);
    build.list.norm("transformer.word_embeddings_layernorm", hidden);
    build.each("n_layer", s.layers, fields, |list, at| {
        let block = format!("transformer.h.{at}");
        list.norm(&format!("{block}.input_layernorm"), hidden);
        list.linear(&format!("{block}.self_attention.query_key_value"), hidden, 3 * hidden, true);
        list.linear(&format!("{block}.self_attention.dense"), hidden, hidden, true);
        list.norm(&format!("{block}.post_attention_layernorm"), hidden);
        list.linear(&format!("{block}.mlp.dense_h_to_4h"), hidden, s.inner, true);
        list.linear(&format!("{block}.mlp.dense_4h_to_h"), s.inner, hidden, true);
    })?;
    build.list.norm("transformer.ln_f", hidden);
    build.generates_from_head(&s, fields, true, false)
}

pub(super) fn mpt(fields: Fields<'_>, mut build: Build) -> Outcome<Build> {
    let hidden = fields.size_of(&["d_model", "hidden_size"], 2048)?;
    let heads = fields.size_of(&["n_heads", "num_attention_heads"], 16)?;
    let s = Sizes {
        vocab: fields.size("vocab_size", 50368)?,
        hidden,
        // transformers' code does not read expansion_ratio.
        inner: 4 * hidden,
        layers: fields.number_of(&["n_layers", "num_hidden_layers"], 24)?,
        heads,
        kv_heads: heads,
        head_dim: hidden / heads,
        positions: fields.size("max_seq_len", 2048)?,
    };
    if !fields.flag("no_bias", true)? {
        return fields.fault("no_bias", "norms and layers with biases are not read");
    }
    build.embedding("transformer.wte.weight", s.vocab, hidden);
    build.each("n_layers", s.layers, fields, |list, at| {
        let block = format!("transformer.blocks.{at}");
        list.rms(&format!("{block}.norm_1"), hidden);
        list.linear(&format!("{block}.attn.Wqkv"), hidden, 3 * hidden, false);
        list.linear(&format!("{block}.attn.out_proj"), hidden, hidden, false);
        list.rms(&format!("{block}.norm_2"), hidden);
        list.linear(&format!("{block}.ffn.up_proj"), hidden, s.inner, false);
        list.linear(&format!("{block}.ffn.down_proj"), s.inner, hidden, false);
    })?;
    build.list.rms("transformer.norm_f", hidden);
    build.generates_from_head(&s, fields, true, false)
}

pub(super) fn starcoder2(fields: Fields<'_>, mut build: Build) -> Outcome<Build> {
    let s = Sizes::read(fields, [49152, 3072, 12288, 30, 24, 2, 4096])?;
    let bias = fields.flag("use_bias", true)?;
    build.llama_blocks(&s, fields, |list, block, _| {
        attention(list, &format!("{block}.self_attn"), &s, bias, "o_proj", bias);
        list.linear(&format!("{block}.mlp.c_fc"), s.hidden, s.inner, bias);
        list.linear(&format!("{block}.mlp.c_proj"), s.inner, s.hidden, bias);
        list.norm(&format!("{block}.input_layernorm"), s.hidden);
        list.norm(&format!("{block}.post_attention_layernorm"), s.hidden);
    })?;
    build.list.norm("model.norm", s.hidden);
    build.generates_from_head(&s, fields, true, false)
}

pub(super) fn cohere(model_type: &str, fields: Fields<'_>, mut build: Build) -> Outcome<Build> {
    let s = Sizes::read(fields, [256_000, 8192, 22528, 40, 64, 0, 8192])?;
    let bias = fields.flag("attention_bias", false)?;
    let normed = model_type == "cohere" && fields.flag("use_qk_norm", false)?;
    build.llama_blocks(&s, fields, |list, block, _| {
        attention(list, &format!("{block}.self_attn"), &s, bias, "o_proj", bias);
        if normed {
            for (name, heads) in [("q_norm", s.heads), ("k_norm", s.kv_heads)] {
                list.push(format!("{block}.self_attn.{name}.weight"), &[heads, s.head_dim], Role::Norm);
            }
        }
        gated(list, &format!("{block}.mlp"), s.hidden, s.inner, false);
        list.rms(&format!("{block}.input_layernorm"), s.hidden);
    })?;
    build.list.rms("model.norm", s.hidden);
    let mut build = build.generates_from_head(&s, fields, true, false)?;
    if model_type == "cohere2" {
        super::hybrid::slides(&mut build, fields, 4096, 4)?;
    }
    Ok(build)
}

pub(super) fn olmo(fields: Fields<'_>, mut build: Build) -> Outcome<Build> {
    let s = Sizes::read(fields, [50304, 4096, 11008, 32, 32, 0, 2048])?;
    let bias = fields.flag("attention_bias", false)?;
    build.llama_blocks(&s, fields, |list, block, _| {
        attention(list, &format!("{block}.self_attn"), &s, bias, "o_proj", bias);
        gated(list, &format!("{block}.mlp"), s.hidden, s.inner, false);
    })?;
    build.generates_from_head(&s, fields, false, false)
}

pub(super) fn olmo2(fields: Fields<'_>, mut build: Build) -> Outcome<Build> {
    let s = Sizes::read(fields, [50304, 4096, 11008, 32, 32, 0, 2048])?;
    let bias = fields.flag("attention_bias", false)?;
    build.llama_blocks(&s, fields, |list, block, _| {
        attention(list, &format!("{block}.self_attn"), &s, bias, "o_proj", bias);
        list.rms(&format!("{block}.self_attn.q_norm"), s.queries());
        list.rms(&format!("{block}.self_attn.k_norm"), s.keys());
        gated(list, &format!("{block}.mlp"), s.hidden, s.inner, false);
        list.rms(&format!("{block}.post_attention_layernorm"), s.hidden);
        list.rms(&format!("{block}.post_feedforward_layernorm"), s.hidden);
    })?;
    build.list.rms("model.norm", s.hidden);
    build.generates_from_head(&s, fields, false, false)
}

pub(super) fn granite(fields: Fields<'_>, mut build: Build) -> Outcome<Build> {
    let s = Sizes::read(fields, [32000, 4096, 11008, 32, 32, 0, 2048])?;
    let bias = fields.flag("attention_bias", false)?;
    let inner_bias = fields.flag("mlp_bias", false)?;
    llama_like(&mut build, fields, &s, bias, inner_bias)?;
    build.generates_from_head(&s, fields, false, false)
}

pub(super) fn smollm3(fields: Fields<'_>, mut build: Build) -> Outcome<Build> {
    let s = Sizes::read(fields, [128_256, 2048, 11008, 36, 16, 4, 32768])?;
    let bias = fields.flag("attention_bias", false)?;
    let inner_bias = fields.flag("mlp_bias", false)?;
    llama_like(&mut build, fields, &s, bias, inner_bias)?;
    build.generates_from_head(&s, fields, true, false)
}

fn llama_like(build: &mut Build, fields: Fields<'_>, s: &Sizes, bias: bool, inner_bias: bool) -> Outcome<()> {
    build.llama_blocks(s, fields, |list, block, _| {
        attention(list, &format!("{block}.self_attn"), s, bias, "o_proj", bias);
        gated(list, &format!("{block}.mlp"), s.hidden, s.inner, inner_bias);
        list.rms(&format!("{block}.input_layernorm"), s.hidden);
        list.rms(&format!("{block}.post_attention_layernorm"), s.hidden);
    })?;
    build.list.rms("model.norm", s.hidden);
    Ok(())
}

pub(super) fn stablelm(fields: Fields<'_>, mut build: Build) -> Outcome<Build> {
    let s = Sizes::read(fields, [50304, 2560, 6912, 32, 32, 32, 4096])?;
    let bias = fields.flag("use_qkv_bias", false)?;
    let normed = fields.flag("qk_layernorm", false)?;
    let parallel = fields.flag("use_parallel_residual", false)?;
    build.llama_blocks(&s, fields, |list, block, _| {
        attention(list, &format!("{block}.self_attn"), &s, bias, "o_proj", false);
        if normed {
            for (name, heads) in [("q_layernorm", s.heads), ("k_layernorm", s.kv_heads)] {
                for head in 0..heads {
                    list.rms(&format!("{block}.self_attn.{name}.norms.{head}"), s.head_dim);
                }
            }
        }
        gated(list, &format!("{block}.mlp"), s.hidden, s.inner, false);
        list.norm(&format!("{block}.input_layernorm"), s.hidden);
        if !parallel {
            list.norm(&format!("{block}.post_attention_layernorm"), s.hidden);
        }
    })?;
    build.list.norm("model.norm", s.hidden);
    build.generates_from_head(&s, fields, false, false)
}

pub(super) fn gptj(fields: Fields<'_>, mut build: Build) -> Outcome<Build> {
    let s = gpt_sizes(fields, [50400, 4096, 28, 16, 2048])?;
    parallel_gpt(&mut build, fields, &s, false)?;
    build.generates_from_head(&s, fields, false, true)
}

pub(super) fn codegen(fields: Fields<'_>, mut build: Build) -> Outcome<Build> {
    let s = gpt_sizes(fields, [50400, 4096, 28, 16, 2048])?;
    parallel_gpt(&mut build, fields, &s, true)?;
    build.generates_from_head(&s, fields, false, true)
}

/// GPT-J's blocks, and CodeGen's, whose queries, keys and values are one matrix.
fn parallel_gpt(build: &mut Build, fields: Fields<'_>, s: &Sizes, fused: bool) -> Outcome<()> {
    let hidden = s.hidden;
    build.embedding("transformer.wte.weight", s.vocab, hidden);
    build.each("n_layer", s.layers, fields, |list, at| {
        let block = format!("transformer.h.{at}");
        list.norm(&format!("{block}.ln_1"), hidden);
        if fused {
            list.linear(&format!("{block}.attn.qkv_proj"), hidden, 3 * hidden, false);
        } else {
            for name in ["k_proj", "v_proj", "q_proj"] {
                list.linear(&format!("{block}.attn.{name}"), hidden, hidden, false);
            }
        }
        list.linear(&format!("{block}.attn.out_proj"), hidden, hidden, false);
        list.linear(&format!("{block}.mlp.fc_in"), hidden, s.inner, true);
        list.linear(&format!("{block}.mlp.fc_out"), s.inner, hidden, true);
    })?;
    build.list.norm("transformer.ln_f", hidden);
    Ok(())
}

pub(super) fn neo(fields: Fields<'_>, mut build: Build) -> Outcome<Build> {
    let hidden = fields.size("hidden_size", 2048)?;
    let heads = fields.size_of(&["num_heads", "num_attention_heads"], 16)?;
    let s = Sizes {
        vocab: fields.size("vocab_size", 50257)?,
        hidden,
        inner: fields.optional_size("intermediate_size")?.unwrap_or(4 * hidden),
        layers: fields.number_of(&["num_layers", "num_hidden_layers"], 24)?,
        heads,
        kv_heads: heads,
        head_dim: hidden / heads,
        positions: fields.size("max_position_embeddings", 2048)?,
    };
    build.embedding("transformer.wte.weight", s.vocab, hidden);
    build.list.push("transformer.wpe.weight", &[s.positions, hidden], Role::Positions);
    build.each("num_layers", s.layers, fields, |list, at| {
        let block = format!("transformer.h.{at}");
        list.norm(&format!("{block}.ln_1"), hidden);
        for name in ["k_proj", "v_proj", "q_proj"] {
            list.linear(&format!("{block}.attn.attention.{name}"), hidden, hidden, false);
        }
        list.linear(&format!("{block}.attn.attention.out_proj"), hidden, hidden, true);
        list.norm(&format!("{block}.ln_2"), hidden);
        list.linear(&format!("{block}.mlp.c_fc"), hidden, s.inner, true);
        list.linear(&format!("{block}.mlp.c_proj"), s.inner, hidden, true);
    })?;
    build.list.norm("transformer.ln_f", hidden);
    build.generates_from_head(&s, fields, true, false)
}

pub(super) fn bigcode(fields: Fields<'_>, mut build: Build) -> Outcome<Build> {
    let mut s = gpt_sizes(fields, [50257, 768, 12, 12, 1024])?;
    if fields.flag("multi_query", true)? {
        s.kv_heads = 1;
    }
    let hidden = s.hidden;
    build.embedding("transformer.wte.weight", s.vocab, hidden);
    build.list.push("transformer.wpe.weight", &[s.positions, hidden], Role::Positions);
    build.each("n_layer", s.layers, fields, |list, at| {
        let block = format!("transformer.h.{at}");
        list.norm(&format!("{block}.ln_1"), hidden);
        list.linear(&format!("{block}.attn.c_attn"), hidden, hidden + 2 * s.keys(), true);
        list.linear(&format!("{block}.attn.c_proj"), hidden, hidden, true);
        list.norm(&format!("{block}.ln_2"), hidden);
        list.linear(&format!("{block}.mlp.c_fc"), hidden, s.inner, true);
        list.linear(&format!("{block}.mlp.c_proj"), s.inner, hidden, true);
    })?;
    build.list.norm("transformer.ln_f", hidden);
    build.generates_from_head(&s, fields, true, false)
}
