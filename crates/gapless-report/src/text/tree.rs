//! `gapless report --tree`: the bytes at peak allocated as a tree of stacks, outermost line first, or of modules,
//! within the width of a line.
//!
//! Frames of torch and of the standard library are folded, except the innermost one of a stack. A line that has one
//! child of the same size stands on one row with it. Branches below 1 % are one row with their number and bytes. Blocks
//! without a stack are grouped by kind, then by block size; those of a module by kind. The root is the active bytes
//! then, as in the JSON.

use super::{BOLD, DIM, RESET, bytes, clean, percent, plural, shorten, width};
use crate::analysis::{Analysis, DeviceAnalysis};
use crate::modules::Members;
use gapless_trace::kinds::Kind;
use gapless_trace::naming::{INSIDE, Names, Origin};
use gapless_trace::stacks::FrameId;
use gapless_trace::{Bytes, StackId};
use rustc_hash::FxHashMap;
use std::fmt::Write;

/// Columns of bytes and share in front of a row.
const HEAD: usize = 17;
/// Rows of deeper levels are not indented further, so that there is room for their text.
const DEEPEST: usize = 16;
/// A branch below this part of the whole (one in 100) is folded.
const SMALLEST: u64 = 100;

/// The branches of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Branches {
    /// Lines of code, by the stacks that were recorded.
    Stacks,
    /// Modules, by the names that the program gave them.
    Modules,
}

/// The tree of every device.
#[must_use]
pub fn render(analysis: &Analysis<'_>, path: &str, branches: Branches) -> String {
    let mut out = format!("{BOLD}{}{RESET}\n", clean(path));
    let names = Names::of(analysis.trace);
    for d in &analysis.devices {
        let modules = || Members::of(analysis.trace, d).map(|members| Tree::of_modules(members, d));
        let (tree, lacks) = match branches {
            Branches::Modules => match modules() {
                Some(tree) => (tree, ""),
                None => (
                    Tree::of(&names, analysis, d),
                    "no modules have names (gapless.name_modules(model) gives them)",
                ),
            },
            Branches::Stacks => {
                let tree = Tree::of(&names, analysis, d);
                let lacks = if tree.has_stacks { "" } else { "no stacks were recorded" };
                (tree, lacks)
            }
        };
        device(&mut out, d, &tree, lacks);
    }
    out
}

fn device(out: &mut String, d: &DeviceAnalysis<'_>, tree: &Tree, lacks: &str) {
    let _ = writeln!(
        out,
        "\n{BOLD}Device {}{RESET}  {DIM}{} in use at peak allocated, {}{RESET}",
        d.device.device,
        bytes(tree.nodes[0].bytes),
        plural(tree.nodes[0].blocks, "block")
    );
    if tree.nodes[0].bytes == 0 {
        let _ = writeln!(out, "  {DIM}nothing was allocated{RESET}");
        return;
    }
    if !lacks.is_empty() {
        let _ = writeln!(
            out,
            "  {DIM}{lacks}: by {}{RESET}",
            if tree.has_stacks { "stack" } else { "kind (inferred), then by block size" }
        );
    }
    tree.render(out);
}

/// One line of the tree.
struct Node {
    text: String,
    bytes: u64,
    blocks: u64,
    children: Vec<usize>,
}

#[derive(Clone, PartialEq, Eq, Hash)]
enum Key {
    Frame(FrameId),
    Text(String),
}

/// Node 0 is the root.
struct Tree {
    nodes: Vec<Node>,
    index: FxHashMap<(usize, Key), usize>,
    has_stacks: bool,
    /// The branches are modules, and the leaves kinds.
    is_modules: bool,
}

impl Tree {
    fn of(names: &Names<'_>, analysis: &Analysis<'_>, d: &DeviceAnalysis<'_>) -> Tree {
        let mut tree = Tree::new();
        let mut stacks: FxHashMap<StackId, (u64, u64)> = FxHashMap::default();
        let mut sizes: FxHashMap<(Kind, u64), (u64, u64)> = FxHashMap::default();
        let allocations = &d.history.allocations;
        for id in allocations.active_at(d.history.usage.allocated.peak_at) {
            let a = allocations.get(id);
            let sum = if a.stack.is_none() {
                sizes.entry((d.kinds.of(id), a.block.0)).or_default()
            } else {
                stacks.entry(a.stack).or_default()
            };
            sum.0 += a.block.0;
            sum.1 += 1;
        }
        tree.has_stacks = !stacks.is_empty();
        for (stack, sum) in stacks {
            let path = frames(names, analysis.trace.stacks.get(stack));
            tree.add(sum, path.into_iter().map(|frame| (Key::Frame(frame), names.text(frame))));
        }
        for ((kind, size), sum) in sizes {
            let mut path = vec![kind.name().to_owned(), format!("blocks of {}", Bytes(size))];
            if tree.has_stacks {
                path.insert(0, "no stack recorded".to_owned());
            }
            tree.add(sum, texts(path));
        }
        tree.sort();
        tree
    }

