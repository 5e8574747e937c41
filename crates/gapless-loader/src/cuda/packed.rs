//! Chunks of a packed tensor: described for the kernel, which checks and decodes them, or checked and decoded here.

use super::chunk::{CHUNK, Chunk, Room};
use super::ring::{DECODED, MOST_CHUNKS, READ, Ring};
use crate::error::Result;
use crate::file::{Buffer, PAGE, Reading};
use crate::host::{Decoding, Pages, part};
use crate::plan::{Job, Work};
use crate::shared::Shared;
use gapless_weights::codec::{Damage, HEADER, stored};
use gapless_weights::stream::{Directory, StreamError};
use std::ops::Range;
use std::sync::atomic::Ordering;

const ESCAPES: Damage = Damage("a cascade has other escapes than its header counts");
/// The bit with which decode.cu marks a chunk whose checksum is wrong.
const WRONG_SUM: u32 = 1 << 31;

/// The kernel's work in a slot: the job, and the chunk of each descriptor.
pub(super) type Given<'a> = Option<(&'a Job, Vec<usize>)>;

/// Waits for a slot. An error if the kernel found one of its chunks damaged.
pub(super) fn settle(shared: &Shared, ring: &mut Ring<'_>, slot: usize, given: &mut Given<'_>) -> Result<()> {
    let error = ring.settle(slot)?;
    let Some((job, chunks)) = given.take() else { return Ok(()) };
    let Work::Chunks { directory, .. } = &job.work else { return Ok(()) };
    if error == 0 {
        return Ok(());
    }
    let number = (error & !WRONG_SUM) as usize;
    let chunk = number.checked_sub(1).and_then(|number| chunks.get(number)).copied().unwrap_or_default();
    let bytes = directory.range(chunk);
    let damage = match error & WRONG_SUM {
        0 => StreamError::Chunk { chunk, bytes, damage: ESCAPES },
        _ => StreamError::Checksum { chunk, bytes },
    };
    Err(shared.damaged(job, damage))
}

/// The chunks of a job that the kernel decodes.
struct Described {
    heads: Buffer,
    /// The chunk of each descriptor.
    chunks: Vec<usize>,
    room: Room,
    /// Shared memory that a block may have; 0 if the kernel decodes nothing.
    most: usize,
}

impl Described {
    /// Adds a chunk that begins with `head` and will be at `source`. False if the kernel cannot decode it.
    fn add(
        &mut self,
        directory: &Directory,
        chunk: usize,
        head: &[u8],
        source: u64,
        (wanted, target): (&Range<u64>, u64),
    ) -> bool {
        if self.most == 0 || self.chunks.len() >= MOST_CHUNKS {
            return false;
        }
        let (held, width) = (directory.range(chunk), directory.kind.width() as u64);
        let part = part(&held, wanted);
        let is_whole_values =
            (part.start - held.start).is_multiple_of(width) && part.end.is_multiple_of(width);
        let values = ((part.start - held.start) / width) as u32..((part.end - held.start) / width) as u32;
        // The address for the chunk's first value, even if that value is not wanted.
        let first = (target + (part.start - wanted.start)).wrapping_sub(part.start - held.start);
        let entry = &directory.entries[chunk];
        let found = Chunk::new(directory.kind, head, (entry.length, entry.checksum), source, first, &values);
        let Some((described, needs)) = found.filter(|_| is_whole_values) else { return false };
        if !self.room.or(needs).fits(self.most)
            || u64::from(described.values) * width != held.end - held.start
        {
            return false;
        }
        let from = self.chunks.len() * CHUNK;
        self.heads.bytes()[from..from + CHUNK].copy_from_slice(&described.to_bytes());
        self.chunks.push(chunk);
        self.room = self.room.or(needs);
        true
    }
}

/// Describes all chunks of a job, whose bytes will be in the slot's staging area. Reads only their headers. `None` if
/// the kernel cannot decode one of them.
pub(super) fn describe(
    shared: &Shared,
    ring: &Ring<'_>,
    slot: usize,
    job: &Job,
    reading: &Reading,
) -> Result<Option<(Vec<usize>, Room)>> {
    let Work::Chunks { directory, chunks, wanted, target } = &job.work else { return Ok(None) };
    if job.length > READ {
        return Ok(None);
    }
    let input = &shared.catalogue.shards[job.shard].reader.input;
    let (heads, ..) = ring.slots[slot].parts();
    let mut described =
        Described { heads, chunks: Vec::new(), room: Room::default(), most: ring.card.shared() };
    let (mut at, mut head) = (0, [0; HEADER]);
    for chunk in chunks.clone() {
        let length = directory.entries[chunk].length;
        if length < HEADER {
            return Ok(None);
        }
        input.read_patiently(job.at + at as u64, &mut head, reading.patience)?;
        let source = ring.slots[slot].bytes_on_card() + at as u64;
        if !described.add(directory, chunk, &head, source, (wanted, *target)) {
            return Ok(None);
        }
        at += length;
    }
    Ok(Some((described.chunks, described.room)))
}

