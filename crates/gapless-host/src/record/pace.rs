//! The frequency of samples: nearly each block at first, then so that the recording costs about one part in 80 of the
//! CPU time, and the file does not grow without end.

use crate::sampler::{Kind, MOST};

/// The samples of one kind since its interval was last adjusted.
#[derive(Clone, Copy, Debug)]
struct Window {
    samples: u32,
    /// By the wall clock.
    began: u64,
    /// The time that the process may have spent until its beginning ([`allowance`]), the time that each kind had spent,
    /// and the time spent beside samples.
    allowed: u64,
    spent: [u64; 2],
    beside: u64,
}

/// Chooses the intervals of both kinds. Times are in nanoseconds.
#[derive(Debug)]
pub(super) struct Pace {
    pub(super) is_fixed: bool,
    pub(super) intervals: [u64; 2],
    /// The CPU time that counts as zero. A forked child continues at its parent's age.
    zero: i64,
    age: u64,
    /// Time spent on samples since the recording began, by kind.
    spent: [u64; 2],
    /// Time spent on what is always recorded: large buffers, files of code.
    beside: u64,
    windows: [Window; 2],
}

/// An interval is adjusted after this many samples of its kind.
const LOOK: u32 = 32;
/// It is also adjusted after this time, so that rare samples do not stay rare for long.
const LONGEST: u64 = 20_000_000;
/// The recording may cost this part of the CPU time.
const SHARE: u64 = 80;
/// Additional time that it may cost, and the age at which half of it may be spent. So a run of 0.1 s may cost 19 ms,
/// and one of 5 s costs 2 % in all.
const EARLY: u64 = 36_000_000;
const HALF: u64 = 100_000_000;
/// A sample counts at most this long. A longer one lost the processor meanwhile, which is not its cost.
const MOST_COST: u64 = 50_000;
/// The cost of the free of a sample. It is not measured, because a clock would double it.
const COST_OF_FREE: u64 = 200;
/// Bytes of the file for each doubling of the finest interval: up to 16 KiB, and beyond.
const FILE_FINE: u64 = 8 << 20;
const FILE: u64 = 64 << 20;
const COARSE: u64 = 16 << 10;

/// The time that samples may have cost at this age.
fn allowance(age: u64) -> u64 {
    let early = u128::from(EARLY) * u128::from(age) / (u128::from(age) + u128::from(HALF));
    age / SHARE + early as u64
}

/// The finest interval for a file of this length.
fn finest(kind: Kind, written: u64) -> u64 {
    let fine = (kind.finest() << (written / FILE_FINE).min(16)).min(COARSE);
    (fine << (written / FILE).min(12)).min(MOST)
}

impl Pace {
    pub(super) const fn new() -> Pace {
        let window = Window { samples: 0, began: 0, allowed: 0, spent: [0; 2], beside: 0 };
        let intervals = [Kind::Small.finest(), Kind::Middle.finest()];
        Pace { is_fixed: false, intervals, zero: 0, age: 0, spent: [0; 2], beside: 0, windows: [window; 2] }
    }

    /// Begins, at this CPU time of the process.
    pub(super) fn begin(&mut self, cpu: u64) {
        self.zero = cpu as i64;
    }

    /// Called in a forked child, whose CPU time starts at 0. It keeps its parent's age, so that a run with many short
    /// children is not young again in each.
    pub(super) fn fork(&mut self) {
        self.zero = -(self.age as i64);
    }

    /// Counts the time of something that is always recorded.
    pub(super) fn spend(&mut self, took: u64) {
        self.beside += took;
    }

    /// Counts a sample that took `took`, at wall clock time `now`. Costs are compared with the CPU time `cpu` of the
    /// process: a process that waits for a processor would spend too large a part of what it gets if the wall clock
    /// counted. True if the intervals have changed.
    pub(super) fn count(
        &mut self,
        kind: Kind,
        took: u64,
        now: u64,
        cpu: impl FnOnce() -> u64,
        written: u64,
    ) -> bool {
        self.spent[kind as usize] += counted(took);
        self.windows[kind as usize].samples += 1;
        let is_due = |window: &Window| window.samples >= LOOK || now.saturating_sub(window.began) > LONGEST;
        let due = [is_due(&self.windows[0]), is_due(&self.windows[1])];
        if self.is_fixed || due == [false; 2] {
            return false;
        }
        self.age = self.age.max((cpu() as i64).saturating_sub(self.zero).unsigned_abs());
        let allowed = allowance(self.age);
        for kind in Kind::ALL {
            let at = kind as usize;
            if due[at] {
                let next = self.right(kind, allowed).clamp(finest(kind, written), MOST);
                self.intervals[at] = next;
                self.windows[at] =
                    Window { samples: 0, began: now, allowed, spent: self.spent, beside: self.beside };
            }
        }
        true
    }

