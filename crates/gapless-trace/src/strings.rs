//! Strings stored once. A [`StringId`] is as good as the text: two ids are equal if and only if the texts are.

use rustc_hash::FxBuildHasher;
use std::hash::BuildHasher;

/// Names one interned string; id 0 is the empty string.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct StringId(pub u32);

/// The interner. `ends[i]` is the end of string `i` in `text`; it begins where the one before it ended.
#[derive(Clone)]
pub struct Strings {
    text: String,
    ends: Vec<u32>,
    /// Open addressing over ids + 1 (0 = empty), length a power of two, at most half full.
    slots: Vec<u32>,
}

impl Default for Strings {
    fn default() -> Self {
        Self::new()
    }
}

impl std::fmt::Debug for Strings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries((0..self.len()).map(|i| self.get(StringId(i as u32)))).finish()
    }
}

impl Strings {
    /// All text of one trace together; a trace with more is refused by [`Strings::try_intern`].
    pub const MAX_TEXT: usize = u32::MAX as usize;

    #[must_use]
    pub fn new() -> Strings {
        let mut strings = Strings { text: String::new(), ends: Vec::new(), slots: vec![0; 64] };
        strings.intern("");
        strings
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        false // the empty string is always there
    }

    /// The id of `text`, stored on first sight; `None` once all text together would pass [`Strings::MAX_TEXT`].
    pub fn try_intern(&mut self, text: &str) -> Option<StringId> {
        let mask = self.slots.len() - 1;
        let mut at = FxBuildHasher.hash_one(text) as usize & mask;
        loop {
            match self.slots[at] {
                0 => break,
                id if self.get(StringId(id - 1)) == text => return Some(StringId(id - 1)),
                _ => at = (at + 1) & mask,
            }
        }
        if self.text.len() + text.len() > Self::MAX_TEXT || self.ends.len() >= u32::MAX as usize / 2 {
            return None;
        }
        let id = self.ends.len() as u32;
        self.text.push_str(text);
        self.ends.push(self.text.len() as u32);
        self.slots[at] = id + 1;
        if self.ends.len() * 2 > self.slots.len() {
            self.grow();
        }
        Some(StringId(id))
    }

    /// The id of `text`.
    ///
    /// # Panics
    /// Past 4 GiB of text. Readers of untrusted files use [`Strings::try_intern`].
    pub fn intern(&mut self, text: &str) -> StringId {
        self.try_intern(text).expect("less than 4 GiB of distinct text")
    }

    /// The text of `id`; the empty string for an id from elsewhere.
    #[must_use]
    pub fn get(&self, id: StringId) -> &str {
        let i = id.0 as usize;
        let Some(&end) = self.ends.get(i) else { return "" };
        let start = if i == 0 { 0 } else { self.ends[i - 1] as usize };
        &self.text[start..end as usize]
    }

    pub fn iter(&self) -> impl Iterator<Item = (StringId, &str)> {
        (0..self.ends.len() as u32).map(|i| (StringId(i), self.get(StringId(i))))
    }

    fn grow(&mut self) {
        let mask = self.slots.len() * 2 - 1;
        let mut slots = vec![0; mask + 1];
        for (id, text) in self.iter() {
            let mut at = FxBuildHasher.hash_one(text) as usize & mask;
            while slots[at] != 0 {
                at = (at + 1) & mask;
            }
            slots[at] = id.0 + 1;
        }
        self.slots = slots;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_gets_one_id_and_gives_itself_back() {
        let mut strings = Strings::new();
        let ids: Vec<_> = (0..10_000).map(|i| strings.intern(&format!("f{}", i % 5_000))).collect();
        assert_eq!(strings.len(), 5_001);
        for (i, id) in ids.iter().enumerate() {
            assert_eq!(strings.get(*id), format!("f{}", i % 5_000));
        }
        assert_eq!(strings.intern(""), StringId(0));
        assert_eq!(strings.get(StringId(77_777)), "");
    }
}
