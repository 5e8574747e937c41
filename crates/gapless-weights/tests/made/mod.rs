//! Weights that `testdata/weights/quantize.py` makes from the same numbers, and files of them.

#![allow(dead_code)] // each test uses what it needs

use std::fs;
use std::path::Path;
use xxhash_rust::xxh3::xxh3_64;

/// Name, type, shape and data.
pub(crate) type Tensor<'a> = (&'a str, &'a str, Vec<u64>, Vec<u8>);

pub(crate) fn file(path: &Path, tensors: &[Tensor<'_>]) {
    let mut entries = vec!["\"__metadata__\":{\"format\":\"pt\"}".to_owned()];
    let (mut at, mut data) = (0, vec![]);
    for (name, dtype, shape, bytes) in tensors {
        entries.push(format!(
            "{name:?}:{{\"dtype\":{dtype:?},\"shape\":{shape:?},\"data_offsets\":[{at},{}]}}",
            at + bytes.len()
        ));
        at += bytes.len();
        data.extend_from_slice(bytes);
    }
    let header = format!("{{{}}}", entries.join(","));
    let mut whole = (header.len() as u64).to_le_bytes().to_vec();
    whole.extend_from_slice(header.as_bytes());
    whole.extend_from_slice(&data);
    fs::write(path, &whole).unwrap();
}

fn mixed(seed: u64, at: u64) -> u64 {
    let mut z = (at + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(seed);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// The weights that the script makes from the same numbers.
pub(crate) fn made(dtype: &str, family: u64, seed: u64, count: u64) -> Vec<u8> {
    let (exponent_bits, mantissa_bits, centre) = match dtype {
        "BF16" => (8, 7, 121),
        "F16" => (5, 10, 9),
        _ => (8, 23, 121),
    };
    let centre = match family {
        3 => 3,
        4 => (1 << exponent_bits) - 8,
        _ => centre,
    };
    let mut bytes = Vec::new();
    for at in 0..count {
        let z = mixed(seed, at);
        let mut exponent = centre - i64::from((z >> 32 & 0xfff | 0x1000).trailing_zeros());
        if family == 1 && (z >> 44).is_multiple_of(97) {
            exponent += 5;
        }
        let exponent = exponent.clamp(0, (1 << exponent_bits) - 2) as u64;
        let mut mantissa = z >> 1 & ((1 << mantissa_bits) - 1);
        if family == 5 {
            mantissa &= 3 << (mantissa_bits - 2);
        }
        let mut bits = exponent << mantissa_bits | mantissa;
        if family == 2 && (at / 64) % 3 == 0 {
            bits = 0;
        }
        bits |= (z & 1) << (exponent_bits + mantissa_bits);
        bytes.extend_from_slice(&bits.to_le_bytes()[..if dtype == "F32" { 4 } else { 2 }]);
    }
    bytes
}

/// A checksum, as the scripts write it.
pub(crate) fn print(bytes: &[u8]) -> String {
    format!("{:016x}", xxh3_64(bytes))
}
