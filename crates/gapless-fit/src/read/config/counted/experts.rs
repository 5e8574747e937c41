//! Decoders with experts.

use super::{Build, Outcome, Sizes, attention, gated};
use crate::parameters::{List, Role};
use crate::read::fields::Fields;

/// Experts of a layer and how many a token visits.
struct Experts {
    count: u64,
    top_k: u64,
    inner: u64,
}

impl Experts {
    fn read(fields: Fields<'_>, keys: &[&str], usual: [u64; 2], inner: u64) -> Outcome<Experts> {
        let experts = Experts {
            count: fields.number_of(keys, usual[0])?,
            top_k: fields.size("num_experts_per_tok", usual[1])?,
            inner,
        };
        if experts.count == 0 || experts.top_k > experts.count {
            return fields
                .fault("num_experts_per_tok", format!("{} of {} experts", experts.top_k, experts.count));
        }
        Ok(experts)
    }

    /// All experts of a layer, outputs first.
    fn list(&self, list: &mut List, name: &str, hidden: u64) {
        list.push(format!("{name}.gate_up_proj"), &[self.count, 2 * self.inner, hidden], Role::Expert);
        list.push(format!("{name}.down_proj"), &[self.count, hidden, self.inner], Role::Expert);
    }

    fn router(&self, list: &mut List, name: &str, hidden: u64) {
        list.push(format!("{name}.weight"), &[self.count, hidden], Role::Router);
    }

    /// Notes the number of experts in the part that generates text.
    fn tell(&self, mut build: Build) -> Build {
        if let Some(text) = &mut build.text {
            (text.experts, text.top_k) = (self.count, self.top_k);
        }
        build
    }
}

pub(super) fn gpt_oss(fields: Fields<'_>, mut build: Build) -> Outcome<Build> {
    let mut s = Sizes::read(fields, [201_088, 2880, 2880, 36, 64, 8, 131_072])?;
    s.head_dim = fields.optional("head_dim")?.filter(|dim| *dim > 0).unwrap_or(64);
    let experts = Experts::read(fields, &["num_local_experts", "num_experts"], [128, 4], s.inner)?;
    let bias = fields.flag("attention_bias", true)?;
    let (count, inner) = (experts.count, experts.inner);
    build.llama_blocks(&s, fields, |list, block, _| {
        list.push(format!("{block}.self_attn.sinks"), &[s.heads], Role::Other);
        attention(list, &format!("{block}.self_attn"), &s, bias, "o_proj", bias);
        experts.router(list, &format!("{block}.mlp.router"), s.hidden);
        list.push(format!("{block}.mlp.router.bias"), &[count], Role::Bias);
        let name = format!("{block}.mlp.experts");
        list.push(format!("{name}.gate_up_proj"), &[count, s.hidden, 2 * inner], Role::Expert);
        list.push(format!("{name}.gate_up_proj_bias"), &[count, 2 * inner], Role::Expert);
        list.push(format!("{name}.down_proj"), &[count, inner, s.hidden], Role::Expert);
        list.push(format!("{name}.down_proj_bias"), &[count, s.hidden], Role::Expert);
        list.rms(&format!("{block}.input_layernorm"), s.hidden);
        list.rms(&format!("{block}.post_attention_layernorm"), s.hidden);
    })?;
    build.list.rms("model.norm", s.hidden);
    build.head(&s, fields.flag("tie_word_embeddings", false)?, false);
    let mut build = experts.tell(build.generates(&s, fields)?);
    super::hybrid::slides(&mut build, fields, 128, 2)?;
    Ok(build)
}

pub(super) fn llama4(fields: Fields<'_>, mut build: Build) -> Outcome<Build> {
    let mut s = Sizes::read(fields, [202_048, 5120, 8192, 48, 40, 8, 131_072])?;
    s.head_dim = fields.optional("head_dim")?.filter(|dim| *dim > 0).unwrap_or(128);
    let dense = fields.size("intermediate_size_mlp", 16384)?;
    let experts = Experts::read(fields, &["num_local_experts", "num_experts"], [16, 1], s.inner)?;
    let bias = fields.flag("attention_bias", false)?;
    let step = fields.size("interleave_moe_layer_step", 1)?;
    let listed = match fields.get("moe_layers") {
        Some(value) if !value.is_null() => fields.sizes("moe_layers")?,
        _ => None,
    };
    let routed = |at: u64| match &listed {
        Some(listed) => listed.contains(&at),
        None => (at + 1).is_multiple_of(step),
    };
    build.llama_blocks(&s, fields, |list, block, at| {
        attention(list, &format!("{block}.self_attn"), &s, bias, "o_proj", bias);
        let name = format!("{block}.feed_forward");
        if routed(at) {
            let (count, inner) = (experts.count, experts.inner);
            list.push(format!("{name}.experts.gate_up_proj"), &[count, s.hidden, 2 * inner], Role::Expert);
            list.push(format!("{name}.experts.down_proj"), &[count, inner, s.hidden], Role::Expert);
            experts.router(list, &format!("{name}.router"), s.hidden);
            gated(list, &format!("{name}.shared_expert"), s.hidden, inner, false);
        } else {
            gated(list, &name, s.hidden, dense, false);
        }
        list.rms(&format!("{block}.input_layernorm"), s.hidden);
        list.rms(&format!("{block}.post_attention_layernorm"), s.hidden);
    })?;
    build.list.rms("model.norm", s.hidden);
    build.head(&s, fields.flag("tie_word_embeddings", false)?, false);
    Ok(experts.tell(build.generates(&s, fields)?))
}

