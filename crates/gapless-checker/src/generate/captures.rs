//! Captures, private pools, and allocations in their windows.

use super::super::ops::{OWN_SLOTS, Op};
use super::{Generator, MIB};

impl Generator {
    /// Captures a stream while others go on, and replays the graph among them.
    pub(super) fn capture(&mut self) {
        if self.is_capturing.is_some() || self.graphs.len() > 5 {
            return;
        }
        let (stream, pool) = (self.random.pick(&OWN_SLOTS), 1 + self.random.below(2) as u8);
        let graph = self.next_graph;
        self.next_graph += 1;
        if let Some(at) = self.any_live() {
            self.ops.push(Op::Announce { id: self.live[at].0, stream });
        }
        self.is_capturing = Some(stream);
        self.ops.push(Op::BeginCapture { graph, stream, pool });
        let mut mine = Vec::new();
        for _ in 0..4 + self.random.below(30) {
            match self.random.below(8) {
                0..=2 => {
                    let size = self.size().min(self.capacity / 16);
                    mine.push(self.alloc_sized(stream, size, 0, None));
                }
                3 if !mine.is_empty() => {
                    let at = self.random.below(mine.len() as u64) as usize;
                    self.free_named(mine.swap_remove(at));
                }
                4 if !mine.is_empty() => {
                    let id = self.random.pick(&mine);
                    self.ops.push(Op::Touch { id });
                }
                5 if self.random.one_in(4) => self.in_capture(stream, pool),
                6 if self.random.one_in(6) => {
                    let other = self.random.pick(&OWN_SLOTS);
                    self.ops.push(Op::JoinCapture { stream: other });
                    let size = self.size().min(self.capacity / 16);
                    let id = self.alloc_sized(other, size, 0, None);
                    self.ops.push(Op::Announce { id, stream });
                    mine.push(id);
                }
                _ => self.any(),
            }
        }
        self.ops.push(Op::EndCapture);
        self.is_capturing = None;
        self.graphs.push(graph);
        // Temporaries of the graph are freed; a few outputs stay.
        for id in mine {
            if !self.random.one_in(4) {
                self.free_named(id);
            }
        }
        for _ in 0..self.random.below(4) {
            self.any();
            self.replay();
        }
    }

    /// While a thread waits for all work, another one replays a graph and drops it, so its pool is released under the
    /// replay.
    pub(super) fn graph_ends_meanwhile(&mut self) {
        if self.is_capturing.is_some() || self.stepping.is_some() {
            return;
        }
        let (stream, other, graph) = (OWN_SLOTS[0], OWN_SLOTS[1], self.next_graph);
        self.next_graph += 1;
        // A pool of its own, which ends with its only graph.
        let pool = 3;
        self.ops.push(Op::BeginCapture { graph, stream, pool });
        let inside = self.alloc_sized(stream, self.capacity / 16, 0, None);
        self.free_named(inside);
        self.ops.push(Op::EndCapture);
        let outside = self.alloc_sized(other, self.capacity / 32, 0, None);
        self.ops.push(Op::Touch { id: outside });
        self.free_named(outside);
        let press = if self.random.one_in(2) { Op::Trim } else { self.press(other) };
        self.ops.extend([press, Op::Replay { graph, stream: other }, Op::DropGraph { graph }]);
        self.any();
        self.ops.push(Op::Run { stream: other, most: u16::MAX });
    }

    /// A request that only memory of others can serve.
    fn press(&mut self, stream: u8) -> Op {
        let id = self.next;
        self.next += 1;
        Op::Alloc { id, stream, pool: 0, size: self.capacity - self.capacity / 32, budget: None }
    }

    /// Requests memory on a stream in a capture that the program did not report.
    pub(super) fn alloc_in_raw_capture(&mut self) {
        let (stream, size) = (self.random.pick(&OWN_SLOTS), self.size());
        let id = self.next;
        self.next += 1;
        self.ops.push(Op::AllocInRawCapture { id, stream, size });
        self.live.push((id, size, stream));
        self.bytes += size;
    }

    /// Operations that must not disturb a capture: trims, and frees of memory that the captured stream uses.
    pub(super) fn in_capture(&mut self, stream: u8, pool: u8) {
        match self.random.below(4) {
            0 => self.ops.push(Op::Trim),
            1 => self.ops.push(Op::TrimGraphPool { pool }),
            2 => self.ops.push(Op::TrimPool { pool }),
            _ => {
                let used = self.ops.iter().rev().find_map(|op| match *op {
                    Op::Announce { id, stream: other } if other == stream => Some(id),
                    _ => None,
                });
                if let Some(id) = used {
                    self.free_named(id);
                }
            }
        }
    }

