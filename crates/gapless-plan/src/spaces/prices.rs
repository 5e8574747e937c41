//! Prices: the value of a byte of a limited space at each time. If room has a price instead of a limit, every buffer
//! can choose for itself. The sum that all pay, less the value of all room, is a lower bound on the traffic: any plan
//! within the capacities pays for no more room than there is.
//!
//! Prices rise in sections in which chosen buffers need more than there is, and fall in others (subgradient steps).
//! They are rounded to whole numbers before the bound is computed, so the bound is exact whatever the steps were.

use super::model::Model;

/// Prices are in fractions of this of the unit of cost.
pub(super) const SCALE: i128 = 1 << 10;

const ROUNDS: u64 = 400;

/// Choices times rounds is at most this.
const WORK: u64 = 60_000_000;

pub(super) struct Prices {
    /// For each choice its cost and the price of its room, times [`SCALE`].
    pub(super) priced: Vec<i128>,
    /// The value of all room, times [`SCALE`]: sum of the cheapest choices less this is the bound.
    pub(super) room: i128,
    pub(super) bound: i128,
    pub(super) effort: u64,
}

impl Prices {
    /// Room is free.
    pub(super) fn none(model: &Model<'_>) -> Prices {
        let choices = 0..model.choices() as u32;
        let bound = (0..model.len()).map(|buffer| model.choice(model.choices_of(buffer).start).cost).sum();
        let priced = choices.map(|choice| model.choice(choice).cost * SCALE).collect();
        Prices { priced, room: 0, bound, effort: 0 }
    }
}

/// `reached` is the cost of some choice for each, by which the steps are measured.
pub(super) fn find(
    model: &Model<'_>,
    capacities: &[Option<u64>],
    reached: i128,
    stop: &dyn Fn() -> bool,
) -> Prices {
    let (sections, spaces) = (model.sections, capacities.len());
    let mut price: Vec<Vec<f64>> =
        capacities.iter().map(|capacity| vec![0.0; if capacity.is_some() { sections } else { 0 }]).collect();
    let mut best = Prices::none(model);
    let rounds =
        ROUNDS.min(WORK / (model.choices() as u64 + 2 * sections as u64 * spaces as u64 + 1)).max(10);
    let (mut step, mut stale) = (1.0, 0);
    let mut change: Vec<Vec<f64>> = price.clone();
    let mut high = reached as f64;
    for _ in 0..rounds {
        if stop() {
            break;
        }
        best.effort += model.choices() as u64 / 16 + 1;
        let Some((priced, room)) = priced(model, capacities, &price) else { break };
        for (space, line) in change.iter_mut().enumerate() {
            line.fill(0.0);
            if let (Some(first), Some(capacity)) = (line.first_mut(), capacities[space]) {
                *first = -(capacity as f64);
            }
        }
        let mut sum = -room;
        for buffer in 0..model.len() {
            let chosen = model.choices_of(buffer).min_by_key(|choice| priced[*choice as usize]).unwrap_or(0);
            sum += priced[chosen as usize];
            let size = model.size(buffer as u32) as f64;
            for (_, piece) in model.pieces_of(chosen) {
                let line = &mut change[piece.space as usize];
                if !line.is_empty() {
                    for (from, to) in model.spans(piece) {
                        line[*from as usize] += size;
                        if let Some(after) = line.get_mut(*to as usize) {
                            *after -= size;
                        }
                    }
                }
            }
        }
        // Rounded up: traffic is a whole number.
        let bound = sum.div_euclid(SCALE) + i128::from(sum.rem_euclid(SCALE) > 0);
        if bound > best.bound {
            (best.priced, best.room, best.bound) = (priced, room, bound);
            stale = 0;
        } else {
            stale += 1;
            if stale >= 8 {
                step *= 0.6;
                stale = 0;
            }
        }
        let value = sum as f64 / SCALE as f64;
        high = high.max(value);
        let mut norm = 0.0;
        for (space, line) in change.iter_mut().enumerate() {
            let mut live = 0.0;
            for (at, slope) in line.iter_mut().enumerate() {
                live += *slope;
                // A price that is 0 cannot fall, so it has no slope downwards.
                *slope = if live < 0.0 && price[space][at] <= 0.0 { 0.0 } else { live };
                norm += *slope * *slope;
            }
        }
        if norm <= 0.0 || step < 1e-5 {
            break;
        }
        let length = step * 0.3 * (high - value).max(value.abs() * 1e-6) / norm;
        for (line, slopes) in price.iter_mut().zip(&change) {
            for (price, slope) in line.iter_mut().zip(slopes) {
                *price = (*price + length * slope).max(0.0);
            }
        }
    }
    best
}

/// Every choice with the price of its room, and the worth of all room; `None` if a sum leaves 128 bits.
fn priced(model: &Model<'_>, capacities: &[Option<u64>], price: &[Vec<f64>]) -> Option<(Vec<i128>, i128)> {
    let mut room = 0i128;
    let mut sums: Vec<Vec<i128>> = Vec::with_capacity(price.len());
    for (line, capacity) in price.iter().zip(capacities) {
        let mut sum = 0i128;
        let mut line_sums = Vec::with_capacity(line.len() + 1);
        line_sums.push(0);
        for price in line {
            sum = sum.checked_add((price * SCALE as f64) as i128)?;
            line_sums.push(sum);
        }
        room = room.checked_add(sum.checked_mul(i128::from(capacity.unwrap_or(0)))?)?;
        sums.push(line_sums);
    }
    let mut priced = Vec::with_capacity(model.choices());
    for choice in 0..model.choices() as u32 {
        let all = model.choice(choice);
        let size = i128::from(model.size(all.buffer));
        let mut sum = all.cost * SCALE;
        for (_, piece) in model.pieces_of(choice) {
            let line = &sums[piece.space as usize];
            if line.len() > 1 {
                for (from, to) in model.spans(piece) {
                    let price = line[*to as usize] - line[*from as usize];
                    sum = sum.checked_add(size.checked_mul(price)?)?;
                }
            }
        }
        priced.push(sum);
    }
    Some((priced, room))
}
