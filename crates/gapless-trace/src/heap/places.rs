//! The block that begins at an address: a table for a look-up or two an event, nothing else.
//!
//! Open addressing: `slots.len()` is a power of two, at most half of it is taken, and an entry lies at its own place or
//! behind it with no empty slot between. Removing moves later entries up, so that this stays so.

/// The number of no block.
const EMPTY: u32 = u32::MAX;

#[derive(Debug)]
pub(super) struct Places {
    slots: Vec<(u64, u32)>,
    taken: usize,
}

impl Default for Places {
    fn default() -> Self {
        Places { slots: vec![(0, EMPTY); 64], taken: 0 }
    }
}

impl Places {
    /// The best slot for the entry of `addr`. Addresses are multiples of 512, so the low bits carry nothing; the
    /// multiplication mixes the others into the high bits.
    #[inline(always)]
    fn home(&self, addr: u64) -> usize {
        let mixed = (addr ^ addr >> 9).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed >> 32) as usize & (self.slots.len() - 1)
    }

    /// The slot of `addr`, or the empty one that shows that it has none.
    #[inline(always)]
    fn find(&self, addr: u64) -> usize {
        let last = self.slots.len() - 1;
        let mut at = self.home(addr);
        loop {
            let (known, id) = self.slots[at & last];
            if known == addr || id == EMPTY {
                return at & last;
            }
            at += 1;
        }
    }

    #[inline]
    pub(super) fn get(&self, addr: u64) -> Option<u32> {
        let (known, id) = self.slots[self.find(addr)];
        (id != EMPTY && known == addr).then_some(id)
    }

    /// Stores `id`, which is the number of a block, at `addr`.
    #[inline]
    pub(super) fn insert(&mut self, addr: u64, id: u32) {
        let at = self.find(addr);
        self.taken += usize::from(self.slots[at].1 == EMPTY);
        self.slots[at] = (addr, id);
        if self.taken * 2 > self.slots.len() {
            self.grow();
        }
    }

    pub(super) fn remove(&mut self, addr: u64) {
        let last = self.slots.len() - 1;
        let mut hole = self.find(addr);
        if self.slots[hole].1 == EMPTY {
            return;
        }
        self.taken -= 1;
        let mut next = hole;
        loop {
            next = (next + 1) & last;
            let entry = self.slots[next];
            if entry.1 == EMPTY {
                break;
            }
            // An entry may move up to the hole unless its own place lies behind it.
            let distance = next.wrapping_sub(self.home(entry.0)) & last;
            if distance >= next.wrapping_sub(hole) & last {
                self.slots[hole] = entry;
                hole = next;
            }
        }
        self.slots[hole] = (0, EMPTY);
    }

    /// All entries, in no order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, u32)> + '_ {
        self.slots.iter().copied().filter(|&(_, id)| id != EMPTY)
    }

    #[cold]
    fn grow(&mut self) {
        let larger = vec![(0, EMPTY); self.slots.len() * 2];
        let before = std::mem::replace(&mut self.slots, larger);
        for (addr, id) in before.into_iter().filter(|&(_, id)| id != EMPTY) {
            let at = self.find(addr);
            self.slots[at] = (addr, id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Dice;
    use std::collections::BTreeMap;

    #[test]
    fn a_table_holds_what_a_map_holds() {
        for seed in 1..20 {
            let (mut places, mut map) = (Places::default(), BTreeMap::new());
            let dice = &mut Dice::new(seed);
            // Few addresses and many, neighbours and far apart, 0 among them.
            let (kinds, unit) = (1 << (seed % 12), [512, 1, 2 << 20, 1 << 40][seed as usize % 4]);
            for _ in 0..4000 {
                let addr = dice.below(kinds) * unit;
                match dice.below(3) {
                    0 => {
                        places.remove(addr);
                        map.remove(&addr);
                    }
                    _ => {
                        let id = dice.below(1 << 30) as u32;
                        places.insert(addr, id);
                        map.insert(addr, id);
                    }
                }
                let asked = dice.below(kinds) * unit;
                assert_eq!(places.get(asked), map.get(&asked).copied());
            }
            let mut all: Vec<(u64, u32)> = places.iter().collect();
            all.sort_unstable();
            assert_eq!(all, map.into_iter().collect::<Vec<_>>());
        }
    }
}
