//! Chooses the ranks that a page of many shows whole, with their allocations.

use super::Ranks;

/// The most allocations on a page, of all ranks together: about 10 bytes each, so that a page stays small.
const ALLOCATIONS: u64 = 600_000;
/// Ranks that are shown whole, at most.
const SHOWN: usize = 6;

/// The ranks whose allocations the page has: the worst, those that are odd, and the median one to compare them with.
#[must_use]
pub fn shown(ranks: &Ranks) -> Vec<u32> {
    let odd = ranks.odd_ranks.iter().map(|odd| odd.rank);
    let differ = ranks.differences.iter().flat_map(|pair| pair.ranks.iter().map(|id| id.rank));
    let wanted = ranks.worst_rank.into_iter().chain(ranks.median_rank).chain(odd).chain(differ);
    let mut shown: Vec<u32> = Vec::new();
    let mut sum = 0;
    for rank in wanted {
        // An allocation has at least two events, so this estimate is an upper bound.
        let events: u64 =
            ranks.ranks.iter().filter(|row| row.rank == rank).filter_map(|row| row.events).sum();
        let is_room = shown.is_empty() || sum + events / 2 <= ALLOCATIONS;
        if !shown.contains(&rank) && shown.len() < SHOWN && is_room {
            sum += events / 2;
            shown.push(rank);
        }
    }
    shown
}
