//! Which allocations are recorded: a Poisson process over bytes, one for each thread.
//!
//! After each sample a thread draws how many bytes pass until the next one, with the mean `interval`. An allocation of
//! `size` bytes is sampled with probability `p = 1 - exp(-size / interval)`, so `size / p` bytes for each sample add up
//! to an unbiased estimate. The reader computes that: a sample says the interval that its own draw was made with, which
//! stays right when the interval changes meanwhile.

use std::sync::atomic::{AtomicU64, Ordering};

/// What a thread knows of its next sample. It lies at the head of the thread's cache, so that an allocation out of the
/// cache counts its bytes with one subtraction.
#[derive(Debug)]
#[repr(C)]
pub struct Sampler {
    /// Bytes until the next sample; [`NEVER`]: nothing is recorded.
    pub left: i64,
    /// The mean that `left` was drawn with; 0: nothing was drawn yet.
    interval: u64,
    random: u64,
}

/// No program allocates so many bytes.
pub const NEVER: i64 = i64::MAX;

/// Mean bytes between two samples, for draws from now on.
static INTERVAL: AtomicU64 = AtomicU64::new(DEFAULT);
/// Where it begins: a program that ends soon still has enough samples.
pub const DEFAULT: u64 = 16 << 10;
/// The coarsest.
pub const MOST: u64 = 64 << 20;

pub fn interval() -> u64 {
    INTERVAL.load(Ordering::Relaxed)
}

pub fn set_interval(bytes: u64) {
    INTERVAL.store(bytes, Ordering::Relaxed);
}

impl Sampler {
    /// Counts `size` bytes. Whether this allocation may be a sample.
    #[inline(always)]
    pub fn passes(&mut self, size: usize) -> bool {
        self.left -= size as i64;
        self.left < 0
    }

    /// [`Sampler::passes`] said yes to an allocation of `size` bytes: draws anew. Gives the interval of the draw that
    /// is over. `None`: nothing had been drawn, and by the first draw this allocation is no sample.
    pub fn draw(&mut self, size: usize) -> Option<u64> {
        let mut over = self.interval;
        if over == 0 {
            let time = crate::sys::time();
            let place = std::ptr::from_ref(self) as u64;
            self.random = mix(time.as_nanos() as u64 ^ place.rotate_left(17) ^ u64::from(crate::sys::pid()));
            over = interval();
            self.left = gap(&mut self.random, over) - size as i64;
            self.interval = over;
            if self.left >= 0 {
                return None;
            }
        }
        let next = interval();
        self.left = gap(&mut self.random, next);
        self.interval = next;
        Some(over)
    }
}

/// Bytes until the next sample: exponential with this mean.
fn gap(random: &mut u64, mean: u64) -> i64 {
    *random = random.wrapping_add(0x9E37_79B9_7F4A_7C15);
    // In (0, 1].
    let uniform = ((mix(*random) >> 11) + 1) as f64 / (1u64 << 53) as f64;
    (-uniform.ln() * mean as f64) as i64
}

fn mix(mut value: u64) -> u64 {
    value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Samples and estimated bytes of `count` blocks.
    fn estimate(count: usize, size: usize, mean: u64) -> (usize, f64) {
        let mut random = 7;
        let mut left = gap(&mut random, mean);
        let p = 1.0 - (-(size as f64) / mean as f64).exp();
        let mut samples = 0;
        for _ in 0..count {
            left -= size as i64;
            if left < 0 {
                samples += 1;
                left = gap(&mut random, mean);
            }
        }
        (samples, samples as f64 * size as f64 / p)
    }

    #[test]
    fn estimates_are_unbiased_for_sizes_below_and_above_the_interval() {
        for size in [24, 1000, 16 << 10, 200 << 10] {
            let count = 64 << 20 >> (size as u64).ilog2();
            let count = (count as usize).max(20_000);
            let (samples, bytes) = estimate(count, size, 16 << 10);
            let truth = (count * size) as f64;
            // Three standard errors, plus rounding of the smallest sizes.
            let allowed = 3.0 / (samples as f64).sqrt() + 0.002;
            assert!((bytes / truth - 1.0).abs() < allowed, "{size}: {} of {truth}", bytes);
        }
    }
}
