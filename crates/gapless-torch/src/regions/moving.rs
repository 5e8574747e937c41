//! Sleep and waking of regions, on every card that has memory of them.

use super::store::Store;
use super::{Keep, MOVING, regions};
use crate::card::{self, Card};
use crate::cards;
use crate::guard::guarded;
use crate::process::CARDS;
use crate::quota::admission;
use crate::watcher::Caller;
use gapless_cuda::Copies;
use gapless_cuda::locks::{Guard, SetOnce};
use gapless_pool::{DeviceError, PoolKey, Refusal, SleepError};
use std::time::Duration;

/// Number and length of the waits for readers that have just dropped a region's memory.
const READERS_TOLD: u32 = 20;
const READERS_PAUSE: Duration = Duration::from_millis(50);

/// The reason why a region was not moved. The region is as it was.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The card has no memory for a waking.
    OutOfMemory(String),
    /// Trackers must hear first that its memory goes. They may throw, so PyTorch must call them. Then try again.
    Untold,
    Other(String),
}

/// Bytes that a move handled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Moved {
    /// Bytes that were kept, or copied back.
    pub(crate) copied: u64,
    /// Bytes of pages that the card got back, or gave.
    pub(crate) pages: u64,
}

pub(super) fn alone() -> Guard<'static, ()> {
    MOVING.lock()
}

/// A region that is being moved.
pub(super) struct Mover {
    pub(super) name: String,
    pub(super) at: usize,
    pub(super) keep: Keep,
}

impl Mover {
    pub(super) fn new(name: &str) -> Result<Mover, Failure> {
        let regions = regions();
        let at = regions.find(name).map_err(Failure::Other)?;
        Ok(Mover { name: name.to_owned(), at, keep: regions.all[at].keep })
    }

    pub(super) fn pools(&self, device: i32) -> Vec<PoolKey> {
        regions().pools(self.at, device)
    }

    /// Its pools on a card that sleep: pools that came since it fell asleep are awake.
    pub(super) fn sleeping_pools(&self, device: i32) -> Result<Vec<PoolKey>, Failure> {
        let mut pools = regions().pools_ever(self.at, device);
        on(device, |card| pools.retain(|pool| card.pool.sleeps(*pool)))?;
        Ok(pools)
    }

    pub(super) fn sleeps(&self) -> bool {
        let region = &regions().all[self.at];
        region.is_told_to_sleep || !region.asleep.is_empty()
    }

    pub(super) fn is_told_to_sleep(&self, is_told: bool) {
        regions().all[self.at].is_told_to_sleep = is_told;
    }

    /// Forgets pools of graphs that are gone and have nothing left in them.
    fn forget_gone(&self, device: i32) {
        let pools = regions().pools_ever(self.at, device);
        let _ = on(device, |card| {
            for pool in pools.into_iter().filter(|pool| card.uses_of(*pool) == Some(0)) {
                card.forget_if_empty(pool);
            }
        });
    }

    /// Cards that have memory of it.
    pub(super) fn cards(&self) -> Vec<i32> {
        let has = |device: &i32| {
            cards::existing(*device).is_some_and(|card| {
                let pools = self.pools(*device);
                card.pool.awake_in(&pools).1 > 0
            })
        };
        (0..CARDS as i32).filter(has).collect()
    }

    /// Room for these ranges of a card: in the retained store, if the host kept one that has all of them.
    pub(super) fn new_store(&self, device: i32, ranges: &[(u64, u64)]) -> Result<Store, String> {
        let before = {
            let mut regions = regions();
            let retained = &mut regions.all[self.at].retained;
            let place = retained.iter().position(|(card, _)| *card == device);
            place.map(|place| retained.swap_remove(place).1)
        };
        let before = before.filter(|_| self.keep == Keep::Host).and_then(|store| store.again(ranges));
        before.map_or_else(|| Store::new(device, ranges, self.keep), Ok)
    }

