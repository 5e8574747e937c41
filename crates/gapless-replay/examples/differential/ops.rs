//! Operations of a program, as both sides understand them, and the 32 bytes each is on the wire (see
//! torch-bench/README.md).
//!
//! An allocation is named by an id that the generator chooses. Freeing an id that holds nothing is skipped on both
//! sides, so a program stays valid when operations are taken out of it.

use std::fmt;

pub(crate) type Pool = (u64, u64);

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Op {
    /// Gives a stream's handle a bit in the filters of `BeginPool`.
    Stream {
        bit: u32,
        stream: u64,
    },
    Malloc {
        id: u32,
        size: u64,
        stream: u64,
    },
    Free {
        id: u32,
    },
    RecordStream {
        id: u32,
        stream: u64,
    },
    /// The incomplete events that the oldest `count` operations recorded on `stream` complete.
    Complete {
        stream: u64,
        count: u64,
    },
    /// `accepts` is a set of stream bits; 0 accepts all.
    BeginPool {
        pool: Pool,
        accepts: u64,
    },
    EndPool {
        pool: Pool,
    },
    ReleasePool {
        pool: Pool,
    },
    EmptyCache {
        pool: Pool,
    },
    Fraction(f64),
    ResetPeak,
    ResetAccumulated,
    Snapshot,
}

impl Op {
    pub(crate) const BYTES: usize = 32;

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let (kind, id, a, b, c) = match *self {
            Op::Stream { bit, stream } => (0, bit, stream, 0, 0),
            Op::Malloc { id, size, stream } => (1, id, size, stream, 0),
            Op::Free { id } => (2, id, 0, 0, 0),
            Op::RecordStream { id, stream } => (3, id, stream, 0, 0),
            Op::Complete { stream, count } => (4, 0, stream, count, 0),
            Op::BeginPool { pool: (a, b), accepts } => (5, 0, a, b, accepts),
            Op::EndPool { pool: (a, b) } => (6, 0, a, b, 0),
            Op::ReleasePool { pool: (a, b) } => (7, 0, a, b, 0),
            Op::EmptyCache { pool: (a, b) } => (8, 0, a, b, 0),
            Op::Fraction(fraction) => (9, 0, fraction.to_bits(), 0, 0),
            Op::ResetPeak => (10, 0, 0, 0, 0),
            Op::ResetAccumulated => (11, 0, 0, 0, 0),
            Op::Snapshot => (12, 0, 0, 0, 0),
        };
        out.extend_from_slice(&u32::to_le_bytes(kind));
        out.extend_from_slice(&id.to_le_bytes());
        for word in [a, b, c] {
            out.extend_from_slice(&u64::to_le_bytes(word));
        }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Op::Stream { bit, stream } => write!(f, "stream {bit} is {stream:#x}"),
            Op::Malloc { id, size, stream } => write!(f, "malloc #{id}: {size} on {stream:#x}"),
            Op::Free { id } => write!(f, "free #{id}"),
            Op::RecordStream { id, stream } => write!(f, "record_stream #{id} on {stream:#x}"),
            Op::Complete { stream, count } => write!(f, "complete {count} on {stream:#x}"),
            Op::BeginPool { pool, accepts: 0 } => write!(f, "begin pool {pool:?}"),
            Op::BeginPool { pool, accepts } => write!(f, "begin pool {pool:?} for streams {accepts:#b}"),
            Op::EndPool { pool } => write!(f, "end pool {pool:?}"),
            Op::ReleasePool { pool } => write!(f, "release pool {pool:?}"),
            Op::EmptyCache { pool } => write!(f, "empty_cache {pool:?}"),
            Op::Fraction(fraction) => write!(f, "memory fraction {fraction}"),
            Op::ResetPeak => f.write_str("reset peaks"),
            Op::ResetAccumulated => f.write_str("reset accumulated"),
            Op::Snapshot => f.write_str("snapshot"),
        }
    }
}
