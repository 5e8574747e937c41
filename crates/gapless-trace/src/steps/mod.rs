//! The steps of a run: the part that repeats.
//!
//! Named scopes of the run are trusted first ([`annotated`]); without them, recurring allocations ([`structure`]). A
//! boundary lies at the point that a person would choose: behind the optimizer and `zero_grad`, before the next forward
//! pass, at the fewest transient bytes. If nothing recurs there are no steps, rather than nonsense. O(n log n);
//! deterministic.

mod annotated;
pub(crate) mod curve;
pub mod levels;
mod structure;

use crate::history::History;
use crate::trace::{DeviceTrace, Trace};
use crate::words::Tick;
use annotated::Scopes;
use curve::Curve;
use rustc_hash::{FxBuildHasher, FxHashMap};
use std::hash::BuildHasher;
use structure::Pattern;

/// One step: the ticks `[start, end)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepSpan {
    pub start: Tick,
    pub end: Tick,
}

/// The steps of a run on one device. Invariant: spans are disjoint and in order; `warmup` is the first one's start.
#[derive(Clone, Debug, PartialEq)]
pub struct Steps {
    /// Whole steps. Between two of them there may be other work (an evaluation).
    pub spans: Vec<StepSpan>,
    /// Ticks before the first step: setting up, or the rest of a step if the recording began in one. Without steps,
    /// all.
    pub warmup: Tick,
    /// A step that had begun when the recording ended: an OOM often ends one.
    pub unfinished: Option<StepSpan>,
    pub evidence: StepEvidence,
}

/// The keys that recur, by which allocations of different steps are recognised as the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecurringKey {
    /// By size, stream and stack.
    Size,
    /// By stack and stream: shapes vary.
    Stack,
    /// By lifetime, counted in allocations: shapes vary and there are no stacks.
    Lifetime,
}

/// The evidence for these steps.
#[derive(Clone, Debug, PartialEq)]
pub enum StepEvidence {
    /// No scope marks a step, and nothing recurs.
    None,
    /// Scopes that are steps, by their common name.
    Scopes { name: String },
    /// The optimizer's scopes, which end steps.
    Optimizer { name: String },
    /// Allocations that recur: the number of distinct ones, and their share of all.
    Recurring { key: RecurringKey, distinct: usize, share: f64 },
}

impl Steps {
    /// The evidence in a sentence: "24 steps, from the Optimizer.step annotations".
    #[must_use]
    pub fn sentence(&self) -> String {
        let n = self.spans.len();
        let steps = if n == 1 { "1 step".to_owned() } else { format!("{n} steps") };
        match &self.evidence {
            StepEvidence::None => "no steps: no annotations name them and no allocations recur".to_owned(),
            StepEvidence::Scopes { name } => format!("{steps}, from the {name} annotations"),
            StepEvidence::Optimizer { name } => {
                let name = name.split('#').next().unwrap_or(name);
                format!("{steps}, from the {name} annotations")
            }
            StepEvidence::Recurring { key, distinct, .. } => {
                let what = match key {
                    RecurringKey::Size => "allocation sizes",
                    RecurringKey::Stack => "allocation stacks",
                    RecurringKey::Lifetime => "allocation lifetimes",
                };
                format!("{steps}, from {distinct} {what} that recur every step")
            }
        }
    }

    /// The index of the step that `tick` lies in.
    #[must_use]
    pub fn step_at(&self, tick: Tick) -> Option<usize> {
        let at = self.spans.partition_point(|s| s.start <= tick).checked_sub(1)?;
        (tick < self.spans[at].end).then_some(at)
    }

    fn none(history: &History) -> Steps {
        Steps { spans: Vec::new(), warmup: history.last_tick, unfinished: None, evidence: StepEvidence::None }
    }
}

/// Finds the steps of `device`.
#[must_use]
pub fn detect(trace: &Trace, device: &DeviceTrace, history: &History) -> Steps {
    detect_on(trace, device, history, &Curve::new(history))
}

