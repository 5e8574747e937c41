//! Writing: blocks go out as they are appended, one write call each; nothing is held back. Small enough to live inside
//! a training process: no allocation once its buffers have grown, no thread, no clock.
//!
//! Give each batch a few thousand events: a block costs 64 bytes and about 5 us before its first event.

use super::GtraceError;
use super::columns::{Encoder, MaxIds};
use super::encoding::{put, put_text};
use super::layout::{
    BlockHeader, END_MAGIC, HEADER_LEN, Kind, LZ4, MAGIC, MAX_RAW, NO_DEVICE, STORED, VERSION, checksum,
};
use super::process;
use super::tables::{
    put_annotation, put_block, put_exact, put_frame, put_host, put_note, put_pool, put_segment, put_settings,
    put_source, put_stack, put_stream,
};
use crate::events::{Event, Events};
use crate::settings::AllocatorSettings;
use crate::stacks::{FrameId, Frames, StackId, Stacks};
use crate::strings::{StringId, Strings};
use crate::trace::{Annotation, Block, BlockNote, Process, Segment, Source, Trace};
use crate::words::{EventIndex, Micros, PoolId, StreamId};
use lz4_flex::block::{CompressTable, compress_into_with_table, get_maximum_output_size};
use std::io::Write;

/// Settings of a writer.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Events in a block, at most. Larger ones pack no better (measured: LZ4 looks back 64 KiB), smaller ones a little
    /// worse.
    pub block_events: usize,
}

impl Default for Options {
    fn default() -> Self {
        Options { block_events: 1 << 16 }
    }
}

/// The tables that events refer to, so far. Entries that were written once never change.
#[derive(Clone, Copy, Debug)]
pub struct Tables<'a> {
    pub strings: &'a Strings,
    pub frames: &'a Frames,
    pub stacks: &'a Stacks,
}

/// Events of one device, in order, after those of the batches before.
#[derive(Clone, Copy, Debug)]
pub struct EventBatch<'a> {
    pub device: u32,
    /// The device's streams so far; events hold indices into this.
    pub streams: &'a [StreamId],
    /// The device's pools so far.
    pub pools: &'a [PoolId],
    pub events: &'a [Event],
}

/// Appends to a `.gtrace` file.
///
/// Invariant: after every call that returned `Ok`, the bytes written so far are a readable file of everything
/// appended.
#[derive(Debug)]
pub struct Writer<W: Write> {
    out: W,
    options: Options,
    encoder: Encoder,
    raw: Vec<u8>,
    /// Header and payload of the block that is being written.
    block: Vec<u8>,
    packer: Packer,
    offset: u64,
    number: u64,
    strings: usize,
    frames: usize,
    stacks: usize,
    annotations: usize,
    devices: Vec<Written>,
    /// The index for the end block; `None` once it would be too long to keep in memory.
    index: Option<Vec<u8>>,
    poisoned: bool,
}

/// LZ4's table, kept between blocks. Always the large one: the choice shows in the bytes, and the bytes of a block must
/// not depend on the blocks before it.
struct Packer(CompressTable);

impl std::fmt::Debug for Packer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Packer")
    }
}

/// The part of a device that is in the file.
#[derive(Clone, Copy, Debug, Default)]
struct Written {
    device: u32,
    streams: usize,
    pools: usize,
    events: usize,
    notes: usize,
    finished: bool,
}

/// Blocks of table entries end after this many bytes.
const TABLE_BLOCK: usize = 1 << 18;
/// The index stops being kept at this many bytes: 65,536 blocks.
const MAX_INDEX: usize = 2 << 20;

impl<W: Write> Writer<W> {
    /// Begins a file.
    ///
    /// # Errors
    /// When writing fails.
    pub fn new(out: W) -> Result<Writer<W>, GtraceError> {
        Writer::with_options(out, Options::default())
    }

    /// # Errors
    /// When writing fails.
    pub fn with_options(mut out: W, options: Options) -> Result<Writer<W>, GtraceError> {
        let mut front = [0; 8];
        front[..6].copy_from_slice(&MAGIC);
        front[6..].copy_from_slice(&VERSION.to_le_bytes());
        out.write_all(&front)?;
        Ok(Writer {
            out,
            // At 64 bytes an event at most, the largest block stays below the limit of readers.
            options: Options { block_events: options.block_events.clamp(1, MAX_RAW as usize / 128) },
            encoder: Encoder::default(),
            raw: Vec::new(),
            block: Vec::new(),
            packer: Packer(CompressTable::large()),
            offset: front.len() as u64,
            number: 0,
            // Id 0 of both is built in and not written.
            strings: 1,
            frames: 0,
            stacks: 1,
            annotations: 0,
            devices: Vec::new(),
            index: Some(Vec::new()),
            poisoned: false,
        })
    }

