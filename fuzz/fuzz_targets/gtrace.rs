//! The own format: the bytes follow its magic.

#![no_main]

mod shared;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    shared::read(&[&b"GTRACE"[..], bytes].concat());
});
