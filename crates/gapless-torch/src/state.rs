//! The allocators of this process, one a card, each behind a lock; and their fronts, which serve most requests without
//! it.

use crate::foreign::Barred;
use crate::history::{self, Action, History};
use crate::oom::{Limit, LimitBy};
use crate::options::Settings;
use crate::planner::Background;
use crate::quota::{QuotaDevice, admission};
use crate::recorder::held::{Block, Picture, Piece};
use crate::recorder::{self, Flight};
use crate::routing::{Capture, Here, Routing, Routings};
use crate::segments::{Ages, Announced, Piece as Segment};
use crate::stats::{ByPool, Shown};
use crate::watcher::{Caller, Event, Stack, Watcher};
use crate::{background, budgets, checked, conf, interpreter, publisher, regions, sharing};
use gapless_cuda::locks::{Lock, SetOnce};
use gapless_cuda::{CudaDevice, locks, places, streams};
use gapless_pool::{
    AllocError, AllocationView, BlockState, BlockView, Budget, Change, DeviceError, Fronts, Keeper, Pool,
    PoolKey, Refusal, Shared, Stats, StreamHandle, Whole,
};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

/// Cards that a process may use.
pub const CARDS: usize = 64;

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

static SETTINGS: SetOnce<Settings> = SetOnce::new();
/// Set when a card is first used. Its fronts serve requests while no thread holds the whole card.
static CARD: [SetOnce<Shared<Card>>; CARDS] = [const { SetOnce::new() }; CARDS];
/// Held while a card is made: one thread asks the driver, and the others wait.
static MAKING: [Lock<()>; CARDS] = [const { Lock::new(|| ()) }; CARDS];
/// Set in a forked child. CUDA does not survive a fork, so a child must not touch the driver or the pool.
static FORKED: AtomicBool = AtomicBool::new(false);

extern "C" fn in_child() {
    FORKED.store(true, Ordering::Relaxed);
    recorder::forked();
    interpreter::DOOR.forked();
    sharing::forked();
}

/// Registers the handler that tells a forked child what it is. Called before the first use of CUDA: a child that was
/// forked earlier has no CUDA state to damage.
pub(crate) fn watch_forks() {
    static IS_WATCHED: AtomicBool = AtomicBool::new(false);
    if !IS_WATCHED.swap(true, Ordering::AcqRel) {
        // Fork handlers run in the order of their registration. That of the locks comes first, so that `in_child` can
        // take a lock that another thread of the parent held.
        let _ = locks::generation();
        background::in_forked_child(in_child);
    }
}

/// Cards that PyTorch sees.
static DEVICES: AtomicI32 = AtomicI32::new(0);

pub fn set_device_count(count: i32) {
    DEVICES.store(count.max(0), Ordering::Relaxed);
}

#[must_use]
pub fn device_count() -> i32 {
    DEVICES.load(Ordering::Relaxed)
}

/// Sets the options, once.
///
/// # Errors
/// If other options were set before.
pub fn set_settings(settings: Settings) -> Result<(), String> {
    let set = SETTINGS.get_or_init(|| settings);
    checked::set(set);
    if *set == settings { Ok(()) } else { Err("gapless is enabled already, with other options".to_owned()) }
}

/// True in a forked child.
#[inline]
#[must_use]
pub fn is_forked() -> bool {
    FORKED.load(Ordering::Relaxed)
}

/// A card that cannot be used.
#[derive(Debug)]
pub enum CardError {
    NoSuchCard(i32),
    Forked,
    Driver(String),
    /// The process's tenant cannot have its share of it.
    Share(String),
}

impl std::fmt::Display for CardError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            CardError::NoSuchCard(device) => write!(f, "there is no card {device}"),
            CardError::Forked => {
                f.write_str("this process was forked from one that used CUDA; use spawn or forkserver")
            }
            CardError::Driver(error) | CardError::Share(error) => f.write_str(error),
        }
    }
}

/// A card's fronts, if it was used already.
#[inline]
#[must_use]
pub fn fronts(device: i32) -> Option<&'static Fronts> {
    Some(CARD.get(usize::try_from(device).ok()?)?.get()?.fronts())
}

/// A card that this thread holds as a whole. Requests at its fronts wait.
#[derive(Debug)]
pub struct Locked {
    card: Whole<'static, Card>,
    _barred: Barred,
    _turn: Turn,
}

