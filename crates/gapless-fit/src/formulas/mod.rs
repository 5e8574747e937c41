//! Closed forms: the memory of a model's states, activations, caches and runtime, each with its equation, inputs and
//! source.
//!
//! They check the step that `eager` runs operator by operator, and the search sweeps over them. Every formula gives a
//! `Term`, which `--why` prints. Symbols are those of the literature: b micro-batch, s length, T = b s tokens, L
//! layers, h hidden, f inner size, a heads, k key-value heads, d head size, V vocabulary, E experts of which e serve a
//! token, t tensor-, p pipeline-, c context-, q expert-parallel degree, v chunks of a stage, m micro-batches, N
//! data-parallel degree.

pub mod activations;
pub mod cache;
pub mod deepspeed;
pub mod engine;
pub mod head;
pub mod overhead;
pub mod parameters;
pub mod pipeline;
pub mod sharding;
pub mod states;
pub mod step;
pub mod weights;

use gapless_trace::Bytes;
use std::fmt;

/// The unit of a term.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    Bytes,
    Parameters,
    MicroBatches,
}

/// One number of the account with its source.
#[derive(Clone, Debug, PartialEq)]
pub struct Term {
    pub name: &'static str,
    pub value: u64,
    pub unit: Unit,
    pub equation: &'static str,
    /// The symbols of the equation, as they were put in.
    pub inputs: Vec<(&'static str, f64)>,
    pub source: &'static str,
}

impl Term {
    /// A number of bytes; fractions (a shard's) round to the nearest byte.
    #[must_use]
    pub fn bytes(
        name: &'static str,
        value: f64,
        equation: &'static str,
        inputs: &[(&'static str, f64)],
        source: &'static str,
    ) -> Term {
        Term {
            name,
            value: value.round() as u64,
            unit: Unit::Bytes,
            equation,
            inputs: inputs.to_vec(),
            source,
        }
    }

    pub(crate) fn with_unit(self, unit: Unit) -> Term {
        Term { unit, ..self }
    }

    #[must_use]
    pub fn gib(&self) -> f64 {
        self.value as f64 / (1u64 << 30) as f64
    }
}

/// `weights: 14.9 GiB = w P  (w = 2, P = 8030261248)  [source]`
impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.unit {
            Unit::Bytes => write!(f, "{}: {} = {}", self.name, Bytes(self.value), self.equation)?,
            Unit::Parameters => write!(f, "{}: {} parameters = {}", self.name, self.value, self.equation)?,
            Unit::MicroBatches => {
                write!(f, "{}: {} micro-batches = {}", self.name, self.value, self.equation)?;
            }
        }
        let inputs: Vec<String> =
            self.inputs.iter().map(|(symbol, value)| format!("{symbol} = {value}")).collect();
        write!(f, "  ({})  [{}]", inputs.join(", "), self.source)
    }
}
