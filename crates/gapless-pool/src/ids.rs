//! Numbers of the pool's parts, one type each. The compiler tells a lane from a heap, a heap from a page, and the
//! number of a fence from bytes.
//!
//! A lane has two heaps, so their numbers follow from each other: `lane.small() == 2 * lane`, `lane.large() == 2 * lane
//! + 1` and `heap.lane() == heap / 2`. They never change. A page's number is its place in its heap, and changes when
//! pages before it are cut anew ([`PageId::moved`]).

/// The number of a private pool; 0 is the default pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PoolKey(pub u64, pub u64);

impl PoolKey {
    #[must_use]
    pub fn is_private(self) -> bool {
        self != PoolKey(0, 0)
    }
}

/// A stream in a memory pool, numbered in the order of creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LaneId(u32);

impl LaneId {
    /// The lane of a shard that is elsewhere, and of an allocation in no lane's addresses.
    pub(crate) const NONE: LaneId = LaneId(u32::MAX);

    #[inline]
    pub(crate) fn new(index: usize) -> LaneId {
        LaneId(index as u32)
    }

    #[inline]
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }

    /// Its heap of a size class: 0 is small, 1 large.
    #[inline]
    pub(crate) fn heap(self, class: usize) -> HeapId {
        HeapId(2 * self.0 + class as u32)
    }

    /// Its heap of small requests.
    #[inline]
    pub(crate) fn small(self) -> HeapId {
        self.heap(0)
    }

    /// Its heap of large requests.
    #[inline]
    pub(crate) fn large(self) -> HeapId {
        self.heap(1)
    }
}

/// One of a lane's two heaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HeapId(u32);

impl HeapId {
    #[inline]
    pub(crate) fn lane(self) -> LaneId {
        LaneId(self.0 / 2)
    }

    /// The size class of its requests: 0 is small, 1 large.
    #[inline]
    pub(crate) fn class(self) -> usize {
        (self.0 & 1) as usize
    }

    #[inline]
    pub(crate) fn is_large(self) -> bool {
        self.class() == 1
    }

    #[inline]
    pub(crate) fn is_small(self) -> bool {
        self.class() == 0
    }
}

/// A page of a heap, in order of address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PageId(u32);

impl PageId {
    #[inline]
    #[must_use]
    pub fn new(index: usize) -> PageId {
        PageId(index as u32)
    }

    #[inline]
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }

    /// The page `by` places behind this one.
    #[inline]
    pub(crate) fn moved(self, by: i32) -> PageId {
        PageId(self.0.wrapping_add_signed(by))
    }
}

/// A window of the pool. The numbers of dropped windows are used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct WindowId(pub(crate) u32);

impl WindowId {
    #[inline]
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

/// The number of a fence, which rises from one to the next. Memory that was freed before a fence is used by no work
/// once that fence is done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fence(u64);

impl Fence {
    /// Before the first fence: no work uses memory that was freed before it.
    pub const PAST: Fence = Fence(0);
    /// After every fence: a caller that counts it as done counts all work as done.
    pub(crate) const LAST: Fence = Fence(u64::MAX);

    pub(crate) fn next(self) -> Fence {
        Fence(self.0 + 1)
    }
}

impl std::fmt::Display for Fence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}
