//! The heap at one instant: live, pending and free blocks, segment by segment, and the losses of each pool.
//!
//! Two free blocks side by side are one: the gaps between active blocks are the free blocks. So a moment follows
//! from the lifetimes alone, without running the events again.

use crate::allocations::{Allocation, AllocationId, SegmentSpan};
use crate::history::History;
use crate::trace::SizeClass;
use crate::usage::Figures;
use crate::words::{Bytes, DeviceAddr, Tick};
use std::collections::BTreeMap;

/// A free block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    pub addr: DeviceAddr,
    pub size: Bytes,
}

/// A segment (for expandable memory, a maximal mapped run) with its blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MomentSegment {
    /// Its place. For a mapped run, the first piece's identity with the run's size.
    pub span: SegmentSpan,
    /// Active allocations, by address.
    pub active: Vec<AllocationId>,
    /// Free blocks, by address.
    pub gaps: Vec<Gap>,
    pub active_bytes: Bytes,
}

/// The losses at an instant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// Active blocks' bytes beyond the requested ones.
    pub internal: Bytes,
    /// Reserved and not active.
    pub external: Bytes,
    /// The part of `external` in segments that also hold active blocks: not releasable.
    pub stranded: Bytes,
    /// Given back by the caller, still used by another stream.
    pub pending: Bytes,
    pub largest_gap: Bytes,
    pub gaps: u32,
}

/// The losses in one pool and stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolLosses {
    pub pool: u16,
    pub class: SizeClass,
    pub stream: u16,
    pub reserved: Bytes,
    pub active: Bytes,
    pub losses: Losses,
}

/// The heap at one instant.
#[derive(Clone, Debug, Default)]
pub struct Moment {
    pub tick: Tick,
    pub figures: Figures,
    /// By address.
    pub segments: Vec<MomentSegment>,
    /// Active allocations that lie in no segment: the source has no segments.
    pub unplaced: Vec<AllocationId>,
    pub losses: Losses,
    /// By pool, size class and stream.
    pub pools: Vec<PoolLosses>,
}

impl Moment {
    /// The heap after the first `tick` events.
    #[must_use]
    pub fn at(history: &History, tick: Tick) -> Moment {
        let mut moment = Moment { tick, segments: segments_at(history, tick), ..Moment::default() };
        let mut active: Vec<(AllocationId, Allocation)> =
            history.allocations.active_at(tick).map(|id| (id, history.allocations.get(id))).collect();
        active.sort_unstable_by_key(|(_, a)| a.addr);

        let mut next = 0;
        for segment in &mut moment.segments {
            while next < active.len() && active[next].1.addr < segment.span.addr {
                moment.unplaced.push(active[next].0);
                next += 1;
            }
            next = fill(segment, &active, next);
        }
        moment.unplaced.extend(active[next..].iter().map(|(id, _)| *id));
        moment.unplaced.sort_unstable();
        moment.account(history, &active);
        moment
    }

    fn account(&mut self, history: &History, active: &[(AllocationId, Allocation)]) {
        for (_, a) in active {
            self.figures.requested += a.requested;
            self.figures.active += a.block;
            if a.freed > self.tick {
                self.figures.live += a.requested;
                self.figures.allocated += a.block;
            }
        }
        let mut pools = BTreeMap::new();
        for segment in &self.segments {
            let span = &segment.span;
            self.figures.reserved += span.size;
            let key = (span.pool, span.class, span.stream);
            let pool = pools.entry(key).or_insert_with(|| PoolLosses {
                pool: span.pool,
                class: span.class,
                stream: span.stream,
                reserved: Bytes::ZERO,
                active: Bytes::ZERO,
                losses: Losses::default(),
            });
            pool.reserved += span.size;
            pool.active += segment.active_bytes;
            let free = span.size - segment.active_bytes;
            for losses in [&mut pool.losses, &mut self.losses] {
                losses.external += free;
                if segment.active_bytes > Bytes::ZERO {
                    losses.stranded += free;
                }
                for gap in &segment.gaps {
                    losses.largest_gap = losses.largest_gap.max(gap.size);
                    losses.gaps += 1;
                }
                for &id in &segment.active {
                    let a = history.allocations.get(id);
                    losses.internal += a.block.saturating_sub(a.requested);
                    if a.freed <= self.tick {
                        losses.pending += a.block;
                    }
                }
            }
        }
        self.pools = pools.into_values().collect();
    }
}

/// The segments held at `tick`, by address, mapped pieces joined into runs.
fn segments_at(history: &History, tick: Tick) -> Vec<MomentSegment> {
    let mut spans: Vec<SegmentSpan> =
        history.segments.iter().filter(|s| s.start <= tick && tick < s.end).copied().collect();
    spans.sort_unstable_by_key(|s| s.addr);
    let mut runs: Vec<SegmentSpan> = Vec::with_capacity(spans.len());
    for span in spans {
        match runs.last_mut() {
            Some(run)
                if run.expandable
                    && span.expandable
                    && run.addr.offset(run.size) == span.addr
                    && (run.stream, run.pool, run.class) == (span.stream, span.pool, span.class) =>
            {
                run.size += span.size;
            }
            _ => runs.push(span),
        }
    }
    runs.into_iter()
        .map(|span| MomentSegment { span, active: Vec::new(), gaps: Vec::new(), active_bytes: Bytes::ZERO })
        .collect()
}

/// Puts the allocations from `next` on that lie in `segment` into it, with the gaps between them.
fn fill(segment: &mut MomentSegment, active: &[(AllocationId, Allocation)], mut next: usize) -> usize {
    let mut at = segment.span.addr;
    let end = segment.span.addr.offset(segment.span.size);
    while let Some((id, a)) = active.get(next).filter(|(_, a)| a.addr < end) {
        if a.addr > at {
            segment.gaps.push(Gap { addr: at, size: Bytes(a.addr.0 - at.0) });
        }
        segment.active.push(*id);
        segment.active_bytes += a.block;
        at = a.addr.offset(a.block);
        next += 1;
    }
    if at < end {
        segment.gaps.push(Gap { addr: at, size: Bytes(end.0 - at.0) });
    }
    next
}
