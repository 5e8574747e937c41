//! Branch and bound over choices: buffers first about whose choice the prices leave least doubt, cheapest choice first,
//! cut off if the priced bound or the live bytes allow no better plan. The packer judges each leaf. One that does not
//! pack leaves behind the pieces that conflict, so that no other leaf repeats them.

use super::model::{Model, Placing};
use super::pack::{Packer, Verdict};
use super::prices::{Prices, SCALE};
use super::state::State;

struct Branch<'m, 'p, 'b, 'l> {
    model: &'m Model<'m>,
    prices: &'p Prices,
    packer: &'b mut Packer<'m, 'l>,
    best: &'b mut Placing,
    state: State<'m>,
    order: Vec<usize>,
    /// Choices of each buffer in order of price.
    choices: Vec<Vec<u32>>,
    /// The least that the buffers from here on pay.
    rest: Vec<i128>,
    active: Vec<bool>,
    /// Sets of pieces that do not pack, and for each piece those that it is in.
    conflicts: Vec<Vec<u32>>,
    conflicts_of: Vec<Vec<u32>>,
    /// The least cost of a leaf on which the packer had no verdict.
    doubtful: i128,
    limit: u64,
    cut_off: bool,
}

/// Improves the placing and returns a lower bound: that of the prices if the search was cut off.
pub(super) fn search<'m>(
    model: &'m Model<'m>,
    prices: &Prices,
    capacities: &'m [Option<u64>],
    best: &mut Placing,
    packer: &mut Packer<'m, '_>,
    effort: u64,
) -> i128 {
    let priced = |choice: u32| prices.priced[choice as usize];
    let mut choices: Vec<Vec<u32>> =
        (0..model.len()).map(|buffer| model.choices_of(buffer).collect()).collect();
    for list in &mut choices {
        list.sort_by_key(|choice| (priced(*choice), *choice));
    }
    let regret = |buffer: usize| {
        choices[buffer].get(1).map_or(i128::MAX, |second| priced(*second) - priced(choices[buffer][0]))
    };
    let mut order: Vec<usize> = (0..model.len()).collect();
    order.sort_by_key(|buffer| (std::cmp::Reverse(regret(*buffer)), *buffer));
    let mut rest = vec![0; order.len() + 1];
    for (at, buffer) in order.iter().enumerate().rev() {
        rest[at] = rest[at + 1] + priced(choices[*buffer][0]);
    }
    let pieces =
        (0..model.choices() as u32).flat_map(|choice| model.pieces_of(choice)).map(|(piece, _)| piece + 1);
    let pieces = pieces.max().unwrap_or(0) as usize;
    let limit = packer.effort.saturating_add(effort);
    // The state starts with every buffer in its last resort, which needs no limited room.
    let state = State::of(model, capacities, &model.nowhere().choice_of);
    let mut branch = Branch {
        model,
        prices,
        packer,
        best,
        state,
        order,
        choices,
        rest,
        active: vec![false; pieces],
        conflicts: Vec::new(),
        conflicts_of: vec![Vec::new(); pieces],
        doubtful: i128::MAX,
        limit,
        cut_off: false,
    };
    branch.descend(0, -prices.room);
    if branch.cut_off { prices.bound } else { branch.best.cost.min(branch.doubtful) }
}

impl Branch<'_, '_, '_, '_> {
    fn hopeless(&self, depth: usize, paid: i128) -> bool {
        let bound = paid + self.rest[depth];
        bound > (self.best.cost - 1) * SCALE
    }

    fn descend(&mut self, depth: usize, paid: i128) {
        self.packer.effort += 1;
        if self.packer.effort >= self.limit
            || (self.packer.effort.is_multiple_of(64) && self.packer.is_over())
        {
            self.cut_off = true;
            return;
        }
        let Some(buffer) = self.order.get(depth).copied() else {
            self.leaf();
            return;
        };
        let last = self.model.last_resort(buffer);
        for at in 0..self.choices[buffer].len() {
            let choice = self.choices[buffer][at];
            let paid = paid + self.prices.priced[choice as usize];
            if self.hopeless(depth + 1, paid) {
                break;
            }
            if !self.state.has_room(choice) {
                continue;
            }
            self.activate(choice, true);
            if !self.conflicts_with(choice) {
                self.state.put(buffer, choice);
                self.descend(depth + 1, paid);
                self.state.put(buffer, last);
            }
            self.activate(choice, false);
            if self.cut_off {
                return;
            }
        }
    }

    fn activate(&mut self, choice: u32, active: bool) {
        for (piece, _) in self.model.pieces_of(choice) {
            self.active[piece as usize] = active;
        }
    }

    fn conflicts_with(&self, choice: u32) -> bool {
        self.model.pieces_of(choice).any(|(piece, _)| {
            let mut sets = self.conflicts_of[piece as usize].iter();
            sets.any(|set| self.conflicts[*set as usize].iter().all(|other| self.active[*other as usize]))
        })
    }

    fn leaf(&mut self) {
        let choice_of = self.state.choice_of().to_vec();
        let cost = self.model.cost(&choice_of);
        if cost >= self.best.cost {
            return;
        }
        let mut offsets = vec![Vec::new(); self.best.offsets.len()];
        let mut doubt = false;
        for (space, line) in offsets.iter_mut().enumerate() {
            if self.model.capacity(space).is_none() {
                continue;
            }
            let (pieces, owner) = self.packer.members(&choice_of, space);
            match self.packer.pack(space, &pieces, &owner) {
                Verdict::Fits(found) => *line = pieces.into_iter().zip(found).collect(),
                Verdict::Unknown => doubt = true,
                Verdict::No => {
                    let conflict = self.packer.conflict(space, &pieces, &owner);
                    for piece in &conflict {
                        self.conflicts_of[*piece as usize].push(self.conflicts.len() as u32);
                    }
                    self.conflicts.push(conflict);
                    return;
                }
            }
        }
        if doubt {
            self.doubtful = self.doubtful.min(cost);
        } else {
            *self.best = Placing { choice_of, cost, offsets };
            self.packer.tell(cost);
        }
    }
}
