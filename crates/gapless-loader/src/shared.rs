//! The state that the threads of one loading share: its jobs, its settings, and its progress.

use crate::catalogue::Catalogue;
use crate::error::LoadError;
use crate::file::Reading;
use crate::plan::Job;
use gapless_weights::pace::Pace;
use gapless_weights::patience::Patience;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The target device, the number of threads, and the ways to read and copy.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// The CUDA device, or -1 for host memory.
    pub device: i32,
    /// 0: as many as the files need. To host memory 8 if they are cold, else as many as there are cores, but at most 8.
    /// To a card 6 if they are cold, else as many as there are cores, but at most `cuda::THREADS`.
    pub threads: u32,
    /// The stream whose earlier work the loading must follow, because memory from its allocator may still be in use.
    pub stream: u64,
    /// Memory on the device for packed chunks: `cuda::STAGING` bytes for each thread. 0: the host decodes them.
    pub staging: u64,
    /// The most bytes of files to read in a second; 0: no limit.
    pub limit_rate: u64,
    /// Bytes of a job that copies bytes as they are; 0: the default.
    pub piece: u64,
    /// Bytes of a window of a mapped file; 0: the default.
    pub window: u64,
    /// Milliseconds that a read is waited for or tried again; 0: the default.
    pub timeout: u32,
    /// Ways to read and copy bytes: bits of `ways`.
    pub ways: u32,
    /// Threads that the staging memory is for; 0: as many as `threads`.
    pub staged: u32,
}

/// Ways to read and copy bytes.
pub mod ways {
    /// Cached bytes go to a card from the mapped file, which is pinned a window at a time, so that no CPU copies them.
    pub const MAPPED: u32 = 1;
    /// The ring is memory in huge pages that is pinned, instead of the driver's memory.
    pub const HUGE: u32 = 2;
    /// Pinned memory, streams and the kernel are kept for the next loading.
    pub const KEPT: u32 = 4;
    /// Cold files are read through the page cache, so that processes which want the same bytes read them once.
    pub const CACHED: u32 = 8;
    /// Direct reads do not use io_uring.
    pub const THREADS: u32 = 16;
}

impl Settings {
    pub fn has(&self, way: u32) -> bool {
        self.ways & way != 0
    }

    /// The settings and queue for one thread's reads.
    pub fn reading(&self) -> Reading {
        let patience = match self.timeout {
            0 => Patience::default(),
            milliseconds => Patience { timeout: Duration::from_millis(u64::from(milliseconds)) },
        };
        Reading::new(patience, !self.has(ways::CACHED), !self.has(ways::THREADS))
    }
}

/// The progress of a loading.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of tensors: written, and wanted.
    pub done: u64,
    pub total: u64,
    /// Bytes of files that were read, and the part of them past the page cache.
    pub read: u64,
    pub cold: u64,
    /// Chunks that the card decoded, and chunks that the host decoded.
    pub on_card: u64,
    pub on_host: u64,
    /// Bytes that a card copied from the mapped file, and bytes that were read by io_uring.
    pub mapped: u64,
    pub queued: u64,
}

/// The state that the threads share.
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

    /// The next jobs, up to `most` of them. Towards the end fewer, so that no thread has much to do when the others are
    /// done. Empty if all are taken, or if the loading ends early.
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

    /// Waits until the rate allows to read this many bytes.
    pub fn pace(&self, bytes: usize) {
        if let Some(pace) = &self.pace {
            pace.wait(bytes as u64, || self.is_over());
        }
    }

    pub fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Keeps the first error, and ends the loading.
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
