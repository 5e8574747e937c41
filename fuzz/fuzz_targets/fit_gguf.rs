//! GGUF: the bytes follow the magic and the version.

#![no_main]

mod fit;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    fit::check(gapless_fit::read::gguf("fuzz", &[&b"GGUF\x03\0\0\0"[..], bytes].concat()));
});