pub(crate) fn detect_on(trace: &Trace, device: &DeviceTrace, history: &History, curve: &Curve) -> Steps {
    if history.allocations.is_empty() {
        return Steps::none(history);
    }
    let found = match annotated::find(trace, device, history, curve) {
        Some(Scopes::Steps { name, steps }) => Some((steps, StepEvidence::Scopes { name })),
        Some(Scopes::Ends { name, first, cuts }) => {
            Some((ended_by(curve, first, &cuts), StepEvidence::Optimizer { name }))
        }
        None => None,
    };
    let found = found.filter(|(steps, _)| !steps.is_empty());
    // A sample of the allocations repeats nothing, and the layers of a compiled program are no steps.
    let found = if trace.host_sample.is_some() || trace.source.is_compiled() {
        found
    } else {
        found.or_else(|| from_structure(history, curve))
    };
    let Some((steps, evidence)) = found else { return Steps::none(history) };
    let mut spans: Vec<StepSpan> = Vec::with_capacity(steps.len());
    for &(start, end) in &steps {
        let span =
            StepSpan { start: curve.tick(device, history, start), end: curve.tick(device, history, end) };
        if span.start < span.end {
            spans.push(span);
        }
    }
    leave_out_teardown(history, &mut spans);
    let (Some(first), Some(&(_, end))) = (spans.first(), steps.last()) else { return Steps::none(history) };
    let warmup = first.start;
    let length = median(steps.iter().map(|(s, e)| e - s).collect());
    let rest = curve.end() - end;
    let begun = rest > length / 20 && rest <= length + length / 5 && u64::from(rest) > 1;
    let unfinished =
        begun.then(|| StepSpan { start: curve.tick(device, history, end), end: history.last_tick });
    Steps { spans, warmup, unfinished, evidence }
}

/// A run that ends in the recording drops its model behind the last step. A step frees its own allocations, so it ends
/// before the first of the closing frees that takes something older.
fn leave_out_teardown(history: &History, spans: &mut [StepSpan]) {
    let a = &history.allocations;
    let (Some(span), Some(&last_birth)) = (spans.last_mut(), a.starts.last()) else { return };
    if span.end < history.last_tick || span.start.0 >= last_birth {
        return;
    }
    let older = a.starts.partition_point(|&start| start <= span.start.0);
    let first = a.freed[..older].iter().filter(|&&freed| freed > last_birth).min();
    if let Some(&first) = first {
        span.end = span.end.min(Tick(first - 1));
    }
}

/// The steps that end at `cuts`.
fn ended_by(curve: &Curve, first: u32, cuts: &[u32]) -> Vec<(u32, u32)> {
    let mut steps: Vec<(u32, u32)> = cuts.windows(2).map(|w| (w[0], w[1])).collect();
    let Some(&cut) = cuts.first() else { return steps };
    let head = if steps.is_empty() {
        Some(last_low(curve, curve.first, first.max(curve.first)))
    } else {
        head_start(curve, cut, typical(curve, &steps))
    };
    if let Some(start) = head.filter(|&start| start < cut) {
        steps.insert(0, (start, cut));
    }
    steps
}

/// The median number of allocations in a step that are freed some day.
fn typical(curve: &Curve, steps: &[(u32, u32)]) -> u32 {
    median(steps.iter().map(|&(s, e)| passing(curve, s, e)).collect())
}

/// Allocations born in `from .. to` that are freed some day.
fn passing(curve: &Curve, from: u32, to: u32) -> u32 {
    (to - from) - (curve.permanent[to as usize] - curve.permanent[from as usize])
}

fn median(mut values: Vec<u32>) -> u32 {
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or(0)
}

/// The last position in `from ..= to` that is as low as its lowest. Setting up leaves nothing transient behind, a
/// forward pass does so from its beginning on: it begins at the last low.
fn last_low(curve: &Curve, from: u32, to: u32) -> u32 {
    let at = |i: u32| curve.transient[i as usize];
    let to = to.max(from);
    let (low, high) = (from..=to).fold((u64::MAX, 0), |(l, h), i| (l.min(at(i)), h.max(at(i))));
    let enough = low + (high - low) / 5000;
    let last = (from..=to).rev().find(|&i| at(i) <= enough).unwrap_or(from);
    // The first small tensors of a pass, such as its input, are within that tolerance: go back to the foot of the
    // slope, but not into the setting up, whose allocations stay.
    let settled = |i: u32| curve.permanent[i as usize] == curve.permanent[last as usize];
    let slope = (from..=last).rev().take(64).take_while(|&i| settled(i));
    slope.min_by_key(|&i| at(i)).unwrap_or(last)
}

/// Beginning of the step that ends at `cut`, if all of it was recorded. `length` is a later step's number of passing
/// allocations; those that a first step creates for ever (optimizer state) come on top.
fn head_start(curve: &Curve, cut: u32, length: u32) -> Option<u32> {
    let all = passing(curve, curve.first, cut);
    let enough = if curve.first > 0 { length - length / 20 } else { length / 2 };
    if all < enough.max(1) {
        return None;
    }
    // The first step may do more or less than the others, and setting up comes right before it.
    let back = |passed: u32| {
        let mut at = cut;
        while at > curve.first && passing(curve, at, cut) < passed {
            at -= 1;
        }
        at
    };
    Some(last_low(curve, back(length + length / 2), back(length * 3 / 5)))
}

