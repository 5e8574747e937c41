//! The kind of bytes that an allocation holds, inferred from its lifetime over the steps, from sizes, and from stacks.
//!
//! | kind | recognised by |
//! |---|---|
//! | weights | there before the first step, never freed |
//! | gradients | of a weight's size, born in a step, alive until the gradients are zeroed at its end |
//! | optimizer state | born in the first steps behind the gradients, or by an optimizer's stack; never freed |
//! | activations | born in a step, freed in it (or at the next one's beginning), not at once |
//! | temporaries | freed within a few allocations, or born and freed within the optimizer's step |
//! | unexplained | everything else |
//!
//! A compiled program of XLA has five more, by its instructions: recomputed activations, buffers of collectives,
//! inputs, outputs and constants. Its reader notes the kind of each block ([`NOTE`]).
//!
//! The result is a guess: every renderer says "inferred" beside it. Linear but for sorts within steps; deterministic.

mod origins;

use self::origins::{Origin, origins};
use crate::allocations::AllocationId;
use crate::history::History;
use crate::steps::curve::Curve;
use crate::steps::{self, StepSpan, Steps};
use crate::trace::{DeviceTrace, Trace};
use crate::words::{Bytes, Tick};
use rustc_hash::FxHashMap;

/// The kind of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Kind {
    Weights = 0,
    Gradients = 1,
    OptimizerState = 2,
    Activations = 3,
    Temporaries = 4,
    Unexplained = 5,
    /// Activations that are computed again for the backward pass.
    Recomputed = 6,
    /// Buffers that devices send each other.
    Collectives = 7,
    /// Arguments that are neither weights nor an optimizer's state: batches, caches.
    Inputs = 8,
    Outputs = 9,
    Constants = 10,
}

/// Text before the kind in a note on a block.
pub const NOTE: &str = "kind: ";

impl Kind {
    pub const ALL: [Kind; 11] = [
        Kind::Weights,
        Kind::Gradients,
        Kind::OptimizerState,
        Kind::Activations,
        Kind::Temporaries,
        Kind::Unexplained,
        Kind::Recomputed,
        Kind::Collectives,
        Kind::Inputs,
        Kind::Outputs,
        Kind::Constants,
    ];

    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Weights => "weights",
            Kind::Gradients => "gradients",
            Kind::OptimizerState => "optimizer state",
            Kind::Activations => "activations",
            Kind::Temporaries => "temporaries",
            Kind::Unexplained => "unexplained",
            Kind::Recomputed => "recomputed",
            Kind::Collectives => "collectives",
            Kind::Inputs => "inputs",
            Kind::Outputs => "outputs",
            Kind::Constants => "constants",
        }
    }
}

/// Bytes by kind; index with `Kind as usize`.
pub type ByKind = [Bytes; Kind::ALL.len()];

/// The kinds of one device's allocations. Invariant: `by_allocation` has one entry an allocation of the history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kinds {
    pub by_allocation: Vec<Kind>,
    /// The evidence for them, in a sentence.
    pub evidence: String,
}

impl Kinds {
    /// The kinds that notes name; `None` if no note names one.
    fn noted(trace: &Trace, history: &History) -> Option<Kinds> {
        let mut by_allocation = vec![Kind::Unexplained; history.allocations.len()];
        let mut found = false;
        for (id, text) in history.block_notes.iter() {
            let Some(name) = trace.strings.get(text).strip_prefix(NOTE) else { continue };
            if let Some(kind) = Kind::ALL.into_iter().find(|kind| kind.name() == name) {
                by_allocation[id.0 as usize] = kind;
                found = true;
            }
        }
        let evidence = "from the names of arguments, and from the pass of the instructions that make and last read a buffer";
        found.then(|| Kinds { by_allocation, evidence: evidence.to_owned() })
    }

    /// Of a trace whose blocks have no kinds: host memory.
    #[must_use]
    pub fn unexplained(history: &History) -> Kinds {
        let by_allocation = vec![Kind::Unexplained; history.allocations.len()];
        Kinds { by_allocation, evidence: "host memory has no kinds".to_owned() }
    }

    #[inline]
    #[must_use]
    pub fn of(&self, id: AllocationId) -> Kind {
        self.by_allocation.get(id.0 as usize).copied().unwrap_or(Kind::Unexplained)
    }

    /// Block bytes active at `tick`, by kind: they sum to the active bytes of that tick.
    #[must_use]
    pub fn active_at(&self, history: &History, tick: Tick) -> ByKind {
        let mut bytes = ByKind::default();
        for id in history.allocations.active_at(tick) {
            bytes[self.of(id) as usize] += Bytes(history.allocations.blocks[id.0 as usize]);
        }
        bytes
    }
}

