//! The judge: what a choice costs. Replays the step with recomputations put in where backward asks for a value that is
//! not there, and counts the memory at every operator and at every recomputation.
//!
//! The recorded memory is with everything kept. So the memory of a choice is the recorded one, less the values that are
//! away, and more the sources that stay longer than they did.

use crate::step::Step;

/// The decision for a value in its gap. For a value that autograd does not save, `Keep` means: if a recomputation needs
/// it, the executor holds it from its natural end on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Keep,
    Again,
}

/// A mode for each value.
pub type Choice = Vec<Mode>;

#[derive(Clone, Debug)]
pub struct Outcome {
    pub peak: u64,
    /// The operator at which the peak is, or before which the recomputation is that has it.
    pub peak_at: u32,
    /// The step's time with recomputations, microseconds.
    pub time_us: f64,
    /// Operators that run again: (which, before which operator).
    pub replays: Vec<(u32, u32)>,
    /// Values that autograd does not save and that are held as sources.
    pub held: Vec<u32>,
    /// Bytes above the budget: the most, and in the mean over all moments.
    pub over: u64,
    pub over_mean: f64,
}

const NEVER: u32 = u32::MAX;

/// Simulates a choice. None: a value would have to be recomputed that cannot be.
#[must_use]
pub fn simulate(step: &Step, choice: &[Mode], budget: u64) -> Option<Outcome> {
    Simulator::new(step).run(choice, budget)
}

/// The memory of a simulation, which the next one reuses.
pub(crate) struct Simulator<'a> {
    step: &'a Step,
    /// By value: it is on the device, or held; the recomputation that made it again; the last one that reads it.
    in_place: Vec<bool>,
    second: Vec<u32>,
    last_use: Vec<u32>,
    /// By call: its last recomputation.
    call_end: Vec<u32>,
    replays: Vec<(u32, u32)>,
    touched: Vec<u32>,
    held: Vec<u32>,
    diff: Vec<i64>,
    scopes: Vec<bool>,
    /// By operator: recomputations before it.
    before: Vec<u32>,
}

