//! The world that the allocator and the program share: streams, memory, events, the host, and the rules between them.
//!
//! The device's calls are in `device`, captures and graphs in `graphs`. The host has one clock: it joins an event's
//! clock when the event was seen to be done or was waited for, and a stream's when the program synchronised. Work has
//! the clock of its stream joined with the host's, and one tick more. So work that is queued after the host saw an
//! event happens after what the event stands for.

mod graphs;

pub(crate) use graphs::Graph;

use super::clock::{Clock, Line, Moment, Uses};
use super::memory::{Broken, MapId, Memory, Owner, OwnerId, work_of};
use super::ops::Config;
use super::streams::{OTHER_CONTEXT, OWN_CONTEXT, Streams};
use super::violation::{Rule, Violation};
use gapless_pool::pool::PoolKey;
use graphs::Capture;
use rustc_hash::FxHashMap;
use std::rc::Rc;

/// The handle of the legacy default stream, and the handle that is another stream in each thread.
pub(crate) const DEFAULT_STREAM: u64 = 0;
pub(crate) const PER_THREAD: u64 = 2;
/// Host threads.
pub(crate) const THREADS: usize = 2;

/// An event as it was last recorded. On a captured stream it belongs to the capture.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub(crate) clock: Clock,
    pub(crate) capture: Option<u64>,
}

/// The call of the allocator that is running, and its permissions.
#[derive(Clone, Debug, Default)]
pub(crate) struct Call {
    pub(crate) name: &'static str,
    /// True if native PyTorch would synchronise here too.
    pub(crate) may_wait: bool,
    /// True if the caller waits itself, so the pool must not.
    pub(crate) is_asking: bool,
    /// Streams that the program announced for the block that is being freed.
    pub(crate) announced: Vec<u64>,
    /// True if a device call failed in it, on purpose or for lack of memory or addresses.
    pub(crate) had_failure: bool,
}

/// The way in which memory comes to an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Handing {
    /// Its stream writes all of it at once.
    Written(Line),
    /// Its stream writes it. It may be a place that the same tensor let go of and has again; the program orders that
    /// tensor's own earlier work there.
    Grown(Line),
    /// In a capture, so nothing runs before a replay.
    Captured,
    /// It was live before, and is live again.
    Restored,
}

/// Everything except the allocator.
#[derive(Debug)]
pub struct World {
    pub(crate) streams: Streams,
    pub(crate) memory: Memory,
    pub(crate) host: Clock,
    /// The thread that makes the calls.
    pub(crate) thread: usize,
    /// Streams that the program can name, by handle.
    pub(crate) named: FxHashMap<u64, Line>,
    /// The stream of handle 2 in each thread.
    pub(crate) per_thread: [Line; THREADS],
    pub(crate) events: FxHashMap<u64, Event>,
    pub(crate) next_event: u64,
    pub(crate) capture: Option<Capture>,
    /// Streams whose captures the program did not report, with the number of each capture.
    pub(crate) raw: FxHashMap<Line, u64>,
    pub(crate) next_capture: u64,
    /// After this number of driver calls another thread begins a capture of this stream, or ends it.
    pub(crate) meddles: Vec<(u32, Line)>,
    pub(crate) call: Call,
    /// Counts down with every device call that may fail. The call at 0 fails.
    pub(crate) fail_in: Option<u32>,
    ignored: Vec<Rule>,
    /// The operation that is running.
    pub(crate) at: usize,
    violations: Vec<Violation>,
    pub(crate) counts: Counts,
}

/// Counts of events on the device.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) failures: u64,
    /// Reservations that failed for lack of addresses.
    pub(crate) unreserved: u64,
    pub(crate) records: u64,
    pub(crate) captured_records: u64,
    pub(crate) meddles: u64,
    pub(crate) waits: u64,
    pub(crate) unmaps: u64,
}

impl World {
    pub(crate) fn new(config: &Config, ignored: &[Rule]) -> World {
        let Config { capacity, addresses, most_cards, .. } = *config;
        let mut streams = Streams::default();
        let default = streams.create(DEFAULT_STREAM, OWN_CONTEXT);
        let per_thread = std::array::from_fn(|_| streams.create(PER_THREAD, OWN_CONTEXT));
        World {
            streams,
            memory: Memory::new(capacity, addresses, most_cards.saturating_mul(capacity)),
            host: Clock::default(),
            thread: 0,
            named: FxHashMap::from_iter([(DEFAULT_STREAM, default)]),
            per_thread,
            events: FxHashMap::default(),
            next_event: 0,
            capture: None,
            raw: FxHashMap::default(),
            next_capture: 0,
            meddles: Vec::new(),
            call: Call::default(),
            fail_in: None,
            ignored: ignored.to_vec(),
            at: 0,
            violations: Vec::new(),
            counts: Counts::default(),
        }
    }

