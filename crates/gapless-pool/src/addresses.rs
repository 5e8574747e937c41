//! A map from addresses to numbers. Each free looks its address up here, so a lookup is one probe into one table.
//!
//! Open addressing, at most half full. A removal moves the entries behind it up instead of leaving a tombstone, so a
//! table in which addresses come and go for days stays as fast as a new one.

/// Marks an empty entry: nothing is ever mapped at this address.
const NOTHING: u64 = 0;
const LEAST: usize = 16;

#[derive(Clone, Copy, Debug)]
struct Entry {
    addr: u64,
    number: u32,
}

const EMPTY: Entry = Entry { addr: NOTHING, number: 0 };

/// Invariants: the length is a power of two, more than half is empty, and no entry lies behind an empty one on the way
/// from its own place.
#[derive(Clone, Debug)]
pub(crate) struct Addresses {
    entries: Vec<Entry>,
    len: usize,
}

impl Default for Addresses {
    fn default() -> Addresses {
        Addresses { entries: vec![EMPTY; LEAST], len: 0 }
    }
}

impl Addresses {
    /// The place of an address. Blocks are aligned, so low bits carry no information; the product's high bits depend on
    /// all.
    #[inline]
    fn home(&self, addr: u64) -> usize {
        (addr.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - self.entries.len().trailing_zeros())) as usize
    }

    #[inline]
    fn after(&self, at: usize) -> usize {
        (at + 1) & (self.entries.len() - 1)
    }

    /// The address's entry, or the empty one at which it would be inserted.
    #[inline]
    fn place(&self, addr: u64) -> usize {
        let mut at = self.home(addr);
        while self.entries[at].addr != addr && self.entries[at].addr != NOTHING {
            at = self.after(at);
        }
        at
    }

    #[inline]
    pub(crate) fn get(&self, addr: u64) -> Option<u32> {
        let entry = self.entries[self.place(addr)];
        (entry.addr != NOTHING).then_some(entry.number)
    }

    /// Sets the number of an address.
    #[inline]
    pub(crate) fn insert(&mut self, addr: u64, number: u32) {
        debug_assert_ne!(addr, NOTHING);
        let mut at = self.place(addr);
        if self.entries[at].addr == NOTHING {
            if 2 * (self.len + 1) >= self.entries.len() {
                self.grow();
                at = self.place(addr);
            }
            self.len += 1;
        }
        self.entries[at] = Entry { addr, number };
    }

    /// Removes an address.
    #[inline]
    pub(crate) fn remove(&mut self, addr: u64) {
        let mut hole = self.place(addr);
        if addr == NOTHING || self.entries[hole].addr == NOTHING {
            return;
        }
        self.len -= 1;
        // Entries behind the hole move up, unless their own place is also behind it.
        let mask = self.entries.len() - 1;
        let mut at = self.after(hole);
        while self.entries[at].addr != NOTHING {
            let from_home = at.wrapping_sub(self.home(self.entries[at].addr)) & mask;
            if from_home >= (at.wrapping_sub(hole) & mask) {
                self.entries[hole] = self.entries[at];
                hole = at;
            }
            at = self.after(at);
        }
        self.entries[hole] = EMPTY;
    }

    #[cold]
    fn grow(&mut self) {
        let larger = vec![EMPTY; 2 * self.entries.len()];
        for entry in std::mem::replace(&mut self.entries, larger) {
            if entry.addr != NOTHING {
                let at = self.place(entry.addr);
                self.entries[at] = entry;
            }
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn numbers(&self) -> impl Iterator<Item = u32> + '_ {
        self.entries.iter().filter(|entry| entry.addr != NOTHING).map(|entry| entry.number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn it_answers_as_a_map_does() {
        let mut state = 3u64;
        let mut random = move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state >> 33
        };
        // Few addresses, so that they collide; far apart and side by side.
        for spread in [512_u64, 2 << 20, 1 << 40] {
            let (mut table, mut twin) = (Addresses::default(), BTreeMap::new());
            for i in 0..60_000_u32 {
                let most = if i < 30_000 { 3000 } else { 40 };
                let addr = (1 + random() % most) * spread;
                match random() % 5 {
                    0 | 1 => {
                        table.insert(addr, i);
                        twin.insert(addr, i);
                    }
                    2 | 3 => {
                        table.remove(addr);
                        twin.remove(&addr);
                    }
                    _ => assert_eq!(table.get(addr), twin.get(&addr).copied()),
                }
                assert_eq!(table.len, twin.len());
                if i % 5000 == 0 {
                    let mut numbers: Vec<u32> = table.numbers().collect();
                    let mut expected: Vec<u32> = twin.values().copied().collect();
                    numbers.sort_unstable();
                    expected.sort_unstable();
                    assert_eq!(numbers, expected);
                    assert!(twin.iter().all(|(addr, number)| table.get(*addr) == Some(*number)));
                }
            }
            assert_eq!(table.get(NOTHING), None);
            table.remove(NOTHING);
            assert_eq!(table.len, twin.len());
        }
    }
}
