//! Random programs: phases of the kinds that training and serving consist of, with sizes at the edges of the
//! allocator's rules.
//!
//! A program is a function of its seed, its length, the card's size and the version. It does not depend on the
//! allocator's answers: a request that failed leaves an id that holds nothing.

use crate::ops::{Op, Pool};
use crate::random::Random;
use std::collections::VecDeque;

mod newer;

const MIB: u64 = 1 << 20;

/// Sizes at which some rule changes: the smallest block, the small pool's limit, the limits of large segments.
const EDGES: &[u64] = &[
    512,
    1024,
    MIB,
    2 * MIB,
    10 * MIB,
    20 * MIB,
    21 * MIB,
    32 * MIB,
    34 * MIB,
    48 * MIB,
    64 * MIB,
    128 * MIB,
];

#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) length: usize,
    pub(crate) capacity: u64,
    /// Of 2.x.
    pub(crate) minor: u32,
    pub(crate) fraction: Option<f64>,
    pub(crate) expandable: bool,
    /// True if the settings bound splitting.
    pub(crate) max_split: bool,
    /// True if the settings have classes of streams.
    pub(crate) classes: bool,
}

pub(crate) fn program(plan: Plan) -> Vec<Op> {
    let mut writer = Writer::new(plan);
    while writer.ops.len() < plan.length {
        writer.phase();
    }
    writer.close();
    writer.ops
}

#[derive(Clone, Copy)]
struct Live {
    id: u32,
    size: u64,
    stream: u64,
}

struct OpenPool {
    id: Pool,
    /// Times that it was begun and not yet released.
    uses: u64,
    open: bool,
}

struct Writer {
    random: Random,
    plan: Plan,
    ops: Vec<Op>,
    streams: Vec<u64>,
    /// Sizes that come again and again, as a model's layers do.
    favourites: Vec<u64>,
    /// Per cent of requests below 1 MiB; per cent of blocks that a second stream uses.
    small: u64,
    shared: u64,
    live: Vec<Live>,
    live_bytes: u64,
    /// Bytes that the program tries to hold.
    target: u64,
    next_id: u32,
    next_pool: u64,
    pools: Vec<OpenPool>,
    /// Allocations that were freed last.
    freed: VecDeque<Live>,
    /// The thread's stream; streams that capture; the number of captures that the allocator was told of.
    current: u64,
    captures: Vec<u64>,
    marks: u32,
}

impl Writer {
    fn new(plan: Plan) -> Writer {
        let mut random = Random::new(plan.seed);
        let mut streams = vec![0];
        // Handles are even: torch keeps odd numbers for streams of its own. Small ones, and ones that look like
        // pointers.
        for _ in 0..random.below(5) {
            let pointer = random.chance(50);
            let handle = if pointer {
                0x5555_0000_0000 + random.below(1 << 20) * 16
            } else {
                random.between(1, 40) * 2
            };
            if !streams.contains(&handle) {
                streams.push(handle);
            }
        }
        let mut writer = Writer {
            small: random.pick(&[20, 50, 80]),
            shared: random.pick(&[0, 5, 30]),
            target: plan.capacity / 100 * random.pick(&[30, 60, 90, 120]),
            random,
            plan,
            ops: Vec::with_capacity(plan.length + 1024),
            streams,
            favourites: Vec::new(),
            live: Vec::new(),
            live_bytes: 0,
            next_id: 0,
            next_pool: 1,
            pools: Vec::new(),
            freed: VecDeque::new(),
            current: 0,
            captures: Vec::new(),
            marks: 0,
        };
        writer.favourites = (0..8).map(|_| writer.fresh_size()).collect();
        for (bit, &stream) in writer.streams.iter().enumerate() {
            writer.ops.push(Op::Stream { bit: bit as u32, stream });
        }
        if let Some(fraction) = plan.fraction {
            writer.ops.push(Op::Fraction(fraction));
        }
        for stream in writer.streams.clone() {
            writer.classify(stream);
        }
        writer
    }

