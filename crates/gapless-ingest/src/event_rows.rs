//! The events of a file while it is read: a table, or batches that go to a thread that keeps the table.
//!
//! Readers only append and count, so that the events themselves may be elsewhere: with another thread, which rebuilds
//! their history (`gapless_trace::Follower`) while the file is read on. Batches are few and come back to be filled
//! again. The channel holds a few of them at most, so a slow follower makes the reader wait.

use gapless_trace::{Ahead, Event, Events, Follower};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};

/// Events a batch: half a megabyte, which stays in the cache between the two threads.
const BATCH: usize = 1 << 14;
/// Batches that may wait: the threads need not take turns.
const WAITING: usize = 3;

#[derive(Debug)]
pub(crate) struct EventRows {
    events: Events,
    /// Events that were handed on.
    before: usize,
    /// Events that make a batch.
    full: usize,
    to: Option<Road>,
}

/// The channel to the other thread, and the one on which empty batches come back.
#[derive(Debug)]
struct Road {
    full: SyncSender<Events>,
    empty: Receiver<Events>,
}

/// The other end.
#[derive(Debug)]
pub(crate) struct Batches {
    full: Receiver<Events>,
    empty: Sender<Events>,
}

impl Default for EventRows {
    fn default() -> Self {
        EventRows::of(Events::default())
    }
}

impl EventRows {
    /// A table that has these events.
    pub(crate) fn of(events: Events) -> EventRows {
        EventRows { events, before: 0, full: usize::MAX, to: None }
    }

    /// Events that go to another thread.
    pub(crate) fn handed_on() -> (EventRows, Batches) {
        let (full, received) = sync_channel(WAITING);
        let (returned, empty) = channel();
        let rows = EventRows {
            events: Events::with_capacity(BATCH),
            before: 0,
            full: BATCH,
            to: Some(Road { full, empty }),
        };
        (rows, Batches { full: received, empty: returned })
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.before + self.events.len()
    }

    #[inline]
    pub(crate) fn push(&mut self, event: Event) {
        self.events.push(event);
        if self.events.len() == self.full {
            self.hand_on();
        }
    }

    #[cold]
    fn hand_on(&mut self) {
        let Some(road) = &self.to else { return };
        let next = road.empty.try_recv().unwrap_or_else(|_| Events::with_capacity(BATCH));
        let batch = std::mem::replace(&mut self.events, next);
        self.before += batch.len();
        // The other thread ends only after this one, or by a panic, which the join reports.
        let _ = road.full.send(batch);
    }

    /// Hands on the last events, and lets the other thread end.
    pub(crate) fn close(&mut self) {
        self.hand_on();
        self.to = None;
    }

    /// The events, if they were not handed on.
    pub(crate) fn into_events(self) -> Events {
        self.events
    }
}

impl Batches {
    /// Follows all batches to the last, with room for about this many events: the table, and its history so far.
    pub(crate) fn follow(self, events: usize) -> (Events, Ahead) {
        let mut follower = Follower::with_room_for(events);
        for mut batch in self.full {
            follower.follow(&mut batch);
            // The send fails once the reader has ended, which then needs no more batches.
            let _ = self.empty.send(batch);
        }
        follower.finish()
    }
}
