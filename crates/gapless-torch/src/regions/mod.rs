//! Regions: named parts of a program's memory that sleep and wake together.
//!
//! A region is a private pool of its own, and the pools of PyTorch's that took requests only while it was open
//! ([`took`]). Requests of all threads go to the newest open region. A process without regions pays one load a request.
//!
//! A sleep has three steps, and so has a waking: the pool is told under the card's lock, bytes are copied without it,
//! and the pool is told again ([`gapless_pool::Pool::begin_sleep`]). After a failure the region is complete, and either
//! awake or asleep. One region is moved at a time, or two against each other ([`switch`]).

pub(crate) mod exempt;
mod figures;
mod files;
mod moving;
mod packed;
mod store;
mod switching;

use crate::budgets;
use gapless_cuda::locks::{Guard, Lock};
use gapless_pool::PoolKey;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering};
use store::Store;

pub(crate) use figures::{Shown, asleep_json, awake_on, is_asleep, json, on_card, write_json};
pub(crate) use moving::{Failure, Moved, sleep, wake};
pub(crate) use packed::{Decode, Encode, set_codec};
pub(crate) use store::prepare;
pub(crate) use switching::switch;

/// The first half of every region's pool key: PyTorch counts its own from 0.
const MARK: u64 = 0x0067_6170_6c65_7373;
const MOST_REGIONS: usize = 1 << 16;

/// Treatment of a region's bytes while it sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keep {
    /// They are copied to pinned host memory.
    Host,
    /// They are not kept: the contents after waking are undefined.
    Discard,
    /// They are written to a file.
    Disk,
    /// They are compressed and copied to host memory.
    Compressed,
}

impl Keep {
    /// The name in Python.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Keep::Host => "host",
            Keep::Discard => "discard",
            Keep::Disk => "disk",
            Keep::Compressed => "compressed",
        }
    }
}

/// The number of the newest open region, from 1 on; 0: none is open.
static OPEN: AtomicU32 = AtomicU32::new(0);
static REGIONS: Lock<Regions> =
    Lock::new(|| Regions { all: Vec::new(), open: Vec::new(), count: 0, mixed: BTreeSet::new() });
/// Held by the thread that moves regions, until it is done: two moves would wait for each other's memory.
static MOVING: Lock<()> = Lock::new(|| ());

#[derive(Debug)]
struct Region {
    name: String,
    keep: Keep,
    /// Pools of PyTorch's that took requests in it, by card.
    graphs: Vec<(i32, PoolKey)>,
    /// True from a sleep to the next waking, even if the region held no memory.
    is_told_to_sleep: bool,
    /// Its sleeping memory, by card.
    asleep: Vec<(i32, Store)>,
    /// `is_retained`: the host's bytes outlive a waking. `retained`: those, by card; the next sleep writes over them.
    is_retained: bool,
    retained: Vec<(i32, Store)>,
}

/// Region `n` is `all[n - 1]`.
#[derive(Debug)]
struct Regions {
    all: Vec<Region>,
    /// Tokens and regions of open scopes, oldest first; 0: a scope without a region.
    open: Vec<(i64, u32)>,
    count: i64,
    /// Pools of PyTorch's that also have memory of other regions or of none: they never sleep.
    mixed: BTreeSet<(i32, PoolKey)>,
}

fn regions() -> Guard<'static, Regions> {
    REGIONS.lock()
}

fn key_of(number: u32) -> PoolKey {
    PoolKey(MARK, u64::from(number))
}

/// True if a pool is a region's own.
#[inline]
pub(crate) fn is_region(pool: PoolKey) -> bool {
    pool.0 == MARK
}

/// The pool that PyTorch is told of. To PyTorch a region's own pool is the default one, whose free memory may go at any
/// time. Libraries that register memory by a snapshot (NCCL) leave the default pool out.
pub(crate) fn as_torch_sees(pool: PoolKey) -> PoolKey {
    if is_region(pool) { PoolKey(0, 0) } else { pool }
}