    /// The region is awake: the host's bytes of it are dropped, or retained.
    fn let_go(&self, device: i32, store: Store) {
        let mut regions = regions();
        let region = &mut regions.all[self.at];
        if region.is_retained && store.is_on_host() {
            region.retained.push((device, store));
        } else {
            drop(regions);
            drop(store);
        }
    }

    pub(super) fn failure(&self, what: &str, error: &SleepError, device: i32) -> Failure {
        let name = &self.name;
        let text = match *error {
            SleepError::Captured => {
                format!("region {name:?} cannot {what} while a CUDA graph is captured: end the capture first")
            }
            SleepError::Already => format!("region {name:?} cannot {what}: it does so already"),
            SleepError::Supplied => format!(
                "region {name:?} cannot {what}: a torch.cuda.MemPool with an allocator of its own was used in it"
            ),
            SleepError::Shared => format!(
                "region {name:?} cannot {what}: other processes have memory of it (CUDA IPC), which would not follow. Let \
                 them drop it, or keep what is shared outside of the region"
            ),
            SleepError::Windows => format!(
                "region {name:?} cannot {what}: a memory pool of it has memory at two addresses, since it was used \
                 outside of the region before. Use a pool of the region's own, or set GAPLESS_GRAPH_WINDOWS=0"
            ),
            SleepError::InUse(Some(stream)) => format!(
                "region {name:?} cannot {what}: stream {:#x} still uses memory of it, and its work cannot be waited for",
                stream.0
            ),
            SleepError::InUse(None) => {
                format!(
                    "region {name:?} cannot {what}: a stream still uses memory of it that cannot be waited for"
                )
            }
            SleepError::OutOfMemory { missing, device: why } => {
                let who = match why {
                    DeviceError::Refused(Refusal::Limit) => "the limit of this process",
                    DeviceError::Refused(Refusal::Process | Refusal::Share | Refusal::Lent) => {
                        "this process's share of the card"
                    }
                    DeviceError::Refused(Refusal::Host) => "the budget of host and GPU memory",
                    _ => "the card",
                };
                return Failure::OutOfMemory(format!(
                    "CUDA out of memory. Region {name:?} cannot {what} on cuda:{device}: {} MiB are missing ({who}). \
                     Nothing has changed: free memory, or let another region sleep, and try again",
                    missing.div_ceil(1 << 20)
                ));
            }
            SleepError::Device(error) => {
                format!("region {name:?} cannot {what}: the driver refused ({error:?}). Nothing has changed")
            }
        };
        Failure::Other(text)
    }
}

/// Runs `work` on a card that was used before, under its lock.
pub(super) fn on<T>(device: i32, work: impl FnOnce(&mut Card) -> T) -> Result<T, Failure> {
    let gone = || Failure::Other(format!("cuda:{device} was not used yet"));
    let done = guarded(None, || cards::existing(device).map(|mut card| work(&mut card)));
    done.ok_or_else(gone)
}

/// The copying streams of each card, made when they are first needed.
static COPIES: [SetOnce<Copies>; CARDS] = [const { SetOnce::new() }; CARDS];

fn copies(device: i32) -> Result<&'static Copies, Failure> {
    let slot = &COPIES[device as usize];
    if slot.get().is_none() {
        let made = on(device, |card| Copies::new(card.pool.device()))?;
        let none = |error| Failure::Other(format!("cuda:{device} has no stream for copies ({error:?})"));
        // Regions are moved one at a time, so no other thread has set it.
        let _ = slot.set(made.map_err(none)?);
    }
    Ok(slot.get().expect("it was just set"))
}

/// A region on one card that is between sleep and waking.
pub(super) struct Half {
    pub(super) device: i32,
    pub(super) pools: Vec<PoolKey>,
    pub(super) copies: &'static Copies,
    /// The ranges to copy.
    pub(super) ranges: Vec<(u64, u64)>,
}

