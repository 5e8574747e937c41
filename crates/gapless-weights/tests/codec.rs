//! Every bit pattern survives every path, and damaged streams are errors.

use gapless_weights::codec::{Decoder, Encoder, Kind, Path};
use gapless_weights::stream;

const KINDS: [Kind; 7] = [Kind::Bf16, Kind::Fp16, Kind::Fp32, Kind::One, Kind::Two, Kind::Four, Kind::Eight];

/// Xorshift: the same numbers on every machine.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() >> 11) as usize % limit
    }

    /// In `(0, 1]`.
    fn uniform(&mut self) -> f32 {
        ((self.next() >> 40) + 1) as f32 / (1u64 << 24) as f32
    }

    /// A sum of uniform numbers: close enough to the distribution of weights.
    fn gauss(&mut self, scale: f32) -> f32 {
        let sum: f32 = (0..8).map(|_| (self.next() >> 40) as f32 / (1u64 << 24) as f32).sum();
        (sum - 4.0) * scale
    }
}

fn weight(kind: Kind, value: f32) -> Vec<u8> {
    match kind {
        Kind::Bf16 => ((value.to_bits() + 0x8000) >> 16).to_le_bytes()[..2].to_vec(),
        Kind::Fp16 => {
            // A test needs no exact conversion: the exponent is shifted, the mantissa cut.
            let bits = value.to_bits();
            let exponent = ((bits >> 23 & 255) as i32 - 112).clamp(0, 30) as u32;
            ((bits >> 16 & 0x8000) | exponent << 10 | (bits >> 13 & 0x3ff)).to_le_bytes()[..2].to_vec()
        }
        Kind::Fp32 => value.to_le_bytes().to_vec(),
        Kind::Eight => f64::from(value).to_le_bytes().to_vec(),
        Kind::One => vec![(value * 1000.0) as i8 as u8],
        Kind::Two => ((value * 10000.0) as i16).to_le_bytes().to_vec(),
        Kind::Four => ((value * 10000.0) as i32).to_le_bytes().to_vec(),
    }
}

/// Values of many sorts, with names.
fn inputs(kind: Kind, rng: &mut Rng) -> Vec<(&'static str, Vec<u8>)> {
    let width = kind.width();
    let mut all: Vec<(&'static str, Vec<u8>)> = vec![
        ("empty", vec![]),
        ("one value", vec![0x7f; width]),
        ("zeros", vec![0; 5000 * width]),
        ("all ones", vec![0xff; 777 * width]),
        ("a pattern", b"abcdefgh".repeat(3 * width).repeat(300)),
        (
            "every pair of bytes",
            (0..=u16::MAX).flat_map(u16::to_le_bytes).collect::<Vec<u8>>().repeat(width.div_ceil(2)),
        ),
        ("random bits", (0..70_001 * width).map(|_| rng.next() as u8).collect()),
        ("few symbols", (0..40_000 * width).map(|_| [0, 1, 2, 77, 255][rng.below(5)]).collect()),
        (
            "rare symbols",
            (0..40_000 * width).map(|_| if rng.below(5000) == 0 { rng.next() as u8 } else { 9 }).collect(),
        ),
    ];
    for count in [1, 63, 64, 65, 127, 128, 4095, 65535, 65536, 65537, 140_000] {
        all.push(("weights", (0..count).flat_map(|_| weight(kind, rng.gauss(0.02))).collect()));
    }
    let sparse = |rng: &mut Rng, one_in: usize| {
        (0..70_000)
            .flat_map(|_| if rng.below(one_in) == 0 { weight(kind, rng.gauss(0.02)) } else { vec![0; width] })
            .collect::<Vec<u8>>()
    };
    all.push(("sparse", sparse(rng, 2)));
    all.push(("very sparse", sparse(rng, 300)));
    // Values that were rounded before they were widened have zeros in their lower bytes.
    all.push((
        "rounded",
        (0..70_000)
            .flat_map(|_| {
                let mut value = weight(kind, rng.gauss(0.02));
                value[..width / 2].fill(0);
                value
            })
            .collect(),
    ));
    let mut stray: Vec<u8> = (0..140_000)
        .flat_map(|i| weight(kind, rng.gauss(if i / 1000 % 2 == 0 { 0.02 } else { 1.5 })))
        .collect();
    for _ in 0..3000 {
        let at = rng.below(stray.len());
        stray[at] = rng.next() as u8;
    }
    all.push(("weights with stray bits", stray));
    all
}

