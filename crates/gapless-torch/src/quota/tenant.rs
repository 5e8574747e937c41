//! Adds a process that runs to a tenant.

use super::admission::{SHARE, measure_first, of, seat};
use super::ticker;
use crate::cards;
use crate::process::{self, CARDS, CardError};
use gapless_ledger::Share;
use gapless_pool::Device;

/// Adds this process to a tenant: on the cards that it uses now, and on those that it will use.
///
/// # Errors
/// If `text` is no share (`a:30GiB`, `a:60%:borrow`), if the process belongs to another tenant, or if the share has no
/// room. The text says why; nothing has changed then.
pub fn set_share(text: &str) -> Result<(), String> {
    if process::is_forked() {
        return Err(CardError::Forked.to_string());
    }
    let wanted = text.parse::<Share>().map_err(|error| error.to_string())?;
    {
        let mut share = SHARE.lock();
        match &*share {
            Some(set) if *set == wanted => return Ok(()),
            Some(set) => return Err(format!("this process is tenant {:?} already, and stays so", set.name)),
            None => *share = Some(wanted.clone()),
        }
    }
    for device in 0..CARDS as i32 {
        let Some((mut card, admitted)) = cards::existing(device).zip(of(device)) else { continue };
        if admitted.quota.has_seat() {
            continue;
        }
        let (free, total) = card.pool.device_mut().memory();
        let in_use = (total - free).saturating_sub(admitted.quota.reserved());
        measure_first(&admitted.quota, admitted.uuid, None, in_use);
        let context = admitted.quota.figures().outside;
        let joined = seat(device, admitted.uuid, admitted.capacity, &wanted)
            .and_then(|ledger| admitted.quota.join(ledger, context));
        if let Err(why) = joined {
            *SHARE.lock() = None;
            return Err(why);
        }
        // The context exists even if the tenant had no room for it, so it is counted.
        admitted.quota.set_outside(context);
        ticker::start();
    }
    Ok(())
}