    fn phase(&mut self) {
        match self.random.below(10) {
            0..=3 => {
                let steps = self.random.between(50, 600);
                self.churn(steps);
            }
            4..=5 => self.steps(),
            6 => self.burst(),
            7 => self.streams_apart(),
            8 => self.pool(0),
            _ => self.drain(),
        }
        self.between_phases();
    }

    // ---- sizes and streams ----

    fn size(&mut self) -> u64 {
        if self.random.chance(40) { self.random.pick(&self.favourites) } else { self.fresh_size() }
    }

    fn fresh_size(&mut self) -> u64 {
        let largest = (self.plan.capacity / 4).max(4 * MIB);
        match self.random.below(1000) {
            // More than the card has; nothing at all.
            0..=1 => self.plan.capacity + self.random.below(self.plan.capacity),
            2 => 0,
            3..=150 => {
                let edges = EDGES.iter().filter(|&&edge| edge <= largest).count();
                let edge = EDGES[self.random.index(edges)];
                (edge + self.random.below(3)).saturating_sub(1)
            }
            151..=250 => 1 << self.random.between(9, u64::from(largest.ilog2())),
            251..=300 => self.random.between(1, largest),
            _ if self.random.chance(self.small) => self.random.log_uniform(1, MIB),
            _ => self.random.log_uniform(MIB, largest),
        }
    }

    fn stream(&mut self) -> u64 {
        if self.random.chance(60) { self.streams[0] } else { self.random.pick(&self.streams) }
    }

    // ---- single operations ----

    fn malloc(&mut self, size: u64, stream: u64) -> usize {
        let id = self.next_id;
        self.next_id += 1;
        self.ops.push(Op::Malloc { id, size, stream });
        self.live.push(Live { id, size, stream });
        self.live_bytes += size;
        self.live.len() - 1
    }

    fn free(&mut self, index: usize) {
        let block = self.live.swap_remove(index);
        self.live_bytes -= block.size;
        self.ops.push(Op::Free { id: block.id });
        self.freed.push_back(block);
        if self.freed.len() > 64 {
            self.freed.pop_front();
        }
    }

    fn free_id(&mut self, id: u32) {
        if let Some(index) = self.live.iter().rposition(|block| block.id == id) {
            self.free(index);
        }
    }

    fn share(&mut self, index: usize) {
        let Live { id, stream: own, .. } = self.live[index];
        let stream = self.random.pick(&self.streams);
        // Now and then its own stream, which the allocator has to ignore.
        if stream != own || self.random.chance(10) {
            self.ops.push(Op::RecordStream { id, stream });
        }
    }

    fn complete(&mut self) {
        let stream = self.random.pick(&self.streams);
        let count = if self.random.chance(20) { 1000 } else { self.random.between(1, 6) };
        self.ops.push(Op::Complete { stream, count });
    }

    fn alloc_any(&mut self) {
        let (size, stream) = (self.size(), self.stream());
        let index = self.malloc(size, stream);
        if self.random.chance(self.shared) {
            self.share(index);
        }
    }

    // ---- phases ----

    /// Allocations and frees in no order, around the target.
    fn churn(&mut self, steps: u64) {
        for _ in 0..steps {
            let full = self.live_bytes > self.target || self.live.len() > 3000;
            let grow = if full { 20 } else { 55 };
            if self.live.is_empty() || self.random.chance(grow) {
                self.alloc_any();
            } else {
                // Mostly young ones, as real programs free.
                let len = self.live.len();
                let index = if self.random.chance(60) {
                    len - 1 - self.random.index(len.min(16))
                } else {
                    self.random.index(len)
                };
                self.free(index);
            }
            if self.shared > 0 && self.random.chance(4) {
                self.complete();
            }
            // Not if splitting has a bound: such a request splits blocks above it, and the library then gives a part of
            // a segment back to the device, as if it were all of it (2.13 to 2.15).
            if self.captures() && !self.plan.max_split && self.random.chance(3) {
                self.malloc_at();
            }
            if self.plan.minor >= 14 && !self.live.is_empty() && self.random.chance(1) {
                let id = self.live[self.random.index(self.live.len())].id;
                self.ops.push(Op::Annotate { id });
            }
            if self.random.below(400) == 0 {
                self.rare();
            }
        }
    }

