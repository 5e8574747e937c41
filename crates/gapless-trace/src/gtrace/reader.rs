//! From blocks to a [`Trace`]. Everything in a file is checked before it is used, and every length before memory is
//! taken for it; a fault is an error that names block and offset. A file cut short by a kill gives the trace up to its
//! last whole block and a note.

use super::GtraceError;
use super::columns;
use super::encoding::{Cursor, Fault};
use super::layout::{BlockHeader, FILE_HEADER_LEN, HEADER_LEN, Kind, LZ4, MAX_RAW, NO_DEVICE, STORED};
use super::process;
use super::tables;
use super::walk::{Blocks, Tail, after_end, check_file_header, check_header, check_payload, short_tail};
use crate::events::Events;
use crate::numbers::{plural, verb};
use crate::trace::{DeviceTrace, Note, Trace};
use std::io::Read;

/// The memory that a file may ask for: a trace takes at most `floor`, or `factor` times the file if that is more. LZ4
/// packs at most 255 to 1, so without this a megabyte could unpack to ten gigabytes.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub floor: u64,
    pub factor: u64,
}

impl Default for Limits {
    /// A gibibyte is 20 million perfectly regular events; real ones take 4 to 12 bytes each in the file and 31 in
    /// memory.
    fn default() -> Self {
        Limits { floor: 1 << 30, factor: 100 }
    }
}

/// The trace in `bytes`, the content of a `.gtrace` file.
///
/// # Errors
/// When it is not one, is damaged, or makes no sense. A file that ends early is not an error: see [`Trace::source`],
/// notes.
pub fn read(bytes: &[u8]) -> Result<Trace, GtraceError> {
    read_with(bytes, Limits::default())
}

/// [`read`] with other limits.
///
/// # Errors
/// As [`read`].
pub fn read_with(bytes: &[u8], limits: Limits) -> Result<Trace, GtraceError> {
    let mut blocks = Blocks::new(bytes)?;
    let mut builder = Builder::new(limits);
    builder.make_room(blocks.clone(), bytes.len() as u64);
    for block in &mut blocks {
        let block = block?;
        builder.block(&block.header, block.offset, block.payload()?)?;
    }
    Ok(builder.finish(blocks.tail().unwrap_or(Tail::Unfinished)))
}

/// The trace in `input`, block by block: the file itself is never in memory as a whole.
///
/// # Errors
/// As [`read`], and when reading fails.
pub fn read_from(mut input: impl Read) -> Result<Trace, GtraceError> {
    let mut bytes = Vec::new();
    fill(&mut input, &mut bytes, FILE_HEADER_LEN)?;
    check_file_header(&bytes)?;
    let mut builder = Builder::new(Limits::default());
    let mut offset = FILE_HEADER_LEN as u64;
    let tail = loop {
        let block = builder.next_block;
        fill(&mut input, &mut bytes, HEADER_LEN)?;
        let Some(header) = bytes.first_chunk::<HEADER_LEN>() else {
            break short_tail(&bytes, block, offset)?;
        };
        let header = match check_header(header, block, offset) {
            Ok(header) => header,
            Err(error) => {
                if bytes.iter().all(|&b| b == 0) && only_zeros(&mut input)? {
                    break Tail::Torn { block, offset };
                }
                return Err(error);
            }
        };
        let padded = header.block_len() as usize - HEADER_LEN;
        fill(&mut input, &mut bytes, padded)?;
        if bytes.len() < padded {
            break Tail::Torn { block, offset };
        }
        builder.block(&header, offset, check_payload(&header, offset, &bytes)?)?;
        offset += header.block_len();
        if header.kind == Kind::End as u8 {
            fill(&mut input, &mut bytes, 1)?;
            if !bytes.is_empty() {
                return Err(after_end(builder.next_block, offset));
            }
            break Tail::Finished;
        }
    };
    Ok(builder.finish(tail))
}

/// Reads `len` bytes, or fewer if the input ends. Memory grows with the bytes that arrive, not with `len`.
fn fill(input: &mut impl Read, bytes: &mut Vec<u8>, len: usize) -> std::io::Result<()> {
    bytes.clear();
    input.by_ref().take(len as u64).read_to_end(bytes).map(|_| ())
}

fn only_zeros(input: &mut impl Read) -> std::io::Result<bool> {
    let mut buffer = Vec::new();
    loop {
        fill(input, &mut buffer, 1 << 16)?;
        if buffer.is_empty() {
            return Ok(true);
        }
        if buffer.iter().any(|&b| b != 0) {
            return Ok(false);
        }
    }
}

