//! Programs from seeds. There are six kinds, because states that matter are far apart: a bit of everything, steps that
//! repeat, captures, a card that is too small, long runs that use addresses up, and streams and pools that come and go.

mod captures;
mod phases;

use super::ops::{
    Config, DEFAULT_SLOT, FOREIGN_SLOT, OWN_SLOTS, Op, PER_THREAD_SLOT, Plans, Program, SLOTS, UNHEARD_SLOT,
};
use super::random::Random;
use gapless_pool::options::Options;

const MIB: u64 = 1 << 20;

/// [`Config::most_cards`] of a program with few lanes, and of one with many.
const FEW_CARDS: u64 = 4;
const MANY_CARDS: u64 = 64;

/// The addresses of a driver, 47 bits, and few that are soon used up.
const ALL_ADDRESSES: u64 = 1 << 47;
const FEW_ADDRESSES: u64 = 48 << 30;

/// Streams that other threads capture through the driver.
const MEDDLED: [u8; 5] = [OWN_SLOTS[0], OWN_SLOTS[1], OWN_SLOTS[2], OWN_SLOTS[3], UNHEARD_SLOT];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flavour {
    Mixed,
    Steps,
    Captures,
    Pressed,
    Long,
    Lanes,
}

/// The program of a seed.
#[must_use]
pub fn generate(seed: u64) -> Program {
    let mut random = Random::new(seed ^ 0x6761_706c_6573_7321);
    let flavour = match random.below(13) {
        0..=2 => Flavour::Mixed,
        3..=5 => Flavour::Steps,
        6..=8 => Flavour::Captures,
        9 | 10 => Flavour::Pressed,
        11 => Flavour::Lanes,
        _ => Flavour::Long,
    };
    let capacity = MIB * random.pick(&[64, 128, 256, 512, 1024]);
    let options = Options {
        windows: random.pick(&[0, 2, 8, 1024]),
        limit: random.one_in(4).then_some(capacity / 4 * 3),
        run_ahead: (seed % 8 == 3).then_some(capacity / 16),
        ..Options::default()
    };
    let config = Config {
        capacity,
        options,
        is_shared: random.one_in(3),
        is_asking: seed % 16 % 5 < 2,
        planner: match random.below(4) {
            _ if has_loans(seed) => Plans::Nobody,
            0 => Plans::Later,
            1 => Plans::AtOnce,
            _ if flavour == Flavour::Steps => Plans::AtOnce,
            _ => Plans::Nobody,
        },
        addresses: if random.one_in(4) { FEW_ADDRESSES } else { ALL_ADDRESSES },
        most_cards: if flavour == Flavour::Long { FEW_CARDS } else { MANY_CARDS },
    };
    let mut generator = Generator {
        random,
        flavour,
        capacity,
        ops: Vec::new(),
        live: Vec::new(),
        bytes: 0,
        // The part of the card that the program fills.
        most: capacity / 16
            * match flavour {
                Flavour::Pressed => 17,
                Flavour::Steps => 6,
                _ => 9,
            },
        next: 0,
        next_graph: 0,
        graphs: Vec::new(),
        is_capturing: None,
        stepping: None,
        shape: Vec::new(),
        streams: Vec::new(),
        has_faults: false,
        // By the seed, so that all other programs stay as they were.
        has_sleep: seed % 4 == 3,
        has_elastic: seed % 4 == 1,
        has_windows: seed % 4 == 2,
        has_loans: has_loans(seed),
        has_meddlers: seed.is_multiple_of(8) || seed % 8 == 6,
        shared: Vec::new(),
    };
    generator.program();
    Program { seed, config, ops: generator.ops }
}

/// True if a program begins with [`Generator::loans`]. It has no plans, because a plan holds memory of its own.
fn has_loans(seed: u64) -> bool {
    seed % 32 == 20
}

