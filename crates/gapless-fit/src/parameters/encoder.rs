//! BERT, RoBERTa and T5, as transformers registers their parameters.

use super::{Buffer, List, Role};
use crate::model::{Dtype, Encoder, EncoderDecoder, EncoderStyle};

pub(super) fn bert(encoder: &Encoder, list: &mut List) {
    let (hidden, inner) = (encoder.hidden, encoder.intermediate);
    let roberta = encoder.style == EncoderStyle::Roberta;
    let root = if roberta { "roberta" } else { "bert" };
    let positions = |list: &mut List| {
        let name = format!("{root}.embeddings.position_embeddings.weight");
        list.push(name, &[encoder.max_positions, hidden], Role::Positions);
    };
    list.push(format!("{root}.embeddings.word_embeddings.weight"), &[encoder.vocab, hidden], Role::Embedding);
    if !roberta {
        positions(list);
    }
    let types = [encoder.token_types, hidden];
    list.push(format!("{root}.embeddings.token_type_embeddings.weight"), &types, Role::Embedding);
    list.norm(&format!("{root}.embeddings.LayerNorm"), hidden);
    if roberta {
        positions(list);
    }
    for layer in 0..encoder.layers {
        let block = format!("{root}.encoder.layer.{layer}");
        for name in ["query", "key", "value"] {
            list.linear(&format!("{block}.attention.self.{name}"), hidden, hidden, true);
        }
        list.linear(&format!("{block}.attention.output.dense"), hidden, hidden, true);
        list.norm(&format!("{block}.attention.output.LayerNorm"), hidden);
        list.linear(&format!("{block}.intermediate.dense"), hidden, inner, true);
        list.linear(&format!("{block}.output.dense"), inner, hidden, true);
        list.norm(&format!("{block}.output.LayerNorm"), hidden);
    }
    let (head, transform) =
        if roberta { ("lm_head", "lm_head") } else { ("cls.predictions", "cls.predictions.transform") };
    let norm = if roberta { "layer_norm" } else { "LayerNorm" };
    list.push(format!("{head}.bias"), &[encoder.vocab], Role::Bias);
    list.linear(&format!("{transform}.dense"), hidden, hidden, true);
    list.norm(&format!("{transform}.{norm}"), hidden);
    if !encoder.tied {
        list.push(format!("{head}.decoder.weight"), &[encoder.vocab, hidden], Role::Head);
        list.push(format!("{head}.decoder.bias"), &[encoder.vocab], Role::Bias);
    }
}

pub(super) fn bert_buffers(encoder: &Encoder) -> Vec<Buffer> {
    let root = if encoder.style == EncoderStyle::Roberta { "roberta" } else { "bert" };
    ["position_ids", "token_type_ids"]
        .map(|name| Buffer {
            name: format!("{root}.embeddings.{name}"),
            shape: vec![1, encoder.max_positions],
            dtype: Dtype::I64,
        })
        .into()
}

pub(super) fn t5(model: &EncoderDecoder, list: &mut List) {
    list.push("shared.weight", &[model.vocab, model.hidden], Role::Embedding);
    for (side, layers, cross) in
        [("encoder", model.encoder_layers, false), ("decoder", model.decoder_layers, true)]
    {
        for layer in 0..layers {
            let block = format!("{side}.block.{layer}.layer");
            t5_attention(model, &format!("{block}.0"), "SelfAttention", layer == 0, list);
            if cross {
                t5_attention(model, &format!("{block}.1"), "EncDecAttention", false, list);
            }
            let feed = format!("{block}.{}", if cross { 2 } else { 1 });
            let names: &[&str] = if model.gated { &["wi_0", "wi_1"] } else { &["wi"] };
            for name in names {
                list.linear(
                    &format!("{feed}.DenseReluDense.{name}"),
                    model.hidden,
                    model.intermediate,
                    false,
                );
            }
            list.linear(&format!("{feed}.DenseReluDense.wo"), model.intermediate, model.hidden, false);
            list.rms(&format!("{feed}.layer_norm"), model.hidden);
        }
        list.rms(&format!("{side}.final_layer_norm"), model.hidden);
    }
    if !model.tied {
        list.push("lm_head.weight", &[model.vocab, model.hidden], Role::Head);
    }
}

/// One attention with its norm; the first layer of a stack owns the bias of positions.
fn t5_attention(model: &EncoderDecoder, layer: &str, kind: &str, first: bool, list: &mut List) {
    let inner = model.heads * model.head_dim;
    for name in ["q", "k", "v"] {
        list.linear(&format!("{layer}.{kind}.{name}"), model.hidden, inner, false);
    }
    list.linear(&format!("{layer}.{kind}.o"), inner, model.hidden, false);
    if first {
        let shape = [model.relative_buckets, model.heads];
        list.push(format!("{layer}.{kind}.relative_attention_bias.weight"), &shape, Role::Positions);
    }
    list.rms(&format!("{layer}.layer_norm"), model.hidden);
}
