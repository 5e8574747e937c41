//! The modeling code, family by family, as its Python original allocates: one small file each.

mod bert;
mod causal;
mod convnext;
mod deepseek;
mod densenet;
mod gemma;
mod gpt2;
mod inverted;
mod llama;
mod moe;
mod neox;
mod opt;
mod parts;
mod resnet;
mod t5;
mod vgg;
mod vision;
mod vit;

use crate::eager::{Run, Sim, Tensor};
use crate::model::{Architecture, DecoderStyle, Vision};
use std::rc::Rc;

/// A model whose weights are allocated.
pub(crate) trait Network {
    /// A batch, as the caller makes and holds it. By default it is tokens, which are the labels too.
    fn batch(&self, sim: &Sim, run: &Run) -> Tensor {
        parts::tokens(sim, run.batch * run.length)
    }

    /// A forward pass with labels; gives the loss, and drops everything else that Python would.
    fn loss(self: Rc<Self>, sim: &Sim, run: &Run, x: &Tensor) -> Tensor;

    /// A forward pass without labels; returns the tensors that the caller holds afterwards.
    fn infer(self: Rc<Self>, sim: &Sim, run: &Run, x: &Tensor) -> Vec<Tensor>;
}

/// The reason why a model cannot be run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BuildError {
    #[error(
        "{0} is not followed operator by operator yet: its weights are exact, its activations are not known"
    )]
    Unsupported(&'static str),
    #[error("{0}")]
    Shape(String),
}

/// More blocks than any model has: their records would outgrow memory.
const MOST_BLOCKS: u64 = 10_000;
/// Tokens of a batch, and of one sequence (or pixels a side), so that no product of sizes wraps.
pub(crate) const MOST_TOKENS: u64 = 1 << 28;
const LONGEST: u64 = 1 << 20;

/// Refuses runs that cannot be simulated, before anything is allocated.
fn check(architecture: &Architecture, run: &Run) -> Result<(), BuildError> {
    let wrong = |text: String| Err(BuildError::Shape(text));
    if run.batch == 0 || run.length == 0 {
        return wrong(
            "a batch of nothing takes no memory: give a batch and a length of at least 1".to_owned(),
        );
    }
    if run.length > LONGEST || run.batch.checked_mul(run.length).is_none_or(|n| n > MOST_TOKENS) {
        return wrong(format!(
            "{} x {} is more than a device can hold: a sequence has at most {LONGEST} tokens, a batch {MOST_TOKENS}",
            run.batch, run.length
        ));
    }
    let sum = |counts: &[u64]| counts.iter().fold(0, |sum: u64, n| sum.saturating_add(*n));
    let (blocks, sizes) = match architecture {
        Architecture::Decoder(d) => (d.layers, vec![d.heads, d.kv_heads, d.head_dim, d.hidden, d.vocab]),
        Architecture::Encoder(e) => (e.layers, vec![e.heads, e.hidden, e.vocab]),
        Architecture::EncoderDecoder(e) => {
            (e.encoder_layers.saturating_add(e.decoder_layers), vec![e.heads, e.head_dim, e.hidden, e.vocab])
        }
        Architecture::Vision(Vision::ResNet { blocks, groups, base_width, .. }) => {
            (sum(blocks), vec![*groups, *base_width])
        }
        Architecture::Vision(Vision::ConvNext { blocks, channels, .. }) => (sum(blocks), channels.clone()),
        Architecture::Vision(Vision::Vit { layers, heads, hidden, patch, .. }) => {
            (*layers, vec![*heads, *hidden, *patch])
        }
        Architecture::Vision(Vision::Vgg { layers, .. }) => (layers.len() as u64, Vec::new()),
        Architecture::Vision(Vision::DenseNet { blocks, growth, stem, .. }) => {
            (sum(blocks), vec![*growth, *stem])
        }
        Architecture::Vision(Vision::Inverted(network)) => (network.blocks.len() as u64, vec![network.stem]),
        Architecture::Graph(_) | Architecture::Counted(_) => (0, Vec::new()),
    };
    if blocks > MOST_BLOCKS {
        return wrong(format!(
            "{blocks} blocks are more than any model has: at most {MOST_BLOCKS} are followed"
        ));
    }
    if sizes.contains(&0) {
        return wrong("a size of the model is 0: check its heads, widths and vocabulary".to_owned());
    }
    Ok(())
}

/// Allocates the weights of `architecture`.
pub(crate) fn build(
    sim: &Sim,
    architecture: &Architecture,
    run: &Run,
) -> Result<Rc<dyn Network>, BuildError> {
    check(architecture, run)?;
    match architecture {
        Architecture::Decoder(d) => match d.style {
            DecoderStyle::Gpt2 => gpt2::build(sim, d, run),
            DecoderStyle::GptNeox => neox::build(sim, d, run),
            DecoderStyle::Opt => opt::build(sim, d, run),
            DecoderStyle::Gemma | DecoderStyle::Gemma2 | DecoderStyle::Gemma3 => gemma::build(sim, d, run),
            DecoderStyle::DeepseekV2 | DecoderStyle::DeepseekV3 => deepseek::build(sim, d, run),
            DecoderStyle::Llama
            | DecoderStyle::Mistral
            | DecoderStyle::Mixtral
            | DecoderStyle::Qwen2
            | DecoderStyle::Qwen3
            | DecoderStyle::Qwen3Moe
            | DecoderStyle::Phi3 => llama::build(sim, d, run),
        },
        Architecture::Encoder(e) => bert::build(sim, e, run),
        Architecture::Vision(v) => build_vision(sim, v, run),
        Architecture::EncoderDecoder(e) => t5::build(sim, e, run),
        Architecture::Graph(_) => Err(BuildError::Unsupported("an exported graph")),
        Architecture::Counted(_) => Err(BuildError::Unsupported("this architecture")),
    }
}

fn build_vision(sim: &Sim, vision: &Vision, run: &Run) -> Result<Rc<dyn Network>, BuildError> {
    match *vision {
        Vision::ResNet { ref blocks, bottleneck, groups, base_width, classes } => {
            resnet::build(sim, run, blocks, bottleneck, groups, base_width, classes)
        }
        Vision::Vit { layers, hidden, heads, intermediate, patch, image, classes, hugging_face } => {
            vit::build(
                sim,
                run,
                vit::Shape { layers, hidden, heads, intermediate, patch, image, classes, hugging_face },
            )
        }
        Vision::ConvNext { ref channels, ref blocks, classes } => {
            convnext::build(sim, run, channels, blocks, classes)
        }
        Vision::Vgg { ref layers, batch_norm, classes } => vgg::build(sim, run, layers, batch_norm, classes),
        Vision::Inverted(ref network) => inverted::build(sim, run, network),
        Vision::DenseNet { ref blocks, growth, stem, classes } => {
            densenet::build(sim, run, blocks, growth, stem, classes)
        }
    }
}
