//! The book against the simulated card: random programs, a fault at every call, and work in flight.

use super::*;
use crate::sim::SimDevice;

const PAGE: u64 = 2 << 20;

struct Bench {
    device: SimDevice,
    book: Book,
    ranges: Vec<(RangeId, u64, usize)>,
    /// The pool waits for work in flight.
    waits: bool,
}

impl Bench {
    fn new(limit: Option<usize>, sizes: &[usize]) -> Bench {
        let mut device = SimDevice::new(64 * PAGE);
        let mut book = Book::new(PAGE, limit);
        let ranges = sizes
            .iter()
            .map(|&slots| {
                let base = device.reserve(slots as u64 * PAGE).expect("addresses");
                (book.add(base, slots), base, slots)
            })
            .collect();
        Bench { device, book, ranges, waits: false }
    }

    /// Runs jobs until there is nothing to do, or only to wait.
    fn settle(&mut self) {
        for _ in 0..10_000 {
            let Some(job) = self.book.next_job() else { return };
            if matches!(job, Job::Wait) && !self.device.instant {
                self.waits = true;
                continue;
            }
            let done = job.run(&mut self.device);
            let waits = self.book.finish(done);
            self.book.check();
            if waits {
                return;
            }
        }
        panic!("it never ends");
    }

    /// Completes the work in flight.
    fn finish(&mut self) {
        self.device.finish_all();
        if std::mem::take(&mut self.waits) {
            self.book.finish(Done::Waited);
        }
    }

    fn is_usable(&self, range: usize, slots: std::ops::Range<usize>) -> bool {
        let base = self.ranges[range].1;
        slots.clone().all(|at| self.device.is_usable(base + at as u64 * PAGE, PAGE))
    }
}

#[test]
fn growth_within_what_is_ahead_is_there_at_once() {
    let mut bench = Bench::new(None, &[16]);
    let id = bench.ranges[0].0;
    assert!(!bench.book.want(id, &[(0, 2)], &[(2, 4)]));
    bench.settle();
    assert!(bench.book.is_ready(id) && bench.is_usable(0, 0..4) && !bench.is_usable(0, 4..5));
    let calls = bench.device.maps;
    assert!(bench.book.want(id, &[(0, 4)], &[(4, 6)]), "no call is needed for it");
    assert_eq!(bench.device.maps, calls);
    bench.settle();
    assert!(bench.is_usable(0, 0..6));
}

#[test]
fn pages_move_between_ranges_and_only_behind_the_work_in_flight() {
    let mut bench = Bench::new(Some(4), &[8, 8]);
    let (a, b) = (bench.ranges[0].0, bench.ranges[1].0);
    bench.book.want(a, &[(0, 4)], &[]);
    bench.settle();
    bench.device.instant = false;
    bench.book.want(a, &[(0, 1)], &[]);
    bench.book.want(b, &[(0, 3)], &[]);
    bench.settle();
    assert!(bench.is_usable(0, 0..4), "work may still use it");
    assert!(!bench.book.is_ready(b) && bench.book.take_error(b).is_none(), "it waits for those pages");
    bench.finish();
    bench.settle();
    assert!(bench.book.is_ready(b) && bench.is_usable(1, 0..3) && !bench.is_usable(0, 1..2));
    assert_eq!((bench.device.creates, bench.book.stats().pages), (4, 4));
}

#[test]
fn what_is_wanted_again_before_it_went_stays_with_its_contents() {
    let mut bench = Bench::new(None, &[8]);
    let id = bench.ranges[0].0;
    bench.book.want(id, &[(0, 4)], &[]);
    bench.settle();
    let before = bench.device.physical(bench.ranges[0].1, 4 * PAGE);
    bench.device.instant = false;
    bench.book.want(id, &[(0, 2)], &[]);
    bench.settle();
    assert!(bench.book.want(id, &[(0, 4)], &[]), "it is still there");
    // The slot was wanted in between, so the old fence does not cover the work that was queued since.
    bench.book.want(id, &[(0, 3)], &[]);
    bench.finish();
    bench.settle();
    assert!(bench.is_usable(0, 0..4), "a fence of its own comes first");
    assert_eq!(bench.device.physical(bench.ranges[0].1, 4 * PAGE), before);
    bench.finish();
    bench.settle();
    assert!(bench.is_usable(0, 0..3) && !bench.is_usable(0, 3..4));
}

