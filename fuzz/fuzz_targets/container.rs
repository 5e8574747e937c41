//! Compressed files: the bytes as they are, behind the magic numbers, and truly compressed.

#![no_main]

mod shared;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    use std::io::Write;
    shared::read(bytes);
    for magic in [&[0x1f, 0x8b, 8, 0][..], &[0x28, 0xb5, 0x2f, 0xfd]] {
        shared::read(&[magic, bytes].concat());
    }
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    let gzip = gzip.write_all(bytes).and_then(|()| gzip.finish());
    let zstd = zstd::encode_all(bytes, 1);
    for file in [gzip, zstd].into_iter().flatten() {
        shared::read(&file);
    }
});
