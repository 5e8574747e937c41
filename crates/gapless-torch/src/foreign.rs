//! The only module that calls foreign code that may throw: PyTorch's filters, trackers, observers, gatherers of stacks
//! and plain functions, and functions of the C++ library.
//!
//! A C++ exception from such a call passes through our frames to PyTorch, which turns it into a Python exception, as
//! with its own allocator. Rust (the reference, "Unwinding"; RFC 2945) demands that every function on the way is
//! `C-unwind` or Rust's own, whose destructors run. No `catch_unwind` may lie on the way, because that ends the
//! process. A lock on the way would be released while its data is half changed. So nothing of this module is called
//!
//! * below [`guarded`](crate::hooks::guarded) or the closure of `overlay::answer`, which catch panics;
//! * with a card locked;
//! * from a thread of our own, or from a function that Python calls by ctypes: there is no C++ that catches it.
//!
//! Builds with debug assertions, which the tests use, check the first two at each call ([`Barred`]). `tests/foreign.rs`
//! checks that no other file calls such a function.

use crate::cxx::{Callbacks, CxxString, Function, SharedPtr, find};
use crate::overlay::layout::{CUDA, Device, TraceEntry};
use gapless_cuda::locks::SetOnce;
use std::ffi::{CStr, c_void};
use std::marker::PhantomData;

/// Functions by their types. `operator new`.
pub(crate) type New = unsafe extern "C-unwind" fn(usize) -> *mut c_void;
/// Copies or destroys the callable of a `std::function`.
pub(crate) type Manager = unsafe extern "C-unwind" fn(*mut c_void, *const c_void, i32) -> bool;
/// Calls it. Its true type depends on the function's.
pub(crate) type Invoker = unsafe extern "C-unwind" fn();
/// Frees the memory of a tensor. It is ours; PyTorch calls it.
pub type Deleter = unsafe extern "C-unwind" fn(*mut c_void);
/// `__cxa_throw`.
pub(crate) type Throw = unsafe extern "C-unwind" fn(*mut c_void, *const c_void, *const c_void) -> !;

// ---- sections that must not throw ----

