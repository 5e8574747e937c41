//! From threads to a file and back: the events read equal those pushed, in spite of kills, full rings and limits.

use gapless_pool::{PoolKey, StreamHandle};
use gapless_torch::recorder::held::{Block, Picture, Piece};
use gapless_torch::recorder::modules::Owned;
use gapless_torch::recorder::{Config, Entry, Recorder, scribe};
use gapless_trace::{
    Action, AllocationId, Bytes, DeviceAddr, Event, EventIndex, History, Micros, StackId, Stage, Trace,
    gtrace,
};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const BASE: u64 = 0x7f00_0000_0000;
const PLACES: u64 = 1000;
const APART: u64 = 1 << 20;

/// A program in which event `i` follows from those before it: one large piece of memory, and places in it that are
/// allocated and freed.
struct Program {
    next: u64,
    sizes: Vec<u64>,
}

impl Program {
    fn new() -> Program {
        Program { next: 0, sizes: vec![0; PLACES as usize] }
    }

    fn entry(&mut self) -> Entry {
        let i = self.next;
        self.next += 1;
        let at = i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        let (at, size) = (at % PLACES, 1 + at * 37 % 900_000);
        let mut entry = Entry {
            action: Action::Alloc,
            device: 0,
            stack: 0,
            module: 0,
            addr: BASE + at * APART,
            size,
            stream: StreamHandle(at % 2),
            pool: PoolKey(0, 0),
            time: 1_000_000 + i / 3,
        };
        let held = &mut self.sizes[at as usize];
        if i == 0 {
            return Entry {
                action: Action::SegmentMap,
                addr: BASE,
                size: PLACES * APART,
                stream: StreamHandle(0),
                ..entry
            };
        }
        if *held > 0 {
            entry.action = Action::FreeCompleted;
            entry.size = std::mem::take(held);
        } else {
            *held = size;
        }
        entry
    }

    fn live(&self) -> Vec<(u64, u64)> {
        let held = self.sizes.iter().enumerate().filter(|(_, size)| **size > 0);
        held.map(|(at, &size)| (BASE + at as u64 * APART, size)).collect()
    }

    fn picture(&self) -> Picture {
        let piece = Piece { addr: BASE, size: PLACES * APART, stream: StreamHandle(0), pool: PoolKey(0, 0) };
        let block = |(addr, size): (u64, u64)| {
            let stream = StreamHandle((addr - BASE) / APART % 2);
            (addr, Block { size, stream, ..Block::default() })
        };
        Picture { device: 0, pieces: vec![piece], blocks: self.live().into_iter().map(block).collect() }
    }
}

/// The event in the file for an entry of the program.
fn event(entry: &Entry) -> Event {
    Event {
        action: entry.action,
        addr: DeviceAddr(entry.addr),
        size: Bytes(entry.size),
        stream: entry.stream.0 as u16,
        time: Micros(entry.time),
        stack: StackId::NONE,
        ..Event::default()
    }
}

fn file(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("gapless-recorder-{}-{name}.gtrace", std::process::id()))
}

fn recorder(path: &Path, slots: usize, limit: u64) -> Recorder {
    Recorder::new(Config { path: path.to_owned(), stacks: false, limit }, slots)
}

fn nothing(open: &dyn Fn()) -> Vec<Picture> {
    open();
    Vec::new()
}

fn read(path: &Path) -> Trace {
    let trace = gtrace::read_from(BufReader::new(File::open(path).expect("a file"))).expect("a trace");
    std::fs::remove_file(path).expect("a file");
    trace
}

fn codes(trace: &Trace) -> Vec<&str> {
    trace.source.notes.iter().map(|note| note.code).collect()
}

/// Blocks that are live at the end, according to the events.
fn live_at_the_end(trace: &Trace) -> Vec<(u64, u64)> {
    let history =
        History::rebuild(trace, &trace.devices[0]).expect("events that do not contradict each other");
    let mut live: Vec<(u64, u64)> = history
        .allocations
        .active_at(history.last_tick)
        .map(|id| history.allocations.get(id))
        .map(|a| (a.addr.0, a.requested.0))
        .collect();
    live.sort_unstable();
    live
}