/// The stream, written past the caches or not, to aligned or unaligned memory. It checks that no other byte is written.
fn encoded_into(kind: Kind, values: &[u8], path: Path, past_caches: bool, off: usize) -> Vec<u8> {
    let most = stream::most(kind, values.len());
    let mut room = vec![0xa5u8; most + 256];
    let from = room.as_ptr().align_offset(64) + off;
    let length = stream::encode_into(kind, values, &mut room[from..from + most], path, past_caches);
    let after = &room[from + length..];
    assert!(room[..from].iter().chain(after).all(|byte| *byte == 0xa5), "{kind:?} {path:?}: wrote outside");
    room[from..from + length].to_vec()
}

fn check(name: &str, kind: Kind, values: &[u8]) {
    let want = stream::encode(kind, values, Path::Portable);
    assert!(
        want.len() as f64 <= values.len() as f64 * 1.001 + 256.0,
        "{name} {kind:?}: {} became {}",
        values.len(),
        want.len()
    );
    for path in Path::all() {
        let packed = stream::encode(kind, values, path);
        assert!(packed == want, "{name} {kind:?} {path:?}: another stream than the portable path's");
        for (past_caches, off) in [(true, 0), (true, 1), (false, 0)] {
            let packed = encoded_into(kind, values, path, past_caches, off);
            assert!(packed == want, "{name} {kind:?} {path:?}: another stream in memory that was there");
        }
        for past_caches in [false, true] {
            // Aligned memory, which stores past the caches need, and unaligned memory.
            let mut room = vec![0xa5u8; values.len() + 256];
            let from = room.as_ptr().align_offset(64) + usize::from(!past_caches);
            let out = &mut room[from..from + values.len()];
            stream::decode_into(&packed, out, path, past_caches).unwrap();
            assert!(out == values, "{name} {kind:?} {path:?}: other values");
            assert!(
                room[..from].iter().chain(&room[from + values.len()..]).all(|byte| *byte == 0xa5),
                "{name} {kind:?} {path:?}: wrote outside"
            );
        }
    }
}

#[test]
fn every_path_writes_the_same_stream_and_returns_the_same_bits() {
    let mut rng = Rng(88172645463325252);
    for kind in KINDS {
        for (name, values) in inputs(kind, &mut rng) {
            check(name, kind, &values);
        }
    }
}

/// Chunks of random length, with random frequencies of random symbols, to find cases that no other test names.
#[test]
fn chunks_of_any_mixture_survive() {
    let mut rng = Rng(0x9e37_79b9_7f4a_7c15);
    for round in 0..120 {
        let kind = KINDS[round % KINDS.len()];
        let width = kind.width();
        let count = 1 + rng.below(20_000);
        let mut values = Vec::with_capacity(count * width);
        let skews: Vec<usize> = (0..width).map(|_| 1 + rng.below(256)).collect();
        let bases: Vec<u8> = (0..width).map(|_| rng.next() as u8).collect();
        for _ in 0..count {
            for (skew, base) in skews.iter().zip(&bases) {
                let symbol = rng.below(*skew).min(rng.below(*skew));
                values.push(base.wrapping_add(symbol as u8));
            }
        }
        check("mixture", kind, &values);
    }
}

#[test]
fn usual_weights_shrink_to_what_their_frequencies_allow() {
    let mut rng = Rng(3);
    let ratio = |kind: Kind, values: &[u8]| {
        stream::encode(kind, values, Path::best()).len() as f64 / values.len() as f64
    };
    let mut made =
        |kind: Kind| -> Vec<u8> { (0..262_144).flat_map(|_| weight(kind, rng.gauss(0.02))).collect() };
    let bf16 = made(Kind::Bf16);
    assert!(ratio(Kind::Bf16, &bf16) < 0.67, "bf16 {}", ratio(Kind::Bf16, &bf16));
    let widened: Vec<u8> = bf16.as_chunks::<2>().0.iter().flat_map(|half| [0, 0, half[0], half[1]]).collect();
    assert!(ratio(Kind::Fp32, &widened) <= 0.34, "fp32 that was bf16 {}", ratio(Kind::Fp32, &widened));
    assert!(ratio(Kind::Fp16, &made(Kind::Fp16)) < 0.87);
    assert!(ratio(Kind::Fp32, &made(Kind::Fp32)) < 0.84);
    assert!(ratio(Kind::Bf16, &vec![0; 1 << 20]) < 0.002);
}

