//! Modules of XLA: figures of 20 of them against what XLA itself says of them, lifetimes against the text twins, and
//! damaged ones. `testdata/xla/make.py` made them.

use gapless_formats::hlo::{self, EventKind, HeapTrace};
use gapless_ingest::{ReadError, ReadOptions};
use gapless_trace::kinds::{self, Kind};
use gapless_trace::{Action, Bytes, History, Tick, Trace};
use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/xla")
}

fn open(name: &str) -> Result<Trace, ReadError> {
    gapless_ingest::open(&folder().join(format!("{name}.hlo.pb.gz")), &ReadOptions::default())
}

fn unpacked(file: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let file = std::fs::File::open(folder().join(file)).expect("a file");
    flate2::read::GzDecoder::new(file).read_to_end(&mut bytes).expect("gzip");
    bytes
}

/// The rows of memory.json: by module, by member.
fn figures() -> BTreeMap<String, BTreeMap<String, u64>> {
    let text = std::fs::read_to_string(folder().join("memory.json")).expect("memory.json");
    let rows: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let row = |row: &serde_json::Value| {
        let members = row.as_object().expect("a row").iter();
        members.filter_map(|(key, value)| Some((key.clone(), value.as_u64()?))).collect()
    };
    rows.as_object().expect("rows").iter().map(|(name, value)| (name.clone(), row(value))).collect()
}

fn history(trace: &Trace) -> History {
    History::rebuild(trace, &trace.devices[0]).expect("a history")
}

#[test]
fn the_peak_is_the_one_that_xla_computes_to_the_byte() {
    let rows = figures();
    assert!(rows.len() >= 20, "{} modules", rows.len());
    for (name, row) in rows {
        let trace = open(&name).expect("a module");
        let history = history(&trace);
        let codes: Vec<&str> = trace.source.notes.iter().map(|note| note.code).collect();
        assert!(!codes.iter().any(|code| code.ends_with("left-out")), "{name}: {codes:?}");
        assert!(history.notes.is_empty(), "{name}: {:?}", history.notes);
        // XLA's figure adds the host's memory up with the device's.
        if row["host"] == 0 {
            assert_eq!(history.usage.live.peak.0, row["peak"], "{name}: live");
            assert!(trace.host.is_none(), "{name}");
        } else {
            assert!(trace.host.is_some_and(|host| host.peak_held > Bytes::ZERO), "{name}");
        }
        // Constants lie in the program, and are no part of the three.
        let constants = by_kind(&trace, &history).remove("constants").unwrap_or(0);
        let all = row["arguments"] + row["outputs"] - row["aliased"] + row["temporaries"];
        let reserved = history.usage.reserved.peak.0;
        assert!(
            reserved.abs_diff(all) <= constants.max(row["host"]),
            "{name}: {reserved} reserved, {all} by XLA"
        );
        assert_eq!(history.usage.live.peak, history.usage.allocated.peak, "{name}");
    }
}

/// Bytes at the peak, by the names of kinds.
fn by_kind(trace: &Trace, history: &History) -> BTreeMap<&'static str, u64> {
    let (steps, kinds) = kinds::with_steps(trace, &trace.devices[0], history);
    assert!(steps.spans.is_empty(), "a program is no run of steps");
    let bytes = kinds.active_at(history, history.usage.live.peak_at);
    Kind::ALL.into_iter().map(|kind| (kind.name(), bytes[kind as usize].0)).filter(|&(_, n)| n > 0).collect()
}

#[test]
fn kinds_follow_the_program() {
    let of = |name: &str| {
        let trace = open(name).expect("a module");
        by_kind(&trace, &history(&trace))
    };
    let kept = of("gpt_donated");
    let again = of("gpt_remat");
    assert_eq!(kept["optimizer state"], 2 * kept["weights"] + 4, "two moments and the count");
    assert_eq!(again["weights"], kept["weights"]);
    assert!(kept["activations"] > 3 * again.get("activations").copied().unwrap_or(0), "{kept:?} {again:?}");
    assert!(!kept.contains_key("recomputed"));
    assert!(of("decode_cache")["inputs"] > 0);
    assert!(of("sharded_fsdp").values().sum::<u64>() > 0);
}

#[test]
fn modules_are_named_after_scopes() {
    let trace = open("gpt_donated").expect("a module");
    let history = history(&trace);
    let names: Vec<&str> =
        history.allocations.ids().filter_map(|id| history.block_notes.module(&trace.strings, id)).collect();
    for name in ["transformer.block.0.mlp", "transformer.block.1.attention"] {
        assert!(names.contains(&name), "{name}");
    }
    assert!(names.iter().any(|name| name.contains("blocks.block.1.up")), "{names:?}");
    let stacks = history.allocations.ids().filter(|&id| !history.allocations.get(id).stack.is_none()).count();
    assert!(stacks > 0);
}

