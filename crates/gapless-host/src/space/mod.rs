//! The free addresses of the arena, and the addresses that have memory. Pure: it counts granules from 0 and makes no
//! system call, except that its tables come from the kernel.
//!
//! Invariants, proved by [`Space::fault`]:
//! * extents cover `[0, granules)` without a gap, and no two free extents are neighbours;
//! * `tags[e.start] == tags[e.start + e.len - 1] == e` for every extent `e`, except that `last` is the tag of the end;
//! * the tree holds exactly the free extents;
//! * `kept == sum of backed over free extents`, and `live + kept` is what the arena is charged for.
//!
//! A buffer gets the lowest address at which it fits. So kept memory lies low, where the next buffer gets it, and
//! [`Space::take_kept`] gives back from the top, where memory was unused for the longest time.

pub(crate) mod bits;
mod tree;

use crate::sys::Table;
use bits::Bits;
use tree::{Index, NONE, Nodes};

const FREE: u32 = 1;
const LIVE: u32 = 2;
/// Its memory is being given back, so it cannot be handed out until that is done.
const BUSY: u32 = 3;

#[derive(Debug)]
pub struct Space {
    granules: u32,
    /// The extent that begins or ends at a granule. Only the part that was ever used is writable.
    tags: Table<u32>,
    /// The extent that ends with the space: its tag would lie at the end of the table.
    last: Index,
    nodes: Nodes,
    backed: Bits,
    live: u32,
    kept: u32,
    /// The least that was kept since the last [`Space::low_water`].
    low: u32,
    /// Nothing from here on was ever handed out, so nothing there has memory.
    top: u32,
}

/// A place that was handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    pub start: u32,
    pub len: u32,
    /// Granules of it that already have memory.
    pub backed: u32,
}

impl Space {
    /// A space that is free and without memory; `None` if there is no memory for its tables.
    #[must_use]
    pub fn new(granules: u32) -> Option<Space> {
        let mut space = Space {
            granules,
            tags: Table::lazy(granules as usize + 1)?,
            last: NONE,
            nodes: Nodes::new(granules)?,
            backed: Bits::new(granules)?,
            live: 0,
            kept: 0,
            low: 0,
            top: 0,
        };
        if !space.nodes.reach() || !space.tags.reach(1) {
            return None;
        }
        let all = space.nodes.take(0, granules, FREE);
        space.tag(all);
        space.nodes.insert(all);
        Some(space)
    }

    /// Gives up the addresses of tables that were never needed. Returns the granule from which on all are free and
    /// without memory.
    pub fn tighten(&mut self) -> u32 {
        self.tags.tighten();
        self.nodes.tighten();
        self.backed.tighten();
        let last = self.nodes.get(self.last);
        match last.state {
            FREE if last.backed > 0 => self.top,
            FREE => last.start,
            _ => self.granules,
        }
    }

    /// Granules that the program has.
    #[must_use]
    pub fn live(&self) -> u32 {
        self.live
    }

    /// Granules that are free and have memory.
    #[must_use]
    pub fn kept(&self) -> u32 {
        self.kept
    }

    /// Granules of the longest free extent.
    #[must_use]
    pub fn longest(&self) -> u32 {
        self.nodes.longest()
    }

    /// The least that was kept since the last call: granules that no request needed in that time.
    pub fn low_water(&mut self) -> u32 {
        std::mem::replace(&mut self.low, self.kept)
    }

    /// Takes a place of `len` granules whose start is `phase` modulo `align` (a power of two).
    pub fn allocate(&mut self, len: u32, align: u32, phase: u32) -> Option<Placed> {
        if len == 0 {
            return None;
        }
        let node = self.nodes.lowest(len.checked_add(align - 1)?);
        if node == NONE {
            return None;
        }
        let found = self.nodes.get(node);
        let lead = phase.wrapping_sub(found.start) & (align - 1);
        let start = found.start + lead;
        if !self.reach(start + len) {
            return None;
        }
        self.nodes.remove(node);
        let live = self.cut(node, start, start + len, LIVE);
        let backed = self.backed.count(start, start + len);
        self.nodes.change(live, |n| n.backed = 0);
        self.top = self.top.max(start + len);
        self.live += len;
        self.lower_kept(backed);
        Some(Placed { start, len, backed })
    }

    /// Makes room in the tables for a buffer that ends at `end`, and for the nodes of a change. False if there is no
    /// memory.
    fn reach(&mut self, end: u32) -> bool {
        self.tags.reach(end as usize + 1) && self.backed.reach(end) && self.nodes.reach()
    }

