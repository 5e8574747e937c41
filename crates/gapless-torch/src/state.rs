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

/// One card's allocator and what PyTorch told about it.
#[derive(Debug)]
pub struct Card {
    pub pool: Pool<QuotaDevice<CudaDevice>>,
    /// Its number.
    pub device: i32,
    pub routings: Routings,
    /// How often each private pool is in use.
    uses: BTreeMap<PoolKey, u32>,
    /// What the program set of the card as the most that it may hold, and what the options say: the smaller holds.
    pub fraction: f64,
    allowed: Option<u64>,
    /// Private pools whose free memory may serve others' requests before these fail.
    spare: Vec<PoolKey>,
    pub history: History,
    /// Requests that failed in the end, and those that a handler's help served.
    pub failed: u64,
    pub helped: u64,
    /// Peaks of bytes that were allocated and reserved, before the program last reset its peaks.
    pub peaks_before: (u64, u64),
    /// Counters as they were when the program last reset its totals.
    pub since: Since,
    /// What is counted when it is asked for: of the card, and of each private pool.
    pub shown: Shown,
    pub by_pool: ByPool,
    /// The order in which segments were first seen.
    pub ages: Ages,
    /// Segments of private pools that trackers were told of, or found when they began to listen.
    pub announced: Announced,
}

/// What totals are counted from.
#[derive(Clone, Copy, Debug, Default)]
pub struct Since {
    pub stats: Stats,
    pub shown: Shown,
    pub failed: u64,
}

static SETTINGS: SetOnce<Settings> = SetOnce::new();
/// Set when a card is first used. Its fronts serve requests while nobody has the whole card.
static CARD: [SetOnce<Shared<Card>>; CARDS] = [const { SetOnce::new() }; CARDS];
/// Held while a card is made: one thread asks the driver, the others wait.
static MAKING: [Lock<()>; CARDS] = [const { Lock::new(|| ()) }; CARDS];
/// Set in a forked child: CUDA does not survive a fork, so nothing may be touched there.
static FORKED: AtomicBool = AtomicBool::new(false);

extern "C" fn in_child() {
    FORKED.store(true, Ordering::Relaxed);
    recorder::forked();
    interpreter::DOOR.forked();
    sharing::forked();
}

/// From now on, which is from the first card on, a child knows that it was forked.
pub(crate) fn watch_forks() {
    static IS_WATCHED: AtomicBool = AtomicBool::new(false);
    if !IS_WATCHED.swap(true, Ordering::AcqRel) {
        // Before what is called in the child, so that this finds no lock closed there.
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
/// When others were set before.
pub fn set_settings(settings: Settings) -> Result<(), String> {
    let set = SETTINGS.get_or_init(|| settings);
    checked::set(set);
    if *set == settings { Ok(()) } else { Err("gapless is enabled already, with other options".to_owned()) }
}

/// Whether this process is a forked child.
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

/// A whole card in one hand: its fronts wait.
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
    /// Whether it takes all of them.
    static ALL: Cell<bool> = const { Cell::new(false) };
}

/// A card that this thread has locked. No thread takes a card's lock while it has that of another card, but for
/// [`pictures`], which takes all of them by number: so no two threads can wait for each other's card.
#[derive(Debug)]
struct Turn(u64);

impl Turn {
    fn take(device: i32) -> Turn {
        let bit = 1 << device;
        // A thread that ends may free memory after its variables are gone.
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
        // While a routing is open its filter must see each request.
        !self.routings.is_empty()
    }
}

/// The locked allocator of a card, if it was used already. A forked child has none: a thread of its parent's, or one of
/// ours, may have had the lock when it was forked, and the driver does not answer there.
#[must_use]
pub fn existing(device: i32) -> Option<Locked> {
    if is_forked() {
        return None;
    }
    Some(Locked::new(device, CARD.get(usize::try_from(device).ok()?)?.get()?))
}

/// Whether a card was used already.
#[must_use]
pub fn is_used(device: i32) -> bool {
    usize::try_from(device).ok().and_then(|at| CARD.get(at)).is_some_and(|card| card.get().is_some())
}

/// Runs `work` on a card's allocator, made on first use.
///
/// # Errors
/// When there is no such card, or no driver.
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
    // A child forked before this has no CUDA state of its parent's to spoil.
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
        // Less than asked for is no reason not to start.
        let _ = card.pool.hold(settings.reserve, StreamHandle(0));
    }
    let card = CARD[at].get_or_init(|| Shared::new(card));
    meet(device);
    if !settings.hidden {
        publisher::start();
    }
    Ok(card)
}

