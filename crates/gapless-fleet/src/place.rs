//! Picks the best node for a request. Scores are kept for each distinct request and computed again only for nodes that
//! changed since the request was last seen.
//!
//! Nodes stand in the order of their ranks, so that the first of equal scores wins. For each request there is a row of
//! scores, and the highest score of every block of nodes. The change log has the nodes in the order of their changes;
//! `last` has the number of each node's latest change, so that a node that changed several times is scored once.

use crate::error::Result;
use crate::ledger::{Booking, Ledger};
use crate::policy::Policy;
use crate::words::{Node, Request};
use rustc_hash::FxHashMap;

/// The score of a node that the request does not fit on.
const NO: i32 = i32::MIN;
/// Nodes of a block.
const BLOCK: usize = 64;
/// Bytes that kept scores may take; requests that were not seen for the longest time are forgotten first.
const MOST_BYTES: usize = 512 << 20;

/// The place for a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Index of the node, in the order of ranks.
    pub node: u32,
    pub gpus: Vec<u16>,
}

/// A cluster with a policy.
#[derive(Clone, Debug)]
pub struct Placer {
    ledger: Ledger,
    policy: Policy,
    kinds: FxHashMap<Request, u32>,
    rows: Vec<Row>,
    /// Nodes that changed, and the number of the first entry.
    changes: Vec<u32>,
    first_change: u64,
    last: Vec<u64>,
    /// The value that the policy keeps for each node until it changes.
    befores: Vec<f64>,
    free: u64,
    clock: u64,
}

/// The scores of one request.
#[derive(Clone, Debug)]
struct Row {
    request: Request,
    scores: Vec<i32>,
    blocks: Vec<i32>,
    /// Changes before this one are in the scores.
    seen: u64,
    used: u64,
    accepted: Vec<bool>,
}

impl Placer {
    /// `ledger` must have its nodes in the order of their ranks.
    pub fn new(ledger: Ledger, policy: Policy) -> Placer {
        let nodes = ledger.len();
        let free = (0..nodes as u32).map(|node| u64::from(ledger.slot(node).free)).sum();
        Placer {
            ledger,
            policy,
            kinds: FxHashMap::default(),
            rows: Vec::new(),
            changes: Vec::new(),
            first_change: 1,
            last: vec![0; nodes],
            befores: vec![f64::NAN; nodes],
            free,
            clock: 0,
        }
    }

    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    pub fn policy_mut(&mut self) -> &mut Policy {
        &mut self.policy
    }

    /// Sets another policy, for another mix. All scores are forgotten.
    pub fn set_policy(&mut self, policy: Policy) {
        self.policy = policy;
        self.kinds.clear();
        self.rows.clear();
        self.befores.fill(f64::NAN);
    }

    /// Adds a node, which has the highest rank. If this policy does not know such nodes, `policy` makes one that does.
    pub fn add_node(&mut self, node: Node, policy: impl FnOnce(&Ledger) -> Policy) -> u32 {
        let index = self.ledger.add(node);
        self.last.push(0);
        self.befores.push(f64::NAN);
        for row in &mut self.rows {
            row.scores.push(NO);
            row.blocks.resize(row.scores.len().div_ceil(BLOCK), NO);
        }
        self.changed(index, 0);
        self.learn_node(index, policy);
        index
    }

    /// Replaces a node without bookings by another one.
    pub fn replace_node(&mut self, index: u32, node: Node, policy: impl FnOnce(&Ledger) -> Policy) {
        let before = self.ledger.slot(index).free;
        self.ledger.replace(index, node);
        self.changed(index, before);
        self.learn_node(index, policy);
    }

    fn learn_node(&mut self, index: u32, policy: impl FnOnce(&Ledger) -> Policy) {
        if !self.policy.knows(&self.ledger, index) {
            let policy = policy(&self.ledger);
            self.set_policy(policy);
        }
    }

    /// Closes a node, or opens it again.
    pub fn set_open(&mut self, node: u32, open: bool) {
        let before = self.ledger.slot(node).free;
        self.ledger.set_open(node, open);
        self.changed(node, before);
    }

    /// Thousandths that are free.
    pub fn free(&self) -> u64 {
        self.free
    }

