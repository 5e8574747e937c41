//! The modeling code, family by family, as its Python original allocates: one small file each.

mod bert;
mod convnext;
mod deepseek;
mod gemma;
mod gpt2;
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
    /// A batch, as the caller makes and holds it: tokens where a model does not say otherwise, which are the labels too.
    fn batch(&self, sim: &Sim, run: &Run) -> Tensor {
        parts::tokens(sim, run.batch * run.length)
    }

    /// A forward pass with labels; gives the loss, and drops everything else that Python would.
    fn loss(self: Rc<Self>, sim: &Sim, run: &Run, x: &Tensor) -> Tensor;

    /// A forward pass without: what the caller holds afterwards.
    fn infer(self: Rc<Self>, sim: &Sim, run: &Run, x: &Tensor) -> Vec<Tensor>;
}

/// Why a model cannot be run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BuildError {
    #[error("{0} is not followed operator by operator yet: its weights are exact, its activations are not known")]
    Unsupported(&'static str),
    #[error("{0}")]
    Shape(String),
}

/// Allocates the weights of `architecture`.
pub(crate) fn build(sim: &Sim, architecture: &Architecture, run: &Run) -> Result<Rc<dyn Network>, BuildError> {
    match architecture {
        Architecture::Decoder(d) => match d.style {
            DecoderStyle::Gpt2 => gpt2::build(sim, d, run),
            DecoderStyle::GptNeox => neox::build(sim, d, run),
            DecoderStyle::Opt => opt::build(sim, d, run),
            DecoderStyle::Gemma | DecoderStyle::Gemma2 | DecoderStyle::Gemma3 => gemma::build(sim, d, run),
            DecoderStyle::DeepseekV2 | DecoderStyle::DeepseekV3 => deepseek::build(sim, d, run),
            _ => llama::build(sim, d, run),
        },
        Architecture::Encoder(e) => bert::build(sim, e, run),
        Architecture::Vision(v) => build_vision(sim, v, run),
        Architecture::EncoderDecoder(e) => t5::build(sim, e, run),
        Architecture::Graph(_) => Err(BuildError::Unsupported("an exported graph")),
    }
}

fn build_vision(sim: &Sim, vision: &Vision, run: &Run) -> Result<Rc<dyn Network>, BuildError> {
    match *vision {
        Vision::ResNet { ref blocks, bottleneck, groups, base_width, classes } => {
            resnet::build(sim, run, blocks, bottleneck, groups, base_width, classes)
        }
        Vision::Vit { layers, hidden, heads, intermediate, patch, image, classes, hugging_face } => {
            vit::build(sim, run, vit::Shape { layers, hidden, heads, intermediate, patch, image, classes, hugging_face })
        }
        Vision::ConvNext { ref channels, ref blocks, classes } => convnext::build(sim, run, channels, blocks, classes),
        Vision::Vgg { ref layers, batch_norm, classes } => vgg::build(sim, run, layers, batch_norm, classes),
    }
}
