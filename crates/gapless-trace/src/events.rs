//! Events as columns. One event costs 25 bytes, plus four or two for each optional column that is in use.

use crate::stacks::StackId;
use crate::strings::StringId;
use crate::words::{Bytes, DeviceAddr, EventIndex, Micros, Tick};

/// The action of an event. The discriminants are written into `.gtrace` files: never renumber.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Action {
    /// A block was handed out. `size` is the requested one.
    Alloc = 0,
    /// The caller gave the block back; other streams may still use it.
    FreeRequested = 1,
    /// The block can be used again.
    FreeCompleted = 2,
    /// A segment was taken from the device.
    SegmentAlloc = 3,
    /// A segment was given back to the device.
    SegmentFree = 4,
    /// Physical memory was mapped into a range of an expandable segment.
    SegmentMap = 5,
    /// Physical memory was unmapped; the range may cover many earlier maps.
    SegmentUnmap = 6,
    /// A request failed. `addr` is the device's free bytes, `size` the rounded request.
    Oom = 7,
    /// A snapshot was taken.
    Snapshot = 8,
}

impl Action {
    pub const ALL: [Action; 9] = [
        Action::Alloc,
        Action::FreeRequested,
        Action::FreeCompleted,
        Action::SegmentAlloc,
        Action::SegmentFree,
        Action::SegmentMap,
        Action::SegmentUnmap,
        Action::Oom,
        Action::Snapshot,
    ];

    /// The name that PyTorch writes.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Action::Alloc => "alloc",
            Action::FreeRequested => "free_requested",
            Action::FreeCompleted => "free_completed",
            Action::SegmentAlloc => "segment_alloc",
            Action::SegmentFree => "segment_free",
            Action::SegmentMap => "segment_map",
            Action::SegmentUnmap => "segment_unmap",
            Action::Oom => "oom",
            Action::Snapshot => "snapshot",
        }
    }

    #[must_use]
    pub fn from_u8(value: u8) -> Option<Action> {
        Action::ALL.get(value as usize).copied()
    }
}

/// One event, as a reader hands it in or a loop takes it out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    pub action: Action,
    /// For [`Action::Oom`] the device's free bytes.
    pub addr: DeviceAddr,
    pub size: Bytes,
    /// Index into the device's `streams`.
    pub stream: u16,
    /// Index into the device's `pools`; 0, the default pool, if the source does not say.
    pub pool: u16,
    /// 0 if the source has no clock.
    pub time: Micros,
    pub stack: StackId,
    /// The region that torch.compile named; empty if there is none.
    pub compile_context: StringId,
    /// Metadata that the user attached.
    pub user_metadata: StringId,
    /// The forward stack behind a backward allocation.
    pub forward_stack: StackId,
}

impl Default for Event {
    fn default() -> Self {
        Event {
            action: Action::Alloc,
            addr: DeviceAddr(0),
            size: Bytes(0),
            stream: 0,
            pool: 0,
            time: Micros(0),
            stack: StackId::NONE,
            compile_context: StringId(0),
            user_metadata: StringId(0),
            forward_stack: StackId::NONE,
        }
    }
}

/// A column that costs nothing until a value other than the default comes.
/// Invariant: empty, or as long as the other columns once [`Events::push`] returns.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Optional<T>(Vec<T>);

impl<T: Copy + Default + PartialEq> Optional<T> {
    #[inline]
    fn push(&mut self, at: usize, room: usize, value: T) {
        if !self.0.is_empty() {
            self.0.push(value);
        } else if value != T::default() {
            self.begin(at, room, value);
        }
    }

    /// The first value, with room for as many as the other columns have.
    #[cold]
    fn begin(&mut self, at: usize, room: usize, value: T) {
        self.0.reserve_exact(room.max(at + 1));
        self.0.resize(at, T::default());
        self.0.push(value);
    }

    #[inline]
    #[must_use]
    pub fn get(&self, at: usize) -> T {
        self.0.get(at).copied().unwrap_or_default()
    }

    /// Appends `count` values, which stand behind `at` others; `other` is empty afterwards.
    fn append(&mut self, at: usize, room: usize, other: &mut Optional<T>, count: usize) {
        if other.0.is_empty() && self.0.is_empty() {
            return;
        }
        if self.0.is_empty() {
            self.0.reserve_exact(room.max(at + count));
            self.0.resize(at, T::default());
        }
        self.0.append(&mut other.0);
        self.0.resize(at + count, T::default());
    }

