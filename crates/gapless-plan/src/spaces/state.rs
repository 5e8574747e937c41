//! The present choice of each buffer, and the live bytes that follow from it.

use crate::load::Load;

use super::model::Model;

/// Not placed for the moment.
pub(super) const TAKEN: u32 = u32::MAX;

/// Invariant: `loads[s]` holds the live bytes in the limited space s.
pub(super) struct State<'m> {
    pub(super) model: &'m Model<'m>,
    capacities: &'m [Option<u64>],
    loads: Vec<Option<Load>>,
    pub(super) choice_of: Vec<u32>,
    pub(super) cost: i128,
}

impl<'m> State<'m> {
    pub(super) fn empty(model: &'m Model<'m>, capacities: &'m [Option<u64>]) -> State<'m> {
        let loads = capacities.iter().map(|capacity| capacity.map(|_| Load::new(model.sections))).collect();
        State { model, capacities, loads, choice_of: vec![TAKEN; model.len()], cost: 0 }
    }

    pub(super) fn of(model: &'m Model<'m>, capacities: &'m [Option<u64>], choice_of: &[u32]) -> State<'m> {
        let mut state = State::empty(model, capacities);
        for (buffer, choice) in choice_of.iter().enumerate() {
            state.put(buffer, *choice);
        }
        state
    }

    pub(super) fn choice_of(&self) -> &[u32] {
        &self.choice_of
    }

    pub(super) fn cost(&self) -> i128 {
        self.cost
    }

    pub(super) fn load(&mut self, choice: u32, sign: i64) {
        let size = self.model.size(self.model.choice(choice).buffer) as i64 * sign;
        for (_, piece) in self.model.pieces_of(choice) {
            if let Some(load) = &mut self.loads[piece.space as usize] {
                for span in self.model.spans(piece) {
                    load.add(*span, size);
                }
            }
        }
    }

    /// Moves the buffer to a choice, even if there is no room.
    pub(super) fn put(&mut self, buffer: usize, choice: u32) {
        let old = self.choice_of[buffer];
        if old != TAKEN {
            self.load(old, -1);
            self.cost -= self.model.choice(old).cost;
        }
        if choice != TAKEN {
            self.load(choice, 1);
            self.cost += self.model.choice(choice).cost;
        }
        self.choice_of[buffer] = choice;
    }

    /// True if there is room for a choice, besides all that is placed now.
    pub(super) fn has_room(&self, choice: u32) -> bool {
        let size = self.model.size(self.model.choice(choice).buffer) as i64;
        self.model.pieces_of(choice).all(|(_, piece)| {
            let (Some(load), Some(capacity)) =
                (&self.loads[piece.space as usize], self.capacities[piece.space as usize])
            else {
                return true;
            };
            self.model.spans(piece).iter().all(|span| load.most(*span).0 + size <= capacity as i64)
        })
    }

    /// If the pieces of a placed choice need more than there is: the space, the section and the excess.
    pub(super) fn overfull(&self, choice: u32) -> Option<(u32, u32, i64)> {
        for (_, piece) in self.model.pieces_of(choice) {
            if let (Some(load), Some(capacity)) =
                (&self.loads[piece.space as usize], self.capacities[piece.space as usize])
            {
                for span in self.model.spans(piece) {
                    let (most, at) = load.most(*span);
                    if most > capacity as i64 {
                        return Some((piece.space, at, most - capacity as i64));
                    }
                }
            }
        }
        None
    }

    pub(super) fn covers(&self, choice: u32, space: u32, section: u32) -> bool {
        let mut pieces = self.model.pieces_of(choice).filter(|(_, piece)| piece.space == space);
        pieces.any(|(_, piece)| {
            self.model.spans(piece).iter().any(|(from, to)| *from <= section && section < *to)
        })
    }

    /// Moves the buffer to the cheapest choice below `before` that has room; false (and back where it was) without one.
    pub(super) fn settle(&mut self, buffer: usize, before: u32) -> bool {
        let old = self.choice_of[buffer];
        self.put(buffer, TAKEN);
        let found = (self.model.choices_of(buffer).start..before).find(|choice| self.has_room(*choice));
        self.put(buffer, found.unwrap_or(old));
        found.is_some()
    }
}

/// Buffers and the choices that they had before.
pub(super) type Log = Vec<(usize, u32)>;
