//! A process's memory on a card outside of its pool: its context, loaded modules, memory that libraries allocate.
//!
//! NVIDIA's management library knows the memory of each process. It may not know this one: in containers, on vGPUs, and
//! for clients of the Multi-Process Service, whose memory may be reported as the server's. Then the context's size is
//! the growth of the card's used memory when the context was made. If that shows no growth, a context is assumed, or
//! the card's used memory if that is smaller.

use super::Quota;
use gapless_cuda::{Nvml, Uuid};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The assumed size of a context before it can be measured: more than any that was seen.
pub const CONTEXT: u64 = 768 << 20;
/// Added to each measurement, because modules are loaded without asking: it covers those before the next look.
pub const MARGIN: u64 = 64 << 20;
/// Within NEAR bytes of a limit, a measurement older than STALE is repeated. Asking takes a millisecond, and filling
/// NEAR takes a few.
const NEAR: u64 = 1 << 30;
const STALE: Duration = Duration::from_millis(20);
/// A smaller growth is not a context.
const LEAST: u64 = 32 << 20;

/// Bytes that this process holds of a card, by the management library.
#[must_use]
pub fn used_by_this_process(uuid: Uuid) -> Option<u64> {
    let processes = Nvml::open().ok()?.device_by_uuid(uuid)?.processes()?;
    processes.iter().find(|process| process.pid == std::process::id())?.used
}

/// Bytes that all processes hold of a card. For a card without memory of its own, the host's memory in use.
#[must_use]
pub fn used_by_all(uuid: Uuid) -> Option<u64> {
    let (memory, _) = Nvml::open().ok()?.device_by_uuid(uuid)?.memory_or_host()?;
    Some(memory.used)
}

/// The bytes to count if `measured` are seen outside and `counted` were counted. They stay while the margin lasts.
#[must_use]
pub fn with_margin(measured: u64, counted: u64) -> u64 {
    let is_near = measured + MARGIN / 2 <= counted && counted <= measured + 2 * MARGIN;
    if is_near { counted } else { measured + MARGIN }
}

/// The assumed size of a context that cannot be measured: `grown` is the growth of the card's used memory when it was
/// made, `in_use` the card's used memory now.
#[must_use]
pub fn assumed(grown: Option<u64>, in_use: u64) -> u64 {
    match grown {
        Some(grown) if (LEAST..=2 * CONTEXT).contains(&grown) => grown + MARGIN,
        _ => in_use.min(CONTEXT),
    }
}

/// Asks for the bytes that this process holds in all; `None` if they are unknown.
pub struct Meter {
    ask: Box<dyn Fn() -> Option<u64> + Send + Sync>,
    began: Instant,
    /// The time of the last question, in milliseconds since `began`.
    asked: AtomicU64,
}

impl Meter {
    pub fn new(ask: impl Fn() -> Option<u64> + Send + Sync + 'static) -> Meter {
        Meter { ask: Box::new(ask), began: Instant::now(), asked: AtomicU64::new(0) }
    }

    fn ask(&self) -> Option<u64> {
        self.asked.store(self.began.elapsed().as_millis() as u64, Ordering::Relaxed);
        (self.ask)()
    }

    fn age(&self) -> Duration {
        let asked = Duration::from_millis(self.asked.load(Ordering::Relaxed));
        self.began.elapsed().saturating_sub(asked)
    }
}

impl fmt::Debug for Meter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Meter")
    }
}

impl Quota {
    /// Sets the way to ask for this process's bytes, once.
    pub fn set_meter(&self, meter: Meter) {
        let _ = self.meter.set(meter);
    }

    /// Measures the memory outside of the pool. False if that is not possible.
    pub fn measure(&self) -> bool {
        let Some(measured) = self.meter.get().and_then(|meter| self.beside(|| meter.ask())) else {
            return false;
        };
        self.set_outside(with_margin(measured, Self::get(&self.outside)));
        true
    }

    /// Called before `bytes` more are taken. Near a limit the memory outside matters, so it is measured more often.
    pub(super) fn look_closer(&self, bytes: u64) {
        if !self.is_on() {
            return;
        }
        let share = self.seat().as_ref().map_or(u64::MAX, |ledger| ledger.entry().limit);
        let sum = self.reserved() + Self::get(&self.outside) + bytes;
        let is_near = sum.saturating_add(NEAR) > share.min(Self::get(&self.budget));
        if is_near && self.meter.get().is_some_and(|meter| meter.age() >= STALE) {
            self.measure();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_margin_is_kept_and_not_rewritten_for_every_module() {
        let first = with_margin(500 << 20, 0);
        assert_eq!(first, (500 << 20) + MARGIN);
        assert_eq!(with_margin(520 << 20, first), first, "the margin lasts");
        assert_eq!(with_margin(540 << 20, first), (540 << 20) + MARGIN, "half of it is used");
        assert_eq!(with_margin(100 << 20, first), (100 << 20) + MARGIN, "far too much");
    }

    #[test]
    fn a_context_is_what_the_card_had_less_of_or_assumed() {
        assert_eq!(assumed(Some(520 << 20), 90 << 30), (520 << 20) + MARGIN);
        assert_eq!(assumed(Some(0), 90 << 30), CONTEXT, "it was there before");
        assert_eq!(assumed(Some(40 << 30), 90 << 30), CONTEXT, "another process grew meanwhile");
        assert_eq!(assumed(None, 0), 0, "nothing is in use: there is no context at all");
    }
}
