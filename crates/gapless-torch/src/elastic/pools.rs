//! Elastic pools and their threads, without a way to make a card: cards are made with the ticker, which asks these
//! pools for free pages.

use crate::background::Running;
use crate::process;
use crate::queued::{self, Queued};
use crate::quota::{QuotaDevice, admission};
use gapless_cuda::CudaDevice;
use gapless_cuda::locks::{Guard, Lock, Signal};
use gapless_pool::elastic::{Book, Done, Job, RangeId};
use gapless_pool::{DeviceError, Refusal};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Pause between two looks at work in flight, and before a retry of something that failed.
const LOOK: Duration = Duration::from_millis(1);
pub(super) const GRANULE: u64 = 2 << 20;

#[derive(Debug)]
pub(super) struct Pool {
    pub(super) device: i32,
    pub(super) book: Lock<Book>,
    /// `work` wakes the thread. `news` wakes callers whose pages are ready, or failed.
    pub(super) work: Signal,
    pub(super) news: Signal,
    pub(super) is_closed: AtomicBool,
}

static POOLS: Lock<BTreeMap<i64, Arc<Pool>>> = Lock::new(BTreeMap::new);

pub(super) fn pools() -> Guard<'static, BTreeMap<i64, Arc<Pool>>> {
    POOLS.lock()
}

pub(super) fn pool(number: i64) -> Result<Arc<Pool>, String> {
    if process::is_forked() {
        return Err(process::CardError::Forked.to_string());
    }
    pools().get(&number).cloned().ok_or_else(|| "the elastic pool is closed".to_owned())
}

impl Pool {
    pub(super) fn book(&self) -> Guard<'_, Book> {
        self.book.lock()
    }

    pub(super) fn run(&self, mut device: QuotaDevice<CudaDevice>) {
        let mut book = self.book();
        // Queued work that may still use pages that are to go.
        let mut queued: Option<Queued> = None;
        loop {
            if queued.is_some_and(|work| queued::is_done(self.device, work)) {
                queued = None;
                book.finish(Done::Waited);
            }
            let Some(job) = book.next_job() else {
                self.news.notify_all();
                if self.is_closed.load(Ordering::Relaxed) {
                    if book.is_empty() {
                        return;
                    }
                    // The last tensor of a closed pool may end only now, so its pages go back here.
                    if book.stats().free > 0 {
                        book.give_back(usize::MAX);
                        continue;
                    }
                }
                book = if queued.is_some() { self.work.wait_for(book, LOOK) } else { self.work.wait(book) };
                continue;
            };
            drop(book);
            let done = {
                let Some(_running) = Running::begin() else { return };
                match job {
                    // Does not block: the thread does other jobs while the work runs.
                    Job::Wait => {
                        queued = queued::now(self.device);
                        None
                    }
                    _ => Some(job.run(&mut device)),
                }
            };
            book = self.book();
            let is_refused = done.is_none() && queued.is_none();
            let waits = match done {
                Some(done) => book.finish(done),
                None => is_refused && book.finish(Done::NotWaited),
            };
            self.news.notify_all();
            if waits {
                book = self.work.wait_for(book, LOOK);
            }
        }
    }
}

/// The addresses of a tensor. PyTorch holds this value; its end gives the addresses back.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) pool: Arc<Pool>,
    pub(super) range: RangeId,
}

impl Drop for Held {
    fn drop(&mut self) {
        if !process::is_forked() {
            self.pool.book().end(self.range);
            self.pool.work.notify_all();
        }
    }
}

/// The reason why a range cannot get its pages.
pub(crate) enum Refused {
    OutOfMemory(String),
    Other(String),
}

