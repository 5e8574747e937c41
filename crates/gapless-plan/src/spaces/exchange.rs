//! Choosing by exchange: a first choice in the order of the value of room, then buffers push others out if that lowers
//! the traffic, and freed room is given to buffers that gain by it.
//!
//! Room is judged by live bytes. If a placing is given, the packer has the last word on each exchange, so that the
//! placing stays valid; without one, the result may not pack.

use crate::rng::Rng;

use super::model::{Model, Placing};
use super::pack::Packer;
use super::prices::Prices;
use super::state::{Log, State, TAKEN};

/// Passes without success over all buffers that want a better place after which the exchanges end.
const PATIENCE: u32 = 24;

/// Other buffers that are tried in the room that an exchange left.
const ASKED: usize = 256;

/// The best of several first choices, each in an order of its own.
pub(super) fn greedy<'m>(model: &'m Model<'m>, prices: &Prices, capacities: &'m [Option<u64>]) -> State<'m> {
    let mut best: Option<State<'m>> = None;
    for order in 0..4 {
        let key = |buffer: usize| -> f64 {
            let choices = model.choices_of(buffer);
            let last = model.last_resort(buffer);
            let saved = (model.choice(last).cost - model.choice(choices.start).cost) as f64;
            let size = model.size(buffer as u32).max(1) as f64;
            let life = model.problem.buffers()[buffer].lifetime;
            match order {
                0 => {
                    let mut two: Vec<i128> = choices.map(|choice| prices.priced[choice as usize]).collect();
                    two.sort_unstable();
                    two.get(1).map_or(0.0, |second| (second - two[0]) as f64)
                }
                1 => saved / size / (life.end as f64 - life.start as f64),
                2 => saved / size,
                _ => saved,
            }
        };
        let mut buffers: Vec<(f64, usize)> = (0..model.len()).map(|buffer| (key(buffer), buffer)).collect();
        buffers.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        let mut state = State::empty(model, capacities);
        for (_, buffer) in &buffers {
            let mut choices: Vec<u32> = model.choices_of(*buffer).collect();
            if order == 0 {
                choices.sort_by_key(|choice| (prices.priced[*choice as usize], *choice));
            }
            let found = choices.into_iter().find(|choice| state.has_room(*choice));
            state.put(*buffer, found.unwrap_or_else(|| model.last_resort(*buffer)));
        }
        // Buffers that the prices kept out may fit after all.
        for (_, buffer) in &buffers {
            let now = state.choice_of[*buffer];
            state.settle(*buffer, now);
        }
        if best.as_ref().is_none_or(|best| state.cost < best.cost) {
            best = Some(state);
        }
    }
    best.unwrap_or_else(|| State::empty(model, capacities))
}

/// Exchanges until `PATIENCE` is used up or the steps are spent. With a placing, only exchanges that pack are kept,
/// the state must be the placing's, and the placing becomes the best one found; without, the state becomes that.
pub(super) fn improve(
    state: &mut State<'_>,
    mut placing: Option<&mut Placing>,
    packer: &mut Packer<'_, '_>,
    steps: u64,
    salt: u64,
) {
    let model = state.model;
    let mut rng = Rng::new(packer.seed() ^ salt.wrapping_mul(0x9e37_79b9));
    let limit = packer.effort.saturating_add(steps);
    let mut best = (state.cost, state.choice_of.clone());
    let mut offsets = placing.as_ref().map(|placing| placing.offsets.clone());
    let mut stale = 0;
    for pass in 0u32.. {
        let mut wanting: Vec<usize> =
            (0..model.len()).filter(|at| state.choice_of[*at] > model.choices_of(*at).start).collect();
        if wanting.is_empty() || stale > PATIENCE {
            break;
        }
        for at in (1..wanting.len()).rev() {
            wanting.swap(at, rng.below(at as u64 + 1) as usize);
        }
        // The average gain of one of them: every second pass may lose up to a share of that.
        let gains: i128 = wanting
            .iter()
            .map(|at| {
                let first = model.choice(model.choices_of(*at).start).cost;
                (model.choice(state.choice_of[*at]).cost - first).min(model.no_place())
            })
            .sum();
        let slack = if pass % 2 == 0 { 0.0 } else { gains as f64 / wanting.len() as f64 * 0.5 };
        stale += 1;
        for buffer in wanting {
            if packer.effort >= limit || packer.is_over() {
                break;
            }
            packer.effort += model.len() as u64 / 32 + 1;
            let loss = (slack * rng.unit() * rng.unit()) as i128;
            let Some(log) = attempt(state, buffer, loss, &mut rng) else { continue };
            if let Some(offsets) = &mut offsets
                && !packer.repack(state.choice_of(), &log, offsets)
            {
                undo(state, &log);
                continue;
            }
            if state.cost < best.0 {
                best = (state.cost, state.choice_of.clone());
                stale = 0;
                if let (Some(placing), Some(offsets)) = (&mut placing, &offsets) {
                    placing.choice_of.clone_from(&best.1);
                    placing.cost = best.0;
                    placing.offsets.clone_from(offsets);
                    packer.tell(best.0);
                }
            }
        }
        if packer.effort >= limit || packer.is_over() {
            break;
        }
        if pass % 6 == 5 {
            restore(state, &best.1);
            if let (Some(placing), Some(offsets)) = (&placing, &mut offsets) {
                offsets.clone_from(&placing.offsets);
            }
        }
    }
    restore(state, &best.1);
}

