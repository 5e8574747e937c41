//! The names of stacks.
//!
//! The first part of a name is the line that a user can change: the innermost frame outside torch, installed packages
//! and the standard library. If a library did the work below that line, a second part says which of its lines:
//! `train.py:26 step › modeling_gpt2.py:241 forward`. Library lines that several other lines call are helpers and say
//! little, so the name goes out to the caller of a helper.

use crate::stacks::{Frame, FrameId, StackId};
use crate::strings::StringId;
use crate::trace::Trace;
use rustc_hash::FxHashMap;

/// Stands between the parts of a name, the outer one first.
pub const INSIDE: &str = " › ";

/// The owner of a line's code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Origin {
    /// Outside everything below: code that a user can change.
    User,
    /// An installed package.
    Library,
    /// torch, the standard library, and code that Python generates.
    Internal,
    /// Not Python.
    Native,
}

impl Origin {
    /// The owner of `file`.
    #[must_use]
    pub fn of(file: &str) -> Origin {
        if !is_python(file) {
            Origin::Native
        } else if is_internal(file) {
            Origin::Internal
        } else if package_part(file).is_some() {
            Origin::Library
        } else if is_standard_library(file) {
            Origin::Internal
        } else {
            Origin::User
        }
    }
}

/// The name of a stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StackLabel {
    /// `model.py:123 forward`, or two such parts.
    pub text: String,
    /// The whole path of the first part as recorded.
    pub file: String,
    pub function: String,
    pub line: u32,
    /// True if the first part is code that a user can change.
    pub user_code: bool,
}

/// The names of all stacks of one trace.
#[derive(Debug)]
pub struct Names<'t> {
    trace: &'t Trace,
    origins: Vec<Origin>,
    /// For each frame one of the frames that call it, and true if there are others.
    callers: FxHashMap<FrameId, (FrameId, bool)>,
}

