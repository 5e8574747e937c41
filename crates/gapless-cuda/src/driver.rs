//! The CUDA driver's functions, looked up by name once, in the process's [`source`].

use crate::locks::SetOnce;
use crate::source;
pub use crate::source::DriverError;
use std::ffi::{CStr, c_int, c_uint, c_void};
use std::fmt;

/// The result of a driver function; 0 is success.
pub type Status = c_int;
pub type Handle = *mut c_void;

pub const SUCCESS: Status = 0;
pub const INVALID_VALUE: Status = 1;
pub const OUT_OF_MEMORY: Status = 2;
pub const NOT_READY: Status = 600;

/// The place of memory: its kind, and its number.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Location {
    pub kind: c_int,
    pub id: c_int,
}

/// `CUmemAllocationProp`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AllocationProperties {
    pub kind: c_int,
    pub handle_types: c_int,
    pub location: Location,
    pub win32: *mut c_void,
    pub compression: u8,
    /// 1 if network cards may reach the memory.
    pub rdma: u8,
    pub usage: u16,
    pub reserved: [u8; 4],
}

/// `CUmemAccessDesc`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AccessDescription {
    pub location: Location,
    pub flags: c_int,
}

pub const LOCATION_DEVICE: c_int = 1;
pub const ALLOCATION_PINNED: c_int = 1;
pub const ACCESS_READ: c_int = 1;
pub const ACCESS_READ_WRITE: c_int = 3;
pub const EVENT_DISABLE_TIMING: c_uint = 2;
pub const CAPTURE_RELAXED: c_int = 2;
/// The status of a stream that is not being captured.
pub const NOT_CAPTURED: c_int = 0;
pub const INVALID_HANDLE: Status = 400;
pub const NOT_PERMITTED: Status = 800;
pub const NOT_SUPPORTED: Status = 801;
pub const CAPTURE_UNSUPPORTED: Status = 900;
/// The default stream was queried while a stream that waits for it is captured.
pub const CAPTURE_IMPLICIT: Status = 906;
/// `cudaStreamLegacy`: the default stream, whatever the program was compiled with.
pub const LEGACY_STREAM: u64 = 1;
/// `cudaStreamPerThread`: another stream in each thread.
pub const PER_THREAD_STREAM: u64 = 2;
/// `CU_DEVICE_ATTRIBUTE_INTEGRATED`: the card uses the host's memory.
pub const ATTRIBUTE_INTEGRATED: c_int = 18;
/// `CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED`.
pub const ATTRIBUTE_EXPORTS_FILES: c_int = 103;
/// `CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED`.
pub const ATTRIBUTE_RDMA: c_int = 110;
/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
pub const HANDLE_FILE: c_int = 1;
/// `CU_MEM_HANDLE_TYPE_FABRIC`.
pub const HANDLE_FABRIC: c_int = 8;
/// `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`.
pub const LAZY_PEERS: c_uint = 1;

/// `CUipcMemHandle`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct IpcHandle(pub [u8; 64]);

/// Pinned memory that every context may copy from and to.
pub const HOST_PORTABLE: c_uint = 1;

macro_rules! table {
    ($(#[$about:meta])* $table:ident { $($field:ident = $symbol:literal ( $($arg:ty),* );)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy)]
        #[allow(missing_docs)]
        pub struct $table {
            $(pub $field: unsafe extern "C" fn($($arg),*) -> Status,)*
        }

        impl fmt::Debug for $table {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(stringify!($table))
            }
        }

        impl $table {
            fn load() -> Result<$table, DriverError> {
                let find = |name: &'static CStr| source::current().find(name);
                Ok($table {
                    // SAFETY: the driver's headers give each of these names this type, and every source keeps to it.
                    $($field: unsafe {
                        std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($arg),*) -> Status>(find($symbol)?)
                    },)*
                })
            }
        }
    };
}

