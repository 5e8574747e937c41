//! One bit for each granule, set if the granule may have memory. A granule without memory reads as zeros.
//!
//! A second level marks words that are full. To free a buffer of 2 GiB sets 512 words; with the second level it touches
//! one cache line instead of 64, which are cold after the program went over its buffer.

use crate::sys::Table;

#[derive(Debug)]
pub struct Bits {
    words: Table<u64>,
    /// One bit for each word: if set, all bits of the word count as set, and the word is not read.
    full: Table<u64>,
}

/// The bits of one word that lie in `[from, to)`. Both are positions in the whole table.
fn mask(word: usize, from: u32, to: u32) -> u64 {
    let base = word as u64 * 64;
    let low = u64::from(from).saturating_sub(base).min(64);
    let high = u64::from(to).saturating_sub(base).min(64);
    let below = |n: u64| if n == 64 { u64::MAX } else { (1 << n) - 1 };
    below(high) & !below(low)
}

impl Bits {
    /// Room for `count` clear bits; `None` if there is no memory for them.
    #[must_use]
    pub fn new(count: u32) -> Option<Bits> {
        let words = count as usize / 64 + 1;
        Some(Bits { words: Table::lazy(words)?, full: Table::lazy(words / 64 + 1)? })
    }

    /// Gives up the addresses of tables behind the bits that were ever needed.
    pub fn tighten(&mut self) {
        self.words.tighten();
        self.full.tighten();
    }

    /// Makes room for the bits below `count`. False if there is no memory for it.
    #[must_use]
    pub fn reach(&mut self, count: u32) -> bool {
        let words = count as usize / 64 + 1;
        self.words.reach(words) && self.full.reach(words / 64 + 1)
    }

    fn word(&self, at: usize) -> u64 {
        let is_full = self.full.get(at / 64) >> (at % 64) & 1 == 1;
        if is_full { u64::MAX } else { self.words.get(at) }
    }

    fn set_word(&mut self, at: usize, value: u64) {
        let bit = 1 << (at % 64);
        let full = self.full.get(at / 64);
        if value == u64::MAX {
            self.full.set(at / 64, full | bit);
        } else {
            self.full.set(at / 64, full & !bit);
            self.words.set(at, value);
        }
    }

    fn each(&mut self, from: u32, to: u32, change: impl Fn(u64, u64) -> u64) {
        if from >= to {
            return;
        }
        for word in from as usize / 64..=(to - 1) as usize / 64 {
            let mask = mask(word, from, to);
            // A word that changes as a whole need not be read.
            let value = if mask == u64::MAX { 0 } else { self.word(word) };
            self.set_word(word, change(value, mask));
        }
    }

    pub fn set(&mut self, from: u32, to: u32) {
        self.each(from, to, |word, mask| word | mask);
    }

    pub fn clear(&mut self, from: u32, to: u32) {
        self.each(from, to, |word, mask| word & !mask);
    }

    #[must_use]
    pub fn count(&self, from: u32, to: u32) -> u32 {
        if from >= to {
            return 0;
        }
        let words = from as usize / 64..=(to - 1) as usize / 64;
        words.map(|word| (self.word(word) & mask(word, from, to)).count_ones()).sum()
    }

    fn find(&self, from: u32, to: u32, wanted: bool) -> u32 {
        let mut at = from;
        while at < to {
            let word = at as usize / 64;
            let value = if wanted { self.word(word) } else { !self.word(word) };
            let found = value & mask(word, at, to);
            if found != 0 {
                return word as u32 * 64 + found.trailing_zeros();
            }
            at = (word as u32 + 1) * 64;
        }
        to
    }

    /// The first run of set bits in `[from, to)`.
    #[must_use]
    pub fn first_run(&self, from: u32, to: u32) -> Option<(u32, u32)> {
        let start = self.find(from, to, true);
        (start < to).then(|| (start, self.find(start, to, false)))
    }

    /// The last run of set bits in `[from, to)`.
    #[must_use]
    pub fn last_run(&self, from: u32, to: u32) -> Option<(u32, u32)> {
        let end = self.find_back(from, to, true);
        (end > from).then(|| (self.find_back(from, end, false), end))
    }

    /// One past the last bit with that value; `from` if there is none.
    fn find_back(&self, from: u32, to: u32, wanted: bool) -> u32 {
        let mut end = to;
        while end > from {
            let word = (end - 1) as usize / 64;
            let value = if wanted { self.word(word) } else { !self.word(word) };
            let found = value & mask(word, from, end);
            if found != 0 {
                return word as u32 * 64 + 64 - found.leading_zeros();
            }
            end = word as u32 * 64;
        }
        from
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_count_and_runs_agree_with_a_list_of_booleans() {
        let mut bits = Bits::new(300).expect("memory");
        let mut twin = vec![false; 300];
        let mut seed = 7u64;
        let mut next = |below: u32| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) as u32 % below
        };
        for _ in 0..2_000 {
            let (a, b) = (next(301), next(301));
            let (from, to) = (a.min(b), a.max(b));
            let value = next(2) == 0;
            if value {
                bits.set(from, to)
            } else {
                bits.clear(from, to)
            }
            twin[from as usize..to as usize].fill(value);
            let (a, b) = (next(301), next(301));
            let (from, to) = (a.min(b) as usize, a.max(b) as usize);
            let part = &twin[from..to];
            assert_eq!(bits.count(from as u32, to as u32) as usize, part.iter().filter(|b| **b).count());
            let first = part.iter().position(|b| *b).map(|start| {
                let length = part[start..].iter().position(|b| !*b).unwrap_or(part.len() - start);
                ((from + start) as u32, (from + start + length) as u32)
            });
            assert_eq!(bits.first_run(from as u32, to as u32), first);
            let last = part.iter().rposition(|b| *b).map(|end| {
                let start = part[..end].iter().rposition(|b| !*b).map_or(0, |at| at + 1);
                ((from + start) as u32, (from + end + 1) as u32)
            });
            assert_eq!(bits.last_run(from as u32, to as u32), last);
        }
    }
}
