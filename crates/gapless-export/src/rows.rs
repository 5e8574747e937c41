//! One allocation as a row: the shared form of CSV and Parquet.

use crate::{DeviceView, View};
use gapless_trace::{AllocationId, Micros, SizeClass, StackId, Tick, Trace};

/// The columns, in order.
pub(crate) const COLUMNS: [&str; 17] = [
    "device",
    "id",
    "address",
    "requested",
    "block",
    "start_event",
    "freed_event",
    "end_event",
    "start_time_us",
    "freed_time_us",
    "end_time_us",
    "stream",
    "pool",
    "size_class",
    "kind",
    "step",
    "stack",
];

/// One allocation. `None`: not known, or it did not happen within the recording.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row<'a> {
    pub(crate) device: u32,
    pub(crate) id: u32,
    pub(crate) address: u64,
    pub(crate) requested: u64,
    pub(crate) block: u64,
    /// Start, freed, end.
    pub(crate) events: [Option<u32>; 3],
    /// Start, freed, end.
    pub(crate) times: [Option<Micros>; 3],
    pub(crate) stream: u64,
    /// Index into the device's pools.
    pub(crate) pool: u16,
    pub(crate) class: SizeClass,
    pub(crate) kind: Option<&'a str>,
    pub(crate) step: Option<u32>,
    pub(crate) stack: StackId,
}

/// All rows of a view, device by device, in order of birth.
pub(crate) fn rows<'a>(view: &'a View<'a>) -> impl Iterator<Item = Row<'a>> {
    view.devices.iter().flat_map(|device| device.history.allocations.ids().map(|id| row(device, id)))
}

fn row<'a>(view: &DeviceView<'a>, id: AllocationId) -> Row<'a> {
    let (device, history) = (view.device, view.history);
    let a = history.allocations.get(id);
    // Tick 0 is before the first event, and `last_tick` is after the last one.
    let event = |tick: Tick| tick.event().filter(|_| tick <= history.last_tick);
    let time = |tick: Tick| event(tick).filter(|_| device.events.has_times()).map(|e| device.events.time(e));
    let ticks = [a.start, a.freed, a.end];
    Row {
        device: device.device,
        id: id.0,
        address: a.addr.0,
        requested: a.requested.0,
        block: a.block.0,
        events: ticks.map(|tick| event(tick).map(|e| e.0)),
        times: ticks.map(time),
        stream: device.streams.get(a.stream as usize).map_or(0, |s| s.0),
        pool: a.pool,
        class: a.class,
        kind: view.kinds.and_then(|kinds| kinds.get(id.0 as usize)).copied(),
        step: view.step_of(a.start).map(|step| step as u32),
        stack: a.stack,
    }
}

/// The readable name of every pool of a device.
pub(crate) fn pool_names(view: &DeviceView<'_>) -> Vec<String> {
    view.device.pools.iter().map(ToString::to_string).collect()
}

/// `file:line name; file:line name`, innermost first.
pub(crate) fn stack_text(trace: &Trace, stack: StackId, out: &mut String) {
    use std::fmt::Write;
    out.clear();
    for (i, &frame) in trace.stacks.get(stack).iter().enumerate() {
        let frame = trace.frames.get(frame);
        let (file, name) = (trace.strings.get(frame.file), trace.strings.get(frame.name));
        // Writing to a string cannot fail.
        let _ = write!(out, "{}{file}:{} {name}", if i == 0 { "" } else { "; " }, frame.line);
    }
}