/// The steps of `device` and the kinds of its allocations: [`steps::detect`] and [`infer`] over one pass of the
/// history.
#[must_use]
pub fn with_steps(trace: &Trace, device: &DeviceTrace, history: &History) -> (Steps, Kinds) {
    let curve = Curve::new(history);
    let steps = steps::detect_on(trace, device, history, &curve);
    let kinds = infer_on(trace, device, history, &steps, &curve);
    (steps, kinds)
}

/// Infers the kinds of `device`'s allocations.
#[must_use]
pub fn infer(trace: &Trace, device: &DeviceTrace, history: &History, steps: &Steps) -> Kinds {
    infer_on(trace, device, history, steps, &Curve::new(history))
}

fn infer_on(trace: &Trace, device: &DeviceTrace, history: &History, steps: &Steps, curve: &Curve) -> Kinds {
    if let Some(noted) = Kinds::noted(trace, history) {
        return noted;
    }
    let origins = origins(trace);
    let mut inference = Inference::new(trace, history, steps, curve, &origins);
    inference.long_lived();
    inference.gradients(device);
    inference.split_weights_from_state();
    inference.optimizer_state();
    inference.within_steps();
    inference.finish()
}

struct Inference<'a> {
    history: &'a History,
    curve: &'a Curve,
    origins: &'a [Origin],
    has_stacks: bool,
    spans: Vec<StepSpan>,
    /// Birth positions of each span's first allocation and of the one behind its last.
    bounds: Vec<(u32, u32)>,
    /// Allocations of a typical step.
    length: u32,
    kinds: Vec<Option<Kind>>,
    /// The number of weights of each size.
    weight_sizes: FxHashMap<u64, u32>,
    /// Per span, the position behind the last gradient's birth: later allocations are the optimizer's.
    behind_gradients: Vec<Option<u32>>,
}

impl<'a> Inference<'a> {
    fn new(
        trace: &Trace,
        history: &'a History,
        steps: &Steps,
        curve: &'a Curve,
        origins: &'a [Origin],
    ) -> Self {
        let mut spans = steps.spans.clone();
        if !spans.is_empty() {
            spans.extend(steps.unfinished);
        }
        let bounds: Vec<(u32, u32)> = spans
            .iter()
            .map(|s| (Curve::position(history, s.start), Curve::position(history, s.end)))
            .collect();
        let mut lengths: Vec<u32> = bounds.iter().map(|(s, e)| e - s).collect();
        lengths.sort_unstable();
        Inference {
            history,
            curve,
            origins,
            has_stacks: !trace.stacks.is_empty(),
            length: lengths.get(lengths.len() / 2).copied().unwrap_or(0),
            behind_gradients: vec![None; spans.len()],
            spans,
            bounds,
            kinds: vec![None; history.allocations.len()],
            weight_sizes: FxHashMap::default(),
        }
    }

    fn origin(&self, i: usize) -> Origin {
        if !self.has_stacks {
            return Origin::Unknown;
        }
        self.origins.get(self.history.allocations.stacks[i] as usize).copied().unwrap_or_default()
    }

    /// Alive when the last step was over, or for ever.
    fn stays(&self, i: usize) -> bool {
        let death = self.curve.deaths[i];
        death == Curve::NEVER || self.bounds.last().is_some_and(|&(_, end)| death > end)
    }

    /// Allocations from before the first step that stay: weights, for now.
    fn long_lived(&mut self) {
        let before = self.bounds.first().map_or(0, |b| b.0) as usize;
        for i in 0..self.kinds.len() {
            let origin = self.origin(i);
            let stays = self.stays(i);
            let kind = match origin {
                Origin::Optimizer if stays => Kind::OptimizerState,
                Origin::Optimizer => Kind::Temporaries,
                Origin::Building if stays && (self.bounds.is_empty() || i < before) => Kind::Weights,
                _ if stays && i < before => Kind::Weights,
                _ => continue,
            };
            self.kinds[i] = Some(kind);
            if kind == Kind::Weights {
                *self.weight_sizes.entry(self.history.allocations.requested[i]).or_default() += 1;
            }
        }
    }

