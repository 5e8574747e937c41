//! The Kubernetes scheduler extender: pods name the GPU memory that they need, and Gapless picks the GPU.
//!
//! The stock scheduler asks over HTTP ([`extender`]: filter, prioritize, bind). All state comes from the API server
//! ([`watch`]: list and watch; [`account`]: the resources in use) and goes back to it ([`bind`]): a booking is
//! written to the node with a precondition ([`book`]), so that two replicas or a restart cannot book one GPU twice.
//! Containers get their GPUs and their share as variables ([`admit`]).
//! [`dra`] has objects for clusters whose own scheduler places pods by GPU memory. Plain threads, no runtime.

pub mod account;
pub mod admit;
pub mod api;
pub mod auto;
pub mod bind;
pub mod book;
pub mod crowd;
pub mod dra;
pub mod extender;
pub mod http;
pub mod limits;
pub mod log;
pub mod metrics;
pub mod names;
pub mod objects;
mod patience;
pub mod quantity;
pub mod retry;
pub mod serve;
pub mod target;
pub mod tenant;
pub mod tls;
pub mod watch;
