//! Programs from seeds. Six flavours, since states that matter are far apart: a bit of everything, steps that repeat,
//! captures, a card that is too small, long runs that use addresses up, and streams and pools that come and go.

use super::ops::{
    Config, DEFAULT_SLOT, FOREIGN_SLOT, OWN_SLOTS, Op, PER_THREAD_SLOT, Plans, Program, SLOTS, UNHEARD_SLOT,
};
use super::random::Random;
use gapless_pool::options::Options;
use gapless_pool::pool::UNIT;

const MIB: u64 = 1 << 20;

/// [`Config::most_cards`] of a program with few lanes, and of one with many.
const FEW_CARDS: u64 = 4;
const MANY_CARDS: u64 = 64;

/// What a driver has, 47 bits, and what is soon used up.
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
        ..Options::default()
    };
    let config = Config {
        capacity,
        options,
        is_shared: random.one_in(3),
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
        // How full the program fills the card.
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
        // By the seed, so that all other programs are what they were.
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

/// Whether a program begins with [`Generator::loans`]. Nothing is planned in it: a plan holds memory of its own.
fn has_loans(seed: u64) -> bool {
    seed % 32 == 20
}

struct Generator {
    random: Random,
    flavour: Flavour,
    capacity: u64,
    ops: Vec<Op>,
    /// What should be live, with its size and stream.
    live: Vec<(u32, u64, u8)>,
    bytes: u64,
    most: u64,
    next: u32,
    next_graph: u32,
    graphs: Vec<u32>,
    is_capturing: Option<u8>,
    /// The stream whose steps repeat: others leave it alone.
    stepping: Option<u8>,
    /// The large requests of a step: their sizes, and before which request each is given back.
    shape: Vec<(u64, usize)>,
    /// Streams that ask for memory, often ones more than once.
    streams: Vec<u8>,
    /// Device calls fail. Without faults everything must be given back in the end.
    has_faults: bool,
    /// Private pools sleep and wake.
    has_sleep: bool,
    /// Elastic ranges grow and shrink.
    has_elastic: bool,
    /// Private pools have memory free in pieces, and their states are kept and brought back.
    has_windows: bool,
    /// Streams borrow, give back and ask again, while the owner wants back what it had.
    has_loans: bool,
    /// Other threads capture streams at any moment.
    has_meddlers: bool,
    /// What another process should map.
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
            // At once, while nothing else is held.
            for _ in 0..4 {
                self.loans();
            }
        }
        while self.ops.len() < length {
            if self.has_meddlers && self.random.one_in(6) {
                let stream = self.random.pick(&MEDDLED);
                let after = self.random.below(12) as u8;
                self.ops.push(Op::Meddle { after, stream });
                // Often it is a short one.
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

    /// A stream that asks; not the one whose steps repeat, mostly.
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

    /// Something that makes no lane.
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

    /// Frees, sometimes right after another stream's use.
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

    /// A stream is captured while others go on, and the graph is replayed among them.
    fn capture(&mut self) {
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
        // Temporaries of the graph go; a few outputs stay.
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

    /// A stream asks for memory while it is captured and nobody said so.
    fn alloc_in_raw_capture(&mut self) {
        let (stream, size) = (self.random.pick(&OWN_SLOTS), self.size());
        let id = self.next;
        self.next += 1;
        self.ops.push(Op::AllocInRawCapture { id, stream, size });
        self.live.push((id, size, stream));
        self.bytes += size;
    }

    /// What must not disturb a capture: trims, and frees of what the captured stream uses.
    fn in_capture(&mut self, stream: u8, pool: u8) {
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

    /// Free memory in pieces in a private pool, and larger requests over it; then states of the pool, replays, and
    /// sometimes its end.
    fn private_windows(&mut self) {
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

    /// Requests of one stream in one pool: pieces, of which every other goes, and larger ones that no piece is enough
    /// for. What is still there.
    fn pieces_in(&mut self, stream: u8, pool: u8) -> Vec<u32> {
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

    /// A private pool's state is kept, the pool is released and emptied, and used again: other pages lie at its
    /// addresses when the state is brought back.
    fn anew(&mut self, stream: u8, pool: u8) {
        let (piece, many) = ((self.capacity / 128).max(2 * MIB), 6 + self.random.below(4));
        self.ops.push(Op::ReleasePool { pool });
        self.ops.push(Op::UsePool { pool, again: false });
        for turn in 0..2 {
            let ids: Vec<u32> = (0..many).map(|_| self.alloc_sized(stream, piece, pool, None)).collect();
            // What goes in one turn stays in the other, mostly.
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

    /// All graphs go, often while they are replayed.
    fn drop_graphs(&mut self) {
        self.replay();
        for graph in std::mem::take(&mut self.graphs) {
            self.ops.push(Op::DropGraph { graph });
        }
        self.ops.push(Op::TrimBehind { of_all: self.random.one_in(2) });
    }

    fn new_shape(&mut self) -> Vec<(u64, usize)> {
        let length = 17 + self.random.below(10) as usize;
        let most = (self.capacity / 3 / length as u64 / MIB).max(1);
        let mut request = |at: usize| {
            let size = MIB + 512 + self.random.below(2 * most) * MIB + self.random.below(8) * 4096;
            let end = if self.random.one_in(3) { length } else { at + 1 + self.random.below(6) as usize };
            (size, end)
        };
        (0..length).map(&mut request).collect()
    }

    /// A stream in place of another, with a handle that is new, or a private pool in place of another; and something
    /// for its lane.
    fn new_lane(&mut self) {
        let (stream, pool) = (self.random.pick(&OWN_SLOTS), 1 + self.random.below(2) as u8);
        let is_private = self.random.one_in(3);
        if is_private {
            self.ops.push(Op::ReleasePool { pool });
            self.ops.push(Op::UsePool { pool, again: false });
        } else {
            self.ops.push(Op::Destroy { stream });
            self.ops.push(Op::Create { stream, reuse: false });
        }
        for _ in 0..1 + self.random.below(3) {
            let size = self.size().min(self.capacity / 16);
            let id = self.alloc_sized(stream, size, if is_private { pool } else { 0 }, None);
            if self.random.one_in(4) {
                let stream = self.any_slot();
                self.ops.push(Op::Announce { id, stream });
            }
            if !self.random.one_in(4) {
                self.free_named(id);
            }
        }
        if self.random.one_in(3) {
            self.ops.push(Op::Run { stream, most: u16::MAX });
        }
    }

    /// Large blocks come and go past small ones that stay, and what is free is given back each time: holes are filled
    /// again, or the heap's end moves on for ever.
    fn creep(&mut self) {
        self.free_all();
        let stream = OWN_SLOTS[0];
        let mut pins = Vec::new();
        // Half of the time it goes to the limit, with nothing beside: there is room for the last small block, and for
        // no more.
        let is_exact = self.random.one_in(2);
        let limit = self.capacity / 8 * 6;
        self.ops.push(Op::Limit { eighths: 6 });
        for _ in 0..40 + self.random.below(120) {
            let held: u64 = self.live.iter().map(|(_, size, _)| size.div_ceil(2 * MIB) * 2 * MIB).sum();
            let room = limit.saturating_sub(held + 4 * MIB);
            let size =
                if is_exact { room + 2 * MIB } else { room / 16 * (6 + self.random.below(10)) + 2 * MIB };
            let large = self.alloc_sized(stream, size, 0, None);
            pins.push(self.alloc_sized(stream, 2 * MIB, 0, None));
            self.free_named(large);
            self.ops.push(Op::Trim);
            if pins.len() > 3 {
                let at = self.random.below(pins.len() as u64) as usize;
                self.free_named(pins.swap_remove(at));
            }
            if !is_exact && self.random.one_in(8) {
                self.calm();
            }
        }
        pins.into_iter().for_each(|id| self.free_named(id));
    }

    /// A stream frees most of what it may have. Another one, which stands still, borrows of it, gives back and asks for
    /// other sizes, as often as it likes: natively it has what it gave back. Then the first one wants all of its own.
    fn loans(&mut self) {
        if self.is_capturing.is_some() || self.stepping.is_some() {
            return;
        }
        self.free_all();
        let part = self.capacity / 32;
        let (owner, borrower) = (OWN_SLOTS[0], DEFAULT_SLOT);
        self.ops.extend([Op::Limit { eighths: 0 }, Op::SyncDevice, Op::Trim, Op::ResetPeaks]);
        let first = self.alloc_sized(borrower, 512, 0, None);
        let size = part * (15 + self.random.below(3));
        let all = self.alloc_sized(owner, size, 0, None);
        self.free_named(all);
        // Its next request shows when what it freed is settled.
        let second = self.alloc_sized(owner, 512, 0, None);
        self.ops.push(Op::SyncDevice);
        let lent = part * (4 + self.random.below(3));
        for turn in 0..2 + self.random.below(4) {
            let size = lent - turn * self.random.below(part / 4).max(UNIT);
            let id = self.alloc_sized(borrower, size, 0, None);
            // Parts of what it gave back, side by side.
            if self.random.one_in(3) {
                self.free_named(id);
                let halves = [0, 1].map(|_| self.alloc_sized(borrower, size / 2 - UNIT, 0, None));
                halves.into_iter().for_each(|half| self.free_named(half));
            } else {
                self.free_named(id);
            }
        }
        let last = self.alloc_sized(borrower, lent / 2, 0, None);
        let again = self.alloc_sized(owner, size, 0, None);
        for id in [again, last, first, second] {
            self.free_named(id);
        }
    }

    /// Free memory in pieces, and large requests of many sizes over it.
    fn scatter(&mut self) {
        self.free_all();
        let stream = OWN_SLOTS[0];
        let (piece, pieces) = (self.capacity / 32, 28);
        let ids: Vec<u32> = (0..pieces).map(|_| self.alloc_sized(stream, piece, 0, None)).collect();
        ids.iter().step_by(2).for_each(|&id| self.free_named(id));
        for _ in 0..60 + self.random.below(200) {
            let parts = 2 + self.random.below(pieces / 2);
            let size = piece * parts - self.random.below(4) * MIB / 2;
            let large = self.alloc_sized(stream, size, 0, None);
            if self.random.one_in(3) {
                self.ops.push(Op::Touch { id: large });
            }
            self.free_named(large);
            if self.random.one_in(6) {
                self.calm();
            }
        }
        ids.into_iter().for_each(|id| self.free_named(id));
    }

    /// A step that repeats, with others' work in between.
    fn steps(&mut self) {
        if self.is_capturing.is_some() || self.stepping.is_some() {
            return;
        }
        let stream = OWN_SLOTS[0];
        // Mostly the same step as before: what never comes near the lane's peak is not planned.
        if self.shape.is_empty() || self.random.one_in(4) {
            self.shape = self.new_shape();
        }
        let shape = self.shape.clone();
        let noise = self.random.pick(&[2, 4, 12]);
        self.stepping = Some(stream);
        for _ in 0..4 + self.random.below(4) {
            let mut mine: Vec<(u32, usize)> = Vec::new();
            for (at, &(size, end)) in shape.iter().enumerate() {
                for (id, _) in mine.extract_if(.., |(_, end)| *end <= at).collect::<Vec<_>>() {
                    self.free_named(id);
                }
                mine.push((self.alloc_sized(stream, size, 0, None), end));
                if self.random.one_in(noise) {
                    self.any();
                }
            }
            for (id, _) in mine {
                if let Some(at) = self.live.iter().position(|(other, ..)| *other == id) {
                    self.let_go(at);
                }
            }
            if !self.random.one_in(5) {
                self.ops.push(Op::MarkStep);
            }
            if self.random.one_in(2) {
                self.any();
            }
            if self.random.one_in(2) {
                self.ops.push(Op::Install);
            }
            // Putting a plan in place takes many device calls.
            if self.has_faults && self.random.one_in(3) {
                self.ops.push(Op::Fault { after: self.random.below(24) as u16 });
            }
            if !self.random.one_in(4) {
                self.ops.push(Op::Pause);
            }
        }
        self.stepping = None;
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
