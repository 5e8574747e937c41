//! A panic in any thread of a loading becomes the loading's error, with its message, and the loading ends.

mod common;

use common::{Model, card, host};
use gapless_loader::{Catalogue, LoadError};
use std::process::Command;
use std::sync::Arc;

/// Target of the loading in a child process: `GAPLESS_TEST_PANIC` is read once a process.
const TARGET: &str = "GAPLESS_TEST_TARGET";

#[test]
fn a_panic_of_any_thread_is_the_error_of_its_loading() {
    let program = std::env::current_exe().unwrap();
    // The first piece of work, and pieces of other threads.
    for (target, number) in [("host", 0), ("host", 2), ("card", 1)] {
        let done = Command::new(&program)
            .args(["--exact", "one_loading", "--ignored"])
            .env(TARGET, target)
            .env("GAPLESS_TEST_PANIC", format!("load:{number}"))
            .output()
            .unwrap();
        let out = String::from_utf8_lossy(&done.stdout).into_owned();
        assert!(done.status.success() && out.contains("1 passed"), "{target}, {number}: {out}");
    }
}

#[test]
#[ignore = "the test above runs it"]
fn one_loading() {
    let model = Model::new();
    let catalogue = Arc::new(Catalogue::open(&model.packed()).unwrap());
    let result = match std::env::var(TARGET).as_deref() {
        Ok("card") => card(&catalogue, 3, true),
        _ => host(&catalogue, 3),
    };
    let error = result.expect_err("it panics");
    assert!(
        matches!(&error, LoadError::Panicked(text) if text.contains("a test asked for a panic of load")),
        "{error}"
    );
}
