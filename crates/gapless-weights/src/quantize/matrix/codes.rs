//! Values and codes by vectors.
//!
//! A number of few bits is found by one addition. With `unit` the power of two below the number, the sum of the
//! number and `unit` times 2^n has no bits for the part that the code drops, so the addition rounds to the nearest,
//! ties to even. The code is in the sum's lowest bits, and the sum less the same term is the value of the code.

use super::lanes::Lanes;
use crate::quantize::number::{Bf16, E2M1_MAX, E4M3_MAX, Fp16, Fp32, Value};

/// A type of weights, by vectors.
pub(super) trait Wide: Value {
    /// True if a scale between 2^-40 and 2^40 is within 2^-8 of the quotient that it was rounded from. If so, no
    /// value is scaled beyond the range by more than that.
    const CLOSE_SCALES: bool;
    /// A step of values: those at even places, then those at odd places.
    fn load_step<L: Lanes>(bytes: &[u8]) -> (L::F, L::F);
    /// The larger magnitudes, lane by lane, of `most` and of the values in `bytes`, a whole number of vectors.
    fn more<L: Lanes>(most: L::I, bytes: &[u8]) -> L::I;
    /// The bits of the largest magnitude of all lanes.
    fn most<L: Lanes>(most: L::I) -> u32;
    /// The nearest numbers of this type.
    fn round_step<L: Lanes>(value: L::F) -> L::F;
    /// Values over a scale that is a number of this type between 2^-40 and 2^40, rounded to this type. Quotients below
    /// the smallest normal number may differ in their last place. `reciprocal` is that of the scale.
    #[inline(always)]
    fn quotient<L: Lanes>(value: L::F, scale: L::F, _reciprocal: L::F) -> L::F {
        Self::round_step::<L>(L::div(value, scale))
    }
}

impl Wide for Bf16 {
    const CLOSE_SCALES: bool = true;

    #[inline(always)]
    fn load_step<L: Lanes>(bytes: &[u8]) -> (L::F, L::F) {
        let both = L::load(bytes);
        (L::float(L::left::<16>(both)), L::float(L::and(both, L::all_bits(0xffff_0000))))
    }

    #[inline(always)]
    fn more<L: Lanes>(most: L::I, bytes: &[u8]) -> L::I {
        more16::<L>(most, bytes)
    }

    #[inline(always)]
    fn most<L: Lanes>(most: L::I) -> u32 {
        L::most16(most)
    }

    #[inline(always)]
    fn round_step<L: Lanes>(value: L::F) -> L::F {
        let bits = L::bits(value);
        let last = L::and(L::right::<16>(bits), L::all_bits(1));
        let sum = L::add_bits(L::add_bits(bits, L::all_bits(0x7fff)), last);
        L::float(L::and(sum, L::all_bits(0xffff_0000)))
    }

    /// The product with the reciprocal is rounded to the same number as the quotient. With significands a and b of 8
    /// bits, a quotient is at least 1/(512 b) away from the middle m/512 of two bf16 numbers unless it is that
    /// middle, and the product is off by at most 2^-22. It is never that middle: m is odd and at least 257, and m b =
    /// 512 a (or 256 a) would make it a divisor of a. So ties do not occur. A test tries all a and b.
    #[inline(always)]
    fn quotient<L: Lanes>(value: L::F, _scale: L::F, reciprocal: L::F) -> L::F {
        let bits = L::bits(L::mul(value, reciprocal));
        L::float(L::and(L::add_bits(bits, L::all_bits(0x8000)), L::all_bits(0xffff_0000)))
    }
}

impl Wide for Fp16 {
    /// Small scales have few bits.
    const CLOSE_SCALES: bool = false;

    #[inline(always)]
    fn load_step<L: Lanes>(bytes: &[u8]) -> (L::F, L::F) {
        L::load_half(bytes)
    }

    #[inline(always)]
    fn more<L: Lanes>(most: L::I, bytes: &[u8]) -> L::I {
        more16::<L>(most, bytes)
    }

    #[inline(always)]
    fn most<L: Lanes>(most: L::I) -> u32 {
        L::most16(most)
    }

    #[inline(always)]
    fn round_step<L: Lanes>(value: L::F) -> L::F {
        L::round_half(value)
    }
}

impl Wide for Fp32 {
    const CLOSE_SCALES: bool = true;

    #[inline(always)]
    fn load_step<L: Lanes>(bytes: &[u8]) -> (L::F, L::F) {
        L::load32(bytes)
    }

    #[inline(always)]
    fn more<L: Lanes>(mut most: L::I, bytes: &[u8]) -> L::I {
        for one in bytes.chunks_exact(2 * L::STEP) {
            most = L::max32(most, L::and(L::load(one), L::all_bits(0x7fff_ffff)));
        }
        most
    }

    #[inline(always)]
    fn most<L: Lanes>(most: L::I) -> u32 {
        L::most32(most)
    }

    #[inline(always)]
    fn round_step<L: Lanes>(value: L::F) -> L::F {
        value
    }
}

#[inline(always)]
fn more16<L: Lanes>(mut most: L::I, bytes: &[u8]) -> L::I {
    for one in bytes.chunks_exact(2 * L::STEP) {
        most = L::max16(most, L::and(L::load(one), L::all_bits(0x7fff_7fff)));
    }
    most
}

