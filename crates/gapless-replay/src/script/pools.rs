//! Infers the private pool of a segment if the recording does not say: before torch 2.12 events name no pool, and only
//! segments that are there at the end tell theirs. Pools of CUDA graphs, or made by the program, that ended before the
//! snapshot left no name.
//!
//! They did leave traces: the addresses of blocks. With the right pools the model repeats the recording; with wrong
//! ones it soon uses memory that the real allocator could not use, or gives back memory that it kept. So the search
//! replays up to the first difference, moves one of the units (`ranges.rs`) that are in question there to another pool,
//! and goes on from the choice that gets furthest. If that is stuck, it returns to the next best. It ends when nothing
//! differs, when nothing helped for a while, or when it has replayed [`BUDGET`] events; the best is used then.
//!
//! Names of inferred pools mean nothing beyond telling them apart.

use super::build::Pools;
use super::ranges::{Unit, Units};
use super::{DeviceCallKind, Script};
use crate::run::{Mismatch, first_mismatch, verify};
use crate::torch::{TorchSettings, TorchVersion};
use gapless_trace::{DeviceTrace, History, PoolId, Tick, Trace};
use rustc_hash::FxHashSet;

/// Events that a search may replay: a few seconds.
const BUDGET: u64 = 60_000_000;
/// Replays that may go by without getting further.
const PATIENCE: u32 = 400;
/// States that wait to be tried; a search does not get to more.
const WAITING: usize = 256;

impl Script {
    /// As [`Script::of`], with the private pools that a replay with the recorded settings shows and the recording does
    /// not name.
    #[must_use]
    pub fn refined(
        trace: &Trace,
        device: &DeviceTrace,
        history: &History,
        settings: &TorchSettings,
        version: TorchVersion,
    ) -> Script {
        let script = Script::of(trace, device, history);
        if !trace.source.torch_rules || device.events.has_pools() || !history.has_segments {
            return script;
        }
        let known = verify(&script, settings, version, &mut ());
        if known.is_exact() {
            return script;
        }
        let mut search = Search::new(trace, device, history, settings, version);
        let found = search.run();
        let refined = verify(&found, settings, version, &mut ());
        if refined.differences() < known.differences() { found } else { script }
    }
}

/// A pool for each unit: an index into the device's pools, or past them for inferred ones.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Labels {
    of_unit: Vec<u16>,
    /// How many pools there are, inferred ones included.
    pools: u16,
}

/// The progress of a replay: the instant, and true if everything before the request of that instant was in order.
type Reach = (Tick, bool);

/// Labels that were tried, and their first difference from the recording.
struct State {
    labels: Labels,
    reach: Reach,
    mismatch: Mismatch,
}

struct Search<'a> {
    trace: &'a Trace,
    device: &'a DeviceTrace,
    history: &'a History,
    settings: &'a TorchSettings,
    version: TorchVersion,
    units: Units,
    /// Replayed and built so far.
    spent: u64,
}

