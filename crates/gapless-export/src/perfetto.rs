//! The timeline as trace-event JSON, for ui.perfetto.dev and chrome://tracing.
//!
//! A device is a process. It has three counters (allocated, active, reserved), a track with the run's annotations and
//! one with its steps, one with the calls to the device, and the allocations of each stream as slices. Slices on a
//! track must nest, because the viewer drops or moves those that cross. So an allocation goes onto the first track of
//! its stream on which it nests, and a stream has as many tracks as needed. These are few, because most memory is
//! freed in reverse order.
//!
//! Times are microseconds from the first event of the trace, never going back; a device without a clock counts events.

use crate::{DeviceView, ExportError, View};
use gapless_trace::{Action, Allocation, AllocationId, Bytes, Micros, Stage, StringId, Tick};
use std::fmt::{self, Write as _};
use std::io::Write;

#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Allocations with smaller blocks get no slice. Counters have them all.
    pub min_size: Bytes,
    /// Of the rest, this many of the largest on each device get a slice.
    pub largest: usize,
    /// The most points of a counter; beyond that only the highest and the last of equal stretches remain, so peaks stay
    /// exact.
    pub counter_points: usize,
    /// True if calls to the device (segments taken, given back, mapped, unmapped) are marked.
    pub segment_events: bool,
}

impl Default for Options {
    /// Limits for a file of a few megabytes, which the viewer opens quickly and a person can read.
    fn default() -> Self {
        Options { min_size: Bytes::ZERO, largest: 10_000, counter_points: 20_000, segment_events: true }
    }
}

/// Writes the timeline of `view`.
///
/// # Errors
/// When writing fails, or kinds are given and not one for each allocation.
pub fn write(view: &View<'_>, options: &Options, out: &mut dyn Write) -> Result<(), ExportError> {
    view.devices.iter().try_for_each(DeviceView::check)?;
    let first = first_time(view);
    let mut json = Json { out, text: String::new(), events: 0 };
    json.text
        .push_str("{\"displayTimeUnit\":\"ms\",\"otherData\":{\"producer\":\"gapless\"},\"traceEvents\":[");
    // The viewer treats tracks as threads, so their numbers are unique over all processes and differ from processes'.
    let mut next_track = 1_000_000;
    for device in &view.devices {
        let clock = Clock::new(device, first);
        Timeline { view, device, clock, options, json: &mut json, next_track: &mut next_track }.write()?;
    }
    json.text.push_str("\n]}\n");
    json.flush()?;
    Ok(json.out.flush()?)
}

/// The earliest time of all devices with a clock, and of the annotations.
fn first_time(view: &View<'_>) -> Micros {
    let events = view.devices.iter().map(|d| d.device).filter(|d| d.events.has_times());
    let events = events.filter_map(|d| d.events.indices().next().map(|i| d.events.time(i)));
    let annotations = view.trace.annotations.iter().map(|a| a.time);
    events.chain(annotations).min().unwrap_or_default()
}

/// The time of each tick.
struct Clock {
    /// `None`: ticks are the time.
    times: Option<Vec<u64>>,
    first: Micros,
    last: u64,
}

impl Clock {
    fn new(view: &DeviceView<'_>, first: Micros) -> Clock {
        let events = &view.device.events;
        if !events.has_times() {
            return Clock { times: None, first, last: u64::from(view.history.last_tick.0) };
        }
        let mut latest = 0;
        // Tick 0 is the time of the first event: earlier times are not known.
        let ticks = (0..=view.history.last_tick.0).map(Tick);
        let times: Vec<u64> = ticks
            .map(|tick| {
                latest = latest.max(events.time_at(tick).since(first).0);
                latest
            })
            .collect();
        Clock { times: Some(times), first, last: latest }
    }

    fn at(&self, tick: Tick) -> u64 {
        match &self.times {
            Some(times) => times.get(tick.0 as usize).copied().unwrap_or(self.last),
            None => u64::from(tick.0).min(self.last),
        }
    }
}

