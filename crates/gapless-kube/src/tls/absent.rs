//! A build without TLS: there is no configuration of either side, so no connection can be made with one.

use crate::http::Stream;
use std::path::Path;

/// The configuration of a server, which has no value here.
#[derive(Clone, Debug)]
pub enum Server {}

/// The configuration of a client, which has no value here.
#[derive(Clone, Debug)]
pub enum Client {}

fn absent<T>() -> Result<T, String> {
    Err("this build of gapless has no TLS".to_owned())
}

/// # Errors
/// Always.
pub fn server(_: &Path, _: &Path, _: Option<&Path>) -> Result<Server, String> {
    absent()
}

/// # Errors
/// Always.
pub fn client(_: &Path) -> Result<Client, String> {
    absent()
}

/// # Errors
/// Never: there is no configuration to call it with.
pub fn accept(config: &Server, _: impl Stream + 'static) -> Result<Box<dyn Stream>, String> {
    match *config {}
}

/// # Errors
/// Never: there is no configuration to call it with.
pub fn connect(config: &Client, _: &str, _: impl Stream + 'static) -> Result<Box<dyn Stream>, String> {
    match *config {}
}
