//! Ejection: makes a plan fit under a target by pushing buffers out and finding them new places.
//!
//! Buffers that stick out above the target are taken off and queued. The hardest of the queue goes to the lowest free
//! place under the target or, if there is none, to the place where the buffers that it pushes out cost least; those
//! join the queue. Each time a buffer is forced in, pushing it out again becomes dearer, so the same exchange does not
//! repeat for ever. Steps are counted, not timed.

use crate::compact::Compact;
use crate::options::Tricks;
use crate::rng::Rng;
use crate::shelves::{Shelves, round_up};

pub(crate) struct Ejection<'a> {
    compact: &'a Compact,
    shelves: Shelves,
    pub(crate) offsets: Vec<i64>,
    dearness: Vec<f32>,
    hardness: Vec<f32>,
    queue: std::collections::BinaryHeap<(u64, u32)>,
    around: Vec<(i64, i64, u32)>,
    ends: Vec<(i64, u32)>,
    places: Vec<i64>,
    rng: Rng,
    pub(crate) steps: u64,
}

impl<'a> Ejection<'a> {
    pub(crate) fn new(compact: &'a Compact, offsets: Vec<i64>, seed: u64) -> Ejection<'a> {
        let n = compact.len();
        let hardness = (0..n)
            .map(|item| {
                let length = f64::from(compact.last[item] - compact.first[item]);
                (compact.size[item] as f64 * length.sqrt()) as f32
            })
            .collect();
        Ejection {
            compact,
            shelves: Shelves::new(compact.sections),
            offsets,
            dearness: vec![1.0; n],
            hardness,
            queue: std::collections::BinaryHeap::new(),
            around: Vec::new(),
            ends: Vec::new(),
            places: Vec::new(),
            rng: Rng::new(seed),
            steps: 0,
        }
    }

    fn push(&mut self, item: u32) {
        let noise = 0.5 + self.rng.unit() as f32;
        let key = self.hardness[item as usize] * noise;
        self.queue.push((u64::from(key.to_bits()), item));
    }

    /// Starts over from a plan, with these members only: those above the target are queued, the others placed.
    fn start(&mut self, members: &[u32], target: i64) {
        let c = self.compact;
        self.shelves.clear();
        self.queue.clear();
        self.dearness.fill(1.0);
        for item in members {
            let slot = *item as usize;
            if self.offsets[slot] + c.size[slot] <= target {
                self.shelves.insert(c, *item, self.offsets[slot]);
            } else {
                self.push(*item);
            }
        }
    }

    /// Empties the queue under the target. False if the budget of steps ran out first, or a buffer is larger than the
    /// target; the offsets then are no plan.
    fn run(&mut self, target: i64, budget: u64, stop: &dyn Fn() -> bool) -> bool {
        let c = self.compact;
        let limit = self.steps.saturating_add(budget);
        while let Some((_, item)) = self.queue.pop() {
            let slot = item as usize;
            self.steps += 1;
            if self.steps > limit || (self.steps.is_multiple_of(16) && stop()) {
                self.push(item);
                return false;
            }
            let free =
                self.shelves.lowest(c.first[slot], c.last[slot], c.size[slot], c.align_of(slot), 0, target);
            let Some(place) = free.or_else(|| self.eject(slot, target)) else {
                self.push(item);
                return false;
            };
            self.offsets[slot] = place;
            self.shelves.insert(c, item, place);
        }
        true
    }

    /// Places these on top of the others, each as low as it goes; those that end above the target are queued instead of
    /// placed. False when stopped.
    fn fill(&mut self, items: &[u32], target: i64, stop: &dyn Fn() -> bool) -> bool {
        let c = self.compact;
        for (count, item) in items.iter().enumerate() {
            let slot = *item as usize;
            let free =
                self.shelves.lowest(c.first[slot], c.last[slot], c.size[slot], c.align_of(slot), 0, target);
            match free {
                Some(place) => {
                    self.offsets[slot] = place;
                    self.shelves.insert(c, *item, place);
                }
                None => self.push(*item),
            }
            if count % 256 == 255 && stop() {
                return false;
            }
        }
        true
    }

    /// Lets all buffers down: the same order from bottom to top, each as low as it goes. Never raises the peak.
    fn let_down(&mut self) {
        let mut order: Vec<u32> = (0..self.compact.len() as u32).collect();
        order.sort_unstable_by_key(|item| (self.offsets[*item as usize], *item));
        self.shelves.clear();
        self.queue.clear();
        self.fill(&order, i64::MAX, &|| false);
    }

    /// Gives up on the target: each queued buffer goes to its lowest free place, so that the offsets are a plan.
    fn complete(&mut self) {
        let c = self.compact;
        while let Some((_, item)) = self.queue.pop() {
            let slot = item as usize;
            let (first, last, size) = (c.first[slot], c.last[slot], c.size[slot]);
            if let Some(place) = self.shelves.lowest(first, last, size, c.align_of(slot), 0, i64::MAX) {
                self.offsets[slot] = place;
                self.shelves.insert(c, item, place);
            }
        }
    }

    /// Makes room for the item where it costs least and returns the place.
    fn eject(&mut self, slot: usize, target: i64) -> Option<i64> {
        let c = self.compact;
        let (first, last, size, align) = (c.first[slot], c.last[slot], c.size[slot], c.align_of(slot));
        let mut around = std::mem::take(&mut self.around);
        self.shelves.neighbours(first, last, &mut around);
        // Neighbours overlap each other in offset (they need not be alive together), so the cost of a place is the sum
        // over those that begin below its end, less those that end at or below its start.
        let mut ends = std::mem::take(&mut self.ends);
        ends.clear();
        ends.extend(around.iter().map(|(_, end, item)| (*end, *item)));
        ends.sort_unstable();
        // A place worth trying touches a buffer below it or above it; both lists are sorted, so they are merged.
        let mut places = std::mem::take(&mut self.places);
        places.clear();
        places.push(0);
        let top = (target - size) / align * align;
        let (mut above, mut below) = (0, 0);
        while above < around.len() || below < ends.len() {
            let under = around
                .get(above)
                .map_or(i64::MAX, |(offset, _, _)| (offset - size).div_euclid(align) * align);
            let over = ends.get(below).map_or(i64::MAX, |(end, _)| round_up(*end, align));
            let place = under.min(over);
            above += usize::from(under == place);
            below += usize::from(over == place);
            if place > top {
                break;
            }
            if place > 0 && places.last() != Some(&place) {
                places.push(place);
            }
        }
        if places.last().is_some_and(|last| *last < top) {
            places.push(top);
        }
        if top < 0 {
            places.clear();
        }
        let (mut begun, mut ended) = (0, 0);
        let mut cost = 0f64;
        let mut best: Option<(f64, i64)> = None;
        for place in places.iter().copied() {
            while begun < around.len() && around[begun].0 < place + size {
                cost += self.cost(around[begun].2);
                begun += 1;
            }
            while ended < ends.len() && ends[ended].0 <= place {
                cost -= self.cost(ends[ended].1);
                ended += 1;
            }
            let noisy = cost * (0.9 + 0.2 * self.rng.unit());
            if best.is_none_or(|(least, _)| noisy < least) {
                best = Some((noisy, place));
            }
        }
        self.ends = ends;
        self.places = places;
        let Some((_, place)) = best else {
            self.around = around;
            return None;
        };
        for (offset, end, item) in &around {
            if *offset < place + size && place < *end {
                self.shelves.remove(c, *item, *offset);
                self.push(*item);
            }
        }
        self.dearness[slot] += 1.0;
        self.around = around;
        Some(place)
    }

    fn cost(&self, item: u32) -> f64 {
        f64::from(self.dearness[item as usize]) * f64::from(self.hardness[item as usize])
    }
}

/// Ejection at one target after the other: each turn is one attempt.
pub(crate) struct Improver<'a> {
    compact: &'a Compact,
    ejection: Ejection<'a>,
    tricks: Tricks,
    /// Place of the next target on the way from the best plan to the goal: 1 is the goal itself.
    share: f64,
    budget: u64,
}

