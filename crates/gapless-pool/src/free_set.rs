//! Free blocks in exact order of (size, tie), with the next larger one found in constant time.
//!
//! Sizes fall into bins, sixteen to a power of two, and a bitmap shows which bins hold entries; within a bin entries
//! are sorted. So the smallest block that is large enough is found with one or two words of bitmap, while a balanced
//! tree walks its height through cold memory. The order is exact, because PyTorch's allocator iterates such a set.

use crate::visits;

/// A free block: its size, the tie-breaker between equal sizes, and its number in the caller's arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    pub size: u64,
    pub tie: u64,
    pub block: u32,
}

const UNIT_BITS: u32 = 9;
const SUB_BITS: u32 = 4;
const SUBS: u64 = 1 << SUB_BITS;
/// Sizes below 2^64: 55 bits of units, of which the first SUB_BITS fall into the exact bins.
const BINS: usize = ((64 - UNIT_BITS - SUB_BITS + 1) as usize) << SUB_BITS;
const WORDS: usize = BINS.div_ceil(64);
const NO_BIN: u16 = u16::MAX;

/// Invariants: a bin's bit is set iff its vector is not empty; vectors are sorted; a size is in the bin of
/// `bin_of(size)`.
#[derive(Clone, Debug)]
pub struct FreeSet {
    words: [u64; WORDS],
    /// The words that have a bit set.
    summary: u32,
    /// Bin to index in `bins`, because most lanes use a few dozen bins.
    table: Box<[u16; BINS]>,
    bins: Vec<Vec<Entry>>,
    len: usize,
}

#[inline]
fn bin_of(size: u64) -> usize {
    let units = size >> UNIT_BITS;
    if units < SUBS {
        return units as usize;
    }
    let top = 63 - units.leading_zeros();
    (((top - SUB_BITS + 1) as usize) << SUB_BITS) + ((units >> (top - SUB_BITS)) & (SUBS - 1)) as usize
}

impl Default for FreeSet {
    fn default() -> FreeSet {
        FreeSet { words: [0; WORDS], summary: 0, table: Box::new([NO_BIN; BINS]), bins: Vec::new(), len: 0 }
    }
}

impl FreeSet {
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub fn insert(&mut self, entry: Entry) {
        let bin = bin_of(entry.size);
        if self.table[bin] == NO_BIN {
            self.table[bin] = self.bins.len() as u16;
            self.bins.push(Vec::with_capacity(4));
        }
        let list = &mut self.bins[self.table[bin] as usize];
        // Entries come in no order, and most bins hold a handful.
        let at = position(list, entry.size, entry.tie);
        list.insert(at, entry);
        self.words[bin >> 6] |= 1 << (bin & 63);
        self.summary |= 1 << (bin >> 6);
        self.len += 1;
    }

    /// Removes the entry of this size and tie, which must be there.
    #[inline]
    pub fn remove(&mut self, size: u64, tie: u64) {
        let bin = bin_of(size);
        let list = &mut self.bins[self.table[bin] as usize];
        let at = position(list, size, tie);
        debug_assert!(list[at].size == size && list[at].tie == tie);
        list.remove(at);
        if list.is_empty() {
            self.words[bin >> 6] &= !(1 << (bin & 63));
            if self.words[bin >> 6] == 0 {
                self.summary &= !(1 << (bin >> 6));
            }
        }
        self.len -= 1;
    }

    /// Replaces the entry of this size and tie, which must be there. If the new entry has the same rank, nothing moves.
    #[inline]
    pub fn replace(&mut self, size: u64, tie: u64, entry: Entry) {
        let bin = bin_of(size);
        let list = &mut self.bins[self.table[bin] as usize];
        let at = position(list, size, tie);
        debug_assert!(list[at].size == size && list[at].tie == tie);
        let key = |e: &Entry| (e.size, e.tie);
        let is_after = at == 0 || key(&list[at - 1]) < key(&entry);
        let is_before = || list.get(at + 1).is_none_or(|next| key(&entry) < key(next));
        if bin == bin_of(entry.size) && is_after && is_before() {
            let old = &mut list[at];
            (old.size, old.tie, old.block) = (entry.size, entry.tie, entry.block);
        } else {
            self.exchange(size, tie, entry);
        }
    }

    #[inline(never)]
    fn exchange(&mut self, size: u64, tie: u64, entry: Entry) {
        self.remove(size, tie);
        self.insert(entry);
    }

    /// The first entry of at least `size`.
    #[inline]
    pub fn at_least(&self, size: u64) -> Option<Entry> {
        self.from(size, 0)
    }

    /// The entry after `entry`.
    #[inline]
    pub fn after(&self, entry: Entry) -> Option<Entry> {
        self.from(entry.size, entry.tie + 1)
    }

    /// The last entry below `size`.
    pub fn below(&self, size: u64) -> Option<Entry> {
        self.before_key(size, 0)
    }

    /// The entry before `entry`.
    pub fn before(&self, entry: Entry) -> Option<Entry> {
        self.before_key(entry.size, entry.tie)
    }

