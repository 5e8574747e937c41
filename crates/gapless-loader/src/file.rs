//! Reads ranges of a file: through the page cache if they are cached, past it if the file is cold.

use crate::error::Result;
pub use crate::residency::PAGE;
use crate::residency::Residency;
use gapless_weights::Error;
use gapless_weights::input::Input;
use gapless_weights::patience::Patience;
use std::fs::File;
use std::sync::atomic::{AtomicU64, Ordering};

/// Samples of a file that show if it is cold, and bytes of each.
const SAMPLES: u64 = 5;
const SAMPLE: usize = 256 << 10;

/// Memory of a reader: the length of its largest range plus two pages.
#[derive(Debug)]
pub struct Buffer {
    at: *mut u8,
    length: usize,
}

// SAFETY: the maker of the buffer guarantees that nothing else uses the memory (`Buffer::over`).
unsafe impl Send for Buffer {}

impl Buffer {
    /// A buffer over memory that it does not own.
    ///
    /// # Safety
    /// `at` must be at the beginning of a page and have `length` bytes that live as long as the buffer, for it alone.
    pub unsafe fn over(at: *mut u8, length: usize) -> Buffer {
        Buffer { at, length }
    }

    pub fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the memory is valid and only this buffer uses it (`Buffer::over`); `&mut self` is the only borrow.
        unsafe { std::slice::from_raw_parts_mut(self.at, self.length) }
    }

    pub fn shared(&self) -> &[u8] {
        // SAFETY: the memory is valid and only this buffer uses it (`Buffer::over`).
        unsafe { std::slice::from_raw_parts(self.at, self.length) }
    }
}

/// The settings and the queue of one thread's reads.
#[derive(Debug)]
pub struct Reading {
    pub patience: Patience,
    /// True if cold ranges may be read past the cache.
    pub is_direct: bool,
    /// True if direct reads may use io_uring.
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

/// The cached parts of a file, and a second handle for direct reads.
#[derive(Debug)]
pub struct Cached {
    residency: Residency,
    direct: Option<Direct>,
    /// Bytes that were read, the part of them past the cache, and the part of those by io_uring.
    pub read: AtomicU64,
    pub cold: AtomicU64,
    pub queued: AtomicU64,
}

/// A handle for direct reads, and their alignment: of addresses in memory, and of offsets in the file.
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

    /// True if less than half of a range is cached, and if the file can be read past the cache.
    pub fn is_cold(&self, input: &Input, at: u64, length: usize, reading: &Reading) -> bool {
        reading.is_direct && self.direct.is_some() && !self.residency.is_cached(input, at, length)
    }

    /// True if most of a few samples of the file are cold, and if it can be read past the cache. Asking for every page
    /// of a large file takes longer than loading it.
    pub fn is_mostly_cold(&self, input: &Input, reading: &Reading) -> bool {
        let cold = (0..SAMPLES)
            .map(|sample| input.size / (2 * SAMPLES) * (2 * sample + 1))
            .filter(|at| self.is_cold(input, *at, SAMPLE, reading));
        2 * cold.count() as u64 > SAMPLES
    }

    /// Reads a range into `buffer`, which must be two pages longer. Returns the offset of the range in it.
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
        // The same offset in a page as in the file, so that alignment in the file is alignment in memory.
        let offset = at as usize % PAGE;
        self.read_plain(input, at, &mut buffer.bytes()[offset..offset + length], reading)?;
        Ok(offset)
    }

    /// Reads through the cache straight to memory of the caller.
    pub fn read_plain(&self, input: &Input, at: u64, out: &mut [u8], reading: &Reading) -> Result<()> {
        input.read_patiently(at, out, reading.patience)?;
        self.read.fetch_add(out.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Reads a cold range past the cache, straight to memory of the caller. Only the range's first and last bytes,
    /// which share a sector with other bytes, are copied, through `buffer`. False if the memory is not aligned for
    /// direct reads, or if the file system refuses them. Then nothing was read.
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

    /// `None` if the file system refuses direct reads.
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

    /// Fills `out` from `first`, both aligned for direct reads. Only `wanted` bytes must exist, because the file may
    /// end after them. False if the file system refuses direct reads.
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
            // A direct read that ends within a sector ended at the end of the file. That sector is read again.
            let got = got / place * place;
            done += got;
            Ok(got)
        };
        match patience.fill(first, out, &mut whole, &size) {
            Ok(()) => {}
            // EINVAL: this file system needs an alignment that we do not know.
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
    // The path may name another file by now.
    is_same(&direct, input.file()).then_some(direct)
}

#[cfg(not(target_os = "linux"))]
fn open_direct(_: &Input) -> Option<File> {
    None
}

/// The alignment of direct reads of this file, in memory and in the file. `None` if the kernel does not report it
/// (Linux 6.1 does), or if it is more than a page.
#[cfg(target_os = "linux")]
fn alignment(file: &File) -> Option<(usize, usize)> {
    use std::os::fd::AsRawFd;
    // SAFETY: all zeros are a valid value of this structure of integers.
    let mut found: libc::statx = unsafe { std::mem::zeroed() };
    // SAFETY: the path is empty and ends with NUL, the file is open, and `found` is the kernel's structure.
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
