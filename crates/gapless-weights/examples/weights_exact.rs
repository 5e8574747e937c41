//! Bit-exactness of the codecs over many values: `weights_exact [VALUES]` (default 10^9), on all cores.
//!
//! Each chunk of each kind of values is made by one of several rules: any bit patterns (NaN payloads, denormals,
//! infinities), normal distributions, mostly zeros, negative zeros, few symbols, patterns that repeat. It is encoded
//! and decoded by every set of instructions of this machine, and compared byte for byte; the encodings are compared
//! with one another too. Prints one line of JSON; exit 1 at the first difference.

use gapless_weights::codec::{Decoder, Encoder, Kind, Path};
use std::sync::atomic::{AtomicU64, Ordering};

const KINDS: [Kind; 7] = [Kind::Bf16, Kind::Fp16, Kind::Fp32, Kind::One, Kind::Two, Kind::Four, Kind::Eight];
const RULES: u64 = 8;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn normal(&mut self) -> f32 {
        let word = self.next();
        let sum: u64 = (0..4).map(|k| word >> (16 * k) & 0xffff).sum();
        (sum as f32 - 131_070.0) / 37_837.0
    }
}

/// Fills `out` with values of `width` bytes by a rule.
fn fill(out: &mut [u8], kind: Kind, rule: u64, random: &mut Random) {
    let width = kind.width();
    let pattern = random.next();
    for (at, value) in out.chunks_exact_mut(width).enumerate() {
        let any = random.next();
        let scale = f32::powi(2.0, (pattern % 60) as i32 - 40);
        let bits = match rule {
            0 => any,
            1 | 2 => {
                let number = random.normal() * scale;
                match kind {
                    Kind::Bf16 => u64::from(number.to_bits() >> 16),
                    Kind::Fp32 | Kind::Four => u64::from(number.to_bits()),
                    Kind::Fp16 => u64::from(number.to_bits() >> 13) & 0x83ff | (any % 31) << 10,
                    _ => f64::from(number).to_bits() >> (64 - 8 * width),
                }
            }
            3 => {
                if any.is_multiple_of(10) {
                    any >> 8
                } else {
                    0
                }
            }
            4 => {
                if any.is_multiple_of(3) {
                    1 << (8 * width - 1)
                } else {
                    any & 3
                }
            }
            // Denormals, and NaNs with payloads.
            5 => match kind {
                Kind::Bf16 => {
                    if any.is_multiple_of(2) {
                        any >> 9 & 0x807f
                    } else {
                        any >> 9 & 0x807f | 0x7f80
                    }
                }
                Kind::Fp16 => {
                    if any.is_multiple_of(2) {
                        any >> 9 & 0x83ff
                    } else {
                        any >> 9 & 0x83ff | 0x7c00
                    }
                }
                Kind::Fp32 => {
                    if any.is_multiple_of(2) {
                        any >> 9 & 0x807f_ffff
                    } else {
                        any >> 9 & 0x807f_ffff | 0x7f80_0000
                    }
                }
                _ => any & 0x0101_0101_0101_0101,
            },
            6 => pattern.rotate_left((at % (1 + pattern as usize % 300)) as u32),
            _ => {
                if at % 1000 < 500 {
                    any
                } else {
                    pattern
                }
            }
        };
        value.copy_from_slice(&bits.to_le_bytes()[..width]);
    }
}

fn one(number: u64) -> Result<u64, String> {
    let kind = KINDS[(number % 7) as usize];
    let mut random = Random(number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    // Mostly whole chunks; some are shorter.
    let count =
        if number.is_multiple_of(5) { 1 + random.next() as usize % kind.chunk() } else { kind.chunk() };
    let rule = random.next() % RULES;
    let mut values = vec![0; count * kind.width()];
    fill(&mut values, kind, rule, &mut random);
    let mut room = vec![0; Encoder::room(kind, values.len())];
    let mut out = vec![0; values.len()];
    let mut first: Option<Vec<u8>> = None;
    for path in Path::all() {
        let length = Encoder::new(kind, path).chunk(&values, &mut room);
        let packed = &room[..length];
        if first.get_or_insert_with(|| packed.to_vec()) != packed {
            return Err(format!("chunk {number}, {kind:?}, rule {rule}: {path:?} writes other bytes"));
        }
        out.fill(0xa5);
        let decoded = Decoder::new(kind, path, number.is_multiple_of(2)).chunk(packed, &mut out);
        if decoded.is_err() || out != values {
            return Err(format!(
                "chunk {number}, {kind:?}, rule {rule}: {path:?} gives other values ({decoded:?})"
            ));
        }
    }
    Ok(count as u64)
}

fn main() {
    let wanted: u64 = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(1_000_000_000);
    let (next, done) = (AtomicU64::new(0), AtomicU64::new(0));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while done.load(Ordering::Relaxed) < wanted {
                    match one(next.fetch_add(1, Ordering::Relaxed)) {
                        Ok(count) => _ = done.fetch_add(count, Ordering::Relaxed),
                        Err(what) => {
                            eprintln!("{what}");
                            std::process::exit(1);
                        }
                    }
                }
            });
        }
    });
    let paths: Vec<String> = Path::all().iter().map(|path| format!("\"{path:?}\"")).collect();
    println!(
        "{{\"values\": {}, \"chunks\": {}, \"different\": 0, \"paths\": [{}]}}",
        done.load(Ordering::Relaxed),
        next.load(Ordering::Relaxed),
        paths.join(", ")
    );
}