/// Devices are looked up one after the other: a hostile file with more than a process can have would only slow the
/// reader.
const MAX_DEVICES: usize = 1024;

/// The most bytes of an event: 31, and 14 of optional columns, with room to grow.
const EVENT_MEMORY: u64 = 64;

/// A trace that is partly read.
struct Builder {
    trace: Trace,
    /// Beside `trace.devices`: the totals that the final state gives.
    finals: Vec<Option<FinalState>>,
    events: columns::Decoder,
    raw: Vec<u8>,
    limits: Limits,
    next_block: u64,
    /// Bytes of the file so far, and the bytes that they take in memory.
    file: u64,
    memory: u64,
    skipped: u64,
    /// Events to come, by device, if they are known.
    expected: Vec<(u32, u64)>,
}

#[derive(Clone, Copy)]
struct FinalState {
    segments: u64,
    blocks: u64,
}

impl Builder {
    fn new(limits: Limits) -> Builder {
        Builder {
            trace: Trace::default(),
            finals: Vec::new(),
            events: columns::Decoder::default(),
            raw: Vec::new(),
            limits,
            next_block: 0,
            file: 0,
            memory: 0,
            skipped: 0,
            expected: Vec::new(),
        }
    }

    /// Takes the memory for all events at once, if the headers say how many there are: columns that grow by doubling
    /// would be copied several times over. Faults of a block show when it is read.
    fn make_room(&mut self, blocks: Blocks<'_>, file: u64) {
        let mut counts: Vec<(u32, u64)> = Vec::new();
        for block in blocks.flatten().map(|b| b.header).filter(|h| h.kind == Kind::Events as u8) {
            match counts.iter().position(|(device, _)| *device == block.device) {
                Some(at) => counts[at].1 += u64::from(block.count),
                None if counts.len() < MAX_DEVICES => counts.push((block.device, u64::from(block.count))),
                None => {}
            }
        }
        let allowed = self.limits.floor.max(file.saturating_mul(self.limits.factor));
        let total: u64 = counts.iter().map(|(_, count)| count).fold(0, |a, &b| a.saturating_add(b));
        if total.saturating_mul(EVENT_MEMORY) <= allowed {
            self.expected = counts;
        }
    }

    fn block(&mut self, header: &BlockHeader, offset: u64, payload: &[u8]) -> Result<(), GtraceError> {
        let block = header.number;
        self.next_block = block + 1;
        self.file += header.block_len();
        let Some(kind) = Kind::from_u8(header.kind) else {
            if header.kind >= Kind::FIRST_SKIPPABLE {
                self.skipped += 1;
                return Ok(());
            }
            return Err(GtraceError::UnknownKind { block, offset, kind: header.kind });
        };
        let malformed = |what: Fault| GtraceError::Malformed { block, offset, what };
        if header.raw_len > MAX_RAW {
            return Err(GtraceError::TooLarge { block, offset, limit: u64::from(MAX_RAW) });
        }
        let raw_len = u64::from(header.raw_len);
        let count = u64::from(header.count);
        // Every entry of every kind takes at least a byte.
        if count > raw_len {
            return Err(malformed(format!("{count} entries in {raw_len} bytes")));
        }
        // Vectors double as they grow: twice the bytes an entry takes at most.
        self.memory += match kind {
            Kind::Events => count * EVENT_MEMORY,
            Kind::Strings => 2 * raw_len + count * 24,
            Kind::Stacks => 8 * raw_len + count * 24,
            Kind::Source | Kind::Settings | Kind::Process => 32 * raw_len,
            Kind::End => raw_len,
            _ => count * 96,
        };
        let allowed = self.limits.floor.max(self.file.saturating_mul(self.limits.factor));
        if self.memory > allowed {
            return Err(GtraceError::TooLarge { block, offset, limit: allowed });
        }
        let mut raw = std::mem::take(&mut self.raw);
        let content = unpack(header, payload, &mut raw).map_err(malformed)?;
        self.content(kind, header, content).map_err(malformed)?;
        self.raw = raw;
        Ok(())
    }

