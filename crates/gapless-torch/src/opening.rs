//! A card is made on its first use, with everything that listens to it, serves it or reports it.

use crate::card::{Card, needs_log};
use crate::cards::{Locked, existing, pictures};
use crate::options::Settings;
use crate::planner::Background;
use crate::process::{CARDS, CardError, is_forked};
use crate::quota::{admission, host, ticker};
use crate::{cards, checked, conf, forks, history, publisher, recorder};
use gapless_cuda::locks::{Lock, SetOnce};
use gapless_pool::{Pool, Shared, StreamHandle};

static SETTINGS: SetOnce<Settings> = SetOnce::new();
/// Held while a card is made: one thread asks the driver, and the others wait. It is one for all cards, so that two
/// that are made at the same time meet.
static MAKING: Lock<()> = Lock::new(|| ());

/// Sets the options, once.
///
/// # Errors
/// If other options were set before.
pub fn set_settings(settings: Settings) -> Result<(), String> {
    let set = SETTINGS.get_or_init(|| settings);
    checked::set(set);
    if *set == settings { Ok(()) } else { Err("gapless is enabled already, with other options".to_owned()) }
}

/// Runs `work` on a card's allocator, which is made on first use.
///
/// # Errors
/// If there is no such card or no driver, or if the tenant's share has no room.
pub fn with_card<T>(device: i32, work: impl FnOnce(&mut Card) -> T) -> Result<T, CardError> {
    if is_forked() {
        return Err(CardError::Forked);
    }
    let at = usize::try_from(device).ok().filter(|at| *at < CARDS).ok_or(CardError::NoSuchCard(device))?;
    let card = match cards::known(at) {
        Some(card) => card,
        None => made(at, device)?,
    };
    Ok(work(&mut Locked::new(device, card)))
}

/// Makes a card's allocator, unless another thread just did.
#[cold]
fn made(at: usize, device: i32) -> Result<&'static Shared<Card>, CardError> {
    let _making = MAKING.lock();
    if let Some(card) = cards::known(at) {
        return Ok(card);
    }
    let settings = SETTINGS.get().copied().unwrap_or_default();
    let quota_device = checked::watched(admission::open(device, settings.budget)?);
    if quota_device.quota().is_on() || host::budget().is_some() {
        ticker::start();
    }
    // A child that was forked before this point has no CUDA state of its parent to damage.
    forks::watch();
    let mut card = Card::new(device, Pool::new(quota_device, settings.pool), settings.pool.limit);
    card.set_fraction(conf::memory_fraction());
    recorder::start(pictures);
    card.pool.set_log(needs_log());
    if history::has_trackers() {
        card.pool.set_private_windows(false);
    }
    if !settings.unplanned {
        card.pool.set_planner(Some(Box::new(Background { device })));
    }
    if settings.reserve > 0 {
        // The program can run with less memory than `reserve` asks for, so a failure here is ignored.
        let _ = card.pool.hold(settings.reserve, StreamHandle(0));
    }
    meet(&mut card);
    let card = cards::add(at, card);
    if !settings.hidden {
        publisher::start();
    }
    Ok(card)
}

/// Lets a new card and the cards of this process use each other's memory if the driver allows it. This happens before
/// any thread finds the card: work on it may then use whatever the program has. A card that refuses is left out: copies
/// between the cards work without a grant.
fn meet(card: &mut Card) {
    for (user, owner) in gapless_cuda::peers::met(card.device) {
        if owner == card.device {
            let _ = card.add_peer(user);
        } else if let Some(mut other) = existing(owner) {
            let _ = other.add_peer(user);
        }
    }
}
