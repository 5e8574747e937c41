//! Which pool a request goes to: routings that PyTorch opens for graph captures and memory pools, each with a filter of streams.

use crate::cxx::Function;
use gapless_pool::PoolKey;
use std::ffi::c_void;

/// `c10::MempoolId_t`, a pair of numbers, passed in two registers.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MempoolId {
    pub first: u64,
    pub second: u64,
}

impl From<MempoolId> for PoolKey {
    fn from(id: MempoolId) -> PoolKey {
        PoolKey(id.first, id.second)
    }
}

impl From<PoolKey> for MempoolId {
    fn from(key: PoolKey) -> MempoolId {
        MempoolId { first: key.0, second: key.1 }
    }
}

/// A filter that is kept: a `std::function<bool(cudaStream_t)>`.
#[derive(Debug)]
pub struct Filter(pub Function);

impl Filter {
    /// Whether requests on `stream` are routed; an empty function takes none.
    #[must_use]
    pub fn accepts(&self, stream: *mut c_void) -> bool {
        self.0.invoker().is_some_and(|(invoke, callable)| {
            // SAFETY: the invoker of such a function has this type, and belongs to the callable.
            unsafe {
                let invoke = std::mem::transmute::<
                    unsafe extern "C-unwind" fn(),
                    unsafe extern "C-unwind" fn(*const c_void, *const *mut c_void) -> bool,
                >(invoke);
                invoke(callable, &raw const stream)
            }
        })
    }
}

/// An open routing.
#[derive(Debug)]
pub struct Routing {
    pub pool: PoolKey,
    pub filter: Filter,
}