#[cfg(debug_assertions)]
thread_local! {
    /// Number of callers that an exception must not pass.
    static BARRED: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

/// While it lives, this thread calls nothing that may throw.
#[derive(Debug)]
pub struct Barred(PhantomData<*const ()>);

impl Barred {
    #[inline]
    #[must_use]
    pub fn new() -> Barred {
        #[cfg(debug_assertions)]
        BARRED.with(|barred| barred.set(barred.get() + 1));
        Barred(PhantomData)
    }
}

impl Default for Barred {
    fn default() -> Barred {
        Barred::new()
    }
}

impl Drop for Barred {
    #[inline]
    fn drop(&mut self) {
        #[cfg(debug_assertions)]
        BARRED.with(|barred| barred.set(barred.get() - 1));
    }
}

/// Aborts a debug build that calls foreign code below a guard or with a card locked.
#[inline]
fn check(what: &str) {
    #[cfg(debug_assertions)]
    if BARRED.with(std::cell::Cell::get) > 0 {
        eprintln!("gapless: {what} may throw, and was called below a guard or with a card locked");
        std::process::abort();
    }
    let _ = what;
}

// ---- functions that PyTorch hands over ----

/// The filter of a routing: a `std::function<bool(cudaStream_t)>`.
#[derive(Debug)]
pub struct Filter(pub Function);

impl Filter {
    /// True if requests on `stream` are routed; an empty function takes none.
    ///
    /// # Safety
    /// No [`Barred`] lives on this thread, and our callers let C++ exceptions pass.
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

/// Calls the function of PyTorch's plug-in that enables peers.
///
/// # Safety
/// As [`Filter::accepts`]; `function` is from this place of the table, and `this` is the table's object.
pub(crate) unsafe fn enable_peer(function: usize, this: *mut c_void, user: i8, owner: i8) {
    check("PyTorch's switch for peers");
    // SAFETY: the overlay read `function` from the place for this call, whose functions have this type, and passes the
    // object that it was called with.
    unsafe {
        let function =
            std::mem::transmute::<usize, unsafe extern "C-unwind" fn(*mut c_void, i8, i8)>(function);
        function(this, user, owner);
    }
}

/// True if a workspace of cuBLAS or cuBLASLt may have this size. Settings change the size while the program runs, and
/// newer releases of PyTorch make workspaces of any size.
///
/// # Safety
/// As [`Filter::accepts`].
pub(crate) unsafe fn is_workspace_size(size: usize) -> bool {
    type Ask = unsafe extern "C-unwind" fn() -> usize;
    /// The least size of a workspace in releases that make any size.
    const LEAST: usize = 64 << 10;
    static KNOWN: SetOnce<(Vec<Ask>, bool)> = SetOnce::new();
    let (sizes, is_any) = KNOWN.get_or_init(|| {
        let names = [c"_ZN2at4cuda22getChosenWorkspaceSizeEv", c"_ZN2at4cuda26getCUDABlasLtWorkspaceSizeEv"];
        let found = names.iter().filter_map(|name| find(&TORCH_CUDA, name));
        // SAFETY: PyTorch's headers give both names this type.
        let asks = found.map(|function| unsafe { std::mem::transmute::<*mut c_void, Ask>(function) });
        (asks.collect(), find(&TORCH_CUDA, c"_ZN2at4cuda22getCUDABlasLtWorkspaceEm").is_some())
    });
    check("PyTorch's choice of workspaces");
    // SAFETY: functions without arguments, of the type that PyTorch's headers give; exceptions may pass.
    (*is_any && size >= LEAST) || sizes.iter().any(|ask| unsafe { ask() } == size)
}

/// A callback that frees memory: `std::unique_ptr<c10::FreeMemoryCallback>`.
#[repr(C)]
struct Callback(*mut *const CallbackTable);

/// Its table, from the first function on.
#[repr(C)]
struct CallbackTable {
    destroy: unsafe extern "C-unwind" fn(*mut c_void),
    destroy_and_free: unsafe extern "C-unwind" fn(*mut c_void),
    execute: unsafe extern "C-unwind" fn(*mut c_void) -> bool,
}

impl Callback {
    /// # Safety
    /// As [`Filter::accepts`].
    unsafe fn execute(&self) -> bool {
        // SAFETY: the registry made the object, or gave null; the object begins with its table.
        unsafe { !self.0.is_null() && ((**self.0).execute)(self.0.cast()) }
    }
}

impl Drop for Callback {
    fn drop(&mut self) {
        if !self.0.is_null() {
            // SAFETY: a live object that this `Callback` alone owns. Destructors do not throw.
            unsafe { ((**self.0).destroy_and_free)(self.0.cast()) };
        }
    }
}

/// The allocator that is registered for a kind of device; null if there is none.
///
/// # Safety
/// `get` is `c10::GetAllocator`, which throws nothing for a kind that has one.
pub(crate) unsafe fn registered_allocator(get: *mut c_void, kind: &i8) -> *mut c_void {
    // SAFETY: `get` is `c10::GetAllocator`, which has this type and throws nothing for a kind with an allocator.
    unsafe {
        let get =
            std::mem::transmute::<*mut c_void, unsafe extern "C-unwind" fn(*const i8) -> *mut c_void>(get);
        get(kind)
    }
}

/// The name of an allocator; empty for null.
///
/// # Safety
/// `object` is null or a live allocator whose table has `name` at `place`; PyTorch's own names throw nothing.
pub(crate) unsafe fn name_of(object: *mut c_void, place: usize) -> String {
    type Name = unsafe extern "C-unwind" fn(*mut CxxString, *mut c_void) -> *mut CxxString;
    if object.is_null() {
        return String::new();
    }
    let mut name = std::mem::MaybeUninit::<CxxString>::uninit();
    // SAFETY: `object` is a live allocator with `name` at `place`. The string stays at its address and is freed here.
    unsafe {
        let table = object.cast::<*const usize>().read();
        let function = std::mem::transmute::<usize, Name>(table.add(place).read());
        function(name.as_mut_ptr(), object);
        let text = name.assume_init_ref().to_text();
        CxxString::end(name.as_mut_ptr());
        text
    }
}

/// A snapshot of an allocator of this build, which contains its settings.
///
/// # Safety
/// As [`Filter::accepts`]; `object` is a live allocator with `snapshot` at `place`, and `out` has room for the result.
pub(crate) unsafe fn snapshot_of(object: *mut c_void, place: usize, out: *mut c_void) {
    type Snapshot = unsafe extern "C-unwind" fn(*mut c_void, *mut c_void, u64, u64, bool) -> *mut c_void;
    check("PyTorch's own allocator");
    // SAFETY: `object` is a live allocator with `snapshot` at `place`, and `out` has room for the result. A function
    // that takes no switch for the history ignores the last argument.
    unsafe {
        let table = object.cast::<*const usize>().read();
        let function = std::mem::transmute::<usize, Snapshot>(table.add(place).read());
        function(out, object, 0, 0, false);
    }
}

// ---- PyTorch's own functions ----

/// `c10::cuda::CUDAStream`: a device and a number.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Stream {
    device: u64,
    id: u64,
}

/// The functions of PyTorch that we call.
#[derive(Debug)]
pub(crate) struct Torch {
    current_device: unsafe extern "C-unwind" fn() -> i8,
    current_stream: unsafe extern "C-unwind" fn(i8) -> Stream,
    stream_handle: unsafe extern "C-unwind" fn(*const Stream) -> *mut c_void,
    is_profiling: unsafe extern "C-unwind" fn() -> bool,
    report: unsafe extern "C-unwind" fn(*mut c_void, i64, usize, usize, Device),
    report_failure: Option<unsafe extern "C-unwind" fn(i64, usize, usize, Device)>,
    callbacks: Option<unsafe extern "C-unwind" fn() -> *const Callbacks>,
}

const C10_CUDA: [&CStr; 1] = [c"libc10_cuda.so"];
const C10: [&CStr; 1] = [c"libc10.so"];
const TORCH_CUDA: [&CStr; 1] = [c"libtorch_cuda.so"];

/// PyTorch's functions; `None`: this build does not export all of them.
pub(crate) fn torch() -> Option<&'static Torch> {
    static TORCH: SetOnce<Option<Torch>> = SetOnce::new();
    TORCH.get_or_init(look_up).as_ref()
}

