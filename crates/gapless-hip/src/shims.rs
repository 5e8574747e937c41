//! Functions of NVIDIA's driver that HIP has in another form.
//!
//! | the driver | HIP |
//! |---|---|
//! | contexts, on a stack of each thread | a current device of each thread; a "context" here is its number and 1 |
//! | the legacy default stream is handle 1 | only newer releases know that handle: the null stream is meant |
//! | attributes have the driver's numbers | they have others: the shim knows those that Gapless asks about |
//! | access and unmapping span several pages | promised for one mapping only: [`Ranges`] makes a call for each |
//! | a wait that spares captures (`cuModuleUnload`) | the plain wait, which ends them |

use crate::library;
use gapless_cuda::DriverError;
use gapless_cuda::driver::{AccessDescription, Handle, LEGACY_STREAM, SUCCESS, Status};
use gapless_cuda::locks::{Guard, Lock, SetOnce};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::{CStr, c_int, c_void};

const INVALID_VALUE: Status = 1;
/// `CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED`: HIP has no such attribute. Pages that can be
/// exported are tried, and `CudaDevice` takes plain pages if the runtime refuses them.
const EXPORTS_FILES: c_int = 103;
/// `CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED`, and HIP's number for it.
const VIRTUAL_MEMORY: c_int = 102;
const HIP_VIRTUAL_MEMORY: c_int = 89;

/// `CU_DEVICE_ATTRIBUTE_INTEGRATED`, and HIP's number for it.
const INTEGRATED: c_int = 18;
const HIP_INTEGRATED: c_int = 16;

type GetDevice = unsafe extern "C" fn(*mut c_int) -> Status;
type SetDevice = unsafe extern "C" fn(c_int) -> Status;
type GetAttribute = unsafe extern "C" fn(*mut c_int, c_int, c_int) -> Status;
type StreamDevice = unsafe extern "C" fn(Handle, *mut c_int) -> Status;
type IsCapturing = unsafe extern "C" fn(Handle, *mut c_int) -> Status;
type Map = unsafe extern "C" fn(u64, usize, usize, u64, u64) -> Status;
type SetAccess = unsafe extern "C" fn(u64, usize, *const AccessDescription, usize) -> Status;
type Unmap = unsafe extern "C" fn(u64, usize) -> Status;

/// HIP's functions behind the shims.
#[derive(Clone, Copy)]
struct Behind {
    get_device: GetDevice,
    set_device: SetDevice,
    attribute: GetAttribute,
    stream_device: StreamDevice,
    is_capturing: IsCapturing,
    map: Map,
    set_access: SetAccess,
    unmap: Unmap,
}

fn behind() -> Result<&'static Behind, DriverError> {
    static FOUND: SetOnce<Result<Behind, DriverError>> = SetOnce::new();
    macro_rules! function {
        ($name:literal, $kind:ty) => {{
            let found = library::own($name)?;
            // SAFETY: HIP's headers give this name this type.
            unsafe { std::mem::transmute::<*mut c_void, $kind>(found) }
        }};
    }
    let load = || {
        Ok(Behind {
            get_device: function!(c"hipGetDevice", GetDevice),
            set_device: function!(c"hipSetDevice", SetDevice),
            attribute: function!(c"hipDeviceGetAttribute", GetAttribute),
            stream_device: function!(c"hipStreamGetDevice", StreamDevice),
            is_capturing: function!(c"hipStreamIsCapturing", IsCapturing),
            map: function!(c"hipMemMap", Map),
            set_access: function!(c"hipMemSetAccess", SetAccess),
            unmap: function!(c"hipMemUnmap", Unmap),
        })
    };
    FOUND.get_or_init(load).as_ref().map_err(Clone::clone)
}

/// The shim for a function of the driver; `None` if HIP has the function itself.
pub(crate) fn find(name: &CStr) -> Result<Option<*mut c_void>, DriverError> {
    let shim = match name.to_bytes() {
        b"cuDevicePrimaryCtxRetain" => retain as *mut c_void,
        b"cuCtxPushCurrent_v2" => push as *mut c_void,
        b"cuCtxPopCurrent_v2" => pop as *mut c_void,
        b"cuStreamGetCtx" => stream_context as *mut c_void,
        b"cuStreamIsCapturing" => is_capturing as *mut c_void,
        b"cuDeviceGetAttribute" => attribute as *mut c_void,
        b"cuMemMap" => map as *mut c_void,
        b"cuMemSetAccess" => set_access as *mut c_void,
        b"cuMemUnmap" => unmap as *mut c_void,
        _ => return Ok(None),
    };
    behind()?;
    Ok(Some(shim))
}

/// HIP's functions, for a shim. [`find`] returns a shim only after it has loaded them.
macro_rules! behind {
    () => {
        match behind() {
            Ok(behind) => behind,
            Err(_) => return INVALID_VALUE,
        }
    };
}

fn context_of(device: c_int) -> Handle {
    (device as usize + 1) as Handle
}

thread_local! {
    /// The devices that were current before each push.
    static BEFORE: RefCell<Vec<c_int>> = const { RefCell::new(Vec::new()) };
}

unsafe extern "C" fn retain(out: *mut Handle, device: c_int) -> Status {
    if device < 0 {
        return INVALID_VALUE;
    }
    // SAFETY: `CudaDevice` passes a valid out-pointer, as the driver's function demands.
    unsafe { *out = context_of(device) };
    SUCCESS
}