/// A kind of code.
pub(super) trait Coder {
    /// Bits of a code: 8 or 4.
    const BITS: usize;
    /// The codes of values in the lowest bytes of the lanes, and the differences between the values and the codes'
    /// values, some with the opposite sign.
    fn code<L: Lanes, V: Wide>(value: L::F, scale: L::F, reciprocal: L::F) -> (L::I, L::F);
}

/// fp8, for `fp8` and `fp8-block`.
#[derive(Debug)]
pub(super) struct E4m3;
/// int8, for `w8a8`.
#[derive(Debug)]
pub(super) struct Int8;
/// int4 above zero, for `w4a16`.
#[derive(Debug)]
pub(super) struct Int4;
/// fp4 by a power of two, for `mxfp4`.
#[derive(Debug)]
pub(super) struct E2m1Power;
/// fp4 by any scale, for `nvfp4`.
#[derive(Debug)]
pub(super) struct E2m1;

impl Coder for E4m3 {
    const BITS: usize = 8;

    #[inline(always)]
    fn code<L: Lanes, V: Wide>(value: L::F, scale: L::F, reciprocal: L::F) -> (L::I, L::F) {
        let size = magnitude::<L>(value);
        let mut scaled = V::quotient::<L>(size, scale, reciprocal);
        // Numbers up to 464 round to 448, and close scales give no larger ones.
        if !V::CLOSE_SCALES {
            scaled = L::min(scaled, L::all(E4M3_MAX));
        }
        // Below 2^-6 the step stays the same. An exponent of -6 is 0x3c8 in the bits above 20; 0x38 corrects the
        // lowest byte for it.
        let (sum, rounded) = rounded::<L, 20>(scaled, 0x3c80_0000, 0x38);
        let sign = L::and(L::right::<24>(L::bits(value)), L::all_bits(0x80));
        (L::or(sum, sign), L::mul_from(rounded, scale, size))
    }
}

impl Coder for Int8 {
    const BITS: usize = 8;

    #[inline(always)]
    fn code<L: Lanes, V: Wide>(value: L::F, scale: L::F, reciprocal: L::F) -> (L::I, L::F) {
        whole::<L, V>([value, scale, reciprocal], [-128.0, 127.0], 12_582_912.0)
    }
}

impl Coder for Int4 {
    const BITS: usize = 4;

    #[inline(always)]
    fn code<L: Lanes, V: Wide>(value: L::F, scale: L::F, reciprocal: L::F) -> (L::I, L::F) {
        whole::<L, V>([value, scale, reciprocal], [-8.0, 7.0], 12_582_920.0)
    }
}

impl Coder for E2m1Power {
    const BITS: usize = 4;

    #[inline(always)]
    fn code<L: Lanes, V: Wide>(value: L::F, scale: L::F, reciprocal: L::F) -> (L::I, L::F) {
        // The reciprocal of a power of two is exact.
        fp4::<L>(V::round_step::<L>(L::mul(value, reciprocal)), value, scale)
    }
}

impl Coder for E2m1 {
    const BITS: usize = 4;

    #[inline(always)]
    fn code<L: Lanes, V: Wide>(value: L::F, scale: L::F, _reciprocal: L::F) -> (L::I, L::F) {
        fp4::<L>(L::div(value, scale), value, scale)
    }
}

/// The nearest whole numbers. The lowest bits of `term` are those that are added to a code.
#[inline(always)]
fn whole<L: Lanes, V: Wide>(
    [value, scale, reciprocal]: [L::F; 3],
    [least, most]: [f32; 2],
    term: f32,
) -> (L::I, L::F) {
    let mut scaled = L::min(V::quotient::<L>(value, scale, reciprocal), L::all(most));
    // With a close scale, no value is below -(most + 1/2), which rounds to the least code.
    if !V::CLOSE_SCALES {
        scaled = L::max(scaled, L::all(least));
    }
    let sum = L::add(scaled, L::all(term));
    (L::bits(sum), L::mul_from(L::sub(sum, L::all(term)), scale, value))
}

#[inline(always)]
fn fp4<L: Lanes>(scaled: L::F, value: L::F, scale: L::F) -> (L::I, L::F) {
    let least = L::min(magnitude::<L>(scaled), L::all(E2M1_MAX));
    // Below 1 the step stays the same. An exponent of 0 is 0xfe in the bits above 22; 2 corrects for it.
    let (sum, rounded) = rounded::<L, 22>(least, 0x3f80_0000, 2);
    // Zero gets no sign.
    (
        L::or(sum, L::where_negative(scaled, L::all_bits(8))),
        L::mul_from(rounded, scale, magnitude::<L>(value)),
    )
}

#[inline(always)]
fn magnitude<L: Lanes>(value: L::F) -> L::F {
    L::float(L::and(L::bits(value), L::all_bits(0x7fff_ffff)))
}

/// Numbers without a sign, rounded to a mantissa of 23 - `DROPPED` bits: the codes in the lowest bytes, and the
/// rounded numbers. Below `least`, whose bits are given, the step is that of `least`. The code is the sum of the
/// steps, of the exponent's lowest bits, and of `more`, which is even.
#[inline(always)]
fn rounded<L: Lanes, const DROPPED: u32>(size: L::F, least: u32, more: u32) -> (L::I, L::F) {
    let unit = L::max32(L::and(L::bits(size), L::all_bits(0x7f80_0000)), L::all_bits(least));
    let term = L::float(L::add_bits(unit, L::all_bits((DROPPED << 23) + more)));
    let sum = L::add(size, term);
    (L::add_bits(L::bits(sum), L::right::<DROPPED>(unit)), L::sub(sum, term))
}
