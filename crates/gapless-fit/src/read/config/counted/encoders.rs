//! Encoders of text and of pictures.

use super::{Build, Outcome, shared_evenly};
use crate::parameters::{List, Role};
use crate::read::fields::Fields;

/// The matrix of a masked head that is not the embedding's, and its bias.
fn untied_head(list: &mut List, fields: Fields<'_>, name: &str, shape: [u64; 2], bias: bool) -> Outcome<()> {
    if !fields.flag("tie_word_embeddings", true)? {
        list.push(format!("{name}.weight"), &shape, Role::Head);
        if bias {
            list.push(format!("{name}.bias"), &shape[..1], Role::Bias);
        }
    }
    Ok(())
}

/// BERT's block below `name`, whose projections have these names.
fn bert_block(list: &mut List, name: &str, hidden: u64, inner: u64, projections: [&str; 3]) {
    for projection in projections {
        list.linear(&format!("{name}.attention.self.{projection}"), hidden, hidden, true);
    }
    list.linear(&format!("{name}.attention.output.dense"), hidden, hidden, true);
    list.norm(&format!("{name}.attention.output.LayerNorm"), hidden);
    list.linear(&format!("{name}.intermediate.dense"), hidden, inner, true);
    list.linear(&format!("{name}.output.dense"), inner, hidden, true);
    list.norm(&format!("{name}.output.LayerNorm"), hidden);
}

pub(super) fn electra(fields: Fields<'_>, mut build: Build) -> Outcome<Build> {
    let hidden = fields.size("hidden_size", 256)?;
    shared_evenly(fields, hidden, &["num_attention_heads"], 4)?;
    let width = fields.size("embedding_size", 128)?;
    let inner = fields.size("intermediate_size", 1024)?;
    let list = &mut build.list;
    let name = "electra.embeddings";
    list.push(
        format!("{name}.word_embeddings.weight"),
        &[fields.size("vocab_size", 30522)?, width],
        Role::Embedding,
    );
    list.push(
        format!("{name}.position_embeddings.weight"),
        &[fields.size("max_position_embeddings", 512)?, width],
        Role::Positions,
    );
    list.push(
        format!("{name}.token_type_embeddings.weight"),
        &[fields.size("type_vocab_size", 2)?, width],
        Role::Embedding,
    );
    list.norm(&format!("{name}.LayerNorm"), width);
    if width != hidden {
        list.linear("electra.embeddings_project", width, hidden, true);
    }
    build.each("num_hidden_layers", fields.number_of(&["num_hidden_layers"], 12)?, fields, |list, at| {
        bert_block(list, &format!("electra.encoder.layer.{at}"), hidden, inner, ["query", "key", "value"]);
    })?;
    build.list.linear("discriminator_predictions.dense", hidden, hidden, true);
    build.list.linear("discriminator_predictions.dense_prediction", hidden, 1, true);
    Ok(build)
}

pub(super) fn albert(fields: Fields<'_>, mut build: Build) -> Outcome<Build> {
    let hidden = fields.size("hidden_size", 4096)?;
    shared_evenly(fields, hidden, &["num_attention_heads"], 64)?;
    let width = fields.size("embedding_size", 128)?;
    let inner = fields.size("intermediate_size", 16384)?;
    let vocab = fields.size("vocab_size", 30000)?;
    let groups = fields.size("num_hidden_groups", 1)?;
    let each = fields.size("inner_group_num", 1)?;
    let list = &mut build.list;
    let name = "albert.embeddings";
    list.push(format!("{name}.word_embeddings.weight"), &[vocab, width], Role::Embedding);
    list.push(
        format!("{name}.position_embeddings.weight"),
        &[fields.size("max_position_embeddings", 512)?, width],
        Role::Positions,
    );
    list.push(
        format!("{name}.token_type_embeddings.weight"),
        &[fields.size("type_vocab_size", 2)?, width],
        Role::Embedding,
    );
    list.norm(&format!("{name}.LayerNorm"), width);
    list.linear("albert.encoder.embedding_hidden_mapping_in", width, hidden, true);
    // Layers share the weights of their group.
    let blocks = groups.saturating_mul(each);
    build.each("num_hidden_groups", blocks, fields, |list, at| {
        let (group, layer) = (at / each, at % each);
        let block = format!("albert.encoder.albert_layer_groups.{group}.albert_layers.{layer}");
        list.norm(&format!("{block}.full_layer_layer_norm"), hidden);
        for projection in ["query", "key", "value", "dense"] {
            list.linear(&format!("{block}.attention.{projection}"), hidden, hidden, true);
        }
        list.norm(&format!("{block}.attention.LayerNorm"), hidden);
        list.linear(&format!("{block}.ffn"), hidden, inner, true);
        list.linear(&format!("{block}.ffn_output"), inner, hidden, true);
    })?;
    build.list.push("predictions.bias", &[vocab], Role::Bias);
    build.list.norm("predictions.LayerNorm", width);
    build.list.linear("predictions.dense", hidden, width, true);
    untied_head(&mut build.list, fields, "predictions.decoder", [vocab, width], true)?;
    Ok(build)
}

