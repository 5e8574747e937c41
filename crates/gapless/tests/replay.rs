//! Replays, advice and post-mortems as a user asks for them: exit codes, streams, figures.

mod support;

use serde_json::Value;
use std::fs;
use support::schema::against;
use support::{report, run, run_in, shown, trace};

const GIB: u64 = 1 << 30;

fn json(args: &[&str]) -> Value {
    let mut all = args.to_vec();
    all.extend(["--format", "json"]);
    let done = run(&all);
    assert_eq!(done.err, "", "{args:?}");
    serde_json::from_str(&done.out).expect("JSON")
}

fn replay(args: &[&str]) -> Value {
    let mut all = vec!["replay"];
    all.extend(args);
    let value = json(&all);
    let wrong = against("replay", &value);
    assert!(wrong.is_empty(), "{args:?}: {wrong:#?}");
    value
}

fn advise(args: &[&str]) -> Value {
    let mut all = vec!["advise"];
    all.extend(args);
    let value = json(&all);
    let wrong = against("advice", &value);
    assert!(wrong.is_empty(), "{args:?}: {wrong:#?}");
    value
}

#[test]
fn replay_compares_allocators_in_a_table() {
    insta::assert_snapshot!(shown(&run(&["replay", &trace("gpt2_train"), "--min-capacity"])));
}

#[test]
fn replay_says_where_a_card_is_too_small() {
    insta::assert_snapshot!(shown(&run(&["replay", &trace("gpt2_train"), "--capacity", "13GiB"])));
}

#[test]
fn replay_json_has_the_runs_in_the_order_asked_for() {
    let path = trace("resnet_varbatch");
    let specs =
        ["plan", "torch@2.6:max_split_size_mb:64,expandable_segments:False", "torch", "torch:default"];
    let mut args = vec![path.as_str()];
    for spec in specs {
        args.extend(["--with", spec]);
    }
    let value = replay(&args);
    assert_eq!(value["schema"], "gapless.replay/1");
    assert_eq!((&value["device"], &value["capacity"]), (&Value::from(0), &Value::Null));
    let runs = value["runs"].as_array().expect("runs");
    let of = |member: &str| runs.iter().map(|r| r[member].clone()).collect::<Vec<_>>();
    assert_eq!(of("spec"), specs);
    assert_eq!(of("allocator"), ["plan", "torch@2.6", "torch@2.11", "torch@2.11"]);
    assert_eq!(of("settings"), ["", "max_split_size_mb:64", "", ""]);
    assert_eq!(of("recorded"), [false, false, true, false]);
    assert_eq!(of("exact"), [Value::Null, Value::Null, Value::from(true), Value::Null]);
    assert_eq!(of("min_capacity"), [Value::Null, Value::Null, Value::Null, Value::Null]);
    for run in runs {
        for member in [
            "peak_reserved",
            "peak_allocated",
            "stranded",
            "segments",
            "device_allocs",
            "device_frees",
            "retries",
        ] {
            assert!(run[member].is_u64(), "{member}: {run}");
        }
        assert!(run["fragmentation"].is_f64() && run["driver_time_ms"].is_f64() && run["oom"].is_null());
        let points = run["curve"]["ticks"].as_array().expect("ticks").len();
        assert!((100..=512).contains(&points), "{points}");
        let highest =
            run["curve"]["reserved"].as_array().expect("bytes").iter().filter_map(Value::as_u64).max();
        assert_eq!(highest, run["peak_reserved"].as_u64(), "the curve has its maximum");
    }
}

#[test]
fn every_allocator_that_there_is_can_be_replayed() {
    let unknown = run(&["replay", &trace("leak"), "--with", "tourch"]).err;
    let (_, list) =
        unknown.lines().next().and_then(|line| line.split_once("use one of ")).expect("a list of names");
    let names: Vec<&str> = list.split(", ").collect();
    assert!(names.len() >= 8, "{names:?}");
    let path = trace("leak");
    let mut args = vec![path.as_str(), "--min-capacity"];
    for name in &names {
        args.extend(["--with", name]);
    }
    let value = replay(&args);
    let help = run(&["replay", "--help"]).out;
    for (name, run) in names.iter().zip(value["runs"].as_array().expect("runs")) {
        assert!(help.contains(&format!("\n  {name} ")), "{name} is in the help");
        assert!(run["allocator"].as_str().expect("a name").starts_with(name), "{name}");
        assert_eq!(run["oom"], Value::Null, "{name}");
        let (held, used) = (run["peak_reserved"].as_u64(), run["peak_active"].as_u64());
        assert!(held >= used && used > Some(0), "{name}: {run}");
        assert!(run["min_capacity"].as_u64() >= used, "{name}");
    }
}

