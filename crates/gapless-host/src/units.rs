//! Sizes that all parts share.

/// Large buffers start and end at multiples of this: 64 KiB.
pub const GRANULE: usize = 64 << 10;
/// From this size on a block is a large buffer. Below it, size classes serve.
pub const LARGE: usize = 1 << 20;
/// A huge page. The kernel moves it as one entry of its page tables.
pub const HUGE: usize = 2 << 20;
/// An arena begins at a multiple of this.
pub const MOST_ALIGNMENT: usize = 1 << 30;
/// The alignment that the C library promises for every block.
pub const MIN_ALIGNMENT: usize = 16;

/// The largest block: addresses of user programs have 47 bits, and no sum of two sizes below it overflows.
pub const MOST_SIZE: usize = 1 << 47;

/// Bytes in granules, rounded up; `None` if the number is too large.
#[must_use]
pub fn granules(bytes: usize) -> Option<u32> {
    let count = bytes.checked_add(GRANULE - 1)? / GRANULE;
    u32::try_from(count).ok()
}
