//! Snapshots of torch 2.13 to 2.15, recorded by stock torch over torch-bench's stand-in (testdata/newer): figures equal
//! those that torch reported, notes reach their blocks, pinned host memory stays apart, and the version is recognised.

mod support;

use gapless_ingest::{ReadOptions, open, read};
use gapless_trace::block_notes::module_of;
use gapless_trace::holders::{self, Grouping};
use gapless_trace::kinds;
use gapless_trace::{Action, AllocationId, History, PoolId, Trace, gtrace};
use std::path::{Path, PathBuf};
use support::{Py, Style, pickle};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/newer")
}

fn load(name: &str) -> Trace {
    let path = folder().join(format!("{name}.pickle.gz"));
    open(&path, &ReadOptions::default()).unwrap_or_else(|error| panic!("{error}"))
}

fn truth() -> serde_json::Map<String, serde_json::Value> {
    let text = std::fs::read_to_string(folder().join("truth.json")).expect("truth.json");
    serde_json::from_str(&text).expect("JSON")
}

fn history(trace: &Trace) -> History {
    History::rebuild(trace, &trace.devices[0]).unwrap_or_else(|error| panic!("{error}"))
}

fn codes(trace: &Trace) -> Vec<&str> {
    trace.source.notes.iter().map(|note| note.code).collect()
}

/// The notes of the allocations that have any, as texts.
fn notes(trace: &Trace, history: &History) -> Vec<(AllocationId, Vec<String>)> {
    let texts = |id| history.block_notes.get(id).map(|text| trace.strings.get(text).to_owned()).collect();
    let all = history.allocations.ids().map(|id| (id, texts(id)));
    all.filter(|(_, texts): &(_, Vec<String>)| !texts.is_empty()).collect()
}

#[test]
fn figures_equal_what_torch_reported() {
    let truth = truth();
    assert!(truth.len() >= 18, "{} cases", truth.len());
    for (name, row) in &truth {
        let trace = load(name);
        let history = history(&trace);
        let usage = &history.usage;
        let figure = |key: &str| row[key].as_u64().unwrap_or_else(|| panic!("{name}: no {key}"));
        let now = usage.now();
        let ends = [now.allocated.0, now.reserved.0];
        assert_eq!(
            ends,
            [figure("allocated_bytes.all.current"), figure("reserved_bytes.all.current")],
            "{name}"
        );
        // Only torch knows the events before the recording.
        let late = ["late", "ring", "host"].iter().any(|case| name.starts_with(case));
        let ours =
            [usage.allocated.peak.0, usage.active.peak.0, usage.requested.peak.0, usage.reserved.peak.0];
        let theirs = [
            figure("allocated_bytes.all.peak"),
            figure("active_bytes.all.peak"),
            figure("requested_bytes.all.peak"),
            figure("reserved_bytes.all.peak"),
        ];
        if late {
            assert!(
                ours.iter().zip(&theirs).all(|(ours, theirs)| ours <= theirs),
                "{name}: {ours:?} {theirs:?}"
            );
        } else {
            assert_eq!(ours, theirs, "{name}");
            assert_eq!(u64::from(history.segments_peak), figure("segment.all.peak"), "{name}");
        }
        let late_note =
            history.notes.iter().any(|n| ["recording-began-late", "no-history"].contains(&n.code));
        assert_eq!(late_note, late, "{name}: {:?}", history.notes);
        let others =
            history.notes.iter().filter(|n| !["recording-began-late", "no-history"].contains(&n.code));
        assert_eq!(others.count(), 0, "{name}: {:?}", history.notes);
        assert!(!codes(&trace).contains(&"unknown-actions"), "{name}");
        for (index, pool) in trace.devices[0].pools.iter().enumerate() {
            let PoolId(a, b) = *pool;
            if let Some(peak) = row.get(format!("reserved_bytes_by_private_pools.{a}_{b}.all.peak")) {
                let ours = history.pools.iter().filter(|p| usize::from(p.pool) == index);
                let ours: u64 = ours.map(|p| p.usage.reserved.peak.0).sum();
                assert_eq!(Some(ours), peak.as_u64(), "{name}: pool {pool}");
            }
        }
    }
}

#[test]
fn the_version_is_recognised() {
    for (name, producer) in [
        ("train_2_13", "torch 2.13"),
        ("train_2_14", "torch 2.14 or later"),
        ("train_2_15", "torch 2.14 or later"),
        ("address_2_13", "torch 2.13"),
        ("address_2_14", "torch 2.14"),
        ("address_2_15", "torch 2.15 or later"),
        ("reserve_2_15", "torch 2.15 or later"),
    ] {
        assert_eq!(load(name).source.producer, producer, "{name}");
    }
}

