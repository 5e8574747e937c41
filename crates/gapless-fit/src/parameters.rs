//! The parameters of an architecture, name by name and shape by shape, in the order in which its implementation
//! registers them (transformers 5.17, torchvision 0.26). What is shared is listed once, as `named_parameters` does.
//! Buffers stand apart: they take memory but no gradient.

mod decoder;
mod encoder;
mod vision;

use crate::model::{Architecture, Dtype};

/// What a parameter is for: optimizers treat them apart (no decay on norms and biases, Muon on matrices only).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Rows that tokens look up.
    Embedding,
    /// Rows that positions look up, and other learned tokens.
    Positions,
    /// Weight of a norm, or a per-channel scale.
    Norm,
    Bias,
    /// Weight of a linear layer.
    Matrix,
    /// Weights of all experts of a layer in one tensor.
    Expert,
    /// Chooses experts.
    Router,
    /// From the last hidden state to the vocabulary or the classes.
    Head,
    /// Weight of a convolution.
    Convolution,
    /// Of a graph, where names tell nothing.
    Other,
}

/// One parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    pub name: String,
    pub shape: Vec<u64>,
    pub role: Role,
}

impl Parameter {
    /// Elements. Readers refuse architectures in which this would overflow.
    #[must_use]
    pub fn elements(&self) -> u64 {
        self.shape.iter().product()
    }
}

/// One tensor that lives with the parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Buffer {
    pub name: String,
    pub shape: Vec<u64>,
    /// It keeps this whatever the weights are in, unless they are cast after loading.
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
        Architecture::Graph(graph) => {
            for at in &graph.parameters {
                let tensor = &graph.tensors[*at as usize];
                list.push(tensor.name.clone(), &tensor.shape, Role::Other);
            }
        }
    }
    list.parameters
}

/// The buffers of `architecture`.
#[must_use]
pub fn buffers(architecture: &Architecture) -> Vec<Buffer> {
    match architecture {
        Architecture::Decoder(decoder) => decoder::buffers(decoder),
        Architecture::Encoder(encoder) => encoder::bert_buffers(encoder),
        Architecture::EncoderDecoder(_) => Vec::new(),
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

/// Elements of all parameters; `None` above 2^60, where sums of their bytes could wrap.
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
struct List {
    parameters: Vec<Parameter>,
}

impl List {
    fn push(&mut self, name: impl Into<String>, shape: &[u64], role: Role) {
        self.parameters.push(Parameter { name: name.into(), shape: shape.to_vec(), role });
    }

    /// `torch.nn.Linear`.
    fn linear(&mut self, name: &str, from: u64, to: u64, bias: bool) {
        self.push(format!("{name}.weight"), &[to, from], Role::Matrix);
        if bias {
            self.push(format!("{name}.bias"), &[to], Role::Bias);
        }
    }

    /// A norm with a weight only.
    fn rms(&mut self, name: &str, size: u64) {
        self.push(format!("{name}.weight"), &[size], Role::Norm);
    }

    /// A norm with weight and bias.
    fn norm(&mut self, name: &str, size: u64) {
        self.rms(name, size);
        self.push(format!("{name}.bias"), &[size], Role::Bias);
    }

    /// `torch.nn.Conv2d` with a square kernel.
    fn convolution(&mut self, name: &str, from: u64, to: u64, kernel: u64, bias: bool) {
        self.push(format!("{name}.weight"), &[to, from, kernel, kernel], Role::Convolution);
        if bias {
            self.push(format!("{name}.bias"), &[to], Role::Bias);
        }
    }
}
