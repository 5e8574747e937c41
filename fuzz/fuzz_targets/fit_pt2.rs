//! Archives of torch.export: the bytes are an archive, and then the program of one that is whole.

#![no_main]

mod fit;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    fit::check(gapless_fit::read::pt2("fuzz", bytes));
    fit::check(gapless_fit::read::pt2("fuzz", &fit::archive(bytes)));
});
