//! `gapless_pool::Device` over the CUDA driver.
//!
//! The driver is found with dlopen when the process already uses CUDA; nothing links against it, so the library loads
//! on machines without one. [`driver`] is the table of its functions, [`device`] one card, [`pinned`] host memory that
//! it copies from and to, [`identity`] what a card is called. [`nvml`] is the driver's management library: all cards of
//! the machine and who uses them, without CUDA. [`mapped`] and [`scrub`] are for checked mode: which page lies behind
//! an address, and whether a pattern is still there.

pub mod device;
pub mod driver;
pub mod identity;
mod library;
pub mod mapped;
pub mod nvml;
pub mod pinned;
pub mod scrub;
pub mod streams;

pub use device::{CudaDevice, Meter};
pub use driver::{Driver, DriverError};
pub use identity::{Identity, Uuid};
pub use nvml::{Nvml, NvmlError};
pub use pinned::Pinned;
