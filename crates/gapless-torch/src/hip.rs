//! AMD's cards: can Gapless run on one? The Python package asks before torch changes its allocator.

/// Tries if this process uses AMD's cards and the card with this number can do what Gapless needs. It starts HIP, so
/// the caller asks in a child process.
///
/// # Errors
/// If not, with the reason.
pub(crate) fn try_out(device: i32) -> Result<(), String> {
    if gapless_hip::choose()? {
        gapless_hip::try_out(device).map_err(|error| error.to_string())
    } else {
        Err("this process does not use HIP: set GAPLESS_DRIVER=hip if it should".to_owned())
    }
}