    /// In each step, of the allocations of a weight's size those that die last, behind the optimizer's own: as many as
    /// there are weights of the size.
    fn gradients(&mut self, device: &DeviceTrace) {
        if self.keeps_gradients() {
            return;
        }
        let a = &self.history.allocations;
        let mut found: Vec<(u64, u32, u32)> = Vec::new();
        for step in 0..self.bounds.len() {
            let (start, end) = self.bounds[step];
            found.clear();
            for i in start..end {
                let at = i as usize;
                if self.kinds[at].is_none() && self.ends_with(step, i) {
                    found.push((a.requested[at], u32::MAX - a.freed[at], i));
                }
            }
            // By size, the latest death first; of those that never die, the earliest birth.
            found.sort_unstable();
            let mut taken = 0;
            for (n, &(size, _, i)) in found.iter().enumerate() {
                taken = if n > 0 && found[n - 1].0 == size { taken + 1 } else { 1 };
                if taken <= self.gradient_count(size) {
                    self.kinds[i as usize] = Some(Kind::Gradients);
                    let behind = self.behind_gradients[step].get_or_insert(0);
                    *behind = (*behind).max(i + 1);
                }
            }
        }
        // A network in which hardly a weight has a gradient is not being trained: sizes agree by chance.
        let sum = |kind| -> u64 {
            (0..self.kinds.len()).filter(|&i| self.kinds[i] == Some(kind)).map(|i| a.requested[i]).sum()
        };
        let steps = self.behind_gradients.iter().flatten().count().max(1) as u64;
        if sum(Kind::Gradients) / steps * 50 < sum(Kind::Weights) && !device.events.is_empty() {
            for kind in &mut self.kinds {
                *kind = kind.filter(|&k| k != Kind::Gradients);
            }
            self.behind_gradients.fill(None);
        }
    }

    /// True if allocation `i`, born in `step`, has a weight's size and lives to the end of the step, or is dropped at
    /// the beginning of the next; in the last step it may stay.
    fn ends_with(&self, step: usize, i: u32) -> bool {
        let (death, end) = (self.curve.deaths[i as usize], self.bounds[step].1);
        let lives_so = if death == Curve::NEVER {
            step + 1 == self.bounds.len()
        } else {
            death + (self.length / 20).max(2) >= end && death <= end + self.length / 2
        };
        lives_so && self.weight_sizes.contains_key(&self.history.allocations.requested[i as usize])
    }

    /// Gradients that are zeroed in place stay from the first backward pass on, before the optimizer makes its state.
    /// Allocations of a weight's size that die with the step are then the optimizer's own, born behind those that stay.
    fn keeps_gradients(&self) -> bool {
        let Some(&(start, end)) = self.bounds.first() else { return false };
        let a = &self.history.allocations;
        let stay = |i: &u32| {
            self.curve.deaths[*i as usize] == Curve::NEVER
                && self.weight_sizes.contains_key(&a.requested[*i as usize])
        };
        // The first allocations that stay in earnest: a small tensor may have a weight's size by chance.
        let total: u64 = (start..end).filter(stay).map(|i| a.requested[i as usize]).sum();
        let mut sum = 0;
        let first = (start..end).filter(stay).find(|&i| {
            sum += a.requested[i as usize];
            sum * 20 >= total
        });
        let Some(first) = first else { return false };
        let bytes = |range: std::ops::Range<u32>| -> u64 {
            range.filter(|&i| self.ends_with(0, i)).map(|i| a.requested[i as usize]).sum()
        };
        self.bounds.len() > 1 && bytes(start..first) < bytes(first..end).max(1)
    }

    /// The number of weights of this size. If the recording began late, weights and states are told apart by their
    /// number.
    fn gradient_count(&self, size: u64) -> u32 {
        let count = self.weight_sizes.get(&size).copied().unwrap_or(0);
        count / self.copies()
    }

    /// If the recording began in the middle, weights and their states are there together: all counts are then multiples
    /// of 2 or 3.
    fn copies(&self) -> u32 {
        if self.curve.first == 0 || self.weight_sizes.len() < 3 {
            return 1;
        }
        let before = self.bounds.first().map_or(0, |b| b.0);
        if self.curve.first < before / 2 {
            return 1;
        }
        let large = |n: u32| {
            self.weight_sizes.iter().filter(|(size, _)| **size >= 4096).all(|(_, count)| count % n == 0)
        };
        [3, 2].into_iter().find(|&n| large(n)).unwrap_or(1)
    }

    fn split_weights_from_state(&mut self) {
        let copies = self.copies();
        if copies == 1 || self.behind_gradients.iter().all(Option::is_none) {
            return;
        }
        let a = &self.history.allocations;
        let mut seen: FxHashMap<u64, u32> = FxHashMap::default();
        for i in 0..self.curve.first as usize {
            if self.kinds[i] != Some(Kind::Weights) || self.origin(i) == Origin::Building {
                continue;
            }
            let size = a.requested[i];
            let nth = seen.entry(size).or_default();
            *nth += 1;
            if *nth > self.weight_sizes.get(&size).copied().unwrap_or(0) / copies {
                self.kinds[i] = Some(Kind::OptimizerState);
            }
        }
    }