    /// Appends events, after the entries that they refer to and that are not in the file yet.
    ///
    /// # Errors
    /// When writing fails, or an event refers to something that `batch` and `tables` do not have; in that
    /// case nothing of the events' block was written, and other batches can still be.
    pub fn append(&mut self, batch: &EventBatch<'_>, tables: Tables<'_>) -> Result<(), GtraceError> {
        self.tables(tables)?;
        let at = self.device(batch.device, batch.streams, batch.pools)?;
        for events in batch.events.chunks(self.options.block_events) {
            self.events(at, events.len(), events.iter().copied(), tables, batch.streams, batch.pools)?;
        }
        Ok(())
    }

    /// Appends named scopes.
    ///
    /// # Errors
    /// When writing fails, or a name is not in `tables`.
    pub fn annotations(&mut self, annotations: &[Annotation], tables: Tables<'_>) -> Result<(), GtraceError> {
        self.tables(tables)?;
        if annotations.iter().any(|a| a.name.0 as usize >= tables.strings.len()) {
            return Err(unwritable("an annotation whose name is not in the strings"));
        }
        let mut at = 0;
        while at < annotations.len() {
            let (start, mut before) = (at, Micros(0));
            while at < annotations.len() && self.raw.len() < TABLE_BLOCK {
                put_annotation(&mut self.raw, &annotations[at], before);
                before = annotations[at].time;
                at += 1;
            }
            self.emit(Kind::Annotations, NO_DEVICE, (self.annotations + start) as u64, at - start, 0)?;
        }
        self.annotations += annotations.len();
        Ok(())
    }

    /// Writes the source of the trace; the last one counts.
    ///
    /// # Errors
    /// When writing fails.
    pub fn source(&mut self, source: &Source) -> Result<(), GtraceError> {
        self.check()?;
        put_source(&mut self.raw, source);
        self.emit(Kind::Source, NO_DEVICE, 0, 1, 0)
    }

    /// Writes the settings of the allocator; the last one counts.
    ///
    /// # Errors
    /// When writing fails.
    pub fn settings(&mut self, settings: &AllocatorSettings) -> Result<(), GtraceError> {
        self.check()?;
        put_settings(&mut self.raw, settings);
        self.emit(Kind::Settings, NO_DEVICE, 0, 1, 0)
    }

    /// Writes the process that was recorded; the last one counts.
    ///
    /// # Errors
    /// When writing fails.
    pub fn process(&mut self, process: &Process) -> Result<(), GtraceError> {
        self.check()?;
        let count = process::put(&mut self.raw, process);
        self.emit(Kind::Process, NO_DEVICE, 0, count, 0)
    }

    /// Appends a device's heap at the end. No events of that device may follow.
    ///
    /// # Errors
    /// When writing fails, or the segments' blocks are not in `blocks`.
    pub fn final_state(
        &mut self,
        batch: &EventBatch<'_>,
        segments: &[Segment],
        blocks: &[Block],
        tables: Tables<'_>,
    ) -> Result<(), GtraceError> {
        self.append(batch, tables)?;
        let at = self.device(batch.device, batch.streams, batch.pools)?;
        let known_stack = |stack: StackId| (stack.0 as usize) < tables.stacks.len();
        let sound = segments.iter().all(|s| {
            (s.first_block as usize)
                .checked_add(s.block_count as usize)
                .is_some_and(|end| end <= blocks.len())
                && (s.stream as usize) < batch.streams.len()
                && (s.pool as usize) < batch.pools.len()
                && s.addr.0.checked_add(s.size.0).is_some()
                && s.size <= crate::words::Bytes::LIMIT
                && known_stack(s.stack)
        }) && blocks.iter().all(|b| {
            b.addr.0.checked_add(b.size.0).is_some()
                && b.size.max(b.requested) <= crate::words::Bytes::LIMIT
                && known_stack(b.stack)
        });
        if !sound {
            return Err(unwritable(
                "a final state that refers to streams, pools, stacks or blocks that are not there",
            ));
        }
        self.devices[at].finished = true;
        let mut next = 0;
        loop {
            let start = next;
            put(&mut self.raw, segments.len() as u64);
            put(&mut self.raw, blocks.len() as u64);
            while next < segments.len() && self.raw.len() < TABLE_BLOCK {
                let before = (next > start).then(|| &segments[next - 1]);
                put_segment(&mut self.raw, &segments[next], before);
                next += 1;
            }
            self.emit(Kind::Segments, batch.device, start as u64, next - start, 0)?;
            if next == segments.len() {
                break;
            }
        }
        next = 0;
        while next < blocks.len() {
            let start = next;
            while next < blocks.len() && self.raw.len() < TABLE_BLOCK {
                let before = (next > start).then(|| &blocks[next - 1]);
                put_block(&mut self.raw, &blocks[next], before);
                next += 1;
            }
            self.emit(Kind::Blocks, batch.device, start as u64, next - start, 0)?;
        }
        Ok(())
    }

