//! Rows by vectors. The bytes are those of `plain`, which takes over if a scale is far from 1, because here squares
//! of errors are summed in fp32 and quotients are products with the reciprocal.
//!
//! Code with vectors must be inlined into the functions of `path` that enable the instructions. So it is marked
//! `inline(always)`; closures cannot be marked, so they use no vectors.

use super::codes::{Coder, E4m3, Wide};
use super::group::{self, finite};
use super::lanes::Lanes;
use super::{Fault, Rows, plain};
use crate::quantize::scheme::{BLOCK, Scheme};
use std::marker::PhantomData;

/// Values that are handled at once, so that their bytes stay in the first cache. A multiple of all groups and steps.
const PART: usize = 4096;

/// Blocks side by side that are handled at once, so that their bytes stay in the second cache.
const STRIP: usize = 8;

/// The way in which values of a scheme share scales.
pub(super) trait Way {
    /// Appends the quantised rows.
    fn rows<L: Lanes, V: Wide>(task: Task<'_>, out: &mut Rows) -> Result<(), Fault>;
}

/// A scale for each row.
#[derive(Debug)]
pub(super) struct ByRow<C>(PhantomData<C>);
/// A scale for `LENGTH` values of a row.
#[derive(Debug)]
pub(super) struct ByGroup<C, const LENGTH: usize>(PhantomData<C>);
/// A scale for 128 by 128 values, as fp8.
#[derive(Debug)]
pub(super) struct ByBlock;

/// The input of a function that quantises.
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
    let mut most = Most::<L>::new();
    most.add::<V>(bytes);
    most.bits::<V>()
}

/// The largest magnitudes so far: lane by lane, and the bits as fp32 of those that fill no vector.
#[derive(Clone, Copy)]
struct Most<L: Lanes> {
    lanes: L::I,
    rest: u32,
}

impl<L: Lanes> Most<L> {
    #[inline(always)]
    fn new() -> Most<L> {
        Most { lanes: L::all_bits(0), rest: 0 }
    }

    #[inline(always)]
    fn add<V: Wide>(&mut self, bytes: &[u8]) {
        let (vectors, rest) = bytes.split_at(bytes.len() - bytes.len() % (2 * L::STEP));
        self.lanes = V::more::<L>(self.lanes, vectors);
        for value in rest.chunks_exact(V::WIDTH) {
            self.rest = self.rest.max(V::load(value).abs().to_bits());
        }
    }