    /// Makes free memory in pieces in a private pool, and larger requests over it; then states of the pool, replays,
    /// and sometimes its end.
    pub(super) fn private_windows(&mut self) {
        if self.is_capturing.is_some() {
            return;
        }
        let (stream, pool) = (self.random.pick(&OWN_SLOTS), 1 + self.random.below(2) as u8);
        let is_graph = self.random.below(3) > 0 && self.graphs.len() < 8;
        let graph = self.next_graph;
        if is_graph {
            self.next_graph += 1;
            self.is_capturing = Some(stream);
            self.ops.push(Op::BeginCapture { graph, stream, pool });
        } else {
            self.ops.push(Op::UsePool { pool, again: !self.random.one_in(3) });
        }
        let mut mine = self.pieces_in(stream, if is_graph { 0 } else { pool });
        if is_graph {
            self.ops.push(Op::EndCapture);
            self.is_capturing = None;
            self.graphs.push(graph);
        }
        let (keep, bring) = if is_graph {
            (Op::SaveGraphs { pool }, Op::RestoreGraphs { pool })
        } else {
            (Op::Save { pool }, Op::Restore { pool })
        };
        for _ in 0..2 + self.random.below(6) {
            match self.random.below(12) {
                0 | 1 => self.ops.push(keep),
                2 | 3 => self.ops.push(bring),
                4 => self.ops.push(Op::TrimBehind { of_all: self.random.one_in(2) }),
                5 => self.replay(),
                6 if self.random.one_in(3) => self.ops.push(Op::Trim),
                7 if self.random.one_in(3) => self.ops.push(Op::TrimGraphPool { pool }),
                8 if self.random.one_in(2) && !self.graphs.is_empty() => self.drop_graphs(),
                9 if self.has_faults => {
                    self.ops.push(Op::Fault { after: self.random.below(12) as u16 });
                }
                10 if !is_graph && self.random.one_in(3) => self.ops.push(Op::ReleasePool { pool }),
                11 if !is_graph && self.random.one_in(2) => self.anew(stream, pool),
                _ if !mine.is_empty() && self.random.one_in(2) => {
                    let at = self.random.below(mine.len() as u64) as usize;
                    self.free_named(mine.swap_remove(at));
                }
                _ => self.any(),
            }
        }
        for id in mine {
            if !self.random.one_in(4) {
                self.free_named(id);
            }
        }
    }

    /// Requests of one stream in one pool: pieces, of which every other is freed, and larger ones that need several
    /// pieces. Returns the allocations that are left.
    pub(super) fn pieces_in(&mut self, stream: u8, pool: u8) -> Vec<u32> {
        let piece = (self.capacity / 128).max(2 * MIB);
        let many = 4 + self.random.below(8);
        let odd = self.random.below(3) * MIB / 2;
        let ids: Vec<u32> = (0..many).map(|_| self.alloc_sized(stream, piece + odd, pool, None)).collect();
        let (mut mine, gone): (Vec<u32>, Vec<u32>) = ids.iter().partition(|id| *id % 2 == 0);
        gone.into_iter().for_each(|id| self.free_named(id));
        for _ in 0..1 + self.random.below(6) {
            let size = piece * (2 + self.random.below(many / 2)) - self.random.below(4) * MIB / 2;
            mine.push(self.alloc_sized(stream, size, pool, None));
            match self.random.below(6) {
                0 | 1 => {
                    let at = self.random.below(mine.len() as u64) as usize;
                    self.free_named(mine.swap_remove(at));
                }
                2 => self.ops.push(Op::Touch { id: self.random.pick(&mine) }),
                3 => self.any(),
                _ => {}
            }
        }
        mine
    }

    /// Saves a private pool's state, releases and empties the pool, and uses it again: other pages lie at its addresses
    /// when the state is restored.
    pub(super) fn anew(&mut self, stream: u8, pool: u8) {
        let (piece, many) = ((self.capacity / 128).max(2 * MIB), 6 + self.random.below(4));
        self.ops.push(Op::ReleasePool { pool });
        self.ops.push(Op::UsePool { pool, again: false });
        for turn in 0..2 {
            let ids: Vec<u32> = (0..many).map(|_| self.alloc_sized(stream, piece, pool, None)).collect();
            // Pieces that are freed in one turn mostly stay in the other.
            let first = if self.random.one_in(4) { 0 } else { turn };
            ids.iter().skip(first).step_by(2).for_each(|&id| self.free_named(id));
            let large = self.alloc_sized(stream, 2 * piece, pool, None);
            if turn == 0 {
                self.ops.push(Op::Save { pool });
                ids.into_iter().chain([large]).for_each(|id| self.free_named(id));
                self.ops.extend([Op::ReleasePool { pool }, Op::Trim, Op::UsePool { pool, again: true }]);
            }
        }
        self.ops.push(Op::Restore { pool });
    }

    /// Drops all graphs, often while they are replayed.
    pub(super) fn drop_graphs(&mut self) {
        self.replay();
        for graph in std::mem::take(&mut self.graphs) {
            self.ops.push(Op::DropGraph { graph });
        }
        self.ops.push(Op::TrimBehind { of_all: self.random.one_in(2) });
    }
}