    /// True if the set has no entry.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The entries of at least `size`, in order.
    pub fn iter_from(&self, size: u64) -> impl Iterator<Item = Entry> + '_ {
        let mut next = self.at_least(size);
        std::iter::from_fn(move || {
            let entry = next?;
            visits::add(1);
            next = self.after(entry);
            Some(entry)
        })
    }

    /// All entries in order. The set must not change meanwhile; callers that change it collect first.
    pub fn iter(&self) -> impl Iterator<Item = Entry> + '_ {
        (0..WORDS).flat_map(move |w| {
            let mut word = self.words[w];
            std::iter::from_fn(move || {
                (word != 0).then(|| {
                    let bit = word.trailing_zeros() as usize;
                    word &= word - 1;
                    (w << 6) + bit
                })
            })
            .flat_map(move |bin| self.bins[self.table[bin] as usize].iter().copied())
            .inspect(|_| visits::add(1))
        })
    }

    #[inline]
    fn from(&self, size: u64, tie: u64) -> Option<Entry> {
        let bin = bin_of(size);
        let word = bin >> 6;
        let bits = self.words[word] & (!0 << (bin & 63));
        if bits & (1 << (bin & 63)) != 0 {
            let list = &self.bins[self.table[bin] as usize];
            let at = position(list, size, tie);
            if at < list.len() {
                return Some(list[at]);
            }
        }
        let bits = bits & !(1 << (bin & 63));
        let next = if bits != 0 {
            (word << 6) + bits.trailing_zeros() as usize
        } else {
            let words = self.summary & (!0u32).checked_shl(word as u32 + 1).unwrap_or(0);
            if words == 0 {
                return None;
            }
            let word = words.trailing_zeros() as usize;
            (word << 6) + self.words[word].trailing_zeros() as usize
        };
        self.bins[self.table[next] as usize].first().copied()
    }

    fn before_key(&self, size: u64, tie: u64) -> Option<Entry> {
        let bin = bin_of(size);
        if self.table[bin] != NO_BIN {
            let list = &self.bins[self.table[bin] as usize];
            let at = position(list, size, tie);
            if at > 0 {
                return Some(list[at - 1]);
            }
        }
        let word = bin >> 6;
        let bits = self.words[word] & !(!0 << (bin & 63));
        let last = |word: usize, bits: u64| (word << 6) + 63 - bits.leading_zeros() as usize;
        let found = if bits != 0 {
            last(word, bits)
        } else {
            let words = self.summary & !(!0u32 << word);
            if words == 0 {
                return None;
            }
            let word = 31 - words.leading_zeros() as usize;
            last(word, self.words[word])
        };
        self.bins[self.table[found] as usize].last().copied()
    }
}

/// The index of (size, tie), or the index at which it would be inserted.
#[inline]
fn position(list: &[Entry], size: u64, tie: u64) -> usize {
    if list.len() <= 8 {
        return list.iter().position(|e| (e.size, e.tie) >= (size, tie)).unwrap_or(list.len());
    }
    list.partition_point(|e| (e.size, e.tie) < (size, tie))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn bins_follow_sizes() {
        let sizes: Vec<u64> =
            (0..63).flat_map(|b| [1u64 << b, (1 << b) + (1 << b) / 3, (1 << b) * 2 - 1]).collect();
        for pair in sizes.windows(2) {
            assert!(pair[0] > pair[1] || bin_of(pair[0]) <= bin_of(pair[1]), "{pair:?}");
        }
        assert!(bin_of(u64::MAX) < BINS);
        const { assert!(WORDS <= 32) };
    }

    #[test]
    fn it_answers_as_an_ordered_set_does() {
        let mut state = 7u64;
        let mut random = move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state >> 33
        };
        let mut set = FreeSet::default();
        let mut twin: BTreeSet<(u64, u64)> = BTreeSet::new();
        for _ in 0..40_000 {
            let size = match random() % 4 {
                0 => 512 * (random() % 40),
                1 => 1 << (random() % 45),
                _ => (512 << (random() % 20)) + random() % 5000,
            };
            let tie = random() % 50;
            let other = twin.range((size, tie)..).next().copied().filter(|_| random() % 3 == 0);
            if let Some(old) = other.filter(|_| !twin.contains(&(size, tie))) {
                twin.remove(&old);
                twin.insert((size, tie));
                set.replace(old.0, old.1, Entry { size, tie, block: tie as u32 });
            } else if twin.remove(&(size, tie)) {
                set.remove(size, tie);
            } else {
                twin.insert((size, tie));
                set.insert(Entry { size, tie, block: tie as u32 });
            }
            let probe = if random() % 2 == 0 { size } else { random() << (random() % 12) };
            let key = |e: Entry| (e.size, e.tie);
            assert_eq!(set.at_least(probe).map(key), twin.range((probe, 0)..).next().copied());
            assert_eq!(set.below(probe).map(key), twin.range(..(probe, 0)).next_back().copied());
            if let Some(entry) = set.at_least(probe) {
                assert_eq!(
                    set.after(entry).map(key),
                    twin.range((entry.size, entry.tie + 1)..).next().copied()
                );
                assert_eq!(set.before(entry).map(key), twin.range(..key(entry)).next_back().copied());
            }
            if random() % 500 == 0 {
                let all: Vec<(u64, u64)> = set.iter().map(key).collect();
                assert_eq!(all, twin.iter().copied().collect::<Vec<_>>());
                assert_eq!(set.len(), twin.len());
            }
        }
    }
}
