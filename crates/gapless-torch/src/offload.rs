//! Pinned host memory and figures of a card, for the Python package, which moves tensors to the host and back.
//!
//! One pool serves all cards. It is made on first use, behind a lock of its own that is taken last. A forked child gets
//! no memory from it and gives none back: pinned memory belongs to its parent. Nothing is torn down at exit.

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

/// Pinned host memory for `size` bytes. The pool holds at most `limit` bytes if that is not 0.
///
/// # Errors
/// If the host has none.
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

/// Frees a block of [`alloc`] that no copy uses any more.
pub(crate) fn free(addr: u64) {
    if !state::is_forked()
        && let Some(pool) = host().as_mut()
    {
        pool.free(addr);
    }
}

/// Pinned host memory for `size` bytes; the pool holds at most `limit` bytes if that is not 0. A new pool uses the
/// context of card `device`. Null with a message in `gapless_last_error` if there is none.
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

/// Frees a block that no copy uses any more. 0, or -1 if there is no such block.
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

/// Unpins memory that is not in use, and returns its bytes.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_host_trim() -> u64 {
    if state::is_forked() {
        return 0;
    }
    guarded(0, || host().as_mut().map_or(0, HostPool::trim))
}

/// Writes the host pool's figures: live, allocated, reserved, peak allocated, peak reserved (bytes), slabs.
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
        // SAFETY: the Python package passes an array of six numbers.
        unsafe { out.add(at).write(value) };
    }
}

/// Writes a card's figures: active and reserved bytes, and the limit (0: none). If `is_new` is not 0, also the most
/// that was active since the last such call, and the stranded bytes. 0, or -1 if the card was not used yet.
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
        // An open scope allows the rest of its budget, beside what is in use now.
        let scope = budgets::left_on(device).map(|left| stats.active.current + left);
        let limit = card.most().into_iter().chain(scope).min().unwrap_or(0);
        Some([stats.active.current, stats.reserved.current, limit, crest, stranded])
    });
    let Some(values) = found else { return -1 };
    for (at, value) in values.into_iter().enumerate() {
        // SAFETY: the Python package passes an array of five numbers.
        unsafe { out.add(at).write(value) };
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_driver_there_is_an_error_and_nothing_else() {
        // On a machine with a driver the calls give memory. The test accepts both.
        let at = gapless_host_alloc(0, 1 << 20, 0);
        if at.is_null() {
            assert_eq!(gapless_host_free(8 as *mut c_void), -1);
            assert_eq!(gapless_host_trim(), 0);
        } else {
            assert_eq!((gapless_host_free(at), gapless_host_free(at)), (0, -1));
            assert!(gapless_host_trim() > 0);
        }
        let mut stats = [9; 6];
        // SAFETY: room for six numbers.
        unsafe { gapless_host_stats(stats.as_mut_ptr()) };
        assert_eq!(stats[0], 0);
        // SAFETY: room for five numbers.
        assert_eq!(unsafe { gapless_usage(63, 1, stats.as_mut_ptr()) }, -1);
    }
}
