//! Blocks by address: open addressing in a table of its own memory, which doubles when it is half full.

use crate::check::stack::Stack;
use crate::sys::{self, Table, Zeroed};

/// A block of the program.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Entry {
    /// The program's address; 0 if the entry is empty.
    pub address: usize,
    /// The address that the core returned.
    pub raw: usize,
    pub size: usize,
    pub is_freed: bool,
    pub allocated: Stack,
    pub freed: Stack,
}

// SAFETY: all fields are integers, or a boolean that is false when zero.
unsafe impl Zeroed for Entry {}
// SAFETY: an integer.
unsafe impl Zeroed for usize {}

const FIRST: usize = 1 << 16;

#[derive(Debug)]
pub struct Blocks {
    table: Option<Table<Entry>>,
    room: usize,
    count: usize,
}

fn home(address: usize, room: usize) -> usize {
    (address >> 4).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 20 & (room - 1)
}

impl Default for Blocks {
    fn default() -> Blocks {
        Blocks::new()
    }
}

impl Blocks {
    pub const fn new() -> Blocks {
        Blocks { table: None, room: 0, count: 0 }
    }

    fn position(&self, address: usize) -> Option<usize> {
        let table = self.table.as_ref()?;
        let mut at = home(address, self.room);
        loop {
            match table.get(at).address {
                0 => return None,
                found if found == address => return Some(at),
                _ => at = (at + 1) & (self.room - 1),
            }
        }
    }

    pub fn get(&self, address: usize) -> Option<Entry> {
        self.position(address).and_then(|at| self.table.as_ref().map(|table| table.get(at)))
    }

    /// Adds or replaces an entry. Without memory for a larger table the process cannot be checked, and ends.
    pub fn put(&mut self, entry: Entry) {
        if let Some(at) = self.position(entry.address) {
            if let Some(table) = self.table.as_mut() {
                table.set(at, entry);
            }
            return;
        }
        if self.count * 2 >= self.room {
            self.grow();
        }
        self.count += 1;
        self.insert(entry);
    }

    fn insert(&mut self, entry: Entry) {
        let room = self.room;
        let Some(table) = self.table.as_mut() else { return };
        let mut at = home(entry.address, room);
        while table.get(at).address != 0 {
            at = (at + 1) & (room - 1);
        }
        table.set(at, entry);
    }

    fn grow(&mut self) {
        let room = (self.room * 2).max(FIRST);
        let Some(table) = Table::new(room) else {
            crate::text::say(format_args!("gapless: no memory for the table of checked blocks\n"));
            sys::abort()
        };
        let old = self.table.replace(table);
        let before = std::mem::replace(&mut self.room, room);
        if let Some(old) = old {
            for at in 0..before {
                let entry = old.get(at);
                if entry.address != 0 {
                    self.insert(entry);
                }
            }
        }
    }

    /// Removes a block, and closes the gap: entries behind it move up.
    pub fn remove(&mut self, address: usize) {
        let Some(mut gap) = self.position(address) else { return };
        let room = self.room;
        let Some(table) = self.table.as_mut() else { return };
        self.count -= 1;
        let mut at = gap;
        loop {
            table.set(gap, Entry::default());
            loop {
                at = (at + 1) & (room - 1);
                let entry = table.get(at);
                if entry.address == 0 {
                    return;
                }
                // It may move to the gap if the gap lies between its home and its place.
                let home = home(entry.address, room);
                if (at.wrapping_sub(home) & (room - 1)) >= (at.wrapping_sub(gap) & (room - 1)) {
                    table.set(gap, entry);
                    gap = at;
                    break;
                }
            }
        }
    }

    /// All blocks, one after the other.
    pub fn each(&self, mut visit: impl FnMut(&Entry)) {
        for at in 0..self.room {
            if let Some(entry) = self.table.as_ref().map(|table| table.get(at)).filter(|e| e.address != 0) {
                visit(&entry);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn blocks_are_found_until_they_are_removed() {
        let mut blocks = Blocks::new();
        let mut twin = HashMap::new();
        let mut seed = 5u64;
        for round in 0..200_000usize {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let address = ((seed >> 33) as usize % 60_000 + 1) * 16;
            if seed >> 63 == 0 {
                blocks.put(Entry { address, size: round, ..Entry::default() });
                twin.insert(address, round);
            } else {
                blocks.remove(address);
                twin.remove(&address);
            }
            assert_eq!(blocks.get(address).map(|e| e.size), twin.get(&address).copied());
        }
        let mut count = 0;
        blocks.each(|entry| {
            assert_eq!(twin.get(&entry.address), Some(&entry.size));
            count += 1;
        });
        assert_eq!(count, twin.len());
    }
}
