//! `gapless_pool::Device` over the CUDA driver.
//!
//! The driver is found with dlopen when the process already uses CUDA; nothing links against it, so the library loads on machines without one.
//! [`driver`] is the table of its functions, [`device`] one card,
//! [`pinned`] host memory that it copies from and to.

pub mod device;
pub mod driver;
pub mod pinned;

pub use device::CudaDevice;
pub use driver::{Driver, DriverError};
pub use pinned::Pinned;
