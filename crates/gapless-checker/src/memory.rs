//! Addresses, pages, mappings, and the last use of each physical byte.
//!
//! A mapping is one page at one address, from its map to its unmap. Its number is never used again, so work that
//! remembers the number remembers the physical bytes.
//!
//! Invariant: the owners of a page are intervals `[from, to)` that do not overlap, each with the allocation that was
//! handed out there last.

use super::clock::{Clock, Moment, Uses};
use super::violation::Rule;
use gapless_pool::pool::PoolKey;
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::rc::Rc;

pub(crate) type MapId = u32;
pub(crate) type OwnerId = u32;

/// A violation of a rule, with a description.
pub(crate) type Broken = (Rule, String);

#[derive(Debug)]
struct Page {
    size: u64,
    mapped: u32,
    /// Allocations in it that another process maps.
    exported: u32,
    owners: BTreeMap<u64, (u64, OwnerId)>,
}

#[derive(Debug)]
struct Mapping {
    addr: u64,
    size: u64,
    page: u64,
    is_granted: bool,
    is_mapped: bool,
    /// Live allocations and graphs that lie in it, and those that another process maps.
    users: u32,
    exported: u32,
    uses: Uses,
}

#[derive(Debug)]
struct Reservation {
    size: u64,
    /// All addresses that were ever mapped, as intervals, and their bytes.
    touched: BTreeMap<u64, u64>,
    bytes: u64,
}

/// An allocation, live or not, as long as it was the last owner of some byte.
#[derive(Debug)]
pub(crate) struct Owner {
    /// The program's number.
    pub(crate) name: u32,
    pub(crate) pool: PoolKey,
    pub(crate) is_live: bool,
    pub(crate) addr: u64,
    pub(crate) size: u64,
    pub(crate) maps: Rc<[MapId]>,
    pub(crate) uses: Uses,
}

/// Physical bytes behind addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stretch {
    pub(crate) map: MapId,
    page: u64,
    from: u64,
    to: u64,
}

#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) capacity: u64,
    pub(crate) used: u64,
    /// The addresses of the device, and those that are reserved.
    addresses: u64,
    reserved: u64,
    next_addr: u64,
    reservations: BTreeMap<u64, Reservation>,
    /// Reservations that were given back, by size. The next reservation of that size gets the same addresses.
    given_back: FxHashMap<u64, Vec<u64>>,
    pages: FxHashMap<u64, Page>,
    next_page: u64,
    mapped: BTreeMap<u64, MapId>,
    mappings: Vec<Mapping>,
    owners: Vec<Owner>,
    /// Addresses of present reservations that were ever mapped.
    touched: u64,
    /// Mapped bytes, now and at most.
    mapped_now: u64,
    most_mapped: u64,
    /// Addresses that were ever mapped, beyond twice the bytes that were mapped at once: the limit, and the highest
    /// number. The driver's own limit would take days to reach.
    may_touch: u64,
    pub(crate) most_beyond: u64,
}

impl Memory {
    pub(crate) fn new(capacity: u64, addresses: u64, may_touch: u64) -> Memory {
        Memory {
            capacity,
            used: 0,
            addresses,
            reserved: 0,
            next_addr: 1 << 40,
            reservations: BTreeMap::new(),
            given_back: FxHashMap::default(),
            pages: FxHashMap::default(),
            next_page: 0,
            mapped: BTreeMap::new(),
            mappings: Vec::new(),
            owners: Vec::new(),
            touched: 0,
            mapped_now: 0,
            most_mapped: 0,
            may_touch,
            most_beyond: 0,
        }
    }

    // ---- addresses ----

    pub(crate) fn reserve(&mut self, size: u64) -> Option<u64> {
        if self.reserved + size > self.addresses {
            return None;
        }
        self.reserved += size;
        let addr = self.given_back.get_mut(&size).and_then(Vec::pop).unwrap_or_else(|| {
            let addr = self.next_addr;
            self.next_addr += size;
            addr
        });
        self.reservations.insert(addr, Reservation { size, touched: BTreeMap::new(), bytes: 0 });
        Some(addr)
    }

    pub(crate) fn unreserve(&mut self, addr: u64, size: u64) -> Result<(), Broken> {
        if self.reservations.get(&addr).is_none_or(|known| known.size != size) {
            return Err((Rule::BadRange, format!("nothing is reserved at {addr:#x} for {size} bytes")));
        }
        if self.mapped.range(addr..addr + size).next().is_some() {
            return Err((Rule::BadRange, format!("the reservation at {addr:#x} goes with something mapped")));
        }
        if let Some(gone) = self.reservations.remove(&addr) {
            self.touched -= gone.bytes;
        }
        self.reserved -= size;
        self.given_back.entry(size).or_default().push(addr);
        Ok(())
    }

