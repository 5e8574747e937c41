//! The figures of one allocator for one run.

use crate::allocator::{Inventory, Stats};
use crate::curve::CurvePoint;
use crate::run::{Exactness, Failure};
use gapless_trace::{Bytes, Tick};

/// The card of a question.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Question {
    /// The size of the card; `None`: unlimited.
    pub capacity: Option<Bytes>,
    /// True to look for the smallest card.
    pub min_capacity: bool,
}

/// The result of one allocator for one run.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Its name, without settings.
    pub allocator: String,
    /// Its settings as `--with` takes them.
    pub settings: String,
    pub stats: Stats,
    /// When the peak of reserved bytes was reached, and the heap at that instant.
    pub peak_at: Tick,
    pub at_peak: Inventory,
    /// Free bytes in segments that also hold active blocks, when most was allocated. The instant of peak reserved bytes
    /// would not do: if memory is never given back, the last page may be taken while almost all the rest is free.
    pub stranded: Bytes,
    pub oom: Option<OomPoint>,
    /// Requests that failed in the recording and were served here.
    pub served: u32,
    /// The smallest card on which the run survives, if asked for.
    pub min_capacity: Option<Bytes>,
    pub curve: Vec<CurvePoint>,
    /// Against the recording, if this is the recorded allocator with the recorded settings.
    pub exactness: Option<Exactness>,
}

/// The request at which a replay ran out of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OomPoint {
    pub failure: Failure,
    pub reserved: Bytes,
    pub active: Bytes,
    pub largest_hole: Bytes,
}

impl Outcome {
    /// 1 - peak allocated / peak reserved.
    #[must_use]
    pub fn fragmentation(&self) -> f64 {
        let (allocated, reserved) = (Bytes(self.stats.allocated.peak), Bytes(self.stats.reserved.peak));
        if reserved.0 == 0 { 0.0 } else { (1.0 - allocated.share_of(reserved)).max(0.0) }
    }
}
