//! Operations of a program, as both sides understand them, and the 32 bytes each is on the wire (see
//! torch-bench/README.md).
//!
//! An allocation is named by an id that the generator chooses. Freeing an id that holds nothing is skipped on both
//! sides, so a program stays valid when operations are taken out of it.

use std::fmt;

pub(crate) type Pool = (u64, u64);

/// Classes of streams, as the driver has them; the first is none, and no setting names the last.
pub(crate) const CLASSES: [&str; 4] = ["", "decode", "prefill", "nobody"];

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
    /// The calling thread works on this stream from now on.
    Current {
        stream: u64,
    },
    /// The device says from now on that `stream` captures, or that it does not.
    Capture {
        stream: u64,
        on: bool,
    },
    /// The allocator is told that a capture begins, or ends (2.13 and later).
    Mark {
        begins: bool,
    },
    /// A request on the thread's stream for the address `offset` bytes beyond the last one of allocation `near` (2.13
    /// and later).
    MallocAt {
        id: u32,
        size: u64,
        near: u32,
        offset: u64,
    },
    /// 2.14 and later.
    Annotate {
        id: u32,
    },
    /// A stream's class for the length of its expandable ranges, by its place in [`CLASSES`] (2.15 and later).
    ReserveClass {
        stream: u64,
        class: u32,
    },
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
            Op::Current { stream } => (16, 0, stream, 0, 0),
            Op::Capture { stream, on } => (17, 0, stream, u64::from(on), 0),
            Op::Mark { begins } => (18, 0, u64::from(begins), 0, 0),
            Op::MallocAt { id, size, near, offset } => (19, id, size, u64::from(near), offset),
            Op::Annotate { id } => (20, id, 0, 0, 0),
            Op::ReserveClass { stream, class } => (21, class, stream, 0, 0),
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
            Op::Current { stream } => write!(f, "the thread's stream is {stream:#x}"),
            Op::Capture { stream, on: true } => write!(f, "stream {stream:#x} captures"),
            Op::Capture { stream, on: false } => write!(f, "stream {stream:#x} does not capture"),
            Op::Mark { begins: true } => f.write_str("a capture begins"),
            Op::Mark { begins: false } => f.write_str("a capture ends"),
            Op::MallocAt { id, size, near, offset } => {
                write!(f, "malloc #{id}: {size} at the address of #{near} + {offset}")
            }
            Op::Annotate { id } => write!(f, "annotate #{id}"),
            Op::ReserveClass { stream, class } => {
                write!(f, "stream {stream:#x} is of class {:?}", CLASSES[*class as usize])
            }
            Op::ResetPeak => f.write_str("reset peaks"),
            Op::ResetAccumulated => f.write_str("reset accumulated"),
            Op::Snapshot => f.write_str("snapshot"),
        }
    }
}
