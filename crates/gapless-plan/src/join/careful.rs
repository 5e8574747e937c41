//! Joining with second thoughts, for problems in which many buffers begin or end together by chance.
//!
//! Every possible join has a *doubt*: how likely it is to be chance. Equal sizes end to end mean more the larger they
//! are and the fewer buffers begin and end there; equal lifetimes, the longer they are. If a stack is as large as a
//! node or stack that ends where it begins or begins where it ends (its *witness*), it is less in doubt by that much.
//! The join of the least doubt comes first, and the joins that it makes possible are weighed anew. Then come second
//! thoughts: a left-over node takes a fitting one from others, whatever that undoes is joined anew, and the change is
//! kept if fewer are left over in all.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use rustc_hash::FxHashMap;

use super::{Joined, Node};
use crate::compact::Compact;
use crate::rng::Rng;

/// The most members of a stack that is looked at as one.
const MOST_STACKED: usize = 4;

/// In groups of more equal lifetimes than this only pairs are tried, with so many of the others.
const MOST_COMBINED: usize = 7;

/// During second thoughts, joins of more doubt are left for later.
const MOST_DOUBT: f64 = 0.5;

/// Cost of a join of full doubt; a left-over node costs 1.
const DOUBT_COST: f64 = 0.9;

/// Doubts are blurred by up to this power of e, either way, when things are joined anew.
const BLUR: f64 = 1.0;

/// The most by which a move may make the whole worse: sometimes only a detour leads to a better one.
const WORSE: f64 = 0.01;

/// Unsuccessful moves for each left-over node after which the search of joins ends.
const PATIENCE: usize = 100;

/// A longer journal is dropped: only the first joins of all make one, and they are never undone.
const MOST_LOGGED: usize = 1 << 16;

/// The most that may be undone in one move.
const MOST_UNDONE: usize = 200;

/// Joins that are thought over again and again.
#[derive(Clone)]
pub(crate) struct Careful(Work);

impl Careful {
    /// The first joins. Alignments must be 1.
    pub(crate) fn new(compact: &Compact, seed: u64) -> Careful {
        let mut work = Work::new(compact, seed);
        work.join_all(MOST_DOUBT);
        Careful(work)
    }

    /// Second thoughts that touch so many nodes; returns the number that they did touch: few once `PATIENCE` is used
    /// up.
    pub(crate) fn think(&mut self, effort: u64, stop: &dyn Fn() -> bool) -> u64 {
        self.0.think_again(effort, stop)
    }

    /// The problem that is left when all is joined that can be, whatever the doubt.
    pub(crate) fn joined(&self, compact: &Compact) -> Joined {
        let mut work = self.0.clone();
        work.propose_all();
        work.join_all(f64::INFINITY);
        Joined::of_nodes(compact, work.nodes, work.first, work.last, work.size, &work.alive)
    }
}

/// Nodes of one lifetime, to be stacked.
type Members = Box<[u32]>;

#[derive(Clone)]
enum Candidate {
    Chain(u32, u32),
    Stack(Members),
    /// Both become one node each, which are then chained.
    Beside(Members, Members),
}

#[derive(Clone)]
enum Step {
    Left(u32),
    Revived(u32),
}

const NONE: u32 = u32::MAX;

#[derive(Clone)]
struct Work {
    nodes: Vec<Node>,
    first: Vec<u32>,
    last: Vec<u32>,
    size: Vec<i64>,
    alive: Vec<bool>,
    parent: Vec<u32>,
    /// The cost of the join that made the node.
    cost: Vec<f32>,
    /// True for a stack that is only there for the chain above it.
    inner: Vec<bool>,
    /// Numbers of the living that begin, and end, in each section.
    begins_at: Vec<u32>,
    ends_at: Vec<u32>,
    /// The living by lifetime.
    groups: FxHashMap<(u32, u32), Vec<u32>>,
    /// Living nodes and stacks by where they begin (or end) and their size; the dead are cleared when met.
    begins: FxHashMap<(u32, i64), Vec<Members>>,
    ends: FxHashMap<(u32, i64), Vec<Members>>,
    /// All nodes there ever were, the same way.
    ever_begins: FxHashMap<(u32, i64), Vec<u32>>,
    ever_ends: FxHashMap<(u32, i64), Vec<u32>>,
    candidates: Vec<Option<(f64, Candidate)>>,
    /// By doubt; of equals the eldest.
    queue: BinaryHeap<Reverse<(u64, usize)>>,
    journal: Vec<Step>,
    /// Lists of nodes and stacks that grew since the journal began: the key, and true for the begins.
    listed: Vec<((u32, i64), bool)>,
    total: f64,
    blur: f64,
    rng: Rng,
    /// Second thoughts leave dead nodes behind. With this many they end, since memory matters more than a better join.
    most_nodes: usize,
    /// Moves since the whole became better, and its best total.
    stale: usize,
    best: f64,
}

