//! One card: its pool, the routings and private pools that PyTorch has there, and the counts and reports of both.
//!
//! The caller has the card's lock ([`crate::cards`]). Nothing here calls code that may throw or take Python's lock.

mod trimming;

use crate::history::{self, Action, History};
use crate::quota::QuotaDevice;
use crate::recorder::held::{Block, Picture, Piece};
use crate::recorder::{self, Flight};
use crate::routing::{Capture, Here, Routing, Routings};
use crate::segments::{Ages, Announced, Piece as Segment};
use crate::stats::counters::{ByPool, Shown};
use crate::watcher::{Caller, Event, Stack, Watcher};
use crate::{budgets, regions};
use gapless_cuda::{CudaDevice, streams};
use gapless_pool::{
    AllocError, AllocationView, BlockState, BlockView, Budget, Change, DeviceError, Keeper, Patience, Pool,
    PoolKey, Refusal, Stats, StreamHandle, Unserved,
};
use std::collections::BTreeMap;
use std::ffi::c_void;

/// The origin of the process's limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LimitBy {
    /// The option `limit`.
    Option,
    /// `torch.cuda.set_per_process_memory_fraction`, with its argument.
    Fraction(f64),
}

/// The most bytes that the process may hold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limit {
    pub bytes: u64,
    pub by: LimitBy,
}

/// One card's allocator and the settings that PyTorch made for it.
#[derive(Debug)]
pub struct Card {
    pub pool: Pool<QuotaDevice<CudaDevice>>,
    /// Its number.
    pub device: i32,
    pub routings: Routings,
    /// Number of users of each private pool.
    uses: BTreeMap<PoolKey, u32>,
    /// The program's fraction of the card, and the limit of the options: the smaller of the two holds.
    pub fraction: f64,
    allowed: Option<u64>,
    /// Private pools whose free memory may serve requests of other pools that would otherwise fail.
    spare: Vec<PoolKey>,
    pub history: History,
    /// Requests that failed, and requests that would have failed if no handler had freed memory.
    pub failed: u64,
    pub helped: u64,
    /// Peaks of bytes that were allocated and reserved, before the program last reset its peaks.
    pub peaks_before: (u64, u64),
    /// Counters as they were when the program last reset its totals.
    pub since: Since,
    /// Figures that are counted only when the program asks: of the card, and of each private pool.
    pub shown: Shown,
    pub by_pool: ByPool,
    /// The order in which segments were first seen.
    pub ages: Ages,
    /// Segments of private pools that trackers were told of, or found when they began to listen.
    pub announced: Announced,
}

/// The counters that totals are reported relative to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Since {
    pub stats: Stats,
    pub shown: Shown,
    pub failed: u64,
}

impl Keeper for Card {
    type Device = QuotaDevice<CudaDevice>;

    fn pool_mut(&mut self) -> &mut Pool<Self::Device> {
        &mut self.pool
    }

    fn taken(&mut self) {
        self.watch_captures();
    }

    fn about_to_leave(&mut self) -> bool {
        if recorder::is_set() {
            self.tell_changes(&Caller::NOBODY);
        }
        // While a routing is open, each request must pass its filter, so the fronts stay closed.
        !self.routings.is_empty()
    }
}

/// True if a history or a recording needs the changes that pools make.
#[must_use]
pub fn needs_log() -> bool {
    history::is_watched() || recorder::is_set()
}

/// True if a watcher is on, so that requests must be reported to it.
#[inline]
#[must_use]
pub fn is_told() -> bool {
    history::is_watched() || recorder::is_on()
}

/// The watchers of a card that are on.
fn watchers<'a>(
    history: &'a mut History,
    flight: &'a mut Flight,
) -> impl Iterator<Item = &'a mut dyn Watcher> {
    let both: [&mut dyn Watcher; 2] = [flight, history];
    both.into_iter().filter(|watcher| watcher.is_on())
}

/// An allocation in the form that watchers receive.
fn event(AllocationView { addr, requested, stream, pool, .. }: AllocationView) -> Event {
    Event { addr, size: requested, stream, pool }
}

impl Card {
    /// A card with its pool, before the first request. `allowed` is the limit of the options.
    pub(crate) fn new(device: i32, pool: Pool<QuotaDevice<CudaDevice>>, allowed: Option<u64>) -> Card {
        Card {
            pool,
            device,
            routings: Routings::default(),
            uses: BTreeMap::new(),
            fraction: 1.0,
            allowed,
            spare: Vec::new(),
            history: History::default(),
            failed: 0,
            peaks_before: (0, 0),
            helped: 0,
            since: Since::default(),
            shown: Shown::default(),
            by_pool: ByPool::default(),
            ages: Ages::default(),
            announced: Announced::default(),
        }
    }

