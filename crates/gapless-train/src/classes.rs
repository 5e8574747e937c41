//! Values that play the same part in blocks that repeat: the search decides for many of them at once.

use crate::simulate::Mode;
use crate::step::Step;
use std::collections::BTreeMap;

pub(crate) struct Classes {
    /// Members in the order in which forward made them. Only values with a choice.
    pub(crate) members: Vec<Vec<u32>>,
    /// Of each value its class, or none.
    pub(crate) of: Vec<Option<u32>>,
    /// How many blocks repeat: the number of members that most bytes are in classes of.
    pub(crate) blocks: usize,
}

impl Classes {
    pub(crate) fn new(step: &Step) -> Classes {
        let mut by: BTreeMap<(u32, u64, bool), Vec<u32>> = BTreeMap::new();
        for (n, value) in step.values.iter().enumerate() {
            if has_choice(step, n as u32) {
                by.entry((value.alike, value.size, value.drop)).or_default().push(n as u32);
            }
        }
        let members: Vec<Vec<u32>> = by.into_values().collect();
        let mut of = vec![None; step.values.len()];
        for (class, list) in members.iter().enumerate() {
            for &v in list {
                of[v as usize] = Some(class as u32);
            }
        }
        let mut bytes: BTreeMap<usize, u64> = BTreeMap::new();
        for list in &members {
            *bytes.entry(list.len()).or_default() += list.len() as u64 * step.values[list[0] as usize].size;
        }
        let blocks = bytes.into_iter().filter(|&(len, _)| len > 1).max_by_key(|&(_, bytes)| bytes);
        Classes { members, of, blocks: blocks.map_or(1, |(len, _)| len) }
    }
}

/// A value that autograd saves and that may be dropped; or a source that may be held or made again.
pub(crate) fn has_choice(step: &Step, v: u32) -> bool {
    let value = &step.values[v as usize];
    if value.drop {
        step.can_drop(v)
    } else {
        value.need.is_none() && value.hold && step.ops[value.birth as usize].again
    }
}

/// Everything that autograd saves is kept. Sources are made again if they can be, and held otherwise.
pub(crate) fn start(step: &Step) -> Vec<Mode> {
    let mode = |value: &crate::step::Value| {
        let is_source = !value.drop && value.need.is_none() && step.ops[value.birth as usize].again;
        if is_source { Mode::Again } else { Mode::Keep }
    };
    step.values.iter().map(mode).collect()
}