struct Generator {
    random: Random,
    flavour: Flavour,
    capacity: u64,
    ops: Vec<Op>,
    /// Allocations that should be live, with their sizes and streams.
    live: Vec<(u32, u64, u8)>,
    bytes: u64,
    most: u64,
    next: u32,
    next_graph: u32,
    graphs: Vec<u32>,
    is_capturing: Option<u8>,
    /// The stream whose steps repeat, which other operations mostly avoid.
    stepping: Option<u8>,
    /// The large requests of a step: their sizes, and for each the request before which it is freed.
    shape: Vec<(u64, usize)>,
    /// Streams that request memory; frequent ones more than once.
    streams: Vec<u8>,
    /// True if device calls fail. Without faults everything must be given back in the end.
    has_faults: bool,
    /// True if private pools sleep and wake.
    has_sleep: bool,
    /// True if elastic ranges grow and shrink.
    has_elastic: bool,
    /// True if private pools have free memory in pieces, and their states are saved and restored.
    has_windows: bool,
    /// True if streams borrow, free and request again, while the owner wants its memory back.
    has_loans: bool,
    /// True if other threads capture streams at any moment.
    has_meddlers: bool,
    /// Allocations that another process should map.
    shared: Vec<u32>,
}

impl Generator {
    fn program(&mut self) {
        self.has_faults = self.random.one_in(3);
        let own = OWN_SLOTS[..self.random.pick(&[1, 2, 3, 4])].to_vec();
        self.streams.clone_from(&own);
        self.streams.extend(&own);
        self.streams.push(DEFAULT_SLOT);
        if self.random.one_in(2) {
            self.streams.push(PER_THREAD_SLOT);
        }
        let length = match self.flavour {
            Flavour::Long => 4000,
            _ => 200 + self.random.below(1800) as usize,
        };
        if self.has_loans {
            // First, while nothing else is held.
            for _ in 0..4 {
                self.loans();
            }
        }
        while self.ops.len() < length {
            if self.has_meddlers && self.random.one_in(6) {
                let stream = self.random.pick(&MEDDLED);
                let after = self.random.below(12) as u8;
                self.ops.push(Op::Meddle { after, stream });
                // Half of them are short.
                if self.random.one_in(2) {
                    self.ops.push(Op::Meddle { after: after + 1 + self.random.below(4) as u8, stream });
                }
            }
            if self.has_windows && self.random.one_in(25) {
                self.private_windows();
                continue;
            }
            match self.flavour {
                Flavour::Steps if self.random.one_in(60) => self.steps(),
                Flavour::Captures if self.random.one_in(40) => self.capture(),
                Flavour::Captures if self.random.one_in(60) => self.graph_ends_meanwhile(),
                Flavour::Captures if self.random.one_in(12) => self.alloc_in_raw_capture(),
                Flavour::Long if self.random.one_in(2) => self.creep(),
                Flavour::Long => self.scatter(),
                Flavour::Lanes if self.random.one_in(2) => self.new_lane(),
                Flavour::Mixed if self.random.one_in(400) => self.steps(),
                Flavour::Mixed if self.random.one_in(200) => self.capture(),
                _ => self.any(),
            }
        }
    }

    fn size(&mut self) -> u64 {
        let random = &mut self.random;
        let small = if self.flavour == Flavour::Long { 4 } else { 30 };
        let largest = |part: u64| (self.capacity / part / MIB).max(2);
        match random.below(100) {
            roll if roll < small => {
                let bits = 9 + random.below(12);
                1 + random.below(1 << bits)
            }
            roll if roll < 70 => MIB + 1 + random.below(14) * MIB / 2,
            roll if roll < 92 => MIB + random.below(largest(8)) * MIB + random.below(2) * 512,
            _ => MIB + random.below(largest(3)) * MIB,
        }
    }

    /// A stream for a request; mostly not the one whose steps repeat.
    fn asking(&mut self) -> u8 {
        let stream = self.random.pick(&self.streams);
        match self.stepping {
            Some(stepping) if stepping == stream => {
                *OWN_SLOTS.iter().find(|other| **other != stepping).unwrap_or(&0)
            }
            _ => stream,
        }
    }

    fn alloc_sized(&mut self, stream: u8, size: u64, pool: u8, budget: Option<u8>) -> u32 {
        let id = self.next;
        self.next += 1;
        self.ops.push(Op::Alloc { id, stream, pool, size, budget });
        self.live.push((id, size, stream));
        self.bytes += size;
        id
    }