    fn content(&mut self, kind: Kind, header: &BlockHeader, content: &[u8]) -> Result<(), Fault> {
        let from = &mut Cursor::new(content);
        let count = header.count;
        let belongs_to_device = matches!(
            kind,
            Kind::Streams
                | Kind::Pools
                | Kind::Events
                | Kind::Segments
                | Kind::Blocks
                | Kind::BlockNotes
                | Kind::ExactAddresses
        );
        if belongs_to_device == (header.device == NO_DEVICE) {
            return Err(format!("device {} in a block of kind {kind:?}", header.device));
        }
        let at = if belongs_to_device { self.device(header.device)? } else { 0 };
        let trace = &mut self.trace;
        match kind {
            Kind::Strings => {
                follows("string", header, trace.strings.len())?;
                tables::get_strings(&mut trace.strings, count, from)?;
            }
            Kind::Frames => {
                follows("frame", header, trace.frames.len())?;
                tables::get_frames(&mut trace.frames, &trace.strings, count, from)?;
            }
            Kind::Stacks => {
                follows("stack", header, trace.stacks.len())?;
                tables::get_stacks(&mut trace.stacks, &trace.frames, count, from)?;
            }
            Kind::Streams => {
                follows("stream", header, trace.devices[at].streams.len())?;
                tables::get_streams(&mut trace.devices[at], count, from)?;
            }
            Kind::Pools => {
                follows("pool", header, trace.devices[at].pools.len())?;
                tables::get_pools(&mut trace.devices[at], count, from)?;
            }
            Kind::Events => return self.events(at, header, content),
            Kind::Annotations => {
                follows("annotation", header, trace.annotations.len())?;
                tables::get_annotations(trace, count, from)?;
            }
            Kind::Segments => {
                let total = FinalState { segments: from.varint()?, blocks: from.varint()? };
                if self.finals[at].is_some_and(|t| (t.segments, t.blocks) != (total.segments, total.blocks)) {
                    return Err("a device has two final states".to_owned());
                }
                self.finals[at] = Some(total);
                let device = &mut trace.devices[at];
                follows("segment", header, device.segments.len())?;
                tables::get_segments(device, &trace.stacks, count, from)?;
            }
            Kind::Blocks => {
                let device = &mut trace.devices[at];
                follows("block", header, device.blocks.len())?;
                tables::get_blocks(device, &trace.stacks, count, from)?;
                if device.blocks.len() as u64 > self.finals[at].map_or(0, |total| total.blocks) {
                    return Err("more blocks than the device's segments have".to_owned());
                }
            }
            Kind::BlockNotes => {
                let device = &mut trace.devices[at];
                follows("note", header, device.notes.len())?;
                tables::get_notes(device, &trace.strings, count, from)?;
            }
            Kind::ExactAddresses => {
                let device = &mut trace.devices[at];
                follows("chosen address", header, device.exact.len())?;
                tables::get_exact(device, count, from)?;
            }
            Kind::Host => trace.host = Some(tables::get_host(from)?),
            Kind::Source => trace.source = tables::get_source(from)?,
            Kind::Settings => trace.settings = Some(tables::get_settings(from)?),
            Kind::Process => trace.process = process::get(from)?,
            Kind::End => {
                if header.first != header.number {
                    return Err(format!("it ends {} blocks and comes after {}", header.first, header.number));
                }
                return Ok(());
            }
        }
        from.finish()?;
        if matches!(kind, Kind::Segments | Kind::Blocks) {
            self.check_final_state(at)?;
        }
        Ok(())
    }

    fn events(&mut self, at: usize, header: &BlockHeader, content: &[u8]) -> Result<(), Fault> {
        let trace = &mut self.trace;
        let device = &mut trace.devices[at];
        if self.finals[at].is_some() {
            return Err("events after the device's final state".to_owned());
        }
        follows("event", header, device.events.len())?;
        if device.events.len() + header.count as usize > Events::MAX {
            return Err(format!("more than {} events on one device", Events::MAX));
        }
        let (streams, pools) = (device.streams.len(), device.pools.len());
        let (stacks, strings) = (trace.stacks.len() as u32, trace.strings.len() as u32);
        let events = &mut device.events;
        if events.is_empty() {
            let expected = self.expected.iter().find(|(device, _)| *device == header.device);
            events.reserve(expected.map_or(0, |&(_, count)| count as usize));
        }
        self.events.decode(content, header.count, |event| {
            let known = (event.stream as usize) < streams
                // Sources without pools may leave the table empty: 0 is then the default pool.
                && ((event.pool as usize) < pools || event.pool == 0)
                && event.stack.0 < stacks
                && event.forward_stack.0 < stacks
                && event.compile_context.0 < strings
                && event.user_metadata.0 < strings;
            if !known {
                return Err(format!(
                    "event {} of device {} refers to a stream, pool, stack or string that does not exist",
                    events.len(),
                    header.device
                ));
            }
            events.push(event);
            Ok(())
        })
    }

