//! Lossless codecs of one chunk: values of 1, 2, 4 or 8 bytes become fewer bytes, and the same values again.
//!
//! A chunk is split into planes of bytes, and each plane gets the coding that suits it: a cascade of short codes for
//! exponents, rANS for bytes with other frequencies, a single byte, or nothing. Chunks of one pattern, and chunks
//! with many zeros, have modes of their own. Every bit pattern survives (NaN payloads, denormals, negative zeros).
//!
//! Little-endian. Sections begin on boundaries of 64 bytes of the chunk; padding is zero. The same values give the same
//! bytes on every [`Path`].
//!
//! ```text
//! chunk    0  1  mode: 0 raw, 1 repeat, 2 masked, 3 planes
//!          1  1  split: 0 bytes, 1 halves (bf16), 2 halves with three bits (fp16), 3 words (fp32)
//!          2  2  cascade: bits of each level, a nibble each, the first level lowest; 0 past the last level
//!          4  4  n, values in this chunk
//!          8  8  coding of each plane: 0 raw, 1 constant, 2 rANS, 3 cascade, 4 three bit planes
//!         16 16  cascade: items that level 1, 2, 3 and 4 pass on (repeat: the period; masked: values kept)
//!         32 28  cascade: 2^bits - 1 symbols of each level in turn
//!         60  4  zero
//!         64     sections: one for each plane
//! raw            the values
//! repeat         the first `period` values
//! masked         a bit for each value, 1 if it is kept; on the next boundary a chunk of the kept values
//! ```
//!
//! bf16 is `s eeeeeeee mmmmmmm`. Rotated left by one bit, its high byte is the exponent and its low byte mantissa and
//! sign. Planes of a half: low, high. Of fp16: three bits below the exponent, low, exponent. Of a word: byte 0, byte 1,
//! then the upper half.

mod ahead;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod cascade;
mod counts;
mod decode;
mod encode;
mod entropy;
mod layout;
mod mask;
mod path;
mod portable;
mod rans;

pub(crate) use ahead::settle;
pub use decode::{Damage, Decoder};
pub use encode::Encoder;
pub use entropy::{Entropy, entropy};
pub use layout::{Layout, layout, stored};
pub use path::Path;

/// Bytes at the beginning of a chunk that describe its coding.
pub const HEADER: usize = 64;
const ALIGN: usize = 64;
/// The longest chunk that a decoder accepts, in values: it bounds the decoder's memory.
pub const MOST_VALUES: usize = 1 << 18;

/// The split of values into planes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// 16 bits: a sign, 8 bits of exponent, 7 of mantissa.
    Bf16,
    /// 16 bits: a sign, 5 bits of exponent, 10 of mantissa.
    Fp16,
    /// 32 bits: a sign, 8 bits of exponent, 23 of mantissa.
    Fp32,
    /// Anything of 1 byte: fp8, integers, packed values.
    One,
    /// Anything else of 2 bytes.
    Two,
    /// Anything else of 4 bytes.
    Four,
    /// Anything of 8 bytes.
    Eight,
}

impl Kind {
    /// Bytes of a value.
    pub fn width(self) -> usize {
        match self {
            Kind::One => 1,
            Kind::Bf16 | Kind::Fp16 | Kind::Two => 2,
            Kind::Fp32 | Kind::Four => 4,
            Kind::Eight => 8,
        }
    }

    /// Values in a chunk: long enough that headers are negligible (0.1 %), short enough to stay in a core's cache.
    pub fn chunk(self) -> usize {
        match self {
            Kind::One => 128 << 10,
            _ => 64 << 10,
        }
    }

    fn split(self) -> Split {
        match self {
            Kind::Bf16 => Split::Halves,
            Kind::Fp16 => Split::Fp16,
            Kind::Fp32 => Split::Words,
            _ => Split::Bytes,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Raw = 0,
    Repeat = 1,
    Masked = 2,
    Planes = 3,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Split {
    Bytes = 0,
    Halves = 1,
    Fp16 = 2,
    Words = 3,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Coding {
    Raw = 0,
    Constant = 1,
    Rans = 2,
    Cascade = 3,
    ThreeBits = 4,
}

fn aligned(length: usize) -> usize {
    length.next_multiple_of(ALIGN)
}

/// Bytes of three bit planes of `items`.
fn three_bits(items: usize) -> usize {
    items.div_ceil(64) * 24
}