/// The bits of Huffman's code for the exponents of these values, chunk by chunk, plus all other bits uncoded, except
/// signs that are all equal.
fn by_huffman(values: &[u8]) -> u64 {
    let chunks = values.chunks(2 * Kind::Bf16.chunk()).map(|chunk| {
        let mut counts = [0u64; 256];
        for half in chunk.as_chunks::<2>().0 {
            counts[usize::from(u16::from_le_bytes(*half) >> 7 & 255)] += 1;
        }
        let mut left: Vec<u64> = counts.into_iter().filter(|count| *count > 0).collect();
        let has_signs = chunk.as_chunks::<2>().0.iter().any(|half| half[1] >= 128);
        let mut bits = if has_signs { 8 } else { 7 } * (chunk.len() / 2) as u64;
        while left.len() > 1 {
            left.sort_unstable_by(|a, b| b.cmp(a));
            let sum = left.pop().expect("two") + left.pop().expect("two");
            left.push(sum);
            bits += sum;
        }
        bits
    });
    chunks.sum()
}

#[test]
fn weights_of_any_shape_are_within_half_a_point_of_huffmans_code() {
    type Shape = fn(&mut Rng, usize) -> f32;
    let shapes: [(&str, Shape); 7] = [
        ("Gauss", |rng, _| rng.gauss(1.0)),
        ("Laplace", |rng, _| rng.uniform().ln() * if rng.below(2) == 0 { 1.0 } else { -1.0 }),
        ("uniform", |rng, _| 2.0 * rng.uniform() - 1.0),
        ("rows of other scales", |rng, at| rng.gauss(0.3 * 1.7f32.powi((at / 1024 % 7) as i32))),
        ("heavy tails", |rng, _| rng.gauss(1.0) / rng.uniform().sqrt()),
        ("no sign", |rng, _| -rng.uniform().ln()),
        ("two scales", |rng, at| rng.gauss(if at % 3 == 0 { 1.0 } else { 0.05 })),
    ];
    let mut rng = Rng(11);
    for (name, shape) in shapes {
        for scale in [0.01, 0.013, 0.017] {
            let values: Vec<u8> =
                (0..1 << 19).flat_map(|at| weight(Kind::Bf16, scale * shape(&mut rng, at))).collect();
            let points = |bits: f64| 100.0 * bits / (8.0 * values.len() as f64);
            let ours = points(8.0 * stream::encode(Kind::Bf16, &values, Path::best()).len() as f64);
            let huffman = points(by_huffman(&values) as f64);
            assert!(ours < huffman + 0.5, "{name}, {scale}: {ours} for {huffman}");
        }
    }
}

/// A sample looks at one place in 16 or 32. Values at just these places must not choose a bad coding: the chunk is
/// never much larger than the same values in another order.
#[test]
fn a_chunk_that_differs_from_its_sample_is_as_small_as_another() {
    const COUNT: usize = 64 << 10;
    let mut rng = Rng(31);
    let sorts: [fn(&mut Rng) -> u16; 4] = [
        |_| 0,
        // Few mantissas, other exponents, and both.
        |rng| u16::from_le_bytes(weight(Kind::Bf16, rng.gauss(0.02)).try_into().expect("two bytes")) & 0xffe0,
        |rng| (40 + rng.below(60) as u16) << 7 | rng.next() as u16 & 0x807f,
        |rng| 0x4000 | (rng.below(3) as u16) << 7,
    ];
    for stray in sorts {
        for (run, step) in [(128, 32), (256, 32), (512, 16), (512, 32)] {
            let place = |at: usize| (at / run).is_multiple_of(step);
            let mut values: Vec<u16> = (0..COUNT)
                .map(|_| u16::from_le_bytes(weight(Kind::Bf16, rng.gauss(0.02)).try_into().expect("two")))
                .collect();
            values
                .iter_mut()
                .enumerate()
                .filter(|(at, _)| place(*at))
                .for_each(|(_, v)| *v = stray(&mut rng));
            let length = |values: &[u16]| {
                let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
                check("sampled", Kind::Bf16, &bytes);
                stream::encode(Kind::Bf16, &bytes, Path::best()).len()
            };
            let placed = length(&values);
            for at in (1..COUNT).rev() {
                values.swap(at, rng.below(at + 1));
            }
            let mixed = length(&values);
            // Within half a point of the values.
            assert!(placed <= mixed + COUNT / 100, "run {run} of {step}: {placed}, mixed {mixed}");
        }
    }
}

