//! From two analyses to their difference.

use super::{Change, DeviceDiff, Diff, HolderDiff, MomentDiff, SCHEMA, StepsDiff};
use crate::analysis::{Analysis, DeviceAnalysis};
use crate::assemble;
use crate::model::KindBytes;
use gapless_trace::{StackId, Tick, Trace};
use std::collections::BTreeMap;

/// Compares the run `after` with the run `before`.
#[must_use]
pub fn compare(before: &Analysis<'_>, before_name: &str, after: &Analysis<'_>, after_name: &str) -> Diff {
    let mut devices = Vec::new();
    let mut unmatched = Vec::new();
    // One process may see its only card under another number.
    let only = match (before.devices.as_slice(), after.devices.as_slice()) {
        ([old], [_]) => Some(old),
        _ => None,
    };
    for new in &after.devices {
        let same = before.devices.iter().find(|old| old.device.device == new.device.device);
        match same.or(only) {
            Some(old) => devices.push(compare_device((before.trace, old), (after.trace, new))),
            None => unmatched.push(new.device.device),
        }
    }
    let matched = |device: u32| only.is_some() || after.devices.iter().any(|d| d.device.device == device);
    unmatched.extend(before.devices.iter().map(|d| d.device.device).filter(|&d| !matched(d)));
    unmatched.sort_unstable();
    Diff {
        schema: SCHEMA,
        before: before_name.to_owned(),
        after: after_name.to_owned(),
        devices,
        settings: settings(before.trace, after.trace),
        unmatched_devices: unmatched,
    }
}

/// Frames, from the innermost, that two stacks must share to count as one.
const INNER_FRAMES: usize = 8;

