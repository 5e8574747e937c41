//! Pages under ranges of addresses that grow and shrink: the book of an elastic pool, and the jobs that it needs done.
//!
//! A range has slots of one page each. Callers say which slots they want ([`Book::want`]), without a driver call. A
//! thread of the pool asks for the next [`Job`], does it on a [`Device`] ([`Job::run`]) and reports back
//! ([`Book::finish`]). Pages that a range no longer wants are unmapped after a wait for all work, so work in flight
//! keeps its memory; then any range of the pool may have them. The thread may do other jobs during the wait.
//!
//! Invariants, after every call: pages = free + here + in work; pages <= limit; a page is in one place.

use crate::device::{Device, DeviceError, PageHandle, Refusal};
use crate::mutants::{self, Mutant};
use std::collections::BTreeMap;

/// The priority of a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Want {
    #[default]
    No,
    /// Mapped ahead of use, if there is a page for it.
    Ahead,
    Yes,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Empty,
    /// A job is mapping it.
    Coming,
    /// `fenced` is true if the present wait began after the slot was last wanted.
    Here { page: PageHandle, fenced: bool },
    /// A job is unmapping it.
    Going,
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    want: Want,
    state: State,
}

#[derive(Debug)]
struct Range {
    base: u64,
    slots: Vec<Slot>,
    /// True once its user has ended it: its addresses go when nothing is mapped there.
    is_over: bool,
    error: Option<DeviceError>,
}

/// A range of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RangeId(pub u32);

/// The next job of the thread, which does it without the book's lock.
#[derive(Debug)]
pub enum Job {
    /// Maps pages at neighbouring slots; `None` stands for a page that is to be made.
    Map { range: RangeId, first: usize, addr: u64, page: u64, pages: Vec<Option<PageHandle>> },
    /// Waits until all work that is queued now is done.
    Wait,
    /// Unmaps pages: address, slot and page of each.
    Unmap { page: u64, slots: Vec<(RangeId, usize, u64, PageHandle)> },
    /// Gives pages back to the card.
    Release { page: u64, pages: Vec<PageHandle> },
    /// Gives the addresses of a range back.
    Unreserve { range: RangeId, base: u64, size: u64 },
}

/// The result of a job.
#[derive(Debug)]
pub enum Done {
    Mapped {
        range: RangeId,
        first: usize,
        pages: Vec<PageHandle>,
    },
    /// Nothing is mapped. `kept` are pages that exist; `lost` is the number of pages that could not be unmapped again.
    NotMapped {
        range: RangeId,
        first: usize,
        count: usize,
        kept: Vec<PageHandle>,
        lost: usize,
        error: DeviceError,
    },
    Waited,
    NotWaited,
    Unmapped(Vec<(RangeId, usize, PageHandle, bool)>),
    Released(usize),
    Unreserved(RangeId),
}

/// One job maps at most this many slots, with one grant for all of them.
const RUN: usize = 64;

/// The figures of a pool of pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ElasticStats {
    /// All pages; those under slots that want them; those mapped ahead or not yet unmapped; and free ones.
    pub pages: usize,
    pub wanted: usize,
    pub spare: usize,
    pub free: usize,
    pub limit: Option<usize>,
}

/// The book.
#[derive(Debug)]
pub struct Book {
    page: u64,
    limit: Option<usize>,
    ranges: BTreeMap<RangeId, Range>,
    last: u32,
    free: Vec<PageHandle>,
    pages: usize,
    in_work: usize,
    is_done: bool,
    /// True while a wait for work is under way.
    is_waiting: bool,
    /// The number of free pages that shall go back to the card.
    to_release: usize,
    /// The card's last error. Until a range wants something else, only pages that exist are used.
    starved: Option<DeviceError>,
}

impl Book {
    /// A book of pages of `page` bytes, at most `limit` of them.
    #[must_use]
    pub fn new(page: u64, limit: Option<usize>) -> Book {
        Book {
            page,
            limit,
            ranges: BTreeMap::new(),
            last: 0,
            free: Vec::new(),
            pages: 0,
            in_work: 0,
            is_done: false,
            is_waiting: false,
            to_release: 0,
            starved: None,
        }
    }

    /// A range of `slots` slots at `base`.
    pub fn add(&mut self, base: u64, slots: usize) -> RangeId {
        self.last += 1;
        let range = Range { base, slots: vec![Slot::default(); slots], is_over: false, error: None };
        self.ranges.insert(RangeId(self.last), range);
        RangeId(self.last)
    }

