//! Memory from an allocator of the program's own: the segments of a private pool that was made with one.
//!
//! The sizes of segments, the choice of a free block and its splitting are PyTorch's, so a supplier sees the calls that
//! it would see there. A supplier is foreign code and must not be called under a lock. So nothing here calls it: the
//! caller that serves a request asks [`Supplied::missing`], gets the segment while it holds no lock, and adds it.
//!
//! Invariants: the blocks of a segment fill it, in order of address; no two free blocks of a segment touch; `free`
//! holds the free blocks and no others; `held` is the sum of the segments.

use crate::device::StreamHandle;
use crate::heap::{SMALL, UNIT};
use crate::ids::PoolKey;
use std::collections::{BTreeMap, BTreeSet};

const MIB: u64 = 1 << 20;
/// The segment of small requests, and that of requests below [`MIDDLING`]. A larger request has a segment of its own.
const SMALL_SEGMENT: u64 = 2 * MIB;
const MIDDLING_SEGMENT: u64 = 20 * MIB;
const MIDDLING: u64 = 10 * MIB;
/// The segment of one request is a multiple of this.
const MULTIPLE: u64 = 2 * MIB;

/// The size of the segment that PyTorch takes for a request of `size` bytes.
fn segment_of(size: u64) -> u64 {
    if size <= SMALL {
        SMALL_SEGMENT
    } else if size < MIDDLING {
        MIDDLING_SEGMENT
    } else {
        size.div_ceil(MULTIPLE) * MULTIPLE
    }
}

/// The requests that may use a block: those of one stream in one pool, small or large.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Owner {
    pub pool: PoolKey,
    pub stream: StreamHandle,
    pub is_large: bool,
}

impl Owner {
    pub fn of(pool: PoolKey, stream: StreamHandle, size: u64) -> Owner {
        Owner { pool, stream, is_large: size > SMALL }
    }
}

#[derive(Clone, Copy, Debug)]
struct Block {
    size: u64,
    /// Address of its segment.
    segment: u64,
    is_free: bool,
}

#[derive(Clone, Copy, Debug)]
pub struct Segment {
    pub size: u64,
    pub owner: Owner,
}

/// Segments of one size class, the free blocks in those that are used in part, and the bytes of these.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub segments: u64,
    pub split: u64,
    pub split_bytes: u64,
}

/// A segment that goes back to its supplier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Returned {
    pub pool: PoolKey,
    pub addr: u64,
    pub size: u64,
}

/// All supplied memory of a card.
#[derive(Debug, Default)]
pub struct Supplied {
    /// The pools with a supplier; true if their blocks are never split.
    pools: BTreeMap<PoolKey, bool>,
    segments: BTreeMap<u64, Segment>,
    blocks: BTreeMap<u64, Block>,
    free: BTreeSet<(Owner, u64, u64)>,
    held: u64,
    /// The same sum by pool and stream, small and large.
    held_by: BTreeMap<(PoolKey, StreamHandle), [u64; 2]>,
    counts: [Counts; 2],
    /// Segments to give back, of which the supplier has not been told yet.
    pub returned: Vec<Returned>,
}

impl Supplied {
    pub fn set_pool(&mut self, pool: PoolKey, is_whole: bool) {
        *self.pools.entry(pool).or_default() |= is_whole;
    }

    #[inline]
    pub fn has(&self, pool: PoolKey) -> bool {
        !self.pools.is_empty() && self.pools.contains_key(&pool)
    }

    /// True if a pool has segments.
    pub fn holds_of(&self, pool: PoolKey) -> bool {
        self.held_by(pool, None) != [0, 0]
    }

    /// Bytes of the segments of a pool, or of one stream in it: small and large.
    pub fn held_by(&self, pool: PoolKey, stream: Option<StreamHandle>) -> [u64; 2] {
        let mut sum = [0, 0];
        if self.has(pool) {
            let of_pool = self.held_by.range((pool, StreamHandle(0))..=(pool, StreamHandle(u64::MAX)));
            for (_, held) in of_pool.filter(|((_, of), _)| stream.is_none_or(|stream| stream == *of)) {
                sum = [sum[0] + held[0], sum[1] + held[1]];
            }
        }
        sum
    }

    /// The figures of small requests, and of large ones.
    pub fn counts(&self) -> &[Counts; 2] {
        &self.counts
    }

