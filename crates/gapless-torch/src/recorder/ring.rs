//! A bounded ring of entries: many threads push, one pops, and none waits. A push into a full ring closes it, and every
//! later push fails until the popping thread opens it again. So the pushed entries are always a prefix of the events,
//! without holes.
//!
//! Each slot has a turn: the ticket that may write it next, or that ticket plus one after it is written. Tickets are
//! handed out in one order, so an entry whose push ended before another's began comes out first.

use std::sync::atomic::{AtomicU64, Ordering};

/// One entry, as words: an entry and its turn fill a cache line.
pub type Words = [u64; 7];

/// A bit of `next`: the ring takes no more entries.
const CLOSED: u64 = 1 << 63;

#[derive(Debug)]
#[repr(align(64))]
struct Slot {
    turn: AtomicU64,
    words: [AtomicU64; 7],
}

#[derive(Debug)]
#[repr(align(128))]
struct OwnLine(AtomicU64);

#[derive(Debug)]
pub struct Ring {
    slots: Box<[Slot]>,
    /// The next ticket, and whether the ring is closed.
    next: OwnLine,
    /// The next ticket to pop; only the popping thread writes it.
    done: OwnLine,
}

impl Ring {
    /// A ring of `slots` entries, a power of two.
    #[must_use]
    pub fn new(slots: usize) -> Ring {
        let slot =
            |turn: usize| Slot { turn: AtomicU64::new(turn as u64), words: [const { AtomicU64::new(0) }; 7] };
        let slots = slots.next_power_of_two().max(2);
        Ring {
            slots: (0..slots).map(slot).collect(),
            next: OwnLine(AtomicU64::new(0)),
            done: OwnLine(AtomicU64::new(0)),
        }
    }

    #[inline]
    fn slot(&self, ticket: u64) -> &Slot {
        &self.slots[ticket as usize & (self.slots.len() - 1)]
    }

    /// Adds an entry. False if the ring is full or closed.
    #[inline]
    pub fn push(&self, words: Words) -> bool {
        let mut ticket = self.next.0.load(Ordering::Relaxed);
        loop {
            if ticket & CLOSED != 0 {
                return false;
            }
            let slot = self.slot(ticket);
            let turn = slot.turn.load(Ordering::Acquire);
            // Less: the entry of the last round is still there. More: another thread has taken this ticket.
            let wanted = match turn.cmp(&ticket) {
                std::cmp::Ordering::Equal => ticket + 1,
                std::cmp::Ordering::Less => ticket | CLOSED,
                std::cmp::Ordering::Greater => {
                    ticket = self.next.0.load(Ordering::Relaxed);
                    continue;
                }
            };
            let set = self.next.0.compare_exchange_weak(ticket, wanted, Ordering::Relaxed, Ordering::Relaxed);
            match set {
                Err(now) => ticket = now,
                Ok(_) if wanted & CLOSED != 0 => return false,
                Ok(_) => {
                    for (place, word) in slot.words.iter().zip(words) {
                        place.store(word, Ordering::Relaxed);
                    }
                    slot.turn.store(ticket + 1, Ordering::Release);
                    return true;
                }
            }
        }
    }

    /// The oldest entry. Only one thread may pop at a time. Two at once could take the same entry twice, but would
    /// break nothing else.
    pub fn pop(&self) -> Option<Words> {
        let ticket = self.done.0.load(Ordering::Relaxed);
        let slot = self.slot(ticket);
        if slot.turn.load(Ordering::Acquire) != ticket + 1 {
            return None;
        }
        let words = std::array::from_fn(|at| slot.words[at].load(Ordering::Relaxed));
        slot.turn.store(ticket + self.slots.len() as u64, Ordering::Release);
        self.done.0.store(ticket + 1, Ordering::Relaxed);
        Some(words)
    }

    /// True if every pushed entry was popped. A push under way counts as pushed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.next.0.load(Ordering::Acquire) & !CLOSED == self.done.0.load(Ordering::Relaxed)
    }

    /// Number of entries that wait to be popped.
    #[must_use]
    pub fn len(&self) -> usize {
        let next = self.next.0.load(Ordering::Acquire) & !CLOSED;
        next.saturating_sub(self.done.0.load(Ordering::Relaxed)) as usize
    }

    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.next.0.load(Ordering::Acquire) & CLOSED != 0
    }

    /// Takes no more entries.
    pub fn close(&self) {
        self.next.0.fetch_or(CLOSED, Ordering::AcqRel);
    }

    /// Takes entries again.
    pub fn open(&self) {
        self.next.0.fetch_and(!CLOSED, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn a_full_ring_closes_and_keeps_what_it_has() {
        let ring = Ring::new(4);
        let entry = |i: u64| [i, 1, 2, 3, 4, 5, 6];
        assert!((0..4).all(|i| ring.push(entry(i))));
        assert!(!ring.push(entry(4)) && ring.is_closed());
        assert_eq!(ring.pop(), Some(entry(0)));
        assert!(!ring.push(entry(5)), "there is room, and the entry before is missing");
        assert_eq!(
            (1..4).map(|_| ring.pop()).collect::<Vec<_>>(),
            (1..4).map(|i| Some(entry(i))).collect::<Vec<_>>()
        );
        assert!(ring.is_empty() && ring.pop().is_none());
        ring.open();
        for i in 0..100 {
            assert!(ring.push(entry(i)));
            assert_eq!(ring.pop(), Some(entry(i)));
        }
    }

    /// Threads push as fast as they can into a small ring, which is opened again whenever it closed. Each thread's
    /// entries come out undamaged, in order, and exactly if their push returned true.
    #[test]
    fn threads_lose_nothing_that_was_taken_and_no_entry_is_torn() {
        const THREADS: u64 = 4;
        const PUSHES: u64 = 20_000;
        let ring = Ring::new(64);
        let done = AtomicBool::new(false);
        let (taken, popped) = std::thread::scope(|scope| {
            let pushers: Vec<_> = (0..THREADS)
                .map(|thread| {
                    let ring = &ring;
                    scope.spawn(move || {
                        let mut taken = Vec::new();
                        for i in 0..PUSHES {
                            if ring.push([thread, i, i * 3, !i, i ^ thread, i + 7, thread * i]) {
                                taken.push(i);
                            } else {
                                std::thread::yield_now();
                            }
                        }
                        taken
                    })
                })
                .collect();
            let popper = scope.spawn(|| {
                let mut popped = vec![Vec::new(); THREADS as usize];
                loop {
                    let last = done.load(Ordering::Acquire);
                    match ring.pop() {
                        Some([thread, i, a, b, c, d, e]) => {
                            assert_eq!([a, b, c, d, e], [i * 3, !i, i ^ thread, i + 7, thread * i]);
                            popped[thread as usize].push(i);
                        }
                        None if last && ring.is_empty() => return popped,
                        None => ring.open(),
                    }
                }
            });
            let taken: Vec<Vec<u64>> = pushers.into_iter().map(|p| p.join().expect("a pusher")).collect();
            done.store(true, Ordering::Release);
            (taken, popper.join().expect("the popper"))
        });
        assert_eq!(taken, popped);
        assert!(taken.iter().all(|of_thread| !of_thread.is_empty()));
    }
}