    /// True if any event has a value here.
    #[must_use]
    pub fn is_used(&self) -> bool {
        !self.0.is_empty()
    }
}

/// The events of one device, in order, as columns of one length.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Events {
    actions: Vec<u8>,
    addrs: Vec<u64>,
    sizes: Vec<u64>,
    times: Vec<u64>,
    streams: Optional<u16>,
    stacks: Optional<u32>,
    pools: Optional<u16>,
    compile_contexts: Optional<u32>,
    user_metadata: Optional<u32>,
    forward_stacks: Optional<u32>,
    /// True if any of the optional columns is in use.
    has_optional: bool,
    counts: [u32; Action::ALL.len()],
}

impl Events {
    /// A trace holds at most this many events a device: ticks 0 ..= n and one past the end fit into 32 bits.
    pub const MAX: usize = u32::MAX as usize - 2;

    #[must_use]
    pub fn with_capacity(events: usize) -> Events {
        Events {
            actions: Vec::with_capacity(events),
            addrs: Vec::with_capacity(events),
            sizes: Vec::with_capacity(events),
            times: Vec::with_capacity(events),
            ..Events::default()
        }
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.actions.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.actions.is_empty()
    }

    /// Makes room for `more` events.
    pub fn reserve(&mut self, more: usize) {
        self.actions.reserve(more);
        self.addrs.reserve(more);
        self.sizes.reserve(more);
        self.times.reserve(more);
    }

    /// Appends one event. Readers check [`Events::MAX`] first.
    // Always: a reader's event then goes from registers into the columns.
    #[inline(always)]
    pub fn push(&mut self, event: Event) {
        let at = self.actions.len();
        debug_assert!(at < Self::MAX);
        self.actions.push(event.action as u8);
        self.addrs.push(event.addr.0);
        self.sizes.push(event.size.0);
        self.times.push(event.time.0);
        self.counts[event.action as usize] += 1;
        let ids = event.stack.0 | event.compile_context.0 | event.user_metadata.0 | event.forward_stack.0;
        if self.has_optional || ids | u32::from(event.stream | event.pool) != 0 {
            self.push_optional(at, &event);
        }
    }

    fn push_optional(&mut self, at: usize, event: &Event) {
        let room = self.actions.capacity();
        self.has_optional = true;
        self.streams.push(at, room, event.stream);
        self.stacks.push(at, room, event.stack.0);
        self.pools.push(at, room, event.pool);
        self.compile_contexts.push(at, room, event.compile_context.0);
        self.user_metadata.push(at, room, event.user_metadata.0);
        self.forward_stacks.push(at, room, event.forward_stack.0);
    }

    /// Moves all events of `other` behind the own ones. `other` keeps its memory for others.
    pub fn append(&mut self, other: &mut Events) {
        let (at, count) = (self.len(), other.len());
        self.actions.append(&mut other.actions);
        let room = self.actions.capacity();
        self.addrs.append(&mut other.addrs);
        self.sizes.append(&mut other.sizes);
        self.times.append(&mut other.times);
        self.streams.append(at, room, &mut other.streams, count);
        self.stacks.append(at, room, &mut other.stacks, count);
        self.pools.append(at, room, &mut other.pools, count);
        self.compile_contexts.append(at, room, &mut other.compile_contexts, count);
        self.user_metadata.append(at, room, &mut other.user_metadata, count);
        self.forward_stacks.append(at, room, &mut other.forward_stacks, count);
        self.has_optional |= std::mem::take(&mut other.has_optional);
        for (own, more) in self.counts.iter_mut().zip(std::mem::take(&mut other.counts)) {
            *own += more;
        }
    }

    /// The event at `index`.
    ///
    /// # Panics
    /// When `index` is past the end.
    #[inline]
    #[must_use]
    pub fn get(&self, index: EventIndex) -> Event {
        let i = index.0 as usize;
        Event {
            action: self.action(index),
            addr: DeviceAddr(self.addrs[i]),
            size: Bytes(self.sizes[i]),
            stream: self.streams.get(i),
            pool: self.pools.get(i),
            time: Micros(self.times[i]),
            stack: StackId(self.stacks.get(i)),
            compile_context: StringId(self.compile_contexts.get(i)),
            user_metadata: StringId(self.user_metadata.get(i)),
            forward_stack: StackId(self.forward_stacks.get(i)),
        }
    }

