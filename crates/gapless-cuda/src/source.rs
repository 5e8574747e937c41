//! The library of the driver's functions: NVIDIA's driver, or one with the same functions under other names.
//!
//! AMD's HIP copies the driver's interface: types, error numbers, the meaning of each call. So a crate that knows HIP's
//! names lets [`CudaDevice`](crate::CudaDevice) run on it unchanged. It sets its source before the first card is
//! opened, and the source stays for the whole process.

use crate::library::Library;
use crate::locks::SetOnce;
use std::ffi::{CStr, c_int, c_void};
use std::fmt;

/// The reason why the driver cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DriverError {
    /// libcuda.so.1 was not found.
    Missing,
    /// It lacks a function: it is older than CUDA 11.
    Lacks(&'static str),
    /// A call failed.
    Call(&'static str, c_int),
    /// A library in the driver's place cannot be used: the reason, as a sentence.
    Other(String),
}

impl fmt::Display for DriverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DriverError::Missing => f.write_str("libcuda.so.1 was not found: is an NVIDIA driver installed?"),
            DriverError::Lacks(name) => {
                write!(f, "the NVIDIA driver has no {name}: it must know CUDA 11.2 or later")
            }
            DriverError::Call(name, status) => {
                let source = current();
                write!(f, "{} failed with {} error {status}", source.name_of(name), source.interface())
            }
            DriverError::Other(reason) => f.write_str(reason),
        }
    }
}

impl std::error::Error for DriverError {}

/// A library in which the driver's functions are found.
pub trait Source: Sync + fmt::Debug {
    /// The function with the effect and the C type of `name`, a function of NVIDIA's driver.
    ///
    /// # Errors
    /// If the library is missing, or if it has no such function.
    fn find(&self, name: &'static CStr) -> Result<*mut c_void, DriverError>;

    /// The name of the interface in messages.
    fn interface(&self) -> &'static str;

    /// The name in messages of a function of NVIDIA's driver.
    fn name_of(&self, name: &'static str) -> &'static str {
        name
    }
}

/// NVIDIA's driver.
#[derive(Debug)]
struct Nvidia;

impl Source for Nvidia {
    fn find(&self, name: &'static CStr) -> Result<*mut c_void, DriverError> {
        let library = Library::open(c"libcuda.so.1").ok_or(DriverError::Missing)?;
        library.find(name).ok_or_else(|| DriverError::Lacks(name.to_str().unwrap_or("a function")))
    }

    fn interface(&self) -> &'static str {
        "CUDA"
    }
}

static SOURCE: SetOnce<&'static dyn Source> = SetOnce::new();

/// Takes the driver's functions from `source` from now on. False if another interface was used before.
pub fn set(source: &'static dyn Source) -> bool {
    SOURCE.get_or_init(|| source).interface() == source.interface()
}

/// The source of this process: NVIDIA's driver, unless another one was set.
pub fn current() -> &'static dyn Source {
    *SOURCE.get_or_init(|| &Nvidia)
}
