//! Functions and objects that PyTorch hands over: filters, trackers, observers, suppliers, and the gatherer of stacks.

use super::library::Invoker;
use crate::cxx::{Function, SharedPtr};
use crate::guard::check;
use crate::overlay::layout::TraceEntry;
use std::ffi::c_void;

/// The filter of a routing: a `std::function<bool(cudaStream_t)>`.
#[derive(Debug)]
pub struct Filter(pub Function);

impl Filter {
    /// True if requests on `stream` are routed; an empty function takes none.
    ///
    /// # Safety
    /// No [`crate::guard::Barred`] lives on this thread, and our callers let C++ exceptions pass.
    #[must_use]
    pub unsafe fn accepts(&self, stream: *mut c_void) -> bool {
        check("a filter of streams");
        let Some((invoke, callable)) = self.0.invoker() else { return false };
        // SAFETY: PyTorch passed a function of this type, so its invoker has this one; the callable is the
        // function's own.
        unsafe {
            let invoke = std::mem::transmute::<
                Invoker,
                unsafe extern "C-unwind" fn(*const c_void, *const *mut c_void) -> bool,
            >(invoke);
            invoke(callable, &raw const stream)
        }
    }
}

/// A callback for every action: a `std::function<void(const TraceEntry&)>`.
#[derive(Debug)]
pub struct Tracker(pub Function);

impl Tracker {
    /// # Safety
    /// As [`Filter::accepts`]; `entry` points to a complete entry.
    pub unsafe fn tell(&self, entry: *const TraceEntry) {
        check("a tracker");
        let Some((invoke, callable)) = self.0.invoker() else { return };
        // SAFETY: PyTorch passed a function of this type, so its invoker has this one. `entry` is complete: `history`
        // fills all of it before it calls trackers.
        unsafe {
            let invoke = std::mem::transmute::<
                Invoker,
                unsafe extern "C-unwind" fn(*const c_void, *const TraceEntry),
            >(invoke);
            invoke(callable, entry);
        }
    }
}

/// A callback for requests that fail: a `std::function<void(int64_t, size_t, size_t, size_t)>`.
#[derive(Debug)]
pub struct Observer(pub Function);

impl Observer {
    /// # Safety
    /// As [`Filter::accepts`].
    pub unsafe fn tell(&self, device: i64, size: usize, total: usize, free: usize) {
        check("an observer of failures");
        let Some((invoke, callable)) = self.0.invoker() else { return };
        // SAFETY: PyTorch passed a function of this type: its invoker takes each argument by reference.
        unsafe {
            let invoke = std::mem::transmute::<
                Invoker,
                unsafe extern "C-unwind" fn(
                    *const c_void,
                    *const i64,
                    *const usize,
                    *const usize,
                    *const usize,
                ),
            >(invoke);
            invoke(callable, &raw const device, &raw const size, &raw const total, &raw const free);
        }
    }
}

/// An allocator that supplies the memory of a pool: a `CUDAAllocator`, a C++ object with a table of functions.
#[derive(Debug)]
pub(crate) struct Supplier {
    /// Keeps the object alive. Null if PyTorch (up to 2.10) passes a plain pointer and keeps the object alive itself.
    _shared: SharedPtr,
    object: *mut c_void,
    /// Places of `raw_alloc` and `raw_delete` in its table.
    alloc: usize,
    free: usize,
}

// SAFETY: PyTorch calls its allocators from any thread, and we never look into the object.
unsafe impl Send for Supplier {}
// SAFETY: PyTorch calls its allocators from any thread, and we never look into the object.
unsafe impl Sync for Supplier {}

impl Supplier {
    /// # Safety
    /// `object` is a live allocator of this build of PyTorch as long as `shared` is kept or the pool is used.
    pub(crate) unsafe fn new(
        shared: SharedPtr,
        object: *mut c_void,
        (alloc, free): (usize, usize),
    ) -> Supplier {
        Supplier { _shared: shared, object, alloc, free }
    }

    /// Calls `raw_alloc(size)` on the current device and stream; 0 if it has no memory.
    ///
    /// # Safety
    /// As [`Filter::accepts`].
    pub(crate) unsafe fn alloc(&self, size: u64) -> u64 {
        check("an allocator of a memory pool");
        // SAFETY: the object is an allocator, which begins with its table; the place was compared when the overlay was
        // installed.
        unsafe {
            let table = self.object.cast::<*const usize>().read();
            let function = std::mem::transmute::<
                usize,
                unsafe extern "C-unwind" fn(*mut c_void, usize) -> *mut c_void,
            >(table.add(self.alloc).read());
            function(self.object, size as usize) as u64
        }
    }

    /// `raw_delete(addr)`.
    ///
    /// # Safety
    /// As [`Filter::accepts`]; `addr` is from [`Supplier::alloc`], and nothing uses it.
    pub(crate) unsafe fn free(&self, addr: u64) {
        check("an allocator of a memory pool");
        // SAFETY: the object begins with its table, whose places were compared when the overlay was installed.
        unsafe {
            let table = self.object.cast::<*const usize>().read();
            let function = std::mem::transmute::<usize, unsafe extern "C-unwind" fn(*mut c_void, *mut c_void)>(
                table.add(self.free).read(),
            );
            function(self.object, addr as *mut c_void);
        }
    }
}

/// The present stack, from the function that PyTorch gathers it with.
///
/// # Safety
/// As [`Filter::accepts`]; `gatherer` is the function that `recordHistory` received.
pub(crate) unsafe fn gather(gatherer: usize) -> SharedPtr {
    check("the gatherer of stacks");
    let mut stack = SharedPtr::NULL;
    // SAFETY: PyTorch passed this function to gather stacks: it fills the place of its first argument, which is null
    // now.
    unsafe {
        let gatherer = std::mem::transmute::<
            usize,
            unsafe extern "C-unwind" fn(*mut SharedPtr) -> *mut SharedPtr,
        >(gatherer);
        gatherer(&raw mut stack);
    }
    stack
}
