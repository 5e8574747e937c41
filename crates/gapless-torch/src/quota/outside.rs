//! What a process holds of a card beside its pool: its context, loaded modules, what libraries take from the driver
//! themselves.
//!
//! NVIDIA's management library knows what a process holds in all. Where it does not know this one (in containers, on
//! vGPUs, as a client of the Multi-Process Service, whose memory may be told as the server's), what the context took is
//! what the card had less of after it was made; where even that shows nothing, a context is assumed, or less where the
//! card has less in use.

use super::Quota;
use gapless_cuda::{Nvml, Uuid};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What a context is taken for before it can be measured: more than any that was seen.
pub const CONTEXT: u64 = 768 << 20;
/// Counted beyond what was measured, since modules are loaded without asking: what comes before the next look.
pub const MARGIN: u64 = 64 << 20;
/// This near to a limit a measurement is too old after so long: asking takes a millisecond, and filling this takes a
/// few.
const NEAR: u64 = 1 << 30;
const STALE: Duration = Duration::from_millis(20);
/// A difference below this is no context.
const LEAST: u64 = 32 << 20;

/// What this process holds of a card, as the management library counts it.
#[must_use]
pub fn used_by_this_process(uuid: Uuid) -> Option<u64> {
    let processes = Nvml::open().ok()?.device_by_uuid(uuid)?.processes()?;
    processes.iter().find(|process| process.pid == std::process::id())?.used
}

/// What all processes hold of a card; of one without memory of its own, what is in use of the host's.
#[must_use]
pub fn used_by_all(uuid: Uuid) -> Option<u64> {
    let (memory, _) = Nvml::open().ok()?.device_by_uuid(uuid)?.memory_or_host()?;
    Some(memory.used)
}

/// What is counted, once `measured` bytes are seen outside and `counted` were so far: it stays while the margin lasts.
#[must_use]
pub fn with_margin(measured: u64, counted: u64) -> u64 {
    let is_near = measured + MARGIN / 2 <= counted && counted <= measured + 2 * MARGIN;
    if is_near { counted } else { measured + MARGIN }
}

/// What a context that cannot be measured is taken for: `grown` is what the card had more in use after it was made,
/// `in_use` what it has now.
#[must_use]
pub fn assumed(grown: Option<u64>, in_use: u64) -> u64 {
    match grown {
        Some(grown) if (LEAST..=2 * CONTEXT).contains(&grown) => grown + MARGIN,
        _ => in_use.min(CONTEXT),
    }
}

/// Asks what this process holds in all; `None`: nobody knows.
pub struct Meter {
    ask: Box<dyn Fn() -> Option<u64> + Send + Sync>,
    began: Instant,
    /// When it was last asked, in milliseconds since it began.
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
    /// Sets how what this process holds in all can be asked, once.
    pub fn set_meter(&self, meter: Meter) {
        let _ = self.meter.set(meter);
    }

    /// Measures what is outside; whether that can be done.
    pub fn measure(&self) -> bool {
        let Some(measured) = self.meter.get().and_then(|meter| self.beside(|| meter.ask())) else {
            return false;
        };
        self.set_outside(with_margin(measured, Self::get(&self.outside)));
        true
    }

    /// Before `bytes` more are taken: near a limit what is outside is measured more often, for then it matters.
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
