//! The independent judge of a plan. It shares no code with any solver: it sweeps over time with an ordered map of
//! occupied places, and knows nothing of sections, skylines or compressed time.
//!
//! O(p log p) for p pieces of lifetimes, so it is cheap enough to run after every solve.

use std::collections::BTreeMap;

use gapless_trace::Bytes;
use thiserror::Error;

use crate::problem::{Lifetime, Plan, Problem};
use crate::sharing::Shares;
use crate::spaces::{Accesses, Residence, SpacePlan, Spaces, Usage};

/// The reason why a plan is not valid, with the buffers by position.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum Invalid {
    #[error("{offsets} offsets for {buffers} buffers")]
    Count { offsets: usize, buffers: usize },
    #[error("buffers {first} and {second} share bytes at time {time}")]
    Overlap { first: usize, second: usize, time: i64 },
    #[error("buffer {buffer} lies at {offset}, not a multiple of its alignment {alignment}")]
    Alignment { buffer: usize, offset: u64, alignment: u64 },
    #[error("buffer {buffer} is fixed at {fixed} and was put at {offset}")]
    Moved { buffer: usize, fixed: u64, offset: u64 },
    #[error("buffer {buffer} ends at {end}, above the capacity {capacity}")]
    AboveCapacity { buffer: usize, end: u128, capacity: u64 },
    #[error("buffer {buffer} at {offset} lies across the border of a chunk of {chunk}")]
    AcrossChunks { buffer: usize, offset: u64, chunk: u64 },
    #[error("buffer {buffer}: {what}")]
    Residence { buffer: usize, what: &'static str },
    #[error("buffer {buffer} lies in space {space}, which there is not or where it may not lie")]
    Space { buffer: usize, space: usize },
    #[error("the plan says that its traffic is {said}, but its accesses and moves cost {found}")]
    Traffic { said: u128, found: u128 },
    #[error("the plan says that no plan has less traffic than {bound}, and has {traffic} itself")]
    Bound { bound: u128, traffic: u128 },
    #[error("the plan says that its peak is {said}, but its buffers reach {found}")]
    Peak { said: u64, found: u64 },
}

/// Checks that the plan is a valid answer to the problem and, if a capacity is given, that it fits.
pub fn validate(problem: &Problem, plan: &Plan, capacity: Option<Bytes>) -> Result<(), Invalid> {
    judge(problem, plan, capacity, &|_| None)
}

/// The same if buffers may take each other's places: a buffer may begin on bytes of the one whose place it may take, at
/// the very same offset, while no other buffer has taken them.
pub fn validate_sharing(
    problem: &Problem,
    shares: &Shares,
    plan: &Plan,
    capacity: Option<Bytes>,
) -> Result<(), Invalid> {
    judge(problem, plan, capacity, &|buffer| shares.of(buffer))
}

fn judge(
    problem: &Problem,
    plan: &Plan,
    capacity: Option<Bytes>,
    shares: &dyn Fn(usize) -> Option<usize>,
) -> Result<(), Invalid> {
    let buffers = problem.buffers();
    if plan.offsets.len() != buffers.len() {
        return Err(Invalid::Count { offsets: plan.offsets.len(), buffers: buffers.len() });
    }
    let limit = capacity.map_or(u64::MAX, |capacity| capacity.0);
    let mut found = 0;
    for (index, (buffer, offset)) in buffers.iter().zip(&plan.offsets).enumerate() {
        let end = u128::from(offset.0) + u128::from(buffer.size.0);
        if end > u128::from(limit) {
            return Err(Invalid::AboveCapacity { buffer: index, end, capacity: limit });
        }
        if offset.0 % buffer.alignment.0 != 0 {
            let alignment = buffer.alignment.0;
            return Err(Invalid::Alignment { buffer: index, offset: offset.0, alignment });
        }
        if let Some(fixed) = buffer.fixed
            && fixed != *offset
        {
            return Err(Invalid::Moved { buffer: index, fixed: fixed.0, offset: offset.0 });
        }
        found = found.max(offset.0 + buffer.size.0);
    }
    if found != plan.peak.0 {
        return Err(Invalid::Peak { said: plan.peak.0, found });
    }
    let places = buffers.iter().zip(&plan.offsets).enumerate().flat_map(|(index, (buffer, offset))| {
        buffer.pieces().map(move |time| Place { buffer: index, time, start: offset.0, size: buffer.size.0 })
    });
    sweep(places.collect(), shares)
}

