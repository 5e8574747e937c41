//! The heap as a snapshot shows it: segments by address, with their blocks.

use super::Torch;
use super::blocks::{Block, NONE, State};
use crate::device::Device;
use gapless_trace::{PoolId, StreamId};

/// A segment, or a maximal mapped stretch of an expandable one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentView {
    pub addr: u64,
    pub size: u64,
    pub stream: StreamId,
    pub pool: PoolId,
    pub small: bool,
    pub expandable: bool,
    pub blocks: Vec<BlockView>,
}

/// A block of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockView {
    pub size: u64,
    /// 0 for free blocks.
    pub requested: u64,
    /// In a caller's hands.
    pub allocated: bool,
    /// In a caller's hands, or given back and pending.
    pub active: bool,
}

impl<D: Device> Torch<D> {
    /// Every segment, by address.
    #[must_use]
    pub fn segments(&self) -> Vec<SegmentView> {
        let mut mapped: Vec<&Block> = self.blocks.iter().filter(|b| b.state != State::Unmapped).collect();
        mapped.sort_unstable_by_key(|b| b.addr);
        let mut segments: Vec<SegmentView> = Vec::new();
        for block in mapped {
            if block.prev == NONE || self.blocks[block.prev].state == State::Unmapped {
                let shelf = &self.shelves[block.shelf as usize];
                segments.push(SegmentView {
                    addr: block.addr,
                    size: 0,
                    stream: StreamId(shelf.stream),
                    pool: self.pools[shelf.pool as usize].id,
                    small: shelf.small,
                    expandable: block.expandable,
                    blocks: Vec::new(),
                });
            }
            if let Some(segment) = segments.last_mut() {
                let active = block.state != State::Free;
                segment.size += block.size;
                segment.blocks.push(BlockView {
                    size: block.size,
                    requested: if active { block.requested } else { 0 },
                    allocated: block.state == State::Live,
                    active,
                });
            }
        }
        segments
    }
}
