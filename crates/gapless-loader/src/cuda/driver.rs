//! The CUDA driver's functions that loading needs, looked up by name in the library that the process uses.

use crate::error::{LoadError, Result};
use gapless_cuda::library::Library;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

pub type Handle = *mut c_void;

/// `CU_STREAM_NON_BLOCKING`: this stream and the default stream do not wait for each other.
pub const NON_BLOCKING: c_uint = 1;
/// `CU_EVENT_DISABLE_TIMING`.
pub const UNTIMED: c_uint = 2;
/// `CU_EVENT_DEFAULT`: an event that tells the time.
#[cfg(feature = "bench")]
pub const TIMED: c_uint = 0;
/// `CU_MEMHOSTALLOC_PORTABLE`.
pub const PORTABLE: c_uint = 1;
/// `CU_MEMHOSTREGISTER_READ_ONLY`: the card does not write to these pages.
pub const READ_ONLY: c_uint = 8;
/// `CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN`.
pub const SHARED_AT_MOST: c_int = 97;
/// `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`.
pub const DYNAMIC_SHARED: c_int = 8;

/// `CUDA_ERROR_NOT_READY`: the work before an event is not done yet.
pub const NOT_READY: c_int = 600;

/// `CUmemcpyAttributes`: the way in which the copies of a batch are done.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Attributes {
    order: c_int,
    /// Kinds and numbers of the source's and the target's device: hints, which are not given.
    hints: [c_int; 4],
    flags: c_uint,
}

impl Attributes {
    /// `CU_MEMCPY_SRC_ACCESS_ORDER_STREAM`: sources are read in the order of the stream.
    pub fn in_turn() -> Attributes {
        Attributes { order: 1, hints: [0; 4], flags: 0 }
    }
}

/// `cuMemcpyBatchAsync` of CUDA 12.8: targets, sources, lengths and their number; attributes, the first copy of each of
/// them, and their number; a place for the index of a failed copy; a stream.
pub type Batch = unsafe extern "C" fn(
    *mut u64,
    *mut u64,
    *mut usize,
    usize,
    *mut Attributes,
    *mut usize,
    usize,
    *mut usize,
    Handle,
) -> c_int;

/// `cuThreadExchangeStreamCaptureMode`: sets this thread's mode, and returns the one before.
pub type ExchangeMode = unsafe extern "C" fn(*mut c_int) -> c_int;
/// `CU_STREAM_CAPTURE_MODE_RELAXED`: calls of this thread are not part of another thread's capture, and do not end it.
pub const RELAXED: c_int = 2;
/// `cuStreamIsCapturing`.
pub type IsCapturing = unsafe extern "C" fn(Handle, *mut c_int) -> c_int;

macro_rules! functions {
    ($($field:ident $name:literal ($($argument:ty),*);)*) => {
        /// The functions by name. Each returns 0 for success.
        #[derive(Clone, Copy, Debug)]
        pub struct Driver {
            text: unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int,
            $(pub $field: unsafe extern "C" fn($($argument),*) -> c_int,)*
            /// `None` on drivers before CUDA 12.8.
            pub batch: Option<Batch>,
            exchange_mode: Option<ExchangeMode>,
            is_capturing: Option<IsCapturing>,
        }

        impl Driver {
            /// Opens the driver: `library`, or the machine's.
            pub fn open(library: Option<&CStr>) -> Result<Driver> {
                let name = library.unwrap_or(c"libcuda.so.1");
                let library = Library::open(name).ok_or(LoadError::NoDriver("libcuda.so.1 cannot be opened"))?;
                let find = |name: &'static CStr| {
                    library.find(name).ok_or(LoadError::NoDriver(name.to_str().unwrap_or("a function is missing")))
                };
                // SAFETY: CUDA's public headers give each function this type.
                unsafe {
                    Ok(Driver {
                        text: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int>(
                            find(c"cuGetErrorString")?,
                        ),
                        $($field: std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($argument),*) -> c_int>(
                            find($name)?,
                        ),)*
                        batch: library
                            .find(c"cuMemcpyBatchAsync")
                            .map(|found| std::mem::transmute::<*mut c_void, Batch>(found)),
                        exchange_mode: library
                            .find(c"cuThreadExchangeStreamCaptureMode")
                            .map(|found| std::mem::transmute::<*mut c_void, ExchangeMode>(found)),
                        is_capturing: library
                            .find(c"cuStreamIsCapturing")
                            .map(|found| std::mem::transmute::<*mut c_void, IsCapturing>(found)),
                    })
                }
            }
        }
    };
}

