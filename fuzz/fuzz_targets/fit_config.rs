//! Configurations: the bytes follow the opening of one.

#![no_main]

mod fit;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let mut file = b"{\"model_type\": \"".to_vec();
    file.extend(bytes);
    fit::check(gapless_fit::read::config("fuzz", &file));
    fit::check(gapless_fit::read::config("fuzz", bytes));
});
