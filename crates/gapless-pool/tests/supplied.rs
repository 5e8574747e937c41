//! Private pools whose memory comes from an allocator of the program's own.

use gapless_pool::{
    BlockState, Change, DeviceError, Options, Pool, PoolKey, Refusal, Returned, SimDevice, StreamHandle,
};

const MIB: u64 = 1 << 20;
const POOL: PoolKey = PoolKey(0, 3);
const STREAM: StreamHandle = StreamHandle(0);
const OTHER: StreamHandle = StreamHandle(7);
/// The first of the supplier's addresses, far from the pool's own.
const FAR: u64 = 1 << 50;

/// A pool, and a supplier that records its calls.
struct Bench {
    pool: Pool<SimDevice>,
    next: u64,
    asked: Vec<u64>,
}

impl Bench {
    fn new(options: Options) -> Bench {
        let mut device = SimDevice::new(1 << 30);
        device.instant = false;
        let mut pool = Pool::new(device, options);
        pool.use_pool(POOL);
        pool.set_supplied(POOL, false);
        pool.set_log(true);
        Bench { pool, next: FAR, asked: Vec::new() }
    }

    /// A request as the caller of a pool makes it.
    fn alloc(&mut self, size: u64, stream: StreamHandle) -> u64 {
        if let Some(bytes) = self.pool.missing_segment(size, stream, POOL).expect("within the limit") {
            self.asked.push(bytes);
            assert!(self.pool.add_segment((self.next, bytes), size, stream, POOL));
            self.next += bytes;
        }
        let addr = self.pool.alloc(size, stream, POOL).expect("a segment is there");
        self.check();
        addr
    }

    fn free(&mut self, addr: u64) {
        self.pool.free(addr).expect("it is there");
        self.check();
    }

    fn check(&self) {
        self.pool.check().expect("every invariant");
    }
}

#[test]
fn requests_are_served_from_what_was_supplied_and_nothing_else() {
    let mut bench = Bench::new(Options::default());
    let (a, b, c) = (bench.alloc(100, STREAM), bench.alloc(3 * MIB, STREAM), bench.alloc(3 * MIB, STREAM));
    assert_eq!((a, b, c), (FAR, FAR + 2 * MIB, FAR + 5 * MIB));
    assert_eq!(bench.asked, [2 * MIB, 20 * MIB]);
    let stats = *bench.pool.stats();
    assert_eq!((stats.reserved.current, stats.allocated.current), (22 * MIB, 6 * MIB + 512));
    assert_eq!((stats.requested.current, stats.pages.current), (6 * MIB + 100, 2));
    // The default pool does not use it.
    let plain = bench.pool.alloc(MIB, STREAM, PoolKey::default()).expect("the card has memory");
    assert!(plain < FAR);
    let shown: Vec<(u64, u64, usize)> = bench
        .pool
        .segments()
        .iter()
        .filter(|s| s.pool == POOL)
        .map(|s| (s.addr, s.size, s.blocks.len()))
        .collect();
    assert_eq!(shown, [(FAR, 2 * MIB, 2), (FAR + 2 * MIB, 20 * MIB, 3)]);
}

#[test]
fn a_block_that_another_stream_uses_waits_for_it() {
    let mut bench = Bench::new(Options::default());
    let a = bench.alloc(4 * MIB, STREAM);
    bench.pool.record_stream(a, OTHER).expect("it is there");
    bench.free(a);
    let pending = bench.pool.segments().iter().flat_map(|s| s.blocks.clone()).find(|b| b.addr == a);
    assert_eq!(pending.map(|b| b.state), Some(BlockState::Pending));
    let b = bench.alloc(4 * MIB, STREAM);
    assert_ne!(a, b);
    bench.pool.device_mut().finish_all();
    assert_eq!(bench.alloc(4 * MIB, STREAM), a);
    assert_eq!(bench.asked, [20 * MIB]);
}

#[test]
fn segments_go_back_when_the_pool_is_released_and_they_are_free() {
    let mut bench = Bench::new(Options::default());
    let (a, b) = (bench.alloc(12 * MIB, STREAM), bench.alloc(30 * MIB, STREAM));
    bench.free(a);
    // A pool in use keeps its memory.
    bench.pool.trim();
    bench.pool.trim_pool(POOL);
    assert_eq!(bench.pool.take_returned(), []);
    bench.pool.release_pool(POOL);
    let lanes = bench.pool.lanes().len();
    assert_eq!(bench.pool.trim_pool(POOL), 12 * MIB);
    assert_eq!(bench.pool.take_returned(), [Returned { pool: POOL, addr: FAR, size: 12 * MIB }]);
    assert!(!bench.pool.end_supplied(POOL), "a tensor outlives its pool");
    // The lane is not handed on meanwhile.
    bench.pool.alloc(MIB, StreamHandle(99), PoolKey::default()).expect("the card has memory");
    assert_eq!(bench.pool.lanes().len(), lanes + 1);
    bench.free(b);
    assert_eq!(bench.pool.trim(), 30 * MIB);
    assert_eq!(bench.pool.take_returned(), [Returned { pool: POOL, addr: FAR + 12 * MIB, size: 30 * MIB }]);
    assert!(bench.pool.end_supplied(POOL) && !bench.pool.is_supplied(POOL));
    bench.check();
    let (mapped, unmapped): (Vec<Change>, Vec<Change>) = bench
        .pool
        .take_changes()
        .into_iter()
        .filter(|c| matches!(c, Change::Mapped { pool, .. } | Change::Unmapped { pool, .. } if *pool == POOL))
        .partition(|c| matches!(c, Change::Mapped { .. }));
    assert_eq!((mapped.len(), unmapped.len()), (2, 2));
}

#[test]
fn a_limit_holds_for_supplied_memory_too() {
    let mut bench = Bench::new(Options { limit: Some(30 * MIB), ..Options::default() });
    bench.alloc(3 * MIB, STREAM);
    let missing = bench.pool.missing_segment(12 * MIB, STREAM, POOL);
    assert_eq!(missing, Ok(None), "17 MiB of its segment are free");
    bench.alloc(12 * MIB, STREAM);
    let missing = bench.pool.missing_segment(12 * MIB, STREAM, POOL);
    assert_eq!(missing, Err(DeviceError::Refused(Refusal::Limit)));
}
