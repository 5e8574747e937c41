//! Pinned host memory for tensors that leave the device for a while: slabs from a [`Pinner`], cut into blocks, best
//! fit, with splitting and merging.
//!
//! Sizes are rounded to 4 KiB only, because powers of two would waste too much on a host that pins half a terabyte. A
//! slab is 64 MiB, or as large as the request if that is larger. Pinning costs milliseconds, so slabs stay until
//! [`HostPool::trim`]. The pool is deterministic and never touches the memory. A caller that frees a block promises
//! that no copy uses it any more.

use crate::device::DeviceError;
use std::collections::{BTreeMap, BTreeSet};

/// Sizes and addresses of blocks are multiples of this.
pub const GRAIN: u64 = 4 << 10;
/// The least that is pinned at once.
pub const SLAB: u64 = 64 << 20;

/// The source of pinned memory.
pub trait Pinner {
    /// Pins `size` bytes, at an address that is a multiple of [`GRAIN`].
    ///
    /// # Errors
    /// If the host has none to pin.
    fn pin(&mut self, size: u64) -> Result<u64, DeviceError>;

    /// Unpins memory that `pin` returned.
    fn unpin(&mut self, addr: u64, size: u64);
}

/// Reason why a request for host memory failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostError {
    /// The pool would hold more than the caller allows.
    Limit { size: u64, reserved: u64, limit: u64 },
    /// The host could not pin any.
    Pin { size: u64, reserved: u64, reason: DeviceError },
}

impl std::fmt::Display for HostError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match *self {
            HostError::Limit { size, reserved, limit } => write!(
                f,
                "{size} bytes of pinned host memory would exceed the limit of {limit}: {reserved} are held; raise host_limit"
            ),
            HostError::Pin { size, reserved, reason } => {
                write!(
                    f,
                    "the host gave no {size} bytes of pinned memory beside the {reserved} that are held ("
                )?;
                match reason {
                    DeviceError::OutOfMemory | DeviceError::Refused(_) => f.write_str("out of memory")?,
                    DeviceError::Driver(code) => write!(f, "CUDA error {code}")?,
                }
                f.write_str(
                    "): set host_limit below what the machine can pin, see ulimit -l and the cgroup's memory",
                )
            }
        }
    }
}

impl std::error::Error for HostError {}

/// The pool's counters, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostStats {
    /// Bytes that were requested and not yet freed, without and with rounding.
    pub live: u64,
    pub allocated: u64,
    /// Pinned.
    pub reserved: u64,
    pub peak_allocated: u64,
    pub peak_reserved: u64,
    pub slabs: u64,
}

#[derive(Clone, Copy, Debug)]
struct Block {
    size: u64,
    /// Address of the slab that contains it.
    slab: u64,
    /// The requested size; `None` if the block is free.
    asked: Option<u64>,
}

/// Invariants: the blocks of a slab fill it, side by side; no two free blocks of a slab touch; `free` holds exactly the
/// free blocks; allocated + free = reserved.
#[derive(Debug)]
pub struct HostPool<P> {
    pinner: P,
    blocks: BTreeMap<u64, Block>,
    /// Free blocks by size, then address.
    free: BTreeSet<(u64, u64)>,
    slabs: BTreeMap<u64, u64>,
    stats: HostStats,
}

impl<P: Pinner> HostPool<P> {
    pub fn new(pinner: P) -> HostPool<P> {
        HostPool {
            pinner,
            blocks: BTreeMap::new(),
            free: BTreeSet::new(),
            slabs: BTreeMap::new(),
            stats: HostStats::default(),
        }
    }

    pub fn stats(&self) -> HostStats {
        self.stats
    }

    pub fn pinner_mut(&mut self) -> &mut P {
        &mut self.pinner
    }

    /// Takes a block of `size` bytes. With a `limit` the pool holds at most that many bytes.
    ///
    /// # Errors
    /// If the limit or the host does not allow it. Then nothing has changed, but unused slabs may be unpinned.
    pub fn alloc(&mut self, size: u64, limit: Option<u64>) -> Result<u64, HostError> {
        let reserved = self.stats.reserved;
        let too_large = HostError::Pin { size, reserved, reason: DeviceError::OutOfMemory };
        let rounded = size.max(1).checked_next_multiple_of(GRAIN).ok_or(too_large)?;
        let found = self.free.range((rounded, 0)..).next().copied();
        let (have, addr) = match found {
            Some(free) => free,
            None => self.grow(rounded, limit)?,
        };
        self.free.remove(&(have, addr));
        let slab = self.blocks[&addr].slab;
        self.blocks.insert(addr, Block { size: rounded, slab, asked: Some(size) });
        if have > rounded {
            self.blocks.insert(addr + rounded, Block { size: have - rounded, slab, asked: None });
            self.free.insert((have - rounded, addr + rounded));
        }
        let s = &mut self.stats;
        s.live += size;
        s.allocated += rounded;
        s.peak_allocated = s.peak_allocated.max(s.allocated);
        Ok(addr)
    }