table! {
    /// The functions that every driver must have; all return a status.
    Driver {
        init = c"cuInit"(c_uint);
        device_get = c"cuDeviceGet"(*mut c_int, c_int);
        total_memory = c"cuDeviceTotalMem_v2"(*mut usize, c_int);
        primary_context = c"cuDevicePrimaryCtxRetain"(*mut Handle, c_int);
        push_context = c"cuCtxPushCurrent_v2"(Handle);
        pop_context = c"cuCtxPopCurrent_v2"(*mut Handle);
        mem_info = c"cuMemGetInfo_v2"(*mut usize, *mut usize);
        reserve = c"cuMemAddressReserve"(*mut u64, usize, usize, u64, u64);
        create = c"cuMemCreate"(*mut u64, usize, *const AllocationProperties, u64);
        release = c"cuMemRelease"(u64);
        map = c"cuMemMap"(u64, usize, usize, u64, u64);
        set_access = c"cuMemSetAccess"(u64, usize, *const AccessDescription, usize);
        unmap = c"cuMemUnmap"(u64, usize);
        event_create = c"cuEventCreate"(*mut Handle, c_uint);
        event_record = c"cuEventRecord"(Handle, Handle);
        event_query = c"cuEventQuery"(Handle);
        event_wait = c"cuEventSynchronize"(Handle);
        synchronize = c"cuCtxSynchronize"();
        event_destroy = c"cuEventDestroy_v2"(Handle);
        is_capturing = c"cuStreamIsCapturing"(Handle, *mut c_int);
        stream_context = c"cuStreamGetCtx"(Handle, *mut Handle);
        device_attribute = c"cuDeviceGetAttribute"(*mut c_int, c_int, c_int);
        unreserve = c"cuMemAddressFree"(u64, usize);
        exchange_capture_mode = c"cuThreadExchangeStreamCaptureMode"(*mut c_int);
    }
}

table! {
    /// Functions for a wait that harms no capture, and for a stream of our own. Separate, because HIP lacks them.
    WaitDriver {
        module_load = c"cuModuleLoadData"(*mut Handle, *const c_void);
        module_unload = c"cuModuleUnload"(Handle);
        alloc = c"cuMemAlloc_v2"(*mut u64, usize);
        free = c"cuMemFree_v2"(u64);
        stream_create = c"cuStreamCreate"(*mut Handle, c_uint);
    }
}

table! {
    /// Functions for the program's current context. Separate, because HIP has one context a card.
    ContextDriver {
        current = c"cuCtxGetCurrent"(*mut Handle);
        set_current = c"cuCtxSetCurrent"(Handle);
        device = c"cuCtxGetDevice"(*mut c_int);
    }
}

table! {
    /// Functions for cards that use each other's memory. Separate, because the allocator runs on a driver without them.
    PeerDriver {
        can_access = c"cuDeviceCanAccessPeer"(*mut c_int, c_int, c_int);
    }
}

table! {
    /// Functions for memory of several processes. Separate, because the allocator runs on a driver without them.
    SharingDriver {
        export = c"cuMemExportToShareableHandle"(*mut c_void, u64, c_int, u64);
        import = c"cuMemImportFromShareableHandle"(*mut u64, *mut c_void, c_int);
        plain_handle = c"cuIpcGetMemHandle"(*mut IpcHandle, u64);
        open_plain = c"cuIpcOpenMemHandle_v2"(*mut u64, IpcHandle, c_uint);
        close_plain = c"cuIpcCloseMemHandle"(u64);
    }
}

table! {
    /// Functions of checked mode. Separate, because nothing else calls them.
    ScrubDriver {
        stream_create = c"cuStreamCreate"(*mut Handle, c_uint);
        stream_wait = c"cuStreamSynchronize"(Handle);
        fill = c"cuMemsetD32Async"(u64, c_uint, usize, Handle);
        copy_out = c"cuMemcpyDtoHAsync_v2"(*mut c_void, u64, usize, Handle);
    }
}

table! {
    /// Functions for pinned host memory. Separate, because the allocator runs on a driver without them.
    PinningDriver {
        alloc = c"cuMemHostAlloc"(*mut Handle, usize, c_uint);
        free = c"cuMemFreeHost"(Handle);
    }
}

