//! Ranges of a file: through the page cache where it has them, past it where the file is cold.

use crate::error::Result;
pub use crate::residency::PAGE;
use crate::residency::Residency;
use gapless_weights::Error;
use gapless_weights::input::Input;
use gapless_weights::patience::Patience;
use std::fs::File;
use std::sync::atomic::{AtomicU64, Ordering};

/// Places of a file that are asked for to tell whether it is cold, and bytes of each.
const SAMPLES: u64 = 5;
const SAMPLE: usize = 256 << 10;

/// Memory of a reader: as long as its largest range and two pages.
#[derive(Debug)]
pub struct Buffer {
    at: *mut u8,
    length: usize,
}

// SAFETY: the memory is this buffer's alone, or its maker's promise says so.
unsafe impl Send for Buffer {}

impl Buffer {
    /// A buffer over memory of somebody else.
    ///
    /// # Safety
    /// `at` must be on a boundary of a page and have `length` bytes that live as long as the buffer and that nobody
    /// else uses meanwhile.
    pub unsafe fn over(at: *mut u8, length: usize) -> Buffer {
        Buffer { at, length }
    }

    pub fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: `over` was promised this memory, for this buffer alone.
        unsafe { std::slice::from_raw_parts_mut(self.at, self.length) }
    }

    pub fn shared(&self) -> &[u8] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts(self.at, self.length) }
    }
}

/// What one thread reads with.
#[derive(Debug)]
pub struct Reading {
    pub patience: Patience,
    /// Whether cold ranges may be read past the cache.
    pub is_direct: bool,
    /// Whether direct reads may use io_uring.
    pub is_queued: bool,
    #[cfg(target_os = "linux")]
    queue: Option<crate::uring::Uring>,
}

impl Reading {
    pub fn new(patience: Patience, is_direct: bool, is_queued: bool) -> Reading {
        Reading {
            patience,
            is_direct,
            is_queued,
            #[cfg(target_os = "linux")]
            queue: None,
        }
    }
}

/// What is cached of a file, and a second handle for direct reads.
#[derive(Debug)]
pub struct Cached {
    residency: Residency,
    direct: Option<Direct>,
    /// Bytes that were read, how many of them past the cache, and how many of those by io_uring.
    pub read: AtomicU64,
    pub cold: AtomicU64,
    pub queued: AtomicU64,
}

/// A handle for direct reads, and what they must be multiples of: addresses in memory, and places in the file.
#[derive(Debug)]
struct Direct {
    file: File,
    memory: usize,
    place: usize,
}

impl Cached {
    pub fn new(input: &Input) -> Cached {
        Cached {
            residency: Residency::default(),
            direct: open_direct(input).map(|file| {
                let (memory, place) = alignment(&file).unwrap_or((PAGE, PAGE));
                Direct { file, memory, place }
            }),
            read: AtomicU64::new(0),
            cold: AtomicU64::new(0),
            queued: AtomicU64::new(0),
        }
    }

    /// Whether less than half of a range is cached, and the file can be read past the cache.
    pub fn is_cold(&self, input: &Input, at: u64, length: usize, reading: &Reading) -> bool {
        reading.is_direct && self.direct.is_some() && !self.residency.is_cached(input, at, length)
    }

    /// Whether most of the file is cold, by a few samples, and can be read past the cache. To ask for every page of a
    /// large file takes longer than to load it.
    pub fn is_mostly_cold(&self, input: &Input, reading: &Reading) -> bool {
        let cold = (0..SAMPLES)
            .map(|sample| input.size / (2 * SAMPLES) * (2 * sample + 1))
            .filter(|at| self.is_cold(input, *at, SAMPLE, reading));
        2 * cold.count() as u64 > SAMPLES
    }

    /// Reads a range into `buffer`; gives where in it the range begins. The buffer must be two pages longer.
    pub fn read(
        &self,
        input: &Input,
        at: u64,
        length: usize,
        buffer: &mut Buffer,
        reading: &mut Reading,
    ) -> Result<usize> {
        if length + 2 * PAGE > buffer.length {
            return Err(crate::error::LoadError::Argument(
                "a range is longer than the reader's buffer".into(),
            ));
        }
        if self.is_cold(input, at, length, reading)
            && let Some(offset) = self.read_direct(input, at, length, buffer, reading)?
        {
            return Ok(offset);
        }
        // The same place in a page as in the file: what is aligned there is aligned here.
        let offset = at as usize % PAGE;
        self.read_plain(input, at, &mut buffer.bytes()[offset..offset + length], reading)?;
        Ok(offset)
    }

