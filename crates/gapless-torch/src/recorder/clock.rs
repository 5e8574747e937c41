//! The time of an entry, cheaply: the processor's own counter, where it runs at one speed whatever the processor does.
//! How much of it is a microsecond is found by comparing it with the system's clock now and then; until that is known,
//! and elsewhere, the system is asked each time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// Fractions of a microsecond, in bits.
const BITS: u32 = 44;
/// Microseconds between two readings that can be compared: a thousandth of it is what reading takes.
const APART: u64 = 20_000;

#[derive(Debug)]
pub struct Clock {
    /// Counter and system at the beginning.
    ticks: u64,
    micros: u64,
    /// Microseconds a tick; 0: not known.
    rate: AtomicU64,
    is_steady: bool,
}

impl Default for Clock {
    fn default() -> Clock {
        Clock { ticks: ticks(), micros: system(), rate: AtomicU64::new(0), is_steady: is_steady() }
    }
}

impl Clock {
    /// Microseconds since the Unix epoch.
    #[inline]
    #[must_use]
    pub fn now(&self) -> u64 {
        match self.rate.load(Ordering::Relaxed) {
            0 => system(),
            rate => self.at(ticks(), rate),
        }
    }

    #[inline]
    fn at(&self, ticks: u64, rate: u64) -> u64 {
        let since = ticks.wrapping_sub(self.ticks);
        self.micros + ((u128::from(since) * u128::from(rate)) >> BITS) as u64
    }

    /// Compares the counter with the system's clock.
    pub fn compare(&self) {
        if self.is_steady {
            self.compare_readings(ticks(), system());
        }
    }

    fn compare_readings(&self, ticks: u64, micros: u64) {
        let since = ticks.wrapping_sub(self.ticks);
        if since > 0 && micros >= self.micros + APART {
            let rate = (u128::from(micros - self.micros) << BITS) / u128::from(since);
            self.rate.store(u64::try_from(rate).unwrap_or(0), Ordering::Relaxed);
        }
    }
}

fn system() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64)
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn ticks() -> u64 {
    // SAFETY: every processor of this kind has the counter.
    unsafe { std::arch::x86_64::_rdtsc() }
}

/// Whether the counter runs at one speed, on all cores alike: the processor says so.
#[cfg(target_arch = "x86_64")]
#[allow(unused_unsafe, reason = "safe in newer versions of the standard library")]
fn is_steady() -> bool {
    use std::arch::x86_64::__cpuid;
    // SAFETY: every processor of this kind can be asked.
    unsafe { __cpuid(0x8000_0000).eax >= 0x8000_0007 && __cpuid(0x8000_0007).edx & (1 << 8) != 0 }
}

#[cfg(not(target_arch = "x86_64"))]
fn ticks() -> u64 {
    0
}

#[cfg(not(target_arch = "x86_64"))]
fn is_steady() -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_readings_tell_how_fast_the_counter_runs() {
        let clock = Clock { ticks: 5_000, micros: 1_000_000, rate: AtomicU64::new(0), is_steady: true };
        // 2.5 GHz.
        let ticks = |micros: u64| 5_000 + micros * 2_500;
        clock.compare_readings(ticks(APART - 1), 1_000_000 + APART - 1);
        assert_eq!(clock.rate.load(Ordering::Relaxed), 0, "too early to tell");
        clock.compare_readings(ticks(APART), 1_000_000 + APART);
        let rate = clock.rate.load(Ordering::Relaxed);
        // A day later it is off by less than a thousandth of a second.
        let day = 86_400_000_000;
        assert!(clock.at(ticks(day), rate).abs_diff(1_000_000 + day) < 1_000);
        // A system clock that went back is no measure.
        clock.compare_readings(ticks(day), 5);
        assert_eq!(clock.rate.load(Ordering::Relaxed), rate);
    }
}