impl Work {
    fn new(compact: &Compact, seed: u64) -> Work {
        let (n, sections) = (compact.len(), compact.sections);
        let mut work = Work {
            nodes: (0..n as u32).map(Node::Item).collect(),
            first: compact.first.clone(),
            last: compact.last.clone(),
            size: compact.size.clone(),
            alive: vec![true; n],
            parent: vec![NONE; n],
            cost: vec![0.0; n],
            inner: vec![false; n],
            begins_at: vec![0; sections + 1],
            ends_at: vec![0; sections + 1],
            groups: FxHashMap::default(),
            begins: FxHashMap::default(),
            ends: FxHashMap::default(),
            ever_begins: FxHashMap::default(),
            ever_ends: FxHashMap::default(),
            candidates: Vec::new(),
            queue: BinaryHeap::new(),
            journal: Vec::new(),
            listed: Vec::new(),
            total: n as f64,
            blur: 0.0,
            rng: Rng::new(seed),
            most_nodes: n * 8 + 10_000,
            stale: 0,
            best: f64::INFINITY,
        };
        for item in 0..n {
            work.begins_at[compact.first[item] as usize] += 1;
            work.ends_at[compact.last[item] as usize] += 1;
        }
        for item in 0..n as u32 {
            work.remember(item);
            work.enter(item);
        }
        work
    }

    fn remember(&mut self, node: u32) {
        let at = node as usize;
        self.ever_begins.entry((self.first[at], self.size[at])).or_default().push(node);
        self.ever_ends.entry((self.last[at], self.size[at])).or_default().push(node);
    }

    fn propose(&mut self, doubt: f64, candidate: Candidate) {
        let blur = if self.blur > 0.0 { ((self.rng.unit() * 2.0 - 1.0) * self.blur).exp() } else { 1.0 };
        self.queue.push(Reverse(((doubt * blur).to_bits(), self.candidates.len())));
        self.candidates.push(Some((doubt, candidate)));
    }

    /// Weighs all joins among the living.
    fn propose_all(&mut self) {
        self.blur = 0.0;
        self.groups.clear();
        self.begins.clear();
        self.ends.clear();
        self.queue.clear();
        self.candidates.clear();
        for node in 0..self.nodes.len() as u32 {
            if self.alive[node as usize] {
                self.enter(node);
            }
        }
    }

    /// Lists a living node and weighs its joins with those that are listed.
    fn enter(&mut self, node: u32) {
        let at = node as usize;
        let (first, last, size) = (self.first[at], self.last[at], self.size[at]);
        let group = self.groups.entry((first, last)).or_default();
        let others: Vec<u32> = group.iter().rev().take(MOST_COMBINED).copied().collect();
        let crowd = group.len();
        group.push(node);
        self.meet(Box::new([node]), first, last, size, 1.0);
        if crowd == 0 {
            return;
        }
        let alike = self.alike(first, last, crowd);
        let most = if crowd > MOST_COMBINED { 2 } else { MOST_STACKED };
        for mask in 1u32..1 << others.len() {
            if mask.count_ones() as usize >= most {
                continue;
            }
            let chosen = (0..others.len()).filter(|at| mask >> at & 1 == 1).map(|at| others[at]);
            let members: Members = chosen.chain([node]).collect();
            let total = members.iter().map(|node| self.size[*node as usize]).sum();
            if members.len() == 2 {
                self.propose(alike, Candidate::Stack(members.clone()));
            }
            self.meet(members, first, last, total, alike * f64::from(1u32 << others.len()));
        }
    }

    /// The doubt that this lifetime is another's by more than chance.
    fn alike(&self, first: u32, last: u32, crowd: usize) -> f64 {
        let together = f64::from(self.begins_at[first as usize].min(self.ends_at[last as usize]));
        (together * crowd as f64 / f64::from(last - first)).min(1.0)
    }