#[test]
fn the_recorded_settings_give_the_recorded_figures() {
    for name in ["gpt2_train", "multistream", "mixtral_moe_expandable", "graphs", "split_round", "ring"] {
        let path = trace(name);
        let (value, report) = (replay(&[&path, "--with", "torch"]), report(&path));
        let (run, device) = (&value["runs"][0], &report["devices"][0]);
        assert_eq!(run["exact"], true, "{name}");
        assert_eq!(run["exactness"]["placed"], device["allocations"], "{name}");
        assert_eq!(run["peak_reserved"], device["peak_reserved"], "{name}");
        assert_eq!(run["peak_allocated"], device["peak_allocated"], "{name}");
        assert_eq!(run["device_allocs"], device["churn"]["device_allocs"], "{name}");
        let text = run_text(&path);
        let placed = run["exactness"]["placed"].as_u64().expect("a count");
        assert!(text.contains("exact") && text.contains(&grouped(placed)), "{name}: {text}");
    }
}

fn run_text(path: &str) -> String {
    run(&["replay", path, "--with", "torch"]).out
}

/// 1234 as 1,234.
fn grouped(n: u64) -> String {
    if n < 1000 { n.to_string() } else { format!("{},{:03}", grouped(n / 1000), n % 1000) }
}

#[test]
fn a_replay_on_a_small_card_says_where_it_ended() {
    let value = replay(&[&trace("gpt2_train"), "--with", "torch", "--capacity", "13GiB", "--min-capacity"]);
    assert_eq!(value["capacity"], 13 * GIB);
    let run = &value["runs"][0];
    let number = |value: &Value| value.as_u64().expect("a number");
    let oom = &run["oom"];
    assert!(number(&oom["asked"]) >= number(&oom["requested"]));
    assert!(number(&oom["free"]) < number(&oom["asked"]), "it would have fit: {oom}");
    assert!(number(&oom["largest_hole"]) < number(&oom["requested"]), "a hole would have served it: {oom}");
    assert!(number(&oom["reserved"]) <= 13 * GIB && number(&run["peak_reserved"]) <= 13 * GIB);
    let least = number(&run["min_capacity"]);
    assert!(least > 13 * GIB);
    let enough = replay(&[&trace("gpt2_train"), "--with", "torch", "--capacity", &format!("{least}B")]);
    assert_eq!(enough["runs"][0]["oom"], Value::Null);
}

#[test]
fn the_page_is_whole_and_asks_for_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let name = "a<img src=x>&.pickle.gz";
    fs::copy(trace("leak"), folder.path().join(name)).expect("copied");
    let args = [
        "replay",
        name,
        "--format",
        "html",
        "--capacity",
        "100MiB",
        "--with",
        "torch",
        "--with",
        "torch:expandable_segments:True",
    ];
    let page = run_in(folder.path(), &args, None);
    assert_eq!(page.code, 0, "{}", page.err);
    let page = page.out;
    assert!(page.starts_with("<!doctype html>") && page.ends_with("</html>\n"));
    assert!(!page.contains("<img") && page.contains("a&lt;img src=x&gt;&amp;.pickle.gz"), "names are text");
    for foreign in ["http://", "https://", "//cdn", "@import", "url("] {
        assert!(!page.contains(foreign), "{foreign}");
    }
    let picture = &page[page.find("<svg class=\"curves ").expect("a picture")..];
    let picture = &picture[..picture.find("</svg>").expect("its end")];
    assert_eq!(picture.matches("<path class=\"line").count(), 2);
    assert_eq!(picture.matches("<path class=\"area\"").count(), 1);
    assert!(picture.contains("<g class=\"oom"), "100 MiB are too little");
    assert_eq!(page.matches("<tr class=").count(), 2);
}

