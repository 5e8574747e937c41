//! Planners that answer at once, or when they are asked again: first fit, largest first. Not a good plan, but a valid
//! one.

use gapless_pool::steps::{Period, Planner, Recurring, Spot, Ticket};
use std::sync::{Arc, Mutex, PoisonError};

#[derive(Debug)]
pub(crate) struct AtOnce;

impl Planner for AtOnce {
    fn plan(&mut self, period: Period) -> Option<Vec<Spot>> {
        Some(first_fit(&period))
    }
}

/// Keeps the periods that it is asked for until the plans are collected.
#[derive(Clone, Debug, Default)]
pub(crate) struct Later(Arc<Mutex<Vec<Period>>>);

impl Planner for Later {
    fn plan(&mut self, period: Period) -> Option<Vec<Spot>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(period);
        None
    }
}

impl Later {
    pub(crate) fn take(&self) -> Vec<(Ticket, Vec<Spot>)> {
        let asked = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        asked.into_iter().map(|period| (period.ticket, first_fit(&period))).collect()
    }
}

fn first_fit(period: &Period) -> Vec<Spot> {
    let mut order: Vec<usize> = (0..period.requests.len()).collect();
    order.sort_by_key(|&i| std::cmp::Reverse(period.requests[i].size));
    let mut spots: Vec<Option<Spot>> = vec![None; period.requests.len()];
    for i in order {
        let request = &period.requests[i];
        spots[i] = (0..=period.holes.len() as u32).find_map(|region| {
            let placed = spots.iter().zip(period.requests.iter());
            let mut taken: Vec<(u64, u64)> = placed
                .filter(|(_, other)| meet(request, other, period.length))
                .filter_map(|(spot, other)| spot.map(|spot| (spot, other.size)))
                .filter(|(spot, _)| spot.region == region)
                .map(|(spot, size)| (spot.offset, spot.offset + size))
                .collect();
            taken.sort_unstable();
            let mut offset = 0;
            for (from, to) in taken {
                if offset + request.size <= from {
                    break;
                }
                offset = offset.max(to);
            }
            let room = period.holes.get(region as usize).copied().unwrap_or(u64::MAX);
            (offset + request.size <= room).then_some(Spot { region, offset })
        });
    }
    spots.into_iter().flatten().collect()
}

/// True if two requests are live at once, in any two periods that follow each other.
fn meet(a: &Recurring, b: &Recurring, length: u32) -> bool {
    let pieces = |r: &Recurring| match r.end.checked_sub(length) {
        Some(over) if over > 0 => [(0, over), (r.start, length)],
        _ => [(r.start, r.end), (0, 0)],
    };
    pieces(a).iter().any(|x| pieces(b).iter().any(|y| x.0 < y.1 && y.0 < x.1))
}
