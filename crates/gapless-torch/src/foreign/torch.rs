//! PyTorch's own functions, found by their names in the libraries that are loaded.

use super::library::Invoker;
use crate::cxx::{Callbacks, CxxString, find};
use crate::guard::check;
use crate::overlay::layout::{CUDA, Device};
use gapless_cuda::locks::SetOnce;
use std::ffi::{CStr, c_void};

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
    /// As [`Filter::accepts`](super::Filter::accepts). This holds for all functions here.
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

// ---- functions of tables ----

/// Calls the function of PyTorch's plug-in that enables peers.
///
/// # Safety
/// As [`Filter::accepts`](super::Filter::accepts); `function` is from this place of the table, and `this` is the
/// table's object.
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
/// As [`Filter::accepts`](super::Filter::accepts).
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
    /// As [`Filter::accepts`](super::Filter::accepts).
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
/// As [`Filter::accepts`](super::Filter::accepts); `object` is a live allocator with `snapshot` at `place`, and `out`
/// has room for the result.
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