    /// Counts a free block of a segment of `whole` bytes that comes or goes.
    fn mark_free(&mut self, free: (Owner, u64, u64), whole: u64, is_free: bool) {
        let (owner, size, _) = free;
        if is_free {
            self.free.insert(free);
        } else {
            self.free.remove(&free);
        }
        if size < whole {
            let counts = &mut self.counts[usize::from(owner.is_large)];
            if is_free {
                counts.split += 1;
                counts.split_bytes += size;
            } else {
                counts.split -= 1;
                counts.split_bytes -= size;
            }
        }
    }

    /// Counts a segment that comes or goes.
    fn mark_held(&mut self, owner: Owner, size: u64, is_held: bool) {
        let class = usize::from(owner.is_large);
        let held = self.held_by.entry((owner.pool, owner.stream)).or_default();
        if is_held {
            self.held += size;
            held[class] += size;
            self.counts[class].segments += 1;
        } else {
            self.held -= size;
            held[class] -= size;
            self.counts[class].segments -= 1;
        }
        if *held == [0, 0] {
            self.held_by.remove(&(owner.pool, owner.stream));
        }
    }

    /// Bytes of all segments.
    pub fn held(&self) -> u64 {
        self.held
    }

    pub fn segments(&self) -> impl Iterator<Item = (u64, &Segment)> {
        self.segments.iter().map(|(&addr, segment)| (addr, segment))
    }

