//! From rows to a trace: the top of a snapshot tells which rows belong to which device.
//!
//! Lists may share rows and each other. Here they are written out, which is the one place where a small file could
//! become large: the rows written out are limited by the bytes read.

use crate::builder::{Builder, key};
use crate::error::{Fault, Problem};
use crate::features::Feature;
use crate::host;
use crate::names::Name;
use crate::rows::{Numbered, Rows, SegmentRow, Wrong};
use crate::settings;
use crate::value::{Table, Value};
use gapless_trace::numbers::{plural, verb};
use gapless_trace::{
    Action, Annotation, Block, BlockNote, BlockState, DeviceAddr, DeviceTrace, EventIndex, Events,
    HostMemory, Note, PoolId, Segment, Source, StreamId, Tick, Trace,
};
use std::collections::BTreeMap;
use std::hash::Hash;

/// A trace made from rows.
pub(crate) struct Made {
    pub(crate) trace: Trace,
    /// True if its only device has the events that were read, all of them and in their order.
    pub(crate) in_order: bool,
}

/// Makes the trace of a snapshot whose outermost value is `top`, and whose rows of events are `events`. `read` is the
/// number of bytes read.
pub(crate) fn trace(
    mut builder: Builder,
    mut events: Events,
    top: Value,
    format: String,
    read: u64,
) -> Result<Made, Fault> {
    let wrong = |what: Wrong| Box::new(Problem::Malformed { offset: read, what });
    let parts = Parts::of(&mut builder, top)?;
    let settings = settings::read(&builder, parts.settings);
    let mut spent = Spent { rows: 0, limit: read.max(1024) };
    let traces = device_runs(&builder, parts.device_traces, &mut spent).map_err(wrong)?;
    let host = host_memory(&builder, &events, &parts, &mut spent).map_err(wrong)?;
    let segments = segment_rows(&builder, parts.segments, &mut spent).map_err(wrong)?;
    let annotations = annotations(&builder, parts.annotations, &mut spent).map_err(wrong)?;
    let mut blocks_by_segment = Vec::with_capacity(segments.len());
    for segment in &segments {
        blocks_by_segment.push(block_rows(&builder, segment.blocks, &mut spent).map_err(wrong)?);
    }
    if settings.as_ref().is_some_and(|s| s.conf.contains("expandable_segments_reserve")) {
        builder.rows.features.add(Feature::ExpandableReserve);
    }
    let producer = builder.rows.features.producer(!segments.is_empty());
    let mut notes = Vec::new();
    unreadable_host(&builder, &parts, &mut notes);
    let Builder { mut rows, .. } = builder;
    notes_about(&rows, &mut notes);
    notes.extend(host.as_ref().map(host::note));
    if events.is_empty() && segments.is_empty() {
        return Err(Box::new(Problem::EmptyTrace));
    }
    let mut devices = Devices::default();
    // If one device has everything, its tables are the tables that were read, and no event is copied.
    let mut numbers = traces.iter().map(|t| t.device).chain(segments.iter().map(|s| s.device));
    let first = numbers.next().unwrap_or(0);
    // The host's streams and pools are in the tables too.
    let alone = numbers.all(|device| device == first) && host.is_none();
    if alone {
        devices.of(first).streams = std::mem::take(&mut rows.streams);
        devices.of(first).pools = std::mem::take(&mut rows.pools);
    }
    let mut in_order = false;
    for Recorded { device, runs, notes } in &traces {
        let own = devices.of(*device);
        own.trace.notes = notes.clone();
        own.trace.exact = exact_events(&rows, runs);
        if alone && runs[..] == [(0, events.len() as u32)] {
            own.trace.events = std::mem::take(&mut events);
            in_order = true;
        } else {
            copy_events(&rows, &events, runs, own).map_err(wrong)?;
        }
    }
    for (segment, blocks) in segments.iter().zip(&blocks_by_segment) {
        add_segment(&rows, segment, blocks, devices.of(segment.device)).map_err(wrong)?;
    }
    let mut devices = devices.finish();
    for device in &mut devices {
        let end = Tick(device.events.len() as u32);
        let owners = rows.owners.iter().filter(|(of, _)| *of == device.device);
        device.notes.extend(owners.map(|(_, note)| BlockNote {
            tick: end,
            addr: note.addr,
            text: note.text,
        }));
        device.segments.sort_by_key(|s| s.addr);
        skipped_actions(device, &mut notes);
    }
    if devices.is_empty() {
        return Err(Box::new(Problem::EmptyTrace));
    }
    let trace = Trace {
        source: Source { format, producer, torch_rules: true, notes },
        strings: rows.strings,
        frames: rows.frames,
        stacks: rows.stacks,
        devices,
        annotations,
        settings,
        host,
        ..Trace::default()
    };
    Ok(Made { trace, in_order })
}

