//! Chooses the allocations that are recorded, by two Poisson processes over bytes for each thread: one for small blocks
//! and one for middle ones.
//!
//! After each sample a thread draws the bytes of that kind until the next one, with the mean `interval`. An allocation
//! of `size` bytes is sampled with probability `p = 1 - exp(-size / interval)`, so `size / p` bytes for each sample add
//! up to an unbiased estimate. The reader computes that: a sample states the interval of its own draw, so the estimate
//! stays right when the interval changes meanwhile.
//!
//! The kinds are separate because arrays of some 100 KiB that come and go are most of the bytes of many programs: in
//! one process they would take nearly all samples, and small blocks that leak would have none.

use std::sync::atomic::{AtomicU64, Ordering};

/// Blocks that share a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Up to 32 KiB.
    Small,
    /// Up to 1 MiB; every larger one is recorded.
    Middle,
}

impl Kind {
    pub const ALL: [Kind; 2] = [Kind::Small, Kind::Middle];
    pub const SMALL_MOST: usize = 32 << 10;

    #[inline]
    #[must_use]
    pub fn of(size: usize) -> Kind {
        if size <= Kind::SMALL_MOST { Kind::Small } else { Kind::Middle }
    }

    #[must_use]
    pub fn other(self) -> Kind {
        if self == Kind::Small { Kind::Middle } else { Kind::Small }
    }

    /// The first interval of a recording, which is also the finest. Few small blocks of a program that allocates little
    /// are missed, and at most one middle block in seven.
    #[must_use]
    pub const fn finest(self) -> u64 {
        match self {
            Kind::Small => 256,
            Kind::Middle => 16 << 10,
        }
    }
}

/// The bytes of one kind until its next sample.
#[derive(Debug)]
#[repr(C)]
pub struct Countdown {
    /// [`NEVER`] if nothing is recorded.
    pub left: i64,
    /// The mean with which `left` was drawn; 0 before the first draw.
    interval: u64,
}

/// A thread's counters until its next samples. They lie at the head of the thread's cache, so an allocation out of the
/// cache, which is a small one, counts its bytes with one subtraction.
#[derive(Debug)]
#[repr(C)]
pub struct Sampler {
    pub small: Countdown,
    middle: Countdown,
    random: u64,
}

/// More bytes than any program allocates.
pub const NEVER: i64 = i64::MAX;

/// The coarsest interval.
pub const MOST: u64 = 64 << 20;

/// Mean bytes between two samples of each kind, for draws from now on.
static INTERVALS: [AtomicU64; 2] =
    [AtomicU64::new(Kind::Small.finest()), AtomicU64::new(Kind::Middle.finest())];

#[must_use]
pub fn interval(kind: Kind) -> u64 {
    INTERVALS[kind as usize].load(Ordering::Relaxed)
}

pub fn set_intervals(bytes: [u64; 2]) {
    for (interval, bytes) in INTERVALS.iter().zip(bytes) {
        interval.store(bytes, Ordering::Relaxed);
    }
}

impl Sampler {
    /// Counts `size` bytes. True if this allocation may be a sample.
    #[inline(always)]
    pub fn passes(&mut self, size: usize) -> bool {
        let countdown = self.of(Kind::of(size));
        countdown.left -= size as i64;
        countdown.left < 0
    }

    #[inline(always)]
    fn of(&mut self, kind: Kind) -> &mut Countdown {
        match kind {
            Kind::Small => &mut self.small,
            Kind::Middle => &mut self.middle,
        }
    }

    /// Draws anew, with the mean `next`, after [`Sampler::passes`] was true for `size` bytes. Returns the interval of
    /// the last draw. `None` if this was the first draw, and by it the allocation is not a sample.
    pub fn draw(&mut self, size: usize, next: u64) -> Option<u64> {
        if self.random == 0 {
            let time = crate::sys::time();
            let place = std::ptr::from_ref(self) as u64;
            self.random = mix(time.as_nanos() as u64 ^ place.rotate_left(17) ^ u64::from(crate::sys::pid()));
        }
        let kind = Kind::of(size);
        let mut random = self.random;
        let countdown = self.of(kind);
        let mut over = countdown.interval;
        countdown.interval = next;
        if over == 0 {
            over = next;
            countdown.left = gap(&mut random, over) - size as i64;
            if countdown.left >= 0 {
                self.random = random;
                return None;
            }
        }
        countdown.left = gap(&mut random, next);
        self.random = random;
        Some(over)
    }
}

/// Bytes until the next sample: exponential with this mean.
fn gap(random: &mut u64, mean: u64) -> i64 {
    *random = random.wrapping_add(0x9E37_79B9_7F4A_7C15);
    // In (0, 1].
    let uniform = ((mix(*random) >> 11) + 1) as f64 / (1u64 << 53) as f64;
    (-logarithm(uniform) * mean as f64) as i64
}

/// The natural logarithm of a number in (0, 1], to 1e-10. The standard library would call `libm`, which every process
/// would then load at its start.
fn logarithm(number: f64) -> f64 {
    // number = part * 2^exponent, with the part in [0.7, 1.42).
    let bits = number.to_bits();
    let mut exponent = (bits >> 52) as i32 - 1023;
    let mut part = f64::from_bits(bits & ((1 << 52) - 1) | 1023 << 52);
    if part > std::f64::consts::SQRT_2 {
        part /= 2.0;
        exponent += 1;
    }
    // ln(part) = 2 atanh(s), with |s| below 0.172.
    let s = (part - 1.0) / (part + 1.0);
    let square = s * s;
    let series = (0..6).rev().fold(0.0, |sum, term| sum * square + 1.0 / f64::from(2 * term + 1));
    2.0 * s * series + f64::from(exponent) * std::f64::consts::LN_2
}

