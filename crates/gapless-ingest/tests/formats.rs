//! Each format by a small example: dumps by CPython, old versions of torch, compression, CSV, and the texts of errors.

use gapless_ingest::{Problem, ReadOptions, open, read};
use gapless_trace::{Action, BlockState, Bytes, History, SizeClass, Trace, gtrace};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

fn testdata(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata").join(name)
}

fn parse(bytes: &[u8]) -> Trace {
    read(bytes, "test", &ReadOptions::default()).unwrap_or_else(|error| panic!("{error}"))
}

fn problem(bytes: &[u8]) -> Problem {
    match read(bytes, "test", &ReadOptions::default()) {
        Ok(trace) => panic!("accepted: {:?}", trace.source),
        Err(error) => error.problem,
    }
}

fn codes(trace: &Trace) -> Vec<&str> {
    trace.source.notes.iter().map(|note| note.code).collect()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    out.write_all(bytes).expect("memory");
    out.finish().expect("memory")
}

fn zstandard(bytes: &[u8]) -> Vec<u8> {
    gapless_formats::zstd::compress(bytes)
}

#[test]
fn pickles_of_cpython_read_the_same_in_every_protocol() {
    let mut seen: Option<String> = None;
    for protocol in 2..=5 {
        let path = testdata(&format!("cpython/protocol_{protocol}.pickle"));
        let trace = open(&path, &ReadOptions::default()).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(trace.source.format, format!("PyTorch snapshot (pickle protocol {protocol})"));
        assert_eq!(trace.source.producer, "torch 2.12");
        let device = &trace.devices[0];
        assert_eq!(device.events.len(), 2503);
        let last = device.events.iter().last().expect("events");
        assert_eq!(
            (last.addr.0, last.size, last.action),
            (0xffff_8000_0000_0000, Bytes(4096), Action::FreeCompleted)
        );
        assert!(device.streams.iter().any(|s| s.0 == (-3_i64) as u64));
        assert_eq!(device.pools.len(), 2);
        let all = format!("{:?} {:?} {:?}", trace.devices, trace.annotations, trace.settings);
        match &seen {
            Some(first) => assert!(*first == all, "protocol {protocol} reads differently"),
            None => seen = Some(all),
        }
    }
}

#[test]
fn the_list_of_segments_of_old_versions_is_a_trace_without_events() {
    let trace = parse(&std::fs::read(testdata("cpython/torch_1_13.pickle")).expect("the file"));
    assert_eq!(trace.source.producer, "torch 1.13 or earlier");
    let device = &trace.devices[0];
    assert!(device.events.is_empty());
    assert_eq!(device.segments.len(), 2);
    // Addresses are the sums of the sizes before; requests and stacks come from the history.
    let blocks: Vec<(u64, u64, u64, BlockState, usize)> = device
        .blocks
        .iter()
        .map(|b| (b.addr.0, b.size.0, b.requested.0, b.state, trace.stacks.get(b.stack).len()))
        .collect();
    assert_eq!(
        blocks,
        [
            (0x10_0000, 512, 100, BlockState::Live, 2),
            (0x10_0200, 2_096_640, 2_096_640, BlockState::Free, 0),
            (0x80_0000, 20_971_520, 20_000_000, BlockState::Pending, 1),
        ]
    );
    assert_eq!(device.segments[0].class, SizeClass::Small);
}

#[test]
fn cpp_frames_of_torch_2_0_stand_before_the_python_frames() {
    let trace = parse(&std::fs::read(testdata("cpython/torch_2_0.pickle")).expect("the file"));
    assert_eq!(trace.source.producer, "torch 2.0");
    let event = trace.devices[0].events.iter().next().expect("an event");
    let names: Vec<&str> =
        trace.stacks.get(event.stack).iter().map(|&f| trace.strings.get(trace.frames.get(f).name)).collect();
    assert_eq!(names, ["at::empty", "forward"]);
    assert!(!trace.devices[0].events.has_times());
}