    /// The event at `index` with the columns that the heap's geometry needs: the optional ones are left at their
    /// defaults.
    #[inline]
    #[must_use]
    pub(crate) fn placement(&self, index: EventIndex) -> Event {
        let i = index.0 as usize;
        Event {
            action: self.action(index),
            addr: DeviceAddr(self.addrs[i]),
            size: Bytes(self.sizes[i]),
            stream: self.streams.get(i),
            stack: StackId(self.stacks.get(i)),
            ..Event::default()
        }
    }

    #[inline]
    #[must_use]
    pub fn action(&self, index: EventIndex) -> Action {
        // `push` is the only way in, so every byte is a discriminant.
        Action::from_u8(self.actions[index.0 as usize]).unwrap_or(Action::Snapshot)
    }

    /// The numbers of all actions, in order.
    #[must_use]
    pub(crate) fn actions(&self) -> &[u8] {
        &self.actions
    }

    #[inline]
    #[must_use]
    pub fn addr(&self, index: EventIndex) -> DeviceAddr {
        DeviceAddr(self.addrs[index.0 as usize])
    }

    #[inline]
    #[must_use]
    pub fn size(&self, index: EventIndex) -> Bytes {
        Bytes(self.sizes[index.0 as usize])
    }

    #[inline]
    #[must_use]
    pub fn stream(&self, index: EventIndex) -> u16 {
        self.streams.get(index.0 as usize)
    }

    #[inline]
    #[must_use]
    pub fn time(&self, index: EventIndex) -> Micros {
        Micros(self.times[index.0 as usize])
    }

    #[inline]
    #[must_use]
    pub fn stack(&self, index: EventIndex) -> StackId {
        StackId(self.stacks.get(index.0 as usize))
    }

    #[inline]
    #[must_use]
    pub fn pool(&self, index: EventIndex) -> u16 {
        self.pools.get(index.0 as usize)
    }

    /// Metadata that the user attached to the event, if it was recorded.
    #[inline]
    #[must_use]
    pub fn user_metadata(&self, index: EventIndex) -> StringId {
        StringId(self.user_metadata.get(index.0 as usize))
    }

    /// True if the user attached metadata to any event.
    #[must_use]
    pub fn has_user_metadata(&self) -> bool {
        self.user_metadata.is_used()
    }

    /// The time at which tick `tick` was reached: the time of the event before it, of the first event for tick 0.
    #[must_use]
    pub fn time_at(&self, tick: Tick) -> Micros {
        let last = self.times.len().saturating_sub(1);
        let i = (tick.0 as usize).saturating_sub(1).min(last);
        Micros(self.times.get(i).copied().unwrap_or(0))
    }

    /// True if the source had a clock.
    #[must_use]
    pub fn has_times(&self) -> bool {
        self.times.first().is_some_and(|&t| t != 0) || self.times.last().is_some_and(|&t| t != 0)
    }

    /// True if all events are of stream 0.
    #[must_use]
    pub(crate) fn has_one_stream(&self) -> bool {
        !self.streams.is_used()
    }

    /// True if pools were recorded event by event (torch 2.12 and later).
    #[must_use]
    pub fn has_pools(&self) -> bool {
        self.pools.is_used()
    }

    #[must_use]
    pub fn count(&self, action: Action) -> usize {
        self.counts[action as usize] as usize
    }

    /// All positions, in order.
    pub fn indices(&self) -> impl DoubleEndedIterator<Item = EventIndex> + ExactSizeIterator + use<> {
        (0..self.actions.len() as u32).map(EventIndex)
    }

    pub fn iter(&self) -> impl Iterator<Item = Event> + '_ {
        self.indices().map(|index| self.get(index))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_that_come_in_batches_are_those_that_come_one_by_one() {
        let event = |i: u32| Event {
            action: Action::ALL[i as usize % Action::ALL.len()],
            addr: DeviceAddr(u64::from(i) << 9),
            size: Bytes(u64::from(i)),
            time: Micros(u64::from(i) * 3),
            // Columns that begin in a batch, at its end, behind some without, and never.
            stream: u16::from(i >= 25),
            stack: StackId(u32::from(i == 29)),
            compile_context: StringId(u32::from(i == 0)),
            pool: u16::from(i == 17),
            ..Event::default()
        };
        let mut whole = Events::default();
        let (mut joined, mut batch) = (Events::with_capacity(8), Events::default());
        for i in 0..50 {
            whole.push(event(i));
            batch.push(event(i));
            if i % 10 == 9 || i == 3 {
                joined.append(&mut batch);
                assert!(batch == Events::default());
            }
        }
        joined.append(&mut batch);
        assert!(joined == whole);
        assert!(whole.iter().eq((0..50).map(event)));
    }
}