    /// The best place for `request`; `None` if it fits on no node.
    pub fn choose(&mut self, request: &Request) -> Option<Placement> {
        let row = self.row(request);
        self.refresh(row);
        let node = self.best(row)?;
        let view = self.ledger.view(node);
        let gpus = self.policy.gpus(view, self.ledger.left(node), request);
        Some(Placement { node, gpus })
    }

    /// Books `request` at the policy's choice.
    pub fn place(&mut self, request: &Request) -> Option<Booking> {
        let placement = self.choose(request)?;
        self.book(placement.node, request, &placement.gpus).ok()
    }

    /// Books `request` on the best of the nodes that `allowed` accepts.
    pub fn place_among(&mut self, request: &Request, allowed: impl Fn(u32) -> bool) -> Option<Booking> {
        let row = self.row(request);
        self.refresh(row);
        let scores = self.rows[row].scores.iter().enumerate();
        let fits = scores.filter(|&(node, &score)| score != NO && allowed(node as u32));
        let (node, _) = fits.max_by_key(|&(node, &score)| (score, std::cmp::Reverse(node)))?;
        let node = node as u32;
        let gpus = self.policy.gpus(self.ledger.view(node), self.ledger.left(node), request);
        self.book(node, request, &gpus).ok()
    }

    /// Books `request` on this node, at the policy's choice of GPUs; `None` if it does not fit there.
    pub fn place_on(&mut self, node: u32, request: &Request) -> Option<Booking> {
        let model = &self.ledger.models()[self.ledger.slot(node).model as usize].name;
        if !request.accepts(model) || !self.ledger.fits(node, request) {
            return None;
        }
        let gpus = self.policy.gpus(self.ledger.view(node), self.ledger.left(node), request);
        self.book(node, request, &gpus).ok()
    }

    pub fn book(&mut self, node: u32, request: &Request, gpus: &[u16]) -> Result<Booking> {
        let before = self.ledger.slot(node).free;
        let booking = self.ledger.book(node, request, gpus)?;
        self.changed(node, before);
        Ok(booking)
    }

    pub fn release(&mut self, booking: &Booking) -> Result<()> {
        let before = self.ledger.slots_free(booking.node);
        self.ledger.release(booking)?;
        self.changed(booking.node, before);
        Ok(())
    }

    /// Books all requests or none.
    pub fn place_gang(&mut self, requests: &[Request]) -> Option<Vec<Booking>> {
        let mut bookings = Vec::with_capacity(requests.len());
        for request in requests {
            match self.place(request) {
                Some(booking) => bookings.push(booking),
                None => {
                    for booking in bookings.iter().rev() {
                        self.release(booking).expect("it was booked above");
                    }
                    return None;
                }
            }
        }
        Some(bookings)
    }

    /// Nodes on which `request` fits now, by index.
    pub fn fitting(&mut self, request: &Request) -> Vec<u32> {
        let row = self.row(request);
        self.refresh(row);
        let scores = self.rows[row].scores.iter().enumerate();
        scores.filter(|&(_, &score)| score != NO).map(|(node, _)| node as u32).collect()
    }

    /// The same, the best first.
    pub fn fitting_by_score(&mut self, request: &Request) -> Vec<u32> {
        let row = self.row(request);
        self.refresh(row);
        let scores = &self.rows[row].scores;
        let mut nodes: Vec<u32> =
            (0..scores.len() as u32).filter(|&node| scores[node as usize] != NO).collect();
        nodes.sort_by_key(|&node| (std::cmp::Reverse(scores[node as usize]), node));
        nodes
    }

    /// A number that changes with every booking and release.
    pub fn version(&self) -> u64 {
        self.first_change + self.changes.len() as u64
    }

    fn changed(&mut self, node: u32, free_before: u32) {
        let now = self.ledger.slot(node).free;
        self.free = self.free + u64::from(now) - u64::from(free_before);
        self.befores[node as usize] = f64::NAN;
        self.changes.push(node);
        self.last[node as usize] = self.first_change + self.changes.len() as u64 - 1;
        if self.changes.len() > 4 * self.last.len() + 1024 {
            self.first_change += self.changes.len() as u64;
            self.changes.clear();
        }
    }

