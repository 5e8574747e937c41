//! A loading under way: threads that take jobs in order until there are none, one fails, or the caller cancels.

use crate::catalogue::Catalogue;
use crate::cuda::{self, Card};
use crate::error::{LoadError, Result};
use crate::host;
use crate::plan::{self, Piece};
use crate::shared::{Progress, Settings, Shared, locked};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Running,
    Done,
    Failed,
}

/// Counts a thread as ended, even if it panics.
struct Ending(Arc<Shared>);

impl Drop for Ending {
    fn drop(&mut self) {
        *locked(&self.0.running) -= 1;
        self.0.ended.notify_all();
    }
}

/// A loading. Dropping it cancels and waits: no thread writes to a target afterwards.
#[derive(Debug)]
pub struct Load {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    total: u64,
    /// Streams, pinned memory: kept until the threads have ended.
    card: Option<Arc<Card>>,
    finished: Option<bool>,
}

impl Load {
    /// Begins to fill the targets of `pieces`.
    ///
    /// # Safety
    /// Each target must have as many bytes as its piece, on the device of the settings, and the staging memory as many
    /// as the settings say. All of it must live until the loading has ended, and nothing else may use it meanwhile. The
    /// stream of the settings must exist.
    pub unsafe fn start(
        catalogue: &Arc<Catalogue>,
        pieces: &[Piece],
        settings: Settings,
        driver: Option<&std::ffi::CStr>,
    ) -> Result<Load> {
        let (jobs, total) = plan::jobs(catalogue, pieces, cuda::piece(&settings))?;
        let threads = match settings.threads as usize {
            0 => {
                let is_cold = catalogue.is_cold(&settings.reading());
                if settings.device < 0 { host::threads(is_cold) } else { cuda::threads(is_cold) }
            }
            given => given,
        };
        let staged = if settings.staged == 0 { usize::MAX } else { settings.staged as usize };
        let threads = threads.min(jobs.len().max(1)).min(staged);
        let card = match u32::try_from(settings.device) {
            Ok(device) => Some(Arc::new(Card::open(device, settings, threads, driver)?)),
            Err(_) => None,
        };
        if card.is_none() {
            host::advise(pieces);
        }
        let shared = Arc::new(Shared::new(Arc::clone(catalogue), jobs, threads, settings));
        let mut handles = Vec::with_capacity(threads);
        for number in 0..threads {
            let (ending, card) = (Ending(Arc::clone(&shared)), card.clone());
            let work = move || {
                let shared = &ending.0;
                let run = || match &card {
                    Some(card) => cuda::work(shared, card, number),
                    None => host::work(shared),
                };
                let result = catch_unwind(AssertUnwindSafe(run));
                if let Err(error) = result.unwrap_or_else(|panic| Err(LoadError::of_panic(&*panic))) {
                    shared.fail(error);
                }
            };
            match std::thread::Builder::new().name(format!("gapless-load-{number}")).spawn(work) {
                Ok(handle) => handles.push(handle),
                // Fewer threads can do the same work, but at least one must start. The closure's `Ending` was dropped.
                Err(_) if number > 0 => {}
                Err(error) => return Err(LoadError::Argument(format!("no thread can be started: {error}"))),
            }
        }
        Ok(Load { shared, threads: handles, total, card, finished: None })
    }

    /// Waits until the loading ends, at most `time`.
    pub fn wait(&mut self, time: Duration) -> State {
        let running = locked(&self.shared.running);
        let left = self.shared.ended.wait_timeout_while(running, time, |running| *running > 0);
        if *left.unwrap_or_else(PoisonError::into_inner).0 > 0 {
            return State::Running;
        }
        self.end();
        if locked(&self.shared.error).is_some() { State::Failed } else { State::Done }
    }

    /// Joins the threads, and checks that no file changed meanwhile.
    fn end(&mut self) {
        if self.finished.is_some() {
            return;
        }
        for thread in self.threads.drain(..) {
            // The thread turned a panic into an error.
            let _ = thread.join();
        }
        self.card = None;
        for shard in &self.shared.catalogue.shards {
            if let Err(error) = shard.reader.input.check_unchanged() {
                self.shared.fail(error.into());
            }
        }
        self.finished = Some(true);
    }

    pub fn progress(&self) -> Progress {
        let sum = |of: fn(&crate::file::Cached) -> &AtomicU64| {
            self.shared.catalogue.shards.iter().map(|shard| of(&shard.cached).load(Ordering::Relaxed)).sum()
        };
        Progress {
            done: self.shared.done.load(Ordering::Relaxed),
            total: self.total,
            read: sum(|cached| &cached.read),
            cold: sum(|cached| &cached.cold),
            on_card: self.shared.on_card.load(Ordering::Relaxed),
            on_host: self.shared.on_host.load(Ordering::Relaxed),
            mapped: self.shared.mapped.load(Ordering::Relaxed),
            queued: sum(|cached| &cached.queued),
        }
    }

    /// Ends the loading early; `wait` then returns an error.
    pub fn cancel(&self) {
        self.shared.fail(LoadError::Cancelled);
    }

    /// The error of a loading that failed.
    pub fn error(&self) -> Option<LoadError> {
        locked(&self.shared.error).take()
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        if self.finished.is_none() {
            self.cancel();
            self.end();
        }
    }
}
