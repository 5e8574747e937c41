//! Memory that leaves for a while or for good: trims, states that are saved and restored, and sleep.

use super::super::native::Native;
use super::super::violation::Rule;
use super::super::world::{Call, Handing};
use super::{Held, Kind, Named, Private, Runner};
use gapless_pool::pool::{Pool, PoolKey, SleepError};

impl Runner {
    pub(super) fn trim(&mut self) {
        self.totals.trims += 1;
        if let Some(native) = self.native.as_mut().filter(|_| self.capture.is_none()) {
            native.empty();
        }
        let given = if self.is_asking {
            self.trim_asking("trim", None)
        } else {
            self.call(Call { name: "trim", may_wait: true, ..Call::default() }, Pool::trim)
        };
        if given > 0 && self.capture.is_some() {
            let text = format!("trim gave {given} bytes back during a capture");
            self.world.borrow_mut().broken((Rule::TrimInCapture, text));
        }
        let is_ours = |pool: &mut Pool<_>| -> u64 {
            pool.lanes().iter().filter(|lane| !lane.pool.is_private()).map(|lane| lane.reserved).sum()
        };
        if self.has_native && self.driver.with(is_ours) == 0 {
            self.native = Some(Native::beside(self.world.borrow().memory.used));
        }
    }

    pub(super) fn trim_behind(&mut self, of_all: bool) {
        self.totals.trims += 1;
        let trim = if of_all { Pool::trim_behind_work } else { Pool::trim_released };
        let given = self.call(Call { name: "trim_behind", ..Call::default() }, trim);
        if given > 0 && self.capture.is_some() {
            let text = format!("{given} bytes were given back behind work during a capture");
            self.world.borrow_mut().broken((Rule::TrimInCapture, text));
        }
    }

    pub(super) fn trim_pool(&mut self, private: Option<(PoolKey, bool)>) {
        let Some((key, is_used)) = private else { return };
        self.totals.pool_trims += 1;
        let call = Call { name: "trim_pool", may_wait: true, ..Call::default() };
        let given = if self.is_asking {
            self.trim_asking("trim_pool", Some(key))
        } else {
            self.call(call, |pool| pool.trim_pool(key))
        };
        if given > 0 && is_used {
            let text = format!("trim_pool gave back {given} bytes of a pool in use");
            self.world.borrow_mut().broken((Rule::TrimPoolInUse, text));
        } else if given > 0 && self.capture.is_some() {
            let text = format!("trim_pool gave {given} bytes back during a capture");
            self.world.borrow_mut().broken((Rule::TrimInCapture, text));
        }
    }

    fn private_of(&mut self, kind: Kind, slot: u8) -> Option<&mut Private> {
        match kind {
            Kind::Plain => self.private.get_mut(&slot),
            Kind::Graphs => self.graph_pools.get_mut(&slot),
        }
    }

    pub(super) fn save(&mut self, kind: Kind, slot: u8) {
        let used = self.private_of(kind, slot).filter(|private| private.is_used).map(|private| private.key);
        let Some(key) = used.filter(|key| !self.driver.with(|pool| pool.sleeps(*key))) else {
            return;
        };
        let saved = self.call(Call { name: "save", ..Call::default() }, |pool| pool.save(key));
        let held = self.live_in(key);
        if saved.len() != held.len() {
            let text = format!("{} allocations were kept of {} that are live", saved.len(), held.len());
            self.world.borrow_mut().broken((Rule::Restore, text));
        }
        if let Some(private) = self.private_of(kind, slot) {
            private.saved = Some((saved, held));
        }
    }

    pub(super) fn live_in(&self, key: PoolKey) -> Named {
        let mut live: Named = self
            .held
            .iter()
            .filter(|(_, held)| held.pool == key)
            .map(|(id, held)| (*id, held.clone()))
            .collect();
        live.sort_unstable_by_key(|(id, _)| *id);
        live
    }

    /// Restores a saved state of a private pool. The program has synchronised, so freed memory is not in use.
    pub(super) fn restore(&mut self, kind: Kind, slot: u8) {
        let used = self.private_of(kind, slot).filter(|private| private.is_used);
        let Some((key, (saved, before))) = used.and_then(|p| Some((p.key, p.saved.clone()?))) else { return };
        let is_shared = self.shared.keys().any(|id| self.held.get(id).is_some_and(|held| held.pool == key));
        let is_captured = self.capture.is_some() || !self.world.borrow().raw.is_empty();
        if is_shared || is_captured || self.driver.with(|pool| pool.sleeps(key)) {
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
                self.native = None;
                self.totals.restores += 1;
                self.totals.restored_graphs += u64::from(kind == Kind::Graphs);
                self.totals.restored_windows +=
                    saved.iter().filter(|saved| saved.is_in_window()).count() as u64;
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

    /// Puts a private pool to sleep. The program may not use its memory until it wakes; queued work may.
    pub(super) fn sleep(&mut self, slot: u8) -> Option<()> {
        let key = self.private.get(&slot)?.key;
        let live = self.live_in(key);
        for (_, held) in &live {
            self.world.borrow_mut().set_live(held.owner, false);
        }
        let call = Call { name: "begin_sleep", may_wait: true, ..Call::default() };
        let begun = self.call(call, |pool| pool.begin_sleep(&[key]));
        self.totals.refused_shared += u64::from(begun == Err(SleepError::Shared));
        self.totals.refused_windows += u64::from(begun == Err(SleepError::Windows));
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
        self.native = None;
        self.totals.slept += 1;
        for (id, held) in live {
            self.held.remove(&id);
            self.asleep.insert(id, held);
        }
        Some(())
    }

    /// Wakes a pool: its allocations are there again, at their addresses.
    pub(super) fn wake(&mut self, slot: u8) -> Option<()> {
        let key = self.private.get(&slot)?.key;
        self.wake_pool(key)
    }

    pub(super) fn wake_pool(&mut self, key: PoolKey) -> Option<()> {
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
}
