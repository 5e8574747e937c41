//! The compressibility of values, by component, from their frequencies alone.

use super::Kind;
use super::counts;

/// Bits that the frequencies of each component leave, weighted by its size.
#[derive(Clone, Debug, PartialEq)]
pub struct Entropy {
    /// Component, bits that it has, bits that its frequencies need.
    pub parts: Vec<(&'static str, f64, f64)>,
}

impl Entropy {
    /// Bytes needed over bytes present: the ratio of an ideal coder of these components.
    pub fn ratio(&self) -> f64 {
        let (has, needs) = self.parts.iter().fold((0.0, 0.0), |sum, part| (sum.0 + part.1, sum.1 + part.2));
        if has > 0.0 { needs / has } else { 1.0 }
    }
}

/// The entropy of `values`, whose length is a multiple of the kind's width; every value is counted.
pub fn entropy(kind: Kind, values: &[u8]) -> Entropy {
    let width = kind.width();
    let plane = |byte: usize| -> Vec<u8> { values.iter().skip(byte).step_by(width).copied().collect() };
    let bits = |byte: usize| counts::entropy(&counts::of_bytes(&plane(byte), true));
    let halves = |values: &[u8]| {
        let (high, low) = counts::of_pairs(values);
        (counts::entropy(&high), counts::entropy(&low), high)
    };
    let parts = match kind {
        Kind::Bf16 => {
            let (exponent, rest, _) = halves(values);
            vec![("exponent", 8.0, exponent), ("sign and mantissa", 8.0, rest)]
        }
        Kind::Fp16 => {
            let (whole, rest, high) = halves(values);
            let mut exponents = [0u32; 256];
            for (byte, count) in high.iter().enumerate() {
                exponents[byte >> 3] += count;
            }
            let exponent = counts::entropy(&exponents);
            vec![
                ("exponent", 5.0, exponent.min(5.0)),
                ("sign and mantissa", 11.0, (rest + whole - exponent).clamp(0.0, 11.0)),
            ]
        }
        Kind::Fp32 => {
            let upper: Vec<u8> =
                values.as_chunks::<4>().0.iter().flat_map(|value| [value[2], value[3]]).collect();
            let (exponent, rest, _) = halves(&upper);
            vec![
                ("exponent", 8.0, exponent),
                ("sign and upper mantissa", 8.0, rest),
                ("lower mantissa", 16.0, bits(0) + bits(1)),
            ]
        }
        _ => {
            let names = ["byte 0", "byte 1", "byte 2", "byte 3", "byte 4", "byte 5", "byte 6", "byte 7"];
            (0..width).map(|byte| (names[byte], 8.0, bits(byte))).collect()
        }
    };
    Entropy { parts }
}