fn look_up() -> Option<Torch> {
    let device = find(&C10_CUDA, c"_ZN3c104cuda14current_deviceEv")?;
    let stream = find(&C10_CUDA, c"_ZN3c104cuda20getCurrentCUDAStreamEa")?;
    let handle = find(&C10_CUDA, c"_ZNK3c104cuda10CUDAStream6streamEv")?;
    let is_profiling = find(&C10, c"_ZN3c1022memoryProfilingEnabledEv")?;
    let report = find(&C10, c"_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE")?;
    let failure = find(&C10, c"_ZN3c1027reportOutOfMemoryToProfilerElmmNS_6DeviceE");
    let callbacks = find(&C10_CUDA, c"_ZN3c1031FreeCudaMemoryCallbacksRegistryB5cxx11Ev");
    // SAFETY: PyTorch's headers give each of these names this type.
    unsafe {
        Some(Torch {
            current_device: std::mem::transmute::<*mut c_void, unsafe extern "C-unwind" fn() -> i8>(device),
            current_stream: std::mem::transmute::<*mut c_void, unsafe extern "C-unwind" fn(i8) -> Stream>(
                stream,
            ),
            stream_handle: std::mem::transmute::<
                *mut c_void,
                unsafe extern "C-unwind" fn(*const Stream) -> *mut c_void,
            >(handle),
            is_profiling: std::mem::transmute::<*mut c_void, unsafe extern "C-unwind" fn() -> bool>(
                is_profiling,
            ),
            report: std::mem::transmute::<
                *mut c_void,
                unsafe extern "C-unwind" fn(*mut c_void, i64, usize, usize, Device),
            >(report),
            report_failure: failure.map(|failure| {
                std::mem::transmute::<*mut c_void, unsafe extern "C-unwind" fn(i64, usize, usize, Device)>(
                    failure,
                )
            }),
            callbacks: callbacks.map(|callbacks| {
                std::mem::transmute::<*mut c_void, unsafe extern "C-unwind" fn() -> *const Callbacks>(
                    callbacks,
                )
            }),
        })
    }
}

impl Torch {
    /// The current device of this thread.
    ///
    /// # Safety
    /// As [`Filter::accepts`]. This holds for all functions here.
    #[inline]
    pub(crate) unsafe fn current_device(&self) -> i8 {
        check("current_device");
        // SAFETY: a function without arguments; `look_up` gave it its type.
        unsafe { (self.current_device)() }
    }

    /// This thread's current stream on `device`.
    ///
    /// # Safety
    /// As [`Torch::current_device`].
    #[inline]
    pub(crate) unsafe fn current_stream(&self, device: i8) -> *mut c_void {
        check("getCurrentCUDAStream");
        // SAFETY: `look_up` gave both their types; the second takes the result of the first, which lives in this frame.
        unsafe {
            let stream = (self.current_stream)(device);
            (self.stream_handle)(&raw const stream)
        }
    }

