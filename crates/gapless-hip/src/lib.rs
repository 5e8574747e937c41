//! `gapless_pool::Device` over AMD's HIP runtime. **No part of this crate has run on a card**: its tests use a stand-in
//! for the runtime.
//!
//! HIP copies the interface of NVIDIA's driver, so there is one device for both: `gapless_cuda::CudaDevice`. This crate
//! gives it HIP's functions ([`gapless_cuda::source`]) and fills in where the two differ.
//!
//! | module | what it has |
//! |---|---|
//! | `library` | the library |
//! | [`runtime`] | HIP's names for the driver's functions |
//! | `shims` | functions that HIP has in another form: contexts, attributes, ranges of several pages |
//! | [`trial`] | what a card must be able to do, tried out before it is used |

mod library;
pub mod runtime;
mod shims;
pub mod trial;

pub use runtime::{choose, is_chosen};
pub use trial::try_out;
