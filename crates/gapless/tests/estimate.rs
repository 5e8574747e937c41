//! `gapless estimate` before Python starts: what is wrong is told with exit code 2. `python/tests/test_estimate.py` has
//! the rest.

mod support;

use support::run;

#[test]
fn a_script_that_is_not_there_and_numbers_that_make_no_sense_are_refused() {
    let missing = run(&["estimate", "no-such-script.py"]);
    assert_eq!(missing.code, 2);
    assert!(missing.err.contains("no-such-script.py: no such file"), "{}", missing.err);
    assert!(missing.err.contains("gapless estimate train.py -- --batch 8"), "{}", missing.err);
    for wrong in [["--steps", "0"], ["--nproc", "0"], ["--nproc", "65"], ["--format", "csv"]] {
        assert_eq!(run(&["estimate", "train.py", wrong[0], wrong[1]]).code, 2, "{wrong:?}");
    }
}
