//! Programs in C and C++ under the library, from `tests/programs/`. A program reports an error and exits with 1.

mod programs;

use programs::{build, passes, run, words};
use std::path::Path;

#[test]
fn every_entry_point_keeps_what_the_manual_promises() {
    let program = build("api.c");
    passes(&program, &[], &[], "ok");
    passes(&program, &[], &[("GAPLESS_HOST_HUGE", "0")], "ok");
}

#[test]
fn operators_of_cxx_align_throw_and_ask_the_handler() {
    let program = build("cxx.cpp");
    passes(&program, &[], &[], "ok");
    passes(&program, &[], &[("GAPLESS_HOST_CHECK", "1")], "ok");
}

#[test]
fn random_programs_find_their_bytes_while_threads_come_and_go() {
    let program = build("stress.c");
    passes(&program, &["4", "1500"], &[], "ok, 0 bytes of large buffers left");
    passes(&program, &["2", "300"], &[("GAPLESS_HOST_CHECK", "1")], "ok");
    // Under a tight budget the kept memory goes back all the time.
    passes(&program, &["2", "1000"], &[("GAPLESS_HOST_LIMIT", "3GiB")], "ok, 0 bytes of large buffers left");
}

#[test]
fn children_that_are_forked_while_threads_allocate_do_not_hang() {
    let program = build("fork.c");
    passes(&program, &["100"], &[], "100 forks, 0 hangs, 0 failures");
}

#[test]
fn signals_unloaded_libraries_and_destructors_of_threads_do_no_harm() {
    passes(&build("unload.c"), &[], &[], "ok");
}

/// A mistake, and the message for it: its words, and functions whose names must be in the stacks.
const MISTAKES: &[(&str, &[&str])] = &[
    ("double", &["double free of", "second_release", "first_release", "maker"]),
    ("inside", &["16 bytes into a block of", "first_release", "maker"]),
    ("foreign", &["which no allocation returned", "first_release"]),
    ("behind", &["1 bytes behind the end of", "maker", "first_release"]),
    ("before", &["1 bytes before the start of", "maker", "first_release"]),
    ("left", &["4 bytes behind the end of", "maker", "at the end of the process"]),
    ("after", &["wrote to byte 5 of", "after it was freed", "first_release", "maker"]),
    ("realloc", &["which was freed before", "first_release"]),
];

#[test]
fn checked_mode_names_each_mistake_with_its_stacks() {
    let program = build("wrong.c");
    for size in ["100", "3000000"] {
        for (mistake, said) in MISTAKES {
            let output = run(&program, &[mistake, size], &[("GAPLESS_HOST_CHECK", "1")]);
            let (_, error) = words(&output);
            assert!(!output.status.success(), "{mistake} of {size} bytes was not found");
            for part in *said {
                assert!(error.contains(part), "{mistake} of {size} bytes: no {part:?} in\n{error}");
            }
        }
        passes(&program, &["none", size], &[("GAPLESS_HOST_CHECK", "1")], "end");
    }
}

#[test]
fn addresses_at_which_no_block_begins_end_the_program_without_checked_mode_too() {
    let program = build("wrong.c");
    let sizes =
        ["1", "16", "100", "1024", "5000", "40000", "200000", "262145", "900000", "3000000", "20000000"];
    for mistake in ["double", "unaligned", "inside", "realloc", "growing", "growing-inside", "foreign"] {
        for (at, size) in sizes.iter().enumerate() {
            // Within blocks that have a class, `free` does not look for the beginning.
            if mistake == "inside" && at < 7 || mistake == "growing-inside" && at < 2 {
                continue;
            }
            let output = run(&program, &[mistake, size], &[]);
            assert!(!output.status.success(), "{mistake} of {size}");
            let (_, error) = words(&output);
            assert!(error.contains("no block begins there"), "{mistake} of {size}: {error}");
        }
    }
}

fn got(kind: &str, limit: &str) -> Vec<u32> {
    got_with(kind, &[("GAPLESS_HOST_LIMIT", limit)])
}

fn got_with(kind: &str, variables: &[(&str, &str)]) -> Vec<u32> {
    let output = run(&build("limit.c"), &[kind], variables);
    let (out, error) = words(&output);
    assert!(output.status.success(), "{kind}: {out}{error}");
    out.lines().map(|line| line.parse().unwrap_or_else(|_| panic!("{kind}: {out}{error}"))).collect()
}

