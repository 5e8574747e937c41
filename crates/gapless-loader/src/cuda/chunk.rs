//! The kernel's descriptor of one chunk.

use gapless_weights::codec::{Kind, Layout, layout};
use std::ops::Range;

/// The same as `Chunk` in ../kernel/decode.cu.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Chunk {
    pub source: u64,
    pub target: u64,
    pub values: u32,
    pub first: u32,
    pub last: u32,
    pub levels: u32,
    pub bits: [u32; 4],
    pub escapes: [u32; 4],
    pub places: [u32; 5],
    pub low: u32,
    pub palettes: [u64; 4],
    pub checksum: u64,
    pub length: u32,
    pub unused: u32,
}

pub const CHUNK: usize = size_of::<Chunk>();

/// Static shared memory of the kernel, and the part that the driver keeps for itself.
const RESERVED: usize = 2048;
/// Table A has room for the sums of 64 blocks of the checksum.
const LEAST_TABLE: usize = 64 * 64;
/// Chunks up to this length have a checksum of another kind, which the host compares.
const SHORT: usize = 240;

/// Shared memory of one chunk, for its two tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Room {
    pub a: usize,
    pub b: usize,
}

impl Room {
    fn of(layout: &Layout) -> Room {
        // Lanes read up to 12 bytes past the next symbol.
        let table = |items: u32| (items as usize).next_multiple_of(64) + 64;
        let a = table(layout.escapes[0]).max(LEAST_TABLE);
        Room { a, b: if layout.levels > 1 { table(layout.escapes[1]) } else { 0 } }
    }

    pub fn or(self, other: Room) -> Room {
        Room { a: self.a.max(other.a), b: self.b.max(other.b) }
    }

    pub fn fits(self, shared: usize) -> bool {
        self.a + self.b + RESERVED <= shared
    }
}

impl Chunk {
    /// A chunk of `length` bytes that begins with `head`, will be at `source`, and whose first value belongs to
    /// `target`; its values `wanted` are written. `None` if the kernel cannot decode it, or cannot compare its
    /// checksum.
    pub fn new(
        kind: Kind,
        head: &[u8],
        (length, checksum): (usize, u64),
        source: u64,
        target: u64,
        wanted: &Range<u32>,
    ) -> Option<(Chunk, Room)> {
        // The kernel reads words of 8 bytes, and sections begin at multiples of 8 bytes of the chunk.
        if !source.is_multiple_of(8) || !target.is_multiple_of(2) {
            return None;
        }
        let layout = layout(kind, head, length)?;
        let length = u32::try_from(length).ok().filter(|_| length > SHORT)?;
        let chunk = Chunk {
            source,
            target,
            values: layout.values,
            first: wanted.start,
            last: wanted.end,
            levels: layout.levels,
            bits: layout.bits,
            escapes: layout.escapes,
            places: layout.places,
            low: layout.low,
            palettes: layout.palettes,
            checksum,
            length,
            unused: 0,
        };
        (wanted.end <= layout.values).then(|| (chunk, Room::of(&layout)))
    }

    pub fn to_bytes(self) -> [u8; CHUNK] {
        let mut out = [0; CHUNK];
        let mut at = 0;
        let mut put = |bytes: &[u8]| {
            out[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        put(&self.source.to_le_bytes());
        put(&self.target.to_le_bytes());
        for word in [self.values, self.first, self.last, self.levels] {
            put(&word.to_le_bytes());
        }
        self.bits.iter().chain(&self.escapes).chain(&self.places).for_each(|word| put(&word.to_le_bytes()));
        put(&self.low.to_le_bytes());
        self.palettes.iter().for_each(|palette| put(&palette.to_le_bytes()));
        put(&self.checksum.to_le_bytes());
        put(&self.length.to_le_bytes());
        put(&self.unused.to_le_bytes());
        out
    }
}

// The fields follow each other without a gap, as `to_bytes` writes them: 8-byte fields at multiples of 8.
const _: () = assert!(CHUNK == 16 + 16 + 16 + 16 + 20 + 4 + 32 + 16);