    /// The length of the buffer that begins at `start`; `None` if no buffer begins there.
    #[must_use]
    pub fn length(&self, start: u32) -> Option<u32> {
        self.buffer(start).map(|(_, len)| len)
    }

    fn buffer(&self, start: u32) -> Option<(Index, u32)> {
        if start >= self.granules {
            return None;
        }
        let node = self.tags.get(start as usize);
        let found = self.nodes.get(node);
        (node != NONE && found.start == start && found.state == LIVE).then_some((node, found.len))
    }

    /// Frees a buffer. `has_memory` is true if its pages stay, and false if they are gone. Returns its length; `None`
    /// if no buffer begins there.
    pub fn free(&mut self, start: u32, has_memory: bool) -> Option<u32> {
        let (node, len) = self.buffer(start)?;
        if has_memory {
            self.backed.set(start, start + len);
            self.kept += len;
        } else {
            self.backed.clear(start, start + len);
        }
        self.live -= len;
        self.release(node, if has_memory { len } else { 0 });
        Some(len)
    }

    /// Frees a place as if it had never been handed out.
    pub fn cancel(&mut self, start: u32) {
        if let Some((node, len)) = self.buffer(start) {
            self.release_as_before(node, start, len);
        }
    }

    /// Undoes [`Space::grow`] of a buffer that had `len` granules.
    pub fn undo_grow(&mut self, start: u32, len: u32) {
        let Some((node, now)) = self.buffer(start) else { return };
        if len > 0 && len < now {
            self.nodes.change(node, |n| n.len = len);
            self.tag(node);
            let rest = self.nodes.take(start + len, now - len, LIVE);
            self.tag(rest);
            self.release_as_before(rest, start + len, now - len);
        }
    }

    /// Frees a buffer whose first granules have no memory, because they were moved.
    pub fn free_moved(&mut self, start: u32, gone: u32) {
        let Some((node, len)) = self.buffer(start) else { return };
        let gone = gone.min(len);
        self.backed.clear(start, start + gone);
        self.backed.set(start + gone, start + len);
        self.release_as_before(node, start, len);
    }

    fn release_as_before(&mut self, node: Index, start: u32, len: u32) {
        let backed = self.backed.count(start, start + len);
        self.kept += backed;
        self.live -= len;
        self.release(node, backed);
    }

    /// Makes a buffer longer in place. Returns the new part; `None` if the room behind it is too small.
    pub fn grow(&mut self, start: u32, len: u32) -> Option<Placed> {
        let (node, old) = self.buffer(start)?;
        let (from, to) = (start + old, start.checked_add(len)?);
        if to > self.granules || from >= to {
            return None;
        }
        let next = self.tags.get(from as usize);
        let behind = self.nodes.get(next);
        if behind.state != FREE || behind.len < to - from || !self.reach(to) {
            return None;
        }
        self.nodes.remove(next);
        let part = self.cut(next, from, to, LIVE);
        self.nodes.give(part);
        self.nodes.change(node, |n| n.len = len);
        self.tag(node);
        let backed = self.backed.count(from, to);
        self.top = self.top.max(to);
        self.live += to - from;
        self.lower_kept(backed);
        Some(Placed { start: from, len: to - from, backed })
    }

    /// Makes a buffer shorter in place, and keeps the memory of its end. Returns the granules of the end.
    pub fn shrink(&mut self, start: u32, len: u32) -> Option<u32> {
        let (node, old) = self.buffer(start)?;
        if len == 0 || len >= old || !self.nodes.reach() {
            return None;
        }
        self.nodes.change(node, |n| n.len = len);
        self.tag(node);
        let rest = self.nodes.take(start + len, old - len, LIVE);
        self.tag(rest);
        self.free(start + len, true)
    }

    /// The first run of granules in `[from, to)` that have memory.
    #[must_use]
    pub fn backed_run(&self, from: u32, to: u32) -> Option<(u32, u32)> {
        self.backed.first_run(from, to)
    }

    /// Notes that a part of a buffer now has memory, or none.
    pub fn set_backed(&mut self, from: u32, to: u32, has_memory: bool) {
        if has_memory { self.backed.set(from, to) } else { self.backed.clear(from, to) }
    }

    /// Takes at most `most` granules of kept memory, from the top, so that they can be given back. They are not handed
    /// out until [`Space::put_back`].
    pub fn take_kept(&mut self, most: u32) -> Option<(u32, u32)> {
        let node = self.nodes.highest_backed();
        if node == NONE || most == 0 || !self.nodes.reach() {
            return None;
        }
        let found = self.nodes.get(node);
        let (from, to) = self.backed.last_run(found.start, self.top.min(found.start + found.len))?;
        let from = from.max(to.saturating_sub(most));
        self.nodes.remove(node);
        self.cut(node, from, to, BUSY);
        self.lower_kept(to - from);
        Some((from, to))
    }

