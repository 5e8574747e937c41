//! Two regions that change places: one falls asleep while the other wakes up.
//!
//! If the card has room for both, all copies run at once, each direction on its own stream. If it has not, the two
//! change places step by step. Pages of the first are copied out and given back. As soon as there is room, pages of the
//! other are put in place and filled, while the next pages of the first are copied. Files are written one region after
//! the other.
//!
//! After a failure both regions are complete. The bytes of the one that wakes stay on the host until it is awake. The
//! one that falls asleep has each byte on the host or still on the card ([`Store::leave_on_card`]), so it can go back
//! at any time.

use super::Keep;
use super::moving::{
    Failure, Half, Moved, Mover, alone, finish_sleep, finish_wake, keep_asleep, on, sleep, take_store, wake,
    wake_on,
};
use super::regions;
use super::store::Store;
use crate::watcher::Caller;
use std::collections::VecDeque;

/// The part of the falling region that is copied out before its pages are given back, within the bounds of `STEP`. It
/// also bounds the pages that are put in their place. Copies below the lower bound are slow, and steps beyond the upper
/// one gain nothing.
const PART: u64 = 32;
const STEP: std::ops::RangeInclusive<u64> = (2 << 20)..=(256 << 20);

/// Puts one region to sleep while another wakes. Returns the bytes of the first and of the second.
///
/// # Errors
/// If one cannot. If the first sleeps and the second cannot wake, the message says so.
pub(crate) fn switch(falling: &str, waking: &str, verify: bool) -> Result<(Moved, Moved), Failure> {
    let guard = alone();
    let (down, up) = (Mover::new(falling)?, Mover::new(waking)?);
    if down.at == up.at || down.sleeps() || !up.sleeps() {
        return Err(Failure::Other(format!(
            "to switch, region {falling:?} must be awake and region {waking:?} must sleep"
        )));
    }
    let cards = down.cards();
    let is_alone = |device| {
        let regions = regions();
        let asleep = &regions.all[up.at].asleep;
        asleep.len() == 1 && asleep[0].0 == device && asleep[0].1.is_queued()
    };
    let both = match cards[..] {
        [device] if is_alone(device) => at_once(&down, &up, device, verify)?,
        _ => None,
    };
    if let Some(both) = both {
        down.is_told_to_sleep(true);
        up.is_told_to_sleep(false);
        return Ok(both);
    }
    drop(guard);
    let slept = sleep(falling, verify)?;
    let woke = wake(waking).map_err(|failure| also(failure, falling))?;
    Ok((slept, woke))
}

/// A failure of the waking region while the other sleeps.
fn also(failure: Failure, falling: &str) -> Failure {
    let also = |text: String| format!("{text} (region {falling:?} sleeps)");
    match failure {
        Failure::OutOfMemory(text) => Failure::OutOfMemory(also(text)),
        Failure::Other(text) => Failure::Other(also(text)),
        Failure::Untold => Failure::Untold,
    }
}

/// Moves both at once, or step by step if there is no room for both. `None`: neither is possible; nothing changed.
fn at_once(down: &Mover, up: &Mover, device: i32, verify: bool) -> Result<Option<(Moved, Moved)>, Failure> {
    // The sleep begins first: it waits for all work, and so would wait for the copies of the waking.
    let sinking = Half::begin_sleep(down, device)?;
    let rising = match Half::begin_wake(up, device) {
        Ok(rising) => rising,
        Err(Failure::OutOfMemory(_)) if matches!(down.keep, Keep::Host | Keep::Discard) => {
            return Steps::new(down, up, sinking)?.run(verify).map(Some);
        }
        Err(_) => {
            sinking.end_awake();
            return Ok(None);
        }
    };
    let Some(store) = take_store(up.at, device) else {
        rising.end_asleep();
        sinking.end_awake();
        return Ok(None);
    };
    let begun = store.empty(device, rising.copies, &rising.ranges);
    let slept = finish_sleep(down, &sinking, verify);
    let woke = finish_wake(up, &rising, store, begun);
    match (slept, woke) {
        (Ok(slept), Ok(woke)) => Ok(Some((slept, woke))),
        (Ok(_), Err(failure)) => Err(also(failure, &down.name)),
        (Err(failure), _) => Err(failure),
    }
}

