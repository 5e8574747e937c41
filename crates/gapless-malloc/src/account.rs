//! Memory of others that the budget counts too: a GPU's, by `libgapless_torch.so`.
//!
//! The other library finds these functions by name, so that neither needs the other. It may hold locks of its own when
//! it calls them, and nothing here calls it: what it keeps for reuse it gives back by itself, where
//! [`gapless_host_wanted`] says so.

use gapless_host::core::BUDGET;
use std::ffi::c_int;
use std::sync::atomic::AtomicU64;

/// Charges memory that is no memory of the host's: 1. 0: the budget does not allow it. -1: there is no budget.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_host_charge(bytes: u64) -> c_int {
    if BUDGET.limit() == 0 { -1 } else { c_int::from(BUDGET.charge_beside(bytes)) }
}

/// Takes a charge back.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_host_discharge(bytes: u64) {
    BUDGET.discharge(bytes);
}

/// Tells what of the charged memory is kept for reuse. 1: a request somewhere needs it.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_host_wanted(kept: u64) -> c_int {
    static SEEN: AtomicU64 = AtomicU64::new(0);
    c_int::from(BUDGET.keep_beside(kept, &SEEN))
}

/// The budget's limit, and what all processes hold of it.
///
/// # Safety
/// `limit` and `total` are valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_host_budget(limit: *mut u64, total: *mut u64) {
    // SAFETY: the caller's promise.
    unsafe {
        limit.write(BUDGET.limit());
        total.write(BUDGET.total());
    }
}
