//! The last entries and marks of a recording, which the scribe keeps beside the file to explain failed requests.

use super::{Entry, Mark};
use std::collections::VecDeque;

/// The most entries that are kept: a few steps of most programs, 4 MiB.
const ENTRIES: usize = 1 << 16;
/// The most marks that are kept.
const MARKS: usize = 1 << 10;

#[derive(Debug, Default)]
pub struct Recent {
    entries: VecDeque<Entry>,
    marks: VecDeque<Mark>,
}

impl Recent {
    pub fn follow(&mut self, entries: &[Entry]) {
        let newest = &entries[entries.len().saturating_sub(ENTRIES)..];
        let over = (self.entries.len() + newest.len()).saturating_sub(ENTRIES);
        self.entries.drain(..over);
        self.entries.extend(newest);
    }

    pub fn mark(&mut self, mark: Mark) {
        if self.marks.len() == MARKS {
            self.marks.pop_front();
        }
        self.marks.push_back(mark);
    }

    /// Forgets the entries before a gap, because those after it do not follow from them.
    pub fn forget(&mut self) {
        self.entries.clear();
    }

    /// Both in order.
    pub fn both(&mut self) -> (&[Entry], &[Mark]) {
        (self.entries.make_contiguous(), self.marks.make_contiguous())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gapless_pool::{PoolKey, StreamHandle};
    use gapless_trace::{Action, Stage};

    #[test]
    fn the_newest_are_kept() {
        let entry = |time| Entry {
            action: Action::Alloc,
            device: 0,
            stack: 0,
            module: 0,
            addr: 0,
            size: 0,
            stream: StreamHandle(0),
            pool: PoolKey(0, 0),
            time,
        };
        let mut recent = Recent::default();
        let all: Vec<Entry> = (0..3 * ENTRIES as u64).map(entry).collect();
        recent.follow(&all[..10]);
        recent.follow(&all[10..ENTRIES + 5]);
        assert_eq!(recent.both().0, &all[5..ENTRIES + 5]);
        recent.follow(&all[ENTRIES + 5..]);
        assert_eq!(recent.both().0, &all[2 * ENTRIES..]);
        for time in 0..2 * MARKS as u64 {
            recent.mark(Mark { name: String::new(), stage: Stage::Start, device: 0, time });
        }
        assert_eq!((recent.both().1.len(), recent.both().1[0].time), (MARKS, MARKS as u64));
        recent.forget();
        assert_eq!(recent.both().0, []);
    }
}
