//! The name and the UUID of a card. CUDA, the management library and other tools show the same UUID.

use crate::driver::SUCCESS;
use crate::source;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::fmt;

/// A card's (or a MIG instance's) UUID. It prints as NVIDIA's tools print a card's: `GPU-8-4-4-4-12` digits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Uuid(pub [u8; 16]);

impl Uuid {
    /// Reads a UUID that the management library or another tool printed, with `GPU-` or `MIG-` before it.
    #[must_use]
    pub fn parse(text: &str) -> Option<Uuid> {
        let digits = text.strip_prefix("GPU-").or_else(|| text.strip_prefix("MIG-"))?;
        let groups: Vec<&str> = digits.split('-').collect();
        let is_shaped = groups.iter().map(|group| group.len()).eq([8, 4, 4, 4, 12]);
        let digits = groups.concat();
        if !is_shaped || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return None;
        }
        let mut bytes = [0; 16];
        for (at, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(digits.get(2 * at..2 * at + 2)?, 16).ok()?;
        }
        Some(Uuid(bytes))
    }
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GPU")?;
        for (at, byte) in self.0.iter().enumerate() {
            if matches!(at, 0 | 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

/// The identity of a card; drivers may refuse either part.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    pub uuid: Option<Uuid>,
    pub name: Option<String>,
}

type Get = unsafe extern "C" fn(*mut c_int, c_int) -> c_int;
type GetUuid = unsafe extern "C" fn(*mut Uuid, c_int) -> c_int;
type GetName = unsafe extern "C" fn(*mut c_char, c_int, c_int) -> c_int;

/// The identity of the card with this number. The driver was initialised before.
#[must_use]
pub fn of(ordinal: i32) -> Identity {
    let find = |name: &'static CStr| source::current().find(name).ok();
    let device = || {
        let mut device = 0;
        // SAFETY: the driver's headers give this name this type; a valid out-pointer.
        let status = unsafe {
            let get = std::mem::transmute::<*mut c_void, Get>(find(c"cuDeviceGet")?);
            get(&raw mut device, ordinal)
        };
        (status == SUCCESS).then_some(device)
    };
    let Some(device) = device() else { return Identity::default() };
    let uuid = || {
        // The newer function distinguishes the instances of a card.
        let found = find(c"cuDeviceGetUuid_v2").or_else(|| find(c"cuDeviceGetUuid"))?;
        let mut uuid = Uuid::default();
        // SAFETY: the driver's headers give both names this type; a UUID has 16 bytes.
        let status = unsafe { std::mem::transmute::<*mut c_void, GetUuid>(found)(&raw mut uuid, device) };
        (status == SUCCESS).then_some(uuid)
    };
    let name = || {
        let found = find(c"cuDeviceGetName")?;
        let mut text = [0u8; 128];
        // SAFETY: the driver's headers give this name this type; the buffer has as many bytes as the call says.
        let status = unsafe {
            let get = std::mem::transmute::<*mut c_void, GetName>(found);
            get(text.as_mut_ptr().cast(), text.len() as c_int, device)
        };
        (status == SUCCESS).then(|| text_of(&text)).flatten()
    };
    Identity { uuid: uuid(), name: name() }
}

/// The text in a buffer that a library filled, up to its NUL.
pub(crate) fn text_of(bytes: &[u8]) -> Option<String> {
    let text = CStr::from_bytes_until_nul(bytes).ok()?.to_string_lossy().trim().to_owned();
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_is_read_as_it_is_printed() {
        let text = "GPU-0badc0de-1234-5678-9abc-def012345678";
        let uuid = Uuid::parse(text).expect("a UUID");
        assert_eq!(uuid.to_string(), text);
        assert_eq!(Uuid::parse("MIG-0badc0de-1234-5678-9abc-def012345678"), Some(uuid));
        for wrong in [
            "",
            "GPU-",
            "0badc0de-1234-5678-9abc-def012345678",
            "GPU-0badc0de123456789abcdef012345678",
            "GPU-0badc0de-1234-5678-9abc-def01234567\u{e9}",
            "GPU-0badc0dg-1234-5678-9abc-def012345678",
            "MIG-GPU-0badc0de-1234-5678-9abc-def012345678/1/0",
        ] {
            assert_eq!(Uuid::parse(wrong), None, "{wrong}");
        }
    }
}