fn restore(state: &mut State<'_>, choice_of: &[u32]) {
    for (buffer, choice) in choice_of.iter().enumerate() {
        if state.choice_of[buffer] != *choice {
            state.put(buffer, *choice);
        }
    }
}

fn undo(state: &mut State<'_>, log: &Log) {
    for (buffer, choice) in log.iter().rev() {
        state.put(*buffer, *choice);
    }
}

/// Moves the buffer to a cheaper choice, pushes out others in its way, and gives the room that is left to others.
/// `None`, with nothing changed, if that loses more than `loss`.
fn attempt(state: &mut State<'_>, buffer: usize, loss: i128, rng: &mut Rng) -> Option<Log> {
    let model = state.model;
    let (before, old, first) = (state.cost, state.choice_of[buffer], model.choices_of(buffer).start);
    if old <= first {
        return None;
    }
    let target = first + rng.below(u64::from(old - first)) as u32;
    let mut log: Log = vec![(buffer, old)];
    state.put(buffer, target);
    while let Some((space, section, excess)) = state.overfull(target) {
        let moved = push_out(state, &log, (space, section, excess), rng);
        match moved {
            Some(entry) => log.push(entry),
            None => {
                undo(state, &log);
                return None;
            }
        }
        // An exchange that has lost this much will hardly win it back.
        if log.len() > 64 {
            undo(state, &log);
            return None;
        }
    }
    let count = model.len();
    let (asked, start) = (ASKED.min(count), rng.below(count as u64) as usize);
    for step in 0..asked {
        let other = (start + step) % count;
        let now = state.choice_of[other];
        if now > model.choices_of(other).start && state.settle(other, now) {
            log.push((other, now));
        }
    }
    let changed = log.iter().any(|(at, choice)| state.choice_of[*at] != *choice);
    if !changed || state.cost >= before + loss.max(1) || (loss == 0 && state.cost == before) {
        undo(state, &log);
        return None;
    }
    Some(log)
}

/// Moves away one of the buffers that lie in the space at that time and are not in the log: the one that loses least
/// for the room it leaves.
fn push_out(
    state: &mut State<'_>,
    log: &Log,
    (space, section, excess): (u32, u32, i64),
    rng: &mut Rng,
) -> Option<(usize, u32)> {
    let model = state.model;
    let mut others: Vec<(f64, usize)> = Vec::new();
    for other in 0..model.len() {
        let now = state.choice_of[other];
        let size = model.size(other as u32);
        if size == 0 || !state.covers(now, space, section) || log.iter().any(|(at, _)| *at == other) {
            continue;
        }
        let elsewhere = model.choices_of(other).find(|choice| !state.covers(*choice, space, section));
        if let Some(elsewhere) = elsewhere {
            let loss = (model.choice(elsewhere).cost - model.choice(now).cost) as f64;
            let room = (size as f64).min(excess as f64);
            others.push((loss / room * (0.7 + 0.6 * rng.unit()), other));
        }
    }
    others.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    for (_, other) in others.into_iter().take(8) {
        let now = state.choice_of[other];
        state.put(other, TAKEN);
        let found = model
            .choices_of(other)
            .find(|choice| !state.covers(*choice, space, section) && state.has_room(*choice));
        state.put(other, found.unwrap_or(now));
        if found.is_some() {
            return Some((other, now));
        }
    }
    None
}
