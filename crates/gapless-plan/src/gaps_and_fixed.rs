//! Problems with gaps in lifetimes or fixed offsets: first-fit passes that place buffers earlier if they stuck out.
//!
//! A buffer with gaps is several pieces at one offset. Fixed buffers are put down first and stay. Passes are valid by
//! construction; there is no exact search here, so a plan is only proven optimal if it reaches the bound.

use gapless_trace::Bytes;

use crate::bound;
use crate::error::{Error, Result};
use crate::options::Options;
use crate::problem::{Plan, Problem};
use crate::rng::Rng;
use crate::shelves::{Shelves, round_up};
use crate::validate::{Invalid, validate};
use crate::watch::{Clock, Progress, Watch};
use crate::{compact::Compact, problem::Buffer};

/// Rounds without a better plan after which the passes stop.
const PATIENCE: u32 = 60;

pub(crate) fn is_general(problem: &Problem) -> bool {
    problem.buffers().iter().any(|buffer| buffer.fixed.is_some() || !buffer.gaps.is_empty())
}

/// Fixed buffers must not overlap each other, nor stick out of the capacity.
pub(crate) fn check_fixed(problem: &Problem, capacity: Option<Bytes>) -> Result<()> {
    let fixed: Vec<usize> =
        (0..problem.len()).filter(|index| problem.buffers()[*index].fixed.is_some()).collect();
    if fixed.is_empty() {
        return Ok(());
    }
    let buffers: Vec<Buffer> = fixed.iter().map(|index| problem.buffers()[*index].clone()).collect();
    for (index, buffer) in fixed.iter().zip(&buffers) {
        let offset = buffer.fixed.unwrap_or_default();
        let end = offset + buffer.size;
        if let Some(capacity) = capacity.filter(|capacity| end > *capacity) {
            let id = problem.name(*index);
            return Err(Error::FixedAboveCapacity { id, offset: offset.0, end: end.0, capacity: capacity.0 });
        }
    }
    let offsets = buffers.iter().map(|buffer| buffer.fixed.unwrap_or_default()).collect();
    let alone = Problem::new(buffers)?;
    let plan = Plan::of_offsets(&alone, offsets);
    match validate(&alone, &plan, None) {
        Err(Invalid::Overlap { first, second, .. }) => Err(Error::FixedOverlap {
            first: problem.name(fixed[first]),
            second: problem.name(fixed[second]),
        }),
        _ => Ok(()),
    }
}

/// No buffer may be larger than a chunk, and none fixed across the border of one.
pub(crate) fn check_chunks(problem: &Problem, chunk: Option<Bytes>) -> Result<()> {
    let Some(chunk) = chunk else { return Ok(()) };
    if chunk.0 == 0 {
        return Err(Error::EmptyChunk);
    }
    for (index, buffer) in problem.buffers().iter().enumerate() {
        if buffer.size > chunk {
            let what = format!("its {} bytes are more than a chunk of {}", buffer.size.0, chunk.0);
            return Err(Error::Buffer { id: problem.name(index), what });
        }
        if let Some(offset) = buffer.fixed
            && crosses(offset.0, buffer.size.0, chunk.0)
        {
            let what =
                format!("its fixed offset {} puts it across the border of a chunk of {}", offset.0, chunk.0);
            return Err(Error::Buffer { id: problem.name(index), what });
        }
    }
    Ok(())
}

fn crosses(offset: u64, size: u64, chunk: u64) -> bool {
    size > 0 && offset / chunk != (offset + size - 1) / chunk
}

