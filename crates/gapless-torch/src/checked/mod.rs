//! Checked mode, `GAPLESS_CHECK=1`: freed memory is filled with a pattern, and the pattern is compared before the
//! memory is handed out again.
//!
//! It reports writes after a free, blocks that share memory, frees of unknown addresses and second frees, with the
//! Python lines of both sides. Every request and every free takes the card's lock and waits for the device, so it is
//! slow. It does not trust the pool: the record of driver calls tells which page lies behind an address
//! ([`gapless_cuda::mapped`]).
//!
//! [`shadow`] knows the state of every byte of every page, [`checker`] compares one card with it, [`place`] names
//! Python lines, and [`report`] writes the text. While a capture is under way, nothing is filled, read or waited for:
//! these bytes count as skipped.
//!
//! Order of locks: the card's, then its checker's. A free must not throw, so its finding is written to standard error
//! and raised by the next request.

pub mod checker;
pub mod place;
pub mod report;
pub mod shadow;

use crate::card::Card;
use crate::options::Settings;
use crate::process::CARDS;
use crate::quota::QuotaDevice;
use checker::Checker;
use gapless_cuda::CudaDevice;
use gapless_cuda::locks::Lock;
use place::Place;
use report::Finding;
use std::fmt::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

static ON: AtomicBool = AtomicBool::new(false);
/// The most bytes of a block that are filled; `u64::MAX`: all.
static BYTES: AtomicU64 = AtomicU64::new(u64::MAX);
static CHECKERS: [Lock<Option<Checker>>; CARDS] = [const { Lock::new(|| None) }; CARDS];
/// The finding of a free, until a request raises it.
static FOUND: Lock<Option<String>> = Lock::new(|| None);

const SLOW: &str = "gapless: checked mode is on (GAPLESS_CHECK). Every free waits for the device and fills the block, and every request \
                    reads it back: expect this run to be many times slower.";

/// True if checked mode is on.
#[inline]
#[must_use]
pub fn is_on() -> bool {
    ON.load(Ordering::Relaxed)
}

/// Turns the mode on if the options say so, with a message. Called before a card is used.
pub fn set(settings: &Settings) {
    if settings.check && !ON.swap(true, Ordering::Relaxed) {
        let bytes = if settings.check_bytes == 0 { u64::MAX } else { settings.check_bytes };
        BYTES.store(bytes, Ordering::Relaxed);
        eprintln!("{SLOW}");
    }
}

/// A card's device. In checked mode it records its mappings.
#[must_use]
pub fn watched(mut device: QuotaDevice<CudaDevice>) -> QuotaDevice<CudaDevice> {
    if is_on() {
        device.keep_mapped();
    }
    device
}

/// The Python lines of this thread; `None` if checked mode is off. No lock of ours may be held.
#[inline]
#[must_use]
pub fn who() -> Option<Place> {
    is_on().then(Place::here)
}

/// Runs `work` on the checker of a card, which is made on first use.
fn with<T>(device: i32, work: impl FnOnce(&mut Checker) -> T) -> Option<T> {
    let slot = CHECKERS.get(usize::try_from(device).ok()?)?;
    let mut guard = slot.lock();
    let bytes = BYTES.load(Ordering::Relaxed);
    Some(work(guard.get_or_insert_with(|| Checker::new(device, bytes))))
}

/// Checks a block that was handed out at `addr`. A block with a finding was given back.
///
/// # Errors
/// The finding, as a text.
pub fn handed_out(card: &mut Card, addr: u64, who: Option<&Place>) -> Result<(), String> {
    let Some(who) = who else { return Ok(()) };
    let device = card.device;
    match with(device, |checker| checker.handed_out(card, addr, who)) {
        Some(Err(finding)) => Err(finding.text()),
        _ => Ok(()),
    }
}

/// Checks the block at `addr`, if there is one, before it is given back.
pub fn about_to_free(card: &mut Card, addr: u64, who: Option<&Place>) {
    let Some(who) = who else { return };
    let device = card.device;
    if let Some(Err(finding)) = with(device, |checker| checker.about_to_free(card, addr, who)) {
        put_off(finding.text());
    }
}

/// Reports a free that no card, of `device` or of all, has a block for.
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

/// Writes a finding to standard error. It cannot be raised here, so the next request raises it.
pub fn put_off(text: String) {
    eprintln!("{text}");
    FOUND.lock().get_or_insert(text);
}

/// The finding of a free since the last request.
#[must_use]
pub fn take_found() -> Option<String> {
    if is_on() { FOUND.lock().take() } else { None }
}

/// The counts as JSON members, each followed by a comma; nothing if the mode is off.
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