/// The values under the outermost keys.
struct Parts {
    segments: Value,
    device_traces: Value,
    settings: Value,
    annotations: Value,
    host_segments: Value,
    host_traces: Value,
}

impl Parts {
    fn of(builder: &mut Builder, top: Value) -> Result<Parts, Fault> {
        let mut parts = Parts {
            segments: Value::None,
            device_traces: Value::None,
            settings: Value::None,
            annotations: Value::None,
            host_segments: Value::None,
            host_traces: Value::None,
        };
        let top = builder.settle(top).unwrap_or(top);
        if let Some(items) = builder.list(top) {
            let snapshot =
                items.is_empty() || items.iter().any(|v| matches!(v, Value::Rows(Table::Segments, ..)));
            if snapshot {
                parts.segments = top;
                return Ok(parts);
            }
        }
        let mut known = false;
        let entries = builder.dict(top).unwrap_or_default().to_vec();
        for pair in entries.chunks_exact(2) {
            let place = match key(pair[0]) {
                Name::Segments => &mut parts.segments,
                Name::DeviceTraces => {
                    builder.rows.features.add(Feature::DeviceTraces);
                    &mut parts.device_traces
                }
                Name::AllocatorSettings => {
                    builder.rows.features.add(Feature::Settings);
                    for (name, feature) in [
                        (Name::GraphCaptureReuse, Feature::GraphCaptureReuse),
                        (Name::MaxRoundThreshold, Feature::MaxRoundThreshold),
                    ] {
                        if let Some(settings) = builder.dict(pair[1])
                            && settings.chunks_exact(2).any(|pair| key(pair[0]) == name)
                        {
                            builder.rows.features.add(feature);
                        }
                    }
                    &mut parts.settings
                }
                Name::ExternalAnnotations => {
                    builder.rows.features.add(Feature::Annotations);
                    &mut parts.annotations
                }
                name @ (Name::HostSegments | Name::HostTraces) => {
                    builder.rows.features.add(Feature::HostMemory);
                    let place = match name {
                        Name::HostSegments => &mut parts.host_segments,
                        _ => &mut parts.host_traces,
                    };
                    // A dict of these alone is no snapshot.
                    *place = pair[1];
                    continue;
                }
                _ => continue,
            };
            *place = pair[1];
            known = true;
        }
        if known { Ok(parts) } else { Err(not_a_snapshot(builder, top)) }
    }
}

fn not_a_snapshot(builder: &Builder, top: Value) -> Fault {
    let (looks_like, help) = match top {
        // The first object of torch.save's old format.
        Value::Huge => (
            "a checkpoint of torch.save in its old format".to_owned(),
            "give a file from torch.cuda.memory._dump_snapshot(PATH)",
        ),
        _ if builder.dict(top).is_some_and(|entries| !entries.is_empty()) => {
            let keys: Vec<&str> = builder
                .dict(top)
                .unwrap_or_default()
                .chunks_exact(2)
                .filter_map(|pair| match pair[0] {
                    Value::Str(id) => Some(builder.rows.strings.get(id)),
                    _ => None,
                })
                .take(4)
                .map(|text| text.get(..40).unwrap_or(text))
                .collect();
            (
                format!("a dict with the keys {keys:?}, not \"segments\" or \"device_traces\""),
                "give the dict of torch.cuda.memory._snapshot() as a whole",
            )
        }
        Value::Rows(Table::Events, ..) => {
            ("a single event".to_owned(), "give the dict of torch.cuda.memory._snapshot() as a whole")
        }
        other => (
            format!("{} rather than a memory snapshot", other.noun()),
            "give a file from torch.cuda.memory._dump_snapshot(PATH)",
        ),
    };
    Box::new(Problem::NotATrace { looks_like, help })
}