type Run<'a, 't> = (&'t Trace, &'a DeviceAnalysis<'t>);

fn compare_device(before: Run<'_, '_>, after: Run<'_, '_>) -> DeviceDiff {
    let (old, new) = (before.1, after.1);
    let known = |run: &DeviceAnalysis<'_>, peak: u64| run.history.has_segments.then_some(peak);
    let (a, b) = (&old.history.usage, &new.history.usage);
    let change =
        |name: &str, before: Option<u64>, after: Option<u64>| Change { name: name.to_owned(), before, after };
    let peaks = vec![
        change("reserved", known(old, a.reserved.peak.0), known(new, b.reserved.peak.0)),
        change("allocated", Some(a.allocated.peak.0), Some(b.allocated.peak.0)),
        change("active", Some(a.active.peak.0), Some(b.active.peak.0)),
        change("requested", Some(a.requested.peak.0), Some(b.requested.peak.0)),
        change("live", Some(a.live.peak.0), Some(b.live.peak.0)),
    ];
    let steps = steps(old, new);
    let (what, ticks) = moment(old, new, &steps);
    let kinds = assemble::kinds_at(old, ticks.0)
        .rows()
        .into_iter()
        .zip(assemble::kinds_at(new, ticks.1).rows())
        .enumerate()
        // Kinds of compiled programs only where one is compared.
        .filter(|&(i, ((_, before), (_, after)))| i < KindBytes::USUAL || before.max(after) > 0)
        .map(|(_, ((name, before), (_, after)))| Change { name: name.to_owned(), before, after })
        .collect();
    let slope = |run: &DeviceAnalysis<'_>| run.growth.as_ref().map(|g| g.slope);
    DeviceDiff {
        device: new.device.device,
        peaks,
        fragmentation: Change {
            name: "fragmentation".to_owned(),
            before: a.fragmentation(),
            after: b.fragmentation(),
        },
        growth_per_step: Change { name: "growth per step".to_owned(), before: slope(old), after: slope(new) },
        steps,
        moment: MomentDiff {
            what,
            before: assemble::when(old, ticks.0),
            after: assemble::when(new, ticks.1),
        },
        kinds,
        holders: holders((before.0, old, ticks.0), (after.0, new, ticks.1)),
    }
}

fn steps(old: &DeviceAnalysis<'_>, new: &DeviceAnalysis<'_>) -> StepsDiff {
    let peaks = old
        .step_peaks
        .iter()
        .zip(&new.step_peaks)
        .enumerate()
        .map(|(i, (a, b))| Change { name: format!("step {i}"), before: a.bytes.0, after: b.bytes.0 })
        .collect();
    StepsDiff { before: old.step_peaks.len() as u64, after: new.step_peaks.len() as u64, peaks }
}

/// The moments to look at: the common step in which the new run needs most, or each run's own peak.
fn moment(old: &DeviceAnalysis<'_>, new: &DeviceAnalysis<'_>, steps: &StepsDiff) -> (String, (Tick, Tick)) {
    // The first of equals: a steady state is compared where it began.
    let largest = (0..steps.peaks.len()).rev().max_by_key(|&i| steps.peaks[i].after);
    match largest {
        Some(i) => (format!("step {i}"), (old.step_peaks[i].at, new.step_peaks[i].at)),
        None => {
            let peak = |run: &DeviceAnalysis<'_>| run.history.usage.allocated.peak_at;
            ("each run's own peak".to_owned(), (peak(old), peak(new)))
        }
    }
}

/// The allocations of one holder in one run.
#[derive(Clone, Debug, Default)]
struct Side {
    bytes: u64,
    count: u64,
    /// Of its largest allocation.
    kind: &'static str,
    largest: u64,
    label: String,
}

impl Side {
    fn add(&mut self, other: Side) {
        self.bytes += other.bytes;
        self.count += other.count;
        if other.largest > self.largest {
            self.largest = other.largest;
            self.kind = other.kind;
            self.label = other.label;
        }
    }
}

fn holders(
    before: (&Trace, &DeviceAnalysis<'_>, Tick),
    after: (&Trace, &DeviceAnalysis<'_>, Tick),
) -> Vec<HolderDiff> {
    // Stacks can be compared only if both runs have them.
    let by_stack = !before.0.stacks.is_empty() && !after.0.stacks.is_empty();
    let mut sides: BTreeMap<String, [Side; 2]> = BTreeMap::new();
    for (i, (trace, run, tick)) in [before, after].into_iter().enumerate() {
        for (key, side) in grouped(trace, run, tick, by_stack) {
            sides.entry(key).or_default()[i] = side;
        }
    }
    if by_stack {
        sides = match_inner_frames(sides);
    }
    let mut rows: Vec<HolderDiff> = sides
        .into_values()
        .filter(|[a, b]| a.bytes != b.bytes)
        .map(|[a, b]| HolderDiff {
            label: if b.bytes > 0 { b.label } else { a.label },
            kind: if b.bytes > 0 { b.kind } else { a.kind }.to_owned(),
            before: a.bytes,
            after: b.bytes,
            before_count: a.count,
            after_count: b.count,
            change: b.bytes as i64 - a.bytes as i64,
        })
        .collect();
    rows.sort_by(|a, b| {
        b.change.unsigned_abs().cmp(&a.change.unsigned_abs()).then_with(|| a.label.cmp(&b.label))
    });
    rows
}

/// Stacks without a counterpart are matched once more by their inner frames: another script may run the same model.
fn match_inner_frames(sides: BTreeMap<String, [Side; 2]>) -> BTreeMap<String, [Side; 2]> {
    let mut matched: BTreeMap<String, [Side; 2]> = BTreeMap::new();
    for (key, pair) in sides {
        let whole = pair.iter().all(|side| side.count > 0);
        // A name and a file for each frame.
        let key = if whole {
            key
        } else {
            let inner: Vec<&str> = key.split('\0').take(2 * INNER_FRAMES).collect();
            format!("inner\0{}", inner.join("\0"))
        };
        let known = matched.entry(key).or_default();
        for (known, side) in known.iter_mut().zip(pair) {
            known.add(side);
        }
    }
    matched
}

/// Active allocations at `tick` by a key that any run has: the functions and files of the stack, or kind and size.
fn grouped(trace: &Trace, run: &DeviceAnalysis<'_>, tick: Tick, by_stack: bool) -> BTreeMap<String, Side> {
    let mut keys: BTreeMap<StackId, (String, String)> = BTreeMap::new();
    let mut groups: BTreeMap<String, Side> = BTreeMap::new();
    for id in run.history.allocations.active_at(tick) {
        let allocation = run.history.allocations.get(id);
        let kind = run.kinds.of(id).name();
        let (key, label) = if by_stack && !allocation.stack.is_none() {
            keys.entry(allocation.stack).or_insert_with(|| stack_key(trace, allocation.stack)).clone()
        } else {
            // The requested size, because the size after rounding depends on the settings.
            let label = format!("requests of {}", allocation.requested);
            (format!("{kind}\0{}", allocation.requested.0), label)
        };
        let side = groups.entry(key).or_insert_with(|| Side { label, ..Side::default() });
        side.bytes += allocation.block.0;
        side.count += 1;
        if allocation.block.0 > side.largest {
            side.largest = allocation.block.0;
            side.kind = kind;
        }
    }
    groups
}

/// The functions and files of a stack, innermost first, and its label.
fn stack_key(trace: &Trace, stack: StackId) -> (String, String) {
    let mut key = String::new();
    for &frame in trace.stacks.get(stack) {
        let frame = trace.frames.get(frame);
        key.push_str(trace.strings.get(frame.name));
        key.push('\0');
        key.push_str(trace.strings.get(frame.file));
        key.push('\0');
    }
    let label =
        gapless_trace::holders::stack_label(trace, stack).map_or_else(String::new, |label| label.text);
    (key, label)
}

fn settings(before: &Trace, after: &Trace) -> Vec<Change<String>> {
    let (Some(a), Some(b)) = (&before.settings, &after.settings) else { return Vec::new() };
    let limit = |bytes: Option<gapless_trace::Bytes>| bytes.map_or("unlimited".to_owned(), |b| b.to_string());
    let rows = [
        ("configuration", a.conf.clone(), b.conf.clone()),
        ("expandable_segments", a.expandable_segments.to_string(), b.expandable_segments.to_string()),
        ("max_split_size", limit(a.max_split_size), limit(b.max_split_size)),
        (
            "garbage_collection_threshold",
            a.garbage_collection_threshold.to_string(),
            b.garbage_collection_threshold.to_string(),
        ),
    ];
    rows.into_iter()
        .filter(|(_, before, after)| before != after)
        .map(|(name, before, after)| Change { name: name.to_owned(), before, after })
        .collect()
}
