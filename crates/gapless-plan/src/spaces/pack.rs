//! Decides if a choice packs: asks the planner of single spaces, with a limited effort, and keeps its answers.

use std::sync::atomic::AtomicBool;

use gapless_trace::Bytes;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::error::Result;
use crate::options::Options;
use crate::problem::{Buffer, Problem};
use crate::solve::{Solution, solve, solve_without_conflict};
use crate::watch::{Clock, Watch};

use super::model::{Model, Placing};
use super::state::{Log, State};
use super::{Residence, SpacePlan, SpaceProgress};

/// Nodes for one question, besides a share for each buffer in it.
const PACK_EFFORT: u64 = 5_000;

/// Nodes for the plan of an unlimited space.
const UNLIMITED_EFFORT: u64 = 50_000;

/// Answers that are kept.
const MEMO_LIMIT: usize = 50_000;

#[derive(Clone)]
pub(super) enum Verdict {
    /// The offsets, in the order of the pieces asked about.
    Fits(Vec<u64>),
    No,
    Unknown,
}

pub(super) struct Packer<'a, 'l> {
    model: &'a Model<'a>,
    options: &'a Options,
    clock: Clock<'a>,
    cancel: Option<&'a AtomicBool>,
    limit: u64,
    pub(super) effort: u64,
    /// The best lower bound so far, for the listener.
    pub(super) bound: i128,
    listener: Option<&'l mut dyn FnMut(SpaceProgress)>,
    memo: FxHashMap<(usize, Box<[u32]>), Verdict>,
}

impl<'a, 'l> Packer<'a, 'l> {
    pub(super) fn new(
        model: &'a Model<'a>,
        options: &'a Options,
        clock: Clock<'a>,
        cancel: Option<&'a AtomicBool>,
        limit: u64,
    ) -> Packer<'a, 'l> {
        Packer {
            model,
            options,
            clock,
            cancel,
            limit,
            effort: 0,
            bound: 0,
            listener: None,
            memo: FxHashMap::default(),
        }
    }

    /// Sets the listener for better plans.
    pub(super) fn listen(&mut self, listener: &'l mut dyn FnMut(SpaceProgress)) {
        self.listener = Some(listener);
    }

    /// A plan of this cost was found, and none before was cheaper. A choice in which a buffer lies nowhere is no plan.
    pub(super) fn tell(&mut self, cost: i128) {
        if cost < self.model.no_place()
            && let Some(listener) = &mut self.listener
        {
            let lower_bound = self.bound.clamp(0, cost) as u128;
            let (elapsed, effort) = (self.clock.elapsed(), self.effort);
            listener(SpaceProgress { traffic: cost as u128, lower_bound, elapsed, effort });
        }
    }

    pub(super) fn seed(&self) -> u64 {
        self.options.seed
    }

    pub(super) fn is_over(&self) -> bool {
        self.effort >= self.limit || self.clock.is_over()
    }

    pub(super) fn effort_left(&self) -> u64 {
        self.limit.saturating_sub(self.effort)
    }

    fn problem_of(&self, pieces: &[u32], owner: &[u32]) -> Result<Problem> {
        let buffers = pieces.iter().zip(owner).map(|(piece, owner)| {
            let buffer = &self.model.problem.buffers()[*owner as usize];
            Buffer { lifetime: self.model.piece(*piece).lifetime, hint: None, ..buffer.clone() }
        });
        Problem::new(buffers.collect())
    }

    /// The options for one space; its time limit is the rest of the time.
    fn options(&self, capacity: Option<u64>, effort: u64) -> Options {
        let left = self.options.time_limit.map(|limit| limit.saturating_sub(self.clock.elapsed()));
        let options = self.options.clone();
        Options {
            capacity: capacity.map(Bytes),
            effort: Some(effort),
            time_limit: left,
            threads: 1,
            ..options
        }
    }

    fn ask(&mut self, space: usize, pieces: &[u32], owner: &[u32], effort: u64) -> Result<Solution> {
        let problem = self.problem_of(pieces, owner)?;
        let options = self.options(self.model.capacity(space), effort);
        let mut watch = Watch { cancel: self.cancel, on_better: None };
        let solution = solve_without_conflict(&problem, &options, &mut watch)?;
        self.effort += solution.effort + pieces.len() as u64 / 8 + 1;
        Ok(solution)
    }