/// Checks that no buffer lies across a multiple of the chunk.
pub fn validate_chunks(problem: &Problem, plan: &Plan, chunk: Bytes) -> Result<(), Invalid> {
    for (index, (buffer, offset)) in problem.buffers().iter().zip(&plan.offsets).enumerate() {
        let into = offset.0.checked_rem(chunk.0).unwrap_or(0);
        if into + buffer.size.0 > chunk.0 {
            return Err(Invalid::AcrossChunks { buffer: index, offset: offset.0, chunk: chunk.0 });
        }
    }
    Ok(())
}

/// Ends come before starts at the same time: lifetimes are half-open.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    End,
    Start,
}

/// Bytes that a buffer occupies for a time.
struct Place {
    buffer: usize,
    time: Lifetime,
    start: u64,
    size: u64,
}

/// `shares` gives the buffer whose place one may take.
fn sweep(mut places: Vec<Place>, shares: &dyn Fn(usize) -> Option<usize>) -> Result<(), Invalid> {
    places.retain(|place| place.size > 0);
    let mut moments: Vec<(i64, What, usize)> = Vec::with_capacity(places.len() * 2);
    for (at, place) in places.iter().enumerate() {
        moments.push((place.time.start, What::Start, at));
        moments.push((place.time.end, What::End, at));
    }
    moments.sort_unstable();
    // The place that each has taken.
    let mut took: Vec<Option<usize>> = vec![None; places.len()];
    // Occupied bytes, disjoint: from their start to their end, and their owner (by place).
    let mut occupied: BTreeMap<u64, (u64, usize)> = BTreeMap::new();
    for (time, what, at) in moments {
        let Place { buffer, start, size, .. } = places[at];
        let end = start + size;
        match what {
            What::End => {
                // All of its bytes, or the rest that no other buffer took.
                let own = occupied.range(start..end).filter(|(_, (_, whose))| *whose == at);
                if let Some(from) = own.map(|(from, _)| *from).next() {
                    occupied.remove(&from);
                }
            }
            What::Start => {
                // Occupied bytes are disjoint, so those that reach into ours are the last ones that begin below our
                // end.
                while let Some((from, (to, whose))) = occupied.range(..end).next_back()
                    && *to > start
                {
                    let (from, to, whose) = (*from, *to, *whose);
                    let other = places[whose].buffer;
                    if shares(buffer) != Some(other) || places[whose].start != start {
                        let (first, second) = (buffer.min(other), buffer.max(other));
                        return Err(Invalid::Overlap { first, second, time });
                    }
                    // The buffer that gave its place to the giver must be done with it.
                    if let Some(giver) = took[whose].filter(|giver| places[*giver].time.end > time) {
                        let first = places[giver].buffer;
                        return Err(Invalid::Overlap {
                            first: first.min(buffer),
                            second: first.max(buffer),
                            time,
                        });
                    }
                    took[at] = Some(whose);
                    occupied.remove(&from);
                    if to > end {
                        occupied.insert(end, (to, whose));
                    }
                }
                occupied.insert(start, (end, at));
            }
        }
    }
    Ok(())
}

