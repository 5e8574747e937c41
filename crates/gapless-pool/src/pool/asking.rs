//! Requests and trims that never wait inside of the pool, for callers that keep it behind a lock.
//!
//! A pool that is asked in this way tells its caller what to wait for ([`Wait`]). The caller unlocks the pool, waits,
//! locks it, and asks again with the same [`Patience`]. Meanwhile other threads use the pool, so a thread that makes a
//! stream go on, by an allocation, a free or a launch, is never stopped by the one that waits for that stream.
//!
//! A wait for all work covers what lay free when it was asked for ([`Pool::freed`]), never what is freed meanwhile.

use super::fences::Freed;
use super::ladder::Rung;
use super::{AllocError, Pool, PoolKey};
use crate::budget::Budget;
use crate::device::{Device, EventHandle, StreamHandle};
use crate::mutants::{self, Mutant};

/// Waits for all work of one call. Others may take what became free, so one may not be enough.
const MOST_ROUNDS: u32 = 8;

/// The work that the caller must wait for before it asks again.
#[derive(Debug)]
pub enum Wait {
    /// Work that freed memory waits for. The event stays until [`Pool::end_wait`].
    Event(EventHandle),
    /// All work that is queued on the card now.
    All(Freed),
}

/// Events that callers wait for. The pool must not use them for other work meanwhile.
#[derive(Debug, Default)]
pub(super) struct Awaited(Vec<Await>);

#[derive(Debug)]
struct Await {
    event: EventHandle,
    callers: u32,
    /// True if the pool is done with the event.
    is_dropped: bool,
}

impl Awaited {
    fn begin(&mut self, event: EventHandle) {
        match self.0.iter_mut().find(|wait| wait.event == event) {
            Some(wait) => wait.callers += 1,
            None => self.0.push(Await { event, callers: 1, is_dropped: false }),
        }
    }

    /// True if the event can be discarded now.
    fn end(&mut self, event: EventHandle) -> bool {
        let Some(at) = self.0.iter().position(|wait| wait.event == event) else { return false };
        self.0[at].callers -= 1;
        self.0[at].callers == 0 && self.0.swap_remove(at).is_dropped
    }

    /// True if the event can be discarded now; otherwise that is done when the last caller has waited.
    pub(super) fn drop(&mut self, event: EventHandle) -> bool {
        let awaited = self.0.iter_mut().find(|wait| wait.event == event);
        awaited.is_none_or(|wait| {
            wait.is_dropped = true;
            false
        })
    }
}

/// A request that was not served.
#[derive(Debug)]
pub enum Unserved {
    Failed(AllocError),
    Later(Wait),
}

/// The work that a caller has waited for in one call.
#[derive(Debug, Default)]
pub struct Patience {
    rounds: u32,
    /// True if it has waited for an event.
    has_waited: bool,
    /// The frees that a trim waits for: those up to this number.
    until: Option<u64>,
    rung: Option<Rung>,
}

impl Patience {
    /// The driver refused to wait, so the pool must do without.
    pub fn give_up(&mut self) {
        self.rounds = MOST_ROUNDS;
    }
}

/// The way in which the pool waits.
#[derive(Debug, Default)]
pub(super) enum Manner {
    /// In the device, before the call returns.
    #[default]
    Waits,
    Asks {
        patience: Patience,
        wanted: Option<Wait>,
    },
}

impl<D: Device> Pool<D> {
    /// [`Pool::alloc_for`] without a wait in the pool.
    ///
    /// # Errors
    /// As [`Pool::alloc_for`], and [`Unserved::Later`] if the caller must wait and ask again.
    pub fn alloc_asking(
        &mut self,
        size: u64,
        stream: StreamHandle,
        pool: PoolKey,
        budget: Option<&'static Budget>,
        patience: &mut Patience,
    ) -> Result<u64, Unserved> {
        let served: u64 = self.stats.ladder.iter().sum();
        let result = self.asking(patience, |this| this.alloc_for(size, stream, pool, budget));
        match result {
            (Ok(addr), _) => {
                if let Some(rung) = patience.rung.filter(|_| served == self.stats.ladder.iter().sum()) {
                    self.stats.ladder[rung as usize] += 1;
                }
                Ok(addr)
            }
            (Err(_), Some(wait)) => Err(Unserved::Later(wait)),
            (Err(error), None) => Err(Unserved::Failed(error)),
        }
    }

