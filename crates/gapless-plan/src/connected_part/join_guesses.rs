//! Guesses at how a part may be joined: by chance, or with care and second thoughts. A guess leaves a small problem,
//! which is searched at once; its plans are plans of the part.

use super::{EXACT_LIMIT, Part, Turn};
use crate::exact::{Answer, Restarts};
use crate::improve::Improver;
use crate::join::{Careful, Joined, join_by_chance};
use crate::passes::{Pass, orders};
use crate::rng::Rng;

/// Runs without success after which a guess is given up: one in each order of buffers. On J of the challenging set 4
/// came to 1.001 of the bound in 10 s, 8 came to 1.008 and 1 to 1.027.
const GUESS_RUNS: u32 = 4;

/// Second thoughts in one turn: nodes touched for each buffer, and the least.
const THOUGHTS: u64 = 10;
const LEAST_THOUGHTS: u64 = 200_000;

/// Nodes touched that count as one of effort.
const THOUGHTS_PER_EFFORT: u64 = 16;

/// Attempts of ejection on a careful join.
const EJECTIONS: usize = 12;

impl Part<'_> {
    /// Joins by chance and searches the result, a few times, further down after each success.
    pub(crate) fn guess_turn(&mut self, turn: &mut Turn<'_>) {
        let seed = turn.options.seed ^ 0x5eed_0000 ^ self.guesses;
        self.guesses += 1;
        let mut rng = Rng::new(seed);
        let apart = [0.0, 0.0, 0.02, 0.1][rng.below(4) as usize];
        let joined = join_by_chance(self.compact, apart, &mut rng);
        let share = [0.0, 0.3, 0.6, 0.85, 1.0][rng.below(5) as usize];
        let mut tries = 0;
        while tries < GUESS_RUNS && !self.is_done(turn) {
            let span = self.best - 1 - self.bound;
            let target = if turn.within { turn.goal } else { self.bound + (span as f64 * share) as i64 };
            let tricks = turn.options.tricks;
            let mut restarts = Restarts::new(&joined.compact, target.max(self.bound), tricks, seed);
            let mut answer = Answer::Unknown;
            while answer == Answer::Unknown && tries < GUESS_RUNS && !(turn.stop)() {
                answer = restarts.next(&mut turn.effort, turn.stop);
                tries += 1;
            }
            if answer != Answer::Fits {
                return;
            }
            let offsets = joined.spread(restarts.offsets(), self.compact.len());
            self.take(offsets);
            tries = 0;
        }
    }

    /// Has second thoughts about the careful joins and packs the result.
    pub(crate) fn careful_turn(&mut self, turn: &mut Turn<'_>) {
        let seed = turn.options.seed ^ 0xca4e_0000 ^ self.guesses;
        self.guesses += 1;
        let mut careful = self.careful.take().unwrap_or_else(|| {
            turn.effort += self.compact.len() as u64 / 16;
            Careful::new(self.compact, seed)
        });
        let thoughts = (self.compact.len() as u64 * THOUGHTS).max(LEAST_THOUGHTS);
        turn.effort += careful.think(thoughts, turn.stop) / THOUGHTS_PER_EFFORT + 1;
        if !(turn.stop)() {
            let joined = careful.joined(self.compact);
            turn.effort += self.compact.len() as u64 / 64;
            self.pack_joined(&joined, seed, turn);
        }
        self.careful = Some(careful);
    }

    /// Passes, exact search at the bound and above, and ejection.
    fn pack_joined(&mut self, joined: &Joined, seed: u64, turn: &mut Turn<'_>) {
        let compact = &joined.compact;
        let peak = |offsets: &[i64]| {
            offsets.iter().zip(&compact.size).map(|(offset, size)| offset + size).max().unwrap_or(0)
        };
        let mut best: Option<(i64, Vec<i64>)> = None;
        let mut pass = Pass::new(compact);
        for order in orders(compact.len()) {
            let below = best.as_ref().map_or(i64::MAX, |(peak, _)| *peak);
            if let Some(offsets) = pass.run(order, below, turn.stop) {
                best = Some((peak(offsets), offsets.to_vec()));
            }
            turn.effort += compact.len() as u64 / 16 + 1;
        }
        let Some((mut low, mut offsets)) = best else { return };
        let tricks = turn.options.tricks;
        let goal = turn.goal.max(self.bound);
        for share in [0.0, 0.5, 0.8] {
            if !tricks.exact || compact.len() > EXACT_LIMIT || low <= goal || (turn.stop)() {
                break;
            }
            let target = goal + ((low - 1 - goal) as f64 * share) as i64;
            let mut restarts = Restarts::new(compact, target, tricks, seed);
            for _ in 0..GUESS_RUNS {
                match restarts.next(&mut turn.effort, turn.stop) {
                    Answer::Fits => {
                        offsets = restarts.offsets().to_vec();
                        low = peak(&offsets);
                        break;
                    }
                    Answer::DoesNotFit => break,
                    Answer::Unknown => {}
                }
            }
        }
        let mut improver = Improver::new(compact, tricks, seed);
        for _ in 0..EJECTIONS {
            if !tricks.ejection || low <= goal || (turn.stop)() {
                break;
            }
            let (found, steps) = improver.turn(&offsets, low, goal, u64::MAX, turn.stop);
            turn.effort += steps.max(1);
            if let Some(found) = found.filter(|found| peak(found) < low) {
                low = peak(&found);
                offsets = found;
            }
        }
        if low < self.best {
            self.take(joined.spread(&offsets, self.compact.len()));
        }
    }
}
