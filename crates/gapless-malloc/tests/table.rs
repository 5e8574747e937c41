//! The table of all entry points x sizes x alignments x states of the process: we answer as the C library does.

mod programs;

use programs::{build, library};
use std::path::Path;
use std::process::Command;

/// A call, and its result.
struct Line {
    door: String,
    align: u64,
    size: u64,
    answer: String,
}

fn ask(program: &Path, state: &str, variables: Option<&[(&str, &str)]>) -> Vec<Line> {
    let mut command = Command::new(program);
    command.arg(state);
    if let Some(variables) = variables {
        command.env("LD_PRELOAD", library()).envs(variables.iter().copied());
    }
    let output = command.output().expect("the program starts");
    let text = String::from_utf8(output.stdout).expect("words");
    assert!(
        output.status.success(),
        "{state}: {:?} {}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    let lines = text.lines().map(|line| {
        let words: Vec<&str> = line.splitn(4, ' ').collect();
        let number = |at: usize| words[at].parse().expect("a number");
        Line { door: words[0].to_owned(), align: number(1), size: number(2), answer: words[3].to_owned() }
    });
    lines.collect()
}

/// The differences between the two. `allowed` has the lines of the program and of ours that may differ.
fn differences(
    state: &str,
    variables: &[(&str, &str)],
    allowed: impl Fn(&Line, &Line) -> bool,
) -> (usize, Vec<String>) {
    let program = build("table.cpp");
    let (theirs, ours) = (ask(&program, state, None), ask(&program, state, Some(variables)));
    assert_eq!(theirs.len(), ours.len(), "{state}");
    let differ = theirs.iter().zip(&ours).filter(|(theirs, ours)| {
        theirs.answer != ours.answer && !is_of_libstdcxx(theirs, ours) && !allowed(theirs, ours)
    });
    let say = |(theirs, ours): (&Line, &Line)| {
        let Line { door, align, size, answer } = theirs;
        format!("{door}({size}) at {align}: {}, not {answer}", ours.answer)
    };
    (theirs.len(), differ.map(say).collect())
}

/// libstdc++ rounds a size up to its alignment. Then the sum overflows and it returns a block that is too short, or the
/// size is more than the machine has.
fn is_of_libstdcxx(theirs: &Line, ours: &Line) -> bool {
    theirs.door.starts_with("new-aligned")
        && (theirs.answer == "too short" && ours.answer != "block"
            || theirs.align >= 1 << 30 && ours.answer == "block")
}

fn is_equal(state: &str, variables: &[(&str, &str)]) {
    let (calls, differ) = differences(state, variables, |_, _| false);
    assert!(calls > 3_000, "{calls}");
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
fn each_entry_point_answers_alike_when_blocks_are_recorded() {
    let file = std::env::temp_dir().join(format!("table_{}.gtrace", std::process::id()));
    let path = file.to_str().expect("a name");
    is_equal("used", &[("GAPLESS_HOST_RECORD", path), ("GAPLESS_HOST_RECORD_EVERY", "1")]);
    let _ = std::fs::remove_file(file);
}

#[test]
fn a_limit_of_addresses_refuses_what_it_refuses_others() {
    // Near the limit of 3 GiB, tables of a few MiB count. The addresses before an aligned block do not.
    let is_near = |line: &Line, ours: &Line| {
        let all = line.size.saturating_add(line.align);
        ((3 << 30) - (64 << 20)..(3 << 30) + (64 << 20)).contains(&all)
            || line.align >= 1 << 31 && ours.answer == "block"
    };
    let (_, differ) = differences("limited", &[], is_near);
    assert!(differ.is_empty(), "{}:\n{}", differ.len(), differ.join("\n"));
}

#[test]
fn a_budget_refuses_what_exceeds_it_and_nothing_else() {
    let set = [("GAPLESS_HOST_LIMIT", "2GiB")];
    let is_beyond = |theirs: &Line, ours: &Line| {
        let bytes = if theirs.door == "calloc-product" { theirs.size.saturating_mul(8) } else { theirs.size };
        bytes > (2 << 30) - (16 << 20) && (ours.answer.starts_with("null 12") || ours.answer == "threw")
    };
    let (_, differ) = differences("used", &set, is_beyond);
    assert!(differ.is_empty(), "{}:\n{}", differ.len(), differ.join("\n"));
}