    /// True if the profiler records memory.
    ///
    /// # Safety
    /// As [`Torch::current_device`].
    #[inline]
    pub(crate) unsafe fn is_profiling(&self) -> bool {
        check("memoryProfilingEnabled");
        // SAFETY: a function without arguments; `look_up` gave it its type.
        unsafe { (self.is_profiling)() }
    }

    /// Asks the callbacks that are registered to free memory (`REGISTER_FREE_MEMORY_CALLBACK`): those of extensions
    /// that keep tensors, and PyTorch's own, which frees blocks that other processes have given up. True if one of them
    /// freed something.
    ///
    /// # Safety
    /// As [`Torch::current_device`].
    pub(crate) unsafe fn ask_callbacks(&self) -> bool {
        check("a callback that frees memory");
        let Some(registry) = self.callbacks else { return false };
        // SAFETY: a function without arguments; `look_up` gave it its type. The registry is never destroyed.
        let makers = unsafe { (*registry()).functions() };
        let mut has_freed = false;
        for maker in &makers {
            let Some((invoke, callable)) = maker.invoker() else { continue };
            let mut made = Callback(std::ptr::null_mut());
            // SAFETY: the registry has functions of this type; their result is returned through the first argument.
            unsafe {
                let invoke = std::mem::transmute::<
                    Invoker,
                    unsafe extern "C-unwind" fn(*mut Callback, *const c_void) -> *mut Callback,
                >(invoke);
                invoke(&raw mut made, callable);
                has_freed |= made.execute();
            }
        }
        has_freed
    }

    /// Tells the profiler about a block.
    ///
    /// # Safety
    /// As [`Torch::current_device`].
    pub(crate) unsafe fn report(
        &self,
        pointer: *mut c_void,
        change: i64,
        allocated: usize,
        reserved: usize,
        device: Device,
    ) {
        check("reportMemoryUsageToProfiler");
        // SAFETY: numbers, and an address that is not read; `look_up` gave the function its type.
        unsafe { (self.report)(pointer, change, allocated, reserved, device) };
    }

    /// Tells the profiler about a request that failed.
    ///
    /// # Safety
    /// As [`Torch::current_device`].
    pub(crate) unsafe fn report_failure(&self, size: u64, allocated: u64, reserved: u64, index: i8) {
        check("reportOutOfMemoryToProfiler");
        let device = Device { kind: CUDA, index };
        if let Some(report) = self.report_failure {
            // SAFETY: numbers; `look_up` gave the function its type.
            unsafe { report(size as i64, allocated as usize, reserved as usize, device) };
        }
    }
}

// ---- the C++ library ----

/// Memory that C++ frees.
///
/// # Safety
/// As [`Filter::accepts`]; `new` is `operator new`.
pub(crate) unsafe fn new_bytes(new: New, size: usize) -> *mut u8 {
    check("operator new");
    // SAFETY: `new` is `operator new`, which takes any size and throws if there is no memory.
    unsafe { new(size).cast() }
}

/// Copies the callable of a `std::function` that has `manager`.
///
/// # Safety
/// As [`Filter::accepts`]; `from` is the callable of a live function with that manager, and `to` has room for one.
pub(crate) unsafe fn copy_callable(manager: Manager, to: *mut c_void, from: *const c_void) {
    const COPY: i32 = 2;
    check("the copy of a function");
    // SAFETY: the manager is that of `from`, which is live, and `to` has room for a callable.
    unsafe { manager(to, from, COPY) };
}

/// Destroys a callable. Destructors do not throw, so this may be called anywhere.
///
/// # Safety
/// `callable` is live, has this manager and is not used afterwards.
pub(crate) unsafe fn destroy_callable(manager: Manager, callable: *mut c_void) {
    const DESTROY: i32 = 3;
    // SAFETY: the manager is that of `callable`, which is live; its owner does not use it any more.
    unsafe { manager(callable, callable, DESTROY) };
}

/// Throws a C++ exception.
///
/// # Safety
/// As [`Filter::accepts`]; `throw` is `__cxa_throw`, and the others its arguments: exception, type and destructor.
pub(crate) unsafe fn throw(
    throw: Throw,
    object: *mut c_void,
    kind: *const c_void,
    destructor: *const c_void,
) -> ! {
    check("a throw");
    // SAFETY: `throw` is `__cxa_throw`, and `exception` built the object, its type and its destructor for it.
    unsafe { throw(object, kind, destructor) }
}
