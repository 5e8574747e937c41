//! Exact search within a capacity, restarted with growing budgets and changing orders.
//!
//! One run of the search may be lost for a long time after a wrong choice near the root. Of many short runs in
//! different orders, some usually avoid it. Budgets follow Luby's sequence in units of a little more than one dive to
//! the bottom, so the search stays complete, and refuted states are remembered from run to run.

pub(crate) mod search;

use crate::compact::Compact;
use crate::options::Tricks;
pub(crate) use search::Answer;
use search::{Order, Search, Value};

/// A search that can be continued run by run.
pub(crate) struct Restarts<'a> {
    search: Search<'a>,
    unit: u64,
    round: u64,
    seed: u64,
    pub(crate) capacity: i64,
}

/// Up to this many buffers the search runs on the caller's stack.
const INLINE_LIMIT: usize = 300;

/// The search is cut off at a depth of three times the buffers ([`search::DEPTH_PER_BUFFER`]); a level takes less than
/// 1 KiB in release builds and 3 KiB in debug builds. The system backs only those pages of a stack that are touched.
const STACK_PER_BUFFER: usize = 16 << 10;

const VALUES: [Value; 4] = [Value::Size, Value::Length, Value::LengthSize, Value::Area];

impl<'a> Restarts<'a> {
    pub(crate) fn new(compact: &'a Compact, capacity: i64, tricks: Tricks, seed: u64) -> Restarts<'a> {
        let unit = compact.len() as u64 * 3 / 2 + 50;
        Restarts { search: Search::new(compact, capacity, tricks), unit, round: 0, seed, capacity }
    }

    /// One more run. Its cost in nodes is added to `nodes`.
    pub(crate) fn next(&mut self, nodes: &mut u64, stop: &(dyn Fn() -> bool + Sync)) -> Answer {
        let value = VALUES[(self.round % VALUES.len() as u64) as usize];
        let turn = self.round / VALUES.len() as u64;
        let noise = if turn == 0 { 0.0 } else { 0.5 };
        let before = self.search.nodes;
        let seed = self.seed.wrapping_mul(0x1000_0000_01b3).wrapping_add(self.round);
        let (order, budget) = (Order { value, noise }, self.unit * luby(turn + 1));
        let answer = if self.search.len() <= INLINE_LIMIT {
            self.search.run(order, seed, budget, stop)
        } else {
            self.on_a_deep_stack(order, seed, budget, stop)
        };
        self.round += 1;
        *nodes += self.search.nodes - before;
        answer
    }

    /// The search recurses once for each buffer, so it runs in a thread with a stack that is deep enough.
    fn on_a_deep_stack(
        &mut self,
        order: Order,
        seed: u64,
        budget: u64,
        stop: &(dyn Fn() -> bool + Sync),
    ) -> Answer {
        let search = &mut self.search;
        std::thread::scope(|scope| {
            let builder = std::thread::Builder::new().stack_size(search.len() * STACK_PER_BUFFER);
            let thread = builder.spawn_scoped(scope, || search.run(order, seed, budget, stop));
            // If no thread can be started, there is no answer; a panic in it is passed on.
            let joined = thread.ok().map(std::thread::ScopedJoinHandle::join);
            joined.map_or(Answer::Unknown, |run| run.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        })
    }

    /// The offsets of the plan that the last run found.
    pub(crate) fn offsets(&self) -> &[i64] {
        &self.search.place
    }
}

/// 1, 1, 2, 1, 1, 2, 4, ... for 1, 2, 3, ...
fn luby(index: u64) -> u64 {
    let mut index = index.max(1);
    loop {
        let bits = u64::BITS - index.leading_zeros();
        if index == (1 << bits) - 1 {
            return 1 << (bits - 1);
        }
        index -= (1 << (bits - 1)) - 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgets_follow_lubys_sequence() {
        let first: Vec<u64> = (1..16).map(luby).collect();
        assert_eq!(first, [1, 1, 2, 1, 1, 2, 4, 1, 1, 2, 1, 1, 2, 4, 8]);
    }
}