/// Cards that the process uses use each other's memory, where they can. One that refuses is left out: copies take a way
/// that needs no grant.
fn meet(device: i32) {
    for (user, owner) in gapless_cuda::peers::met(device) {
        if let Some(mut card) = existing(owner) {
            let _ = card.add_peer(user);
        }
    }
}

/// Whether somebody wants to know what pools do.
#[must_use]
pub fn needs_log() -> bool {
    history::is_watched() || recorder::is_set()
}

/// Every card that was used as it stands, all at one moment, at which `then` is called.
pub fn pictures(then: &dyn Fn()) -> Vec<Picture> {
    if is_forked() {
        return Vec::new();
    }
    // By number, so that two who want all of them do not wait for each other.
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

/// The cards whose memory may be at an address: the one whose addresses these are; all that are used where it is no
/// card's own, as memory of a supplier is.
pub fn cards_at(addr: u64) -> impl Iterator<Item = i32> {
    let own = places::card_of(addr);
    let all = if own.is_some() { 0 } else { CARDS as i32 };
    own.into_iter().chain((0..all).filter(|&card| is_used(card)))
}

/// [`for_each`] of the cards whose memory may be at an address.
pub fn for_each_at(addr: u64, mut work: impl FnMut(i32, &mut Card)) {
    for device in cards_at(addr) {
        if let Some(mut card) = existing(device) {
            work(device, &mut card);
        }
    }
}

/// Whether a watcher hears requests.
#[inline]
#[must_use]
pub fn is_told() -> bool {
    history::is_watched() || recorder::is_on()
}

/// Those of a card's watchers that are on.
fn watchers<'a>(
    history: &'a mut History,
    flight: &'a mut Flight,
) -> impl Iterator<Item = &'a mut dyn Watcher> {
    let both: [&mut dyn Watcher; 2] = [flight, history];
    both.into_iter().filter(|watcher| watcher.is_on())
}

/// What a watcher hears of an allocation.
fn event(AllocationView { addr, requested, stream, pool, .. }: AllocationView) -> Event {
    Event { addr, size: requested, stream, pool }
}

