//! A trace of MiniMalloc's buffers; `gapless-formats` reads their rows.
//!
//! Lifetimes become events in order of time, frees before allocations at the same time: `[lower, upper)` is half-open.
//! Buffers without an offset get addresses of their own, side by side.

use crate::error::{Fault, Problem, wrong};
use crate::options::Limits;
use gapless_formats::minimalloc::Rows;
use gapless_trace::numbers::{plural, verb};
use gapless_trace::{
    Action, Bytes, DeviceAddr, DeviceTrace, Event, Frame, Micros, Note, Source, StreamId, Trace,
};
use std::io::Read;

struct Buffer {
    lower: i64,
    upper: i64,
    size: u64,
    offset: Option<u64>,
    id: gapless_trace::StackId,
}

pub(crate) fn read(input: &mut (dyn Read + Send), format: String, limits: Limits) -> Result<Trace, Fault> {
    let mut rows = Rows::new(input, limits.bytes)?;
    let mut trace = Trace::default();
    let mut buffers = Vec::new();
    let mut with_gaps = 0_u64;
    while let Some(row) = rows.next()? {
        if buffers.len() as u64 * 2 >= limits.events {
            return wrong(row.line, format!("more than {} buffers", limits.events / 2));
        }
        with_gaps += u64::from(!row.gaps.is_empty());
        let Some(name) = trace.strings.try_intern(row.id.as_deref().unwrap_or_default()) else {
            return wrong(row.line, "more than 4 GiB of distinct names");
        };
        // People look for a buffer by its name, so the name stands in the place of a stack.
        let frame = trace.frames.intern(Frame { name, ..Frame::default() });
        let id = if name.0 == 0 { Default::default() } else { trace.stacks.intern(&[frame]) };
        let offset = row.offset.or(row.hint);
        buffers.push(Buffer { lower: row.lower, upper: row.upper, size: row.size, offset, id });
    }
    let line = rows.line();
    if buffers.is_empty() {
        return Err(Box::new(Problem::Line {
            line,
            what: "no buffers after the header: an empty trace".into(),
        }));
    }
    let mut notes = vec![Note {
        code: "no-segments",
        text: "buffers with lifetimes have no segments: reserved memory is not known".into(),
    }];
    let placed = buffers.iter().filter(|b| b.offset.is_some()).count();
    if placed < buffers.len() {
        let apart = place(&mut buffers).map_err(|what| Box::new(Problem::Line { line, what }))?;
        notes.push(Note {
            code: "addresses-made-up",
            text: format!(
                "{apart} of {} without an offset got addresses of their own, side by side",
                plural(buffers.len() as u64, "buffer")
            ),
        });
    }
    if with_gaps > 0 {
        notes.push(Note {
            code: "gaps-left-out",
            text: format!(
                "{} with gaps in the lifetime {} as alive all through",
                plural(with_gaps, "buffer"),
                verb(with_gaps, "counts", "count")
            ),
        });
    }
    let mut device = DeviceTrace::new(0);
    device.streams.push(StreamId(0));
    add_events(&buffers, &mut device);
    trace.devices.push(device);
    trace.source = Source { format, producer: String::new(), torch_rules: false, notes };
    Ok(trace)
}

/// Gives the buffers without an offset addresses past all others; returns their number.
fn place(buffers: &mut [Buffer]) -> Result<usize, String> {
    let past = |at: u64, size: u64| at.checked_add(size).ok_or("the buffers reach past the last address");
    let mut at: u64 = 0;
    for buffer in buffers.iter() {
        if let Some(offset) = buffer.offset {
            at = at.max(past(offset, buffer.size)?);
        }
    }
    let mut count = 0;
    for buffer in buffers.iter_mut().filter(|b| b.offset.is_none()) {
        at = past(at, 511)? / 512 * 512;
        buffer.offset = Some(at);
        at = past(at, buffer.size.max(1))?;
        count += 1;
    }
    Ok(count)
}

fn add_events(buffers: &[Buffer], device: &mut DeviceTrace) {
    // (time, allocation?, buffer): false sorts first, so a free comes before an allocation at its time.
    let mut order: Vec<(i64, bool, u32)> = Vec::with_capacity(buffers.len() * 2);
    for (i, buffer) in buffers.iter().enumerate() {
        order.push((buffer.lower, true, i as u32));
        order.push((buffer.upper, false, i as u32));
    }
    order.sort_unstable();
    let first = order.first().map_or(0, |entry| entry.0);
    for (time, alloc, i) in order {
        let buffer = &buffers[i as usize];
        device.events.push(Event {
            action: if alloc { Action::Alloc } else { Action::FreeCompleted },
            addr: DeviceAddr(buffer.offset.unwrap_or(0)),
            size: Bytes(buffer.size),
            time: Micros(time.wrapping_sub(first.min(0)) as u64),
            stack: buffer.id,
            ..Event::default()
        });
    }
}
