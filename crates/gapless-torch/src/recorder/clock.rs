//! A cheap clock for entries. If the processor's counter runs at a constant rate, the clock reads it. Now and then it
//! is compared with the system's clock, which yields its rate. Until the rate is known, and on other processors, each
//! reading asks the system.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// Bits of the fraction of a microsecond.
const BITS: u32 = 44;
/// The shortest time between two compared readings, in microseconds: a reading takes a thousandth of it.
const APART: u64 = 20_000;

#[derive(Debug)]
pub struct Clock {
    /// Counter and system time at the start.
    ticks: u64,
    micros: u64,
    /// Microseconds a tick; 0 if unknown.
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
    // SAFETY: every x86-64 processor has the counter.
    unsafe { std::arch::x86_64::_rdtsc() }
}

/// True if the processor says that the counter runs at one rate on all cores.
#[cfg(target_arch = "x86_64")]
#[allow(unused_unsafe, reason = "safe in newer versions of the standard library")]
fn is_steady() -> bool {
    use std::arch::x86_64::__cpuid;
    // SAFETY: every x86-64 processor has `cpuid`.
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
        // A system clock that went back does not change the rate.
        clock.compare_readings(ticks(day), 5);
        assert_eq!(clock.rate.load(Ordering::Relaxed), rate);
    }
}
