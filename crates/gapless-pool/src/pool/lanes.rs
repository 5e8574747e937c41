//! The list of lanes, one for each stream of each pool, with the shard of each. [`streams`](super::streams) makes them.

use super::PoolKey;
use crate::device::StreamHandle;
use crate::heap::Heap;
use crate::ids::{Fence, HeapId, LaneId};
use crate::shard::{Ranges, Shard};
use crate::stats::Stats;
use crate::tally;

/// The stream and the pool of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lane {
    pub(super) stream: StreamHandle,
    pub(super) pool: PoolKey,
}

/// All lanes of a pool, and their shards.
///
/// Invariants, while the shards are gathered:
/// * `owners.len() == shards.len()`, and no two owners are equal;
/// * `shards[i].lane == i` and `(shards[i].stream, shards[i].pool) == owners[i]`;
/// * the addresses of two shards do not overlap.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    /// Apart from the shards, so that a search for a lane reads one line of memory instead of a kilobyte for each lane.
    owners: Vec<Lane>,
    /// Boxed, because threads' fronts exchange them.
    #[allow(clippy::vec_box, reason = "a pointer is exchanged for another, not a kilobyte")]
    shards: Vec<Box<Shard>>,
}

impl std::ops::Index<LaneId> for Lanes {
    type Output = Lane;
    #[inline]
    fn index(&self, lane: LaneId) -> &Lane {
        &self.owners[lane.index()]
    }
}

impl Lanes {
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.owners.len()
    }

    #[inline]
    pub(super) fn find(&self, stream: StreamHandle, pool: PoolKey) -> Option<LaneId> {
        self.owners.iter().position(|l| l.stream == stream && l.pool == pool).map(LaneId::new)
    }

    /// Every lane, in the order in which they came.
    pub(super) fn ids(&self) -> impl Iterator<Item = LaneId> + use<> {
        (0..self.owners.len()).map(LaneId::new)
    }

    /// Every lane with its owner.
    pub(super) fn iter(&self) -> impl Iterator<Item = (LaneId, &Lane)> {
        self.owners.iter().enumerate().map(|(at, lane)| (LaneId::new(at), lane))
    }

    /// Every heap, lane by lane, small ones before large ones.
    pub(super) fn heap_ids(&self) -> impl Iterator<Item = HeapId> + use<> {
        self.ids().flat_map(|lane| [lane.small(), lane.large()])
    }

    #[inline]
    pub(super) fn shard(&self, lane: LaneId) -> &Shard {
        &self.shards[lane.index()]
    }

    #[inline]
    pub(super) fn shard_mut(&mut self, lane: LaneId) -> &mut Shard {
        &mut self.shards[lane.index()]
    }

    pub(super) fn shards(&self) -> impl Iterator<Item = &Shard> {
        self.shards.iter().map(|shard| &**shard)
    }

    pub(super) fn shards_mut(&mut self) -> impl Iterator<Item = &mut Shard> {
        self.shards.iter_mut().map(|shard| &mut **shard)
    }

    #[inline]
    pub(super) fn heap(&self, heap: HeapId) -> &Heap {
        &self.shard(heap.lane()).heaps[heap.class()]
    }

    #[inline]
    pub(super) fn heap_mut(&mut self, heap: HeapId) -> &mut Heap {
        &mut self.shard_mut(heap.lane()).heaps[heap.class()]
    }

    /// The lane that has the address in its range.
    #[inline]
    pub(super) fn holding(&self, addr: u64) -> Option<LaneId> {
        self.shards.iter().position(|shard| shard.holds(addr)).map(LaneId::new)
    }

    /// Adds a lane over reserved addresses; `fence` covers its frees from now on.
    pub(super) fn add(&mut self, owner: Lane, start: u64, ranges: Ranges, fence: Fence) -> LaneId {
        let lane = LaneId::new(self.owners.len());
        let mut shard = Shard::new(lane, owner.stream, owner.pool, start, ranges);
        shard.heaps.iter_mut().for_each(|heap| heap.set_fence(fence));
        self.shards.push(Box::new(shard));
        self.owners.push(owner);
        lane
    }

    /// Gives an empty lane's addresses to another stream.
    pub(super) fn hand_on(&mut self, lane: LaneId, owner: Lane) {
        self.owners[lane.index()] = owner;
        let shard = self.shard_mut(lane);
        (shard.stream, shard.pool) = (owner.stream, owner.pool);
        shard.tally.reset();
    }

    /// Exchanges the first shards for those of `others` that are `wanted`.
    pub(super) fn exchange<'a>(
        &mut self,
        others: impl Iterator<Item = &'a mut Box<Shard>>,
        wanted: impl Fn(&Shard) -> bool,
    ) {
        for (mine, other) in self.shards.iter_mut().zip(others).filter(|(_, other)| wanted(other)) {
            std::mem::swap(mine, other);
        }
    }

    /// Divides the room below the peaks among the shards, and tells them whether frees are pending.
    pub(super) fn prepare(&mut self, stats: &Stats, is_pending: bool) {
        tally::divide(stats, &mut self.shards, |shard| &mut shard.tally);
        self.shards_mut().for_each(|shard| shard.is_pending = is_pending);
    }

    pub(super) fn check(&self) -> Result<(), String> {
        if self.owners.len() != self.shards.len() {
            return Err(format!("{} lanes have {} shards", self.owners.len(), self.shards.len()));
        }
        for ((lane, owner), shard) in self.iter().zip(self.shards()) {
            if shard.lane != lane || !shard.is_of(owner.stream, owner.pool) {
                return Err(format!("{lane:?} of {owner:?} has the shard of {:?}", shard.lane));
            }
            if self.find(owner.stream, owner.pool) != Some(lane) {
                return Err(format!("{owner:?} has two lanes, one of them {lane:?}"));
            }
        }
        let mut ranges: Vec<_> = self.shards().map(Shard::range).collect();
        ranges.sort_unstable_by_key(|range| range.start);
        match ranges.windows(2).find(|pair| pair[0].end > pair[1].start) {
            Some(pair) => Err(format!("the addresses {:x?} and {:x?} are two lanes'", pair[0], pair[1])),
            None => Ok(()),
        }
    }
}
