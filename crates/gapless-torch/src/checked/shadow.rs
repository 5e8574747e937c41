//! The state of every byte of every page: in a live block, or filled with the pattern since a block was freed. Other
//! bytes are unknown.
//!
//! It is kept by page and offset, so it does not depend on the address through which a page is reached. Invariant:
//! ranges of one page do not overlap.

use super::report::Record;
use gapless_cuda::mapped::PageNumber;
use std::collections::BTreeMap;
use std::sync::Arc;

/// State of a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// Part of this live block.
    Live(Arc<Record>),
    /// Filled with the pattern, after this block was freed.
    Filled(Arc<Record>),
}

/// A range of a page, half open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Range {
    pub from: u64,
    pub to: u64,
    pub state: State,
}

#[derive(Debug, Default)]
pub struct Shadow {
    /// By page and beginning: the end and the state.
    ranges: BTreeMap<(PageNumber, u64), (u64, State)>,
}

impl Shadow {
    /// Removes the entries for `[from, to)` of a page, and returns them in order.
    pub fn take(&mut self, page: PageNumber, from: u64, to: u64) -> Vec<Range> {
        let before = self.ranges.range((page, 0)..(page, from)).next_back();
        let first = before.filter(|(_, (end, _))| *end > from).map_or(from, |(key, _)| key.1);
        let keys: Vec<u64> = self.ranges.range((page, first)..(page, to)).map(|(key, _)| key.1).collect();
        let mut taken = Vec::with_capacity(keys.len());
        for start in keys {
            let Some((end, state)) = self.ranges.remove(&(page, start)) else { continue };
            if start < from {
                self.ranges.insert((page, start), (from, state.clone()));
            }
            if end > to {
                self.ranges.insert((page, to), (end, state.clone()));
            }
            taken.push(Range { from: start.max(from), to: end.min(to), state });
        }
        taken
    }

    /// Sets the state of `[from, to)` of a page.
    pub fn put(&mut self, page: PageNumber, from: u64, to: u64, state: State) {
        self.take(page, from, to);
        if from < to {
            self.ranges.insert((page, from), (to, state));
        }
    }

    /// Forgets a page that was released.
    pub fn forget(&mut self, page: PageNumber) {
        let keys: Vec<_> = self.ranges.range((page, 0)..=(page, u64::MAX)).map(|(key, _)| *key).collect();
        for key in keys {
            self.ranges.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: PageNumber = PageNumber(1);

    fn record(addr: u64) -> Arc<Record> {
        Arc::new(Record { addr, ..Record::for_tests() })
    }

    fn shown(taken: &[Range]) -> Vec<(u64, u64, u64, bool)> {
        let one = |range: &Range| match &range.state {
            State::Live(record) => (range.from, range.to, record.addr, true),
            State::Filled(record) => (range.from, range.to, record.addr, false),
        };
        taken.iter().map(one).collect()
    }

    #[test]
    fn what_is_taken_is_cut_at_its_borders_and_the_rest_stays() {
        let mut shadow = Shadow::default();
        shadow.put(PAGE, 0, 100, State::Filled(record(1)));
        shadow.put(PAGE, 100, 200, State::Live(record(2)));
        assert_eq!(shown(&shadow.take(PAGE, 40, 150)), [(40, 100, 1, false), (100, 150, 2, true)]);
        assert_eq!(shown(&shadow.take(PAGE, 0, 1000)), [(0, 40, 1, false), (150, 200, 2, true)]);
        assert_eq!(shown(&shadow.take(PAGE, 0, 1000)), []);
    }

    #[test]
    fn one_range_is_cut_on_both_sides() {
        let mut shadow = Shadow::default();
        shadow.put(PAGE, 0, 100, State::Filled(record(1)));
        assert_eq!(shown(&shadow.take(PAGE, 40, 60)), [(40, 60, 1, false)]);
        assert_eq!(shown(&shadow.take(PAGE, 0, 100)), [(0, 40, 1, false), (60, 100, 1, false)]);
    }

    #[test]
    fn what_is_put_last_counts_and_pages_are_apart() {
        let mut shadow = Shadow::default();
        shadow.put(PAGE, 0, 100, State::Live(record(1)));
        shadow.put(PAGE, 20, 40, State::Filled(record(2)));
        shadow.put(PageNumber(2), 0, 100, State::Live(record(3)));
        assert_eq!(
            shown(&shadow.take(PAGE, 0, 100)),
            [(0, 20, 1, true), (20, 40, 2, false), (40, 100, 1, true)]
        );
        shadow.forget(PageNumber(2));
        assert_eq!(shown(&shadow.take(PageNumber(2), 0, 100)), []);
    }

    /// Against a naive twin: one entry a byte.
    #[test]
    fn a_random_program_agrees_with_a_table_of_bytes() {
        let mut seed = 7u64;
        let mut random = move |below: u64| {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed % below
        };
        let (mut shadow, mut twin) = (Shadow::default(), [0u64; 64]);
        for number in 1..5000 {
            let from = random(64);
            let to = from + random(64 - from) + 1;
            let taken = shadow.take(PAGE, from, to);
            let mut seen = [0u64; 64];
            for range in &taken {
                let (State::Live(record) | State::Filled(record)) = &range.state;
                seen[range.from as usize..range.to as usize].fill(record.addr);
            }
            assert_eq!(seen[from as usize..to as usize], twin[from as usize..to as usize]);
            let put = random(3) > 0;
            twin[from as usize..to as usize].fill(if put { number } else { 0 });
            if put {
                shadow.put(PAGE, from, to, State::Live(record(number)));
            }
        }
    }
}