functions! {
    init c"cuInit" (c_uint);
    device c"cuDeviceGet" (*mut c_int, c_int);
    attribute c"cuDeviceGetAttribute" (*mut c_int, c_int, c_int);
    retain c"cuDevicePrimaryCtxRetain" (*mut Handle, c_int);
    release c"cuDevicePrimaryCtxRelease_v2" (c_int);
    push c"cuCtxPushCurrent_v2" (Handle);
    pop c"cuCtxPopCurrent_v2" (*mut Handle);
    host_alloc c"cuMemHostAlloc" (*mut *mut c_void, usize, c_uint);
    host_free c"cuMemFreeHost" (*mut c_void);
    host_register c"cuMemHostRegister_v2" (*mut c_void, usize, c_uint);
    host_unregister c"cuMemHostUnregister" (*mut c_void);
    stream c"cuStreamCreate" (*mut Handle, c_uint);
    end_stream c"cuStreamDestroy_v2" (Handle);
    stream_wait c"cuStreamWaitEvent" (Handle, Handle, c_uint);
    stream_sync c"cuStreamSynchronize" (Handle);
    event c"cuEventCreate" (*mut Handle, c_uint);
    end_event c"cuEventDestroy_v2" (Handle);
    record c"cuEventRecord" (Handle, Handle);
    event_query c"cuEventQuery" (Handle);
    elapsed c"cuEventElapsedTime" (*mut f32, Handle, Handle);
    to_card c"cuMemcpyHtoDAsync_v2" (u64, *const c_void, usize, Handle);
    to_host c"cuMemcpyDtoHAsync_v2" (*mut c_void, u64, usize, Handle);
    module c"cuModuleLoadData" (*mut Handle, *const c_void);
    end_module c"cuModuleUnload" (Handle);
    function c"cuModuleGetFunction" (*mut Handle, Handle, *const c_char);
    set_function c"cuFuncSetAttribute" (Handle, c_int, c_int);
    launch c"cuLaunchKernel" (
        Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle, *mut *mut c_void, *mut *mut c_void
    );
}

/// Keeps this thread's capture mode from before it was relaxed, and restores it when dropped.
#[derive(Debug)]
pub struct Relaxed(Driver, c_int);

impl Drop for Relaxed {
    fn drop(&mut self) {
        if let Some(exchange) = self.0.exchange_mode {
            // SAFETY: a pointer to a field that lives through the call.
            unsafe { exchange(&raw mut self.1) };
        }
    }
}

impl Driver {
    /// Lets this thread call the driver while other threads capture graphs, without ending their captures.
    pub fn relaxed(&self) -> Relaxed {
        let mut mode = RELAXED;
        if let Some(exchange) = self.exchange_mode {
            // SAFETY: a pointer to a variable that lives through the call.
            unsafe { exchange(&raw mut mode) };
        }
        Relaxed(*self, mode)
    }

    /// True if a stream is being captured into a graph.
    ///
    /// # Safety
    /// The stream must exist.
    pub unsafe fn is_captured(&self, stream: Handle) -> bool {
        let mut status = 0;
        // SAFETY: the stream exists; `status` is a variable that lives through the call.
        self.is_capturing.is_some_and(|ask| unsafe { ask(stream, &raw mut status) } == 0 && status != 0)
    }

    /// An error if a call did not succeed.
    pub fn check(&self, call: &'static str, status: c_int) -> Result<()> {
        if status == 0 {
            return Ok(());
        }
        let mut text: *const c_char = std::ptr::null();
        // SAFETY: the driver gives a text that is never freed, or leaves the pointer null.
        let reason = unsafe {
            (self.text)(status, &raw mut text);
            if text.is_null() { String::new() } else { CStr::from_ptr(text).to_string_lossy().into_owned() }
        };
        Err(LoadError::Cuda { call, reason: format!("{reason} ({status})") })
    }
}