#[test]
fn annotations_reach_the_blocks_that_were_in_use() {
    for version in ["2_14", "2_15"] {
        let trace = load(&format!("train_{version}"));
        let history = history(&trace);
        let all = notes(&trace, &history);
        let with = |text: &str| all.iter().filter(|(_, texts)| texts.iter().any(|t| t == text)).count();
        for layer in 0..4 {
            assert_eq!(with(&format!("model.layers.{layer}.weight")), 1, "{version}");
        }
        assert_eq!(with("kv cache of the draft model"), 1);
        assert!(with(r#"{"step":1,"phase":"forward"}"#) > 8 && with("backward") > 8);
        let (id, _) = all.iter().find(|(_, t)| t[0] == "kv cache of the draft model").expect("the cache");
        let block = history.allocations.get(*id);
        assert_eq!(block.requested.0, 7 << 20);
        assert!(trace.devices[0].pools[usize::from(block.pool)].is_private());
        // Annotations are no events: the recorded ones keep their places.
        assert_eq!(history.last_tick.0 as usize, trace.devices[0].events.len());
        assert_eq!(trace.devices[0].notes.len(), 5);
    }
}

#[test]
fn modules_name_holders_and_layers_are_one() {
    let trace = load("train_2_15");
    let history = history(&trace);
    let (_, kinds) = kinds::with_steps(&trace, &trace.devices[0], &history);
    let last = history.last_tick;
    let found = holders::at(&trace, &trace.devices[0], &history, &kinds, last, 50, Grouping::Stack).largest;
    let named: Vec<&str> = found.iter().map(|h| h.label.as_str()).collect();
    let weights =
        found.iter().find(|h| h.module == "model.layers.*.weight").unwrap_or_else(|| panic!("{named:?}"));
    assert_eq!((weights.count, weights.noted, weights.notes.len()), (4, 4, 4));
    assert!(weights.label.starts_with("model.layers.*.weight · make.py:"), "{}", weights.label);
    assert!(named.iter().any(|label| label.ends_with("· \"kv cache of the draft model\"")), "{named:?}");
    assert!(!named.iter().any(|label| label.contains("phase")), "{named:?}");
    // Sizes do not split by modules.
    let by_size = holders::at(&trace, &trace.devices[0], &history, &kinds, last, 50, Grouping::Size).largest;
    assert!(by_size.iter().all(|h| h.module.is_empty()));
}

#[test]
fn a_ring_that_was_too_short_is_told_from_a_late_start() {
    let text = |name: &str| {
        let notes = history(&load(name)).notes;
        notes.into_iter().find(|n| n.code == "recording-began-late").map_or(String::new(), |n| n.text)
    };
    for version in ["2_13", "2_14", "2_15"] {
        assert!(text(&format!("ring_{version}")).contains("the ring of events was too short"), "{version}");
        let late = text(&format!("late_{version}"));
        assert!(!late.is_empty() && !late.contains("ring"), "{version}: {late}");
    }
}

#[test]
fn blocks_older_than_the_recording_take_notes() {
    let trace = load("late_2_15");
    let history = history(&trace);
    let old: Vec<String> = notes(&trace, &history)
        .into_iter()
        .filter(|(id, _)| history.allocations.get(*id).start.0 == 0)
        .flat_map(|(_, texts)| texts)
        .collect();
    assert_eq!(old.len(), 5, "{old:?}");
    assert_eq!(old.iter().filter_map(|text| module_of(text)).count(), 4);
    assert_eq!(history.preexisting, 5);
    assert_eq!(history.block_notes.unmatched, 0);
}

#[test]
fn marks_of_exact_addresses_are_no_metadata_of_the_user() {
    for version in ["2_13", "2_14", "2_15"] {
        let trace = load(&format!("address_{version}"));
        let history = history(&trace);
        assert!(codes(&trace).contains(&"exact-addresses"), "{version}: {:?}", trace.source.notes);
        let note = trace.source.notes.iter().find(|n| n.code == "exact-addresses").expect("the note");
        let device = &trace.devices[0];
        let exact: Vec<_> = device.exact.iter().map(|&event| device.events.action(event)).collect();
        assert_eq!(exact, [Action::Alloc; 2], "{version}: what was chosen, and what lies before it");
        assert!(note.text.starts_with("2 allocations"), "{}", note.text);
        for (_, texts) in notes(&trace, &history) {
            assert_eq!(texts, ["restore"], "{version}");
        }
    }
}

#[test]
fn pinned_host_memory_stands_apart() {
    let truth = truth();
    for name in ["train_2_14", "train_2_15", "host_2_14", "host_2_15"] {
        let trace = load(name);
        let host = trace.host.unwrap_or_else(|| panic!("{name}: no host memory"));
        let figure = |key: &str| truth[name][key].as_u64().unwrap_or_else(|| panic!("{name}: no {key}"));
        assert_eq!(host.in_use.0, figure("host.active_bytes.current"), "{name}");
        assert_eq!(host.peak_in_use.0, figure("host.active_bytes.peak"), "{name}");
        assert_eq!(host.held.0, figure("host.allocated_bytes.current"), "{name}");
        assert_eq!(host.peak_held.0, figure("host.allocated_bytes.peak"), "{name}");
        assert_eq!((host.blocks, host.events), (3, 8), "{name}");
        assert!(codes(&trace).contains(&"pinned-host-memory"));
        assert_eq!(trace.devices.len(), 1, "{name}: the host is no device");
        let held: u64 = trace.devices[0].segments.iter().map(|s| s.size.0).sum();
        assert_eq!(held, figure("reserved_bytes.all.current"), "{name}");
    }
    assert_eq!(load("late_2_15").host, None);
}

#[test]
fn the_settings_of_pinned_memory_are_read() {
    let settings = load("train_2_13").settings.expect("settings");
    for name in ["max_round_threshold", "max_cached_size"] {
        assert!(
            settings.other.iter().any(|(n, text)| n == name && text == "no limit"),
            "{:?}",
            settings.other
        );
    }
}

#[test]
fn notes_and_host_memory_survive_a_gtrace_file() {
    let trace = load("train_2_15");
    let bytes =
        gtrace::write_trace(&trace, Vec::new(), gtrace::Options::default()).expect("a file in memory");
    let again = read(&bytes[..], "test", &ReadOptions::default()).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!((&again.devices[0].notes, again.host), (&trace.devices[0].notes, trace.host));
    let (before, after) = (history(&trace), history(&again));
    assert_eq!(notes(&trace, &before), notes(&again, &after));
}

// ---- hand-made ----

const STYLE: Style = Style { protocol: 4, share: false, memoize: true, late: false, single: false, frame: 0 };

fn text(text: &str) -> Py {
    Py::Str(text.to_owned())
}

fn event(action: &str, addr: i128, more: &[(&'static str, Py)]) -> Py {
    let mut entries = vec![
        ("action", text(action)),
        ("addr", Py::Int(addr)),
        ("size", Py::Int(512)),
        ("stream", Py::Int(0)),
        ("time_us", Py::Int(1)),
        ("compile_context", text("N/A")),
        ("user_metadata", text("")),
    ];
    for (name, value) in more {
        entries.retain(|(known, _)| known != name);
        entries.push((name, value.clone()));
    }
    Py::Dict(entries)
}

fn snapshot(traces: Vec<Vec<Py>>, more: Vec<(&'static str, Py)>) -> Vec<u8> {
    let traces = Py::List(traces.into_iter().map(Py::List).collect());
    let mut top = vec![("segments", Py::List(Vec::new())), ("device_traces", traces)];
    top.extend(more);
    pickle(&Py::Dict(top), STYLE)
}

fn parse(bytes: &[u8]) -> Trace {
    read(bytes, "test", &ReadOptions::default()).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn notes_keep_to_their_device_at_the_edges_of_the_lists() {
    let note = |addr, note: &str| event("annotate", addr, &[("user_metadata", text(note))]);
    let bytes = snapshot(
        vec![
            vec![
                event("alloc", 512, &[]),
                note(512, "first"),
                event("alloc", 2048, &[]),
                note(2048, "second"),
            ],
            vec![note(512, "nobody"), event("alloc", 512, &[]), note(512, "third")],
        ],
        Vec::new(),
    );
    let trace = parse(&bytes);
    let ticks = |device: usize| -> Vec<(u32, &str)> {
        let notes = trace.devices[device].notes.iter();
        notes.map(|note| (note.tick.0, trace.strings.get(note.text))).collect()
    };
    assert_eq!(ticks(0), [(1, "first"), (2, "second")]);
    assert_eq!(ticks(1), [(0, "nobody"), (1, "third")]);
    assert_eq!(trace.devices[0].events.len(), 2);
    let second = History::rebuild(&trace, &trace.devices[1]).expect("a history");
    assert_eq!(second.block_notes.unmatched, 1);
}

#[test]
fn metadata_that_is_a_dict_becomes_a_line_of_json() {
    let nested = Py::Dict(vec![
        ("module", text("model.layers.0")),
        ("say \"x\"", Py::List(vec![Py::Int(1), Py::None, Py::Bool(true), text("a\nb")])),
    ]);
    let trace = parse(&snapshot(vec![vec![event("alloc", 512, &[("user_metadata", nested)])]], Vec::new()));
    let history = history(&trace);
    let line = r#"{"module":"model.layers.0","say \"x\"":[1,null,true,"a\nb"]}"#;
    assert_eq!(notes(&trace, &history)[0].1, [line]);
    assert_eq!(history.block_notes.module(&trace.strings, AllocationId(0)), Some("model.layers.0"));
    // A document is cut.
    let long = Py::List((0..5000).map(|n| text(&format!("word {n}"))).collect());
    let trace = parse(&snapshot(
        vec![vec![event("alloc", 512, &[("user_metadata", Py::Dict(vec![("a", long)]))])]],
        Vec::new(),
    ));
    let history = self::history(&trace);
    assert!(notes(&trace, &history)[0].1[0].len() < 5000);
}

#[test]
fn odd_members_end_in_notes_or_errors() {
    let host = |value: Py| snapshot(vec![vec![event("alloc", 512, &[])]], vec![("host_segments", value)]);
    for value in [Py::Int(5), text("x"), Py::Dict(vec![("a", Py::Int(1))]), Py::Bool(true)] {
        let trace = parse(&host(value.clone()));
        assert!(codes(&trace).contains(&"host-memory-unreadable"), "{value:?}: {:?}", trace.source.notes);
        assert_eq!(trace.host, None);
    }
    // None and lists of other things hold nothing, and are no mistake.
    for value in [Py::None, Py::List(Vec::new()), Py::List(vec![Py::Int(3), Py::None])] {
        let trace = parse(&host(value));
        assert_eq!((codes(&trace), trace.host), (vec![], None));
    }
    // Sizes of the host are checked as those of a device are.
    for size in [-1, 1 << 61] {
        let segment = Py::Dict(vec![
            ("device", Py::Int(-1)),
            ("address", Py::Int(4096)),
            ("total_size", Py::Int(size)),
            ("blocks", Py::List(Vec::new())),
        ]);
        assert!(read(&host(Py::List(vec![segment]))[..], "test", &ReadOptions::default()).is_err(), "{size}");
    }
    // Sums of the host cannot wrap.
    let largest = |action| event(action, 4096, &[("size", Py::Int(1 << 60))]);
    let many = Py::List((0..40).flat_map(|_| [largest("segment_alloc"), largest("alloc")]).collect());
    let trace = parse(&snapshot(vec![vec![event("alloc", 512, &[])]], vec![("host_traces", many)]));
    assert_eq!(trace.host.map(|host| host.peak_held.0), Some(u64::MAX));
    // An annotation needs an address, and may lack everything else.
    let bare = |entries| snapshot(vec![vec![event("alloc", 512, &[]), Py::Dict(entries)]], Vec::new());
    let no_addr = bare(vec![("action", text("annotate")), ("user_metadata", text("x"))]);
    let error = read(&no_addr[..], "test", &ReadOptions::default()).expect_err("no address");
    assert!(error.problem.to_string().contains("annotate without \"addr\""), "{error}");
    let trace =
        parse(&bare(vec![("action", text("annotate")), ("addr", Py::Int(512)), ("size", Py::Int(8))]));
    assert!(history(&trace).block_notes.is_empty());
    // Marks of other types are left out.
    for value in [Py::Int(1), Py::None, Py::List(vec![text("mallocWithAddress")]), text("")] {
        let trace =
            parse(&snapshot(vec![vec![event("alloc", 512, &[("internal_metadata", value)])]], Vec::new()));
        assert!(!codes(&trace).contains(&"exact-addresses"));
    }
    // Of equal keys the last counts.
    let mut twice = vec![("user_metadata", text("first"))];
    twice.extend([("action", text("alloc")), ("addr", Py::Int(512)), ("size", Py::Int(512))]);
    twice.extend([("user_metadata", text("last")), ("internal_metadata", text("mallocWithAddress"))]);
    let trace = parse(&snapshot(vec![vec![Py::Dict(twice)]], Vec::new()));
    assert_eq!(notes(&trace, &history(&trace))[0].1, ["last"]);
}

#[test]
fn unknown_kinds_of_events_are_counted_once() {
    let unknown = || event("teleport", 512, &[]);
    let bytes = snapshot(
        vec![vec![event("alloc", 512, &[]), unknown(), event("alloc", 2048, &[]), unknown(), unknown()]],
        Vec::new(),
    );
    let trace = parse(&bytes);
    assert!(trace.source.notes[0].text.starts_with("3 events"), "{:?}", trace.source.notes);
}
