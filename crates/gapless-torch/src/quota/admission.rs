//! Gives a card its quota. The process's tenant takes its place in the card's ledger before the context is made, with
//! an assumed size of the context. The real size is measured afterwards.

use super::outside::{self, CONTEXT, Meter};
use super::{Quota, QuotaDevice};
use crate::process::{CARDS, CardError};
use crate::sharing::readers;
use gapless_cuda::locks::{Lock, SetOnce};
use gapless_cuda::{CudaDevice, Identity, Uuid};
use gapless_ledger::{Ledger, Share, System};
use gapless_pool::Device;
use gapless_stats::folder::{self, Folder};
use std::sync::Arc;

/// A card's quota, and the card's identity.
#[derive(Debug)]
pub struct Admitted {
    pub quota: Arc<Quota>,
    pub uuid: Option<Uuid>,
    pub(super) capacity: u64,
}

/// This process's tenant.
pub(super) static SHARE: Lock<Option<Share>> = Lock::new(|| None);
static CARDS_ADMITTED: [SetOnce<Admitted>; CARDS] = [const { SetOnce::new() }; CARDS];

/// The quota of a card that was used before.
#[must_use]
pub fn of(device: i32) -> Option<&'static Admitted> {
    CARDS_ADMITTED.get(usize::try_from(device).ok()?)?.get()
}

fn share() -> Option<Share> {
    SHARE.lock().clone()
}

/// This process's place in the ledger of a card.
pub(super) fn seat(device: i32, uuid: Option<Uuid>, capacity: u64, share: &Share) -> Result<Ledger, String> {
    let folder = Folder::make(&folder::candidates())
        .map_err(|error| format!("{error}: chmod 700 it, or name another folder by {}", folder::VARIABLE))?;
    let name = uuid.map_or_else(|| format!("card-{device}"), |uuid| uuid.to_string());
    let path = folder.path().join(format!("{name}.ledger"));
    Ledger::join(&path, capacity, share, Box::new(System)).map_err(|error| error.to_string())
}

/// Opens a card for this process. Its budget there is `budget` if that is not 0.
///
/// # Errors
/// If there is no such card, or if the process's tenant cannot have its share of it.
pub fn open(device: i32, budget: u64) -> Result<QuotaDevice<CudaDevice>, CardError> {
    let failed = |error: gapless_cuda::DriverError| CardError::Driver(error.to_string());
    // AMD's cards were never used by us, so their abilities are tried out, once.
    if gapless_hip::choose().map_err(CardError::Driver)? {
        gapless_hip::try_out(device).map_err(failed)?;
    }
    let (capacity, Identity { uuid, .. }) = CudaDevice::about(device).map_err(failed)?;
    let quota = Arc::new(Quota::default());
    if budget > 0 {
        quota.set_budget(budget);
    }
    if let Some(share) = share() {
        let refused = |why: String| CardError::Share(format!("gapless.tenant: {why}"));
        let ledger = seat(device, uuid, capacity, &share).map_err(refused)?;
        quota.join(ledger, CONTEXT).map_err(refused)?;
    }
    let before = uuid.filter(|_| quota.is_on()).and_then(outside::used_by_all);
    let mut cuda = CudaDevice::new(device).map_err(failed)?;
    cuda.ask_readers(readers::has);
    let (free, total) = cuda.memory();
    if quota.is_on() {
        measure_first(&quota, uuid, before, total - free);
    }
    let admitted = Admitted { quota: quota.clone(), uuid, capacity };
    if let Some(slot) = usize::try_from(device).ok().and_then(|at| CARDS_ADMITTED.get(at)) {
        let _ = slot.set(admitted);
    }
    Ok(QuotaDevice::new(cuda, quota))
}

/// Repeats `attempt` while it is refused because others have borrowed from this tenant's share: see
/// [`Quota::when_lent`]. No card is locked.
///
/// # Errors
/// As `attempt`.
pub fn when_lent<T, E>(
    device: i32,
    size: u64,
    is_lent: impl Fn(&E) -> bool,
    mut attempt: impl FnMut() -> Result<T, E>,
) -> Result<T, E> {
    let done = attempt();
    match of(device) {
        Some(card) if done.as_ref().is_err_and(&is_lent) => {
            let mut first = Some(done);
            card.quota.when_lent(size, is_lent, || first.take().unwrap_or_else(&mut attempt))
        }
        _ => done,
    }
}

/// Measures the memory outside of the pool, and keeps measuring. `before` was in use on the card before the context was
/// made, and `in_use` is now.
pub(super) fn measure_first(quota: &Quota, uuid: Option<Uuid>, before: Option<u64>, in_use: u64) {
    if let Some(uuid) = uuid {
        quota.set_meter(Meter::new(move || outside::used_by_this_process(uuid)));
    }
    if quota.measure() {
        return;
    }
    let after = uuid.and_then(outside::used_by_all);
    let grown = before.zip(after).map(|(before, after)| after.saturating_sub(before));
    quota.set_outside(outside::assumed(grown, in_use));
}