unsafe extern "C" fn push(context: Handle) -> Status {
    let behind = behind!();
    let mut before = 0;
    // SAFETY: an out-pointer of our own.
    let status = unsafe { (behind.get_device)(&raw mut before) };
    if status != SUCCESS {
        return status;
    }
    let wanted = context as usize as c_int - 1;
    // SAFETY: plain numbers.
    let status = if wanted == before { SUCCESS } else { unsafe { (behind.set_device)(wanted) } };
    // Also after a failure: each push is followed by a pop.
    BEFORE.with_borrow_mut(|stack| stack.push(before));
    status
}

unsafe extern "C" fn pop(out: *mut Handle) -> Status {
    let behind = behind!();
    let Some(before) = BEFORE.with_borrow_mut(Vec::pop) else { return INVALID_VALUE };
    let mut now = 0;
    // SAFETY: `now` is our own. `CudaDevice` passes a valid `out`, as the driver's function demands.
    unsafe {
        let status = (behind.get_device)(&raw mut now);
        *out = context_of(now);
        if status == SUCCESS && now == before { SUCCESS } else { (behind.set_device)(before) }
    }
}

unsafe extern "C" fn stream_context(stream: Handle, out: *mut Handle) -> Status {
    let behind = behind!();
    let mut device = 0;
    // SAFETY: `CudaDevice` passes a stream that the program has just named; the out-pointer is our own.
    let status = unsafe { (behind.stream_device)(stream, &raw mut device) };
    if status == SUCCESS {
        // SAFETY: `CudaDevice` passes a valid out-pointer, as the driver's function demands.
        unsafe { *out = context_of(device) };
    }
    status
}

unsafe extern "C" fn is_capturing(stream: Handle, out: *mut c_int) -> Status {
    let stream = if stream as u64 == LEGACY_STREAM { std::ptr::null_mut() } else { stream };
    // SAFETY: `CudaDevice` passes a stream that the program has just named, and a valid out-pointer.
    unsafe { (behind!().is_capturing)(stream, out) }
}

unsafe extern "C" fn attribute(out: *mut c_int, attribute: c_int, device: c_int) -> Status {
    match attribute {
        // SAFETY: `CudaDevice` passes a valid out-pointer, as the driver's function demands.
        VIRTUAL_MEMORY => unsafe { (behind!().attribute)(out, HIP_VIRTUAL_MEMORY, device) },
        // SAFETY: `CudaDevice` passes a valid out-pointer, as the driver's function demands.
        INTEGRATED => unsafe { (behind!().attribute)(out, HIP_INTEGRATED, device) },
        other => {
            // SAFETY: `CudaDevice` passes a valid out-pointer, as the driver's function demands.
            unsafe { *out = c_int::from(other == EXPORTS_FILES) };
            SUCCESS
        }
    }
}

/// The present mappings by first address, with their sizes.
///
/// Invariant: ranges do not overlap, because the runtime refuses to map over an existing mapping.
struct Ranges(BTreeMap<u64, usize>);

impl Ranges {
    /// The mappings that make up `[addr, addr + size)` exactly; `None` if there are no such mappings.
    fn within(&self, addr: u64, size: usize) -> Option<Vec<(u64, usize)>> {
        let end = addr.checked_add(size as u64)?;
        let found: Vec<(u64, usize)> = self.0.range(addr..end).map(|(&at, &size)| (at, size)).collect();
        let mut next = addr;
        for &(at, size) in &found {
            if at != next {
                return None;
            }
            next = at + size as u64;
        }
        (next == end && size > 0).then_some(found)
    }
}

fn ranges() -> Guard<'static, Ranges> {
    static RANGES: Lock<Ranges> = Lock::new(|| Ranges(BTreeMap::new()));
    RANGES.lock()
}

unsafe extern "C" fn map(addr: u64, size: usize, offset: usize, page: u64, flags: u64) -> Status {
    // SAFETY: `CudaDevice` maps a page into addresses that it has reserved and that have no mapping.
    let status = unsafe { (behind!().map)(addr, size, offset, page, flags) };
    if status == SUCCESS {
        ranges().0.insert(addr, size);
    }
    status
}

unsafe extern "C" fn set_access(
    addr: u64,
    size: usize,
    access: *const AccessDescription,
    count: usize,
) -> Status {
    let behind = behind!();
    let Some(pieces) = ranges().within(addr, size) else { return INVALID_VALUE };
    for (addr, size) in pieces {
        // SAFETY: `Ranges` has this mapping. `CudaDevice` passes `count` descriptions that live during the call.
        let status = unsafe { (behind.set_access)(addr, size, access, count) };
        if status != SUCCESS {
            return status;
        }
    }
    SUCCESS
}

unsafe extern "C" fn unmap(addr: u64, size: usize) -> Status {
    let behind = behind!();
    let Some(pieces) = ranges().within(addr, size) else { return INVALID_VALUE };
    for (addr, size) in pieces {
        // SAFETY: `Ranges` has this mapping, and the pool unmaps a range only when no queued work uses it.
        let status = unsafe { (behind.unmap)(addr, size) };
        if status != SUCCESS {
            return status;
        }
        ranges().0.remove(&addr);
    }
    SUCCESS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_made_of_whole_mappings_or_is_none() {
        let ranges = Ranges(BTreeMap::from([(100, 10), (110, 20), (140, 10)]));
        assert_eq!(ranges.within(100, 30), Some(vec![(100, 10), (110, 20)]));
        assert_eq!(ranges.within(110, 20), Some(vec![(110, 20)]));
        for (addr, size, why) in [
            (100, 5, "a part of one"),
            (105, 25, "it begins inside"),
            (100, 35, "there is a gap"),
            (130, 20, "it begins in a gap"),
            (100, 0, "nothing"),
            (u64::MAX, 10, "no such addresses"),
        ] {
            assert_eq!(ranges.within(addr, size), None, "{why}");
        }
    }
}