impl Locked {
    fn new(device: i32, card: &'static Shared<Card>) -> Locked {
        let turn = Turn::take(device);
        Locked { card: card.lock(), _barred: Barred::new(), _turn: turn }
    }
}

thread_local! {
    /// The cards that this thread has locked, a bit for each.
    static LOCKED: Cell<u64> = const { Cell::new(0) };
    /// True while this thread locks all cards ([`pictures`]).
    static ALL: Cell<bool> = const { Cell::new(false) };
}

/// A card that this thread has locked. A thread with one card's lock never takes another card's, except in
/// [`pictures`], which takes all of them in the order of their numbers. So two threads never wait for each other's
/// card.
#[derive(Debug)]
struct Turn(u64);

impl Turn {
    fn take(device: i32) -> Turn {
        let bit = 1 << device;
        // A thread that ends may free memory after its thread-local variables are gone.
        let _ = LOCKED.try_with(|locked| {
            debug_assert!(
                locked.get() == 0 || (ALL.get() && locked.get() < bit),
                "cuda:{device} is locked by a thread that has cards {:#b}",
                locked.get()
            );
            locked.set(locked.get() | bit);
        });
        Turn(bit)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let _ = LOCKED.try_with(|locked| locked.set(locked.get() & !self.0));
    }
}

impl Deref for Locked {
    type Target = Card;
    fn deref(&self) -> &Card {
        &self.card
    }
}

impl DerefMut for Locked {
    fn deref_mut(&mut self) -> &mut Card {
        &mut self.card
    }
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

/// The locked allocator of a card that was used before. `None` in a forked child: another thread of the parent may have
/// held the lock at the fork, and the driver does not work in the child.
#[must_use]
pub fn existing(device: i32) -> Option<Locked> {
    if is_forked() {
        return None;
    }
    Some(Locked::new(device, CARD.get(usize::try_from(device).ok()?)?.get()?))
}

/// True if a card was used before.
#[must_use]
pub fn is_used(device: i32) -> bool {
    usize::try_from(device).ok().and_then(|at| CARD.get(at)).is_some_and(|card| card.get().is_some())
}

/// Runs `work` on a card's allocator, which is made on first use.
///
/// # Errors
/// If there is no such card or no driver, or if the tenant's share has no room.
pub fn with_card<T>(device: i32, work: impl FnOnce(&mut Card) -> T) -> Result<T, CardError> {
    if is_forked() {
        return Err(CardError::Forked);
    }
    let at = usize::try_from(device).ok().filter(|at| *at < CARDS).ok_or(CardError::NoSuchCard(device))?;
    let card = match CARD[at].get() {
        Some(card) => card,
        None => made(at, device)?,
    };
    Ok(work(&mut Locked::new(device, card)))
}

/// Makes a card's allocator, unless another thread just did.
#[cold]
fn made(at: usize, device: i32) -> Result<&'static Shared<Card>, CardError> {
    let _making = MAKING[at].lock();
    if let Some(card) = CARD[at].get() {
        return Ok(card);
    }
    let settings = SETTINGS.get().copied().unwrap_or_default();
    let quota_device = checked::watched(admission::open(device, settings.budget)?);
    // A child that was forked before this point has no CUDA state of its parent to damage.
    watch_forks();
    let mut card = Card {
        pool: Pool::new(quota_device, settings.pool),
        device,
        routings: Routings::default(),
        uses: BTreeMap::new(),
        fraction: 1.0,
        allowed: settings.pool.limit,
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
    };
    card.set_fraction(conf::memory_fraction());
    recorder::start();
    card.pool.set_log(needs_log());
    if history::has_trackers() {
        card.pool.set_private_windows(false);
    }
    if !settings.unplanned {
        card.pool.set_planner(Some(Box::new(Background { device })));
    }
    if settings.reserve > 0 {
        // The program can run with less memory than `reserve` asks for, so a failure here is ignored.
        let _ = card.pool.hold(settings.reserve, StreamHandle(0));
    }
    let card = CARD[at].get_or_init(|| Shared::new(card));
    meet(device);
    if !settings.hidden {
        publisher::start();
    }
    Ok(card)
}

/// Lets the cards of this process use each other's memory if the driver allows it. A card that refuses is left out:
/// copies between the cards work without a grant.
fn meet(device: i32) {
    for (user, owner) in gapless_cuda::peers::met(device) {
        if let Some(mut card) = existing(owner) {
            let _ = card.add_peer(user);
        }
    }
}