    /// Layers are one branch. A module's own bytes stand below it, by kind.
    fn of_modules(mut members: Members<'_>, d: &DeviceAnalysis<'_>) -> Tree {
        let mut sums: FxHashMap<(Option<&str>, Kind), (u64, u64)> = FxHashMap::default();
        let allocations = &d.history.allocations;
        for id in allocations.active_at(d.history.usage.allocated.peak_at) {
            let sum = sums.entry((members.path(id), d.kinds.of(id))).or_default();
            sum.0 += allocations.get(id).block.0;
            sum.1 += 1;
        }
        let mut tree = Tree::new();
        tree.is_modules = true;
        for ((module, kind), sum) in sums {
            let path = module.map_or("outside all modules".to_owned(), |path| members.folded(path));
            let parts = path.split('.').chain([kind.name()]).map(str::to_owned);
            tree.add(sum, texts(parts.collect()));
        }
        tree.sort();
        tree
    }

    fn new() -> Tree {
        let root = Node { text: String::new(), bytes: 0, blocks: 0, children: Vec::new() };
        Tree { nodes: vec![root], index: FxHashMap::default(), has_stacks: false, is_modules: false }
    }

    /// The largest branches first.
    fn sort(&mut self) {
        for at in 0..self.nodes.len() {
            let mut children = std::mem::take(&mut self.nodes[at].children);
            children.sort_by(|&a, &b| {
                let (a, b) = (&self.nodes[a], &self.nodes[b]);
                b.bytes.cmp(&a.bytes).then_with(|| a.text.cmp(&b.text))
            });
            self.nodes[at].children = children;
        }
    }

    fn add(&mut self, (bytes, blocks): (u64, u64), path: impl Iterator<Item = (Key, String)>) {
        let mut at = 0;
        self.nodes[0].bytes += bytes;
        self.nodes[0].blocks += blocks;
        for (key, text) in path {
            let next = self.nodes.len();
            let child = *self.index.entry((at, key)).or_insert(next);
            if child == next {
                self.nodes.push(Node { text, bytes: 0, blocks: 0, children: Vec::new() });
                self.nodes[at].children.push(next);
            }
            self.nodes[child].bytes += bytes;
            self.nodes[child].blocks += blocks;
            at = child;
        }
    }

    /// Rows from the root on. A list of pending rows replaces recursion, because recorded stacks may be deep.
    fn render(&self, out: &mut String) {
        enum Row {
            Node(usize, usize),
            Folded { branches: usize, bytes: u64, depth: usize },
        }
        let whole = self.nodes[0].bytes;
        let mut to_do: Vec<Row> = vec![Row::Node(0, 0)];
        while let Some(row) = to_do.pop() {
            let (at, depth) = match row {
                Row::Node(at, depth) => (at, depth),
                Row::Folded { branches, bytes, depth } => {
                    let branches = plural(branches as u64, "branch");
                    line(out, whole, bytes, depth, &format!("{branches} below 1 %"), DIM);
                    continue;
                }
            };
            let (last, text) = self.chain(at, width() - HEAD - indent(depth));
            line(out, whole, self.nodes[at].bytes, depth, &text, "");
            let children = &self.nodes[last].children;
            let large = |&&child: &&usize| self.nodes[child].bytes.saturating_mul(SMALLEST) >= whole;
            let shown: Vec<usize> = children.iter().filter(large).copied().collect();
            let folded = children.len() - shown.len();
            if folded > 0 {
                let held: u64 = shown.iter().map(|&child| self.nodes[child].bytes).sum();
                let all: u64 = children.iter().map(|&child| self.nodes[child].bytes).sum();
                to_do.push(Row::Folded { branches: folded, bytes: all - held, depth: depth + 1 });
            }
            to_do.extend(shown.into_iter().rev().map(|child| Row::Node(child, depth + 1)));
        }
    }