/// Two regions that change places step by step.
struct Steps<'a> {
    down: &'a Mover,
    up: &'a Mover,
    sinking: Half,
    step: u64,
    /// The store to which the falling region is copied, and the pages that are still to be copied, by address.
    to: Store,
    held: VecDeque<(u64, u64)>,
    given: u64,
    /// The store from which the waking region is filled, and the pages that are still to be put in place.
    from: Store,
    empty: VecDeque<(u64, u64)>,
}

impl<'a> Steps<'a> {
    /// After an error nothing has changed.
    fn new(down: &'a Mover, up: &'a Mover, sinking: Half) -> Result<Steps<'a>, Failure> {
        let device = sinking.device;
        let to = match down.new_store(device, &sinking.ranges) {
            Ok(store) => store,
            Err(error) => {
                sinking.end_awake();
                return Err(Failure::Other(format!(
                    "region {:?} cannot sleep: {error}. It is awake",
                    down.name
                )));
            }
        };
        let planned = up.sleeping_pools(device).and_then(|pools| {
            on(device, |card| {
                let held = card.pool.sleeping_pages(&sinking.pools);
                let spare: u64 = held.iter().map(|page| page.1).sum();
                let step = (spare / PART).clamp(*STEP.start(), *STEP.end());
                let empty = card.pool.plan_wake(&pools, spare, step);
                empty.map(|empty| (held, empty, step)).map_err(|error| up.failure("wake", &error, device))
            })
        });
        let store = || take_store(up.at, device).ok_or_else(|| Failure::Other("nothing is kept".to_owned()));
        match planned.and_then(|planned| planned).and_then(|planned| Ok((planned, store()?))) {
            Ok(((held, empty, step), from)) => {
                let (held, empty) = (held.into(), empty.into());
                Ok(Steps { down, up, sinking, step, to, held, given: 0, from, empty })
            }
            Err(failure) => {
                sinking.end_awake();
                Err(failure)
            }
        }
    }

    fn run(mut self, verify: bool) -> Result<(Moved, Moved), Failure> {
        let mut woken = self.from.verify_kept().map_err(Failure::Other);
        loop {
            if woken.is_ok() {
                woken = self.put_in_place();
            }
            match self.copy_out() {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => return Err(self.go_back(&error)),
            }
        }
        let (down, up, device) = (self.down, self.up, self.sinking.device);
        if let Err(error) = self.to.filled(self.sinking.copies, verify) {
            return Err(self.go_back(&error));
        }
        let copied = if down.keep == Keep::Discard { 0 } else { self.to.total() };
        let slept = Moved { copied, pages: self.given + self.sinking.end_asleep() };
        keep_asleep(down.at, device, self.to);
        // The last pages had no room before.
        if woken.is_ok() {
            woken = put_in_place(up, &self.sinking, &self.from, &mut self.empty);
        }
        if woken.is_ok() && !self.empty.is_empty() {
            let bytes: u64 = self.empty.iter().map(|page| page.1).sum();
            woken = Err(Failure::OutOfMemory(format!(
                "CUDA out of memory. Region {:?} cannot wake on cuda:{device}: {} MiB are missing, which others took \
                 meanwhile. It sleeps on",
                up.name,
                bytes.div_ceil(1 << 20)
            )));
        }
        let copies = self.sinking.copies;
        // Also after a failure: queued copies still write to memory that is about to be unmapped.
        let waited = copies
            .wait_back()
            .map_err(|error| Failure::Other(format!("a copy to the card failed ({error:?})")));
        match woken.and(waited).and_then(|()| Half::begin_wake(up, device)) {
            Ok(rising) => {
                let woke = finish_wake(up, &rising, self.from, Ok(()))
                    .map_err(|failure| also(failure, &down.name))?;
                Ok((slept, woke))
            }
            Err(failure) => {
                stay_asleep(up, device, self.from);
                Err(also(failure, &down.name))
            }
        }
    }

    /// Puts as many pages of the waking region in place as there is room for, and begins to fill them.
    fn put_in_place(&mut self) -> Result<(), Failure> {
        put_in_place(self.up, &self.sinking, &self.from, &mut self.empty)
    }

    /// Copies the next pages of the falling region out, and gives them back. False if there were none.
    fn copy_out(&mut self) -> Result<bool, String> {
        let (mut batch, mut bytes) = (Vec::new(), 0);
        while let Some(&(addr, size)) = self.held.front() {
            if bytes >= self.step {
                break;
            }
            self.held.pop_front();
            batch.push((addr, size));
            bytes += size;
        }
        let copies = self.sinking.copies;
        let queued =
            batch.iter().try_for_each(|&(addr, size)| self.to.fill_part(copies, &self.to.within(addr, size)));
        // Also after a failure: queued copies still write to the store.
        let waited = copies.wait_out().map_err(|error| format!("a copy to the host failed ({error:?})"));
        if let Err(error) = queued.and(waited) {
            batch.into_iter().rev().for_each(|page| self.held.push_front(page));
            return Err(error);
        }
        for &(addr, size) in &joined(&batch) {
            let pools = &self.sinking.pools;
            let given = on(self.sinking.device, |card| {
                let given = card.pool.give_up(pools, addr, size);
                card.tell_changes(&Caller::NOBODY);
                given
            });
            self.given += given.unwrap_or(0);
        }
        Ok(!batch.is_empty())
    }

    /// A copy to the host failed. The region that should wake sleeps on. The other is awake again, or sleeps with a
    /// part of its bytes on the card.
    fn go_back(mut self, error: &str) -> Failure {
        let (down, device) = (self.down, self.sinking.device);
        let _ = self.sinking.copies.wait_back();
        stay_asleep(self.up, device, self.from);
        if self.given == 0 {
            self.sinking.end_awake();
            return Failure::Other(format!("region {:?} cannot sleep: {error}. It is awake", down.name));
        }
        let left = self.held.iter().flat_map(|&(addr, size)| self.to.within(addr, size)).collect();
        self.to.leave_on_card(left);
        keep_asleep(down.at, device, self.to);
        match wake_on(down, device) {
            Ok(_) => Failure::Other(format!("region {:?} cannot sleep: {error}. It is awake", down.name)),
            Err(_) => Failure::Other(format!(
                "region {:?} cannot sleep: {error}. It sleeps, with a part of its bytes still on the card: wake it",
                down.name
            )),
        }
    }
}

