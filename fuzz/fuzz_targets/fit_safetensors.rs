//! Safetensors: the bytes are a header of their own length, and then a file.

#![no_main]

mod fit;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let header = [&(bytes.len() as u64).to_le_bytes()[..], bytes].concat();
    fit::check(gapless_fit::read::safetensors("fuzz", &header));
    fit::check(gapless_fit::read::safetensors("fuzz", bytes));
});
