//! Plans the core first: the buffers alive when nearly the most bytes are, with everything else cut away, are planned
//! by all methods; the rest is placed around them.
//!
//! Most of a large problem has room to spare; only around its peaks every byte counts. There the long-lived buffers lie
//! at the bottom, and few are left to be searched. Buffers alive throughout a peak may lie in any order as far as the
//! core is concerned, so the longest goes lowest, as in a stack.

use super::{Part, Turn};
use crate::compact::Compact;
use crate::join::join;
use crate::passes::{Frame, Order, ordered};
use crate::split::Split;

/// Nodes and steps for one part of the core.
const CORE_EFFORT: u64 = 20_000;

/// Parts of fewer buffers have no core of their own: they are searched as a whole. A part of a core may not have as
/// many, or a core could be its own core.
pub(crate) const CORE_LEAST: usize = 2000;

/// Offsets for all buffers, those first that are alive in sections with more than this share of the bound's bytes.
/// Alignments must be 1. `None` if the core is too large, or does not fit under the bound.
pub(crate) fn core_first(c: &Compact, bound: i64, share: f64, turn: &mut Turn<'_>) -> Option<Vec<i64>> {
    let line = (bound as f64 * share) as i64;
    // For each section, the number of sections before it that are in the core.
    let mut before = vec![0u32];
    for live in c.live() {
        before.push(before[before.len() - 1] + u32::from(live >= line));
    }
    let mut core = Compact { unit: c.unit, ..Compact::default() };
    for slot in 0..c.len() {
        let (first, last) = (before[c.first[slot] as usize], before[c.last[slot] as usize]);
        if first < last {
            core.first.push(first);
            core.last.push(last);
            core.size.push(c.size[slot]);
            core.original.push(slot as u32);
        }
    }
    core.close_up();
    let places = plan(c, &core, bound, turn)?;
    let mut place_of = vec![None; c.len()];
    for (slot, place) in core.original.iter().zip(places) {
        place_of[*slot as usize] = Some(place);
    }
    let mut frame = Frame::new(c, bound);
    // Two buffers of the core may overlap outside of it: then the second is placed with the rest.
    let mut rest = ordered(c, Order::TwoEnded);
    rest.retain(|slot| !place_of[*slot as usize].is_some_and(|place| frame.put_if_free(*slot, place)));
    turn.effort += c.len() as u64 / 16;
    frame.fill(&rest, turn.stop)?;
    Some(frame.offsets)
}

/// Offsets of the core's buffers under the bound.
fn plan(c: &Compact, core: &Compact, bound: i64, turn: &mut Turn<'_>) -> Option<Vec<i64>> {
    let split = Split::of(core);
    if split.parts.iter().any(|part| part.len() >= CORE_LEAST) {
        return None;
    }
    let mut places = vec![0; core.len()];
    // Buffers with the same lifetime in the core lie next to each other: the longest lowest.
    let mut under = split.under.clone();
    under.sort_by_key(|(slot, place)| (core.first[*slot as usize], core.last[*slot as usize], *place));
    for group in under.chunk_by(|a, b| {
        let (a, b) = (a.0 as usize, b.0 as usize);
        core.first[a] == core.first[b] && core.last[a] == core.last[b]
    }) {
        let mut place = group[0].1;
        let mut slots: Vec<u32> = group.iter().map(|(slot, _)| *slot).collect();
        slots.sort_by_key(|slot| {
            let whole = core.original[*slot as usize] as usize;
            (std::cmp::Reverse(c.last[whole] - c.first[whole]), *slot)
        });
        for slot in slots {
            places[slot as usize] = place;
            place += core.size[slot as usize];
        }
    }
    let mut base = vec![0; split.parts.len()];
    for copy in &split.copies {
        base[copy.part] = base[copy.part].max(copy.base);
    }
    for (at, compact) in split.parts.iter().enumerate() {
        let joined = join(compact);
        let mut part = Part::new(compact);
        part.add_joined(&joined);
        let goal = bound - base[at];
        let mut inner = Turn { goal, effort: 0, ..*turn };
        while part.best > goal && inner.effort < CORE_EFFORT && !(turn.stop)() {
            if !(part.pass(&mut inner) || part.search(&mut inner)) {
                break;
            }
        }
        turn.effort += inner.effort;
        if part.best > goal {
            return None;
        }
        for copy in split.copies.iter().filter(|copy| copy.part == at) {
            for (slot, offset) in copy.slots.iter().zip(&part.offsets) {
                places[*slot as usize] = copy.base + offset;
            }
        }
    }
    Some(places)
}
