//! Measures how fast `.gtrace` is written and read, and how small it is.
//!
//! `cargo run --release -p gapless-trace --example gtrace_speed [EVENTS | FILE.gtrace]`
//!
//! Without a file it makes EVENTS events (10 million) that look like a training loop: steps of nested lifetimes
//! with a clock and a few hundred stacks. With a file, its events are repeated until there are a million.
//! The file is read back and compared; a difference ends the program with an error.

use gapless_trace::gtrace::{self, EventBatch, Options, Tables, Writer};
use gapless_trace::stacks::{Frame, FrameId};
use gapless_trace::{
    Action, Bytes, DeviceAddr, DeviceTrace, Event, EventIndex, Events, Micros, StackId, StreamId, Trace,
};
use std::time::{Duration, Instant};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let argument = std::env::args().nth(1);
    let (name, trace) = match argument.as_deref().map(str::parse::<usize>) {
        None => ("synthetic".to_owned(), synthetic(10_000_000)),
        Some(Ok(events)) => ("synthetic".to_owned(), synthetic(events)),
        Some(Err(_)) => {
            let path = argument.unwrap_or_default();
            let trace = gtrace::read(&std::fs::read(&path)?)?;
            (path, repeated(trace, 1_000_000))
        }
    };
    let events: usize = trace.devices.iter().map(|d| d.events.len()).sum();
    let in_memory = events as f64 * 31.0;
    println!("{name}: {events} events, {} stacks", trace.stacks.len() - 1);

    let start = Instant::now();
    let bytes = gtrace::write_trace(&trace, Vec::new(), Options::default())?;
    report("write a trace", start.elapsed(), events, bytes.len(), in_memory);
    let start = Instant::now();
    let read = gtrace::read(&bytes)?;
    report("read it", start.elapsed(), events, bytes.len(), in_memory);
    check(&trace, &read)?;
    drop(read);
    let start = Instant::now();
    let streamed = gtrace::read_from(bytes.as_slice())?;
    report("read it from a stream", start.elapsed(), events, bytes.len(), in_memory);
    check(&trace, &streamed)?;
    drop(streamed);
    let start = Instant::now();
    let blocks = gtrace::Blocks::new(&bytes)?.count();
    println!("{:26} {:>9.1?} for {blocks} blocks", "find all blocks", start.elapsed());
    batches(&trace, events, in_memory)
}

fn check(written: &Trace, read: &Trace) -> Result<(), String> {
    let same = written.devices.len() == read.devices.len()
        && written.devices.iter().zip(&read.devices).all(|(a, b)| a.events == b.events);
    if same { Ok(()) } else { Err("what was read differs from what was written".to_owned()) }
}

/// As a recorder does it: batches of 4096 events into a writer.
fn batches(trace: &Trace, events: usize, in_memory: f64) -> Result<(), Box<dyn std::error::Error>> {
    let tables = Tables { strings: &trace.strings, frames: &trace.frames, stacks: &trace.stacks };
    let mut writer = Writer::new(Vec::new())?;
    let mut spent = Duration::ZERO;
    let mut batch = Vec::with_capacity(4096);
    for device in &trace.devices {
        let mut all = device.events.iter().peekable();
        while all.peek().is_some() {
            batch.clear();
            batch.extend(all.by_ref().take(4096));
            let start = Instant::now();
            writer.append(
                &EventBatch {
                    device: device.device,
                    streams: &device.streams,
                    pools: &device.pools,
                    events: &batch,
                },
                tables,
            )?;
            spent += start.elapsed();
        }
    }
    report("append in batches of 4096", spent, events, writer.finish()?.len(), in_memory);
    Ok(())
}

fn report(what: &str, time: Duration, events: usize, bytes: usize, in_memory: f64) {
    println!(
        "{what:26} {:>9.1?}  {:>6.1} ns/event  {:>7.0} MB/s of columns  {:>6.2} bytes/event  {:>5.2} times smaller",
        time,
        time.as_nanos() as f64 / events as f64,
        in_memory / 1e6 / time.as_secs_f64(),
        bytes as f64 / events as f64,
        in_memory / bytes as f64,
    );
}

/// Steps of 2,000 allocations, each freed in the reverse order with some held longer.
fn synthetic(events: usize) -> Trace {
    let mut trace = Trace::default();
    let file = trace.strings.intern("model.py");
    let stacks: Vec<StackId> = (0..400u32)
        .map(|i| {
            let name = trace.strings.intern(&format!("layer_{i}"));
            let frames: Vec<FrameId> = [(name, i), (file, i / 10), (file, 1)]
                .into_iter()
                .map(|(name, line)| trace.frames.intern(Frame { name, file, line }))
                .collect();
            trace.stacks.intern(&frames)
        })
        .collect();
    let mut device = DeviceTrace::new(0);
    device.streams.push(StreamId(0));
    device.events = Events::with_capacity(events);
    let mut random = 1u64;
    let mut next = |below: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % below
    };
    let mut time = 1_700_000_000_000_000;
    let mut live: Vec<Event> = Vec::new();
    let mut addr = 0x7f00_0000_0000;
    while device.events.len() + 3 <= events {
        let step_is_over = live.len() >= 2_000;
        if step_is_over {
            while live.len() > 40 && device.events.len() + 2 <= events {
                let Some(mut event) = live.pop() else { break };
                time += next(12);
                for action in [Action::FreeRequested, Action::FreeCompleted] {
                    event.action = action;
                    event.time = Micros(time);
                    device.events.push(event);
                }
            }
            addr = 0x7f00_0000_0000 + next(4) * 0x20_0000;
            continue;
        }
        let size = [512, 4096, 65_536, 1 << 20, 6 << 20, 3_000_004][next(6) as usize] + next(3) * 4;
        time += next(40);
        let event = Event {
            action: Action::Alloc,
            addr: DeviceAddr(addr),
            size: Bytes(size),
            time: Micros(time),
            stack: stacks[next(400) as usize],
            ..Event::default()
        };
        addr += size.next_multiple_of(512);
        device.events.push(event);
        live.push(event);
    }
    trace.devices.push(device);
    trace
}

/// The same events over and over, the clock running on.
fn repeated(mut trace: Trace, events: usize) -> Trace {
    for device in &mut trace.devices {
        let one = device.events.clone();
        if one.is_empty() {
            continue;
        }
        let length = one.time(EventIndex(one.len() as u32 - 1)).since(one.time(EventIndex(0)));
        let mut shift = length.0 + 1;
        while device.events.len() < events {
            for mut event in one.iter() {
                event.time.0 += shift;
                device.events.push(event);
            }
            shift += length.0 + 1;
        }
        device.segments.clear();
        device.blocks.clear();
    }
    trace
}
