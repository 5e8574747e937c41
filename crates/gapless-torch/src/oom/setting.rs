//! Finds out if smaller pages would have served a failed request although enough memory was free. It replays the
//! recorded tail on the allocator itself, over a simulated card with the memory that this process could have.
//!
//! The replay begins with the blocks that were live before the tail, packed. So it has a result only if it fails with
//! the present settings, as the run did, and succeeds with the others.

use crate::recorder::Entry;
use gapless_pool::{Options, Pool, PoolKey, SimDevice, StreamHandle};
use gapless_trace::Action;
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;

/// The smallest page size.
const SMALLEST: u64 = 2 << 20;

/// A request: size, stream and pool.
pub type Asked = (u64, StreamHandle, PoolKey);

/// The input of a replay.
#[derive(Clone, Copy, Debug)]
pub struct Run<'a> {
    pub device: u8,
    pub entries: &'a [Entry],
    /// Blocks in use when the request failed, by address.
    pub held: &'a [(u64, Asked)],
    pub request: Asked,
    pub options: Options,
    /// The most bytes that the process could hold.
    pub most: u64,
}

impl Run<'_> {
    /// The page size with which the request would have been served, if it is not the present one.
    #[must_use]
    pub fn smaller_pages(&self) -> Option<u64> {
        if self.options.largest_page <= SMALLEST || self.is_served(self.options) {
            return None;
        }
        let smaller = Options { largest_page: SMALLEST, ..self.options };
        self.is_served(smaller).then_some(SMALLEST)
    }

    fn entries(&self) -> impl DoubleEndedIterator<Item = &Entry> {
        let is_own = |entry: &&Entry| {
            entry.device == self.device && matches!(entry.action, Action::Alloc | Action::FreeCompleted)
        };
        self.entries.iter().filter(is_own)
    }

    /// Blocks in use before the tail.
    fn before(&self) -> BTreeMap<u64, Asked> {
        let mut held: BTreeMap<u64, Asked> = self.held.iter().copied().collect();
        for entry in self.entries().rev() {
            if entry.action == Action::Alloc {
                held.remove(&entry.addr);
            } else {
                held.insert(entry.addr, (entry.size, entry.stream, entry.pool));
            }
        }
        held
    }

    fn is_served(&self, options: Options) -> bool {
        let mut pool = Pool::new(SimDevice::new(self.most), options);
        let mut places: FxHashMap<u64, u64> = FxHashMap::default();
        let alloc = |pool: &mut Pool<SimDevice>,
                     places: &mut FxHashMap<u64, u64>,
                     addr,
                     (size, stream, key): Asked| {
            let place = pool.alloc(size, stream, key).ok();
            place.map(|place| places.insert(addr, place)).is_some()
        };
        for (addr, asked) in self.before() {
            if !alloc(&mut pool, &mut places, addr, asked) {
                return false;
            }
        }
        for entry in self.entries() {
            if entry.action == Action::FreeCompleted {
                if let Some(place) = places.remove(&entry.addr) {
                    let _ = pool.free(place);
                }
            } else if !alloc(&mut pool, &mut places, entry.addr, (entry.size, entry.stream, entry.pool)) {
                return false;
            }
        }
        let (size, stream, key) = self.request;
        pool.alloc(size, stream, key).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const STREAM: StreamHandle = StreamHandle(0);
    const KEY: PoolKey = PoolKey(0, 0);

    /// Large pages of one large block, then full of blocks of 1.5 MiB, of which one in eight stays: each page of 16 MiB
    /// has one.
    fn scattered() -> (Vec<Entry>, Vec<(u64, Asked)>) {
        let entry = |action, addr, size| Entry {
            action,
            device: 0,
            stack: 0,
            module: 0,
            addr,
            size,
            stream: STREAM,
            pool: KEY,
            time: 0,
        };
        let addrs = || (1..=5000u64).map(|at| at * 2 * MIB);
        let size = 3 * MIB / 2;
        let mut entries =
            vec![entry(Action::Alloc, 1, 7500 * MIB), entry(Action::FreeCompleted, 1, 7500 * MIB)];
        entries.extend(addrs().map(|addr| entry(Action::Alloc, addr, size)));
        let stays = |addr: &u64| (addr / (2 * MIB)).is_multiple_of(8);
        entries
            .extend(addrs().filter(|addr| !stays(addr)).map(|addr| entry(Action::FreeCompleted, addr, size)));
        let held = addrs().filter(stays).map(|addr| (addr, (3 * MIB / 2, STREAM, KEY))).collect();
        (entries, held)
    }

    fn run<'a>(entries: &'a [Entry], held: &'a [(u64, Asked)], size: u64) -> Run<'a> {
        let options = Options::default();
        Run { device: 0, entries, held, request: (size, STREAM, KEY), options, most: 8 << 30 }
    }

    #[test]
    fn smaller_pages_are_named_where_they_would_have_served() {
        let (entries, held) = scattered();
        let run = run(&entries, &held, 6 << 30);
        assert_eq!(run.smaller_pages(), Some(2 << 20));
        // Neither a setting that is set, nor one for a request that is served anyway, nor one that does not help.
        let set = Options { largest_page: 2 << 20, ..Options::default() };
        assert_eq!(Run { options: set, ..run }.smaller_pages(), None);
        assert_eq!(Run { request: (MIB, STREAM, KEY), ..run }.smaller_pages(), None);
        assert_eq!(Run { request: (8 << 30, STREAM, KEY), ..run }.smaller_pages(), None);
        assert_eq!(Run { device: 1, ..run }.smaller_pages(), None, "another card's events");
    }

    #[test]
    fn what_was_live_before_the_tail_is_there() {
        let (entries, held) = scattered();
        let run = run(&entries[5002..], &held, 6 << 30);
        assert_eq!(run.before().len(), 5000);
        // Packed, it does not fail with the present settings, so there is no result.
        assert_eq!(run.smaller_pages(), None);
    }
}