    /// The first violation.
    #[must_use]
    pub fn violation(&self) -> Option<&Violation> {
        self.violations.first()
    }

    pub(crate) fn broken(&mut self, (rule, text): Broken) {
        if !self.ignored.contains(&rule) && self.violations.len() < 16 {
            let during =
                if self.call.name.is_empty() { String::new() } else { format!(" ({})", self.call.name) };
            self.violations.push(Violation { rule, at: self.at, text: text + &during });
        }
    }

    /// Records a violation, if there is one. `None` if there was.
    pub(crate) fn keeps<T>(&mut self, result: Result<T, Broken>) -> Option<T> {
        result.map_err(|broken| self.broken(broken)).ok()
    }

    // ---- streams ----

    /// The timeline that a handle names in this thread.
    pub(crate) fn line_of(&self, handle: u64) -> Option<Line> {
        if handle == PER_THREAD {
            Some(self.per_thread[self.thread])
        } else {
            self.named.get(&handle).copied()
        }
    }

    /// Makes a new stream. It may get the handle of an old one, as from a driver, if the host knows that its work is
    /// done.
    pub(crate) fn create_stream(&mut self, context: u8, reuse: bool) -> (u64, Line) {
        let is_gone = |line: &Line| {
            let timeline = self.streams.line(*line);
            timeline.context == context
                && timeline.handle > PER_THREAD
                && !self.named.contains_key(&timeline.handle)
        };
        let is_over = |line: &Line| self.host.covers_all(&self.streams.line(*line).clock);
        // All timelines of a handle must be over.
        let old = (0..self.streams.len()).rev().filter(is_gone).find(|line| {
            let handle = self.streams.line(*line).handle;
            (0..self.streams.len())
                .filter(|other| self.streams.line(*other).handle == handle)
                .all(|o| is_over(&o))
        });
        let handle = match old.filter(|_| reuse) {
            Some(line) => self.streams.line(line).handle,
            None => 0x100 + self.streams.len() as u64,
        };
        let line = self.streams.create(handle, context);
        self.named.insert(handle, line);
        (handle, line)
    }

    /// Destroys a stream. Its work goes on.
    pub(crate) fn destroy_stream(&mut self, handle: u64) {
        self.named.remove(&handle);
    }

    /// Lets later work of `line` begin after the present end of `other`.
    pub(crate) fn wait_stream(&mut self, line: Line, other: Line) {
        let clock = self.streams.line(other).clock.clone();
        self.streams.wait(line, &clock);
    }

    pub(crate) fn run(&mut self, line: Line, most: usize) {
        for _ in 0..most {
            let Some(item) = self.streams.run_next(line) else { return };
            let there = self.memory.are_there(&item.maps);
            self.keeps(there);
        }
    }

    /// Lets the host wait until `clock` has happened.
    pub(crate) fn host_wait(&mut self, clock: &Clock) {
        let mut ran = Vec::new();
        self.streams.finish(clock, &mut |item| ran.push(item));
        for item in ran {
            let there = self.memory.are_there(&item.maps);
            self.keeps(there);
        }
        self.host.join(clock);
    }

    pub(crate) fn synchronise(&mut self, with_other_contexts: bool) {
        let mut clock = self.streams.all(OWN_CONTEXT);
        if with_other_contexts {
            clock.join(&self.streams.all(OTHER_CONTEXT));
        }
        self.host_wait(&clock);
    }

    // ---- work ----

    /// Queues work on these mappings.
    pub(crate) fn work(&mut self, line: Line, maps: &Rc<[MapId]>) -> Moment {
        let moment = self.streams.enqueue(line, &self.host, maps.clone());
        self.memory.use_maps(maps, moment, &self.host);
        moment
    }

