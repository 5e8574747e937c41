//! One thread's jobs: read, check, copy; decode on the card or here.

use super::card::Card;
use super::chunk::{CHUNK, Chunk, Room};
use super::pinned::SLOTS;
use super::ring::{DECODED, HEADS, MOST_CHUNKS, READ, Ring};
use super::window::{self, Windows};
use crate::error::Result;
use crate::file::{PAGE, Reading};
use crate::host::{Decoding, part};
use crate::plan::{JOB, Job, Work};
use crate::shared::{Shared, ways};
use gapless_weights::codec::{Damage, stored};
use gapless_weights::stream::StreamError;
use std::sync::atomic::Ordering;

const ESCAPES: Damage = Damage("a cascade has other escapes than its header counts");

/// What the kernel works on in a slot: the job, and the chunk of each descriptor.
type Given<'a> = Option<(&'a Job, Vec<usize>)>;

/// One thread: its ring, its windows, and which slot is next.
struct Worker<'a> {
    shared: &'a Shared,
    // Dropped before the ring, whose stream they wait for.
    windows: Windows<'a>,
    ring: Ring<'a>,
    slot: usize,
    given: [Given<'a>; SLOTS],
    decoding: Decoding,
    reading: Reading,
    is_mapped: bool,
}

/// Takes jobs until there are none. Returns after the last copy and kernel.
pub fn work(shared: &Shared, card: &Card, thread: usize) -> Result<()> {
    let _current = card.current()?;
    let ring = Ring::new(card, thread)?;
    let mut worker = Worker {
        shared,
        windows: Windows::new(card, ring.stream),
        ring,
        slot: 0,
        given: [const { None }; SLOTS],
        decoding: Decoding::default(),
        reading: shared.settings.reading(),
        is_mapped: shared.settings.has(ways::MAPPED),
    };
    while let Some(job) = shared.take() {
        match &job.work {
            Work::Plain { .. } => worker.plain(job)?,
            Work::Chunks { .. } => worker.chunks(job)?,
        }
    }
    for slot in 0..worker.ring.slots.len() {
        settle(shared, &mut worker.ring, slot, &mut worker.given[slot])?;
    }
    worker.ring.sync()
}

impl<'a> Worker<'a> {
    /// The next slot, which the card does not use any more.
    fn next(&mut self, is_plain: bool) -> Result<usize> {
        self.ring.pin(is_plain)?;
        let slot = self.slot;
        self.slot = (slot + 1) % SLOTS;
        settle(self.shared, &mut self.ring, slot, &mut self.given[slot])?;
        Ok(slot)
    }

    fn chunks(&mut self, job: &'a Job) -> Result<()> {
        let slot = self.next(false)?;
        self.shared.pace(job.length);
        let chunks = packed(self.shared, &mut self.ring, slot, job, &mut self.decoding, &mut self.reading)?;
        self.given[slot] = (!chunks.is_empty()).then_some((job, chunks));
        self.ring.hand_over(slot)
    }