/// With a page that is shared by programs that are started anew.
fn got_in_file(kind: &str, limit: &str) -> Vec<u32> {
    let file = std::env::temp_dir().join(format!("gapless_limit_{kind}_{}", std::process::id()));
    std::fs::write(&file, "").expect("a file");
    let name = file.to_str().expect("a name");
    let variables = [("GAPLESS_HOST_LIMIT", limit), ("GAPLESS_HOST_LIMIT_FILE", name)];
    let got = got_with(kind, &variables);
    std::fs::remove_file(&file).expect("removed");
    got
}

#[test]
fn a_budget_is_used_up_and_not_exceeded() {
    let large = got("large", "256MiB");
    assert!(large.iter().all(|mib| (200..=256).contains(mib)) && large.len() == 2, "{large:?}");
    let small = got("small", "256MiB");
    assert!((150..=256).contains(&small[0]), "{small:?}");
    assert_eq!(got("cached", "256MiB"), [1], "kept memory goes back before a request is refused");
}

#[test]
fn forked_workers_share_a_budget_and_a_killed_one_returns_its_part() {
    let forked = got("forked", "256MiB");
    assert!((100..=156).contains(&forked[0]), "the child holds 100: {forked:?}");
    assert!((200..=256).contains(&forked[1]), "the child is gone: {forked:?}");
}

#[test]
fn a_budget_counts_processes_whatever_number_they_have_and_however_they_end() {
    for kind in ["namespaced", "entered", "bare", "threads"] {
        let got = got_in_file(kind, "256MiB");
        assert!((100..=156).contains(&got[0]), "{kind}: another process holds 100: {got:?}");
        assert!((200..=256).contains(&got[1]), "{kind}: it was killed: {got:?}");
    }
    let got = got_in_file("became", "256MiB");
    assert!(got.iter().all(|mib| (200..=256).contains(mib)), "the other process is another program: {got:?}");
}

#[test]
fn a_variable_that_cannot_be_understood_ends_the_program_with_2() {
    for (name, value, said) in [
        ("GAPLESS_HOST_LIMIT", "12 parsecs", "the unit is not one of"),
        ("GAPLESS_HOST_LIMIT", "0", "zero bytes are no budget"),
        ("GAPLESS_HOST_CHECK", "maybe", "it is neither 0 nor 1"),
        ("GAPLESS_HOST_HUGE", "2", "it is neither 0 nor 1"),
    ] {
        let output = run(Path::new("/bin/true"), &[], &[(name, value)]);
        let (_, error) = words(&output);
        assert_eq!(output.status.code(), Some(2), "{name}={value}");
        assert!(error.contains(name) && error.contains(said) && error.contains("for example"), "{error}");
    }
    let file = [("GAPLESS_HOST_LIMIT", "1GiB"), ("GAPLESS_HOST_LIMIT_FILE", "/nonexistent/budget")];
    assert_eq!(run(Path::new("/bin/true"), &[], &file).status.code(), Some(2));
}

#[test]
fn a_program_with_few_addresses_still_runs() {
    // `ulimit -v` counts reserved addresses, so the arena takes what it can get, or none.
    for kib in ["6000000", "900000"] {
        let script = format!("ulimit -v {kib}; exec /bin/sh -c 'echo $((6 * 7))'");
        let output = run(Path::new("/bin/sh"), &["-c", &script], &[]);
        assert_eq!(words(&output).0.trim(), "42", "{kib}: {}", words(&output).1);
    }
}

#[test]
fn a_program_of_another_user_has_a_budget_of_its_own() {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    let folder = std::env::temp_dir().join(format!("another_user_{}", std::process::id()));
    std::fs::create_dir(&folder).expect("a folder");
    let may = |path: &std::path::Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("it is ours");
    };
    let (library, page) = (folder.join("library.so"), folder.join("page"));
    std::fs::copy(programs::library(), &library).expect("the library can be read");
    std::fs::write(&page, "").expect("a file");
    may(&folder, 0o755);
    may(&library, 0o755);
    may(&page, 0o000);
    let mut command = std::process::Command::new("echo");
    command.arg("begun").env("LD_PRELOAD", &library);
    command.env("GAPLESS_HOST_LIMIT", "1GiB").env("GAPLESS_HOST_LIMIT_FILE", &page);
    if std::fs::File::open(&page).is_ok() {
        // Root may open everything.
        command.uid(65534);
    }
    let output = command.output().expect("it starts");
    std::fs::remove_dir_all(&folder).expect("it is ours");
    let (out, error) = programs::words(&output);
    assert!(output.status.success() && out == "begun\n", "{out}{error}");
    assert!(error.contains("runs as another user, so it has a budget of 1.00 GiB of its own"), "{error}");
}
