//! XLA's modules: the bytes follow the beginning of one, so that the reader takes them for it.

#![no_main]

mod shared;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    // Whole files from a corpus, and the message of buffers behind a module without instructions.
    shared::read(bytes);
    let mut file = b"\x0a\x07\x0a\x05jit_f\x1a".to_vec();
    let mut length = bytes.len();
    while length >= 0x80 {
        file.push(length as u8 | 0x80);
        length >>= 7;
    }
    file.push(length as u8);
    file.extend(bytes);
    shared::read(&file);
});