    /// The node where the chain of single children of one size ends, and the text of the chain. If both ends do not
    /// fit into `room`, the first one goes without its function: its line identifies it.
    fn chain(&self, from: usize, room: usize) -> (usize, String) {
        if from == 0 {
            return (0, "all".to_owned());
        }
        let mut at = from;
        let mut path = clean(&self.nodes[from].text);
        while let [child] = self.nodes[at].children[..]
            && self.nodes[child].bytes == self.nodes[at].bytes
        {
            at = child;
            path += if self.nodes[at].children.is_empty() { INSIDE } else { "." };
            path += &clean(&self.nodes[at].text);
        }
        if self.is_modules {
            return (at, path);
        }
        let (first, last) = (clean(&self.nodes[from].text), clean(&self.nodes[at].text));
        if at == from {
            return (at, first);
        }
        let whole = format!("{first}{INSIDE}{last}");
        let short = first.split(' ').next().unwrap_or_default();
        (at, if whole.chars().count() <= room { whole } else { format!("{short}{INSIDE}{last}") })
    }
}

/// A path of texts.
fn texts(path: Vec<String>) -> impl Iterator<Item = (Key, String)> {
    path.into_iter().map(|text| (Key::Text(text.clone()), text))
}

/// Two columns a level, then one: deep stacks need the room for their text.
fn indent(depth: usize) -> usize {
    depth.min(DEEPEST) + depth.min(4)
}

fn line(out: &mut String, whole: u64, held: u64, depth: usize, text: &str, style: &str) {
    let indent = indent(depth);
    let head =
        format!("{:>8} {:>6}  {:indent$}", bytes(held), percent(Bytes(held).share_of(Bytes(whole))), "");
    let text = shorten(text, width() - head.chars().count());
    let _ = writeln!(out, "{style}{head}{text}{}", if style.is_empty() { "" } else { RESET });
}

/// The frames of a stack that a reader wants to see, the outermost first.
fn frames(names: &Names<'_>, stack: &[FrameId]) -> Vec<FrameId> {
    let innermost = stack.iter().position(|&frame| names.origin(frame) != Origin::Native);
    let kept = |(at, frame): &(usize, &FrameId)| {
        names.origin(**frame) <= Origin::Library || innermost.is_none() || Some(*at) == innermost
    };
    stack.iter().enumerate().filter(kept).map(|(_, &frame)| frame).rev().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(stacks: &[(u64, &[&str])]) -> Tree {
        let mut tree = Tree::new();
        for (bytes, path) in stacks {
            tree.add(
                (*bytes, 1),
                path.iter().map(|text| (Key::Text((*text).to_owned()), (*text).to_owned())),
            );
        }
        tree
    }

    #[test]
    fn chains_are_one_row_and_small_branches_are_folded_with_their_bytes() {
        let tree = tree(&[
            (600 << 20, &["main", "step", "forward"]),
            (390 << 20, &["main", "step", "backward"]),
            (6 << 20, &["main", "step", "log"]),
            (4 << 20, &["main", "step", "eval"]),
        ]);
        let mut out = String::new();
        tree.render(&mut out);
        let plain = out.replace(DIM, "").replace(RESET, "");
        assert_eq!(
            plain,
            "0.98 GiB  100 %  all\n\
             0.98 GiB  100 %    main › step\n \
             600 MiB   60 %      forward\n \
             390 MiB   39 %      backward\n\
             10.0 MiB  1.0 %      2 branches below 1 %\n"
        );
    }

    #[test]
    fn no_row_is_wider_than_a_terminal() {
        let deep: Vec<String> =
            (0..200).map(|i| format!("a_rather_long_module_name_{i}.py:{i} function_{i}")).collect();
        // A branch at every level, so that no chain forms.
        let paths: Vec<Vec<&str>> =
            (1..=200).map(|n| deep[..n].iter().map(String::as_str).collect()).collect();
        let stacks: Vec<(u64, &[&str])> = paths.iter().map(|path| (1 << 20, path.as_slice())).collect();
        let mut out = String::new();
        tree(&stacks).render(&mut out);
        assert!(out.lines().count() > 100);
        for row in out.replace(DIM, "").replace(RESET, "").lines() {
            assert!(row.chars().count() <= width(), "{row}");
        }
    }
}
