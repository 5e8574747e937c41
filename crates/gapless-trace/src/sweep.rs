//! A quantity over all ticks of a run, from the amount and the lifetime of each allocation.
//!
//! The ticks are gone through in stretches that stay in the cache: an array as long as the run would take more time to
//! get from the kernel than the sum takes.

use crate::words::Tick;

/// The least ticks that are summed together.
const STRETCH: u64 = 1 << 15;
/// Stretches of a long run, at most: a long-lived allocation is read again in each.
const STRETCHES: u64 = 16;

/// Calls `visit` with each tick from 0 to `last`, in order, and the sum of the amounts in use at it: `amounts[i]` is in
/// use at the ticks `starts[i] .. ends[i]`. The starts are in order, and no end comes before its start.
pub fn levels(starts: &[u32], ends: &[u32], amounts: &[u64], last: Tick, mut visit: impl FnMut(Tick, u64)) {
    let ticks = u64::from(last.0) + 1;
    let stretch = ticks.div_ceil(STRETCHES).max(STRETCH).min(ticks);
    let mut changes = vec![0i64; stretch as usize];
    // Amounts that end in a later stretch.
    let mut later: Vec<(u32, u64)> = Vec::new();
    let mut rows = starts.iter().zip(ends).zip(amounts).peekable();
    let mut level = 0i64;
    let mut from = 0;
    while from < ticks {
        let to = (from + stretch).min(ticks);
        let place = |tick: u32| (u64::from(tick) - from) as usize;
        changes.fill(0);
        later.retain(|&(end, amount)| {
            let now = u64::from(end) < to;
            if now {
                changes[place(end)] -= amount as i64;
            }
            !now
        });
        while let Some(((&start, &end), &amount)) = rows.next_if(|((start, _), _)| u64::from(**start) < to) {
            changes[place(start)] += amount as i64;
            if u64::from(end) < to {
                changes[place(end)] -= amount as i64;
            } else if end <= last.0 {
                later.push((end, amount));
            }
        }
        for (tick, change) in (from..to).zip(&changes) {
            level += change;
            visit(Tick(tick as u32), level as u64);
        }
        from = to;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_level_at_each_tick_is_the_sum_of_what_is_in_use() {
        // Short and long lives, some without an end, over runs of less than a stretch and of several.
        for last in [0, 1, 77, 40_000, 200_000, 600_001u32] {
            let mut random = 99_u64;
            let mut next = |below: u32| {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (random >> 33) as u32 % below
            };
            let mut starts: Vec<u32> = (0..(last / 3).min(3000)).map(|_| next(last + 1)).collect();
            starts.sort_unstable();
            let ends: Vec<u32> = starts
                .iter()
                .map(|&start| match next(3) {
                    0 => last + 1,
                    1 => (start + next(50)).min(last + 1),
                    _ => start + next(last + 2 - start),
                })
                .collect();
            let amounts: Vec<u64> = starts.iter().map(|_| u64::from(next(1 << 20)) << 20).collect();
            let mut changes = vec![0i64; last as usize + 2];
            for i in 0..starts.len() {
                changes[starts[i] as usize] += amounts[i] as i64;
                changes[ends[i] as usize] -= amounts[i] as i64;
            }
            let (mut level, mut visited) = (0, 0);
            levels(&starts, &ends, &amounts, Tick(last), |tick, found| {
                assert_eq!(tick.0, visited);
                level += changes[tick.0 as usize];
                assert_eq!(found, level as u64, "tick {visited} of {last}");
                visited += 1;
            });
            assert_eq!(visited, last + 1);
        }
    }
}