/// The pool of a request that comes now, outside of PyTorch's own pools.
#[inline]
pub(crate) fn current() -> PoolKey {
    match OPEN.load(Ordering::Relaxed) {
        0 => PoolKey(0, 0),
        number => key_of(number),
    }
}

/// True if a request is for PyTorch itself, while a region is open.
///
/// # Safety
/// C++ exceptions may pass the callers: no guard, and no card locked.
#[inline]
pub(crate) unsafe fn is_for_torch(size: usize) -> bool {
    // SAFETY: our caller lets exceptions pass, and no card is locked here.
    OPEN.load(Ordering::Relaxed) != 0 && unsafe { exempt::is_for_torch(size) }
}

/// A capture, or a memory pool of PyTorch's, begins to take requests. Its memory is part of the open region if it only
/// ever takes requests in that one, because tensors outside of the region must not sleep with it. True if the pool may
/// sleep one day.
pub(crate) fn took(device: i32, pool: PoolKey) -> bool {
    if is_region(pool) {
        return true;
    }
    let number = OPEN.load(Ordering::Relaxed) as usize;
    let mut regions = regions();
    if regions.mixed.contains(&(device, pool)) {
        return false;
    }
    match regions.all.iter().position(|region| region.graphs.contains(&(device, pool))) {
        Some(at) if at + 1 == number => true,
        None if number > 0 => {
            if let Some(region) = regions.all.get_mut(number - 1) {
                region.graphs.push((device, pool));
            }
            true
        }
        _ => {
            regions.mixed.insert((device, pool));
            false
        }
    }
}

/// A request outside of PyTorch's pools was served from this one.
pub(crate) fn lent(device: i32, pool: PoolKey) {
    let mut regions = regions();
    if regions.all.iter().any(|region| region.graphs.contains(&(device, pool))) {
        regions.mixed.insert((device, pool));
    }
}

/// True if a pool of PyTorch's is, or was, part of a region.
pub(crate) fn has(device: i32, pool: PoolKey) -> bool {
    let regions = regions();
    regions.mixed.contains(&(device, pool))
        || regions.all.iter().any(|region| region.graphs.contains(&(device, pool)))
}

/// A pool of PyTorch's is gone, and nothing is left in it.
pub(crate) fn forget(device: i32, pool: PoolKey) {
    let mut regions = regions();
    regions.mixed.remove(&(device, pool));
    for region in &mut regions.all {
        region.graphs.retain(|graph| *graph != (device, pool));
    }
}

impl Regions {
    fn find(&self, name: &str) -> Result<usize, String> {
        self.all.iter().position(|region| region.name == name).ok_or_else(|| {
            let known: Vec<&str> = self.all.iter().map(|region| region.name.as_str()).collect();
            let known = if known.is_empty() { "none was opened yet".to_owned() } else { known.join(", ") };
            format!(
                "there is no region {name:?}: open it with gapless.region({name:?}) first (regions: {known})"
            )
        })
    }

    /// The pools of a region on a card that can sleep with it.
    fn pools(&self, at: usize, device: i32) -> Vec<PoolKey> {
        let mut pools = self.pools_ever(at, device);
        pools.retain(|pool| !self.mixed.contains(&(device, *pool)));
        pools
    }

    /// The same, and pools that also have memory of others by now: they may sleep since before.
    fn pools_ever(&self, at: usize, device: i32) -> Vec<PoolKey> {
        let graphs = self.all[at].graphs.iter().filter(|(card, _)| *card == device).map(|(_, pool)| *pool);
        std::iter::once(key_of(at as u32 + 1)).chain(graphs).collect()
    }

    /// The stores of sleeping regions, and those retained of others.
    fn stores(&self) -> impl Iterator<Item = &(i32, Store)> {
        self.all.iter().flat_map(|region| region.asleep.iter().chain(&region.retained))
    }

