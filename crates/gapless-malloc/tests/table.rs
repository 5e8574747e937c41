//! The table of all entry points x sizes x alignments x states of the process: what the C library's own allocator
//! answers is right.

mod programs;

use programs::{build, library};
use std::path::Path;
use std::process::Command;

/// Each call with its size and what came out.
fn ask(program: &Path, state: &str, variables: Option<&[(&str, &str)]>) -> Vec<(String, u64, String)> {
    let mut command = Command::new(program);
    command.arg(state);
    if let Some(variables) = variables {
        command.env("LD_PRELOAD", library()).envs(variables.iter().copied());
    }
    let output = command.output().expect("the program starts");
    let text = String::from_utf8(output.stdout).expect("words");
    assert!(output.status.success(), "{state}: {:?} {}", output.status, String::from_utf8_lossy(&output.stderr));
    let lines = text.lines().map(|line| {
        let words: Vec<&str> = line.splitn(4, ' ').collect();
        let size = words[2].parse().expect("a size");
        (format!("{}({size}) at {}", words[0], words[1]), size, words[3].to_owned())
    });
    lines.collect()
}

/// Where the two differ. `allowed`: what is said in docs/host.md.
fn differences(
    state: &str,
    variables: &[(&str, &str)],
    allowed: impl Fn(u64, &str, &str) -> bool,
) -> (usize, Vec<String>) {
    let program = build("table.cpp");
    let (theirs, ours) = (ask(&program, state, None), ask(&program, state, Some(variables)));
    assert_eq!(theirs.len(), ours.len(), "{state}");
    let differ = theirs.iter().zip(&ours).filter_map(|((call, size, wanted), (_, _, got))| {
        (wanted != got && !allowed(*size, wanted, got)).then(|| format!("{call}: {got}, not {wanted}"))
    });
    (theirs.len(), differ.collect())
}

fn is_equal(state: &str, variables: &[(&str, &str)]) {
    let (calls, differ) = differences(state, variables, |_, _, _| false);
    assert!(calls > 9_000, "{calls}");
    assert!(differ.is_empty(), "{state} {variables:?}: {} of {calls}:\n{}", differ.len(), differ.join("\n"));
}

#[test]
fn each_entry_point_answers_alike_when_nothing_was_allocated_before() {
    is_equal("fresh", &[]);
}

#[test]
fn each_entry_point_answers_alike_before_and_after_each_part_of_the_allocator_exists() {
    is_equal("used", &[]);
    is_equal("forked", &[]);
    is_equal("thread", &[]);
    is_equal("used", &[("GAPLESS_HOST_HUGE", "1")]);
}

#[test]
fn each_entry_point_answers_alike_when_blocks_are_checked_or_recorded() {
    is_equal("used", &[("GAPLESS_HOST_CHECK", "1")]);
    let file = std::env::temp_dir().join(format!("table_{}.gtrace", std::process::id()));
    let path = file.to_str().expect("a name");
    is_equal("used", &[("GAPLESS_HOST_RECORD", path), ("GAPLESS_HOST_RECORD_EVERY", "1")]);
    let _ = std::fs::remove_file(file);
}

#[test]
fn a_limit_of_addresses_refuses_what_it_refuses_others() {
    // Between the two a limit leaves room for different tables.
    let (_, differ) = differences("limited", &[], |size, _, _| (1 << 31..3 << 30).contains(&size));
    assert!(differ.is_empty(), "{}:\n{}", differ.len(), differ.join("\n"));
}

#[test]
fn a_budget_refuses_what_exceeds_it_and_nothing_else() {
    let set = [("GAPLESS_HOST_LIMIT", "2GiB")];
    let (_, differ) = differences("used", &set, |size, _, got| {
        // Aligned blocks take what lies before them, until it is known that they need not.
        size >= (2 << 30) - (1 << 20) && (got.starts_with("null 12") || got == "threw")
    });
    let unaligned: Vec<&String> = differ.iter().filter(|line| line.contains(" at 0:")).collect();
    assert!(unaligned.is_empty(), "{}: {unaligned:#?}", unaligned.len());
}
