//! A planner for tests and measurements.

use gapless_pool::{Period, Planner, Recurring, Spot};

/// First fit, largest first: not a good plan, but a valid one.
pub fn first_fit(period: &Period) -> Vec<Spot> {
    let length = period.length;
    let pieces = |r: &Recurring| match r.end.checked_sub(length) {
        Some(over) if over > 0 => [(0, over), (r.start, length)],
        _ => [(r.start, r.end), (0, 0)],
    };
    let meet = |a: &Recurring, b: &Recurring| {
        pieces(a).iter().any(|x| pieces(b).iter().any(|y| x.0 < y.1 && y.0 < x.1))
    };
    let mut order: Vec<usize> = (0..period.requests.len()).collect();
    order.sort_by_key(|&i| std::cmp::Reverse(period.requests[i].size));
    let mut spots: Vec<Option<Spot>> = vec![None; period.requests.len()];
    for i in order {
        let request = &period.requests[i];
        for region in 0..=period.holes.len() as u32 {
            let mut taken: Vec<(u64, u64)> = (0..spots.len())
                .filter_map(|j| spots[j].filter(|s| s.region == region).map(|s| (j, s)))
                .filter(|(j, _)| meet(request, &period.requests[*j]))
                .map(|(j, s)| (s.offset, s.offset + period.requests[j].size))
                .collect();
            taken.sort_unstable();
            let mut offset = 0;
            for (from, to) in taken {
                if offset + request.size <= from {
                    break;
                }
                offset = offset.max(to);
            }
            if offset + request.size <= period.holes.get(region as usize).copied().unwrap_or(u64::MAX) {
                spots[i] = Some(Spot { region, offset });
                break;
            }
        }
    }
    spots.into_iter().flatten().collect()
}

/// Plans at once, within the call.
#[derive(Debug)]
pub struct AtOnce;

impl Planner for AtOnce {
    fn plan(&mut self, period: Period) -> Option<Vec<Spot>> {
        Some(first_fit(&period))
    }
}