fn put_in_place(
    up: &Mover,
    sinking: &Half,
    from: &Store,
    empty: &mut VecDeque<(u64, u64)>,
) -> Result<(), Failure> {
    let device = sinking.device;
    let pools = up.sleeping_pools(device)?;
    while let Some(&(addr, size)) = empty.front() {
        let filled = on(device, |card| {
            let filled = card.pool.fill_page(&pools, addr, size);
            card.tell_changes(&Caller::NOBODY);
            filled.map_err(|error| up.failure("wake", &error, device))
        })??;
        if !filled {
            return Ok(());
        }
        empty.pop_front();
        from.empty_part(sinking.copies, &from.within(addr, size)).map_err(Failure::Other)?;
    }
    Ok(())
}

/// Gives back the pages that were put in place: the region sleeps on and is complete.
fn stay_asleep(up: &Mover, device: i32, from: Store) {
    let pools = up.sleeping_pools(device).unwrap_or_default();
    let _ = on(device, |card| {
        card.pool.finish_sleep(&pools);
        card.tell_changes(&Caller::NOBODY);
    });
    keep_asleep(up.at, device, from);
}

/// Pages in order of address, with neighbours joined.
fn joined(pages: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let mut all: Vec<(u64, u64)> = Vec::new();
    for &(addr, size) in pages {
        match all.last_mut() {
            Some((from, bytes)) if *from + *bytes == addr => *bytes += size,
            _ => all.push((addr, size)),
        }
    }
    all
}
