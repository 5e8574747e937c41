#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| gapless_fuzz::fit_onnx(bytes));