#[test]
fn a_limit_takes_what_is_only_ahead_and_then_refuses() {
    let mut bench = Bench::new(Some(4), &[8, 8]);
    let (a, b) = (bench.ranges[0].0, bench.ranges[1].0);
    bench.book.want(a, &[(0, 2)], &[(2, 4)]);
    bench.settle();
    bench.book.want(b, &[(0, 2)], &[(2, 4)]);
    bench.settle();
    assert!(bench.book.is_ready(b) && bench.is_usable(1, 0..2));
    bench.book.want(b, &[(0, 3)], &[]);
    bench.settle();
    assert_eq!(bench.book.take_error(b), Some(DeviceError::Refused(Refusal::Limit)));
    assert!(bench.is_usable(0, 0..2) && bench.is_usable(1, 0..2), "nobody loses what it has");
}

#[test]
fn pages_and_addresses_go_back() {
    let mut bench = Bench::new(None, &[8, 8]);
    bench.book.want(bench.ranges[0].0, &[(0, 8)], &[]);
    bench.book.want(bench.ranges[1].0, &[(3, 5)], &[]);
    bench.settle();
    bench.book.end(bench.ranges[0].0);
    bench.book.give_back(5);
    bench.settle();
    assert_eq!(bench.book.stats().pages, 5);
    assert!(bench.is_usable(1, 3..5));
    bench.book.end(bench.ranges[1].0);
    bench.book.give_back(usize::MAX);
    bench.settle();
    assert!(bench.book.is_empty());
    assert_eq!(bench.device.memory().0, 64 * PAGE);
}

/// Random wants, limits, waits and ends, with a fault somewhere in each program. Slots that are reported as ready are
/// usable, no page is behind two slots, and at the end everything goes back.
#[test]
fn random_programs_with_faults() {
    let mut seed = 7u64;
    let mut random = move |below: u64| {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (seed >> 33) % below
    };
    for round in 0..1500 {
        let limit = [None, Some(3), Some(9), Some(30)][random(4) as usize];
        let mut bench = Bench::new(limit, &[12, 5, 70]);
        bench.device.has_no_fences = random(5) == 0;
        bench.device.fail_in = (random(4) > 0).then(|| random(60) as u32);
        bench.device.instant = random(2) == 0;
        for _ in 0..25 {
            let at = random(3) as usize;
            let (id, _, slots) = bench.ranges[at];
            let from = random(slots as u64 + 1) as usize;
            let to = from + random((slots - from) as u64 + 1) as usize;
            bench.book.want(id, &[(from, to)], &[(to, to + random(4) as usize)]);
            if random(3) > 0 {
                bench.settle();
            }
            if random(3) == 0 {
                bench.finish();
            }
            if random(6) == 0 {
                bench.book.give_back(random(5) as usize);
            }
            if bench.book.is_ready(id) && bench.book.take_error(id).is_none() {
                assert!(bench.is_usable(at, from..to), "round {round}");
            }
            let mut seen = std::collections::HashSet::new();
            for &(_, base, slots) in &bench.ranges {
                for slot in 0..slots as u64 {
                    for (page, ..) in bench.device.physical(base + slot * PAGE, PAGE) {
                        assert!(seen.insert(page), "a page is in one place");
                    }
                }
            }
        }
        bench.device.fail_in = None;
        bench.finish();
        bench.device.instant = true;
        for (id, ..) in bench.ranges.clone() {
            bench.book.end(id);
        }
        for _ in 0..4 {
            bench.book.give_back(usize::MAX);
            bench.settle();
        }
        assert!(bench.book.is_empty(), "round {round}: {:?}", bench.book.stats());
        assert_eq!(bench.device.memory().0, 64 * PAGE);
    }
}
