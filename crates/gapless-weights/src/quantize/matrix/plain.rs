//! Rows value by value: for processors without the vectors, and for groups whose scale is too far from 1 for vectors.

use super::group::{self, finite};
use super::{Fault, Rows};
use crate::quantize::number::{E2M1_MAX, E4M3_MAX, Value, from_e2m1, from_e4m3, to_e2m1, to_e4m3};
use crate::quantize::scheme::{BLOCK, Scheme};

/// Appends the result for `bytes`, which are whole rows, or whole groups if a group is a part of a row.
pub(super) fn rows<V: Value>(
    scheme: Scheme,
    bytes: &[u8],
    columns: usize,
    whole: f32,
    out: &mut Rows,
) -> Result<(), Fault> {
    let values: Vec<f32> = bytes.chunks_exact(V::WIDTH).map(V::load).collect();
    // One code a value, before pairs are joined, and the value of each code.
    let mut codes = vec![0u8; values.len()];
    let mut restored = vec![0f64; values.len()];
    if scheme == Scheme::Fp8Block {
        let step = columns * BLOCK as usize;
        for ((block, codes), restored) in
            values.chunks(step).zip(codes.chunks_mut(step)).zip(restored.chunks_mut(step))
        {
            blocks::<V>(block, columns, codes, restored, &mut out.scales)?;
        }
    } else {
        let length = group::length(scheme).unwrap_or(columns);
        let groups = values.chunks_exact(length).zip(codes.chunks_exact_mut(length));
        for ((group, codes), restored) in groups.zip(restored.chunks_exact_mut(length)) {
            let most = finite(group.iter().fold(0, |most, value| most.max(value.abs().to_bits())))?;
            let scale = group::scale::<V>(scheme, most, whole, &mut out.scales)?;
            code_all::<V>(scheme, group, scale, codes, restored);
        }
    }
    match scheme {
        Scheme::Fp8 | Scheme::Fp8Block | Scheme::W8a8 => out.weights.extend_from_slice(&codes),
        // Two codes to a byte, the first in the lower half.
        _ => out.weights.extend(codes.chunks_exact(2).map(|pair| pair[0] | pair[1] << 4)),
    }
    let (error, sum) = squares(&values, &restored);
    out.error += error;
    out.values += sum;
    Ok(())
}

/// The largest magnitude of the values in `bytes`.
pub(super) fn largest<V: Value>(bytes: &[u8]) -> Result<f32, Fault> {
    finite(bytes.chunks_exact(V::WIDTH).fold(0, |most, value| most.max(V::load(value).abs().to_bits())))
}

/// The codes of values that share a scale, and the codes' values.
fn code_all<V: Value>(scheme: Scheme, values: &[f32], scale: f32, codes: &mut [u8], restored: &mut [f64]) {
    match scheme {
        Scheme::W8a8 => each(values, codes, restored, |value| {
            let rounded = whole_number(V::round(value / scale).clamp(-128.0, 127.0));
            (low_byte(rounded), times(rounded, scale))
        }),
        Scheme::W4a16 => each(values, codes, restored, |value| {
            let rounded = whole_number(V::round(value / scale).clamp(-8.0, 7.0));
            (low_byte(rounded + 8.0), times(rounded, scale))
        }),
        Scheme::Mxfp4 => each(values, codes, restored, |value| {
            fp4(V::round(value / scale).clamp(-E2M1_MAX, E2M1_MAX), scale)
        }),
        Scheme::Nvfp4 => {
            each(values, codes, restored, |value| fp4((value / scale).clamp(-E2M1_MAX, E2M1_MAX), scale))
        }
        _ => each(values, codes, restored, |value| {
            let code = to_e4m3(V::round(value / scale).clamp(-E4M3_MAX, E4M3_MAX));
            (code, times(from_e4m3(code), scale))
        }),
    }
}

/// A code for each value, and the code's value.
#[inline(always)]
fn each(values: &[f32], codes: &mut [u8], restored: &mut [f64], code: impl Fn(f32) -> (u8, f64)) {
    for ((value, place), back) in values.iter().zip(codes).zip(restored) {
        (*place, *back) = code(*value);
    }
}

/// The product in fp64, because fp32 may not hold it exactly.
#[inline(always)]
fn times(code: f32, scale: f32) -> f64 {
    f64::from(code) * f64::from(scale)
}

/// The nearest whole number, ties to even, of one within ±2^22: the sum has no room for a fraction.
#[inline(always)]
fn whole_number(value: f32) -> f32 {
    const ROUND: f32 = 12_582_912.0;
    (value + ROUND) - ROUND
}

/// The lowest byte of a whole number within ±2^22, in two's complement.
#[inline(always)]
fn low_byte(value: f32) -> u8 {
    (value + 12_582_912.0).to_bits() as u8
}

#[inline(always)]
fn fp4(scaled: f32, scale: f32) -> (u8, f64) {
    let code = to_e2m1(scaled);
    (code, times(from_e2m1(code), scale))
}

/// Sums of the squares of the differences and of the values, in eight lanes.
fn squares(values: &[f32], restored: &[f64]) -> (f64, f64) {
    let (mut error, mut sum) = ([0f64; 8], [0f64; 8]);
    let mut add = |values: &[f32], restored: &[f64]| {
        for (lane, (value, back)) in values.iter().zip(restored).enumerate() {
            let (value, difference) = (f64::from(*value), f64::from(*value) - *back);
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

/// One row of blocks: at most 128 rows of the matrix. Blocks at the edges count as filled with zeros.
fn blocks<V: Value>(
    values: &[f32],
    columns: usize,
    codes: &mut [u8],
    restored: &mut [f64],
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
        scales.push(group::scale::<V>(Scheme::Fp8Block, finite(most)?, 1.0, stored)?);
    }
    let rows = values.chunks_exact(columns).zip(codes.chunks_exact_mut(columns));
    for ((row, codes), restored) in rows.zip(restored.chunks_exact_mut(columns)) {
        let parts = row.chunks(width).zip(codes.chunks_mut(width)).zip(restored.chunks_mut(width));
        for (scale, ((part, codes), restored)) in scales.iter().zip(parts) {
            code_all::<V>(Scheme::Fp8Block, part, *scale, codes, restored);
        }
    }
    Ok(())
}