    /// Notes that addresses are mapped.
    fn touch(&mut self, addr: u64, size: u64) -> Result<(), Broken> {
        let around = self.reservations.range_mut(..=addr).next_back();
        let Some((_, reservation)) = around.filter(|(start, r)| addr + size <= *start + r.size) else {
            return Err((Rule::BadRange, format!("{size} bytes at {addr:#x} were not reserved")));
        };
        let (mut from, mut to, mut known) = (addr, addr + size, 0);
        let touched = &mut reservation.touched;
        while let Some((&f, &t)) = touched.range(..=to).next_back().filter(|(_, t)| **t >= from) {
            touched.remove(&f);
            known += t - f;
            (from, to) = (from.min(f), to.max(t));
        }
        touched.insert(from, to);
        let more = to - from - known;
        reservation.bytes += more;
        self.touched += more;
        self.mapped_now += size;
        self.most_mapped = self.most_mapped.max(self.mapped_now);
        // Gaps may be as large as the mapped bytes.
        let beyond = self.touched.saturating_sub(2 * self.most_mapped);
        self.most_beyond = self.most_beyond.max(beyond);
        if more > 0 && beyond > self.may_touch {
            let (touched, mapped) = (self.touched >> 20, self.most_mapped >> 20);
            let text =
                format!("{touched} MiB of addresses were used for {mapped} MiB that were mapped at once");
            return Err((Rule::Addresses, text));
        }
        Ok(())
    }

    // ---- pages ----

    pub(crate) fn create(&mut self, size: u64) -> Option<u64> {
        if self.used + size > self.capacity {
            return None;
        }
        self.used += size;
        self.next_page += 1;
        self.pages.insert(self.next_page, Page { size, mapped: 0, exported: 0, owners: BTreeMap::new() });
        Some(self.next_page)
    }

    pub(crate) fn release(&mut self, page: u64, size: u64, host: &Clock) -> Result<(), Broken> {
        let Some(known) = self.pages.get(&page).filter(|known| known.size == size) else {
            return Err((Rule::BadRange, format!("no page {page} of {size} bytes is there to be released")));
        };
        let (is_mapped, is_exported) = (known.mapped > 0, known.exported > 0);
        let late = known.owners.values().find_map(|&(_, owner)| {
            let owner = &self.owners[owner as usize];
            Some((owner.name, owner.uses.not_before(host)?))
        });
        self.used -= size;
        if is_exported {
            return Err((Rule::Exported, format!("page {page} is released, and another process maps it")));
        }
        if is_mapped {
            return Err((Rule::ReleaseMapped, format!("page {page} is released and mapped")));
        }
        self.pages.remove(&page);
        match late {
            Some((name, moment)) => {
                let work = work_of(name, moment);
                Err((
                    Rule::ReleaseInUse,
                    format!("page {page} is released before {work} is known to be done"),
                ))
            }
            None => Ok(()),
        }
    }

    // ---- mappings ----

    pub(crate) fn map(&mut self, addr: u64, size: u64, page: u64) -> Result<(), Broken> {
        if self.pages.get(&page).is_none_or(|known| known.size != size) {
            return Err((Rule::BadRange, format!("no page {page} of {size} bytes is there to be mapped")));
        }
        let before = self.mapped.range(..addr + size).next_back();
        if let Some(id) = before.map(|(_, &id)| id).filter(|&id| self.end(id) > addr) {
            let at = self.mappings[id as usize].addr;
            return Err((Rule::MapOverMapped, format!("{addr:#x} is mapped over what is mapped at {at:#x}")));
        }
        let touched = self.touch(addr, size);
        if matches!(touched, Err((Rule::BadRange, _))) {
            return touched;
        }
        self.pages.get_mut(&page).expect("it was found above").mapped += 1;
        self.mapped.insert(addr, self.mappings.len() as MapId);
        self.mappings.push(Mapping {
            addr,
            size,
            page,
            is_granted: false,
            is_mapped: true,
            users: 0,
            exported: 0,
            uses: Uses::default(),
        });
        touched
    }

    fn end(&self, id: MapId) -> u64 {
        let mapping = &self.mappings[id as usize];
        mapping.addr + mapping.size
    }

