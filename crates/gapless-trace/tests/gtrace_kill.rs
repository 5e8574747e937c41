//! A process that appends to a `.gtrace` file is killed with SIGKILL at several moments; each time the file reads back
//! as an exact prefix of its events, and holds all that it knew to be written.

#![cfg(unix)]

use gapless_trace::gtrace::{self, EventBatch, Tables, Writer};
use gapless_trace::stacks::Frame;
use gapless_trace::{Action, Bytes, DeviceAddr, DeviceTrace, Event, EventIndex, Micros, StreamId, Trace};
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

const FILE: &str = "GTRACE_KILL_TEST_FILE";
const CHILD: &str = "the_process_that_is_killed";

/// Event `i` of every run; new streams, strings, frames and stacks come all along.
fn event(i: u64, trace: &mut Trace, device: &mut DeviceTrace) -> Event {
    let name = trace.strings.intern(&format!("function_{}", i / 1000));
    let file = trace.strings.intern(&format!("file_{}.py", i / 9000));
    let inner = trace.frames.intern(Frame { name, file, line: (i % 7) as u32 });
    let outer = trace.frames.intern(Frame { name: file, file, line: 1 });
    Event {
        action: Action::ALL[(i % 3) as usize],
        addr: DeviceAddr(0x7f00_0000_0000 + i.wrapping_mul(0x9e37_79b9) % 100_000 * 512),
        size: Bytes(i * 37 % 1_000_003),
        stream: device.stream_index(StreamId(i / 40_000)).unwrap_or(0),
        time: Micros(i * 3),
        stack: trace.stacks.intern(&[inner, outer]),
        ..Event::default()
    }
}

fn batch_len(batch: u64) -> u64 {
    1 + batch * 7919 % 5000
}

#[test]
#[ignore = "runs only as the child of the test below"]
fn the_process_that_is_killed() {
    let Ok(path) = std::env::var(FILE) else { return };
    let mut writer = Writer::new(std::fs::File::create(path).unwrap()).unwrap();
    let (mut trace, mut device) = (Trace::default(), DeviceTrace::new(0));
    let mut next = 0;
    for batch in 0.. {
        let events: Vec<Event> =
            (next..next + batch_len(batch)).map(|i| event(i, &mut trace, &mut device)).collect();
        next += events.len() as u64;
        let tables = Tables { strings: &trace.strings, frames: &trace.frames, stacks: &trace.stacks };
        let batch = EventBatch { device: 0, streams: &device.streams, pools: &device.pools, events: &events };
        writer.append(&batch, tables).unwrap();
        // Straight to the pipe: the lines of this process before it died count.
        writeln!(std::io::stdout(), "appended {next}").unwrap();
    }
}

#[test]
fn a_killed_process_leaves_an_exact_prefix_of_what_it_wrote() {
    for batches in [1, 2, 5, 17, 40] {
        let path = std::env::temp_dir().join(format!("gapless-kill-{}-{batches}.gtrace", std::process::id()));
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([CHILD, "--exact", "--ignored", "--nocapture", "--test-threads=1"])
            .env(FILE, &path)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let mut appended = 0;
        let mut note = |line: String| match line.strip_prefix("appended ") {
            // The last line may have been cut short by the kill: a shorter number is still a lower bound.
            Some(events) => appended = appended.max(events.parse::<usize>().unwrap_or(0)),
            None => assert!(!line.contains("panicked"), "{line}"),
        };
        lines.by_ref().filter(|line| line.starts_with("appended")).take(batches).for_each(&mut note);
        child.kill().unwrap();
        lines.for_each(&mut note);
        child.wait().unwrap();

        let bytes = std::fs::read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let read = gtrace::read(&bytes).unwrap();
        let codes: Vec<&str> = read.source.notes.iter().map(|n| n.code).collect();
        assert!(codes == ["gtrace-unfinished"] || codes == ["gtrace-torn"], "{codes:?}");

        let events = &read.devices[0].events;
        assert!(events.len() >= appended && appended > 0, "{} of {appended}", events.len());
        let (mut trace, mut device) = (Trace::default(), DeviceTrace::new(0));
        for index in events.indices() {
            assert_eq!(events.get(index), event(u64::from(index.0), &mut trace, &mut device), "{index}");
        }
        // The ids have the same meaning.
        let last = events.stack(EventIndex(events.len() as u32 - 1));
        assert_eq!(read.stacks.get(last), trace.stacks.get(last));
        assert!(trace.strings.iter().all(|(id, text)| read.strings.get(id) == text));
        assert!(trace.frames.iter().zip(read.frames.iter()).all(|(a, b)| a == b));
        assert_eq!(device.streams[..], read.devices[0].streams[..device.streams.len()]);
    }
}
