//! AMD's cards, for the Python package: can Gapless run on one? The package asks before torch changes its allocator.

use crate::hooks::{guarded, set_error};

/// 0 if this process uses AMD's cards and the card with this number can do what Gapless needs. -1 if not, with the
/// reason in `gapless_last_error`. It starts HIP, so the caller asks in a child process.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_try_hip(device: i32) -> i32 {
    guarded(-1, || {
        let tried = gapless_hip::choose().and_then(|is_hip| {
            if is_hip {
                gapless_hip::try_out(device).map_err(|error| error.to_string())
            } else {
                Err("this process does not use HIP: set GAPLESS_DRIVER=hip if it should".to_owned())
            }
        });
        match tried {
            Ok(()) => 0,
            Err(message) => {
                set_error(&message);
                -1
            }
        }
    })
}
