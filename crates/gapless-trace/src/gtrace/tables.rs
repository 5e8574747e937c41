//! The payloads of all blocks but events: each entry's layout, both ways, and its invariants.
//!
//! ```text
//!      segment   z address less the one before, v size, v stream, v pool, byte flags (1 small, 2 expandable), v stack,
//!                z first block less the end of the one before, v blocks
//!      block     z address less the end of the one before, v size, z size less requested, byte state, v stack
//!      note      v tick less the one before, z address less the one before, v text
//!      host      v events, v blocks, v held, v in use, v peak held, v peak in use
//! ```

use super::encoding::{Cursor, Fault, put, put_text, zigzag};
use crate::settings::AllocatorSettings;
use crate::stacks::{Frame, FrameId, Frames, StackId, Stacks};
use crate::strings::{StringId, Strings};
use crate::trace::{
    Annotation, Block, BlockNote, BlockState, DeviceTrace, HostMemory, Note, Segment, SizeClass, Source,
    Stage, Trace,
};
use crate::words::{Bytes, DeviceAddr, EventIndex, Micros, PoolId, StreamId, Tick};
use std::collections::BTreeSet;
use std::sync::Mutex;

// ---- strings, frames, stacks ----

pub(super) fn get_strings(strings: &mut Strings, count: u32, from: &mut Cursor<'_>) -> Result<(), Fault> {
    for _ in 0..count {
        let next = strings.len();
        let text = from.text()?;
        match strings.try_intern(text) {
            Some(id) if id.0 as usize == next => {}
            Some(id) => return Err(format!("string {next} is string {} again", id.0)),
            None => return Err("more than 4 GiB of text".to_owned()),
        }
    }
    Ok(())
}

pub(super) fn put_frame(out: &mut Vec<u8>, frame: Frame) {
    put(out, u64::from(frame.name.0));
    put(out, u64::from(frame.file.0));
    put(out, u64::from(frame.line));
}

pub(super) fn get_frames(
    frames: &mut Frames,
    strings: &Strings,
    count: u32,
    from: &mut Cursor<'_>,
) -> Result<(), Fault> {
    for _ in 0..count {
        let next = frames.len();
        let name = string_id(from.varint32()?, strings)?;
        let file = string_id(from.varint32()?, strings)?;
        let id = frames.intern(Frame { name, file, line: from.varint32()? });
        if id.0 as usize != next {
            return Err(format!("frame {next} is frame {} again", id.0));
        }
    }
    Ok(())
}

pub(super) fn put_stack(out: &mut Vec<u8>, stack: &[FrameId]) {
    put(out, stack.len() as u64);
    let mut before = 0;
    for frame in stack {
        put(out, zigzag(u64::from(frame.0).wrapping_sub(before)));
        before = u64::from(frame.0);
    }
}

pub(super) fn get_stacks(
    stacks: &mut Stacks,
    frames: &Frames,
    count: u32,
    from: &mut Cursor<'_>,
) -> Result<(), Fault> {
    let mut stack = Vec::new();
    for _ in 0..count {
        let next = stacks.len();
        stack.clear();
        let depth = from.varint()?;
        if depth > from.len() as u64 {
            return Err(format!("stack {next} has {depth} frames in {} bytes", from.len()));
        }
        let mut frame = 0u64;
        for _ in 0..depth {
            frame = frame.wrapping_add(from.zigzag()?);
            if frame >= frames.len() as u64 {
                return Err(format!("stack {next} has frame {frame} of {}", frames.len()));
            }
            stack.push(FrameId(frame as u32));
        }
        if stacks.total_frames() + stack.len() > u32::MAX as usize {
            return Err("more than 2^32 frames in all stacks together".to_owned());
        }
        let id = stacks.intern(&stack);
        if id.0 as usize != next {
            return Err(format!("stack {next} is stack {} again", id.0));
        }
    }
    Ok(())
}

// ---- streams and pools ----

pub(super) fn put_stream(out: &mut Vec<u8>, stream: StreamId) {
    put(out, stream.0);
}

