//! Holders of memory in two runs as one tree, from the outermost frame of a stack inwards, with each run's bytes. A
//! branch is as wide as the larger of the two, leaf by leaf, so that vanished memory is seen too.

use crate::analysis::DeviceAnalysis;
use gapless_trace::{Allocation, StackId, Tick, Trace};
use rustc_hash::{FxHashMap, FxHashSet};
use serde::Serialize;

/// A branch narrower than this part of the whole is folded into its neighbours.
const NARROWEST: u64 = 2_000;

/// One branch. The first of a tree is its root; a parent comes before its children.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Branch {
    pub(super) text: String,
    pub(super) parent: usize,
    pub(super) before: u64,
    pub(super) after: u64,
    /// The larger of before and after, summed over the leaves.
    pub(super) width: u64,
}

/// One run at one instant.
pub(super) type Moment<'a, 't> = (&'t Trace, &'a DeviceAnalysis<'t>, Tick);

/// A step of a path: the key that matches it, and its name.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Part {
    key: String,
    text: String,
}

/// The tree of two moments.
pub(super) fn tree(before: Moment<'_, '_>, after: Moment<'_, '_>) -> Vec<Branch> {
    let by_stack = !before.0.stacks.is_empty() && !after.0.stacks.is_empty();
    let sides = [before, after].map(|moment| leaves(moment, by_stack));
    let known = [0, 1].map(|side: usize| -> FxHashSet<&str> {
        sides[side].iter().flat_map(|(path, _)| path.iter().map(|part| part.key.as_str())).collect()
    });
    let mut branches = vec![Branch { text: "all".to_owned(), parent: 0, before: 0, after: 0, width: 0 }];
    let mut index: FxHashMap<(usize, String), usize> = FxHashMap::default();
    let mut ends: Vec<usize> = Vec::new();
    for (side, leaves) in sides.iter().enumerate() {
        for (path, bytes) in leaves {
            let mut at = 0;
            // Outer frames of this run alone belong to another script around the same model, so they are left out.
            let common =
                path.iter().position(|part| known[1 - side].contains(part.key.as_str())).unwrap_or(0);
            for part in &path[common..] {
                let next = *index.entry((at, part.key.clone())).or_insert_with(|| {
                    branches.push(Branch {
                        text: part.text.clone(),
                        parent: at,
                        before: 0,
                        after: 0,
                        width: 0,
                    });
                    branches.len() - 1
                });
                at = next;
            }
            // A stack may end where another goes on: its own bytes are a leaf.
            let own = *index.entry((at, String::new())).or_insert_with(|| {
                branches.push(Branch { text: String::new(), parent: at, before: 0, after: 0, width: 0 });
                ends.push(branches.len() - 1);
                branches.len() - 1
            });
            let branch = &mut branches[own];
            *(if side == 0 { &mut branch.before } else { &mut branch.after }) += bytes;
        }
    }
    for &end in &ends {
        let (before, after) = (branches[end].before, branches[end].after);
        let mut at = end;
        branches[end].width = before.max(after);
        while at != 0 {
            at = branches[at].parent;
            branches[at].before += before;
            branches[at].after += after;
            branches[at].width += before.max(after);
        }
    }
    folded(&branches)
}

/// The tree without leaves that have no name and without branches too narrow to see; children by their change.
fn folded(branches: &[Branch]) -> Vec<Branch> {
    let narrowest = (branches[0].width / NARROWEST).max(1);
    let mut children: Vec<Vec<usize>> = vec![Vec::new(); branches.len()];
    for (i, branch) in branches.iter().enumerate().skip(1) {
        if !branch.text.is_empty() && branch.width >= narrowest {
            children[branch.parent].push(i);
        }
    }
    for own in &mut children {
        own.sort_by_key(|&i| {
            let Branch { before, after, width, .. } = &branches[i];
            (std::cmp::Reverse(before.abs_diff(*after)), std::cmp::Reverse(*width), i)
        });
    }
    let mut kept: Vec<Branch> = vec![branches[0].clone()];
    let mut open = vec![(0, 0)];
    while let Some((old, new)) = open.pop() {
        for &child in &children[old] {
            kept.push(Branch { parent: new, ..branches[child].clone() });
            open.push((child, kept.len() - 1));
        }
    }
    kept
}

/// The paths of active allocations, outermost part first, and their bytes.
fn leaves((trace, run, tick): Moment<'_, '_>, by_stack: bool) -> Vec<(Vec<Part>, u64)> {
    let mut of_stack: FxHashMap<u32, usize> = FxHashMap::default();
    let mut of_size: FxHashMap<(u8, u64), usize> = FxHashMap::default();
    let mut found: Vec<(Vec<Part>, u64)> = Vec::new();
    for id in run.history.allocations.active_at(tick) {
        let allocation = run.history.allocations.get(id);
        let kind = run.kinds.of(id);
        let at = if by_stack && !allocation.stack.is_none() {
            *of_stack.entry(allocation.stack.0).or_insert_with(|| {
                found.push((frames(trace, allocation.stack), 0));
                found.len() - 1
            })
        } else {
            *of_size.entry((kind as u8, allocation.requested.0)).or_insert_with(|| {
                found.push((sizes(kind.name(), &allocation), 0));
                found.len() - 1
            })
        };
        found[at].1 += allocation.block.0;
    }
    found
}

/// The Python frames of a stack; all of them if there is no Python.
fn frames(trace: &Trace, stack: StackId) -> Vec<Part> {
    let part = |frame: &gapless_trace::Frame| {
        let (name, file) = (trace.strings.get(frame.name), trace.strings.get(frame.file));
        let short = file.rsplit(['/', '\\']).next().unwrap_or(file);
        let text = if short.is_empty() { name.to_owned() } else { format!("{short}:{} {name}", frame.line) };
        // The key leaves out the line, because an edit above a call moves it.
        Part { key: format!("{name}\0{file}"), text }
    };
    let all: Vec<gapless_trace::Frame> =
        trace.stacks.get(stack).iter().map(|&id| trace.frames.get(id)).collect();
    let is_python = |frame: &&gapless_trace::Frame| trace.strings.get(frame.file).ends_with(".py");
    let python: Vec<Part> = all.iter().rev().filter(is_python).map(part).collect();
    if python.is_empty() { all.iter().rev().map(part).collect() } else { python }
}

/// If there are no stacks: the kind, then the requested size.
fn sizes(kind: &str, allocation: &Allocation) -> Vec<Part> {
    let size = format!("requests of {}", allocation.requested);
    let key = format!("{kind}\0{}", allocation.requested.0);
    vec![Part { key: kind.to_owned(), text: format!("{kind} (inferred)") }, Part { key, text: size }]
}
