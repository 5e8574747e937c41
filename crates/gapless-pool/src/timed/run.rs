//! Runs a program: does what is right on native PyTorch, and leaves out what is not.
//!
//! What makes an operation right is written at each of them. The allocator is called between [`World`] calls, never
//! inside one.

use super::clock::{Clock, Line};
use super::device::TimedDevice;
use super::driver::Driver;
use super::graphs::Graph;
use super::growing::Growing;
use super::memory::OwnerId;
use super::ops::{
    DEFAULT_SLOT, FOREIGN_SLOT, OWN_SLOTS, Op, PER_THREAD_SLOT, Plans, Program, SLOTS, UNHEARD_SLOT,
};
use super::planner::{AtOnce, Later};
use super::streams::{OTHER_CONTEXT, OWN_CONTEXT};
use super::totals::Totals;
use super::violation::{Rule, Violation};
use super::world::{Call, DEFAULT_STREAM, Handing, PER_THREAD, THREADS, World};
use crate::budget::Budget;
use crate::device::StreamHandle;
use crate::fronts::SharedPool;
use crate::pool::{Pool, PoolKey, Saved, SleepError, UNIT};
use rustc_hash::FxHashMap;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

/// Operations between two looks at all invariants of the pool.
const CHECK_EVERY: usize = 16;
/// Handle 2 asks for memory in this thread alone: lanes are told apart by handles.
const ASKING_THREAD: usize = 1;
const DEFAULT_POOL: PoolKey = PoolKey(0, 0);

/// Runs a program until it ends or breaks a rule that is not ignored.
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
        // The pool is in no state to be asked, or dropped with care.
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

/// What the program holds.
#[derive(Clone, Debug)]
struct Held {
    owner: OwnerId,
    addr: u64,
    size: u64,
    /// The timeline that it was asked for on.
    line: Line,
    handle: u64,
    pool: PoolKey,
    announced: Vec<u64>,
    /// The thread whose own stream uses it: it must free it too, as an event on handle 2 is of the thread that
    /// records it.
    thread: Option<usize>,
}

/// Allocations with their names.
type Named = Vec<(u32, Held)>;

/// A private pool of the program's.
#[derive(Clone, Debug)]
struct Private {
    key: PoolKey,
    is_used: bool,
    saved: Option<(Vec<Saved>, Named)>,
    /// The end of the last replay of its graphs, and how many there are.
    last: Clock,
    graphs: u32,
}