    /// The same pattern again and again, as training does; sometimes with one size changed.
    fn steps(&mut self) {
        let stream = self.stream();
        let count = self.random.between(4, 60) as usize;
        let room = self.target.saturating_sub(self.live_bytes) / count as u64 * 2;
        let mut sizes: Vec<u64> = (0..count).map(|_| self.size().min(room.max(512))).collect();
        let reversed = self.random.chance(60);
        let kept = self.random.index(count);
        for _ in 0..self.random.between(2, 8) {
            if self.random.chance(25) {
                let index = self.random.index(count);
                sizes[index] = self.fresh_size().min(room.max(512));
            }
            let first = self.next_id;
            for (index, &size) in sizes.iter().enumerate() {
                self.malloc(size, stream);
                // A temporary beside each: freed at once.
                if index % 3 == 1 {
                    let size = self.size().min(room.max(512));
                    let at = self.malloc(size, stream);
                    self.free(at);
                }
            }
            let mut ids: Vec<u32> = (first..self.next_id).collect();
            if reversed {
                ids.reverse();
            }
            ids.retain(|&id| id != first + kept as u32);
            ids.into_iter().for_each(|id| self.free_id(id));
        }
    }

    /// Many blocks at once, then all of them back, in one of three orders.
    fn burst(&mut self) {
        let stream = self.stream();
        let size = self.size();
        let alike = self.random.chance(50);
        let first = self.next_id;
        for _ in 0..self.random.between(4, 80) {
            let size = if alike { size } else { self.size() };
            self.malloc(size, stream);
            if self.live_bytes > self.target {
                break;
            }
        }
        let mut ids: Vec<u32> = (first..self.next_id).collect();
        match self.random.below(3) {
            0 => ids.reverse(),
            1 => (1..ids.len()).rev().for_each(|i| ids.swap(i, self.random.index(i + 1))),
            _ => {}
        }
        ids.truncate(self.random.between(1, ids.len() as u64) as usize);
        ids.into_iter().for_each(|id| self.free_id(id));
    }

    /// Blocks used on other streams, freed while those still run, completed late and in pieces.
    fn streams_apart(&mut self) {
        for _ in 0..self.random.between(20, 200) {
            match self.random.below(10) {
                0..=3 => {
                    let (size, stream) = (self.size(), self.random.pick(&self.streams));
                    self.malloc(size, stream);
                    for _ in 0..self.random.below(4) {
                        self.share(self.live.len() - 1);
                    }
                }
                4..=7 if !self.live.is_empty() => {
                    let len = self.live.len();
                    let back = self.random.index(len.min(24));
                    self.free(len - 1 - back);
                }
                _ => self.complete(),
            }
        }
    }

    /// A private pool: begun, used, perhaps with another inside; released now or later.
    fn pool(&mut self, depth: u32) {
        let idle: Vec<usize> =
            (0..self.pools.len()).filter(|&i| !self.pools[i].open && self.pools[i].uses > 0).collect();
        let index = if !idle.is_empty() && self.random.chance(40) {
            self.random.pick(&idle)
        } else {
            let number = self.next_pool;
            self.next_pool += 1;
            let id = if self.random.chance(50) { (number, 0) } else { (0, number) };
            self.pools.push(OpenPool { id, uses: 0, open: false });
            self.pools.len() - 1
        };
        let accepts =
            if self.random.chance(60) { 0 } else { self.random.between(1, (1 << self.streams.len()) - 1) };
        let pool = self.pools[index].id;
        self.pools[index].uses += 1;
        self.pools[index].open = true;
        self.ops.push(Op::BeginPool { pool, accepts });
        let steps = self.random.between(5, 120);
        // From 2.13 on an open pool is one thing, a capture another.
        let captured = (self.captures() && self.random.chance(60)).then(|| self.random.pick(&self.streams));
        if let Some(stream) = captured {
            if self.random.chance(80) {
                self.set_current(stream);
            }
            self.capture(stream, true);
        }
        self.churn(steps);
        if captured.is_some() && self.random.chance(30) {
            // The same thread on another stream, as beside a capture.
            let stream = self.random.pick(&self.streams);
            self.set_current(stream);
            self.churn(steps / 2);
        }
        if depth < 2 && self.random.chance(30) {
            self.pool(depth + 1);
            self.churn(steps / 2);
        }
        let ends_late = self.random.chance(20);
        if !ends_late {
            captured.into_iter().for_each(|stream| self.capture(stream, false));
        }
        self.ops.push(Op::EndPool { pool });
        self.pools[index].open = false;
        if ends_late {
            self.churn(steps / 4);
            captured.into_iter().for_each(|stream| self.capture(stream, false));
        }
        if self.random.chance(40) {
            self.release_one(index);
        }
    }