/// Rows written out of lists, and their limit: each costs at least a byte of the file unless lists share.
struct Spent {
    rows: u64,
    limit: u64,
}

impl Spent {
    fn add(&mut self, rows: u64) -> Result<(), Wrong> {
        self.rows += rows;
        if self.rows > self.limit {
            return Err(format!(
                "lists that share their items stand for more than {} rows, which the file is too small for",
                self.limit
            ));
        }
        Ok(())
    }
}

type Runs = Vec<(u32, u32)>;

/// The runs of rows of `table` in a list; values that are no such rows are left out.
fn runs(builder: &Builder, list: Value, table: Table, spent: &mut Spent) -> Result<Runs, Wrong> {
    let one = [list];
    let items = match list {
        Value::Rows(..) => &one[..],
        _ => builder.list(list).unwrap_or_default(),
    };
    spent.add(items.len() as u64)?;
    let mut runs = Vec::new();
    for item in items {
        if let Value::Rows(kind, first, count) = *item
            && kind == table
        {
            spent.add(u64::from(count))?;
            runs.push((first, count));
        }
    }
    Ok(runs)
}

/// The recording of one device: runs of event rows, and the notes between the events.
struct Recorded {
    device: u32,
    runs: Runs,
    notes: Vec<BlockNote>,
}

/// The runs of events in a list, neighbouring ones as one, and the notes among them.
fn events_and_notes(
    builder: &Builder,
    list: Value,
    spent: &mut Spent,
) -> Result<(Runs, Vec<BlockNote>), Wrong> {
    let one = [list];
    let items = match list {
        Value::Rows(..) => &one[..],
        _ => builder.list(list).unwrap_or_default(),
    };
    spent.add(items.len() as u64)?;
    let (mut runs, mut notes): (Runs, Vec<BlockNote>) = Default::default();
    let mut total = 0u64;
    for item in items {
        let Value::Rows(kind, first, count) = *item else { continue };
        match kind {
            Table::Events => {
                spent.add(u64::from(count))?;
                total += u64::from(count);
                match runs.last_mut() {
                    Some(last) if last.0 + last.1 == first => last.1 += count,
                    _ => runs.push((first, count)),
                }
            }
            Table::Notes => {
                spent.add(u64::from(count))?;
                let tick = Tick(u32::try_from(total).unwrap_or(u32::MAX));
                notes.extend(rows_of(&builder.rows.notes, (first, count)).iter().map(|note| BlockNote {
                    tick,
                    addr: note.addr,
                    text: note.text,
                }));
            }
            _ => {}
        }
    }
    Ok((runs, notes))
}

/// The pinned host memory, if anything was recorded of it.
fn host_memory(
    builder: &Builder,
    events: &Events,
    parts: &Parts,
    spent: &mut Spent,
) -> Result<Option<HostMemory>, Wrong> {
    let segments = segment_rows(builder, parts.host_segments, spent)?;
    let mut rows = Vec::with_capacity(segments.len());
    for segment in &segments {
        let runs = block_rows(builder, segment.blocks, spent)?;
        let blocks: Vec<_> =
            runs.iter().flat_map(|&run| rows_of(&builder.rows.blocks, run)).copied().collect();
        rows.push(blocks);
    }
    let runs = runs(builder, parts.host_traces, Table::Events, spent)?;
    let indices = runs.iter().flat_map(|&(first, count)| first..first + count);
    Ok(host::memory(
        segments.iter().zip(rows.iter().map(Vec::as_slice)),
        indices.map(|row| events.get(EventIndex(row))),
    ))
}

/// Members about the host that are no lists: their content is left out, with a note.
fn unreadable_host(builder: &Builder, parts: &Parts, notes: &mut Vec<Note>) {
    for (name, value) in [(Name::HostSegments, parts.host_segments), (Name::HostTraces, parts.host_traces)] {
        if value != Value::None && !matches!(value, Value::Rows(..)) && builder.list(value).is_none() {
            notes.push(Note {
                code: "host-memory-unreadable",
                text: format!(
                    "\"{}\" is {}, not a list: pinned host memory is left out",
                    name.text(),
                    value.noun()
                ),
            });
        }
    }
}