    /// Allocates `size` bytes on `stream` from `pool`, and charges them to `budget`.
    ///
    /// # Errors
    /// If the pool, the device, a limit or the budget has no room, or if the caller must wait first and ask again.
    #[inline]
    pub fn alloc(
        &mut self,
        size: u64,
        stream: *mut c_void,
        pool: PoolKey,
        budget: Option<&'static Budget>,
        patience: &mut Patience,
    ) -> Result<u64, Unserved> {
        let stream = StreamHandle(stream as u64);
        streams::note(self.device, stream.0);
        if regions::is_region(pool) {
            self.pool.add_region(pool);
        } else if regions::exempt::is_exempt(pool) && self.uses_of(pool).is_none_or(|uses| uses == 0) {
            // PyTorch counts as a user of an exempt pool: for good, or until the pool ends that this one belongs to.
            self.create(pool);
        }
        let served = self.pool.alloc_asking(size, stream, pool, budget, patience);
        // If the budget has no room, memory of another pool does not help: it is charged to the same budget.
        let Err(Unserved::Failed(AllocError::OutOfMemory { device: why, .. })) = served else {
            return served;
        };
        if why == DeviceError::Refused(Refusal::Budget) || self.spare.is_empty() {
            return served;
        }
        self.alloc_from_spare(size, stream, pool, budget, patience)?.map_or(served, Ok)
    }

    /// Serves a request from the free memory of a pool that shares it. No page moves: graphs of that pool hold
    /// addresses.
    #[cold]
    fn alloc_from_spare(
        &mut self,
        size: u64,
        stream: StreamHandle,
        pool: PoolKey,
        budget: Option<&'static Budget>,
        patience: &mut Patience,
    ) -> Result<Option<u64>, Unserved> {
        if pool.is_private() {
            return Ok(None);
        }
        for other in self.spare.clone() {
            match self.pool.alloc_asking(size, stream, other, budget, patience) {
                Ok(addr) => {
                    regions::lent(self.device, other);
                    return Ok(Some(addr));
                }
                Err(Unserved::Failed(_)) => {}
                later => return later.map(Some),
            }
        }
        Ok(None)
    }

    /// Pools that share their free memory.
    #[must_use]
    pub fn spare(&self) -> &[PoolKey] {
        &self.spare
    }

    /// Gives the allocation at `addr` back. False if there is none.
    #[inline]
    pub fn free(&mut self, addr: u64) -> bool {
        self.pool.free(addr).is_ok()
    }

    /// The driver does not report when a capture begins or ends. So the card asks it for the state of the watched
    /// streams each time a thread locks the card.
    #[inline]
    fn watch_captures(&mut self) {
        if self.routings.has_capture() {
            let Card { pool, routings, .. } = self;
            if routings.watch(Here::new(), |stream| pool.device().is_captured(stream)) {
                self.rerouted();
            }
        }
    }

    /// Publishes the routings after a change of them.
    fn rerouted(&mut self) {
        self.routings.publish(self.device);
        self.pool.set_quiet(self.routings.has_capture());
    }

    /// Begins a routing. False if the pool has one already: PyTorch's call to end it names only the pool.
    #[must_use]
    pub fn begin(&mut self, routing: Routing, capture: Capture) -> bool {
        self.watch_captures();
        if self.routings.has(routing.pool) {
            return false;
        }
        self.create(routing.pool);
        if regions::took(self.device, routing.pool) {
            self.pool.keep_at_home(routing.pool);
        }
        self.routings.begin(routing, capture);
        self.rerouted();
        true
    }

    /// Lets the card `user` use this card's memory: all that exists, and all that comes.
    ///
    /// # Errors
    /// If the driver refuses; then the grants are taken back.
    pub fn add_peer(&mut self, user: i32) -> Result<(), DeviceError> {
        if self.pool.device_mut().add_peer(user)?
            && let Err(error) = self.pool.grant_again()
        {
            self.pool.device_mut().remove_peer(user);
            return Err(error);
        }
        Ok(())
    }

    /// Adds a user to a private pool, which is made if it does not exist.
    pub fn create(&mut self, pool: PoolKey) {
        *self.uses.entry(pool).or_default() += 1;
        self.pool.use_pool(pool);
    }

    /// Number of users of a private pool; `None` if it was never made.
    #[must_use]
    pub fn uses_of(&self, pool: PoolKey) -> Option<u32> {
        self.uses.get(&pool).copied()
    }

    pub fn set_spare(&mut self, pool: PoolKey, spare: bool) {
        self.spare.retain(|key| *key != pool);
        if spare {
            self.spare.push(pool);
        }
    }

    /// Ends the routing of this pool. False if it has none.
    #[must_use]
    pub fn end(&mut self, pool: PoolKey) -> bool {
        let has_ended = self.routings.end(pool);
        self.rerouted();
        has_ended
    }