/// Says which slots of a range are wanted, and which may be mapped `ahead`. Waits for the former if `waits`.
///
/// # Errors
/// If the pool is closed, or if pages cannot be had.
pub(crate) fn want(
    number: i64,
    range: u32,
    yes: &[(usize, usize)],
    ahead: &[(usize, usize)],
    waits: bool,
) -> Result<(), Refused> {
    let pool = pool(number).map_err(Refused::Other)?;
    let range = RangeId(range);
    let mut book = pool.book();
    let is_ready = book.want(range, yes, ahead);
    pool.work.notify_all();
    if is_ready || !waits {
        return Ok(());
    }
    loop {
        if let Some(error) = book.take_error(range) {
            let stats = book.stats();
            let page = book.page();
            drop(book);
            return Err(refused(
                &pool,
                error,
                stats.pages as u64 * page,
                stats.limit.map(|limit| limit as u64 * page),
            ));
        }
        if book.is_ready(range) {
            return Ok(());
        }
        book = pool.news.wait_for(book, Duration::from_millis(100));
    }
}

fn refused(pool: &Pool, error: DeviceError, held: u64, limit: Option<u64>) -> Refused {
    let mib = |bytes: u64| format!("{:.2} MiB", bytes as f64 / f64::from(1 << 20));
    let why = match error {
        DeviceError::Refused(Refusal::Limit) => match limit {
            Some(limit) => format!("its pool has a limit of {}, all of it in use", mib(limit)),
            None => "its pool has a limit, all of it in use".to_owned(),
        },
        DeviceError::Refused(why) => admission::of(pool.device)
            .and_then(|card| card.quota.sentence(why))
            .map_or_else(|| format!("refused ({why:?})"), |text| text.trim().to_owned()),
        DeviceError::OutOfMemory => "the card has no more memory".to_owned(),
        DeviceError::Driver(code) => {
            return Refused::Other(format!("the driver failed with CUDA error {code}"));
        }
    };
    Refused::OutOfMemory(format!("{why}; the pool holds {}", mib(held)))
}

/// Gives back free pages, and those only mapped ahead, because others wait for memory of this card.
pub(crate) fn give_back(device: i32) {
    let all: Vec<Arc<Pool>> = pools().values().filter(|pool| pool.device == device).cloned().collect();
    for pool in all {
        pool.book().give_back(usize::MAX);
        pool.work.notify_all();
    }
}

/// Bytes that the pools of a card hold, and the part of them that no tensor wants.
pub(crate) fn figures(device: i32) -> (u64, u64) {
    let pools = pools();
    let of = |pool: &Arc<Pool>| {
        let book = pool.book();
        let stats = book.stats();
        (stats.pages as u64 * book.page(), (stats.spare + stats.free) as u64 * book.page())
    };
    pools.values().filter(|pool| pool.device == device).map(of).fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1))
}

/// Closes a pool: its pages go back once its tensors are gone.
pub(crate) fn close(number: i64) {
    if let Some(pool) = pools().remove(&number) {
        pool.is_closed.store(true, Ordering::Relaxed);
        pool.book().give_back(usize::MAX);
        pool.work.notify_all();
    }
}

/// Gives the free pages of a pool back to the card, behind work in flight, and waits for that at most for `most`.
/// Returns the bytes that the pool gave back.
pub(crate) fn trim(number: i64, most: Duration) -> u64 {
    let Ok(pool) = pool(number) else { return 0 };
    let mut book = pool.book();
    let page = book.page();
    let before = book.stats().pages;
    book.give_back(usize::MAX);
    pool.work.notify_all();
    let end = Instant::now() + most;
    while book.stats().pages > book.stats().wanted && Instant::now() < end {
        book = pool.news.wait_for(book, LOOK);
    }
    before.saturating_sub(book.stats().pages) as u64 * page
}

/// The figures of a pool in bytes: held, wanted by tensors, mapped ahead or still to be unmapped, free, the limit (0:
/// none).
pub(crate) fn stats(number: i64) -> Option<[u64; 5]> {
    let pool = pool(number).ok()?;
    let book = pool.book();
    let (stats, page) = (book.stats(), book.page());
    let bytes = |pages: usize| pages as u64 * page;
    Some([
        bytes(stats.pages),
        bytes(stats.wanted),
        bytes(stats.spare),
        bytes(stats.free),
        stats.limit.map_or(0, bytes),
    ])
}
