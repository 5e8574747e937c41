//! Learns the mix of requests as they come, for policies that work without a list of arrivals.

use crate::mix::Mix;
use crate::words::Request;
use rustc_hash::FxHashSet;

/// Requests that the mix is learned from.
const RECENT: usize = 20_000;
/// The mix is learned again after this many new requests.
const LEARN_EVERY: usize = 2_000;

/// The most remembered ids. Beyond it, all are forgotten, and may be learned from once more.
const MOST_IDS: usize = 250_000;

/// Ids of requests that were learned from, so that a repeated one does not count again. Callers may make up ids without
/// end, as with requests that are refused.
#[derive(Clone, Debug)]
pub struct Ids {
    seen: FxHashSet<String>,
    most: usize,
}

impl Default for Ids {
    fn default() -> Ids {
        Ids { seen: FxHashSet::default(), most: MOST_IDS }
    }
}

impl Ids {
    /// True the first time.
    pub fn add(&mut self, id: &str) -> bool {
        if self.seen.contains(id) {
            return false;
        }
        if self.seen.len() >= self.most {
            self.seen.clear();
        }
        self.seen.insert(id.to_owned())
    }

    pub fn remove(&mut self, id: &str) {
        self.seen.remove(id);
    }
}

/// The latest requests.
#[derive(Clone, Debug, Default)]
pub struct Learner {
    /// The oldest are overwritten.
    recent: Vec<Request>,
    next: usize,
    since_learned: usize,
}

impl Learner {
    /// Records a request. Returns a mix if it is time for a new one.
    pub fn see(&mut self, request: &Request) -> Option<Mix> {
        if self.recent.len() < RECENT {
            self.recent.push(request.clone());
        } else {
            self.recent[self.next] = request.clone();
            self.next = (self.next + 1) % RECENT;
        }
        self.since_learned += 1;
        // Early requests change the mix most: it is learned after 1, 2, 4, 8 ... of them, then at equal distances.
        let is_early = self.recent.len() < LEARN_EVERY && self.recent.len().is_power_of_two();
        if !is_early && self.since_learned < LEARN_EVERY {
            return None;
        }
        self.since_learned = 0;
        Some(self.mix())
    }

    /// The mix of all remembered requests.
    pub fn mix(&self) -> Mix {
        Mix::of(self.recent.iter())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::Share;

    #[test]
    fn ids_count_once_and_take_bounded_memory() {
        let mut ids = Ids { most: 100, ..Ids::default() };
        assert!(ids.add("p") && !ids.add("p"));
        ids.remove("p");
        assert!(ids.add("p"));
        for number in 0..1000 {
            assert!(ids.add(&number.to_string()));
            assert!(ids.seen.len() <= 100);
        }
        assert!(!ids.add("999"));
    }

    #[test]
    fn early_requests_teach_at_once_and_later_ones_at_equal_distances() {
        let request =
            Request { cpu_milli: 1, memory: 0, gpus: 1, share: Share::Milli(500), models: String::new() };
        let mut learner = Learner::default();
        let learned: Vec<usize> = (1..=6_000).filter(|_| learner.see(&request).is_some()).collect();
        assert_eq!(learned, [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 3024, 5024]);
        assert_eq!(learner.mix().total, 6_000);
        (0..RECENT).for_each(|_| drop(learner.see(&request)));
        assert_eq!(learner.mix().total, RECENT as u64, "the oldest are forgotten");
    }
}