#[test]
fn wrong_questions_get_an_error_that_says_what_to_write() {
    let path = trace("leak");
    let lifetimes = run(&["export", &path, "--to", "minimalloc"]).out;
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("lifetimes.csv"), lifetimes).expect("written");
    fs::copy(&path, folder.path().join("run.pickle.gz")).expect("copied");
    fs::copy(trace("nohistory"), folder.path().join("nohistory.pickle.gz")).expect("copied");
    let mut all = String::new();
    for args in [
        &["replay", "run.pickle.gz", "--with", "torch@1.13"][..],
        &["replay", "run.pickle.gz", "--with", "torch:expandable_segment:True"],
        &["replay", "run.pickle.gz", "--with", "torch:max_split_size_mb:4"],
        &["replay", "run.pickle.gz", "--with", "torch@2.4:large_segment_size_mb:32"],
        &["replay", "run.pickle.gz", "--with", "torch:backend:cudaMallocAsync"],
        &["replay", "run.pickle.gz", "--with", "rmm-pool:size:1GiB"],
        &["replay", "run.pickle.gz", "--with", "plan:tight"],
        &["replay", "run.pickle.gz", "--capacity", "0"],
        &["replay", "run.pickle.gz", "--capacity", "24"],
        &["replay", "run.pickle.gz", "--capacity", "much"],
        &["replay", "run.pickle.gz", "--device", "3"],
        &["replay", "nohistory.pickle.gz"],
        &["replay", "missing.pickle"],
        &["advise", "run.pickle.gz", "--capacity", "0"],
        &["advise", "run.pickle.gz", "--threads", "0"],
        &["advise", "nohistory.pickle.gz"],
        &["advise", "lifetimes.csv"],
        &["oom", "run.pickle.gz"],
        &["oom", "nohistory.pickle.gz", "--device", "0"],
    ] {
        let done = run_in(folder.path(), args, None);
        assert_eq!((done.code, done.out.as_str()), (2, ""), "{args:?}: {}", done.err);
        all.push_str(&done.err);
    }
    insta::assert_snapshot!(all);
    let unknown = run_in(folder.path(), &["replay", "run.pickle.gz", "--with", "tourch"], None);
    assert_eq!(unknown.code, 2);
    for part in ["tourch", "torch", "plan", "help:"] {
        assert!(unknown.err.contains(part), "{part}: {}", unknown.err);
    }
    // A list of lifetimes has no allocator of its own, but others can serve it.
    let args = ["replay", "lifetimes.csv", "--with", "torch:default", "--with", "plan"];
    let done = run_in(folder.path(), &args, None);
    assert_eq!(done.code, 0, "{}", done.err);
    assert!(done.out.contains("the defaults") && !done.out.contains("as recorded"), "{}", done.out);
}

#[test]
fn advice_gives_the_line_and_what_its_replay_showed() {
    insta::assert_snapshot!(shown(&run(&["advise", &trace("llama1b_varlen_ckpt")])));
    let value = advise(&[&trace("llama1b_varlen_ckpt")]);
    assert_eq!((&value["verdict"], &value["stopped"]), (&Value::from("helps"), &Value::from(false)));
    let first = &value["suggestions"][0];
    assert_eq!(first["line"], "export PYTORCH_ALLOC_CONF=expandable_segments:True");
    assert!(first["saving"].as_u64() > Some(10 * GIB), "{first}");
    // The saving equals that of a replay with that very line.
    let settings = format!("torch:{}", first["settings"].as_str().expect("settings"));
    let shown =
        replay(&[&trace("llama1b_varlen_ckpt"), "--with", "torch", "--with", &settings, "--min-capacity"]);
    for (run, tried) in [(&shown["runs"][0], &value["baseline"]), (&shown["runs"][1], first)] {
        for member in ["peak_reserved", "min_capacity", "device_allocs", "device_frees", "retries"] {
            assert_eq!(run[member], tried[member], "{member}");
        }
    }
    let before = value["baseline"]["peak_reserved"].as_u64().expect("bytes");
    let after = first["peak_reserved"].as_u64().expect("bytes");
    assert!(first["saving"].as_u64() <= Some(before - after), "never more than the replay showed");
}

