//! A snapshot whose events are followed by a second thread while it is read: the same trace, the same history, and the
//! same errors as without that thread.

mod support;

use gapless_ingest::{Content, ReadError, ReadOptions, open_with};
use gapless_trace::{Ahead, History, Trace};
use std::path::{Path, PathBuf};
use support::{Dice, Py, Style, pickle};

const PYTHON: Style = Style { protocol: 4, share: true, memoize: true, late: false, single: false, frame: 0 };

fn open(path: &Path) -> Result<Trace, ReadError> {
    fn trace(content: Content<'_>) -> Result<Trace, ReadError> {
        content.trace()
    }
    open_with(path, &ReadOptions::default(), trace)?
}

fn open_ahead(path: &Path) -> Result<(Trace, Option<Ahead>), ReadError> {
    fn trace(content: Content<'_>) -> Result<(Trace, Option<Ahead>), ReadError> {
        content.trace_ahead()
    }
    open_with(path, &ReadOptions::default(), trace)?
}

/// A file of this name for one test.
fn file(name: &str, bytes: &[u8]) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, bytes).expect("a file for a test");
    path
}

fn int(value: u64) -> Py {
    Py::Int(i128::from(value))
}

fn text(value: &str) -> Py {
    Py::Str(value.to_owned())
}

/// A device's events: small requests over segments that are used from end to end. Sizes take one byte, two or four.
fn events(dice: &mut Dice, count: usize) -> Vec<Py> {
    let mut list = Vec::new();
    let mut push = |action: &str, addr: u64, size: u64| {
        list.push(Py::Dict(vec![
            ("action", text(action)),
            ("addr", int(0x7f00_0000_0000 + addr)),
            ("size", int(size)),
            ("stream", int(0)),
            ("time_us", int(1_794_700_711_857_257 + 3 * list.len() as u64)),
            ("compile_context", text("N/A")),
            ("user_metadata", text("")),
        ]));
        list.len()
    };
    let mut live: Vec<(u64, u64)> = Vec::new();
    let (mut at, mut end) = (0, 0);
    loop {
        let most = [200, 60_000, 300_000][dice.below(3) as usize];
        let size = 1 + dice.below(most);
        if at + (1 << 20) > end {
            (at, end) = (end + (2 << 20), end + (22 << 20));
            push("segment_alloc", at, 20 << 20);
        }
        let now = push("alloc", at, size);
        live.push((at, size));
        at += size.next_multiple_of(512);
        while live.len() > 40 {
            let (addr, size) = live.swap_remove(dice.below(live.len() as u64) as usize);
            push("free_requested", addr, size);
            push("free_completed", addr, size);
        }
        if now >= count {
            return list;
        }
    }
}

fn snapshot(devices: Vec<Vec<Py>>) -> Py {
    Py::Dict(vec![
        ("segments", Py::List(Vec::new())),
        ("device_traces", Py::List(devices.into_iter().map(Py::List).collect())),
    ])
}

/// True if the events were followed.
#[track_caller]
fn assert_same(path: &Path) -> bool {
    let trace = open(path).expect("a trace");
    let (followed, mut ahead) = open_ahead(path).expect("a trace");
    let is_followed = ahead.is_some();
    assert_eq!(trace.devices.len(), followed.devices.len());
    for (a, b) in trace.devices.iter().zip(&followed.devices) {
        assert!(a.events == b.events, "the events of {}", path.display());
        let whole = History::rebuild(&trace, a);
        let own = History::rebuild_from(&followed, b, ahead.take());
        assert!(format!("{whole:?}") == format!("{own:?}"), "the history of {}", path.display());
    }
    is_followed
}

#[test]
fn recorded_runs_mean_the_same() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/traces");
    let mut seen = 0;
    for entry in std::fs::read_dir(folder).expect("the recorded runs") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        // The largest take their time without optimisation, and are like others.
        if name.ends_with(".pickle.gz") && path.metadata().expect("a file").len() < 600_000 {
            seen += usize::from(assert_same(&path));
        }
    }
    assert!(seen >= 5, "{seen} recorded runs were followed");
}

#[test]
fn events_of_one_shape_are_those_that_are_read_key_by_key() {
    let all = snapshot(vec![events(&mut Dice::new(1), 60_000)]);
    let plain = file("shapes.pickle", &pickle(&all, PYTHON));
    // Cut into frames of three values, so that no event is like another.
    let cut = file("no-shapes.pickle", &pickle(&all, Style { frame: 3, ..PYTHON }));
    assert!(assert_same(&plain));
    let (plain, cut) = (open(&plain).expect("a trace"), open(&cut).expect("a trace"));
    assert!(plain.devices[0].events == cut.devices[0].events);
    assert_eq!(plain.source, cut.source);
}

#[test]
fn several_devices_are_not_taken_for_one() {
    let dice = &mut Dice::new(2);
    let two = snapshot(vec![events(dice, 40_000), Vec::new(), events(dice, 40_000)]);
    assert!(!assert_same(&file("two-devices.pickle", &pickle(&two, PYTHON))));
    let second = snapshot(vec![Vec::new(), events(dice, 40_000)]);
    assert!(assert_same(&file("second-device.pickle", &pickle(&second, PYTHON))));
    // The same list twice: the second device has the rows of the first.
    let one = Py::List(events(dice, 40_000));
    let shared = Py::Dict(vec![("device_traces", Py::List(vec![one.clone(), one]))]);
    assert!(!assert_same(&file("shared.pickle", &pickle(&shared, PYTHON))));
}

#[test]
fn damage_anywhere_is_the_same_error_with_a_second_thread_under_way() {
    let bytes = pickle(&snapshot(vec![events(&mut Dice::new(3), 60_000)]), PYTHON);
    let mut dice = Dice::new(4);
    let mut failed = 0;
    for round in 0..24 {
        let mut bytes = bytes.clone();
        let at = 1000 + dice.below(bytes.len() as u64 - 1000) as usize;
        // Torn, or changed in a byte or a few.
        match round % 3 {
            0 => bytes.truncate(at),
            1 => bytes[at] ^= 1 << dice.below(8),
            _ => bytes[at..at + 9].fill(dice.roll() as u8),
        }
        let path = file("damaged.pickle", &bytes);
        let text = |result: Result<Trace, ReadError>| result.map(|_| ()).map_err(|error| error.to_string());
        let (alone, followed) = (open(&path), open_ahead(&path).map(|(trace, _)| trace));
        if let (Ok(alone), Ok(followed)) = (&alone, &followed) {
            assert!(alone.devices[0].events == followed.devices[0].events, "damaged at {at}");
        }
        failed += usize::from(alone.is_err());
        assert_eq!(text(alone), text(followed), "damaged at {at}");
    }
    assert!(failed >= 8, "{failed} of the files were refused");
}

#[test]
fn a_recording_without_events_is_the_same_answer() {
    let mut empty = pickle(&snapshot(vec![Vec::new(), Vec::new()]), PYTHON);
    // A file of a megabyte is followed.
    empty.resize(2 << 20, 0);
    let path = file("empty.pickle", &empty);
    let (alone, followed) = (open(&path), open_ahead(&path));
    let alone = alone.err().map(|error| error.to_string());
    assert!(alone.is_some());
    assert_eq!(alone, followed.err().map(|error| error.to_string()));
}
