//! Rows by vectors. The bytes are those of `plain`, which takes over where a scale is far from 1: squares of errors are
//! summed in fp32 here, and quotients are products with the reciprocal.
//!
//! What touches vectors must be inlined into the functions of `path` that have the instructions. So it is marked so,
//! and closures, which cannot be marked, touch none.

use super::codes::{Coder, E4m3, Wide};
use super::group::{self, finite};
use super::lanes::Lanes;
use super::{Fault, Rows, plain};
use crate::quantize::scheme::{BLOCK, Scheme};
use std::marker::PhantomData;

/// Values of a part of the groups that is handled at once: their bytes stay in the first cache. A multiple of all
/// groups and steps.
const PART: usize = 4096;

/// How the values of a scheme share scales.
pub(super) trait Way {
    /// Appends what becomes of rows.
    fn rows<L: Lanes, V: Wide>(task: Task<'_>, out: &mut Rows) -> Result<(), Fault>;
}

/// A scale for each row.
#[derive(Debug)]
pub(super) struct ByRow<C>(PhantomData<C>);
/// A scale for a part of a row.
#[derive(Debug)]
pub(super) struct ByGroup<C>(PhantomData<C>);
/// A scale for 128 by 128 values, as fp8.
#[derive(Debug)]
pub(super) struct ByBlock;

/// What to quantise.
#[derive(Clone, Copy, Debug)]
pub(super) struct Task<'a> {
    pub(super) scheme: Scheme,
    pub(super) bytes: &'a [u8],
    pub(super) columns: usize,
    pub(super) whole: f32,
}

/// The largest magnitude of the values in `bytes`.
#[inline(always)]
pub(super) fn largest<L: Lanes, V: Wide>(bytes: &[u8]) -> Result<f32, Fault> {
    finite(most::<L, V>(bytes))
}

/// The bits as fp32 of the largest magnitude.
#[inline(always)]
fn most<L: Lanes, V: Wide>(bytes: &[u8]) -> u32 {
    let (vectors, rest) = bytes.split_at(bytes.len() - bytes.len() % (2 * L::STEP));
    let most = V::load(&V::most::<L>(vectors).to_le_bytes()).to_bits();
    rest.chunks_exact(V::WIDTH).fold(most, |most, value| most.max(V::load(value).abs().to_bits()))
}

impl<C: Coder> Way for ByRow<C> {
    #[inline(always)]
    fn rows<L: Lanes, V: Wide>(task: Task<'_>, out: &mut Rows) -> Result<(), Fault> {
        let Task { scheme, bytes, columns, whole } = task;
        let mut sums = Sums::<L>::new();
        out.weights.reserve_exact(bytes.len() / V::WIDTH * C::BITS / 8);
        for row in bytes.chunks_exact(columns * V::WIDTH) {
            let before = out.scales.len();
            let most = finite(most::<L, V>(row))?;
            let scale = group::scale::<V>(scheme, most, whole, &mut out.scales)?;
            if !is_near(scale, most) {
                out.scales.truncate(before);
                plain::rows::<V>(scheme, row, columns, whole, out)?;
                continue;
            }
            let place = grown(&mut out.weights, columns * C::BITS / 8);
            sums.run::<V, C>(row, [L::all(scale), L::all(1.0 / scale)], place, columns * V::WIDTH);
            sums.finish(out);
        }
        Ok(())
    }
}

impl<C: Coder> Way for ByGroup<C> {
    #[inline(always)]
    fn rows<L: Lanes, V: Wide>(task: Task<'_>, out: &mut Rows) -> Result<(), Fault> {
        let Task { scheme, bytes, columns, whole } = task;
        let (mut sums, mut scales) = (Sums::<L>::new(), Vec::new());
        let length = group::length(scheme).unwrap_or(columns);
        out.weights.reserve_exact(bytes.len() / V::WIDTH * C::BITS / 8);
        for part in bytes.chunks(PART * V::WIDTH) {
            let before = out.scales.len();
            scales.clear();
            let mut all_near = true;
            for group in part.chunks_exact(length * V::WIDTH) {
                let most = finite(most::<L::Narrow, V>(group))?;
                let scale = group::scale::<V>(scheme, most, whole, &mut out.scales)?;
                all_near &= is_near(scale, most);
                scales.push([scale, 1.0 / scale]);
            }
            if !all_near {
                out.scales.truncate(before);
                plain::rows::<V>(scheme, part, columns, whole, out)?;
                continue;
            }
            let place = grown(&mut out.weights, part.len() / V::WIDTH * C::BITS / 8);
            let unit = length.max(L::STEP);
            let units = part.chunks(unit * V::WIDTH).zip(place.chunks_mut(unit * C::BITS / 8));
            if length < L::STEP {
                for ((some, place), two) in units.zip(scales.chunks(2)) {
                    let (lower, upper) = (two[0], two[two.len() - 1]);
                    let scales = [L::halves(lower[0], upper[0]), L::halves(lower[1], upper[1])];
                    sums.run::<V, C>(some, scales, place, PART * V::WIDTH);
                }
            } else {
                for ((some, place), [scale, reciprocal]) in units.zip(&scales) {
                    let scales = [L::all(*scale), L::all(*reciprocal)];
                    sums.run::<V, C>(some, scales, place, PART * V::WIDTH);
                }
            }
            sums.finish(out);
        }
        Ok(())
    }
}

