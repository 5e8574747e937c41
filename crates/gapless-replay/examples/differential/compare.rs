//! One program on two sides: the real library and a model of it, or the real library twice.
//!
//! After every operation the outcome, the address, the statistics and the trace have to be the same; after a snapshot
//! the segments too. The order inside a run of completed frees and of memory given back is not compared with a model:
//! the library walks hash tables there, one of them keyed by pointers of the host.

use crate::driver::{Answer, Driver, Status};
use crate::ops::{CLASSES, Op};
use crate::subject::{Entry, GROUPS, PoolStats, Segment, Stats, Subject};
use std::io;
use std::path::Path;

/// The file of the real library, and the settings of both sides.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bench<'a> {
    pub(crate) driver: &'a Path,
    pub(crate) settings: &'a str,
    pub(crate) capacity: u64,
    /// Of 2.x.
    pub(crate) minor: u32,
    /// True if the driver checks torch's own history as well.
    pub(crate) history: bool,
}

impl Bench<'_> {
    fn start(&self, program: &[Op]) -> io::Result<Driver> {
        Driver::start(self.driver, self.settings, self.capacity, self.history, program)
    }
}

/// The first operation at which the two sides differ.
#[derive(Debug)]
pub(crate) struct Difference {
    /// Position in the program.
    pub(crate) at: usize,
    pub(crate) what: String,
}

/// Counts of events: a comparison in which nothing happened proves nothing.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) operations: u64,
    pub(crate) ooms: u64,
    pub(crate) retries: u64,
    /// Segments and mapped stretches given back.
    pub(crate) given_back: u64,
    /// Polls of an event that was not complete.
    pub(crate) waits: u64,
    /// Requests that were placed at the address they named.
    pub(crate) exact: u64,
}

impl Tally {
    pub(crate) fn add(&mut self, other: Tally) {
        self.operations += other.operations;
        self.ooms += other.ooms;
        self.retries += other.retries;
        self.given_back += other.given_back;
        self.waits += other.waits;
        self.exact += other.exact;
    }

    fn count(&mut self, op: &Op, answer: &Answer, before: &Stats, retries: usize) {
        self.operations += 1;
        self.exact += u64::from(matches!(op, Op::MallocAt { .. }) && answer.status == Status::Done);
        self.ooms += u64::from(answer.status == Status::OutOfMemory);
        self.retries += u64::from(answer.stats.0[retries] > before.0[retries]);
        for entry in &answer.entries {
            self.given_back += u64::from(matches!(entry.action, Entry::SEGMENT_FREE | Entry::SEGMENT_UNMAP));
            self.waits += u64::from(entry.action == Entry::POLL && entry.size == 0);
        }
    }
}

pub(crate) type Outcome = io::Result<(Tally, Option<Difference>)>;

/// The real library and another build of it: the same program has to give the same answers, up to figures that depend
/// on the order of hash tables. With itself: to the byte.
pub(crate) fn with_library(bench: Bench, other: &Path, program: &[Op]) -> Outcome {
    let mut second = Bench { driver: other, ..bench }.start(program)?;
    let exact = other == bench.driver;
    let mut check = |op: &Op, answer: &Answer| -> io::Result<Option<String>> {
        let again = second.answer(op)?;
        let same = *answer == again || (!exact && without_order(answer) == without_order(&again));
        Ok((!same).then(|| format!("first  {answer:?}\nsecond {again:?}")))
    };
    let outcome = walk(bench, program, &mut check)?;
    if outcome.1.is_none() {
        second.finish()?;
    }
    Ok(outcome)
}

/// The real library and `model`, which has seen nothing yet.
pub(crate) fn with_model(bench: Bench, program: &[Op], model: &mut dyn Subject) -> Outcome {
    let mut side = ModelSide {
        fields: model.fields(),
        model,
        addresses: Vec::new(),
        places: Vec::new(),
        streams: Vec::new(),
        stats: Stats::ZERO,
        real_pools: PoolStats::new(),
        pools: PoolStats::new(),
        pooled: bench.minor >= 13,
    };
    walk(bench, program, &mut |op, answer| Ok(side.check(op, answer)))
}

type Check<'a> = dyn FnMut(&Op, &Answer) -> io::Result<Option<String>> + 'a;