    fn plain(&mut self, job: &Job) -> Result<()> {
        let Work::Plain { target, sum } = &job.work else { return Ok(()) };
        let shard = &self.shared.catalogue.shards[job.shard];
        let input = &shard.reader.input;
        // A checksum is the CPU's work, and a cold range is not in the page cache.
        if self.is_mapped
            && sum.is_none()
            && job.length >= window::LEAST
            && !shard.cached.is_cold(input, job.at, job.length, &self.reading)
        {
            self.shared.pace(job.length);
            self.is_mapped = self.windows.copy(input, job.at, job.length, *target)?;
            if self.is_mapped {
                shard.cached.read.fetch_add(job.length as u64, Ordering::Relaxed);
                self.shared.mapped.fetch_add(job.length as u64, Ordering::Relaxed);
                self.shared.done.fetch_add(job.length as u64, Ordering::Relaxed);
                return Ok(());
            }
        }
        for begin in (0..job.length).step_by(JOB) {
            let length = JOB.min(job.length - begin);
            let slot = self.next(true)?;
            self.shared.pace(length);
            let (_, mut read, _) = self.ring.slots[slot].parts();
            let at = shard.cached.read(input, job.at + begin as u64, length, &mut read, &mut self.reading)?;
            let bytes = &read.shared()[at..at + length];
            if let Some((sum, part)) = sum {
                let is_last = begin + length == job.length;
                sum.add(*part, bytes, is_last, || self.shared.is_over())
                    .map_err(|damage| self.shared.damaged(job, damage))?;
            }
            self.ring.copy(*target + begin as u64, bytes)?;
            self.ring.hand_over(slot)?;
            self.shared.done.fetch_add(length as u64, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// Waits for a slot; an error where the kernel found one of its chunks damaged.
fn settle(shared: &Shared, ring: &mut Ring<'_>, slot: usize, given: &mut Given<'_>) -> Result<()> {
    let error = ring.settle(slot)? as usize;
    let Some((job, chunks)) = given.take() else { return Ok(()) };
    let Work::Chunks { directory, .. } = &job.work else { return Ok(()) };
    if error == 0 {
        return Ok(());
    }
    let chunk = chunks.get(error - 1).copied().unwrap_or_default();
    Err(shared.damaged(job, StreamError::Chunk { chunk, bytes: directory.range(chunk), damage: ESCAPES }))
}

/// The chunks of a job; gives those that the kernel decodes, in the order of their descriptors.
fn packed(
    shared: &Shared,
    ring: &mut Ring<'_>,
    slot: usize,
    job: &Job,
    decoding: &mut Decoding,
    reading: &mut Reading,
) -> Result<Vec<usize>> {
    let Work::Chunks { directory, chunks, wanted, target } = &job.work else { return Ok(Vec::new()) };
    let shard = &shared.catalogue.shards[job.shard];
    let (mut heads, mut read, mut decoded) = ring.slots[slot].parts();
    // A chunk that is longer than a slot: only a file that another program wrote has one.
    let mut own =
        (job.length + 2 * PAGE > READ).then(|| crate::host::Pages::new(job.length + 2 * PAGE)).flatten();
    if let Some(own) = &mut own {
        read = own.buffer();
    }
    let mut at = shard.cached.read(&shard.reader.input, job.at, job.length, &mut read, reading)?;
    let end = at + job.length;
    let shared_memory = if own.is_some() { 0 } else { ring.card.shared() };
    let staging = ring.slots[slot].staging;
    let (mut on_card, mut room, mut filled, mut given) = (Vec::new(), Room::default(), 0, 0);
    for chunk in chunks.clone() {
        let bytes = &read.shared()[at..at + directory.entries[chunk].length];
        let source = staging + (HEADS + at) as u64;
        at += bytes.len();
        directory.check(chunk, bytes).map_err(|damage| shared.damaged(job, damage))?;
        let held = directory.range(chunk);
        let part = part(&held, wanted);
        let length = (part.end - part.start) as usize;
        let place = target + (part.start - wanted.start);
        given += length as u64;
        if shared_memory > 0 && on_card.len() < MOST_CHUNKS {
            let width = directory.kind.width() as u64;
            let values = ((part.start - held.start) / width) as u32..((part.end - held.start) / width) as u32;
            // The address that the chunk's first value would have, wanted or not.
            let first = place.wrapping_sub(part.start - held.start);
            let is_whole_values =
                (part.start - held.start).is_multiple_of(width) && part.end.is_multiple_of(width);
            let found = Chunk::new(directory.kind, bytes, source, first, &values).filter(|_| is_whole_values);
            if let Some((described, needs)) = found
                && room.or(needs).fits(shared_memory)
                && u64::from(described.values) * width == held.end - held.start
            {
                let from = on_card.len() * CHUNK;
                heads.bytes()[from..from + CHUNK].copy_from_slice(&described.to_bytes());
                on_card.push(chunk);
                room = room.or(needs);
                continue;
            }
        }
        shared.on_host.fetch_add(1, Ordering::Relaxed);
        if own.is_none()
            && let Some(values) = stored(directory.kind, bytes, (held.end - held.start) as usize)
        {
            let from = values + (part.start - held.start) as usize;
            ring.copy(place, &bytes[from..from + length])?;
            continue;
        }
        let is_long = (held.end - held.start) as usize > DECODED;
        if !is_long && filled + length > DECODED {
            ring.sync()?;
            filled = 0;
        }
        let values = decoding
            .chunk(directory, chunk, bytes, wanted, None)
            .map_err(|damage| shared.damaged(job, damage))?;
        if is_long {
            // From memory that is not pinned: the driver has copied it when the stream is done.
            ring.copy(place, values)?;
            ring.sync()?;
        } else {
            decoded.bytes()[filled..filled + length].copy_from_slice(values);
            ring.copy(place, &decoded.shared()[filled..filled + length])?;
            filled += length;
        }
    }
    if !on_card.is_empty() {
        let slot = &ring.slots[slot];
        ring.copy(slot.staging, slot.front(end))?;
        ring.card.decode(slot.staging, on_card.len() as u32, room, slot.error() as u64, ring.stream)?;
        shared.on_card.fetch_add(on_card.len() as u64, Ordering::Relaxed);
    }
    shared.done.fetch_add(given, Ordering::Relaxed);
    Ok(on_card)
}