#[test]
fn compression_is_seen_through_twice_whatever_the_name() {
    let plain = std::fs::read(testdata("cpython/protocol_4.pickle")).expect("the file");
    for (bytes, format) in [
        (gzip(&plain), "gzip"),
        (zstandard(&plain), "zstd"),
        (zstandard(&gzip(&plain)), "zstd, gzip"),
        (gzip(&zstandard(&plain)), "gzip, zstd"),
    ] {
        let trace = parse(&bytes);
        assert_eq!(trace.devices[0].events.len(), 2503);
        assert_eq!(trace.source.format, format!("PyTorch snapshot (pickle protocol 4), {format}"));
    }
    let half = gzip(&plain);
    assert!(matches!(problem(&half[..half.len() / 2]), Problem::Truncated { .. }));
}

#[test]
fn the_own_format_is_read_plain_and_compressed() {
    let path = testdata("cpython/protocol_4.pickle");
    let trace = open(&path, &ReadOptions::default()).unwrap_or_else(|error| panic!("{error}"));
    let bytes = gtrace::write_trace(&trace, Vec::new(), gtrace::Options::default())
        .unwrap_or_else(|error| panic!("{error}"));
    for bytes in [bytes.clone(), gzip(&bytes)] {
        let again = parse(&bytes);
        assert!(again.devices[0].events == trace.devices[0].events);
        assert_eq!(again.devices[0].blocks, trace.devices[0].blocks);
    }
    assert!(matches!(problem(b"GTRACE"), Problem::Gtrace(_)));
}

#[test]
fn every_truncation_is_an_error_that_says_where() {
    let plain = std::fs::read(testdata("cpython/protocol_4.pickle")).expect("the file");
    for length in (2..plain.len()).step_by(1013) {
        match problem(&plain[..length]) {
            Problem::Truncated { offset, reading } => {
                assert_eq!(offset, length as u64);
                assert!(!reading.is_empty());
            }
            other => panic!("{length}: {other}"),
        }
    }
}

#[test]
fn skipped_kinds_of_events_are_noted() {
    let json = r#"{"segments": [{"device": 0, "address": 1048576, "total_size": 2097152, "stream": 0, "blocks":
        [{"address": 1048576, "size": 2097152, "state": "inactive"}]}],
        "device_traces": [[{"action": "alloc", "addr": 1048576, "size": 5, "stream": 0},
                           {"action": "free_requested", "addr": 1048576, "size": 5, "stream": 0}]]}"#;
    assert_eq!(codes(&parse(json.as_bytes())), ["actions-skipped"]);
}

#[test]
fn rmm_logs_become_allocations_and_frees() {
    let log = "Thread,Time,Action,Pointer,Size,Stream\n\
               17,10:00:00:000100,allocate,0x7f0000000000,1000,0x0\n\
               17,10:00:00:000200,allocate,0x7f0000001000,2000,0x55aa\n\
               18,10:00:00:000300,free,0x7f0000000000,1000,0x0\n\
               18,10:00:00:000400,allocate failure,(nil),99,0x0\n";
    let trace = parse(log.as_bytes());
    let device = &trace.devices[0];
    assert_eq!(device.streams.iter().map(|s| s.0).collect::<Vec<_>>(), [0, 0x55aa]);
    assert!(!trace.source.torch_rules);
    assert_eq!(codes(&trace), ["no-segments", "free-bytes-unknown"]);
    let history = History::rebuild(&trace, device).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!((history.usage.live.peak, history.usage.live.current), (Bytes(3000), Bytes(2000)));
    let times: Vec<u64> = device.events.iter().map(|e| e.time.0).collect();
    assert_eq!(times[1] - times[0], 100);
}