fn walk(bench: Bench, program: &[Op], check: &mut Check) -> Outcome {
    let mut driver = bench.start(program)?;
    let retries = Stats::position("num_alloc_retries");
    let (mut tally, mut before) = (Tally::default(), Stats::ZERO);
    for (at, op) in program.iter().enumerate() {
        let answer = driver.answer(op)?;
        if let Status::Refused(message) = &answer.status {
            return Err(io::Error::other(format!("operation {at} ({op}) was refused: {message}")));
        }
        if let Some(what) = check(op, &answer)? {
            return Ok((tally, Some(Difference { at, what })));
        }
        tally.count(op, &answer, &before, retries);
        before = answer.stats;
    }
    driver.finish()?;
    Ok((tally, None))
}

struct ModelSide<'a> {
    model: &'a mut dyn Subject,
    fields: Vec<usize>,
    /// By id; 0 if it holds nothing.
    addresses: Vec<u64>,
    /// By id: the last address of its allocation.
    places: Vec<u64>,
    streams: Vec<u64>,
    stats: Stats,
    /// Of the real library, up to now.
    real_pools: PoolStats,
    pools: PoolStats,
    /// True if the release has them at all.
    pooled: bool,
}

impl ModelSide<'_> {
    /// Has the model do the same; returns the difference, if there is one.
    fn check(&mut self, op: &Op, real: &Answer) -> Option<String> {
        self.model.order_of(&real.entries);
        let (status, address) = self.apply(op);
        if status != real.status {
            return Some(format!("outcome: real {:?}, model {status:?}", real.status));
        }
        if address != real.address {
            return Some(format!("address: real {:#x}, model {address:#x}", real.address));
        }
        let real_trace = trace_of(&real.entries);
        let model_trace = ordered(self.model.take_trace());
        if real_trace != model_trace {
            return Some(format!("trace:\nreal  {real_trace:#?}\nmodel {model_trace:#?}"));
        }
        self.model.stats(&mut self.stats);
        let differ = self.fields.iter().filter(|&&field| self.stats.0[field] != real.stats.0[field]);
        let differ: Vec<String> = differ
            .map(|&field| {
                format!("{}: real {}, model {}", Stats::name(field), real.stats.0[field], self.stats.0[field])
            })
            .collect();
        if !differ.is_empty() {
            return Some(differ.join("\n"));
        }
        if let Some(what) = self.different_pool(real) {
            return Some(what);
        }
        real.segments.as_deref().and_then(|segments| different_segment(segments, &self.model.snapshot()))
    }

    fn different_pool(&mut self, real: &Answer) -> Option<String> {
        if !self.pooled {
            return None;
        }
        self.real_pools.extend(&real.pools);
        self.pools.clear();
        self.model.pool_stats(&mut self.pools);
        let none = [0; 12];
        let ids = self.real_pools.keys().chain(self.pools.keys());
        ids.filter_map(|id| {
            let (a, b) = (self.real_pools.get(id).unwrap_or(&none), self.pools.get(id).unwrap_or(&none));
            (a != b).then(|| format!("reserved bytes of pool {id:?}:\nreal  {a:?}\nmodel {b:?}"))
        })
        .next()
    }

    fn apply(&mut self, op: &Op) -> (Status, u64) {
        match *op {
            Op::Stream { bit, stream } => {
                let bit = bit as usize;
                self.streams.resize(self.streams.len().max(bit + 1), 0);
                self.streams[bit] = stream;
            }
            Op::Malloc { id, size, stream } => {
                let slot = self.slot(id);
                // An empty request never reaches the allocator.
                let address = if size == 0 { Some(0) } else { self.model.malloc(size, stream) };
                self.hold(slot, address.unwrap_or(0));
                return address.map_or((Status::OutOfMemory, 0), |address| (Status::Done, address));
            }
            Op::Free { id } => {
                let slot = self.slot(id);
                let address = std::mem::take(&mut self.addresses[slot]);
                if address == 0 {
                    return (Status::Skipped, 0);
                }
                self.model.free(address);
                return (Status::Done, address);
            }
            Op::RecordStream { id, stream } => {
                let slot = self.slot(id);
                let address = self.addresses[slot];
                if address == 0 {
                    return (Status::Skipped, 0);
                }
                self.model.record_stream(address, stream);
                return (Status::Done, address);
            }
            Op::Complete { stream, count } => self.model.complete(stream, count),
            Op::BeginPool { pool, accepts } => {
                let named = |(bit, &stream): (usize, &u64)| (accepts >> bit & 1 == 1).then_some(stream);
                let accepted =
                    (accepts != 0).then(|| self.streams.iter().enumerate().filter_map(named).collect());
                self.model.begin_pool(pool, accepted);
            }
            Op::EndPool { pool } => self.model.end_pool(pool),
            Op::ReleasePool { pool } => self.model.release_pool(pool),
            Op::EmptyCache { pool } => self.model.empty_cache(pool),
            Op::Fraction(fraction) => self.model.set_fraction(fraction),
            Op::Current { stream } => self.model.set_current(stream),
            Op::Capture { stream, on } => self.model.set_captures(stream, on),
            Op::Mark { begins } if !self.model.mark_capture(begins) => return (Status::Skipped, 0),
            Op::Mark { .. } => {}
            Op::ReserveClass { stream, class } => {
                self.model.set_reserve_class(stream, CLASSES[class as usize]);
            }
            Op::MallocAt { id, size, near, offset } => {
                let (slot, near) = (self.slot(id), self.slot(near));
                let base = self.places[near];
                if base == 0 {
                    return (Status::Skipped, 0);
                }
                let address = self.model.malloc_at(size, base + offset);
                if let Some(address) = address {
                    self.hold(slot, address);
                }
                return address.map_or((Status::Unplaced, 0), |address| (Status::Done, address));
            }
            Op::Annotate { id } => {
                let slot = self.slot(id);
                let address = self.addresses[slot];
                if address == 0 {
                    return (Status::Skipped, 0);
                }
                self.model.annotate(address);
                return (Status::Done, address);
            }
            Op::ResetPeak => self.model.reset_peak(),
            Op::ResetAccumulated => self.model.reset_accumulated(),
            Op::Snapshot => {}
        }
        (Status::Done, 0)
    }

    fn slot(&mut self, id: u32) -> usize {
        let slot = id as usize;
        if slot >= self.addresses.len() {
            self.addresses.resize((slot + 1).max(self.addresses.len() * 2), 0);
            self.places.resize(self.addresses.len(), 0);
        }
        slot
    }

    fn hold(&mut self, slot: usize, address: u64) {
        self.addresses[slot] = address;
        if address != 0 {
            self.places[slot] = address;
        }
    }
}

