//! The cards of this process, each behind a lock, and their fronts, which serve most requests without it.

use crate::card::Card;
use crate::guard::Barred;
use crate::process::{CARDS, is_forked};
use crate::recorder::held::Picture;
#[cfg(debug_assertions)]
use gapless_cuda::locks;
use gapless_cuda::locks::SetOnce;
use gapless_cuda::places;
use gapless_pool::{Fronts, Shared, Whole};
use std::cell::Cell;
use std::ops::{Deref, DerefMut};

/// Set when a card is first used. Its fronts serve requests while no thread holds the whole card.
static CARD: [SetOnce<Shared<Card>>; CARDS] = [const { SetOnce::new() }; CARDS];

/// A card that was used before; `at` is below [`CARDS`].
#[inline]
pub(crate) fn known(at: usize) -> Option<&'static Shared<Card>> {
    CARD[at].get()
}

/// Adds a card that was just made.
pub(crate) fn add(at: usize, card: Card) -> &'static Shared<Card> {
    CARD[at].get_or_init(|| Shared::new(card))
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
    pub(crate) fn new(device: i32, card: &'static Shared<Card>) -> Locked {
        let turn = Turn::take(device);
        let card = card.lock();
        #[cfg(debug_assertions)]
        locks::order::entered(PLACE);
        Locked { card, _barred: Barred::new(), _turn: turn }
    }
}

thread_local! {
    /// The cards that this thread has locked, a bit for each.
    static LOCKED: Cell<u64> = const { Cell::new(0) };
    /// True while this thread locks all cards ([`pictures`]).
    static ALL: Cell<bool> = const { Cell::new(false) };
}

/// The cards' locks, among those whose order is checked.
#[cfg(debug_assertions)]
const PLACE: locks::order::Place = std::panic::Location::caller();

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
        #[cfg(debug_assertions)]
        locks::order::entering(PLACE);
        Turn(bit)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let _ = LOCKED.try_with(|locked| locked.set(locked.get() & !self.0));
        #[cfg(debug_assertions)]
        locks::order::left(PLACE);
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
