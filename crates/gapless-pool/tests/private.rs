//! Windows of private pools: free pages are mapped again there too, stay mapped while the pool is used, and go with it.

use gapless_pool::{Options, Pool, PoolKey, RestoreError, SimDevice, SleepError, StreamHandle};

const MIB: u64 = 1 << 20;
const PIECE: u64 = 8 * MIB;
const GRAPHS: PoolKey = PoolKey(3, 0);
const STREAM: StreamHandle = StreamHandle(5);

fn pool_with(options: Options) -> Pool<SimDevice> {
    let mut pool = Pool::new(SimDevice::new(1 << 30), options);
    pool.use_pool(GRAPHS);
    pool
}

fn take(pool: &mut Pool<SimDevice>, size: u64) -> u64 {
    let addr = pool.alloc(size, STREAM, GRAPHS).expect("the card has room");
    assert!(pool.device().is_usable(addr, size));
    addr
}

/// Eight pieces, of which every other is freed. Returns those that stay.
fn in_pieces(pool: &mut Pool<SimDevice>) -> Vec<u64> {
    let pieces: Vec<u64> = (0..8).map(|_| take(pool, PIECE)).collect();
    pieces.iter().step_by(2).for_each(|&addr| pool.free(addr).expect("it is live"));
    pieces.into_iter().skip(1).step_by(2).collect()
}

fn checked(pool: &Pool<SimDevice>) {
    pool.check().expect("every invariant holds");
    // No two allocations share a physical byte.
    let all = pool.allocations().flat_map(|(addr, size, _)| pool.device().physical(addr, size));
    let mut bytes: Vec<(u64, u64, u64)> = all.map(|(page, from, size)| (page, from, from + size)).collect();
    bytes.sort_unstable();
    for pair in bytes.windows(2) {
        assert!(pair[0].0 != pair[1].0 || pair[0].2 <= pair[1].1, "{pair:?}");
    }
}

#[test]
fn free_pages_of_a_capture_serve_a_larger_request() {
    let mut pool = pool_with(Options::default());
    pool.set_quiet(true);
    in_pieces(&mut pool);
    let held = pool.stats().reserved.current;
    let large = take(&mut pool, 4 * PIECE);
    assert!(pool.is_in_window(large));
    assert_eq!(pool.stats().reserved.current, held, "no memory was taken");
    checked(&pool);
    // The window serves the next request of its size, at the same address, without a driver call.
    pool.free(large).expect("it is live");
    let maps = pool.device().maps;
    assert_eq!(take(&mut pool, 4 * PIECE - 512), large);
    assert_eq!(pool.device().maps, maps);
    checked(&pool);
}

#[test]
fn without_the_option_a_private_pool_only_grows() {
    let mut pool = pool_with(Options { private_windows: false, ..Options::default() });
    in_pieces(&mut pool);
    let large = take(&mut pool, 4 * PIECE);
    assert!(!pool.is_in_window(large));
    assert_eq!(pool.stats().private_windows, 0);
}

#[test]
fn a_window_stays_until_nobody_uses_the_pool() {
    let mut pool = pool_with(Options { windows: 0, ..Options::default() });
    let pieces = in_pieces(&mut pool);
    let large = take(&mut pool, 4 * PIECE);
    pool.free(large).expect("it is live");
    let held = pool.stats().reserved.current;
    assert_eq!(pool.trim(), 0);
    assert_eq!(pool.trim_behind_work(), 0);
    assert_eq!(pool.trim_pool(GRAPHS), 0);
    // A request elsewhere drops idle windows beyond the number that is kept, but none of these.
    let other = pool.alloc(3 * PIECE, STREAM, PoolKey(0, 0)).expect("the card has room");
    pool.free(other).expect("it is live");
    pool.trim();
    assert!(pool.device().is_usable(large, 4 * PIECE), "graphs may write there");
    assert_eq!(pool.stats().reserved.current, held);
    pieces.into_iter().for_each(|addr| pool.free(addr).expect("it is live"));
    pool.release_pool(GRAPHS);
    assert_eq!(pool.trim(), held);
    assert!(!pool.device().is_usable(large, 512));
    checked(&pool);
}

#[test]
fn what_is_live_in_a_window_outlives_the_release_of_its_pool() {
    let mut pool = pool_with(Options::default());
    let pieces = in_pieces(&mut pool);
    let large = take(&mut pool, 2 * PIECE);
    pieces.into_iter().for_each(|addr| pool.free(addr).expect("it is live"));
    pool.release_pool(GRAPHS);
    pool.trim();
    assert!(pool.device().is_usable(large, 2 * PIECE));
    assert_eq!(pool.stats().reserved.current, 2 * PIECE);
    checked(&pool);
    pool.free(large).expect("it is live");
    pool.trim();
    assert_eq!(pool.stats().reserved.current, 0);
    checked(&pool);
}