#[test]
fn minimalloc_buffers_become_events_in_order_of_time() {
    // "a" ends when "b" begins, at one offset: the free has to come first.
    let csv = "size,upper,id,lower,alignment,gaps,offset\n100,5,a,0,1,,0\n50,9,b,5,1,6-7,0\n7,9,c,1,1,,100\n";
    let trace = parse(csv.as_bytes());
    let device = &trace.devices[0];
    let order: Vec<(Action, u64)> = device.events.iter().map(|e| (e.action, e.size.0)).collect();
    use Action::{Alloc, FreeCompleted};
    assert_eq!(
        order,
        [
            (Alloc, 100),
            (Alloc, 7),
            (FreeCompleted, 100),
            (Alloc, 50),
            (FreeCompleted, 50),
            (FreeCompleted, 7)
        ]
    );
    assert_eq!(codes(&trace), ["no-segments", "gaps-left-out"]);
    let history = History::rebuild(&trace, device).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(history.usage.live.peak, Bytes(107));
    let name = trace.stacks.get(device.events.iter().next().expect("an event").stack)[0];
    assert_eq!(trace.strings.get(trace.frames.get(name).name), "a");
}

#[test]
fn buffers_without_offsets_get_disjoint_addresses() {
    let trace = parse(b"id,lower,upper,size\n1,0,10,1000\n2,0,10,1\n3,2,8,0\n");
    assert_eq!(codes(&trace), ["no-segments", "addresses-made-up"]);
    let history = History::rebuild(&trace, &trace.devices[0]).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(history.usage.live.peak, Bytes(1001));
}

#[test]
fn errors_in_csv_name_their_line() {
    let text = problem(b"id,lower,upper,size\n1,0,1,5\n\n2,3,3,5\n").to_string();
    assert!(text.starts_with("line 4: "), "{text}");
}

#[test]
fn each_kind_of_bad_input_has_its_own_text_with_a_next_step() {
    let options = ReadOptions::default();
    let text = |path: &Path| match open(path, &options) {
        Ok(_) => panic!("{} was accepted", path.display()),
        Err(error) => error.to_string(),
    };
    let hostile = |name: &str| text(&testdata("hostile").join(name));
    for (text, part) in [
        (text(Path::new("/no/such/file")), "/no/such/file: there is no such file; check the path"),
        (text(&testdata("hostile")), "this is a directory; give one of the files in it"),
        (hostile("empty"), "the file is empty"),
        (hostile("png"), "looks like a PNG image; give a file from torch.cuda.memory._dump_snapshot"),
        (hostile("elf"), "looks like an ELF program"),
        (hostile("checkpoint_zip"), "checkpoint of torch.save (.pt); checkpoints hold weights"),
        (hostile("checkpoint_old"), "checkpoint of torch.save in its old format"),
        (
            hostile("empty_snapshot"),
            "an empty trace: no events and no segments; call torch.cuda.memory._record",
        ),
        (
            hostile("code_REDUCE"),
            "byte 3: the pickle opcode REDUCE would run code; a memory snapshot never contains it",
        ),
        (hostile("size_over_2_60"), "\"size\" is more than 2^60 bytes"),
        (hostile("size_negative"), "\"size\" is -1: a size cannot be negative"),
        (hostile("json_wrong_size"), "line 1, column "),
        (hostile("gzip_wrong_checksum"), "the compressed data is damaged"),
    ] {
        assert!(text.contains(part), "{text:?} lacks {part:?}");
    }
}

#[test]
fn progress_is_told_and_reaches_the_end() {
    let told = Arc::new(AtomicU64::new(0));
    let total = Arc::new(AtomicU64::new(0));
    let (told_in, total_in) = (told.clone(), total.clone());
    let options = ReadOptions {
        progress: Some(Box::new(move |read, of| {
            told_in.store(read, Ordering::Relaxed);
            total_in.store(of.unwrap_or(0), Ordering::Relaxed);
        })),
        ..ReadOptions::default()
    };
    let path = testdata("cpython/protocol_4.pickle");
    open(&path, &options).unwrap_or_else(|error| panic!("{error}"));
    let length = std::fs::metadata(&path).expect("the file").len();
    assert_eq!((told.load(Ordering::Relaxed), total.load(Ordering::Relaxed)), (length, length));
}
