//! The Kubernetes scheduler extender: pods say how much GPU memory they need, and Gapless picks the GPU.
//!
//! The stock scheduler asks over HTTP ([`extender`]: filter, prioritize, bind). All state comes from the API server
//! ([`watch`]: list and watch) and goes back to it: a booking is written to the node with a precondition, so that two
//! replicas or a restart cannot book one GPU twice. Plain threads, no runtime.

pub mod api;
pub mod book;
pub mod extender;
pub mod http;
pub mod metrics;
pub mod objects;
pub mod quantity;
pub mod serve;
pub mod tls;
pub mod watch;