/// The answer without figures that depend on the order of completions inside one operation: the number and the sizes of
/// free pieces that came and went.
fn without_order(answer: &Answer) -> Answer {
    let mut loose = Answer { entries: trace_of(&answer.entries), ..answer.clone() };
    for (field, value) in loose.stats.0.iter_mut().enumerate() {
        let current = field % 4 == 0;
        if !current && GROUPS.get(field / 12).is_some_and(|group| group.starts_with("inactive_split")) {
            *value = 0;
        }
    }
    loose
}

/// The trace as a recording would show it, without marks of snapshots and without polls of events.
fn trace_of(entries: &[Entry]) -> Vec<Entry> {
    ordered(
        entries.iter().filter(|e| e.action < Entry::POLL && e.action != Entry::SNAPSHOT).copied().collect(),
    )
}

/// The trace with every run of completed frees and memory given back in one fixed order.
fn ordered(mut trace: Vec<Entry>) -> Vec<Entry> {
    let loose =
        |e: &Entry| matches!(e.action, Entry::FREE_COMPLETED | Entry::SEGMENT_FREE | Entry::SEGMENT_UNMAP);
    trace.chunk_by_mut(|a, b| loose(a) && loose(b)).for_each(<[Entry]>::sort_unstable);
    trace
}

fn different_segment(real: &[Segment], model: &[Segment]) -> Option<String> {
    let at = real.iter().zip(model).position(|(a, b)| a != b);
    if let Some(at) = at {
        return Some(format!("segment {at}:\nreal  {:?}\nmodel {:?}", real[at], model[at]));
    }
    let (a, b) = (real.len(), model.len());
    (a != b).then(|| {
        format!("segments: real {a}, model {b}; first more {:?}", real.get(b).or_else(|| model.get(a)))
    })
}