    /// The interval with which this kind would have cost what it may since the last adjustment. A few samples may
    /// mislead, and large changes make estimates coarse. So the interval stays if the cost is about right, and
    /// otherwise changes by at most a factor of two. If the whole recording has cost too much, the target is half for a
    /// while.
    fn right(&self, kind: Kind, allowed: u64) -> u64 {
        let window = &self.windows[kind as usize];
        let spent = |kind: Kind| self.spent[kind as usize] - window.spent[kind as usize];
        let is_over = self.spent[0] + self.spent[1] + self.beside > allowed;
        let all = allowed - window.allowed;
        // Samples get at least a quarter, whatever else is recorded.
        let both = all - (self.beside - window.beside).min(all / 4 * 3);
        let both = if is_over { both / 2 } else { both };
        // Half of it, and what the other kind leaves of its own half.
        let own = both - spent(kind.other()).min(both / 2);
        let interval = self.intervals[kind as usize];
        let right = u128::from(interval) * u128::from(spent(kind)) / u128::from(own.max(1));
        let right = u64::try_from(right).unwrap_or(u64::MAX).clamp(interval / 2, interval.saturating_mul(2));
        let is_right = right > interval / 5 * 3 && right < interval / 2 * 3;
        if is_right { interval } else { right }
    }
}

