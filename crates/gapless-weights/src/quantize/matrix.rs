//! Some rows of a matrix, quantised. Every scheme but `nvfp4` needs these rows alone; that one needs the largest value
//! of the whole matrix first.
//!
//! The order of operations, and the type that each result is rounded to, are those of compressed-tensors on a CPU:
//! `tests/quantize.rs` holds the bytes against checksums of what it writes.

use super::number::{Bf16, E2M1, E2M1_MAX, E4M3_MAX, Fp16, Fp32, Value, from_e4m3, to_e2m1, to_e4m3};
use super::scheme::{BLOCK, Scheme};
use std::sync::LazyLock;

static E4M3: LazyLock<[f32; 256]> = LazyLock::new(|| std::array::from_fn(|code| from_e4m3(code as u8)));

/// Types of weights that are quantised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Bf16,
    Fp16,
    Fp32,
}

impl Kind {
    pub fn of(dtype: &str) -> Option<Kind> {
        match dtype {
            "BF16" => Some(Kind::Bf16),
            "F16" => Some(Kind::Fp16),
            "F32" => Some(Kind::Fp32),
            _ => None,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Kind::Bf16 => "BF16",
            Kind::Fp16 => "F16",
            Kind::Fp32 => "F32",
        }
    }

    pub fn width(self) -> usize {
        if self == Kind::Fp32 { 4 } else { 2 }
    }
}

/// Why rows cannot be quantised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A value is infinite or not a number.
    NotFinite,
    /// The scale of a group is beyond what its type holds.
    TooLarge,
}

/// Quantised rows: bytes of the weights and of their scales, the sums of squares of the error and of the values.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rows {
    pub weights: Vec<u8>,
    pub scales: Vec<u8>,
    pub error: f64,
    pub values: f64,
}

/// Quantises rows of `columns` values, which fill `bytes`. Of `fp8-block`, the rows must begin at a multiple of 128.
/// `whole` is the matrix's scale of `nvfp4`, by [`whole_scale`].
pub fn rows(scheme: Scheme, kind: Kind, bytes: &[u8], columns: usize, whole: f32) -> Result<Rows, Fault> {
    match kind {
        Kind::Bf16 => rows_of::<Bf16>(scheme, bytes, columns, whole),
        Kind::Fp16 => rows_of::<Fp16>(scheme, bytes, columns, whole),
        Kind::Fp32 => rows_of::<Fp32>(scheme, bytes, columns, whole),
    }
}

/// The largest magnitude of the values in `bytes`.
pub fn largest(kind: Kind, bytes: &[u8]) -> Result<f32, Fault> {
    fn of<V: Value>(bytes: &[u8]) -> Result<f32, Fault> {
        finite(bytes.chunks_exact(V::WIDTH).fold(0, |most, value| most.max(V::load(value).abs().to_bits())))
    }
    match kind {
        Kind::Bf16 => of::<Bf16>(bytes),
        Kind::Fp16 => of::<Fp16>(bytes),
        Kind::Fp32 => of::<Fp32>(bytes),
    }
}

/// The scale of a whole matrix, or of several that engines fuse, from the largest magnitude.
pub fn whole_scale(kind: Kind, largest: f32) -> f32 {
    fn of<V: Value>(largest: f32) -> f32 {
        // A number over a tensor is the reciprocal, rounded, times the number.
        let scale = V::round(V::round(1.0 / largest.max(V::TINY)) * (E4M3_MAX * E2M1_MAX));
        if scale.is_finite() { scale } else { 1.0 }
    }
    match kind {
        Kind::Bf16 => of::<Bf16>(largest),
        Kind::Fp16 => of::<Fp16>(largest),
        Kind::Fp32 => of::<Fp32>(largest),
    }
}

/// A magnitude from its bits, which compare as magnitudes do, NaN above all.
fn finite(bits: u32) -> Result<f32, Fault> {
    if bits >= f32::INFINITY.to_bits() { Err(Fault::NotFinite) } else { Ok(f32::from_bits(bits)) }
}

fn most(values: &[f32]) -> Result<f32, Fault> {
    finite(values.iter().fold(0, |most, value| most.max(value.abs().to_bits())))
}

/// The scale that maps `most` to `range`.
fn scale<V: Value>(most: f32, range: f32) -> f32 {
    let scale = V::round(most / range);
    if scale == 0.0 { V::EPS } else { scale }
}

fn store<V: Value>(value: f32, out: &mut Vec<u8>) {
    out.extend_from_slice(&V::bits(value).to_le_bytes()[..V::WIDTH]);
}