/// A slice of a track: `[start, end)` in microseconds.
#[derive(Clone, Copy, Debug)]
struct Span<T> {
    start: u64,
    end: u64,
    what: T,
}

/// The deepest nesting on one track. The viewer draws a row for each level, up to 512.
const DEPTH: usize = 64;

/// Puts spans onto tracks so that on each they nest. Returns the tracks, spans in order, outer before inner.
fn tracks<T: Copy>(mut spans: Vec<Span<T>>) -> Vec<Vec<Span<T>>> {
    spans.sort_by_key(|span| (span.start, std::cmp::Reverse(span.end)));
    let mut tracks: Vec<(Vec<u64>, Vec<Span<T>>)> = Vec::new();
    for span in spans {
        let fits = |open: &mut Vec<u64>| {
            while open.last().is_some_and(|&end| end <= span.start) {
                open.pop();
            }
            open.len() < DEPTH && open.last().is_none_or(|&end| span.end <= end)
        };
        let at = tracks.iter_mut().position(|(open, _)| fits(open)).unwrap_or_else(|| {
            tracks.push((Vec::new(), Vec::new()));
            tracks.len() - 1
        });
        tracks[at].0.push(span.end);
        tracks[at].1.push(span);
    }
    tracks.into_iter().map(|(_, spans)| spans).collect()
}

/// The events of one device.
struct Timeline<'a, 'b> {
    view: &'a View<'a>,
    device: &'a DeviceView<'a>,
    clock: Clock,
    options: &'a Options,
    json: &'a mut Json<'b>,
    next_track: &'a mut u32,
}

impl Timeline<'_, '_> {
    fn write(&mut self) -> Result<(), ExportError> {
        let number = self.device.device.device;
        let main = self.pid();
        self.metadata("process_name", main, &format!("{{\"name\":\"device {number}\"}}"))?;
        self.metadata("process_sort_index", main, &format!("{{\"sort_index\":{number}}}"))?;
        self.counters()?;
        self.steps()?;
        self.annotations()?;
        self.device_calls()?;
        self.allocations()
    }

    /// Numbers from 1 on: the viewer takes 0 for the idle process, and thread 0 always belongs to it. So events
    /// without a track use the process's number as their thread, which is the main thread.
    fn pid(&self) -> u32 {
        self.device.device.device.saturating_add(1)
    }

    fn metadata(&mut self, name: &str, track: u32, args: &str) -> Result<(), ExportError> {
        let pid = self.pid();
        self.json.event(format_args!(
            "\"ph\":\"M\",\"name\":\"{name}\",\"pid\":{pid},\"tid\":{track},\"ts\":0,\"args\":{args}"
        ))
    }

    fn new_track(&mut self, name: &str) -> Result<u32, ExportError> {
        let track = *self.next_track;
        *self.next_track += 1;
        self.metadata("thread_name", track, &format!("{{\"name\":{}}}", Text(name)))?;
        self.metadata("thread_sort_index", track, &format!("{{\"sort_index\":{track}}}"))?;
        Ok(track)
    }

    fn slice(
        &mut self,
        track: u32,
        category: &str,
        name: &str,
        start: u64,
        end: u64,
        args: fmt::Arguments<'_>,
    ) -> Result<(), ExportError> {
        let pid = self.pid();
        self.json.event(format_args!(
            "\"ph\":\"X\",\"cat\":\"{category}\",\"name\":{},\"pid\":{pid},\"tid\":{track},\"ts\":{start},\"dur\":{},\
             \"args\":{{{args}}}",
            Text(name),
            end - start
        ))
    }

    fn counters(&mut self) -> Result<(), ExportError> {
        let history = self.device.history;
        let allocations = || history.allocations.iter();
        let block = |a: &Allocation| a.block.0;
        let allocated = curve(history.last_tick, allocations().map(|a| (a.start, a.freed, block(&a))));
        self.counter("allocated", &allocated)?;
        let active = curve(history.last_tick, allocations().map(|a| (a.start, a.end, block(&a))));
        self.counter("active", &active)?;
        if history.has_segments {
            let segments = history.segments.iter().map(|s| (s.start, s.end, s.size.0));
            self.counter("reserved", &curve(history.last_tick, segments))?;
        }
        Ok(())
    }