/// The recordings of devices that have any events.
fn device_runs(builder: &Builder, list: Value, spent: &mut Spent) -> Result<Vec<Recorded>, Wrong> {
    let lists = builder.list(list).unwrap_or_default();
    spent.add(lists.len() as u64)?;
    let mut devices = Vec::new();
    let mut total = 0;
    for (device, list) in lists.iter().enumerate() {
        let (runs, notes) = events_and_notes(builder, *list, spent)?;
        total += runs.iter().map(|run| u64::from(run.1)).sum::<u64>();
        if total > builder.limits.events {
            return Err(format!("more than {} events", builder.limits.events));
        }
        if !runs.is_empty() || !notes.is_empty() {
            devices.push(Recorded { device: device as u32, runs, notes });
        }
    }
    Ok(devices)
}

fn segment_rows(builder: &Builder, list: Value, spent: &mut Spent) -> Result<Vec<SegmentRow>, Wrong> {
    let runs = runs(builder, list, Table::Segments, spent)?;
    Ok(runs.iter().flat_map(|&run| rows_of(&builder.rows.segments, run)).copied().collect())
}

fn annotations(builder: &Builder, list: Value, spent: &mut Spent) -> Result<Vec<Annotation>, Wrong> {
    let runs = runs(builder, list, Table::Annotations, spent)?;
    Ok(runs.iter().flat_map(|&run| rows_of(&builder.rows.annotations, run)).copied().collect())
}

fn block_rows(builder: &Builder, list: Value, spent: &mut Spent) -> Result<Runs, Wrong> {
    runs(builder, list, Table::Blocks, spent)
}

fn rows_of<T>(table: &[T], (first, count): (u32, u32)) -> &[T] {
    table.get(first as usize..first as usize + count as usize).unwrap_or_default()
}

/// A device while its rows are collected; the tables of streams and pools are its own.
#[derive(Default)]
struct Own {
    trace: DeviceTrace,
    streams: Numbered<StreamId>,
    pools: Numbered<PoolId>,
}

/// Devices by number.
#[derive(Default)]
struct Devices(BTreeMap<u32, Own>);

impl Devices {
    fn of(&mut self, device: u32) -> &mut Own {
        self.0.entry(device).or_insert_with(|| Own { trace: DeviceTrace::new(device), ..Own::default() })
    }

    /// Those that have events or segments, in order.
    fn finish(self) -> Vec<DeviceTrace> {
        let whole = self.0.into_values().map(|own| {
            let mut trace = own.trace;
            trace.streams = own.streams.values;
            if !own.pools.values.is_empty() {
                trace.pools = own.pools.values;
            }
            trace
        });
        whole.filter(|d| !d.events.is_empty() || !d.segments.is_empty()).collect()
    }
}

/// The number in the device of a value that has the number `shared` in the file. A table that was moved into the device
/// as it was keeps its numbers.
fn renumber<T: Copy + Eq + Hash>(
    own: &mut Numbered<T>,
    all: &Numbered<T>,
    shared: u16,
    what: &str,
) -> Result<u16, Wrong> {
    match all.values.get(shared as usize) {
        Some(&value) => own.number(value, what),
        None => Ok(shared),
    }
}

/// The events of a device that are allocations at chosen addresses.
fn exact_events(rows: &Rows, runs: &Runs) -> Vec<EventIndex> {
    let mut exact = Vec::new();
    let mut before = 0;
    for &(first, count) in runs {
        // The rows are in order, since each was noted when its event came.
        let from = rows.exact_addresses.partition_point(|&row| row < first);
        let own = rows.exact_addresses[from..].iter().take_while(|&&row| row < first + count);
        exact.extend(own.map(|&row| EventIndex(before + (row - first))));
        before += count;
    }
    exact
}

fn copy_events(rows: &Rows, events: &Events, runs: &Runs, own: &mut Own) -> Result<(), Wrong> {
    let total: usize = runs.iter().map(|run| run.1 as usize).sum();
    if total > Events::MAX {
        return Err(format!("more than {} events on one device", Events::MAX));
    }
    own.trace.events = Events::with_capacity(total);
    own.start_pools(rows)?;
    for &(first, count) in runs {
        for row in first..first + count {
            let mut event = events.get(EventIndex(row));
            event.stream = renumber(&mut own.streams, &rows.streams, event.stream, "streams")?;
            event.pool = renumber(&mut own.pools, &rows.pools, event.pool, "pools")?;
            own.trace.events.push(event);
        }
    }
    Ok(())
}

