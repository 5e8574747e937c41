//! Every verb as a user runs it: exit codes, streams, files.

mod support;

use serde_json::Value;
use std::fs;
use support::{repo, report, run, run_in, shown, trace};

fn temp() -> tempfile::TempDir {
    tempfile::tempdir().expect("a folder")
}

#[test]
fn report_shows_where_the_memory_went() {
    insta::assert_snapshot!(shown(&run(&["report", &trace("gpt2_train_stacks")])));
}

#[test]
fn report_of_a_failed_run_leads_with_the_failure() {
    insta::assert_snapshot!(shown(&run(&["report", &trace("oom")])));
}

#[test]
fn report_of_a_recording_that_began_late_says_so() {
    insta::assert_snapshot!(shown(&run(&["report", &trace("ring"), "--top", "3"])));
}

#[test]
fn report_of_a_snapshot_without_history_shows_the_heap() {
    insta::assert_snapshot!(shown(&run(&["report", &trace("nohistory")])));
}

#[test]
fn a_tree_fits_a_terminal_and_starts_with_the_bytes_of_the_report() {
    for name in ["gpt2_train_stacks", "multistream", "oom", "nohistory"] {
        let done = run(&["report", &trace(name), "--tree"]);
        assert_eq!(done.code, 0, "{}", done.err);
        let device = &report(&trace(name))["devices"][0];
        let active = device["at_peak_allocated"]["figures"]["active"].as_u64().expect("a number");
        let rows: Vec<&str> = done.out.lines().skip(1).collect();
        assert!(rows.iter().all(|row| row.chars().count() <= 80), "{name}: {}", done.out);
        let whole = format!("{:>8}  100 %  all", gapless_trace::Bytes(active).to_string());
        assert!(rows.contains(&whole.as_str()), "{name}: {whole} is in {}", done.out);
        let has_stacks = device["holders"].as_array().is_some_and(|h| {
            h.iter().any(|holder| holder["stack"].as_array().is_some_and(|stack| !stack.is_empty()))
        });
        assert_eq!(done.out.contains("no stacks were recorded: by kind"), !has_stacks, "{name}");
    }
    let both = run(&["report", &trace("multistream"), "--tree", "--format", "json"]);
    assert_eq!(both.code, 2);
    assert!(both.err.contains("--format"), "{}", both.err);
}

#[test]
fn a_tree_of_modules_has_the_bytes_of_the_modules() {
    let of = |file: &str| {
        let done = run(&["report", file, "--tree=modules"]);
        assert_eq!(done.code, 0, "{}", done.err);
        assert!(done.out.lines().skip(1).all(|row| row.chars().count() <= 80), "{}", done.out);
        (done.out, report(file)["devices"][0].clone())
    };
    for version in ["2_14", "2_15"] {
        let (out, device) =
            of(&repo(&format!("testdata/newer/train_{version}.pickle.gz")).display().to_string());
        let modules = &device["modules"];
        let total = modules["total"].as_u64().expect("modules have names there");
        let whole = format!("{:>8}  100 %  all", gapless_trace::Bytes(total).to_string());
        assert!(out.contains(&whole), "{whole}: {out}");
        assert!(out.contains("  model.layers.*.weight › weights\n"), "{out}");
    }
    let (out, _) = of(&trace("gpt2_train_stacks"));
    assert!(out.contains("no modules have names"), "{out}");
    assert_eq!(run(&["report", &trace("multistream"), "--tree=layers"]).code, 2);
}

#[test]
fn holders_of_a_report_have_different_names() {
    for name in ["gpt2_train_stacks", "multistream", "oom", "leak", "mixtral_moe"] {
        let device = &report(&trace(name))["devices"][0];
        let holders = device["holders"].as_array().expect("a list");
        let mut labels: Vec<&str> = holders.iter().filter_map(|holder| holder["label"].as_str()).collect();
        labels.sort_unstable();
        labels.dedup();
        assert_eq!(labels.len(), holders.len(), "{name}: {labels:?}");
    }
}

