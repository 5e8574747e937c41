//! Elastic tensors: addresses for the largest size, and pages that come and go. The book is
//! [`gapless_pool::elastic`]. [`pools`] has the pools, each with a thread that maps and unmaps. Here they are opened,
//! on a card that may be made for them.
//!
//! The thread has a device of its own, so that it never takes the card's lock. It shares the card's quota, so that each
//! page counts in the process's budget and its tenant's share. Callers make no driver call, except to reserve
//! addresses. Order of locks: the list of pools, then a pool's book, then those of `queued`.

pub(crate) mod pools;

use crate::background;
use crate::opening;
use crate::quota::{QuotaDevice, admission};
use crate::tensors::{self, ManagedTensor};
use gapless_cuda::locks::{Lock, Signal};
use gapless_cuda::{CudaDevice, room};
use gapless_pool::Device;
use gapless_pool::elastic::Book;
use pools::{GRANULE, Held, Pool, pool, pools};
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

/// Makes a pool of pages of `page` bytes, with at most `limit` bytes if that is not 0. Returns its number.
///
/// # Errors
/// If pages cannot have this size, or if the card or a thread cannot be had.
pub(crate) fn open(device: i32, page: u64, limit: u64) -> Result<i64, String> {
    static LAST: AtomicI64 = AtomicI64::new(0);
    if page == 0 || !page.is_multiple_of(GRANULE) {
        return Err(format!("a page of {page} bytes cannot be: pages have a multiple of 2 MiB"));
    }
    // Makes the card, with its quota.
    opening::with_card(device, |_| ()).map_err(|error| error.to_string())?;
    let quota = admission::of(device).ok_or("the card has no quota")?.quota.clone();
    let own = CudaDevice::new(device).map_err(|error| error.to_string())?.beside();
    let limit = (limit > 0).then(|| usize::try_from(limit / page).unwrap_or(usize::MAX));
    let pool = Arc::new(Pool {
        device,
        book: Lock::with(Book::new(page, limit), || Book::new(GRANULE, None)),
        work: Signal::new(),
        news: Signal::new(),
        is_closed: AtomicBool::new(false),
    });
    let worker = pool.clone();
    background::spawn("gapless-elastic", move || {
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            worker.run(QuotaDevice::new(own, quota).patient())
        }));
    })
    .map_err(|error| format!("no thread can be started ({error})"))?;
    let number = LAST.fetch_add(1, Ordering::Relaxed) + 1;
    pools().insert(number, pool);
    Ok(number)
}

/// Reserves addresses for `slots` pages. Returns the number of the range, and its tensor of bytes.
///
/// # Errors
/// If the pool is closed, or if the card has no such addresses.
pub(crate) fn reserve(number: i64, slots: u64) -> Result<(u32, *mut ManagedTensor), String> {
    let pool = pool(number)?;
    let page = pool.book().page();
    let slots_here = usize::try_from(slots).map_err(|_| "it is too large".to_owned())?;
    let size = page.checked_mul(slots).filter(|size| *size <= 1 << 46).ok_or("it is too large")?;
    let base = opening::with_card(pool.device, |card| card.pool.device_mut().reserve(size))
        .map_err(|error| error.to_string())?
        .map_err(|error| format!("{} ({error:?})", room::why_not(size)))?;
    let range = pool.book().add(base, slots_here);
    let held: Arc<dyn Any + Send + Sync> = Arc::new(Held { pool: pool.clone(), range });
    Ok((range.0, tensors::bytes_at(base, size, pool.device, held)))
}
