//! Memory that a program requests, uses on its streams, shares and frees.

use super::super::clock::{Clock, Line};
use super::super::native::Native;
use super::super::ops::{FOREIGN_SLOT, PER_THREAD_SLOT, UNHEARD_SLOT};
use super::super::violation::Rule;
use super::super::world::{Call, Handing, PER_THREAD, THREADS};
use super::{ASKING_THREAD, DEFAULT_POOL, Held, Runner, Slot};
use gapless_pool::pool::{PoolKey, UNIT};

impl Runner {
    pub(super) fn alloc(&mut self, id: u32, slot: u8, pool: u8, size: u64, budget: Option<u8>) -> Option<()> {
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
        // A capture by another thread ends first, so that the stream can wait for others.
        if self.owed.contains_key(&line) {
            self.world.borrow_mut().end_raw(line);
        }
        self.pay(line);
        let budget = budget.map(|budget| self.budgets[budget as usize]);
        let is_plentiful = {
            let mut world = self.world.borrow_mut();
            if handle == PER_THREAD {
                world.thread = ASKING_THREAD;
            }
            let most = self.limit.map_or(self.capacity, |limit| limit.min(self.capacity));
            // In a capture waits are forbidden and fences are taken in; a budget has rules of its own.
            let is_alone = world.capture.is_none() && world.raw.is_empty() && world.meddles.is_empty();
            let is_whole = world.counts.failures + world.counts.unreserved == 0;
            let rounded = size.div_ceil(UNIT).max(1) * UNIT;
            let alloc = |native: &mut Native| native.alloc(id, rounded, handle, key, most);
            let is_native = self.native.as_mut().is_some_and(alloc)
                && is_alone
                && is_whole
                && budget.is_none()
                && key == DEFAULT_POOL;
            self.totals.native += u64::from(is_native);
            // A stream that came when addresses were few has a short heap, and so has room only in what it holds.
            let has_addresses = world.counts.unreserved == 0;
            let has_room = world.room(self.limit) >= size + self.capacity / 4;
            let is_plentiful = is_native || (has_room && has_addresses);
            // At a soft limit memory is given back without a wait.
            let had_failure = self.waiters.iter().any(|waiter| waiter.had_failure);
            let may_wait = !is_plentiful || self.runs_ahead;
            let is_asking = self.is_asking;
            world.call = Call { name: "alloc", may_wait, is_asking, had_failure, ..Call::default() };
            is_plentiful
        };
        let gathers = self.driver.gathers();
        let result = if self.is_asking {
            self.alloc_asking(size, (slot, line, handle), key, budget)
        } else {
            self.driver.alloc(size, handle, key, budget)
        };
        self.totals.fronts += u64::from(gathers.is_some() && gathers == self.driver.gathers());
        let call = std::mem::take(&mut self.world.borrow_mut().call);
        // The block is used after the capture.
        self.world.borrow_mut().end_raw(line);
        let addr = match result {
            Ok(addr) => addr,
            Err(error) => {
                if let Some(native) = &mut self.native {
                    native.free(id, false);
                }
                self.totals.out_of_memory += u64::from(budget.is_none());
                self.totals.refused += u64::from(budget.is_some());
                if is_plentiful && budget.is_none() && !call.had_failure {
                    let text = format!(
                        "{size} bytes were refused with that and a quarter of the card left, or cached: {error:?}"
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
            if self.driver.with(|pool| pool.is_in_window(addr)) {
                self.totals.captured_windows += 1;
                self.windowed.extend(self.capture.map(|(graph, _)| graph));
            }
        }
        let (announced, thread) = (Vec::new(), None);
        let held = Held { owner, addr, size, line, handle, pool: key, announced, thread };
        self.held.insert(id, held);
        Some(())
    }

    /// A request of a stream in a capture that only the device knows.
    pub(super) fn alloc_in_raw_capture(&mut self, id: u32, slot: u8, size: u64) {
        let Some(line) = self.usable(slot).filter(|_| self.capture.is_none()) else { return };
        self.pay(line);
        self.world.borrow_mut().meddle(line);
        self.totals.raw_captures += u64::from(self.alloc(id, slot, 0, size, None).is_some());
        self.world.borrow_mut().end_raw(line);
    }

    /// The end of the last replay of a pool's graphs; `None` for other pools.
    pub(super) fn last_replay(&self, pool: PoolKey) -> Option<Clock> {
        self.graph_pools.values().find(|private| private.key == pool).map(|private| private.last.clone())
    }

    pub(super) fn touch(&mut self, id: u32) -> Option<()> {
        let held = self.held.get(&id)?.clone();
        let mut world = self.world.borrow_mut();
        if let Some(capture) = world.capture.as_ref().filter(|capture| capture.lines.contains(&held.line)) {
            // A capture uses allocations that were made in it, or before in the same pool.
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

    pub(super) fn order_behind_replays(&mut self, line: Line, pool: PoolKey) {
        if let Some(last) = self.last_replay(pool) {
            self.world.borrow_mut().streams.wait(line, &last);
        }
    }

    /// A stream other than the owner's, ordered behind the owner's work.
    pub(super) fn user(&mut self, held: &Held, slot: u8) -> Option<Line> {
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
        // If the owner's stream is gone, `line` cannot wait for it, so the host must know that its work is done.
        if !is_there && !world.host.covers_all(&owner) {
            return None;
        }
        world.streams.wait(line, &owner);
        drop(world);
        self.order_behind_replays(line, held.pool);
        Some(line)
    }

    pub(super) fn announce(&mut self, id: u32, slot: u8) -> Option<()> {
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

    pub(super) fn borrow(&mut self, id: u32, slot: u8) -> Option<()> {
        let held = self.held.get(&id)?.clone();
        self.is_usable(held.line).then_some(())?;
        let line = self.user(&held, slot)?;
        self.world.borrow_mut().touch(line, held.owner);
        self.world.borrow_mut().wait_stream(held.line, line);
        self.totals.borrowed += 1;
        Some(())
    }

    pub(super) fn late_wait(&mut self, id: u32, slot: u8, thread: u8) -> Option<()> {
        let held = self.held.get(&id)?.clone();
        let is_graphs = self.last_replay(held.pool).is_some();
        // The device's own synchronisation does not cover other contexts.
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

    pub(super) fn free(&mut self, id: u32, thread: u8) {
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
        if let Some(native) = &mut self.native {
            native.free(id, !announced.is_empty());
        }
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

    /// Another process maps an allocation. Allocations of graphs, and of pools that have a saved state, are not shared.
    pub(super) fn share(&mut self, id: u32) {
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

    pub(super) fn unshare(&mut self, id: u32) {
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

    pub(super) fn resize(&mut self, range: u8, slots: u8, slot: u8) -> Option<()> {
        let line = self.usable(slot).filter(|_| slot != FOREIGN_SLOT && slot != UNHEARD_SLOT)?;
        self.pay(line);
        self.native = None;
        match self.growing.resize(range as usize % 2, slots as usize, line)? {
            true => self.totals.resized += 1,
            false => self.totals.not_grown += 1,
        }
        Some(())
    }
}