impl Own {
    /// The default pool is the first of every device.
    fn start_pools(&mut self, rows: &Rows) -> Result<(), Wrong> {
        if self.pools.values.is_empty() && !rows.pools.values.is_empty() {
            self.pools.number(PoolId::DEFAULT, "pools")?;
        }
        Ok(())
    }
}

fn add_segment(rows: &Rows, segment: &SegmentRow, blocks: &Runs, own: &mut Own) -> Result<(), Wrong> {
    own.start_pools(rows)?;
    let stream = renumber(&mut own.streams, &rows.streams, segment.stream, "streams")?;
    let pool = renumber(&mut own.pools, &rows.pools, segment.pool, "pools")?;
    let device = &mut own.trace;
    let first_block = device.blocks.len();
    let mut at = segment.addr;
    for row in blocks.iter().flat_map(|&run| rows_of(&rows.blocks, run)) {
        let addr = row.addr.unwrap_or(at);
        let Some(end) = addr.0.checked_add(row.size.0) else {
            return Err(format!("a block of {} bytes at {addr} reaches past the last address", row.size.0));
        };
        at = DeviceAddr(end);
        device.blocks.push(Block {
            addr,
            size: row.size,
            requested: row.requested,
            state: row.state,
            stack: row.stack,
        });
    }
    if device.blocks.len() > u32::MAX as usize {
        return Err("more than 2^32 blocks".into());
    }
    device.segments.push(Segment {
        addr: segment.addr,
        size: segment.size,
        stream,
        pool,
        class: segment.class,
        expandable: segment.expandable,
        stack: segment.stack,
        first_block: first_block as u32,
        block_count: (device.blocks.len() - first_block) as u32,
    });
    Ok(())
}

fn notes_about(rows: &Rows, notes: &mut Vec<Note>) {
    let (unknown, first) = rows.unknown_actions;
    if unknown > 0 {
        let name: String = rows.strings.get(first).chars().take(60).collect();
        notes.push(Note {
            code: "unknown-actions",
            text: format!(
                "{} of a kind that this version does not know {} left out, the first {name:?}",
                plural(unknown, "event"),
                verb(unknown, "was", "were")
            ),
        });
    }
    if !rows.exact_addresses.is_empty() {
        notes.push(Note {
            code: "exact-addresses",
            text: format!(
                "{} {} placed at or around an address that the program chose (mallocWithAddress); \
                 peaks include the memory in front of it, which torch takes and returns at once, and a replay with \
                 other settings places them as usual",
                plural(rows.exact_addresses.len() as u64, "allocation"),
                verb(rows.exact_addresses.len() as u64, "was", "were")
            ),
        });
    }
    if rows.repaired_names > 0 {
        notes.push(Note {
            code: "names-not-utf8",
            text: format!(
                "{} name(s) were not valid UTF-8; the bytes in question show as \u{fffd}",
                rows.repaired_names
            ),
        });
    }
}

/// Recordings since torch 2.11 can leave out kinds of events (`skip_actions`): a note if it is certain.
fn skipped_actions(device: &DeviceTrace, notes: &mut Vec<Note>) {
    let count = |action| device.events.count(action);
    let (allocs, asked, done) =
        (count(Action::Alloc), count(Action::FreeRequested), count(Action::FreeCompleted));
    let pending = device.blocks.iter().filter(|b| b.state == BlockState::Pending).count();
    let active = device.blocks.iter().filter(|b| b.state != BlockState::Free).count();
    let mut missing = Vec::new();
    if allocs == 0 && asked + done > 1 && asked + done > pending * 2 {
        missing.push("alloc");
    }
    if asked == 0 && done > 0 {
        missing.push("free_requested");
    }
    // A few frees at the end may still wait for other streams; those blocks are pending in the segments.
    if done == 0 && asked > pending && !device.segments.is_empty() {
        missing.push("free_completed");
    }
    if asked + done == 0 && allocs > active && !device.segments.is_empty() {
        missing.push("free_requested and free_completed");
    }
    if !missing.is_empty() {
        notes.push(Note {
            code: "actions-skipped",
            text: format!(
                "device {}: the recording has no {} events at all (skip_actions?); a single free stands for both, and \
                 what only they would show is not known",
                device.device,
                missing.join(" and no ")
            ),
        });
    }
}