#[test]
fn advice_never_names_what_is_set_already() {
    let done = run(&["advise", &trace("mixtral_moe_expandable")]);
    assert_eq!(done.code, 0);
    assert!(done.out.contains("nothing to gain") && !done.out.contains("export"), "{}", done.out);
    let value = advise(&[&trace("mixtral_moe_expandable")]);
    assert_eq!((&value["verdict"], &value["suggestions"]), (&Value::from("fine"), &Value::Array(Vec::new())));
}

#[test]
fn advice_finds_what_survives_on_a_smaller_card() {
    let value = advise(&[&trace("gpt2_train"), "--capacity", "13GiB"]);
    assert_eq!(
        (&value["verdict"], &value["baseline"]["survives"]),
        (&Value::from("helps"), &Value::from(false))
    );
    for suggestion in value["suggestions"].as_array().expect("suggestions") {
        assert_eq!(suggestion["survives"], true);
        assert!(suggestion["min_capacity"].as_u64() <= Some(13 * GIB));
        let settings = format!("torch:{}", suggestion["settings"].as_str().expect("settings"));
        let again = replay(&[&trace("gpt2_train"), "--with", &settings, "--capacity", "13GiB"]);
        assert_eq!(again["runs"][0]["oom"], Value::Null, "{suggestion}");
    }
}

#[test]
fn advice_says_when_nothing_can_help_and_who_holds_the_bytes() {
    let done = run(&["advise", &trace("mixtral_moe_expandable"), "--capacity", "15GiB"]);
    assert_eq!(done.code, 1);
    insta::assert_snapshot!(shown(&done));
    let value = advise(&[&trace("mixtral_moe_expandable"), "--capacity", "15GiB"]);
    assert_eq!(value["verdict"], "too_large");
    let floor = value["floor"].as_u64().expect("bytes");
    assert_eq!(value["excess"].as_u64(), Some(floor - 15 * GIB));
    assert!(!value["holders"].as_array().expect("holders").is_empty());
    let batch = &value["batch"];
    assert_eq!(batch["inferred"], true);
    let (fixed, scaling) =
        (batch["fixed"].as_u64().expect("bytes"), batch["scaling"].as_u64().expect("bytes"));
    let share = batch["fits_share"].as_f64().expect("a share");
    assert!(fixed as f64 + share * scaling as f64 <= (15 * GIB) as f64, "it fits");
    // On a card a little above the live bytes, no setting packs them, though they would fit.
    let tight = format!("{}B", floor + (2 << 20));
    let value = advise(&[&trace("mixtral_moe_expandable"), "--capacity", &tight]);
    assert_eq!((&value["verdict"], &value["batch"]), (&Value::from("no_setting"), &Value::Null));
    let done = run(&["advise", &trace("mixtral_moe_expandable"), "--capacity", &tight]);
    assert_eq!(done.code, 1);
    assert!(done.out.contains("gapless plan"), "{}", done.out);
}

#[test]
fn a_post_mortem_says_what_was_asked_what_was_free_and_who_held_the_rest() {
    for name in ["oom", "oom_exp", "retries"] {
        let done = run(&["oom", &trace(name)]);
        assert!(done.out.lines().count() <= 40, "{name}: one screen");
        insta::assert_snapshot!(format!("post_mortem_{name}"), shown(&done));
        let value = json(&["oom", &trace(name)]);
        assert_eq!(against("oom", &value), Vec::<String>::new(), "{name}");
        assert_eq!(value["reproduced"], true, "{name}");
        let report = report(&trace(name));
        let last = report["devices"][0]["churn"]["ooms"].as_array().expect("failures").last().cloned();
        let last = last.expect("a failure");
        assert_eq!(
            (&value["asked"], &value["device_free"]),
            (&last["asked"], &last["device_free"]),
            "{name}"
        );
    }
    let value = json(&["oom", &trace("oom"), "--capacity", "9.9GiB"]);
    assert_eq!(value["limit"]["kind"], "given");
    assert_eq!(against("oom", &value), Vec::<String>::new());
}

