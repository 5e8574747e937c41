//! Bits of a stored weight: quantised formats and 2:4 sparsity.

use super::Term;

/// A format of weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Format {
    F32,
    Half,
    Fp8,
    Int8,
    /// bitsandbytes: blocks of 64, scales in fp32.
    Nf4,
    /// The scales quantised again.
    Nf4Double,
    /// AWQ and GPTQ with this group.
    Int4(u64),
    Mxfp4,
    Nvfp4,
    /// As the checkpoint has it: the method's name, and thousandths of a bit a value.
    Stored {
        name: &'static str,
        bits: u32,
    },
    Q2K,
    Q3K,
    Q4_0,
    Q4K,
    Q5K,
    Q6K,
    Q8_0,
}

impl Format {
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Format::F32 => "fp32",
            Format::Half => "16-bit",
            Format::Fp8 => "fp8",
            Format::Int8 => "int8",
            Format::Nf4 => "nf4",
            Format::Nf4Double => "nf4-double",
            Format::Int4(_) => "int4",
            Format::Mxfp4 => "mxfp4",
            Format::Nvfp4 => "nvfp4",
            Format::Stored { name, .. } => name,
            Format::Q2K => "q2_k",
            Format::Q3K => "q3_k",
            Format::Q4_0 => "q4_0",
            Format::Q4K => "q4_k",
            Format::Q5K => "q5_k",
            Format::Q6K => "q6_k",
            Format::Q8_0 => "q8_0",
        }
    }

    /// Bits a weight, scales included.
    #[must_use]
    pub fn bits(self) -> f64 {
        match self {
            Format::F32 => 32.0,
            Format::Half => 16.0,
            Format::Fp8 | Format::Int8 => 8.0,
            Format::Nf4 | Format::Nvfp4 | Format::Q4_0 | Format::Q4K => 4.5,
            // 4 bits, an 8-bit scale for 64 weights, an fp32 scale for 256 of those.
            Format::Nf4Double => 4.0 + 8.0 / 64.0 + 32.0 / (64.0 * 256.0),
            Format::Int4(group) => 4.0 + 20.0 / group.max(1) as f64,
            Format::Mxfp4 => 4.25,
            Format::Stored { bits, .. } => f64::from(bits) / 1000.0,
            Format::Q2K => 2.625,
            Format::Q3K => 3.4375,
            Format::Q5K => 5.5,
            Format::Q6K => 6.5625,
            Format::Q8_0 => 8.5,
        }
    }
}

/// Weights in a format, half of them pruned in the pattern 2:4 or not.
#[must_use]
pub fn stored(parameters: u64, format: Format, sparse: bool) -> Term {
    // Half of the weights, and two bits of place for each that stays: 16 bits become 9, 8 become 5.
    let bits = if sparse { format.bits() / 2.0 + 1.0 } else { format.bits() };
    Term::bytes(
        "weights",
        parameters as f64 * bits / 8.0,
        if sparse { "P (bits / 2 + 1) / 8" } else { "P bits / 8" },
        &[("P", parameters as f64), ("bits", format.bits())],
        "bitsandbytes, AutoAWQ, llama.cpp's block formats, NVIDIA's 2:4 layout",
    )
}
