//! Allocations in callers' hands: a record for each, found by its address.

use crate::addresses::Addresses;
use crate::budget::Budget;
use crate::device::StreamHandle;
use crate::heap::SMALL;
use crate::ids::{HeapId, LaneId, WindowId};
use crate::visits;

/// The place of an allocation.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    /// In a block of a heap.
    Home { heap: HeapId, block: u32 },
    /// In a window, over blocks of one or more heaps.
    Window { window: WindowId, parts: Vec<(HeapId, u32)> },
    /// In a block of a heap that sleeps.
    Asleep { heap: HeapId, block: u32 },
    /// In the block at an address of supplied memory.
    Supplied { addr: u64, is_large: bool },
}

impl Place {
    /// The class in which a block of `size` bytes here is counted: 0 is small, 1 large. PyTorch classifies by size;
    /// only a supplied block may be larger than its request.
    #[inline]
    pub(crate) fn class(&self, size: u64) -> usize {
        match *self {
            Place::Supplied { is_large, .. } => usize::from(is_large),
            Place::Home { .. } | Place::Asleep { .. } | Place::Window { .. } => usize::from(size > SMALL),
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Allocation {
    pub(crate) addr: u64,
    pub(crate) size: u64,
    pub(crate) requested: u64,
    pub(crate) lane: LaneId,
    pub(crate) place: Place,
    /// Other streams that use it.
    pub(crate) uses: Vec<StreamHandle>,
    /// Events and fences that it waits for after it was freed.
    pub(crate) waits: u32,
    /// It was freed, and waits (also) for a turn of its lane because its memory is another lane's.
    pub(crate) waits_for_turn: bool,
    /// It was freed, and a fence or a wait for the card that came later is done. Its own stream's work is covered by
    /// that, and once [`Allocation::waits`] is 0 all work is.
    pub(crate) is_settled: bool,
    /// It was freed, no other stream uses it any more, and it waits only because its memory is another lane's.
    pub(crate) is_lent_only: bool,
    /// The caller keeps a note about it, which ends with it: see [`Pool::note`](crate::Pool::note).
    pub(crate) is_noted: bool,
    /// Its number in its lane's log of steps.
    pub(crate) born: u32,
    /// The budget to which it is charged until it is freed.
    pub(crate) budget: Option<&'static Budget>,
}

impl Allocation {
    /// True if its caller has it, and its memory is there.
    pub(crate) fn is_live(&self) -> bool {
        self.waits == 0 && !self.is_asleep()
    }

    pub(crate) fn is_asleep(&self) -> bool {
        matches!(self.place, Place::Asleep { .. })
    }
}

/// Records with stable numbers, and their addresses.
#[derive(Clone, Debug, Default)]
pub(crate) struct Allocations {
    records: Vec<Allocation>,
    unused: Vec<u32>,
    by_addr: Addresses,
}

impl Allocations {
    #[inline]
    pub(crate) fn find(&self, addr: u64) -> Option<u32> {
        self.by_addr.get(addr)
    }

    #[inline]
    pub(crate) fn add(&mut self, allocation: Allocation) -> u32 {
        let addr = allocation.addr;
        let slot = if let Some(slot) = self.unused.pop() {
            self.records[slot as usize] = allocation;
            slot
        } else {
            self.records.push(allocation);
            (self.records.len() - 1) as u32
        };
        self.by_addr.insert(addr, slot);
        slot
    }

    /// Removes a record. Returns its place.
    #[inline]
    pub(crate) fn remove(&mut self, slot: u32) -> Place {
        let record = &mut self.records[slot as usize];
        self.by_addr.remove(record.addr);
        self.unused.push(slot);
        std::mem::replace(&mut record.place, Place::Home { heap: LaneId::new(0).small(), block: 0 })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_addr.is_empty()
    }

    pub(crate) fn slots(&self) -> impl Iterator<Item = u32> + '_ {
        self.by_addr.numbers().inspect(|_| visits::add(1))
    }
}

impl std::ops::Index<u32> for Allocations {
    type Output = Allocation;
    #[inline]
    fn index(&self, slot: u32) -> &Allocation {
        &self.records[slot as usize]
    }
}

impl std::ops::IndexMut<u32> for Allocations {
    #[inline]
    fn index_mut(&mut self, slot: u32) -> &mut Allocation {
        &mut self.records[slot as usize]
    }
}
