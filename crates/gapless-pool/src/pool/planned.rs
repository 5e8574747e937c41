//! Puts plans for steps in place: an arena at the end of a lane's heap, made of pages that are free elsewhere, and
//! places in the holes between allocations that stay.
//!
//! This happens once for a plan, when a step begins and the least is live, or in the pause before it. The pages are
//! free, so they move without a copy and without a wait: they are mapped at their new home, and leave the old one when
//! no work uses it any more. Pages that the plan does not need go back to the device in the same way. New memory is
//! taken only as far as a request would get it too, because pages with allocations that stay cannot move. Requests that
//! find no room are left out of the plan.

use super::{Place, Pool, SMALL};
use crate::device::{Device, DeviceError, PageHandle};
use crate::heap::{GRANULE, Page};
use crate::ids::{HeapId, LaneId, PageId};
use crate::steps::{PlanStats, Planner, Spot, State, Steps, Ticket};

/// The planner gets at most this many holes.
const HOLES: usize = 64;
/// Free memory that is kept beside a plan: at least so many bytes, or this part of what is held.
const LEAST_KEPT: u64 = 8 << 20;
const KEPT_PART: u64 = 2000;

impl<D: Device> Pool<D> {
    /// Sets the planner of steps that repeat; with `None`, steps are no longer recognised.
    pub fn set_planner(&mut self, planner: Option<Box<dyn Planner>>) {
        self.planner = planner;
        for lane in self.lanes.ids() {
            self.set_steps(lane);
        }
    }

    /// Starts the log of a lane's steps anew.
    pub(super) fn set_steps(&mut self, lane: LaneId) {
        let is_planned = self.planner.is_some() && !self.lanes[lane].pool.is_private();
        self.lanes.shard_mut(lane).steps = is_planned.then(|| Box::new(Steps::new(lane)));
    }

    /// Marks the end of one of the program's steps and the beginning of another.
    pub fn mark_step(&mut self) {
        for shard in self.lanes.shards_mut() {
            if let Some(steps) = &mut shard.steps {
                steps.mark();
            }
        }
    }

    /// Does now what the next request would have to wait for: the program is between two steps, and done with frees.
    pub fn pause(&mut self) {
        for lane in self.lanes.ids() {
            if self.lanes.shard(lane).steps.as_ref().is_some_and(|steps| steps.needs_pool) {
                self.attend(lane, None);
            }
        }
    }

    /// Installs a plan that the planner was asked for. It is used from the next beginning of its step on.
    pub fn install(&mut self, ticket: Ticket, spots: Vec<Spot>) {
        let lane = self.lanes.ids().find(|lane| *lane == ticket.lane);
        if let Some(steps) = lane.and_then(|lane| self.lanes.shard_mut(lane).steps.as_mut()) {
            steps.planned(ticket, spots);
        }
    }

    /// Figures of requests that plans served.
    pub fn plan_stats(&self) -> PlanStats {
        let mut sum = PlanStats::default();
        for stats in self.lanes.shards().filter_map(|shard| Some(shard.steps.as_ref()?.stats())) {
            sum.plans += stats.plans;
            sum.served += stats.served;
            sum.served_bytes += stats.served_bytes;
            sum.missed += stats.missed;
            sum.requests += stats.requests;
            sum.steps += stats.steps;
        }
        sum
    }

    /// Asks for a plan of a step, or puts one in place, if it is time. Called before a large request, and in a pause.
    #[cold]
    pub(super) fn attend(&mut self, lane: LaneId, size: Option<u64>) {
        let Some(steps) = self.lanes.shard_mut(lane).steps.as_mut() else { return };
        let Some(mut at) = steps.attend(size) else { return };
        if steps.plan(at).state == State::Wanted {
            let holes = self.holes(lane, at);
            let Some(steps) = self.lanes.shard_mut(lane).steps.as_mut() else { return };
            steps.plan(at).holes.clone_from(&holes);
            let period = steps.period(at, holes.into_iter().map(|(_, size)| size).collect());
            let ticket = period.ticket;
            if let Some(spots) = self.planner.as_mut().and_then(|planner| planner.plan(period)) {
                self.install(ticket, spots);
            }
            let Some(steps) = self.lanes.shard_mut(lane).steps.as_mut() else { return };
            match steps.attend(size) {
                Some(ready) => at = ready,
                None => return,
            }
        }
        let Some(steps) = self.lanes.shard_mut(lane).steps.as_mut() else { return };
        if steps.plan(at).state == State::Ready && !self.quiet {
            self.arm(lane, at);
        }
    }

