//! TLS for both sides. The feature `tls` adds rustls. A build without it speaks plain HTTP and refuses TLS.

#[cfg(not(feature = "tls"))]
#[path = "absent.rs"]
mod side;
#[cfg(feature = "tls")]
#[path = "rustls.rs"]
mod side;

pub use side::{Client, Server, accept, client, connect, server};

/// True if this build has TLS.
pub const IS_BUILT_IN: bool = cfg!(feature = "tls");