/// Checks a plan over several spaces: every buffer lies somewhere allowed for all of its lifetime, moves only while
/// nothing accesses it, every space is a valid plan within its capacity, and the traffic is the plan's figure.
pub fn validate_spaces(
    problem: &Problem,
    usages: &[Usage],
    spaces: &Spaces,
    plan: &SpacePlan,
) -> Result<(), Invalid> {
    let (buffers, spaces) = (problem.buffers(), spaces.all());
    for count in [plan.residences.len(), usages.len()] {
        if count != buffers.len() {
            return Err(Invalid::Count { offsets: count, buffers: buffers.len() });
        }
    }
    let mut places: Vec<Vec<Place>> = spaces.iter().map(|_| Vec::new()).collect();
    let mut peaks = vec![0u64; spaces.len()];
    let mut traffic = 0u128;
    for (index, (buffer, all)) in buffers.iter().zip(&plan.residences).enumerate() {
        let usage = &usages[index];
        for residence in all {
            let Some(space) = spaces.get(residence.space).filter(|_| usage.allowed.contains(residence.space))
            else {
                return Err(Invalid::Space { buffer: index, space: residence.space });
            };
            let (start, size) = (residence.offset.0, buffer.size.0);
            let end = u128::from(start) + u128::from(size);
            let capacity = space.capacity.map_or(u64::MAX, |capacity| capacity.0);
            if end > u128::from(capacity) {
                return Err(Invalid::AboveCapacity { buffer: index, end, capacity });
            }
            if start % buffer.alignment.0 != 0 {
                let alignment = buffer.alignment.0;
                return Err(Invalid::Alignment { buffer: index, offset: start, alignment });
            }
            if let Some(fixed) = buffer.fixed.filter(|fixed| fixed.0 != start) {
                return Err(Invalid::Moved { buffer: index, fixed: fixed.0, offset: start });
            }
            peaks[residence.space] = peaks[residence.space].max(start + size);
            let held = residence.lifetime;
            let times =
                buffer.pieces().map(|part| Lifetime::new(part.start.max(held.start), part.end.min(held.end)));
            let times = times.filter(|time| time.start < time.end);
            places[residence.space].extend(times.map(|time| Place { buffer: index, time, start, size }));
        }
        let found = accesses(buffer.lifetime, usage, all)
            .map_err(|what| Invalid::Residence { buffer: index, what })?;
        for (space, count) in found {
            let bytes = u128::from(count) * u128::from(buffer.size.0);
            traffic = traffic.saturating_add(bytes.saturating_mul(u128::from(spaces[space].cost)));
        }
    }
    for place in places {
        sweep(place, &|_| None)?;
    }
    for (at, found) in peaks.into_iter().enumerate() {
        let said = plan.peaks.get(at).map_or(0, |peak| peak.0);
        if said != found {
            return Err(Invalid::Peak { said, found });
        }
    }
    if traffic != plan.traffic {
        return Err(Invalid::Traffic { said: plan.traffic, found: traffic });
    }
    if plan.lower_bound > traffic {
        return Err(Invalid::Bound { bound: plan.lower_bound, traffic });
    }
    Ok(())
}

