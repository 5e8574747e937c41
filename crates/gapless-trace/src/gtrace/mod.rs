//! `.gtrace`: our own file of a trace. Versioned, checksummed block by block, compressed, walkable without
//! decompressing, appendable while a process runs, and readable to the last whole block after a SIGKILL.
//!
//! [`Writer`] appends; [`read`] and [`read_from`] give the [`Trace`] back; [`Blocks`] walks a mapped file;
//! [`write_trace`] saves a whole trace.
//!
//! A file is eight bytes and then blocks. All integers are little-endian; every block begins at a multiple of 8.
//!
//! ```text
//!      0        6     8
//!      | GTRACE | ver | block | block | block | ... | end block (only when the writer finished)
//!
//!      block: a header of 64 bytes, the payload, zeros up to a multiple of 8
//!      +0   4  magic "GBLK"
//!      +4   1  kind                 1 strings  2 frames  3 stacks  4 streams  5 pools  6 events  7 annotations
//!                                   8 segments 9 blocks 10 source 11 settings 12 end; from 128 on a reader may
//!                                   skip what it does not know: 128 notes on blocks 129 pinned host memory
//!                                   130 process 131 allocations at chosen addresses
//!      +5   1  codec                0 stored, 1 LZ4 block
//!      +6   2  zero
//!      +8   4  payload length       as stored, without the padding
//!      +12  4  raw length           after decompression, at most 64 MiB
//!      +16  4  count                entries in the block
//!      +20  4  device               0xffffffff if the block belongs to none
//!      +24  8  first                index of the first entry: event index, string id, ...
//!      +32  8  block number         from 0; a gap shows that a block is missing
//!      +40  8  time                 of the first event, microseconds; 0 in other kinds
//!      +48  8  payload checksum     XXH3-64 of payload and padding
//!      +56  8  header checksum      XXH3-64 of the 56 bytes before
//!
//!      inside a payload, v is a LEB128 varint, z a zigzag varint, s a v length and UTF-8 bytes:
//!      strings      count x s                           ids count on from `first`; id 0, "", is never written
//!      frames       count x (v name, v file, v line)
//!      stacks       count x (v frames, frames x z frame id less the one before)   id 0, no stack, is never written
//!      streams      count x v handle
//!      pools        count x (v, v)
//!      events       the columns drawn in `columns.rs`
//!      annotations  count x (v name, stage byte, v device, z time less the one before)
//!      segments     v segments in all, v blocks in all, count x segment   (`tables.rs`)
//!      blocks       count x block
//!      source       s format, s producer, byte torch_rules, v notes x (s code, s text)
//!      settings     s conf, v max_split_size + 1 or 0, 8-byte float, byte expandable, 16 x v, v others x (s, s)
//!      chosen       count x v event index less the one before
//!      process      count x (s name, s value)           a reader leaves out names that it does not know
//!      end          count x (u64 offset, u64 first, u32 count, u32 device, u8 kind, 7 zeros), u64 offset of this
//!                   block, "GTRACEND"
//! ```
//!
//! Rules that keep a prefix readable: an entry refers only to entries of earlier blocks; no events block needs another
//! one to be decoded; a block is one write call. The header has its own checksum, so that a length which was damaged is
//! not taken for a file that was cut short.

mod columns;
mod encoding;
mod layout;
mod process;
mod reader;
mod tables;
mod walk;
mod writer;

#[cfg(test)]
mod tests;

pub use layout::{BlockHeader, HEADER_LEN, Kind, MAGIC, VERSION};
pub use reader::{Limits, read, read_from, read_with};
pub use walk::{BlockRef, Blocks, Tail, index};
pub use writer::{EventBatch, Options, Tables, Writer, write_trace};

#[cfg(doc)]
use crate::trace::Trace;

/// The reason why a `.gtrace` file cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum GtraceError {
    #[error("reading or writing failed: {0}")]
    Io(#[from] std::io::Error),
    #[error("not a .gtrace file: it does not begin with GTRACE (is it another format, or the wrong file?)")]
    NotGtrace,
    #[error(
        "the file has {len} byte(s), too few for the header of a .gtrace file: the recording ended before it began"
    )]
    TooShort { len: u64 },
    #[error("version {found} of the .gtrace format; this build reads version {VERSION}: use a newer gapless")]
    Version { found: u16 },
    #[error(
        "block {block} at offset {offset} is damaged ({what}): the file was changed after it was written; copy it again \
         from where it was recorded"
    )]
    Corrupt { block: u64, offset: u64, what: &'static str },
    #[error(
        "block {block} at offset {offset} does not make sense: {what}; the program that wrote it is at fault"
    )]
    Malformed { block: u64, offset: u64, what: String },
    #[error(
        "block {block} at offset {offset} is of kind {kind}, which this build does not know: use a newer gapless"
    )]
    UnknownKind { block: u64, offset: u64, kind: u8 },
    #[error(
        "block {block} at offset {offset} would unpack to more than {limit} bytes: refused, no recording of this size needs that"
    )]
    TooLarge { block: u64, offset: u64, limit: u64 },
    #[error("cannot write this as .gtrace: {0}")]
    Unwritable(String),
    #[error(
        "an earlier write failed, so the file may end in the middle of a block: nothing more can be appended to it"
    )]
    Poisoned,
}
