//! Bytes of every parameter in a format: as a checkpoint stores it, or as a flag asks for it.
//!
//! Embeddings, norms, biases and routers keep the model's own type unless a rule names them.

mod engines;
mod table;

pub use engines::{Beside, absorbed, beside};
pub use table::{Share, Table};

use crate::formulas::weights::Format;
use crate::model::{Architecture, DecoderStyle, Dtype, Parameter, Role};
use crate::parameters::parameters;
use crate::stored::{Layout, Origin, ScaleType, Scales, Stored};

/// A parameter as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Weighed {
    /// Its tensors: one if it keeps the model's type.
    pub pieces: Vec<u64>,
    pub layout: Option<Layout>,
}

impl Weighed {
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.pieces.iter().sum()
    }
}

/// Matrices of a parameter that are stored each on its own: their number, outputs and inputs.
fn matrices(p: &Parameter, turned: bool, fused: bool) -> Option<(u64, u64, u64)> {
    let (count, a, b) = match (p.role, p.shape.as_slice()) {
        (Role::Matrix | Role::Head | Role::Router | Role::Embedding, [a, b]) => (1, *a, *b),
        (Role::Expert, [count, a, b]) => (*count, *a, *b),
        _ => return None,
    };
    let swapped = turned && matches!(p.role, Role::Matrix | Role::Expert);
    let (outputs, inputs) = if swapped { (b, a) } else { (a, b) };
    let pair = p.role == Role::Expert && p.name.contains("gate_up") && !fused;
    Some(if pair { (2 * count, outputs / 2, inputs) } else { (count, outputs, inputs) })
}

impl Stored {
    /// Nothing quantised.
    #[must_use]
    pub fn plain() -> Stored {
        Stored {
            method: "16-bit",
            words: "16 bits".to_owned(),
            rules: Vec::new(),
            linears: None,
            experts: None,
            head: None,
            origin: Origin::Asked,
            total: None,
        }
    }

    /// All weights of the blocks in one layout, as a flag asks for it; `None` if they keep the model's type.
    #[must_use]
    pub fn asked(format: Format, sparse: bool) -> Option<Stored> {
        let thinned = |layout: Layout| {
            // Half of the values stay, each with two bits of place.
            if sparse {
                Layout::Bits { thousandths: (layout.bits() * 500.0 + 1000.0) as u64 }
            } else {
                layout
            }
        };
        let by_bits = || Layout::Bits { thousandths: (format.bits() * 1000.0).round() as u64 };
        let layout = match format {
            Format::F32 | Format::Half | Format::Stored { .. } if !sparse => return None,
            Format::F32 | Format::Half | Format::Stored { .. } => Layout::Bits { thousandths: 16_000 },
            Format::Fp8 => Layout::Bytes {
                scales: Scales::Tensor,
                scale: ScaleType::Float32,
                zeros: false,
                inputs: false,
            },
            Format::Int8 => Layout::Bytes {
                scales: Scales::Channel,
                scale: ScaleType::Float32,
                zeros: false,
                inputs: false,
            },
            Format::Nf4 => Layout::Bits4 { nested: false },
            Format::Nf4Double => Layout::Bits4 { nested: true },
            Format::Int4(group) => Layout::AwqGemm { bits: 4, group },
            Format::Mxfp4 => Layout::Float4 { group: 32, globals: 0 },
            Format::Nvfp4 => Layout::Float4 { group: 16, globals: 2 },
            _ => by_bits(),
        };
        let layout = thinned(layout);
        Some(Stored {
            method: format.name(),
            words: format.name().to_owned(),
            rules: Vec::new(),
            linears: Some(layout),
            experts: Some(layout),
            head: None,
            origin: Origin::Asked,
            total: None,
        })
    }

    /// The layout of a parameter.
    fn layout(&self, p: &Parameter) -> Option<Layout> {
        let module = p.name.strip_suffix(".weight").unwrap_or(&p.name);
        if let Some(rule) = self.rules.iter().find(|rule| rule.modules.matches(module)) {
            return rule.layout;
        }
        match p.role {
            Role::Expert => self.experts,
            Role::Matrix => self.linears,
            Role::Head => self.head,
            _ => None,
        }
    }

    /// Every parameter of `architecture`, in its order; weights that are not quantised have `half` bytes an element.
    #[must_use]
    pub fn weigh(&self, architecture: &Architecture, half: u64) -> Vec<Weighed> {
        let (turned, fused) = orientation(architecture);
        let one = |p: &Parameter| {
            let weighed = self.layout(p).zip(matrices(p, turned, fused)).map(|(layout, (count, o, i))| {
                let pieces = layout.pieces(o, i, half);
                Weighed {
                    pieces: pieces.iter().map(|piece| count * piece.bytes()).collect(),
                    layout: Some(layout),
                }
            });
            weighed.unwrap_or_else(|| Weighed { pieces: vec![p.elements() * half], layout: None })
        };
        let mut all: Vec<Weighed> = parameters(architecture).iter().map(one).collect();
        if let Some(total) = self.total {
            let counted: u64 = all.iter().map(Weighed::bytes).sum();
            let largest = all.iter_mut().filter(|w| w.layout.is_some()).max_by_key(|w| w.bytes());
            if let Some(first) = largest.and_then(|w| w.pieces.first_mut()) {
                *first = (*first + total).saturating_sub(counted);
            }
        }
        all
    }

    /// Bytes of all parameters.
    #[must_use]
    pub fn bytes(&self, architecture: &Architecture, half: u64) -> u64 {
        self.weigh(architecture, half).iter().map(Weighed::bytes).sum()
    }
}

/// True if matrices have their inputs first, and true if gate and up of experts lie in one.
fn orientation(architecture: &Architecture) -> (bool, bool) {
    match architecture {
        Architecture::Decoder(d) => (d.style == DecoderStyle::Gpt2, false),
        Architecture::Counted(c) => match c.model_type.as_str() {
            "gpt_oss" => (true, true),
            "llama4_text" | "llama4" | "gpt_bigcode" => (c.model_type != "gpt_bigcode", false),
            _ => (false, false),
        },
        _ => (false, false),
    }
}

/// Bytes of an element of the weights that are not quantised, by the type that the source names.
#[must_use]
pub fn width(architecture: &Architecture) -> u64 {
    let dtype = match architecture {
        Architecture::Decoder(d) => d.dtype,
        Architecture::Encoder(e) => e.dtype,
        Architecture::EncoderDecoder(e) => e.dtype,
        Architecture::Counted(c) => c.dtype,
        Architecture::Vision(_) | Architecture::Graph(_) => None,
    };
    match dtype {
        Some(Dtype::F32) => 4,
        _ => 2,
    }
}
