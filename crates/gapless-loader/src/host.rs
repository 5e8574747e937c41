//! Jobs whose target is host memory: bytes are read, or chunks decoded, straight to their target.
//!
//! Cold bytes are read without a copy if the target has the same offset in its sector as the bytes in the file.
//! Otherwise they go through a buffer.

use crate::error::Result;
use crate::file::{Buffer, PAGE, Reading};
use crate::plan::{JOB, Job, Piece, Work};
use crate::shared::Shared;
use gapless_weights::codec::{Decoder, Kind, Path as Instructions};
use gapless_weights::stream::{Directory, StreamError};
use std::ops::Range;
use std::sync::atomic::Ordering;

/// Page-aligned memory.
#[derive(Debug)]
pub struct Pages {
    at: *mut u8,
    layout: std::alloc::Layout,
}

impl Pages {
    /// `None` if the host does not have that much memory.
    pub fn new(length: usize) -> Option<Pages> {
        let layout = std::alloc::Layout::from_size_align(length.max(PAGE), PAGE).ok()?;
        // SAFETY: the layout has a size above zero.
        let at = unsafe { std::alloc::alloc_zeroed(layout) };
        // The value exists only if there is memory, because dropping it frees the memory.
        (!at.is_null()).then(|| Pages { at, layout })
    }

    pub fn buffer(&mut self) -> Buffer {
        // SAFETY: the memory lives as long as this value, and each user keeps the buffer no longer than the value.
        unsafe { Buffer::over(self.at, self.layout.size()) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: `new` allocated the memory with this layout.
        unsafe { std::alloc::dealloc(self.at, self.layout) }
    }
}

/// One thread's decoder, kept while the kind of streams stays the same, and room for a chunk of which a part is wanted.
#[derive(Debug, Default)]
pub struct Decoding {
    decoder: Option<(Kind, Decoder)>,
    values: Vec<u8>,
}

impl Decoding {
    /// Decodes one chunk that was checked. With `out`, to it; otherwise returns the wanted part of its values.
    pub fn chunk(
        &mut self,
        directory: &Directory,
        chunk: usize,
        bytes: &[u8],
        wanted: &Range<u64>,
        out: Option<&mut [u8]>,
    ) -> std::result::Result<&[u8], StreamError> {
        let decoder = match &mut self.decoder {
            Some((known, decoder)) if *known == directory.kind => decoder,
            other => {
                &mut other
                    .insert((directory.kind, Decoder::new(directory.kind, Instructions::best(), false)))
                    .1
            }
        };
        let held = directory.range(chunk);
        let fail = |damage| StreamError::Chunk { chunk, bytes: held.clone(), damage };
        if let Some(out) = out {
            decoder.chunk(bytes, out).map_err(fail)?;
            return Ok(&[]);
        }
        self.values.resize((held.end - held.start) as usize, 0);
        decoder.chunk(bytes, &mut self.values).map_err(fail)?;
        let part = part(&held, wanted);
        Ok(&self.values[(part.start - held.start) as usize..(part.end - held.start) as usize])
    }
}

/// The wanted bytes of a chunk.
pub fn part(held: &Range<u64>, wanted: &Range<u64>) -> Range<u64> {
    held.start.max(wanted.start)..held.end.min(wanted.end)
}

/// Threads that read a cold file: so many requests are under way, regardless of the number of cores.
const READERS: usize = 8;
/// A huge page.
const HUGE: u64 = 2 << 20;

/// Number of threads of a loading to host memory whose caller does not set it.
pub fn threads(is_cold: bool) -> usize {
    if is_cold { READERS } else { cores().min(READERS) }
}

/// Cores that this process may use.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, |cores| cores.get())
}

