//! Allocations and frees: finds the block of an event, and changes its state.

use super::arena::{HeapBlock, NONE};
use super::{Heap, RunInfo};
use crate::allocations::{Allocation, HistoryError};
use crate::events::Event;
use crate::torch_rules;
use crate::trace::{BlockState, DeviceTrace, SizeClass};
use crate::usage::Usage;
use crate::words::{Bytes, DeviceAddr, EventIndex, Tick};

impl Heap<&DeviceTrace> {
    /// The least bytes that a request takes.
    #[inline]
    fn block_size(&self, asked: Bytes) -> u64 {
        if self.torch_rules {
            torch_rules::round_size(asked, &self.settings).0
        } else if self.two_classes {
            // Our own allocator has PyTorch's unit, and no setting changes it.
            asked.0.max(1).next_multiple_of(torch_rules::MIN_BLOCK.0)
        } else {
            asked.0.max(1)
        }
    }

    #[inline]
    pub(super) fn alloc(&mut self, index: EventIndex, now: Tick) -> Result<(), HistoryError> {
        let event = self.device.events.placement(index);
        let rounded = self.block_size(event.size);
        let found = self.arena.starting_at(event.addr.0);
        let id = match found {
            Some(id) if self.arena[id].state == BlockState::Free => id,
            Some(id) => return Err(self.overlap(index, id)),
            None => self.block_inside(index, &event)?,
        };
        let block = self.arena[id];
        if block.size < event.size.0 {
            let other = if block.next == NONE { id } else { block.next };
            return Err(self.overlap(index, other));
        }
        let info = self.infos[block.run as usize].0;
        let expandable = info.expandable || self.settings.expandable_segments;
        self.asked_whether_expandable |= !info.expandable && block.size > rounded;
        if block.size > rounded
            && (!self.torch_rules
                || torch_rules::splits(Bytes(block.size), Bytes(rounded), expandable, &self.settings))
        {
            self.arena.split(id, rounded);
        }
        self.occupy(id, event.size, event, now);
        Ok(())
    }

    /// The source has no segments: a block is at the event's address, as long as no other is there.
    pub(super) fn alloc_anywhere(&mut self, index: EventIndex, now: Tick) -> Result<(), HistoryError> {
        let event = self.device.events.get(index);
        let size = self.block_size(event.size);
        let start = event.addr.0;
        let Some(end) = start.checked_add(size) else { return Err(self.segment_mismatch(index)) };
        if let Some(id) = self.arena.touching(start, end) {
            return Err(self.overlap(index, id));
        }
        let info = RunInfo {
            stream: event.stream,
            pool: event.pool,
            class: if self.two_classes && torch_rules::is_small(Bytes(size)) {
                SizeClass::Small
            } else {
                SizeClass::Large
            },
            expandable: false,
        };
        let run = self.info(info);
        let id = self.arena.add(start, size, run, false, NONE, NONE);
        self.occupy(id, event.size, event, now);
        Ok(())
    }

    /// The event falls inside a block, or outside everything: cut a free block open, or trim the slack of a live
    /// one whose size was taken too large (settings changed while the run went on).
    #[cold]
    fn block_inside(&mut self, index: EventIndex, event: &Event) -> Result<u32, HistoryError> {
        let addr = event.addr.0;
        let Some(id) = self.arena.containing(addr) else {
            return Err(HistoryError::SegmentMismatch {
                device: self.device.device,
                event: index,
                action: "alloc",
                addr: event.addr,
                size: event.size,
            });
        };
        let block = self.arena[id];
        if block.state != BlockState::Free {
            let asked = self.history.allocations.requested[block.allocation as usize];
            if block.addr + asked > addr {
                return Err(self.overlap(index, id));
            }
            return Ok(self.trim(id, addr - block.addr));
        }
        Ok(self.arena.split(id, addr - block.addr))
    }

    #[inline]
    pub(super) fn block_to_free(&self, index: EventIndex) -> Result<u32, HistoryError> {
        let addr = self.device.events.addr(index).0;
        match self.arena.starting_at(addr) {
            Some(id) if self.arena[id].state != BlockState::Free => Ok(id),
            _ => Err(self.no_such(index, addr)),
        }
    }

    /// Marks a free block as taken by a new allocation.
    #[inline]
    pub(super) fn occupy(&mut self, id: u32, requested: Bytes, event: Event, now: Tick) {
        let block = self.arena[id];
        let (info, group) = self.infos[block.run as usize];
        let size = Bytes(block.size);
        let forever = self.history.forever();
        let allocation = self.history.allocations.push(&Allocation {
            addr: DeviceAddr(block.addr),
            requested,
            block: size,
            start: now,
            freed: forever,
            end: forever,
            stream: event.stream,
            pool: info.pool,
            class: info.class,
            stack: event.stack,
        });
        self.history.usage.alloc(requested, size, now);
        self.history.pools[group as usize].usage.alloc(requested, size, now);
        if !self.one_stream
            && let Some(usage) = self.history.streams.get_mut(event.stream as usize)
        {
            usage.alloc(requested, size, now);
        }
        let block = &mut self.arena[id];
        block.state = BlockState::Live;
        block.allocation = allocation.0;
    }

    #[inline]
    pub(super) fn free_requested_block(&mut self, id: u32, now: Tick) {
        let block = self.arena[id];
        self.arena[id].state = BlockState::Pending;
        self.history.allocations.freed[block.allocation as usize] = now.0;
        self.for_each_usage(&block, Usage::free_requested);
    }

    #[inline]
    pub(super) fn free_completed_block(&mut self, id: u32, now: Tick) {
        let block = self.arena[id];
        self.history.allocations.ends[block.allocation as usize] = now.0;
        self.for_each_usage(&block, Usage::free_completed);
        self.arena[id].state = BlockState::Free;
        if !self.history.has_segments {
            self.arena.remove(id);
            return;
        }
        self.arena.merge(id);
    }

    #[inline]
    pub(super) fn for_each_usage(&mut self, block: &HeapBlock, apply: impl Fn(&mut Usage, Bytes, Bytes)) {
        let id = block.allocation as usize;
        let allocations = &self.history.allocations;
        let (requested, size) = (Bytes(allocations.requested[id]), Bytes(allocations.blocks[id]));
        let stream = allocations.streams[id] as usize;
        let group = self.infos[block.run as usize].1 as usize;
        apply(&mut self.history.usage, requested, size);
        apply(&mut self.history.pools[group].usage, requested, size);
        if !self.one_stream
            && let Some(usage) = self.history.streams.get_mut(stream)
        {
            apply(usage, requested, size);
        }
    }

    /// Takes slack away from a live block: `size` bytes stay, the rest is returned as a free block.
    fn trim(&mut self, id: u32, size: u64) -> u32 {
        let block = self.arena[id];
        let slack = Bytes(block.size - size);
        let rest = self.arena.split(id, size);
        self.history.allocations.blocks[block.allocation as usize] = size;
        let pending = block.state == BlockState::Pending;
        self.for_each_usage(&block, |usage, _, _| {
            usage.active.sub(slack);
            if !pending {
                usage.allocated.sub(slack);
            }
        });
        self.repairs.trimmed_blocks += 1;
        rest
    }
}
