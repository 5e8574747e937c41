//! `libamdhip64`, opened when the first function is needed.

use gapless_cuda::DriverError;
use gapless_cuda::library::Library;
use gapless_cuda::locks::SetOnce;
use std::ffi::{CStr, c_void};

/// Names of the library: torch's wheels bring it without a number, ROCm installs it with that of its major release.
const LIBRARIES: [&CStr; 4] =
    [c"libamdhip64.so", c"libamdhip64.so.7", c"libamdhip64.so.6", c"libamdhip64.so.5"];

/// A function of the HIP runtime, by its own name.
pub(crate) fn own(name: &'static CStr) -> Result<*mut c_void, DriverError> {
    static FOUND: SetOnce<Option<Library>> = SetOnce::new();
    let library = FOUND
        .get_or_init(|| loaded().or_else(|| LIBRARIES.into_iter().find_map(Library::open)))
        .ok_or_else(|| DriverError::Other("libamdhip64.so was not found: is ROCm installed?".to_owned()))?;
    library.find(name).ok_or_else(|| {
        let name = name.to_string_lossy();
        DriverError::Other(format!("the HIP runtime has no {name}: update ROCm"))
    })
}

/// The library that the process, such as torch for ROCm, has loaded.
pub(crate) fn loaded() -> Option<Library> {
    LIBRARIES.into_iter().find_map(Library::loaded)
}
