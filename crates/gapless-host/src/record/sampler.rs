//! Which allocations are recorded: a Poisson process over bytes, one for each thread.
//!
//! After each sample a thread draws how many bytes pass until the next one, with the mean `interval`. An allocation of
//! `size` bytes is sampled with probability `p = 1 - exp(-size / interval)`, so `size / p` bytes for each sample add up
//! to an unbiased estimate. The reader computes that: a sample says the interval that its own draw was made with, which
//! stays right when the interval changes meanwhile.

use std::sync::atomic::{AtomicU64, Ordering};

/// What a thread knows. All zero in a new thread.
#[derive(Debug)]
#[repr(C, align(16))]
pub struct Sampler {
    /// Bytes until the next sample.
    left: i64,
    /// The mean that `left` was drawn with; 0: nothing was drawn yet.
    interval: u64,
    random: u64,
    /// This thread is inside of the recorder: what it allocates there is not recorded.
    busy: u64,
}

#[cfg(target_arch = "x86_64")]
mod local {
    use super::Sampler;

    // A variable of the thread at a fixed distance from its pointer ("initial-exec"). `thread_local!` in a shared
    // library calls a function instead: 4.1 ns against 1.4.
    std::arch::global_asm!(
        ".pushsection .tbss.gapless_host_sampler,\"awT\",@nobits",
        ".globl gapless_host_sampler",
        ".hidden gapless_host_sampler",
        ".type gapless_host_sampler,@object",
        ".size gapless_host_sampler,32",
        ".balign 16",
        "gapless_host_sampler:",
        ".zero 32",
        ".popsection",
    );
    const _: () = assert!(size_of::<Sampler>() == 32);

    #[inline(always)]
    pub(super) fn get() -> *mut Sampler {
        let place: *mut Sampler;
        // SAFETY: reads the thread's pointer and an entry of the table that the loader filled in.
        unsafe {
            std::arch::asm!(
                "mov {place}, qword ptr fs:[0]",
                "add {place}, qword ptr [rip + gapless_host_sampler@GOTTPOFF]",
                place = out(reg) place,
                options(pure, readonly, nostack),
            );
        }
        place
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod local {
    use super::Sampler;
    use std::cell::UnsafeCell;

    thread_local! {
        static SAMPLER: UnsafeCell<Sampler> =
            const { UnsafeCell::new(Sampler { left: 0, interval: 0, random: 0, busy: 0 }) };
    }

    #[inline]
    pub(super) fn get() -> *mut Sampler {
        SAMPLER.with(UnsafeCell::get)
    }
}

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

/// Counts `size` bytes. Whether this allocation may be a sample.
#[inline(always)]
pub fn passes(size: usize) -> bool {
    // SAFETY: this thread's own variable; nothing else refers to it.
    let sampler = unsafe { &mut *local::get() };
    sampler.left -= size as i64;
    sampler.left < 0
}

/// This thread is inside of the recorder while this lives. `None`: it already was.
#[derive(Debug)]
pub struct Busy(());

impl Busy {
    pub fn enter() -> Option<Busy> {
        // SAFETY: as in `passes`.
        let sampler = unsafe { &mut *local::get() };
        (std::mem::replace(&mut sampler.busy, 1) == 0).then_some(Busy(()))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        // SAFETY: as in `passes`.
        unsafe { (*local::get()).busy = 0 };
    }
}

/// [`passes`] said yes to an allocation of `size` bytes: draws anew. Gives the interval of the draw that is over.
/// `None`: the thread had drawn nothing, and by its first draw this allocation is no sample.
pub fn draw(size: usize, _inside: &Busy) -> Option<u64> {
    // SAFETY: as in `passes`.
    let sampler = unsafe { &mut *local::get() };
    let mut over = sampler.interval;
    if over == 0 {
        let time = crate::sys::time();
        let place = std::ptr::from_ref(sampler) as u64;
        sampler.random = mix(time.as_nanos() as u64 ^ place.rotate_left(17) ^ u64::from(crate::sys::pid()));
        over = interval();
        sampler.left = gap(&mut sampler.random, over) - size as i64;
        sampler.interval = over;
        if sampler.left >= 0 {
            return None;
        }
    }
    let next = interval();
    sampler.left = gap(&mut sampler.random, next);
    sampler.interval = next;
    Some(over)
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

    #[test]
    fn a_thread_inside_of_the_recorder_does_not_enter_again() {
        let busy = Busy::enter().expect("this test is outside");
        assert!(Busy::enter().is_none());
        drop(busy);
        assert!(Busy::enter().is_some());
    }
}
