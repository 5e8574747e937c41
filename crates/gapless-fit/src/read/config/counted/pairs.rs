//! Models of two stacks: encoder and decoder, or text and pictures.

use super::{Build, Outcome, shared_evenly};
use crate::parameters::{List, Role};
use crate::read::fields::Fields;

/// Attention with a bias on all projections, or on all but the keys.
fn attention(list: &mut List, name: &str, hidden: u64, key_bias: bool) {
    list.linear(&format!("{name}.k_proj"), hidden, hidden, key_bias);
    for projection in ["v_proj", "q_proj", "out_proj"] {
        list.linear(&format!("{name}.{projection}"), hidden, hidden, true);
    }
}

/// BART's block; a decoder's has attention over the encoder too.
fn block(list: &mut List, name: &str, hidden: u64, inner: u64, crosses: bool, key_bias: bool) {
    attention(list, &format!("{name}.self_attn"), hidden, key_bias);
    list.norm(&format!("{name}.self_attn_layer_norm"), hidden);
    if crosses {
        attention(list, &format!("{name}.encoder_attn"), hidden, key_bias);
        list.norm(&format!("{name}.encoder_attn_layer_norm"), hidden);
    }
    list.linear(&format!("{name}.fc1"), hidden, inner, true);
    list.linear(&format!("{name}.fc2"), inner, hidden, true);
    list.norm(&format!("{name}.final_layer_norm"), hidden);
}

pub(super) fn bart(fields: Fields<'_>, mut build: Build) -> Outcome<Build> {
    /// The table of positions begins with rows that padding would take.
    const OFFSET: u64 = 2;
    let hidden = fields.size("d_model", 1024)?;
    shared_evenly(fields, hidden, &["encoder_attention_heads"], 16)?;
    shared_evenly(fields, hidden, &["decoder_attention_heads"], 16)?;
    let positions = [fields.size("max_position_embeddings", 1024)? + OFFSET, hidden];
    build.embedding("model.shared.weight", fields.size("vocab_size", 50265)?, hidden);
    for (side, layers, inner, crosses) in [
        ("encoder", "encoder_layers", "encoder_ffn_dim", false),
        ("decoder", "decoder_layers", "decoder_ffn_dim", true),
    ] {
        let inner = fields.size(inner, 4096)?;
        build.list.push(format!("model.{side}.embed_positions.weight"), &positions, Role::Positions);
        build.each(layers, fields.number_of(&[layers], 12)?, fields, |list, at| {
            block(list, &format!("model.{side}.layers.{at}"), hidden, inner, crosses, true);
        })?;
        build.list.norm(&format!("model.{side}.layernorm_embedding"), hidden);
    }
    if !fields.flag("tie_word_embeddings", true)? {
        return fields.fault("tie_word_embeddings", "a BART whose embeddings are not shared is not read");
    }
    Ok(build)
}

pub(super) fn whisper(fields: Fields<'_>, mut build: Build) -> Outcome<Build> {
    let hidden = fields.size("d_model", 384)?;
    shared_evenly(fields, hidden, &["encoder_attention_heads"], 6)?;
    shared_evenly(fields, hidden, &["decoder_attention_heads"], 6)?;
    let bins = fields.size("num_mel_bins", 80)?;
    let list = &mut build.list;
    for (name, from) in [("conv1", bins), ("conv2", hidden)] {
        list.push(format!("model.encoder.{name}.weight"), &[hidden, from, 3], Role::Convolution);
        list.push(format!("model.encoder.{name}.bias"), &[hidden], Role::Bias);
    }
    let sounds = fields.size("max_source_positions", 1500)?;
    list.push("model.encoder.embed_positions.weight", &[sounds, hidden], Role::Positions);
    let inner = fields.size("encoder_ffn_dim", 1536)?;
    build.each("encoder_layers", fields.number_of(&["encoder_layers"], 4)?, fields, |list, at| {
        block(list, &format!("model.encoder.layers.{at}"), hidden, inner, false, false);
    })?;
    build.list.norm("model.encoder.layer_norm", hidden);
    build.embedding("model.decoder.embed_tokens.weight", fields.size("vocab_size", 51865)?, hidden);
    let words = fields.size("max_target_positions", 448)?;
    build.list.push("model.decoder.embed_positions.weight", &[words, hidden], Role::Positions);
    let inner = fields.size("decoder_ffn_dim", 1536)?;
    build.each("decoder_layers", fields.number_of(&["decoder_layers"], 4)?, fields, |list, at| {
        block(list, &format!("model.decoder.layers.{at}"), hidden, inner, true, false);
    })?;
    build.list.norm("model.decoder.layer_norm", hidden);
    if !fields.flag("tie_word_embeddings", true)? {
        return fields.fault("tie_word_embeddings", "a Whisper whose head is not its embedding is not read");
    }
    Ok(build)
}

pub(super) fn clip(fields: Fields<'_>, mut build: Build) -> Outcome<Build> {
    let part = |key| Fields(fields.get(key).filter(|part| part.object().is_some()).unwrap_or(fields.0));
    if fields.get("text_config").is_none() || fields.get("vision_config").is_none() {
        return fields.fault("text_config", "a CLIP has a text_config and a vision_config");
    }
    let (text, vision) = (part("text_config"), part("vision_config"));
    let shared = fields.size("projection_dim", 512)?;
    build.list.push("logit_scale", &[], Role::Other);
    let words = text.size("hidden_size", 512)?;
    let name = "text_model.embeddings";
    build.embedding(&format!("{name}.token_embedding.weight"), text.size("vocab_size", 49408)?, words);
    let places = text.size("max_position_embeddings", 77)?;
    build.list.push(format!("{name}.position_embedding.weight"), &[places, words], Role::Positions);
    tower(&mut build, "text_model", text, words, 2048)?;
    build.list.norm("text_model.final_layer_norm", words);
    let width = vision.size("hidden_size", 768)?;
    let (patch, image) = (vision.side("patch_size", 32)?, vision.side("image_size", 224)?);
    if patch > image {
        return vision.fault("patch_size", format!("{patch} pixels are more than the picture's {image}"));
    }
    let name = "vision_model.embeddings";
    build.list.push(format!("{name}.class_embedding"), &[width], Role::Positions);
    let channels = vision.size("num_channels", 3)?;
    build.list.convolution(&format!("{name}.patch_embedding"), channels, width, patch, false);
    let patches = (image / patch) * (image / patch) + 1;
    build.list.push(format!("{name}.position_embedding.weight"), &[patches, width], Role::Positions);
    build.list.norm("vision_model.pre_layrnorm", width);
    tower(&mut build, "vision_model", vision, width, 3072)?;
    build.list.norm("vision_model.post_layernorm", width);
    build.list.linear("visual_projection", width, shared, false);
    build.list.linear("text_projection", words, shared, false);
    Ok(build)
}

fn tower(build: &mut Build, name: &str, fields: Fields<'_>, hidden: u64, inner: u64) -> Outcome<()> {
    let inner = fields.size("intermediate_size", inner)?;
    let layers = fields.number_of(&["num_hidden_layers"], 12)?;
    build.each("num_hidden_layers", layers, fields, |list, at| {
        let block = format!("{name}.encoder.layers.{at}");
        attention(list, &format!("{block}.self_attn"), hidden, true);
        list.norm(&format!("{block}.layer_norm1"), hidden);
        list.linear(&format!("{block}.mlp.fc1"), hidden, inner, true);
        list.linear(&format!("{block}.mlp.fc2"), inner, hidden, true);
        list.norm(&format!("{block}.layer_norm2"), hidden);
    })
}
