//! What the environment asks for. Read once, before the program begins; what cannot be understood ends the process with
//! exit code 2, because a budget that is silently not kept is worse than a program that does not start.

use crate::budget;
use crate::sys;
use crate::text::say;
use std::ffi::CStr;

#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    pub limit: Option<u64>,
    /// The page that relatives share.
    pub limit_file: Option<&'static CStr>,
    pub check: bool,
    /// `None`: by measurement.
    pub huge: Option<bool>,
    pub stats: bool,
}

impl Options {
    /// From the environment; ends the process where it cannot be understood.
    #[must_use]
    pub fn read() -> Options {
        let limit = sys::variable(c"GAPLESS_HOST_LIMIT").map(|text| {
            budget::parse_limit(text).unwrap_or_else(|wrong| {
                refuse("GAPLESS_HOST_LIMIT", text, wrong, "200GiB, or auto for 90 % of the cgroup's limit")
            })
        });
        let limit_file = sys::variable(c"GAPLESS_HOST_LIMIT_FILE").map(|text| {
            // SAFETY: a text of the environment, which ends in a zero.
            unsafe { CStr::from_ptr(text.as_ptr().cast()) }
        });
        let switch = |name: &CStr, shown: &str| {
            let text = sys::variable(name)?;
            Some(match text.trim_ascii() {
                b"0" | b"off" | b"false" => false,
                b"1" | b"on" | b"true" => true,
                _ => refuse(shown, text, "it is neither 0 nor 1", "1 to switch it on, 0 to switch it off"),
            })
        };
        let huge = match sys::variable(c"GAPLESS_HOST_HUGE") {
            Some(b"auto") => None,
            _ => switch(c"GAPLESS_HOST_HUGE", "GAPLESS_HOST_HUGE"),
        };
        Options {
            limit,
            limit_file,
            check: switch(c"GAPLESS_HOST_CHECK", "GAPLESS_HOST_CHECK").unwrap_or(false),
            huge,
            stats: switch(c"GAPLESS_HOST_STATS", "GAPLESS_HOST_STATS").unwrap_or(false),
        }
    }
}

fn refuse(name: &str, text: &[u8], wrong: &str, example: &str) -> ! {
    let shown = text.get(..64).unwrap_or(text).escape_ascii();
    say(format_args!("gapless: {name}={shown} cannot be used: {wrong}\n  for example {example}\n"));
    sys::exit(2)
}
