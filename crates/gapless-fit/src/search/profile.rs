//! A model as the search sees it: kinds of blocks with their parameters, bytes and operations, and the order in which
//! blocks come.

use crate::formulas::activations::{self, PerToken};
use crate::formulas::parameters::{self, Divided};
use crate::model::{Attention, Counted, Decoder, Parameter, Role, Text};
use crate::settings::Precision;

/// Blocks that are alike.
#[derive(Clone, Debug, PartialEq)]
pub struct Kind {
    pub parameters: Divided,
    /// Bytes that a token leaves for backward, by precision.
    pub kept: Vec<(Precision, PerToken)>,
    /// Elements a token of the block's input, which a checkpoint keeps.
    pub input: f64,
    /// Bytes beside it, once whatever the sequences.
    pub input_once: f64,
    /// Elements a token that forward holds beyond the saved ones, and backward beyond them; cut by tensor parallelism.
    pub forward_working: f64,
    pub backward_working: f64,
    /// Bytes beside them, once whatever the sequences.
    pub working_once: f64,
    /// Operations of one token's forward, the attention core apart; and the core's, for each position looked at.
    pub flops: f64,
    pub core_flops: f64,
    /// Elements of keys and values a token, which a ring passes on and a cache keeps.
    pub kv: f64,
    /// True if the cache is a latent that tensor parallelism cannot cut.
    pub latent: bool,
    /// Elements a token that experts exchange in one direction.
    pub routed: f64,
    /// Parameters that adapters of rank 1 on all its matrices have.
    pub adapter: f64,
}

impl Kind {
    /// Bytes that a token leaves, in this precision or the nearest known.
    #[must_use]
    pub fn kept(&self, precision: Precision) -> PerToken {
        let width = |p: &Precision| p.bytes().activation;
        let known = |wanted: &dyn Fn(&Precision) -> bool| {
            self.kept.iter().find(|(p, _)| wanted(p)).map(|&(_, kept)| kept)
        };
        known(&|p| *p == precision)
            .or_else(|| known(&|p| width(p) == width(&precision) && !p.is_autocast()))
            .or_else(|| self.kept.first().map(|&(_, kept)| kept))
            .unwrap_or_default()
    }
}

/// A model.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    pub name: String,
    pub kinds: Vec<Kind>,
    /// The kind of each block, in the order of forward.
    pub order: Vec<usize>,
    /// Before the blocks: embeddings. After: norm, and the head if it has weights of its own.
    pub first: Divided,
    pub last: Divided,
    pub tied: bool,
    pub hidden: u64,
    pub heads: u64,
    pub kv_heads: u64,
    pub vocab: u64,
    /// Bytes of the head once whatever the sequences, if they were counted in a simulated step.
    pub head_once: Option<f64>,
    /// Bytes that the embedding's backward holds for a moment: a gradient that is added to the head's if tied.
    pub ending: f64,
    /// 0 without experts.
    pub experts: u64,
    /// Elements of the largest parameter.
    pub largest: u64,
    /// True if the attention core can be recomputed by itself: its scores are tensors of the program, not of a kernel.
    pub selective: bool,
}

impl Profile {
    /// From the closed forms of Hugging Face's eager execution.
    #[must_use]
    pub fn from_decoder(name: &str, decoder: &Decoder) -> Profile {
        let dense = decoder.moe.as_ref().map_or(decoder.layers, |moe| moe.dense_layers.min(decoder.layers));
        let mut kinds = Vec::new();
        let mut order = Vec::new();
        for (from, to) in [(0, dense), (dense, decoder.layers)] {
            if from < to {
                order.extend((from..to).map(|_| kinds.len()));
                kinds.push(kind(decoder, from));
            }
        }
        let (first, last) = parameters::ends(decoder);
        let largest = decoder.vocab * decoder.hidden;
        Profile {
            name: name.to_owned(),
            kinds,
            order,
            first,
            last,
            tied: decoder.tied,
            hidden: decoder.hidden,
            heads: decoder.heads,
            kv_heads: decoder.kv_heads,
            vocab: decoder.vocab,
            head_once: None,
            ending: 0.0,
            experts: decoder.moe.as_ref().map_or(0, |moe| moe.experts),
            largest,
            selective: decoder.attention == Attention::Eager,
        }
    }