    fn counter(&mut self, name: &str, values: &[u64]) -> Result<(), ExportError> {
        let pid = self.pid();
        let stride = (2 * values.len()).div_ceil(self.options.counter_points.max(2)).max(1);
        let mut before = None;
        for (start, stretch) in (0..).step_by(stride).zip(values.chunks(stride)) {
            let highest = (0..stretch.len()).rev().max_by_key(|&i| stretch[i]).unwrap_or(0);
            let mut points = [highest, stretch.len() - 1];
            points.sort_unstable();
            for i in points {
                if before.replace(stretch[i]) != Some(stretch[i]) {
                    let ts = self.clock.at(Tick((start + i) as u32));
                    self.json.event(format_args!(
                        "\"ph\":\"C\",\"name\":\"{name}\",\"pid\":{pid},\"tid\":{pid},\"ts\":{ts},\"args\":{{\"bytes\":{}}}",
                        stretch[i]
                    ))?;
                }
            }
        }
        Ok(())
    }

    fn steps(&mut self) -> Result<(), ExportError> {
        if self.device.steps.is_empty() {
            return Ok(());
        }
        let spans = self.device.steps.iter().enumerate().map(|(i, step)| {
            let (start, end) = (self.clock.at(step.start), self.clock.at(step.end));
            Span { start, end: end.max(start), what: i }
        });
        for spans in tracks(spans.collect()) {
            let track = self.new_track("steps")?;
            for span in spans {
                let name = format!("step {}", span.what);
                self.slice(track, "step", &name, span.start, span.end, format_args!(""))?;
            }
        }
        Ok(())
    }

    /// An end belongs to the last open start of the same name. A start without an end lasts until the end of
    /// the run, an end without a start begins with it. Without a clock the places of annotations are not known,
    /// so none is written.
    fn annotations(&mut self) -> Result<(), ExportError> {
        if self.clock.times.is_none() {
            return Ok(());
        }
        let strings = &self.view.trace.strings;
        let mut open: Vec<(StringId, u64)> = Vec::new();
        let mut spans = Vec::new();
        let mut latest = 0;
        for a in self.view.trace.annotations.iter().filter(|a| a.device == self.device.device.device) {
            let time = a.time.since(self.clock.first).0;
            latest = latest.max(time);
            match a.stage {
                Stage::Start => open.push((a.name, time)),
                Stage::End => {
                    let start = open.iter().rposition(|(name, _)| *name == a.name);
                    let start = start.map_or(0, |at| open.remove(at).1);
                    spans.push(Span { start, end: time.max(start), what: a.name });
                }
            }
        }
        let end = self.clock.last.max(latest);
        spans.extend(open.into_iter().map(|(what, start)| Span { start, end, what }));
        for spans in tracks(spans) {
            let track = self.new_track("annotations")?;
            for span in spans {
                let name = strings.get(span.what);
                self.slice(track, "annotation", name, span.start, span.end, format_args!(""))?;
            }
        }
        Ok(())
    }

    fn device_calls(&mut self) -> Result<(), ExportError> {
        let events = &self.device.device.events;
        let mut track = None;
        for index in events.indices() {
            let action = events.action(index);
            let marked = match action {
                Action::Oom => true,
                Action::SegmentAlloc | Action::SegmentFree | Action::SegmentMap | Action::SegmentUnmap => {
                    self.options.segment_events
                }
                _ => false,
            };
            if !marked {
                continue;
            }
            let track = match track {
                Some(track) => track,
                None => *track.insert(self.new_track("device calls")?),
            };
            let event = events.get(index);
            let (pid, ts) = (self.pid(), self.clock.at(index.after()));
            // An OOM concerns the whole process, and is drawn over all tracks; its address is the device's free bytes.
            let (scope, name, key) = match action {
                Action::Oom => ('p', "out of memory", "device_free"),
                other => ('t', other.name(), "address"),
            };
            self.json.event(format_args!(
                "\"ph\":\"i\",\"s\":\"{scope}\",\"cat\":\"device\",\"name\":\"{name}\",\"pid\":{pid},\"tid\":{track},\"ts\":{ts},\
                 \"args\":{{\"bytes\":{},\"{key}\":\"{:#x}\",\"event\":{index}}}",
                event.size.0, event.addr.0
            ))?;
        }
        Ok(())
    }