    /// Releases a pool once. With expandable segments the last time comes only when nothing is in use: the library
    /// counts one for each call that maps into a pool and takes one off for each that unmaps, so that giving back
    /// around a block in use makes it assert, or destroy a pool whose blocks are still in use, and read freed memory at
    /// the next free (2.5 to 2.15).
    fn release_one(&mut self, index: usize) {
        if self.pools[index].uses == 0 {
            return;
        }
        if self.plan.expandable && self.pools[index].uses == 1 {
            if self.pools.iter().any(|pool| pool.open) {
                return;
            }
            while !self.live.is_empty() {
                self.free(self.live.len() - 1);
            }
            for stream in self.streams.clone() {
                self.ops.push(Op::Complete { stream, count: u64::MAX });
            }
            // The allocator polls events when it is asked for memory, and takes deferred frees the first time; not
            // during a capture.
            for stream in std::mem::take(&mut self.captures) {
                self.ops.push(Op::Capture { stream, on: false });
            }
            let block = self.malloc(1, 0);
            self.free(block);
            for stream in self.streams.clone() {
                self.ops.push(Op::Complete { stream, count: u64::MAX });
            }
            let block = self.malloc(1, 0);
            self.free(block);
        }
        self.pools[index].uses -= 1;
        self.ops.push(Op::ReleasePool { pool: self.pools[index].id });
    }

    /// Gives much or everything back.
    fn drain(&mut self) {
        let keep = self.random.pick(&[0, 0, 10, 50]);
        let mut index = 0;
        while index < self.live.len() {
            if self.random.chance(keep) {
                index += 1;
            } else {
                self.free(index);
            }
        }
    }

    fn between_phases(&mut self) {
        if self.random.chance(15) {
            self.rare();
        }
        if !self.pools.is_empty() && self.random.chance(20) {
            let index = self.random.index(self.pools.len());
            if !self.pools[index].open {
                self.release_one(index);
            }
        }
        if self.random.chance(10) {
            self.target = self.plan.capacity / 100 * self.random.pick(&[30, 60, 90, 120]);
        }
    }

    /// Rare actions of a program.
    fn rare(&mut self) {
        let routing = self.pools.iter().any(|pool| pool.open);
        match self.random.below(12) {
            // Up to 2.7 that is an internal error while a pool is open.
            0..=3 if self.plan.minor >= 8 || !routing => {
                self.ops.push(Op::EmptyCache { pool: (0, 0) });
            }
            // One pool's cache: there is no such call before 2.8, and it is an internal error while any pool is open;
            // from 2.13 on only during a capture.
            4 if self.plan.minor >= 8
                && !self.pools.is_empty()
                && !self.is_capturing()
                && (!routing || self.captures()) =>
            {
                let pool = self.pools[self.random.index(self.pools.len())].id;
                self.ops.push(Op::EmptyCache { pool });
            }
            5 if self.plan.fraction.is_some() => {
                let fraction = self.fraction();
                self.ops.push(Op::Fraction(fraction));
            }
            6 => self.ops.push(Op::ResetPeak),
            7 => self.ops.push(Op::ResetAccumulated),
            8 => self.ops.push(Op::Snapshot),
            9 if self.captures() => {
                let stream = self.random.pick(&self.streams);
                self.set_current(stream);
            }
            10 if self.plan.classes => {
                let stream = self.random.pick(&self.streams);
                self.classify(stream);
            }
            _ => self.complete(),
        }
    }

    /// The state at the end, with blocks still in use.
    fn close(&mut self) {
        self.ops.push(Op::Snapshot);
    }
}