    /// Frees a block. True if there was one at this address.
    pub fn free(&mut self, addr: u64) -> bool {
        let Some(&Block { size, slab, asked: Some(asked) }) = self.blocks.get(&addr) else { return false };
        self.stats.live -= asked;
        self.stats.allocated -= size;
        let (mut start, mut end) = (addr, addr + size);
        if let Some((&after, &Block { size, slab: other, asked: None })) = self.blocks.range(end..).next()
            && (after, other) == (end, slab)
        {
            self.blocks.remove(&after);
            self.free.remove(&(size, after));
            end += size;
        }
        if let Some((&before, &Block { size, slab: other, asked: None })) =
            self.blocks.range(..addr).next_back()
            && (before + size, other) == (addr, slab)
        {
            self.blocks.remove(&addr);
            self.free.remove(&(size, before));
            start = before;
        }
        self.blocks.insert(start, Block { size: end - start, slab, asked: None });
        self.free.insert((end - start, start));
        true
    }

    /// Unpins every slab without a block in use. Returns the bytes.
    pub fn trim(&mut self) -> u64 {
        let is_whole = |(&addr, &size): (&u64, &u64)| {
            self.blocks
                .get(&addr)
                .is_some_and(|b| b.asked.is_none() && b.size == size)
                .then_some((addr, size))
        };
        let unused: Vec<(u64, u64)> = self.slabs.iter().filter_map(is_whole).collect();
        for &(addr, size) in &unused {
            self.blocks.remove(&addr);
            self.free.remove(&(size, addr));
            self.slabs.remove(&addr);
            self.stats.reserved -= size;
            self.stats.slabs -= 1;
            self.pinner.unpin(addr, size);
        }
        unused.iter().map(|(_, size)| size).sum()
    }

    /// Adds a slab with room for `rounded` bytes, as a free block.
    fn grow(&mut self, rounded: u64, limit: Option<u64>) -> Result<(u64, u64), HostError> {
        let left = |pool: &Self| limit.map_or(u64::MAX, |limit| limit.saturating_sub(pool.stats.reserved));
        if left(self) < rounded {
            // Unused slabs of other sizes may take up the limit.
            self.trim();
        }
        let most = left(self) / GRAIN * GRAIN;
        if most < rounded {
            let (reserved, limit) = (self.stats.reserved, limit.unwrap_or(0));
            return Err(HostError::Limit { size: rounded, reserved, limit });
        }
        let wanted = rounded.max(SLAB).min(most);
        let mut pinned = self.pinner.pin(wanted).map(|addr| (wanted, addr));
        if pinned.is_err() && wanted > rounded {
            pinned = self.pinner.pin(rounded).map(|addr| (rounded, addr));
        }
        if pinned.is_err() && self.trim() > 0 {
            pinned = self.pinner.pin(rounded).map(|addr| (rounded, addr));
        }
        let reserved = self.stats.reserved;
        let (size, addr) = pinned.map_err(|reason| HostError::Pin { size: rounded, reserved, reason })?;
        self.slabs.insert(addr, size);
        self.blocks.insert(addr, Block { size, slab: addr, asked: None });
        self.free.insert((size, addr));
        let s = &mut self.stats;
        s.reserved += size;
        s.peak_reserved = s.peak_reserved.max(s.reserved);
        s.slabs += 1;
        Ok((size, addr))
    }

    /// Checks the invariants; for tests.
    ///
    /// # Panics
    /// If an invariant does not hold.
    pub fn check(&self) {
        let mut free = BTreeSet::new();
        let (mut live, mut allocated) = (0, 0);
        for (&start, &size) in &self.slabs {
            let mut at = start;
            let mut was_free = false;
            for (&addr, block) in self.blocks.range(start..start + size) {
                assert_eq!((addr, block.slab), (at, start), "blocks lie side by side in their slab");
                assert!(block.size > 0 && block.size.is_multiple_of(GRAIN) && addr.is_multiple_of(GRAIN));
                let is_free = block.asked.is_none();
                assert!(!(is_free && was_free), "free blocks that touch are one");
                was_free = is_free;
                match block.asked {
                    None => drop(free.insert((block.size, addr))),
                    Some(asked) => {
                        live += asked;
                        allocated += block.size;
                        assert!(block.size < asked.max(1) + GRAIN, "rounded tightly");
                    }
                }
                at += block.size;
            }
            assert_eq!(at, start + size, "blocks fill their slab");
        }
        assert_eq!(free, self.free);
        let s = &self.stats;
        assert_eq!((s.live, s.allocated), (live, allocated));
        assert_eq!((s.reserved, s.slabs), (self.slabs.values().sum(), self.slabs.len() as u64));
        assert_eq!(allocated + free.iter().map(|(size, _)| size).sum::<u64>(), s.reserved);
    }
}