/// Pushes like a training process that is never faster than the scribe.
fn push(recorder: &Recorder, slots: usize, entry: &Entry) {
    while recorder.backlog() + 1 >= slots {
        std::thread::yield_now();
    }
    recorder.push(entry);
}

#[test]
fn ten_million_events_are_read_as_they_were_recorded() {
    const EVENTS: u64 = 10_000_000;
    const SLOTS: usize = 1 << 15;
    let path = file("ten-million");
    let recorder = recorder(&path, SLOTS, 0);
    std::thread::scope(|scope| {
        let written = scope.spawn(|| scribe::run(&recorder, nothing));
        let mut program = Program::new();
        (0..EVENTS).for_each(|_| push(&recorder, SLOTS, &program.entry()));
        recorder.end();
        written.join().expect("the scribe").expect("a file");
    });
    assert_eq!((recorder.lost(), recorder.written()), (0, EVENTS));
    let trace = read(&path);
    assert!(trace.source.is_gapless() && codes(&trace).is_empty());
    assert_eq!(trace.process.pid, Some(u64::from(std::process::id())));
    assert_eq!(trace.process.allocator, trace.source.producer);
    let (events, mut program) = (&trace.devices[0].events, Program::new());
    assert_eq!(events.len() as u64, EVENTS);
    for index in events.indices() {
        assert_eq!(events.get(index), event(&program.entry()), "{index}");
    }
}

#[test]
fn figures_are_those_of_our_own_allocator() {
    let path = file("figures");
    let recorder = recorder(&path, 1 << 10, 0);
    let mut program = Program::new();
    (0..500).for_each(|_| recorder.push(&program.entry()));
    recorder.mark(gapless_torch::recorder::Mark {
        name: "gapless.step".to_owned(),
        stage: Stage::Start,
        device: 0,
        time: 1_000_010,
    });
    recorder.end();
    scribe::run(&recorder, nothing).expect("a file");
    let trace = read(&path);
    let history = History::rebuild(&trace, &trace.devices[0]).expect("a history");
    let rounded: u64 = program.live().iter().map(|(_, size)| size.next_multiple_of(512)).sum();
    let asked: u64 = program.live().iter().map(|(_, size)| size).sum();
    assert_eq!(history.usage.allocated.current, Bytes(rounded));
    assert_eq!(history.usage.requested.current, Bytes(asked));
    assert_eq!(history.usage.reserved.peak, Bytes(PLACES * APART));
    assert_eq!(trace.annotations.len(), 1);
    assert_eq!(trace.strings.get(trace.annotations[0].name), "gapless.step");
}

#[test]
fn after_a_full_ring_the_file_says_what_is_missing_and_what_is_held_is_right() {
    let path = file("full");
    let recorder = recorder(&path, 1 << 10, 0);
    let mut program = Program::new();
    (0..5000).for_each(|_| recorder.push(&program.entry()));
    assert_eq!(recorder.lost(), 5000 - 1024);
    let picture = program.picture();
    std::thread::scope(|scope| {
        let written = scope.spawn(|| {
            scribe::run(&recorder, |open| {
                open();
                vec![picture.clone()]
            })
        });
        while recorder.written() <= 1024 {
            std::thread::yield_now();
        }
        (0..700).for_each(|_| push(&recorder, 1 << 10, &program.entry()));
        recorder.end();
        written.join().expect("the scribe").expect("a file");
    });
    let trace = read(&path);
    assert_eq!(codes(&trace), ["events-lost"]);
    assert!(trace.source.notes[0].text.starts_with("3976 event(s) are missing"), "{:?}", trace.source.notes);
    assert_eq!(live_at_the_end(&trace), program.live());
}

