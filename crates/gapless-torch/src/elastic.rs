//! Elastic tensors: addresses for the largest size, and pages that come and go. The book is
//! [`gapless_pool::elastic`]; here are its pools, each with a thread that maps and unmaps, and the C ABI for Python.
//!
//! The thread has a device of its own, so that it never takes the card's lock. It shares the card's quota, so that each
//! page counts in the process's budget and its tenant's share. Callers make no driver call, except to reserve
//! addresses. Order of locks: the list of pools, then a pool's book, then those of `queued`.

use crate::background::{self, Running};
use crate::hooks::{guarded, set_error};
use crate::queued::{self, Queued};
use crate::quota::{QuotaDevice, admission};
use crate::state;
use crate::tensors::{self, ManagedTensor};
use gapless_cuda::locks::{Guard, Lock, Signal};
use gapless_cuda::{CudaDevice, room};
use gapless_pool::elastic::{Book, Done, Job, RangeId};
use gapless_pool::{Device, DeviceError, Refusal};
use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, Instant};

/// Pause between two looks at work in flight, and before a retry of something that failed.
const LOOK: Duration = Duration::from_millis(1);
const GRANULE: u64 = 2 << 20;

#[derive(Debug)]
struct Pool {
    device: i32,
    book: Lock<Book>,
    /// `work` wakes the thread. `news` wakes callers whose pages are ready, or failed.
    work: Signal,
    news: Signal,
    is_closed: AtomicBool,
}

static POOLS: Lock<BTreeMap<i64, Arc<Pool>>> = Lock::new(BTreeMap::new);

fn pools() -> Guard<'static, BTreeMap<i64, Arc<Pool>>> {
    POOLS.lock()
}

fn pool(number: i64) -> Result<Arc<Pool>, String> {
    if state::is_forked() {
        return Err(state::CardError::Forked.to_string());
    }
    pools().get(&number).cloned().ok_or_else(|| "the elastic pool is closed".to_owned())
}

impl Pool {
    fn book(&self) -> Guard<'_, Book> {
        self.book.lock()
    }

    fn run(&self, mut device: QuotaDevice<CudaDevice>) {
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
struct Held {
    pool: Arc<Pool>,
    range: RangeId,
}

impl Drop for Held {
    fn drop(&mut self) {
        if !state::is_forked() {
            self.pool.book().end(self.range);
            self.pool.work.notify_all();
        }
    }
}

fn open(device: i32, page: u64, limit: u64) -> Result<i64, String> {
    static LAST: AtomicI64 = AtomicI64::new(0);
    if page == 0 || !page.is_multiple_of(GRANULE) {
        return Err(format!("a page of {page} bytes cannot be: pages have a multiple of 2 MiB"));
    }
    // Makes the card, with its quota.
    state::with_card(device, |_| ()).map_err(|error| error.to_string())?;
    let quota = admission::of(device).ok_or("the card has no quota")?.quota.clone();
    let own = CudaDevice::new(device).map_err(|error| error.to_string())?.beside();
    let limit = (limit > 0).then(|| usize::try_from(limit / page).unwrap_or(usize::MAX));
    let pool = Arc::new(Pool {
        device,
        book: Lock::with(Book::new(page, limit), || Book::new(GRANULE, None)),
        work: Signal::new(),
        news: Signal::new(),
        is_closed: AtomicBool::new(false),
    });
    let worker = pool.clone();
    background::spawn("gapless-elastic", move || {
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            worker.run(QuotaDevice::new(own, quota).patient())
        }));
    })
    .map_err(|error| format!("no thread can be started ({error})"))?;
    let number = LAST.fetch_add(1, Ordering::Relaxed) + 1;
    pools().insert(number, pool);
    Ok(number)
}

fn reserve(number: i64, slots: u64) -> Result<(u32, *mut ManagedTensor), String> {
    let pool = pool(number)?;
    let page = pool.book().page();
    let slots_here = usize::try_from(slots).map_err(|_| "it is too large".to_owned())?;
    let size = page.checked_mul(slots).filter(|size| *size <= 1 << 46).ok_or("it is too large")?;
    let base = state::with_card(pool.device, |card| card.pool.device_mut().reserve(size))
        .map_err(|error| error.to_string())?
        .map_err(|error| format!("{} ({error:?})", room::why_not(size)))?;
    let range = pool.book().add(base, slots_here);
    let held: Arc<dyn Any + Send + Sync> = Arc::new(Held { pool: pool.clone(), range });
    Ok((range.0, tensors::bytes_at(base, size, pool.device, held)))
}

/// The reason why a range cannot get its pages.
enum Refused {
    OutOfMemory(String),
    Other(String),
}