fn mix(mut value: u64) -> u64 {
    value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logarithms_are_those_of_the_c_library() {
        for at in 1..=100_000u32 {
            let number = f64::from(at) / 100_000.0;
            assert!((logarithm(number) - number.ln()).abs() < 1e-9, "{number}");
        }
        let least = 1.0 / (1u64 << 53) as f64;
        assert!((logarithm(least) - least.ln()).abs() < 1e-9 && logarithm(1.0) == 0.0);
    }

    fn new(seed: u64) -> Sampler {
        let none = || Countdown { left: 0, interval: 0 };
        Sampler { small: none(), middle: none(), random: mix(seed) }
    }

    /// The reader's value of a sample: its bytes and their variance.
    fn weight(size: usize, interval: u64) -> (f64, f64) {
        let bytes = size as f64;
        let p = -(-bytes / interval as f64).exp_m1();
        (bytes / p, bytes * bytes * (1.0 - p) / (p * p))
    }

    /// Sums for one size: true bytes, estimated bytes, their variance, and the number of samples.
    #[derive(Clone, Copy, Default)]
    struct Sums {
        truth: f64,
        estimate: f64,
        variance: f64,
        samples: usize,
    }

    /// Runs a program that allocates these sizes in turn. `interval` is the mean for draws at each allocation.
    fn estimate(
        sizes: &[usize],
        count: usize,
        seed: u64,
        interval: impl Fn(Kind, usize) -> u64,
    ) -> Vec<Sums> {
        let mut sampler = new(seed);
        let mut sums = vec![Sums::default(); sizes.len()];
        for at in 0..count {
            let size = sizes[at % sizes.len()];
            let sum = &mut sums[at % sizes.len()];
            sum.truth += size as f64;
            if sampler.passes(size)
                && let Some(over) = sampler.draw(size, interval(Kind::of(size), at))
            {
                let (bytes, variance) = weight(size, over);
                sum.estimate += bytes;
                sum.variance += variance;
                sum.samples += 1;
            }
        }
        sums
    }

    /// Sizes below and above the interval, of both kinds.
    const SIZES: [usize; 7] = [24, 1000, 16 << 10, 32 << 10, 33 << 10, 160 << 10, 900 << 10];

    #[test]
    fn estimates_are_unbiased_and_their_errors_are_as_told_while_the_interval_changes() {
        // The interval widens as at the beginning of a run, and is finer at times.
        let pace = |kind: Kind, at: usize| kind.finest() << (at / 700).min(9) >> (at / 3000 % 3);
        let steady = |kind: Kind, _: usize| 64 * kind.finest();
        for interval in [&pace as &dyn Fn(Kind, usize) -> u64, &steady] {
            const RUNS: u64 = 400;
            let runs: Vec<Vec<Sums>> =
                (0..RUNS).map(|seed| estimate(&SIZES, 14_000, seed, interval)).collect();
            for (at, size) in SIZES.into_iter().enumerate() {
                let all = || runs.iter().map(|run| run[at]);
                let bias: f64 = all().map(|run| run.estimate - run.truth).sum();
                let variance: f64 = all().map(|run| run.variance).sum();
                // Four standard errors of the sum of all runs.
                let allowed = 4.0 * variance.sqrt() + 1e-9 * all().map(|run| run.truth).sum::<f64>();
                assert!(bias.abs() <= allowed, "{size}: {bias} beyond {allowed}");
                // In 95 of 100 recordings the truth lies within two standard errors, if there are enough samples.
                let is_within = |run: &Sums| {
                    (run.estimate - run.truth).abs() <= 2.0 * run.variance.sqrt() + 1e-9 * run.truth
                };
                let within = all().filter(is_within).count() as u64;
                let samples = all().map(|run| run.samples as u64).sum::<u64>() / RUNS;
                assert!(samples < 25 || within > RUNS * 9 / 10, "{size}: {within} of {RUNS}, {samples}");
            }
        }
    }

    #[test]
    fn many_middle_blocks_leave_the_samples_of_small_ones_as_they_are() {
        let samples = |sizes: &[usize]| {
            let mut sampler = new(7);
            let mut count = 0;
            for at in 0..200_000 {
                let size = sizes[at % sizes.len()];
                let drawn = sampler.passes(size) && sampler.draw(size, 16 << 10).is_some();
                count += usize::from(drawn && size == 100);
            }
            count
        };
        let (alone, beside) = (samples(&[100, 100]), 2 * samples(&[100, 160 << 10]));
        let expected = 200_000.0 * 100.0 / 16384.0;
        for count in [alone, beside] {
            assert!((count as f64 / expected - 1.0).abs() < 0.15, "{count} for {expected}");
        }
    }

    #[test]
    fn a_thread_that_ends_soon_has_its_part_of_the_samples() {
        // Ten blocks each, so the first draw of a thread decides.
        let mut bytes = 0.0;
        for thread in 0..20_000 {
            let mut sampler = new(thread);
            for _ in 0..10 {
                if sampler.passes(300)
                    && let Some(over) = sampler.draw(300, 16 << 10)
                {
                    bytes += weight(300, over).0;
                }
            }
        }
        let truth = 20_000.0 * 3000.0;
        assert!((bytes / truth - 1.0).abs() < 0.05, "{bytes} of {truth}");
    }
}
