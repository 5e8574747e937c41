//! The speed of the kernel if its input is on the card already. Only benchmarks have it: feature `bench`.

use super::card::Card;
use super::chunk::{CHUNK, Chunk, Room};
use super::driver::{self, Driver, Handle};
use super::queue::{Decode, Engine};
use crate::catalogue::Catalogue;
use crate::error::{LoadError, Result};
use crate::file::PAGE;
use crate::host::Pages;
use crate::plan::{self, JOB, Piece, Work};
use crate::shared::Settings;
use std::ffi::CStr;
use std::ptr::null_mut;

/// Results of a measurement.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Measured {
    /// Bytes of tensors that one pass writes, and bytes of chunks that it reads.
    pub given: u64,
    pub read: u64,
    /// Chunks that the kernel decodes, and chunks that it cannot decode.
    pub chunks: u64,
    pub left_out: u64,
    /// Seconds of one pass, the median of several.
    pub seconds: f64,
}

/// Chunks in the staging memory, and their descriptors.
struct Staged {
    heads: Vec<u8>,
    needs: Room,
    /// Bytes of staging memory that the chunks take.
    end: u64,
    measured: Measured,
}

/// Copies the chunks that the kernel decodes to the staging memory.
fn stage(
    card: &Card,
    catalogue: &Catalogue,
    pieces: &[Piece],
    settings: &Settings,
    room: u64,
    shared: usize,
) -> Result<Staged> {
    let mut pages = Pages::new(4 * JOB + 2 * PAGE).ok_or(LoadError::Argument("no host memory".into()))?;
    let (mut buffer, mut reading) = (pages.buffer(), settings.reading());
    let (mut heads, mut needs, mut at, mut measured) = (Vec::new(), Room::default(), 0, Measured::default());
    for job in plan::jobs(catalogue, pieces, JOB)?.0 {
        let Work::Chunks { directory, chunks, wanted, target } = &job.work else { continue };
        let shard = &catalogue.shards[job.shard];
        let from = shard.cached.read(&shard.reader.input, job.at, job.length, &mut buffer, &mut reading)?;
        if at + job.length as u64 > room {
            return Err(LoadError::Argument(format!("{room} bytes of staging memory are not enough")));
        }
        copy(card.driver, card.stream(), settings.staging + at, &buffer.shared()[from..from + job.length])?;
        let mut place = 0;
        for chunk in chunks.clone() {
            let bytes = &buffer.shared()[from + place..from + place + directory.entries[chunk].length];
            let source = settings.staging + at + place as u64;
            place += bytes.len();
            let held = directory.range(chunk);
            let values = 0..((held.end - held.start) / directory.kind.width() as u64) as u32;
            if held.start < wanted.start || held.end > wanted.end {
                measured.left_out += 1;
                continue;
            }
            let first = target + (held.start - wanted.start);
            let sum = (bytes.len(), directory.entries[chunk].checksum);
            match Chunk::new(directory.kind, bytes, sum, source, first, &values) {
                Some((chunk, need)) if needs.or(need).fits(shared) => {
                    heads.extend_from_slice(&chunk.to_bytes());
                    needs = needs.or(need);
                    measured.chunks += 1;
                    measured.given += held.end - held.start;
                    measured.read += bytes.len() as u64;
                }
                _ => measured.left_out += 1,
            }
        }
        at += (job.length as u64).next_multiple_of(64);
    }
    if measured.chunks == 0 || at + heads.len() as u64 > room {
        return Err(LoadError::Argument(
            "no chunk that the kernel decodes, or too little staging memory".into(),
        ));
    }
    debug_assert_eq!(heads.len(), measured.chunks as usize * CHUNK);
    Ok(Staged { heads, needs, end: at, measured })
}

fn sync(driver: Driver, stream: Handle) -> Result<()> {
    // SAFETY: the stream is the card's own.
    driver.check("cuStreamSynchronize", unsafe { (driver.stream_sync)(stream) })
}

fn copy(driver: Driver, stream: Handle, target: u64, bytes: &[u8]) -> Result<()> {
    // SAFETY: the bytes live until the wait; the target lies in the staging memory, which has room for them.
    let status = unsafe { (driver.to_card)(target, bytes.as_ptr().cast(), bytes.len(), stream) };
    driver.check("cuMemcpyHtoDAsync", status)?;
    sync(driver, stream)
}

/// Decodes all chunks of `pieces` that the kernel can, `passes` times, from `staging`, which has `room` bytes.
///
/// # Safety
/// As `Load::start`; the staging memory must have `room` bytes.
pub unsafe fn measure(
    catalogue: &Catalogue,
    pieces: &[Piece],
    settings: Settings,
    room: u64,
    passes: u32,
    library: Option<&CStr>,
) -> Result<Measured> {
    let card = Card::open(settings.device.max(0) as u32, settings, 1, library)?;
    let driver = card.driver;
    let _current = card.current()?;
    let shared = card.shared();
    if shared == 0 {
        return Err(LoadError::NoDriver("the kernel cannot be loaded, or there is no staging memory"));
    }
    let stream = card.stream();
    let Staged { heads, needs, end: at, mut measured } =
        stage(&card, catalogue, pieces, &settings, room, shared)?;
    copy(driver, stream, settings.staging + at, &heads)?;
    let mut error: *mut std::ffi::c_void = null_mut();
    let event = || -> Result<Handle> {
        let mut event = null_mut();
        // SAFETY: a pointer to a variable that lives through the call.
        driver.check("cuEventCreate", unsafe { (driver.event)(&raw mut event, driver::TIMED) })?;
        Ok(event)
    };
    // SAFETY: a pointer to a variable that lives through the call.
    driver.check("cuMemHostAlloc", unsafe { (driver.host_alloc)(&raw mut error, PAGE, driver::PORTABLE) })?;
    // SAFETY: a page that was just allocated.
    unsafe { error.cast::<u32>().write(0) };
    let (before, after) = (event()?, event()?);
    let decode = Decode {
        chunks: settings.staging + at,
        count: measured.chunks as u32,
        room: needs,
        error: error as u64,
    };
    let mut times = Vec::new();
    for _ in 0..=passes.max(1) {
        let mut milliseconds = 0f32;
        // SAFETY: this function made the events, and the stream is its card's.
        unsafe {
            driver.check("cuEventRecord", (driver.record)(before, stream))?;
            card.decode(&decode, stream)?;
            driver.check("cuEventRecord", (driver.record)(after, stream))?;
            sync(driver, stream)?;
            driver.check("cuEventElapsedTime", (driver.elapsed)(&raw mut milliseconds, before, after))?;
        }
        times.push(f64::from(milliseconds) / 1e3);
    }
    // The first pass loads the kernel.
    times.remove(0);
    times.sort_by(f64::total_cmp);
    measured.seconds = times[times.len() / 2];
    // SAFETY: this function made the events and the page, and the stream is done with them.
    let damaged = unsafe {
        let damaged = error.cast::<u32>().read_volatile();
        (driver.end_event)(before);
        (driver.end_event)(after);
        (driver.host_free)(error);
        damaged
    };
    if damaged > 0 { Err(LoadError::Argument("a chunk is damaged".into())) } else { Ok(measured) }
}