/// Plans of more buffers than this are not let down after each success: a pass costs as much as the attempt.
const LET_DOWN_LIMIT: usize = 20_000;

/// Buffers smaller than the target by this factor are sand, if there are enough buffers for it to matter.
const ROCK_SHARE: i64 = 1000;

impl<'a> Improver<'a> {
    pub(crate) fn new(compact: &'a Compact, tricks: Tricks, seed: u64) -> Improver<'a> {
        let ejection = Ejection::new(compact, Vec::new(), seed);
        Improver { compact, ejection, tricks, share: 1.0, budget: 2000 }
    }

    /// One attempt at a target between the goal and the best plan. Returns a plan, which may be better, and the steps.
    pub(crate) fn turn(
        &mut self,
        offsets: &[i64],
        best: i64,
        goal: i64,
        budget: u64,
        stop: &dyn Fn() -> bool,
    ) -> (Option<Vec<i64>>, u64) {
        let target = goal + ((best - 1 - goal) as f64 * (1.0 - self.share)) as i64;
        let before = self.ejection.steps;
        self.ejection.offsets = offsets.to_vec();
        let done = self.attempt(target, self.budget.min(budget), stop);
        let steps = self.ejection.steps - before;
        if done == Some(true) {
            self.share = (self.share * 1.5).min(1.0);
        } else if self.share > 0.02 {
            self.share *= 0.5;
        } else {
            self.share = 1.0;
            self.budget += self.budget / 4;
        }
        (done.map(|_| std::mem::take(&mut self.ejection.offsets)), steps)
    }

    /// Some(true): a plan under the target; Some(false): a plan; None: none.
    fn attempt(&mut self, target: i64, budget: u64, stop: &dyn Fn() -> bool) -> Option<bool> {
        let c = self.compact;
        let ejection = &mut self.ejection;
        let rock = target / ROCK_SHARE;
        let all: Vec<u32> = (0..c.len() as u32).collect();
        let (rocks, mut sand): (Vec<u32>, Vec<u32>) = if self.tricks.rocks_first && c.len() > 2000 {
            all.iter().copied().partition(|item| c.size[*item as usize] >= rock)
        } else {
            (all, Vec::new())
        };
        ejection.start(&rocks, target);
        if !ejection.run(target, budget, stop) {
            return None;
        }
        let mut done = true;
        if !sand.is_empty() {
            let weight = |item: u32| ejection.hardness[item as usize];
            sand.sort_unstable_by(|a, b| weight(*b).total_cmp(&weight(*a)).then(a.cmp(b)));
            if !ejection.fill(&sand, target, stop) {
                return None;
            }
            if !ejection.run(target, budget / 4, stop) {
                done = false;
                if stop() {
                    return None;
                }
                ejection.complete();
            }
        }
        if c.len() <= LET_DOWN_LIMIT {
            ejection.let_down();
        }
        Some(done)
    }
}