    /// Appends notes on blocks of a device, in the order of ticks, after events that are not in the file yet.
    ///
    /// # Errors
    /// When writing fails, or a note's text is not in `tables`, or the notes are not in order.
    pub fn block_notes(
        &mut self,
        batch: &EventBatch<'_>,
        notes: &[BlockNote],
        tables: Tables<'_>,
    ) -> Result<(), GtraceError> {
        self.append(batch, tables)?;
        let at = self.device(batch.device, batch.streams, batch.pools)?;
        self.notes(at, notes, tables)
    }

    /// Appends notes on blocks of a device, in the order of ticks; its events must be in the file.
    ///
    /// # Errors
    /// When writing fails, or a note's text is not in `tables`, or the notes are not in order.
    fn notes(&mut self, at: usize, notes: &[BlockNote], tables: Tables<'_>) -> Result<(), GtraceError> {
        self.check()?;
        let written = self.devices[at];
        let sound = notes.windows(2).all(|pair| pair[0].tick <= pair[1].tick)
            && notes.last().is_none_or(|note| note.tick.0 as usize <= written.events)
            && notes.iter().all(|note| (note.text.0 as usize) < tables.strings.len());
        if !sound {
            return Err(unwritable("notes that are out of order, or without their text"));
        }
        let mut next = 0;
        while next < notes.len() {
            let start = next;
            while next < notes.len() && self.raw.len() < TABLE_BLOCK {
                put_note(&mut self.raw, &notes[next], (next > start).then(|| &notes[next - 1]));
                next += 1;
            }
            self.emit(Kind::BlockNotes, written.device, (written.notes + start) as u64, next - start, 0)?;
        }
        self.devices[at].notes += notes.len();
        Ok(())
    }

    /// Appends the allocations of a device at chosen addresses, in order; its events must be in the file.
    ///
    /// # Errors
    /// When writing fails, or they are not in order.
    fn exact(&mut self, at: usize, exact: &[EventIndex]) -> Result<(), GtraceError> {
        self.check()?;
        let written = self.devices[at];
        let sound = exact.windows(2).all(|pair| pair[0] <= pair[1])
            && exact.last().is_none_or(|event| (event.0 as usize) < written.events);
        if !sound {
            return Err(unwritable("chosen addresses that are out of order, or without their events"));
        }
        let mut next = 0;
        while next < exact.len() {
            let start = next;
            while next < exact.len() && self.raw.len() < TABLE_BLOCK {
                put_exact(&mut self.raw, exact[next], (next > start).then(|| exact[next - 1]));
                next += 1;
            }
            self.emit(Kind::ExactAddresses, written.device, start as u64, next - start, 0)?;
        }
        Ok(())
    }

    /// Flushes the output. The writer itself holds nothing back.
    ///
    /// # Errors
    /// When that fails.
    pub fn flush(&mut self) -> Result<(), GtraceError> {
        Ok(self.out.flush()?)
    }

    /// Bytes written so far.
    #[must_use]
    pub fn bytes_written(&self) -> u64 {
        self.offset
    }

    /// Ends the file with an index of its blocks and flushes.
    ///
    /// # Errors
    /// When writing fails.
    pub fn finish(mut self) -> Result<W, GtraceError> {
        self.check()?;
        let index = self.index.take().unwrap_or_default();
        let count = index.len() / super::layout::END_ENTRY_LEN;
        self.raw = index;
        self.raw.extend_from_slice(&self.offset.to_le_bytes());
        self.raw.extend_from_slice(&END_MAGIC);
        self.emit(Kind::End, NO_DEVICE, self.number, count, 0)?;
        self.out.flush()?;
        Ok(self.out)
    }

