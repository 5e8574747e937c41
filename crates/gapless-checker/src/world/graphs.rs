//! Captures, and the graphs that they become.
//!
//! A capture runs nothing, and only records the allocations that its kernels used. A replay uses all of them at once,
//! as one piece of work on the stream on which it is launched. A graph's own allocations may be free again by then;
//! their addresses must still lie over the same bytes.

use super::super::clock::{Clock, Line};
use super::super::memory::{MapId, OwnerId};
use super::super::violation::Rule;
use super::World;
use gapless_pool::pool::PoolKey;
use std::rc::Rc;

/// A capture that is open.
#[derive(Debug)]
pub(crate) struct Capture {
    number: u64,
    /// The stream on which it began, and those that joined it.
    pub(crate) lines: Vec<Line>,
    pub(crate) pool: PoolKey,
    used: Vec<OwnerId>,
}

/// A graph that can be replayed.
#[derive(Debug)]
pub(crate) struct Graph {
    pub(crate) pool: PoolKey,
    /// Addresses and sizes, and the mappings behind all of them.
    ranges: Vec<(u64, u64)>,
    maps: Rc<[MapId]>,
}

impl World {
    pub(crate) fn begin_capture(&mut self, line: Line, pool: PoolKey) {
        self.next_capture += 1;
        let number = self.next_capture;
        self.capture = Some(Capture { number, lines: vec![line], pool, used: Vec::new() });
    }

    /// The capture of a stream, reported by the program or not.
    pub(crate) fn capture_of(&self, line: Line) -> Option<u64> {
        let told = self.capture.as_ref().filter(|capture| capture.lines.contains(&line));
        told.map(|capture| capture.number).or_else(|| self.raw.get(&line).copied())
    }

    pub(crate) fn is_captured(&self, line: Line) -> bool {
        self.capture_of(line).is_some()
    }

    pub(crate) fn is_open(&self, number: u64) -> bool {
        self.capture.as_ref().is_some_and(|capture| capture.number == number)
            || self.raw.values().any(|open| *open == number)
    }

    // ---- captures without a word ----

    /// Begins a driver call: first, other threads do what is due.
    pub(crate) fn enter(&mut self) {
        let mut due = Vec::new();
        self.meddles.retain_mut(|(after, line)| {
            let is_due = *after == 0;
            if is_due {
                due.push(*line);
            } else {
                *after -= 1;
            }
            !is_due
        });
        due.into_iter().for_each(|line| self.meddle(line));
    }

    /// Begins a capture of a stream, or ends it.
    pub(crate) fn meddle(&mut self, line: Line) {
        self.counts.meddles += 1;
        if self.raw.remove(&line).is_some() {
            return;
        }
        let handle = self.streams.line(line).handle;
        let is_there = self.named.get(&handle) == Some(&line);
        if is_there && !self.is_captured(line) {
            self.next_capture += 1;
            self.raw.insert(line, self.next_capture);
        }
    }

    /// Ends a capture that the program did not report.
    pub(crate) fn end_raw(&mut self, line: Line) {
        self.raw.remove(&line);
    }

    /// Another stream waits for an event of the capture, and so becomes part of it.
    pub(crate) fn join_capture(&mut self, line: Line) {
        if let Some(capture) = &mut self.capture {
            capture.lines.push(line);
        }
    }

    /// Notes that a kernel of the capture uses an allocation.
    pub(crate) fn capture_use(&mut self, owner: OwnerId) {
        if let Some(capture) = &mut self.capture {
            capture.used.push(owner);
        }
    }

    pub(crate) fn end_capture(&mut self) -> Option<Graph> {
        let Capture { pool, mut used, .. } = self.capture.take()?;
        used.sort_unstable();
        used.dedup();
        let owners = used.iter().map(|&id| self.memory.owner(id));
        let ranges = owners.clone().map(|owner| (owner.addr, owner.size)).collect();
        let mut maps: Vec<MapId> = owners.flat_map(|owner| owner.maps.iter().copied()).collect();
        maps.sort_unstable();
        maps.dedup();
        self.memory.hold(&maps, true);
        Some(Graph { pool, ranges, maps: maps.into() })
    }

    pub(crate) fn drop_graph(&mut self, graph: &Graph) {
        self.memory.hold(&graph.maps, false);
    }

    /// Launches a graph. `after` covers earlier replays of its pool, which the program orders before it. Returns its
    /// end.
    pub(crate) fn replay(&mut self, graph: &Graph, line: Line, after: &Clock) -> Clock {
        self.streams.wait(line, after);
        if self.memory.are_there(&graph.maps).is_err() {
            self.broken((
                Rule::GraphMoved,
                "a graph is replayed after its addresses were unmapped".to_owned(),
            ));
            return self.streams.line(line).clock.clone();
        }
        let moment = self.work(line, &graph.maps.clone());
        let clock = self.streams.line(line).clock.clone();
        for &(addr, size) in &graph.ranges {
            let Some(stretches) = self.keeps(self.memory.resolve(addr, size)) else { continue };
            for id in self.memory.owners_of(&stretches) {
                let owner = self.memory.owner_mut(id);
                owner.uses.add(moment);
                if owner.pool != graph.pool {
                    let name = owner.name;
                    let text = format!("bytes of a graph at {addr:#x} were handed out to allocation {name}");
                    self.broken((Rule::GraphShared, text));
                }
            }
        }
        clock
    }
}
