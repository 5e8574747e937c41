//! Small real files of every format, damaged in 10,000 pseudo-random ways each. Files that can still be read go
//! through all code of a command. No panic is allowed, nor much memory.
//!
//! These tests have a file of their own because they measure the memory of the whole process.

#[path = "../../../fuzz/src/lib.rs"]
#[allow(unreachable_pub, reason = "the targets of libFuzzer call the bodies by name")]
mod fuzz;

use gapless_fit::model::Model;
use gapless_fit::parameters;
use gapless_fit::read::{self as models, Options};
use gapless_ingest::ReadOptions;
use gapless_plan::{Problem, Watch};
use gapless_problems::csv::OffsetColumn;
use gapless_report::{Analysis, text};
use std::io::Read;
use std::path::Path;

/// Damaged files of each format.
const FILES: u64 = 10_000;

/// The memory that the process may take beyond its start while it reads all formats side by side.
const MEMORY: u64 = 512 << 20;

/// Numbers that look random, the same every time.
struct Dice(u64);

impl Dice {
    fn new(seed: u64) -> Dice {
        Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) as usize % n.max(1)
    }
}

/// One way of damaging `bytes`. `hot` are bytes with a meaning in the format.
fn damage(bytes: &mut Vec<u8>, other: &[u8], hot: &[u8], dice: &mut Dice) {
    let at = dice.below(bytes.len());
    match dice.below(9) {
        0 => bytes.truncate(at),
        1 => {
            let end = (at + dice.below(40)).min(bytes.len());
            bytes.drain(at..end);
        }
        2 => {
            let from = dice.below(other.len());
            let end = (from + dice.below(300)).min(other.len());
            bytes.splice(at..at, other[from..end].iter().copied());
        }
        3 => {
            let start = dice.below(bytes.len());
            let end = (start + dice.below(200)).min(bytes.len());
            let copy = bytes[start..end].to_vec();
            bytes.splice(at..at, copy);
        }
        4 => bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte = hot[dice.below(hot.len())]),
        5 => bytes.iter_mut().skip(at).take(8).for_each(|byte| *byte = 0xff),
        6 => {
            // A number of text becomes a large one, or a negative one.
            const NUMBERS: [&[u8]; 6] =
                [b"18446744073709551615", b"9223372036854775808", b"-1", b"4294967296", b"0", b"1e999"];
            if let Some(digits) = bytes[at..].iter().position(u8::is_ascii_digit) {
                let start = at + digits;
                let end = start + bytes[start..].iter().take_while(|byte| byte.is_ascii_digit()).count();
                bytes.splice(start..end, NUMBERS[dice.below(NUMBERS.len())].iter().copied());
            }
        }
        _ => bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= 1 << dice.below(8)),
    }
}

/// Damages files of `corpus` and hands them to `try_it`, which returns true if it accepts the file. At least one file
/// in `one_in` must be accepted, because otherwise only the first checks would be tested.
fn torment(corpus: &[Vec<u8>], hot: &[u8], one_in: u64, mut try_it: impl FnMut(&[u8]) -> bool) {
    for whole in corpus {
        assert!(try_it(whole), "a file is accepted before it is damaged");
    }
    let before = peak();
    let mut accepted = 0;
    for seed in 0..FILES {
        let mut dice = Dice::new(seed + 1);
        let mut bytes = corpus[dice.below(corpus.len())].clone();
        let other = &corpus[dice.below(corpus.len())];
        for _ in 0..=dice.below(3) {
            damage(&mut bytes, other, hot, &mut dice);
        }
        accepted += u64::from(try_it(&bytes));
    }
    assert!(accepted >= FILES / one_in, "{accepted} of {FILES} accepted");
    if let (Some(before), Some(after)) = (before, peak()) {
        assert!(after < before + MEMORY, "{} MiB", (after - before) >> 20);
    }
}

fn peak() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM"))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kib| kib << 10)
}

fn file(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata").join(name);
    let bytes = std::fs::read(path).expect("test data");
    if !name.ends_with(".gz") {
        return bytes;
    }
    let mut content = Vec::new();
    flate2::read::GzDecoder::new(&bytes[..]).read_to_end(&mut content).expect("gzip");
    content
}

