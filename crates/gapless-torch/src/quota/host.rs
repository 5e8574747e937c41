//! One budget for the memory of host and card: pages are charged to the budget of `libgapless_malloc.so`, if this
//! process runs under that library.
//!
//! Its functions are found by name, so neither library needs the other. A host request that meets the limit waits a
//! while for free memory of pools. The [`ticker`](super::ticker) gives that back, so that `malloc` never calls a pool.

use crate::cxx;
use gapless_cuda::locks::SetOnce;
use std::ffi::{CStr, c_int, c_void};

/// `1`: the host's budget counts the pools of cards too.
const VARIABLE: &str = "GAPLESS_HOST_LIMIT_GPU";

/// The functions of `crates/gapless-malloc/src/account.rs`.
#[derive(Debug)]
pub struct HostBudget {
    charge: extern "C" fn(u64) -> c_int,
    discharge: extern "C" fn(u64),
    wanted: extern "C" fn(u64) -> c_int,
    budget: unsafe extern "C" fn(*mut u64, *mut u64),
}

/// The budget that pools are charged to. `None` if the program did not ask for it, or if the process has no such
/// budget.
pub fn budget() -> Option<&'static HostBudget> {
    static FOUND: SetOnce<Option<HostBudget>> = SetOnce::new();
    let find_once = || {
        if std::env::var(VARIABLE).is_ok_and(|value| value == "1") {
            let found = HostBudget::find().filter(|budget| (budget.charge)(0) >= 0);
            if found.is_none() {
                eprintln!(
                    "gapless: {VARIABLE}=1 has no effect: no budget of libgapless_malloc.so is set in this process. Start it \
                     with `gapless run --host --host-limit BYTES --host-limit-gpu`."
                );
            }
            found
        } else {
            None
        }
    };
    FOUND.get_or_init(find_once).as_ref()
}

impl HostBudget {
    fn find() -> Option<HostBudget> {
        let find = |name: &CStr| cxx::find_global(&[c"libgapless_malloc.so"], name);
        let (charge, discharge) = (find(c"gapless_host_charge")?, find(c"gapless_host_discharge")?);
        let (wanted, budget) = (find(c"gapless_host_wanted")?, find(c"gapless_host_budget")?);
        // SAFETY: the functions have these names and types in `account.rs`, and their library is never unloaded.
        unsafe {
            Some(HostBudget {
                charge: std::mem::transmute::<*mut c_void, extern "C" fn(u64) -> c_int>(charge),
                discharge: std::mem::transmute::<*mut c_void, extern "C" fn(u64)>(discharge),
                wanted: std::mem::transmute::<*mut c_void, extern "C" fn(u64) -> c_int>(wanted),
                budget: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut u64, *mut u64)>(budget),
            })
        }
    }

    /// Charges a page. False if the budget does not allow it.
    pub fn charge(&self, bytes: u64) -> bool {
        (self.charge)(bytes) != 0
    }

    pub fn discharge(&self, bytes: u64) {
        (self.discharge)(bytes);
    }

    /// Reports the free bytes of pools. True if a request of some process needs them.
    pub fn is_wanted(&self, kept: u64) -> bool {
        (self.wanted)(kept) != 0
    }

    /// The limit, and the bytes that are held of it.
    pub fn figures(&self) -> (u64, u64) {
        let (mut limit, mut total) = (0, 0);
        // SAFETY: both places are variables of this function.
        unsafe { (self.budget)(&raw mut limit, &raw mut total) };
        (limit, total)
    }
}