    /// Allocations that the first two steps create for ever, behind their gradients. Gradients that stay (zeroed, not
    /// dropped) come before them, in the backward pass.
    fn optimizer_state(&mut self) {
        let a = &self.history.allocations;
        // Allocations that later steps leave behind as well are a leak, not a state.
        let mut left_later: FxHashMap<u64, u32> = FxHashMap::default();
        let later = self.bounds.get(2..self.bounds.len().saturating_sub(1)).unwrap_or_default();
        for i in later.iter().flat_map(|&(start, end)| start as usize..end as usize) {
            if self.curve.deaths[i] == Curve::NEVER {
                *left_later.entry(a.requested[i]).or_default() += 1;
            }
        }
        for step in 0..self.bounds.len().min(2) {
            let (start, end) = self.bounds[step];
            let transient_gradients = self.behind_gradients.iter().any(Option::is_some);
            let behind = self.behind_gradients[step].unwrap_or(start);
            let mut of_size: FxHashMap<u64, u32> = FxHashMap::default();
            for i in start..end {
                let at = i as usize;
                if self.kinds[at].is_some() || !self.stays(at) {
                    continue;
                }
                let size = a.requested[at];
                if left_later.get(&size).is_some_and(|&n| n >= 2) {
                    continue;
                }
                let like_a_weight = self.like_a_weight(size);
                let weights = self.weight_sizes.get(&size).copied().unwrap_or(0);
                let nth = of_size.entry(size).or_default();
                *nth += 1;
                let origin = self.origin(at);
                self.kinds[at] = if transient_gradients {
                    (like_a_weight && i >= behind).then_some(Kind::OptimizerState)
                } else if origin == Origin::Backward && weights > 0 || self.kept_gradient(size, *nth, weights)
                {
                    self.behind_gradients[step] =
                        Some(self.behind_gradients[step].map_or(i + 1, |b| b.max(i + 1)));
                    Some(Kind::Gradients)
                } else {
                    (weights > 0).then_some(Kind::OptimizerState)
                };
            }
        }
    }

    /// Of a weight's size, in its own or another precision.
    fn like_a_weight(&self, size: u64) -> bool {
        [size, size / 2, size * 2, size * 4].iter().any(|s| self.weight_sizes.contains_key(s))
    }

    /// Without gradients that go, the first of a weight's size that a step leaves behind is its gradient.
    fn kept_gradient(&self, size: u64, nth: u32, weights: u32) -> bool {
        size >= 512 && nth <= weights
    }

    /// Allocations that are born and freed over the steps.
    fn within_steps(&mut self) {
        let few = (self.length / 50).max(8);
        let mut step = 0;
        let trained = self.behind_gradients.iter().any(Option::is_some);
        let last = self.bounds.len().saturating_sub(1);
        for i in 0..self.kinds.len() as u32 {
            let at = i as usize;
            while step < self.bounds.len() && self.bounds[step].1 <= i {
                step += 1;
            }
            if self.kinds[at].is_some() {
                continue;
            }
            let death = self.curve.deaths[at];
            let life = death.saturating_sub(i);
            let within = self.bounds.get(step).is_some_and(|&(start, end)| i >= start && i < end);
            let brief = death != Curve::NEVER && life <= few;
            self.kinds[at] = Some(if brief {
                Kind::Temporaries
            } else if self.bounds.is_empty() || (!within && i >= self.bounds[0].0) {
                Kind::Unexplained
            } else if !within {
                // Setting up.
                if death <= self.bounds[0].0 { Kind::Temporaries } else { Kind::Unexplained }
            } else if trained
                && self.behind_gradients[step].is_some_and(|behind| i >= behind)
                && death <= self.bounds[step].1
                && self.like_a_weight(self.history.allocations.requested[at])
            {
                // The optimizer's own. Further passes over accumulated gradients come here too, with other sizes.
                Kind::Temporaries
            } else if death <= self.bounds[step].1 + self.length
                || (step == last && death == Curve::NEVER && step >= 2)
            {
                Kind::Activations
            } else {
                Kind::Unexplained
            });
        }
    }

    fn finish(self) -> Kinds {
        let by_allocation = self.kinds.into_iter().map(|k| k.unwrap_or(Kind::Unexplained)).collect();
        let stacks = if self.has_stacks { ", sizes and stacks" } else { " and sizes" };
        let evidence = match self.spans.len() {
            0 if self.has_stacks => "inferred from stacks; without steps, lifetimes say little".to_owned(),
            0 => "without steps, kinds cannot be told".to_owned(),
            1 => format!("inferred from lifetimes in 1 step{stacks}"),
            n => format!("inferred from lifetimes over {n} steps{stacks}"),
        };
        Kinds { by_allocation, evidence }
    }
}

#[cfg(test)]
mod tests;
