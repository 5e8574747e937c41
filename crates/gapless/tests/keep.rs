//! `gapless keep`: refusals by the command itself. `python/tests/test_keep.py` tests the memory that it holds.

mod support;

use support::run;

#[test]
fn what_cannot_be_kept_is_refused_before_anything_starts() {
    let missing = run(&["keep", "no-such-file.safetensors"]);
    assert_eq!(missing.code, 2);
    assert!(missing.err.contains("no-such-file.safetensors: no such file"), "{}", missing.err);
    for wrong in
        [&["keep"][..], &["keep", "Cargo.toml", "--device", "-1"], &["keep", "Cargo.toml", "--device", "64"]]
    {
        assert_eq!(run(wrong).code, 2, "{wrong:?}");
    }
}
