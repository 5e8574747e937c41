//! RMM's CSV log: the bytes follow its header.

#![no_main]

mod shared;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let mut file = b"Thread,Time,Action,Pointer,Size,Stream\n".to_vec();
    file.extend(bytes);
    shared::read(&file);
});