fn want(
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

// ---- the C ABI ----

fn inside() -> String {
    "the elastic pool failed inside; please report it".to_owned()
}

/// Makes a pool of pages of `page` bytes, with at most `limit` bytes if that is not 0. Returns its number, or -1 with a
/// message in `gapless_last_error`.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_elastic_pool(device: i32, page: u64, limit: u64) -> i64 {
    guarded(Err(inside()), || open(device, page, limit)).unwrap_or_else(|message| {
        set_error(&message);
        -1
    })
}

/// Closes a pool: its pages go back once its tensors are gone.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_elastic_close(number: i64) {
    if state::is_forked() {
        return;
    }
    guarded((), || {
        if let Some(pool) = pools().remove(&number) {
            pool.is_closed.store(true, Ordering::Relaxed);
            pool.book().give_back(usize::MAX);
            pool.work.notify_all();
        }
    });
}

/// Reserves addresses for `slots` pages, as a tensor of bytes in `out`. Returns the number of the range, or -1 with a
/// message in `gapless_last_error`.
///
/// # Safety
/// `out` is valid for one write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_elastic_new(pool: i64, slots: u64, out: *mut *mut ManagedTensor) -> i64 {
    match guarded(Err(inside()), || reserve(pool, slots)) {
        Ok((range, tensor)) => {
            // SAFETY: the Python package passes a place for one pointer.
            unsafe { out.write(tensor) };
            i64::from(range)
        }
        Err(message) => {
            set_error(&message);
            -1
        }
    }
}

/// Says which slots of a range are wanted (`yes` pairs) and which may be mapped ahead (`ahead` pairs after them). Waits
/// for the former if `waits` is not 0. 0; 1: there is no memory; -1: something else failed. Both leave a message in
/// `gapless_last_error`.
///
/// # Safety
/// `pairs` is valid for `yes + ahead` reads of two numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_elastic_want(
    pool: i64,
    range: u32,
    pairs: *const [u64; 2],
    yes: usize,
    ahead: usize,
    waits: i32,
) -> i32 {
    // SAFETY: the Python package passes an array of `yes + ahead` pairs, which lives until this call returns.
    let pairs = unsafe { std::slice::from_raw_parts(pairs, yes + ahead) };
    let pairs: Vec<(usize, usize)> = pairs.iter().map(|&[from, to]| (from as usize, to as usize)).collect();
    let done = guarded(Err(Refused::Other(inside())), || {
        want(pool, range, &pairs[..yes], &pairs[yes..], waits != 0)
    });
    let (code, message) = match done {
        Ok(()) => return 0,
        Err(Refused::OutOfMemory(message)) => (1, message),
        Err(Refused::Other(message)) => (-1, message),
    };
    set_error(&message);
    code
}

/// Gives the free pages of a pool back to the card, behind work in flight, and waits for that at most `wait` ms.
/// Returns the bytes that the pool gave back.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_elastic_trim(number: i64, wait: u64) -> u64 {
    guarded(0, || {
        let Ok(pool) = pool(number) else { return 0 };
        let mut book = pool.book();
        let page = book.page();
        let before = book.stats().pages;
        book.give_back(usize::MAX);
        pool.work.notify_all();
        let end = Instant::now() + Duration::from_millis(wait);
        while book.stats().pages > book.stats().wanted && Instant::now() < end {
            book = pool.news.wait_for(book, LOOK);
        }
        before.saturating_sub(book.stats().pages) as u64 * page
    })
}

/// Writes the figures of a pool in bytes: held, wanted by tensors, mapped ahead or still to be unmapped, free, the
/// limit (0: none). 0, or -1 if there is no such pool.
///
/// # Safety
/// `out` is valid for five writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_elastic_stats(number: i64, out: *mut u64) -> i32 {
    let found = guarded(None, || {
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
    });
    let Some(values) = found else { return -1 };
    for (at, value) in values.into_iter().enumerate() {
        // SAFETY: the Python package passes an array of five numbers.
        unsafe { out.add(at).write(value) };
    }
    0
}

/// Number of the calling thread's driver calls through this library.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_driver_entries() -> u64 {
    gapless_cuda::device::entries()
}

/// Writes the bytes that the elastic pools of a card hold, and the part of them that no tensor wants.
///
/// # Safety
/// `out` is valid for two writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_elastic_held(device: i32, out: *mut u64) {
    let (held, spare) = if state::is_forked() { (0, 0) } else { guarded((0, 0), || figures(device)) };
    // SAFETY: the Python package passes an array of two numbers.
    unsafe {
        out.write(held);
        out.add(1).write(spare);
    }
}
