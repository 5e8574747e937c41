//! BERT, RoBERTa and T5, and families that run their code: transformers' keys and defaults (5.17).

use super::{Outcome, attention, dtype};
use crate::model::{Activation, Encoder, EncoderDecoder, EncoderStyle};
use crate::read::fields::{Fields, activation};

pub(super) fn bert(model_type: &str, fields: Fields<'_>, notes: &mut Vec<String>) -> Outcome<Encoder> {
    if fields.flag("add_cross_attention", false)? {
        return fields.fault("add_cross_attention", "cross attention is not modelled");
    }
    // XLM-R and CamemBERT run RoBERTa's code with other defaults.
    let roberta = model_type != "bert";
    let encoder = Encoder {
        style: if roberta { EncoderStyle::Roberta } else { EncoderStyle::Bert },
        layers: fields.number_of(&["num_hidden_layers"], 12)?,
        hidden: fields.size("hidden_size", 768)?,
        heads: fields.size("num_attention_heads", 12)?,
        intermediate: fields.size("intermediate_size", 3072)?,
        vocab: fields.size("vocab_size", if model_type == "roberta" { 50265 } else { 30522 })?,
        max_positions: fields.size("max_position_embeddings", 512)?,
        token_types: fields.size("type_vocab_size", 2)?,
        tied: fields.flag("tie_word_embeddings", true)?,
        activation: fields.activation("hidden_act", Activation::Gelu)?,
        hidden_dropout: fields.share("hidden_dropout_prob", 0.1)?,
        attention_dropout: fields.share("attention_probs_dropout_prob", 0.1)?,
        attention: attention(fields, notes)?,
        dtype: dtype(fields, notes)?,
    };
    if !encoder.hidden.is_multiple_of(encoder.heads) {
        let what = format!("{} heads do not divide the hidden size {}", encoder.heads, encoder.hidden);
        return fields.fault("num_attention_heads", what);
    }
    Ok(encoder)
}

/// T5, and mT5, which runs the same code with other defaults.
pub(super) fn t5(model_type: &str, fields: Fields<'_>, notes: &mut Vec<String>) -> Outcome<EncoderDecoder> {
    let many = model_type == "mt5";
    let encoder_layers = fields.number_of(&["num_layers", "num_hidden_layers"], if many { 8 } else { 6 })?;
    let projection = fields.text("feed_forward_proj")?.unwrap_or(if many { "gated-gelu" } else { "relu" });
    let (says_gated, name) = match projection.strip_prefix("gated-") {
        // Only this name stands for another activation: GPT-2's form of it.
        Some("gelu") => (true, "gelu_new"),
        Some(name) => (true, name),
        None => (false, projection),
    };
    let Some(activation) = activation(name) else {
        return fields.fault("feed_forward_proj", "must be an activation's name, or gated- and one");
    };
    let gated = fields.flag("is_gated_act", says_gated)?;
    if fields.get("tie_word_embeddings").is_some() && !fields.flag("tie_word_embeddings", true)? {
        notes.push(
            "tie_word_embeddings is false: transformers ties T5's head all the same, so the head is not counted apart".into(),
        );
    }
    Ok(EncoderDecoder {
        encoder_layers,
        decoder_layers: match fields.has("num_decoder_layers") {
            true => fields.number_of(&["num_decoder_layers"], encoder_layers)?,
            false => encoder_layers,
        },
        hidden: fields.size_of(&["d_model", "hidden_size"], 512)?,
        heads: fields.size_of(&["num_heads", "num_attention_heads"], if many { 6 } else { 8 })?,
        head_dim: fields.size_of(&["d_kv", "head_dim"], 64)?,
        intermediate: fields.size("d_ff", if many { 1024 } else { 2048 })?,
        gated,
        activation,
        vocab: fields.size("vocab_size", if many { 250_112 } else { 32128 })?,
        relative_buckets: fields.size("relative_attention_num_buckets", 32)?,
        tied: true,
        dropout: fields.share("dropout_rate", 0.1)?,
        attention: attention(fields, notes)?,
        dtype: dtype(fields, notes)?,
    })
}
