//! Programs by strangers, each without the library and with it: what is right on the C library's allocator must be on
//! ours.

mod programs;

use programs::{build, build_library, build_with, same};
use std::path::Path;

#[test]
fn handlers_around_a_fork_may_allocate_in_whatever_order_they_were_registered() {
    let library = build_library("atfork_lib.c");
    let program = build_with("handlers.c", &library);
    same(&program, &["handlers"], &[]);
    // Each byte is filled and verified, also in the children, in which each page is copied first.
    same(&program, &["handlers", "10"], &[("GAPLESS_HOST_CHECK", "1")]);
    same(&program, &["handlers"], &[("GAPLESS_HOST_LIMIT", "4GiB")]);
    let file = std::env::temp_dir().join(format!("handlers_{}.gtrace", std::process::id()));
    same(&program, &["handlers"], &[("GAPLESS_HOST_RECORD", file.to_str().expect("a name"))]);
    let _ = std::fs::remove_file(file);
}

#[test]
fn malloc_and_fork_do_not_end_a_thread_that_was_cancelled() {
    same(&build("handlers.c"), &["cancels"], &[]);
}

#[test]
fn a_library_may_hold_its_mutex_across_a_fork_and_wait_for_threads_that_allocate() {
    let library = build_library("locked_lib.c");
    let path = library.to_str().expect("a name");
    for variables in [&[][..], &[("GAPLESS_HOST_LIMIT", "4GiB")], &[("GAPLESS_HOST_STATS", "1")]] {
        same(&build_with("orders.c", &library), &["30"], variables);
        same(&build("orders.c"), &["30", path], variables);
    }
}

#[test]
fn nothing_of_ours_appears_under_descriptors_that_a_program_uses_by_number() {
    let program = build("files.c");
    let file = std::env::temp_dir().join(format!("files_{}.gtrace", std::process::id()));
    let variables = [("GAPLESS_HOST_STATS", "1"), ("GAPLESS_HOST_RECORD", file.to_str().expect("a name"))];
    for case in [
        "dup2",
        "closed",
        "closed-one-by-one",
        "high",
        "opened-beside",
        "replaced-beside",
        "forked",
        "daemon",
        "exec",
    ] {
        same(&program, &[case], &variables);
    }
    // Each child has a recording of its own.
    let start = file.file_stem().expect("a name").to_str().expect("a name").to_owned();
    for entry in std::fs::read_dir(std::env::temp_dir()).expect("a folder").filter_map(Result::ok) {
        if entry.file_name().to_str().is_some_and(|name| name.starts_with(&start)) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

#[test]
fn a_registration_ends_where_the_drivers_descriptors_are() {
    let library = build_library("runtime_lib.c");
    same(&build_with("pinned.c", &library), &[], &[]);
}

#[test]
fn memory_that_is_touched_in_part_stays_small_and_goes_back_when_the_process_idles() {
    let program = build("held.c");
    for case in
        ["sparse", "sparse-zeroed", "sparse-after-filled", "many", "huge", "forked", "writable", "moved"]
    {
        same(&program, &[case], &[]);
    }
}

#[test]
fn limits_that_a_program_sets_leave_it_what_they_leave_others() {
    let program = build("limits.c");
    for case in
        ["addresses", "inherited", "raised", "data", "data-inherited", "locked", "thin", "processes", "files"]
    {
        same(&program, &[case], &[]);
    }
    same(&program, &["lifted"], &[]);
}

#[test]
fn a_program_that_locks_itself_in_goes_on() {
    let program = build("sandbox.c");
    for case in [
        &["refused"][..],
        &["refused", "used"],
        &["killed"],
        &["killed", "used"],
        &["namespaces"],
        &["chromium"],
        &["chromium-limited"],
        &["chromium-limited", "used"],
        &["docker"],
        &["systemd"],
    ] {
        same(&program, case, &[]);
    }
}

#[test]
fn pages_that_a_program_changed_are_whole_for_the_next_owner() {
    let program = build("pages.c");
    for case in ["guarded", "advised", "usable", "quiet", "aligned"] {
        same(&program, &[case], &[]);
    }
    for case in ["usable", "aligned", "quiet"] {
        same(&program, &[case], &[("GAPLESS_HOST_CHECK", "1")]);
    }
}

#[test]
fn threads_begin_and_end_in_every_way() {
    let library = build_library("loaded_lib.c");
    let path = library.to_str().expect("a name");
    let program = build("threads.c");
    for case in [
        &["one-by-one", "2000"][..],
        &["small-stacks"],
        &["destructors"],
        &["libraries", path],
        &["spawned"],
        &["contexts"],
        &["cloned"],
        &["first-ends"],
    ] {
        same(&program, case, &[]);
    }
    // The helper is in code of other libraries when it is to end.
    same(&program, &["first-ends"], &[("GAPLESS_HOST_STATS", "1")]);
    same(&program, &["first-ends"], &[("GAPLESS_HOST_LIMIT", "4GiB")]);
}

#[test]
fn functions_that_are_found_in_the_c_library_itself_serve_the_same_blocks() {
    let library = build_library("deep_lib.c");
    let path = library.to_str().expect("a name");
    let program = build("names.c");
    for variables in [&[][..], &[("GAPLESS_HOST_CHECK", "1")], &[("GAPLESS_HOST_LIMIT", "4GiB")]] {
        same(&program, &["by-handle"], variables);
        same(&program, &["bound-deeply", path], variables);
    }
}

#[test]
fn thousands_of_threads_that_are_joined_do_not_wait_for_each_other() {
    // The C library keeps 40 MiB of stacks, and frees those of further threads with their tables.
    same(&build("names.c"), &["many", "4000"], &[]);
}

#[test]
fn checked_mode_asks_the_loader_for_no_names_while_nothing_is_wrong() {
    same(&build("names.c"), &["unasked"], &[("GAPLESS_HOST_CHECK", "1")]);
}

#[test]
fn objects_of_cxx_allocate_when_threads_and_the_program_end() {
    same(&build("statics.cpp"), &[], &[]);
}

#[test]
fn python_programs_fork_limit_and_interrupt_themselves() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/stranger.py");
    let script = script.to_str().expect("a name");
    for case in ["forks", "pools", "commands", "limits", "killed", "signals", "foreign"] {
        same(Path::new("python3"), &[script, case], &[]);
    }
}