pub(super) fn distilbert(fields: Fields<'_>, mut build: Build) -> Outcome<Build> {
    let hidden = fields.size_of(&["dim", "hidden_size"], 768)?;
    shared_evenly(fields, hidden, &["n_heads", "num_attention_heads"], 12)?;
    let inner = fields.size("hidden_dim", 3072)?;
    let vocab = fields.size("vocab_size", 30522)?;
    let list = &mut build.list;
    let name = "distilbert.embeddings";
    list.push(format!("{name}.word_embeddings.weight"), &[vocab, hidden], Role::Embedding);
    list.push(
        format!("{name}.position_embeddings.weight"),
        &[fields.size("max_position_embeddings", 512)?, hidden],
        Role::Positions,
    );
    list.norm(&format!("{name}.LayerNorm"), hidden);
    let layers = fields.number_of(&["n_layers", "num_hidden_layers"], 6)?;
    build.each("n_layers", layers, fields, |list, at| {
        let block = format!("distilbert.transformer.layer.{at}");
        for projection in ["q_lin", "k_lin", "v_lin", "out_lin"] {
            list.linear(&format!("{block}.attention.{projection}"), hidden, hidden, true);
        }
        list.norm(&format!("{block}.sa_layer_norm"), hidden);
        list.linear(&format!("{block}.ffn.lin1"), hidden, inner, true);
        list.linear(&format!("{block}.ffn.lin2"), inner, hidden, true);
        list.norm(&format!("{block}.output_layer_norm"), hidden);
    })?;
    build.list.linear("vocab_transform", hidden, hidden, true);
    build.list.norm("vocab_layer_norm", hidden);
    untied_head(&mut build.list, fields, "vocab_projector", [vocab, hidden], false)?;
    build.list.push("vocab_projector.bias", &[vocab], Role::Bias);
    Ok(build)
}

pub(super) fn modernbert(fields: Fields<'_>, mut build: Build) -> Outcome<Build> {
    let hidden = fields.size("hidden_size", 768)?;
    shared_evenly(fields, hidden, &["num_attention_heads"], 12)?;
    let inner = fields.size("intermediate_size", 1152)?;
    let vocab = fields.size("vocab_size", 50368)?;
    for key in ["attention_bias", "mlp_bias", "norm_bias", "classifier_bias"] {
        if fields.flag(key, false)? {
            return fields.fault(key, "biases of ModernBERT are not read");
        }
    }
    if !fields.flag("decoder_bias", true)? {
        return fields.fault("decoder_bias", "a head without a bias is not read");
    }
    build.embedding("model.embeddings.tok_embeddings.weight", vocab, hidden);
    build.list.rms("model.embeddings.norm", hidden);
    let layers = fields.number_of(&["num_hidden_layers"], 22)?;
    build.each("num_hidden_layers", layers, fields, |list, at| {
        let block = format!("model.layers.{at}");
        // The norm of the embedding stands for the first one.
        if at > 0 {
            list.rms(&format!("{block}.attn_norm"), hidden);
        }
        list.linear(&format!("{block}.attn.Wqkv"), hidden, 3 * hidden, false);
        list.linear(&format!("{block}.attn.Wo"), hidden, hidden, false);
        list.rms(&format!("{block}.mlp_norm"), hidden);
        list.linear(&format!("{block}.mlp.Wi"), hidden, 2 * inner, false);
        list.linear(&format!("{block}.mlp.Wo"), inner, hidden, false);
    })?;
    build.list.rms("model.final_norm", hidden);
    build.list.linear("head.dense", hidden, hidden, false);
    build.list.rms("head.norm", hidden);
    untied_head(&mut build.list, fields, "decoder", [vocab, hidden], false)?;
    build.list.push("decoder.bias", &[vocab], Role::Bias);
    Ok(build)
}

