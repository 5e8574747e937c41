//! A set of addresses as stretches, by address and by length. Neighbours are joined.

use std::collections::{BTreeMap, BTreeSet};

/// Invariants: stretches do not touch; `by_size` has the same stretches as `by_addr`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stretches {
    by_addr: BTreeMap<u64, u64>,
    by_size: BTreeSet<(u64, u64)>,
}

impl Stretches {
    pub(crate) fn add(&mut self, addr: u64, size: u64) {
        let (mut from, mut bytes) = (addr, size);
        if let Some((&before, &length)) = self.by_addr.range(..addr).next_back()
            && before + length == addr
        {
            self.take_out(before, length);
            (from, bytes) = (before, length + bytes);
        }
        if let Some(&length) = self.by_addr.get(&(addr + size)) {
            self.take_out(addr + size, length);
            bytes += length;
        }
        self.put_in(from, bytes);
    }

    /// Removes `[addr, addr + size)`, which is part of one stretch.
    pub(crate) fn remove(&mut self, addr: u64, size: u64) {
        let Some((&from, &length)) = self.by_addr.range(..=addr).next_back() else { return };
        self.take_out(from, length);
        if addr > from {
            self.put_in(from, addr - from);
        }
        if from + length > addr + size {
            self.put_in(addr + size, from + length - addr - size);
        }
    }

    /// Address and bytes of the shortest stretch of at least `size` bytes.
    pub(crate) fn at_least(&self, size: u64) -> Option<(u64, u64)> {
        self.by_size.range((size, 0)..).next().map(|&(size, addr)| (addr, size))
    }

    /// The longest stretch, if it has at least `least` bytes.
    pub(crate) fn longest(&self, least: u64) -> Option<(u64, u64)> {
        let &(longest, _) = self.by_size.last().filter(|(size, _)| *size >= least)?;
        self.at_least(longest)
    }

    fn put_in(&mut self, addr: u64, size: u64) {
        self.by_addr.insert(addr, size);
        self.by_size.insert((size, addr));
    }

    fn take_out(&mut self, addr: u64, size: u64) {
        self.by_addr.remove(&addr);
        self.by_size.remove(&(size, addr));
    }
}
