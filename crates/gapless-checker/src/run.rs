//! Runs a program: does what is right on native PyTorch, and leaves out the rest.
//!
//! Each operation states what makes it right. The allocator is called between [`World`] calls, never inside one.

mod asking;
mod leaving;
mod memory;
mod pools;

use super::clock::{Clock, Line};
use super::device::TimedDevice;
use super::driver::Driver;
use super::growing::Growing;
use super::memory::OwnerId;
use super::native::Native;
use super::ops::{
    DEFAULT_SLOT, FOREIGN_SLOT, OWN_SLOTS, Op, PER_THREAD_SLOT, Plans, Program, SLOTS, UNHEARD_SLOT,
};
use super::planner::{AtOnce, Later};
use super::streams::{OTHER_CONTEXT, OWN_CONTEXT};
use super::totals::Totals;
use super::violation::{Rule, Violation};
use super::world::{Call, DEFAULT_STREAM, Graph, PER_THREAD, THREADS, World};
use gapless_pool::budget::Budget;
use gapless_pool::device::StreamHandle;
use gapless_pool::pool::{Pool, PoolKey, Saved};
use gapless_pool::shared::SharedPool;
use rustc_hash::{FxHashMap, FxHashSet};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

/// All invariants of the pool are checked after this number of operations.
const CHECK_EVERY: usize = 16;
/// Only this thread requests memory on handle 2, because the pool distinguishes lanes by handles.
const ASKING_THREAD: usize = 1;
const DEFAULT_POOL: PoolKey = PoolKey(0, 0);

/// Runs a program until it ends, or violates a rule that is not ignored.
#[must_use]
pub fn run(program: &Program, ignored: &[Rule]) -> (Totals, Option<Violation>) {
    let mut runner = Runner::new(program, ignored);
    let result = catch_unwind(AssertUnwindSafe(|| runner.run(&program.ops)));
    let world = runner.world.clone();
    if let Err(panic) = result {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        let mut world = world.borrow_mut();
        world.call = Call::default();
        world.broken((Rule::Panic, text.unwrap_or_else(|| "a panic".to_owned())));
        // The pool may be broken, so it is neither asked nor dropped.
        std::mem::forget(runner.driver);
        let violation = world.violation().cloned();
        return (runner.totals, violation);
    }
    runner.count();
    let violation = world.borrow().violation().cloned();
    (runner.totals, violation)
}

/// A stream in a slot.
#[derive(Clone, Copy, Debug)]
struct Slot {
    handle: u64,
    line: Line,
    is_alive: bool,
}

/// An allocation of the program.
#[derive(Clone, Debug)]
struct Held {
    owner: OwnerId,
    addr: u64,
    size: u64,
    /// The timeline on which it was requested.
    line: Line,
    handle: u64,
    pool: PoolKey,
    announced: Vec<u64>,
    /// The thread whose own stream uses it. This thread must free it too, because an event on handle 2 belongs to the
    /// thread that records it.
    thread: Option<usize>,
}

/// Allocations with their names.
type Named = Vec<(u32, Held)>;

/// A private pool of the program.
#[derive(Clone, Debug)]
struct Private {
    key: PoolKey,
    is_used: bool,
    saved: Option<(Vec<Saved>, Named)>,
    /// The end of the last replay of its graphs, and the number of graphs.
    last: Clock,
    graphs: u32,
}

/// The kind of private pools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Plain,
    Graphs,
}