    /// [`Pool::trim`] without a wait in the pool: the bytes, or what to wait for.
    ///
    /// # Errors
    /// If the caller must wait and ask again.
    pub fn trim_asking(&mut self, patience: &mut Patience) -> Result<u64, Wait> {
        match self.asking(patience, Pool::trim) {
            (_, Some(wait)) => Err(wait),
            (given, None) => Ok(given),
        }
    }

    /// [`Pool::trim_pool`] without a wait in the pool: the bytes, or what to wait for.
    ///
    /// # Errors
    /// If the caller must wait and ask again.
    pub fn trim_pool_asking(&mut self, pool: PoolKey, patience: &mut Patience) -> Result<u64, Wait> {
        match self.asking(patience, |this| this.trim_pool(pool)) {
            (_, Some(wait)) => Err(wait),
            (given, None) => Ok(given),
        }
    }

    fn asking<T>(&mut self, patience: &mut Patience, call: impl FnOnce(&mut Self) -> T) -> (T, Option<Wait>) {
        if mutants::is(Mutant::WaitLocked) {
            return (call(self), None);
        }
        self.manner = Manner::Asks { patience: std::mem::take(patience), wanted: None };
        let result = call(self);
        match std::mem::take(&mut self.manner) {
            Manner::Asks { patience: left, wanted } => {
                *patience = left;
                (result, wanted)
            }
            Manner::Waits => (result, None),
        }
    }

    pub(super) fn asks(&self) -> bool {
        matches!(self.manner, Manner::Asks { .. })
    }

    /// True if the caller must wait before the call can go on.
    pub(super) fn is_put_off(&self) -> bool {
        matches!(self.manner, Manner::Asks { wanted: Some(_), .. })
    }

    /// Notes the rung that waits.
    pub(super) fn waits_on(&mut self, rung: Rung) {
        if let Manner::Asks { patience, wanted: Some(_) } = &mut self.manner {
            patience.rung = Some(rung);
        }
    }

    /// The caller has waited, or could not.
    pub fn end_wait(&mut self, wait: Wait, is_done: bool) {
        match wait {
            Wait::Event(event) => {
                if self.awaited.end(event) {
                    self.device.discard(event);
                }
            }
            Wait::All(freed) if is_done => self.settle_freed(freed),
            Wait::All(_) => {}
        }
    }

    /// Asks the caller to wait for an event that a free waits for. False if the caller cannot.
    pub(super) fn ask_to_wait(&mut self, event: EventHandle) -> bool {
        let Manner::Asks { patience, wanted } = &mut self.manner else { return false };
        if patience.rounds >= MOST_ROUNDS || self.quiet {
            return false;
        }
        // The first of several waits of a call counts.
        if !std::mem::replace(&mut patience.has_waited, true) {
            self.stats.retries += 1;
            self.stats.waits += 1;
        }
        *wanted = Some(Wait::Event(event));
        self.awaited.begin(event);
        true
    }

    /// Lets everything that is free now be settled: waits for all work, or asks the caller to. A caller that has waited
    /// already waits again only if `again`; otherwise what lay free before its last wait is settled, and no more. False
    /// if the caller must wait first, or cannot wait.
    pub(super) fn settle_or_ask(&mut self, again: bool) -> bool {
        let Manner::Asks { patience, .. } = &mut self.manner else {
            return self.settle_now().is_ok();
        };
        if patience.rounds > 0 && (!again || patience.rounds >= MOST_ROUNDS) {
            return !again;
        }
        if self.quiet {
            return false;
        }
        patience.rounds += 1;
        self.stats.waits += 1;
        let freed = self.freed();
        if let Manner::Asks { wanted, .. } = &mut self.manner {
            *wanted = Some(Wait::All(freed));
        }
        false
    }

    /// True if a trim goes on: no free that it found when it began waits for work any more. Otherwise its caller waits.
    pub(super) fn are_frees_done(&mut self) -> bool {
        let newest = self.pending.newest();
        let until = match &mut self.manner {
            Manner::Waits => return true,
            Manner::Asks { patience, .. } => *patience.until.get_or_insert(newest),
        };
        self.poll();
        let running = self.running_up_to(until);
        !running.is_some_and(|event| self.ask_to_wait(event))
    }
}
