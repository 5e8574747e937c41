//! The holders of memory at an instant. Without stacks, blocks of one size and kind are one holder.
//!
//! If the program noted the modules of its blocks, a module splits a holder, and names it; layers of a model count as
//! one module.
//!
//! Promise: the holders of one list have different labels.

use crate::allocations::AllocationId;
use crate::block_notes::pattern;
use crate::history::History;
use crate::kinds::{ByKind, Kind, Kinds};
use crate::naming::{INSIDE, Names};
use crate::scopes::Paths;
use crate::stacks::{Frame, StackId};
use crate::strings::StringId;
use crate::trace::{DeviceTrace, Trace};
use crate::words::{Bytes, Tick};
use rustc_hash::FxHashMap;

pub use crate::naming::{StackLabel, line_text, naming_line, stack_label};

/// The rule by which allocations become holders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grouping {
    /// By stack; those without one by size and kind.
    Stack,
    /// By size and kind, also if there are stacks.
    Size,
    /// By the line that names the stack: stacks that differ elsewhere are one holder.
    Line,
}

/// A group of allocations that are active at one instant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Block bytes.
    pub bytes: Bytes,
    pub requested: Bytes,
    pub count: usize,
    /// Block bytes by kind.
    pub kinds: ByKind,
    /// The stack, or one of them; [`StackId::NONE`] for a group by size.
    pub stack: StackId,
    /// Text for people: `model.py:123 forward`, or `1.50 GiB blocks x 3 (activations)`; a module stands first.
    pub label: String,
    /// The scopes that were open when all of its blocks were allocated, the outermost first.
    pub scope: Vec<StringId>,
    /// The module that the program noted, with `*` for the numbers of layers; empty: none.
    pub module: String,
    /// Distinct notes of its blocks, at most [`MOST_NOTES`], as they came.
    pub notes: Vec<StringId>,
    /// Number of its blocks that have a note.
    pub noted: usize,
    /// The largest allocation of the group, the earliest of equals.
    pub example: AllocationId,
}

impl Holder {
    /// The kind that most of the bytes have.
    #[must_use]
    pub fn main_kind(&self) -> Kind {
        // The first of equals.
        Kind::ALL.into_iter().rev().max_by_key(|&k| self.kinds[k as usize]).unwrap_or(Kind::Unexplained)
    }
}

/// Notes that a holder lists at most.
pub const MOST_NOTES: usize = 8;

/// Characters of a note that a label shows.
const LONGEST_NOTE: usize = 60;

/// The largest holders at an instant, and the sum of the others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holders {
    pub tick: Tick,
    /// The most bytes first.
    pub largest: Vec<Holder>,
    /// Groups that are not listed, and their block bytes.
    pub others: usize,
    pub other_bytes: Bytes,
    /// All active block bytes.
    pub total: Bytes,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Key {
    Stack(u32),
    Line(Frame),
    Size(u64, Kind),
    /// Blocks without a stack, by the number of their module.
    Module,
}