    fn allocations(&mut self) -> Result<(), ExportError> {
        let (device, history) = (self.device.device, self.device.history);
        let allocations = &history.allocations;
        let mut shown: Vec<AllocationId> =
            allocations.ids().filter(|&id| allocations.get(id).block >= self.options.min_size).collect();
        if shown.len() > self.options.largest {
            shown.sort_by_key(|&id| (std::cmp::Reverse(allocations.get(id).block), id));
            shown.truncate(self.options.largest);
        }
        let mut streams: Vec<Vec<Span<AllocationId>>> = vec![Vec::new(); device.streams.len()];
        for id in shown {
            let a = allocations.get(id);
            let (start, end) = (self.clock.at(a.start), self.clock.at(a.end));
            let Some(spans) = streams.get_mut(a.stream as usize) else { continue };
            spans.push(Span { start, end, what: id });
        }
        for (spans, stream) in streams.into_iter().zip(&device.streams) {
            let name = format!("allocations, stream {stream}");
            for spans in tracks(spans) {
                let track = self.new_track(&name)?;
                for span in spans {
                    self.allocation(track, span)?;
                }
            }
        }
        Ok(())
    }

    fn allocation(&mut self, track: u32, span: Span<AllocationId>) -> Result<(), ExportError> {
        let trace = self.view.trace;
        let history = self.device.history;
        let a = history.allocations.get(span.what);
        let innermost = trace.stacks.get(a.stack).first().map(|&frame| trace.frames.get(frame).name);
        let mut name = a.block.to_string();
        if let Some(function) = innermost {
            name = format!("{name} {}", trace.strings.get(function));
        }
        let mut stack = String::new();
        crate::rows::stack_text(trace, a.stack, &mut stack);
        let mut more = String::new();
        if !stack.is_empty() {
            let _ = write!(more, ",\"stack\":{}", Text(&stack));
        }
        if let Some(kind) = self.device.kinds.and_then(|kinds| kinds.get(span.what.0 as usize)) {
            let _ = write!(more, ",\"kind\":{}", Text(kind));
        }
        if a.end > history.last_tick {
            more.push_str(",\"held\":\"to the end\"");
        }
        let args = format_args!(
            "\"id\":{},\"block\":{},\"requested\":{},\"address\":\"{:#x}\"{more}",
            span.what.0, a.block.0, a.requested.0, a.addr.0
        );
        self.slice(track, "allocation", &name, span.start, span.end, args)
    }
}

/// The sum of `size` over all `[start, end)` that hold each tick.
fn curve(last: Tick, spans: impl Iterator<Item = (Tick, Tick, u64)>) -> Vec<u64> {
    let mut values = vec![0u64; last.0 as usize + 1];
    for (start, end, size) in spans {
        // Differences wrap around, but every prefix sum is a sum of sizes again.
        if let Some(value) = values.get_mut(start.0 as usize) {
            *value = value.wrapping_add(size);
        }
        if let Some(value) = values.get_mut(end.0 as usize) {
            *value = value.wrapping_sub(size);
        }
    }
    let mut sum = 0u64;
    for value in &mut values {
        sum = sum.wrapping_add(*value);
        *value = sum;
    }
    values
}

/// Writes events into the array, a line each, and writes them out in pieces.
struct Json<'a> {
    out: &'a mut dyn Write,
    text: String,
    events: u64,
}

