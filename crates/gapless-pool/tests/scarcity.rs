//! Close to its limit the pool takes finer pages and holds nothing beyond what is in use; far from it, it does neither.

use gapless_pool::{Options, Pool, PoolKey, SimDevice, StreamHandle};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const STREAM: StreamHandle = StreamHandle(0);

fn pool(card: u64, limit: Option<u64>) -> Pool<SimDevice> {
    Pool::new(SimDevice::new(card), Options { limit, ..Options::default() })
}

fn take(pool: &mut Pool<SimDevice>, size: u64) -> u64 {
    pool.alloc(size, STREAM, PoolKey(0, 0)).expect("enough memory")
}

/// The largest page that is held, in MiB.
fn largest(pool: &Pool<SimDevice>) -> u64 {
    let sizes = pool.heaps().flat_map(gapless_pool::heap::Heap::pages).map(|page| page.size);
    sizes.max().unwrap_or(0) / MIB
}

#[test]
fn pages_are_fine_under_a_limit_and_large_without_one() {
    let mut free = pool(140 * GIB, None);
    take(&mut free, GIB);
    assert_eq!(largest(&free), 32);
    let mut far = pool(140 * GIB, Some(100 * GIB));
    take(&mut far, GIB);
    assert_eq!(largest(&far), 32);
    let mut near = pool(140 * GIB, Some(10 * GIB));
    take(&mut near, GIB);
    assert_eq!(largest(&near), 8);
}

/// The number of pages of a block, each time after the cache was emptied.
fn pages_each_time(pool: &mut Pool<SimDevice>, size: u64) -> [u64; 6] {
    std::array::from_fn(|_| {
        let before = pool.stats().pages.current;
        let block = take(pool, size);
        let pages = pool.stats().pages.current - before;
        pool.free(block).expect("it is allocated");
        assert_eq!(pool.trim(), size);
        pages
    })
}

/// Each page costs driver calls, each time.
#[test]
fn a_program_that_empties_its_cache_often_gets_larger_pages() {
    assert_eq!(pages_each_time(&mut pool(140 * GIB, Some(3 * GIB)), GIB), [512, 128, 32, 8, 8, 8]);
    assert_eq!(pages_each_time(&mut pool(140 * GIB, None), 8 * GIB), [256, 128, 64, 32, 32, 32]);
}

/// A live block in a large page keeps all of it, and splits the free part of it.
#[test]
fn what_stays_live_keeps_pages_small() {
    let mut limited = pool(140 * GIB, Some(3 * GIB));
    take(&mut limited, 128 * MIB);
    assert_eq!(pages_each_time(&mut limited, GIB), [512, 256, 128, 128, 128, 128]);
    let mut free = pool(140 * GIB, None);
    take(&mut free, GIB);
    assert_eq!(pages_each_time(&mut free, 8 * GIB), [256; 6]);
}

#[test]
fn near_its_limit_a_program_that_empties_its_cache_gets_fine_pages() {
    let mut pool = pool(140 * GIB, Some(3 * GIB));
    pages_each_time(&mut pool, GIB);
    take(&mut pool, GIB + 768 * MIB);
    let before = pool.stats().pages.current;
    take(&mut pool, GIB);
    assert!(pool.stats().pages.current - before >= 256, "{:?}", pool.stats().pages);
}

#[test]
fn a_program_that_came_to_its_limit_gets_finer_pages_again() {
    let mut pool = pool(140 * GIB, Some(3 * GIB));
    assert_eq!(pages_each_time(&mut pool, GIB)[5], 8);
    pool.alloc(4 * GIB, STREAM, PoolKey(0, 0)).expect_err("more than the limit");
    assert_eq!(pages_each_time(&mut pool, GIB), [128; 6]);
}

#[test]
fn the_last_eighth_of_a_card_is_taken_in_fine_pages() {
    let mut pool = pool(16 * GIB, None);
    take(&mut pool, 15 * GIB);
    assert_eq!(largest(&pool), 32);
    let before = pool.stats().pages.current;
    take(&mut pool, 256 * MIB);
    assert_eq!(pool.stats().pages.current - before, 128);
}

/// A gap of 96 MiB between blocks, and a request that does not fit it: below half of the limit the pool grows within
/// its slack, above it the free pages are mapped a second time.
#[test]
fn free_pages_are_harvested_at_once_where_memory_is_scarce() {
    let held_for = |limit: Option<u64>| {
        let mut pool = pool(140 * GIB, limit);
        take(&mut pool, 10 * GIB);
        let gap = take(&mut pool, 96 * MIB);
        take(&mut pool, 2 * MIB);
        pool.free(gap).expect("it is allocated");
        let before = pool.stats().reserved.current;
        take(&mut pool, 100 * MIB);
        pool.stats().reserved.current - before
    };
    assert_eq!(held_for(None), 100 * MIB);
    assert_eq!(held_for(Some(100 * GIB)), 100 * MIB);
    assert_eq!(held_for(Some(12 * GIB)), 4 * MIB);
}
