//! One bit for each field of an event that was there.

pub(crate) const ACTION: u16 = 1;
pub(crate) const ADDR: u16 = 2;
pub(crate) const SIZE: u16 = 4;
pub(crate) const STREAM: u16 = 8;
pub(crate) const TIME: u16 = 16;
pub(crate) const COMPILE_CONTEXT: u16 = 32;
pub(crate) const USER_METADATA: u16 = 64;
pub(crate) const POOL: u16 = 128;
pub(crate) const FORWARD: u16 = 256;
pub(crate) const CPP: u16 = 512;
pub(crate) const INTERNAL: u16 = 1024;
/// The mark of an exact address at the end of the user's metadata, as 2.13 and 2.14 write it.
pub(crate) const MARK: u16 = 2048;