    /// Removes a user of a private pool. True if it was the last: the trackers are called next, and then
    /// [`Card::let_go`].
    pub fn release(&mut self, pool: PoolKey) -> bool {
        let Some(uses) = self.uses.get_mut(&pool) else { return false };
        *uses = uses.saturating_sub(1);
        if *uses > 0 {
            return false;
        }
        self.tell_going(pool);
        // The exempt pool that belongs to this one loses the same user.
        if let Some(beside) = regions::exempt::beside(pool) {
            self.release(beside);
        }
        true
    }

    /// Queues the end of this pool's segments for the trackers, because their memory may go once the trackers have
    /// heard. True if there are any.
    pub fn tell_going(&mut self, pool: PoolKey) -> bool {
        let going = self.announced.end(pool);
        for &Segment { addr, size, stream, pool } in &going {
            history::announce(self.device, Action::SegmentFree, Event { addr, size, stream, pool });
        }
        !going.is_empty()
    }

    /// [`Card::tell_going`] of each of these pools.
    pub fn tell_all_going(&mut self, pools: &[PoolKey]) -> bool {
        // `count` visits every pool; `any` would stop at the first that has segments.
        pools.iter().filter(|&&pool| self.tell_going(pool)).count() > 0
    }

    /// Announces the segments of these pools that trackers do not know: the pools keep their memory, or have it again.
    pub fn tell_staying(&mut self, pools: &[PoolKey]) {
        if history::has_trackers() {
            let segments = self.pool.segments();
            for Segment { addr, size, stream, pool } in
                self.announced.found(&segments, |pool| pools.contains(&pool))
            {
                history::announce(self.device, Action::SegmentAlloc, Event { addr, size, stream, pool });
            }
        }
    }

    /// Gives back the free memory of a private pool that has no users.
    pub fn let_go(&mut self, pool: PoolKey) {
        if self.uses_of(pool) == Some(0) {
            self.pool.release_pool(pool);
            self.forget_if_empty(pool);
            self.spare.retain(|key| *key != pool);
            self.routings.give_up(pool);
            self.rerouted();
            if let Some(beside) = regions::exempt::beside(pool) {
                self.let_go(beside);
            }
            self.give_back_released();
        }
    }

    /// Removes a pool without users from its region. A pool with tensors stays: they sleep and wake with the region.
    pub fn forget_if_empty(&self, pool: PoolKey) {
        if regions::has(self.device, pool)
            && self.pool.awake_in(&[pool]).0 == 0
            && self.pool.asleep_in(&[pool]) == 0
        {
            regions::forget(self.device, pool);
        }
    }

    /// PyTorch 2.13 and newer report when a stream's capture begins and ends.
    pub fn mark_capture(&mut self, stream: StreamHandle, begins: bool) {
        if begins {
            self.routings.mark(stream);
        } else {
            self.routings.unmark(stream);
        }
        self.rerouted();
    }

    /// A tracker begins to listen, and knows the segments that exist now. From now on private pools map memory only at
    /// its home address: a tracker such as NCCL's registers each segment once, at one address.
    pub fn listen(&mut self) {
        self.pool.set_log(true);
        self.pool.set_private_windows(false);
        self.announced.begin(&self.pool.segments());
    }

    /// Limits the pool to this share of the card. The limit of the options holds as well.
    pub fn set_fraction(&mut self, fraction: f64) {
        use gapless_pool::Device;
        self.fraction = fraction.clamp(0.0, 1.0);
        let total = self.pool.device_mut().memory().1;
        let share = (fraction < 1.0).then_some((fraction * total as f64) as u64);
        self.pool.set_limit(share.into_iter().chain(self.allowed).min());
    }

    /// Replaces the limit of the options.
    pub fn set_limit(&mut self, limit: Option<u64>) {
        self.allowed = limit;
        self.set_fraction(self.fraction);
    }

    /// The limit that holds, and its origin.
    #[must_use]
    pub fn limit(&self) -> Option<Limit> {
        let by_options = |bytes| self.fraction >= 1.0 || self.allowed == Some(bytes);
        self.pool.limit().map(|bytes| Limit {
            bytes,
            by: if by_options(bytes) { LimitBy::Option } else { LimitBy::Fraction(self.fraction) },
        })
    }

    // ---- reports to watchers, made only while one of them is on ----

    /// Reports a request that was served.
    #[cold]
    pub fn tell_alloc(&mut self, addr: u64, by: &Caller<'_>) {
        self.tell_changes(by);
        if let Some(what) = self.pool.allocation_at(addr).map(event) {
            let device = self.device;
            if by.stack.is_some() {
                self.pool.note(addr);
            }
            watchers(&mut self.history, &mut Flight).for_each(|w| w.allocated(device, what, by));
        }
    }