    /// Sets the wanted slots of a range: `yes` and `ahead` are ranges of slots, all others are not wanted. True if all
    /// of `yes` is mapped already.
    pub fn want(&mut self, id: RangeId, yes: &[(usize, usize)], ahead: &[(usize, usize)]) -> bool {
        let Some(range) = self.ranges.get_mut(&id) else { return false };
        let mut wants = vec![Want::No; range.slots.len()];
        for (list, want) in [(ahead, Want::Ahead), (yes, Want::Yes)] {
            for &(from, to) in list {
                let to = to.min(wants.len());
                if from < to {
                    wants[from..to].fill(want);
                }
            }
        }
        range.error = None;
        self.starved = None;
        for (slot, want) in range.slots.iter_mut().zip(wants) {
            if slot.want == want {
                continue;
            }
            slot.want = want;
            if want == Want::Yes
                && let State::Here { fenced, .. } = &mut slot.state
            {
                *fenced = false;
            }
        }
        self.is_ready(id)
    }

    /// True if all wanted slots of a range are mapped.
    #[must_use]
    pub fn is_ready(&self, id: RangeId) -> bool {
        let is_there = |slot: &Slot| slot.want != Want::Yes || matches!(slot.state, State::Here { .. });
        self.ranges.get(&id).is_some_and(|range| range.slots.iter().all(is_there))
    }

    /// The error because of which a range cannot have its slots. Returned once.
    pub fn take_error(&mut self, id: RangeId) -> Option<DeviceError> {
        self.ranges.get_mut(&id)?.error.take()
    }

    /// Ends a range, which its user no longer needs.
    pub fn end(&mut self, id: RangeId) {
        if let Some(range) = self.ranges.get_mut(&id) {
            range.is_over = true;
            range.slots.iter_mut().for_each(|slot| slot.want = Want::No);
        }
    }

    /// Gives `pages` free pages back to the card, now or as soon as they are free.
    pub fn give_back(&mut self, pages: usize) {
        self.to_release = self.to_release.max(pages);
        if self.to_release > self.free.len() {
            // Pages that are only mapped ahead go first.
            for slot in self.ranges.values_mut().flat_map(|range| &mut range.slots) {
                if slot.want == Want::Ahead {
                    slot.want = Want::No;
                }
            }
        }
    }