/// Low bytes are counted in one run of 128 values in four: here those runs differ from the others.
#[test]
fn low_bytes_that_differ_from_the_counted_quarter_survive_and_cost_no_more_than_plain_ones() {
    let mut rng = Rng(11);
    let exponents: Vec<u16> = (0..65_536).map(|_| 110 + (rng.next() | 1).trailing_zeros() as u16).collect();
    let mut stream_of = |name: &str, low: &mut dyn FnMut(&mut Rng, usize) -> u8| {
        let value = |(at, exponent): (usize, &u16)| {
            (exponent << 8 | u16::from(low(&mut rng, at))).rotate_right(1).to_le_bytes()
        };
        let values: Vec<u8> = exponents.iter().enumerate().flat_map(value).collect();
        check(name, Kind::Bf16, &values);
        stream::encode(Kind::Bf16, &values, Path::best()).len()
    };
    let is_counted = |at: usize| (at / 128).is_multiple_of(4);
    let plain = stream_of("plain", &mut |rng, _| rng.next() as u8);
    let few = stream_of("few", &mut |rng, _| rng.below(3) as u8);
    assert!(few < plain * 3 / 4, "rANS takes {few} bytes for few symbols, plain ones take {plain}");
    // Symbols that only the other runs have: one, three quarters of all, all but one.
    let missing = stream_of("one is missing", &mut |rng, at| match rng.below(9) {
        0 if !is_counted(at) => 77,
        some => some as u8 * 2,
    });
    assert!(missing < plain * 3 / 4, "{missing} of {plain}");
    let sorts: [fn(&mut Rng) -> u8; 3] = [|rng| rng.below(4) as u8, |_| 5, |rng| rng.below(255) as u8];
    for (name, counted) in ["few", "one", "most"].into_iter().zip(sorts) {
        let length =
            stream_of(name, &mut |rng, at| if is_counted(at) { counted(rng) } else { rng.next() as u8 });
        assert!(length <= plain, "{name}: {length} of {plain}");
    }
    // All symbols occur in the counted runs, most of them once; elsewhere all are as frequent.
    let skewed = stream_of("skewed", &mut |rng, at| match (is_counted(at), at % 7) {
        (true, 0) | (false, _) => rng.next() as u8,
        _ => 3,
    });
    assert!(skewed < plain - 1000, "{skewed} of {plain}: the frequencies of all runs save more than that");
}

#[test]
fn a_damaged_stream_is_an_error() {
    let mut rng = Rng(99);
    for kind in KINDS {
        let values: Vec<u8> = (0..5000).flat_map(|_| weight(kind, rng.gauss(0.02))).collect();
        let good = stream::encode(kind, &values, Path::best());
        let mut out = vec![0; values.len()];
        for cut in (0..good.len()).step_by(7) {
            assert!(stream::decode_into(&good[..cut], &mut out, Path::best(), false).is_err());
        }
        for _ in 0..300 {
            let mut bad = good.clone();
            let at = rng.below(bad.len());
            bad[at] ^= 1 << rng.below(8);
            assert!(
                stream::decode_into(&bad, &mut out, Path::best(), false).is_err(),
                "{kind:?}: bit of byte {at}"
            );
        }
    }
}

