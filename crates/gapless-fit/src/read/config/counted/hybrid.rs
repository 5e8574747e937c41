//! Decoders whose layers have different caches.

use super::{Build, Outcome, Sizes, gated};
use crate::model::LayerCache;
use crate::parameters::Role;
use crate::read::fields::Fields;

/// Marks the layers that slide: those that `layer_types` names, else all but every `pattern`-th.
pub(super) fn slides(build: &mut Build, fields: Fields<'_>, window: u64, pattern: u64) -> Outcome<()> {
    let window = match fields.get("sliding_window") {
        None => Some(window),
        Some(_) => fields.optional("sliding_window")?.filter(|window| *window > 0),
    };
    let Some(text) = &mut build.text else { return Ok(()) };
    let kinds: Option<Vec<bool>> = fields
        .get("layer_types")
        .and_then(|kinds| kinds.list())
        .map(|kinds| kinds.iter().map(|kind| kind.text() == Some("sliding_attention")).collect());
    let layers = text.cache.len();
    if kinds.as_ref().is_some_and(|kinds| kinds.len() != layers) {
        return fields.fault("layer_types", format!("the list has another length than the {layers} layers"));
    }
    let pattern = fields.optional("sliding_window_pattern")?.filter(|n| *n > 0).unwrap_or(pattern);
    for (at, layer) in (0u64..).zip(&mut text.cache) {
        let here = match &kinds {
            Some(kinds) => kinds[at as usize],
            None => !(at + 1).is_multiple_of(pattern),
        };
        layer.window = window.filter(|_| here);
    }
    Ok(())
}

pub(super) fn qwen3_next(fields: Fields<'_>, mut build: Build) -> Outcome<Build> {
    let mut s = Sizes::read(fields, [151_936, 2048, 5632, 48, 16, 2, 32768])?;
    s.head_dim = fields.optional("head_dim")?.filter(|dim| *dim > 0).unwrap_or(256);
    let hidden = s.hidden;
    let bias = fields.flag("attention_bias", false)?;
    let (experts, top_k) = (fields.size("num_experts", 512)?, fields.size("num_experts_per_tok", 10)?);
    let inner = fields.size("moe_intermediate_size", 512)?;
    let shared = fields.size("shared_expert_intermediate_size", 512)?;
    let step = fields.size("decoder_sparse_step", 1)?;
    let dense = fields.sizes("mlp_only_layers")?.unwrap_or_default();
    let key_heads = fields.size("linear_num_key_heads", 16)?;
    let value_heads = fields.size("linear_num_value_heads", 32)?;
    let key_dim = fields.size("linear_key_head_dim", 128)?;
    let value_dim = fields.size("linear_value_head_dim", 128)?;
    let kernel = fields.size("linear_conv_kernel_dim", 4)?;
    let (keys, values) = (key_heads * key_dim, value_heads * value_dim);
    let linear: Vec<bool> = match fields.get("layer_types").and_then(|kinds| kinds.list()) {
        Some(kinds) => kinds.iter().map(|kind| kind.text() == Some("linear_attention")).collect(),
        None => {
            let every = fields.size("full_attention_interval", 4)?;
            (0..s.layers).map(|at| !(at + 1).is_multiple_of(every)).collect()
        }
    };
    if linear.len() as u64 != s.layers {
        return fields.fault("layer_types", format!("{} entries for {} layers", linear.len(), s.layers));
    }
    build.embedding("model.embed_tokens.weight", s.vocab, hidden);
    build.each("num_hidden_layers", s.layers, fields, |list, at| {
        let block = format!("model.layers.{at}");
        if linear[at as usize] {
            let name = format!("{block}.linear_attn");
            list.push(format!("{name}.dt_bias"), &[value_heads], Role::Bias);
            list.push(format!("{name}.A_log"), &[value_heads], Role::Other);
            list.push(format!("{name}.conv1d.weight"), &[2 * keys + values, 1, kernel], Role::Convolution);
            list.linear(&format!("{name}.in_proj_qkvz"), hidden, 2 * keys + 2 * values, false);
            list.linear(&format!("{name}.in_proj_ba"), hidden, 2 * value_heads, false);
            list.rms(&format!("{name}.norm"), value_dim);
            list.linear(&format!("{name}.out_proj"), values, hidden, false);
        } else {
            // Queries come with a gate of their own width.
            let name = format!("{block}.self_attn");
            list.linear(&format!("{name}.q_proj"), hidden, 2 * s.queries(), bias);
            list.linear(&format!("{name}.k_proj"), hidden, s.keys(), bias);
            list.linear(&format!("{name}.v_proj"), hidden, s.keys(), bias);
            list.linear(&format!("{name}.o_proj"), s.queries(), hidden, bias);
            list.rms(&format!("{name}.q_norm"), s.head_dim);
            list.rms(&format!("{name}.k_norm"), s.head_dim);
        }
        let name = format!("{block}.mlp");
        if !dense.contains(&at) && (at + 1).is_multiple_of(step) && experts > 0 {
            list.push(format!("{name}.gate.weight"), &[experts, hidden], Role::Router);
            let name_all = format!("{name}.experts");
            list.push(format!("{name_all}.gate_up_proj"), &[experts, 2 * inner, hidden], Role::Expert);
            list.push(format!("{name_all}.down_proj"), &[experts, hidden, inner], Role::Expert);
            gated(list, &format!("{name}.shared_expert"), hidden, shared, false);
            list.push(format!("{name}.shared_expert_gate.weight"), &[1, hidden], Role::Router);
        } else {
            gated(list, &name, hidden, s.inner, false);
        }
        list.rms(&format!("{block}.input_layernorm"), hidden);
        list.rms(&format!("{block}.post_attention_layernorm"), hidden);
    })?;
    build.list.rms("model.norm", hidden);
    let mut build = build.generates_from_head(&s, fields, false, false)?;
    if let Some(text) = &mut build.text {
        (text.experts, text.top_k) = (experts, top_k);
        // A matrix for each head, in 32 bits: twice the elements of 16 bits; and the last inputs of the convolution.
        let state = 2 * value_heads * key_dim * value_dim + (2 * keys + values) * (kernel - 1);
        for (layer, linear) in text.cache.iter_mut().zip(&linear) {
            if *linear {
                *layer = LayerCache { token: 0, window: None, state };
            }
        }
    }
    Ok(build)
}