impl<'t> Names<'t> {
    /// Reads every stack of `trace` once.
    #[must_use]
    pub fn of(trace: &'t Trace) -> Names<'t> {
        let mut known: FxHashMap<StringId, Origin> = FxHashMap::default();
        let origins = trace
            .frames
            .iter()
            .map(|frame| {
                *known.entry(frame.file).or_insert_with(|| Origin::of(trace.strings.get(frame.file)))
            })
            .collect();
        let mut names = Names { trace, origins, callers: FxHashMap::default() };
        for id in 1..trace.stacks.len() as u32 {
            let lines = names.lines(StackId(id));
            for pair in lines.windows(2) {
                let caller = names.callers.entry(pair[0]).or_insert((pair[1], false));
                caller.1 |= caller.0 != pair[1];
            }
        }
        names
    }

    #[must_use]
    pub fn origin(&self, frame: FrameId) -> Origin {
        self.origins.get(frame.0 as usize).copied().unwrap_or(Origin::Native)
    }

    /// The frames of a stack that are a user's or a library's, innermost first.
    fn lines(&self, stack: StackId) -> Vec<FrameId> {
        let frames = self.trace.stacks.get(stack).iter().copied();
        frames.filter(|&frame| self.origin(frame) <= Origin::Library).collect()
    }

    /// The frames that name a stack, the outer one first: one or two; none if no stack was recorded.
    #[must_use]
    pub fn parts(&self, stack: StackId) -> Vec<FrameId> {
        let lines = self.lines(stack);
        let user = lines.iter().position(|&frame| self.origin(frame) == Origin::User);
        let library = &lines[..user.unwrap_or(lines.len())];
        let is_helper = |frame: &FrameId| self.callers.get(frame).is_some_and(|&(_, several)| several);
        // A library line with one caller tells its caller too. If every line has several, the innermost says most.
        let inner = library.iter().find(|frame| !is_helper(frame)).or(library.first());
        let parts: Vec<FrameId> = user.map(|at| lines[at]).into_iter().chain(inner.copied()).collect();
        if !parts.is_empty() {
            return parts;
        }
        let frames = self.trace.stacks.get(stack);
        let python = frames.iter().find(|&&frame| self.origin(frame) == Origin::Internal);
        python.or(frames.first()).copied().into_iter().collect()
    }

    /// The name of a stack; `None` if no stack was recorded.
    #[must_use]
    pub fn label(&self, stack: StackId) -> Option<StackLabel> {
        let parts = self.parts(stack);
        let &first = parts.first()?;
        let frame = self.trace.frames.get(first);
        let text: Vec<String> = parts.iter().map(|&part| self.text(part)).collect();
        Some(StackLabel {
            text: text.join(INSIDE),
            file: self.trace.strings.get(frame.file).to_owned(),
            function: self.trace.strings.get(frame.name).to_owned(),
            line: frame.line,
            user_code: self.origin(first) == Origin::User,
        })
    }

    /// One frame as text.
    #[must_use]
    pub fn text(&self, frame: FrameId) -> String {
        let Frame { name, file, line } = self.trace.frames.get(frame);
        line_text(self.trace.strings.get(name), self.trace.strings.get(file), line)
    }

    /// For each of several stacks of one name, a frame that the others do not have: `(outer, text)`, `outer` if it lies
    /// outside the name. `None` for a stack without such a frame.
    #[must_use]
    pub fn apart(&self, stacks: &[StackId]) -> Vec<Option<(bool, String)>> {
        let mut seen: FxHashMap<FrameId, usize> = FxHashMap::default();
        for &stack in stacks {
            let mut frames = self.trace.stacks.get(stack).to_vec();
            frames.sort_unstable();
            frames.dedup();
            for frame in frames {
                *seen.entry(frame).or_default() += 1;
            }
        }
        let own = |stack: &StackId| {
            let frames = self.trace.stacks.get(*stack);
            let last = *self.parts(*stack).last()?;
            let named = frames.iter().position(|&frame| frame == last)?;
            let alone = |at: &usize| seen[&frames[*at]] < stacks.len() && !self.text(frames[*at]).is_empty();
            let outer = (named + 1..frames.len()).find(alone);
            let inner = (0..named).find(|at| alone(at) && self.origin(frames[*at]) != Origin::Native);
            // The nearest library or user line outside says most, then the innermost line of torch inside.
            let outside = outer.filter(|&at| self.origin(frames[at]) <= Origin::Library);
            let at = outside.or(inner).or(outer)?;
            Some((at > named, self.text(frames[at])))
        };
        stacks.iter().map(own).collect()
    }
}

/// The name of one stack; `None` if no stack was recorded. Use [`Names`] for many.
#[must_use]
pub fn stack_label(trace: &Trace, stack: StackId) -> Option<StackLabel> {
    if stack.is_none() { None } else { Names::of(trace).label(stack) }
}

/// The line of a stack (innermost first) that names it, by the file of each: the innermost outside torch, else the
/// innermost of Python, else the innermost.
pub fn naming_line<'a, T: 'a>(
    lines: impl Iterator<Item = T> + Clone,
    file: impl Fn(&T) -> &'a str,
) -> Option<T> {
    let find = |wanted: &dyn Fn(&str) -> bool| lines.clone().find(|line| wanted(file(line)));
    find(&|file| is_python(file) && !is_internal(file))
        .or_else(|| find(&is_python))
        .or_else(|| find(&|_| true))
}

/// A line as text: `model.py:123 forward`.
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

/// The path behind the folder of installed packages; `None` outside of one. A folder further up (a virtual environment
/// that is called torch) does not count.
fn package_part(file: &str) -> Option<&str> {
    let folders = ["/site-packages/", "/dist-packages/", "\\site-packages\\", "\\dist-packages\\"];
    let at = folders.iter().filter_map(|folder| file.rfind(folder).map(|at| at + folder.len())).max()?;
    Some(&file[at..])
}

/// Inside an installation of Python: `/usr/lib/python3.12/threading.py`, `C:\Python312\Lib\threading.py`.
fn is_standard_library(file: &str) -> bool {
    file.contains("/lib/python3")
        || (file.contains("\\Lib\\") && file.to_ascii_lowercase().contains("\\python3"))
}

/// Inside torch or another library that asks for memory on a user's behalf, the interpreter's import machinery or the
/// standard library's plumbing: code that users do not change.
fn is_internal(file: &str) -> bool {
    const PACKAGES: [&str; 10] = [
        "torch/",
        "torch_",
        "functorch/",
        "triton/",
        "torch\\",
        "functorch\\",
        "triton\\",
        "cupy/",
        "numba/",
        "numba_cuda/",
    ];
    const INSIDE_TORCH: [&str; 7] = [
        "/torch/nn/",
        "/torch/optim/",
        "/torch/autograd/",
        "/torch/utils/",
        "/torch/cuda/",
        "/torch/distributed/",
        "/torch/_",
    ];
    // With our own, through which CuPy and Numba allocate and named modules are called.
    const PLUMBING: [&str; 7] = [
        "/contextlib.py",
        "/functools.py",
        "/gapless/_library.py",
        "/gapless/_memory.py",
        "/gapless/_modules.py",
        "/gapless/cupy.py",
        "/gapless/numba.py",
    ];
    if file.starts_with("<frozen") || file.starts_with("<eval_with_key>") {
        return true;
    }
    if PLUMBING.iter().any(|part| file.ends_with(part)) {
        return true;
    }
    match package_part(file) {
        Some(inside) => PACKAGES.iter().any(|package| inside.starts_with(package)),
        None => file.starts_with("torch/") || INSIDE_TORCH.iter().any(|folder| file.contains(folder)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Run;

    #[test]
    fn a_stack_is_named_after_the_innermost_line_of_the_user() {
        let mut run = Run::new();
        type Case<'a> = (&'a [(&'a str, &'a str, u32)], &'a str, bool);
        let cases: [Case; 9] = [
            (
                &[
                    ("allocate", "/v/site-packages/gapless/_memory.py", 40),
                    ("device_array", "/v/site-packages/numba_cuda/numba/cuda/api.py", 9),
                    ("main", "/home/u/sums.py", 4),
                ],
                "sums.py:4 main",
                true,
            ),
            (
                &[
                    ("linear", "/v/site-packages/torch/nn/functional.py", 9),
                    ("call", "/home/u/gapless/python/gapless/_modules.py", 400),
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
                false,
            ),
            (
                &[
                    ("forward", "C:\\py\\Lib\\site-packages\\timm\\vit.py", 5),
                    ("run", "/usr/lib/python3.12/threading.py", 99),
                    ("main", "C:\\me\\train.py", 7),
                ],
                "train.py:7 main › vit.py:5 forward",
                true,
            ),
            (&[("run", "/usr/lib/python3.12/threading.py", 99)], "threading.py:99 run", false),
        ];
        for (frames, text, user_code) in cases {
            run.set_stack(frames);
            let label = stack_label(&run.trace, run.stack).expect("a stack");
            assert_eq!((label.text.as_str(), label.user_code), (text, user_code));
        }
        assert_eq!(stack_label(&run.trace, StackId::NONE), None);
    }

    /// The shape of a recorded run: `pytorch_utils.py:119` is called from three lines of the model.
    #[test]
    fn a_helper_of_a_library_does_not_name_what_its_callers_hold() {
        const LIBRARY: &str = "/v/lib/python3.12/site-packages/transformers/";
        let mut run = Run::new();
        let mut stack = |inner: &[(&str, u32)]| {
            let files: Vec<(String, u32)> =
                inner.iter().map(|&(file, line)| (format!("{LIBRARY}{file}"), line)).collect();
            let mut frames: Vec<(&str, &str, u32)> =
                files.iter().map(|(file, line)| ("forward", file.as_str(), *line)).collect();
            frames.insert(1, ("_call_impl", "/v/lib/python3.12/site-packages/torch/nn/modules/module.py", 1));
            frames.push(("step", "train.py", 26));
            run.set_stack(&frames);
            run.stack
        };
        let stacks: Vec<StackId> = [185, 239, 241]
            .map(|line| stack(&[("pytorch_utils.py", 119), ("gpt2.py", line), ("gpt2.py", 608)]))
            .to_vec();
        let act = stack(&[("activations.py", 66), ("gpt2.py", 240), ("gpt2.py", 608)]);
        let names = Names::of(&run.trace);
        let text = |stack| names.label(stack).expect("a stack").text;
        assert_eq!(
            stacks.iter().map(|&s| text(s)).collect::<Vec<_>>(),
            [185, 239, 241].map(|line| format!("train.py:26 step › gpt2.py:{line} forward"))
        );
        assert_eq!(text(act), "train.py:26 step › activations.py:66 forward");
    }

    #[test]
    fn stacks_of_one_name_are_told_apart_by_the_nearest_frame_that_differs() {
        let mut run = Run::new();
        let mut stack = |line: u32, outer: u32| {
            run.set_stack(&[
                ("_init_group", "torch/optim/adam.py", line),
                ("step", "train.py", 27),
                ("main", "train.py", outer),
            ]);
            run.stack
        };
        let (a, b, c) = (stack(178, 215), stack(182, 215), stack(178, 300));
        let names = Names::of(&run.trace);
        let said = |outer, text: &str| Some((outer, text.to_owned()));
        assert_eq!(
            names.apart(&[a, b]),
            [said(false, "adam.py:178 _init_group"), said(false, "adam.py:182 _init_group")]
        );
        assert_eq!(names.apart(&[a, c]), [said(true, "train.py:215 main"), said(true, "train.py:300 main")]);
        assert_eq!(names.apart(&[a]), [None], "alone there is nothing to tell it from");
    }
}