/// All code of a report. Returns true if the bytes are a trace.
fn report(bytes: &[u8]) -> bool {
    let Ok(trace) = gapless_ingest::read(bytes, "damaged", &ReadOptions::default()) else { return false };
    if let Ok(analysis) = Analysis::of(&trace) {
        let report = analysis.report("damaged", 10);
        assert!(!text::render(&report).is_empty());
        let json = serde_json::to_string(&report).expect("a report is JSON");
        gapless_page::write(&mut std::io::sink(), &analysis.page("damaged", &json))
            .expect("a sink takes all");
    }
    true
}

/// A short search for a plan of a problem. A solution must be valid.
fn plan(problem: &Problem) {
    let options = gapless_plan::Options { effort: Some(200), ..gapless_plan::Options::default() };
    if let Ok(solution) = gapless_plan::solve(problem, &options, &mut Watch::default()) {
        gapless_plan::validate(problem, &solution.plan, None).expect("a plan that holds");
    }
}

const TEXT: &[u8] = b"{}[]\",:.-+eE\\0 \n\r\t#'\xff\x00";
const PICKLE: &[u8] = b"().012}dsu]lae)tNJKMG\x85\x86\x87\x88\x8a\x8b\x8c\x8d\x8e\x94\x95\x96Xqrhj";
/// Protobuf keys and lengths, and bytes of zip's and our own headers.
const BINARY: &[u8] = b"\x00\x01\x02\x08\x0a\x0d\x10\x12\x1a\x22\x7f\x80\xff";

const SNAPSHOT: &str = r#"{"segments": [{"device": 0, "address": 1048576, "total_size": 2097152, "stream": 0, "blocks":
    [{"address": 1048576, "size": 2097152, "state": "inactive", "frames": [{"name": "f", "filename": "g", "line": 3}]}]}],
    "device_traces": [[{"action": "alloc", "addr": 1048576, "size": 5, "stream": 0, "pool_id": [0, 1]},
    {"action": "free_completed", "addr": 1048576, "size": 5, "stream": 0, "time_us": 17}]]}"#;

#[test]
fn snapshots_as_pickles() {
    let small = ["cpython/torch_1_13.pickle", "cpython/torch_2_0.pickle", "cases/nohistory.pickle.gz"];
    torment(&small.map(file), PICKLE, 50, report);
}

#[test]
fn snapshots_as_json() {
    torment(&[SNAPSHOT.as_bytes().to_vec()], TEXT, 50, report);
}

#[test]
fn recordings() {
    let whole = gapless_ingest::read(SNAPSHOT.as_bytes(), "made up", &ReadOptions::default());
    let mut recording = Vec::new();
    gapless_export::gtrace::write(&whole.expect("a trace"), &mut recording).expect("memory");
    // Every block has a checksum, so few damaged files are accepted, and those only in part.
    torment(&[recording], BINARY, 1_000, report);
}

#[test]
fn logs_of_rmm() {
    let log = b"Thread,Time,Action,Pointer,Size,Stream\n1,10:00:00:000100,allocate,0x7f0000000000,1000,0x0\n\
                1,10:00:00:000200,free,0x7f0000000000,1000,0x0\n";
    torment(&[log.to_vec()], TEXT, 50, report);
}

#[test]
fn lists_of_lifetimes() {
    let list = b"id,lower,upper,size,offset,gaps\n1,0,9,100,0,\n2,3,7,50,100,4-5\n3,7,8,50,,\n";
    torment(&[list.to_vec()], TEXT, 50, report);
}

#[test]
fn problems_as_csv() {
    let list = b"id,lower,upper,size,alignment,gaps,offset,hint\nw,0,9,100,64,,1024,\nx,1,5,100,64,2-3,,\n\"y,1\",4,9,100,1,,,\n";
    torment(&[list.to_vec()], TEXT, 50, |bytes| {
        let read = gapless_problems::csv::read(bytes, OffsetColumn::default(), &["id"]);
        read.inspect(|buffers| plan(&buffers.problem)).is_ok()
    });
}

#[test]
fn problems_as_json() {
    let list =
        br#"{"buffers": [{"id": "w", "lower": 0, "upper": 9, "size": 100, "alignment": 64, "offset": 1024},
        {"id": "x", "lower": 1, "upper": 5, "size": 100, "gaps": [[2, 3]]}]}"#;
    torment(&[list.to_vec()], TEXT, 50, |bytes| {
        let Ok(text) = std::str::from_utf8(bytes) else { return false };
        gapless_problems::json::read(text).inspect(plan).is_ok()
    });
}

#[test]
fn problems_as_onnx() {
    let graphs = ["branch", "residual"].map(|name| file(&format!("planner/onnx/{name}.onnx")));
    torment(&graphs, BINARY, 50, |bytes| gapless_problems::onnx::read(bytes, &[]).inspect(plan).is_ok());
}

