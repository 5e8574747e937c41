//! Calls that may have to wait for work, and wait with no card locked: other threads request and free meanwhile, and
//! so can let the stream go on that is waited for. A call that found out what it must wait for asks again afterwards.

use crate::card::Card;
use crate::cards;
use crate::interpreter;
use crate::opening;
use crate::process::{self, CARDS, CardError};
use crate::quota::admission;
use gapless_pool::{DeviceError, Patience, PoolKey, Refusal, StreamHandle, Wait};

/// Asks a card until it answers, with a wait after each time that it cannot yet.
///
/// # Errors
/// If there is no such card.
pub fn until_answered<T>(
    device: i32,
    mut ask: impl FnMut(&mut Card, &mut Patience) -> Result<T, Wait>,
) -> Result<T, CardError> {
    let mut patience = Patience::default();
    loop {
        let asked = opening::with_card(device, |card| {
            ask(card, &mut patience).map_err(|wait| (wait, card.pool.device().meter()))
        });
        let (wait, meter) = match asked? {
            Ok(answer) => return Ok(answer),
            Err(later) => later,
        };
        let waited = match &wait {
            Wait::Event(event) => meter.wait(*event),
            Wait::All(_) => meter.wait_for_all(),
        };
        if waited.is_err() {
            patience.give_up();
        }
        opening::with_card(device, |card| card.pool.end_wait(wait, waited.is_ok()))?;
    }
}

/// Gives the free memory of a card back to the device, after its work, and returns the bytes; 0 during a capture, or if
/// the card was not used.
pub fn trim(device: i32) -> u64 {
    trimmed(device, Card::trim)
}

/// [`trim`] for every card.
pub fn trim_all() {
    for device in 0..CARDS as i32 {
        trim(device);
    }
}

/// Takes memory from a card until the pool holds `bytes`.
///
/// # Errors
/// If there is no such card, or if the process cannot hold so much.
pub fn hold(device: i32, bytes: u64) -> Result<(), String> {
    let is_lent = |error: &DeviceError| *error == DeviceError::Refused(Refusal::Lent);
    let hold = || match opening::with_card(device, |card| card.pool.hold(bytes, StreamHandle(0))) {
        Ok(held) => held.map(Ok),
        Err(no_card) => Ok(Err(no_card)),
    };
    match admission::when_lent(device, bytes, is_lent, hold) {
        Ok(done) => done.map_err(|no_card| no_card.to_string()),
        Err(error) => Err(cards::existing(device).map(|card| card.why_not(error)).unwrap_or_default()),
    }
}

/// [`trim`] for one private pool. A pool with users keeps its memory.
pub fn trim_pool(device: i32, pool: PoolKey) -> u64 {
    trimmed(device, |card, patience| card.trim_pool(pool, patience))
}

/// The thread may have Python's lock, which natively too is not held while `torch.cuda.synchronize` waits.
fn trimmed(device: i32, mut trim: impl FnMut(&mut Card, &mut Patience) -> Result<u64, Wait>) -> u64 {
    let mut given = 0;
    if !process::is_forked() && cards::is_used(device) {
        interpreter::without_its_lock(|| given = until_answered(device, &mut trim).unwrap_or(0));
    }
    given
}