/// The intervals of a twin: buffer to the numbers of its first and last instruction, and the instructions' numbers.
fn twin(name: &str) -> (BTreeMap<String, (u32, u32)>, BTreeMap<String, u32>) {
    let text = String::from_utf8(unpacked(&format!("{name}.live-range.txt.gz"))).expect("UTF-8");
    let (mut ranges, mut numbers, mut part) = (BTreeMap::new(), BTreeMap::new(), "");
    for line in text.lines() {
        let line = line.trim();
        match line {
            "InstructionSequence:" | "BufferLiveRange:" => part = line,
            _ if line.starts_with("Live ranges at") => part = "",
            _ if part == "InstructionSequence:" => {
                if let Some((number, name)) = line.split_once(':') {
                    numbers.insert(name.to_owned(), number.parse().expect("a number"));
                }
            }
            _ if part == "BufferLiveRange:" => {
                if let Some((name, range)) = line.rsplit_once(':')
                    && let Some((start, end)) = range.split_once('-')
                {
                    ranges
                        .insert(name.to_owned(), (start.parse().expect("start"), end.parse().expect("end")));
                }
            }
            _ => {}
        }
    }
    (ranges, numbers)
}

#[test]
fn lifetimes_are_those_of_the_text_twin() {
    let mut compared = 0;
    for module in figures().keys() {
        let (ranges, numbers) = twin(module);
        let hlo = hlo::read(unpacked(&format!("{module}.hlo.pb.gz"))).expect("a module");
        let assignment = hlo.assignment.expect("buffers");
        let instructions: BTreeMap<i64, &str> = hlo
            .module
            .computations
            .iter()
            .flat_map(|c| c.instructions.iter().map(|i| (i.id, i.name.as_str())))
            .collect();
        let names: BTreeMap<i64, String> = assignment
            .buffers
            .iter()
            .map(|b| {
                let index: Vec<String> = b.index.iter().map(i64::to_string).collect();
                (b.id, format!("{}{{{}}}", instructions[&b.instruction], index.join(",")))
            })
            .collect();
        // Buffers that begin with an instruction come before those that end with it; each heap has its own time.
        for trace in &assignment.traces {
            compared += compare(trace, module, &ranges, &numbers, &names);
        }
    }
    assert!(compared > 1000, "{compared}");
}

/// Holds the events of a heap against the intervals of the twin; their number.
fn compare(
    trace: &HeapTrace,
    module: &str,
    ranges: &BTreeMap<String, (u32, u32)>,
    numbers: &BTreeMap<String, u32>,
    names: &BTreeMap<i64, String>,
) -> usize {
    let (mut now, mut open, mut compared) = (0, Vec::new(), 0);
    for event in &trace.events {
        let name = &names[&event.buffer];
        let (Some(&(start, end)), Some(&at)) = (ranges.get(name), numbers.get(&event.instruction)) else {
            continue;
        };
        // The result of an asynchronous computation begins with the instruction that starts it, which follows.
        assert!(at == start || at + 1 == start, "{module}: {name} {:?} at {at}, {start}", event.kind);
        if event.kind == EventKind::Free {
            assert!(now <= end, "{module}: {name} ends at {end}, and {now} is over");
            open.push((name, end));
        } else {
            now = start;
            for (name, end) in open.drain(..) {
                assert!(end <= now, "{module}: {name} ends at {end}, and {now} is not there yet");
            }
        }
        compared += 1;
    }
    compared
}

#[test]
fn every_block_lies_in_its_segment_and_is_freed_at_the_end() {
    for name in figures().keys() {
        let trace = open(name).expect("a module");
        let history = history(&trace);
        let end = Tick(trace.devices[0].events.len() as u32);
        assert_eq!(history.allocations.active_at(end).count(), 0, "{name}");
        let counts = |action| trace.devices[0].events.count(action);
        assert_eq!(counts(Action::SegmentAlloc), counts(Action::SegmentFree), "{name}");
    }
}

/// Bytes of a module changed, cut and repeated: an answer or an error, at once.
#[test]
fn no_module_crashes_the_reader() {
    let whole = unpacked("mlp_sgd.hlo.pb.gz");
    let mut random = 1u64;
    let mut next = |below: usize| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) as usize % below
    };
    // The buffers are the last part, and the one in which numbers have a meaning.
    let tail = whole.len() / 2;
    let (mut read, mut refused) = (0, 0);
    for round in 0..200 {
        let mut bytes = whole.clone();
        match round % 4 {
            0 => bytes.truncate(next(whole.len())),
            1 => {
                let (from, to) = (next(whole.len()), tail + next(whole.len() - tail));
                let part = bytes[from..(from + 40).min(whole.len())].to_vec();
                bytes.splice(to..to, part);
            }
            _ => {
                for _ in 0..=next(6) {
                    let at = if round % 8 == 2 { next(whole.len()) } else { tail + next(whole.len() - tail) };
                    bytes[at] = [0, 1, 0x7f, 0x80, 0xff, next(256) as u8][next(6)];
                }
            }
        }
        match gapless_ingest::read(&bytes[..], "module.hlo.pb", &ReadOptions::default()) {
            Ok(trace) => {
                read += 1;
                History::rebuild(&trace, &trace.devices[0]).expect("what is read is consistent");
            }
            Err(error) => {
                refused += 1;
                assert!(error.to_string().len() < 500, "{error}");
            }
        }
    }
    assert!(read > 10 && refused > 10, "{read} read, {refused} refused");
}
