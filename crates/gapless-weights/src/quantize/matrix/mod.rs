//! Some rows of a matrix, quantised. Every scheme but `nvfp4` needs these rows alone; that one needs the largest value
//! of the whole matrix first.
//!
//! The order of operations, and the type that each result is rounded to, are those of compressed-tensors on a CPU:
//! `tests/quantize.rs` compares the bytes with checksums of its output. `group` is the scale of a group of values,
//! `plain` the arithmetic value by value, `vector` the same bytes by vectors: `lanes` has the operations of a vector,
//! `avx2` and `avx512` implement them, and `codes` turns values into codes.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod codes;
mod group;
#[cfg(target_arch = "x86_64")]
mod lanes;
mod path;
mod plain;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod vector;

use super::number::{Bf16, E2M1_MAX, E4M3_MAX, Fp16, Fp32, Value};
use super::scheme::Scheme;
use super::sparse;
use path::Path;

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

/// The reason why rows cannot be quantised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A value is infinite or not a number.
    NotFinite,
    /// The scale of a group is beyond the range of its type.
    TooLarge,
}

/// Quantised rows: bytes of the weights and of their scales, the sums of squares of the error and of the values.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rows {
    pub weights: Vec<u8>,
    /// Scales, or the masks of a sparse scheme.
    pub scales: Vec<u8>,
    /// The number of values that a sparse scheme kept of each row.
    pub kept: Vec<u64>,
    /// The last digits of these two sums depend on the processor, unlike the bytes.
    pub error: f64,
    pub values: f64,
}

/// Quantises rows of `columns` values, which fill `bytes`. For `fp8-block`, the rows must begin at a multiple of 128.
/// `whole` is the matrix's scale of `nvfp4`, by [`whole_scale`].
pub fn rows(scheme: Scheme, kind: Kind, bytes: &[u8], columns: usize, whole: f32) -> Result<Rows, Fault> {
    match kind {
        Kind::Bf16 => rows_of::<Bf16>(scheme, bytes, columns, whole),
        Kind::Fp16 => rows_of::<Fp16>(scheme, bytes, columns, whole),
        Kind::Fp32 => rows_of::<Fp32>(scheme, bytes, columns, whole),
    }
}

fn rows_of<V: path::Vectored>(
    scheme: Scheme,
    bytes: &[u8],
    columns: usize,
    whole: f32,
) -> Result<Rows, Fault> {
    let mut out = Rows::default();
    if scheme.is_sparse() {
        let found = sparse::rows::<V>(scheme, bytes, columns).ok_or(Fault::NotFinite)?;
        out = Rows {
            weights: found.values,
            scales: found.masks,
            kept: found.kept,
            error: found.dropped,
            values: found.all,
        };
    } else {
        Path::best().rows::<V>(scheme, bytes, columns, whole, &mut out)?;
    }
    Ok(out)
}

/// The largest magnitude of the values in `bytes`.
pub fn largest(kind: Kind, bytes: &[u8]) -> Result<f32, Fault> {
    let path = Path::best();
    match kind {
        Kind::Bf16 => path.largest::<Bf16>(bytes),
        Kind::Fp16 => path.largest::<Fp16>(bytes),
        Kind::Fp32 => path.largest::<Fp32>(bytes),
    }
}

/// The number of values of these rows that `sparse-bitmask` stores.
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
        // torch divides a number by a tensor as the rounded reciprocal times the number.
        let scale = V::round(V::round(1.0 / largest.max(V::TINY)) * (E4M3_MAX * E2M1_MAX));
        if scale.is_finite() { scale } else { 1.0 }
    }
    match kind {
        Kind::Bf16 => of::<Bf16>(largest),
        Kind::Fp16 => of::<Fp16>(largest),
        Kind::Fp32 => of::<Fp32>(largest),
    }
}
