//! A step that repeats: requests that come once in every period, whose memory may be held across its end into the next.
//!
//! Memory is an arena, to be kept small, and holes of given sizes, which cost nothing. Time is a circle; it is cut
//! where the period begins, and a request that lives across the cut has its place in both parts. Holes are filled first
//! and the rest is packed by the whole planner, which takes requests across the cut for alive throughout. If they are
//! many bytes, everything is also packed around walls between the holes, with gaps in lifetimes; that takes longer: of
//! 974 requests of a training step the first way is 0.03 % from the second, in 2 ms instead of 23.

use crate::error::Result;
use crate::options::Options;
use crate::problem::{Buffer, Lifetime, Problem};
use crate::solve::solve;
use crate::watch::Watch;

/// Requests across the cut are many bytes above this part of the arena; few requests are packed both ways in any case.
const CROSSING_PART: u64 = 200;
const FEW: usize = 200;

/// One of a period's requests. `end` may lie past the period: then it lives on in the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    pub size: u64,
    pub start: u32,
    pub end: u32,
}

/// The place of a request: in a hole, or in the arena, whose number follows the holes'.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spot {
    pub region: u32,
    pub offset: u64,
}

/// All requests placed, and the size of the arena for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packed {
    pub spots: Vec<Spot>,
    pub arena: u64,
}

impl Request {
    /// The times within one period in which it is alive.
    fn pieces(&self, length: u32) -> [(u32, u32); 2] {
        if self.end - self.start >= length {
            [(0, length), (0, 0)]
        } else if self.end <= length {
            [(self.start, self.end), (0, 0)]
        } else {
            [(0, self.end - length), (self.start, length)]
        }
    }

    /// True if both are alive at the same time.
    #[must_use]
    pub fn meets(&self, other: &Request, length: u32) -> bool {
        let overlap = |a: (u32, u32), b: (u32, u32)| a.0 < b.1 && b.0 < a.1;
        let others = other.pieces(length);
        self.pieces(length).iter().any(|&a| others.iter().any(|&b| overlap(a, b)))
    }
}

/// Places the requests of a period of `length`. Offsets are multiples of the sizes' common divisor.
///
/// # Errors
/// As [`solve`]: sizes that add up to more than [`crate::problem::SIZE_SUM_LIMIT`].
pub fn pack(requests: &[Request], length: u32, holes: &[u64], options: &Options) -> Result<Packed> {
    let mut best = filled_then_solved(requests, length, holes, options)?;
    if !holes.is_empty() {
        let plain = filled_then_solved(requests, length, &[], options)?;
        if plain.arena < best.arena {
            let moved = |spot: Spot| Spot { region: holes.len() as u32, ..spot };
            best = Packed { spots: plain.spots.into_iter().map(moved).collect(), arena: plain.arena };
        }
    }
    let crossing: u64 = requests.iter().filter(|r| r.end > length).map(|r| r.size).sum();
    if crossing > best.arena / CROSSING_PART || (crossing > 0 && requests.len() <= FEW) {
        let walled = around_walls(requests, length, holes, options)?;
        if walled.arena < best.arena {
            best = walled;
        }
    }
    Ok(best)
}

/// Holes take the best-fitting requests of those alive at the busiest time; the rest is solved as a problem of its own.
fn filled_then_solved(requests: &[Request], length: u32, holes: &[u64], options: &Options) -> Result<Packed> {
    let arena = holes.len() as u32;
    let mut spots: Vec<Option<Spot>> = vec![None; requests.len()];
    let peak = busiest(requests, length);
    let at_peak =
        |request: &Request| request.pieces(length).iter().any(|&(from, to)| (from..to).contains(&peak));
    let mut order: Vec<usize> = (0..requests.len()).collect();
    order.sort_by_key(|&i| (!at_peak(&requests[i]), std::cmp::Reverse(requests[i].size), i));
    let mut by_size: Vec<usize> = (0..holes.len()).collect();
    by_size.sort_by_key(|&hole| holes[hole]);
    for hole in by_size {
        let mut inside: Vec<(u64, usize)> = Vec::new();
        for &i in &order {
            if spots[i].is_some() || requests[i].size > holes[hole] {
                continue;
            }
            if let Some(offset) = lowest(&requests[i], requests, &inside, holes[hole], length) {
                spots[i] = Some(Spot { region: hole as u32, offset });
                inside.push((offset, i));
                inside.sort_unstable();
            }
        }
    }
    let rest: Vec<usize> = (0..requests.len()).filter(|&i| spots[i].is_none()).collect();
    let buffer = |&i: &usize| {
        let Request { size, start, end } = requests[i];
        let crosses = end > length;
        let (start, end) = if crosses { (0, length) } else { (start, end) };
        Buffer::new(i64::from(start), i64::from(end.max(start + 1)), size)
    };
    let solution = solve(&Problem::new(rest.iter().map(buffer).collect())?, options, &mut Watch::default())?;
    for (&i, offset) in rest.iter().zip(&solution.plan.offsets) {
        spots[i] = Some(Spot { region: arena, offset: offset.0 });
    }
    Ok(Packed { spots: spots.into_iter().flatten().collect(), arena: solution.plan.peak.0 })
}