impl Half {
    /// Begins a region's sleep on a card.
    pub(super) fn begin_sleep(mover: &Mover, device: i32) -> Result<Half, Failure> {
        mover.forget_gone(device);
        let copies = copies(device)?;
        // With the card locked, so that no pool can meanwhile become part of another region.
        let try_once = |card: &mut Card| {
            let pools = mover.pools(device);
            if card.tell_all_going(&pools) {
                return Ok(None);
            }
            let begun = card.pool.begin_sleep(&pools);
            card.tell_changes(&Caller::NOBODY);
            if begun.is_err() {
                card.tell_staying(&pools);
            }
            begun.map(|ranges| Some((pools, ranges)))
        };
        let mut left = READERS_TOLD;
        loop {
            match on(device, try_once)? {
                Ok(Some((pools, ranges))) => return Ok(Half { device, pools, copies, ranges }),
                Ok(None) => return Err(Failure::Untold),
                // A reader that has just dropped its memory reports this over a socket, which takes a moment.
                Err(SleepError::Shared) if left > 0 => {
                    left -= 1;
                    std::thread::sleep(READERS_PAUSE);
                }
                Err(error) => return Err(mover.failure("sleep", &error, device)),
            }
        }
    }

    /// Puts memory behind the region on a card.
    pub(super) fn begin_wake(mover: &Mover, device: i32) -> Result<Half, Failure> {
        let (pools, copies) = (mover.sleeping_pools(device)?, copies(device)?);
        let wake = |card: &mut Card| {
            let begun = card.pool.begin_wake(&pools);
            card.tell_changes(&Caller::NOBODY);
            begun
        };
        let is_lent = |error: &SleepError| {
            matches!(error, SleepError::OutOfMemory { device: DeviceError::Refused(Refusal::Lent), .. })
        };
        let begun = admission::when_lent(device, 0, is_lent, || match on(device, wake) {
            Ok(begun) => begun.map(Ok),
            Err(failure) => Ok(Err(failure)),
        });
        let ranges = begun.map_err(|error| mover.failure("wake", &error, device))??;
        Ok(Half { device, pools, copies, ranges })
    }

    /// Gives the region's memory back to the card, and returns its bytes.
    pub(super) fn end_asleep(&self) -> u64 {
        let end = |card: &mut Card| {
            let given = card.pool.finish_sleep(&self.pools);
            card.tell_changes(&Caller::NOBODY);
            given
        };
        on(self.device, end).unwrap_or(0)
    }

    /// Ends the waking, and returns the bytes that the region holds.
    pub(super) fn end_awake(&self) -> u64 {
        let end = |card: &mut Card| {
            let woken = card.pool.finish_wake(&self.pools);
            card.tell_changes(&Caller::NOBODY);
            card.tell_staying(&self.pools);
            for addr in woken {
                if card::is_told() {
                    card.tell_alloc(addr, &Caller::NOBODY);
                }
            }
            card.pool.awake_in(&self.pools).1
        };
        on(self.device, end).unwrap_or(0)
    }
}

pub(super) fn keep_asleep(at: usize, device: i32, store: Store) {
    regions().all[at].asleep.push((device, store));
}

pub(super) fn take_store(at: usize, device: i32) -> Option<Store> {
    let mut regions = regions();
    let asleep = &mut regions.all[at].asleep;
    let place = asleep.iter().position(|(card, _)| *card == device)?;
    Some(asleep.swap_remove(place).1)
}

/// Puts a region to sleep.
///
/// # Errors
/// If it cannot sleep: then it is awake and complete.
pub(crate) fn sleep(name: &str, verify: bool) -> Result<Moved, Failure> {
    let _alone = alone();
    let mover = Mover::new(name)?;
    if mover.sleeps() {
        return Err(Failure::Other(format!("region {name:?} sleeps already")));
    }
    let cards = mover.cards();
    // All cards first: a region that sleeps on one would have to wake so that trackers can hear of another.
    let tell = |device: &i32| on(*device, |card| card.tell_all_going(&mover.pools(*device))).unwrap_or(false);
    if cards.iter().filter(|&device| tell(device)).count() > 0 {
        return Err(Failure::Untold);
    }
    let mut moved = Moved::default();
    for device in cards {
        match sleep_on(&mover, device, verify) {
            Ok(one) => {
                moved.copied += one.copied;
                moved.pages += one.pages;
            }
            Err(failure) => {
                // Wakes the cards that sleep already, so that the region is as it was.
                let _ = wake_all(&mover);
                return Err(failure);
            }
        }
    }
    mover.is_told_to_sleep(true);
    Ok(moved)
}