    /// Forgets the stacks of blocks that were freed while no history was recorded.
    pub fn keep_stacks(&mut self) {
        let Card { pool, history, .. } = self;
        history.keep_stacks(|addr| pool.is_noted(addr));
    }

    /// [`Card::free`] with a report to watchers.
    #[cold]
    pub fn free_told(&mut self, addr: u64, by: &Caller<'_>) -> bool {
        let before = self.pool.allocation_at(addr).filter(|a| a.is_live);
        let freed = self.free(addr);
        let changes = self.pool.take_changes();
        if let Some(what) = before.filter(|_| freed).map(event) {
            let is_this =
                |change: &Change| matches!(change, Change::Completed { addr, .. } if *addr == what.addr);
            let (device, is_free) = (self.device, changes.iter().any(is_this));
            watchers(&mut self.history, &mut Flight).for_each(|w| w.given_back(device, what, by, is_free));
        }
        self.tell(&changes, by);
        freed
    }

    /// Reports a request that failed. `free` is the memory that the device has left.
    #[cold]
    pub fn tell_failure(&mut self, free: u64, size: u64, stream: *mut c_void, by: &Caller<'_>) {
        self.tell_changes(&Caller::NOBODY);
        let what = Event { addr: free, size, stream: StreamHandle(stream as u64), pool: PoolKey(0, 0) };
        let device = self.device;
        watchers(&mut self.history, &mut Flight).for_each(|w| w.failed(device, what, by));
    }

    /// Reports blocks that are live again without a request, because the pool of a graph was restored.
    pub fn tell_restored(&mut self, addrs: impl Iterator<Item = u64>) {
        for what in addrs.filter_map(|addr| self.pool.allocation_at(addr)).map(event) {
            let device = self.device;
            watchers(&mut self.history, &mut Flight).for_each(|w| w.restored(device, what));
        }
    }

    /// Reports the pool's changes since the last report.
    #[cold]
    pub fn tell_changes(&mut self, by: &Caller<'_>) {
        let changes = self.pool.take_changes();
        self.tell(&changes, by);
    }

    fn tell(&mut self, changes: &[Change], by: &Caller<'_>) {
        let device = self.device;
        if history::has_trackers() {
            for Segment { addr, size, stream, pool } in self.announced.made(changes) {
                history::announce(device, Action::SegmentAlloc, Event { addr, size, stream, pool });
            }
        }
        watchers(&mut self.history, &mut Flight).for_each(|w| w.changed(device, changes, by));
    }

    pub(crate) fn picture(&mut self, device: i32) -> Picture {
        // The picture contains the changes in the log, so the recorder must not see them again.
        let changes = self.pool.take_changes();
        if history::is_watched() {
            self.history.changed(device, &changes, &Caller::NOBODY);
        }
        let mut picture = Picture { device: device as u32, ..Picture::default() };
        for segment in self.pool.segments() {
            let (stream, pool) = (segment.stream, segment.pool);
            picture.pieces.push(Piece { addr: segment.addr, size: segment.size, stream, pool });
            let is_held =
                |block: &&BlockView| matches!(block.state, BlockState::Allocated | BlockState::Pending);
            for block in segment.blocks.iter().filter(is_held) {
                let is_pending = block.state == BlockState::Pending;
                let held = Block { size: block.requested, stream, pool, is_pending, ..Block::default() };
                picture.blocks.push((block.addr, held));
            }
        }
        picture
    }

    /// Adds a note to the live allocation at `addr`. False if there is none.
    pub fn annotate(&mut self, addr: u64, note: &str, stack: Option<Stack>) -> bool {
        let Some(what) = self.pool.allocation_at(addr).filter(|a| a.is_live).map(event) else { return false };
        self.history.annotated(self.device, what, note, stack);
        true
    }

    /// The smallest of the limits that apply to the pool.
    #[must_use]
    pub fn most(&self) -> Option<u64> {
        self.pool.limit().into_iter().chain(self.pool.device().quota().most()).min()
    }

    /// The limit that refused a request, as a sentence.
    pub fn refusal(&self, why: Refusal) -> String {
        let by_share = || self.pool.device().quota().sentence(why);
        let said = if why == Refusal::Budget { budgets::sentence(self.device) } else { by_share() };
        said.unwrap_or_default()
    }

    /// The reason why `reserve` could not hold memory.
    pub fn why_not(&self, error: DeviceError) -> String {
        match error {
            DeviceError::Refused(Refusal::Limit) => "it is more than this process may hold".to_owned(),
            DeviceError::Refused(why) => self.refusal(why).trim_start().to_owned(),
            _ => "the card has less memory than that free".to_owned(),
        }
    }

    /// Writes budgets and shares as JSON members, each followed by a comma.
    pub fn write_shares(&self, out: &mut String) {
        self.pool.device().quota().figures().write_json(out);
        budgets::write_json(out, self.device);
    }
}