/// The `n` largest holders at `tick`.
#[must_use]
pub fn at(
    trace: &Trace,
    device: &DeviceTrace,
    history: &History,
    kinds: &Kinds,
    tick: Tick,
    n: usize,
    grouping: Grouping,
) -> Holders {
    let a = &history.allocations;
    let mut index: FxHashMap<(Key, u32), usize> = FxHashMap::default();
    let mut modules = Modules::default();
    let mut lines: FxHashMap<u32, Option<Frame>> = FxHashMap::default();
    let mut groups: Vec<Holder> = Vec::new();
    let mut total = Bytes::ZERO;
    let paths = Paths::of(trace, device);
    for id in a.active_at(tick) {
        let allocation = a.get(id);
        let kind = kinds.of(id);
        let module = if grouping == Grouping::Size { 0 } else { modules.of(trace, history, id) };
        let by_size = if module > 0 { Key::Module } else { Key::Size(allocation.block.0, kind) };
        let key = match grouping {
            _ if allocation.stack.is_none() => by_size,
            Grouping::Size => by_size,
            Grouping::Stack => Key::Stack(allocation.stack.0),
            Grouping::Line => lines
                .entry(allocation.stack.0)
                .or_insert_with(|| naming_frame(trace, allocation.stack))
                .map_or(Key::Stack(allocation.stack.0), Key::Line),
        };
        let scope = if paths.is_empty() { &[] } else { paths.at(device.events.time_at(allocation.start).0) };
        let at = *index.entry((key, module)).or_insert_with(|| {
            groups.push(Holder {
                bytes: Bytes::ZERO,
                requested: Bytes::ZERO,
                count: 0,
                kinds: ByKind::default(),
                stack: if matches!(key, Key::Size(..)) { StackId::NONE } else { allocation.stack },
                label: String::new(),
                scope: scope.to_vec(),
                module: modules.names[module as usize].clone(),
                notes: Vec::new(),
                noted: 0,
                example: id,
            });
            groups.len() - 1
        });
        let group = &mut groups[at];
        group.bytes += allocation.block;
        group.requested += allocation.requested;
        group.count += 1;
        group.scope.truncate(group.scope.iter().zip(scope).take_while(|(own, new)| own == new).count());
        group.kinds[kind as usize] += allocation.block;
        group.noted += usize::from(history.block_notes.get(id).next().is_some());
        for note in history.block_notes.get(id) {
            if group.notes.len() < MOST_NOTES && !group.notes.contains(&note) {
                group.notes.push(note);
            }
        }
        if allocation.block > a.get(group.example).block {
            group.example = id;
        }
        total += allocation.block;
    }
    groups.sort_by(|x, y| y.bytes.cmp(&x.bytes).then(x.example.cmp(&y.example)));
    let rest = groups.split_off(n.min(groups.len()));
    name(trace, history, &mut groups);
    Holders {
        tick,
        largest: groups,
        others: rest.len(),
        other_bytes: rest.iter().map(|h| h.bytes).sum(),
        total,
    }
}

/// Gives each holder its label, and adds a distinction to holders that share one.
fn name(trace: &Trace, history: &History, holders: &mut [Holder]) {
    let names = Names::of(trace);
    let size = |holder: &Holder| history.allocations.get(holder.example).block;
    for holder in holders.iter_mut() {
        let module = &holder.module;
        holder.label = match names.label(holder.stack) {
            Some(label) if module.is_empty() => label.text,
            Some(label) => format!("{module} · {}", label.text),
            None if !module.is_empty() => format!("{module} ({})", holder.main_kind().name()),
            None => {
                let (size, kind) = (size(holder), holder.main_kind().name());
                let scope: Vec<&str> = holder.scope.iter().map(|&name| trace.strings.get(name)).collect();
                let within =
                    if scope.is_empty() { String::new() } else { format!(" in {}", scope.join("/")) };
                match holder.count {
                    1 => format!("{size} block ({kind}){within}"),
                    count => format!("{size} blocks x {count} ({kind}){within}"),
                }
            }
        };
        // One note on all of the blocks describes them. Records for programs stay out of labels.
        if let [note] = holder.notes[..]
            && holder.module.is_empty()
            && holder.noted == holder.count
            && !trace.strings.get(note).starts_with(['{', '['])
        {
            let note: String = trace.strings.get(note).chars().take(LONGEST_NOTE).collect();
            holder.label = format!("{} · {note:?}", holder.label);
        }
    }
    for same in of_one_label(holders) {
        let stacks: Vec<StackId> = same.iter().map(|&i| holders[i].stack).collect();
        for (&i, frame) in same.iter().zip(names.apart(&stacks)) {
            let label = &mut holders[i].label;
            match frame {
                Some((true, outer)) => *label = format!("{outer}{INSIDE}{label}"),
                Some((false, inner)) => *label = format!("{label}{INSIDE}{inner}"),
                None => {}
            }
        }
    }
    for same in of_one_label(holders) {
        for i in same {
            let (size, each) = (size(&holders[i]), if holders[i].count == 1 { "" } else { " each" });
            holders[i].label += &format!(", {} B{each}", size.0);
        }
    }
    for same in of_one_label(holders) {
        for (number, i) in (1..).zip(same) {
            holders[i].label += &format!(", number {number}");
        }
    }
}

/// The modules that the program noted, numbered by first sight; 0 is none.
struct Modules {
    names: Vec<String>,
    numbers: FxHashMap<String, u32>,
}

impl Default for Modules {
    fn default() -> Self {
        Modules { names: vec![String::new()], numbers: FxHashMap::default() }
    }
}

