//! Steps from the named scopes of the run: scopes that are steps, or scopes of the optimizer that end them.
//!
//! Scopes carry times, so a source without a clock has no steps from here. All results are positions ([`Curve`]).

use super::curve::Curve;
use crate::block_notes::MODULE;
use crate::history::History;
use crate::strings::StringId;
use crate::trace::{DeviceTrace, Stage, Trace};
use crate::words::{EventIndex, Micros, Tick};
use std::collections::BTreeMap;

/// A scope as positions, half-open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Scope {
    start: u32,
    end: u32,
}

/// The result of reading the scopes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Scopes {
    /// Each is one step; `name` is common to all.
    Steps { name: String, steps: Vec<(u32, u32)> },
    /// A step ends at each cut; `first` is the beginning of the first optimizer step.
    Ends { name: String, first: u32, cuts: Vec<u32> },
}

/// Reads the scopes that lie on `device`, or all if none names that device.
pub(crate) fn find(trace: &Trace, device: &DeviceTrace, history: &History, curve: &Curve) -> Option<Scopes> {
    if trace.annotations.is_empty() || !device.events.has_times() {
        return None;
    }
    let by_name = scopes_by_name(trace, device, history, curve);
    let steps = by_name
        .iter()
        .filter_map(|(name, scopes)| step_rank(name).map(|rank| (rank, name, scopes)))
        .min_by_key(|(rank, _, scopes)| (*rank, std::cmp::Reverse(scopes.len())));
    if let Some((_, name, scopes)) = steps {
        let steps = steps_of(scopes, curve);
        if !steps.is_empty() {
            return Some(Scopes::Steps { name: name.clone(), steps });
        }
    }
    optimizer_ends(&by_name, curve)
}

/// Scopes by the name without its number, in order of time.
fn scopes_by_name(
    trace: &Trace,
    device: &DeviceTrace,
    history: &History,
    curve: &Curve,
) -> BTreeMap<String, Vec<Scope>> {
    let any_here = trace.annotations.iter().any(|a| a.device == device.device);
    let mut open: BTreeMap<StringId, Vec<u32>> = BTreeMap::new();
    let mut found: BTreeMap<String, Vec<Scope>> = BTreeMap::new();
    for a in trace.annotations.iter().filter(|a| !any_here || a.device == device.device) {
        let name = trace.strings.get(a.name);
        if step_rank(base_name(name)).is_none() && optimizer_scope(name).is_none() {
            continue;
        }
        let position = position_at(device, history, a.time);
        match a.stage {
            Stage::Start => open.entry(a.name).or_default().push(position),
            Stage::End => {
                // A scope that was open when the recording began starts with it.
                let start = open.get_mut(&a.name).and_then(Vec::pop).unwrap_or(curve.first);
                found.entry(base_name(name).to_owned()).or_default().push(Scope { start, end: position });
            }
        }
    }
    for scopes in found.values_mut() {
        scopes.sort_unstable_by_key(|s| (s.start, std::cmp::Reverse(s.end)));
        // A scope inside one of its own name (a wrapped optimizer) is the same step.
        let mut reach = 0;
        scopes.retain(|s| {
            let outer = s.end > reach || s.start >= reach;
            reach = reach.max(s.end);
            outer
        });
    }
    found
}