#[test]
fn a_limit_keeps_the_newest_in_two_files_that_can_each_be_read() {
    const LIMIT: u64 = 400_000;
    const SLOTS: usize = 1 << 15;
    let path = file("limit");
    let recorder = recorder(&path, SLOTS, LIMIT);
    let mut program = Program::new();
    std::thread::scope(|scope| {
        let written = scope.spawn(|| scribe::run(&recorder, nothing));
        (0..600_000).for_each(|_| push(&recorder, SLOTS, &program.entry()));
        recorder.end();
        written.join().expect("the scribe").expect("a file");
    });
    let older = scribe::older(&path);
    let length = |path: &Path| std::fs::metadata(path).expect("a file").len();
    let block = 32_768 * 12;
    assert!(length(&path) + length(&older) < LIMIT + 2 * block, "{} {}", length(&path), length(&older));
    let (newest, older) = (read(&path), read(&older));
    assert_eq!((codes(&newest), codes(&older)), (vec!["recording-continued"], vec!["recording-continued"]));
    assert_eq!(live_at_the_end(&newest), program.live());
    let first = |trace: &Trace| {
        let history = History::rebuild(trace, &trace.devices[0]).expect("a history");
        history.usage.reserved.peak
    };
    assert_eq!((first(&newest), first(&older)), (Bytes(PLACES * APART), Bytes(PLACES * APART)));
    let end = |trace: &Trace| {
        let events = &trace.devices[0].events;
        events.time(EventIndex(events.len() as u32 - 1))
    };
    let begin = newest.devices[0].events.time(EventIndex(0));
    assert_eq!(end(&older), begin, "the newest goes on where the older one ends");
}

/// Blocks that are live at the end, with the module that each is noted with.
fn modules_at_the_end(trace: &Trace) -> Vec<(u64, Option<String>)> {
    let history = History::rebuild(trace, &trace.devices[0]).expect("a history");
    let module = |id: AllocationId| history.block_notes.module(&trace.strings, id).map(str::to_owned);
    let mut live: Vec<_> = history
        .allocations
        .active_at(history.last_tick)
        .map(|id| (history.allocations.get(id).addr.0, module(id)))
        .collect();
    live.sort_unstable();
    live
}

/// With and without a limit: blocks that outlive a file keep their module in the next one. A module that is reported by
/// a block's address counts for the block that is live then, if its size is right.
#[test]
fn each_block_is_noted_with_the_module_that_asked_for_it_or_was_told_to_own_it() {
    const SLOTS: usize = 1 << 15;
    for limit in [0, 400_000] {
        let path = file(&format!("modules-{limit}"));
        let recorder = recorder(&path, SLOTS, limit);
        (1..8).for_each(|number| recorder.modules.name(number, &format!("module: h.{number}.mlp")));
        recorder.modules.name(8, "module: lm_head");
        let mut program = Program::new();
        let mut last = vec![0; PLACES as usize];
        let mut expected = Vec::new();
        std::thread::scope(|scope| {
            let written = scope.spawn(|| scribe::run(&recorder, nothing));
            for i in 0..600_000 {
                let mut entry = program.entry();
                if entry.action == Action::Alloc {
                    entry.module = (i % 8) as u16;
                    last[((entry.addr - BASE) / APART) as usize] = entry.module;
                }
                push(&recorder, SLOTS, &entry);
            }
            for (at, (addr, size)) in program.live().into_iter().enumerate() {
                let module = last[((addr - BASE) / APART) as usize];
                // Another module owns every third one; every sixth is reported with the size of another block.
                let (told, right) = (at % 3 == 0, at % 6 == 0);
                if told {
                    let size = if right { size } else { size + 1 };
                    recorder.modules.own(Owned { device: 0, addr, size, module: 8 });
                }
                let name = if told && right { Some("lm_head".to_owned()) } else { None };
                let asked = (module > 0).then(|| format!("h.{module}.mlp"));
                expected.push((addr, name.or(asked)));
            }
            // A block that is not there.
            recorder.modules.own(Owned { device: 0, addr: BASE + PLACES * APART, size: 1, module: 8 });
            recorder.end();
            written.join().expect("the scribe").expect("a file");
        });
        let trace = read(&path);
        if limit > 0 {
            let older = read(&scribe::older(&path));
            assert!(older.devices[0].events.has_user_metadata());
        }
        assert_eq!(modules_at_the_end(&trace), expected, "limit {limit}");
        assert_eq!(codes(&trace).is_empty(), limit == 0);
    }
}

