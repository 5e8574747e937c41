//! Errors of problems and plans, each with the next step.

use thiserror::Error;

pub type Result<T> = std::result::Result<T, Error>;

#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum Error {
    #[error("buffer {id}: {what}")]
    Buffer { id: String, what: String },
    #[error("buffer {id}: up to here the sizes add up to more than 2^62 bytes; are they really in bytes?")]
    SizeSum { id: String },
    #[error("{names} names for {buffers} buffers; give one for each or none")]
    Names { names: usize, buffers: usize },
    #[error("{buffers} buffers are more than 2^31; split the problem at a time when nothing is alive")]
    TooManyBuffers { buffers: usize },
    #[error(
        "the capacity {capacity} is below buffer {id} of {size} bytes; no plan can fit, give at least {size}"
    )]
    CapacityBelowLargest { capacity: u64, id: String, size: u64 },
    #[error(
        "the fixed offsets of buffers {first} and {second} make them overlap while both are alive; move one of them"
    )]
    FixedOverlap { first: String, second: String },
    #[error("a chunk of 0 bytes holds nothing; give the size of the largest heap")]
    EmptyChunk,
    #[error("buffer {id} is fixed at {offset} and ends at {end}, above the capacity {capacity}")]
    FixedAboveCapacity { id: String, offset: u64, end: u64, capacity: u64 },
    #[error("{what}")]
    Spaces { what: String },
    #[error("buffer {id}: up to here the traffic adds up to more than 2^80; give costs in a larger unit")]
    Traffic { id: String },
    #[error(
        "the spaces are too small: no place {} for buffer {id}; allow it in a larger or an unlimited space",
        if *proven { "is left" } else { "was found" }
    )]
    SpacesTooSmall { id: String, proven: bool },
    #[error("{what}; say for each buffer whose place it may take, or that it may take none")]
    Shares { what: String },
}