#[test]
fn report_from_standard_input_is_the_report_of_the_file() {
    let path = trace("multistream");
    let bytes = fs::read(&path).expect("the trace");
    let piped = run_in(&repo("testdata"), &["report", "-", "--format", "json"], Some(&bytes));
    assert_eq!(piped.code, 0, "{}", piped.err);
    let mut piped: Value = serde_json::from_str(&piped.out).expect("JSON");
    let named = report(&path);
    piped["source"]["path"] = named["source"]["path"].clone();
    assert_eq!(piped, named);
}

#[test]
fn reports_are_the_same_byte_for_byte_when_made_again() {
    for format in ["text", "json", "html"] {
        let once = run(&["report", &trace("graphs"), "--format", format]);
        let again = run(&["report", &trace("graphs"), "--format", format]);
        assert_eq!(once.code, 0);
        assert!(!once.out.is_empty());
        assert_eq!(once.out, again.out, "{format}");
    }
}

#[test]
fn output_goes_to_the_named_file_in_every_format() {
    let folder = temp();
    for format in ["text", "json", "html"] {
        let path = folder.path().join(format);
        let name = path.to_str().expect("UTF-8");
        let done = run(&["report", &trace("leak"), "--format", format, "-o", name]);
        assert_eq!((done.code, done.out.as_str()), (0, ""), "{}", done.err);
        let direct = run(&["report", &trace("leak"), "--format", format]);
        assert_eq!(fs::read_to_string(&path).expect("written"), direct.out, "{format}");
    }
    assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 3, "nothing is left beside them");
}

#[test]
fn a_failed_report_leaves_the_old_file_alone() {
    let folder = temp();
    let path = folder.path().join("report.json");
    fs::write(&path, "the old one").expect("written");
    let done = run(&["report", "no-such-file", "--format", "json", "-o", path.to_str().expect("UTF-8")]);
    assert_eq!(done.code, 2);
    assert_eq!(fs::read_to_string(&path).expect("still there"), "the old one");
    let done = run(&["report", &trace("leak"), "-o", folder.path().to_str().expect("UTF-8")]);
    assert_eq!(done.code, 2);
    assert!(done.err.contains("it is a directory"), "{}", done.err);
    let nowhere = folder.path().join("none/report.json");
    let done = run(&["report", &trace("leak"), "-o", nowhere.to_str().expect("UTF-8")]);
    assert_eq!(done.code, 2);
    assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 1);
}