/// Accesses of a buffer by space, moves included, or the fault in its residences.
fn accesses(life: Lifetime, usage: &Usage, all: &[Residence]) -> Result<Vec<(usize, u64)>, &'static str> {
    let (Some(first), Some(last)) = (all.first(), all.last()) else { return Err("it lies nowhere") };
    if first.lifetime.start != life.start || last.lifetime.end != life.end {
        return Err("where it lies does not cover its lifetime");
    }
    let mut found = Vec::new();
    for pair in all.windows(2) {
        let (from, to) = (pair[0], pair[1]);
        let both = Lifetime::new(to.lifetime.start, from.lifetime.end);
        if both.start >= both.end {
            return Err("it is moved, and there is no time at which both places are held");
        }
        if from.lifetime.start >= to.lifetime.start || from.lifetime.end >= to.lifetime.end {
            return Err("where it lies is not in order of time");
        }
        if from.space == to.space {
            return Err("it is moved within a space");
        }
        let Accesses::At(times) = &usage.accesses else {
            return Err("it is moved without known access times");
        };
        if times.iter().any(|time| both.start <= *time && *time < both.end) {
            return Err("it is accessed while it is moved");
        }
        found.extend([(from.space, 1), (to.space, 1)]);
    }
    match &usage.accesses {
        Accesses::Count(count) => found.push((first.space, *count)),
        Accesses::At(times) => {
            for time in times {
                let holds = |at: &&Residence| at.lifetime.start <= *time && *time < at.lifetime.end;
                let place = all.iter().find(holds).ok_or("it is accessed when it lies nowhere")?;
                found.push((place.space, 1));
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::Buffer;

    fn verdict(buffers: Vec<Buffer>, offsets: &[u64], capacity: Option<u64>) -> Result<(), Invalid> {
        let problem = Problem::new(buffers).unwrap();
        let plan = Plan::of_offsets(&problem, offsets.iter().copied().map(Bytes).collect());
        validate(&problem, &plan, capacity.map(Bytes))
    }

    #[test]
    fn touching_in_time_or_in_space_is_no_overlap() {
        let buffers = vec![Buffer::new(0, 2, 4), Buffer::new(2, 3, 4), Buffer::new(0, 3, 4)];
        assert_eq!(verdict(buffers, &[0, 0, 4], Some(8)), Ok(()));
    }

    #[test]
    fn one_shared_byte_at_one_moment_is_found() {
        let buffers = vec![Buffer::new(0, 3, 4), Buffer::new(2, 5, 4)];
        assert_eq!(
            verdict(buffers.clone(), &[0, 3], None),
            Err(Invalid::Overlap { first: 0, second: 1, time: 2 })
        );
        assert_eq!(verdict(buffers, &[3, 0], None), Err(Invalid::Overlap { first: 0, second: 1, time: 2 }));
    }

    #[test]
    fn a_buffer_wholly_inside_another_is_found() {
        let buffers = vec![Buffer::new(0, 9, 100), Buffer::new(2, 5, 4)];
        assert!(matches!(verdict(buffers, &[0, 50], None), Err(Invalid::Overlap { .. })));
    }

    #[test]
    fn the_place_of_a_buffer_is_free_in_its_gaps_and_only_there() {
        let gap = vec![Lifetime::new(2, 5)];
        let inside = vec![Buffer::new(0, 9, 8).with_gaps(gap.clone()), Buffer::new(2, 5, 8)];
        assert_eq!(verdict(inside, &[0, 0], None), Ok(()));
        let beyond = vec![Buffer::new(0, 9, 8).with_gaps(gap), Buffer::new(2, 6, 8)];
        assert_eq!(verdict(beyond, &[0, 0], None), Err(Invalid::Overlap { first: 0, second: 1, time: 5 }));
    }

    #[test]
    fn capacity_alignment_fixed_places_counts_and_peaks_are_checked() {
        assert!(matches!(
            verdict(vec![Buffer::new(0, 1, 8)], &[1], Some(8)),
            Err(Invalid::AboveCapacity { end: 9, .. })
        ));
        assert!(matches!(
            verdict(vec![Buffer::new(0, 1, 8).aligned(4)], &[2], None),
            Err(Invalid::Alignment { .. })
        ));
        assert!(matches!(
            verdict(vec![Buffer::new(0, 1, 8).fixed_at(4)], &[0], None),
            Err(Invalid::Moved { .. })
        ));
        let problem = Problem::new(vec![Buffer::new(0, 1, 8)]).unwrap();
        let plan = Plan { offsets: vec![], peak: Bytes(0) };
        assert!(matches!(validate(&problem, &plan, None), Err(Invalid::Count { .. })));
        let plan = Plan { offsets: vec![Bytes(0)], peak: Bytes(7) };
        assert_eq!(validate(&problem, &plan, None), Err(Invalid::Peak { said: 7, found: 8 }));
        let plan = Plan { offsets: vec![Bytes(u64::MAX)], peak: Bytes(7) };
        assert!(matches!(
            validate(&problem, &plan, Some(Bytes(1 << 40))),
            Err(Invalid::AboveCapacity { .. })
        ));
    }
}
