//! One thread's jobs: those that it reads into its ring, and those that it copies from windows of the mapped file.

use super::card::Card;
use super::packed::{self, Given};
use super::pinned::SLOTS;
use super::ring::Ring;
use super::window::{self, Windows};
use crate::error::Result;
use crate::file::Reading;
use crate::host::Decoding;
use crate::plan::{JOB, Job, Work};
use crate::shared::{Shared, ways};
use std::ops::Range;
use std::sync::atomic::Ordering;

/// The most bytes of a window that lie between jobs: directories of packed tensors.
const BETWEEN: u64 = 1 << 20;

/// One thread: its ring, its windows, and the number of the next slot.
struct Worker<'a> {
    shared: &'a Shared,
    windows: Windows,
    ring: Ring<'a>,
    slot: usize,
    given: [Given<'a>; SLOTS],
    decoding: Decoding,
    reading: Reading,
    is_mapped: bool,
}

impl Drop for Worker<'_> {
    fn drop(&mut self) {
        self.windows.end(&self.ring);
    }
}

/// Takes jobs until there are none. Returns after the last copy and kernel.
pub fn work(shared: &Shared, card: &Card, thread: usize) -> Result<()> {
    let _current = card.current()?;
    let _relaxed = card.driver.relaxed();
    let mut worker = Worker {
        shared,
        windows: Windows::default(),
        ring: Ring::new(card, thread),
        slot: 0,
        given: [const { None }; SLOTS],
        decoding: Decoding::default(),
        reading: shared.settings.reading(),
        is_mapped: shared.settings.has(ways::MAPPED),
    };
    let window = super::window_jobs(&shared.settings);
    loop {
        let jobs = shared.take(if worker.is_mapped { window } else { 1 });
        if jobs.is_empty() {
            break;
        }
        if !worker.is_mapped || !worker.map(jobs)? {
            jobs.iter().try_for_each(|job| worker.read(job))?;
        }
    }
    for slot in 0..worker.ring.slots.len() {
        let worker = &mut worker;
        packed::settle(shared, &mut worker.ring, slot, &mut worker.given[slot])?;
    }
    let last = worker.ring.hand_over()?;
    worker.ring.wait(last)
}

impl<'a> Worker<'a> {
    /// The next slot. The card does not use it any more.
    fn next(&mut self, is_plain: bool) -> Result<usize> {
        self.ring.pin(is_plain)?;
        let slot = self.slot;
        self.slot = (slot + 1) % SLOTS;
        packed::settle(self.shared, &mut self.ring, slot, &mut self.given[slot])?;
        Ok(slot)
    }

    fn read(&mut self, job: &'a Job) -> Result<()> {
        match &job.work {
            Work::Plain { .. } => self.plain(job),
            Work::Chunks { .. } => self.chunks(job),
        }
    }

    fn chunks(&mut self, job: &'a Job) -> Result<()> {
        let slot = self.next(false)?;
        self.shared.pace(job.length);
        let chunks =
            packed::read(self.shared, &mut self.ring, slot, job, &mut self.decoding, &mut self.reading)?;
        self.given[slot] = (!chunks.is_empty()).then_some((job, chunks));
        self.ring.hand_over_slot(slot)
    }