/// The part of a sample's time that counts.
pub(super) fn counted(took: u64) -> u64 {
    took.min(MOST_COST) + COST_OF_FREE
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program on one processor that allocates evenly: so many bytes of a kind each nanosecond, in blocks of `size`,
    /// and a sample costs `cost`. Time advances by samples: each comes when its bytes have passed.
    struct Program {
        pace: Pace,
        now: f64,
        /// For each kind: bytes a nanosecond, bytes of a block, nanoseconds of a sample.
        kinds: [(f64, f64, f64); 2],
        next: [f64; 2],
        spent: f64,
        written: u64,
    }

    impl Program {
        fn new(kinds: [(f64, f64, f64); 2]) -> Program {
            let mut program =
                Program { pace: Pace::new(), now: 0.0, kinds, next: [0.0; 2], spent: 0.0, written: 0 };
            program.next = [0, 1].map(|at| program.gap(at));
            program
        }

        /// Nanoseconds from one sample to the next.
        fn gap(&self, at: usize) -> f64 {
            let (rate, size, _) = self.kinds[at];
            let p = -(-size / self.pace.intervals[at] as f64).exp_m1();
            size / p / rate
        }

        /// Advances time while the recorder works, for which the program waits.
        fn wait(&mut self, cost: f64) {
            self.now += cost;
            self.spent += cost;
            self.next.iter_mut().for_each(|next| *next += cost);
        }

        fn until(&mut self, end: f64) -> &mut Program {
            while self.now < end {
                let at = usize::from(self.next[1] < self.next[0]);
                self.now = self.next[at].min(end);
                if self.next[at] > end {
                    break;
                }
                let took = self.kinds[at].2;
                self.wait(took + COST_OF_FREE as f64);
                let now = self.now as u64;
                self.written += 64;
                self.pace.count(Kind::ALL[at], took as u64, now, || now, self.written);
                self.next[at] = self.now + self.gap(at);
            }
            self
        }

        fn share(&self) -> f64 {
            self.spent / self.now
        }
    }

    const SECOND: f64 = 1e9;
    /// Kinds of programs: few bytes; objects of Python; those and arrays of 160 KiB; little but `malloc`.
    const QUIET: [(f64, f64, f64); 2] = [(0.0005, 100.0, 600.0), (1e-9, 1e5, 600.0)];
    const OBJECTS: [(f64, f64, f64); 2] = [(0.4, 60.0, 1200.0), (1e-9, 1e5, 1200.0)];
    const ARRAYS: [(f64, f64, f64); 2] = [(0.4, 60.0, 1200.0), (3.0, 163_840.0, 1800.0)];
    const MALLOC: [(f64, f64, f64); 2] = [(8.0, 100.0, 600.0), (1e-9, 1e5, 600.0)];

    #[test]
    fn long_runs_cost_two_hundredths_and_short_ones_some_milliseconds() {
        for kinds in [QUIET, OBJECTS, ARRAYS, MALLOC] {
            let mut program = Program::new(kinds);
            let first = program.until(0.1 * SECOND).share();
            assert!(first < 0.2, "{kinds:?}: {first} of the first 0.1 s");
            let five = program.until(5.0 * SECOND).share();
            assert!(five < 0.02, "{kinds:?}: {five} of 5 s");
            let before = program.spent;
            let minute = (program.until(65.0 * SECOND).spent - before) / (60.0 * SECOND);
            assert!(minute < 0.014, "{kinds:?}: {minute} of the next minute");
        }
        // If there is enough to sample, the allowed time is used.
        let spent = |kinds| Program::new(kinds).until(10.0 * SECOND).share();
        assert!(spent(OBJECTS) > 0.01 && spent(ARRAYS) > 0.01 && spent(MALLOC) > 0.01);
    }

    #[test]
    fn what_is_recorded_in_any_case_leaves_less_for_samples() {
        // Large buffers that cost a hundredth: with them the total stays the same.
        for kinds in [OBJECTS, ARRAYS, MALLOC] {
            let mut program = Program::new(kinds);
            for at in 1..=5_000 {
                program.until(f64::from(at) * SECOND / 1000.0);
                program.wait(10_000.0);
                program.pace.spend(10_000);
            }
            assert!(program.share() < 0.021, "{kinds:?}: {}", program.share());
            let samples = program.spent - 5_000.0 * 10_000.0;
            assert!(samples > 0.25 * 0.0125 * program.now, "{kinds:?}: {samples} of {}", program.now);
        }
    }

    #[test]
    fn a_sample_that_lost_the_processor_counts_as_a_long_one() {
        assert_eq!(counted(700), 700 + COST_OF_FREE);
        assert_eq!(counted(8_000_000), MOST_COST + COST_OF_FREE);
    }

    #[test]
    fn a_short_run_is_sampled_finely_and_arrays_do_not_take_the_samples_of_small_blocks() {
        let after = |kinds, seconds: f64| Program::new(kinds).until(seconds * SECOND).pace.intervals;
        assert_eq!(after(QUIET, 0.1)[0], Kind::Small.finest(), "nearly each block");
        assert_eq!(after(QUIET, 2.0)[0], Kind::Small.finest());
        for seconds in [0.05, 0.1, 0.2] {
            assert!(after(OBJECTS, seconds)[0] <= 16 << 10, "{seconds}: {:?}", after(OBJECTS, seconds));
            assert!(after(ARRAYS, seconds)[0] <= 32 << 10, "{seconds}: {:?}", after(ARRAYS, seconds));
        }
        let (alone, beside) = (after(OBJECTS, 30.0)[0], after(ARRAYS, 30.0)[0]);
        assert!(beside <= 3 * alone, "half of what may be spent is theirs: {alone}, {beside}");
    }

    #[test]
    fn the_interval_follows_the_program_and_the_file() {
        let mut program = Program::new(MALLOC);
        let busy = program.until(3.0 * SECOND).pace.intervals[0];
        program.kinds = QUIET;
        let quiet = program.until(9.0 * SECOND).pace.intervals[0];
        assert!(busy >= 64 << 10 && quiet <= 512, "{busy}, then {quiet}");
        for (written, wanted) in
            [(0, 256), (FILE_FINE, 512), (6 * FILE_FINE, COARSE), (FILE, 2 * COARSE), (5 * FILE, 32 * COARSE)]
        {
            assert_eq!(finest(Kind::Small, written), wanted);
        }
        assert_eq!((finest(Kind::Middle, 0), finest(Kind::Middle, FILE)), (COARSE, 2 * COARSE));
        assert_eq!(finest(Kind::Small, u64::MAX), MOST);
    }

    #[test]
    fn a_forked_child_is_as_old_as_its_parent() {
        let mut pace = Pace::new();
        pace.begin(5);
        for at in 1..=2 * u64::from(LOOK) {
            pace.count(Kind::Small, 1, at, || 20_000_000_005, 0);
        }
        assert_eq!(pace.age, 20_000_000_000);
        pace.fork();
        for at in 1..=2 * u64::from(LOOK) {
            pace.count(Kind::Small, 1, at, || 1_000, 0);
        }
        assert_eq!(pace.age, 20_000_001_000);
    }
}
