//! The problem and its answer: buffers with sizes and lifetimes in, one offset for each buffer out.
//!
//! A [`Problem`] is checked once, when it is made: every lifetime is non-empty, gaps are sorted, disjoint and
//! within their lifetime, alignments are powers of two or any positive number, and the sum of all rounded sizes
//! fits in 62 bits, so that no solver needs overflow checks. Identity is the position in the list; names are kept
//! apart because a million of them weigh more than the problem.

use gapless_trace::Bytes;

use crate::error::{Error, Result};

/// A half-open interval of time. Invariant (checked by [`Problem::new`]): `start < end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lifetime {
    pub start: i64,
    pub end: i64,
}

impl Lifetime {
    #[must_use]
    pub fn new(start: i64, end: i64) -> Lifetime {
        Lifetime { start, end }
    }

    #[must_use]
    pub fn overlaps(self, other: Lifetime) -> bool {
        self.start < other.end && other.start < self.end
    }

    #[must_use]
    pub fn contains(self, other: Lifetime) -> bool {
        self.start <= other.start && other.end <= self.end
    }
}

/// A request for a place in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Buffer {
    pub lifetime: Lifetime,
    pub size: Bytes,
    /// The offset is a multiple of this; 1 if any offset will do.
    pub alignment: Bytes,
    /// Times within the lifetime at which the place may be used by others; sorted and disjoint.
    pub gaps: Box<[Lifetime]>,
    /// The offset is given and must not change.
    pub fixed: Option<Bytes>,
    /// An offset to start from, say of an earlier plan.
    pub hint: Option<Bytes>,
}

impl Buffer {
    #[must_use]
    pub fn new(start: i64, end: i64, size: u64) -> Buffer {
        Buffer {
            lifetime: Lifetime { start, end },
            size: Bytes(size),
            alignment: Bytes(1),
            gaps: Box::new([]),
            fixed: None,
            hint: None,
        }
    }

    #[must_use]
    pub fn aligned(mut self, alignment: u64) -> Buffer {
        self.alignment = Bytes(alignment);
        self
    }

    #[must_use]
    pub fn fixed_at(mut self, offset: u64) -> Buffer {
        self.fixed = Some(Bytes(offset));
        self
    }

    #[must_use]
    pub fn with_gaps(mut self, gaps: Vec<Lifetime>) -> Buffer {
        self.gaps = gaps.into_boxed_slice();
        self
    }

    /// The intervals in which the buffer occupies its place: the lifetime less the gaps, in order.
    pub fn pieces(&self) -> impl Iterator<Item = Lifetime> + '_ {
        let starts = std::iter::once(self.lifetime.start).chain(self.gaps.iter().map(|gap| gap.end));
        let ends = self.gaps.iter().map(|gap| gap.start).chain(std::iter::once(self.lifetime.end));
        starts.zip(ends).filter(|(start, end)| start < end).map(|(start, end)| Lifetime { start, end })
    }
}

/// Buffers to be placed. The module's head has its invariants.
#[derive(Clone, Debug, Default)]
pub struct Problem {
    buffers: Vec<Buffer>,
    names: Vec<Box<str>>,
}

/// The largest sum of sizes (each rounded up to its alignment) that a problem may have: 2^62.
pub const SIZE_SUM_LIMIT: u64 = 1 << 62;

/// The most buffers in a problem: positions are 32 bits wide in every solver.
pub const BUFFER_LIMIT: usize = 1 << 31;

impl Problem {
    /// Buffers whose names are their positions.
    pub fn new(buffers: Vec<Buffer>) -> Result<Problem> {
        Problem::with_names(buffers, Vec::new())
    }

    /// Buffers with names, one for each, or none at all.
    pub fn with_names(buffers: Vec<Buffer>, names: Vec<Box<str>>) -> Result<Problem> {
        if !names.is_empty() && names.len() != buffers.len() {
            return Err(Error::Names { names: names.len(), buffers: buffers.len() });
        }
        if buffers.len() > BUFFER_LIMIT {
            return Err(Error::TooManyBuffers { buffers: buffers.len() });
        }
        let problem = Problem { buffers, names };
        let mut sum = 0u64;
        for (index, buffer) in problem.buffers.iter().enumerate() {
            check_buffer(buffer).map_err(|what| Error::Buffer { id: problem.name(index), what })?;
            // Each rounded size and each fixed end counts, so that tops of stacks stay below the limit too.
            let rounded = buffer.size.0.checked_next_multiple_of(buffer.alignment.0);
            let top = buffer.fixed.map_or(0, |offset| offset.0);
            sum = rounded
                .and_then(|rounded| sum.checked_add(rounded))
                .and_then(|sum| sum.checked_add(buffer.alignment.0))
                .and_then(|sum| sum.checked_add(top))
                .filter(|sum| *sum <= SIZE_SUM_LIMIT)
                .ok_or_else(|| Error::SizeSum { id: problem.name(index) })?;
        }
        Ok(problem)
    }

    #[must_use]
    pub fn buffers(&self) -> &[Buffer] {
        &self.buffers
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.buffers.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.buffers.is_empty()
    }

    #[must_use]
    pub fn has_names(&self) -> bool {
        !self.names.is_empty()
    }

    /// The given name, or else the position.
    #[must_use]
    pub fn name(&self, index: usize) -> String {
        self.names.get(index).map_or_else(|| index.to_string(), ToString::to_string)
    }

    /// The largest buffer: every capacity must be at least as large.
    #[must_use]
    pub fn largest(&self) -> Bytes {
        self.buffers.iter().map(|buffer| buffer.size).max().unwrap_or(Bytes::ZERO)
    }
}

fn check_buffer(buffer: &Buffer) -> std::result::Result<(), String> {
    let Lifetime { start, end } = buffer.lifetime;
    if start >= end {
        return Err(format!("lower {start} is not below upper {end}"));
    }
    if buffer.alignment.0 == 0 {
        return Err("the alignment is 0; use 1 for none".to_owned());
    }
    let mut before = start;
    for gap in &buffer.gaps {
        if gap.start >= gap.end {
            return Err(format!("the gap {}-{} is empty", gap.start, gap.end));
        }
        if gap.start < before {
            return Err(format!(
                "the gap {}-{} begins before {before}, where the lifetime begins or the gap before it ends",
                gap.start, gap.end
            ));
        }
        before = gap.end;
    }
    if before > end {
        return Err(format!("the gap that ends at {before} reaches past the end of the lifetime, {end}"));
    }
    if buffer.pieces().next().is_none() {
        return Err("the gaps leave nothing of the lifetime".to_owned());
    }
    if let Some(offset) = buffer.fixed
        && offset.0 % buffer.alignment.0 != 0
    {
        return Err(format!(
            "the fixed offset {} is not a multiple of the alignment {}",
            offset.0, buffer.alignment.0
        ));
    }
    Ok(())
}

/// An offset for each buffer of a problem, in the problem's order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    pub offsets: Vec<Bytes>,
    /// The largest end of a buffer.
    pub peak: Bytes,
}

impl Plan {
    /// Makes the plan of these offsets; the peak is computed, nothing is checked (that is
    /// [`validate`](crate::validate)'s work).
    #[must_use]
    pub fn of_offsets(problem: &Problem, offsets: Vec<Bytes>) -> Plan {
        let peak = problem.buffers.iter().zip(&offsets).map(|(buffer, offset)| *offset + buffer.size).max();
        Plan { peak: peak.unwrap_or(Bytes::ZERO), offsets }
    }
}