    /// The row of a request, made if there is none.
    fn row(&mut self, request: &Request) -> usize {
        self.clock += 1;
        if let Some(&row) = self.kinds.get(request) {
            self.rows[row as usize].used = self.clock;
            return row as usize;
        }
        let nodes = self.ledger.len();
        let accepted = self.ledger.models().iter().map(|model| request.accepts(&model.name)).collect();
        let mut row = Row {
            request: request.clone(),
            scores: vec![NO; nodes],
            blocks: vec![NO; nodes.div_ceil(BLOCK)],
            seen: self.first_change + self.changes.len() as u64,
            used: self.clock,
            accepted,
        };
        // Nodes in the same state have the same score.
        let mut known: FxHashMap<u64, i32> = FxHashMap::default();
        for node in 0..nodes as u32 {
            if row.fits(&self.ledger, node) {
                let view = self.ledger.view(node);
                // Clustering depends on the classes of a node's pods, which are no part of its state.
                let before = &mut self.befores[node as usize];
                let policy = &mut self.policy;
                let score = match policy {
                    Policy::Clustering => policy.score(view, request, before),
                    _ => *known.entry(view.slot.state).or_insert_with(|| policy.score(view, request, before)),
                };
                row.scores[node as usize] = score;
            }
        }
        for (block, scores) in row.blocks.iter_mut().zip(row.scores.chunks(BLOCK)) {
            *block = highest(scores);
        }
        let most = (MOST_BYTES / (4 * nodes.max(1))).max(16);
        let at = if self.rows.len() < most {
            self.rows.push(row);
            self.rows.len() - 1
        } else {
            let oldest = (0..self.rows.len()).min_by_key(|&at| self.rows[at].used).unwrap_or(0);
            self.kinds.remove(&self.rows[oldest].request);
            self.rows[oldest] = row;
            oldest
        };
        self.kinds.insert(request.clone(), at as u32);
        at
    }

    /// Scores the nodes that changed since the row was last used.
    fn refresh(&mut self, at: usize) {
        let row = &mut self.rows[at];
        let end = self.first_change + self.changes.len() as u64;
        if row.seen >= self.first_change {
            let from = (row.seen - self.first_change) as usize;
            for (number, &node) in self.changes[from..].iter().enumerate() {
                // Only the latest change of a node counts.
                if self.last[node as usize] == row.seen + number as u64 {
                    row.score(&self.ledger, &mut self.policy, &mut self.befores, node);
                }
            }
        } else {
            for node in 0..self.last.len() as u32 {
                if self.last[node as usize] >= row.seen {
                    row.score(&self.ledger, &mut self.policy, &mut self.befores, node);
                }
            }
        }
        row.seen = end;
    }

    /// The node with the highest score, the first of equals.
    fn best(&mut self, at: usize) -> Option<u32> {
        let row = &self.rows[at];
        if let Some(random) = self.policy.draws() {
            let fitting = row.scores.iter().filter(|&&score| score != NO).count();
            if fitting == 0 {
                return None;
            }
            let chosen = random.below(fitting as u32) as usize;
            let mut fits = row.scores.iter().enumerate().filter(|&(_, &score)| score != NO);
            return fits.nth(chosen).map(|(node, _)| node as u32);
        }
        let most = highest(&row.blocks);
        if most == NO {
            return None;
        }
        let block = row.blocks.iter().position(|&score| score == most)?;
        let inside = row.scores[block * BLOCK..].iter().position(|&score| score == most)?;
        Some((block * BLOCK + inside) as u32)
    }
}

impl Row {
    fn fits(&self, ledger: &Ledger, node: u32) -> bool {
        self.accepted[ledger.slot(node).model as usize] && ledger.fits(node, &self.request)
    }

    fn score(&mut self, ledger: &Ledger, policy: &mut Policy, befores: &mut [f64], node: u32) {
        let at = node as usize;
        let score = if self.fits(ledger, node) {
            policy.score(ledger.view(node), &self.request, &mut befores[at])
        } else {
            NO
        };
        let before = std::mem::replace(&mut self.scores[at], score);
        let block = &mut self.blocks[at / BLOCK];
        if score >= *block {
            *block = score;
        } else if before == *block {
            let first = at / BLOCK * BLOCK;
            let end = (first + BLOCK).min(self.scores.len());
            *block = highest(&self.scores[first..end]);
        }
    }
}

fn highest(scores: &[i32]) -> i32 {
    scores.iter().copied().fold(NO, i32::max)
}