impl Modules {
    fn of(&mut self, trace: &Trace, history: &History, id: AllocationId) -> u32 {
        if history.block_notes.is_empty() {
            return 0;
        }
        let Some(path) = history.block_notes.module(&trace.strings, id) else { return 0 };
        let name = pattern(path);
        if let Some(&number) = self.numbers.get(name.as_ref()) {
            return number;
        }
        let number = self.names.len() as u32;
        self.names.push(name.clone().into_owned());
        self.numbers.insert(name.into_owned(), number);
        number
    }
}

/// Holders that share a label, by label.
fn of_one_label(holders: &[Holder]) -> Vec<Vec<usize>> {
    let mut by_label: std::collections::BTreeMap<&str, Vec<usize>> = std::collections::BTreeMap::new();
    for (i, holder) in holders.iter().enumerate() {
        by_label.entry(&holder.label).or_default().push(i);
    }
    by_label.into_values().filter(|same| same.len() > 1).collect()
}

/// The innermost frame of user code, else the innermost of Python, else the innermost.
fn naming_frame(trace: &Trace, stack: StackId) -> Option<Frame> {
    let frames = trace.stacks.get(stack);
    naming_line(frames.iter().map(|&id| trace.frames.get(id)), |frame| trace.strings.get(frame.file))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds;
    use crate::steps;
    use crate::testing::{Run, Training};

    #[test]
    fn holders_add_up_to_what_is_active_however_they_are_grouped() {
        for stacks in [false, true] {
            let mut run = Run::new();
            Training { stacks, annotate: true, ..Training::default() }.run(&mut run);
            let (trace, history) = run.finish();
            let device = &trace.devices[0];
            let steps = steps::detect(&trace, device, &history);
            let kinds = kinds::infer(&trace, device, &history, &steps);
            let peak = history.usage.active.peak_at;
            for grouping in [Grouping::Stack, Grouping::Line, Grouping::Size] {
                let holders = at(&trace, device, &history, &kinds, peak, 3, grouping);
                let listed: Bytes = holders.largest.iter().map(|h| h.bytes).sum();
                assert_eq!(listed + holders.other_bytes, history.usage.active.peak);
                assert_eq!(holders.total, history.usage.active.peak);
                assert_eq!(holders.largest.len(), 3);
                assert!(holders.largest.windows(2).all(|w| w[0].bytes >= w[1].bytes));
                for holder in &holders.largest {
                    assert_eq!(holder.kinds.iter().copied().sum::<Bytes>(), holder.bytes);
                    assert!(!holder.label.is_empty());
                }
            }
            let by_stack = at(&trace, device, &history, &kinds, peak, 10, Grouping::Stack);
            let labels: Vec<&str> = by_stack.largest.iter().map(|h| h.label.as_str()).collect();
            if stacks {
                assert!(labels.contains(&"train.py:10 build"), "{labels:?}");
            } else {
                assert!(
                    labels.contains(&"9.77 MiB blocks x 2 (optimizer state) in Optimizer.step#AdamW.step"),
                    "{labels:?}"
                );
            }
        }
    }

    /// Two sizes that read the same, and one stack seen in two places of torch.
    #[test]
    fn holders_of_one_list_have_different_labels() {
        let mut run = Run::new();
        for size in [30 << 20, (30 << 20) + 512, (30 << 20) + 512] {
            run.alloc(size);
        }
        for line in [178, 182] {
            run.set_stack(&[("_init_group", "torch/optim/adam.py", line), ("step", "train.py", 27)]);
            run.alloc(1 << 20);
        }
        let (trace, history) = run.finish();
        let device = &trace.devices[0];
        let steps = steps::detect(&trace, device, &history);
        let kinds = kinds::infer(&trace, device, &history, &steps);
        let found = at(&trace, device, &history, &kinds, history.last_tick, 9, Grouping::Stack);
        let mut labels: Vec<&str> = found.largest.iter().map(|h| h.label.as_str()).collect();
        assert!(labels.contains(&"train.py:27 step › adam.py:182 _init_group"), "{labels:?}");
        assert!(labels.contains(&"train.py:27 step › adam.py:178 _init_group"), "{labels:?}");
        let count = labels.len();
        labels.sort_unstable();
        labels.dedup();
        assert_eq!(labels.len(), count, "{labels:?}");
    }
}
