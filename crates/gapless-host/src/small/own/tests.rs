//! Random programs against a shadow of the contents of each block. Threads have caches of their own and free each
//! other's blocks.

use super::*;
use std::sync::Mutex;

static BUDGET: Budget = Budget::new();
static CORE: Own = Own::new(&BUDGET);

unsafe extern "C" fn leave(cache: *mut c_void) {
    // SAFETY: `cache` is the value of the key that `CORE.begin` made, in the thread that ends.
    unsafe { CORE.leave(cache) };
}

/// The core, ready for use by one test at a time.
fn core() -> (&'static Own, std::sync::MutexGuard<'static, ()>) {
    static ONE: Mutex<()> = Mutex::new(());
    static BEGIN: std::sync::Once = std::sync::Once::new();
    let guard = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    BEGIN.call_once(|| assert!(CORE.begin(leave)));
    (&CORE, guard)
}

fn random(seed: &mut u64) -> usize {
    *seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
    (*seed >> 33) as usize
}

/// A block whose first and last bytes are its mark.
struct Block {
    start: usize,
    size: usize,
    mark: u8,
}

impl Block {
    fn new(core: &Own, seed: &mut u64) -> Block {
        let most = [40, 300, 5_000, 40_000, 300_000, 1 << 20][random(seed) % 6];
        let size = random(seed) % most;
        let alignment = if random(seed).is_multiple_of(8) { 1 << (random(seed) % 16) } else { 1 };
        let zeroed = random(seed).is_multiple_of(4);
        let start = core.allocate_aligned(size, alignment, zeroed);
        assert!(!start.is_null());
        assert_eq!(start.align_offset(alignment.max(16)), 0, "{size} at {alignment}");
        // SAFETY: the block is live and has at least `size` bytes.
        unsafe {
            assert!(core.usable(start) >= size);
            if zeroed {
                assert!(std::slice::from_raw_parts(start, size).iter().all(|byte| *byte == 0), "{size}");
            }
        }
        let block = Block { start: start as usize, size, mark: random(seed) as u8 };
        block.fill();
        block
    }

    fn bytes(&self) -> &'static mut [u8] {
        // SAFETY: the block belongs to this test and has `size` bytes.
        unsafe { std::slice::from_raw_parts_mut(self.start as *mut u8, self.size) }
    }

    fn fill(&self) {
        let bytes = self.bytes();
        let edge = bytes.len().min(64);
        bytes[..edge].fill(self.mark);
        let end = bytes.len() - edge;
        bytes[end..].fill(self.mark);
    }

    fn check(&self, size: usize) {
        let bytes = self.bytes();
        let edge = bytes.len().min(64);
        assert!(bytes[..edge.min(size)].iter().all(|byte| *byte == self.mark), "{} bytes", self.size);
        if size >= self.size {
            assert!(bytes[bytes.len() - edge..].iter().all(|byte| *byte == self.mark), "{} bytes", self.size);
        }
    }

    fn change_size(&mut self, core: &Own, size: usize) {
        // SAFETY: the block is live and belongs to this test.
        let moved = unsafe { core.reallocate(self.start as *mut u8, size) };
        assert!(!moved.is_null());
        let old = std::mem::replace(&mut self.size, size);
        self.start = moved as usize;
        let kept = Block { start: self.start, size: old.min(size), mark: self.mark };
        kept.check(if size < old { 64.min(old) } else { old });
        self.fill();
    }

    fn end(self, core: &Own) {
        self.check(self.size);
        // SAFETY: the block is live, belongs to this test, and is not used again.
        unsafe { core.free(self.start as *mut u8) };
    }
}