/// Two devices. On the second, 100 MiB cut into five; with two of them free, 40 MiB do not fit, and the card has 10 MiB
/// left.
fn fragmented() -> String {
    const MIB: u64 = 1 << 20;
    const BASE: u64 = 0x7f00_0000_0000;
    let mut events: Vec<String> = Vec::new();
    let mut event = |action: &str, addr: u64, size: u64| {
        let time = events.len();
        events.push(format!(
            r#"{{"action":"{action}","addr":{addr},"size":{size},"stream":0,"time_us":{time}}}"#
        ));
    };
    event("segment_alloc", BASE, 100 * MIB);
    event("alloc", BASE, 100 * MIB);
    for action in ["free_requested", "free_completed"] {
        event(action, BASE, 100 * MIB);
    }
    for i in 0..5 {
        event("alloc", BASE + i * 20 * MIB, 20 * MIB);
    }
    for i in [1, 3] {
        for action in ["free_requested", "free_completed"] {
            event(action, BASE + i * 20 * MIB, 20 * MIB);
        }
    }
    event("oom", 10 * MIB, 40 * MIB);
    let first = events[..2].join(",");
    format!(
        r#"{{"segments":[],"device_traces":[[{first}],[{}]],"allocator_settings":{{}}}}"#,
        events.join(",")
    )
}

#[test]
fn a_post_mortem_names_the_settings_that_would_have_served_the_request() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("two.json"), fragmented()).expect("written");
    let done = run_in(folder.path(), &["oom", "two.json"], None);
    insta::assert_snapshot!(shown(&done));
    let other = run_in(folder.path(), &["oom", "two.json", "--device", "0"], None);
    assert_eq!(other.code, 2, "{}", other.out);
    assert!(other.err.contains("no request failed"), "{}", other.err);
}

#[test]
fn every_device_asked_for_has_its_own_table() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("two.json"), fragmented()).expect("written");
    let both = ["replay", "two.json", "--device", "1", "--device", "0", "--with", "torch"];
    insta::assert_snapshot!(shown(&run_in(folder.path(), &both, None)));
    let mut args = both.to_vec();
    args.extend(["--format", "json"]);
    let value: Value = serde_json::from_str(&run_in(folder.path(), &args, None).out).expect("JSON");
    assert_eq!(against("replay", &value), Vec::<String>::new());
    assert_eq!((&value["device"], &value["more"][0]["device"]), (&Value::from(1), &Value::from(0)));
    let one: Value =
        serde_json::from_str(&run_in(folder.path(), &["replay", "two.json", "--format", "json"], None).out)
            .expect("JSON");
    assert_eq!(
        (&one["device"], &one["more"]),
        (&Value::from(0), &Value::Array(Vec::new())),
        "the first by default"
    );
    args[9] = "html";
    let page = run_in(folder.path(), &args, None).out;
    assert_eq!(page.matches("<svg class=\"curves ").count(), 4, "wide and narrow of each");
}

#[test]
fn a_report_has_advice_only_where_asked_for() {
    let path = trace("llama1b_varlen_ckpt");
    let without = report(&path);
    assert!(without.get("advice").is_none());
    let codes = |report: &Value| {
        let findings = report["findings"].as_array().expect("findings");
        findings.iter().map(|f| f["code"].as_str().expect("a code").to_owned()).collect::<Vec<_>>()
    };
    assert!(!codes(&without).contains(&"GAP108".to_owned()));
    let help = &without["findings"]
        .as_array()
        .expect("findings")
        .iter()
        .find(|f| f["code"] == "GAP101")
        .expect("it")["help"];
    assert!(help.as_str().expect("text").contains("gapless advise"), "{help}");

    let with = json(&["report", &path, "--advise"]);
    assert_eq!(against("report", &with), Vec::<String>::new());
    let finding =
        with["findings"].as_array().expect("findings").iter().find(|f| f["code"] == "GAP108").expect("it");
    assert_eq!(finding["help"], "export PYTORCH_ALLOC_CONF=expandable_segments:True");
    assert_eq!(finding["bytes"], with["advice"][0]["suggestions"][0]["saving"]);
    assert_eq!(with["advice"][0]["baseline"]["peak_reserved"], with["devices"][0]["peak_reserved"]);
    let text = run(&["report", &path, "--advise"]).out;
    assert!(text.contains("What to set") && text.contains("GAP108"));
    assert!(run(&["report", &path, "--advise", "--format", "html"]).out.contains("GAP108"));
}