    /// The blocks of the segment at `addr`: address, size, and true if free.
    pub fn blocks_of(&self, addr: u64) -> impl Iterator<Item = (u64, u64, bool)> + '_ {
        let end = addr + self.segments.get(&addr).map_or(0, |segment| segment.size);
        self.blocks.range(addr..end).map(|(&addr, block)| (addr, block.size, block.is_free))
    }

    pub fn size_of(&self, addr: u64) -> u64 {
        self.blocks.get(&addr).map_or(0, |block| block.size)
    }

    /// The size of the segment that a request needs first; `None` if a free block serves it.
    pub fn missing(&self, owner: Owner, size: u64) -> Option<u64> {
        if self.fit(owner, size).is_some() { None } else { Some(segment_of(size)) }
    }

    /// The smallest free block that is large enough; of equals the one at the lowest address.
    fn fit(&self, owner: Owner, size: u64) -> Option<(Owner, u64, u64)> {
        let found = self.free.range((owner, size, 0)..).next()?;
        (found.0 == owner).then_some(*found)
    }

    /// Takes a free block for `size` bytes. Returns its address and its size, larger if the rest was not worth
    /// splitting.
    pub fn take(&mut self, owner: Owner, size: u64) -> Option<(u64, u64)> {
        let found = self.fit(owner, size)?;
        let (_, whole, addr) = found;
        let of_segment = self.segments[&self.blocks.get(&addr)?.segment].size;
        self.mark_free(found, of_segment, false);
        let rest = whole - size;
        let is_whole = self.pools.get(&owner.pool).copied().unwrap_or_default();
        let is_split = !is_whole && if owner.is_large { rest > SMALL } else { rest >= UNIT };
        let taken = if is_split { size } else { whole };
        let block = self.blocks.get_mut(&addr)?;
        (block.is_free, block.size) = (false, taken);
        let segment = block.segment;
        if is_split {
            self.blocks.insert(addr + size, Block { size: rest, segment, is_free: true });
            self.mark_free((owner, rest, addr + size), of_segment, true);
        }
        Some((addr, taken))
    }

    /// Frees a block, and joins it with the free blocks beside it.
    pub fn release(&mut self, addr: u64) {
        let Some(&Block { mut size, segment, .. }) = self.blocks.get(&addr) else { return };
        let Segment { size: whole, owner } = self.segments[&segment];
        let is_joined = |block: &Block| block.is_free && block.segment == segment;
        let mut start = addr;
        if let Some((&next, &block)) = self.blocks.range(addr + size..).next()
            && next == addr + size
            && is_joined(&block)
        {
            self.mark_free((owner, block.size, next), whole, false);
            self.blocks.remove(&next);
            size += block.size;
        }
        if let Some((&before, &block)) = self.blocks.range(..addr).next_back()
            && before + block.size == addr
            && is_joined(&block)
        {
            self.mark_free((owner, block.size, before), whole, false);
            self.blocks.remove(&addr);
            start = before;
            size += block.size;
        }
        self.blocks.insert(start, Block { size, segment, is_free: true });
        self.mark_free((owner, size, start), whole, true);
    }

    /// Adds a segment from a supplier. False if it overlaps one that is there.
    pub fn add(&mut self, owner: Owner, addr: u64, size: u64) -> bool {
        let before = self.segments.range(..=addr).next_back();
        let is_over = before.is_some_and(|(start, segment)| start + segment.size > addr);
        if is_over || self.segments.range(addr..addr + size).next().is_some() {
            return false;
        }
        self.segments.insert(addr, Segment { size, owner });
        self.blocks.insert(addr, Block { size, segment: addr, is_free: true });
        self.mark_free((owner, size, addr), size, true);
        self.mark_held(owner, size, true);
        true
    }

    /// The wholly free segments of the pools for which `is_given` is true.
    pub fn idle(&self, is_given: impl Fn(PoolKey) -> bool) -> impl Iterator<Item = (u64, Segment)> {
        let is_idle = move |(addr, segment): &(&u64, &Segment)| {
            let whole = (segment.owner, segment.size, **addr);
            is_given(segment.owner.pool) && self.free.contains(&whole)
        };
        self.segments.iter().filter(is_idle).map(|(&addr, &segment)| (addr, segment))
    }

    /// Takes out every wholly free segment of the pools for which `is_given` is true, for their suppliers.
    pub fn give_back(&mut self, is_given: impl Fn(PoolKey) -> bool) -> Vec<(Owner, Returned)> {
        let mut found: Vec<(u64, Segment)> = self.idle(is_given).collect();
        // This is PyTorch's order within a pool.
        found.sort_unstable_by_key(|&(addr, Segment { size, owner })| {
            (owner.pool, owner.is_large, owner.stream, size, addr)
        });
        let mut given = Vec::new();
        for (addr, Segment { size, owner }) in found {
            self.segments.remove(&addr);
            self.blocks.remove(&addr);
            self.mark_free((owner, size, addr), size, false);
            self.mark_held(owner, size, false);
            let returned = Returned { pool: owner.pool, addr, size };
            self.returned.push(returned);
            given.push((owner, returned));
        }
        given
    }

    /// Ends a pool if it has no segments left. True if it did.
    pub fn end(&mut self, pool: PoolKey) -> bool {
        !self.holds_of(pool) && self.pools.remove(&pool).is_some()
    }

    /// The live bytes, if every invariant holds.
    pub fn check(&self) -> Result<u64, String> {
        let mut live = 0;
        let mut free = 0;
        for (&start, segment) in &self.segments {
            let (mut at, mut was_free) = (start, false);
            for (addr, size, is_free) in self.blocks_of(start) {
                if addr != at || size == 0 || (is_free && was_free) {
                    return Err(format!(
                        "the block at {addr:#x} of the segment at {start:#x} is not in place"
                    ));
                }
                if is_free != self.free.contains(&(segment.owner, size, addr)) {
                    return Err(format!("the block at {addr:#x} is not known as what it is"));
                }
                (at, was_free) = (addr + size, is_free);
                live += if is_free { 0 } else { size };
                free += usize::from(is_free);
            }
            if at != start + segment.size {
                return Err(format!("the segment at {start:#x} is not filled by its blocks"));
            }
        }
        let mut counts = [Counts::default(); 2];
        for (&start, segment) in &self.segments {
            let of = &mut counts[usize::from(segment.owner.is_large)];
            of.segments += 1;
            for (_, size, _) in self.blocks_of(start).filter(|b| b.2 && b.1 < segment.size) {
                (of.split, of.split_bytes) = (of.split + 1, of.split_bytes + size);
            }
        }
        let by_owner: u64 = self.held_by.values().flatten().sum();
        if counts != self.counts || by_owner != self.held {
            return Err(format!("{counts:?} are supplied, {:?} counted; {by_owner} bytes", self.counts));
        }
        let held: u64 = self.segments.values().map(|segment| segment.size).sum();
        if held != self.held || free != self.free.len() {
            return Err(format!("{held} bytes are supplied, {} counted; {free} free blocks", self.held));
        }
        Ok(live)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POOL: PoolKey = PoolKey(0, 7);
    const STREAM: StreamHandle = StreamHandle(0);

    fn served(supplied: &mut Supplied, next: &mut u64, size: u64) -> (u64, u64, Option<u64>) {
        let owner = Owner::of(POOL, STREAM, size);
        let missing = supplied.missing(owner, size);
        if let Some(bytes) = missing {
            assert!(supplied.add(owner, *next, bytes));
            *next += bytes;
        }
        let (addr, taken) = supplied.take(owner, size).expect("there is a block now");
        supplied.check().expect("invariants");
        (addr, taken, missing)
    }

    #[test]
    fn segments_and_splits_are_pytorchs() {
        let (mut supplied, mut next) = (Supplied::default(), 1 << 40);
        supplied.set_pool(POOL, false);
        assert_eq!(served(&mut supplied, &mut next, 512).2, Some(2 * MIB));
        assert_eq!(served(&mut supplied, &mut next, MIB), ((1 << 40) + 512, MIB, None));
        // The rest of two MiB is too small.
        assert_eq!(served(&mut supplied, &mut next, MIB).2, Some(2 * MIB));
        assert_eq!(served(&mut supplied, &mut next, MIB + 512).2, Some(20 * MIB));
        assert_eq!(served(&mut supplied, &mut next, 10 * MIB).2, None);
        assert_eq!(served(&mut supplied, &mut next, 10 * MIB).2, Some(10 * MIB));
        // A rest of one MiB is not worth splitting.
        assert_eq!(
            served(&mut supplied, &mut next, 11 * MIB + 512),
            ((1 << 40) + 34 * MIB, 12 * MIB, Some(12 * MIB))
        );
        assert_eq!(supplied.held(), 46 * MIB);
    }

    #[test]
    fn what_is_freed_joins_and_goes_back_whole() {
        let (mut supplied, mut next) = (Supplied::default(), 1 << 40);
        supplied.set_pool(POOL, false);
        let blocks: Vec<u64> = (0..3).map(|_| served(&mut supplied, &mut next, 3 * MIB).0).collect();
        for &addr in &[blocks[0], blocks[2], blocks[1]] {
            assert!(supplied.give_back(|_| true).is_empty());
            supplied.release(addr);
            supplied.check().expect("invariants");
        }
        assert!(!supplied.end(POOL));
        assert_eq!(supplied.give_back(|pool| pool != POOL).len(), 0);
        let given = supplied.give_back(|pool| pool == POOL);
        assert_eq!(given.len(), 1);
        assert_eq!(given[0].1, Returned { pool: POOL, addr: 1 << 40, size: 20 * MIB });
        assert_eq!((supplied.held(), supplied.check()), (0, Ok(0)));
        assert!(supplied.end(POOL) && !supplied.has(POOL));
    }

    #[test]
    fn a_whole_block_is_never_split_and_streams_are_apart() {
        let (mut supplied, mut next) = (Supplied::default(), 1 << 40);
        supplied.set_pool(POOL, true);
        assert_eq!(served(&mut supplied, &mut next, 2 * MIB), (1 << 40, 20 * MIB, Some(20 * MIB)));
        supplied.release(1 << 40);
        assert_eq!(supplied.missing(Owner::of(POOL, StreamHandle(9), 2 * MIB), 2 * MIB), Some(20 * MIB));
        assert_eq!(supplied.missing(Owner::of(PoolKey(0, 8), STREAM, 2 * MIB), 2 * MIB), Some(20 * MIB));
        assert_eq!(supplied.missing(Owner::of(POOL, STREAM, 2 * MIB), 2 * MIB), None);
    }

    #[test]
    fn a_segment_that_overlaps_is_not_taken() {
        let mut supplied = Supplied::default();
        supplied.set_pool(POOL, false);
        let owner = Owner::of(POOL, STREAM, 4 * MIB);
        assert!(supplied.add(owner, 100 * MIB, 20 * MIB));
        for addr in [100 * MIB, 119 * MIB, 81 * MIB] {
            assert!(!supplied.add(owner, addr, 20 * MIB), "{addr}");
        }
        assert!(supplied.add(owner, 120 * MIB, 20 * MIB) && supplied.add(owner, 80 * MIB, 20 * MIB));
    }

    #[test]
    fn random_requests_keep_every_invariant() {
        let (mut supplied, mut next, mut seed) = (Supplied::default(), 1 << 40, 1_u64);
        let mut random = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % below
        };
        supplied.set_pool(POOL, false);
        let mut live: Vec<(u64, u64)> = Vec::new();
        for _ in 0..4000 {
            match random(8) {
                0..4 => {
                    let bits = random(16);
                    let size = (1 + random(1 << bits)) * UNIT;
                    let (addr, taken, _) = served(&mut supplied, &mut next, size);
                    assert!(live.iter().all(|(other, size)| addr + taken <= *other || other + size <= addr));
                    live.push((addr, taken));
                }
                7 if random(40) == 0 => {
                    supplied.give_back(|_| true);
                }
                _ if !live.is_empty() => {
                    let (addr, _) = live.swap_remove(random(live.len() as u64) as usize);
                    supplied.release(addr);
                }
                _ => {}
            }
            assert_eq!(supplied.check(), Ok(live.iter().map(|(_, size)| size).sum()));
        }
    }
}