/// The first allocation born after `time`.
fn position_at(device: &DeviceTrace, history: &History, time: Micros) -> u32 {
    let (mut low, mut high) = (0u32, device.events.len() as u32);
    while low < high {
        let middle = low + (high - low) / 2;
        if device.events.time(EventIndex(middle)) <= time {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    Curve::position(history, Tick(low))
}

/// A name without the number behind it: `ProfilerStep#12` is `ProfilerStep`.
fn base_name(name: &str) -> &str {
    name.trim_end_matches(|c: char| c.is_ascii_digit())
        .trim_end_matches(['#', ' ', ':', '_', '=', '/', '-', '.'])
}

/// The trust in a scope of this name as a step, 0 for the most; `None`: it is none.
fn step_rank(base: &str) -> Option<u8> {
    if base == "ProfilerStep" {
        return Some(0);
    }
    if base.starts_with(MODULE) {
        return None;
    }
    let lower = base.to_ascii_lowercase();
    if ["optim", "sched", "scaler", "zero_grad"].iter().any(|part| lower.contains(part)) {
        return None;
    }
    let last = lower.rsplit([':', '.', '/', ' ', ']', '|']).next().unwrap_or("");
    match last {
        _ if lower.starts_with("gapless") && last == "step" => Some(1),
        "step" | "train_step" | "training_step" | "trainstep" | "train_batch" | "run_training_batch" => {
            Some(2)
        }
        "iteration" | "iter" | "train_iter" | "decode_step" | "execute_model" => Some(3),
        _ => None,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OptimizerScope {
    Step,
    ZeroGrad,
}

fn optimizer_scope(name: &str) -> Option<OptimizerScope> {
    if name.starts_with("Optimizer.step#") {
        Some(OptimizerScope::Step)
    } else if name.starts_with("Optimizer.zero_grad#") {
        Some(OptimizerScope::ZeroGrad)
    } else {
        None
    }
}

/// Each scope, up to the next one unless much lies between (an evaluation, a checkpoint).
fn steps_of(scopes: &[Scope], curve: &Curve) -> Vec<(u32, u32)> {
    let mut cycles: Vec<u32> = scopes.windows(2).map(|w| w[1].start - w[0].start).collect();
    cycles.sort_unstable();
    let cycle = cycles.get(cycles.len() / 2).copied().unwrap_or(0);
    let within: u64 = scopes.iter().map(|s| u64::from(s.end - s.start)).sum();
    // Scopes around the forward pass only: a step then reaches from one beginning to the next.
    let whole = within as f64 >= 0.6 * f64::from(cycle) * scopes.len() as f64;
    let mut steps = Vec::with_capacity(scopes.len());
    for (i, scope) in scopes.iter().enumerate() {
        let next = scopes.get(i + 1).map(|s| s.start);
        let end = match next {
            Some(next) if !whole || next.saturating_sub(scope.end) * 4 <= cycle => next,
            None if !whole => curve.low_near(scope.end, curve.end() + 1, scope.start + cycle),
            _ => scope.end,
        };
        if end > scope.start {
            steps.push((scope.start, end));
        }
    }
    steps
}

/// The ends of the optimizer's steps, moved behind a `zero_grad` that follows at once.
fn optimizer_ends(by_name: &BTreeMap<String, Vec<Scope>>, curve: &Curve) -> Option<Scopes> {
    let of = |kind| by_name.iter().filter(move |(name, _)| optimizer_scope(name) == Some(kind));
    // Of several optimizers, the one that is last to step in a cycle ends it.
    let (name, scopes) = of(OptimizerScope::Step).max_by_key(|(_, scopes)| scopes.last().map(|s| s.end))?;
    let mut zero_grads: Vec<Scope> =
        of(OptimizerScope::ZeroGrad).flat_map(|(_, s)| s.iter().copied()).collect();
    zero_grads.sort_unstable_by_key(|s| s.start);
    let scopes = join_bursts(scopes);
    let first = scopes.first()?.start;
    let mut cuts = Vec::with_capacity(scopes.len());
    for (i, scope) in scopes.iter().enumerate() {
        let next = scopes.get(i + 1).map_or(curve.end(), |s| s.start);
        let near = scope.end + ((next - scope.end.min(next)) / 50).max(8);
        let from = zero_grads.partition_point(|z| z.start < scope.end);
        let zero = zero_grads[from..].iter().take_while(|z| z.start <= near && z.start <= next).last();
        let cut = zero.map_or(scope.end, |z| z.end.max(scope.end)).min(curve.end());
        if cuts.last() != Some(&cut) {
            cuts.push(cut);
        }
    }
    Some(Scopes::Ends { name: name.clone(), first, cuts })
}

/// Optimizers that step once a parameter, in the backward pass, step in bursts: a burst is one step. The pause between
/// bursts, which holds the forward pass, is several times the pauses within.
fn join_bursts(scopes: &[Scope]) -> Vec<Scope> {
    let mut pauses: Vec<u32> = scopes.windows(2).map(|w| w[1].start.saturating_sub(w[0].end)).collect();
    let sequence = pauses.clone();
    pauses.sort_unstable();
    let median = pauses.get(pauses.len() / 2).copied().unwrap_or(0);
    let longest = pauses.last().copied().unwrap_or(0);
    if longest < 8 || median * 4 > longest {
        return scopes.to_vec();
    }
    let mut joined: Vec<Scope> = vec![scopes[0]];
    for (pause, scope) in sequence.into_iter().zip(&scopes[1..]) {
        match joined.last_mut() {
            Some(last) if pause * 2 < longest => last.end = scope.end,
            _ => joined.push(*scope),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_steps_are_told_from_other_scopes() {
        let cases = [
            ("ProfilerStep#3", Some(0)),
            ("gapless.step 12", Some(1)),
            ("train_step_7", Some(2)),
            ("iteration 4", Some(3)),
            ("Optimizer.step#AdamW.step", None),
            ("lr_scheduler.step", None),
            ("forward", None),
            ("module: model.step", None),
            ("12", None),
        ];
        for (name, rank) in cases {
            assert_eq!(step_rank(base_name(name)), rank, "{name}");
        }
    }

    #[test]
    fn an_optimizer_that_steps_once_a_parameter_makes_one_step_a_burst() {
        let mut scopes = Vec::new();
        for step in 0..5 {
            for parameter in 0..10 {
                let start = step * 1000 + 500 + parameter * 20;
                scopes.push(Scope { start, end: start + 5 });
            }
        }
        let joined = join_bursts(&scopes);
        assert_eq!(joined.len(), 5);
        assert_eq!(joined[1], Scope { start: 1500, end: 1685 });
    }
}
