//! Cards that may use each other's memory.
//!
//! Mapped memory must be granted to each card that uses it. Cards that can reach each other are granted each other's
//! memory as soon as the process uses both, because libraries in the process (NCCL's collectives) read and write
//! buffers of other cards directly, and report that only to the driver.
//!
//! A card's pool grants its own memory again when a peer comes (`Pool::grant_again`). Memory beside the pool (of
//! elastic tensors and of other processes) is noted here when it is granted, and forgotten before it is unmapped. One
//! lock covers these notes, new peers and grants, so no memory is missed in either order.

use crate::driver::{AccessDescription, Driver, LOCATION_DEVICE, Location, PeerDriver, SUCCESS, Status};
use crate::locks::{Guard, Lock};
use std::collections::BTreeMap;

#[derive(Debug, Default)]
pub(crate) struct Reach {
    /// Other cards that may use this one's memory.
    peers: Vec<i32>,
    /// Memory beside the pool, by address: its size, and its access flags.
    beside: BTreeMap<u64, (u64, i32)>,
}

/// Cards of the process, by number.
const CARDS: usize = 64;
static REACH: [Lock<Reach>; CARDS] = [const { Lock::new(Reach::default) }; CARDS];
/// Cards that the process uses.
static USED: Lock<Vec<i32>> = Lock::new(Vec::new);

pub(crate) fn of(card: i32) -> Guard<'static, Reach> {
    REACH[usize::try_from(card).unwrap_or(0) % CARDS].lock()
}

impl Reach {
    /// Grants memory to the card itself and to its peers, and returns the driver's answer. The caller has entered the
    /// card's context.
    pub(crate) fn grant(&self, driver: &Driver, card: i32, (addr, size): (u64, u64), flags: i32) -> Status {
        let access = |id: i32| AccessDescription { location: Location { kind: LOCATION_DEVICE, id }, flags };
        let own = access(card);
        // SAFETY: the caller has mapped the whole range; the descriptions live to the end of the call.
        unsafe {
            if self.peers.is_empty() {
                return (driver.set_access)(addr, size as usize, &own, 1);
            }
            let all: Vec<AccessDescription> =
                std::iter::once(own).chain(self.peers.iter().map(|&peer| access(peer))).collect();
            (driver.set_access)(addr, size as usize, all.as_ptr(), all.len())
        }
    }

    /// [`Reach::grant`] for memory beside the pool.
    pub(crate) fn grant_beside(
        &mut self,
        driver: &Driver,
        card: i32,
        range: (u64, u64),
        flags: i32,
    ) -> Status {
        let status = self.grant(driver, card, range, flags);
        if status == SUCCESS {
            self.beside.insert(range.0, (range.1, flags));
        }
        status
    }

    /// Forgets grants in a range that is about to be unmapped.
    pub(crate) fn forget(&mut self, addr: u64, size: u64) {
        let end = addr + size;
        let before = self.beside.range(..end).rev();
        let touched: Vec<u64> =
            before.take_while(|(start, (size, _))| **start + size > addr).map(|(start, _)| *start).collect();
        for start in touched {
            let Some((size, flags)) = self.beside.remove(&start) else { continue };
            if start < addr {
                self.beside.insert(start, (addr - start, flags));
            }
            if start + size > end {
                self.beside.insert(end, (start + size - end, flags));
            }
        }
    }

    /// Lets another card use this one's memory from now on, and grants it the memory beside the pool. True if it could
    /// not use it before. The caller has entered the card's context.
    ///
    /// # Errors
    /// The driver's answer, if it refuses. Then the peer is not added.
    pub(crate) fn add(&mut self, driver: &Driver, card: i32, peer: i32) -> Result<bool, Status> {
        if peer == card || self.peers.contains(&peer) {
            return Ok(false);
        }
        self.peers.push(peer);
        for (&addr, &(size, flags)) in &self.beside {
            let status = self.grant(driver, card, (addr, size), flags);
            if status != SUCCESS {
                self.peers.pop();
                return Err(status);
            }
        }
        Ok(true)
    }

    pub(crate) fn remove(&mut self, peer: i32) {
        self.peers.retain(|known| *known != peer);
    }
}

/// Notes that the process uses this card. Returns the grants that are possible between it and the cards used before, in
/// both directions, as (user, owner).
#[must_use]
pub fn met(card: i32) -> Vec<(i32, i32)> {
    let mut used = USED.lock();
    if used.contains(&card) {
        return Vec::new();
    }
    let others = used.clone();
    used.push(card);
    drop(used);
    let Some(driver) = PeerDriver::get() else { return Vec::new() };
    let can = |&(user, owner): &(i32, i32)| {
        let mut answer = 0;
        // SAFETY: an out-pointer of our own.
        unsafe { (driver.can_access)(&mut answer, user, owner) == SUCCESS && answer != 0 }
    };
    others.into_iter().flat_map(|other| [(other, card), (card, other)]).filter(can).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_unmapped_is_forgotten_in_part_too() {
        let mut reach = Reach::default();
        reach.beside.extend([(100, (50, 3)), (150, (50, 1)), (300, (10, 3))]);
        reach.forget(120, 60);
        let left: Vec<(u64, (u64, i32))> = reach.beside.clone().into_iter().collect();
        assert_eq!(left, [(100, (20, 3)), (180, (20, 1)), (300, (10, 3))]);
        reach.forget(105, 5);
        reach.forget(0, 101);
        let left: Vec<(u64, (u64, i32))> = reach.beside.clone().into_iter().collect();
        assert_eq!(left, [(101, (4, 3)), (110, (10, 3)), (180, (20, 1)), (300, (10, 3))]);
        reach.forget(0, 1000);
        assert!(reach.beside.is_empty());
    }
}
