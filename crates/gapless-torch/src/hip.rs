//! AMD's cards, for the Python package: whether Gapless can run on one, asked before torch has changed its allocator.

use crate::hooks::{guarded, set_error};

/// Whether this process works on AMD's cards, and the card with this number can do what Gapless needs: 0. -1: no, with
/// the reason in `gapless_last_error`. It starts HIP, so that the caller asks in a child of its own.
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
