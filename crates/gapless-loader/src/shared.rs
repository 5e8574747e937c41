//! What the threads of one loading share: its jobs, its settings, and what was done so far.

use crate::catalogue::Catalogue;
use crate::error::LoadError;
use crate::file::Reading;
use crate::plan::Job;
use gapless_weights::pace::Pace;
use gapless_weights::patience::Patience;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Where the bytes go, and with how many threads.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// The CUDA device, or -1 for host memory.
    pub device: i32,
    /// 0: as many as the files want. To host memory 8 if they are cold, and else as many as there are cores, but at
    /// most 8; to a card 6, or as many as there are cores, but at most `cuda::THREADS`.
    pub threads: u32,
    /// The stream whose earlier work the loading must follow: memory that its allocator hands out may still be in use.
    pub stream: u64,
    /// Memory on the device for packed chunks: `cuda::STAGING` bytes for each thread. 0: the host decodes them.
    pub staging: u64,
    /// Bytes of files that are read in a second, at most. 0: no limit.
    pub limit_rate: u64,
    /// Bytes of a job that copies bytes as they are. 0: the usual.
    pub piece: u64,
    /// Bytes of a window of a mapped file. 0: the usual.
    pub window: u64,
    /// Milliseconds that a read is tried again, or waited for. 0: the usual.
    pub timeout: u32,
    /// How bytes are read and copied: bits of `ways`.
    pub ways: u32,
    /// Threads that the staging memory is for; 0 where `threads` says it.
    pub staged: u32,
}

/// How bytes are read and copied.
pub mod ways {
    /// Cached bytes go to a card from the mapped file, which is pinned a window at a time: no CPU copies them.
    pub const MAPPED: u32 = 1;
    /// The ring is memory in huge pages that is pinned, instead of memory of the driver.
    pub const HUGE: u32 = 2;
    /// Pinned memory, streams and the kernel are kept for the next loading.
    pub const KEPT: u32 = 4;
    /// Cold files are read through the page cache: processes that want the same bytes read them once.
    pub const CACHED: u32 = 8;
    /// Direct reads do not use io_uring.
    pub const THREADS: u32 = 16;
}

impl Settings {
    pub fn has(&self, way: u32) -> bool {
        self.ways & way != 0
    }

    /// What a thread reads with.
    pub fn reading(&self) -> Reading {
        let patience = match self.timeout {
            0 => Patience::default(),
            milliseconds => Patience { timeout: Duration::from_millis(u64::from(milliseconds)) },
        };
        Reading::new(patience, !self.has(ways::CACHED), !self.has(ways::THREADS))
    }
}

/// What was done so far.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of tensors: given, and wanted.
    pub done: u64,
    pub total: u64,
    /// Bytes of files that were read, and how many of them past the page cache.
    pub read: u64,
    pub cold: u64,
    /// Chunks that the card decoded, and those that the host did.
    pub on_card: u64,
    pub on_host: u64,
    /// Bytes that a card copied from the mapped file, and bytes that were read by io_uring.
    pub mapped: u64,
    pub queued: u64,
}

/// What the threads share.
#[derive(Debug)]
pub struct Shared {
    pub catalogue: Arc<Catalogue>,
    jobs: Vec<Job>,
    next: AtomicUsize,
    /// At least 1.
    threads: usize,
    pub done: AtomicU64,
    pub on_card: AtomicU64,
    pub on_host: AtomicU64,
    pub mapped: AtomicU64,
    pub settings: Settings,
    pace: Option<Pace>,
    stop: AtomicBool,
    pub(crate) error: Mutex<Option<LoadError>>,
    pub(crate) running: Mutex<usize>,
    pub(crate) ended: Condvar,
}

pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// Jobs for `threads` threads.
    pub(crate) fn new(
        catalogue: Arc<Catalogue>,
        jobs: Vec<Job>,
        threads: usize,
        settings: Settings,
    ) -> Shared {
        Shared {
            catalogue,
            jobs,
            next: AtomicUsize::new(0),
            threads: threads.max(1),
            done: AtomicU64::new(0),
            on_card: AtomicU64::new(0),
            on_host: AtomicU64::new(0),
            mapped: AtomicU64::new(0),
            settings,
            pace: (settings.limit_rate > 0).then(|| Pace::new(settings.limit_rate)),
            stop: AtomicBool::new(false),
            error: Mutex::new(None),
            running: Mutex::new(threads),
            ended: Condvar::new(),
        }
    }

    /// The next jobs, up to `most` of them, and fewer towards the end: no thread has much to do when the others are
    /// done. Empty where all are taken, or the loading ends early.
    pub fn take(&self, most: usize) -> &[Job] {
        gapless_threads::point("load");
        if self.is_over() {
            return &[];
        }
        let left = self.jobs.len().saturating_sub(self.next.load(Ordering::Relaxed));
        let count = most.min(left / self.threads / 2).max(1);
        let first = self.next.fetch_add(count, Ordering::Relaxed).min(self.jobs.len());
        &self.jobs[first..(first + count).min(self.jobs.len())]
    }

    /// Waits until so many bytes may be read.
    pub fn pace(&self, bytes: usize) {
        if let Some(pace) = &self.pace {
            pace.wait(bytes as u64, || self.is_over());
        }
    }

    pub fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Keeps the first error and ends the others.
    pub fn fail(&self, error: LoadError) {
        locked(&self.error).get_or_insert(error);
        self.stop.store(true, Ordering::Relaxed);
    }

    pub fn damaged(&self, job: &Job, damage: gapless_weights::stream::StreamError) -> LoadError {
        let reader = &self.catalogue.shards[job.shard].reader;
        gapless_weights::Error::Damaged {
            path: reader.input.path.clone(),
            tensor: reader.header.tensors[job.index].name.clone(),
            damage,
        }
        .into()
    }
}