impl Way for ByBlock {
    #[inline(always)]
    fn rows<L: Lanes, V: Wide>(task: Task<'_>, out: &mut Rows) -> Result<(), Fault> {
        let Task { scheme, bytes, columns, whole } = task;
        let (mut sums, mut scales) = (Sums::<L>::new(), Vec::new());
        let (row_bytes, width) = (columns * V::WIDTH, BLOCK as usize);
        out.weights.reserve_exact(bytes.len() / V::WIDTH);
        let mut largest = vec![0; columns.div_ceil(width)];
        for blocks in bytes.chunks(row_bytes * width) {
            largest.fill(0);
            for row in blocks.chunks_exact(row_bytes) {
                for (largest, part) in largest.iter_mut().zip(row.chunks(width * V::WIDTH)) {
                    *largest = most::<L, V>(part).max(*largest);
                }
            }
            let before = out.scales.len();
            scales.clear();
            let mut all_near = true;
            for most in &largest {
                let most = finite(*most)?;
                let scale = group::scale::<V>(scheme, most, whole, &mut out.scales)?;
                all_near &= is_near(scale, most);
                scales.push([scale, 1.0 / scale]);
            }
            if !all_near {
                out.scales.truncate(before);
                plain::rows::<V>(scheme, blocks, columns, whole, out)?;
                continue;
            }
            for row in blocks.chunks_exact(row_bytes) {
                let place = grown(&mut out.weights, columns);
                let parts = row.chunks(width * V::WIDTH).zip(place.chunks_mut(width));
                for ((part, place), [scale, reciprocal]) in parts.zip(&scales) {
                    sums.run::<V, E4m3>(part, [L::all(*scale), L::all(*reciprocal)], place, row_bytes);
                }
                sums.finish(out);
            }
        }
        Ok(())
    }
}

/// Sums of squares of the errors and of the values, at even and at odd places.
struct Sums<L: Lanes> {
    error: [L::F; 2],
    values: [L::F; 2],
}

impl<L: Lanes> Sums<L> {
    #[inline(always)]
    fn new() -> Sums<L> {
        Sums { error: [L::all(0.0); 2], values: [L::all(0.0); 2] }
    }

    /// Values that share a scale, or two where a step is longer than a group. The values `next` bytes later are asked
    /// for: while these are coded, those come from memory.
    #[inline(always)]
    fn run<V: Wide, C: Coder>(&mut self, bytes: &[u8], scales: [L::F; 2], out: &mut [u8], next: usize) {
        let mut sums = Sums::<L> { error: self.error, values: self.values };
        let steps = bytes.chunks_exact(L::STEP * V::WIDTH);
        let rest = steps.remainder();
        let mut places = out.chunks_exact_mut(L::STEP * C::BITS / 8);
        for (bytes, place) in steps.zip(&mut places) {
            for line in (0..L::STEP * V::WIDTH).step_by(64) {
                L::prefetch(bytes, next + line);
            }
            sums.step::<V, C>(bytes, scales, place);
        }
        if !rest.is_empty() {
            // Zeros after the last value add nothing to the sums.
            let (mut padded, mut codes) = ([0; 128], [0; 32]);
            padded[..rest.len()].copy_from_slice(rest);
            sums.step::<V, C>(&padded, scales, &mut codes);
            let place = places.into_remainder();
            place.copy_from_slice(&codes[..place.len()]);
        }
        *self = sums;
    }

    /// Codes for a step of values.
    #[inline(always)]
    fn step<V: Wide, C: Coder>(&mut self, bytes: &[u8], [scale, reciprocal]: [L::F; 2], out: &mut [u8]) {
        let (even, odd) = V::load_step::<L>(bytes);
        let (even_code, even_error) = C::code::<L, V>(even, scale, reciprocal);
        let (odd_code, odd_error) = C::code::<L, V>(odd, scale, reciprocal);
        self.error[0] = L::mul_add(even_error, even_error, self.error[0]);
        self.error[1] = L::mul_add(odd_error, odd_error, self.error[1]);
        self.values[0] = L::mul_add(even, even, self.values[0]);
        self.values[1] = L::mul_add(odd, odd, self.values[1]);
        if C::BITS == 8 {
            L::store_bytes(even_code, odd_code, out);
        } else {
            L::store_nibbles(even_code, odd_code, out);
        }
    }

    /// Adds the sums to the result, and begins anew.
    #[inline(always)]
    fn finish(&mut self, out: &mut Rows) {
        out.error += L::sum(self.error[0]) + L::sum(self.error[1]);
        out.values += L::sum(self.values[0]) + L::sum(self.values[1]);
        *self = Sums::new();
    }
}

/// Whether a scale, and the largest value that it is for, are near enough to 1: their squares are in the range of fp32.
#[inline(always)]
fn is_near(scale: f32, most: f32) -> bool {
    const FAR: [f32; 2] = [(1u64 << 40) as f32, (1u64 << 50) as f32];
    let is_within = |value: f32, far: f32| value >= 1.0 / far && value <= far;
    is_within(scale, FAR[0]) && (most == 0.0 || is_within(most, FAR[1]))
}

/// The next `count` bytes of `bytes`, which get their place here. One part is cleared at a time, so that it is in the
/// first cache when the codes come.
#[inline(always)]
fn grown(bytes: &mut Vec<u8>, count: usize) -> &mut [u8] {
    let first = bytes.len();
    bytes.resize(first + count, 0);
    &mut bytes[first..]
}
