//! The options in the environment. They are read once, before the program begins. A value that cannot be understood
//! ends the process with exit code 2, because a budget that is silently not kept is worse.

use crate::budget;
use crate::sys;
use crate::text::say;
use std::ffi::CStr;

/// The file of a recording, and its interval.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    pub path: &'static CStr,
    /// Mean bytes between two samples; `None` to adapt it to the cost.
    pub interval: Option<u64>,
}

/// The most bytes between two samples.
const MOST_INTERVAL: u64 = 1 << 30;

#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    pub limit: Option<u64>,
    /// The page that relatives share.
    pub limit_file: Option<&'static CStr>,
    pub check: bool,
    /// `None` to decide by a measurement.
    pub huge: Option<bool>,
    pub stats: bool,
    /// The recording.
    pub record: Option<Config>,
}

impl Options {
    /// Reads the environment. Ends the process if a value cannot be understood.
    #[must_use]
    pub fn read() -> Options {
        let limit = sys::variable(c"GAPLESS_HOST_LIMIT").map(|text| {
            budget::parse_limit(text).unwrap_or_else(|wrong| {
                refuse("GAPLESS_HOST_LIMIT", text, wrong, "200GiB, or auto for 90 % of the cgroup's limit")
            })
        });
        // SAFETY: a text of the environment, which ends in a zero.
        let name = |text: &'static [u8]| unsafe { CStr::from_ptr(text.as_ptr().cast()) };
        let limit_file = sys::variable(c"GAPLESS_HOST_LIMIT_FILE").map(name);
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
        let interval = sys::variable(c"GAPLESS_HOST_RECORD_EVERY").map(|text| {
            let bytes = budget::parse_limit(text).ok().filter(|bytes| (1..=MOST_INTERVAL).contains(bytes));
            bytes.unwrap_or_else(|| {
                let wrong = "it is not a number of bytes from 1 to 1 GiB";
                refuse("GAPLESS_HOST_RECORD_EVERY", text, wrong, "64KiB")
            })
        });
        let path = sys::variable(c"GAPLESS_HOST_RECORD").map(name).map(absolute);
        let check = switch(c"GAPLESS_HOST_CHECK", "GAPLESS_HOST_CHECK").unwrap_or(false);
        if let (Some(path), true) = (path, check) {
            let wrong = "checked mode is on, and checked blocks are not recorded";
            refuse("GAPLESS_HOST_RECORD", path.to_bytes(), wrong, "GAPLESS_HOST_CHECK=0");
        }
        Options {
            limit,
            limit_file,
            check,
            huge,
            stats: switch(c"GAPLESS_HOST_STATS", "GAPLESS_HOST_STATS").unwrap_or(false),
            record: path.map(|path| Config { path, interval }),
        }
    }
}

/// The absolute path of a file, because a program may change its folder, as daemons do.
fn absolute(path: &'static CStr) -> &'static CStr {
    const ROOM: usize = 2 * 4096;
    let text = path.to_bytes_with_nul();
    if text.starts_with(b"/") || text.len() > ROOM / 2 {
        return path;
    }
    let Some(place) = sys::map(ROOM) else { return path };
    // SAFETY: the mapping has `ROOM` bytes, is never unmapped, and no other code knows it.
    let place = unsafe { std::slice::from_raw_parts_mut(place, ROOM) };
    // SAFETY: the first half of `place` is valid for writing.
    if unsafe { libc::getcwd(place.as_mut_ptr().cast(), ROOM / 2) }.is_null() {
        return path;
    }
    let length = place.iter().position(|byte| *byte == 0).unwrap_or(0);
    place[length] = b'/';
    place[length + 1..length + 1 + text.len()].copy_from_slice(text);
    CStr::from_bytes_until_nul(place).unwrap_or(path)
}

fn refuse(name: &str, text: &[u8], wrong: &str, example: &str) -> ! {
    let shown = text.get(..64).unwrap_or(text).escape_ascii();
    say(format_args!("gapless: {name}={shown} cannot be used: {wrong}\n  for example {example}\n"));
    sys::exit(2)
}