pub(super) fn qwen2_moe(fields: Fields<'_>, mut build: Build) -> Outcome<Build> {
    let s = Sizes::read(fields, [151_936, 2048, 5632, 24, 16, 16, 32768])?;
    let inner = fields.size("moe_intermediate_size", 1408)?;
    let shared = fields.size("shared_expert_intermediate_size", 5632)?;
    let experts = Experts::read(fields, &["num_experts"], [60, 4], inner)?;
    let bias = fields.flag("qkv_bias", true)?;
    let step = fields.size("decoder_sparse_step", 1)?;
    let dense = fields.sizes("mlp_only_layers")?.unwrap_or_default();
    build.llama_blocks(&s, fields, |list, block, at| {
        attention(list, &format!("{block}.self_attn"), &s, bias, "o_proj", false);
        let name = format!("{block}.mlp");
        if !dense.contains(&at) && (at + 1).is_multiple_of(step) {
            experts.router(list, &format!("{name}.gate"), s.hidden);
            experts.list(list, &format!("{name}.experts"), s.hidden);
            gated(list, &format!("{name}.shared_expert"), s.hidden, shared, false);
            list.push(format!("{name}.shared_expert_gate.weight"), &[1, s.hidden], Role::Router);
        } else {
            gated(list, &name, s.hidden, s.inner, false);
        }
        list.rms(&format!("{block}.input_layernorm"), s.hidden);
        list.rms(&format!("{block}.post_attention_layernorm"), s.hidden);
    })?;
    build.list.rms("model.norm", s.hidden);
    build.head(&s, fields.flag("tie_word_embeddings", false)?, false);
    Ok(experts.tell(build.generates(&s, fields)?))
}

pub(super) fn phimoe(fields: Fields<'_>, mut build: Build) -> Outcome<Build> {
    let s = Sizes::read(fields, [32064, 4096, 6400, 32, 32, 8, 131_072])?;
    let experts = Experts::read(fields, &["num_local_experts", "num_experts"], [16, 2], s.inner)?;
    let bias = fields.flag("attention_bias", false)?;
    build.llama_blocks(&s, fields, |list, block, _| {
        attention(list, &format!("{block}.self_attn"), &s, bias, "o_proj", bias);
        experts.router(list, &format!("{block}.mlp.router"), s.hidden);
        experts.list(list, &format!("{block}.mlp.experts"), s.hidden);
        list.norm(&format!("{block}.input_layernorm"), s.hidden);
        list.norm(&format!("{block}.post_attention_layernorm"), s.hidden);
    })?;
    build.list.norm("model.norm", s.hidden);
    build.head(&s, fields.flag("tie_word_embeddings", false)?, fields.flag("lm_head_bias", false)?);
    Ok(experts.tell(build.generates(&s, fields)?))
}

pub(super) fn olmoe(fields: Fields<'_>, mut build: Build) -> Outcome<Build> {
    let s = Sizes::read(fields, [50304, 2048, 2048, 16, 16, 0, 4096])?;
    let experts = Experts::read(fields, &["num_experts", "num_local_experts"], [64, 8], s.inner)?;
    let bias = fields.flag("attention_bias", false)?;
    build.llama_blocks(&s, fields, |list, block, _| {
        attention(list, &format!("{block}.self_attn"), &s, bias, "o_proj", bias);
        list.rms(&format!("{block}.self_attn.q_norm"), s.hidden);
        list.rms(&format!("{block}.self_attn.k_norm"), s.keys());
        experts.router(list, &format!("{block}.mlp.gate"), s.hidden);
        experts.list(list, &format!("{block}.mlp.experts"), s.hidden);
        list.rms(&format!("{block}.input_layernorm"), s.hidden);
        list.rms(&format!("{block}.post_attention_layernorm"), s.hidden);
    })?;
    build.list.rms("model.norm", s.hidden);
    build.head(&s, fields.flag("tie_word_embeddings", false)?, false);
    Ok(experts.tell(build.generates(&s, fields)?))
}
