//! Numbers as torch rounds them: bf16, fp16 and fp32 values of weights, and the fp8 and fp4 codes they become.
//!
//! All rounding is to the nearest, ties to even, as torch does on a CPU. A result in a type of 16 bits is the fp32
//! result, rounded once more.

/// A type of weights. Values are handled as `f32`, which holds each of the three exactly.
pub(super) trait Value {
    const WIDTH: usize;
    /// Distance from 1 to the next number; the scale of values that are all zero.
    const EPS: f32;
    /// The smallest normal number.
    const TINY: f32;
    /// Bits of the mantissa and the bias of the exponent.
    const MANTISSA: u32;
    const BIAS: i32;
    /// One value from its bytes.
    fn load(bytes: &[u8]) -> f32;
    /// The nearest number of this type.
    fn round(value: f32) -> f32;
    /// The bits of a number of this type.
    fn bits(value: f32) -> u32;
}

#[derive(Debug)]
pub(super) struct Bf16;
#[derive(Debug)]
pub(super) struct Fp16;
#[derive(Debug)]
pub(super) struct Fp32;

impl Value for Bf16 {
    const WIDTH: usize = 2;
    const EPS: f32 = 1.0 / 128.0;
    const TINY: f32 = f32::MIN_POSITIVE;
    const MANTISSA: u32 = 7;
    const BIAS: i32 = 127;

    #[inline(always)]
    fn load(bytes: &[u8]) -> f32 {
        f32::from_bits(u32::from(u16::from_le_bytes([bytes[0], bytes[1]])) << 16)
    }

    #[inline(always)]
    fn round(value: f32) -> f32 {
        let bits = value.to_bits();
        f32::from_bits((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff_0000)
    }

    fn bits(value: f32) -> u32 {
        value.to_bits() >> 16
    }
}

impl Value for Fp16 {
    const WIDTH: usize = 2;
    const EPS: f32 = 1.0 / 1024.0;
    const TINY: f32 = 1.0 / 16384.0;
    const MANTISSA: u32 = 10;
    const BIAS: i32 = 15;

    #[inline(always)]
    fn load(bytes: &[u8]) -> f32 {
        let bits = u32::from(u16::from_le_bytes([bytes[0], bytes[1]]));
        let (sign, rest) = ((bits & 0x8000) << 16, bits & 0x7fff);
        let magnitude = match rest >> 10 {
            0 => (rest as f32 * 2f32.powi(-24)).to_bits(),
            31 => rest << 13 | 0x7f80_0000,
            _ => (rest << 13) + (112 << 23),
        };
        f32::from_bits(magnitude | sign)
    }

    #[inline(always)]
    fn round(value: f32) -> f32 {
        let sign = value.to_bits() & 0x8000_0000;
        let bits = value.to_bits() & 0x7fff_ffff;
        let magnitude = if bits < 0x3880_0000 {
            // Below the smallest normal number the step is 2^-24: adding 0.5 rounds to it.
            ((f32::from_bits(bits) + 0.5) - 0.5).to_bits()
        } else {
            let rounded = (bits.wrapping_add(0xfff + (bits >> 13 & 1))) & !0x1fff;
            if rounded >= 0x4780_0000 { 0x7f80_0000 } else { rounded }
        };
        f32::from_bits(magnitude | sign)
    }

    fn bits(value: f32) -> u32 {
        let bits = value.to_bits();
        let (sign, rest) = (bits >> 16 & 0x8000, bits & 0x7fff_ffff);
        let magnitude = if rest < 0x3880_0000 {
            (f32::from_bits(rest) * 2f32.powi(24)) as u32
        } else {
            ((rest >> 13) - (112 << 10)).min(0x7c00)
        };
        sign | magnitude
    }
}

impl Value for Fp32 {
    const WIDTH: usize = 4;
    const EPS: f32 = f32::EPSILON;
    const TINY: f32 = f32::MIN_POSITIVE;
    const MANTISSA: u32 = 23;
    const BIAS: i32 = 127;

    #[inline(always)]
    fn load(bytes: &[u8]) -> f32 {
        f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    }

    #[inline(always)]
    fn round(value: f32) -> f32 {
        value
    }