/// A plan, and the effort it took in sixteenths of a buffer.
pub(crate) fn plan(
    problem: &Problem,
    options: &Options,
    clock: &Clock<'_>,
    watch: &mut Watch<'_>,
) -> (Plan, u64) {
    let mut work = Work::new(problem, options.chunk);
    let floor = bound::lower_bound(problem);
    let goal = options.capacity.map_or(floor, |capacity| capacity.max(floor));
    let mut rng = Rng::new(options.seed);
    let mut best: Option<Plan> = None;
    let mut effort = 0;
    // Powers of the length in the weight of a buffer: each is the start of its own rounds.
    for power in [0.25, 0.0, 0.5, 1.0] {
        let mut weight: Vec<f64> = problem.buffers().iter().map(|buffer| weight(buffer, power)).collect();
        let mut since = 0;
        while since < PATIENCE {
            let plan = work.pass(&weight);
            effort += problem.len() as u64 / 16 + 1;
            since += 1;
            if best.as_ref().is_none_or(|best| plan.peak < best.peak) {
                since = 0;
                if let Some(call) = &mut watch.on_better {
                    let lower_bound = floor.min(plan.peak);
                    call(&Progress { plan: &plan, lower_bound, elapsed: clock.elapsed(), effort });
                }
                best = Some(plan.clone());
            }
            let peak = best.as_ref().map_or(plan.peak, |best| best.peak);
            if peak <= goal || clock.is_over() || options.effort.is_some_and(|limit| effort >= limit) {
                return (best.unwrap_or(plan), effort);
            }
            let line = floor.0 + (peak.0 - floor.0) / 3;
            for (index, offset) in plan.offsets.iter().enumerate() {
                if offset.0 + problem.buffers()[index].size.0 > line {
                    weight[index] += 0.5 + 0.5 * rng.unit();
                }
            }
        }
    }
    let plan = best.unwrap_or_else(|| Plan::of_offsets(problem, vec![Bytes::ZERO; problem.len()]));
    (plan, effort)
}

fn weight(buffer: &Buffer, power: f64) -> f64 {
    let length = (buffer.lifetime.end as f64 - buffer.lifetime.start as f64).max(1.0);
    (buffer.size.0.max(1) as f64).ln() + power * length.ln()
}

struct Work<'a> {
    problem: &'a Problem,
    /// The pieces of all buffers as buffers of their own; those of buffer b are `of[b] .. of[b + 1]`.
    pieces: Compact,
    of: Vec<usize>,
    shelves: Shelves,
    chunk: Option<Bytes>,
}

impl<'a> Work<'a> {
    fn new(problem: &'a Problem, chunk: Option<Bytes>) -> Work<'a> {
        let mut of = vec![0];
        let mut spans = Vec::new();
        for buffer in problem.buffers() {
            spans.extend(buffer.pieces().map(|piece| (piece, buffer.size.0 as i64)));
            of.push(spans.len());
        }
        let pieces = Compact::of_spans(&spans);
        Work { problem, shelves: Shelves::new(pieces.sections), pieces, of, chunk }
    }

    fn pass(&mut self, weight: &[f64]) -> Plan {
        let buffers = self.problem.buffers();
        let mut offsets = vec![Bytes::ZERO; buffers.len()];
        self.shelves.clear();
        let mut order: Vec<usize> = Vec::with_capacity(buffers.len());
        for (index, buffer) in buffers.iter().enumerate() {
            match buffer.fixed {
                Some(offset) => {
                    offsets[index] = offset;
                    self.put(index, offset.0 as i64);
                }
                None if buffer.size.0 > 0 => order.push(index),
                None => {}
            }
        }
        order.sort_by(|a, b| weight[*b].total_cmp(&weight[*a]).then(a.cmp(b)));
        for index in order {
            let place = self.lowest(index);
            offsets[index] = Bytes(place as u64);
            self.put(index, place);
        }
        Plan::of_offsets(self.problem, offsets)
    }

    fn put(&mut self, index: usize, offset: i64) {
        if self.problem.buffers()[index].size.0 > 0 {
            for piece in self.of[index]..self.of[index + 1] {
                self.shelves.insert(&self.pieces, piece as u32, offset);
            }
        }
    }

    /// The lowest place: every piece moves it up until none has to.
    fn lowest(&mut self, index: usize) -> i64 {
        let buffer = &self.problem.buffers()[index];
        let (size, align) = (buffer.size.0 as i64, buffer.alignment.0 as i64);
        let mut place = 0;
        loop {
            let before = place;
            for piece in self.of[index]..self.of[index + 1] {
                let (first, last) = (self.pieces.first[piece], self.pieces.last[piece]);
                let found = self.shelves.lowest(first, last, size, align, place, i64::MAX);
                place = found.unwrap_or(place);
            }
            if let Some(chunk) = self.chunk.filter(|chunk| crosses(place as u64, size as u64, chunk.0)) {
                let border = (place / chunk.0 as i64 + 1) * chunk.0 as i64;
                place = round_up(border, align);
            }
            if place == before {
                return place;
            }
        }
    }
}