    /// The mappings that fill a range exactly.
    fn filling(&self, addr: u64, size: u64) -> Result<Vec<MapId>, Broken> {
        let found: Vec<MapId> = self.mapped.range(addr..addr + size).map(|(_, &id)| id).collect();
        let mut at = addr;
        for &id in &found {
            if self.mappings[id as usize].addr != at {
                break;
            }
            at = self.end(id);
        }
        if at == addr + size {
            Ok(found)
        } else {
            Err((Rule::BadRange, format!("{size} bytes at {addr:#x} are not what pages were mapped to")))
        }
    }

    pub(crate) fn grant(&mut self, addr: u64, size: u64) -> Result<(), Broken> {
        for id in self.filling(addr, size)? {
            self.mappings[id as usize].is_granted = true;
        }
        Ok(())
    }

    pub(crate) fn unmap(&mut self, addr: u64, size: u64, host: &Clock) -> Result<(), Broken> {
        let mut broken = None;
        for id in self.filling(addr, size)? {
            let mapping = &mut self.mappings[id as usize];
            mapping.is_mapped = false;
            self.mapped_now -= mapping.size;
            let (at, page) = (mapping.addr, mapping.page);
            if mapping.exported > 0 {
                let text = format!("{at:#x} is unmapped, and another process maps its page");
                broken = Some((Rule::Exported, text));
            }
            if let Some(moment) = mapping.uses.not_before(host) {
                let Moment { line, tick } = moment;
                let text =
                    format!("{at:#x} is unmapped before work {tick} of timeline {line} is known to be done");
                broken = broken.or(Some((Rule::UnmapInUse, text)));
            } else if mapping.users > 0 {
                let text = format!("{at:#x} is unmapped under a live allocation or a graph");
                broken = broken.or(Some((Rule::UnmapLive, text)));
            }
            self.mapped.remove(&at);
            if let Some(page) = self.pages.get_mut(&page) {
                page.mapped -= 1;
            }
        }
        broken.map_or(Ok(()), Err)
    }

    /// Checks that work that was queued with these mappings still finds them.
    pub(crate) fn are_there(&self, maps: &[MapId]) -> Result<(), Broken> {
        match maps.iter().map(|&id| &self.mappings[id as usize]).find(|m| !m.is_mapped || !m.is_granted) {
            Some(mapping) => {
                Err((Rule::StaleRun, format!("work runs at {:#x}, unmapped since", mapping.addr)))
            }
            None => Ok(()),
        }
    }

    /// The physical bytes behind a range that work may use.
    pub(crate) fn resolve(&self, addr: u64, size: u64) -> Result<Vec<Stretch>, Broken> {
        let mut found = Vec::new();
        let mut at = addr;
        while at < addr + size {
            let around = self.mapped.range(..=at).next_back().map(|(_, &id)| id);
            let Some(id) = around.filter(|&id| self.end(id) > at) else {
                return Err((Rule::Access, format!("nothing is mapped at {at:#x}")));
            };
            let mapping = &self.mappings[id as usize];
            if !mapping.is_granted {
                return Err((Rule::Access, format!("what is mapped at {at:#x} was not granted")));
            }
            let end = self.end(id).min(addr + size);
            let from = at - mapping.addr;
            found.push(Stretch { map: id, page: mapping.page, from, to: from + end - at });
            at = end;
        }
        Ok(found)
    }

    /// Notes that a live allocation or a graph lies in these mappings, or no longer does.
    pub(crate) fn hold(&mut self, maps: &[MapId], is_held: bool) {
        for &id in maps {
            let users = &mut self.mappings[id as usize].users;
            *users = if is_held { *users + 1 } else { *users - 1 };
        }
    }

    /// Notes that another process maps the pages behind these mappings, or no longer does.
    pub(crate) fn export(&mut self, maps: &[MapId], is_exported: bool) {
        let change = |count: &mut u32| *count = if is_exported { *count + 1 } else { *count - 1 };
        for &id in maps {
            let mapping = &mut self.mappings[id as usize];
            change(&mut mapping.exported);
            if let Some(page) = self.pages.get_mut(&mapping.page) {
                change(&mut page.exported);
            }
        }
    }

    pub(crate) fn is_exported(&self, page: u64) -> bool {
        self.pages.get(&page).is_some_and(|page| page.exported > 0)
    }

    /// Notes a use through these mappings.
    pub(crate) fn use_maps(&mut self, maps: &[MapId], moment: Moment, host: &Clock) {
        for &id in maps {
            let uses = &mut self.mappings[id as usize].uses;
            uses.forget_covered(host);
            uses.add(moment);
        }
    }