    /// Lists a node or stack where it begins and ends, and proposes to chain it to those there of its size.
    fn meet(&mut self, members: Members, first: u32, last: u32, size: i64, doubt: f64) {
        for (at, before) in [(first, true), (last, false)] {
            let there = if before { &mut self.ends } else { &mut self.begins };
            let Some(list) = there.get_mut(&(at, size)) else { continue };
            let alive = &self.alive;
            list.retain(|other| other.iter().all(|node| alive[*node as usize]));
            let others = list.clone();
            let pairs =
                f64::from(self.ends_at[at as usize].max(1)) * f64::from(self.begins_at[at as usize].max(1));
            let coincidence = (pairs * others.len() as f64 / size as f64).min(1.0);
            for other in others {
                let doubt = doubt * coincidence * self.stack_doubt(&other);
                let candidate = match (&*members, &*other) {
                    ([one], [two]) if before => Candidate::Chain(*two, *one),
                    ([one], [two]) => Candidate::Chain(*one, *two),
                    _ if before => Candidate::Beside(other, members.clone()),
                    _ => Candidate::Beside(members.clone(), other),
                };
                self.propose(doubt, candidate);
            }
        }
        for (key, begin) in [((first, size), true), ((last, size), false)] {
            let list = if begin { &mut self.begins } else { &mut self.ends }.entry(key).or_default();
            if !list.contains(&members) {
                list.push(members.clone());
                self.listed.push((key, begin));
            }
        }
    }

    fn stack_doubt(&self, members: &[u32]) -> f64 {
        if members.len() == 1 {
            return 1.0;
        }
        let at = members[0] as usize;
        let (first, last) = (self.first[at], self.last[at]);
        let crowd = self.groups.get(&(first, last)).map_or(1, Vec::len).min(MOST_COMBINED);
        self.alike(first, last, crowd) * f64::from(1u32 << crowd)
    }

    /// Makes the proposed joins, the least doubt first, and those that come up on the way.
    fn join_all(&mut self, most: f64) {
        while let Some(Reverse((_, at))) = self.queue.pop() {
            let Some((doubt, candidate)) = self.candidates[at].take() else { continue };
            if doubt > most {
                continue;
            }
            let cost = (doubt.min(1.0) * DOUBT_COST) as f32;
            let living = |members: &[u32]| members.iter().all(|node| self.alive[*node as usize]);
            match candidate {
                Candidate::Chain(left, right) if living(&[left, right]) => self.chain(left, right, cost),
                Candidate::Stack(members) if living(&members) => {
                    self.stack(&members, cost, false);
                }
                Candidate::Beside(left, right) if living(&left) && living(&right) => {
                    let (left, right) = (self.stack(&left, 0.0, true), self.stack(&right, 0.0, true));
                    self.chain(left, right, cost);
                }
                _ => {}
            }
        }
        self.candidates.clear();
        if self.journal.len() > MOST_LOGGED {
            self.begin();
        }
    }

    /// Starts the journal: changes from here on can be undone.
    fn begin(&mut self) {
        self.journal.clear();
        self.listed.clear();
        self.queue.clear();
        self.candidates.clear();
    }

    fn leave(&mut self, node: u32) {
        let at = node as usize;
        self.alive[at] = false;
        self.begins_at[self.first[at] as usize] -= 1;
        self.ends_at[self.last[at] as usize] -= 1;
        self.total -= 1.0;
        if let Some(group) = self.groups.get_mut(&(self.first[at], self.last[at])) {
            group.retain(|other| *other != node);
        }
    }

    fn revive(&mut self, node: u32) {
        let at = node as usize;
        self.alive[at] = true;
        self.begins_at[self.first[at] as usize] += 1;
        self.ends_at[self.last[at] as usize] += 1;
        self.total += 1.0;
        if let Some((one, two)) = self.children(node) {
            self.parent[one as usize] = node;
            self.parent[two as usize] = node;
        }
        self.enter(node);
    }

    fn children(&self, node: u32) -> Option<(u32, u32)> {
        match self.nodes[node as usize] {
            Node::Item(_) => None,
            Node::Stack(one, two) | Node::Chain(one, two) => Some((one, two)),
        }
    }

    fn make(&mut self, node: Node, first: u32, last: u32, size: i64, cost: f32, inner: bool) -> u32 {
        let index = self.nodes.len() as u32;
        self.nodes.push(node);
        self.first.push(first);
        self.last.push(last);
        self.size.push(size);
        self.alive.push(false);
        self.parent.push(NONE);
        self.cost.push(cost);
        self.inner.push(inner);
        if let Some((one, two)) = self.children(index) {
            for child in [one, two] {
                self.leave(child);
                self.journal.push(Step::Left(child));
            }
        }
        self.total += f64::from(cost);
        self.remember(index);
        self.revive(index);
        self.journal.push(Step::Revived(index));
        index
    }

    fn chain(&mut self, left: u32, right: u32, cost: f32) {
        let (first, last) = (self.first[left as usize], self.last[right as usize]);
        self.make(Node::Chain(left, right), first, last, self.size[left as usize], cost, false);
    }

    fn stack(&mut self, members: &[u32], cost: f32, inner: bool) -> u32 {
        let mut low = members[0];
        for high in &members[1..] {
            let at = low as usize;
            let (first, last) = (self.first[at], self.last[at]);
            let size = self.size[at] + self.size[*high as usize];
            low = self.make(Node::Stack(low, *high), first, last, size, cost, inner);
        }
        low
    }

