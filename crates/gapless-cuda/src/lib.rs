//! `gapless_pool::Device` over the CUDA driver.
//!
//! The crate loads the driver with dlopen when the process already uses CUDA. It does not link against the driver, so
//! the library also loads on machines without one.
//!
//! | module | what it has |
//! |---|---|
//! | [`driver`] | the table of the driver's functions |
//! | [`source`] | the library that these functions are taken from |
//! | [`device`] | one card |
//! | [`meter`] | a card's memory, and a wait for its work, without its lock |
//! | [`copies`] | copies between a card and pinned host memory |
//! | [`pinned`] | pinned host memory for copies |
//! | [`identity`] | the name and UUID of a card |
//! | [`nvml`] | the management library: all cards of the machine and who uses them, without CUDA |
//! | [`shared_pages`], [`sharing`] | pages of this process for others, and pages of others |
//! | [`places`], [`peers`] | the card of an address, and cards that use each other's memory |
//! | [`room`] | addresses that the process may still reserve |
//! | [`unified`] | cards that use the host's memory |
//! | [`locks`] | locks that a forked child never waits for |
//! | [`mapped`], [`scrub`] | for checked mode: the page behind an address; filling and verifying memory |

pub mod context;
pub mod copies;
pub mod device;
pub mod driver;
pub mod identity;
pub mod library;
pub mod locks;
pub mod mapped;
pub mod memory;
pub mod meter;
pub mod nvml;
pub mod peers;
pub mod pinned;
pub mod places;
pub mod room;
pub mod scrub;
pub mod shared_pages;
pub mod sharing;
pub mod source;
pub mod streams;
pub mod unified;

pub use copies::Copies;
pub use device::CudaDevice;
pub use driver::{Driver, DriverError};
pub use identity::{Identity, Uuid};
pub use meter::Meter;
pub use nvml::{Nvml, NvmlError};
pub use pinned::Pinned;
