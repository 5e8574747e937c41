//! Every path writes the bytes of the plain path, and its sums are close.

use super::path::{Path, Vectored};
use super::{Fault, Kind, Rows, whole_scale};
use crate::quantize::number::{Bf16, Fp16, Fp32, Value};
use crate::quantize::scheme::Scheme;

const SCHEMES: [Scheme; 6] =
    [Scheme::Fp8, Scheme::Fp8Block, Scheme::W8a8, Scheme::W4a16, Scheme::Mxfp4, Scheme::Nvfp4];

fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let z = (*state ^ (*state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

fn by<V: Vectored>(
    path: Path,
    scheme: Scheme,
    bytes: &[u8],
    columns: usize,
    whole: f32,
) -> Result<Rows, Fault> {
    let mut out = Rows::default();
    path.rows::<V>(scheme, bytes, columns, whole, &mut out).map(|()| out)
}

/// Compares the paths of this processor on one matrix.
fn compare<V: Vectored>(scheme: Scheme, bytes: &[u8], columns: usize, whole: f32, what: &str) {
    let expected = by::<V>(Path::Plain, scheme, bytes, columns, whole);
    for path in [Path::Avx2, Path::Avx512].into_iter().filter(|path| path.is_there()) {
        let what = format!("{path:?} {} {columns} columns, {what}", scheme.name());
        assert_eq!(
            path.largest::<V>(bytes).map(f32::to_bits),
            Path::Plain.largest::<V>(bytes).map(f32::to_bits),
            "{what}"
        );
        let (found, expected) = match (by::<V>(path, scheme, bytes, columns, whole), &expected) {
            (Ok(found), Ok(expected)) => (found, expected),
            (found, expected) => {
                assert_eq!(found.err(), expected.as_ref().err().copied(), "{what}");
                continue;
            }
        };
        assert!(found.scales == expected.scales, "{what}: scales differ");
        let wrong =
            found.weights.iter().zip(&expected.weights).position(|(found, expected)| found != expected);
        assert_eq!(wrong, None, "{what}: codes differ");
        assert_eq!(found.weights.len(), expected.weights.len(), "{what}");
        let near = |found: f64, expected: f64| (found - expected).abs() <= 1e-5 * expected;
        assert!(near(found.values, expected.values), "{what}: {} for {}", found.values, expected.values);
        assert!(near(found.error, expected.error), "{what}: {} for {}", found.error, expected.error);
    }
}

/// Values whose magnitudes lie around 2^`centre`, over `spread` powers of two. Some are zeros, some have few bits.
fn made<V: Value>(state: &mut u64, count: usize, centre: i32, spread: u64) -> Vec<u8> {
    let least = 1 - V::BIAS;
    let mut bytes = Vec::with_capacity(count * V::WIDTH);
    for _ in 0..count {
        let z = random(state);
        let exponent = (centre - ((z >> 8) % spread) as i32).clamp(least - 1, V::BIAS) - least + 1;
        let mut mantissa = (z >> 32) as u32 & ((1 << V::MANTISSA) - 1);
        if z & 6 == 0 {
            mantissa &= 3 << (V::MANTISSA - 2);
        }
        let mut bits = (exponent as u32) << V::MANTISSA | mantissa;
        if z & 0x78 == 0 {
            bits = 0;
        }
        bits |= (z as u32 & 1) << (8 * V::WIDTH - 1);
        bytes.extend_from_slice(&bits.to_le_bytes()[..V::WIDTH]);
    }
    bytes
}

fn columns_of(scheme: Scheme, z: u64) -> usize {
    let (step, most) = match scheme {
        Scheme::W4a16 => (128, 5),
        Scheme::Mxfp4 => (32, 20),
        Scheme::Nvfp4 => (16, 40),
        _ => (1, 600),
    };
    step * (1 + (z % most) as usize)
}

fn random_matrices<V: Vectored>(kind: Kind, seed: u64) {
    let mut state = seed;
    for round in 0..400 {
        for scheme in SCHEMES {
            let columns = columns_of(scheme, random(&mut state));
            let rows = 1 + (random(&mut state) % 9) as usize;
            // Mostly near 1, sometimes anywhere, to reach scales that the vectors leave to the plain path.
            let centre = match round % 4 {
                0 => (random(&mut state) % 300) as i32 - 150,
                _ => (random(&mut state) % 40) as i32 - 20,
            };
            let spread = 1 + random(&mut state) % 24;
            let mut bytes = made::<V>(&mut state, rows * columns, centre, spread);
            if round % 7 == 3 {
                // Half of the time an infinity or NaN, else a large value.
                let bits = (2 * V::BIAS as u32 + (round & 1)) << V::MANTISSA | round & 2;
                let at = random(&mut state) as usize % (rows * columns) * V::WIDTH;
                bytes[at..at + V::WIDTH].copy_from_slice(&bits.to_le_bytes()[..V::WIDTH]);
            }
            let whole = whole_scale(kind, Path::Plain.largest::<V>(&bytes).unwrap_or(1.0));
            compare::<V>(scheme, &bytes, columns, whole, &format!("{kind:?} round {round}"));
        }
    }
}

#[test]
fn random_matrices_of_bf16_have_the_same_bytes_on_every_path() {
    random_matrices::<Bf16>(Kind::Bf16, 1);
}

#[test]
fn random_matrices_of_fp16_have_the_same_bytes_on_every_path() {
    random_matrices::<Fp16>(Kind::Fp16, 2);
}

#[test]
fn random_matrices_of_fp32_have_the_same_bytes_on_every_path() {
    random_matrices::<Fp32>(Kind::Fp32, 3);
}

/// All finite values of 16 bits up to a largest one, as one row or as groups of 128. The largest ones have every
/// mantissa of seven bits.
fn all_values<V: Vectored>(exponents: &[u32]) {
    for exponent in exponents {
        for mantissa in 0..128 {
            let largest = exponent << V::MANTISSA | mantissa << (V::MANTISSA - 7);
            // The largest one leads each group of 128, so that all have its scale; zeros fill up the last group.
            let mut values = Vec::new();
            for magnitude in 0..=largest {
                for bits in [magnitude, magnitude | 0x8000] {
                    if values.len() % 128 == 0 {
                        values.push(largest);
                    }
                    values.push(bits);
                }
            }
            values.resize(values.len().next_multiple_of(128), 0);
            let bytes: Vec<u8> = values.iter().flat_map(|bits| (*bits as u16).to_le_bytes()).collect();
            for scheme in [Scheme::Fp8, Scheme::W8a8, Scheme::W4a16] {
                compare::<V>(scheme, &bytes, values.len(), 1.0, &format!("largest {largest:#x}"));
            }
        }
    }
}

#[test]
fn every_bf16_value_below_a_largest_one_has_the_same_code_on_every_path() {
    all_values::<Bf16>(&[100, 124]);
}

#[test]
fn every_fp16_value_below_a_largest_one_has_the_same_code_on_every_path() {
    all_values::<Fp16>(&[0, 4, 13]);
}

#[test]
fn a_product_with_a_reciprocal_is_rounded_to_bf16_as_the_quotient_is() {
    // An exponent shifts both alike, so only the ends of the vectors' range and two between are tried.
    for scale_exponent in [127 - 40, 100, 127, 127 + 40] {
        for scale in (0..128).map(|mantissa| f32::from_bits(scale_exponent << 23 | mantissa << 16)) {
            for value in (0..0x7f80).map(|bits| f32::from_bits(bits << 16)) {
                let quotient = value / scale;
                if quotient.is_infinite() || quotient < f32::MIN_POSITIVE {
                    continue;
                }
                let product = (value * (1.0 / scale)).to_bits().wrapping_add(0x8000) & 0xffff_0000;
                assert_eq!(product, Bf16::round(quotient).to_bits(), "{value:e} / {scale:e}");
            }
        }
    }
}

#[test]
fn values_that_a_scheme_holds_exactly_have_no_error() {
    for (scheme, largest) in [(Scheme::Fp8, 448.0f32), (Scheme::Nvfp4, 6.0)] {
        // The largest value makes the scale one half.
        let values = [largest, 0.5, -1.0, 1.5, 2.0, -3.0, 4.0, 6.0];
        let bytes: Vec<u8> = (0..64)
            .flat_map(|at| ((values[at % 8] * 0.5).to_bits() >> 16).to_le_bytes()[..2].to_vec())
            .collect();
        for path in [Path::Plain, Path::Avx2, Path::Avx512].into_iter().filter(|path| path.is_there()) {
            let found = by::<Bf16>(path, scheme, &bytes, 64, 2.0).unwrap();
            assert_eq!(found.error, 0.0, "{path:?} {}", scheme.name());
            assert!(found.values > 0.0);
        }
    }
}