/// The owner is reported. Then the program goes on until several files are written: a block that stays live keeps its
/// note.
#[test]
fn what_a_block_was_told_to_be_is_in_the_files_that_begin_later() {
    const SLOTS: usize = 1 << 15;
    let path = file("owned");
    let recorder = recorder(&path, SLOTS, 400_000);
    recorder.modules.name(1, "module: wte");
    let mut program = Program::new();
    std::thread::scope(|scope| {
        let written = scope.spawn(|| scribe::run(&recorder, nothing));
        let mut weight = program.entry();
        push(&recorder, SLOTS, &weight);
        // Outside of all places of the program.
        weight = Entry { action: Action::Alloc, addr: BASE + APART - 4096, size: 512, ..weight };
        push(&recorder, SLOTS, &weight);
        recorder.modules.own(Owned { device: 0, addr: weight.addr, size: 512, module: 1 });
        let asked = recorder.ask();
        while !recorder.is_complete(asked) {
            std::thread::yield_now();
        }
        (0..600_000).for_each(|_| push(&recorder, SLOTS, &program.entry()));
        recorder.end();
        written.join().expect("the scribe").expect("a file");
    });
    for path in [scribe::older(&path), path] {
        let found = modules_at_the_end(&read(&path));
        assert!(found.contains(&(BASE + APART - 4096, Some("wte".to_owned()))), "{}", path.display());
    }
}

const FILE: &str = "GAPLESS_RECORDER_TEST_FILE";

#[test]
#[ignore = "runs only as the child of the test below"]
fn the_process_that_is_killed() {
    const SLOTS: usize = 1 << 14;
    let Ok(path) = std::env::var(FILE) else { return };
    let recorder = recorder(Path::new(&path), SLOTS, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| scribe::run(&recorder, nothing).expect("a file"));
        let (mut program, mut said) = (Program::new(), 0);
        loop {
            push(&recorder, SLOTS, &program.entry());
            let written = recorder.written();
            if written > said {
                said = written;
                writeln!(std::io::stdout(), "written {written}").expect("a pipe");
            }
        }
    });
}

/// Killed a hundred times at random moments: every event that was known to be written is there, and all events are
/// right.
#[test]
fn a_kill_loses_nothing_but_the_block_that_was_open() {
    let mut dice = 0x2545_f491_4f6c_dd1du64;
    for round in 0..100 {
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let path = file(&format!("kill-{round}"));
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args(["the_process_that_is_killed", "--exact", "--ignored", "--nocapture", "--test-threads=1"])
            .env(FILE, &path)
            .stdout(Stdio::piped())
            .spawn()
            .expect("a child");
        let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines().map_while(Result::ok);
        let mut written = 0;
        // The last line may have been cut by the kill: a shorter number is still a lower bound.
        let mut note = |line: String| match line.strip_prefix("written ") {
            Some(events) => written = written.max(events.parse::<usize>().unwrap_or(0)),
            None => assert!(!line.contains("panicked"), "{line}"),
        };
        let blocks = (dice >> 60) as usize % 4;
        lines.by_ref().filter(|line| line.starts_with("written")).take(blocks).for_each(&mut note);
        std::thread::sleep(std::time::Duration::from_micros((dice >> 33) % 12_000));
        child.kill().expect("a child");
        lines.for_each(&mut note);
        child.wait().expect("a child");
        if !path.exists() {
            assert_eq!(written, 0);
            continue;
        }
        let bytes = std::fs::read(&path).expect("a file");
        std::fs::remove_file(&path).expect("a file");
        let trace = match gtrace::read(&bytes) {
            Ok(trace) => trace,
            Err(gtrace::GtraceError::TooShort { .. }) if written == 0 => continue,
            Err(error) => panic!("{error}"),
        };
        let found = codes(&trace);
        assert!(found == ["gtrace-unfinished"] || found == ["gtrace-torn"], "{found:?}");
        let Some(device) = trace.devices.first() else {
            assert_eq!(written, 0);
            continue;
        };
        assert!(device.events.len() >= written, "{} of {written}", device.events.len());
        let mut program = Program::new();
        for index in device.events.indices() {
            assert_eq!(device.events.get(index), event(&program.entry()), "round {round}, {index}");
        }
        assert_eq!(live_at_the_end(&trace), program.live());
    }
}
