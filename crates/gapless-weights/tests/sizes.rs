//! State that an encoder or a decoder keeps from one chunk changes no byte of the next. Every pair of sizes around
//! roundings, of every type, on every path, with contents for each way through the encoder.

use gapless_weights::codec::{Decoder, Encoder, Kind, Path};
use std::collections::HashMap;

const KINDS: [Kind; 7] = [Kind::Bf16, Kind::Fp16, Kind::Fp32, Kind::One, Kind::Two, Kind::Four, Kind::Eight];
/// Around blocks of 64 values, around 1,024, where samples and checksums change their way, and beside them.
const SMALL: [usize; 10] = [1, 64, 65, 127, 128, 1000, 1023, 1024, 1025, 1088];

/// Contents that take different ways through an encoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Content {
    /// Exponents for a cascade, low bytes as they are.
    Weights,
    /// Low bytes that compress: the encoder moves sections.
    Rounded,
    /// Zeros between them: a mask, and a chunk within the chunk.
    Sparse,
    /// Nothing compresses.
    Random,
    /// Few symbols in every byte: rANS.
    Few,
    /// One pattern.
    Pattern,
}

const CONTENTS: [Content; 6] =
    [Content::Weights, Content::Rounded, Content::Sparse, Content::Random, Content::Few, Content::Pattern];

fn mixed(at: u64) -> u64 {
    let mut z = at.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// `count` values; `seed` makes others of the same sort.
fn values(kind: Kind, content: Content, count: usize, seed: u64) -> Vec<u8> {
    let width = kind.width();
    let mut bytes = Vec::with_capacity(count * width);
    for at in 0..count as u64 {
        let z = mixed(at.wrapping_mul(2_654_435_761).wrapping_add(seed << 40));
        // A sign, an exponent that falls off as those of weights do, and a mantissa of noise, in the upper 16 bits.
        let exponent = match kind {
            Kind::Fp16 => (14 - (z >> 20 | 1 << 12).trailing_zeros().min(13)) << 10,
            _ => (121 - (z >> 20 | 1 << 20).trailing_zeros()) << 7,
        };
        let noise = if kind == Kind::Fp16 { 0x83ff } else { 0x807f };
        let upper = (exponent | (z & noise) as u32) as u16;
        let of_weight = |bytes: &mut Vec<u8>, mask: u8| {
            let whole = [
                mixed(z).to_le_bytes().map(|byte| byte & mask),
                upper.to_le_bytes().repeat(4).try_into().unwrap(),
            ];
            bytes.extend_from_slice(&whole.concat()[10 - width.max(2)..][..width]);
        };
        match content {
            Content::Weights => of_weight(&mut bytes, 255),
            Content::Rounded => {
                of_weight(&mut bytes, 0);
                let low = bytes.len() - width;
                bytes[low] &= 0xf0;
            }
            Content::Sparse if z % 10 < 4 => bytes.extend(vec![0; width]),
            Content::Sparse => of_weight(&mut bytes, 255),
            Content::Random => bytes.extend_from_slice(&z.to_le_bytes()[..width]),
            Content::Few => bytes
                .extend(z.to_le_bytes()[..width].iter().map(|byte| [0, 1, 77, 255][usize::from(byte % 4)])),
            Content::Pattern => {
                bytes.extend((0..width as u64).map(|byte| mixed(at % 3 * 8 + byte + seed) as u8))
            }
        }
    }
    bytes
}

/// Encodes with a new encoder, into fresh room: the result that every other way must equal.
fn fresh(kind: Kind, values: &[u8]) -> Vec<u8> {
    let mut room = vec![0; Encoder::room(kind, values.len())];
    let length = Encoder::new(kind, Path::Portable).chunk(values, &mut room);
    room.truncate(length);
    room
}

/// One case of a walk: its values, and the chunk that they must become.
type Case = (Vec<u8>, Vec<u8>);

/// Takes the cases in turn, with one encoder and one decoder, in room that the previous case left dirty.
fn walk(kind: Kind, path: Path, cases: &[&Case], told: &dyn Fn() -> String) {
    let (mut encoder, mut decoder) = (Encoder::new(kind, path), Decoder::new(kind, path, false));
    let most = cases.iter().map(|(values, _)| values.len()).max().unwrap_or(0);
    let (mut room, mut out) = (vec![0xa5; Encoder::room(kind, most)], vec![0xa5; most]);
    for (step, (values, want)) in cases.iter().enumerate() {
        encoder.begin();
        let length = encoder.chunk(values, &mut room[..Encoder::room(kind, values.len())]);
        assert!(room[..length] == want[..], "{}: step {step} gives another chunk", told());
        let out = &mut out[..values.len()];
        decoder.chunk(want, out).unwrap_or_else(|damage| panic!("{}: step {step}: {damage}", told()));
        assert!(*out == values[..], "{}: step {step} gives other values", told());
    }
}

#[test]
fn every_pair_of_small_sizes_is_encoded_as_each_alone() {
    for kind in KINDS {
        let case = |content: Content, count: usize| -> Case {
            let values = values(kind, content, count, 1);
            let chunk = fresh(kind, &values);
            (values, chunk)
        };
        let cases: HashMap<(Content, usize), Case> =
            CONTENTS.iter().flat_map(|of| SMALL.map(|count| ((*of, count), case(*of, count)))).collect();
        for path in Path::all() {
            for (at, content) in CONTENTS.into_iter().enumerate() {
                if path == Path::Avx2 && path != Path::best() && at % 2 == 1 {
                    continue;
                }
                // The content before leaves its own state behind, in room for the first size.
                let other = CONTENTS[(at + 1) % CONTENTS.len()];
                for first in SMALL {
                    for second in SMALL {
                        let told =
                            || format!("{kind:?} {path:?}: {other:?} of {first}, {content:?} of {second}");
                        let steps =
                            [(other, first), (content, second), (content, first)].map(|of| &cases[&of]);
                        walk(kind, path, &steps, &told);
                    }
                }
            }
        }
    }
}

#[test]
fn every_pair_of_sizes_around_a_chunk_is_encoded_as_each_alone() {
    for kind in KINDS {
        let chunk = kind.chunk();
        let small = [1, 64, 1000, 1024];
        let large = [chunk - 64, chunk - 1, chunk, chunk + 1];
        let case = |count: usize| -> Case {
            let content = if count.is_multiple_of(2) { Content::Weights } else { Content::Sparse };
            let values = values(kind, content, count, 2);
            let chunk = fresh(kind, &values);
            (values, chunk)
        };
        let cases: HashMap<usize, Case> =
            small.into_iter().chain(large).map(|count| (count, case(count))).collect();
        for second in large {
            for first in small.into_iter().chain(large) {
                let told = || format!("{kind:?}, {first} then {second}");
                walk(kind, Path::best(), &[&cases[&first], &cases[&second], &cases[&first]], &told);
            }
        }
    }
}