struct Runner {
    world: Rc<RefCell<World>>,
    driver: Driver,
    slots: [Slot; SLOTS],
    held: FxHashMap<u32, Held>,
    /// Allocations that the program holds and may not use, because they sleep.
    asleep: FxHashMap<u32, Held>,
    /// Allocations that another process maps, and the thread that freed each since: the owner holds it meanwhile.
    shared: FxHashMap<u32, Option<u8>>,
    growing: Growing,
    /// The simulation of native PyTorch, since nothing was held. It ends at an operation that it does not model.
    native: Option<Native>,
    has_native: bool,
    private: FxHashMap<u8, Private>,
    graph_pools: FxHashMap<u8, Private>,
    graphs: FxHashMap<u32, (u8, Graph)>,
    /// Graphs with allocations in windows.
    windowed: FxHashSet<u32>,
    /// The open capture: its graph, and the slot of its pool.
    capture: Option<(u32, u8)>,
    /// The work for which timelines must wait before they request memory again.
    owed: FxHashMap<Line, Clock>,
    budgets: [&'static Budget; 2],
    limit: Option<u64>,
    next_key: u64,
    capacity: u64,
    requests_at_replay: u64,
    later: Later,
    /// True if requests may wait for frees instead of taking new memory.
    runs_ahead: bool,
    /// True if calls wait outside of the pool.
    is_asking: bool,
    /// The operations that were not begun, with their places in the program.
    ahead: VecDeque<(usize, Op)>,
    /// The calls that wait while this operation runs.
    waiters: Vec<asking::Waiter>,
    totals: Totals,
}

impl Runner {
    fn new(program: &Program, ignored: &[Rule]) -> Runner {
        let config = program.config;
        let capacity = config.capacity;
        let mut world = World::new(&config, ignored);
        let slots = std::array::from_fn(|slot| {
            let (handle, line) = match slot as u8 {
                DEFAULT_SLOT => (DEFAULT_STREAM, world.named[&DEFAULT_STREAM]),
                PER_THREAD_SLOT => (PER_THREAD, world.per_thread[0]),
                FOREIGN_SLOT => world.create_stream(OTHER_CONTEXT, false),
                _ => world.create_stream(OWN_CONTEXT, false),
            };
            Slot { handle, line, is_alive: true }
        });
        let world = Rc::new(RefCell::new(world));
        let mut pool = Pool::new(TimedDevice::new(world.clone()), config.options);
        let later = Later::default();
        match config.planner {
            Plans::Nobody => {}
            Plans::AtOnce => pool.set_planner(Some(Box::new(AtOnce))),
            Plans::Later => pool.set_planner(Some(Box::new(later.clone()))),
        }
        let growing = Growing::new(world.clone());
        let driver = if config.is_shared {
            Driver::Shared(Box::new(SharedPool::new(pool)))
        } else {
            Driver::Alone(Box::new(pool))
        };
        let budget = |limit, soft| -> &'static Budget { Box::leak(Box::new(Budget::new(limit, soft))) };
        Runner {
            world,
            driver,
            slots,
            held: FxHashMap::default(),
            asleep: FxHashMap::default(),
            shared: FxHashMap::default(),
            growing,
            native: None,
            // Plans hold memory at the places that their steps will need.
            has_native: config.planner == Plans::Nobody,
            private: FxHashMap::default(),
            graph_pools: FxHashMap::default(),
            graphs: FxHashMap::default(),
            windowed: FxHashSet::default(),
            capture: None,
            owed: FxHashMap::default(),
            budgets: [budget(capacity / 2, capacity / 3), budget(capacity / 4, u64::MAX)],
            limit: config.options.limit,
            next_key: 0,
            capacity,
            requests_at_replay: 0,
            later,
            runs_ahead: config.options.run_ahead.is_some(),
            is_asking: config.is_asking,
            ahead: VecDeque::new(),
            waiters: Vec::new(),
            totals: Totals { programs: 1, ..Totals::default() },
        }
    }

    fn run(&mut self, ops: &[Op]) {
        self.ahead = ops.iter().copied().enumerate().collect();
        while let Some((at, op)) = self.ahead.pop_front() {
            self.world.borrow_mut().at = at;
            self.totals.operations += 1;
            self.step(op);
            if at % CHECK_EVERY == 0 {
                self.check();
            }
            if self.is_broken() {
                return;
            }
        }
        self.world.borrow_mut().at = ops.len();
        self.end();
    }

    fn is_broken(&self) -> bool {
        self.world.borrow().violation().is_some()
    }

    fn check(&mut self) {
        if let Err(text) = self.driver.with(|pool| pool.check()) {
            self.world.borrow_mut().broken((Rule::Broken, text));
        }
    }

