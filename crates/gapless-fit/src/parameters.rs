//! The parameters of an architecture, name by name and shape by shape, in the order in which its implementation
//! registers them (transformers 5.17, torchvision 0.26). A shared parameter is listed once, as `named_parameters` does.
//! Buffers stand apart: they take memory but no gradient.

mod decoder;
mod encoder;
mod vision;

use crate::model::{Architecture, Dtype};

pub use crate::model::{Parameter, Role};

/// One tensor that lives with the parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Buffer {
    pub name: String,
    pub shape: Vec<u64>,
    /// Its type, whatever the weights are in, unless they are cast after loading.
    pub dtype: Dtype,
}

/// The parameters of `architecture`, in the order of its implementation.
#[must_use]
pub fn parameters(architecture: &Architecture) -> Vec<Parameter> {
    let mut list = List::default();
    match architecture {
        Architecture::Decoder(decoder) => decoder::list(decoder, &mut list),
        Architecture::Encoder(encoder) => encoder::bert(encoder, &mut list),
        Architecture::EncoderDecoder(model) => encoder::t5(model, &mut list),
        Architecture::Vision(vision) => vision::list(vision, &mut list),
        Architecture::Counted(counted) => return counted.parameters.clone(),
        Architecture::Graph(graph) => {
            for at in &graph.parameters {
                let tensor = &graph.tensors[*at as usize];
                list.push(tensor.name.clone(), &tensor.shape, Role::Other);
            }
        }
    }
    list.parameters
}

/// The buffers of `architecture`, if its family lists any: counted models do not.
#[must_use]
pub fn buffers(architecture: &Architecture) -> Vec<Buffer> {
    match architecture {
        Architecture::Decoder(decoder) => decoder::buffers(decoder),
        Architecture::Encoder(encoder) => encoder::bert_buffers(encoder),
        Architecture::EncoderDecoder(_) | Architecture::Counted(_) => Vec::new(),
        Architecture::Vision(vision) => vision::buffers(vision),
        Architecture::Graph(graph) => {
            let tensors = graph.buffers.iter().map(|at| &graph.tensors[*at as usize]);
            tensors
                .map(|tensor| Buffer {
                    name: tensor.name.clone(),
                    shape: tensor.shape.clone(),
                    dtype: tensor.dtype,
                })
                .collect()
        }
    }
}

/// Elements of all parameters; `None` above 2^60, because sums of their bytes could wrap.
#[must_use]
pub fn count(architecture: &Architecture) -> Option<u64> {
    const LIMIT: u128 = 1 << 60;
    let mut total: u128 = 0;
    for parameter in parameters(architecture) {
        let mut elements: u128 = 1;
        for side in &parameter.shape {
            elements = elements.checked_mul(u128::from(*side))?;
        }
        total = total.checked_add(elements)?;
    }
    (total < LIMIT).then_some(total as u64)
}

/// Parameters as they are registered.
#[derive(Default)]
pub(crate) struct List {
    pub(crate) parameters: Vec<Parameter>,
}

impl List {
    pub(crate) fn push(&mut self, name: impl Into<String>, shape: &[u64], role: Role) {
        self.parameters.push(Parameter { name: name.into(), shape: shape.to_vec(), role });
    }

    /// `torch.nn.Linear`.
    pub(crate) fn linear(&mut self, name: &str, from: u64, to: u64, bias: bool) {
        self.push(format!("{name}.weight"), &[to, from], Role::Matrix);
        if bias {
            self.push(format!("{name}.bias"), &[to], Role::Bias);
        }
    }

    /// A norm with a weight only.
    pub(crate) fn rms(&mut self, name: &str, size: u64) {
        self.push(format!("{name}.weight"), &[size], Role::Norm);
    }

    /// A norm with weight and bias.
    pub(crate) fn norm(&mut self, name: &str, size: u64) {
        self.rms(name, size);
        self.push(format!("{name}.bias"), &[size], Role::Bias);
    }

    /// `torch.nn.Conv2d` with a square kernel.
    pub(crate) fn convolution(&mut self, name: &str, from: u64, to: u64, kernel: u64, bias: bool) {
        self.push(format!("{name}.weight"), &[to, from, kernel, kernel], Role::Convolution);
        if bias {
            self.push(format!("{name}.bias"), &[to], Role::Bias);
        }
    }
}