    /// The verdict on these pieces, in ascending order, in the space.
    pub(super) fn pack(&mut self, space: usize, pieces: &[u32], owner: &[u32]) -> Verdict {
        let key = (space, Box::from(pieces));
        if let Some(verdict) = self.memo.get(&key) {
            self.effort += 1;
            return verdict.clone();
        }
        let effort = PACK_EFFORT + pieces.len() as u64 * 4;
        let verdict = match self.ask(space, pieces, owner, effort) {
            Ok(solution) => match solution.fits {
                Some(true) => Verdict::Fits(solution.plan.offsets.iter().map(|offset| offset.0).collect()),
                Some(false) => Verdict::No,
                None => Verdict::Unknown,
            },
            // Two buffers that are fixed in the same place cannot lie in the same space.
            Err(_) => Verdict::No,
        };
        if self.memo.len() < MEMO_LIMIT && self.model.len() <= 2000 {
            self.memo.insert(key, verdict.clone());
        }
        verdict
    }

    /// Pieces that do not pack by themselves, out of a set that does not.
    pub(super) fn conflict(&mut self, space: usize, pieces: &[u32], owner: &[u32]) -> Vec<u32> {
        let options = self.options(self.model.capacity(space), PACK_EFFORT + pieces.len() as u64 * 4);
        let answer = self.problem_of(pieces, owner).and_then(|problem| {
            let mut watch = Watch { cancel: self.cancel, on_better: None };
            solve(&problem, &options, &mut watch)
        });
        let Ok(solution) = answer else { return pieces.to_vec() };
        self.effort += solution.effort;
        if solution.conflict.is_empty() {
            return pieces.to_vec();
        }
        solution.conflict.iter().map(|at| pieces[*at]).collect()
    }

    /// The pieces in a space, ascending, and their buffers.
    pub(super) fn members(&self, choice_of: &[u32], space: usize) -> (Vec<u32>, Vec<u32>) {
        let mut members = Vec::new();
        for (buffer, choice) in choice_of.iter().enumerate() {
            for (piece, all) in self.model.pieces_of(*choice) {
                if all.space as usize == space {
                    members.push((piece, buffer as u32));
                }
            }
        }
        members.sort_unstable();
        members.into_iter().unzip()
    }

    /// Follows an exchange: spaces that gained pieces are packed again, and pieces that left are dropped from the
    /// others. False, with the offsets as they were, if a space does not pack.
    pub(super) fn repack(&mut self, choice_of: &[u32], log: &Log, offsets: &mut [Vec<(u32, u64)>]) -> bool {
        let mut gained = vec![false; offsets.len()];
        let mut lost: Vec<u32> = Vec::new();
        for (buffer, old) in log {
            for (_, piece) in self.model.pieces_of(choice_of[*buffer]) {
                gained[piece.space as usize] |= choice_of[*buffer] != *old;
            }
            lost.extend(self.model.pieces_of(*old).map(|(piece, _)| piece));
        }
        let mut packed = Vec::new();
        for (space, gained) in gained.into_iter().enumerate() {
            if gained && self.model.capacity(space).is_some() {
                let (pieces, owner) = self.members(choice_of, space);
                let Verdict::Fits(found) = self.pack(space, &pieces, &owner) else { return false };
                packed.push((space, pieces.into_iter().zip(found).collect()));
            }
        }
        // A buffer may have left and come back within the log: pieces that are still chosen stay.
        for (buffer, _) in log {
            let stays: Vec<u32> = self.model.pieces_of(choice_of[*buffer]).map(|(piece, _)| piece).collect();
            lost.retain(|piece| !stays.contains(piece));
        }
        for line in offsets.iter_mut() {
            line.retain(|(piece, _)| !lost.contains(piece));
        }
        for (space, line) in packed {
            offsets[space] = line;
        }
        true
    }