pub(super) fn deberta(fields: Fields<'_>, mut build: Build) -> Outcome<Build> {
    let hidden = fields.size("hidden_size", 1536)?;
    shared_evenly(fields, hidden, &["num_attention_heads"], 24)?;
    let inner = fields.size("intermediate_size", 6144)?;
    let vocab = fields.size("vocab_size", 128_100)?;
    let positions = fields.size("max_position_embeddings", 512)?;
    let relative = fields.flag("relative_attention", false)?;
    for key in ["conv_kernel_size", "embedding_size"] {
        let usual = if key == "embedding_size" { hidden } else { 0 };
        if fields.optional(key)?.is_some_and(|size| size != usual) {
            return fields.fault(key, "this part of DeBERTa is not read");
        }
    }
    if relative && !fields.flag("share_att_key", false)? {
        return fields
            .fault("share_att_key", "relative positions with projections of their own are not read");
    }
    build.embedding("deberta.embeddings.word_embeddings.weight", vocab, hidden);
    if fields.flag("position_biased_input", true)? {
        build.list.push(
            "deberta.embeddings.position_embeddings.weight",
            &[positions, hidden],
            Role::Positions,
        );
    }
    let types = fields.optional("type_vocab_size")?.unwrap_or(0);
    if types > 0 {
        build.embedding("deberta.embeddings.token_type_embeddings.weight", types, hidden);
    }
    build.list.norm("deberta.embeddings.LayerNorm", hidden);
    let layers = fields.number_of(&["num_hidden_layers"], 24)?;
    build.each("num_hidden_layers", layers, fields, |list, at| {
        let names = ["query_proj", "key_proj", "value_proj"];
        bert_block(list, &format!("deberta.encoder.layer.{at}"), hidden, inner, names);
    })?;
    if relative {
        let buckets = signed(fields, "position_buckets");
        let reach = signed(fields, "max_relative_positions").unwrap_or(positions);
        let rows = 2 * buckets.unwrap_or(reach);
        build.list.push("deberta.encoder.rel_embeddings.weight", &[rows, hidden], Role::Positions);
    }
    if fields.text("norm_rel_ebd")?.is_some_and(|norms| norms.contains("layer_norm")) {
        build.list.norm("deberta.encoder.LayerNorm", hidden);
    }
    build.list.push("cls.predictions.bias", &[vocab], Role::Bias);
    build.list.linear("cls.predictions.transform.dense", hidden, hidden, true);
    build.list.norm("cls.predictions.transform.LayerNorm", hidden);
    untied_head(&mut build.list, fields, "cls.predictions.decoder", [vocab, hidden], true)?;
    Ok(build)
}

/// A size for which -1 means none.
fn signed(fields: Fields<'_>, key: &str) -> Option<u64> {
    fields.optional(key).ok().flatten().filter(|size| *size > 0)
}

pub(super) fn dinov2(fields: Fields<'_>, mut build: Build) -> Outcome<Build> {
    let hidden = fields.size("hidden_size", 768)?;
    shared_evenly(fields, hidden, &["num_attention_heads"], 12)?;
    let patch = fields.side("patch_size", 14)?;
    let image = fields.side("image_size", 224)?;
    let channels = fields.size("num_channels", 3)?;
    let gated = fields.flag("use_swiglu_ffn", false)?;
    let bias = fields.flag("qkv_bias", true)?;
    let ratio = fields.size("mlp_ratio", 4)?;
    let mask = fields.flag("use_mask_token", true)?;
    if patch > image {
        return fields.fault("patch_size", format!("{patch} pixels are more than the picture's {image}"));
    }
    let patches = (image / patch) * (image / patch);
    let list = &mut build.list;
    list.push("embeddings.cls_token", &[1, 1, hidden], Role::Positions);
    if mask {
        list.push("embeddings.mask_token", &[1, hidden], Role::Positions);
    }
    list.push("embeddings.position_embeddings", &[1, patches + 1, hidden], Role::Positions);
    list.convolution("embeddings.patch_embeddings.projection", channels, hidden, patch, true);
    let layers = fields.number_of(&["num_hidden_layers"], 12)?;
    build.each("num_hidden_layers", layers, fields, |list, at| {
        let block = format!("encoder.layer.{at}");
        list.norm(&format!("{block}.norm1"), hidden);
        for name in ["q_proj", "k_proj", "v_proj"] {
            list.linear(&format!("{block}.attention.{name}"), hidden, hidden, bias);
        }
        list.linear(&format!("{block}.attention.o_proj"), hidden, hidden, true);
        list.push(format!("{block}.layer_scale1.lambda1"), &[hidden], Role::Norm);
        list.norm(&format!("{block}.norm2"), hidden);
        if gated {
            let inner = (hidden * ratio * 2 / 3).next_multiple_of(8);
            super::gated(list, &format!("{block}.mlp"), hidden, inner, true);
        } else {
            list.linear(&format!("{block}.mlp.fc1"), hidden, hidden * ratio, true);
            list.linear(&format!("{block}.mlp.fc2"), hidden * ratio, hidden, true);
        }
        list.push(format!("{block}.layer_scale2.lambda1"), &[hidden], Role::Norm);
    })?;
    build.list.norm("layernorm", hidden);
    Ok(build)
}