    /// Puts back what [`Space::take_kept`] took. `gone` is true if its memory was given back.
    pub fn put_back(&mut self, (from, to): (u32, u32), gone: bool) {
        let node = self.tags.get(from as usize);
        if gone {
            self.backed.clear(from, to);
        } else {
            self.kept += to - from;
        }
        self.release(node, if gone { 0 } else { to - from });
    }

    /// The first busy extent from `at` on. For a child process, in which no thread is giving memory back.
    #[must_use]
    pub fn busy_from(&self, at: u32) -> Option<(u32, u32)> {
        let mut at = at;
        while at < self.granules {
            let node = self.nodes.get(self.tags.get(at as usize));
            if node.state == BUSY {
                return Some((node.start, node.start + node.len));
            }
            at = node.start + node.len;
        }
        None
    }

    fn lower_kept(&mut self, by: u32) {
        self.kept -= by;
        self.low = self.low.min(self.kept);
    }

    fn tag(&mut self, node: Index) {
        let found = self.nodes.get(node);
        self.tags.set(found.start as usize, node);
        let end = found.start + found.len;
        if end == self.granules {
            self.last = node;
        } else {
            self.tags.set(end as usize - 1, node);
        }
    }

    /// Cuts `[from, to)` out of a free extent that is in no tree, and gives the rest back to the tree.
    fn cut(&mut self, node: Index, from: u32, to: u32, state: u32) -> Index {
        let found = self.nodes.get(node);
        let end = found.start + found.len;
        // The longest part may be the whole arena, so its count is computed from the others.
        let others = found.backed - self.backed.count(from, to);
        let (lead, tail) = if from - found.start < end - to {
            let lead = self.backed.count(found.start, from);
            (lead, others - lead)
        } else {
            let tail = self.backed.count(to, end);
            (others - tail, tail)
        };
        for (a, b, backed) in [(found.start, from, lead), (to, end, tail)] {
            if a < b {
                let rest = self.nodes.take(a, b - a, FREE);
                self.nodes.change(rest, |n| n.backed = backed);
                self.tag(rest);
                self.nodes.insert(rest);
            }
        }
        self.nodes.change(node, |n| (n.start, n.len, n.state) = (from, to - from, state));
        self.tag(node);
        node
    }

    /// Makes an extent free, and joins it with its free neighbours.
    fn release(&mut self, node: Index, backed: u32) {
        let mut all = self.nodes.get(node);
        all.backed = backed;
        let before = if all.start > 0 { self.tags.get(all.start as usize - 1) } else { NONE };
        let end = all.start + all.len;
        let after = if end < self.granules { self.tags.get(end as usize) } else { NONE };
        for neighbour in [before, after] {
            let other = self.nodes.get(neighbour);
            if neighbour != NONE && other.state == FREE {
                self.nodes.remove(neighbour);
                self.nodes.give(neighbour);
                all.start = all.start.min(other.start);
                all.len += other.len;
                all.backed += other.backed;
            }
        }
        self.nodes
            .change(node, |n| (n.start, n.len, n.backed, n.state) = (all.start, all.len, all.backed, FREE));
        self.tag(node);
        self.nodes.insert(node);
    }

    /// Checks all invariants; `None` if they hold.
    #[must_use]
    pub fn fault(&self) -> Option<&'static str> {
        let (mut at, mut live, mut kept, mut was_free) = (0, 0, 0, false);
        while at < self.granules {
            let index = self.tags.get(at as usize);
            let node = self.nodes.get(index);
            if index == NONE || node.start != at || node.len == 0 {
                return Some("the extents have a gap");
            }
            let end = at + node.len;
            let tag = if end == self.granules { self.last } else { self.tags.get(end as usize - 1) };
            if tag != index {
                return Some("an extent's end has another tag");
            }
            let is_free = node.state == FREE;
            if is_free && was_free {
                return Some("two free extents are neighbours");
            }
            if is_free {
                if self.backed.count(at, at + node.len) != node.backed {
                    return Some("a free extent miscounts its memory");
                }
                kept += node.backed;
            } else if node.state == LIVE {
                live += node.len;
            }
            was_free = is_free;
            at += node.len;
        }
        if (live, kept) != (self.live, self.kept) {
            return Some("the sums are wrong");
        }
        self.nodes.fault()
    }
}

#[cfg(test)]
mod tests;
