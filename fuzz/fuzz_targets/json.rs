//! Snapshots as JSON: the bytes follow the opening of one.

#![no_main]

mod shared;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let mut file = b"{\"device_traces\": [[".to_vec();
    file.extend(bytes);
    shared::read(&file);
    let mut file = b"{".to_vec();
    file.extend(bytes);
    shared::read(&file);
});
