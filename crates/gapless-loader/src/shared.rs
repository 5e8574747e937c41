//! What the threads of one loading share: its jobs, its settings, and what was done so far.

use crate::catalogue::Catalogue;
use crate::error::LoadError;
use crate::plan::Job;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Where the bytes go, and with how many threads.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// The CUDA device, or -1 for host memory.
    pub device: i32,
    /// At least 1.
    pub threads: u32,
    /// The stream whose earlier work the loading must follow: memory that its allocator hands out may still be in use.
    pub stream: u64,
    /// Memory on the device for packed chunks: `threads * cuda::STAGING` bytes. 0: chunks are decoded on the host.
    pub staging: u64,
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
}

/// What the threads share.
#[derive(Debug)]
pub struct Shared {
    pub catalogue: Arc<Catalogue>,
    jobs: Vec<Job>,
    next: AtomicUsize,
    pub done: AtomicU64,
    pub on_card: AtomicU64,
    pub on_host: AtomicU64,
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
    pub(crate) fn new(catalogue: Arc<Catalogue>, jobs: Vec<Job>, threads: usize) -> Shared {
        Shared {
            catalogue,
            jobs,
            next: AtomicUsize::new(0),
            done: AtomicU64::new(0),
            on_card: AtomicU64::new(0),
            on_host: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            error: Mutex::new(None),
            running: Mutex::new(threads),
            ended: Condvar::new(),
        }
    }

    /// The next job; none where all are taken, or the loading ends early.
    pub fn take(&self) -> Option<&Job> {
        if self.is_over() {
            return None;
        }
        self.jobs.get(self.next.fetch_add(1, Ordering::Relaxed))
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