    /// True if the book has neither a range nor a page.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty() && self.pages == 0
    }

    #[must_use]
    pub fn page(&self) -> u64 {
        self.page
    }

    #[must_use]
    pub fn stats(&self) -> ElasticStats {
        let mut stats = ElasticStats {
            pages: self.pages,
            free: self.free.len(),
            limit: self.limit,
            ..ElasticStats::default()
        };
        for slot in self.ranges.values().flat_map(|range| &range.slots) {
            if matches!(slot.state, State::Here { .. }) {
                if slot.want == Want::Yes { stats.wanted += 1 } else { stats.spare += 1 }
            }
        }
        stats
    }

    /// Slots that are mapped and not wanted.
    fn leaving(&self) -> impl Iterator<Item = (RangeId, usize, u64, PageHandle, bool)> + '_ {
        let page = self.page;
        self.ranges.iter().flat_map(move |(&id, range)| {
            range.slots.iter().enumerate().filter_map(move |(at, slot)| match slot.state {
                State::Here { page: handle, fenced } if slot.want == Want::No => {
                    Some((id, at, range.base + at as u64 * page, handle, fenced))
                }
                _ => None,
            })
        })
    }

    /// The next job; `None` if there is nothing to do until a range wants something else.
    pub fn next_job(&mut self) -> Option<Job> {
        self.map(Want::Yes).or_else(|| self.unmap()).or_else(|| self.map(Want::Ahead)).or_else(|| self.tidy())
    }

    fn map(&mut self, want: Want) -> Option<Job> {
        let needs = |slot: &Slot| slot.want == want && slot.state == State::Empty;
        let mut found = None;
        for (&id, range) in &self.ranges {
            if let Some(first) = range.slots.iter().position(needs) {
                let count = range.slots[first..].iter().take(RUN).take_while(|slot| needs(slot)).count();
                found = Some((id, first, count));
                break;
            }
        }
        let (id, first, count) = found?;
        let may_make = match (self.starved, self.limit) {
            (Some(_), _) => 0,
            (None, Some(limit)) => limit.saturating_sub(self.pages),
            (None, None) => usize::MAX,
        };
        let count = count.min(self.free.len().saturating_add(may_make));
        if count == 0 {
            self.is_short(id, want, self.starved.unwrap_or(DeviceError::Refused(Refusal::Limit)));
            return None;
        }
        let mut pages: Vec<Option<PageHandle>> = Vec::with_capacity(count);
        for _ in 0..count {
            let page = self.free.pop();
            if page.is_none() {
                // The page counts before the device is asked, so that the limit holds.
                self.pages += 1;
            }
            pages.push(page);
        }
        self.in_work += count;
        let page = self.page;
        let range = self.ranges.get_mut(&id)?;
        range.slots[first..first + count].iter_mut().for_each(|slot| slot.state = State::Coming);
        Some(Job::Map { range: id, first, addr: range.base + first as u64 * page, page, pages })
    }

    /// No page is left for a range. It waits if pages are on their way, or mapped ahead elsewhere. Otherwise it gets an
    /// error, or loses the slots that it wanted only ahead.
    fn is_short(&mut self, id: RangeId, want: Want, error: DeviceError) {
        if want == Want::Ahead {
            if let Some(range) = self.ranges.get_mut(&id) {
                for slot in &mut range.slots {
                    if slot.want == Want::Ahead && slot.state == State::Empty {
                        slot.want = Want::No;
                    }
                }
            }
            return;
        }
        let mut has_more = self.in_work > 0 || self.leaving().next().is_some();
        for slot in self.ranges.values_mut().flat_map(|range| &mut range.slots) {
            if slot.want == Want::Ahead && !has_more {
                has_more |= matches!(slot.state, State::Here { .. });
                slot.want = Want::No;
            }
        }
        if !has_more {
            self.fail(id, error);
        }
    }

    /// Fails a range: its error is set, and its empty slots are no longer wanted.
    fn fail(&mut self, id: RangeId, error: DeviceError) {
        if let Some(range) = self.ranges.get_mut(&id) {
            range.error = Some(error);
            for slot in &mut range.slots {
                if slot.want != Want::No && slot.state == State::Empty {
                    slot.want = Want::No;
                }
            }
        }
    }

    /// The next step for pages that are not wanted: a wait for the work that may use them, then the unmapping.
    fn unmap(&mut self) -> Option<Job> {
        if mutants::is(Mutant::ShrinkUnderWork) && self.leaving().next().is_some() {
            self.mark_leaving();
            self.is_done = true;
        }
        if self.is_done {
            self.is_done = false;
            let slots: Vec<_> = self
                .leaving()
                .filter(|slot| slot.4)
                .map(|(id, at, addr, page, _)| (id, at, addr, page))
                .collect();
            for &(id, at, ..) in &slots {
                if let Some(range) = self.ranges.get_mut(&id) {
                    range.slots[at].state = State::Going;
                }
            }
            self.in_work += slots.len();
            if !slots.is_empty() {
                return Some(Job::Unmap { page: self.page, slots });
            }
        }
        if self.is_waiting || self.leaving().next().is_none() {
            return None;
        }
        self.mark_leaving();
        self.is_waiting = true;
        Some(Job::Wait)
    }

    /// Marks slots that are not wanted now: the wait that begins now covers all work that uses them.
    fn mark_leaving(&mut self) {
        for slot in self.ranges.values_mut().flat_map(|range| &mut range.slots) {
            if slot.want == Want::No
                && let State::Here { fenced, .. } = &mut slot.state
            {
                *fenced = true;
            }
        }
    }

    fn tidy(&mut self) -> Option<Job> {
        if self.to_release > 0 && !self.free.is_empty() {
            let count = self.to_release.min(self.free.len());
            self.to_release -= count;
            let pages = self.free.split_off(self.free.len() - count);
            self.in_work += count;
            return Some(Job::Release { page: self.page, pages });
        }
        if self.leaving().next().is_none() && self.in_work == 0 {
            self.to_release = 0;
        }
        let page = self.page;
        let over = self
            .ranges
            .iter_mut()
            .find(|(_, range)| range.is_over && range.slots.iter().all(|slot| slot.state == State::Empty));
        let (&id, range) = over?;
        // So that it is not found again.
        range.is_over = false;
        Some(Job::Unreserve { range: id, base: range.base, size: range.slots.len() as u64 * page })
    }

    /// Records the result of a job. True if the job has to be tried again after a while.
    pub fn finish(&mut self, done: Done) -> bool {
        match done {
            Done::Mapped { range, first, pages } => {
                self.in_work -= pages.len();
                for (at, page) in pages.into_iter().enumerate() {
                    self.set(range, first + at, State::Here { page, fenced: false });
                }
            }
            Done::NotMapped { range, first, count, kept, lost, error } => {
                // The job had `count` pages: `kept` exist, and the others were never made or are lost.
                self.in_work -= count;
                self.pages = self.pages + kept.len() - count;
                self.free.extend(kept);
                for at in 0..count {
                    // A slot whose page cannot be unmapped can never be mapped again.
                    let state = if at < lost { State::Going } else { State::Empty };
                    self.set(range, first + at, state);
                }
                match error {
                    // Further attempts would fail in the same way.
                    DeviceError::Driver(_) => self.fail(range, error),
                    DeviceError::OutOfMemory | DeviceError::Refused(_) => self.starved = Some(error),
                }
            }
            Done::Waited => (self.is_done, self.is_waiting) = (true, false),
            Done::NotWaited => {
                self.is_waiting = false;
                for slot in self.ranges.values_mut().flat_map(|range| &mut range.slots) {
                    if let State::Here { fenced, .. } = &mut slot.state {
                        *fenced = false;
                    }
                }
                return true;
            }
            Done::Unmapped(slots) => {
                self.in_work -= slots.len();
                let mut is_stuck = false;
                for (range, at, page, is_gone) in slots {
                    if is_gone {
                        self.set(range, at, State::Empty);
                        self.free.push(page);
                    } else {
                        is_stuck = true;
                        self.set(range, at, State::Here { page, fenced: false });
                    }
                }
                return is_stuck;
            }
            Done::Released(count) => {
                self.in_work -= count;
                self.pages -= count;
            }
            Done::Unreserved(range) => {
                self.ranges.remove(&range);
            }
        }
        false
    }

    fn set(&mut self, range: RangeId, at: usize, state: State) {
        if let Some(slot) = self.ranges.get_mut(&range).and_then(|range| range.slots.get_mut(at)) {
            slot.state = state;
        }
    }

    /// Checks the invariants; for tests.
    ///
    /// # Panics
    /// If an invariant does not hold.
    pub fn check(&self) {
        let here = self
            .ranges
            .values()
            .flat_map(|range| &range.slots)
            .filter(|slot| matches!(slot.state, State::Here { .. }))
            .count();
        assert_eq!(self.pages, self.free.len() + here + self.in_work, "pages = free + here + in work");
        assert!(self.limit.is_none_or(|limit| self.pages <= limit), "pages <= limit");
    }
}

