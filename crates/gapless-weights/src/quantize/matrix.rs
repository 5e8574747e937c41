//! Some rows of a matrix, quantised. Every scheme but `nvfp4` needs these rows alone; that one needs the largest value
//! of the whole matrix first.
//!
//! The order of operations, and the type that each result is rounded to, are those of compressed-tensors on a CPU:
//! `tests/quantize.rs` holds the bytes against checksums of what it writes.

use super::number::{Bf16, E2M1_MAX, E4M3_MAX, Fp16, Fp32, Value, from_e2m1, from_e4m3, to_e2m1, to_e4m3};
use super::scheme::{BLOCK, Scheme};
use super::sparse;

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
    /// Scales, or the masks of a sparse scheme.
    pub scales: Vec<u8>,
    /// Values that a sparse scheme kept of each row.
    pub kept: Vec<u64>,
    pub error: f64,
    pub values: f64,
}

/// Quantises rows of `columns` values, which fill `bytes`. Of `fp8-block`, the rows must begin at a multiple of 128.
/// `whole` is the matrix's scale of `nvfp4`, by [`whole_scale`].
pub fn rows(scheme: Scheme, kind: Kind, bytes: &[u8], columns: usize, whole: f32) -> Result<Rows, Fault> {
    match kind {
        Kind::Bf16 => best::<Bf16>(scheme, bytes, columns, whole),
        Kind::Fp16 => best::<Fp16>(scheme, bytes, columns, whole),
        Kind::Fp32 => best::<Fp32>(scheme, bytes, columns, whole),
    }
}

/// By the widest vectors that there are. Each step is rounded alone, so the result is the same.
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
fn best<V: Value>(scheme: Scheme, bytes: &[u8], columns: usize, whole: f32) -> Result<Rows, Fault> {
    #[target_feature(enable = "avx2")]
    fn wide<V: Value>(scheme: Scheme, bytes: &[u8], columns: usize, whole: f32) -> Result<Rows, Fault> {
        rows_of::<V>(scheme, bytes, columns, whole)
    }
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2, which is all that the function asks for.
        return unsafe { wide::<V>(scheme, bytes, columns, whole) };
    }
    rows_of::<V>(scheme, bytes, columns, whole)
}

