//! Live blocks and mapped memory of a card, as the file describes them. A new file begins with them, and after a gap
//! they are compared with the card.

use gapless_pool::{PoolKey, StreamHandle};
use gapless_trace::{StackId, StringId};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;

/// A block that is not free.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Block {
    /// Size that the program asked for.
    pub size: u64,
    pub stream: StreamHandle,
    pub pool: PoolKey,
    pub stack: StackId,
    /// The note on its module.
    pub module: StringId,
    /// Freed by the program, but still used by another stream.
    pub is_pending: bool,
}

/// Mapped memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Piece {
    pub addr: u64,
    pub size: u64,
    pub stream: StreamHandle,
    pub pool: PoolKey,
}

/// The present state of a card.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Picture {
    pub device: u32,
    pub pieces: Vec<Piece>,
    pub blocks: Vec<(u64, Block)>,
}

/// The state of a card as the file describes it.
#[derive(Clone, Debug, Default)]
pub struct Held {
    pub live: FxHashMap<u64, Block>,
    /// By address, without overlaps: end, stream, pool.
    mapped: BTreeMap<u64, (u64, StreamHandle, PoolKey)>,
}

/// The events that lead from the file's state to the card's, in this order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Difference {
    pub gone: Vec<(u64, Block)>,
    pub unmapped: Vec<Piece>,
    pub mapped: Vec<Piece>,
    pub new: Vec<(u64, Block)>,
}

impl Held {
    pub fn map(&mut self, piece: Piece) {
        self.unmap(piece.addr, piece.size);
        self.mapped.insert(piece.addr, (piece.addr.saturating_add(piece.size), piece.stream, piece.pool));
    }

    pub fn unmap(&mut self, addr: u64, size: u64) {
        let end = addr.saturating_add(size);
        while let Some((&start, &(stop, stream, pool))) = self.mapped.range(..end).next_back() {
            if stop <= addr {
                break;
            }
            self.mapped.remove(&start);
            if end < stop {
                self.mapped.insert(end, (stop, stream, pool));
            }
            if start < addr {
                self.mapped.insert(start, (addr, stream, pool));
                break;
            }
        }
    }

    pub fn pieces(&self) -> Vec<Piece> {
        let piece = |(&addr, &(end, stream, pool)): (&u64, &(u64, StreamHandle, PoolKey))| Piece {
            addr,
            size: end - addr,
            stream,
            pool,
        };
        self.mapped.iter().map(piece).collect()
    }

    pub fn set_pieces(&mut self, pieces: &[Piece]) {
        self.mapped = pieces.iter().map(|p| (p.addr, (p.addr + p.size, p.stream, p.pool))).collect();
    }

    #[must_use]
    pub fn difference(&self, picture: &Picture) -> Difference {
        let real: FxHashMap<u64, Block> = picture.blocks.iter().copied().collect();
        let same = |a: &Block, b: &Block| Block { stack: b.stack, module: b.module, ..*a } == *b;
        let mut gone: Vec<(u64, Block)> = self
            .live
            .iter()
            .filter(|(addr, block)| !real.get(addr).is_some_and(|other| same(block, other)))
            .map(|(&addr, &block)| (addr, block))
            .collect();
        gone.sort_unstable_by_key(|(addr, _)| *addr);
        let new = picture
            .blocks
            .iter()
            .filter(|(addr, block)| !self.live.get(addr).is_some_and(|other| same(block, other)));
        let told = self.pieces();
        Difference {
            gone,
            unmapped: without(&told, &picture.pieces),
            mapped: without(&picture.pieces, &told),
            new: new.copied().collect(),
        }
    }
}

/// The parts of `pieces` that `others` do not cover with memory of the same stream and pool. Neither list overlaps
/// itself.
fn without(pieces: &[Piece], others: &[Piece]) -> Vec<Piece> {
    let mut others = others.to_vec();
    others.sort_unstable();
    let mut left = Vec::new();
    for piece in pieces {
        let (mut at, end) = (piece.addr, piece.addr + piece.size);
        let first = others.partition_point(|o| o.addr + o.size <= at);
        for other in others[first..].iter().take_while(|o| o.addr < end) {
            if (other.stream, other.pool) != (piece.stream, piece.pool) {
                continue;
            }
            if other.addr > at {
                left.push(Piece { addr: at, size: other.addr - at, ..*piece });
            }
            at = at.max(other.addr + other.size);
        }
        if at < end {
            left.push(Piece { addr: at, size: end - at, ..*piece });
        }
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(addr: u64, size: u64, stream: u64) -> Piece {
        Piece { addr, size, stream: StreamHandle(stream), pool: PoolKey(0, 0) }
    }

    #[test]
    fn pieces_are_cut_where_memory_goes() {
        let mut held = Held::default();
        held.map(piece(100, 100, 1));
        held.map(piece(200, 50, 2));
        held.unmap(150, 75);
        assert_eq!(held.pieces(), [piece(100, 50, 1), piece(225, 25, 2)]);
        held.unmap(110, 10);
        held.unmap(0, 50);
        assert_eq!(held.pieces(), [piece(100, 10, 1), piece(120, 30, 1), piece(225, 25, 2)]);
        held.unmap(0, 1000);
        assert_eq!(held.pieces(), []);
    }

    #[test]
    fn a_difference_leads_from_what_was_told_to_what_is() {
        let block = |size| Block { size, ..Block::default() };
        let mut held = Held::default();
        held.map(piece(100, 100, 1));
        held.map(piece(300, 100, 1));
        held.live.extend([(100, block(5)), (110, block(6)), (120, Block { stack: StackId(3), ..block(7) })]);
        let picture = Picture {
            device: 0,
            pieces: vec![piece(100, 150, 1), piece(300, 50, 2), piece(350, 50, 1)],
            blocks: vec![(110, block(60)), (120, block(7)), (130, block(8))],
        };
        let difference = held.difference(&picture);
        assert_eq!(difference.gone, [(100, block(5)), (110, block(6))]);
        assert_eq!(difference.unmapped, [piece(300, 50, 1)]);
        assert_eq!(difference.mapped, [piece(200, 50, 1), piece(300, 50, 2)]);
        assert_eq!(difference.new, [(110, block(60)), (130, block(8))]);
    }
}