#[test]
fn a_state_brings_windows_back_and_takes_their_pages_at_home() {
    let mut pool = pool_with(Options::default());
    let pieces = in_pieces(&mut pool);
    let large = take(&mut pool, 4 * PIECE);
    let state = pool.save(GRAPHS);
    assert_eq!(state.iter().filter(|saved| saved.is_in_window()).count(), 1);
    for addr in pieces.iter().copied().chain([large]) {
        pool.free(addr).expect("it is live");
    }
    let whole = take(&mut pool, 8 * PIECE);
    let held = pool.stats().reserved.current;
    assert_eq!(pool.restore(GRAPHS, &state), Ok(vec![whole]));
    let mut live: Vec<u64> = pool.live().map(|view| view.addr).collect();
    live.sort_unstable();
    let mut wanted: Vec<u64> = pieces.iter().copied().chain([large]).collect();
    wanted.sort_unstable();
    assert_eq!(live, wanted);
    checked(&pool);
    // All of the pool is in use, so the next request gets new memory and shares none.
    take(&mut pool, 2 * PIECE);
    assert!(pool.stats().reserved.current > held);
    checked(&pool);
    assert_eq!(pool.segments().iter().map(|s| s.size).sum::<u64>(), pool.stats().reserved.current);
}

#[test]
fn a_state_whose_window_is_gone_is_refused_and_nothing_changes() {
    let mut pool = pool_with(Options::default());
    let pieces = in_pieces(&mut pool);
    let large = take(&mut pool, 4 * PIECE);
    let state = pool.save(GRAPHS);
    pieces.into_iter().chain([large]).for_each(|addr| pool.free(addr).expect("it is live"));
    pool.release_pool(GRAPHS);
    pool.trim();
    pool.use_pool(GRAPHS);
    let now = take(&mut pool, 8 * PIECE);
    assert_eq!(pool.restore(GRAPHS, &state), Err(RestoreError::Gone { addr: large }));
    assert_eq!(pool.live().map(|view| view.addr).collect::<Vec<_>>(), [now]);
    checked(&pool);
}

/// Windows of a pool in use cannot be dropped, so their number is bounded even with ever new sizes.
#[test]
fn what_is_mapped_again_is_bounded() {
    let mut pool = pool_with(Options::default());
    in_pieces(&mut pool);
    for size in 0..2000 {
        let large = take(&mut pool, PIECE + size % 97 * 512 * 1024 % (3 * PIECE) + 512 * (size + 1));
        pool.free(large).expect("it is live");
    }
    checked(&pool);
    let (held, maps) = (pool.stats().reserved.current, pool.device().maps);
    assert!(held < 16 * PIECE, "{held}");
    assert!(pool.stats().private_windows > 3, "{}", pool.stats().private_windows);
    assert!(maps < 10 * held / (2 * MIB), "{maps} pages were mapped for {held} bytes");
}

#[test]
fn a_pool_that_may_sleep_has_no_windows_and_one_with_windows_does_not_sleep() {
    let mut pool = pool_with(Options::default());
    pool.keep_at_home(GRAPHS);
    in_pieces(&mut pool);
    let large = take(&mut pool, 4 * PIECE);
    assert!(!pool.is_in_window(large));
    assert!(pool.begin_sleep(&[GRAPHS]).is_ok());

    let mut pool = pool_with(Options::default());
    in_pieces(&mut pool);
    take(&mut pool, 4 * PIECE);
    let held = pool.stats().reserved.current;
    assert_eq!(pool.begin_sleep(&[GRAPHS]), Err(SleepError::Windows));
    assert_eq!(pool.stats().reserved.current, held);
    checked(&pool);
}

/// Lanes of one pool do not use each other's pages, because no work orders their streams.
#[test]
fn a_window_has_pages_of_its_own_stream_alone() {
    let mut pool = pool_with(Options::default());
    in_pieces(&mut pool);
    let held = pool.stats().reserved.current;
    let other = pool.alloc(4 * PIECE, StreamHandle(9), GRAPHS).expect("the card has room");
    assert!(!pool.is_in_window(other));
    assert_eq!(pool.stats().reserved.current, held + 4 * PIECE);
}

/// If the card is full, free pieces are the last resort of a private pool too.
#[test]
fn a_request_that_would_fail_is_served_from_pieces() {
    let mut pool = pool_with(Options { limit: Some(8 * PIECE), ..Options::default() });
    in_pieces(&mut pool);
    let large = take(&mut pool, 4 * PIECE);
    assert!(pool.is_in_window(large));
    assert!(pool.alloc(PIECE, STREAM, GRAPHS).is_err());
    checked(&pool);
}