/// Asks for huge pages under the targets: new memory then costs one fault for 2 MiB. Only whole huge pages within a
/// target are asked for, so that no memory beside it is used.
pub fn advise(pieces: &[Piece]) {
    #[cfg(target_os = "linux")]
    for piece in pieces {
        let first = piece.target.next_multiple_of(HUGE);
        let last = (piece.target + (piece.end - piece.begin)) / HUGE * HUGE;
        if first < last {
            // SAFETY: advice on targets, which are valid memory (`Load::start`). It changes no byte. If the kernel
            // refuses it, pages are small.
            unsafe {
                libc::madvise(first as *mut libc::c_void, (last - first) as usize, libc::MADV_HUGEPAGE);
            }
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = pieces;
}

/// Takes jobs until there are none.
pub fn work(shared: &Shared) -> Result<()> {
    let no_memory =
        || crate::error::LoadError::Argument("the host has no memory for a reader's buffer".into());
    let mut pages = Pages::new(JOB + 2 * PAGE).ok_or_else(no_memory)?;
    let mut buffer = pages.buffer();
    let mut decoding = Decoding::default();
    let mut reading = shared.settings.reading();
    while let Some(job) = shared.take(1).first() {
        if job.length + 2 * PAGE > buffer.shared().len() {
            pages = Pages::new(job.length + 2 * PAGE).ok_or_else(no_memory)?;
            buffer = pages.buffer();
        }
        shared.pace(job.length);
        one(shared, job, &mut buffer, &mut decoding, &mut reading)?;
    }
    Ok(())
}

fn one(
    shared: &Shared,
    job: &Job,
    buffer: &mut Buffer,
    decoding: &mut Decoding,
    reading: &mut Reading,
) -> Result<()> {
    let shard = &shared.catalogue.shards[job.shard];
    match &job.work {
        Work::Plain { target, sum } => {
            // SAFETY: the target has the piece's bytes, and only this loading uses it (`Load::start`). Jobs of one
            // piece do not overlap.
            let out = unsafe { std::slice::from_raw_parts_mut(*target as *mut u8, job.length) };
            let input = &shard.reader.input;
            if !shard.cached.is_cold(input, job.at, job.length, reading) {
                shard.cached.read_plain(input, job.at, out, reading)?;
            } else if !shard.cached.read_in_place(input, job.at, out, buffer, reading)? {
                let at = shard.cached.read(input, job.at, job.length, buffer, reading)?;
                out.copy_from_slice(&buffer.shared()[at..at + job.length]);
            }
            if let Some((sum, part)) = sum {
                sum.add(*part, out, true, || shared.is_over())
                    .map_err(|damage| shared.damaged(job, damage))?;
            }
            shared.done.fetch_add(job.length as u64, Ordering::Relaxed);
        }
        Work::Chunks { directory, chunks, wanted, target } => {
            let mut at = shard.cached.read(&shard.reader.input, job.at, job.length, buffer, reading)?;
            for chunk in chunks.clone() {
                let bytes = &buffer.shared()[at..at + directory.entries[chunk].length];
                at += bytes.len();
                let held = directory.range(chunk);
                let part = part(&held, wanted);
                let length = (part.end - part.start) as usize;
                // SAFETY: the target has the piece's bytes, and only this loading uses it (`Load::start`). Chunks of
                // one piece do not overlap.
                let out = unsafe {
                    std::slice::from_raw_parts_mut((*target + (part.start - wanted.start)) as *mut u8, length)
                };
                let is_whole = part == held;
                let done = directory.check(chunk, bytes).and_then(|()| {
                    let values = decoding.chunk(
                        directory,
                        chunk,
                        bytes,
                        wanted,
                        if is_whole { Some(&mut *out) } else { None },
                    )?;
                    if !is_whole {
                        out.copy_from_slice(values);
                    }
                    Ok(())
                });
                done.map_err(|damage| shared.damaged(job, damage))?;
                shared.done.fetch_add(length as u64, Ordering::Relaxed);
                shared.on_host.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_that_the_host_does_not_have_are_none() {
        assert!(Pages::new(1 << 62).is_none(), "no machine has that");
        assert!(Pages::new(usize::MAX).is_none(), "no layout has that size");
        let mut there = Pages::new(1).expect("a page");
        assert_eq!(there.buffer().shared().len(), PAGE);
    }
}