#[test]
fn answers_are_the_same_byte_for_byte_when_made_again() {
    for args in [
        &["replay", &trace("leak"), "--min-capacity"][..],
        &["replay", &trace("leak"), "--format", "html"],
        &["advise", &trace("leak"), "--format", "json", "--threads", "3"],
        &["oom", &trace("oom")],
    ] {
        assert_eq!(run(args).out, run(args).out, "{args:?}");
    }
    let threads = |n: &str| run(&["advise", &trace("leak"), "--threads", n]).out;
    assert_eq!(threads("1"), threads("4"));
}

#[test]
fn help_teaches_by_example() {
    for verb in ["replay", "advise", "oom"] {
        let help = run(&[verb, "--help"]);
        assert!(help.out.contains("Examples:") && help.out.contains("Exit code"), "{verb}");
    }
}

#[test]
fn no_row_holds_more_than_the_card_or_strands_more_than_it_holds() {
    let path = trace("leak");
    let unknown = run(&["replay", &path, "--with", "tourch"]).err;
    let (_, list) =
        unknown.lines().next().and_then(|line| line.split_once("use one of ")).expect("a list of names");
    let mut with = vec!["torch:expandable_segments:True"];
    with.extend(list.split(", "));
    let mut ended = 0;
    for card in [None, Some(8_u64 << 20), Some(64 << 20), Some(200 << 20), Some(1 << 30)] {
        let text = card.map(|bytes| format!("{bytes}B"));
        let mut args = vec![path.as_str()];
        for name in &with {
            args.extend(["--with", name]);
        }
        args.extend(text.iter().flat_map(|text| ["--capacity", text]));
        for run in replay(&args)["runs"].as_array().expect("runs") {
            let figure = |name: &str| run[name].as_u64().expect("a figure");
            let told = format!("on {card:?}: {run}");
            for peak in ["peak_reserved", "peak_allocated", "peak_active"] {
                assert!(card.is_none_or(|card| figure(peak) <= card), "{peak} {told}");
            }
            for held in run["curve"]["reserved"].as_array().expect("bytes").iter().filter_map(Value::as_u64) {
                assert!(held <= figure("peak_reserved"), "{told}");
            }
            // Stranded bytes are those at peak allocated, so both together cannot exceed peak reserved.
            if figure("served") == 0 {
                assert!(figure("stranded") + figure("peak_allocated") <= figure("peak_reserved"), "{told}");
            }
            ended += u32::from(!run["oom"].is_null());
        }
    }
    assert!(ended > 0, "some cards are too small");
}

#[test]
fn stranded_bytes_are_those_when_most_is_needed() {
    // In this run the last page is taken while nearly all of the heap is free. At that moment, 14 of 19 GiB are free.
    let runs =
        replay(&[&trace("mixtral_moe"), "--with", "torch:expandable_segments:True", "--with", "torch"]);
    for run in runs["runs"].as_array().expect("runs") {
        let figure = |name: &str| run[name].as_u64().expect("a figure");
        assert!(figure("stranded") + figure("peak_allocated") <= figure("peak_reserved"), "{run}");
    }
}

#[test]
fn a_page_names_one_variable_for_settings() {
    for (name, path) in support::all_traces() {
        let text = run(&["report", path.to_str().expect("UTF-8")]).out;
        let (new, old) = (text.contains("PYTORCH_ALLOC_CONF"), text.contains("PYTORCH_CUDA_ALLOC_CONF"));
        assert!(!(new && old), "{name}: {text}");
    }
    let text = run(&["report", &trace("leak"), "--advise"]).out + &run(&["advise", &trace("leak")]).out;
    assert!(!text.contains("PYTORCH_CUDA_ALLOC_CONF="), "{text}");
}