fn program(core: &Own, seed: u64, shared: &Mutex<Vec<Block>>, operations: usize) {
    let mut seed = seed * 977 + 5;
    let mut own: Vec<Block> = Vec::new();
    for _ in 0..operations {
        match random(&mut seed) % 16 {
            0..=6 => own.push(Block::new(core, &mut seed)),
            7..=11 if !own.is_empty() => {
                let at = random(&mut seed) % own.len();
                own.swap_remove(at).end(core);
            }
            12 if !own.is_empty() => {
                let at = random(&mut seed) % own.len();
                let size = random(&mut seed) % 70_000;
                own[at].change_size(core, size);
            }
            13 => {
                let mut all = shared.lock().unwrap();
                all.append(&mut own);
            }
            14 => {
                let mut all = shared.lock().unwrap();
                let from = all.len() / 2;
                own.extend(all.drain(from..));
            }
            15 if random(&mut seed).is_multiple_of(50) => core.collect(random(&mut seed).is_multiple_of(2)),
            _ => {}
        }
    }
    shared.lock().unwrap().append(&mut own);
}

#[test]
fn random_programs_of_threads_that_come_and_go_find_their_bytes() {
    let (core, _one) = core();
    let shared = Mutex::new(Vec::new());
    for round in 0..6 {
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let shared = &shared;
                scope.spawn(move || program(core, round * 10 + thread, shared, 4_000));
            }
        });
        assert_eq!(core.fault(), None, "round {round}");
    }
    shared.into_inner().unwrap().into_iter().for_each(|block| block.end(core));
    // At most one empty span of each class is left. A scope waits for the functions of its threads, not for the ends of
    // the threads, at which they give back what they keep.
    let spans: u64 =
        CLASSES[1..WHOLE as usize].iter().map(|class| u64::from(class.slices) * SLICE as u64).sum();
    let live = || {
        core.collect(true);
        core.spans.held().live
    };
    for _ in 0..1000 {
        if live() <= spans {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert_eq!(core.fault(), None);
    assert!(live() <= spans, "{} bytes of {spans}", live());
}

#[test]
fn what_one_thread_frees_another_gets() {
    let (core, _one) = core();
    let held = || core.spans.held().live;
    let before = held();
    let (pass, receiver) = std::sync::mpsc::sync_channel::<Vec<usize>>(1);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for blocks in receiver {
                // SAFETY: the other thread allocated these blocks and does not use them any more.
                blocks.into_iter().for_each(|block| unsafe { core.free(block as *mut u8) });
            }
        });
        for _ in 0..200 {
            pass.send((0..1_000).map(|_| core.allocate(100, false) as usize).collect()).unwrap();
        }
        drop(pass);
    });
    let grown = held() - before;
    // 20 MB are handed over, at most three sets of blocks at a time.
    assert!(grown < 2 << 20, "{grown} bytes");
}

#[test]
fn a_thread_that_ends_leaves_nothing_behind() {
    let (core, _one) = core();
    let round = || {
        // `join` waits for the end of the thread; a scope would only wait for its function.
        let work = || {
            let blocks: Vec<usize> = (0..5_000).map(|at| core.allocate(at % 2_000, false) as usize).collect();
            // SAFETY: this thread allocated these blocks and does not use them any more.
            blocks.into_iter().for_each(|block| unsafe { core.free(block as *mut u8) });
        };
        std::thread::spawn(work).join().unwrap();
        core.collect(true);
        core.spans.held().live
    };
    let first = round();
    for _ in 0..20 {
        assert!(round() <= first);
    }
    assert_eq!(core.fault(), None);
}

#[test]
fn figures_say_what_the_program_has_by_class_and_what_threads_keep() {
    let (core, _one) = core();
    core.collect(true);
    let before = core.figures();
    let class = classes::of(640) as usize;
    let blocks: Vec<*mut u8> = (0..300).map(|_| core.allocate(640, false)).collect();
    let whole = core.allocate(300_000, false);
    let during = core.figures();
    assert_eq!(during.live[class] - before.live[class], 300 * 640);
    assert_eq!(during.live[WHOLE as usize] - before.live[WHOLE as usize], 19 * SLICE as u64);
    assert!(during.threads >= 1);
    for block in blocks {
        // SAFETY: this test allocated the block and does not use it any more.
        unsafe { core.free(block) };
    }
    // SAFETY: this test allocated the block and does not use it any more.
    unsafe { core.free(whole) };
    let after = core.figures();
    assert_eq!(after.live[class], before.live[class]);
    assert_eq!(after.live[WHOLE as usize], before.live[WHOLE as usize]);
    assert!(after.kept[class] > 0 && after.most_kept >= after.kept[class]);
}