impl Card {
    /// Memory for `size` bytes on `stream`, of the pool that its routing says, charged to a budget.
    ///
    /// # Errors
    /// When there is none.
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
            // PyTorch uses it for good, or for as long as the pool that it is beside.
            self.create(pool);
        }
        self.pool.alloc_for(size, stream, pool, budget).or_else(|error| {
            let AllocError::OutOfMemory { device: why, .. } = error;
            // Nobody's memory helps where there is no budget for it.
            if why == DeviceError::Refused(Refusal::Budget) {
                return Err(error);
            }
            self.alloc_from_spare(size, stream, pool, budget).ok_or(error)
        })
    }

    /// Memory of pools that let others have it, as it lies in one of them. Their pages stay: graphs remember
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

    /// Pools that let others have what is free in them.
    #[must_use]
    pub fn spare(&self) -> &[PoolKey] {
        &self.spare
    }

    /// Gives back what is at `addr`. Whether it was there to be given back.
    #[inline]
    pub fn free(&mut self, addr: u64) -> bool {
        self.pool.free(addr).is_ok()
    }

    /// Gives what is free back to the device; the bytes. It waits for streams, which an open capture forbids.
    pub fn trim(&mut self) -> u64 {
        self.give_back(Pool::trim)
    }

    /// [`Card::trim`] without a wait for streams: for what nobody asked for.
    pub fn trim_behind_work(&mut self) -> u64 {
        self.give_back(Pool::trim_behind_work)
    }

    /// [`Card::trim`] for one private pool, unless somebody uses it: graphs remember its addresses.
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

    /// Captures begin and end without a word: the card looks whenever somebody takes it.
    #[inline]
    fn watch_captures(&mut self) {
        if self.routings.has_capture() {
            let Card { pool, routings, .. } = self;
            if routings.watch(Here::new(), |stream| pool.device().is_captured(stream)) {
                self.rerouted();
            }
        }
    }

    /// Routings are others than before.
    fn rerouted(&mut self) {
        self.routings.publish(self.device);
        self.pool.set_quiet(self.routings.has_capture());
    }

    /// Whether it begins: one pool has one routing at a time.
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

    /// The card `user` may use this one's memory from now on: all that is there, and all that comes.
    ///
    /// # Errors
    /// When the driver refuses: then it may not.
    pub fn add_peer(&mut self, user: i32) -> Result<(), DeviceError> {
        if self.pool.device_mut().add_peer(user)?
            && let Err(error) = self.pool.grant_again()
        {
            self.pool.device_mut().remove_peer(user);
            return Err(error);
        }
        Ok(())
    }

    /// A memory pool of the program's own is there, or has one user more.
    pub fn create(&mut self, pool: PoolKey) {
        *self.uses.entry(pool).or_default() += 1;
        self.pool.use_pool(pool);
    }

    /// How many users a private pool has; `None`: it was never made.
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

    /// Whether there was a routing of this pool to end.
    #[must_use]
    pub fn end(&mut self, pool: PoolKey) -> bool {
        let has_ended = self.routings.end(pool);
        self.rerouted();
        has_ended
    }

    /// A private pool has one user less. Whether nobody uses it any more: once trackers have heard of what was
    /// announced now, [`Card::let_go`] follows.
    pub fn release(&mut self, pool: PoolKey) -> bool {
        let Some(uses) = self.uses.get_mut(&pool) else { return false };
        *uses = uses.saturating_sub(1);
        if *uses > 0 {
            return false;
        }
        self.tell_going(pool);
        // What PyTorch keeps beside the pool goes with it.
        if let Some(beside) = regions::exempt::beside(pool) {
            self.release(beside);
        }
        true
    }

    /// Memory of this pool may go once trackers have heard of what is announced now. Whether there is something.
    pub fn tell_going(&mut self, pool: PoolKey) -> bool {
        let going = self.announced.end(pool);
        for &Segment { addr, size, stream, pool } in &going {
            history::announce(self.device, Action::SegmentFree, Event { addr, size, stream, pool });
        }
        !going.is_empty()
    }

    /// [`Card::tell_going`] of each of these pools.
    pub fn tell_all_going(&mut self, pools: &[PoolKey]) -> bool {
        // Each of them, also after one that has something.
        pools.iter().filter(|&&pool| self.tell_going(pool)).count() > 0
    }

    /// Memory of these pools stays, or is back.
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

    /// What is free in a private pool that nobody uses may go.
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

    /// A pool that nobody uses leaves its region, unless tensors in it live on: they sleep and wake with the region.
    pub fn forget_if_empty(&self, pool: PoolKey) {
        if regions::has(self.device, pool)
            && self.pool.awake_in(&[pool]).0 == 0
            && self.pool.asleep_in(&[pool]) == 0
        {
            regions::forget(self.device, pool);
        }
    }

    /// A stream of this card is captured from now on, or not any more: what newer PyTorch tells.
    pub fn mark_capture(&mut self, stream: StreamHandle, begins: bool) {
        if begins {
            self.routings.mark(stream);
        } else {
            self.routings.unmark(stream);
        }
        self.rerouted();
    }

    /// Somebody begins to listen to what happens here, and knows the segments that there are. From now on private pools
    /// have their memory at home: who registers it (NCCL) registers each segment once, at one address.
    pub fn listen(&mut self) {
        self.pool.set_log(true);
        self.pool.set_private_windows(false);
        self.announced.begin(&self.pool.segments());
    }

    /// Holds at most this share of the card, and no more than the options allow.
    pub fn set_fraction(&mut self, fraction: f64) {
        use gapless_pool::Device;
        self.fraction = fraction.clamp(0.0, 1.0);
        let total = self.pool.device_mut().memory().1;
        let share = (fraction < 1.0).then_some((fraction * total as f64) as u64);
        self.pool.set_limit(share.into_iter().chain(self.allowed).min());
    }

    /// Holds at most this much from now on, in place of what the options say.
    pub fn set_limit(&mut self, limit: Option<u64>) {
        self.allowed = limit;
        self.set_fraction(self.fraction);
    }

    /// The limit that holds, and who set it.
    #[must_use]
    pub fn limit(&self) -> Option<Limit> {
        let by_options = |bytes| self.fraction >= 1.0 || self.allowed == Some(bytes);
        self.pool.limit().map(|bytes| Limit {
            bytes,
            by: if by_options(bytes) { LimitBy::Option } else { LimitBy::Fraction(self.fraction) },
        })
    }

    // ---- what is told to watchers: only while one of them hears ----

    /// After a request was served.
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

    /// Forgets the stacks of blocks that went while nobody was told.
    pub fn keep_stacks(&mut self) {
        let Card { pool, history, .. } = self;
        history.keep_stacks(|addr| pool.is_noted(addr));
    }

    /// [`Card::free`], told.
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

    /// A request failed: what the device has left, and what was asked for.
    #[cold]
    pub fn tell_failure(&mut self, free: u64, size: u64, stream: *mut c_void, by: &Caller<'_>) {
        self.tell_changes(&Caller::NOBODY);
        let what = Event { addr: free, size, stream: StreamHandle(stream as u64), pool: PoolKey(0, 0) };
        let device = self.device;
        watchers(&mut self.history, &mut Flight).for_each(|w| w.failed(device, what, by));
    }

    /// Blocks that are live again without a request: a graph's pool is as it was.
    pub fn tell_restored(&mut self, addrs: impl Iterator<Item = u64>) {
        for what in addrs.filter_map(|addr| self.pool.allocation_at(addr)).map(event) {
            let device = self.device;
            watchers(&mut self.history, &mut Flight).for_each(|w| w.restored(device, what));
        }
    }

    /// What the pool did since.
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
        // What is in the log is in the picture too.
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

    /// A note about what was allocated at `addr`. Whether somebody has it.
    pub fn annotate(&mut self, addr: u64, note: &str, stack: Option<Stack>) -> bool {
        let Some(what) = self.pool.allocation_at(addr).filter(|a| a.is_live).map(event) else { return false };
        self.history.annotated(self.device, what, note, stack);
        true
    }

    /// The most that the pool may hold, by whatever limits it.
    #[must_use]
    pub fn most(&self) -> Option<u64> {
        self.pool.limit().into_iter().chain(self.pool.device().quota().most()).min()
    }

    /// Which promise refused a request, as a sentence.
    pub fn refusal(&self, why: Refusal) -> String {
        let by_share = || self.pool.device().quota().sentence(why);
        let said = if why == Refusal::Budget { budgets::sentence(self.device) } else { by_share() };
        said.unwrap_or_default()
    }

    /// Why memory could not be held beforehand.
    pub fn why_not(&self, error: DeviceError) -> String {
        match error {
            DeviceError::Refused(Refusal::Limit) => "it is more than this process may hold".to_owned(),
            DeviceError::Refused(why) => self.refusal(why).trim_start().to_owned(),
            _ => "the card has less memory than that free".to_owned(),
        }
    }

    /// Budgets and shares as statistics, each with a comma behind it.
    pub fn write_shares(&self, out: &mut String) {
        self.pool.device().quota().figures().write_json(out);
        budgets::write_json(out, self.device);
    }
}
