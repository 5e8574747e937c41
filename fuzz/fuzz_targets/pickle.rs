//! Pickles: the bytes follow the header of a protocol.

#![no_main]

mod shared;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Some((first, rest)) = bytes.split_first() else { return };
    let mut file = vec![0x80, 2 + first % 4];
    file.extend(rest);
    shared::read(&file);
});
