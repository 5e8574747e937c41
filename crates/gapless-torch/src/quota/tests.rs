//! Tests of quotas over the simulated card.

use super::outside::MARGIN;
use super::*;
use gapless_ledger::{Book, Processes, Share, Size, Who, ledger};
use gapless_pool::{AllocError, Options, Pool, PoolKey, SimDevice, SleepError};
use std::path::{Path, PathBuf};

const MIB: u64 = 1 << 20;
const CARD: u64 = 1 << 30;
const DEFAULT: PoolKey = PoolKey(0, 0);
const STREAM: StreamHandle = StreamHandle(1);

/// Processes that all run.
#[derive(Debug)]
struct Test(u32);

impl Processes for Test {
    fn me(&self) -> Who {
        Who { pid: self.0, start: 1, space: 0 }
    }

    fn is_alive(&self, _: Who) -> bool {
        true
    }
}

fn scratch(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("gapless-quota-{}-{name}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    path
}

fn seat(path: &Path, pid: u32, name: &str, bytes: u64, borrow: bool) -> Ledger {
    let share = Share { name: name.into(), size: Size::Bytes(bytes), borrow };
    Ledger::join(path, CARD, &share, Box::new(Test(pid))).expect("a place")
}

fn pool_of(quota: &Arc<Quota>) -> Pool<QuotaDevice<SimDevice>> {
    Pool::new(QuotaDevice::new(SimDevice::new(CARD), quota.clone()), Options::default())
}

fn impatient() -> Quota {
    Quota { patience: Duration::ZERO, ..Quota::default() }
}

fn book(path: &Path) -> Book {
    ledger::look(path).expect("a ledger")
}

fn why(result: Result<u64, AllocError>) -> DeviceError {
    let AllocError::OutOfMemory { device, .. } = result.expect_err("too much");
    device
}

#[test]
fn without_budgets_nothing_is_refused_and_pages_are_counted() {
    let quota = Arc::new(Quota::default());
    let mut pool = pool_of(&quota);
    let addr = pool.alloc(512 * MIB, STREAM, DEFAULT).expect("room");
    assert_eq!(quota.reserved(), pool.stats().reserved.current);
    assert_eq!(why(pool.alloc(CARD, STREAM, DEFAULT)), DeviceError::OutOfMemory);
    pool.free(addr).expect("it is there");
    pool.trim();
    assert_eq!((quota.reserved(), quota.figures().refused), (0, 0));
    let mut text = String::new();
    quota.figures().write_json(&mut text);
    assert_eq!(text, "");
}

#[test]
fn a_budget_counts_what_is_outside_and_what_is_free_is_used_before_it_refuses() {
    let quota = Arc::new(Quota::default());
    quota.set_budget(256 * MIB);
    quota.set_outside(100 * MIB);
    let mut pool = pool_of(&quota);
    let held = pool.alloc(150 * MIB, STREAM, DEFAULT).expect("150 + 100 of 256");
    assert_eq!(why(pool.alloc(8 * MIB, STREAM, DEFAULT)), DeviceError::Refused(Refusal::Process));
    let text = quota.sentence(Refusal::Process).expect("a sentence");
    assert!(text.contains("256.00 MiB") && text.contains("100.00 MiB is counted"), "{text}");
    pool.free(held).expect("it is there");
    // In pieces, which the pool maps side by side.
    let pieces: Vec<u64> = (0..4).map(|_| pool.alloc(32 * MIB, STREAM, DEFAULT).expect("room")).collect();
    for addr in pieces.iter().step_by(2) {
        pool.free(*addr).expect("it is there");
    }
    pool.alloc(56 * MIB, STREAM, DEFAULT).expect("free memory serves it");
    assert!(quota.reserved() + 100 * MIB <= 256 * MIB);
    pool.check().expect("every invariant");
}

/// A meter that returns the number that the test sets; 0 means unknown.
fn metered(quota: &Quota) -> Arc<AtomicU64> {
    let said = Arc::new(AtomicU64::new(0));
    let number = said.clone();
    quota.set_meter(Meter::new(move || Some(number.load(Ordering::Relaxed)).filter(|used| *used > 0)));
    said
}

#[test]
fn what_is_outside_is_measured_and_what_is_not_this_process_is_not_believed() {
    let quota = Arc::new(Quota::default());
    quota.set_budget(CARD);
    let mut pool = pool_of(&quota);
    pool.alloc(64 * MIB, STREAM, DEFAULT).expect("room");
    assert!(!quota.measure(), "nobody can be asked");
    let said = metered(&quota);
    assert!(!quota.measure(), "the driver does not know this process");
    let reserved = quota.reserved();
    said.store(reserved + 300 * MIB, Ordering::Relaxed);
    assert!(quota.measure());
    assert_eq!(quota.figures().outside, 300 * MIB + MARGIN);
    said.store(reserved - 1, Ordering::Relaxed);
    assert!(!quota.measure(), "less than the pool: it is another process");
    assert_eq!(quota.figures().outside, 300 * MIB + MARGIN);
    // More memory outside of the pool leaves less for it.
    said.store(reserved + 950 * MIB, Ordering::Relaxed);
    assert!(quota.measure());
    assert_eq!(
        quota.tick(),
        reserved + 950 * MIB + MARGIN - CARD,
        "more than its budget: what is free should go"
    );
}

#[test]
fn while_a_page_comes_or_goes_nothing_is_measured() {
    let quota = Arc::new(Quota::default());
    quota.set_budget(CARD);
    let mut pool = pool_of(&quota);
    let seen = quota.beside(|| {
        pool.alloc(64 * MIB, STREAM, DEFAULT).expect("room");
        Some(900 * MIB)
    });
    assert_eq!(seen, None);
    quota.changes.fetch_add(1, Ordering::AcqRel);
    assert_eq!(quota.beside(|| Some(900 * MIB)), None, "one is on its way");
}

#[test]
fn near_a_limit_what_is_outside_is_measured_before_more_is_taken() {
    let quota = Arc::new(Quota::default());
    quota.set_budget(600 * MIB);
    let mut pool = pool_of(&quota);
    pool.alloc(64 * MIB, STREAM, DEFAULT).expect("room");
    // A module was loaded since. The quota sees it as soon as the last measurement is old enough.
    let said = metered(&quota);
    said.store(quota.reserved() + 400 * MIB, Ordering::Relaxed);
    while quota.figures().outside == 0 {
        let addr = pool.alloc(2 * MIB, STREAM, DEFAULT).expect("room");
        said.store(quota.reserved() + 400 * MIB, Ordering::Relaxed);
        pool.free(addr).expect("it is there");
        pool.trim();
    }
    assert_eq!(why(pool.alloc(100 * MIB, STREAM, DEFAULT)), DeviceError::Refused(Refusal::Process));
}

#[test]
fn every_page_is_in_the_ledger_before_the_driver_is_asked_and_until_it_has_it_back() {
    let path = scratch("faults");
    for fault in 0..60 {
        let quota = Arc::new(impatient());
        quota.join(seat(&path, 1, "a", 600 * MIB, false), 10 * MIB).expect("room");
        let mut pool = pool_of(&quota);
        pool.device_mut().fail_in = Some(fault);
        let mut held = Vec::new();
        for n in 1..40u64 {
            if let Ok(addr) = pool.alloc(n * 700_000, STREAM, DEFAULT) {
                held.push(addr);
            }
            if n % 3 == 0
                && let Some(addr) = held.pop()
            {
                pool.free(addr).expect("it is there");
            }
            if n % 10 == 0 {
                pool.trim();
            }
            assert_eq!(
                book(&path).total(),
                pool.stats().reserved.current + 10 * MIB,
                "fault {fault}, step {n}"
            );
            assert!(book(&path).held_by("a") <= 600 * MIB);
        }
        pool.check().expect("every invariant");
    }
    std::fs::remove_file(path).expect("removed");
}

#[test]
fn a_share_refuses_its_own_and_never_the_neighbour() {
    let path = scratch("shares");
    let (quota, other) = (Arc::new(impatient()), Arc::new(impatient()));
    quota.join(seat(&path, 1, "a", 600 * MIB, false), 0).expect("room");
    other.join(seat(&path, 2, "b", 424 * MIB, false), 0).expect("room");
    // Two pools over separate cards, each as large as the shared one: only the ledger keeps them apart.
    let (mut mine, mut theirs) = (pool_of(&quota), pool_of(&other));
    let mut over = 0;
    for _ in 0..100 {
        over += u32::from(mine.alloc(10 * MIB, STREAM, DEFAULT).is_err());
        let book = book(&path);
        assert!(book.held_by("a") <= 600 * MIB && book.total() <= CARD);
    }
    assert!(over > 0);
    assert_eq!(why(mine.alloc(10 * MIB, STREAM, DEFAULT)), DeviceError::Refused(Refusal::Share));
    let text = quota.sentence(Refusal::Share).expect("a sentence");
    assert!(
        text.contains("Tenant \"a\" holds 600.00 MiB of its share of 600.00 MiB: this would be beyond it."),
        "{text}"
    );
    for _ in 0..42 {
        theirs.alloc(10 * MIB, STREAM, DEFAULT).expect("its own share");
    }
    assert_eq!(why(theirs.alloc(10 * MIB, STREAM, DEFAULT)), DeviceError::Refused(Refusal::Share));
    std::fs::remove_file(path).expect("removed");
}

#[test]
fn what_was_lent_comes_back_while_its_owner_waits() {
    let path = scratch("lent");
    let (owner, borrower) =
        (Arc::new(Quota { patience: Duration::from_secs(600), ..Quota::default() }), Arc::new(impatient()));
    owner.join(seat(&path, 1, "a", 600 * MIB, false), 0).expect("room");
    borrower.join(seat(&path, 2, "b", 400 * MIB, true), 0).expect("room");
    let (mut mine, mut theirs) = (pool_of(&owner), pool_of(&borrower));
    let lent = theirs.alloc(900 * MIB, STREAM, DEFAULT).expect("400 of its own, the rest borrowed");
    theirs.free(lent).expect("it is there");
    assert_eq!(borrower.tick(), 0, "nobody waits: free memory stays");
    std::thread::scope(|scope| {
        let waiting = scope.spawn(move || {
            let is_lent = |error: &AllocError| {
                let AllocError::OutOfMemory { device, .. } = error;
                *device == DeviceError::Refused(Refusal::Lent)
            };
            // The pool itself never waits, because other threads need its card's lock.
            let first = mine.alloc(500 * MIB, STREAM, DEFAULT).expect_err("it is lent");
            assert!(is_lent(&first));
            let again = || mine.alloc(500 * MIB, STREAM, DEFAULT);
            owner.when_lent(500 * MIB, is_lent, again).expect("its own share");
            let held = owner.seat().as_ref().map(|ledger| ledger.entry().held);
            assert_eq!(
                (owner.credit.load(Ordering::Relaxed), held),
                (0, Some(500 * MIB)),
                "nothing else is kept"
            );
            mine.stats().reserved.current
        });
        // The borrower's ticks, which its own thread would make.
        while borrower.tick() == 0 {
            assert!(!waiting.is_finished(), "it had to wait");
            std::thread::yield_now();
        }
        theirs.trim();
        assert_eq!(waiting.join().expect("it was served"), 500 * MIB);
    });
    assert!(book(&path).total() <= CARD);
    assert_eq!(borrower.tick(), 0);
    std::fs::remove_file(path).expect("removed");
}

#[test]
fn what_does_not_come_back_in_time_is_an_error_that_says_so() {
    let path = scratch("late");
    let (owner, borrower) = (Arc::new(impatient()), Arc::new(impatient()));
    owner.join(seat(&path, 1, "a", 600 * MIB, false), 0).expect("room");
    borrower.join(seat(&path, 2, "b", 400 * MIB, true), 0).expect("room");
    let (mut mine, mut theirs) = (pool_of(&owner), pool_of(&borrower));
    theirs.alloc(900 * MIB, STREAM, DEFAULT).expect("400 of its own, the rest borrowed");
    assert_eq!(why(mine.alloc(500 * MIB, STREAM, DEFAULT)), DeviceError::Refused(Refusal::Lent));
    let text = owner.sentence(Refusal::Lent).expect("a sentence");
    assert!(text.contains("others have borrowed of it"), "{text}");
    assert_eq!(borrower.tick(), 0, "who was refused waits no longer");
    mine.alloc(100 * MIB, STREAM, DEFAULT).expect("what is there");
    std::fs::remove_file(path).expect("removed");
}

#[test]
fn a_process_that_holds_more_than_its_tenant_has_cannot_join() {
    let path = scratch("late-join");
    let quota = Arc::new(impatient());
    let mut pool = pool_of(&quota);
    pool.alloc(300 * MIB, STREAM, DEFAULT).expect("room");
    let error = quota.join(seat(&path, 1, "a", 200 * MIB, false), 0).expect_err("no room");
    assert!(error.contains("holds 300 MiB already"), "{error}");
    assert_eq!(book(&path).iter().count(), 0, "it left");
    quota.join(seat(&path, 1, "a", 400 * MIB, false), 0).expect("room");
    assert_eq!(book(&path).total(), quota.reserved());
    std::fs::remove_file(path).expect("removed");
}

#[test]
fn pages_that_others_have_are_known_through_the_quota() {
    let mut pool = pool_of(&Arc::new(Quota::default()));
    let region = PoolKey(7, 7);
    pool.add_region(region);
    pool.alloc(4 << 20, StreamHandle(1), region).expect("room");
    pool.device_mut().is_shared = true;
    assert_eq!(pool.begin_sleep(&[region]), Err(SleepError::Shared));
    pool.device_mut().is_shared = false;
    assert!(pool.begin_sleep(&[region]).is_ok());
}
