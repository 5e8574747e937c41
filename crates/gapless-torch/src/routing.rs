//! Which pool a request goes to: routings that PyTorch opens for graph captures and memory pools, each with a filter of streams.

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

/// `std::function<bool(cudaStream_t)>` of libstdc++: two words of callable, a manager and an invoker.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct StdFunction {
    callable: [*mut c_void; 2],
    manager: Option<unsafe extern "C" fn(*mut c_void, *const c_void, i32) -> bool>,
    invoker: Option<unsafe extern "C-unwind" fn(*const c_void, *const *mut c_void) -> bool>,
}

const COPY: i32 = 2;
const DESTROY: i32 = 3;

/// A filter that is kept: a copy of what PyTorch handed in.
#[derive(Debug)]
pub struct Filter(StdFunction);

// SAFETY: PyTorch calls such filters from any thread; they hold plain values.
unsafe impl Send for Filter {}

impl Filter {
    /// Copies the function object behind `function`.
    ///
    /// # Safety
    /// `function` points at a live `std::function<bool(cudaStream_t)>`.
    #[must_use]
    pub unsafe fn copy_of(function: *const StdFunction) -> Filter {
        // SAFETY: as the caller says; the manager copies the callable into ours.
        unsafe {
            let source = &*function;
            let mut copy = StdFunction { callable: [std::ptr::null_mut(); 2], manager: None, invoker: None };
            if let Some(manager) = source.manager {
                manager((&raw mut copy.callable).cast(), (&raw const source.callable).cast(), COPY);
                copy.manager = source.manager;
                copy.invoker = source.invoker;
            }
            Filter(copy)
        }
    }

    /// Whether requests on `stream` are routed; an empty function takes none.
    #[must_use]
    pub fn accepts(&self, stream: *mut c_void) -> bool {
        // SAFETY: the invoker belongs to our copy of the callable.
        self.0
            .invoker
            .is_some_and(|invoke| unsafe { invoke((&raw const self.0.callable).cast(), &raw const stream) })
    }
}

impl Drop for Filter {
    fn drop(&mut self) {
        if let Some(manager) = self.0.manager {
            let callable: *mut c_void = (&raw mut self.0.callable).cast();
            // SAFETY: the copy is ours to destroy, once.
            unsafe { manager(callable, callable, DESTROY) };
        }
    }
}

/// An open routing.
#[derive(Debug)]
pub struct Routing {
    pub pool: PoolKey,
    pub filter: Filter,
}