impl Job {
    /// Does the job on a device.
    pub fn run<D: Device>(self, device: &mut D) -> Done {
        match self {
            Job::Map { range, first, addr, page, pages } => map(device, (range, first), addr, page, &pages),
            Job::Wait if device.wait_for_all().is_ok() => Done::Waited,
            Job::Wait => Done::NotWaited,
            Job::Unmap { page, slots } => {
                let unmapped = slots
                    .into_iter()
                    .map(|(range, at, addr, handle)| (range, at, handle, device.unmap(addr, page).is_ok()))
                    .collect();
                Done::Unmapped(unmapped)
            }
            Job::Release { page, pages } => {
                let count = pages.len();
                pages.into_iter().for_each(|handle| device.release(handle, page));
                Done::Released(count)
            }
            Job::Unreserve { range, base, size } => {
                device.unreserve(base, size);
                Done::Unreserved(range)
            }
        }
    }
}

fn map<D: Device>(
    device: &mut D,
    (range, first): (RangeId, usize),
    addr: u64,
    page: u64,
    pages: &[Option<PageHandle>],
) -> Done {
    let mut there: Vec<PageHandle> = pages.iter().copied().flatten().collect();
    let (mut mapped, mut failed) = (Vec::with_capacity(pages.len()), None);
    for &known in pages {
        let handle = match known.map_or_else(|| device.create(page), Ok) {
            Ok(handle) => handle,
            Err(error) => {
                failed = Some(error);
                break;
            }
        };
        if known.is_none() {
            there.push(handle);
        }
        if let Err(error) = device.map(addr + mapped.len() as u64 * page, page, handle) {
            failed = Some(error);
            break;
        }
        mapped.push(handle);
    }
    let size = mapped.len() as u64 * page;
    if failed.is_none() {
        failed = device.grant(addr, size).err();
    }
    let Some(error) = failed else { return Done::Mapped { range, first, pages: mapped } };
    // The slots are not reported as mapped yet, so no work uses these addresses.
    let is_gone = mapped.is_empty() || device.unmap(addr, size).is_ok();
    let lost = if is_gone { 0 } else { mapped.len() };
    if !is_gone {
        there.retain(|handle| !mapped.contains(handle));
    }
    Done::NotMapped { range, first, count: pages.len(), kept: there, lost, error }
}

#[cfg(test)]
mod tests;