    /// Queues work on a whole allocation, which must not have moved.
    pub(crate) fn touch(&mut self, line: Line, owner: OwnerId) {
        let (addr, size, maps) = {
            let owner = self.memory.owner(owner);
            (owner.addr, owner.size, owner.maps.clone())
        };
        let Some(stretches) = self.keeps(self.memory.resolve(addr, size)) else { return };
        if !stretches.iter().map(|stretch| stretch.map).eq(maps.iter().copied()) {
            self.broken((
                Rule::Access,
                format!("other pages lie behind {addr:#x} than when it was handed out"),
            ));
            return;
        }
        let moment = self.work(line, &maps);
        let host = &self.host;
        let uses = &mut self.memory.owner_mut(owner).uses;
        uses.forget_covered(host);
        uses.add(moment);
    }

    /// Checks memory that the allocator handed out: no other owner has it, and earlier work on it happens before.
    pub(crate) fn hand_out(
        &mut self,
        name: u32,
        (addr, size): (u64, u64),
        pool: PoolKey,
        handing: Handing,
    ) -> Option<OwnerId> {
        let stretches = self.keeps(self.memory.resolve(addr, size))?;
        let maps: Rc<[MapId]> = stretches.iter().map(|stretch| stretch.map).collect();
        let earlier = self.memory.owners_of(&stretches);
        // The clock of the new owner's first work.
        let clock = match handing {
            Handing::Written(line) | Handing::Grown(line) => {
                let moment = self.work(line, &maps);
                debug_assert_eq!(moment.line, line);
                self.streams.line(line).clock.clone()
            }
            Handing::Captured | Handing::Restored => self.host.clone(),
        };
        let mut uses = Uses::default();
        if let Handing::Written(line) | Handing::Grown(line) = handing {
            uses.add(Moment { line, tick: clock.get(line) });
        }
        for id in earlier {
            let owner = self.memory.owner(id);
            let (other, is_live, of, was_at) = (owner.name, owner.is_live, owner.pool, owner.addr);
            let late: Vec<Moment> = owner.uses.all_not_before(&clock).collect();
            if is_live {
                self.broken((
                    Rule::SharedBytes,
                    format!("allocations {name} and {other} share bytes at {addr:#x}"),
                ));
            }
            let is_ordered = match handing {
                // The program has to order the graphs of one pool.
                Handing::Captured => of == pool,
                Handing::Grown(_) => of == pool && was_at == addr,
                Handing::Written(_) | Handing::Restored => false,
            };
            if is_ordered {
                late.iter().for_each(|&moment| uses.add(moment));
            } else if let Some(&moment) = late.first() {
                let work = work_of(other, moment);
                let text = format!("allocation {name} at {addr:#x} is handed out before {work} is done");
                self.broken((Rule::HandOut, text));
            }
        }
        let owner = Owner { name, pool, is_live: true, addr, size, maps: maps.clone(), uses };
        let id = self.memory.add_owner(owner);
        self.memory.own(&stretches, id);
        self.memory.hold(&maps, true);
        Some(id)
    }

    /// Notes that the program lets an allocation go, or (after a restore that failed) has it again.
    pub(crate) fn set_live(&mut self, id: OwnerId, is_live: bool) {
        let owner = self.memory.owner_mut(id);
        if owner.is_live != is_live {
            owner.is_live = is_live;
            let maps = owner.maps.clone();
            self.memory.hold(&maps, is_live);
        }
    }

    /// The memory that the allocator may still take from the card.
    pub(crate) fn room(&self, limit: Option<u64>) -> u64 {
        let most = limit.map_or(self.memory.capacity, |limit| limit.min(self.memory.capacity));
        most.saturating_sub(self.memory.used)
    }
}

#[cfg(test)]
mod tests {
    use super::super::ops::Plans;
    use super::*;
    use gapless_pool::options::Options;

    const MIB: u64 = 1 << 20;
    const POOL: PoolKey = PoolKey(0, 0);

    /// A world with two streams, and 2 MiB that can be handed out.
    fn world() -> (World, [(u64, Line); 2], (u64, u64)) {
        let config = Config {
            capacity: 64 * MIB,
            options: Options::default(),
            is_shared: false,
            is_asking: false,
            planner: Plans::Nobody,
            addresses: 1 << 47,
            most_cards: 64,
        };
        let mut world = World::new(&config, &[]);
        let streams = [world.create_stream(OWN_CONTEXT, false), world.create_stream(OWN_CONTEXT, false)];
        let addr = world.memory.reserve(2 * MIB).expect("addresses");
        let page = world.memory.create(2 * MIB).expect("memory");
        assert_eq!(world.memory.map(addr, 2 * MIB, page), Ok(()));
        assert_eq!(world.memory.grant(addr, 2 * MIB), Ok(()));
        (world, streams, (addr, 2 * MIB))
    }