/// It tests below the checksums: a hostile chunk with a valid checksum gives an error or other values.
#[test]
fn a_hostile_chunk_never_leaves_its_memory() {
    let mut rng = Rng(7);
    for kind in KINDS {
        let sorts = inputs(kind, &mut rng);
        let picked = ["weights", "sparse", "few symbols", "rounded", "a pattern", "weights with stray bits"];
        for (_, values) in sorts.iter().filter(|(name, _)| picked.contains(name)) {
            let values = &values[..values.len().min(3000 * kind.width()) / kind.width() * kind.width()];
            let mut room = vec![0; Encoder::room(kind, values.len())];
            let length = Encoder::new(kind, Path::best()).chunk(values, &mut room);
            let good = &room[..length];
            let mut out = vec![0; values.len()];
            for path in Path::all() {
                let mut decoder = Decoder::new(kind, path, false);
                for _ in 0..250 {
                    let mut bad = good.to_vec();
                    for _ in 0..1 + rng.below(6) {
                        // Half of the damage goes to the header, where lengths stand.
                        let limit = if rng.below(2) == 0 { 64.min(bad.len()) } else { bad.len() };
                        let at = rng.below(limit);
                        bad[at] =
                            if rng.below(2) == 0 { rng.next() as u8 } else { bad[at] ^ (1 << rng.below(8)) };
                    }
                    bad.truncate(rng.below(bad.len() * 4).max(1));
                    let _ = decoder.chunk(&bad, &mut out);
                }
            }
        }
    }
}

/// Values of one of nine sorts: the contents of `testdata/weights/streams.bin`, which version 0.1.0 encoded.
fn old_values(kind: Kind, sort: u64) -> Vec<u8> {
    let mut rng = Rng(0x9e37_79b9_7f4a_7c15 ^ (sort << 8 | kind as u64));
    let count = 1200 + rng.below(100);
    let mut all = Vec::with_capacity(count * kind.width());
    for at in 0..count as u64 {
        let any = rng.next();
        let sum: u64 = (0..4).map(|k| any >> (16 * k) & 0xffff).sum();
        // The exponent falls off on both sides of its middle; mantissa and sign are even.
        let exponent = 118 - u64::from((sum.abs_diff(131_070) | 1).leading_zeros()) % 24 + sort % 3;
        let bits = match sort {
            0..3 => match kind {
                Kind::Bf16 => exponent << 7 | any >> 20 & 0x807f,
                Kind::Fp16 => (exponent & 31) << 10 | any >> 20 & 0x83ff,
                Kind::Fp32 => exponent << 23 | any >> 20 & 0x807f_ffff,
                _ => sum >> 10,
            },
            // Few mantissas, and exponents that suit no cascade.
            3 => {
                let mut below = |limit: usize| rng.below(limit) as u64;
                match kind {
                    Kind::Bf16 => (100 + below(23)) << 7 | (below(5) * 3) << 3 | any >> 63 << 15,
                    Kind::Fp16 => (3 + below(23)) << 10 | (below(5) * 3) << 5 | any >> 63 << 15,
                    Kind::Fp32 => (100 + below(23)) << 23 | (below(5) * 3) << 19 | any >> 63 << 31,
                    _ => below(5).min(below(5)) * 0x0101_0101_0101_0101,
                }
            }
            4 if rng.below(3) == 0 => any | 1,
            5 => at % 77 * 0x0123_4567_89ab_cdef,
            6 => any,
            // One exponent.
            7 => match kind {
                Kind::Bf16 => 0x3f80 | any >> 20 & 0x807f,
                Kind::Fp32 => 0x3f80_0000 | any >> 20 & 0x807f_ff00,
                _ => any & 0x0f0f,
            },
            _ => 0,
        };
        all.extend_from_slice(&bits.to_le_bytes()[..kind.width()]);
    }
    all
}

#[test]
fn streams_of_version_0_1_0_are_read() {
    let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/weights/streams.bin");
    let mut bytes = &std::fs::read(file).expect("testdata")[..];
    let (mut codings, mut modes) = (std::collections::BTreeSet::new(), std::collections::BTreeSet::new());
    for kind in KINDS {
        for sort in (0..9).filter(|sort| *sort != 6 || kind == Kind::Bf16) {
            let (length, rest) = bytes.split_first_chunk::<4>().expect("a length");
            let (stream, rest) = rest.split_at(u32::from_le_bytes(*length) as usize);
            bytes = rest;
            modes.insert(stream[64]);
            codings.extend(stream[72..80].iter().copied());
            let values = old_values(kind, sort);
            for path in Path::all() {
                let mut out = vec![0xa5; values.len()];
                stream::decode_into(stream, &mut out, path, false).expect("a whole stream");
                assert!(out == values, "{kind:?}, sort {sort}, {path:?}");
            }
        }
    }
    assert!(bytes.is_empty());
    assert_eq!((modes.len(), codings.len()), (4, 5), "every mode and every coding is there");
}
