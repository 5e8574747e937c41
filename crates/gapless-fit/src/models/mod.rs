//! The modeling code, family by family, as its Python original allocates: one small file each.

mod bert;
mod deepseek;
mod gemma;
mod gpt2;
mod llama;
mod moe;
mod neox;
mod opt;
mod parts;

use crate::eager::{Run, Sim, Tensor};
use crate::model::{Architecture, DecoderStyle};
use std::rc::Rc;

/// A model whose weights are allocated.
pub(crate) trait Network {
    /// A forward pass with labels; gives the loss, and drops everything else that Python would.
    fn loss(self: Rc<Self>, sim: &Sim, run: &Run) -> Tensor;

    /// A forward pass without: what the caller holds afterwards.
    fn infer(self: Rc<Self>, sim: &Sim, run: &Run) -> Vec<Tensor>;
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
            DecoderStyle::DeepseekV3 => deepseek::build(sim, d, run),
            _ => llama::build(sim, d, run),
        },
        Architecture::Encoder(e) => bert::build(sim, e, run),
        _ => Err(BuildError::Unsupported("this architecture")),
    }
}