struct Runner {
    world: Rc<RefCell<World>>,
    driver: Driver,
    slots: [Slot; SLOTS],
    held: FxHashMap<u32, Held>,
    /// What the program holds and may not use: it sleeps.
    asleep: FxHashMap<u32, Held>,
    /// What another process maps, and the thread that gave it back since: the owner holds it for the other.
    shared: FxHashMap<u32, Option<u8>>,
    growing: Growing,
    private: FxHashMap<u8, Private>,
    graph_pools: FxHashMap<u8, Private>,
    graphs: FxHashMap<u32, (u8, Graph)>,
    /// The open capture: its graph, and the slot of its pool.
    capture: Option<(u32, u8)>,
    /// What timelines must wait for before they ask for memory again.
    owed: FxHashMap<Line, Clock>,
    budgets: [&'static Budget; 2],
    limit: Option<u64>,
    next_key: u64,
    capacity: u64,
    requests_at_replay: u64,
    later: Later,
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
            private: FxHashMap::default(),
            graph_pools: FxHashMap::default(),
            graphs: FxHashMap::default(),
            capture: None,
            owed: FxHashMap::default(),
            budgets: [budget(capacity / 2, capacity / 3), budget(capacity / 4, u64::MAX)],
            limit: config.options.limit,
            next_key: 0,
            capacity,
            requests_at_replay: 0,
            later,
            totals: Totals { programs: 1, ..Totals::default() },
        }
    }

    fn run(&mut self, ops: &[Op]) {
        for (at, op) in ops.iter().enumerate() {
            self.world.borrow_mut().at = at;
            self.totals.operations += 1;
            self.step(*op);
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
                if self.capture.is_none() {
                    self.world.borrow_mut().synchronise(false);
                }
            }
            Op::Thread { thread } => self.world.borrow_mut().thread = thread as usize % THREADS,
            Op::BeginCapture { graph, stream, pool } => drop(self.begin_capture(graph, stream, pool)),
            Op::JoinCapture { stream } => self.join_capture(stream),
            Op::EndCapture => self.end_capture(),
            Op::AllocInRawCapture { id, stream, size } => self.alloc_in_raw_capture(id, stream, size),
            Op::Replay { graph, stream } => drop(self.replay(graph, stream)),
            Op::DropGraph { graph } => self.drop_graph(graph),
            Op::UsePool { pool, again } => self.use_pool(pool, again),
            Op::ReleasePool { pool } => self.release_pool(pool),
            Op::Trim => self.trim(),
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
                if slot.is_alive && stream != FOREIGN_SLOT && stream != UNHEARD_SLOT {
                    let handle = StreamHandle(slot.handle);
                    let call = Call { name: "hold", ..Call::default() };
                    let _ = self.call(call, |pool| pool.hold(bytes, handle));
                }
            }
            Op::Save { pool } => self.save(pool),
            Op::Restore { pool } => self.restore(pool),
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

    /// The timeline of a slot in this thread, where work can be queued on it.
    fn usable(&self, slot: u8) -> Option<Line> {
        let Slot { handle, line, is_alive } = self.slots[slot as usize];
        let world = self.world.borrow();
        let line = if handle == PER_THREAD { world.per_thread[world.thread] } else { line };
        (is_alive && !world.is_captured(line)).then_some(line)
    }

    /// Whether the stream of a timeline is there, and not captured: work can be queued behind its own.
    fn is_usable(&self, line: Line) -> bool {
        let world = self.world.borrow();
        let handle = world.streams.line(line).handle;
        (handle == PER_THREAD || world.named.get(&handle) == Some(&line)) && !world.is_captured(line)
    }

    /// A stream waits for what its late waits owe: before it asks for memory, is captured, or goes.
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

    // ---- memory ----

    fn alloc(&mut self, id: u32, slot: u8, pool: u8, size: u64, budget: Option<u8>) -> Option<()> {
        let Slot { handle, line, is_alive } = self.slots[slot as usize];
        let is_known = self.held.contains_key(&id) || self.asleep.contains_key(&id);
        if !is_alive || slot == FOREIGN_SLOT || slot == UNHEARD_SLOT || is_known {
            return None;
        }
        let line = if handle == PER_THREAD { self.world.borrow().per_thread[ASKING_THREAD] } else { line };
        let captured =
            self.world.borrow().capture.as_ref().filter(|c| c.lines.contains(&line)).map(|c| c.pool);
        let private = self.private.get(&pool).filter(|private| private.is_used).map(|private| private.key);
        let key = captured.or(private).unwrap_or(DEFAULT_POOL);
        self.pay(line);
        let budget = budget.map(|budget| self.budgets[budget as usize]);
        let is_plentiful = {
            let mut world = self.world.borrow_mut();
            if handle == PER_THREAD {
                world.thread = ASKING_THREAD;
            }
            let is_plentiful = world.room(self.limit) >= size + self.capacity / 4;
            // At a soft limit memory is given back, as `empty_cache` would.
            let is_pressed = |budget: &Budget| budget.stats().live + size > budget.stats().soft;
            let may_wait = !is_plentiful || budget.is_some_and(is_pressed);
            world.call = Call { name: "alloc", may_wait, ..Call::default() };
            is_plentiful
        };
        let gathers = self.driver.gathers();
        let result = self.driver.alloc(size, handle, key, budget);
        self.totals.fronts += u64::from(gathers.is_some() && gathers == self.driver.gathers());
        let call = std::mem::take(&mut self.world.borrow_mut().call);
        let addr = match result {
            Ok(addr) => addr,
            Err(error) => {
                self.totals.out_of_memory += u64::from(budget.is_none());
                self.totals.refused += u64::from(budget.is_some());
                if is_plentiful && budget.is_none() && !call.had_failure {
                    let text = format!(
                        "{size} bytes were refused with that and a quarter of the card left: {error:?}"
                    );
                    self.world.borrow_mut().broken((Rule::RefusedWithRoom, text));
                }
                return None;
            }
        };
        self.totals.requests += 1;
        self.totals.budgets += u64::from(budget.is_some());
        self.totals.private_requests += u64::from(key != DEFAULT_POOL && captured.is_none());
        self.totals.capture_requests += u64::from(captured.is_some());
        self.totals.per_thread += u64::from(handle == PER_THREAD);
        let handing = if captured.is_some() { Handing::Captured } else { Handing::Written(line) };
        let size = size.div_ceil(UNIT).max(1) * UNIT;
        let owner = self.world.borrow_mut().hand_out(id, (addr, size), key, handing)?;
        if captured.is_some() {
            self.world.borrow_mut().capture_use(owner);
        }
        let (announced, thread) = (Vec::new(), None);
        let held = Held { owner, addr, size, line, handle, pool: key, announced, thread };
        self.held.insert(id, held);
        Some(())
    }

    /// A request of a stream while it is captured, which only the device knows.
    fn alloc_in_raw_capture(&mut self, id: u32, slot: u8, size: u64) {
        let Some(line) = self.usable(slot).filter(|_| self.capture.is_none()) else { return };
        self.pay(line);
        self.world.borrow_mut().raw_capture = Some(line);
        self.totals.raw_captures += u64::from(self.alloc(id, slot, 0, size, None).is_some());
        self.world.borrow_mut().raw_capture = None;
    }

    /// Whether a pool is one of graphs, whose replays come in between.
    fn last_replay(&self, pool: PoolKey) -> Option<Clock> {
        self.graph_pools.values().find(|private| private.key == pool).map(|private| private.last.clone())
    }

    fn touch(&mut self, id: u32) -> Option<()> {
        let held = self.held.get(&id)?.clone();
        let mut world = self.world.borrow_mut();
        if let Some(capture) = world.capture.as_ref().filter(|capture| capture.lines.contains(&held.line)) {
            // A capture uses what was made in it, or before in the same pool.
            if capture.pool == held.pool {
                world.capture_use(held.owner);
            }
            return None;
        }
        drop(world);
        self.is_usable(held.line).then_some(())?;
        self.order_behind_replays(held.line, held.pool);
        self.world.borrow_mut().touch(held.line, held.owner);
        Some(())
    }

    fn order_behind_replays(&mut self, line: Line, pool: PoolKey) {
        if let Some(last) = self.last_replay(pool) {
            self.world.borrow_mut().streams.wait(line, &last);
        }
    }

    /// A stream other than the owner's, behind the owner's work; and whether the owner can wait for it.
    fn user(&mut self, held: &Held, slot: u8) -> Option<Line> {
        let line = self.usable(slot)?;
        let is_made = self.capture.is_none_or(|(_, pool)| self.graph_pools[&pool].key != held.pool);
        if line == held.line || self.world.borrow().streams.line(line).handle == held.handle || !is_made {
            return None;
        }
        let mut world = self.world.borrow_mut();
        if world.is_captured(held.line) {
            return None;
        }
        let owner = world.streams.line(held.line).clock.clone();
        let handle = world.streams.line(held.line).handle;
        let is_there = handle == PER_THREAD || world.named.get(&handle) == Some(&held.line);
        // Who cannot wait for a stream that is gone must know that its work is done.
        if !is_there && !world.host.covers_all(&owner) {
            return None;
        }
        world.streams.wait(line, &owner);
        drop(world);
        self.order_behind_replays(line, held.pool);
        Some(line)
    }

    fn announce(&mut self, id: u32, slot: u8) -> Option<()> {
        let held = self.held.get(&id)?.clone();
        let thread = self.world.borrow().thread;
        let is_per_thread = slot == PER_THREAD_SLOT;
        if is_per_thread && held.thread.is_some_and(|other| other != thread) {
            return None;
        }
        let slot_line = self.slots[slot as usize].line;
        let captured = self.world.borrow().capture.as_ref().is_some_and(|capture| {
            capture.pool == held.pool
                && capture.lines.contains(&slot_line)
                && capture.lines.contains(&held.line)
                && slot_line != held.line
        });
        if captured {
            self.world.borrow_mut().capture_use(held.owner);
        } else {
            let line = self.user(&held, slot)?;
            self.world.borrow_mut().touch(line, held.owner);
        }
        let handle = self.slots[slot as usize].handle;
        self.totals.announced += 1;
        self.totals.foreign += u64::from(slot == FOREIGN_SLOT);
        self.totals.per_thread += u64::from(is_per_thread);
        self.world.borrow_mut().call = Call { name: "record_stream", ..Call::default() };
        let result = self.driver.record_stream(held.addr, handle);
        self.world.borrow_mut().call = Call::default();
        if let Err(error) = result {
            let text = format!("record_stream for allocation {id}: {error:?}");
            self.world.borrow_mut().broken((Rule::FreeRefused, text));
        }
        let held = self.held.get_mut(&id)?;
        if !held.announced.contains(&handle) {
            held.announced.push(handle);
        }
        if is_per_thread {
            held.thread = Some(thread);
        }
        Some(())
    }

    fn borrow(&mut self, id: u32, slot: u8) -> Option<()> {
        let held = self.held.get(&id)?.clone();
        self.is_usable(held.line).then_some(())?;
        let line = self.user(&held, slot)?;
        self.world.borrow_mut().touch(line, held.owner);
        self.world.borrow_mut().wait_stream(held.line, line);
        self.totals.borrowed += 1;
        Some(())
    }

    fn late_wait(&mut self, id: u32, slot: u8, thread: u8) -> Option<()> {
        let held = self.held.get(&id)?.clone();
        let is_graphs = self.last_replay(held.pool).is_some();
        // The device's own synchronisation does not reach other contexts.
        if slot == FOREIGN_SLOT || is_graphs || !self.is_usable(held.line) {
            return None;
        }
        let line = self.user(&held, slot)?;
        self.world.borrow_mut().touch(line, held.owner);
        let clock = self.world.borrow().streams.line(line).clock.clone();
        self.owed.entry(held.line).or_default().join(&clock);
        self.totals.late_waits += 1;
        self.free(id, thread);
        Some(())
    }

    fn free(&mut self, id: u32, thread: u8) {
        if let Some(given_back) = self.shared.get_mut(&id) {
            *given_back = Some(thread);
            return;
        }
        if let Some(held) = self.asleep.remove(&id) {
            self.totals.freed_asleep += 1;
            self.world.borrow_mut().call = Call { name: "free", ..Call::default() };
            let result = self.driver.free(held.addr);
            self.world.borrow_mut().call = Call::default();
            if let Err(error) = result {
                let text = format!("free of allocation {id}, which sleeps: {error:?}");
                self.world.borrow_mut().broken((Rule::FreeRefused, text));
            }
            return;
        }
        let Some(Held { owner, addr, pool, announced, thread: bound, .. }) = self.held.remove(&id) else {
            return;
        };
        self.totals.frees += 1;
        {
            let mut world = self.world.borrow_mut();
            let captured = world.capture.as_ref().map(|capture| capture.pool);
            self.totals.capture_frees += u64::from(captured.is_some_and(|captured| captured != pool));
            let is_dead = |handle: &u64| *handle != PER_THREAD && !world.named.contains_key(handle);
            self.totals.announced_dead += u64::from(announced.iter().any(is_dead));
            world.thread = bound.unwrap_or(thread as usize % THREADS);
            world.set_live(owner, false);
            world.call = Call { name: "free", announced, ..Call::default() };
        }
        let result = self.driver.free(addr);
        let mut world = self.world.borrow_mut();
        world.call = Call::default();
        if let Err(error) = result {
            world.broken((Rule::FreeRefused, format!("free of allocation {id}: {error:?}")));
        }
    }

    // ---- other processes ----

    /// Another process maps an allocation. That of a graph, or of a pool that is brought back to an earlier state, is
    /// not shared.
    fn share(&mut self, id: u32) {
        let is_saved = |pool| self.private.values().any(|p| p.key == pool && p.saved.is_some());
        let Some(held) = self.held.get(&id) else { return };
        if self.last_replay(held.pool).is_some() || is_saved(held.pool) || self.shared.contains_key(&id) {
            return;
        }
        let maps = self.world.borrow().memory.owner(held.owner).maps.clone();
        self.world.borrow_mut().memory.export(&maps, true);
        self.shared.insert(id, None);
        self.totals.shared += 1;
    }

    fn unshare(&mut self, id: u32) {
        let Some(given_back) = self.shared.remove(&id) else { return };
        if let Some(held) = self.held.get(&id) {
            let maps = self.world.borrow().memory.owner(held.owner).maps.clone();
            self.world.borrow_mut().memory.export(&maps, false);
        }
        if let Some(thread) = given_back {
            self.free(id, thread);
        }
    }

    // ---- elastic ranges ----

    fn resize(&mut self, range: u8, slots: u8, slot: u8) -> Option<()> {
        let line = self.usable(slot).filter(|_| slot != FOREIGN_SLOT && slot != UNHEARD_SLOT)?;
        self.pay(line);
        match self.growing.resize(range as usize % 2, slots as usize, line)? {
            true => self.totals.resized += 1,
            false => self.totals.not_grown += 1,
        }
        Some(())
    }

    // ---- private pools and graphs ----

    fn new_key(&mut self, is_graphs: bool) -> PoolKey {
        self.next_key += 1;
        if is_graphs { PoolKey(self.next_key, 0) } else { PoolKey(0, self.next_key) }
    }

    fn use_pool(&mut self, slot: u8, again: bool) {
        if slot == 0 || self.private.get(&slot).is_some_and(|private| private.is_used) {
            return;
        }
        let key = match self.private.get_mut(&slot).filter(|_| again) {
            Some(private) => {
                private.is_used = true;
                private.key
            }
            None => {
                let key = self.new_key(false);
                let private = Private { key, is_used: true, saved: None, last: Clock::default(), graphs: 0 };
                self.private.insert(slot, private);
                key
            }
        };
        self.call(Call { name: "use_pool", ..Call::default() }, |pool| pool.use_pool(key));
    }

    fn release_pool(&mut self, slot: u8) {
        let Some(private) = self.private.get_mut(&slot).filter(|private| private.is_used) else { return };
        private.is_used = false;
        let key = private.key;
        self.call(Call { name: "release_pool", ..Call::default() }, |pool| pool.release_pool(key));
    }

    fn begin_capture(&mut self, graph: u32, slot: u8, pool: u8) -> Option<()> {
        let line = self.usable(slot).filter(|_| OWN_SLOTS.contains(&slot) && self.capture.is_none())?;
        if self.graphs.contains_key(&graph) {
            return None;
        }
        self.pay(line);
        if self.graph_pools.get(&pool).is_none_or(|private| !private.is_used) {
            let key = self.new_key(true);
            let private = Private { key, is_used: true, saved: None, last: Clock::default(), graphs: 0 };
            self.graph_pools.insert(pool, private);
        }
        let private = self.graph_pools.get_mut(&pool)?;
        private.graphs += 1;
        let key = private.key;
        self.capture = Some((graph, pool));
        self.call(Call { name: "use_pool", ..Call::default() }, |pool| {
            pool.use_pool(key);
            pool.set_quiet(true);
        });
        self.world.borrow_mut().begin_capture(line, key);
        self.totals.captures += 1;
        Some(())
    }

    fn join_capture(&mut self, slot: u8) {
        let is_own = OWN_SLOTS.contains(&slot) || slot == UNHEARD_SLOT;
        let Some(line) = self.usable(slot).filter(|_| is_own && self.capture.is_some()) else { return };
        self.pay(line);
        self.world.borrow_mut().join_capture(line);
        self.totals.joined += 1;
    }

    fn end_capture(&mut self) {
        let Some((graph, pool)) = self.capture.take() else { return };
        if let Some(made) = self.world.borrow_mut().end_capture() {
            self.graphs.insert(graph, (pool, made));
        }
        self.call(Call { name: "set_quiet", ..Call::default() }, |pool| pool.set_quiet(false));
    }

    fn replay(&mut self, graph: u32, slot: u8) -> Option<()> {
        let line = self.usable(slot).filter(|_| slot != FOREIGN_SLOT)?;
        let (pool, graph) = self.graphs.get(&graph)?;
        let private = self.graph_pools.get_mut(pool)?;
        let end = self.world.borrow_mut().replay(graph, line, &private.last);
        private.last.join(&end);
        self.totals.replays += 1;
        self.totals.replays_after_activity += u64::from(self.totals.requests > self.requests_at_replay);
        self.requests_at_replay = self.totals.requests;
        Some(())
    }

    fn drop_graph(&mut self, graph: u32) {
        let Some((pool, graph)) = self.graphs.remove(&graph) else { return };
        self.world.borrow_mut().drop_graph(&graph);
        let Some(private) = self.graph_pools.get_mut(&pool) else { return };
        private.graphs -= 1;
        if private.graphs == 0 {
            private.is_used = false;
            let key = private.key;
            self.call(Call { name: "release_pool", ..Call::default() }, |pool| pool.release_pool(key));
        }
    }

    // ---- giving back ----

    fn trim(&mut self) {
        self.totals.trims += 1;
        let given = self.call(Call { name: "trim", may_wait: true, ..Call::default() }, Pool::trim);
        if given > 0 && self.capture.is_some() {
            let text = format!("trim gave {given} bytes back during a capture");
            self.world.borrow_mut().broken((Rule::TrimInCapture, text));
        }
    }

    fn trim_pool(&mut self, private: Option<(PoolKey, bool)>) {
        let Some((key, is_used)) = private else { return };
        self.totals.pool_trims += 1;
        let call = Call { name: "trim_pool", may_wait: true, ..Call::default() };
        let given = self.call(call, |pool| pool.trim_pool(key));
        if given > 0 && is_used {
            let text = format!("trim_pool gave back {given} bytes of a pool in use");
            self.world.borrow_mut().broken((Rule::TrimPoolInUse, text));
        } else if given > 0 && self.capture.is_some() {
            let text = format!("trim_pool gave {given} bytes back during a capture");
            self.world.borrow_mut().broken((Rule::TrimInCapture, text));
        }
    }

    fn save(&mut self, slot: u8) {
        let used = self.private.get(&slot).filter(|private| private.is_used).map(|private| private.key);
        let Some(key) = used.filter(|key| !self.driver.with(|pool| pool.sleeps(*key))) else {
            return;
        };
        let saved = self.call(Call { name: "save", ..Call::default() }, |pool| pool.save(key));
        let held = self.live_in(key);
        if let Some(private) = self.private.get_mut(&slot) {
            private.saved = Some((saved, held));
        }
    }

    fn live_in(&self, key: PoolKey) -> Named {
        let mut live: Named = self
            .held
            .iter()
            .filter(|(_, held)| held.pool == key)
            .map(|(id, held)| (*id, held.clone()))
            .collect();
        live.sort_unstable_by_key(|(id, _)| *id);
        live
    }

    /// Brings a private pool back to what was saved. The program has synchronised: what is freed is not in use.
    fn restore(&mut self, slot: u8) {
        let is_shared =
            |key| self.shared.keys().any(|id| self.held.get(id).is_some_and(|held| held.pool == key));
        let private = self.private.get(&slot);
        let private = private.filter(|p| p.is_used && self.capture.is_none() && !is_shared(p.key));
        let Some((key, (saved, before))) = private.and_then(|p| Some((p.key, p.saved.clone()?))) else {
            return;
        };
        if self.driver.with(|pool| pool.sleeps(key)) {
            return;
        }
        self.world.borrow_mut().synchronise(true);
        let now = self.live_in(key);
        for (_, held) in &now {
            self.world.borrow_mut().set_live(held.owner, false);
        }
        let call = Call { name: "restore", may_wait: true, ..Call::default() };
        match self.call(call, |pool| pool.restore(key, &saved)) {
            Ok(mut freed) => {
                self.totals.restores += 1;
                let mut expected: Vec<u64> = now.iter().map(|(_, held)| held.addr).collect();
                freed.sort_unstable();
                expected.sort_unstable();
                if freed != expected {
                    let text = format!("restore freed {freed:x?}, and {expected:x?} were live");
                    self.world.borrow_mut().broken((Rule::Restore, text));
                }
                for (id, _) in &now {
                    self.held.remove(id);
                }
                for (id, held) in before {
                    let place = (held.addr, held.size);
                    let owner = self.world.borrow_mut().hand_out(id, place, key, Handing::Restored);
                    let Some(owner) = owner else { continue };
                    let again = Held { owner, announced: Vec::new(), thread: None, ..held };
                    self.held.insert(id, again);
                }
            }
            Err(error) => {
                for (_, held) in &now {
                    self.world.borrow_mut().set_live(held.owner, true);
                }
                let left = self.driver.with(|pool| pool.save(key));
                let is_left = |held: &Held| left.iter().any(|saved| saved.addr == held.addr);
                if left.len() != now.len() || !now.iter().all(|(_, held)| is_left(held)) {
                    let text = format!("restore changed what is live, and failed: {error:?}");
                    self.world.borrow_mut().broken((Rule::Restore, text));
                }
            }
        }
    }

    // ---- sleep ----

    /// A private pool falls asleep. What it holds is nobody's to use until it wakes: work that is queued may still use
    /// it.
    fn sleep(&mut self, slot: u8) -> Option<()> {
        let key = self.private.get(&slot)?.key;
        let live = self.live_in(key);
        for (_, held) in &live {
            self.world.borrow_mut().set_live(held.owner, false);
        }
        let call = Call { name: "begin_sleep", may_wait: true, ..Call::default() };
        let begun = self.call(call, |pool| pool.begin_sleep(&[key]));
        self.totals.refused_shared += u64::from(begun == Err(SleepError::Shared));
        if begun.is_err() {
            for (_, held) in &live {
                self.world.borrow_mut().set_live(held.owner, true);
            }
            return None;
        }
        if self.capture.is_some() {
            let text = "a pool falls asleep during a capture".to_owned();
            self.world.borrow_mut().broken((Rule::TrimInCapture, text));
        }
        self.call(Call { name: "finish_sleep", ..Call::default() }, |pool| pool.finish_sleep(&[key]));
        self.totals.slept += 1;
        for (id, held) in live {
            self.held.remove(&id);
            self.asleep.insert(id, held);
        }
        Some(())
    }

    /// A pool wakes up: what slept is there again, at its addresses.
    fn wake(&mut self, slot: u8) -> Option<()> {
        let key = self.private.get(&slot)?.key;
        self.wake_pool(key)
    }

    fn wake_pool(&mut self, key: PoolKey) -> Option<()> {
        let call = Call { name: "begin_wake", may_wait: true, ..Call::default() };
        self.call(call, |pool| pool.begin_wake(&[key])).ok()?;
        let woken =
            self.call(Call { name: "finish_wake", ..Call::default() }, |pool| pool.finish_wake(&[key]));
        self.totals.woken += 1;
        let ids: Vec<u32> =
            self.asleep.iter().filter(|(_, held)| held.pool == key).map(|(id, _)| *id).collect();
        if ids.len() != woken.len() {
            let text = format!("{} allocations woke up, and {} slept", woken.len(), ids.len());
            self.world.borrow_mut().broken((Rule::Restore, text));
        }
        for id in ids {
            let held = self.asleep.remove(&id)?;
            let place = (held.addr, held.size);
            let owner = self.world.borrow_mut().hand_out(id, place, key, Handing::Restored)?;
            self.held.insert(id, Held { owner, ..held });
        }
        Some(())
    }

    // ---- the end ----

    /// Everything ends, and everything is given back.
    fn end(&mut self) {
        self.world.borrow_mut().fail_in = None;
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
        totals.fences = counts.fences;
        totals.records = counts.records;
        totals.host_waits = counts.waits;
        totals.unmaps = counts.unmaps;
        totals.most_cards = self.world.borrow().memory.most_beyond / self.capacity;
        totals.lent = stats.lent;
        totals.windows = stats.windows_made;
        totals.window_hits = stats.window_hits;
        totals.harvested = stats.harvested;
        totals.plans = plans.plans;
        totals.planned = plans.served;
        [totals.ladder_wait, totals.ladder_harvest, totals.ladder_trim, totals.ladder_shrink] = stats.ladder;
    }
}
