//! Configurations whose parameters are known one by one, and whose forward pass is not simulated. Weights and an
//! engine's cache are exact. Activations are not modelled, and a question that needs them is refused.
//!
//! Lists are in the order of transformers 5.22. `tests/read_counted.rs` holds each against transformers' own parameters
//! for the same configuration.

mod dense;
mod encoders;
mod experts;
mod hybrid;
mod pairs;

use super::{Outcome, dtype};
use crate::model::{Counted, LayerCache, Text};
use crate::parameters::{List, Role};
use crate::read::fields::Fields;

/// The model of a type of this folder; `None` for another type.
pub(super) fn read(
    model_type: &str,
    fields: Fields<'_>,
    notes: &mut Vec<String>,
) -> Outcome<Option<Counted>> {
    let build = Build::default();
    let built = match model_type {
        "bloom" => dense::bloom(fields, build)?,
        "codegen" => dense::codegen(fields, build)?,
        "cohere" | "cohere2" => dense::cohere(model_type, fields, build)?,
        "falcon" => dense::falcon(fields, build)?,
        "gpt_bigcode" => dense::bigcode(fields, build)?,
        "gpt_neo" => dense::neo(fields, build)?,
        "gptj" => dense::gptj(fields, build)?,
        "granite" => dense::granite(fields, build)?,
        "mpt" => dense::mpt(fields, build)?,
        "olmo" => dense::olmo(fields, build)?,
        "olmo2" => dense::olmo2(fields, build)?,
        "phi" => dense::phi(fields, build)?,
        "smollm3" => dense::smollm3(fields, build)?,
        "stablelm" => dense::stablelm(fields, build)?,
        "starcoder2" => dense::starcoder2(fields, build)?,
        "gpt_oss" => experts::gpt_oss(fields, build)?,
        "llama4_text" => experts::llama4(fields, build)?,
        "olmoe" => experts::olmoe(fields, build)?,
        "phimoe" => experts::phimoe(fields, build)?,
        "qwen2_moe" => experts::qwen2_moe(fields, build)?,
        "qwen3_next" => hybrid::qwen3_next(fields, build)?,
        "albert" => encoders::albert(fields, build)?,
        "deberta-v2" => encoders::deberta(fields, build)?,
        "distilbert" => encoders::distilbert(fields, build)?,
        "electra" => encoders::electra(fields, build)?,
        "modernbert" => encoders::modernbert(fields, build)?,
        "dinov2" => encoders::dinov2(fields, build)?,
        "bart" => pairs::bart(fields, build)?,
        "whisper" => pairs::whisper(fields, build)?,
        "clip" => pairs::clip(fields, build)?,
        _ => return Ok(None),
    };
    let Build { list, blocks, text } = built;
    Ok(Some(Counted {
        model_type: model_type.to_owned(),
        parameters: list.parameters,
        blocks,
        text,
        dtype: dtype(fields, notes)?,
    }))
}

/// The types that [`read`] knows.
pub(super) const TYPES: &[&str] = &[
    "albert",
    "bart",
    "bloom",
    "clip",
    "codegen",
    "cohere",
    "cohere2",
    "deberta-v2",
    "dinov2",
    "distilbert",
    "electra",
    "falcon",
    "gpt_bigcode",
    "gpt_neo",
    "gpt_oss",
    "gptj",
    "granite",
    "llama4_text",
    "modernbert",
    "mpt",
    "olmo",
    "olmo2",
    "olmoe",
    "phi",
    "phimoe",
    "qwen2_moe",
    "qwen3_next",
    "smollm3",
    "stablelm",
    "starcoder2",
    "whisper",
];

/// More blocks than any model has: lists of parameters must end.
const MOST_BLOCKS: u64 = 10_000;

/// A model as its parameters are listed.
#[derive(Default)]
struct Build {
    list: List,
    blocks: Vec<(usize, usize)>,
    text: Option<Text>,
}

impl Build {
    /// Lists one block after the other.
    fn each(
        &mut self,
        key: &str,
        count: u64,
        fields: Fields<'_>,
        mut block: impl FnMut(&mut List, u64),
    ) -> Outcome<()> {
        if count > MOST_BLOCKS {
            return fields.fault(key, format!("{count} blocks are more than any model has"));
        }
        for at in 0..count {
            let from = self.list.parameters.len();
            block(&mut self.list, at);
            self.blocks.push((from, self.list.parameters.len()));
        }
        Ok(())
    }

    /// The embedding and the blocks, as Llama names them.
    fn llama_blocks(
        &mut self,
        sizes: &Sizes,
        fields: Fields<'_>,
        mut block: impl FnMut(&mut List, &str, u64),
    ) -> Outcome<()> {
        self.embedding("model.embed_tokens.weight", sizes.vocab, sizes.hidden);
        self.each("num_hidden_layers", sizes.layers, fields, |list, at| {
            block(list, &format!("model.layers.{at}"), at);
        })
    }

    fn embedding(&mut self, name: &str, rows: u64, width: u64) {
        self.list.push(name, &[rows, width], Role::Embedding);
    }