    fn bits(value: f32) -> u32 {
        value.to_bits()
    }
}

/// The largest number of fp8 (E4M3, without infinities).
pub(super) const E4M3_MAX: f32 = 448.0;
/// The largest number of fp4 (E2M1).
pub(super) const E2M1_MAX: f32 = 6.0;
/// The values of E2M1's codes without their sign.
#[cfg(test)]
const E2M1: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

/// The code of a number within ±448.
#[inline(always)]
pub(super) fn to_e4m3(value: f32) -> u8 {
    let bits = value.to_bits();
    let (sign, rest) = ((bits >> 24 & 0x80) as u8, bits & 0x7fff_ffff);
    // Below 2^-6 the step is 2^-9: adding 2^14 leaves the count of steps in the mantissa.
    let small = (f32::from_bits(rest) + 16384.0).to_bits() - 16384f32.to_bits();
    let normal = (rest + 0x7_ffff + (rest >> 20 & 1)).wrapping_sub(120 << 23) >> 20;
    sign | if rest < 0x3c80_0000 { small as u8 } else { normal as u8 }
}

/// The value of a code of E4M3; the two codes of NaN are never written.
#[inline(always)]
pub(super) fn from_e4m3(code: u8) -> f32 {
    // The code's bits, seen as an fp32, are the number over 2^120, denormals included.
    let size = f32::from_bits(u32::from(code & 0x7f) << 20) * 2f32.powi(120);
    f32::from_bits(size.to_bits() | u32::from(code & 0x80) << 24)
}

/// The value of a code of E2M1.
#[inline(always)]
pub(super) fn from_e2m1(code: u8) -> f32 {
    let size = f32::from_bits(u32::from(code & 7) << 22) * 2f32.powi(126);
    f32::from_bits(size.to_bits() | u32::from(code & 8) << 28)
}

/// The code of a number within ±6. A negative number that rounds to zero keeps its sign; zero itself has none.
#[inline(always)]
pub(super) fn to_e2m1(value: f32) -> u8 {
    let size = value.abs();
    let code = u8::from(size > 0.25)
        + u8::from(size >= 0.75)
        + u8::from(size > 1.25)
        + u8::from(size >= 1.75)
        + u8::from(size > 2.5)
        + u8::from(size >= 3.5)
        + u8::from(size > 5.0);
    code | u8::from(value < 0.0) << 3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_16_bit_number_is_its_own_rounding() {
        for bits in 0..=u16::MAX {
            let bytes = bits.to_le_bytes();
            for (value, again, back) in [
                (Bf16::load(&bytes), Bf16::round(Bf16::load(&bytes)), Bf16::bits(Bf16::load(&bytes))),
                (Fp16::load(&bytes), Fp16::round(Fp16::load(&bytes)), Fp16::bits(Fp16::load(&bytes))),
            ] {
                if value.is_finite() {
                    assert_eq!(value.to_bits(), again.to_bits(), "{bits:#x}");
                    assert_eq!(back, u32::from(bits));
                }
            }
        }
    }

    #[test]
    fn codes_of_fp8_are_the_nearest_with_ties_to_even() {
        for code in 0..0x7eu8 {
            let (low, high) = (from_e4m3(code), from_e4m3(code + 1));
            assert!(low < high);
            assert_eq!(to_e4m3(low), code);
            assert_eq!(to_e4m3(-high), (code + 1) | 0x80);
            let middle = (low + high) / 2.0;
            assert_eq!(to_e4m3(middle), code + (code & 1), "{middle}");
            assert_eq!(to_e4m3(middle.next_down()), code);
            assert_eq!(to_e4m3(middle.next_up()), code + 1);
        }
        assert_eq!(from_e4m3(0x7e), E4M3_MAX);
    }

    #[test]
    fn codes_of_fp4_are_the_nearest_with_ties_to_even() {
        for code in 0..7u8 {
            let (low, high) = (E2M1[code as usize], E2M1[code as usize + 1]);
            assert_eq!((from_e2m1(code), from_e2m1((code + 1) | 8)), (low, -high));
            let middle = (low + high) / 2.0;
            assert_eq!(to_e2m1(middle), code + (code & 1));
            assert_eq!(to_e2m1(middle.next_down()), code);
            assert_eq!(to_e2m1(-middle.next_up()), (code + 1) | 8);
        }
        assert_eq!(to_e2m1(-0.1), 8);
        assert_eq!(to_e2m1(-0.0), 0);
    }
}
