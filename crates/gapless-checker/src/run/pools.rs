//! Private pools of a program, and the graphs that are captured in them.

use super::super::clock::Clock;
use super::super::ops::{FOREIGN_SLOT, OWN_SLOTS, UNHEARD_SLOT};
use super::super::world::Call;
use super::{Private, Runner};
use gapless_pool::pool::PoolKey;

impl Runner {
    pub(super) fn new_key(&mut self, is_graphs: bool) -> PoolKey {
        self.next_key += 1;
        if is_graphs { PoolKey(self.next_key, 0) } else { PoolKey(0, self.next_key) }
    }

    pub(super) fn use_pool(&mut self, slot: u8, again: bool) {
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
        // Every third pool gets no windows, so that it may sleep. Others may sleep until they have a window.
        let may_sleep = key.1.is_multiple_of(3);
        self.call(Call { name: "use_pool", ..Call::default() }, |pool| {
            pool.use_pool(key);
            if may_sleep {
                pool.keep_at_home(key);
            }
        });
    }

    pub(super) fn release_pool(&mut self, slot: u8) {
        let Some(private) = self.private.get_mut(&slot).filter(|private| private.is_used) else { return };
        private.is_used = false;
        let key = private.key;
        self.call(Call { name: "release_pool", ..Call::default() }, |pool| pool.release_pool(key));
    }

    pub(super) fn begin_capture(&mut self, graph: u32, slot: u8, pool: u8) -> Option<()> {
        let line = self.usable(slot).filter(|_| OWN_SLOTS.contains(&slot) && self.capture.is_none())?;
        if self.graphs.contains_key(&graph) {
            return None;
        }
        self.pay(line);
        let is_released = self.graph_pools.get(&pool).is_some_and(|private| !private.is_used);
        if let Some(private) =
            self.graph_pools.get_mut(&pool).filter(|_| is_released && graph.is_multiple_of(3))
        {
            private.is_used = true;
            self.totals.pools_again += 1;
        } else if is_released || !self.graph_pools.contains_key(&pool) {
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

    pub(super) fn join_capture(&mut self, slot: u8) {
        let is_own = OWN_SLOTS.contains(&slot) || slot == UNHEARD_SLOT;
        let Some(line) = self.usable(slot).filter(|_| is_own && self.capture.is_some()) else { return };
        self.pay(line);
        self.world.borrow_mut().join_capture(line);
        self.totals.joined += 1;
    }

    pub(super) fn end_capture(&mut self) {
        let Some((graph, pool)) = self.capture.take() else { return };
        if let Some(made) = self.world.borrow_mut().end_capture() {
            self.graphs.insert(graph, (pool, made));
        }
        self.call(Call { name: "set_quiet", ..Call::default() }, |pool| pool.set_quiet(false));
    }

    pub(super) fn replay(&mut self, graph: u32, slot: u8) -> Option<()> {
        let line = self.usable(slot).filter(|_| slot != FOREIGN_SLOT)?;
        self.totals.replayed_windows += u64::from(self.windowed.contains(&graph));
        let (pool, graph) = self.graphs.get(&graph)?;
        let private = self.graph_pools.get_mut(pool)?;
        let end = self.world.borrow_mut().replay(graph, line, &private.last);
        private.last.join(&end);
        self.totals.replays += 1;
        self.totals.replays_after_activity += u64::from(self.totals.requests > self.requests_at_replay);
        self.requests_at_replay = self.totals.requests;
        Some(())
    }

    pub(super) fn drop_graph(&mut self, graph: u32) {
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
}
