//! How often a sample is taken: so that samples cost about one part in 60 of the CPU time, and the file does not grow
//! without end.

use crate::sampler;

/// Keeps the cost of samples at about one part in 60 of the time, and the file from growing without end.
#[derive(Debug)]
pub(super) struct Pace {
    pub(super) is_fixed: bool,
    /// The finest interval: it doubles with every 64 MiB of the file.
    least: u64,
    samples: u32,
    /// When the pace was looked at last, by the clock on the wall.
    looked: u64,
    /// Nanoseconds inside of the recorder, and when counting began.
    spent: u64,
    pub(super) since: u64,
    total: u64,
}

/// Samples between two looks at the pace.
const LOOK: u32 = 32;
/// Nanoseconds after which the pace is looked at in any case: samples that are rare would stay so for long.
const LONGEST: u64 = 20_000_000;
/// Samples cost one part in so many of the CPU time.
const SHARE: u64 = 60;
/// Nanoseconds that are free: a program that ends soon has samples enough.
const FREE: u64 = 8_000_000;
/// Nanoseconds of a sample with its free; and what it costs more where lines of Python are read, where the unwinder had
/// to walk, or where the kernel had to be asked for Python's frames. Measured (608 ns in C, 2.2 us in Python on
/// average); a clock would count every loss of the processor, which is no cost.
pub(super) const COST: u64 = 650;
pub(super) const COST_OF_PYTHON: u64 = 700;
pub(super) const COST_OF_WALK: u64 = 3_000;
pub(super) const COST_OF_ASKING: u64 = 8_000;
/// Bytes of the file for each doubling of the interval.
const FILE: u64 = 64 << 20;

impl Pace {
    pub(super) const fn new() -> Pace {
        Pace { is_fixed: false, least: sampler::DEFAULT, samples: 0, looked: 0, spent: 0, since: 0, total: 0 }
    }

    /// Counts a sample that cost about so many nanoseconds, at this time of the clock on the wall. `cpu`: the CPU time
    /// of the process, by which costs are judged. By the wall, a process that waits for a processor would spend several
    /// hundredths of what it gets.
    pub(super) fn count(&mut self, cost: u64, now: u64, cpu: impl FnOnce() -> u64, written: u64) {
        self.samples += 1;
        self.spent += cost;
        let is_time = self.samples >= LOOK || now.saturating_sub(self.looked) > LONGEST;
        if self.is_fixed || !is_time {
            return;
        }
        let ended = cpu();
        let elapsed = ended.saturating_sub(self.since).max(1);
        let interval = sampler::interval();
        self.least = (sampler::DEFAULT << (written / FILE).min(12)).min(sampler::MOST);
        self.total += self.spent;
        // What would have cost the right part of the time. A few samples may mislead, and an interval that jumps makes
        // estimates coarse: it stays where the cost is about right, and changes by steps.
        let right = u128::from(interval) * u128::from(self.spent) * u128::from(SHARE) / u128::from(elapsed);
        let right = u64::try_from(right).unwrap_or(u64::MAX).clamp(interval / 2, interval.saturating_mul(2));
        let is_right = right > interval / 5 * 3 && right < interval / 2 * 3;
        let right = if is_right { interval } else { right };
        let next = if self.total > FREE { right } else { right.min(interval) };
        sampler::set_interval(next.clamp(self.least, sampler::MOST));
        (self.samples, self.spent, self.since, self.looked) = (0, 0, ended, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_follows_the_cost_of_samples() {
        let mut pace = Pace::new();
        let mut run = |cost: u64, gap: u64, written: u64, times: u32| {
            let mut now = pace.since;
            for _ in 0..LOOK * times {
                now += gap;
                pace.count(cost, now, || now, written);
            }
            sampler::interval()
        };
        assert_eq!(run(5_000, 10_000, 0, 1), sampler::DEFAULT, "the first milliseconds are free");
        let busy = run(5_000, 10_000, 0, 120);
        assert_eq!(busy, sampler::MOST, "half of the time is too much, however long the interval");
        let idle = run(5_000, 90_000_000, 0, 60);
        assert_eq!(idle, sampler::DEFAULT, "finer again");
        assert_eq!(run(5_000, 700_000, 0, 20), sampler::DEFAULT, "0.7 % is right");
        assert_eq!(run(5_000, 90_000_000, 5 * FILE, 60), 32 * sampler::DEFAULT, "the file is long");
        sampler::set_interval(sampler::DEFAULT);
    }
}