    fn publish(&self) {
        OPEN.store(self.open.last().map_or(0, |(_, number)| *number), Ordering::Relaxed);
    }
}

/// Opens a scope in a region, made if it is new; without a name, outside of all regions. Returns a number to close it
/// by.
///
/// # Errors
/// If the name is invalid, if there are too many regions, or if the region sleeps and `keep` differs.
pub(crate) fn open(name: Option<&str>, keep: Keep) -> Result<i64, String> {
    if let Some(name) = name
        && !budgets::is_tag(name)
    {
        return Err(format!("invalid name {name:?} of a region: use 1 to 63 letters, digits, _, - or /"));
    }
    let mut regions = regions();
    let number = match name {
        None => 0,
        Some(name) => {
            let at = match regions.find(name) {
                Ok(at) => at,
                Err(_) if regions.all.len() < MOST_REGIONS => {
                    let name = name.to_owned();
                    regions.all.push(Region {
                        name,
                        keep,
                        graphs: Vec::new(),
                        is_told_to_sleep: false,
                        asleep: Vec::new(),
                        is_retained: false,
                        retained: Vec::new(),
                    });
                    regions.all.len() - 1
                }
                Err(_) => {
                    return Err(format!("there are {MOST_REGIONS} regions already: use their names again"));
                }
            };
            let region = &mut regions.all[at];
            if region.keep != keep && !region.asleep.is_empty() {
                return Err(format!("region {name:?} sleeps: wake it before its keep is changed"));
            }
            region.keep = keep;
            at as u32 + 1
        }
    };
    regions.count += 1;
    let token = regions.count;
    regions.open.push((token, number));
    regions.publish();
    Ok(token)
}

/// Closes a scope. Scopes that were opened later stay open.
pub(crate) fn close(token: i64) {
    let mut regions = regions();
    regions.open.retain(|(open, _)| *open != token);
    regions.publish();
}

/// Copies the kept bytes of sleeping memory at `addr`. False if none are kept.
///
/// # Errors
/// If they cannot be read.
pub(crate) fn read_kept(addr: u64, into: &mut [u8]) -> Result<bool, String> {
    let regions = regions();
    for (_, store) in regions.stores() {
        if store.read_at(addr, into)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The place where the host keeps the bytes of `[addr, addr + size)` in one piece. They stay there until the region
/// wakes. If they are retained, they stay until it sleeps again or is told to forget them.
pub(crate) fn kept_at(addr: u64, size: u64) -> Option<u64> {
    regions().stores().find_map(|(_, store)| store.address_of(addr, size))
}

/// Sets if the host keeps a region's bytes when it wakes, at the same place for the next sleep.
///
/// # Errors
/// If there is no such region.
pub(crate) fn retain(name: &str, is_retained: bool) -> Result<(), String> {
    let mut regions = regions();
    let at = regions.find(name)?;
    regions.all[at].is_retained = is_retained;
    Ok(())
}

/// Drops the bytes that the host kept of a region when it woke.
///
/// # Errors
/// If there is no such region.
pub(crate) fn forget_kept(name: &str) -> Result<(), String> {
    let dropped = {
        let mut regions = regions();
        let at = regions.find(name)?;
        std::mem::take(&mut regions.all[at].retained)
    };
    drop(dropped);
    Ok(())
}

/// Gives files of regions that are kept on disk names in this folder from now on; `None`: no names.
pub(crate) fn show_files_in(folder: Option<std::path::PathBuf>) {
    files::show_in(folder);
}

/// The sleeping addresses, by region. No work may use them now.
pub(crate) fn sleeping() -> Vec<(String, Vec<(u64, u64)>)> {
    let regions = regions();
    let sleeping = regions.all.iter().filter(|region| !region.asleep.is_empty());
    let of = |region: &Region| {
        let ranges = region.asleep.iter().flat_map(|(_, store)| store.all()).collect();
        (region.name.clone(), ranges)
    };
    sleeping.map(of).collect()
}
