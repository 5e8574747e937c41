//! The scale of a group of values, from their largest magnitude.

use super::Fault;
use crate::quantize::number::{E2M1_MAX, E4M3_MAX, Value, from_e4m3, to_e4m3};
use crate::quantize::scheme::Scheme;

/// The number of values of a row that share a scale; `None` if a group is not a part of one row.
pub(super) fn length(scheme: Scheme) -> Option<usize> {
    match scheme {
        Scheme::W4a16 => Some(128),
        Scheme::Mxfp4 => Some(32),
        Scheme::Nvfp4 => Some(16),
        _ => None,
    }
}

/// Appends the scale of a group to `stored` as the scheme stores it, and returns the divisor of the values.
#[inline(always)]
pub(super) fn scale<V: Value>(
    scheme: Scheme,
    most: f32,
    whole: f32,
    stored: &mut Vec<u8>,
) -> Result<f32, Fault> {
    let range = match scheme {
        Scheme::Mxfp4 => {
            let (code, scale) = power::<V>(most)?;
            stored.push(code);
            return Ok(scale);
        }
        Scheme::Nvfp4 => {
            let code = local_code::<V>(most, whole);
            stored.push(code);
            return Ok(from_e4m3(code) / whole);
        }
        Scheme::W8a8 => 127.5,
        Scheme::W4a16 => 7.5,
        _ => E4M3_MAX,
    };
    let scale = match V::round(most / range) {
        0.0 => V::EPS,
        scale => scale,
    };
    stored.extend_from_slice(&V::bits(scale).to_le_bytes()[..V::WIDTH]);
    Ok(scale)
}

/// The same for several groups at once.
#[inline(always)]
pub(super) fn scales<V: Value>(
    scheme: Scheme,
    most: &[f32],
    whole: f32,
    stored: &mut Vec<u8>,
    scales: &mut Vec<f32>,
) -> Result<(), Fault> {
    scales.clear();
    if scheme == Scheme::Nvfp4 {
        // There is a group for every 16 values, so these are loops that the compiler can vectorize.
        let first = stored.len();
        stored.extend(most.iter().map(|most| local_code::<V>(*most, whole)));
        scales.extend(stored[first..].iter().map(|code| from_e4m3(*code) / whole));
    } else {
        for most in most {
            scales.push(scale::<V>(scheme, *most, whole, stored)?);
        }
    }
    Ok(())
}

/// The code of a group's scale in `nvfp4`.
#[inline(always)]
fn local_code<V: Value>(most: f32, whole: f32) -> u8 {
    let local = V::round(most / E2M1_MAX);
    match to_e4m3((whole * local).min(E4M3_MAX)) {
        // A scale of zero becomes 0.125 (code 0x20).
        0 => 0x20,
        code => code,
    }
}

/// A magnitude from its bits as fp32. The bits compare as the magnitudes do, with NaN above all.
#[inline(always)]
pub(super) fn finite(bits: u32) -> Result<f32, Fault> {
    if bits >= f32::INFINITY.to_bits() { Err(Fault::NotFinite) } else { Ok(f32::from_bits(bits)) }
}

/// The biased exponent of a group's scale, and the scale: the power of two nearest to the largest value, by a mantissa
/// of one bit, over four.
fn power<V: Value>(most: f32) -> Result<(u8, f32), Fault> {
    let exponent = ((V::bits(most) + (1 << (V::MANTISSA - 2))) >> V::MANTISSA) as i32;
    if exponent > 2 * V::BIAS {
        return Err(Fault::TooLarge);
    }
    let code = if exponent == 0 { 0 } else { (127 + exponent - V::BIAS - 2).max(0) };
    let scale = V::round(if code == 0 { 2f32.powi(-126) / 2.0 } else { f32::from_bits((code as u32) << 23) });
    // A scale that rounds to zero in its type becomes 1.
    Ok(if scale == 0.0 { (127, 1.0) } else { (code as u8, scale) })
}