/// The code of fit for any model, without a simulation.
fn count(model: &Model) {
    if let Some(architecture) = &model.architecture {
        assert!(parameters::count(architecture).is_some());
        let _ = parameters::buffers(architecture);
    }
    let _: u64 = model.weights.iter().flatten().map(|weight| weight.bytes).sum();
}

#[test]
fn models_as_configurations() {
    let known = ["gpt2", "llama-3.2-1b", "mixtral-8x7b", "bert-base-uncased"];
    let texts: Vec<Vec<u8>> = known
        .iter()
        .filter_map(|name| models::preset_config(name))
        .map(|text| text.as_bytes().to_vec())
        .collect();
    assert!(texts.len() >= 2, "models are known by these names");
    torment(&texts, TEXT, 50, |bytes| models::config("damaged", bytes).inspect(count).is_ok());
}

#[test]
fn models_as_gguf() {
    let whole = file("fit/gguf/llama.gguf.gz");
    torment(&[whole], BINARY, 50, |bytes| models::gguf("damaged", bytes).inspect(count).is_ok());
}

#[test]
fn models_as_safetensors() {
    let whole = file("fit/safetensors/small.safetensors");
    torment(&[whole], TEXT, 50, |bytes| models::safetensors("damaged", bytes).inspect(count).is_ok());
}

#[test]
fn models_as_exported_programs() {
    let archives = ["fit/pt2/mlp.pt2", "fit/pt2/nograd.pt2"].map(file);
    torment(&archives, BINARY, 1_000, |bytes| models::pt2("damaged", bytes).inspect(count).is_ok());
}

#[test]
fn models_as_onnx() {
    let graphs = ["fit/onnx/conv.onnx", "fit/onnx/mlp.onnx"].map(file);
    torment(&graphs, BINARY, 50, |bytes| {
        models::onnx("damaged", bytes, &Options::default()).inspect(count).is_ok()
    });
}

/// Damaged files of each fuzz target, and those of the target whose turn it is today.
const OF_A_TARGET: u64 = 50;
const IN_TURN: u64 = 1_000;

#[test]
fn bodies_of_the_fuzz_targets_hold_on_damaged_seeds() {
    let day = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |now| now.as_secs() / 86_400);
    let turn = day as usize % fuzz::TARGETS.len();
    eprintln!("day {day}: {} runs {IN_TURN} times, with this day's seeds", fuzz::TARGETS[turn].0);
    for (at, (name, run, seeds, head)) in fuzz::TARGETS.iter().enumerate() {
        let corpus: Vec<Vec<u8>> = seeds.iter().map(|seed| file(seed)[*head..].to_vec()).collect();
        corpus.iter().for_each(|bytes| run(bytes));
        let seeds = if at == turn { day * IN_TURN..(day + 1) * IN_TURN } else { 0..OF_A_TARGET };
        for seed in seeds {
            let mut dice = Dice::new(seed + 1);
            let mut bytes = corpus[dice.below(corpus.len())].clone();
            let other = corpus[dice.below(corpus.len())].clone();
            for _ in 0..=dice.below(4) {
                damage(&mut bytes, &other, if dice.below(2) == 0 { TEXT } else { BINARY }, &mut dice);
            }
            let done = std::panic::catch_unwind(|| run(&bytes));
            assert!(done.is_ok(), "the fuzz target {name} panicked with seed {seed}");
        }
    }
}

#[test]
fn every_fuzz_target_has_its_file_and_its_program() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz");
    let manifest = std::fs::read_to_string(root.join("Cargo.toml")).expect("a manifest");
    let mut names: Vec<String> = std::fs::read_dir(root.join("fuzz_targets"))
        .expect("a folder")
        .map(|entry| {
            entry.expect("an entry").path().file_stem().expect("a name").to_string_lossy().into_owned()
        })
        .collect();
    names.sort();
    let known: Vec<&str> = fuzz::TARGETS.iter().map(|target| target.0).collect();
    assert_eq!(names, known);
    for name in known {
        let text = std::fs::read_to_string(root.join(format!("fuzz_targets/{name}.rs"))).expect("a target");
        assert!(text.contains(&format!("gapless_fuzz::{name}(bytes)")), "{name} runs its body");
        assert!(
            manifest.contains(&format!("name = \"{name}\"\npath = \"fuzz_targets/{name}.rs\"")),
            "{name}"
        );
    }
}