    /// Takes a living node apart; stacks that were only made for it too.
    fn dissolve(&mut self, node: u32, pieces: &mut Vec<u32>) {
        let Some((one, two)) = self.children(node) else { return };
        self.leave(node);
        self.total -= f64::from(self.cost[node as usize]);
        self.journal.push(Step::Left(node));
        for child in [one, two] {
            self.revive(child);
            self.journal.push(Step::Revived(child));
            if self.inner[child as usize] {
                self.dissolve(child, pieces);
            } else {
                pieces.push(child);
            }
        }
    }

    /// Takes apart the living node that this one is a part of, so that it lives itself; false if there is none.
    fn free(&mut self, node: u32, pieces: &mut Vec<u32>) -> bool {
        let mut path = Vec::new();
        let mut at = node;
        while !self.alive[at as usize] {
            let above = self.parent[at as usize];
            if above as usize >= self.nodes.len() || path.len() > MOST_UNDONE {
                return false;
            }
            let (one, two) = self.children(above).unwrap_or((NONE, NONE));
            if at != one && at != two {
                return false;
            }
            path.push(above);
            at = above;
        }
        while let Some(above) = path.pop() {
            if self.alive[above as usize] {
                self.dissolve(above, pieces);
            }
        }
        true
    }

    /// One move after the other; see the head of the module.
    fn think_again(&mut self, effort: u64, stop: &dyn Fn() -> bool) -> u64 {
        self.blur = BLUR;
        let mut roots: Vec<u32> = Vec::new();
        let (mut moves, mut used) = (0u64, 0u64);
        while used < effort && self.nodes.len() < self.most_nodes && !stop() {
            if moves.is_multiple_of(64) {
                roots = (0..self.nodes.len() as u32).filter(|node| self.alive[*node as usize]).collect();
                used += self.nodes.len() as u64 / 64;
            }
            moves += 1;
            if roots.len() < 2 || self.stale > roots.len() * PATIENCE {
                break;
            }
            let root = roots[self.rng.below(roots.len() as u64) as usize];
            if !self.alive[root as usize] {
                continue;
            }
            let before = self.total;
            let mark = self.nodes.len();
            self.begin();
            let mut pieces = vec![root];
            for _ in 0..self.rng.below(4) {
                let at = self.rng.below(pieces.len() as u64) as usize;
                let piece = pieces.swap_remove(at);
                if self.children(piece).is_some() {
                    self.dissolve(piece, &mut pieces);
                } else {
                    pieces.push(piece);
                }
            }
            let mut freed = Vec::new();
            for piece in &pieces {
                let at = *piece as usize;
                let size = self.size[at];
                for wanted in [
                    self.ever_ends.get(&(self.first[at], size)).cloned(),
                    self.ever_begins.get(&(self.last[at], size)).cloned(),
                ]
                .into_iter()
                .flatten()
                {
                    for other in wanted {
                        if !self.alive[other as usize] && self.rng.below(2) == 0 {
                            self.free(other, &mut freed);
                        }
                        if self.journal.len() > MOST_UNDONE {
                            break;
                        }
                    }
                }
            }
            self.join_all(MOST_DOUBT);
            used += self.journal.len() as u64 + 1;
            let change = self.total - before;
            if change > WORSE || change.abs() < 1e-9 {
                self.undo(before, mark);
            }
            self.stale += 1;
            if self.total < self.best - 1e-3 {
                self.best = self.total;
                self.stale = 0;
            }
        }
        self.begin();
        used
    }

    /// Back to the total and the number of nodes that there were.
    fn undo(&mut self, total: f64, mark: usize) {
        while let Some(step) = self.journal.pop() {
            match step {
                Step::Left(node) => self.revive(node),
                Step::Revived(node) => self.leave(node),
            }
        }
        for (key, begin) in std::mem::take(&mut self.listed) {
            let map = if begin { &mut self.begins } else { &mut self.ends };
            if let Some(list) = map.get_mut(&key) {
                list.retain(|members| members.iter().all(|node| (*node as usize) < mark));
            }
        }
        while self.nodes.len() > mark {
            let at = self.nodes.len() - 1;
            for list in [
                self.ever_begins.get_mut(&(self.first[at], self.size[at])),
                self.ever_ends.get_mut(&(self.last[at], self.size[at])),
            ]
            .into_iter()
            .flatten()
            {
                list.pop();
            }
            self.nodes.pop();
        }
        self.first.truncate(mark);
        self.last.truncate(mark);
        self.size.truncate(mark);
        self.alive.truncate(mark);
        self.parent.truncate(mark);
        self.cost.truncate(mark);
        self.inner.truncate(mark);
        self.begin();
        self.total = total;
    }
}
