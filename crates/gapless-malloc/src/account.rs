//! Memory of other libraries that the budget counts too: a GPU's, from `libgapless_torch.so`.
//!
//! The other library finds these functions by name, so that neither depends on the other. It may hold locks of its own
//! when it calls them, so nothing here calls it: it gives back what it keeps for reuse by itself, if
//! [`gapless_host_wanted`] asks for it.

use gapless_host::core::BUDGET;
use std::ffi::c_int;
use std::sync::atomic::AtomicU64;

/// Charges memory that is not the host's. Returns 1; 0 if the budget does not allow it; -1 if there is no budget.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_host_charge(bytes: u64) -> c_int {
    if BUDGET.limit() == 0 { -1 } else { c_int::from(BUDGET.charge_beside(bytes)) }
}

/// Ends a charge.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_host_discharge(bytes: u64) {
    BUDGET.discharge(bytes);
}

/// Reports the part of the charged memory that is kept for reuse. Returns 1 if a request needs it.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_host_wanted(kept: u64) -> c_int {
    static SEEN: AtomicU64 = AtomicU64::new(0);
    c_int::from(BUDGET.keep_beside(kept, &SEEN))
}

/// The budget's limit, and the bytes of it that all processes hold.
///
/// # Safety
/// `limit` and `total` are valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_host_budget(limit: *mut u64, total: *mut u64) {
    // SAFETY: both pointers are valid for writing (the caller's contract).
    unsafe {
        limit.write(BUDGET.limit());
        total.write(BUDGET.total());
    }
}
