//! MiniMalloc CSV: one buffer a line with `id,lower,upper,size`, in any order of columns, and optionally `alignment`, `gaps`,
//! `offset` or `hint`.
//!
//! Lifetimes become events in order of time, frees before allocations at the same time: `[lower, upper)` is half-open.
//! Where no offset is given the buffers get addresses of their own, side by side.

use crate::csv::{Csv, fields, wrong};
use crate::error::{Fault, Problem};
use crate::options::Limits;
use crate::rmm::bytes;
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
    let mut csv = Csv::new(input, limits.bytes)?;
    let need = |names: &[&str]| match csv.column(names) {
        Some(column) => Ok(column),
        None => csv.wrong(format!("the header has no column \"{}\"", names[0])),
    };
    let lower = need(&["lower", "start", "begin"])?;
    let upper = need(&["upper", "end"])?;
    let size = need(&["size"])?;
    let id = csv.column(&["id", "buffer", "buffer_id", "name"]);
    let offset = csv.column(&["offset", "hint"]);
    let gaps = csv.column(&["gaps"]);
    let mut trace = Trace::default();
    let mut buffers = Vec::new();
    let mut with_gaps = 0_u64;
    loop {
        let columns = csv.columns.len();
        let Some((line, text)) = csv.next()? else { break };
        let row: Vec<&str> = fields(text).take(columns + 1).collect();
        if row.len() != columns {
            return wrong(line, format!("{} fields where the header has {columns}", row.len()));
        }
        let (from, to) = (time(row[lower], line)?, time(row[upper], line)?);
        if from >= to {
            return wrong(
                line,
                format!("the buffer's lifetime [{from}, {to}) is empty: lower must be below upper"),
            );
        }
        if buffers.len() as u64 * 2 >= limits.events {
            return wrong(line, format!("more than {} buffers", limits.events / 2));
        }
        let size = bytes(row[size], line)?;
        // A hint below zero says that there is none.
        let offset = match offset.map(|column| row[column]) {
            None | Some("") => None,
            Some(text) if text.starts_with('-') => None,
            Some(text) => Some(bytes(text, line)?),
        };
        with_gaps += u64::from(gaps.is_some_and(|column| !row[column].is_empty()));
        let name = id.map_or("", |column| row[column]);
        let Some(name) = trace.strings.try_intern(name) else {
            return wrong(line, "more than 4 GiB of distinct names");
        };
        // The name of a buffer is what people look for, so it stands where a stack would.
        let frame = trace.frames.intern(Frame { name, ..Frame::default() });
        let id = if name.0 == 0 { Default::default() } else { trace.stacks.intern(&[frame]) };
        buffers.push(Buffer { lower: from, upper: to, size, offset, id });
    }
    if buffers.is_empty() {
        return Err(Box::new(Problem::Line {
            line: csv.line,
            what: "no buffers after the header: an empty trace".into(),
        }));
    }
    let mut notes = vec![Note {
        code: "no-segments",
        text: "buffers with lifetimes have no segments: reserved memory is not known".into(),
    }];
    let placed = buffers.iter().filter(|b| b.offset.is_some()).count();
    if placed < buffers.len() {
        let apart = place(&mut buffers).map_err(|what| Box::new(Problem::Line { line: csv.line, what }))?;
        notes.push(Note {
            code: "addresses-made-up",
            text: format!(
                "{apart} of {} buffers have no offset; they got addresses of their own, side by side",
                buffers.len()
            ),
        });
    }
    if with_gaps > 0 {
        notes.push(Note {
            code: "gaps-left-out",
            text: format!(
                "{with_gaps} buffer(s) have gaps in their lifetime; they count as alive all through"
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

fn time(text: &str, line: u64) -> Result<i64, Fault> {
    match text.parse() {
        Ok(time) => Ok(time),
        Err(_) => wrong(line, format!("{text:?} is no point in time; whole numbers are")),
    }
}

/// Gives the buffers without an offset addresses past all others; how many those are.
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
