//! The search for the fastest choice within a budget: whole classes of values first, by time for each byte, then single
//! values, then random changes. The simulator judges every step of it.

use crate::bound::{Bound, bound};
use crate::classes::{Classes, has_choice, start};
use crate::rng::Rng;
use crate::simulate::{Choice, Mode, Outcome, Simulator};
use crate::step::Step;
use std::time::{Duration, Instant};

#[derive(Clone, Copy, Debug)]
pub struct Options {
    pub seed: u64,
    /// How long random changes are tried, and how many at most.
    pub time_limit: Duration,
    pub changes: usize,
}

impl Default for Options {
    fn default() -> Options {
        Options { seed: 0, time_limit: Duration::from_secs(3), changes: 60_000 }
    }
}

#[derive(Clone, Debug)]
pub struct Plan {
    pub choice: Choice,
    pub outcome: Outcome,
    pub bound: Bound,
    /// False: no choice within the budget was found, and this one has the lowest peak that was.
    pub fits: bool,
}

#[must_use]
pub fn solve(step: &Step, budget: u64, options: &Options) -> Plan {
    let mut search = Search::new(step, budget);
    let limit = bound(step, budget);
    if !search.best.fits() {
        search.greedy();
        search.settle();
        search.vary(options);
        search.settle();
    }
    let Scored { choice, outcome } = search.best;
    Plan { fits: outcome.over == 0, choice, outcome, bound: limit }
}

/// Plans from "nothing" to the least, fastest first: (budget, plan).
#[must_use]
pub fn frontier(step: &Step, points: usize, options: &Options) -> Vec<(u64, Plan)> {
    let least = solve(step, 0, options).outcome.peak;
    let most = step.peak();
    let points = points.max(2) as u64;
    let mut plans: Vec<(u64, Plan)> = Vec::new();
    for n in 0..points {
        let budget = most - (most - least.min(most)) / (points - 1) * n;
        let mut plan = solve(step, budget, options);
        // A plan for less memory is one for this budget too.
        plan.fits = plan.outcome.peak <= budget;
        plans.push((budget, plan));
    }
    for n in (1..plans.len()).rev() {
        if plans[n].1.fits && plans[n].1.outcome.time_us < plans[n - 1].1.outcome.time_us {
            let (bound, better) = (plans[n - 1].1.bound, plans[n].1.clone());
            plans[n - 1].1 = Plan { bound, ..better };
        }
    }
    plans
}

#[derive(Clone)]
struct Scored {
    choice: Choice,
    outcome: Outcome,
}

impl Scored {
    fn fits(&self) -> bool {
        self.outcome.over == 0
    }

    /// How far it is from fitting: the highest moment, and a little of all others, so that a change that helps only
    /// one of two equal peaks counts.
    fn excess(&self) -> f64 {
        excess(&self.outcome)
    }
}

fn excess(outcome: &Outcome) -> f64 {
    outcome.over as f64 + outcome.over_mean
}

struct Search<'a> {
    step: &'a Step,
    budget: u64,
    classes: Classes,
    simulator: Simulator<'a>,
    best: Scored,
    /// Choices that whole classes led to, cheapest first: what single blocks may take over.
    stages: Vec<Choice>,
    /// Microseconds that a byte above the budget counts as.
    price: f64,
}

