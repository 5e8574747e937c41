//! A limit on the bytes read each second, shared by all reading threads.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The longest sleep between two calls of `is_over`.
const NAP: Duration = Duration::from_millis(50);

/// Hands out times at which reads may begin: each read takes as long as its bytes take at the rate.
#[derive(Debug)]
pub struct Pace {
    rate: u64,
    next: Mutex<Instant>,
    booked: AtomicU64,
}

impl Pace {
    /// `rate` bytes a second, at least 1.
    pub fn new(rate: u64) -> Pace {
        Pace { rate: rate.max(1), next: Mutex::new(Instant::now()), booked: AtomicU64::new(0) }
    }

    /// The time that a read of `bytes` at `now` must wait.
    fn book(&self, bytes: u64, now: Instant) -> Duration {
        self.booked.fetch_add(bytes, Ordering::Relaxed);
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let begin = (*next).max(now);
        // At most a day, so that the sum cannot overflow.
        let takes = Duration::from_secs_f64((bytes as f64 / self.rate as f64).min(86_400.0));
        *next = begin + takes;
        begin - now
    }

    /// Bytes of all reads that asked.
    pub fn booked(&self) -> u64 {
        self.booked.load(Ordering::Relaxed)
    }

    /// Waits until `bytes` may be read. Returns early if `is_over` becomes true.
    pub fn wait(&self, bytes: u64, is_over: impl Fn() -> bool) {
        let until = Instant::now() + self.book(bytes, Instant::now());
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || is_over() {
                return;
            }
            std::thread::sleep(left.min(NAP));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Pace;
    use std::time::{Duration, Instant};

    #[test]
    fn reads_begin_one_after_another_at_the_rate() {
        let (pace, now) = (Pace::new(1000), Instant::now() + Duration::from_secs(1));
        assert_eq!(pace.book(500, now), Duration::ZERO);
        assert_eq!(pace.book(250, now), Duration::from_millis(500));
        assert_eq!(pace.book(1000, now), Duration::from_millis(750));
        let later = now + Duration::from_secs(5);
        assert_eq!(pace.book(1, later), Duration::ZERO, "time that was not used is lost");
    }

    #[test]
    fn a_wait_ends_when_the_caller_is_over() {
        let pace = Pace::new(1);
        pace.wait(1 << 40, || false);
        pace.wait(1, || true);
    }
}
