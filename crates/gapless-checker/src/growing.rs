//! Elastic ranges of a program: they grow and shrink while work uses them, on pages of a book of their own.
//!
//! A slot that is wanted and mapped is an allocation like any other: it is written when it comes, and has no owner when
//! it is no longer wanted. Queued work may still use it then. If a range wants a slot again before its page has gone,
//! it has the same page with that work, because the program orders the work of one tensor.

use super::clock::{Clock, Line};
use super::device::TimedDevice;
use super::memory::OwnerId;
use super::streams::OWN_CONTEXT;
use super::world::{Call, Handing, World};
use gapless_pool::device::Device;
use gapless_pool::elastic::{Book, Done, Job, RangeId};
use gapless_pool::pool::PoolKey;
use std::cell::RefCell;
use std::rc::Rc;

const PAGE: u64 = 2 << 20;
const SLOTS: usize = 8;
/// The book has at most this many pages, so that two ranges have to share them.
const MOST_PAGES: usize = 10;
/// At most this many jobs are done at once.
const MOST_JOBS: usize = 64;
/// Allocations of the program have smaller names.
const FIRST_NAME: u32 = 1 << 30;

#[derive(Debug)]
struct Range {
    id: RangeId,
    base: u64,
    /// The owner of each slot that is in use.
    owners: Vec<OwnerId>,
}

/// The ranges, by the program's numbers.
#[derive(Debug)]
pub(crate) struct Growing {
    world: Rc<RefCell<World>>,
    device: TimedDevice,
    book: Book,
    ranges: [Option<Range>; 2],
    /// The work for which the pool waits.
    queued: Option<Clock>,
}

impl Growing {
    pub(crate) fn new(world: Rc<RefCell<World>>) -> Growing {
        let device = TimedDevice::new(world.clone());
        Growing { world, device, book: Book::new(PAGE, Some(MOST_PAGES)), ranges: [None, None], queued: None }
    }

    /// Resizes a range, if that is possible; the new slots are written on a stream. Returns true if it was.
    pub(crate) fn resize(&mut self, at: usize, slots: usize, line: Line) -> Option<bool> {
        if self.ranges[at].is_none() {
            let base = self.device.reserve(SLOTS as u64 * PAGE).ok()?;
            self.ranges[at] = Some(Range { id: self.book.add(base, SLOTS), base, owners: Vec::new() });
        }
        let slots = slots.min(SLOTS);
        let range = self.ranges[at].as_mut()?;
        let (id, base, before) = (range.id, range.base, range.owners.len());
        for owner in range.owners.drain(slots.min(before)..) {
            self.world.borrow_mut().set_live(owner, false);
        }
        self.book.want(id, &[(0, slots)], &[(slots, slots + 1)]);
        self.work();
        let is_there = self.book.is_ready(id) && self.book.take_error(id).is_none();
        if !is_there {
            self.book.want(id, &[(0, before.min(slots))], &[]);
            return Some(false);
        }
        for slot in before..slots {
            let place = (base + slot as u64 * PAGE, PAGE);
            let name = FIRST_NAME + (at * SLOTS + slot) as u32;
            let pool = PoolKey(u64::MAX, at as u64);
            let owner = self.world.borrow_mut().hand_out(name, place, pool, Handing::Grown(line))?;
            self.ranges[at].as_mut()?.owners.push(owner);
        }
        Some(true)
    }

    /// Queues a kernel that uses all of a range.
    pub(crate) fn touch(&mut self, at: usize, line: Line) {
        for &owner in self.ranges[at].iter().flat_map(|range| &range.owners) {
            self.world.borrow_mut().touch(line, owner);
        }
    }

    /// Runs the jobs of the pool's own thread until there are none, or it can only wait.
    pub(crate) fn work(&mut self) {
        self.world.borrow_mut().call = Call { name: "elastic", may_wait: true, ..Call::default() };
        for _ in 0..MOST_JOBS {
            if let Some(clock) = self.queued.take_if(|clock| self.world.borrow().streams.is_done(clock)) {
                self.world.borrow_mut().host.join(&clock);
                self.book.finish(Done::Waited);
            }
            let Some(job) = self.book.next_job() else { break };
            if matches!(job, Job::Wait) {
                self.queued = Some(self.world.borrow().streams.all(OWN_CONTEXT));
                continue;
            }
            let done = job.run(&mut self.device);
            if self.book.finish(done) {
                break;
            }
        }
        self.book.check();
        self.world.borrow_mut().call = Call::default();
    }

    /// Ends all ranges. The program has synchronised.
    pub(crate) fn end(&mut self) {
        for range in self.ranges.iter_mut().filter_map(Option::take) {
            for owner in range.owners {
                self.world.borrow_mut().set_live(owner, false);
            }
            self.book.end(range.id);
        }
        for _ in 0..4 {
            self.book.give_back(MOST_PAGES);
            self.work();
        }
    }
}