table! {
    /// Functions for mapped host memory. Separate, because pinning has another way on a driver that lacks them.
    RegisterDriver {
        register = c"cuMemHostRegister_v2"(Handle, usize, c_uint);
        unregister = c"cuMemHostUnregister"(Handle);
    }
}

table! {
    /// Functions for copies between a card and the host. Separate, because the allocator itself copies nothing.
    CopyDriver {
        stream_create = c"cuStreamCreate"(*mut Handle, c_uint);
        stream_wait = c"cuStreamSynchronize"(Handle);
        copy_out = c"cuMemcpyDtoHAsync_v2"(Handle, u64, usize, Handle);
        copy_back = c"cuMemcpyHtoDAsync_v2"(u64, Handle, usize, Handle);
        to_card = c"cuMemcpyHtoD_v2"(u64, *const c_void, usize);
    }
}

impl RegisterDriver {
    /// Loaded on first use; `None` if the driver lacks one of them.
    pub fn get() -> Option<&'static RegisterDriver> {
        static DRIVER: SetOnce<Option<RegisterDriver>> = SetOnce::new();
        DRIVER.get_or_init(|| RegisterDriver::load().ok()).as_ref()
    }
}

impl PeerDriver {
    /// Loaded on first use; `None` if the driver lacks it.
    pub fn get() -> Option<&'static PeerDriver> {
        static DRIVER: SetOnce<Option<PeerDriver>> = SetOnce::new();
        DRIVER.get_or_init(|| PeerDriver::load().ok()).as_ref()
    }
}

impl CopyDriver {
    /// Loaded on first use; `None` if the driver lacks one of them.
    pub fn get() -> Option<&'static CopyDriver> {
        static DRIVER: SetOnce<Option<CopyDriver>> = SetOnce::new();
        DRIVER.get_or_init(|| CopyDriver::load().ok()).as_ref()
    }
}

impl SharingDriver {
    /// Loaded on first use; `None` if the driver lacks one of them.
    pub fn get() -> Option<&'static SharingDriver> {
        static DRIVER: SetOnce<Option<SharingDriver>> = SetOnce::new();
        DRIVER.get_or_init(|| SharingDriver::load().ok()).as_ref()
    }
}

impl ScrubDriver {
    /// Loaded on first use; `None` if the driver lacks one of them.
    pub fn get() -> Option<&'static ScrubDriver> {
        static DRIVER: SetOnce<Option<ScrubDriver>> = SetOnce::new();
        DRIVER.get_or_init(|| ScrubDriver::load().ok()).as_ref()
    }
}

impl WaitDriver {
    /// Loaded on first use; `None` if the driver lacks one of them.
    pub fn get() -> Option<&'static WaitDriver> {
        static DRIVER: SetOnce<Option<WaitDriver>> = SetOnce::new();
        DRIVER.get_or_init(|| WaitDriver::load().ok()).as_ref()
    }
}

impl ContextDriver {
    /// Loaded on first use; `None` if the driver has one context a card.
    pub fn get() -> Option<&'static ContextDriver> {
        static DRIVER: SetOnce<Option<ContextDriver>> = SetOnce::new();
        DRIVER.get_or_init(|| ContextDriver::load().ok()).as_ref()
    }
}

impl PinningDriver {
    /// Loaded on first use.
    ///
    /// # Errors
    /// If there is no driver.
    pub fn get() -> Result<&'static PinningDriver, DriverError> {
        static DRIVER: SetOnce<Result<PinningDriver, DriverError>> = SetOnce::new();
        DRIVER.get_or_init(PinningDriver::load).as_ref().map_err(Clone::clone)
    }
}

impl Driver {
    /// The driver of this process, loaded on first use.
    ///
    /// # Errors
    /// If there is none, or if it is too old.
    pub fn get() -> Result<&'static Driver, DriverError> {
        static DRIVER: SetOnce<Result<Driver, DriverError>> = SetOnce::new();
        DRIVER.get_or_init(Driver::load).as_ref().map_err(Clone::clone)
    }
}
