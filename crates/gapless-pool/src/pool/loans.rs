//! Memory that a lane borrowed and freed. Its owner gets it back behind a fence. Until then the lane can take it again
//! at once, in the order of its own stream, as a stream can natively take what it freed: the same block, part of one,
//! or several neighbours.
//!
//! Invariant: a lane borrows only if nothing of this is enough. So it never has more memory of others, in use or freed,
//! than it would hold itself natively. As much as it borrows from an owner, the pool has not taken from the device. So
//! an owner that asks for what it freed gets memory: in its heap, or from what is left on the device.

use super::{AllocationId, Place, Pool};
use crate::allocations::Allocation;
use crate::blocks::NONE;
use crate::device::Device;
use crate::ids::{HeapId, LaneId};
use crate::mutants::{self, Mutant};
use crate::steps::UNBORN;
use crate::stretches::Stretches;
use rustc_hash::FxHashMap;
use std::collections::BTreeSet;

/// The last frees of lent memory that are searched for a block of the same size.
const TAKEN_BACK: usize = 64;

/// Freed loans of a lane that wait for a fence of that lane alone. Invariant: `home` has the blocks at home, `windows`
/// the size and address of each allocation in a window.
#[derive(Debug, Default)]
pub(super) struct Loans {
    pub(super) home: Stretches,
    pub(super) windows: BTreeSet<(u64, u64)>,
}

impl<D: Device> Pool<D> {
    /// Serves a request of a lane from lent memory that the lane freed: a block of the same size as it lies, else part
    /// of the smallest that is enough.
    pub(super) fn take_back(&mut self, lane: LaneId, size: u64) -> Option<Place> {
        let is_it = |&id: &AllocationId| {
            let allocation = self.allocation(id);
            allocation.size == size && allocation.is_lent_only
        };
        let same = self.fences.waiting_of(lane).take(TAKEN_BACK).find(is_it);
        if let Some(id) = same {
            return Some(self.take_again(lane, id));
        }
        if mutants::is(Mutant::BorrowAgain) {
            return None;
        }
        let loans = self.fences.loans(lane);
        let at_home = loans.home.at_least(size);
        let in_window = loans.windows.range((size, 0)..).next().copied();
        at_home
            .and_then(|(addr, _)| self.take_stretch(lane, addr, size))
            .or_else(|| self.take_front(lane, in_window?.1, size))
    }

    /// The place of a freed loan that the lane takes back.
    fn take_again(&mut self, lane: LaneId, id: AllocationId) -> Place {
        self.fences.forget(lane, id);
        self.allocation_mut(id).waits -= 1;
        self.end(id)
    }

    /// The first `size` bytes of neighbouring blocks at home, from `addr` on.
    fn take_stretch(&mut self, lane: LaneId, addr: u64, size: u64) -> Option<Place> {
        let mut of = None;
        let mut pieces = Vec::new();
        let mut at = addr;
        while at < addr + size {
            let id = self.find(at)?;
            let Allocation { size, place: Place::Home { heap, .. }, .. } = *self.allocation(id) else {
                return None;
            };
            // Two heaps may touch, but a block lies in one.
            if *of.get_or_insert(heap) != heap {
                return None;
            }
            pieces.push(id);
            at += size;
        }
        let heap = of?;
        let mut joined = None;
        for id in pieces {
            if let Place::Home { block, .. } = self.take_again(lane, id) {
                joined = Some(joined.map_or(block, |first| self.heap_mut(heap).join_live(first, block)));
            }
        }
        let (block, rest) = self.heap_mut(heap).cut_live(joined?, size);
        self.heap_mut(heap).show_home(block);
        if rest != NONE {
            self.keep_lent(lane, heap, rest);
        }
        Some(Place::Home { heap, block })
    }

    /// The first `size` bytes of the allocation in a window at `addr`. The rest stays at home.
    fn take_front(&mut self, lane: LaneId, addr: u64, size: u64) -> Option<Place> {
        let id = self.find(addr)?;
        let Place::Window { window, parts } = self.take_again(lane, id) else { return None };
        let wanted = self.parts(self.windows.get(window), size).into_iter();
        let wanted: FxHashMap<(HeapId, u64), u64> =
            wanted.map(|part| ((part.heap, part.addr), part.bytes)).collect();
        let mut kept = Vec::with_capacity(wanted.len());
        for (heap, block) in parts {
            let at = self.heap(heap).block(block).addr;
            let rest = match wanted.get(&(heap, at)) {
                Some(&bytes) => {
                    let (block, rest) = self.heap_mut(heap).cut_live(block, bytes);
                    kept.push((heap, block));
                    rest
                }
                None => block,
            };
            if rest == NONE {
                continue;
            }
            if heap.lane() == lane {
                self.heap_mut(heap).release(rest);
            } else {
                self.keep_lent(lane, heap, rest);
            }
        }
        Some(Place::Window { window, parts: kept })
    }

    /// Makes a live block of another lane's heap wait for the next turn of the lane that has finished with it.
    fn keep_lent(&mut self, lane: LaneId, heap: HeapId, block: u32) {
        self.heap_mut(heap).show_home(block);
        let (addr, size) = (self.heap(heap).block(block).addr, self.heap(heap).block(block).size);
        let place = Place::Home { heap, block };
        self.count_kept(lane, &place, size);
        let allocation = Allocation {
            addr,
            size,
            requested: 0,
            lane,
            place,
            uses: Vec::new(),
            waits: 0,
            waits_for_turn: false,
            is_lent_only: false,
            is_settled: false,
            is_noted: false,
            born: UNBORN,
            budget: None,
        };
        let slot = self.allocations_of(heap.lane()).add(allocation);
        let id = AllocationId { shard: heap.lane(), slot };
        self.wait_for_turn(id);
        self.allocation_mut(id).is_lent_only = true;
        self.count_returning(id);
    }
}