pub(super) fn get_streams(device: &mut DeviceTrace, count: u32, from: &mut Cursor<'_>) -> Result<(), Fault> {
    few("streams", device.streams.len(), count)?;
    for _ in 0..count {
        device.streams.push(StreamId(from.varint()?));
    }
    Ok(())
}

pub(super) fn put_pool(out: &mut Vec<u8>, pool: PoolId) {
    put(out, pool.0);
    put(out, pool.1);
}

pub(super) fn get_pools(device: &mut DeviceTrace, count: u32, from: &mut Cursor<'_>) -> Result<(), Fault> {
    few("pools", device.pools.len(), count)?;
    for _ in 0..count {
        device.pools.push(PoolId(from.varint()?, from.varint()?));
    }
    Ok(())
}

fn few(what: &str, known: usize, more: u32) -> Result<(), Fault> {
    if known + more as usize > usize::from(u16::MAX) {
        return Err(format!("more than 65,535 {what} on one device"));
    }
    Ok(())
}

// ---- annotations ----

pub(super) fn put_annotation(out: &mut Vec<u8>, annotation: &Annotation, before: Micros) {
    put(out, u64::from(annotation.name.0));
    out.push(match annotation.stage {
        Stage::Start => 0,
        Stage::End => 1,
    });
    put(out, u64::from(annotation.device));
    put(out, zigzag(annotation.time.0.wrapping_sub(before.0)));
}

pub(super) fn get_annotations(trace: &mut Trace, count: u32, from: &mut Cursor<'_>) -> Result<(), Fault> {
    let mut time = 0u64;
    for _ in 0..count {
        let name = string_id(from.varint32()?, &trace.strings)?;
        let stage = if from.bool()? { Stage::End } else { Stage::Start };
        let device = from.varint32()?;
        time = time.wrapping_add(from.zigzag()?);
        trace.annotations.push(Annotation { name, stage, device, time: Micros(time) });
    }
    Ok(())
}

// ---- the final state ----

pub(super) fn put_segment(out: &mut Vec<u8>, segment: &Segment, before: Option<&Segment>) {
    let (addr, next_block) =
        before.map_or((0, 0), |b| (b.addr.0, u64::from(b.first_block) + u64::from(b.block_count)));
    put(out, zigzag(segment.addr.0.wrapping_sub(addr)));
    put(out, segment.size.0);
    put(out, u64::from(segment.stream));
    put(out, u64::from(segment.pool));
    out.push(u8::from(segment.class == SizeClass::Small) | u8::from(segment.expandable) << 1);
    put(out, u64::from(segment.stack.0));
    put(out, zigzag(u64::from(segment.first_block).wrapping_sub(next_block)));
    put(out, u64::from(segment.block_count));
}

pub(super) fn get_segments(
    device: &mut DeviceTrace,
    stacks: &Stacks,
    count: u32,
    from: &mut Cursor<'_>,
) -> Result<(), Fault> {
    let (mut addr, mut next_block) = (0u64, 0u64);
    for _ in 0..count {
        addr = addr.wrapping_add(from.zigzag()?);
        let size = size(from.varint()?, addr)?;
        let stream = table_index("stream", from.varint()?, device.streams.len())?;
        let pool = table_index("pool", from.varint()?, device.pools.len())?;
        let flags = from.byte()?;
        if flags > 3 {
            return Err(format!("{flags} where a segment's flags belong"));
        }
        let stack = stack_id(from.varint32()?, stacks)?;
        let first = next_block.wrapping_add(from.zigzag()?);
        let first_block = u32::try_from(first).map_err(|_| format!("a segment begins at block {first}"))?;
        let block_count = from.varint32()?;
        next_block = first + u64::from(block_count);
        device.segments.push(Segment {
            addr: DeviceAddr(addr),
            size,
            stream,
            pool,
            class: if flags & 1 != 0 { SizeClass::Small } else { SizeClass::Large },
            expandable: flags & 2 != 0,
            stack,
            first_block,
            block_count,
        });
    }
    Ok(())
}