    #[inline(always)]
    fn bits<V: Wide>(&self) -> u32 {
        V::load(&V::most::<L>(self.lanes).to_le_bytes()).to_bits().max(self.rest)
    }
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

impl<C: Coder, const LENGTH: usize> Way for ByGroup<C, LENGTH> {
    #[inline(always)]
    fn rows<L: Lanes, V: Wide>(task: Task<'_>, out: &mut Rows) -> Result<(), Fault> {
        let Task { scheme, bytes, columns, whole } = task;
        let (mut sums, mut largest, mut scales) = (Sums::<L>::new(), Vec::new(), Vec::new());
        out.weights.reserve_exact(bytes.len() / V::WIDTH * C::BITS / 8);
        for part in bytes.chunks(PART * V::WIDTH) {
            largest.clear();
            for group in part.chunks_exact(LENGTH * V::WIDTH) {
                largest.push(finite(most::<L::Narrow, V>(group))?);
            }
            let before = out.scales.len();
            group::scales::<V>(scheme, &largest, whole, &mut out.scales, &mut scales)?;
            if !scales.iter().zip(&largest).all(|(scale, most)| is_near(*scale, *most)) {
                out.scales.truncate(before);
                plain::rows::<V>(scheme, part, columns, whole, out)?;
                continue;
            }
            let place = grown(&mut out.weights, part.len() / V::WIDTH * C::BITS / 8);
            if LENGTH < L::STEP {
                let units = part.chunks(L::STEP * V::WIDTH).zip(place.chunks_mut(L::STEP * C::BITS / 8));
                for ((some, place), two) in units.zip(scales.chunks(2)) {
                    let (lower, upper) = (two[0], two[two.len() - 1]);
                    let scales = [L::halves(lower, upper), L::halves(1.0 / lower, 1.0 / upper)];
                    sums.run::<V, C>(some, scales, place, PART * V::WIDTH);
                }
            } else {
                let groups = part.chunks_exact(LENGTH * V::WIDTH);
                let groups = groups.zip(place.chunks_exact_mut(LENGTH * C::BITS / 8));
                for ((some, place), scale) in groups.zip(&scales) {
                    let scales = [L::all(*scale), L::all(1.0 / scale)];
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
        let mut sums = Sums::<L>::new();
        let width = BLOCK as usize;
        out.weights.reserve_exact(bytes.len() / V::WIDTH);
        'blocks: for blocks in bytes.chunks(columns * V::WIDTH * width) {
            let first = out.weights.len();
            let before = (out.scales.len(), out.error, out.values);
            out.weights.resize(first + blocks.len() / V::WIDTH, 0);
            for at in (0..columns).step_by(width * STRIP) {
                let end = columns.min(at + width * STRIP);
                let mut largest = [Most::<L>::new(); STRIP];
                for row in blocks.chunks_exact(columns * V::WIDTH) {
                    let parts = row[at * V::WIDTH..end * V::WIDTH].chunks(width * V::WIDTH);
                    for (largest, part) in largest.iter_mut().zip(parts) {
                        largest.add::<V>(part);
                    }
                }
                let mut scales = [[1.0; 2]; STRIP];
                for (most, scales) in largest.iter().zip(&mut scales).take((end - at).div_ceil(width)) {
                    let most = finite(most.bits::<V>())?;
                    let scale = group::scale::<V>(scheme, most, whole, &mut out.scales)?;
                    if !is_near(scale, most) {
                        out.weights.truncate(first);
                        out.scales.truncate(before.0);
                        (out.error, out.values) = (before.1, before.2);
                        plain::rows::<V>(scheme, blocks, columns, whole, out)?;
                        continue 'blocks;
                    }
                    *scales = [scale, 1.0 / scale];
                }
                let places = out.weights[first..].chunks_exact_mut(columns);
                for (row, place) in blocks.chunks_exact(columns * V::WIDTH).zip(places) {
                    let parts = row[at * V::WIDTH..end * V::WIDTH].chunks(width * V::WIDTH);
                    let parts = parts.zip(place[at..end].chunks_mut(width));
                    for ((part, place), [scale, reciprocal]) in parts.zip(&scales) {
                        let scales = [L::all(*scale), L::all(*reciprocal)];
                        let next = STRIP * width * V::WIDTH;
                        if part.len() == width * V::WIDTH {
                            // A length that the compiler knows makes the loop faster.
                            let (part, place) = (&part[..width * V::WIDTH], &mut place[..width]);
                            sums.run::<V, E4m3>(part, scales, place, next);
                        } else {
                            sums.run::<V, E4m3>(part, scales, place, next);
                        }
                    }
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

    /// Values that share a scale, or two if a step is longer than a group. It prefetches the values `next` bytes
    /// later, which arrive while these are coded.
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

    /// Adds the sums to the result, and resets them.
    #[inline(always)]
    fn finish(&mut self, out: &mut Rows) {
        out.error += L::sum(self.error[0]) + L::sum(self.error[1]);
        out.values += L::sum(self.values[0]) + L::sum(self.values[1]);
        *self = Sums::new();
    }
}

/// True if a scale, and the largest value that it is for, are near enough to 1 for their squares to be in
/// the range of fp32.
#[inline(always)]
fn is_near(scale: f32, most: f32) -> bool {
    const FAR: [f32; 2] = [(1u64 << 40) as f32, (1u64 << 50) as f32];
    let is_within = |value: f32, far: f32| value >= 1.0 / far && value <= far;
    is_within(scale, FAR[0]) && (most == 0.0 || is_within(most, FAR[1]))
}

/// Appends `count` bytes to `bytes` and returns them. Only one part is cleared at a time, so that it is in the first
/// cache when its codes are written.
#[inline(always)]
fn grown(bytes: &mut Vec<u8>, count: usize) -> &mut [u8] {
    let first = bytes.len();
    bytes.resize(first + count, 0);
    &mut bytes[first..]
}