    /// Packs each limited space in order of cost. Pieces that stick out go to the next space, and in the end to one
    /// that always has room. The flag is true if some did.
    pub(super) fn pack_or_drop(&mut self, choice_of: &[u32]) -> (Placing, bool) {
        let model = self.model;
        let full = model.capacities(0.0);
        let mut state = State::of(model, &full, choice_of);
        let mut order: Vec<usize> = (0..full.len()).filter(|space| full[*space].is_some()).collect();
        order.sort_by_key(|space| (model.spaces.all()[*space].cost, *space));
        let mut offsets: Vec<Vec<(u32, u64)>> = vec![Vec::new(); full.len()];
        let mut dropped = false;
        for (at, space) in order.iter().enumerate() {
            let later = &order[at + 1..];
            let (mut pieces, mut owner) = self.members(state.choice_of(), *space);
            let mut out: FxHashSet<u32> = self.fixed_twice(&pieces, &owner).into_iter().collect();
            let mut keep = pieces.iter().map(|piece| !out.contains(piece));
            owner.retain(|_| keep.next().unwrap_or(true));
            pieces.retain(|piece| !out.contains(piece));
            let effort = PACK_EFFORT * 4 + pieces.len() as u64 * 4;
            if let Ok(solution) = self.ask(*space, &pieces, &owner, effort) {
                let capacity = full[*space].unwrap_or(u64::MAX);
                for ((piece, owner), offset) in pieces.iter().zip(&owner).zip(&solution.plan.offsets) {
                    if offset.0 + model.size(*owner) <= capacity {
                        offsets[*space].push((*piece, offset.0));
                    } else {
                        out.insert(*piece);
                    }
                }
            } else {
                out.extend(&pieces);
            }
            let homeless: Vec<usize> = (0..model.len())
                .filter(|buffer| {
                    model.pieces_of(state.choice_of()[*buffer]).any(|(piece, _)| out.contains(&piece))
                })
                .collect();
            dropped |= !homeless.is_empty();
            for buffer in homeless {
                let old = state.choice_of()[buffer];
                for (piece, all) in model.pieces_of(old) {
                    offsets[all.space as usize].retain(|(other, _)| *other != piece);
                }
                state.put(buffer, model.last_resort(buffer));
                let open = |choice: &u32| {
                    model.pieces_of(*choice).all(|(_, piece)| {
                        full[piece.space as usize].is_none() || later.contains(&(piece.space as usize))
                    })
                };
                let found = model.choices_of(buffer).filter(open).find(|choice| state.has_room(*choice));
                state.put(buffer, found.unwrap_or_else(|| model.last_resort(buffer)));
            }
        }
        let choice_of = state.choice_of().to_vec();
        (Placing { cost: model.cost(&choice_of), choice_of, offsets }, dropped)
    }

    /// Pieces that are fixed in the place of one before them.
    fn fixed_twice(&self, pieces: &[u32], owner: &[u32]) -> Vec<u32> {
        let mut kept: Vec<&Buffer> = Vec::new();
        let mut out = Vec::new();
        for (piece, owner) in pieces.iter().zip(owner) {
            let buffer = &self.model.problem.buffers()[*owner as usize];
            let Some(offset) = buffer.fixed else { continue };
            let meets = |other: &&Buffer| {
                let start = other.fixed.unwrap_or_default();
                let together = other.pieces().any(|a| buffer.pieces().any(|b| a.overlaps(b)));
                together && offset < start + other.size && start < offset + buffer.size
            };
            if kept.iter().any(meets) {
                out.push(*piece);
            } else {
                kept.push(buffer);
            }
        }
        out
    }

    /// Plans the unlimited spaces and puts the answer together.
    pub(super) fn finish(mut self, placing: Placing, bound: i128) -> Result<SpacePlan> {
        let model = self.model;
        let mut offset_of: FxHashMap<u32, u64> = FxHashMap::default();
        for space in 0..placing.offsets.len() {
            if model.capacity(space).is_some() {
                offset_of.extend(placing.offsets[space].iter().copied());
            } else {
                let (pieces, owner) = self.members(&placing.choice_of, space);
                let solution = self.ask(space, &pieces, &owner, UNLIMITED_EFFORT)?;
                offset_of
                    .extend(pieces.iter().copied().zip(solution.plan.offsets.iter().map(|offset| offset.0)));
            }
        }
        let mut peaks = vec![Bytes::ZERO; placing.offsets.len()];
        let mut residences = Vec::with_capacity(model.len());
        for (buffer, choice) in placing.choice_of.iter().enumerate() {
            let size = model.problem.buffers()[buffer].size;
            let mut all = Vec::new();
            for (piece, place) in model.pieces_of(*choice) {
                let offset = Bytes(offset_of.get(&piece).copied().unwrap_or_default());
                let space = place.space as usize;
                peaks[space] = peaks[space].max(offset + size);
                all.push(Residence { space, lifetime: place.lifetime, offset });
            }
            residences.push(all);
        }
        let traffic = placing.cost as u128;
        let lower_bound = bound.clamp(0, placing.cost) as u128;
        Ok(SpacePlan { residences, peaks, traffic, lower_bound, effort: self.effort })
    }
}
