//! ONNX: the bytes are a model, and then the graph of one.

#![no_main]

mod fit;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let options = gapless_fit::read::Options::default();
    fit::check(gapless_fit::read::onnx("fuzz", bytes, &options));
    let mut file = vec![0x3a];
    let mut length = bytes.len();
    while length >= 0x80 {
        file.push(length as u8 | 0x80);
        length >>= 7;
    }
    file.push(length as u8);
    file.extend(bytes);
    fit::check(gapless_fit::read::onnx("fuzz", &file, &options));
});