    /// Reads straight to memory of the caller, through the cache.
    pub fn read_plain(&self, input: &Input, at: u64, out: &mut [u8], reading: &Reading) -> Result<()> {
        input.read_patiently(at, out, reading.patience)?;
        self.read.fetch_add(out.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Reads a cold range straight to memory of the caller, past the cache, with no copy but of the range's first and
    /// last bytes that share a sector with others: those go through `buffer`. False where the memory does not stand as
    /// direct reads want it, or the file system refuses them: nothing was read then.
    pub fn read_in_place(
        &self,
        input: &Input,
        at: u64,
        out: &mut [u8],
        buffer: &mut Buffer,
        reading: &mut Reading,
    ) -> Result<bool> {
        let Some(direct) = &self.direct else { return Ok(false) };
        let unit = direct.place as u64;
        let end = at + out.len() as u64;
        let (first, last) = (at.next_multiple_of(unit), end / unit * unit);
        if last <= first || !(out.as_ptr() as usize + (first - at) as usize).is_multiple_of(direct.memory) {
            return Ok(false);
        }
        let (head, rest) = out.split_at_mut((first - at) as usize);
        let (middle, tail) = rest.split_at_mut((last - first) as usize);
        let wanted = middle.len();
        if !self.fill_direct(input, first, middle, wanted, reading)? {
            return Ok(false);
        }
        for (at, edge) in [(at, head), (last, tail)] {
            if !edge.is_empty() {
                let from = self.read(input, at, edge.len(), buffer, reading)?;
                edge.copy_from_slice(&buffer.shared()[from..from + edge.len()]);
            }
        }
        Ok(true)
    }

    /// None where the file system refuses direct reads after all.
    fn read_direct(
        &self,
        input: &Input,
        at: u64,
        length: usize,
        buffer: &mut Buffer,
        reading: &mut Reading,
    ) -> Result<Option<usize>> {
        let first = at / PAGE as u64 * PAGE as u64;
        let offset = (at - first) as usize;
        let room = &mut buffer.bytes()[..(offset + length).next_multiple_of(PAGE)];
        let is_read = self.fill_direct(input, first, room, offset + length, reading)?;
        Ok(is_read.then_some(offset))
    }

    /// Fills `out` from `first`, both as direct reads want them. It is enough that `wanted` bytes are there: the file
    /// may end behind them. False where the file system refuses direct reads after all.
    #[cfg(unix)]
    fn fill_direct(
        &self,
        input: &Input,
        first: u64,
        out: &mut [u8],
        wanted: usize,
        reading: &mut Reading,
    ) -> Result<bool> {
        let Some(Direct { file, place, .. }) = &self.direct else { return Ok(false) };
        let (patience, mut queued) = (reading.patience, 0);
        let mut read = |out: &mut [u8], at: u64| -> std::io::Result<usize> {
            #[cfg(target_os = "linux")]
            if reading.is_queued {
                if reading.queue.is_none() {
                    reading.queue = crate::uring::Uring::new();
                    reading.is_queued = reading.queue.is_some();
                }
                if let Some(queue) = &mut reading.queue {
                    let got = queue.read(file, at, out, patience.timeout)?;
                    queued += got as u64;
                    return Ok(got);
                }
            }
            std::os::unix::fs::FileExt::read_at(file, out, at)
        };
        let size = || file.metadata().map(|meta| meta.len().next_multiple_of(PAGE as u64));
        let mut done = 0;
        let mut whole = |out: &mut [u8], at: u64| {
            let got = read(out, at)?;
            if done + got >= wanted {
                return Ok(out.len());
            }
            // A direct read that ends within a sector ends where the file does: the sector is read again.
            let got = got / place * place;
            done += got;
            Ok(got)
        };
        match patience.fill(first, out, &mut whole, &size) {
            Ok(()) => {}
            // EINVAL: an alignment that this file system wants and we do not know.
            Err(error) if error.kind() == std::io::ErrorKind::InvalidInput => return Ok(false),
            Err(source) => return Err(Error::Read { path: input.path.clone(), source }.into()),
        }
        self.read.fetch_add(wanted as u64, Ordering::Relaxed);
        self.cold.fetch_add(wanted as u64, Ordering::Relaxed);
        self.queued.fetch_add(queued.min(wanted as u64), Ordering::Relaxed);
        Ok(true)
    }

    #[cfg(not(unix))]
    fn fill_direct(&self, _: &Input, _: u64, _: &mut [u8], _: usize, _: &mut Reading) -> Result<bool> {
        Ok(false)
    }
}

#[cfg(target_os = "linux")]
fn open_direct(input: &Input) -> Option<File> {
    use std::os::unix::fs::OpenOptionsExt;
    let direct =
        std::fs::OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(&input.path).ok()?;
    // The path may lead to another file by now.
    is_same(&direct, input.file()).then_some(direct)
}

#[cfg(not(target_os = "linux"))]
fn open_direct(_: &Input) -> Option<File> {
    None
}

/// What direct reads of this file must be multiples of, in memory and in the file, where the kernel tells (Linux 6.1)
/// and it is at most a page.
#[cfg(target_os = "linux")]
fn alignment(file: &File) -> Option<(usize, usize)> {
    use std::os::fd::AsRawFd;
    // SAFETY: all zeros are a value of this structure of integers.
    let mut found: libc::statx = unsafe { std::mem::zeroed() };
    // SAFETY: the path is empty and ends in a zero, the file is open, and `found` is as long as the kernel's structure.
    let status = unsafe {
        libc::statx(file.as_raw_fd(), c"".as_ptr(), libc::AT_EMPTY_PATH, libc::STATX_DIOALIGN, &raw mut found)
    };
    let fits = |bytes: u32| bytes > 0 && PAGE.is_multiple_of(bytes as usize);
    let is_told = status == 0
        && found.stx_mask & libc::STATX_DIOALIGN != 0
        && fits(found.stx_dio_mem_align)
        && fits(found.stx_dio_offset_align);
    is_told.then_some((found.stx_dio_mem_align as usize, found.stx_dio_offset_align as usize))
}

#[cfg(not(target_os = "linux"))]
fn alignment(_: &File) -> Option<(usize, usize)> {
    None
}

#[cfg(target_os = "linux")]
fn is_same(a: &File, b: &File) -> bool {
    use std::os::unix::fs::MetadataExt;
    match (a.metadata(), b.metadata()) {
        (Ok(a), Ok(b)) => (a.dev(), a.ino()) == (b.dev(), b.ino()),
        _ => false,
    }
}
