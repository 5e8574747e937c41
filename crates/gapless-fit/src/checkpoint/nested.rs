//! Checkpoints within checkpoints: the cheapest schedule of a chain where a block may run forward any number of times, by dynamic programming
//! over (first block, last block, memory) as in Beaumont, Eyraud-Dubois, Herrmann, Joly and Shilova, "Optimal checkpointing for heterogeneous
//! chains" (2019).
//!
//! Of a stretch of blocks, either the first block runs and saves, and the rest follows; or its input is held, the blocks before some
//! later one run without saving, the rest is done, and then the stretch before it. Memory is counted in slots and sizes are
//! rounded up to them, so a schedule never exceeds the budget; among schedules with rounded sizes it is the cheapest (persistent
//! ones: a held input stays until its stretch is done).

use super::Infeasible;
use super::chain::Measured;

/// A chain; the head is its own last block where it matters (`Measured` with its peak as `backward_working`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nested {
    pub base: u64,
    pub blocks: Vec<Measured>,
    /// Steps into which the budget is divided: 500 is fine, more is finer.
    pub slots: usize,
}

/// One operation of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Hold the input of this block until the block has run backward.
    Hold(usize),
    /// Run forward, save nothing: only the output lives on.
    Forward(usize),
    /// Run forward and save for backward.
    ForwardSaving(usize),
    Backward(usize),
}

/// Operations in order, and what forward runs cost beyond one of each block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    pub ops: Vec<Op>,
    pub recompute: u64,
}

/// What a stretch does first, once it is settled whether its first input is held.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Move {
    None,
    Save,
    /// Run to this block without saving.
    RunTo(u16),
}

const NEVER: u64 = u64::MAX;

struct Table {
    slots: usize,
    /// With the first input held, and paid for outside of the slots.
    held: Vec<(u64, Move)>,
    /// With the first input only passed in: the stretch saves (true), or pays for holding it.
    passed: Vec<(u64, bool)>,
}

impl Table {
    fn at(&self, from: usize, to: usize, slots: usize) -> usize {
        ((to - 1) * to / 2 + from) * (self.slots + 1) + slots
    }
}

impl Nested {
    /// The cheapest schedule within `budget`.
    pub fn solve(&self, budget: u64) -> Result<Schedule, Infeasible> {
        let n = self.blocks.len();
        let no = Infeasible { budget, least: self.base };
        let room = budget.checked_sub(self.base).ok_or(no)?;
        if n == 0 {
            return Ok(Schedule { ops: Vec::new(), recompute: 0 });
        }
        let slot = (room / self.slots.max(1) as u64).max(1);
        let total = (room / slot) as usize;
        let round = |bytes: u64| bytes.div_ceil(slot) as usize;
        let table = self.fill(total, &round);
        let cost = table.passed[table.at(0, n, total)].0;
        if cost == NEVER {
            return Err(no);
        }
        let mut ops = Vec::new();
        self.unroll_passed(&table, 0, n, total, &round, &mut ops);
        let once: u64 = self.blocks.iter().map(|block| block.forward_cost).sum();
        Ok(Schedule { ops, recompute: cost - once })
    }

    fn fill(&self, total: usize, round: &dyn Fn(u64) -> usize) -> Table {
        let n = self.blocks.len();
        // Gradients of parameters that are there once the blocks from i on have run backward.
        let mut later = vec![0; n + 1];
        let mut prefix = vec![0; n + 1];
        for i in (0..n).rev() {
            later[i] = later[i + 1] + self.blocks[i].gradient;
        }
        for (i, block) in self.blocks.iter().enumerate() {
            prefix[i + 1] = prefix[i] + block.forward_cost;
        }
        let size = n * (n + 1) / 2 * (total + 1);
        let mut table =
            Table { slots: total, held: vec![(NEVER, Move::None); size], passed: vec![(NEVER, false); size] };
        for length in 1..=n {
            for from in 0..=n - length {
                let to = from + length;
                let block = &self.blocks[from];
                // Once backward has begun, the gradient of the stretch's output waits for it.
                let given = if to == n { 0 } else { self.blocks[to - 1].output_gradient };
                let saving = round(block.saved + block.forward_working + given + later[to])
                    .max(round(block.saved + block.backward_working + later[from + 1]));
                let (saved, input) = (round(block.saved), round(block.input));
                // What running `[from, mid)` without saving needs.
                let mut running = vec![0; length];
                for mid in from + 1..to {
                    let last = &self.blocks[mid - 1];
                    let passed_on = if mid - 1 == from { 0 } else { last.input };
                    let need = round(passed_on + last.forward_working + given + later[to]);
                    running[mid - from] = need.max(running[mid - from - 1]);
                }
                for slots in 0..=total {
                    let rest = match slots.checked_sub(saved) {
                        _ if slots < saving => NEVER,
                        None => NEVER,
                        Some(_) if length == 1 => 0,
                        Some(left) => table.passed[table.at(from + 1, to, left)].0,
                    };
                    let save = if rest == NEVER { NEVER } else { rest + block.forward_cost };
                    let mut best = (save, Move::Save);
                    for mid in from + 1..to {
                        if slots < running[mid - from] {
                            break;
                        }
                        let rest = table.passed[table.at(mid, to, slots)].0;
                        let before = table.held[table.at(from, mid, slots)].0;
                        if rest != NEVER && before != NEVER {
                            let cost = prefix[mid] - prefix[from] + rest + before;
                            if cost < best.0 {
                                best = (cost, Move::RunTo(mid as u16));
                            }
                        }
                    }
                    let at = table.at(from, to, slots);
                    table.held[at] = if best.0 == NEVER { (NEVER, Move::None) } else { best };
                    let holding =
                        slots.checked_sub(input).map_or(NEVER, |left| table.held[at - slots + left].0);
                    table.passed[at] = if save <= holding { (save, true) } else { (holding, false) };
                }
            }
        }
        table
    }

    fn unroll_passed(
        &self,
        table: &Table,
        from: usize,
        to: usize,
        slots: usize,
        round: &dyn Fn(u64) -> usize,
        ops: &mut Vec<Op>,
    ) {
        // Saving first: then the input lives only as far as the block itself keeps it.
        if table.passed[table.at(from, to, slots)].1 {
            return self.unroll_saving(table, from, to, slots, round, ops);
        }
        ops.push(Op::Hold(from));
        self.unroll(table, from, to, slots - round(self.blocks[from].input), round, ops);
    }

    fn unroll(
        &self,
        table: &Table,
        from: usize,
        to: usize,
        slots: usize,
        round: &dyn Fn(u64) -> usize,
        ops: &mut Vec<Op>,
    ) {
        match table.held[table.at(from, to, slots)].1 {
            Move::Save => self.unroll_saving(table, from, to, slots, round, ops),
            Move::RunTo(mid) => {
                let mid = usize::from(mid);
                ops.extend((from..mid).map(Op::Forward));
                self.unroll_passed(table, mid, to, slots, round, ops);
                self.unroll(table, from, mid, slots, round, ops);
            }
            Move::None => unreachable!("only stretches with a finite cost are unrolled"),
        }
    }

    fn unroll_saving(
        &self,
        table: &Table,
        from: usize,
        to: usize,
        slots: usize,
        round: &dyn Fn(u64) -> usize,
        ops: &mut Vec<Op>,
    ) {
        ops.push(Op::ForwardSaving(from));
        if to - from > 1 {
            self.unroll_passed(table, from + 1, to, slots - round(self.blocks[from].saved), round, ops);
        }
        ops.push(Op::Backward(from));
    }
}