impl Json<'_> {
    fn event(&mut self, fields: fmt::Arguments<'_>) -> Result<(), ExportError> {
        self.text.push_str(if self.events == 0 { "\n{" } else { ",\n{" });
        self.events += 1;
        // Writing to a string cannot fail.
        let _ = self.text.write_fmt(fields);
        self.text.push('}');
        if self.text.len() >= 1 << 16 { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), ExportError> {
        self.out.write_all(self.text.as_bytes())?;
        self.text.clear();
        Ok(())
    }
}

/// A text as a JSON string, quotes included.
struct Text<'a>(&'a str);

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('"')?;
        for c in self.0.chars() {
            match c {
                '"' => f.write_str("\\\"")?,
                '\\' => f.write_str("\\\\")?,
                '\n' => f.write_str("\\n")?,
                c if c < ' ' || c == '\u{7f}' => write!(f, "\\u{:04x}", c as u32)?,
                c => f.write_char(c)?,
            }
        }
        f.write_char('"')
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::Sample;
    use gapless_trace::History;
    use serde_json::Value;
    use std::collections::BTreeMap;

    fn written(view: &View<'_>, options: &Options) -> Vec<Value> {
        let mut out = Vec::new();
        write(view, options, &mut out).unwrap();
        let whole: Value = serde_json::from_slice(&out).unwrap();
        check_rules(whole["traceEvents"].as_array().unwrap());
        whole["traceEvents"].as_array().unwrap().clone()
    }

    /// The rules of the trace-event format: required members, counters that go forward, slices that
    /// nest on their track.
    fn check_rules(events: &[Value]) {
        let mut open: BTreeMap<(u64, u64), Vec<u64>> = BTreeMap::new();
        let mut latest: BTreeMap<(u64, String), u64> = BTreeMap::new();
        let mut named = BTreeMap::new();
        for event in events {
            let number = |key: &str| event[key].as_u64().unwrap_or_else(|| panic!("{key} of {event}"));
            let (pid, tid, ts) = (number("pid"), number("tid"), number("ts"));
            let name = event["name"].as_str().unwrap();
            assert!(pid > 0 && tid > 0, "0 is the idle process: {event}");
            match event["ph"].as_str().unwrap() {
                "M" => {
                    assert!(event["args"].is_object());
                    named.insert((pid, tid), ());
                }
                "C" => {
                    assert!(event["args"]["bytes"].is_u64() && named.contains_key(&(pid, tid)));
                    let before = latest.insert((pid, name.to_owned()), ts).unwrap_or(0);
                    assert!(before <= ts, "a counter goes back at {ts}");
                }
                "X" => {
                    let end = ts + number("dur");
                    let open = open.entry((pid, tid)).or_default();
                    while open.last().is_some_and(|&outer| outer <= ts) {
                        open.pop();
                    }
                    assert!(open.last().is_none_or(|&outer| end <= outer), "does not nest: {event}");
                    open.push(end);
                    assert!(open.len() <= DEPTH);
                    assert!(named.contains_key(&(pid, tid)), "a track without a name: {event}");
                }
                "i" => {
                    assert!(["g", "p", "t"].contains(&event["s"].as_str().unwrap()));
                    assert!(named.contains_key(&(pid, tid)));
                }
                other => panic!("an event of kind {other}"),
            }
        }
    }

    fn of<'a>(events: &'a [Value], ph: &str, pid: u64) -> Vec<&'a Value> {
        events.iter().filter(|e| e["ph"] == ph && e["pid"] == pid).collect()
    }

    fn highest(events: &[Value], pid: u64, name: &str) -> u64 {
        let counters = of(events, "C", pid).into_iter().filter(|e| e["name"] == name);
        counters.map(|e| e["args"]["bytes"].as_u64().unwrap()).max().unwrap_or(0)
    }

    fn peaks_agree(events: &[Value], pid: u64, history: &History) {
        assert_eq!(highest(events, pid, "allocated"), history.usage.allocated.peak.0);
        assert_eq!(highest(events, pid, "active"), history.usage.active.peak.0);
        assert_eq!(highest(events, pid, "reserved"), history.usage.reserved.peak.0);
    }

    #[test]
    fn counters_reach_the_peaks_however_few_points_there_are() {
        let sample = Sample::new();
        for counter_points in [0, 2, 5, 1000] {
            let events = written(&sample.view(), &Options { counter_points, ..Options::default() });
            peaks_agree(&events, 1, &sample.histories[0]);
            peaks_agree(&events, 2, &sample.histories[1]);
            assert!(of(&events, "C", 2).len() <= 3 * counter_points.max(2));
        }
    }

    #[test]
    fn every_allocation_is_a_slice_with_its_size_and_stack() {
        let sample = Sample::new();
        let events = written(&sample.view(), &Options::default());
        let slices: Vec<&Value> =
            of(&events, "X", 1).into_iter().filter(|e| e["cat"] == "allocation").collect();
        assert_eq!(slices.len(), sample.histories[0].allocations.len());
        let first = slices.iter().find(|e| e["args"]["id"] == 0).unwrap();
        assert_eq!(first["name"], "1.00 KiB forward");
        assert_eq!((first["ts"].as_u64(), first["dur"].as_u64()), (Some(10), Some(30)));
        assert_eq!(first["args"]["stack"], "a \"quoted\", file.py:7 forward; train.py:1 main\nloop");
        assert_eq!(first["args"]["kind"], "weights");
        let held = slices.iter().find(|e| e["args"]["id"] == 1).unwrap();
        assert_eq!(held["args"]["held"], "to the end");
    }

    #[test]
    fn options_choose_the_largest_and_leave_small_ones_out() {
        let sample = Sample::new();
        let ids = |options: &Options| -> Vec<u64> {
            let events = written(&sample.view(), options);
            let slices = of(&events, "X", 2);
            slices.iter().map(|e| e["args"]["id"].as_u64().unwrap()).collect()
        };
        assert_eq!(ids(&Options { largest: 3, ..Options::default() }), [47, 48, 49]);
        assert_eq!(ids(&Options { min_size: Bytes(49 << 12), ..Options::default() }), [48, 49]);
    }

    #[test]
    fn annotations_steps_and_device_calls_are_where_they_happened() {
        let sample = Sample::new();
        let events = written(&sample.view(), &Options::default());
        let spans = |category: &str| -> Vec<(String, u64, u64)> {
            let slices = of(&events, "X", 1).into_iter().filter(|e| e["cat"] == category);
            slices
                .map(|e| {
                    let end = e["ts"].as_u64().unwrap() + e["dur"].as_u64().unwrap();
                    (e["name"].as_str().unwrap().to_owned(), e["ts"].as_u64().unwrap(), end)
                })
                .collect()
        };
        let mut annotations = spans("annotation");
        annotations.sort();
        let expected =
            [("inner", 20, 60), ("never began", 0, 75), ("never ends", 70, 80), ("step \u{1}\"1\"", 0, 50)];
        assert_eq!(annotations, expected.map(|(name, start, end)| (name.to_owned(), start, end)));
        assert_eq!(spans("step"), [("step 0".to_owned(), 0, 50)]);
        let marks: Vec<&str> = of(&events, "i", 1).into_iter().map(|e| e["name"].as_str().unwrap()).collect();
        assert_eq!(marks, ["segment_alloc", "out of memory", "segment_alloc"]);
        let fewer = written(&sample.view(), &Options { segment_events: false, ..Options::default() });
        assert_eq!(of(&fewer, "i", 1).len(), 1);
    }

    #[test]
    fn spans_that_cross_go_onto_different_tracks_and_deep_ones_too() {
        let span = |start, end| Span { start, end, what: () };
        let lens = |spans: Vec<Span<()>>| tracks(spans).iter().map(Vec::len).collect::<Vec<_>>();
        assert_eq!(lens(vec![span(0, 10), span(2, 8), span(8, 10), span(10, 12)]), [4]);
        assert_eq!(lens(vec![span(0, 10), span(5, 15), span(10, 11)]), [2, 1]);
        assert_eq!(lens((0..100).map(|i| span(i, 1000 - i)).collect()), [DEPTH, 100 - DEPTH]);
    }
}