    /// Blocks of a lane's heap that stay over the steps of a plan, by address.
    fn staying(&self, lane: LaneId, at: usize) -> Vec<(u64, u64)> {
        let (shard, heap) = (self.lanes.shard(lane), lane.large());
        let Some(steps) = shard.steps.as_ref() else { return Vec::new() };
        let mut staying: Vec<(u64, u64)> = Vec::new();
        for id in self.ids() {
            let allocation = self.allocation(id);
            if allocation.lane == lane && steps.is_passing(at, allocation.born) {
                continue;
            }
            let mut add = |(of, block): (HeapId, u32)| {
                if of == heap {
                    let block = self.heap(heap).block(block);
                    staying.push((block.addr, block.size));
                }
            };
            match &allocation.place {
                Place::Home { heap, block } => add((*heap, *block)),
                Place::Window { parts, .. } => parts.iter().copied().for_each(&mut add),
                // Not in a heap that a plan covers.
                Place::Supplied { .. } | Place::Asleep { .. } => {}
            }
        }
        staying.sort_unstable();
        staying
    }

    /// The largest free places in pages in which an allocation stays, by address.
    fn holes(&self, lane: LaneId, at: usize) -> Vec<(u64, u64)> {
        let staying = self.staying(lane, at);
        let mut holes: Vec<(u64, u64)> = Vec::new();
        let mut next = 0;
        for page in self.heap(lane.large()).pages() {
            let end = page.addr + page.size;
            while staying.get(next).is_some_and(|(addr, size)| addr + size <= page.addr) {
                next += 1;
            }
            if page.handle.is_none() || staying.get(next).is_none_or(|(addr, _)| *addr >= end) {
                continue;
            }
            let mut free = page.addr;
            for &(addr, size) in staying[next..].iter().take_while(|(addr, _)| *addr < end) {
                if addr > free {
                    add_hole(&mut holes, free, addr);
                }
                free = free.max(addr + size);
            }
            // Behind the last of them the arena begins.
            if free < end && staying.last().is_some_and(|(addr, _)| *addr >= free) {
                add_hole(&mut holes, free, end);
            }
        }
        holes.retain(|(_, size)| *size > SMALL);
        holes.sort_unstable_by_key(|&(addr, size)| (std::cmp::Reverse(size), addr));
        holes.truncate(HOLES);
        holes.sort_unstable();
        holes
    }

    /// Puts a plan in place.
    fn arm(&mut self, lane: LaneId, at: usize) {
        let heap = lane.large();
        let Some(steps) = self.lanes.shard_mut(lane).steps.as_mut() else { return };
        let plan = steps.plan(at);
        let arena = plan.holes.len() as u32;
        let ends = plan.spots.iter().zip(plan.requests.iter());
        let ends = ends.filter(|(spot, _)| spot.region == arena).map(|(spot, r)| spot.offset + r.size);
        let needed = ends.max().unwrap_or(0);
        self.poll();
        self.drop_idle_windows_of(lane);
        let missing = needed.saturating_sub(self.heap(heap).tail()).div_ceil(GRANULE) * GRANULE;
        // Requests that find no room are left out below.
        let _ = self.gather_at_end(heap, missing);
        let short = needed.saturating_sub(self.heap(heap).tail()).div_ceil(GRANULE) * GRANULE;
        if short > 0 && self.stats.reserved.current + short <= self.allowed(0) {
            let _ = self.grow(heap, short);
        }
        let (tail, end) = (self.heap(heap).tail(), self.heap(heap).end());
        let base = end - tail;
        let Some(steps) = self.lanes.shard_mut(lane).steps.as_mut() else { return };
        let plan = steps.plan(at);
        let place = |spot: &Spot, size: u64| match plan.holes.get(spot.region as usize) {
            Some(&(addr, room)) if spot.offset + size <= room => addr + spot.offset,
            None if spot.region == arena && spot.offset + size <= tail => base + spot.offset,
            _ => 0,
        };
        plan.places =
            plan.spots.iter().zip(plan.requests.iter()).map(|(spot, r)| place(spot, r.size)).collect();
        plan.state = State::Armed;
        if plan.places.iter().all(|place| *place != 0) {
            self.give_back_beside(heap, base, base + needed);
        }
    }