    fn check(&mut self) -> Result<(), GtraceError> {
        self.raw.clear();
        if self.poisoned { Err(GtraceError::Poisoned) } else { Ok(()) }
    }

    /// Writes the strings, frames and stacks that are new.
    fn tables(&mut self, tables: Tables<'_>) -> Result<(), GtraceError> {
        self.check()?;
        while self.strings < tables.strings.len() {
            let start = self.strings;
            let mut next = start;
            while next < tables.strings.len() && self.raw.len() < TABLE_BLOCK {
                put_text(&mut self.raw, tables.strings.get(StringId(next as u32)));
                next += 1;
            }
            self.emit(Kind::Strings, NO_DEVICE, start as u64, next - start, 0)?;
            self.strings = next;
        }
        while self.frames < tables.frames.len() {
            let start = self.frames;
            let mut next = start;
            while next < tables.frames.len() && self.raw.len() < TABLE_BLOCK {
                put_frame(&mut self.raw, tables.frames.get(FrameId(next as u32)));
                next += 1;
            }
            self.emit(Kind::Frames, NO_DEVICE, start as u64, next - start, 0)?;
            self.frames = next;
        }
        while self.stacks < tables.stacks.len() {
            let start = self.stacks;
            let mut next = start;
            while next < tables.stacks.len() && self.raw.len() < TABLE_BLOCK {
                put_stack(&mut self.raw, tables.stacks.get(StackId(next as u32)));
                next += 1;
            }
            self.emit(Kind::Stacks, NO_DEVICE, start as u64, next - start, 0)?;
            self.stacks = next;
        }
        Ok(())
    }

    /// The device's place in `self.devices`, after writing its new streams and pools. The first block of a device is
    /// its streams, even without any: so the device is there in the reader's trace.
    fn device(&mut self, device: u32, streams: &[StreamId], pools: &[PoolId]) -> Result<usize, GtraceError> {
        if device == NO_DEVICE || streams.len().max(pools.len()) > usize::from(u16::MAX) {
            return Err(unwritable(
                "a device with number 2^32 - 1, or with more than 65,535 streams or pools",
            ));
        }
        let (at, new) = match self.devices.iter().position(|d| d.device == device) {
            Some(at) => (at, false),
            None => {
                self.devices.push(Written { device, ..Written::default() });
                (self.devices.len() - 1, true)
            }
        };
        let written = self.devices[at];
        if new || streams.len() > written.streams {
            let more = streams.get(written.streams..).unwrap_or_default();
            more.iter().for_each(|&stream| put_stream(&mut self.raw, stream));
            self.emit(Kind::Streams, device, written.streams as u64, more.len(), 0)?;
            self.devices[at].streams = streams.len();
        }
        if pools.len() > written.pools {
            let more = &pools[written.pools..];
            more.iter().for_each(|&pool| put_pool(&mut self.raw, pool));
            self.emit(Kind::Pools, device, written.pools as u64, more.len(), 0)?;
            self.devices[at].pools = pools.len();
        }
        Ok(at)
    }

    fn events(
        &mut self,
        at: usize,
        count: usize,
        events: impl Iterator<Item = Event> + Clone,
        tables: Tables<'_>,
        streams: &[StreamId],
        pools: &[PoolId],
    ) -> Result<(), GtraceError> {
        self.check()?;
        let written = self.devices[at];
        if written.finished || written.events + count > Events::MAX {
            return Err(unwritable("events after the final state of their device, or more than 2^32"));
        }
        let time = events.clone().next().map_or(0, |event| event.time.0);
        let encoded = self.encoder.encode(events, &mut self.raw);
        let max = match encoded {
            Ok(max) => max,
            Err(fault) => return Err(GtraceError::Unwritable(fault)),
        };
        let MaxIds { stream, pool, stack, string } = max;
        if stream as usize >= streams.len()
            || (pool as usize >= pools.len() && pool > 0)
            || stack as usize >= tables.stacks.len()
            || string as usize >= tables.strings.len()
        {
            return Err(unwritable(
                "events that refer to a stream, pool, stack or string that does not exist",
            ));
        }
        self.emit(Kind::Events, written.device, written.events as u64, count, time)?;
        self.devices[at].events += count;
        Ok(())
    }

