//! The memory of earlier looks at a card's segments: their order of age, and which of them trackers know.
//!
//! Code that registers memory with a network card or a library (NCCL) takes the segments of a snapshot, in the order of
//! its counters, and then listens for segments that come and go. Private pools keep their pages in place until they
//! have no users, so listeners hear of each of their segments once when its memory is there, and once before it may go.
//! A pool that sleeps with a region is announced as going before, and as coming when it wakes. Free memory of a
//! region's own pool may go at any time, as in the default pool, so listeners do not hear of either.

use crate::regions;
use gapless_pool::{Change, PoolKey, SegmentView, StreamHandle};

/// Numbers of segments, in the order in which they were first seen.
#[derive(Debug, Default)]
pub struct Ages {
    known: Vec<(u64, i32)>,
    next: i32,
}

impl Ages {
    /// The number of each of these segments, which are all that exist. New ones are numbered by address, because heaps
    /// grow upwards.
    pub fn look(&mut self, segments: &[SegmentView]) -> Vec<i32> {
        let mut numbers = Vec::with_capacity(segments.len());
        for segment in segments {
            let known = self.known.iter().find(|(addr, _)| *addr == segment.addr);
            numbers.push(known.map_or_else(
                || {
                    self.next = self.next.wrapping_add(1) & i32::MAX;
                    self.next
                },
                |(_, number)| *number,
            ));
        }
        self.known = segments.iter().map(|segment| segment.addr).zip(numbers.iter().copied()).collect();
        numbers
    }
}

/// A piece of memory of a private pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    pub addr: u64,
    pub size: u64,
    pub stream: StreamHandle,
    pub pool: PoolKey,
}

/// True if listeners hear of segments of this pool.
fn is_told(pool: PoolKey) -> bool {
    pool.is_private() && !regions::is_region(pool)
}

/// Pieces that listeners know of. They do not overlap.
#[derive(Debug, Default)]
pub struct Announced {
    pieces: Vec<Piece>,
}

impl Announced {
    /// A listener begins, and has seen these segments.
    pub fn begin(&mut self, segments: &[SegmentView]) {
        self.found(segments, |_| true);
    }

    /// The pieces among these segments that listeners do not know yet, of the pools that are `wanted`.
    pub fn found(&mut self, segments: &[SegmentView], wanted: impl Fn(PoolKey) -> bool) -> Vec<Piece> {
        let piece = |s: &SegmentView| Piece { addr: s.addr, size: s.size, stream: s.stream, pool: s.pool };
        let told = segments.iter().filter(|segment| is_told(segment.pool) && wanted(segment.pool)).map(piece);
        told.filter(|piece| self.add(*piece)).collect()
    }

    /// The pieces that these changes make and that listeners do not know yet.
    pub fn made(&mut self, changes: &[Change]) -> Vec<Piece> {
        let mut made = Vec::new();
        for change in changes {
            if let Change::Mapped { addr, size, stream, pool } = *change
                && is_told(pool)
            {
                let piece = Piece { addr, size, stream, pool };
                made.extend(self.add(piece).then_some(piece));
            }
        }
        made
    }

    /// Adds a piece. False if it overlaps a known one: that memory was announced before.
    fn add(&mut self, piece: Piece) -> bool {
        let overlaps = |p: &Piece| p.addr < piece.addr + piece.size && piece.addr < p.addr + p.size;
        let is_new = !self.pieces.iter().any(overlaps);
        if is_new {
            self.pieces.push(piece);
        }
        is_new
    }

    /// Removes the pieces of a pool whose memory may go from now on, and returns them, so that listeners can be told.
    pub fn end(&mut self, pool: PoolKey) -> Vec<Piece> {
        let (gone, kept) = self.pieces.iter().partition(|piece| piece.pool == pool);
        self.pieces = kept;
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(addr: u64, pool: u64) -> SegmentView {
        let (stream, pool) = (StreamHandle(0), PoolKey(0, pool));
        SegmentView { addr, size: 0x1000, stream, pool, is_large: true, blocks: Vec::new() }
    }

    #[test]
    fn numbers_rise_in_the_order_in_which_segments_were_seen() {
        let mut ages = Ages::default();
        assert_eq!(ages.look(&[segment(0x5000, 0), segment(0x9000, 0)]), [1, 2]);
        assert_eq!(ages.look(&[segment(0x1000, 0), segment(0x5000, 0), segment(0x9000, 0)]), [3, 1, 2]);
        assert_eq!(ages.look(&[segment(0x1000, 0)]), [3]);
        assert_eq!(ages.look(&[segment(0x1000, 0), segment(0x5000, 0)]), [3, 4], "the one before is gone");
    }

    #[test]
    fn a_piece_is_told_of_once_and_goes_with_its_pool() {
        let mut announced = Announced::default();
        announced.begin(&[segment(0x1000, 0), segment(0x4000, 1)]);
        let mapped = |addr, pool| {
            let (stream, pool) = (StreamHandle(0), PoolKey(0, pool));
            Change::Mapped { addr, size: 0x1000, stream, pool }
        };
        let changes = [mapped(0x2000, 0), mapped(0x4000, 1), mapped(0x5000, 1), mapped(0x9000, 2)];
        let made: Vec<u64> = announced.made(&changes).iter().map(|piece| piece.addr).collect();
        assert_eq!(made, [0x5000, 0x9000], "the default pool's segments come and go untold");
        assert!(announced.made(&changes).is_empty());
        let gone: Vec<u64> = announced.end(PoolKey(0, 1)).iter().map(|piece| piece.addr).collect();
        assert_eq!(gone, [0x4000, 0x5000]);
        assert!(announced.end(PoolKey(0, 1)).is_empty());
    }
}