/// One problem: holes side by side with walls between them, and the arena behind.
fn around_walls(requests: &[Request], length: u32, holes: &[u64], options: &Options) -> Result<Packed> {
    let unit = requests.iter().map(|request| request.size).fold(0, gcd).max(1);
    let mut buffers: Vec<Buffer> = requests
        .iter()
        .map(|request| {
            let Request { size, start, end } = *request;
            if end <= length {
                return Buffer::new(i64::from(start), i64::from(end.max(start + 1)), size);
            }
            let whole = Buffer::new(0, i64::from(length), size);
            let gap = Lifetime::new(i64::from(end - length), i64::from(start));
            if gap.start < gap.end { whole.with_gaps(vec![gap]) } else { whole }
        })
        .collect();
    // Holes as multiples of the unit, so that everything stays aligned.
    let mut starts: Vec<(u64, u64)> = Vec::new();
    let mut at = 0;
    for hole in holes {
        let room = hole / unit * unit;
        starts.push((at, room));
        buffers.push(Buffer::new(0, i64::from(length), unit).fixed_at(at + room));
        at += room + unit;
    }
    let solution = solve(&Problem::new(buffers)?, options, &mut Watch::default())?;
    let spot = |offset: u64| {
        let region = starts.partition_point(|(start, _)| *start <= offset);
        match region.checked_sub(1).map(|region| (region, starts[region])) {
            Some((region, (start, room))) if offset < start + room => {
                Spot { region: region as u32, offset: offset - start }
            }
            _ => Spot { region: holes.len() as u32, offset: offset - at },
        }
    };
    let spots = solution.plan.offsets[..requests.len()].iter().map(|offset| spot(offset.0)).collect();
    Ok(Packed { spots, arena: solution.plan.peak.0.saturating_sub(at) })
}

/// The lowest offset in a hole at which a request overlaps no other. `inside` is sorted.
fn lowest(
    request: &Request,
    requests: &[Request],
    inside: &[(u64, usize)],
    room: u64,
    length: u32,
) -> Option<u64> {
    let mut offset = 0;
    for &(at, other) in inside {
        if offset + request.size <= at {
            break;
        }
        if request.meets(&requests[other], length) {
            offset = offset.max(at + requests[other].size);
        }
    }
    (offset + request.size <= room).then_some(offset)
}

/// The time at which most bytes are alive.
fn busiest(requests: &[Request], length: u32) -> u32 {
    let mut changes = vec![0i128; length as usize + 1];
    for request in requests {
        for (from, to) in request.pieces(length).into_iter().filter(|(from, to)| from < to) {
            changes[from as usize] += i128::from(request.size);
            changes[to as usize] -= i128::from(request.size);
        }
    }
    let mut load = 0;
    let loads = changes.into_iter().map(|change| {
        load += change;
        load
    });
    let most = loads.enumerate().max_by_key(|&(at, load)| (load, std::cmp::Reverse(at)));
    most.map_or(0, |(at, _)| at as u32)
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    /// Everything that is alive together lies apart, within its region.
    fn check(requests: &[Request], length: u32, holes: &[u64], packed: &Packed) {
        assert_eq!(packed.spots.len(), requests.len());
        let room = |region: u32| holes.get(region as usize).copied().unwrap_or(packed.arena);
        for (i, (a, at)) in requests.iter().zip(&packed.spots).enumerate() {
            assert!(
                at.region as usize <= holes.len() && at.offset + a.size <= room(at.region),
                "{a:?} at {at:?}"
            );
            for (b, other) in requests.iter().zip(&packed.spots).skip(i + 1) {
                let apart = at.region != other.region
                    || at.offset + a.size <= other.offset
                    || other.offset + b.size <= at.offset;
                assert!(apart || !a.meets(b, length), "{a:?} at {at:?} and {b:?} at {other:?}");
            }
        }
    }

    #[test]
    fn random_steps_are_packed_without_overlap() {
        for seed in 0..60 {
            let mut rng = Rng::new(seed);
            let length = 20 + (rng.next_u64() % 60) as u32;
            let requests: Vec<Request> = (0..length)
                .map(|start| {
                    let lived = 1 + (rng.next_u64() % u64::from(length)) as u32;
                    Request { size: 512 * (1 + rng.next_u64() % 5000), start, end: start + lived }
                })
                .collect();
            let holes: Vec<u64> =
                (0..rng.next_u64() % 5).map(|_| 512 * (1 + rng.next_u64() % 9000)).collect();
            let options = Options { effort: Some(2000), ..Options::default() };
            let packed = pack(&requests, length, &holes, &options).expect("packed");
            check(&requests, length, &holes, &packed);
            let without = pack(&requests, length, &[], &options).expect("packed");
            assert!(packed.arena <= without.arena, "seed {seed}: holes cost nothing");
        }
    }

    #[test]
    fn what_crosses_the_end_shares_with_what_does_not() {
        // One lives across the end, the other in the middle: the same place serves both.
        let requests = [Request { size: 4096, start: 8, end: 12 }, Request { size: 4096, start: 3, end: 7 }];
        let packed = pack(&requests, 10, &[], &Options::default()).expect("packed");
        assert_eq!(packed.arena, 4096);
        let packed = pack(&requests, 10, &[4096], &Options::default()).expect("packed");
        assert_eq!(packed.arena, 0);
    }
}