impl<'a> Simulator<'a> {
    pub(crate) fn new(step: &'a Step) -> Simulator<'a> {
        let calls = step.ops.iter().filter_map(|op| op.call).max().map_or(0, |call| call as usize + 1);
        Simulator {
            step,
            in_place: Vec::new(),
            second: Vec::new(),
            last_use: Vec::new(),
            call_end: vec![NEVER; calls],
            replays: Vec::new(),
            touched: Vec::new(),
            held: Vec::new(),
            diff: Vec::new(),
            scopes: Vec::new(),
            before: Vec::new(),
        }
    }

    pub(crate) fn run(&mut self, choice: &[Mode], budget: u64) -> Option<Outcome> {
        let step = self.step;
        let values = step.values.len();
        for list in [&mut self.second, &mut self.last_use] {
            list.clear();
            list.resize(values, NEVER);
        }
        self.in_place.clear();
        self.in_place.resize(values, false);
        self.call_end.fill(NEVER);
        self.replays.clear();
        self.touched.clear();
        self.held.clear();
        for &(event, value) in &step.asks {
            self.demand(choice, value, event, 0)?;
        }
        self.uses();
        Some(self.count(choice, budget))
    }

    fn demand(&mut self, choice: &[Mode], v: u32, event: u32, depth: u32) -> Option<()> {
        let at = v as usize;
        if self.in_place[at] {
            return Some(());
        }
        let step = self.step;
        let value = &step.values[at];
        self.in_place[at] = true;
        if choice[at] == Mode::Keep {
            if depth > 0 && !value.drop {
                // A source that the hooks do not hold: the executor must be able to.
                if !value.hold {
                    return None;
                }
                self.held.push(v);
            }
            return Some(());
        }
        let op = value.birth;
        let made = &step.ops[op as usize];
        if !made.again || depth > 4096 {
            return None;
        }
        for &w in &made.ins {
            if w != v {
                self.demand(choice, w, event, depth + 1)?;
            }
        }
        let replay = self.replays.len() as u32;
        self.replays.push((op, event));
        self.second[at] = replay;
        self.touched.push(v);
        for &o in &made.outs {
            let other = o as usize;
            let value = &step.values[other];
            if !self.in_place[other] && choice[other] == Mode::Again && value.drop && value.natural < event {
                self.in_place[other] = true;
                self.second[other] = replay;
                self.touched.push(o);
            }
        }
        Some(())
    }

    /// Sources stay until the last recomputation of the call that needs them.
    fn uses(&mut self) {
        let step = self.step;
        for (replay, &(op, _)) in self.replays.iter().enumerate() {
            if let Some(call) = step.ops[op as usize].call {
                self.call_end[call as usize] = replay as u32;
            }
        }
        for (replay, &(op, _)) in self.replays.iter().enumerate() {
            let op = &step.ops[op as usize];
            let end = op.call.map_or(replay as u32, |call| self.call_end[call as usize]);
            for &w in &op.ins {
                let last = &mut self.last_use[w as usize];
                if *last == NEVER {
                    self.touched.push(w);
                    *last = end;
                } else {
                    *last = (*last).max(end);
                }
            }
        }
    }

    /// By how much the device waits longer for forward, because the planned calls are watched.
    fn watched(&mut self) -> f64 {
        let watch = &self.step.watch;
        if self.replays.is_empty() || watch.thread_us <= 0.0 {
            return 0.0;
        }
        self.scopes.clear();
        self.scopes.resize(watch.scope_us.len(), false);
        let mut thread = watch.thread_us;
        for (call, _) in self.call_end.iter().enumerate().filter(|&(_, &end)| end != NEVER) {
            thread += watch.call_us;
            if let Some(&scope) = watch.scope_of.get(call)
                && !std::mem::replace(&mut self.scopes[scope as usize], true)
            {
                thread += watch.scope_us[scope as usize];
            }
        }
        (thread - watch.device_us.max(watch.thread_us)).max(0.0)
    }

    fn count(&mut self, choice: &[Mode], budget: u64) -> Outcome {
        let step = self.step;
        let ops = step.ops.len();
        // Position of an operator: its number and the recomputations before it.
        self.before.clear();
        self.before.resize(ops + 1, 0);
        let mut done = 0;
        for event in 0..=ops {
            while done < self.replays.len() && self.replays[done].1 as usize <= event {
                done += 1;
            }
            self.before[event] = done as u32;
        }
        let moments = ops + self.replays.len();
        self.diff.clear();
        self.diff.resize(moments + 2, 0);
        let place = |event: u32| event as usize + self.before[event as usize] as usize;
        // A value that ends at an operator is there during the recomputations before it.
        let replay_at = |replay: u32| replay as usize + self.replays[replay as usize].1 as usize;
        let mut add = |from: usize, to: usize, bytes: i64| {
            if from < to {
                self.diff[from] += bytes;
                self.diff[to] -= bytes;
            }
        };
        for (at, value) in step.values.iter().enumerate() {
            if choice[at] == Mode::Again && value.drop {
                let bytes = value.size as i64;
                let from = place(value.natural);
                let back = match self.second[at] {
                    NEVER if self.in_place[at] => continue,
                    NEVER => place(value.death),
                    replay => replay_at(replay),
                };
                add(from, back.min(place(value.death)), -bytes);
                // Made again after autograd let go: a source of another recomputation.
                if back >= place(value.death) && self.second[at] != NEVER && self.last_use[at] != NEVER {
                    add(back, replay_at(self.last_use[at]) + 1, bytes);
                }
            }
        }
        self.touched.sort_unstable();
        self.touched.dedup();
        for &v in &self.touched {
            let at = v as usize;
            let value = &step.values[at];
            let bytes = value.size as i64;
            let last = self.last_use[at];
            let made = self.second[at];
            if value.drop && choice[at] == Mode::Again {
                if last != NEVER && (made == NEVER || replay_at(made) < place(value.death)) {
                    add(place(value.death), replay_at(last) + 1, bytes);
                }
            } else if value.drop || made == NEVER {
                // Kept, or held: it stays past its recorded end.
                if last != NEVER {
                    add(place(value.death), replay_at(last) + 1, bytes);
                }
            } else {
                let from = replay_at(made);
                add(from, (if last == NEVER { from } else { replay_at(last) }) + 1, bytes);
            }
        }
        let (mut level, mut peak, mut peak_at, mut over) = (0i64, 0i64, 0u32, 0f64);
        let mut position = 0;
        let mut done = 0;
        let mut look = |level: i64, recorded: u64, event: usize| {
            let used = level + recorded as i64;
            if used > peak {
                (peak, peak_at) = (used, event as u32);
            }
            over += (used - budget as i64).max(0) as f64;
        };
        for event in 0..ops {
            while done < self.replays.len() && self.replays[done].1 as usize == event {
                level += self.diff[position];
                look(level, step.ops[event].before + step.workspace(self.replays[done].0), event);
                position += 1;
                done += 1;
            }
            level += self.diff[position];
            look(level, step.ops[event].crest.max(step.ops[event].before), event);
            position += 1;
        }
        let again: f64 = self.replays.iter().map(|&(op, _)| step.cost(op)).sum();
        let peak = peak.max(0) as u64;
        Outcome {
            peak,
            peak_at,
            time_us: step.time_us + again + self.watched(),
            replays: self.replays.clone(),
            held: self.held.clone(),
            over: peak.saturating_sub(budget),
            over_mean: over / moments.max(1) as f64,
        }
    }
}

impl Step {
    /// Bytes that an operator takes beside its outputs while it runs.
    pub(crate) fn workspace(&self, op: u32) -> u64 {
        let op = &self.ops[op as usize];
        let outs: u64 = op.outs.iter().map(|&v| self.values[v as usize].size).sum();
        op.crest.saturating_sub(op.before).saturating_sub(outs)
    }
}