impl<'a> Search<'a> {
    fn new(
        trace: &'a Trace,
        device: &'a DeviceTrace,
        history: &'a History,
        settings: &'a TorchSettings,
        version: TorchVersion,
    ) -> Search<'a> {
        let units = Units::of(history);
        Search { trace, device, history, settings, version, units, spent: 0 }
    }

    /// The script with the best pools that were found.
    fn run(&mut self) -> Script {
        let start = self.beginning();
        let mut best = (start.clone(), (Tick(0), false));
        let mut tried: FxHashSet<Labels> = FxHashSet::default();
        // By reach, the furthest last; of equals the one that was found first is last.
        let mut waiting: Vec<State> = Vec::new();
        let mut found = vec![start];
        let mut idle = 0;
        loop {
            for labels in found.drain(..) {
                if !tried.insert(labels.clone()) {
                    continue;
                }
                let Some(mismatch) = self.replay(&labels) else { return self.script(&labels) };
                let reach = (mismatch.tick, mismatch.placed.is_some());
                idle += 1;
                if reach > best.1 {
                    best = (labels.clone(), reach);
                    idle = 0;
                }
                let at = waiting.partition_point(|s| s.reach < reach);
                waiting.insert(at, State { labels, reach, mismatch });
                if self.spent > BUDGET || idle > PATIENCE {
                    return self.script(&best.0);
                }
            }
            let Some(state) = waiting.pop() else { return self.script(&best.0) };
            waiting.drain(..waiting.len().saturating_sub(WAITING));
            found = self.choices(&state);
        }
    }

    /// The pools that the history knows. Units that are gone before its end start in the default pool.
    fn beginning(&self) -> Labels {
        let of_unit = self.units.spans.iter().map(|s| if self.is_known(s.end) { s.pool } else { 0 });
        Labels { of_unit: of_unit.collect(), pools: self.device.pools.len().max(1) as u16 }
    }

    fn is_known(&self, end: Tick) -> bool {
        end == self.history.forever() && !self.device.segments.is_empty()
    }

    fn script(&self, labels: &Labels) -> Script {
        let mut ids = self.device.pools.clone();
        if ids.is_empty() {
            ids.push(PoolId::DEFAULT);
        }
        let mut next = ids.iter().map(|id| id.1).max().unwrap_or_default();
        while ids.len() < labels.pools as usize {
            next = next.wrapping_add(1);
            let id = PoolId(0, next);
            if id.is_private() && !ids.contains(&id) {
                ids.push(id);
            }
        }
        let label = |unit: Unit| labels.of_unit[unit as usize];
        let pools = Pools {
            ids,
            allocations: self.units.of_allocation.iter().map(|unit| unit.map_or(0, label)).collect(),
            segments: self.units.of_segment.iter().map(|&unit| label(unit)).collect(),
        };
        Script::with_pools(self.trace, self.device, self.history, Some(&pools))
    }

    fn replay(&mut self, labels: &Labels) -> Option<Mismatch> {
        let script = self.script(labels);
        let mismatch = first_mismatch(&script, self.settings, self.version);
        let replayed = mismatch.as_ref().map_or(script.ops.len() as u32, |m| m.op);
        self.spent += u64::from(script.events) / 2 + u64::from(replayed);
        mismatch
    }

    /// Labels to try next, the likelier first.
    fn choices(&self, state: &State) -> Vec<Labels> {
        let State { labels, mismatch, .. } = state;
        let mut targets = self.recent_pools(labels, mismatch.tick);
        // A pool of its own comes right after the pool that was used last.
        targets.insert(1.min(targets.len()), labels.pools);
        targets.push(0);
        let mut choices = Vec::new();
        for set in self.in_question(labels, mismatch) {
            for &target in &targets {
                let mut changed = labels.clone();
                for &unit in &set {
                    changed.of_unit[unit as usize] = target;
                }
                changed.pools = changed.pools.max(target.saturating_add(1));
                if changed.of_unit != labels.of_unit && changed.pools < u16::MAX {
                    choices.push(changed);
                }
            }
        }
        choices
    }

    /// Private pools, by their last use before `tick`: the latest first.
    fn recent_pools(&self, labels: &Labels, tick: Tick) -> Vec<u16> {
        let mut last_use = vec![Tick(0); labels.pools as usize];
        for (span, &pool) in self.units.spans.iter().zip(&labels.of_unit) {
            if span.start <= tick {
                last_use[pool as usize] = last_use[pool as usize].max(span.start);
            }
        }
        let mut pools: Vec<u16> = (1..labels.pools).collect();
        pools.sort_by_key(|&pool| std::cmp::Reverse(last_use[pool as usize]));
        pools
    }

    /// Sets of units that may be in another pool than they are in `labels`, the likelier first.
    fn in_question(&self, labels: &Labels, mismatch: &Mismatch) -> Vec<Vec<Unit>> {
        let (from, to) = (mismatch.since, mismatch.tick);
        let unit = |addr: u64| self.units.at(addr, from, to);
        let units = |addrs: &[u64]| {
            let mut units: Vec<Unit> = addrs.iter().filter_map(|&addr| unit(addr)).collect();
            units.sort_unstable();
            units.dedup();
            units
        };
        let mut sets: Vec<Vec<Unit>> = Vec::new();
        if let Some((slot, replayed)) = mismatch.placed {
            sets.push(self.units.of_allocation[slot as usize].into_iter().collect());
            sets.push(unit(replayed.0).into_iter().collect());
        }
        let gave_back: Vec<u64> = mismatch
            .calls
            .iter()
            .filter(|call| matches!(call.kind, DeviceCallKind::Free | DeviceCallKind::Unmap))
            .map(|call| call.addr.0)
            .collect();
        let kept = units(&mismatch.extra);
        // Memory that went back together belonged to one pool.
        let gave_back = units(&gave_back);
        let mut involved: Vec<u16> = gave_back.iter().map(|&u| labels.of_unit[u as usize]).collect();
        involved.sort_unstable();
        involved.dedup();
        let labelled = |units: &[Unit], pool: u16| -> Vec<Unit> {
            units.iter().copied().filter(|&u| labels.of_unit[u as usize] == pool).collect()
        };
        sets.extend(involved.iter().map(|&pool| labelled(&gave_back, pool)));
        sets.push(kept.clone());
        sets.push(units(&mismatch.missing));
        let mut pools: Vec<u16> = kept.iter().map(|&u| labels.of_unit[u as usize]).collect();
        pools.sort_unstable();
        pools.dedup();
        for &pool in &pools {
            if pools.len() > 1 {
                sets.push(labelled(&kept, pool));
            }
            // Their pool counts as ended because of units that went back before, which may have been of another.
            if pool != 0 {
                let spans = self.units.spans.iter().zip(&labels.of_unit).enumerate();
                let gone = spans.filter(|(_, (s, l))| **l == pool && s.end <= from);
                sets.push(gone.map(|(unit, _)| unit as Unit).collect());
            }
        }
        if kept.len() > 1 {
            sets.extend(kept.iter().map(|&unit| vec![unit]));
        }
        for set in &mut sets {
            set.retain(|&unit| !self.is_known(self.units.spans[unit as usize].end));
        }
        sets.retain(|set| !set.is_empty());
        let mut seen = FxHashSet::default();
        sets.retain(|set| seen.insert(set.clone()));
        sets
    }
}