/// Steps as positions, and their evidence.
type Found = (Vec<(u32, u32)>, StepEvidence);

/// Steps from recurring allocations.
fn from_structure(history: &History, curve: &Curve) -> Option<Found> {
    let mut best: Option<(f64, Found)> = None;
    for key in [RecurringKey::Size, RecurringKey::Stack, RecurringKey::Lifetime] {
        let Some(keys) = keys_of(history, curve, key) else { continue };
        let Some(pattern) = structure::find(&keys, &curve.transient, curve.first as usize) else { continue };
        let steps = place(curve, &pattern, &keys);
        let clear = clarity(&steps);
        let score = pattern.score * clear;
        let steps = join_accumulation(curve, steps);
        let evidence =
            StepEvidence::Recurring { key, distinct: pattern.recurring.len(), share: pattern.share.min(1.0) };
        // The first that explains a good part of the run will do; else the one that explains most.
        let enough = pattern.share >= 0.4 && clear > 0.8;
        if steps.len() >= 2 && best.as_ref().is_none_or(|(s, _)| score > *s) {
            best = Some((score, (steps, evidence)));
        }
        if enough {
            break;
        }
    }
    best.filter(|(score, _)| *score > 0.0).map(|(_, found)| found)
}

/// 1 if each step follows the one before and all have one length; layers taken for steps leave holes.
fn clarity(steps: &[(u32, u32)]) -> f64 {
    let length = median(steps.iter().map(|(s, e)| e - s).collect());
    let clean = |w: &&[(u32, u32)]| w[0].1 == w[1].0 && (w[1].1 - w[1].0).abs_diff(length) <= length / 4;
    let pairs = steps.len().saturating_sub(1).max(1);
    (steps.windows(2).filter(clean).count() as f64 / pairs as f64).powi(2)
}

fn keys_of(history: &History, curve: &Curve, by: RecurringKey) -> Option<Vec<u64>> {
    let a = &history.allocations;
    let hash = |x: (u64, u16, u32)| FxBuildHasher.hash_one(x);
    let n = a.len();
    match by {
        RecurringKey::Size => {
            Some((0..n).map(|i| hash((a.requested[i], a.streams[i], a.stacks[i]))).collect())
        }
        RecurringKey::Stack => {
            let with = a.stacks.iter().filter(|&&s| s != 0).count();
            (with * 2 >= n).then(|| {
                (0..n)
                    .map(|i| {
                        // The engine's thread has no stack of Python: then the size is the key.
                        let size = if a.stacks[i] == 0 { a.requested[i] } else { u64::MAX };
                        hash((size, a.streams[i], a.stacks[i]))
                    })
                    .collect()
            })
        }
        RecurringKey::Lifetime => Some(
            (0..n)
                .map(|i| {
                    // Counted without those that live for ever: a first step creates some.
                    let death = curve.deaths[i];
                    let life = if death == Curve::NEVER { u32::MAX } else { passing(curve, i as u32, death) };
                    hash((u64::from(life), a.streams[i], 0))
                })
                .collect(),
        ),
    }
}

