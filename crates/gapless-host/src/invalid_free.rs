//! Ends the program when it frees an address at which no block begins.

use crate::sys;
use crate::text::say;

pub(crate) fn abort_on_invalid_free(what: &str, block: *mut u8) -> ! {
    say(format_args!(
        "gapless: {what}({block:p}): no block begins there: it was freed before, or the address is wrong\n  \
         run the program with GAPLESS_HOST_CHECK=1 to see where it was allocated and freed\n"
    ));
    sys::abort()
}