    /// A counted model that serves sequences of `context` tokens. Its blocks have parameters and a cache, averaged over
    /// such a sequence; the tensors that they save for backward are not known.
    #[must_use]
    pub fn from_counted(name: &str, model: &Counted, text: &Text, context: u64) -> Profile {
        let divided = |list: &[Parameter]| {
            let mut sum = Divided::default();
            for parameter in list {
                let elements = parameter.elements();
                match parameter.role {
                    Role::Expert => sum.experts += elements,
                    Role::Matrix | Role::Embedding | Role::Head | Role::Convolution => {
                        sum.sharded += elements;
                    }
                    _ => sum.replicated += elements,
                }
            }
            sum
        };
        let mut kinds: Vec<Kind> = Vec::new();
        let mut order = Vec::new();
        for (&(from, to), cache) in model.blocks.iter().zip(&text.cache) {
            let list = &model.parameters[from..to];
            let held =
                cache.window.map_or(context, |window| window.min(context)) as f64 / context.max(1) as f64;
            let kind = Kind {
                parameters: divided(list),
                kept: Vec::new(),
                input: text.hidden as f64,
                input_once: 0.0,
                forward_working: outputs(list, text.top_k),
                backward_working: 0.0,
                working_once: 0.0,
                flops: 0.0,
                core_flops: 0.0,
                kv: cache.token as f64 * held + cache.state as f64 / context.max(1) as f64,
                latent: false,
                routed: 0.0,
                adapter: 0.0,
            };
            let place = kinds.iter().position(|known| *known == kind).unwrap_or(kinds.len());
            if place == kinds.len() {
                kinds.push(kind);
            }
            order.push(place);
        }
        let begin = model.blocks.first().map_or(0, |(from, _)| *from);
        let end = model.blocks.last().map_or(0, |(_, to)| *to);
        let has_head = model.parameters.iter().any(|parameter| parameter.role == Role::Head);
        Profile {
            name: name.to_owned(),
            kinds,
            order,
            first: divided(&model.parameters[..begin]),
            last: divided(&model.parameters[end..]),
            tied: !has_head,
            hidden: text.hidden,
            heads: text.heads,
            kv_heads: text.kv_heads,
            vocab: text.vocab,
            head_once: None,
            ending: 0.0,
            experts: text.experts,
            largest: text.vocab * text.hidden,
            selective: false,
        }
    }

    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.order.len() as u64
    }

    #[must_use]
    pub fn parameters(&self) -> u64 {
        let blocks: u64 = self.order.iter().map(|&kind| self.kinds[kind].parameters.total()).sum();
        blocks + self.first.total() + self.last.total()
    }

    /// Operations of the head for a token.
    #[must_use]
    pub fn head_flops(&self) -> f64 {
        2.0 * (self.vocab * self.hidden) as f64
    }
}

/// Elements a token that all matrices of a block give, as if all were alive at once: more than any block holds.
fn outputs(list: &[Parameter], top_k: u64) -> f64 {
    let one = |parameter: &Parameter| match (parameter.role, parameter.shape.as_slice()) {
        (Role::Matrix, [outputs, _]) => *outputs,
        (Role::Expert, [_, a, b]) => top_k * (*a).max(*b),
        _ => 0,
    };
    list.iter().map(one).sum::<u64>() as f64
}

fn kind(decoder: &Decoder, layer: u64) -> Kind {
    let Decoder { hidden: h, heads: a, kv_heads: k, head_dim: d, intermediate, .. } = *decoder;
    let parameters = parameters::layer(decoder, layer);
    let moe = decoder.moe.as_ref().filter(|moe| layer >= moe.dense_layers);
    let active = moe.map_or(0.0, |moe| (moe.top_k * 3 * h * moe.expert_intermediate) as f64);
    let inner = moe.map_or(intermediate, |moe| moe.top_k * moe.expert_intermediate + moe.shared_intermediate);
    let precisions = [Precision::Bf16, Precision::Fp32, Precision::AmpBf16, Precision::AmpFp16];
    let width = decoder.mla.as_ref().map_or(d, |mla| mla.nope_dim + mla.rope_dim);
    let scores = if decoder.attention == Attention::Eager { 2.0 * a as f64 } else { 0.0 };
    let adapter = 4 * h + (2 * a + 2 * k) * d + 3 * (h + if moe.is_some() { 0 } else { intermediate });
    Kind {
        parameters,
        kept: precisions.map(|p| (p, activations::eager(decoder, p, layer))).to_vec(),
        input: h as f64,
        input_once: 0.0,
        forward_working: (2 * inner + 2 * h) as f64 + scores,
        backward_working: (3 * inner + h) as f64 + scores,
        working_once: 0.0,
        flops: 2.0 * (parameters.sharded as f64 + active),
        // Scores and their product with the values, half of them behind the mask.
        core_flops: 2.0 * (a * width) as f64,
        kv: decoder.mla.as_ref().map_or(2 * k * d, |mla| mla.kv_rank + mla.rope_dim) as f64,
        latent: decoder.mla.is_some(),
        routed: moe.map_or(0.0, |moe| (moe.top_k * h) as f64),
        adapter: adapter as f64,
    }
}