pub(super) fn put_block(out: &mut Vec<u8>, block: &Block, before: Option<&Block>) {
    let end = before.map_or(0, |b| b.addr.0.wrapping_add(b.size.0));
    put(out, zigzag(block.addr.0.wrapping_sub(end)));
    put(out, block.size.0);
    put(out, zigzag(block.size.0.wrapping_sub(block.requested.0)));
    out.push(match block.state {
        BlockState::Live => 0,
        BlockState::Pending => 1,
        BlockState::Free => 2,
    });
    put(out, u64::from(block.stack.0));
}

pub(super) fn get_blocks(
    device: &mut DeviceTrace,
    stacks: &Stacks,
    count: u32,
    from: &mut Cursor<'_>,
) -> Result<(), Fault> {
    let mut end = 0u64;
    for _ in 0..count {
        let addr = end.wrapping_add(from.zigzag()?);
        let size = size(from.varint()?, addr)?;
        let requested = Bytes(size.0.wrapping_sub(from.zigzag()?));
        if requested > Bytes::LIMIT {
            return Err(format!("a block of {} requested bytes: sizes end at 2^60", requested.0));
        }
        let state = match from.byte()? {
            0 => BlockState::Live,
            1 => BlockState::Pending,
            2 => BlockState::Free,
            other => return Err(format!("{other} is not the state of a block")),
        };
        let stack = stack_id(from.varint32()?, stacks)?;
        end = addr + size.0;
        device.blocks.push(Block { addr: DeviceAddr(addr), size, requested, state, stack });
    }
    Ok(())
}

// ---- notes on blocks, pinned host memory ----

pub(super) fn put_note(out: &mut Vec<u8>, note: &BlockNote, before: Option<&BlockNote>) {
    put(out, u64::from(note.tick.0.wrapping_sub(before.map_or(0, |b| b.tick.0))));
    put(out, zigzag(note.addr.0.wrapping_sub(before.map_or(0, |b| b.addr.0))));
    put(out, u64::from(note.text.0));
}

pub(super) fn get_notes(
    device: &mut DeviceTrace,
    strings: &Strings,
    count: u32,
    from: &mut Cursor<'_>,
) -> Result<(), Fault> {
    let (mut tick, mut addr) = (0u32, 0u64);
    for _ in 0..count {
        let later = from.varint32()?;
        tick = tick.checked_add(later).ok_or("a note after more than 2^32 events")?;
        if tick as usize > device.events.len() {
            return Err(format!("a note after {tick} of {} events", device.events.len()));
        }
        addr = addr.wrapping_add(from.zigzag()?);
        let text = string_id(from.varint32()?, strings)?;
        device.notes.push(BlockNote { tick: Tick(tick), addr: DeviceAddr(addr), text });
    }
    Ok(())
}

pub(super) fn put_exact(out: &mut Vec<u8>, event: EventIndex, before: Option<EventIndex>) {
    put(out, u64::from(event.0 - before.map_or(0, |b| b.0)));
}

pub(super) fn get_exact(device: &mut DeviceTrace, count: u32, from: &mut Cursor<'_>) -> Result<(), Fault> {
    let mut event = 0u32;
    for _ in 0..count {
        let later = from.varint32()?;
        event = event.checked_add(later).ok_or("a chosen address of event 2^32 or later")?;
        if event as usize >= device.events.len() {
            return Err(format!("a chosen address of event {event} of {}", device.events.len()));
        }
        device.exact.push(EventIndex(event));
    }
    Ok(())
}

pub(super) fn put_host(out: &mut Vec<u8>, host: &HostMemory) {
    for value in [host.events, host.blocks, host.held.0, host.in_use.0, host.peak_held.0, host.peak_in_use.0]
    {
        put(out, value);
    }
}

pub(super) fn get_host(from: &mut Cursor<'_>) -> Result<HostMemory, Fault> {
    Ok(HostMemory {
        events: from.varint()?,
        blocks: from.varint()?,
        held: Bytes(from.varint()?),
        in_use: Bytes(from.varint()?),
        peak_held: Bytes(from.varint()?),
        peak_in_use: Bytes(from.varint()?),
    })
}

