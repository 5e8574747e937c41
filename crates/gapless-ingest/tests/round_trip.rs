//! Random snapshots, written in every protocol, with and without sharing, keys in any order, and as JSON: all are read
//! back unchanged.

mod support;

use gapless_ingest::{ReadOptions, read};
use gapless_trace::{Action, Trace};
use support::{Dice, Py, Style, json, pickle};

/// The content of a snapshot, apart from the way in which it is stored.
#[derive(Clone, Debug, Default, PartialEq)]
struct Plain {
    /// Device, then its events: action, address, size, stream, time, pool, compile context, metadata, frames, forward
    /// frames.
    events: Vec<(u32, Vec<PlainEvent>)>,
    segments: Vec<PlainSegment>,
    annotations: Vec<(String, bool, u32, u64)>,
}

#[derive(Clone, Debug, PartialEq)]
struct PlainEvent {
    action: Action,
    addr: u64,
    size: u64,
    stream: u64,
    time: u64,
    pool: (u64, u64),
    context: String,
    metadata: String,
    frames: Vec<(String, String, u32)>,
    forward: Vec<String>,
}

#[derive(Clone, Debug, PartialEq)]
struct PlainSegment {
    device: u32,
    addr: u64,
    size: u64,
    stream: u64,
    small: bool,
    expandable: bool,
    blocks: Vec<(u64, u64, u64, &'static str)>,
}

fn text(value: &str) -> Py {
    Py::Str(value.to_owned())
}

fn int(value: u64) -> Py {
    Py::Int(i128::from(value))
}

fn shuffled<T>(mut items: Vec<T>, dice: &mut Dice, shuffle: bool) -> Vec<T> {
    if shuffle {
        for i in (1..items.len()).rev() {
            items.swap(i, dice.below(i as u64 + 1) as usize);
        }
    }
    items
}

fn frames(stack: &[(String, String, u32)]) -> Py {
    Py::List(
        stack
            .iter()
            .map(|(name, file, line)| {
                Py::Dict(vec![
                    ("name", text(name)),
                    ("filename", text(file)),
                    ("line", int(u64::from(*line))),
                ])
            })
            .collect(),
    )
}

fn random(dice: &mut Dice, shuffle: bool) -> (Plain, Py) {
    let mut plain = Plain::default();
    let stacks: Vec<Vec<(String, String, u32)>> = (0..6)
        .map(|n| {
            (0..n)
                .map(|_| {
                    (
                        format!("f{}", dice.below(5)),
                        format!("/é/{}.py", dice.below(3)),
                        dice.below(900) as u32,
                    )
                })
                .collect()
        })
        .collect();
    let streams = [0, 7, 0x7f12_3456_7890, u64::MAX - 5];
    let mut device_traces = Vec::new();
    for device in 0..1 + dice.below(3) as u32 {
        let mut list = Vec::new();
        let mut events = Vec::new();
        for _ in 0..dice.below(40) {
            let wide = dice.below(64);
            let event = PlainEvent {
                action: Action::ALL[dice.below(9) as usize],
                addr: dice.roll() >> (1 + dice.below(30)) << u64::from(dice.chance(2)),
                size: dice.roll() >> wide.max(4),
                stream: streams[dice.below(4) as usize],
                time: dice.roll() >> 8,
                pool: if dice.chance(4) { (dice.below(3), dice.below(3)) } else { (0, 0) },
                context: if dice.chance(3) { format!("region {}", dice.below(3)) } else { String::new() },
                metadata: if dice.chance(5) { "x".repeat(dice.below(300) as usize) } else { String::new() },
                frames: stacks[dice.below(6) as usize].clone(),
                forward: (0..if dice.chance(4) { dice.below(3) } else { 0 })
                    .map(|n| format!("at {n}"))
                    .collect(),
            };
            if event.action != Action::Oom && event.addr.checked_add(event.size).is_none() {
                continue;
            }
            let addr = if event.action == Action::Oom { "device_free" } else { "addr" };
            let mut entries = vec![
                ("action", text(event.action.name())),
                (addr, int(event.addr)),
                ("size", int(event.size)),
                (
                    "stream",
                    if event.stream > 1 << 63 {
                        Py::Int(i128::from(event.stream as i64))
                    } else {
                        int(event.stream)
                    },
                ),
                ("time_us", int(event.time)),
                ("compile_context", text(if event.context.is_empty() { "N/A" } else { &event.context })),
                ("user_metadata", text(&event.metadata)),
            ];
            if event.pool != (0, 0) || dice.chance(2) {
                entries.push(("pool_id", Py::Tuple(vec![int(event.pool.0), int(event.pool.1)])));
            }
            if !event.frames.is_empty() || dice.chance(2) {
                entries.push(("frames", frames(&event.frames)));
            }
            if !event.forward.is_empty() {
                // Python prints stacks outermost first.
                entries.push((
                    "forward_frames",
                    Py::List(event.forward.iter().rev().map(|t| text(t)).collect()),
                ));
            }
            if dice.chance(9) {
                entries.push((
                    "from_the_future",
                    Py::Dict(vec![("x", Py::List(vec![Py::None, Py::Bool(true)]))]),
                ));
            }
            list.push(Py::Dict(shuffled(entries, dice, shuffle)));
            events.push(event);
        }
        if !events.is_empty() {
            plain.events.push((device, events));
        }
        device_traces.push(Py::List(list));
    }
    let mut segments = Vec::new();
    for n in 0..dice.below(6) {
        let device = dice.below(3) as u32;
        let mut segment = PlainSegment {
            device,
            addr: (n + 1) << 32,
            size: 0,
            stream: streams[dice.below(3) as usize],
            small: dice.chance(2),
            expandable: dice.chance(2),
            blocks: Vec::new(),
        };
        let mut blocks = Vec::new();
        for _ in 0..1 + dice.below(4) {
            let size = 512 * (1 + dice.below(1000));
            let state = ["active_allocated", "active_pending_free", "inactive"][dice.below(3) as usize];
            segment.blocks.push((segment.addr + segment.size, size, size / 2, state));
            let entries = vec![
                ("address", int(segment.addr + segment.size)),
                ("size", int(size)),
                ("requested_size", int(size / 2)),
                ("state", text(state)),
                ("frames", frames(&stacks[dice.below(6) as usize])),
            ];
            blocks.push(Py::Dict(shuffled(entries, dice, shuffle)));
            segment.size += size;
        }
        let entries = vec![
            ("device", int(u64::from(device))),
            ("address", int(segment.addr)),
            ("total_size", int(segment.size)),
            ("stream", int(segment.stream)),
            ("segment_type", text(if segment.small { "small" } else { "large" })),
            ("segment_pool_id", Py::Tuple(vec![int(0), int(0)])),
            ("is_expandable", Py::Bool(segment.expandable)),
            ("frames", frames(&[])),
            ("blocks", Py::List(blocks)),
        ];
        segments.push(Py::Dict(shuffled(entries, dice, shuffle)));
        plain.segments.push(segment);
    }
    plain.segments.sort_by_key(|s| (s.device, s.addr));
    let annotations = (0..dice.below(4))
        .map(|n| {
            let (device, time) = (dice.below(3) as u32, dice.roll() >> 10);
            plain.annotations.push((format!("step {n}"), n % 2 == 0, device, time));
            let entries = vec![
                ("stage", text(if n % 2 == 0 { "START" } else { "END" })),
                ("name", text(&format!("step {n}"))),
                ("device", int(u64::from(device))),
                ("time_us", int(time)),
            ];
            Py::Dict(shuffled(entries, dice, shuffle))
        })
        .collect();
    let top = vec![
        ("segments", Py::List(segments)),
        ("device_traces", Py::List(device_traces)),
        ("allocator_settings", Py::Dict(vec![("max_split_size", Py::Int(-1))])),
        ("external_annotations", Py::List(annotations)),
    ];
    (plain, Py::Dict(shuffled(top, dice, shuffle)))
}

fn plain_of(trace: &Trace) -> Plain {
    let text = |id| trace.strings.get(id).to_owned();
    let mut plain = Plain::default();
    for device in &trace.devices {
        let events: Vec<PlainEvent> = device
            .events
            .iter()
            .map(|e| PlainEvent {
                action: e.action,
                addr: e.addr.0,
                size: e.size.0,
                stream: device.streams[e.stream as usize].0,
                time: e.time.0,
                pool: (device.pools[e.pool as usize].0, device.pools[e.pool as usize].1),
                context: text(e.compile_context),
                metadata: text(e.user_metadata),
                frames: trace
                    .stacks
                    .get(e.stack)
                    .iter()
                    .map(|&id| trace.frames.get(id))
                    .map(|f| (text(f.name), text(f.file), f.line))
                    .collect(),
                forward: trace
                    .stacks
                    .get(e.forward_stack)
                    .iter()
                    .map(|&id| text(trace.frames.get(id).name))
                    .collect(),
            })
            .collect();
        if !events.is_empty() {
            plain.events.push((device.device, events));
        }
        for segment in &device.segments {
            plain.segments.push(PlainSegment {
                device: device.device,
                addr: segment.addr.0,
                size: segment.size.0,
                stream: device.streams[segment.stream as usize].0,
                small: segment.class == gapless_trace::SizeClass::Small,
                expandable: segment.expandable,
                blocks: device
                    .blocks_of(segment)
                    .iter()
                    .map(|b| {
                        let state = match b.state {
                            gapless_trace::BlockState::Live => "active_allocated",
                            gapless_trace::BlockState::Pending => "active_pending_free",
                            gapless_trace::BlockState::Free => "inactive",
                        };
                        (b.addr.0, b.size.0, b.requested.0, state)
                    })
                    .collect(),
            });
        }
    }
    for a in &trace.annotations {
        plain.annotations.push((text(a.name), a.stage == gapless_trace::Stage::Start, a.device, a.time.0));
    }
    plain
}

fn check(bytes: &[u8], expected: &Plain, what: &str) {
    match read(bytes, what, &ReadOptions::default()) {
        Ok(trace) => {
            let found = plain_of(&trace);
            for ((device, ours), (_, theirs)) in found.events.iter().zip(&expected.events) {
                for (i, (ours, theirs)) in ours.iter().zip(theirs).enumerate() {
                    assert_eq!(ours, theirs, "{what}, device {device}, event {i}");
                }
            }
            assert_eq!(found, *expected, "{what}");
        }
        Err(error) => {
            assert!(expected.events.is_empty() && expected.segments.is_empty(), "{error}");
        }
    }
}

#[test]
fn random_snapshots_are_read_back_in_every_protocol_and_style() {
    for seed in 0..40 {
        let mut dice = Dice::new(seed);
        let (plain, value) = random(&mut dice, seed % 3 == 0);
        for protocol in 2..=5 {
            for (share, memoize, late, single, frame) in [
                (true, true, false, false, 0),
                (false, true, false, false, 7),
                (false, false, false, false, 0),
                (true, true, false, true, 0),
                (true, true, false, false, 3),
                (true, true, true, false, 0),
                (false, true, true, false, 0),
            ] {
                let style = Style { protocol, share, memoize, late, single, frame };
                check(&pickle(&value, style), &plain, &format!("seed {seed}, {style:?}"));
            }
        }
        check(json(&value).as_bytes(), &plain, &format!("seed {seed}, JSON"));
    }
}

#[test]
fn an_event_that_is_listed_twice_is_two_events() {
    let event = b"\x8c\x06action\x8c\x05alloc\x8c\x04addrK\x08\x8c\x04sizeK\x01";
    // Device 0: the event, itself again, another like it, itself again. Device 1: it twice.
    let mut bytes = b"\x80\x04}(\x8c\x08segments]\x8c\x0ddevice_traces](](}q\x00(".to_vec();
    bytes.extend(event);
    bytes.extend(b"uh\x00}(");
    bytes.extend(event);
    bytes.extend(b"uh\x00e](h\x00h\x00eeu.");
    let trace = read(&bytes[..], "shared", &ReadOptions::default()).unwrap_or_else(|error| panic!("{error}"));
    let counts: Vec<(u32, usize)> = trace.devices.iter().map(|d| (d.device, d.events.len())).collect();
    assert_eq!(counts, [(0, 4), (1, 2)]);
}