/// Turns beats, one in each step, into steps: the cuts lie between beats, where the fewest transient bytes are, always
/// at about the same point of the step.
fn place(curve: &Curve, pattern: &Pattern, keys: &[u64]) -> Vec<(u32, u32)> {
    let beats: Vec<u32> = pattern.beats.iter().copied().filter(|&b| b >= curve.first).collect();
    let length = pattern.length;
    if beats.len() < 2 {
        return Vec::new();
    }
    let slack = length / 8;
    // Allocations that a first step creates for ever do not make it longer.
    let close = |w: &[u32]| passing(curve, w[0], w[1]) <= length + length / 2;
    // The place of the cut in the cycle, from the beat before.
    let lows = beats.windows(2).filter(|w| close(w)).map(|w| curve.lowest(w[0] + 1, w[1] + 1) - w[0]);
    let phase = median(lows.collect()).clamp(1, length);
    let around =
        |wish: u32| curve.low_near(wish.saturating_sub(slack).max(curve.first), wish + slack + 1, wish);
    let mut starts: Vec<Option<u32>> = vec![None; beats.len()];
    let mut ends = vec![curve.end(); beats.len()];
    for (i, pair) in beats.windows(2).enumerate() {
        if close(pair) {
            ends[i] = curve.low_near(pair[0] + 1, pair[1] + 1, pair[0] + phase);
            starts[i + 1] = Some(ends[i]);
        } else {
            // Other work lies between (an evaluation).
            ends[i] = around(pair[0] + phase);
            starts[i + 1] = Some(around(pair[1] - (length - phase)).max(ends[i]));
        }
    }
    let whole: Vec<(u32, u32)> = starts.iter().zip(&ends).filter_map(|(s, &e)| s.map(|s| (s, e))).collect();
    let usual = typical(curve, &whole[..whole.len() - 1]);
    let usual = if usual == 0 { length } else { usual };
    let last = starts[beats.len() - 1].unwrap_or(curve.first);
    let rest = curve.end() - last;
    if rest > length + length / 5 {
        ends[beats.len() - 1] = around(last + length);
    }
    let level = |cut: u32| curve.transient[cut as usize];
    let mut levels: Vec<u64> = ends[..beats.len() - 1].iter().map(|&end| level(end)).collect();
    levels.sort_unstable();
    let valley = levels[levels.len() / 2] + curve.transient.iter().copied().max().unwrap_or(0) / 10;
    let counts: FxHashMap<u64, u32> = pattern.recurring.iter().copied().collect();
    let mut steps: Vec<(u32, u32)> = Vec::with_capacity(beats.len());
    for (start, &end) in starts.iter().zip(&ends) {
        let first = steps.is_empty();
        // Setting up and the creations of a first step have beats of their own. A stretch that ends in no valley is no
        // step.
        if first && level(end) > valley {
            continue;
        }
        // The first step may be longer, and a beat that fell into the setting up makes a poor beginning.
        let head = if first { head_start(curve, end, usual) } else { None };
        let Some(start) = head.or(*start).filter(|&s| s < end) else { continue };
        let regular = (end - start).abs_diff(length) <= length / 10;
        // The creations of a first step shift the lifetimes around it: if its length fits, fewer keys must.
        let fits = first && passing(curve, start, end).abs_diff(usual) <= usual / 16;
        if (regular && !first) || share_held(keys, &counts, start, end) >= if fits { 0.3 } else { 0.6 } {
            steps.push((start, end));
        }
    }
    // If the beat comes right behind the cut, the first step has its beat in none.
    if let Some(&(cut, _)) = steps.first() {
        let held = |start: u32| {
            let fits = passing(curve, start, cut).abs_diff(usual) <= usual / 16;
            share_held(keys, &counts, start, cut) >= if fits { 0.3 } else { 0.6 }
        };
        if let Some(start) = head_start(curve, cut, usual).filter(|&s| s < cut && held(s)) {
            steps.insert(0, (start, cut));
        }
    }
    if rest < length - length / 10 && steps.last().is_some_and(|s| s.1 == curve.end()) {
        steps.pop();
    }
    steps
}

/// The share of the recurring keys that occur in `start .. end` about as often as they should.
fn share_held(keys: &[u64], counts: &FxHashMap<u64, u32>, start: u32, end: u32) -> f64 {
    let mut seen: FxHashMap<u64, u32> = FxHashMap::default();
    for key in &keys[start as usize..end as usize] {
        if counts.contains_key(key) {
            *seen.entry(*key).or_default() += 1;
        }
    }
    let fitting = counts.iter().filter(|(k, c)| seen.get(k).is_some_and(|s| s * 4 >= **c * 3)).count();
    fitting as f64 / counts.len().max(1) as f64
}

/// Gradient accumulation: several passes make one step, and only at its end the gradients go. If every k-th boundary
/// is far lower than the others, the passes between two low ones are one step.
fn join_accumulation(curve: &Curve, steps: Vec<(u32, u32)>) -> Vec<(u32, u32)> {
    let at = |position: u32| curve.transient[position as usize];
    let peak = curve.transient.iter().copied().max().unwrap_or(0);
    let (low, high) = steps.iter().fold((u64::MAX, 0), |(l, h), s| (l.min(at(s.0)), h.max(at(s.0))));
    if steps.len() < 4 || high - low < peak / 50 {
        return steps;
    }
    let is_low = |position: u32| at(position) <= low + (high - low) / 5;
    let low_at: Vec<usize> = (0..steps.len()).filter(|&i| is_low(steps[i].0)).collect();
    if low_at.len() < 2 {
        return steps;
    }
    let group = low_at[1] - low_at[0];
    let even = low_at.windows(2).all(|w| w[1] - w[0] == group) && low_at[0] < group;
    let joined = steps.windows(2).all(|w| w[0].1 == w[1].0);
    if group < 2 || !even || !joined || (low_at.len() == 2 && steps.len() < 2 * group) {
        return steps;
    }
    let ends = low_at.iter().skip(1).map(|&i| steps[i].0).chain(
        // The last group is whole when all its passes are there.
        (steps.len() - low_at[low_at.len() - 1] == group).then(|| steps[steps.len() - 1].1),
    );
    low_at.iter().map(|&i| steps[i].0).zip(ends).collect()
}

#[cfg(test)]
mod tests;