    /// The head of a language model, if it has a matrix of its own; its bias, if it has one.
    fn head(&mut self, sizes: &Sizes, tied: bool, bias: bool) {
        if !tied {
            self.list.push("lm_head.weight", &[sizes.vocab, sizes.hidden], Role::Head);
        }
        if bias {
            self.list.push("lm_head.bias", &[sizes.vocab], Role::Bias);
        }
    }

    /// The head, `tied` to the embedding if the configuration does not say, of a model that generates text.
    fn generates_from_head(
        mut self,
        sizes: &Sizes,
        fields: Fields<'_>,
        tied: bool,
        bias: bool,
    ) -> Outcome<Build> {
        self.head(sizes, fields.flag("tie_word_embeddings", tied)?, bias);
        self.generates(sizes, fields)
    }

    /// Marks it as generating text: every block keeps keys and values of all tokens.
    fn generates(mut self, sizes: &Sizes, fields: Fields<'_>) -> Outcome<Build> {
        sizes.check(fields)?;
        let one = LayerCache { token: 2 * sizes.kv_heads * sizes.head_dim, window: None, state: 0 };
        self.text = Some(Text {
            hidden: sizes.hidden,
            heads: sizes.heads,
            kv_heads: sizes.kv_heads,
            vocab: sizes.vocab,
            max_positions: sizes.positions,
            experts: 0,
            top_k: 0,
            cache: vec![one; self.blocks.len()],
        });
        Ok(self)
    }
}

/// The numbers that most decoders share.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    vocab: u64,
    hidden: u64,
    inner: u64,
    layers: u64,
    heads: u64,
    kv_heads: u64,
    head_dim: u64,
    positions: u64,
}

/// The defaults of a class: vocabulary, hidden size, inner size, layers, heads, heads of keys and values (0: as many as
/// heads), positions.
type Usual = [u64; 7];

impl Sizes {
    fn read(fields: Fields<'_>, usual: Usual) -> Outcome<Sizes> {
        let [vocab, hidden, inner, layers, heads, kv_heads, positions] = usual;
        let hidden = fields.size("hidden_size", hidden)?;
        let heads = fields.size("num_attention_heads", heads)?;
        let kv_heads = match fields.get("num_key_value_heads") {
            Some(value) if value.is_null() => heads,
            Some(_) => fields.size("num_key_value_heads", heads)?,
            None if kv_heads == 0 => heads,
            None => kv_heads,
        };
        Ok(Sizes {
            vocab: fields.size("vocab_size", vocab)?,
            hidden,
            inner: fields.size("intermediate_size", inner)?,
            layers: fields.number_of(&["num_hidden_layers"], layers)?,
            heads,
            kv_heads,
            head_dim: fields.optional("head_dim")?.filter(|dim| *dim > 0).unwrap_or(hidden / heads),
            positions: fields.size("max_position_embeddings", positions)?,
        })
    }

    fn queries(&self) -> u64 {
        self.heads * self.head_dim
    }

    fn keys(&self) -> u64 {
        self.kv_heads * self.head_dim
    }

    fn check(&self, fields: Fields<'_>) -> Outcome<()> {
        if self.head_dim == 0 {
            return fields.fault(
                "num_attention_heads",
                format!("{} heads leave none of the hidden size {}", self.heads, self.hidden),
            );
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            return fields.fault(
                "num_key_value_heads",
                format!(
                    "{} heads cannot share {} heads of keys and values evenly",
                    self.heads, self.kv_heads
                ),
            );
        }
        Ok(())
    }
}

/// A width that the heads share evenly: no forward pass runs with another.
fn shared_evenly(fields: Fields<'_>, hidden: u64, keys: &[&str], heads: u64) -> Outcome<()> {
    let heads = fields.size_of(keys, heads)?;
    if hidden.is_multiple_of(heads) {
        return Ok(());
    }
    let key = keys.iter().find(|key| fields.has(key)).unwrap_or(&keys[0]);
    fields.fault(key, format!("{heads} heads do not divide the hidden size {hidden}"))
}

/// Queries, keys, values and the output, apart, as Llama names them.
fn attention(list: &mut List, name: &str, sizes: &Sizes, qkv_bias: bool, out: &str, out_bias: bool) {
    list.linear(&format!("{name}.q_proj"), sizes.hidden, sizes.queries(), qkv_bias);
    list.linear(&format!("{name}.k_proj"), sizes.hidden, sizes.keys(), qkv_bias);
    list.linear(&format!("{name}.v_proj"), sizes.hidden, sizes.keys(), qkv_bias);
    list.linear(&format!("{name}.{out}"), sizes.queries(), sizes.hidden, out_bias);
}

/// Llama's feed-forward block.
fn gated(list: &mut List, name: &str, hidden: u64, inner: u64, bias: bool) {
    list.linear(&format!("{name}.gate_proj"), hidden, inner, bias);
    list.linear(&format!("{name}.up_proj"), hidden, inner, bias);
    list.linear(&format!("{name}.down_proj"), inner, hidden, bias);
}
