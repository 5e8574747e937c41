//! Who holds memory at an instant, and how a stack is called.
//!
//! A stack is named after the line that a user can change: the innermost frame of Python that is not inside torch.
//! Without stacks, blocks of one size and kind are one holder. If the program noted the modules of its blocks, a module
//! splits a holder, and names it; layers of a model count as one module.

use crate::block_notes::pattern;
use crate::history::{AllocationId, History};
use crate::kinds::{ByKind, Kind, Kinds};
use crate::stacks::{Frame, StackId};
use crate::strings::StringId;
use crate::trace::Trace;
use crate::words::{Bytes, Tick};
use rustc_hash::FxHashMap;

/// How allocations become holders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grouping {
    /// By stack; those without one by size and kind.
    Stack,
    /// By size and kind, whatever the stack.
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
    /// For people: `model.py:123 forward`, or `1.50 GiB blocks x 3 (activations)`; a module stands first.
    pub label: String,
    /// The module that the program noted, with `*` for the numbers of layers; empty: none.
    pub module: String,
    /// Distinct notes of its blocks, at most [`MOST_NOTES`], as they came.
    pub notes: Vec<StringId>,
    /// How many of its blocks have a note.
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

/// The largest holders at an instant, and what the others hold.
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
        let at = *index.entry((key, module)).or_insert_with(|| {
            groups.push(Holder {
                bytes: Bytes::ZERO,
                requested: Bytes::ZERO,
                count: 0,
                kinds: ByKind::default(),
                stack: if matches!(key, Key::Size(..)) { StackId::NONE } else { allocation.stack },
                label: String::new(),
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
    for holder in &mut groups {
        holder.label = match stack_label(trace, holder.stack) {
            Some(label) if holder.module.is_empty() => label.text,
            Some(label) => format!("{} · {}", holder.module, label.text),
            None if !holder.module.is_empty() => {
                format!("{} ({})", holder.module, holder.main_kind().name())
            }
            None => {
                let (size, kind) = (a.get(holder.example).block, holder.main_kind().name());
                match holder.count {
                    1 => format!("{size} block ({kind})"),
                    count => format!("{size} blocks x {count} ({kind})"),
                }
            }
        };
        // One note on all of the blocks says what they are. Records for programs stay out of labels.
        if let [note] = holder.notes[..]
            && holder.module.is_empty()
            && holder.noted == holder.count
            && !trace.strings.get(note).starts_with(['{', '['])
        {
            let note: String = trace.strings.get(note).chars().take(LONGEST_NOTE).collect();
            holder.label = format!("{} · {note:?}", holder.label);
        }
    }
    Holders {
        tick,
        largest: groups,
        others: rest.len(),
        other_bytes: rest.iter().map(|h| h.bytes).sum(),
        total,
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

/// How a stack is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StackLabel {
    /// `model.py:123 forward`.
    pub text: String,
    /// The whole path as recorded.
    pub file: String,
    pub function: String,
    pub line: u32,
    /// Whether the frame is outside torch: code that a user can change.
    pub user_code: bool,
}

/// The name of a stack; `None` where no stack was recorded.
#[must_use]
pub fn stack_label(trace: &Trace, stack: StackId) -> Option<StackLabel> {
    let frame = naming_frame(trace, stack)?;
    let (file, name) = (trace.strings.get(frame.file), trace.strings.get(frame.name));
    Some(StackLabel {
        text: line_text(name, file, frame.line),
        file: file.to_owned(),
        function: name.to_owned(),
        line: frame.line,
        user_code: is_python(file) && !is_internal(file),
    })
}

/// The innermost frame of user code, else the innermost of Python, else the innermost.
fn naming_frame(trace: &Trace, stack: StackId) -> Option<Frame> {
    let frames = trace.stacks.get(stack);
    naming_line(frames.iter().map(|&id| trace.frames.get(id)), |frame| trace.strings.get(frame.file))
}

/// The line of a stack (innermost first) that names it, by the file of each.
pub fn naming_line<'a, T: 'a>(
    lines: impl Iterator<Item = T> + Clone,
    file: impl Fn(&T) -> &'a str,
) -> Option<T> {
    let find = |wanted: &dyn Fn(&str) -> bool| lines.clone().find(|line| wanted(file(line)));
    find(&|file| is_python(file) && !is_internal(file))
        .or_else(|| find(&is_python))
        .or_else(|| find(&|_| true))
}

/// How a line is shown: `model.py:123 forward`.
#[must_use]
pub fn line_text(function: &str, file: &str, line: u32) -> String {
    let short = file.rsplit(['/', '\\']).next().unwrap_or(file);
    match (short.is_empty(), line) {
        (true, _) => function.to_owned(),
        (false, 0) => format!("{short} {function}"),
        (false, line) => format!("{short}:{line} {function}"),
    }
}

/// Files of Python, and the names that Python gives to code without one (`<stdin>`, `<ipython-input-3>`).
fn is_python(file: &str) -> bool {
    file.ends_with(".py") || file.ends_with(".pyx") || (file.starts_with('<') && file.ends_with('>'))
}

/// Inside torch, the interpreter's import machinery or the standard library's plumbing: nothing a user would change.
fn is_internal(file: &str) -> bool {
    const PACKAGES: [&str; 4] = ["torch/", "torch_", "functorch/", "triton/"];
    const INSIDE_TORCH: [&str; 7] = [
        "/torch/nn/",
        "/torch/optim/",
        "/torch/autograd/",
        "/torch/utils/",
        "/torch/cuda/",
        "/torch/distributed/",
        "/torch/_",
    ];
    const PLUMBING: [&str; 2] = ["/contextlib.py", "/functools.py"];
    if file.starts_with("<frozen") || file.starts_with("<eval_with_key>") {
        return true;
    }
    if PLUMBING.iter().any(|part| file.ends_with(part)) {
        return true;
    }
    // A package is named right behind the folder of packages; a folder further up (a virtual environment that is called
    // torch) says nothing.
    let folders = ["/site-packages/", "/dist-packages/"];
    match folders.iter().filter_map(|folder| file.rfind(folder).map(|at| at + folder.len())).max() {
        Some(at) => PACKAGES.iter().any(|package| file[at..].starts_with(package)),
        None => file.starts_with("torch/") || INSIDE_TORCH.iter().any(|folder| file.contains(folder)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds;
    use crate::steps;
    use crate::testing::{Run, Training};

    #[test]
    fn a_stack_is_named_after_the_innermost_line_of_the_user() {
        let mut run = Run::new();
        type Case<'a> = (&'a [(&'a str, &'a str, u32)], &'a str, bool);
        let cases: [Case; 6] = [
            (
                &[
                    ("linear", "/v/site-packages/torch/nn/functional.py", 9),
                    ("forward", "/home/u/model.py", 123),
                    ("main", "/home/u/train.py", 4),
                ],
                "model.py:123 forward",
                true,
            ),
            (
                &[("at::empty", "/b/EmptyTensor.cpp", 7), ("f", "torch/x.py", 3), ("main", "t.py", 4)],
                "t.py:4 main",
                true,
            ),
            (
                &[("_engine_run_backward", "torch/autograd/graph.py", 800)],
                "graph.py:800 _engine_run_backward",
                false,
            ),
            (&[("at::empty", "??", 0)], "?? at::empty", false),
            (&[("<module>", "<stdin>", 1)], "<stdin>:1 <module>", true),
            (
                &[
                    ("call", "/opt/torch/.venv/site-packages/torch/m.py", 1),
                    ("forward", "/opt/torch/.venv/site-packages/transformers/models/gpt2.py", 5),
                ],
                "gpt2.py:5 forward",
                true,
            ),
        ];
        for (frames, text, user_code) in cases {
            run.set_stack(frames);
            let label = stack_label(&run.trace, run.stack).expect("a stack");
            assert_eq!((label.text.as_str(), label.user_code), (text, user_code));
        }
        assert_eq!(stack_label(&run.trace, StackId::NONE), None);
    }

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
                let holders = at(&trace, &history, &kinds, peak, 3, grouping);
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
            let by_stack = at(&trace, &history, &kinds, peak, 10, Grouping::Stack);
            let labels: Vec<&str> = by_stack.largest.iter().map(|h| h.label.as_str()).collect();
            if stacks {
                assert!(labels.contains(&"train.py:10 build"), "{labels:?}");
            } else {
                assert!(labels.contains(&"9.77 MiB blocks x 2 (optimizer state)"), "{labels:?}");
            }
        }
    }
}
