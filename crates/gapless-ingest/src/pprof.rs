//! The memory of JAX's devices at one moment: `jax.profiler.device_memory_profile()`, a profile of pprof.
//!
//! A sample is a number of buffers of one place in the program. Addresses are made up, and nothing is freed: the trace
//! shows what lived. Compiled programs, which are no buffers, are a module of their own.

use crate::error::{Fault, Problem};
use crate::options::Limits;
use gapless_formats::pprof::{self, Profile, Sample};
use gapless_trace::block_notes::MODULE;
use gapless_trace::stacks::Frame;
use gapless_trace::{
    Action, Bytes, DeviceAddr, DeviceTrace, Event, Note, Source, StackId, StreamId, StringId, Trace,
};
use std::io::Read;

/// A sample of more buffers is one block.
const APART: u64 = 1 << 14;

pub(crate) fn read(input: &mut (dyn Read + Send), format: String, limits: Limits) -> Result<Trace, Fault> {
    let mut bytes = Vec::new();
    let limit = limits.bytes.min(1 << 31);
    let read = input.take(limit).read_to_end(&mut bytes);
    read.map_err(|source| Box::new(Problem::Io { offset: bytes.len() as u64, source }))?;
    let profile = pprof::read(bytes)
        .map_err(|problem| Box::new(Problem::Malformed { offset: 0, what: problem.to_string() }))?;
    let (Some(count), Some(space)) = (profile.value("allocations"), profile.value("space")) else {
        return Err(Box::new(Problem::NotATrace {
            looks_like: format!("a profile of pprof with {}", profile.values.join(", ")),
            help: "give one of jax.profiler.save_device_memory_profile(PATH), which has bytes of buffers",
        }));
    };
    let mut trace = Trace::default();
    let executables = trace.strings.intern(&format!("{MODULE}compiled programs"));
    for sample in &profile.samples {
        let [count, space] = [count, space].map(|at| sample.values.get(at).copied().unwrap_or(0));
        let (Ok(count), Ok(space)) = (u64::try_from(count), u64::try_from(space)) else {
            return Err(Box::new(Problem::Malformed {
                offset: 0,
                what: "a sample of less than nothing".into(),
            }));
        };
        if space > Bytes::LIMIT.0 {
            let what = format!("a sample of {space} bytes: a size is at most 2^60");
            return Err(Box::new(Problem::Malformed { offset: 0, what }));
        }
        let label =
            |name: &str| sample.labels.iter().find(|(key, _)| key == name).map_or("", |(_, value)| value);
        let module = if label("kind") == "executable" { executables } else { StringId(0) };
        let stack = stack(&mut trace, &profile, sample);
        let device = device(&mut trace, label("device"));
        let blocks = if (1..=APART).contains(&count) { count } else { 1 };
        add(device, space, blocks, stack, module, limits)?;
    }
    if trace.devices.is_empty() {
        return Err(Box::new(Problem::EmptyTrace));
    }
    let text = "what lived at one moment: neither peaks nor what the allocator holds are known";
    let notes = vec![Note { code: "one-moment", text: text.to_owned() }];
    trace.source = Source { format, producer: "JAX".to_owned(), torch_rules: false, notes };
    Ok(trace)
}

/// The device that a label ends with the number of: `cuda:1`, `TFRT_CPU_0`.
fn device<'t>(trace: &'t mut Trace, label: &str) -> &'t mut DeviceTrace {
    let digits = label.len() - label.bytes().rev().take_while(u8::is_ascii_digit).count();
    let number = label[digits..].parse().unwrap_or(0);
    let at = trace.devices.partition_point(|device| device.device < number);
    if trace.devices.get(at).is_none_or(|device| device.device != number) {
        let mut new = DeviceTrace::new(number);
        new.streams.push(StreamId(0));
        trace.devices.insert(at, new);
    }
    &mut trace.devices[at]
}

fn stack(trace: &mut Trace, profile: &Profile, sample: &Sample) -> StackId {
    let mut frames = Vec::new();
    for line in profile.stack(sample) {
        let [Some(name), Some(file)] =
            [&line.function, &line.file].map(|text| trace.strings.try_intern(text))
        else {
            continue;
        };
        frames.push(trace.frames.intern(Frame { name, file, line: u32::try_from(line.line).unwrap_or(0) }));
    }
    trace.stacks.intern(&frames)
}

/// Blocks of a sample, as large as each other but for the last.
fn add(
    device: &mut DeviceTrace,
    space: u64,
    blocks: u64,
    stack: StackId,
    user_metadata: StringId,
    limits: Limits,
) -> Result<(), Fault> {
    let each = space / blocks;
    for at in 0..blocks {
        let size = if at + 1 == blocks { space - each * (blocks - 1) } else { each };
        if size == 0 {
            continue;
        }
        let last = device.events.indices().next_back().map(|last| device.events.get(last));
        let addr = last.map_or(1 << 20, |last| (last.addr.0 + last.size.0).next_multiple_of(512));
        if device.events.len() as u64 >= limits.events || addr > 1 << 62 {
            let limit = limits.events;
            return Err(Box::new(Problem::TooMany { offset: 0, what: "blocks", limit }));
        }
        let (addr, size) = (DeviceAddr(addr), Bytes(size));
        device.events.push(Event {
            action: Action::Alloc,
            addr,
            size,
            stack,
            user_metadata,
            ..Event::default()
        });
    }
    Ok(())
}
