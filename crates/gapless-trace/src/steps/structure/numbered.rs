//! Keys by number: those that come back, in order of first sight.

/// The number of a key that occurs once. It cannot recur, so it needs no number of its own.
pub(super) const ONCE: u32 = 0;

/// The keys that occur more than once, in order of first sight, and each key's number among them. The first name stands
/// for [`ONCE`]. A few keys that occur once have a number too: those that the filter takes for others.
///
/// If nothing recurs, most keys are distinct. A map would then take 17 bytes a slot, and as much again each time it
/// grows: the most memory of a whole report. A table of numbers takes 4, and its size is known. Looking up is a cache
/// miss, which the filter, small enough for the cache, spares most keys that occur once.
pub(super) fn numbered(keys: &[u64]) -> (Vec<u64>, Vec<u32>) {
    const EMPTY: u32 = u32::MAX;
    // Keys are hashes whose low bits are the weakest: the multiplication mixes the others into the high ones.
    let hash = |key: u64| key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    let twice = Twice::of(keys.iter().map(|&key| hash(key)), keys.len());
    // At most three quarters full.
    let slots = (keys.len() / 3 * 4 + 4).next_power_of_two();
    let mut table = vec![EMPTY; slots];
    // The kernel does not back room that is not used.
    let mut names: Vec<u64> = Vec::with_capacity(keys.len() + 1);
    names.push(0);
    let number = |&key: &u64| {
        if !twice.may_contain(hash(key)) {
            return ONCE;
        }
        let mut at = hash(key) as usize & (slots - 1);
        loop {
            match table[at] {
                EMPTY => {
                    table[at] = names.len() as u32;
                    names.push(key);
                    return table[at];
                }
                known if names[known as usize] == key => return known,
                _ => at = (at + 1) & (slots - 1),
            }
        }
    };
    let tokens = keys.iter().map(number).collect();
    (names, tokens)
}

/// Hashes seen at least twice, and a few more: those whose low bits are equal are taken for one.
struct Twice {
    bits: Vec<u64>,
}

impl Twice {
    fn of(hashes: impl Iterator<Item = u64>, count: usize) -> Twice {
        // Four to eight bits a hash: about one in six is taken for another.
        let words = (count / 16 + 1).next_power_of_two();
        let (mut once, mut bits) = (vec![0u64; words], vec![0u64; words]);
        for hash in hashes {
            let (word, bit) = Twice::place(hash, words);
            bits[word] |= once[word] & bit;
            once[word] |= bit;
        }
        Twice { bits }
    }

    fn place(hash: u64, words: usize) -> (usize, u64) {
        ((hash >> 6) as usize & (words - 1), 1 << (hash & 63))
    }

    fn may_contain(&self, hash: u64) -> bool {
        let (word, bit) = Twice::place(hash, self.bits.len());
        self.bits[word] & bit != 0
    }
}

#[cfg(test)]
mod tests {
    use super::{ONCE, numbered};
    use std::collections::HashMap;

    #[test]
    fn keys_that_recur_have_numbers_in_order_of_first_sight() {
        // Distinct, repeating, equal in their low or in their high halves, few, and some of each.
        let patterns: [fn(u64) -> u64; 6] = [
            |i| i.wrapping_mul(0xd1b5_4a32_d192_ed03),
            |i| i % 7,
            |i| i << 40,
            |i| i << 16 | 0xffff,
            |_| u64::MAX,
            |i| if i % 3 == 0 { i % 31 } else { i << 20 },
        ];
        for pattern in patterns {
            for n in [0, 1, 2, 3, 4, 5, 1000, 4096] {
                let keys: Vec<u64> = (0..n).map(pattern).collect();
                let mut counts: HashMap<u64, u32> = HashMap::new();
                keys.iter().for_each(|&key| *counts.entry(key).or_default() += 1);
                let (names, tokens) = numbered(&keys);
                let mut seen = 0;
                for (key, &token) in keys.iter().zip(&tokens) {
                    assert!(token != ONCE || counts[key] == 1, "{key} recurs and has no number");
                    assert!(token == ONCE || names[token as usize] == *key);
                    assert!(token <= seen + 1, "{token} is the next number after {seen}");
                    seen = seen.max(token);
                }
                assert_eq!(names.len(), seen as usize + 1);
            }
        }
    }
}
