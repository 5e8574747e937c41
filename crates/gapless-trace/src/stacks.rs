//! Frames and stacks stored once. Frames repeat across stacks and stacks across events; both are interned, so an
//! event carries four bytes for its stack however deep it is.

use crate::strings::StringId;
use rustc_hash::{FxBuildHasher, FxHashMap};
use std::hash::BuildHasher;

/// One line of a stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Frame {
    pub name: StringId,
    pub file: StringId,
    pub line: u32,
}

/// Names one frame of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct FrameId(pub u32);

/// Names one stack of a trace; id 0 is "no stack recorded".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct StackId(pub u32);

impl StackId {
    pub const NONE: StackId = StackId(0);

    #[must_use]
    pub fn is_none(self) -> bool {
        self.0 == 0
    }
}

/// All distinct frames.
#[derive(Clone, Debug, Default)]
pub struct Frames {
    frames: Vec<Frame>,
    ids: FxHashMap<Frame, u32>,
}

impl Frames {
    pub fn intern(&mut self, frame: Frame) -> FrameId {
        let next = self.frames.len() as u32;
        let id = *self.ids.entry(frame).or_insert(next);
        if id == next {
            self.frames.push(frame);
        }
        FrameId(id)
    }

    #[must_use]
    pub fn get(&self, id: FrameId) -> Frame {
        self.frames[id.0 as usize]
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.frames.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = Frame> + '_ {
        self.frames.iter().copied()
    }
}

/// All distinct stacks, innermost frame first. `ends[i]` is the end of stack `i` in `frames`.
#[derive(Clone, Debug)]
pub struct Stacks {
    frames: Vec<FrameId>,
    ends: Vec<u32>,
    /// Open addressing over ids + 1 (0 = empty), length a power of two, at most half full.
    slots: Vec<u32>,
}

impl Default for Stacks {
    fn default() -> Self {
        Stacks { frames: Vec::new(), ends: vec![0], slots: vec![0; 64] }
    }
}

impl Stacks {
    /// The id of this stack, innermost frame first; no frames is [`StackId::NONE`].
    pub fn intern(&mut self, stack: &[FrameId]) -> StackId {
        if stack.is_empty() {
            return StackId::NONE;
        }
        let mask = self.slots.len() - 1;
        let mut at = FxBuildHasher.hash_one(stack) as usize & mask;
        loop {
            match self.slots[at] {
                0 => break,
                id if self.get(StackId(id - 1)) == stack => return StackId(id - 1),
                _ => at = (at + 1) & mask,
            }
        }
        let id = self.ends.len() as u32;
        self.frames.extend_from_slice(stack);
        self.ends.push(self.frames.len() as u32);
        self.slots[at] = id + 1;
        if self.ends.len() * 2 > self.slots.len() {
            self.grow();
        }
        StackId(id)
    }

    /// The frames of a stack, innermost first.
    #[must_use]
    pub fn get(&self, id: StackId) -> &[FrameId] {
        let i = id.0 as usize;
        if i == 0 || i >= self.ends.len() {
            return &[];
        }
        &self.frames[self.ends[i - 1] as usize..self.ends[i] as usize]
    }

    /// The number of stacks, [`StackId::NONE`] counted.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// True if no stack was recorded at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.len() == 1
    }

    /// Frames of all distinct stacks together, which are their cost.
    #[must_use]
    pub fn total_frames(&self) -> usize {
        self.frames.len()
    }

    fn grow(&mut self) {
        let mask = self.slots.len() * 2 - 1;
        let mut slots = vec![0; mask + 1];
        for id in 1..self.ends.len() as u32 {
            let mut at = FxBuildHasher.hash_one(self.get(StackId(id))) as usize & mask;
            while slots[at] != 0 {
                at = (at + 1) & mask;
            }
            slots[at] = id + 1;
        }
        self.slots = slots;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_stacks_get_one_id_whatever_their_number() {
        let mut frames = Frames::default();
        let mut stacks = Stacks::default();
        let ids: Vec<FrameId> =
            (0..50).map(|line| frames.intern(Frame { line, ..Frame::default() })).collect();
        let first: Vec<StackId> = (0..50).map(|n| stacks.intern(&ids[..n])).collect();
        let again: Vec<StackId> = (0..50).map(|n| stacks.intern(&ids[..n])).collect();
        assert_eq!(first, again);
        assert_eq!(first[0], StackId::NONE);
        assert_eq!(stacks.get(first[49]), &ids[..49]);
        assert_eq!(stacks.len(), 50);
    }
}