impl<'a> Search<'a> {
    fn new(step: &'a Step, budget: u64) -> Search<'a> {
        let mut simulator = Simulator::new(step);
        let choice = start(step);
        // With everything kept no value is asked for that is away, so this is never None.
        let outcome = simulator.run(&choice, budget).unwrap_or_else(|| unreachable!("everything is kept"));
        Search {
            step,
            budget,
            classes: Classes::new(step),
            simulator,
            stages: vec![choice.clone()],
            best: Scored { choice, outcome },
            price: 1e-3,
        }
    }

    fn judge(&mut self, choice: Choice) -> Option<Scored> {
        let outcome = self.simulator.run(&choice, self.budget)?;
        Some(Scored { choice, outcome })
    }

    /// Adds the class that frees most for its time, again and again, until it fits or nothing helps.
    fn greedy(&mut self) {
        let mut refused = vec![false; self.classes.members.len()];
        loop {
            let mut found: Option<(f64, usize, Scored)> = None;
            for (class, refused) in refused.iter_mut().enumerate() {
                let first = self.classes.members[class][0] as usize;
                if *refused || !self.step.values[first].drop || self.is_all(class, Mode::Again) {
                    continue;
                }
                let Some(tried) = self.with_sources(class) else {
                    *refused = true;
                    continue;
                };
                let gain = self.best.excess() - tried.excess();
                let cost = (tried.outcome.time_us - self.best.outcome.time_us).max(0.01);
                if gain > 0.0 && found.as_ref().is_none_or(|(rate, ..)| gain / cost > *rate) {
                    found = Some((gain / cost, class, tried));
                }
            }
            let Some((rate, _, better)) = found else { return };
            self.best = better;
            self.stages.push(self.best.choice.clone());
            // A byte costs what it cost the last class, and more, so that a plan that fits wins.
            self.price = 4.0 / rate.max(1e-9);
            if self.best.fits() {
                return;
            }
        }
    }

    fn is_all(&self, class: usize, mode: Mode) -> bool {
        self.classes.members[class].iter().all(|&v| self.best.choice[v as usize] == mode)
    }

    /// The best choice with a class dropped: sources that it needs are held where that is better than making them.
    fn with_sources(&mut self, class: usize) -> Option<Scored> {
        let mut choice = self.best.choice.clone();
        for &v in &self.classes.members[class] {
            choice[v as usize] = Mode::Again;
        }
        let mut best = self.judge(choice);
        let base = (self.best.excess(), self.best.outcome.time_us);
        let rate = |scored: &Scored| {
            (base.0 - scored.excess()).max(0.0) / (scored.outcome.time_us - base.1).max(0.01)
        };
        for source in self.sources(class) {
            let mut choice =
                best.as_ref().map_or_else(|| self.best.choice.clone(), |scored| scored.choice.clone());
            for &v in &self.classes.members[class] {
                choice[v as usize] = Mode::Again;
            }
            let is_kept = self.classes.members[source].iter().all(|&v| choice[v as usize] == Mode::Keep);
            for &v in &self.classes.members[source] {
                choice[v as usize] = if is_kept { Mode::Again } else { Mode::Keep };
            }
            if let Some(tried) = self.judge(choice)
                && best.as_ref().is_none_or(|best| rate(&tried) > rate(best))
            {
                best = Some(tried);
            }
        }
        best
    }

    /// Classes of the sources that recomputing a class can reach: nearest first, at most a dozen.
    fn sources(&self, class: usize) -> Vec<usize> {
        let mut found = Vec::new();
        let Some(&last) = self.classes.members[class].last() else { return found };
        let mut seen = vec![last];
        let mut at = 0;
        while at < seen.len() && found.len() < 12 && seen.len() < 64 {
            let v = seen[at];
            at += 1;
            for &w in &self.step.ops[self.step.values[v as usize].birth as usize].ins {
                if seen.contains(&w) {
                    continue;
                }
                if !self.step.values[w as usize].drop {
                    seen.push(w);
                    if let Some(class) = self.classes.of[w as usize]
                        && !found.contains(&(class as usize))
                    {
                        found.push(class as usize);
                    }
                }
            }
        }
        found
    }

    fn energy(&self, scored: &Scored) -> f64 {
        scored.outcome.time_us + self.price * scored.outcome.over as f64
    }

    fn is_better(&self, tried: &Scored) -> bool {
        let (now, then) = (tried.outcome.over, self.best.outcome.over);
        if now == 0 && then == 0 {
            tried.outcome.time_us < self.best.outcome.time_us - 1e-9
        } else {
            now < then
        }
    }

    fn accepts(&mut self, choice: Choice) -> bool {
        match self.judge(choice) {
            Some(tried) if self.is_better(&tried) => {
                self.best = tried;
                true
            }
            _ => false,
        }
    }

    /// Turns classes and single values the other way while that helps, those that cost most for their size first.
    fn settle(&mut self) {
        let rate = |v: u32| {
            let value = &self.step.values[v as usize];
            self.step.cost(value.birth) / value.size.max(1) as f64
        };
        let mut single: Vec<u32> =
            (0..self.step.values.len() as u32).filter(|&v| has_choice(self.step, v)).collect();
        single.sort_by(|&a, &b| rate(b).total_cmp(&rate(a)).then(a.cmp(&b)));
        let mut turns: Vec<Vec<u32>> = self.classes.members.clone();
        turns.extend(single.into_iter().map(|v| vec![v]));
        for _ in 0..3 {
            let mut has_helped = false;
            for turn in &turns {
                let mut choice = self.best.choice.clone();
                let mode = other(choice[turn[0] as usize]);
                for &v in turn {
                    choice[v as usize] = mode;
                }
                has_helped |= self.accepts(choice);
            }
            if !has_helped {
                return;
            }
        }
    }

    /// Random changes: a stretch of a class the other way, or a stretch of blocks as in an earlier stage. Plans above
    /// the budget may be passed through.
    fn vary(&mut self, options: &Options) {
        let end = Instant::now() + options.time_limit;
        let mut dice = Rng(options.seed);
        let mut current = self.best.clone();
        let (mut tried, span) = (0, current.outcome.time_us - self.step.time_us);
        while tried < options.changes && self.classes.members.len() > 1 {
            if tried % 64 == 0 && Instant::now() >= end {
                return;
            }
            tried += 1;
            let mut choice = current.choice.clone();
            if dice.below(4) == 0 {
                self.take_over(&mut choice, &mut dice);
            }
            for _ in 0..1 + dice.below(3) {
                self.change(&mut choice, &mut dice);
            }
            let Some(next) = self.judge(choice) else { continue };
            // Cooler with every change: at first plans that are 1 % of the added time worse may follow.
            let warmth = span * 0.01 * (1.0 - tried as f64 / options.changes as f64);
            let worse = self.energy(&next) - self.energy(&current);
            if worse > 0.0 && (warmth <= 0.0 || dice.unit() > (-worse / warmth).exp()) {
                continue;
            }
            current = next;
            if self.is_better(&current) {
                self.best = current.clone();
            }
        }
    }

    /// Some blocks as in an earlier stage.
    fn take_over(&self, choice: &mut Choice, dice: &mut Rng) {
        let stage = &self.stages[dice.below(self.stages.len())];
        let blocks = self.classes.blocks.max(1);
        let from = dice.below(blocks);
        let to = from + 1 + dice.below((blocks - from).min(4));
        for members in self.classes.members.iter().filter(|members| members.len() % blocks == 0) {
            let each = members.len() / blocks;
            for &v in &members[from * each..to * each] {
                choice[v as usize] = stage[v as usize];
            }
        }
    }

    fn change(&self, choice: &mut Choice, dice: &mut Rng) {
        let members = &self.classes.members[dice.below(self.classes.members.len())];
        let from = dice.below(members.len());
        let len = if dice.below(2) == 0 { 1 } else { 1 + dice.below(members.len() - from) };
        let mode = other(choice[members[from] as usize]);
        for &v in &members[from..from + len] {
            choice[v as usize] = mode;
        }
    }
}

fn other(mode: Mode) -> Mode {
    if mode == Mode::Keep { Mode::Again } else { Mode::Keep }
}
