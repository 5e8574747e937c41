//! Joining: buffers that may well be neighbours in the best plan become one, so that a small problem is left.
//!
//! Two joins keep the live bytes of every section as they are: *side by side*, two buffers of one lifetime, stacked;
//! and *end to end*, a buffer that begins where another of its size ends, at the same offset. A problem that was cut
//! from a rectangle by straight cuts falls back into the rectangle. For other problems a join is a guess: plans of the
//! joined problem are valid for the original, but a proof that it has no better one is not.

mod careful;

pub(crate) use careful::Careful;

use rustc_hash::FxHashMap;

use crate::compact::Compact;
use crate::rng::Rng;

#[derive(Clone, Copy, Debug)]
enum Node {
    Item(u32),
    /// The second on top of the first.
    Stack(u32, u32),
    /// Both at the same offset, one after the other.
    Chain(u32, u32),
}

/// The joined problem and the way back. `roots[s]` is the node behind slot s of `compact`.
#[derive(Debug)]
pub(crate) struct Joined {
    pub(crate) compact: Compact,
    nodes: Vec<Node>,
    size: Vec<i64>,
    roots: Vec<u32>,
}

/// Joins as long as anything can be joined. Alignments must be 1.
pub(crate) fn join(compact: &Compact) -> Joined {
    let mut work = Work::default();
    for item in 0..compact.len() {
        work.add(Node::Item(item as u32), compact.first[item], compact.last[item], compact.size[item], true);
    }
    work.finish(compact)
}

/// Joins in a random order, and leaves a share of the buffers as they are: another guess.
pub(crate) fn join_by_chance(compact: &Compact, apart: f64, rng: &mut Rng) -> Joined {
    let mut order: Vec<u32> = (0..compact.len() as u32).collect();
    for at in (1..order.len()).rev() {
        order.swap(at, rng.below(at as u64 + 1) as usize);
    }
    let mut work = Work::default();
    for node in order {
        let item = node as usize;
        let joins = rng.unit() >= apart;
        work.add(Node::Item(node), compact.first[item], compact.last[item], compact.size[item], joins);
    }
    work.finish(compact)
}

impl Joined {
    /// The living nodes, with time cut anew.
    fn of_nodes(
        compact: &Compact,
        nodes: Vec<Node>,
        first: Vec<u32>,
        last: Vec<u32>,
        size: Vec<i64>,
        alive: &[bool],
    ) -> Joined {
        let mut joined = Compact { sections: compact.sections, unit: compact.unit, ..Compact::default() };
        let mut roots = Vec::new();
        for (node, alive) in alive.iter().enumerate() {
            if *alive {
                roots.push(node as u32);
                joined.original.push(node as u32);
                joined.first.push(first[node]);
                joined.last.push(last[node]);
                joined.size.push(size[node]);
            }
        }
        joined.close_up();
        Joined { compact: joined, nodes, size, roots }
    }

    /// Offsets of the original buffers from those of the joined ones.
    pub(crate) fn spread(&self, offsets: &[i64], count: usize) -> Vec<i64> {
        let mut result = vec![0; count];
        let mut open: Vec<(u32, i64)> = self.roots.iter().copied().zip(offsets.iter().copied()).collect();
        while let Some((node, offset)) = open.pop() {
            match self.nodes[node as usize] {
                Node::Item(item) => result[item as usize] = offset,
                Node::Stack(low, high) => {
                    open.push((low, offset));
                    open.push((high, offset + self.size[low as usize]));
                }
                Node::Chain(left, right) => {
                    open.push((left, offset));
                    open.push((right, offset));
                }
            }
        }
        result
    }
}

#[derive(Default)]
struct Work {
    nodes: Vec<Node>,
    first: Vec<u32>,
    last: Vec<u32>,
    size: Vec<i64>,
    alive: Vec<bool>,
    by_lifetime: FxHashMap<(u32, u32), u32>,
    /// Nodes by where they begin (or end) and their size; the dead are passed over when met.
    begins: FxHashMap<(u32, i64), Vec<u32>>,
    ends: FxHashMap<(u32, i64), Vec<u32>>,
}

impl Work {
    fn finish(self, compact: &Compact) -> Joined {
        Joined::of_nodes(compact, self.nodes, self.first, self.last, self.size, &self.alive)
    }

    /// Adds a node and joins it on as far as it goes. A stack comes before a chain: lifetimes that agree at both ends
    /// are the rarer coincidence.
    fn add(&mut self, node: Node, first: u32, last: u32, size: i64, joins: bool) {
        let (mut node, mut first, mut last, mut size) = (node, first, last, size);
        loop {
            let index = self.nodes.len() as u32;
            self.nodes.push(node);
            self.first.push(first);
            self.last.push(last);
            self.size.push(size);
            self.alive.push(true);
            if !joins {
                return;
            }
            if let Some(twin) = self.by_lifetime.get(&(first, last)).copied()
                && self.alive[twin as usize]
            {
                self.kill(twin, index);
                size += self.size[twin as usize];
                node = Node::Stack(twin, index);
            } else if let Some(before) = take(&mut self.ends, (first, size), &self.alive) {
                self.kill(before, index);
                first = self.first[before as usize];
                node = Node::Chain(before, index);
            } else if let Some(after) = take(&mut self.begins, (last, size), &self.alive) {
                self.kill(after, index);
                last = self.last[after as usize];
                node = Node::Chain(index, after);
            } else {
                self.by_lifetime.insert((first, last), index);
                self.begins.entry((first, size)).or_default().push(index);
                self.ends.entry((last, size)).or_default().push(index);
                return;
            }
        }
    }

    fn kill(&mut self, one: u32, other: u32) {
        self.alive[one as usize] = false;
        self.alive[other as usize] = false;
    }
}

/// The youngest living node under the key, taken out.
fn take(map: &mut FxHashMap<(u32, i64), Vec<u32>>, key: (u32, i64), alive: &[bool]) -> Option<u32> {
    let list = map.get_mut(&key)?;
    while let Some(node) = list.pop() {
        if alive[node as usize] {
            return Some(node);
        }
    }
    None
}