    /// Writes `self.raw` as one block and empties it.
    fn emit(
        &mut self,
        kind: Kind,
        device: u32,
        first: u64,
        count: usize,
        time: u64,
    ) -> Result<(), GtraceError> {
        if self.raw.len() > MAX_RAW as usize {
            self.raw.clear();
            return Err(unwritable("a single entry of more than 64 MiB"));
        }
        let raw_len = self.raw.len();
        self.block.resize(HEADER_LEN + get_maximum_output_size(raw_len).max(raw_len + 8), 0);
        // The end block stays as it is, so that its last bytes are the last of the file and can be looked up there.
        let packed = if kind == Kind::End {
            None
        } else {
            compress_into_with_table(&self.raw, &mut self.block[HEADER_LEN..], &mut self.packer.0)
                .ok()
                .filter(|&len| len < raw_len)
        };
        let payload_len = packed.unwrap_or(raw_len);
        if packed.is_none() {
            self.block[HEADER_LEN..HEADER_LEN + raw_len].copy_from_slice(&self.raw);
        }
        let end = HEADER_LEN + payload_len.next_multiple_of(8);
        self.block.resize(end, 0);
        self.block[HEADER_LEN + payload_len..].fill(0);
        let header = BlockHeader {
            kind: kind as u8,
            codec: if packed.is_some() { LZ4 } else { STORED },
            payload_len: payload_len as u32,
            raw_len: raw_len as u32,
            count: count as u32,
            device,
            first,
            number: self.number,
            time,
            payload_sum: checksum(&self.block[HEADER_LEN..]),
        };
        self.block[..HEADER_LEN].copy_from_slice(&header.encode());
        self.raw.clear();
        if let Err(error) = self.out.write_all(&self.block) {
            self.poisoned = true;
            return Err(error.into());
        }
        self.add_to_index(&header);
        self.number += 1;
        self.offset += end as u64;
        Ok(())
    }

    fn add_to_index(&mut self, header: &BlockHeader) {
        let Some(index) = &mut self.index else { return };
        index.extend_from_slice(&self.offset.to_le_bytes());
        index.extend_from_slice(&header.first.to_le_bytes());
        index.extend_from_slice(&header.count.to_le_bytes());
        index.extend_from_slice(&header.device.to_le_bytes());
        index.extend_from_slice(&u64::from(header.kind).to_le_bytes());
        if index.len() >= MAX_INDEX {
            self.index = None;
        }
    }
}

/// Writes a whole trace and ends the file.
///
/// # Errors
/// When writing fails or the trace contradicts itself (ids that do not exist, sizes past 2^60).
pub fn write_trace<W: Write>(trace: &Trace, out: W, options: Options) -> Result<W, GtraceError> {
    if trace.devices.windows(2).any(|pair| pair[0].device >= pair[1].device) {
        return Err(unwritable("devices that are not in order of their numbers"));
    }
    let mut writer = Writer::with_options(out, options)?;
    let tables = Tables { strings: &trace.strings, frames: &trace.frames, stacks: &trace.stacks };
    writer.source(&trace.source)?;
    if let Some(settings) = &trace.settings {
        writer.settings(settings)?;
    }
    if let Some(host) = &trace.host {
        put_host(&mut writer.raw, host);
        writer.emit(Kind::Host, NO_DEVICE, 0, 1, 0)?;
    }
    if trace.process.is_known() {
        writer.process(&trace.process)?;
    }
    writer.annotations(&trace.annotations, tables)?;
    for device in &trace.devices {
        let (streams, pools) = (&device.streams, &device.pools);
        let at = writer.device(device.device, streams, pools)?;
        let events = &device.events;
        let mut next = 0;
        while next < events.len() {
            let count = (events.len() - next).min(writer.options.block_events);
            let range = next as u32..(next + count) as u32;
            let chunk = range.map(|i| events.get(EventIndex(i)));
            writer.events(at, count, chunk, tables, streams, pools)?;
            next += count;
        }
        writer.notes(at, &device.notes, tables)?;
        writer.exact(at, &device.exact)?;
        if !device.segments.is_empty() || !device.blocks.is_empty() {
            let batch = EventBatch { device: device.device, streams, pools, events: &[] };
            writer.final_state(&batch, &device.segments, &device.blocks, tables)?;
        }
    }
    writer.finish()
}

fn unwritable(what: &str) -> GtraceError {
    GtraceError::Unwritable(what.to_owned())
}
