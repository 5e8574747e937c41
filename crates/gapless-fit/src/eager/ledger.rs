//! The format of each parameter, and whether it gets an adapter.
//!
//! Modeling code makes parameters by shape. Those of one shape come in the order of `parameters`, so the next entry of
//! that shape belongs to the next such parameter.

use crate::model::{Architecture, Role};
use crate::parameters::parameters;
use crate::settings::Lora;
use crate::stored::{Layout, Stored};
use crate::weigh::Weighed;
use std::collections::{HashMap, VecDeque};

/// How a product reads a stored weight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kernel {
    /// It is a plain tensor.
    #[default]
    Plain,
    /// Its values become a tensor in the type of the input, for as long as the product takes; scales that are quantised
    /// themselves take one more, of so many values.
    Dequantise { scales: u64 },
    /// LLM.int8: the input is quantised, the product has 32 bits, the backward pass dequantises the weight.
    Int8,
    /// A kernel reads it as it is; the input is quantised to one byte if `inputs` is set.
    Direct { inputs: bool },
}

/// One parameter.
#[derive(Clone, Debug, Default)]
pub(crate) struct Entry {
    /// Bytes of its tensors; empty if it is a plain one.
    pub pieces: Vec<u64>,
    pub kernel: Kernel,
    pub adapted: bool,
    /// Trained in a copy of its own, beside the frozen one.
    pub saved: bool,
}

/// Parameters by shape.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ledger(HashMap<Vec<u64>, VecDeque<Entry>>);

impl Ledger {
    /// Of a run with adapters, or with weights that are stored in another format; `trains` tells which kernels run.
    pub(crate) fn new(
        architecture: &Architecture,
        lora: Option<Lora>,
        stored: Option<&Stored>,
        width: u64,
        trains: bool,
    ) -> Ledger {
        let mut ledger = Ledger::default();
        let weighed = stored.map(|stored| stored.weigh(architecture, width));
        for (at, p) in parameters(architecture).into_iter().enumerate() {
            let mut entry = Entry::default();
            if let Some((Weighed { pieces, .. }, layout)) =
                weighed.as_ref().and_then(|list| list.get(at)).and_then(|w| Some((w, w.layout?)))
            {
                entry.pieces.clone_from(pieces);
                entry.kernel = kernel(layout, p.elements(), trains);
            }
            if let Some(lora) = lora {
                let module = p.name.strip_suffix(".weight").unwrap_or(&p.name);
                let last = module.rsplit('.').next().unwrap_or(module);
                let is_weight = p.name.ends_with(".weight");
                entry.adapted = p.role == Role::Matrix && is_weight && lora.targets.takes(architecture, last);
                entry.saved = is_weight && lora.saves(p.role);
            }
            ledger.0.entry(p.shape).or_default().push_back(entry);
        }
        ledger
    }

    pub(crate) fn next(&mut self, shape: &[u64]) -> Entry {
        self.0.get_mut(shape).and_then(VecDeque::pop_front).unwrap_or_default()
    }

    /// Parameters that were asked for an adapter or another format, and that no code made.
    pub(crate) fn left(&self) -> usize {
        let entries = self.0.values().flatten();
        entries.filter(|entry| entry.adapted || entry.saved || !entry.pieces.is_empty()).count()
    }
}

fn kernel(layout: Layout, values: u64, trains: bool) -> Kernel {
    match layout {
        Layout::Bits4 { nested } => {
            Kernel::Dequantise { scales: if nested { values.div_ceil(64) } else { 0 } }
        }
        Layout::Bits8 => Kernel::Int8,
        // Kernels for products with a transposed weight exist only for inference.
        _ if trains => Kernel::Dequantise { scales: 0 },
        Layout::Packed { .. } | Layout::Hqq { .. } | Layout::Quanto { .. } | Layout::Bits { .. } => {
            Kernel::Dequantise { scales: 0 }
        }
        Layout::Bytes { .. } => Kernel::Direct { inputs: true },
        _ => Kernel::Direct { inputs: false },
    }
}
