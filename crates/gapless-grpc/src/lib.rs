//! A gRPC server over a UNIX socket, as a plug-in of the kubelet needs it: unary calls, no compression, plain threads.
//!
//! [`server`] has the part of HTTP/2 (RFC 9113) that such calls use, [`hpack`] its compression of headers (RFC 7541),
//! and [`message`] the wire format of protocol buffers. The other side is untrusted: frames, headers, messages and
//! streams are limited, and an invalid frame ends the connection.

pub mod hpack;
pub mod message;
pub mod server;

pub use server::{Service, Status, serve};