    fn plain(&mut self, job: &Job) -> Result<()> {
        let Work::Plain { target, sum } = &job.work else { return Ok(()) };
        let shard = &self.shared.catalogue.shards[job.shard];
        for begin in (0..job.length).step_by(JOB) {
            let length = JOB.min(job.length - begin);
            let slot = self.next(true)?;
            self.shared.pace(length);
            let (_, mut read, _) = self.ring.slots[slot].parts();
            let input = &shard.reader.input;
            let at = shard.cached.read(input, job.at + begin as u64, length, &mut read, &mut self.reading)?;
            let bytes = &read.shared()[at..at + length];
            if let Some((sum, part)) = sum {
                let is_last = begin + length == job.length;
                sum.add(*part, bytes, is_last, || self.shared.is_over())
                    .map_err(|damage| self.shared.damaged(job, damage))?;
            }
            // SAFETY: pinned bytes of the slot, which stays unchanged until its ticket is done.
            unsafe { self.ring.copy(*target + begin as u64, bytes.as_ptr(), length) };
            self.ring.hand_over_slot(slot)?;
            self.shared.done.fetch_add(length as u64, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Copies jobs from one window over all of them; jobs that need the CPU are read. False if there is no window.
    fn map(&mut self, jobs: &'a [Job]) -> Result<bool> {
        let Some((shard, range)) = self.span(jobs) else { return Ok(false) };
        let shard = &self.shared.catalogue.shards[shard];
        self.is_mapped = self.windows.open(&self.ring, &shard.reader.input, &range)?;
        if !self.is_mapped {
            return Ok(false);
        }
        for job in jobs {
            let is_copied = match &job.work {
                Work::Plain { target, sum: None } => {
                    self.shared.pace(job.length);
                    self.windows.copy(&mut self.ring, job.at, job.length, *target)?;
                    self.shared.done.fetch_add(job.length as u64, Ordering::Relaxed);
                    true
                }
                // The CPU must compute a checksum over several jobs.
                Work::Plain { sum: Some(_), .. } => false,
                Work::Chunks { .. } => self.map_chunks(job)?,
            };
            if is_copied {
                shard.cached.read.fetch_add(job.length as u64, Ordering::Relaxed);
                self.shared.mapped.fetch_add(job.length as u64, Ordering::Relaxed);
            } else {
                self.read(job)?;
            }
        }
        self.windows.close(&mut self.ring)?;
        Ok(true)
    }

    /// Copies a job's chunks from the window to the staging area, and has them decoded there. False if some need the
    /// CPU.
    fn map_chunks(&mut self, job: &'a Job) -> Result<bool> {
        if self.ring.card.shared() == 0 {
            return Ok(false);
        }
        let slot = self.next(false)?;
        let described = packed::describe(self.shared, &self.ring, slot, job, &self.reading)?;
        let Some((chunks, room)) = described else { return Ok(false) };
        self.shared.pace(job.length);
        let at = &self.ring.slots[slot];
        let (heads, staging, bytes) = (at.front(0), at.staging, at.bytes_on_card());
        let (heads, length) = (heads.as_ptr(), heads.len());
        // SAFETY: pinned descriptors of the slot, which stays unchanged until its ticket is done.
        unsafe { self.ring.copy(staging, heads, length) };
        self.windows.copy(&mut self.ring, job.at, job.length, bytes)?;
        self.ring.decode(slot, chunks.len(), room);
        packed::count(self.shared, job, chunks.len());
        self.given[slot] = Some((job, chunks));
        self.ring.hand_over_slot(slot)?;
        Ok(true)
    }

    /// The shard and the range of jobs that one window can show, if they are close together and cached.
    fn span(&self, jobs: &[Job]) -> Option<(usize, Range<u64>)> {
        let (first, last) = (jobs.first()?, jobs.last()?);
        let range = first.at..last.at + last.length as u64;
        let bytes: u64 = jobs.iter().map(|job| job.length as u64).sum();
        let is_close = jobs.iter().all(|job| job.shard == first.shard)
            && jobs.is_sorted_by_key(|job| job.at)
            && range.end - range.start <= bytes + BETWEEN;
        let is_summed = |job: &Job| matches!(&job.work, Work::Plain { sum: Some(_), .. });
        if !is_close || bytes < window::LEAST || jobs.iter().all(is_summed) {
            return None;
        }
        let shard = &self.shared.catalogue.shards[first.shard];
        let length = (range.end - range.start) as usize;
        let is_cold = shard.cached.is_cold(&shard.reader.input, range.start, length, &self.reading);
        (!is_cold).then_some((first.shard, range))
    }
}
