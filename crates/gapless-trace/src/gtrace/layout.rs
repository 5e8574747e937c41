//! The fixed parts of a file: its first eight bytes and the headers of its blocks. Drawn at the head of `gtrace`.

use xxhash_rust::xxh3::xxh3_64;

pub const MAGIC: [u8; 6] = *b"GTRACE";
pub const VERSION: u16 = 1;
/// Bytes before the first block.
pub(super) const FILE_HEADER_LEN: usize = 8;
/// Bytes of a block's header.
pub const HEADER_LEN: usize = 64;
pub(super) const BLOCK_MAGIC: [u8; 4] = *b"GBLK";
pub(super) const END_MAGIC: [u8; 8] = *b"GTRACEND";
pub(super) const END_ENTRY_LEN: usize = 32;
/// The most bytes that one block may unpack to. The writer stays far below.
pub(super) const MAX_RAW: u32 = 64 << 20;
/// The device of a block that belongs to none.
pub(super) const NO_DEVICE: u32 = u32::MAX;

pub(super) const STORED: u8 = 0;
pub(super) const LZ4: u8 = 1;

/// The kind of a block's content. The numbers are in the files: never renumber.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    Strings = 1,
    Frames = 2,
    Stacks = 3,
    Streams = 4,
    Pools = 5,
    Events = 6,
    Annotations = 7,
    Segments = 8,
    Blocks = 9,
    Source = 10,
    Settings = 11,
    End = 12,
    /// Notes on blocks of a device. A reader may leave them out.
    BlockNotes = 128,
    /// Pinned host memory. A reader may leave it out.
    Host = 129,
    /// The process that was recorded. A reader may leave it out.
    Process = 130,
    /// Allocations of a device at addresses that the program chose. A reader may leave them out.
    ExactAddresses = 131,
}

impl Kind {
    /// Kinds from this number on may be skipped by a reader that does not know them.
    pub const FIRST_SKIPPABLE: u8 = 128;

    #[must_use]
    pub fn from_u8(value: u8) -> Option<Kind> {
        use Kind::{
            Annotations, BlockNotes, Blocks, End, Events, ExactAddresses, Frames, Host, Pools, Process,
            Segments, Settings, Source, Stacks, Streams, Strings,
        };
        [
            Strings,
            Frames,
            Stacks,
            Streams,
            Pools,
            Events,
            Annotations,
            Segments,
            Blocks,
            Source,
            Settings,
            End,
            BlockNotes,
            Host,
            Process,
            ExactAddresses,
        ]
        .into_iter()
        .find(|&kind| kind as u8 == value)
    }
}

/// The header of a block: everything that is known of it without unpacking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockHeader {
    /// [`Kind`] as its number, since a newer writer may know more kinds.
    pub kind: u8,
    pub codec: u8,
    pub payload_len: u32,
    pub raw_len: u32,
    pub count: u32,
    pub device: u32,
    pub first: u64,
    pub number: u64,
    /// Of the first event, in microseconds.
    pub time: u64,
    pub payload_sum: u64,
}

impl BlockHeader {
    /// Bytes from the start of this block to the start of the next.
    #[must_use]
    pub fn block_len(&self) -> u64 {
        HEADER_LEN as u64 + u64::from(self.payload_len).next_multiple_of(8)
    }

    pub(super) fn encode(&self) -> [u8; HEADER_LEN] {
        let mut out = [0; HEADER_LEN];
        out[0..4].copy_from_slice(&BLOCK_MAGIC);
        out[4] = self.kind;
        out[5] = self.codec;
        out[8..12].copy_from_slice(&self.payload_len.to_le_bytes());
        out[12..16].copy_from_slice(&self.raw_len.to_le_bytes());
        out[16..20].copy_from_slice(&self.count.to_le_bytes());
        out[20..24].copy_from_slice(&self.device.to_le_bytes());
        out[24..32].copy_from_slice(&self.first.to_le_bytes());
        out[32..40].copy_from_slice(&self.number.to_le_bytes());
        out[40..48].copy_from_slice(&self.time.to_le_bytes());
        out[48..56].copy_from_slice(&self.payload_sum.to_le_bytes());
        let sum = xxh3_64(&out[..56]);
        out[56..64].copy_from_slice(&sum.to_le_bytes());
        out
    }

    /// The header in `bytes`, or its fault.
    pub(super) fn decode(bytes: &[u8; HEADER_LEN]) -> Result<BlockHeader, &'static str> {
        if bytes[0..4] != BLOCK_MAGIC {
            return Err("no block begins here");
        }
        if u64_at(bytes, 56) != xxh3_64(&bytes[..56]) {
            return Err("the checksum of its header differs");
        }
        if bytes[6..8] != [0, 0] {
            return Err("its reserved bytes are in use");
        }
        Ok(BlockHeader {
            kind: bytes[4],
            codec: bytes[5],
            payload_len: u32_at(bytes, 8),
            raw_len: u32_at(bytes, 12),
            count: u32_at(bytes, 16),
            device: u32_at(bytes, 20),
            first: u64_at(bytes, 24),
            number: u64_at(bytes, 32),
            time: u64_at(bytes, 40),
            payload_sum: u64_at(bytes, 48),
        })
    }
}

pub(super) fn checksum(padded_payload: &[u8]) -> u64 {
    xxh3_64(padded_payload)
}

fn u32_at(bytes: &[u8; HEADER_LEN], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn u64_at(bytes: &[u8; HEADER_LEN], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}