    fn step(&mut self, op: Op) {
        match op {
            Op::Alloc { id, stream, pool, size, budget } => drop(self.alloc(id, stream, pool, size, budget)),
            Op::Touch { id } => drop(self.touch(id)),
            Op::Announce { id, stream } => drop(self.announce(id, stream)),
            Op::Borrow { id, stream } => drop(self.borrow(id, stream)),
            Op::LateWait { id, stream, thread } => drop(self.late_wait(id, stream, thread)),
            Op::Pay { stream } => {
                let line = self.slots[stream as usize].line;
                self.pay(line);
            }
            Op::Free { id, thread } => self.free(id, thread),
            Op::Destroy { stream } => self.destroy(stream),
            Op::Create { stream, reuse } => self.create(stream, reuse),
            Op::Wait { stream, other } => {
                if let (Some(line), Some(other)) = (self.usable(stream), self.usable(other)) {
                    self.world.borrow_mut().wait_stream(line, other);
                }
            }
            Op::Run { stream, most } => {
                let line = self.slots[stream as usize].line;
                self.world.borrow_mut().run(line, most as usize);
                if stream == PER_THREAD_SLOT {
                    let other = self.world.borrow().per_thread[1];
                    self.world.borrow_mut().run(other, most as usize);
                }
            }
            Op::SyncStream { stream } => {
                if let Some(line) = self.usable(stream) {
                    let clock = self.world.borrow().streams.line(line).clock.clone();
                    self.world.borrow_mut().host_wait(&clock);
                }
            }
            Op::SyncDevice => {
                // It would end captures itself.
                if self.capture.is_none() && self.world.borrow().raw.is_empty() {
                    self.world.borrow_mut().synchronise(false);
                }
            }
            Op::Thread { thread } => self.world.borrow_mut().thread = thread as usize % THREADS,
            Op::BeginCapture { graph, stream, pool } => drop(self.begin_capture(graph, stream, pool)),
            Op::JoinCapture { stream } => self.join_capture(stream),
            Op::EndCapture => self.end_capture(),
            Op::AllocInRawCapture { id, stream, size } => self.alloc_in_raw_capture(id, stream, size),
            Op::Meddle { after, stream } => {
                let Slot { line, is_alive, handle } = self.slots[stream as usize];
                // The default stream cannot be captured.
                if is_alive && handle > PER_THREAD {
                    self.world.borrow_mut().meddles.push((u32::from(after), line));
                }
            }
            Op::Replay { graph, stream } => drop(self.replay(graph, stream)),
            Op::DropGraph { graph } => self.drop_graph(graph),
            Op::UsePool { pool, again } => self.use_pool(pool, again),
            Op::ReleasePool { pool } => self.release_pool(pool),
            Op::Trim => self.trim(),
            Op::TrimBehind { of_all } => self.trim_behind(of_all),
            Op::TrimPool { pool } => {
                let private = self.private.get(&pool).map(|private| (private.key, private.is_used));
                self.trim_pool(private);
            }
            Op::TrimGraphPool { pool } => {
                let private = self.graph_pools.get(&pool).map(|private| (private.key, private.is_used));
                self.trim_pool(private);
            }
            Op::Poll => self.call(Call { name: "poll", ..Call::default() }, Pool::poll),
            Op::GrantAgain => {
                let _ = self.call(Call { name: "grant_again", ..Call::default() }, Pool::grant_again);
            }
            Op::ResetPeaks => self.driver.with(Pool::reset_peaks),
            Op::Install => {
                for (ticket, spots) in self.later.take() {
                    self.totals.installed += 1;
                    let call = Call { name: "install", ..Call::default() };
                    self.call(call, |pool| pool.install(ticket, spots));
                }
            }
            Op::MarkStep => self.call(Call { name: "mark_step", ..Call::default() }, Pool::mark_step),
            Op::Pause => self.call(Call { name: "pause", ..Call::default() }, Pool::pause),
            Op::Limit { eighths } => {
                self.limit = (eighths > 0).then(|| self.capacity / 8 * u64::from(eighths));
                let limit = self.limit;
                self.totals.limits += 1;
                self.driver.with(|pool| pool.set_limit(limit));
            }
            Op::Hold { stream, eighths } => {
                let (bytes, slot) = (self.capacity / 8 * u64::from(eighths), self.slots[stream as usize]);
                self.native = None;
                if slot.is_alive && stream != FOREIGN_SLOT && stream != UNHEARD_SLOT {
                    let handle = StreamHandle(slot.handle);
                    let call = Call { name: "hold", ..Call::default() };
                    let _ = self.call(call, |pool| pool.hold(bytes, handle));
                }
            }
            Op::Save { pool } => self.save(Kind::Plain, pool),
            Op::Restore { pool } => self.restore(Kind::Plain, pool),
            Op::SaveGraphs { pool } => self.save(Kind::Graphs, pool),
            Op::RestoreGraphs { pool } => self.restore(Kind::Graphs, pool),
            Op::Sleep { pool } => drop(self.sleep(pool)),
            Op::Wake { pool } => drop(self.wake(pool)),
            Op::Share { id } => self.share(id),
            Op::Unshare { id } => self.unshare(id),
            Op::Resize { range, slots, stream } => drop(self.resize(range, slots, stream)),
            Op::TouchRange { range, stream } => {
                if let Some(line) = self.usable(stream).filter(|_| stream != FOREIGN_SLOT) {
                    self.totals.touched_ranges += 1;
                    self.growing.touch(range as usize % 2, line);
                }
            }
            Op::ElasticWork => self.growing.work(),
            Op::Fault { after } => self.world.borrow_mut().fail_in = Some(u32::from(after)),
        }
    }