    // ---- owners ----

    pub(crate) fn owner(&self, id: OwnerId) -> &Owner {
        &self.owners[id as usize]
    }

    pub(crate) fn owner_mut(&mut self, id: OwnerId) -> &mut Owner {
        &mut self.owners[id as usize]
    }

    pub(crate) fn add_owner(&mut self, owner: Owner) -> OwnerId {
        self.owners.push(owner);
        (self.owners.len() - 1) as OwnerId
    }

    /// The last owners of these bytes.
    pub(crate) fn owners_of(&self, stretches: &[Stretch]) -> Vec<OwnerId> {
        let mut found: Vec<OwnerId> = Vec::new();
        for stretch in stretches {
            let owners = &self.pages[&stretch.page].owners;
            for (_, &(to, owner)) in owners.range(..stretch.to).rev() {
                if to <= stretch.from {
                    break;
                }
                if found.last() != Some(&owner) {
                    found.push(owner);
                }
            }
        }
        found.sort_unstable();
        found.dedup();
        found
    }

    /// Makes `owner` the owner of these bytes.
    pub(crate) fn own(&mut self, stretches: &[Stretch], owner: OwnerId) {
        for stretch in stretches {
            let owners = &mut self.pages.get_mut(&stretch.page).expect("it was resolved").owners;
            while let Some((&from, &(to, other))) =
                owners.range(..stretch.to).next_back().filter(|(_, (to, _))| *to > stretch.from)
            {
                owners.remove(&from);
                if from < stretch.from {
                    owners.insert(from, (stretch.from, other));
                }
                if to > stretch.to {
                    owners.insert(stretch.to, (to, other));
                }
            }
            owners.insert(stretch.from, (stretch.to, owner));
        }
    }
}

/// A description of a piece of work.
pub(crate) fn work_of(name: u32, Moment { line, tick }: Moment) -> String {
    format!("work {tick} of timeline {line}, for allocation {name},")
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn with_one_page() -> (Memory, u64, u64) {
        let mut memory = Memory::new(64 * MIB, 1 << 47, u64::MAX);
        let addr = memory.reserve(64 * MIB).expect("addresses");
        let page = memory.create(2 * MIB).expect("memory");
        assert_eq!(memory.map(addr, 2 * MIB, page), Ok(()));
        (memory, addr, page)
    }

    fn rule<T: std::fmt::Debug>(result: Result<T, Broken>) -> Rule {
        result.expect_err("a broken rule").0
    }

    #[test]
    fn what_is_not_granted_cannot_be_used() {
        let (mut memory, addr, _) = with_one_page();
        assert_eq!(rule(memory.resolve(addr, 512)), Rule::Access);
        assert_eq!(memory.grant(addr, 2 * MIB), Ok(()));
        assert!(memory.resolve(addr, 2 * MIB).is_ok());
        assert_eq!(rule(memory.resolve(addr, 2 * MIB + 512)), Rule::Access);
        assert_eq!(rule(memory.map(addr, 2 * MIB, 1)), Rule::MapOverMapped);
    }

    #[test]
    fn a_page_goes_unmapped_and_unused() {
        let (mut memory, addr, page) = with_one_page();
        assert_eq!(memory.grant(addr, 2 * MIB), Ok(()));
        let maps = [memory.resolve(addr, 512).expect("granted")[0].map];
        memory.use_maps(&maps, Moment { line: 0, tick: 1 }, &Clock::default());
        assert_eq!(rule(memory.unmap(addr, 2 * MIB, &Clock::default())), Rule::UnmapInUse);
        assert_eq!(rule(memory.are_there(&maps)), Rule::StaleRun);
        assert_eq!(memory.release(page, 2 * MIB, &Clock::default()), Ok(()));
        assert_eq!(memory.used, 0);
    }

    #[test]
    fn bytes_belong_to_who_had_them_last() {
        let (mut memory, addr, _) = with_one_page();
        assert_eq!(memory.grant(addr, 2 * MIB), Ok(()));
        let all = memory.resolve(addr, 2 * MIB).expect("granted");
        let middle = memory.resolve(addr + 512, 512).expect("granted");
        memory.own(&all, 1);
        memory.own(&middle, 2);
        assert_eq!(memory.owners_of(&all), [1, 2]);
        assert_eq!(memory.owners_of(&middle), [2]);
        let tail = memory.resolve(addr + 1024, 512).expect("granted");
        assert_eq!(memory.owners_of(&tail), [1]);
    }
}