    fn alloc(&mut self) {
        let (stream, size) = (self.asking(), self.size());
        let pool = if self.random.one_in(10) { 1 + self.random.below(2) as u8 } else { 0 };
        let budget = self.random.one_in(24).then(|| self.random.below(2) as u8);
        self.alloc_sized(stream, size, pool, budget);
    }

    fn thread(&mut self) -> u8 {
        self.random.below(2) as u8
    }

    fn take(&mut self, at: usize) -> u32 {
        let (id, size, _) = self.live.swap_remove(at);
        self.bytes -= size;
        id
    }

    fn free_at(&mut self, at: usize) {
        let id = self.take(at);
        let thread = self.thread();
        self.ops.push(Op::Free { id, thread });
    }

    fn free_named(&mut self, id: u32) {
        if let Some(at) = self.live.iter().position(|(other, ..)| *other == id) {
            self.free_at(at);
        }
    }

    fn free_all(&mut self) {
        while !self.live.is_empty() {
            self.free_at(0);
        }
    }

    /// An operation that makes no lane.
    fn calm(&mut self) {
        let stream = self.random.pick(&OWN_SLOTS[..2]);
        match (self.random.below(8), self.any_live()) {
            (0 | 1, _) if self.bytes < self.capacity / 8 => {
                let size = self.size().min(self.capacity / 32);
                self.alloc_sized(stream, size, 0, None);
            }
            (2 | 3, Some(at)) => self.let_go(at),
            (4, Some(at)) => self.ops.push(Op::Announce { id: self.live[at].0, stream }),
            (5, Some(at)) => self.ops.push(Op::Touch { id: self.live[at].0 }),
            (6, _) => self.ops.push(Op::SyncStream { stream }),
            _ => self.ops.push(Op::Run { stream, most: u16::MAX }),
        }
    }

    fn any_live(&mut self) -> Option<usize> {
        (!self.live.is_empty()).then(|| self.random.below(self.live.len() as u64) as usize)
    }

    fn any_slot(&mut self) -> u8 {
        match self.random.below(12) {
            0 => FOREIGN_SLOT,
            1 | 2 => UNHEARD_SLOT,
            3 => PER_THREAD_SLOT,
            _ => self.random.below(5) as u8,
        }
    }

    /// One operation of any kind.
    fn any(&mut self) {
        let roll = self.random.below(1000);
        if self.bytes > self.most && self.random.below(3) < 2 {
            if let Some(at) = self.any_live() {
                self.let_go(at);
            }
            return;
        }
        match roll {
            0..=329 => self.alloc(),
            330..=559 => {
                if let Some(at) = self.any_live() {
                    self.let_go(at);
                }
            }
            560..=629 => {
                if let Some(at) = self.any_live() {
                    self.ops.push(Op::Touch { id: self.live[at].0 });
                }
            }
            630..=719 => {
                let stream = self.any_slot();
                if let Some(at) = self.any_live() {
                    let id = self.live[at].0;
                    self.ops.push(if roll < 690 {
                        Op::Announce { id, stream }
                    } else {
                        Op::Borrow { id, stream }
                    });
                    if self.random.one_in(3) {
                        self.free_at(at);
                    }
                }
            }
            720..=839 => {
                let stream = self.random.below(SLOTS as u64) as u8;
                let most = if self.random.one_in(4) { u16::MAX } else { 1 + self.random.below(12) as u16 };
                self.ops.push(Op::Run { stream, most });
            }
            840..=859 => {
                let (stream, other) = (self.any_slot(), self.any_slot());
                self.ops.push(Op::Wait { stream, other });
            }
            860..=879 => self.replay(),
            _ => self.rare(),
        }
    }

    /// Frees an allocation, sometimes right after another stream's use.
    fn let_go(&mut self, at: usize) {
        match self.random.below(10) {
            0 => {
                let (stream, thread) = (self.any_slot(), self.thread());
                let id = self.take(at);
                self.ops.push(Op::LateWait { id, stream, thread });
            }
            1 => {
                let (stream, id) = (self.any_slot(), self.live[at].0);
                self.ops.push(Op::Announce { id, stream });
                self.free_at(at);
            }
            _ => self.free_at(at),
        }
    }