/// True if a history or a recording needs the changes that pools make.
#[must_use]
pub fn needs_log() -> bool {
    history::is_watched() || recorder::is_set()
}

/// The state of every card that was used, all at one moment. Calls `then` at that moment.
pub fn pictures(then: &dyn Fn()) -> Vec<Picture> {
    if is_forked() {
        return Vec::new();
    }
    // In the order of their numbers, so that two threads which both take all cards cannot wait for each other.
    ALL.set(true);
    let mut cards: Vec<Locked> = (0..CARDS as i32).filter_map(existing).collect();
    let picture = |card: &mut Locked| {
        let device = card.device;
        card.picture(device)
    };
    let pictures = cards.iter_mut().map(picture).collect();
    then();
    ALL.set(false);
    pictures
}

/// Every card that was used.
pub fn for_each(mut work: impl FnMut(i32, &mut Card)) {
    for device in 0..CARDS as i32 {
        if let Some(mut card) = existing(device) {
            work(device, &mut card);
        }
    }
}

/// The cards whose memory may be at an address: the card that owns the address. If no card owns it, as with memory of a
/// supplier, every card that was used.
pub fn cards_at(addr: u64) -> impl Iterator<Item = i32> {
    let own = places::card_of(addr);
    let all = if own.is_some() { 0 } else { CARDS as i32 };
    own.into_iter().chain((0..all).filter(|&card| is_used(card)))
}

/// [`for_each`] for the cards whose memory may be at an address.
pub fn for_each_at(addr: u64, mut work: impl FnMut(i32, &mut Card)) {
    for device in cards_at(addr) {
        if let Some(mut card) = existing(device) {
            work(device, &mut card);
        }
    }
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
    /// Allocates `size` bytes on `stream` from `pool`, and charges them to `budget`.
    ///
    /// # Errors
    /// If the pool, the device, a limit or the budget has no room.
    #[inline]
    pub fn alloc(
        &mut self,
        size: u64,
        stream: *mut c_void,
        pool: PoolKey,
        budget: Option<&'static Budget>,
    ) -> Result<u64, AllocError> {
        let stream = StreamHandle(stream as u64);
        streams::note(self.device, stream.0);
        if regions::is_region(pool) {
            self.pool.add_region(pool);
        } else if regions::exempt::is_exempt(pool) && self.uses_of(pool).is_none_or(|uses| uses == 0) {
            // PyTorch counts as a user of an exempt pool: for good, or until the pool ends that this one belongs to.
            self.create(pool);
        }
        self.pool.alloc_for(size, stream, pool, budget).or_else(|error| {
            let AllocError::OutOfMemory { device: why, .. } = error;
            // The budget has no room, so memory of another pool does not help: it is charged to the same budget.
            if why == DeviceError::Refused(Refusal::Budget) {
                return Err(error);
            }
            self.alloc_from_spare(size, stream, pool, budget).ok_or(error)
        })
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
    ) -> Option<u64> {
        if pool.is_private() || self.spare.is_empty() {
            return None;
        }
        let spare = self.spare.clone();
        spare.iter().find_map(|&other| {
            let addr = self.pool.alloc_for(size, stream, other, budget).ok()?;
            regions::lent(self.device, other);
            Some(addr)
        })
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

    /// Gives free memory back to the device and returns the bytes. It waits for streams; 0 during a capture.
    pub fn trim(&mut self) -> u64 {
        self.give_back(Pool::trim)
    }

    /// [`Card::trim`] without a wait for streams, for trims that the program did not ask for.
    pub fn trim_behind_work(&mut self) -> u64 {
        self.give_back(Pool::trim_behind_work)
    }

    /// [`Card::trim`] for one private pool. A pool with users keeps its memory, because graphs hold its addresses.
    pub fn trim_pool(&mut self, pool: PoolKey) -> u64 {
        if self.uses_of(pool).is_some_and(|uses| uses > 0) {
            return 0;
        }
        self.give_back(|all| all.trim_pool(pool))
    }

    fn give_back(&mut self, give: impl FnOnce(&mut Pool<QuotaDevice<CudaDevice>>) -> u64) -> u64 {
        if self.routings.has_capture() {
            return 0;
        }
        let given = give(&mut self.pool);
        self.tell_changes(&Caller::NOBODY);
        given
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
            self.give_back(Pool::trim_released);
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
