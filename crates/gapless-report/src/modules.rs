//! Bytes by module, for programs that named their modules: a tree by path, in which layers are folded into one.
//!
//! Numbers of modules that have modules inside are layers: `h.0.mlp` and `h.1.mlp` become `h.*.mlp`. Numbers of modules
//! that have none are steps of a sequence, which differ: `features.0` and `features.1` stay as they are.

use crate::analysis::DeviceAnalysis;
use crate::model::{KindBytes, ModuleInfo, ModulesInfo};
use gapless_trace::block_notes::{BlockNotes, module_of};
use gapless_trace::kinds::Kind;
use gapless_trace::{AllocationId, StringId, Tick, Trace};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeMap;

/// The most rows; those that hold most stay.
const MOST: usize = 10_000;

/// The bytes that one path holds by itself.
#[derive(Default)]
struct Own {
    bytes: u64,
    count: u64,
    kinds: KindBytes,
    /// The modules that the path stands for.
    modules: FxHashSet<String>,
}

/// The module that each allocation belongs to.
pub(crate) struct Members<'a> {
    trace: &'a Trace,
    notes: &'a BlockNotes,
    known: FxHashMap<StringId, Option<&'a str>>,
    layers: FxHashSet<String>,
}

impl<'a> Members<'a> {
    /// `None` if the program named no modules.
    pub(crate) fn of(trace: &'a Trace, d: &'a DeviceAnalysis<'_>) -> Option<Members<'a>> {
        let notes = &d.history.block_notes;
        let texts: FxHashSet<StringId> = notes.iter().map(|(_, text)| text).collect();
        let layers = layers(texts.iter().filter_map(|&text| module_of(trace.strings.get(text))))?;
        Some(Members { trace, notes, known: FxHashMap::default(), layers })
    }

    /// The path of its module as the program has it; `None` outside of all modules.
    pub(crate) fn path(&mut self, id: AllocationId) -> Option<&'a str> {
        let strings = &self.trace.strings;
        let mut module = |text| *self.known.entry(text).or_insert_with(|| module_of(strings.get(text)));
        self.notes.get(id).rev().find_map(&mut module)
    }

    /// The path with `*` for the numbers of layers.
    pub(crate) fn folded(&self, path: &str) -> String {
        folded(path, &self.layers)
    }
}

/// The modules that hold the active bytes at `tick`; `None` if the program named no modules.
pub(crate) fn at(trace: &Trace, d: &DeviceAnalysis<'_>, tick: Tick) -> Option<ModulesInfo> {
    let mut members = Members::of(trace, d)?;
    let (mut paths, mut outside, mut total): (BTreeMap<String, Own>, _, _) = (BTreeMap::new(), 0, 0);
    for id in d.history.allocations.active_at(tick) {
        let bytes = d.history.allocations.get(id).block.0;
        total += bytes;
        let Some(path) = members.path(id) else {
            outside += bytes;
            continue;
        };
        // A block counts for its module and for all modules around it, the outermost first.
        let ends = path.match_indices('.').map(|(at, _)| at).chain([path.len()]);
        for end in ends {
            let own = paths.entry(members.folded(&path[..end])).or_default();
            own.bytes += bytes;
            own.count += 1;
            add(&mut own.kinds, d.kinds.of(id), bytes);
            if !own.modules.contains(&path[..end]) {
                own.modules.insert(path[..end].to_owned());
            }
        }
    }
    let mut rows = Vec::with_capacity(paths.len());
    let tops: Vec<&str> = paths.keys().map(String::as_str).filter(|path| !path.contains('.')).collect();
    list(&paths, tops, &mut rows);
    rows.truncate(MOST);
    Some(ModulesInfo { total, outside, rows })
}

/// The paths whose numbers are those of layers; `None` if there are no paths.
fn layers<'a>(paths: impl Iterator<Item = &'a str>) -> Option<FxHashSet<String>> {
    let (mut layers, mut any) = (FxHashSet::default(), false);
    for path in paths {
        any = true;
        let mut before = String::new();
        let mut parts = path.split('.').peekable();
        while let Some(part) = parts.next() {
            let is_layer = is_number(part) && parts.peek().is_some();
            if is_layer {
                layers.insert(before.clone());
            }
            join(&mut before, if is_layer { "*" } else { part });
        }
    }
    any.then_some(layers)
}

/// The path with `*` for the numbers of layers.
fn folded(path: &str, layers: &FxHashSet<String>) -> String {
    let mut out = String::with_capacity(path.len());
    for part in path.split('.') {
        let is_layer = is_number(part) && layers.contains(&out);
        join(&mut out, if is_layer { "*" } else { part });
    }
    out
}

fn join(path: &mut String, part: &str) {
    if !path.is_empty() {
        path.push('.');
    }
    path.push_str(part);
}

fn is_number(part: &str) -> bool {
    !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit())
}

/// Each path before those below it, the largest of equals first.
fn list(paths: &BTreeMap<String, Own>, tops: Vec<&str>, rows: &mut Vec<ModuleInfo>) {
    let in_order = |mut found: Vec<&str>| -> Vec<String> {
        found.sort_by(|a, b| paths[*b].bytes.cmp(&paths[*a].bytes).then(a.cmp(b)));
        found.into_iter().rev().map(str::to_owned).collect()
    };
    // An explicit stack in place of recursion, because paths from a file may be deep.
    let mut to_do = in_order(tops);
    while let Some(path) = to_do.pop() {
        let held = &paths[&path];
        let inside = format!("{path}.");
        let children: Vec<&str> = paths
            .range(inside.clone()..)
            .map(|(below, _)| below.as_str())
            .take_while(|below| below.starts_with(&inside))
            .filter(|below| !below[inside.len()..].contains('.'))
            .collect();
        let below: u64 = children.iter().map(|child| paths[*child].bytes).sum();
        to_do.extend(in_order(children));
        rows.push(ModuleInfo {
            modules: held.modules.len() as u64,
            bytes: held.bytes,
            own: held.bytes - below,
            count: held.count,
            kinds: held.kinds,
            path,
        });
    }
}

fn add(kinds: &mut KindBytes, kind: Kind, bytes: u64) {
    *match kind {
        Kind::Weights => &mut kinds.weights,
        Kind::Gradients => &mut kinds.gradients,
        Kind::OptimizerState => &mut kinds.optimizer_state,
        Kind::Activations => &mut kinds.activations,
        Kind::Temporaries => &mut kinds.temporaries,
        Kind::Unexplained => &mut kinds.unexplained,
        Kind::Recomputed => &mut kinds.recomputed,
        Kind::Collectives => &mut kinds.collectives,
        Kind::Inputs => &mut kinds.inputs,
        Kind::Outputs => &mut kinds.outputs,
        Kind::Constants => &mut kinds.constants,
    } += bytes;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_are_one_and_steps_of_a_sequence_are_not() {
        let paths = ["h.0", "h.0.mlp", "h.1.mlp.0", "h.1.mlp.1", "features.0", "features.1", "0", "lm_head"];
        let layers = layers(paths.into_iter()).expect("paths");
        let found: Vec<String> = paths.iter().map(|path| folded(path, &layers)).collect();
        let expected =
            ["h.*", "h.*.mlp", "h.*.mlp.0", "h.*.mlp.1", "features.0", "features.1", "0", "lm_head"];
        assert_eq!(found, expected);
        assert_eq!(super::layers(std::iter::empty()), None);
    }
}