    fn replay(&mut self) {
        if !self.graphs.is_empty() {
            let (graph, stream) = (self.random.pick(&self.graphs), self.any_slot());
            self.ops.push(Op::Replay { graph, stream });
        }
    }

    fn rare(&mut self) {
        let stream = self.random.below(SLOTS as u64) as u8;
        let pool = 1 + self.random.below(2) as u8;
        if self.has_sleep && self.random.one_in(4) {
            let op = match self.random.below(8) {
                0 => Op::UsePool { pool, again: self.random.one_in(2) },
                1 | 2 => Op::Sleep { pool },
                5 if !self.live.is_empty() => {
                    let id = self.live[self.random.below(self.live.len() as u64) as usize].0;
                    self.shared.push(id);
                    Op::Share { id }
                }
                6 => {
                    // In the pool that may sleep.
                    let (id, size) = (self.next, MIB * (1 + self.random.below(4)));
                    self.next += 1;
                    let stream = self.random.pick(&self.streams.clone());
                    self.live.push((id, size, stream));
                    self.bytes += size;
                    self.shared.push(id);
                    self.ops.push(Op::UsePool { pool, again: true });
                    self.ops.push(Op::Alloc { id, stream, pool, size, budget: None });
                    Op::Share { id }
                }
                7 if !self.shared.is_empty() => {
                    let at = self.random.below(self.shared.len() as u64) as usize;
                    Op::Unshare { id: self.shared.swap_remove(at) }
                }
                _ => Op::Wake { pool },
            };
            self.ops.push(op);
            return;
        }
        if self.has_elastic && self.random.one_in(2) {
            let range = self.random.below(2) as u8;
            let op = match self.random.below(6) {
                0 | 1 => Op::Resize { range, slots: self.random.below(9) as u8, stream },
                2..=4 => Op::TouchRange { range, stream },
                _ => Op::ElasticWork,
            };
            self.ops.push(op);
            return;
        }
        let op = match self.random.below(34) {
            0 | 1 => Op::Destroy { stream },
            2..=4 => Op::Create { stream, reuse: self.random.one_in(2) },
            5 => Op::SyncStream { stream },
            6 if self.random.one_in(3) => Op::SyncDevice,
            7..=9 => Op::Thread { thread: self.thread() },
            10..=12 => Op::UsePool { pool, again: self.random.one_in(2) },
            13 => Op::ReleasePool { pool },
            14 if self.random.one_in(3) => Op::Trim,
            15 if self.random.one_in(2) => Op::TrimPool { pool },
            16 if self.random.one_in(2) => Op::TrimGraphPool { pool },
            17 if self.random.one_in(3) => Op::MarkStep,
            18 if self.random.one_in(3) => Op::Pause,
            19 if self.random.one_in(4) => Op::Limit { eighths: self.random.pick(&[0, 0, 0, 4, 6, 7]) },
            20 if self.random.one_in(4) => Op::Hold { stream, eighths: 1 + self.random.below(4) as u8 },
            21 => Op::Save { pool },
            22 => Op::Restore { pool },
            23 if self.has_faults => Op::Fault { after: self.random.below(12) as u16 },
            24 if !self.graphs.is_empty() && self.random.one_in(3) => {
                let at = self.random.below(self.graphs.len() as u64) as usize;
                Op::DropGraph { graph: self.graphs.swap_remove(at) }
            }
            25..=28 => Op::Pay { stream },
            29 => Op::Run { stream, most: u16::MAX },
            30 => Op::Poll,
            31 if self.random.one_in(3) => Op::GrantAgain,
            32 => Op::Install,
            33 if self.random.one_in(6) => Op::ResetPeaks,
            _ => return,
        };
        self.ops.push(op);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_one_program() {
        assert_eq!(generate(7), generate(7));
        assert_ne!(generate(7).ops, generate(8).ops);
    }
}
