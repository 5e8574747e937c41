//! The HIP runtime as a source of the driver's functions.

use crate::{library, shims};
use gapless_cuda::DriverError;
use gapless_cuda::library::Library;
use gapless_cuda::source::{self, Source};
use std::ffi::{CStr, c_void};

/// The variable that chooses the interface: `cuda` or `hip`.
pub const VARIABLE: &str = "GAPLESS_DRIVER";

/// HIP's names of the driver's functions, with the same types and numbers; [`shims`] has those that differ.
const NAMES: &[(&CStr, &CStr)] = &[
    (c"cuInit", c"hipInit"),
    (c"cuDeviceGet", c"hipDeviceGet"),
    (c"cuDeviceTotalMem_v2", c"hipDeviceTotalMem"),
    (c"cuDeviceGetUuid_v2", c"hipDeviceGetUuid"),
    (c"cuDeviceGetName", c"hipDeviceGetName"),
    (c"cuMemGetInfo_v2", c"hipMemGetInfo"),
    (c"cuMemAddressReserve", c"hipMemAddressReserve"),
    (c"cuMemAddressFree", c"hipMemAddressFree"),
    (c"cuMemCreate", c"hipMemCreate"),
    (c"cuMemRelease", c"hipMemRelease"),
    (c"cuMemGetAllocationGranularity", c"hipMemGetAllocationGranularity"),
    (c"cuEventCreate", c"hipEventCreateWithFlags"),
    (c"cuEventRecord", c"hipEventRecord"),
    (c"cuEventQuery", c"hipEventQuery"),
    (c"cuEventSynchronize", c"hipEventSynchronize"),
    (c"cuEventDestroy_v2", c"hipEventDestroy"),
    (c"cuCtxSynchronize", c"hipDeviceSynchronize"),
    (c"cuThreadExchangeStreamCaptureMode", c"hipThreadExchangeStreamCaptureMode"),
    (c"cuStreamCreate", c"hipStreamCreateWithFlags"),
    (c"cuStreamSynchronize", c"hipStreamSynchronize"),
    (c"cuMemsetD32Async", c"hipMemsetD32Async"),
    (c"cuMemcpyDtoHAsync_v2", c"hipMemcpyDtoHAsync"),
    (c"cuMemHostAlloc", c"hipHostMalloc"),
    (c"cuMemFreeHost", c"hipHostFree"),
    (c"cuMemExportToShareableHandle", c"hipMemExportToShareableHandle"),
    (c"cuMemImportFromShareableHandle", c"hipMemImportFromShareableHandle"),
];

#[derive(Debug)]
pub(crate) struct Hip;

pub(crate) static HIP: Hip = Hip;

impl Source for Hip {
    fn find(&self, name: &'static CStr) -> Result<*mut c_void, DriverError> {
        if let Some(shim) = shims::find(name)? {
            return Ok(shim);
        }
        match NAMES.iter().find(|(cuda, _)| *cuda == name) {
            Some((_, hip)) => library::own(hip),
            None => Err(DriverError::Other(format!("HIP has no function like {}", name.to_string_lossy()))),
        }
    }

    fn interface(&self) -> &'static str {
        "HIP"
    }

    fn name_of(&self, name: &'static str) -> &'static str {
        let is_same = |cuda: &CStr| {
            cuda.to_str().is_ok_and(|cuda| cuda == name || cuda.strip_suffix("_v2") == Some(name))
        };
        let found = NAMES.iter().find(|(cuda, _)| is_same(cuda)).and_then(|(_, hip)| hip.to_str().ok());
        found.unwrap_or(name)
    }
}

/// True if this process uses AMD's cards: if [`VARIABLE`] says so, or if it is unset, HIP's runtime is loaded and
/// NVIDIA's driver is not.
fn is_wanted(said: Option<&str>) -> Result<bool, String> {
    match said {
        None | Some("") => Ok(library::loaded().is_some() && Library::loaded(c"libcuda.so.1").is_none()),
        Some("cuda") => Ok(false),
        Some("hip") => Ok(true),
        Some(other) => Err(format!("invalid {VARIABLE} {other:?}: use cuda or hip")),
    }
}

/// Chooses the interface of this process, before its first card is opened. True if it is HIP.
///
/// # Errors
/// If the variable is invalid, or if the other interface is in use already.
pub fn choose() -> Result<bool, String> {
    let said = std::env::var_os(VARIABLE).map(|said| said.to_string_lossy().into_owned());
    let wanted = is_wanted(said.as_deref())?;
    if wanted && !source::set(&HIP) {
        return Err(format!("{VARIABLE} is hip, and this process uses NVIDIA's driver already"));
    }
    Ok(is_chosen())
}

/// True if the process's cards are opened through HIP.
#[must_use]
pub fn is_chosen() -> bool {
    source::current().interface() == HIP.interface()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variable_decides_and_a_wrong_one_is_an_error() {
        assert_eq!(is_wanted(Some("hip")), Ok(true));
        assert_eq!(is_wanted(Some("cuda")), Ok(false));
        // No test process has the library.
        assert_eq!((is_wanted(None), is_wanted(Some(""))), (Ok(false), Ok(false)));
        assert!(is_wanted(Some("rocm")).expect_err("no such interface").contains("use cuda or hip"));
    }

    #[test]
    fn messages_have_the_names_of_hip() {
        assert_eq!(HIP.name_of("cuDeviceTotalMem"), "hipDeviceTotalMem");
        assert_eq!(HIP.name_of("cuInit"), "hipInit");
        assert_eq!(HIP.name_of("something"), "something");
    }

    #[test]
    fn no_name_is_there_twice() {
        for (at, (name, _)) in NAMES.iter().enumerate() {
            assert!(NAMES[at + 1..].iter().all(|(other, _)| other != name), "{name:?}");
        }
    }
}