    /// Once the last segment and block are there, every segment's blocks must be.
    fn check_final_state(&self, at: usize) -> Result<(), Fault> {
        let device = &self.trace.devices[at];
        let Some(total) = self.finals[at] else { return Ok(()) };
        if device.segments.len() as u64 > total.segments {
            return Err("more segments than the final state was to have".to_owned());
        }
        if !self.is_complete(at) {
            return Ok(());
        }
        let fits =
            |s: &crate::trace::Segment| u64::from(s.first_block) + u64::from(s.block_count) <= total.blocks;
        match device.segments.iter().position(|s| !fits(s)) {
            Some(i) => Err(format!("segment {i} of device {} has blocks that are not there", device.device)),
            None => Ok(()),
        }
    }

    fn is_complete(&self, at: usize) -> bool {
        let device = &self.trace.devices[at];
        self.finals[at].is_none_or(|total| {
            (device.segments.len() as u64, device.blocks.len() as u64) == (total.segments, total.blocks)
        })
    }

    fn device(&mut self, device: u32) -> Result<usize, Fault> {
        let devices = &mut self.trace.devices;
        if let Some(at) = devices.iter().position(|d| d.device == device) {
            return Ok(at);
        }
        if devices.len() >= MAX_DEVICES {
            return Err(format!("more than {MAX_DEVICES} devices"));
        }
        devices.push(DeviceTrace { device, ..DeviceTrace::default() });
        self.finals.push(None);
        Ok(devices.len() - 1)
    }

    fn finish(mut self, tail: Tail) -> Trace {
        let mut notes = Vec::new();
        match tail {
            Tail::Finished => {}
            Tail::Unfinished => notes.push(Note {
                code: "gtrace-unfinished",
                text: "the file has no end block: the process was killed or is still writing; everything in the file was read"
                    .to_owned(),
            }),
            Tail::Torn { block, .. } => notes.push(Note {
                code: "gtrace-torn",
                text: format!(
                    "the file ends in the middle of block {block}: the process was killed or is still writing; everything before \
                     it was read"
                ),
            }),
        }
        for at in 0..self.trace.devices.len() {
            if !self.is_complete(at) {
                let device = &mut self.trace.devices[at];
                device.segments.clear();
                device.blocks.clear();
                notes.push(Note {
                    code: "gtrace-final-state-cut",
                    text: format!(
                        "the final segments of device {} are not whole in the file and were left out",
                        device.device
                    ),
                });
            }
        }
        if self.skipped > 0 {
            notes.push(Note {
                code: "gtrace-newer",
                text: format!(
                    "{} of kinds that this build does not know {} left out",
                    plural(self.skipped, "block"),
                    verb(self.skipped, "was", "were")
                ),
            });
        }
        self.trace.source.notes.extend(notes);
        self.trace.devices.sort_by_key(|d| d.device);
        self.trace
    }
}

fn follows(what: &str, header: &BlockHeader, known: usize) -> Result<(), Fault> {
    if header.first == known as u64 {
        Ok(())
    } else {
        Err(format!("it begins with {what} {}, and {known} are known", header.first))
    }
}

/// The content of a block; `raw` holds it if it was packed.
fn unpack<'a>(header: &BlockHeader, payload: &'a [u8], raw: &'a mut Vec<u8>) -> Result<&'a [u8], Fault> {
    match header.codec {
        STORED if header.raw_len == header.payload_len => Ok(payload),
        STORED => Err("its two lengths differ, and it is not packed".to_owned()),
        LZ4 => {
            let len = header.raw_len as usize;
            // LZ4 packs 255 to 1 at most: a larger length is false, and no memory is taken for it.
            if u64::from(header.raw_len) > u64::from(header.payload_len) * 255 {
                return Err(format!("{len} bytes out of {}: LZ4 cannot do that", header.payload_len));
            }
            if raw.len() < len {
                raw.resize(len, 0);
            }
            match lz4_flex::block::decompress_into(payload, &mut raw[..len]) {
                Ok(got) if got == len => Ok(&raw[..len]),
                Ok(got) => Err(format!("it unpacks to {got} bytes instead of {len}")),
                Err(error) => Err(format!("it cannot be unpacked: {error}")),
            }
        }
        other => Err(format!("it is packed in way {other}, which this build does not know")),
    }
}