    fn rule(world: &World) -> Option<Rule> {
        world.violation().map(|violation| violation.rule)
    }

    #[test]
    fn a_block_serves_its_own_stream_again_and_no_other() {
        let (mut world, [(_, a), (_, b)], place) = world();
        for name in 0..3 {
            let owner = world.hand_out(name, place, POOL, Handing::Written(a)).expect("memory");
            world.set_live(owner, false);
        }
        assert_eq!(rule(&world), None);
        world.hand_out(3, place, POOL, Handing::Written(b));
        assert_eq!(rule(&world), Some(Rule::HandOut));
    }

    #[test]
    fn another_stream_may_have_it_once_the_host_knows_or_the_stream_waited() {
        let (mut world, [(_, a), (_, b)], place) = world();
        let owner = world.hand_out(0, place, POOL, Handing::Written(a)).expect("memory");
        world.set_live(owner, false);
        world.wait_stream(b, a);
        let owner = world.hand_out(1, place, POOL, Handing::Written(b)).expect("memory");
        world.set_live(owner, false);
        // The work is done, but the host has not looked, so it does not know.
        world.run(a, 9);
        world.run(b, 9);
        assert!(world.host.moments().next().is_none());
        world.synchronise(false);
        world.hand_out(2, place, POOL, Handing::Written(a));
        assert_eq!(rule(&world), None);
    }

    #[test]
    fn what_is_live_is_nobody_elses() {
        let (mut world, [(_, a), _], place) = world();
        world.hand_out(0, place, POOL, Handing::Written(a));
        world.hand_out(1, (place.0 + MIB, 512), POOL, Handing::Written(a));
        assert_eq!(rule(&world), Some(Rule::SharedBytes));
    }

    #[test]
    fn the_work_of_a_destroyed_stream_goes_on_and_its_handle_comes_again_after_it() {
        let (mut world, [(handle, a), (_, b)], place) = world();
        let owner = world.hand_out(0, place, POOL, Handing::Written(a)).expect("memory");
        world.set_live(owner, false);
        world.destroy_stream(handle);
        assert_eq!(world.line_of(handle), None);
        assert_ne!(world.create_stream(OWN_CONTEXT, true).0, handle, "its work may not be done");
        world.synchronise(false);
        assert_eq!(world.create_stream(OWN_CONTEXT, true).0, handle);
        world.hand_out(1, place, POOL, Handing::Written(b));
        assert_eq!(rule(&world), None);
    }

    #[test]
    fn a_tensor_that_grows_again_may_have_its_own_work_there_and_nobody_elses() {
        let (mut world, [(_, a), (_, b)], place) = world();
        let again = |world: &mut World, pool| {
            let owner = world.hand_out(1, place, pool, Handing::Grown(b)).expect("memory");
            world.set_live(owner, false);
            rule(world)
        };
        let own = PoolKey(u64::MAX, 0);
        let owner = world.hand_out(0, place, own, Handing::Grown(a)).expect("memory");
        world.set_live(owner, false);
        assert_eq!(again(&mut world, own), None);
        assert_eq!(again(&mut world, PoolKey(u64::MAX, 1)), Some(Rule::HandOut));
    }

    #[test]
    fn a_graph_finds_its_bytes_where_they_were() {
        let (mut world, [(_, a), (_, b)], place) = world();
        let pool = PoolKey(7, 0);
        world.begin_capture(a, pool);
        let owner = world.hand_out(0, place, pool, Handing::Captured).expect("memory");
        world.capture_use(owner);
        world.set_live(owner, false);
        let graph = world.end_capture().expect("a capture was open");
        let end = world.replay(&graph, b, &Clock::default());
        assert_eq!(rule(&world), None);
        world.host_wait(&end);
        world.hand_out(1, place, POOL, Handing::Written(b));
        assert_eq!(rule(&world), None, "nobody was harmed yet");
        world.replay(&graph, b, &end);
        assert_eq!(rule(&world), Some(Rule::GraphShared));
    }
}