fn rows_of<V: Value>(scheme: Scheme, bytes: &[u8], columns: usize, whole: f32) -> Result<Rows, Fault> {
    let values: Vec<f32> = bytes.chunks_exact(V::WIDTH).map(V::load).collect();
    let mut out = Rows { weights: Vec::with_capacity(values.len()), ..Rows::default() };
    match scheme {
        Scheme::Fp8 => {
            for row in values.chunks_exact(columns) {
                let scale = scale::<V>(most(row)?, E4M3_MAX);
                store::<V>(scale, &mut out.scales);
                fp8::<V>(row, scale, &mut out);
            }
        }
        Scheme::Fp8Block => {
            for block in values.chunks(columns * BLOCK as usize) {
                blocks::<V>(block, columns, &mut out)?;
            }
        }
        Scheme::W8a8 => {
            for row in values.chunks_exact(columns) {
                let scale = scale::<V>(most(row)?, 127.5);
                store::<V>(scale, &mut out.scales);
                for value in row {
                    let rounded = V::round(value / scale).clamp(-128.0, 127.0).round_ties_even();
                    out.weights.push(rounded as i8 as u8);
                    out.count(*value, rounded * scale);
                }
            }
        }
        Scheme::W4a16 => {
            for group in values.chunks_exact(128) {
                let scale = scale::<V>(most(group)?, 7.5);
                store::<V>(scale, &mut out.scales);
                out.pairs(group, |value| {
                    let rounded = V::round(value / scale).clamp(-8.0, 7.0).round_ties_even();
                    ((rounded + 8.0) as u8, rounded * scale)
                });
            }
        }
        Scheme::Mxfp4 => {
            for group in values.chunks_exact(32) {
                let (code, scale) = power::<V>(most(group)?)?;
                out.scales.push(code);
                out.pairs(group, |value| fp4(V::round(value / scale).clamp(-E2M1_MAX, E2M1_MAX), scale));
            }
        }
        Scheme::Nvfp4 => {
            for group in values.chunks_exact(16) {
                let local = V::round(most(group)? / E2M1_MAX);
                let code = match to_e4m3((whole * local).min(E4M3_MAX)) {
                    // A scale of zero becomes 0.125.
                    0 => 0x20,
                    code => code,
                };
                out.scales.push(code);
                let scale = from_e4m3(code) / whole;
                out.pairs(group, |value| fp4((value / scale).clamp(-E2M1_MAX, E2M1_MAX), scale));
            }
        }
    }
    Ok(out)
}

impl Rows {
    #[inline(always)]
    fn count(&mut self, value: f32, restored: f32) {
        let difference = f64::from(value) - f64::from(restored);
        self.error += difference * difference;
        self.values += f64::from(value) * f64::from(value);
    }

    /// Codes of four bits, two to a byte, the first below; `code` gives each with what it stands for.
    #[inline(always)]
    fn pairs(&mut self, group: &[f32], code: impl Fn(f32) -> (u8, f32)) {
        for pair in group.chunks_exact(2) {
            let (low, high) = (code(pair[0]), code(pair[1]));
            self.weights.push(low.0 | high.0 << 4);
            self.count(pair[0], low.1);
            self.count(pair[1], high.1);
        }
    }
}

#[inline(always)]
fn fp4(scaled: f32, scale: f32) -> (u8, f32) {
    let code = to_e2m1(scaled);
    let size = E2M1[usize::from(code & 7)] * scale;
    (code, if code & 8 == 0 { size } else { -size })
}

fn fp8<V: Value>(values: &[f32], scale: f32, out: &mut Rows) {
    let table = &*E4M3;
    for value in values {
        let code = to_e4m3(V::round(value / scale).clamp(-E4M3_MAX, E4M3_MAX));
        out.weights.push(code);
        out.count(*value, table[usize::from(code)] * scale);
    }
}

/// One row of blocks: at most 128 rows of the matrix. Blocks at the edges are as if filled with zeros.
fn blocks<V: Value>(values: &[f32], columns: usize, out: &mut Rows) -> Result<(), Fault> {
    let width = BLOCK as usize;
    let mut largest = vec![0u32; columns.div_ceil(width)];
    for row in values.chunks_exact(columns) {
        for (most, part) in largest.iter_mut().zip(row.chunks(width)) {
            *most = part.iter().fold(*most, |most, value| most.max(value.abs().to_bits()));
        }
    }
    let mut scales = Vec::with_capacity(largest.len());
    for most in largest {
        scales.push(scale::<V>(finite(most)?, E4M3_MAX));
    }
    for scale in &scales {
        store::<V>(*scale, &mut out.scales);
    }
    for row in values.chunks_exact(columns) {
        for (scale, part) in scales.iter().zip(row.chunks(width)) {
            fp8::<V>(part, *scale, out);
        }
    }
    Ok(())
}

/// The biased exponent of a group's scale, and the scale: the power of two nearest to the largest value, by a mantissa
/// of one bit, over four.
fn power<V: Value>(most: f32) -> Result<(u8, f32), Fault> {
    let exponent = ((V::bits(most) + (1 << (V::MANTISSA - 2))) >> V::MANTISSA) as i32;
    if exponent > 2 * V::BIAS {
        return Err(Fault::TooLarge);
    }
    let code = if exponent == 0 { 0 } else { (127 + exponent - V::BIAS - 2).max(0) };
    let scale = V::round(if code == 0 { 2f32.powi(-126) / 2.0 } else { 2f32.powi(code - 127) });
    // A scale that its type cannot hold becomes 1.
    Ok(if scale == 0.0 { (127, 1.0) } else { (code as u8, scale) })
}
