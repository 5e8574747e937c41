//! Checked mode, `GAPLESS_CHECK=1`: freed memory is filled with a pattern, and the pattern is looked for before the
//! memory is handed out again.
//!
//! A write after a free, a block that shares memory with another one, a free of an unknown address and a second
//! free are told with the Python lines of both sides. Every request and every free takes the card's lock and waits
//! for the device, so it is slow. Nothing here trusts the pool: which page lies behind an address is what the
//! driver was told ([`gapless_cuda::mapped`]).
//!
//! [`shadow`] knows what every byte of every page is, [`checker`] holds one card against it, [`place`] names Python
//! lines, [`report`] is the text. While a capture is under way nothing is filled, read
//! or waited for: the bytes are counted as skipped.
//!
//! Order of locks: the card's, then its checker's. What cannot be raised, since a free must not throw, is written
//! to standard error and raised by the next request.

pub mod checker;
pub mod place;
pub mod report;
pub mod shadow;

use crate::options::Settings;
use crate::quota::QuotaDevice;
use crate::state::{CARDS, Card};
use checker::Checker;
use gapless_cuda::CudaDevice;
use gapless_cuda::locks::Lock;
use place::Place;
use report::Finding;
use std::fmt::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

static ON: AtomicBool = AtomicBool::new(false);
/// Bytes of a block that are filled; `u64::MAX`: all.
static BYTES: AtomicU64 = AtomicU64::new(u64::MAX);
static CHECKERS: [Lock<Option<Checker>>; CARDS] = [const { Lock::new(|| None) }; CARDS];
/// What a free found, until a request can raise it.
static FOUND: Lock<Option<String>> = Lock::new(|| None);

const SLOW: &str = "gapless: checked mode is on (GAPLESS_CHECK). Every free waits for the device and fills the block, and every request \
                    reads it back: expect this run to be many times slower.";

/// Whether checked mode is on.
#[inline]
#[must_use]
pub fn is_on() -> bool {
    ON.load(Ordering::Relaxed)
}

/// Turns it on where the options say so, and says that it is on. Before a card is used.
pub fn set(settings: &Settings) {
    if settings.check && !ON.swap(true, Ordering::Relaxed) {
        let bytes = if settings.check_bytes == 0 { u64::MAX } else { settings.check_bytes };
        BYTES.store(bytes, Ordering::Relaxed);
        eprintln!("{SLOW}");
    }
}

/// A card's device, which keeps what is mapped where.
#[must_use]
pub fn watched(mut device: QuotaDevice<CudaDevice>) -> QuotaDevice<CudaDevice> {
    if is_on() {
        device.keep_mapped();
    }
    device
}

/// The Python lines that this thread stands in; `None`: checked mode is off. No lock of ours may be held.
#[inline]
#[must_use]
pub fn who() -> Option<Place> {
    is_on().then(Place::here)
}

/// The checker of a card, made on first use.
fn with<T>(device: i32, work: impl FnOnce(&mut Checker) -> T) -> Option<T> {
    let slot = CHECKERS.get(usize::try_from(device).ok()?)?;
    let mut guard = slot.lock();
    let bytes = BYTES.load(Ordering::Relaxed);
    Some(work(guard.get_or_insert_with(|| Checker::new(device, bytes))))
}

/// A block was handed out at `addr`. Where something is wrong with it, it was given back.
///
/// # Errors
/// What is wrong, as a text.
pub fn handed_out(card: &mut Card, addr: u64, who: Option<&Place>) -> Result<(), String> {
    let Some(who) = who else { return Ok(()) };
    let device = card.device;
    match with(device, |checker| checker.handed_out(card, addr, who)) {
        Some(Err(finding)) => Err(finding.text()),
        _ => Ok(()),
    }
}

/// The block at `addr`, if there is one, is about to be given back.
pub fn about_to_free(card: &mut Card, addr: u64, who: Option<&Place>) {
    let Some(who) = who else { return };
    let device = card.device;
    if let Some(Err(finding)) = with(device, |checker| checker.about_to_free(card, addr, who)) {
        put_off(finding.text());
    }
}

/// No card, of `device` or of all, has a block at `addr` that could be given back.
pub fn not_there(addr: u64, device: Option<i32>, who: Option<&Place>) {
    let Some(who) = who else { return };
    let devices = device.map_or(0..CARDS as i32, |device| device..device + 1);
    let of_card = |device: i32| {
        let slot = CHECKERS.get(usize::try_from(device).ok()?)?;
        slot.lock().as_mut()?.not_there(addr, who)
    };
    let finding = devices.into_iter().find_map(of_card);
    put_off(finding.unwrap_or_else(|| Finding::FreedUnknown { addr, by: who.clone() }).text());
}

/// Writes what was found to standard error: it cannot be raised here, and the next request raises it.
pub fn put_off(text: String) {
    eprintln!("{text}");
    FOUND.lock().get_or_insert(text);
}

/// What a free found since the last request.
#[must_use]
pub fn take_found() -> Option<String> {
    if is_on() { FOUND.lock().take() } else { None }
}

/// What was checked, as statistics, each with a comma behind it; nothing where the mode is off.
pub fn write_json(out: &mut String, device: i32) {
    if !is_on() {
        return;
    }
    let counts = with(device, |checker| checker.counts).unwrap_or_default();
    for (name, value) in [
        ("filled_bytes", counts.filled),
        ("verified_bytes", counts.verified),
        ("skipped_bytes", counts.skipped),
        ("findings", counts.findings),
    ] {
        let _ = write!(out, "\"gapless.check.{name}\":{value},");
    }
}
