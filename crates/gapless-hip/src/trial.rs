//! Tries out the abilities that Gapless needs of a card, before the card is used. NVIDIA's driver documents them. For
//! ROCm it is not known which releases and which cards have them, so each is tried.
//!
//! The trial takes 4 MiB of the card, for a moment. A card that fails it is refused with the reason, and torch keeps
//! its own allocator.

use crate::runtime::HIP;
use gapless_cuda::driver::{
    ALLOCATION_PINNED, AllocationProperties, LOCATION_DEVICE, Location, SUCCESS, Status,
};
use gapless_cuda::scrub::Scrubber;
use gapless_cuda::source::Source;
use gapless_cuda::{CudaDevice, DriverError};
use gapless_pool::{Device, DeviceError, PageHandle};
use std::ffi::{CStr, c_int, c_void};

/// The size of the smallest page. All sizes and addresses are multiples of it.
const PAGE: u64 = 2 << 20;
/// `CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED`.
const VIRTUAL_MEMORY: c_int = 102;
/// `CU_MEM_ALLOC_GRANULARITY_MINIMUM`.
const SMALLEST: c_int = 0;

type GetAttribute = unsafe extern "C" fn(*mut c_int, c_int, c_int) -> Status;
type Granularity = unsafe extern "C" fn(*mut usize, *const AllocationProperties, c_int) -> Status;

fn function<F: Copy>(name: &'static CStr) -> Result<F, DriverError> {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    let found = HIP.find(name)?;
    // SAFETY: each caller names the type that the driver's headers give this function. It is a function pointer, which
    // has the size of any other pointer.
    Ok(unsafe { std::mem::transmute_copy::<*mut c_void, F>(&found) })
}

fn refused(ordinal: i32, what: &str) -> DriverError {
    DriverError::Other(format!(
        "GPU {ordinal} cannot run Gapless on HIP: {what}. Use torch's own allocator there, with \
         PYTORCH_ALLOC_CONF=expandable_segments:True where your torch knows that setting"
    ))
}

/// Tries out the abilities that the allocator relies on.
///
/// # Errors
/// If the card, or its runtime, lacks one. The text names it.
pub fn try_out(ordinal: i32) -> Result<(), DriverError> {
    let mut device = CudaDevice::new(ordinal)?;
    let has_virtual_memory = {
        let (get, mut value) = (function::<GetAttribute>(c"cuDeviceGetAttribute")?, 0);
        // SAFETY: an out-pointer of our own.
        (unsafe { get(&raw mut value, VIRTUAL_MEMORY, ordinal) }) == SUCCESS && value != 0
    };
    if !has_virtual_memory {
        return Err(refused(ordinal, "the driver has no virtual memory management for it"));
    }
    let granule = granule(ordinal)?;
    if granule == 0 || !PAGE.is_multiple_of(granule) {
        return Err(refused(
            ordinal,
            &format!("its pages are multiples of {granule} bytes, and Gapless uses 2 MiB"),
        ));
    }
    let failed = |what: &str, error: DeviceError| match error {
        DeviceError::OutOfMemory => {
            refused(ordinal, &format!("{what} failed for lack of memory; 4 MiB must be free"))
        }
        error => refused(ordinal, &format!("{what} failed ({error:?})")),
    };
    let addr = device.reserve(3 * PAGE).map_err(|error| failed("a reservation of addresses", error))?;
    let mut pages = Vec::new();
    let tried = pages_in_a_window(&mut device, addr, &mut pages).map_err(|(what, error)| failed(what, error));
    // Gives back what the trial took, even if it failed.
    for at in [0, PAGE, 2 * PAGE] {
        let _ = device.unmap(addr + at, PAGE);
    }
    pages.into_iter().for_each(|page| device.release(page, PAGE));
    device.unreserve(addr, 3 * PAGE);
    match tried? {
        true => Ok(()),
        false => Err(refused(
            ordinal,
            "memory that is mapped at two addresses does not show at both what was written",
        )),
    }
}

fn granule(ordinal: i32) -> Result<u64, DriverError> {
    let (get, mut granule) = (function::<Granularity>(c"cuMemGetAllocationGranularity")?, 0usize);
    let properties = AllocationProperties {
        kind: ALLOCATION_PINNED,
        handle_types: 0,
        location: Location { kind: LOCATION_DEVICE, id: ordinal },
        win32: std::ptr::null_mut(),
        compression: 0,
        rdma: 0,
        usage: 0,
        reserved: [0; 4],
    };
    // SAFETY: an out-pointer of our own, and a structure that lives as long as the call.
    match unsafe { get(&raw mut granule, &raw const properties, SMALLEST) } {
        SUCCESS => Ok(granule as u64),
        status => Err(DriverError::Call("cuMemGetAllocationGranularity", status)),
    }
}

/// Maps two pages side by side and the first one again behind them, and unmaps everything at once. True if data that is
/// written at the first page's first address can be read at its second.
fn pages_in_a_window(
    device: &mut CudaDevice,
    addr: u64,
    pages: &mut Vec<PageHandle>,
) -> Result<bool, (&'static str, DeviceError)> {
    let step = |what: &'static str| move |error| (what, error);
    for _ in 0..2 {
        pages.push(device.create(PAGE).map_err(step("the creation of a page"))?);
    }
    let window = [(addr, pages[0]), (addr + PAGE, pages[1]), (addr + 2 * PAGE, pages[0])];
    for (at, page) in window {
        device.map(at, PAGE, page).map_err(step("mapping a page a second time"))?;
    }
    device.grant(addr, 3 * PAGE).map_err(step("access to several pages"))?;
    let mut scrubber = Scrubber::new(device).map_err(step("a stream"))?;
    scrubber.fill(device, addr, PAGE).map_err(step("a fill"))?;
    let change = scrubber.change(device, addr + 2 * PAGE, PAGE).map_err(step("a copy to the host"))?;
    device.synchronize().map_err(step("a wait for the card"))?;
    device.unmap(addr, 3 * PAGE).map_err(step("unmapping several pages"))?;
    Ok(change.is_none())
}