#[cfg(not(target_arch = "x86_64"))]
fn best<V: Value>(scheme: Scheme, bytes: &[u8], columns: usize, whole: f32) -> Result<Rows, Fault> {
    rows_of::<V>(scheme, bytes, columns, whole)
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

/// How many values of these rows `sparse-bitmask` stores.
pub fn stored(kind: Kind, bytes: &[u8], columns: usize) -> Result<u64, Fault> {
    let found = match kind {
        Kind::Bf16 => sparse::stored::<Bf16>(bytes, columns),
        Kind::Fp16 => sparse::stored::<Fp16>(bytes, columns),
        Kind::Fp32 => sparse::stored::<Fp32>(bytes, columns),
    };
    found.ok_or(Fault::NotFinite)
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

#[inline(always)]
fn most(values: &[f32]) -> Result<f32, Fault> {
    finite(values.iter().fold(0, |most, value| most.max(value.abs().to_bits())))
}

/// The scale that maps `most` to `range`.
#[inline(always)]
fn scale<V: Value>(most: f32, range: f32) -> f32 {
    let scale = V::round(most / range);
    if scale == 0.0 { V::EPS } else { scale }
}

fn store<V: Value>(value: f32, out: &mut Vec<u8>) {
    out.extend_from_slice(&V::bits(value).to_le_bytes()[..V::WIDTH]);
}

/// The nearest whole number, ties to even, of one within ±2^22: the sum has no room for a fraction.
#[inline(always)]
fn whole_number(value: f32) -> f32 {
    const ROUND: f32 = 12_582_912.0;
    (value + ROUND) - ROUND
}

#[inline(always)]
fn rows_of<V: Value>(scheme: Scheme, bytes: &[u8], columns: usize, whole: f32) -> Result<Rows, Fault> {
    if scheme.is_sparse() {
        let found = sparse::rows::<V>(scheme, bytes, columns).ok_or(Fault::NotFinite)?;
        return Ok(Rows {
            weights: found.values,
            scales: found.masks,
            kept: found.kept,
            error: found.dropped,
            values: found.all,
        });
    }
    let values: Vec<f32> = bytes.chunks_exact(V::WIDTH).map(V::load).collect();
    let mut out = Rows::default();
    // One code a value, before pairs are joined, and what each stands for.
    let mut codes = vec![0u8; values.len()];
    let mut restored = vec![0f32; values.len()];
    match scheme {
        Scheme::Fp8 => {
            for (at, row) in values.chunks_exact(columns).enumerate() {
                let scale = scale::<V>(most(row)?, E4M3_MAX);
                store::<V>(scale, &mut out.scales);
                let place = at * columns..(at + 1) * columns;
                fp8::<V>(row, scale, &mut codes[place.clone()], &mut restored[place]);
            }
        }
        Scheme::Fp8Block => {
            let step = columns * BLOCK as usize;
            for ((block, codes), restored) in
                values.chunks(step).zip(codes.chunks_mut(step)).zip(restored.chunks_mut(step))
            {
                blocks::<V>(block, columns, codes, restored, &mut out.scales)?;
            }
        }
        Scheme::W8a8 => {
            for (at, row) in values.chunks_exact(columns).enumerate() {
                let scale = scale::<V>(most(row)?, 127.5);
                store::<V>(scale, &mut out.scales);
                let place = at * columns..(at + 1) * columns;
                each(row, &mut codes[place.clone()], &mut restored[place], |value| {
                    let rounded = whole_number(V::round(value / scale).clamp(-128.0, 127.0));
                    (low_byte(rounded), rounded * scale)
                });
            }
        }
        Scheme::W4a16 => {
            for (at, group) in values.chunks_exact(128).enumerate() {
                let scale = scale::<V>(most(group)?, 7.5);
                store::<V>(scale, &mut out.scales);
                let place = at * 128..(at + 1) * 128;
                each(group, &mut codes[place.clone()], &mut restored[place], |value| {
                    let rounded = whole_number(V::round(value / scale).clamp(-8.0, 7.0));
                    (low_byte(rounded + 8.0), rounded * scale)
                });
            }
        }
        Scheme::Mxfp4 => {
            for (at, group) in values.chunks_exact(32).enumerate() {
                let (code, scale) = power::<V>(most(group)?)?;
                out.scales.push(code);
                let place = at * 32..(at + 1) * 32;
                each(group, &mut codes[place.clone()], &mut restored[place], |value| {
                    fp4(V::round(value / scale).clamp(-E2M1_MAX, E2M1_MAX), scale)
                });
            }
        }
        Scheme::Nvfp4 => {
            for (at, group) in values.chunks_exact(16).enumerate() {
                let local = V::round(most(group)? / E2M1_MAX);
                let code = match to_e4m3((whole * local).min(E4M3_MAX)) {
                    // A scale of zero becomes 0.125.
                    0 => 0x20,
                    code => code,
                };
                out.scales.push(code);
                let scale = from_e4m3(code) / whole;
                let place = at * 16..(at + 1) * 16;
                each(group, &mut codes[place.clone()], &mut restored[place], |value| {
                    fp4((value / scale).clamp(-E2M1_MAX, E2M1_MAX), scale)
                });
            }
        }
        Scheme::Sparse24 | Scheme::SparseBitmask => {}
    }
    out.weights = match scheme {
        Scheme::Fp8 | Scheme::Fp8Block | Scheme::W8a8 => codes,
        // Two to a byte, the first below.
        _ => codes.chunks_exact(2).map(|pair| pair[0] | pair[1] << 4).collect(),
    };
    (out.error, out.values) = squares(&values, &restored);
    Ok(out)
}

/// The lowest byte of a whole number within ±2^22, in two's complement.
#[inline(always)]
fn low_byte(value: f32) -> u8 {
    (value + 12_582_912.0).to_bits() as u8
}

/// A code for each value, and what it stands for.
#[inline(always)]
fn each(values: &[f32], codes: &mut [u8], restored: &mut [f32], code: impl Fn(f32) -> (u8, f32)) {
    for ((value, place), back) in values.iter().zip(codes).zip(restored) {
        (*place, *back) = code(*value);
    }
}

/// Sums of the squares of the differences and of the values, in eight lanes.
#[inline(always)]
fn squares(values: &[f32], restored: &[f32]) -> (f64, f64) {
    let (mut error, mut sum) = ([0f64; 8], [0f64; 8]);
    let mut add = |values: &[f32], restored: &[f32]| {
        for (lane, (value, back)) in values.iter().zip(restored).enumerate() {
            let (value, difference) = (f64::from(*value), f64::from(*value) - f64::from(*back));
            error[lane] += difference * difference;
            sum[lane] += value * value;
        }
    };
    let (many, rest) = values.as_chunks::<8>();
    let (many_back, rest_back) = restored.as_chunks::<8>();
    for (values, restored) in many.iter().zip(many_back) {
        add(values, restored);
    }
    add(rest, rest_back);
    (error.iter().sum(), sum.iter().sum())
}

#[inline(always)]
fn fp4(scaled: f32, scale: f32) -> (u8, f32) {
    let code = to_e2m1(scaled);
    (code, from_e2m1(code) * scale)
}

#[inline(always)]
fn fp8<V: Value>(values: &[f32], scale: f32, codes: &mut [u8], restored: &mut [f32]) {
    each(values, codes, restored, |value| {
        let code = to_e4m3(V::round(value / scale).clamp(-E4M3_MAX, E4M3_MAX));
        (code, from_e4m3(code) * scale)
    });
}

/// One row of blocks: at most 128 rows of the matrix. Blocks at the edges are as if filled with zeros.
#[inline(always)]
fn blocks<V: Value>(
    values: &[f32],
    columns: usize,
    codes: &mut [u8],
    restored: &mut [f32],
    stored: &mut Vec<u8>,
) -> Result<(), Fault> {
    let width = BLOCK as usize;
    let mut largest = vec![0u32; columns.div_ceil(width)];
    for row in values.chunks_exact(columns) {
        for (most, part) in largest.iter_mut().zip(row.chunks(width)) {
            *most = part.iter().fold(*most, |most, value| most.max(value.abs().to_bits()));
        }
    }
    let mut scales = Vec::with_capacity(largest.len());
    for most in largest {
        let scale = scale::<V>(finite(most)?, E4M3_MAX);
        store::<V>(scale, stored);
        scales.push(scale);
    }
    let rows = values.chunks_exact(columns).zip(codes.chunks_exact_mut(columns));
    for ((row, codes), restored) in rows.zip(restored.chunks_exact_mut(columns)) {
        let parts = row.chunks(width).zip(codes.chunks_mut(width)).zip(restored.chunks_mut(width));
        for (scale, ((part, codes), restored)) in scales.iter().zip(parts) {
            fp8::<V>(part, *scale, codes, restored);
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