    /// Moves free pages of a heap to its end, at least `bytes` if there are as many.
    fn gather_at_end(&mut self, heap: HeapId, bytes: u64) -> Result<(), DeviceError> {
        if bytes == 0 {
            return Ok(());
        }
        let start = self.heap(heap).end();
        let tail = start - self.heap(heap).tail();
        let pages = self.heap(heap).pages().iter().enumerate();
        let is_movable = |page: &Page| page.is_free() && page.windows == 0 && page.addr + page.size <= tail;
        let mut movable: Vec<(u64, PageId)> = pages
            .filter(|(_, page)| is_movable(page))
            .map(|(at, page)| (page.size, PageId::new(at)))
            .collect();
        // Large pages come first, because they need fewer mappings; equal ones by address.
        movable.sort_unstable_by_key(|&(size, at)| (std::cmp::Reverse(size), at));
        let mut chosen: Vec<PageId> = Vec::new();
        let mut sum = 0;
        for (i, &(size, at)) in movable.iter().enumerate() {
            if sum >= bytes {
                break;
            }
            // Skips a large page if a smaller one is enough for the rest.
            let left = bytes - sum;
            let rest_fits = movable[i + 1..].iter().map(|(size, _)| *size).sum::<u64>() >= left;
            if size > left && rest_fits && movable[i + 1].0 >= left.min(GRANULE) && movable[i + 1].0 < size {
                continue;
            }
            chosen.push(at);
            sum += size;
        }
        if self.heap(heap).room() < sum {
            return Err(DeviceError::OutOfMemory);
        }
        let mut moved: Vec<(PageId, PageHandle)> = Vec::new();
        let (mut end, mut failed) = (start, None);
        for page in chosen {
            let Page { size, freed, .. } = *self.heap(heap).page(page);
            let Some(handle) = self.heap_mut(heap).give_up(page) else { continue };
            if let Err(error) = self.device.map(end, size, handle) {
                self.heap_mut(heap).refill(page, handle, freed);
                failed = Some(error);
                break;
            }
            moved.push((page, handle));
            end += size;
        }
        if moved.is_empty() {
            return failed.map_or(Ok(()), Err);
        }
        if let Err(error) = self.device.grant(start, end - start) {
            for &(page, handle) in &moved {
                let freed = self.heap(heap).page(page).freed;
                self.heap_mut(heap).refill(page, handle, freed);
            }
            // The caller never got these addresses, so no work uses them.
            if self.device.unmap(start, end - start).is_err() {
                self.heap_mut(heap).lose(end - start);
                self.keep_for_good(moved.into_iter().map(|(page, _)| (heap, page)));
            }
            return Err(error);
        }
        for &(page, handle) in &moved {
            let Page { addr, size, freed, .. } = *self.heap(heap).page(page);
            let at = self.heap(heap).end();
            self.heap_mut(heap).grow_behind(handle, size, freed);
            // In this order, because a reader that adds up the log then counts each page once, with the pool's peak.
            self.log_pages(heap, addr, size, false);
            self.log_pages(heap, at, size, true);
            self.stats.harvested += 1;
        }
        for (page, _) in moved {
            self.home_leaves(heap, page, None);
        }
        failed.map_or(Ok(()), Err)
    }

    /// Gives free pages outside of an arena back to the device, except for a little.
    fn give_back_beside(&mut self, heap: HeapId, from: u64, to: u64) {
        let pages = self.heap(heap).pages().iter().enumerate();
        let is_beside = |page: &Page| {
            page.is_free() && page.windows == 0 && (page.addr >= to || page.addr + page.size <= from)
        };
        let beside: Vec<(u64, PageId)> = pages
            .filter(|(_, page)| is_beside(page))
            .map(|(at, page)| (page.size, PageId::new(at)))
            .collect();
        let mut left = beside.iter().map(|(size, _)| size).sum::<u64>();
        // Pages that leave are held a while longer, but do not count here.
        let mut held = self.stats.reserved.current - self.leaving.bytes;
        let kept = (self.stats.reserved.current / KEPT_PART).max(LEAST_KEPT);
        for (size, page) in beside.into_iter().rev() {
            // As much as was live at once will be needed again.
            if left < kept + size || held < self.stats.active.peak + size {
                continue;
            }
            left -= size;
            held -= size;
            self.give_back_page(heap, page);
        }
    }
}

/// Adds `[from, to)`, joined to the hole before it if they touch.
fn add_hole(holes: &mut Vec<(u64, u64)>, from: u64, to: u64) {
    match holes.last_mut() {
        Some((addr, size)) if *addr + *size == from => *size += to - from,
        _ => holes.push((from, to - from)),
    }
}