fn sleep_on(mover: &Mover, device: i32, verify: bool) -> Result<Moved, Failure> {
    finish_sleep(mover, &Half::begin_sleep(mover, device)?, verify)
}

/// Copies a region out, and gives its memory back.
pub(super) fn finish_sleep(mover: &Mover, half: &Half, verify: bool) -> Result<Moved, Failure> {
    let device = half.device;
    let stored = mover.new_store(device, &half.ranges).and_then(|mut store| {
        let filled = store.fill(device, half.copies);
        // Also after a failure: queued copies still write to the store.
        store.filled(half.copies, verify && filled.is_ok())?;
        filled.map(|()| store)
    });
    match stored {
        Ok(store) => {
            let copied = if mover.keep == Keep::Discard { 0 } else { store.total() };
            let pages = half.end_asleep();
            keep_asleep(mover.at, device, store);
            Ok(Moved { copied, pages })
        }
        Err(error) => {
            half.end_awake();
            Err(Failure::Other(format!("region {:?} cannot sleep: {error}. It is awake", mover.name)))
        }
    }
}

/// Wakes a region.
///
/// # Errors
/// If it cannot wake: then it sleeps on and is complete.
pub(crate) fn wake(name: &str) -> Result<Moved, Failure> {
    let _alone = alone();
    let mover = Mover::new(name)?;
    if !mover.sleeps() {
        return Err(Failure::Other(format!("region {name:?} is awake already")));
    }
    let moved = wake_all(&mover)?;
    mover.is_told_to_sleep(false);
    Ok(moved)
}

fn wake_all(mover: &Mover) -> Result<Moved, Failure> {
    let cards: Vec<i32> = regions().all[mover.at].asleep.iter().map(|(card, _)| *card).collect();
    let mut moved = Moved::default();
    for device in cards {
        let one = wake_on(mover, device)?;
        moved.copied += one.copied;
        moved.pages += one.pages;
    }
    Ok(moved)
}

pub(super) fn wake_on(mover: &Mover, device: i32) -> Result<Moved, Failure> {
    let half = Half::begin_wake(mover, device)?;
    let Some(store) = take_store(mover.at, device) else {
        half.end_asleep();
        return Err(Failure::Other(format!("region {:?} has nothing kept on cuda:{device}", mover.name)));
    };
    let begun = store.empty(device, half.copies, &half.ranges);
    finish_wake(mover, &half, store, begun)
}

/// Waits for the copies of a waking, and ends it.
pub(super) fn finish_wake(
    mover: &Mover,
    half: &Half,
    store: Store,
    begun: Result<(), String>,
) -> Result<Moved, Failure> {
    let device = half.device;
    let done = match begun {
        Ok(()) => store.emptied(device, half.copies, &half.ranges),
        Err(error) => {
            // Queued copies still write to memory that is about to be unmapped.
            let _ = half.copies.wait_back();
            Err(error)
        }
    };
    match done {
        Ok(()) => {
            let copied = if mover.keep == Keep::Discard { 0 } else { half.ranges.iter().map(|r| r.1).sum() };
            let moved = Moved { copied, pages: half.end_awake() };
            mover.let_go(device, store);
            Ok(moved)
        }
        Err(error) => {
            half.end_asleep();
            keep_asleep(mover.at, device, store);
            Err(Failure::Other(format!("region {:?} cannot wake: {error}. It sleeps on", mover.name)))
        }
    }
}
