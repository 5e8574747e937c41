//! The floor under every allocator: the whole run packed by `gapless-plan`, with every lifetime known beforehand.

use crate::allocator::{Inventory, Oom, Stats};
use crate::curve::Curve;
use crate::outcome::{OomPoint, Outcome, Question};
use crate::run::Failure;
use crate::script::{Op, Script};
use gapless_plan::{Buffer, Options, Plan, Problem, Watch, solve};
use gapless_trace::{Bytes, DeviceAddr};
use std::time::Duration;

/// Blocks are aligned as PyTorch's are.
const ALIGN: u64 = 512;
/// The plan depends on the effort alone; the time limit is for runs with which even that would take too long.
const EFFORT: u64 = 30_000_000;
const TIME_LIMIT: Duration = Duration::from_secs(20);

/// An allocation with its lifetime in ops.
#[derive(Clone, Copy)]
struct Lived {
    slot: u32,
    start: u32,
    end: u32,
    size: u64,
}

fn lifetimes(script: &Script) -> Vec<Lived> {
    let end = script.ops.len() as u32;
    let last = script.ended_by();
    let mut lived: Vec<Lived> = Vec::with_capacity(script.slots as usize);
    let mut open = vec![u32::MAX; script.slots as usize];
    for (i, op) in (0..).zip(&script.ops) {
        match *op {
            Op::Alloc { slot, size, .. } => {
                open[slot as usize] = lived.len() as u32;
                lived.push(Lived { slot, start: i, end, size: size.0.div_ceil(ALIGN).max(1) * ALIGN });
            }
            Op::Failed { size, .. } if last == Some(i) => {
                let size = size.0.div_ceil(ALIGN).max(1) * ALIGN;
                lived.push(Lived { slot: script.slots, start: i, end: i + 1, size });
            }
            Op::Free { slot } | Op::FreeCompleted { slot } => {
                if let Some(lived) = lived.get_mut(open[slot as usize] as usize) {
                    lived.end = i;
                }
            }
            _ => {}
        }
    }
    lived
}

pub(crate) fn outcome(script: &Script, question: &Question) -> Outcome {
    let lived = lifetimes(script);
    let buffers = lived.iter().map(|l| Buffer::new(i64::from(l.start), i64::from(l.end), l.size)).collect();
    let options = Options { effort: Some(EFFORT), time_limit: Some(TIME_LIMIT), ..Options::default() };
    let solved = Problem::new(buffers).and_then(|p| solve(&p, &options, &mut Watch::default()));
    let Ok(solution) = solved else { return Outcome::default() };
    let Plan { peak, offsets } = solution.plan;

    // Ends come before beginnings of the same instant, and an allocation's end is never before its beginning.
    let mut changes: Vec<(u32, bool, usize)> =
        lived.iter().enumerate().flat_map(|(i, l)| [(l.start, true, i), (l.end, false, i)]).collect();
    changes.sort_unstable();
    let tick = |op: u32| script.ticks.get(op as usize).copied().unwrap_or_default();
    let top = |i: usize| offsets[i] + Bytes(lived[i].size);
    let too_high = |i: usize| question.capacity.is_some_and(|capacity| top(i) > capacity);
    // On a card that is too small the run ends at the first block above it, as with every other allocator.
    let end = changes.iter().position(|&(_, begins, i)| begins && too_high(i));
    let served = &changes[..end.unwrap_or(changes.len())];
    let held = match end {
        None => peak,
        Some(_) => served.iter().filter(|c| c.1).map(|&(_, _, i)| top(i)).max().unwrap_or_default(),
    };
    let mut stats = Stats::default();
    if held > Bytes::ZERO {
        stats.device_allocs = 1;
        stats.driver_ns = crate::cost::malloc(held.0);
        stats.segments.add(1);
        stats.reserved.add(held.0);
    }
    let mut peak_op = 0;
    let mut curve = Curve::new(script);
    for &(op, begins, i) in served {
        let size = lived[i].size;
        if begins {
            for gauge in [&mut stats.allocated, &mut stats.active, &mut stats.requested] {
                gauge.add(size);
            }
            stats.allocations.add(1);
            stats.active_blocks.add(1);
            if stats.active.current == stats.active.peak {
                peak_op = op;
            }
        } else {
            for gauge in [&mut stats.allocated, &mut stats.active, &mut stats.requested] {
                gauge.sub(size);
            }
            stats.allocations.sub(1);
            stats.active_blocks.sub(1);
        }
        if (op as usize) < script.ticks.len() {
            curve.record(tick(op), held, Bytes(stats.allocated.current));
        }
    }
    let oom = end.zip(question.capacity).map(|(end, capacity)| {
        let (op, _, i) = changes[end];
        stats.ooms = 1;
        let (requested, active) = (Bytes(lived[i].size), Bytes(stats.active.current));
        let free = capacity.saturating_sub(active);
        let failure = Failure { op, tick: tick(op), oom: Oom { requested, asked: requested, free } };
        OomPoint { failure, reserved: held, active, largest_hole: Bytes::ZERO }
    });
    let mut blocks: Vec<(u32, DeviceAddr, Bytes)> = lived
        .iter()
        .zip(&offsets)
        .filter(|(l, offset)| l.start <= peak_op && peak_op < l.end && **offset + Bytes(l.size) <= held)
        .map(|(l, offset)| (l.slot, DeviceAddr(offset.0), Bytes(l.size)))
        .collect();
    blocks.sort_unstable_by_key(|b| b.1);
    let at_peak = Inventory::of(vec![(DeviceAddr(0), held)], blocks);
    Outcome {
        stats,
        peak_at: tick(peak_op),
        stranded: at_peak.stranded,
        at_peak,
        oom,
        min_capacity: question.min_capacity.then_some(peak),
        curve: curve.points,
        ..Outcome::default()
    }
}