    /// Calls the allocator.
    fn call<T>(&mut self, call: Call, work: impl FnOnce(&mut Pool<TimedDevice>) -> T) -> T {
        self.world.borrow_mut().call = call;
        let result = self.driver.with(work);
        self.world.borrow_mut().call = Call::default();
        result
    }

    // ---- streams ----

    /// The timeline of a slot in this thread, if work can be queued on it.
    fn usable(&self, slot: u8) -> Option<Line> {
        let Slot { handle, line, is_alive } = self.slots[slot as usize];
        let world = self.world.borrow();
        let line = if handle == PER_THREAD { world.per_thread[world.thread] } else { line };
        (is_alive && !world.is_captured(line)).then_some(line)
    }

    /// True if the stream of a timeline exists and is not captured, so that work can be queued behind its own.
    fn is_usable(&self, line: Line) -> bool {
        let world = self.world.borrow();
        let handle = world.streams.line(line).handle;
        (handle == PER_THREAD || world.named.get(&handle) == Some(&line)) && !world.is_captured(line)
    }

    /// Lets a stream make the late waits that it owes, before it requests memory, is captured, or ends.
    fn pay(&mut self, line: Line) {
        if self.world.borrow().is_captured(line) {
            return;
        }
        if let Some(clock) = self.owed.remove(&line) {
            self.world.borrow_mut().streams.wait(line, &clock);
        }
    }

    fn destroy(&mut self, slot: u8) {
        let is_own = OWN_SLOTS.contains(&slot) || slot == UNHEARD_SLOT;
        let Some(line) = self.usable(slot).filter(|_| is_own) else { return };
        self.pay(line);
        // Memory that a destroyed stream had cached helps no other stream.
        self.native = None;
        let mut world = self.world.borrow_mut();
        self.totals.destroyed_busy += u64::from(world.streams.queued(line) > 0);
        world.destroy_stream(self.slots[slot as usize].handle);
        self.slots[slot as usize].is_alive = false;
    }

    fn create(&mut self, slot: u8, reuse: bool) {
        if self.slots[slot as usize].is_alive {
            return;
        }
        let mut world = self.world.borrow_mut();
        let known = world.streams.len();
        let (handle, line) = world.create_stream(OWN_CONTEXT, reuse);
        let is_old = (0..known).any(|other| world.streams.line(other).handle == handle);
        self.totals.handles_reused += u64::from(is_old);
        self.slots[slot as usize] = Slot { handle, line, is_alive: true };
    }

    // ---- the end ----

    /// Ends everything, and frees everything.
    fn end(&mut self) {
        {
            let mut world = self.world.borrow_mut();
            world.fail_in = None;
            world.meddles.clear();
            world.raw.clear();
        }
        self.end_capture();
        let mut graphs: Vec<u32> = self.graphs.keys().copied().collect();
        graphs.sort_unstable();
        graphs.into_iter().for_each(|graph| self.drop_graph(graph));
        let mut shared: Vec<u32> = self.shared.keys().copied().collect();
        shared.sort_unstable();
        shared.into_iter().for_each(|id| self.unshare(id));
        let mut held: Vec<u32> = self.held.keys().chain(self.asleep.keys()).copied().collect();
        held.sort_unstable();
        held.into_iter().for_each(|id| self.free(id, 0));
        for slot in 0..=u8::MAX {
            self.release_pool(slot);
        }
        self.check();
        self.world.borrow_mut().synchronise(true);
        self.growing.end();
        self.trim();
        self.check();
        let (left, failures) = (self.world.borrow().memory.used, self.world.borrow().counts.failures);
        if left > 0 && failures == 0 && !self.is_broken() {
            self.world
                .borrow_mut()
                .broken((Rule::Kept, format!("{left} bytes stay after everything was freed")));
        }
    }

    fn count(&mut self) {
        let (stats, plans) = self.driver.with(|pool| (*pool.stats(), pool.plan_stats()));
        let counts = self.world.borrow().counts;
        let totals = &mut self.totals;
        totals.failures = counts.failures;
        totals.unreserved = counts.unreserved;
        totals.records = counts.records;
        totals.captured_records = counts.captured_records;
        totals.meddles = counts.meddles;
        totals.host_waits = counts.waits;
        totals.unmaps = counts.unmaps;
        totals.most_cards = self.world.borrow().memory.most_beyond / self.capacity;
        totals.lent = stats.lent;
        totals.windows = stats.windows_made;
        totals.window_hits = stats.window_hits;
        totals.private_windows = stats.private_windows;
        totals.harvested = stats.harvested;
        totals.plans = plans.plans;
        totals.planned = plans.served;
        [totals.ladder_wait, totals.ladder_harvest, totals.ladder_trim, totals.ladder_shrink] = stats.ladder;
    }
}
