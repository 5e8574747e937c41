//! The pool's shards set apart, for threads, and put back: what [`Fronts`](crate::Fronts) asks of the pool.

use super::Pool;
use crate::device::Device;
use crate::shard::Shard;
use crate::tally;

impl<D: Device> Pool<D> {
    pub(crate) fn shard_count(&self) -> usize {
        self.shards.len()
    }

    /// Exchanges the first shards for those of `others` that are `wanted`.
    pub(crate) fn exchange_shards<'a>(
        &mut self,
        others: impl Iterator<Item = &'a mut Box<Shard>>,
        wanted: impl Fn(&Shard) -> bool,
    ) {
        for (mine, other) in self.shards.iter_mut().zip(others).filter(|(_, other)| wanted(other)) {
            std::mem::swap(mine, other);
        }
    }

    /// Counts what shards did on their own.
    pub(crate) fn settle(&mut self) {
        let rise: u64 = self.shards.iter().map(|shard| shard.tally.rise()).sum();
        self.crest = self.crest.max(self.stats.active.current + rise);
        for shard in &mut self.shards {
            shard.tally.settle(&mut self.stats);
        }
        debug_assert!(self.stats.allocated.current <= self.stats.allocated.peak, "shards kept to their room");
    }

    /// Before the shards are set apart: divides the room below the peaks among them, and tells them whether frees
    /// are pending.
    pub(crate) fn prepare_shards(&mut self) {
        tally::divide(&self.stats, &mut self.shards);
        for shard in &mut self.shards {
            shard.is_pending = !self.pending.is_empty();
        }
    }

    /// Whether each change is recorded.
    pub(crate) fn is_logged(&self) -> bool {
        self.log.is_some()
    }
}