#[test]
fn a_reader_that_has_seen_enough_is_no_failure() {
    use std::io::Read;
    use std::process::{Command, Stdio};
    let mut child = Command::new(env!("CARGO_BIN_EXE_gapless"))
        .args(["export", &trace("resnet_varbatch"), "--to", "csv"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    let mut head = [0; 10];
    child.stdout.take().expect("a pipe").read_exact(&mut head).expect("some output");
    let done = child.wait_with_output().expect("the binary ends");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

#[test]
fn bad_files_get_an_error_that_says_what_to_do() {
    let folder = temp();
    let write = |name: &str, bytes: &[u8]| fs::write(folder.path().join(name), bytes).expect("written");
    let whole = fs::read(trace("leak")).expect("the trace");
    write("empty", b"");
    write("picture.png", b"\x89PNG\r\n\x1a\n0000");
    write("cut.pickle.gz", &whole[..whole.len() / 2]);
    write("code.pickle", b"\x80\x04cos\nsystem\n.");
    write("text.txt", b"hello there\n");
    fs::create_dir(folder.path().join("folder")).expect("made");
    let mut all = String::new();
    for name in
        ["missing.pickle", "folder", "empty", "picture.png", "cut.pickle.gz", "code.pickle", "text.txt"]
    {
        let done = run_in(folder.path(), &["report", name], None);
        assert_eq!((done.code, done.out.as_str()), (2, ""), "{name}: {}", done.err);
        all.push_str(&done.err);
    }
    insta::assert_snapshot!(all);
}

#[test]
fn events_that_contradict_each_other_get_an_error_that_names_the_event() {
    let folder = temp();
    let event = |action: &str, addr: u64, size: u64| {
        format!(r#"{{"action":"{action}","addr":{addr},"size":{size},"stream":0,"time_us":1}}"#)
    };
    let snapshot = |events: &[String]| {
        format!(r#"{{"segments":[],"device_traces":[[{}]],"allocator_settings":{{}}}}"#, events.join(","))
    };
    let segment = event("segment_alloc", 4096, 2 << 20);
    let cases = [
        ("twice", vec![segment.clone(), event("alloc", 4096, 512), event("alloc", 4096, 512)]),
        ("inside", vec![segment.clone(), event("alloc", 4096, 4096), event("alloc", 4096 + 512, 512)]),
        (
            "free",
            vec![segment.clone(), event("free_requested", 4096, 512), event("free_completed", 4096, 512)],
        ),
        (
            "twice-freed",
            vec![
                segment.clone(),
                event("alloc", 4096, 512),
                event("free_requested", 4096, 512),
                event("free_completed", 4096, 512),
                event("free_requested", 4096, 512),
                event("free_completed", 4096, 512),
            ],
        ),
        ("outside", vec![segment.clone(), event("alloc", 1 << 40, 512)]),
        ("in-use", vec![segment, event("alloc", 4096, 512), event("segment_free", 4096, 2 << 20)]),
    ];
    let mut all = String::new();
    for (name, events) in cases {
        fs::write(folder.path().join(name), snapshot(&events)).expect("written");
        let done = run_in(folder.path(), &["report", name], None);
        assert_eq!((done.code, done.out.as_str()), (2, ""), "{name}: {}{}", done.out, done.err);
        all.push_str(&done.err);
    }
    insta::assert_snapshot!(all);
}

#[test]
fn check_says_yes_no_or_why_not() {
    let path = trace("gpt2_train");
    let within = run(&["check", &path, "--max-peak-reserved", "20GiB", "--max-fragmentation", "15%"]);
    insta::assert_snapshot!("check_within", shown(&within));
    assert_eq!(within.code, 0);
    let over = run(&["check", &path, "--max-peak-reserved", "10GiB", "--max-peak-allocated", "20GiB"]);
    insta::assert_snapshot!("check_over", shown(&over));
    assert_eq!(over.code, 1);
    for args in [
        &["check", &path][..],
        &["check", &path, "--max-peak-reserved", "lots"],
        &["check", &path, "--max-fragmentation", "15"],
        &["check", "missing", "--max-peak-reserved", "1GiB"],
        &["check", &path, "--baseline", "missing.json"],
        &["check", &trace("multistream"), "--max-growth-per-step", "1MiB"],
    ] {
        let done = run_in(temp().path(), args, None);
        assert_eq!((done.code, done.out.as_str()), (2, ""), "{args:?}");
        assert!(done.err.starts_with("error: "), "{args:?}: {}", done.err);
    }
}

#[test]
fn check_writes_what_github_and_junit_readers_expect() {
    let args = |format| {
        [
            "check",
            "leak",
            "--max-peak-reserved",
            "256MiB",
            "--max-growth-per-step",
            "8MiB",
            "--format",
            format,
        ]
    };
    let folder = temp();
    fs::copy(trace("leak"), folder.path().join("leak")).expect("copied");
    for format in ["github", "junit", "json"] {
        let done = run_in(folder.path(), &args(format), None);
        assert_eq!(done.code, 1, "{}", done.err);
        insta::assert_snapshot!(format!("check_{format}"), done.out);
    }
}

#[test]
fn budgets_come_from_the_nearest_gapless_toml_and_flags_win() {
    let folder = temp();
    let inner = folder.path().join("a/b");
    fs::create_dir_all(&inner).expect("made");
    let config = "[check]\npeak_reserved = \"1GiB\"\nfragmentation = 0.5\n";
    fs::write(folder.path().join("gapless.toml"), config).expect("written");
    let path = trace("leak");
    assert_eq!(run_in(&inner, &["check", &path], None).code, 0);
    assert_eq!(run_in(&inner, &["check", &path, "--max-peak-reserved", "100MiB"], None).code, 1);
    fs::write(inner.join("gapless.toml"), "[check]\npeak_reservd = \"1GiB\"\n").expect("written");
    let typo = run_in(&inner, &["check", &path], None);
    assert_eq!(typo.code, 2);
    assert!(typo.err.contains("peak_reservd") && typo.err.contains("help:"), "{}", typo.err);
}

#[test]
fn a_baseline_is_a_saved_report_or_a_trace() {
    let folder = temp();
    let path = trace("gpt2_train");
    let base = folder.path().join("base.json");
    run(&["report", &path, "--format", "json", "-o", base.to_str().expect("UTF-8")]);
    let base = base.to_str().expect("UTF-8");
    assert_eq!(run(&["check", &path, "--baseline", base]).code, 0);
    assert_eq!(run(&["check", &path, "--baseline", &path]).code, 0);
    // ResNet reserves less than GPT-2; Mixtral more, but not twice as much.
    assert_eq!(run(&["check", &trace("resnet_varbatch"), "--baseline", base]).code, 0);
    assert_eq!(run(&["check", &trace("mixtral_moe"), "--baseline", base]).code, 1);
    assert_eq!(run(&["check", &trace("mixtral_moe"), "--baseline", base, "--tolerance", "100%"]).code, 0);
}

#[test]
fn diff_names_what_grew() {
    insta::assert_snapshot!(shown(&run(&["diff", &trace("gpt2_train"), &trace("split_round")])));
    let same = run(&["diff", &trace("gpt2_train"), &trace("gpt2_train"), "--format", "json"]);
    let same: Value = serde_json::from_str(&same.out).expect("JSON");
    assert_eq!(same["schema"], "gapless.diff/1");
    assert_eq!(same["devices"][0]["holders"], Value::Array(Vec::new()), "a run does not differ from itself");
    assert_eq!(run(&["diff", "-", "-"]).code, 2);
}

#[test]
fn diff_matches_stacks_across_runs() {
    // One program: three steps with four layers of 256 tokens, four steps with twelve of 1024.
    let diff = run(&["diff", &trace("cpppickle"), &trace("exp_empty"), "--format", "json"]);
    let diff: Value = serde_json::from_str(&diff.out).expect("JSON");
    let device = &diff["devices"][0];
    assert_eq!(device["steps"]["peaks"].as_array().expect("steps").len(), 3);
    let holders = device["holders"].as_array().expect("holders");
    let both =
        holders.iter().filter(|h| h["before"].as_u64() > Some(0) && h["after"].as_u64() > Some(0)).count();
    assert!(both >= 10, "{both} stacks are in both runs");
}

#[test]
fn a_gtrace_tells_what_its_snapshot_told() {
    let folder = temp();
    for name in ["gpt2_train_stacks", "graphs", "ring_exp", "nohistory", "mixtral_moe_expandable"] {
        let path = folder.path().join(format!("{name}.gtrace"));
        let file = path.to_str().expect("UTF-8");
        let done = run(&["export", &trace(name), "-o", file]);
        assert_eq!(done.code, 0, "{name}: {}", done.err);
        let (mut ours, mut theirs) = (report(file), report(&trace(name)));
        for report in [&mut ours, &mut theirs] {
            report["source"]["path"] = Value::Null;
            report["source"]["format"] = Value::Null;
        }
        assert_eq!(ours, theirs, "{name}");
    }
}

#[test]
fn exports_hold_every_allocation() {
    let allocations = report(&trace("leak"))["devices"][0]["allocations"].as_u64().expect("a count") as usize;
    let csv = run(&["export", &trace("leak"), "--to", "csv"]);
    assert_eq!(csv.out.lines().count(), allocations + 1);
    let lifetimes = run(&["export", &trace("leak"), "--to", "minimalloc"]);
    assert_eq!(lifetimes.out.lines().next(), Some("id,lower,upper,size"));
    assert_eq!(lifetimes.out.lines().count(), allocations + 1);
    let one_step = run(&["export", &trace("leak"), "--to", "minimalloc", "--steps", "3"]);
    assert!((2..allocations / 4).contains(&one_step.out.lines().count()));
    let perfetto = run(&["export", &trace("leak"), "--to", "perfetto"]);
    let perfetto: Value = serde_json::from_str(&perfetto.out).expect("JSON");
    assert!(perfetto["traceEvents"].as_array().expect("events").len() > 100);
    for args in [&["--to", "minimalloc", "--steps", "99"][..], &["--device", "7", "--to", "csv"], &[]] {
        let mut all = vec!["export".to_owned(), trace("leak")];
        all.extend(args.iter().map(|&a| a.to_owned()));
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        let done = run(&all);
        assert_eq!(done.code, 2, "{args:?}");
        assert!(done.err.contains("help:"), "{}", done.err);
    }
}

#[test]
fn lifetimes_exported_can_be_read_back() {
    let folder = temp();
    let path = folder.path().join("lifetimes.csv");
    let file = path.to_str().expect("UTF-8");
    assert_eq!(run(&["export", &trace("leak"), "--to", "minimalloc", "-o", file]).code, 0);
    let (own, original) = (report(file), report(&trace("leak")));
    assert_eq!(own["devices"][0]["peak_allocated"], original["devices"][0]["peak_active"]);
    assert_eq!(own["devices"][0]["peak_reserved"], Value::Null);
}

#[test]
fn explain_knows_every_code_that_a_report_can_have() {
    let list = run(&["explain"]);
    insta::assert_snapshot!(list.out);
    for (_, path) in support::all_traces() {
        let report = report(path.to_str().expect("UTF-8"));
        for finding in report["findings"].as_array().expect("findings") {
            let code = finding["code"].as_str().expect("a code");
            assert!(list.out.contains(code), "{code}");
            assert!(!finding["help"].as_str().expect("help").is_empty(), "{code} has a next step");
        }
    }
    let unknown = run(&["explain", "GAP999"]);
    assert_eq!(unknown.code, 2);
    assert!(unknown.err.contains("help:"), "{}", unknown.err);
}

#[test]
fn findings_never_advise_what_is_already_set() {
    for (name, path) in support::all_traces() {
        let report = report(path.to_str().expect("UTF-8"));
        if report["settings"]["expandable_segments"] != true {
            continue;
        }
        for finding in report["findings"].as_array().expect("findings") {
            let help = finding["help"].as_str().expect("help");
            assert!(!help.contains("expandable_segments:True"), "{name}: {help}");
        }
    }
}

#[test]
fn a_leak_is_found_with_the_line_that_keeps_it() {
    let report = report(&trace("leak"));
    let findings = report["findings"].as_array().expect("findings");
    let leak = findings.iter().find(|f| f["code"] == "GAP201").expect("the leak is found");
    assert!(leak["evidence"][0].as_str().expect("evidence").contains("remember"), "{leak}");
    let growth = &report["devices"][0]["growth"];
    assert_eq!(growth["bytes_per_step"].as_f64().expect("a slope").round() as u64, 4 << 20);
}

#[test]
fn help_teaches_by_example_and_completions_exist_for_every_shell() {
    for verb in ["report", "diff", "check", "export"] {
        let help = run(&[verb, "--help"]);
        assert!(help.out.contains("Examples:"), "{verb}");
    }
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = run(&["completions", shell]);
        assert_eq!(script.code, 0);
        assert!(script.out.contains("gapless") && script.out.contains("export"), "{shell}");
    }
}

#[test]
fn demo_writes_the_page_and_prints_its_path() {
    let folder = temp();
    let done = run_in(folder.path(), &["demo"], None);
    assert_eq!(done.code, 0, "{}", done.err);
    let page = folder.path().canonicalize().expect("a path").join("gapless-demo.html");
    assert!(done.out.contains("gapless-demo.html"));
    assert!(fs::read_to_string(page).expect("the page").contains("</html>"));
    assert!(done.out.contains("Findings"));
}

#[test]
fn plan_packs_a_csv_and_proves_it() {
    let folder = temp();
    let path = folder.path().join("buffers.csv");
    // Two pairs that cannot be alive together: 16 bytes suffice, and no plan needs less.
    fs::write(&path, "id,lower,upper,size\na,0,4,8\nb,2,6,8\nc,5,9,8\nd,6,9,8\n").expect("written");
    let done = run_in(folder.path(), &["plan", "buffers.csv", "--format", "json"], None);
    assert_eq!(done.code, 0, "{}", done.err);
    let plan: Value = serde_json::from_str(&done.out).expect("JSON");
    assert_eq!(plan["schema"], "gapless.plan/1");
    assert_eq!((plan["peak"].as_u64(), plan["lower_bound"].as_u64()), (Some(16), Some(16)));
    assert_eq!(plan["proven_optimal"], true);
    assert_eq!(plan["buffers"].as_array().expect("buffers").len(), 4);
    let fits = run_in(folder.path(), &["plan", "buffers.csv", "--capacity", "16B"], None);
    assert_eq!(fits.code, 0, "{}", fits.out);
    let tight = run_in(folder.path(), &["plan", "buffers.csv", "--capacity", "15B"], None);
    assert_eq!(tight.code, 1, "{}", tight.out);
    assert!(tight.out.contains("cannot lie in it together"), "{}", tight.out);
}

#[test]
fn plan_writes_every_format_and_follows_an_old_plan() {
    let folder = temp();
    let args = |format: &'static str| ["plan", "lifetimes.csv", "--time-limit", "2s", "--format", format];
    fs::write(
        folder.path().join("lifetimes.csv"),
        run(&["export", &trace("leak"), "--to", "minimalloc"]).out,
    )
    .expect("written");
    let csv = run_in(folder.path(), &args("csv"), None);
    assert!(csv.out.starts_with("id,lower,upper,size,offset\n"), "{}", &csv.out[..80]);
    fs::write(folder.path().join("plan.csv"), &csv.out).expect("written");
    let again = run_in(folder.path(), &["plan", "lifetimes.csv", "--old", "plan.csv"], None);
    assert!(again.out.contains("moved        0 of"), "{}", again.out);
    let svg = run_in(folder.path(), &args("svg"), None).out;
    assert!(svg.starts_with("<svg") && svg.matches("<rect").count() + 1 == csv.out.lines().count());
    assert!(run_in(folder.path(), &args("html"), None).out.contains("</html>"));
    // The same buffers from the trace itself; sizes there are those asked for.
    let step = run(&["plan", &trace("leak"), "--step", "3", "--time-limit", "2s", "--format", "json"]);
    let step: Value = serde_json::from_str(&step.out).expect("JSON");
    assert_eq!(step["proven_optimal"], true);
}

#[test]
fn plan_says_what_is_wrong_with_the_question() {
    let folder = temp();
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).expect("written");
    write("backwards.csv", "id,lower,upper,size\na,4,4,8\n");
    write("negative.csv", "id,lower,upper,size\na,0,4,-8\n");
    write("twice.csv", "id,lower,upper,size\na,0,4,8\na,5,6,8\n");
    write("columns.csv", "id,lower,size\na,0,4\n");
    write("good.csv", "id,lower,upper,size\na,0,4,8\n");
    let mut all = String::new();
    for args in [
        &["plan", "backwards.csv"][..],
        &["plan", "negative.csv"],
        &["plan", "twice.csv"],
        &["plan", "columns.csv"],
        &["plan", "good.csv", "--capacity", "7B"],
        &["plan", "good.csv", "--time-limit", "soon"],
        &["plan", "good.csv", "--without", "magic"],
        &["plan", "missing.csv"],
    ] {
        let done = run_in(folder.path(), args, None);
        assert_eq!((done.code, done.out.as_str()), (2, ""), "{args:?}: {}", done.err);
        all.push_str(&done.err);
    }
    insta::assert_snapshot!(all);
}

#[test]
fn plan_puts_the_busy_buffers_into_the_cheap_memory() {
    let folder = temp();
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).expect("written");
    write(
        "spaces.toml",
        "[[space]]\nname = \"sram\"\ncapacity = \"8B\"\ncost = 1\n[[space]]\nname = \"dram\"\ncost = 10\n",
    );
    write("buffers.csv", "id,lower,upper,size,accesses\na,0,4,8,1\nb,0,4,8,5\nc,4,6,8,1\n");
    let done =
        run_in(folder.path(), &["plan", "buffers.csv", "--spaces", "spaces.toml", "--format", "json"], None);
    assert_eq!(done.code, 0, "{}", done.err);
    let plan: Value = serde_json::from_str(&done.out).expect("JSON");
    // b is read most, so a goes to the expensive memory: 8 x (10 + 5 + 1).
    assert_eq!(plan["traffic"].as_f64(), Some(128.0), "{plan}");
    assert_eq!(plan["proven_optimal"], true);
    assert_eq!(plan["buffers"][0]["places"][0]["space"], "dram");
    assert_eq!(plan["buffers"][1]["places"][0]["space"], "sram");
    let text = run_in(folder.path(), &["plan", "buffers.csv", "--spaces", "spaces.toml"], None);
    assert!(text.out.contains("proven lowest"), "{}", text.out);
    write("spaces.toml", "[[space]]\nname = \"sram\"\n");
    let wrong = run_in(folder.path(), &["plan", "buffers.csv", "--spaces", "spaces.toml"], None);
    assert_eq!(wrong.code, 2);
    assert!(wrong.err.contains("cost") && wrong.err.contains("help:"), "{}", wrong.err);
}

#[test]
fn plan_lets_buffers_take_places_reads_json_and_onnx() {
    let folder = temp();
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).expect("written");
    let peak = |args: &[&str]| {
        let mut all = args.to_vec();
        all.extend(["--format", "json", "--monotone", "--threads", "2"]);
        let done = run_in(folder.path(), &all, None);
        assert_eq!(done.code, 0, "{args:?}: {}", done.err);
        let plan: Value = serde_json::from_str(&done.out).expect("JSON");
        plan["peak"].as_u64().expect("a peak")
    };
    write("apart.csv", "id,lower,upper,size\na,0,4,8\nb,3,6,8\n");
    write("shared.csv", "id,lower,upper,size,shares\na,0,4,8,\nb,3,6,8,a\n");
    assert_eq!((peak(&["plan", "apart.csv"]), peak(&["plan", "shared.csv"])), (16, 8));
    write(
        "list.json",
        r#"[{"id": "a", "lower": 0, "upper": 4, "size": 8}, {"id": 2, "lower": 3, "upper": 6, "size": 8}]"#,
    );
    assert_eq!(peak(&["plan", "list.json"]), 16);
    let model = repo("testdata/planner/onnx/residual.onnx");
    let model = model.to_str().expect("UTF-8");
    assert!(peak(&["plan", model]) > 0);
    let wrong = run_in(folder.path(), &["plan", model, "--dim", "batch"], None);
    assert_eq!(wrong.code, 2, "{}", wrong.err);
}