/// Counts a job whose chunks the kernel decodes, all of them.
pub(super) fn count(shared: &Shared, job: &Job, chunks: usize) {
    let Work::Chunks { directory, chunks: all, wanted, .. } = &job.work else { return };
    let given = all.clone().map(|chunk| part(&directory.range(chunk), wanted));
    shared.done.fetch_add(given.map(|part| part.end - part.start).sum(), Ordering::Relaxed);
    shared.on_card.fetch_add(chunks as u64, Ordering::Relaxed);
}

/// Reads a job's chunks into a slot, and has them decoded. Returns the chunks for the kernel, in the order of their
/// descriptors.
pub(super) fn read(
    shared: &Shared,
    ring: &mut Ring<'_>,
    slot: usize,
    job: &Job,
    decoding: &mut Decoding,
    reading: &mut Reading,
) -> Result<Vec<usize>> {
    let Work::Chunks { directory, chunks, wanted, target } = &job.work else { return Ok(Vec::new()) };
    let shard = &shared.catalogue.shards[job.shard];
    let (heads, mut read, mut decoded) = ring.slots[slot].parts();
    // A chunk is longer than a slot only in files that other programs wrote.
    let mut own = (job.length + 2 * PAGE > READ).then(|| Pages::new(job.length + 2 * PAGE)).flatten();
    if let Some(own) = &mut own {
        read = own.buffer();
    }
    let mut at = shard.cached.read(&shard.reader.input, job.at, job.length, &mut read, reading)?;
    let end = at + job.length;
    let most = if own.is_some() { 0 } else { ring.card.shared() };
    let mut described = Described { heads, chunks: Vec::new(), room: Room::default(), most };
    let (mut filled, mut given) = (0, 0);
    for chunk in chunks.clone() {
        let bytes = &read.shared()[at..at + directory.entries[chunk].length];
        let source = ring.slots[slot].bytes_on_card() + at as u64;
        at += bytes.len();
        let held = directory.range(chunk);
        let part = part(&held, wanted);
        let length = (part.end - part.start) as usize;
        let place = target + (part.start - wanted.start);
        given += length as u64;
        if described.add(directory, chunk, bytes, source, (wanted, *target)) {
            continue;
        }
        directory.check(chunk, bytes).map_err(|damage| shared.damaged(job, damage))?;
        shared.on_host.fetch_add(1, Ordering::Relaxed);
        if own.is_none()
            && let Some(values) = stored(directory.kind, bytes, (held.end - held.start) as usize)
        {
            let from = values + (part.start - held.start) as usize;
            // SAFETY: pinned bytes of the slot, which stays unchanged until its ticket is done.
            unsafe { ring.copy(place, bytes[from..from + length].as_ptr(), length) };
            continue;
        }
        let is_long = (held.end - held.start) as usize > DECODED;
        if !is_long && filled + length > DECODED {
            let ticket = ring.hand_over()?;
            ring.wait(ticket)?;
            filled = 0;
        }
        let values = decoding
            .chunk(directory, chunk, bytes, wanted, None)
            .map_err(|damage| shared.damaged(job, damage))?;
        if is_long {
            ring.copy_now(place, values)?;
        } else {
            decoded.bytes()[filled..filled + length].copy_from_slice(values);
            // SAFETY: pinned bytes of the slot. Room for decoded chunks is reused only after the ticket of this copy.
            unsafe { ring.copy(place, decoded.shared()[filled..filled + length].as_ptr(), length) };
            filled += length;
        }
    }
    let Described { chunks: on_card, room, .. } = described;
    if !on_card.is_empty() {
        let (staging, front) = (ring.slots[slot].staging, ring.slots[slot].front(end));
        let (front, length) = (front.as_ptr(), front.len());
        // SAFETY: pinned bytes of the slot, which stays unchanged until its ticket is done.
        unsafe { ring.copy(staging, front, length) };
        ring.decode(slot, on_card.len(), room);
        shared.on_card.fetch_add(on_card.len() as u64, Ordering::Relaxed);
    }
    shared.done.fetch_add(given, Ordering::Relaxed);
    Ok(on_card)
}
