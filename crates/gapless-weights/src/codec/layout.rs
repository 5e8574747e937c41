//! The places of the parts of a chunk, for a decoder on a GPU.
//!
//! Everything that a header claims is checked here, by the same rules as in `decode`. The decoder only has to compare
//! the items that each level passes on with `escapes`.

use super::cascade::LEVELS;
use super::decode::read_cascade;
use super::{Coding, HEADER, Kind, MOST_VALUES, Mode, aligned};

/// A chunk of 16-bit values whose exponents are a cascade and whose low bytes are stored as they are.
///
/// Invariants: 1 <= levels <= 4; 1 <= bits <= 3 below `levels`; escapes fall from level to level and are at most
/// `values`; every part ends inside the chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    pub values: u32,
    pub levels: u32,
    /// Bits of each level's codes.
    pub bits: [u32; LEVELS],
    /// Items that each level passes on.
    pub escapes: [u32; LEVELS],
    /// The beginnings of each level's planes in the chunk, then of the symbols after the last level;
    /// `levels + 1` entries.
    pub places: [u32; LEVELS + 1],
    /// The beginning of the low bytes: one for each value, up to a multiple of 64.
    pub low: u32,
    /// Symbols by code, the first code lowest; 0 for the escape.
    pub palettes: [u64; LEVELS],
}

/// The layout of a chunk of `length` bytes that begins with `head`, or `None` if it is coded otherwise or damaged.
pub fn layout(kind: Kind, head: &[u8], length: usize) -> Option<Layout> {
    let head = head.first_chunk::<HEADER>()?;
    let values = u32::from_le_bytes([head[4], head[5], head[6], head[7]]);
    let is_cascade = head[0] == Mode::Planes as u8
        && head[1] == kind.split() as u8
        && head[8] == Coding::Raw as u8
        && head[9] == Coding::Cascade as u8;
    if kind != Kind::Bf16 || !is_cascade || values as usize > MOST_VALUES {
        return None;
    }
    let count = values as usize;
    let cascade = read_cascade(head, count).ok()?;
    let first = HEADER + aligned(count);
    let places = cascade.places(count);
    if first + places[cascade.levels] + cascade.raw() > length {
        return None;
    }
    Some(Layout {
        values,
        levels: cascade.levels as u32,
        bits: cascade.bits.map(u32::from),
        escapes: cascade.escapes,
        places: places.map(|place| (first + place) as u32),
        low: HEADER as u32,
        palettes: cascade.palettes.map(u64::from_le_bytes),
    })
}

/// The place of the values in a chunk that stores them as they are; `None` if it is coded or damaged.
pub fn stored(kind: Kind, chunk: &[u8], bytes: usize) -> Option<usize> {
    let head = chunk.first_chunk::<HEADER>()?;
    let values = u32::from_le_bytes([head[4], head[5], head[6], head[7]]) as usize;
    let is_raw = head[0] == Mode::Raw as u8 && values <= MOST_VALUES && values * kind.width() == bytes;
    (is_raw && HEADER + bytes <= chunk.len()).then_some(HEADER)
}