// ---- source and settings ----

pub(super) fn put_source(out: &mut Vec<u8>, source: &Source) {
    put_text(out, &source.format);
    put_text(out, &source.producer);
    out.push(u8::from(source.torch_rules));
    put(out, source.notes.len() as u64);
    for note in &source.notes {
        put_text(out, note.code);
        put_text(out, &note.text);
    }
}

pub(super) fn get_source(from: &mut Cursor<'_>) -> Result<Source, Fault> {
    let mut source = Source {
        format: from.text()?.to_owned(),
        producer: from.text()?.to_owned(),
        torch_rules: from.bool()?,
        notes: Vec::new(),
    };
    for _ in 0..from.varint()? {
        let (code, text) = (from.text()?, from.text()?);
        source.notes.push(match note_code(code) {
            Some(code) => Note { code, text: text.to_owned() },
            None => Note { code: "note", text: format!("{code}: {text}") },
        });
    }
    Ok(source)
}

/// The code of a note as a word of the program. Codes are few and come from readers, so each distinct one is kept once
/// for the life of the process; the bounds keep a hostile file from using that up.
fn note_code(code: &str) -> Option<&'static str> {
    static KNOWN: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    let mut known = KNOWN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if let Some(&known) = known.get(code) {
        return Some(known);
    }
    let is_word = code.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
    if !is_word || code.len() > 64 || known.len() >= 1024 {
        return None;
    }
    let word: &'static str = Box::leak(code.to_owned().into_boxed_str());
    known.insert(word);
    Some(word)
}

pub(super) fn put_settings(out: &mut Vec<u8>, settings: &AllocatorSettings) {
    put_text(out, &settings.conf);
    put(out, settings.max_split_size.map_or(0, |size| size.0.saturating_add(1)));
    out.extend_from_slice(&settings.garbage_collection_threshold.to_bits().to_le_bytes());
    out.push(u8::from(settings.expandable_segments));
    for &divisions in &settings.roundup_power2_divisions {
        put(out, u64::from(divisions));
    }
    put(out, settings.other.len() as u64);
    for (name, value) in &settings.other {
        put_text(out, name);
        put_text(out, value);
    }
}

pub(super) fn get_settings(from: &mut Cursor<'_>) -> Result<AllocatorSettings, Fault> {
    let mut settings = AllocatorSettings {
        conf: from.text()?.to_owned(),
        max_split_size: from.varint()?.checked_sub(1).map(Bytes),
        garbage_collection_threshold: f64::from_bits(u64::from_le_bytes(from.array()?)),
        expandable_segments: from.bool()?,
        ..AllocatorSettings::default()
    };
    for divisions in &mut settings.roundup_power2_divisions {
        *divisions = from.varint32()?;
    }
    for _ in 0..from.varint()? {
        settings.other.push((from.text()?.to_owned(), from.text()?.to_owned()));
    }
    Ok(settings)
}

// ---- checks ----

pub(super) fn string_id(id: u32, strings: &Strings) -> Result<StringId, Fault> {
    if id as usize >= strings.len() {
        return Err(format!("string {id} of {}", strings.len()));
    }
    Ok(StringId(id))
}

pub(super) fn stack_id(id: u32, stacks: &Stacks) -> Result<StackId, Fault> {
    if id as usize >= stacks.len() {
        return Err(format!("stack {id} of {}", stacks.len()));
    }
    Ok(StackId(id))
}

pub(super) fn table_index(what: &str, index: u64, known: usize) -> Result<u16, Fault> {
    if index >= known as u64 {
        return Err(format!("{what} {index} of {known}"));
    }
    Ok(index as u16)
}

fn size(size: u64, addr: u64) -> Result<Bytes, Fault> {
    if size > Bytes::LIMIT.0 || addr.checked_add(size).is_none() {
        return Err(format!("{size} bytes at {addr:#x}: sizes end at 2^60, addresses at 2^64"));
    }
    Ok(Bytes(size))
}
