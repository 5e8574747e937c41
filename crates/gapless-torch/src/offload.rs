//! What the Python package needs to move tensors to the host and back: the process's pool of pinned memory, and what a
//! card has in use.
//!
//! One pool for all cards, made on first use, behind a lock of its own that is taken last. A forked child gets no
//! memory from it and gives none back: what is pinned is its parent's. Nothing is torn down at exit.

use crate::hooks::{guarded, set_error};
use crate::{budgets, state};
use gapless_cuda::Pinned;
use gapless_cuda::locks::{Guard, Lock};
use gapless_pool::host::{HostPool, HostStats};
use std::ffi::c_void;

static HOST: Lock<Option<HostPool<Pinned>>> = Lock::new(|| None);

fn host() -> Guard<'static, Option<HostPool<Pinned>>> {
    HOST.lock()
}

/// Pinned host memory for `size` bytes; the pool holds at most `limit` bytes where that is not 0.
///
/// # Errors
/// When the host has none.
pub(crate) fn alloc(device: i32, size: u64, limit: u64) -> Result<u64, String> {
    if state::is_forked() {
        return Err(state::CardError::Forked.to_string());
    }
    let mut host = host();
    let pool = match &mut *host {
        Some(pool) => pool,
        None => {
            let pinned = Pinned::new(device).map_err(|error| error.to_string())?;
            state::watch_forks();
            host.insert(HostPool::new(pinned))
        }
    };
    pool.alloc(size, (limit > 0).then_some(limit)).map_err(|error| error.to_string())
}

/// Gives back what [`alloc`] gave: no copy uses it any more.
pub(crate) fn free(addr: u64) {
    if !state::is_forked()
        && let Some(pool) = host().as_mut()
    {
        pool.free(addr);
    }
}

/// Pinned host memory for `size` bytes, through the context of card `device` where the pool is new; the pool holds at
/// most `limit` bytes where that is not 0. Null with a message in `gapless_last_error` where there is none.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_host_alloc(device: i32, size: u64, limit: u64) -> *mut c_void {
    let inside = || Err("the host pool failed inside; please report it".to_owned());
    match guarded(inside(), || alloc(device, size, limit)) {
        Ok(addr) => addr as *mut c_void,
        Err(message) => {
            set_error(&message);
            std::ptr::null_mut()
        }
    }
}

/// Gives a block back: no copy uses it any more. 0, or -1 where it was none.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_host_free(pointer: *mut c_void) -> i32 {
    if state::is_forked() {
        return 0;
    }
    guarded(-1, || {
        let freed = host().as_mut().is_some_and(|pool| pool.free(pointer as u64));
        if freed { 0 } else { -1 }
    })
}

/// Unpins what nobody uses; the bytes.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_host_trim() -> u64 {
    if state::is_forked() {
        return 0;
    }
    guarded(0, || host().as_mut().map_or(0, HostPool::trim))
}

/// Writes what the host pool counts: live, allocated, reserved, peak allocated, peak reserved (bytes), slabs.
///
/// # Safety
/// `out` is valid for six writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_host_stats(out: *mut u64) {
    let stats = if state::is_forked() {
        HostStats::default()
    } else {
        guarded(HostStats::default(), || host().as_ref().map(HostPool::stats).unwrap_or_default())
    };
    let HostStats { live, allocated, reserved, peak_allocated, peak_reserved, slabs } = stats;
    for (at, value) in
        [live, allocated, reserved, peak_allocated, peak_reserved, slabs].into_iter().enumerate()
    {
        // SAFETY: as the caller says.
        unsafe { out.add(at).write(value) };
    }
}

/// Writes what a card has in use: active now, reserved (bytes), and the limit, 0 where there is none; where `is_new` is
/// not 0 also the most that was active since it last was, and what is stranded. 0, or -1 where the card was not used
/// yet.
///
/// # Safety
/// `out` is valid for five writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_usage(device: i32, is_new: i32, out: *mut u64) -> i32 {
    if state::is_forked() {
        return -1;
    }
    let found = guarded(None, || {
        let mut card = state::existing(device)?;
        let (crest, stranded) =
            if is_new == 0 { (0, 0) } else { (card.pool.take_crest(), card.pool.stranded()) };
        let stats = card.pool.stats();
        // An open scope allows what is left of its budget, beside what is in use now.
        let scope = budgets::left_on(device).map(|left| stats.active.current + left);
        let limit = card.most().into_iter().chain(scope).min().unwrap_or(0);
        Some([stats.active.current, stats.reserved.current, limit, crest, stranded])
    });
    let Some(values) = found else { return -1 };
    for (at, value) in values.into_iter().enumerate() {
        // SAFETY: as the caller says.
        unsafe { out.add(at).write(value) };
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_driver_there_is_an_error_and_nothing_else() {
        // A machine with a driver gives memory; both ways the calls are sound.
        let at = gapless_host_alloc(0, 1 << 20, 0);
        if at.is_null() {
            assert_eq!(gapless_host_free(8 as *mut c_void), -1);
            assert_eq!(gapless_host_trim(), 0);
        } else {
            assert_eq!((gapless_host_free(at), gapless_host_free(at)), (0, -1));
            assert!(gapless_host_trim() > 0);
        }
        let mut stats = [9; 6];
        // SAFETY: room for six.
        unsafe { gapless_host_stats(stats.as_mut_ptr()) };
        assert_eq!(stats[0], 0);
        // SAFETY: room for five.
        assert_eq!(unsafe { gapless_usage(63, 1, stats.as_mut_ptr()) }, -1);
    }
}
