//! The independent judge of a plan. It shares no code with any solver: it sweeps over time with an ordered map of
//! occupied places, and knows nothing of sections, skylines or compressed time.
//!
//! O(p log p) for p pieces of lifetimes, so it is cheap enough to run after every solve.

use std::collections::BTreeMap;

use gapless_trace::Bytes;
use thiserror::Error;

use crate::problem::{Plan, Problem};

/// Why a plan is not valid, with the buffers by position.
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
    #[error("the plan says that its peak is {said}, but its buffers reach {found}")]
    Peak { said: u64, found: u64 },
}

/// Checks that the plan is a valid answer to the problem and, where a capacity is given, that it fits.
pub fn validate(problem: &Problem, plan: &Plan, capacity: Option<Bytes>) -> Result<(), Invalid> {
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
    sweep(problem, plan)
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

fn sweep(problem: &Problem, plan: &Plan) -> Result<(), Invalid> {
    let mut moments: Vec<(i64, What, usize)> = Vec::with_capacity(problem.len() * 2);
    for (index, buffer) in problem.buffers().iter().enumerate() {
        if buffer.size.0 > 0 {
            for piece in buffer.pieces() {
                moments.push((piece.start, What::Start, index));
                moments.push((piece.end, What::End, index));
            }
        }
    }
    moments.sort_unstable();
    // Occupied places, disjoint: from the offset to the end and the buffer.
    let mut occupied: BTreeMap<u64, (u64, usize)> = BTreeMap::new();
    for (time, what, index) in moments {
        let start = plan.offsets[index].0;
        let end = start + problem.buffers()[index].size.0;
        match what {
            What::End => {
                occupied.remove(&start);
            }
            What::Start => {
                // Places are disjoint, so only the last one that begins below our end can reach into us.
                if let Some((_, (other_end, other))) = occupied.range(..end).next_back()
                    && *other_end > start
                {
                    let (first, second) = (index.min(*other), index.max(*other));
                    return Err(Invalid::Overlap { first, second, time });
                }
                occupied.insert(start, (end, index));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::{Buffer, Lifetime};

    fn judge(buffers: Vec<Buffer>, offsets: &[u64], capacity: Option<u64>) -> Result<(), Invalid> {
        let problem = Problem::new(buffers).unwrap();
        let plan = Plan::of_offsets(&problem, offsets.iter().copied().map(Bytes).collect());
        validate(&problem, &plan, capacity.map(Bytes))
    }

    #[test]
    fn touching_in_time_or_in_space_is_no_overlap() {
        let buffers = vec![Buffer::new(0, 2, 4), Buffer::new(2, 3, 4), Buffer::new(0, 3, 4)];
        assert_eq!(judge(buffers, &[0, 0, 4], Some(8)), Ok(()));
    }

    #[test]
    fn one_shared_byte_at_one_moment_is_found() {
        let buffers = vec![Buffer::new(0, 3, 4), Buffer::new(2, 5, 4)];
        assert_eq!(
            judge(buffers.clone(), &[0, 3], None),
            Err(Invalid::Overlap { first: 0, second: 1, time: 2 })
        );
        assert_eq!(judge(buffers, &[3, 0], None), Err(Invalid::Overlap { first: 0, second: 1, time: 2 }));
    }

    #[test]
    fn a_buffer_wholly_inside_another_is_found() {
        let buffers = vec![Buffer::new(0, 9, 100), Buffer::new(2, 5, 4)];
        assert!(matches!(judge(buffers, &[0, 50], None), Err(Invalid::Overlap { .. })));
    }

    #[test]
    fn the_place_of_a_buffer_is_free_in_its_gaps_and_only_there() {
        let gap = vec![Lifetime::new(2, 5)];
        let inside = vec![Buffer::new(0, 9, 8).with_gaps(gap.clone()), Buffer::new(2, 5, 8)];
        assert_eq!(judge(inside, &[0, 0], None), Ok(()));
        let beyond = vec![Buffer::new(0, 9, 8).with_gaps(gap), Buffer::new(2, 6, 8)];
        assert_eq!(judge(beyond, &[0, 0], None), Err(Invalid::Overlap { first: 0, second: 1, time: 5 }));
    }

    #[test]
    fn capacity_alignment_fixed_places_counts_and_peaks_are_checked() {
        assert!(matches!(
            judge(vec![Buffer::new(0, 1, 8)], &[1], Some(8)),
            Err(Invalid::AboveCapacity { end: 9, .. })
        ));
        assert!(matches!(
            judge(vec![Buffer::new(0, 1, 8).aligned(4)], &[2], None),
            Err(Invalid::Alignment { .. })
        ));
        assert!(matches!(
            judge(vec![Buffer::new(0, 1, 8).fixed_at(4)], &[0], None),
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
