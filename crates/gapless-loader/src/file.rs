//! Ranges of a file: through the page cache where it has them, past it where the file is cold.
//!
//! `mincore` says what is cached. For that the file is mapped, but the mapping is never read: a file that gets shorter
//! is an error of `read`, not a signal. Files that belong to somebody else look cached to `mincore`; they are then
//! read through the cache, which is only slower.

use crate::error::Result;
use gapless_weights::Error;
use gapless_weights::input::Input;
use std::fs::File;
use std::sync::atomic::{AtomicU64, Ordering};

/// Direct reads begin and end on boundaries of this many bytes, and so does the memory that they go to.
pub const PAGE: usize = 4096;

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

/// Which pages of a file are cached, and a second handle for direct reads.
#[derive(Debug)]
pub struct Cached {
    map: Option<Map>,
    direct: Option<File>,
    /// Bytes that were read, and how many of them past the cache.
    pub read: AtomicU64,
    pub cold: AtomicU64,
}

#[derive(Debug)]
struct Map {
    at: usize,
    length: usize,
}

impl Cached {
    #[cfg(target_os = "linux")]
    pub fn new(input: &Input) -> Cached {
        use std::os::fd::AsRawFd;
        use std::os::unix::fs::OpenOptionsExt;
        let none = Cached { map: None, direct: None, read: AtomicU64::new(0), cold: AtomicU64::new(0) };
        if input.size == 0 {
            return none;
        }
        let direct =
            std::fs::OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(&input.path).ok();
        // The path may lead to another file by now.
        let direct = direct.filter(|file| is_same(file, input.file()));
        let length = input.size as usize;
        let (read, shared) = (libc::PROT_READ, libc::MAP_SHARED);
        // SAFETY: a new mapping of an open file, which nothing reads.
        let at =
            unsafe { libc::mmap(std::ptr::null_mut(), length, read, shared, input.file().as_raw_fd(), 0) };
        let map = (at != libc::MAP_FAILED).then_some(Map { at: at as usize, length });
        Cached { map, direct, ..none }
    }

    #[cfg(not(target_os = "linux"))]
    pub fn new(_: &Input) -> Cached {
        Cached { map: None, direct: None, read: AtomicU64::new(0), cold: AtomicU64::new(0) }
    }

    /// Whether less than half of a range is cached, and the file can be read past the cache.
    pub fn is_cold(&self, at: u64, length: usize) -> bool {
        let (Some(map), Some(_)) = (&self.map, &self.direct) else { return false };
        let first = at as usize / PAGE * PAGE;
        let end = (at as usize + length).min(map.length);
        if first >= end {
            return false;
        }
        let mut pages = vec![0u8; (end - first).div_ceil(PAGE)];
        is_cached(map.at + first, end - first, &mut pages);
        2 * pages.iter().filter(|page| **page & 1 == 1).count() < pages.len()
    }

    /// Reads a range into `buffer`; gives where in it the range begins. The buffer must be two pages longer.
    pub fn read(&self, input: &Input, at: u64, length: usize, buffer: &mut Buffer) -> Result<usize> {
        if length + 2 * PAGE > buffer.length {
            return Err(crate::error::LoadError::Argument(
                "a range is longer than the reader's buffer".into(),
            ));
        }
        if self.is_cold(at, length)
            && let Some(offset) = self.read_direct(input, at, length, buffer)?
        {
            return Ok(offset);
        }
        // The same place in a page as in the file: what is aligned there is aligned here.
        let offset = at as usize % PAGE;
        input.read(at, &mut buffer.bytes()[offset..offset + length])?;
        self.read.fetch_add(length as u64, Ordering::Relaxed);
        Ok(offset)
    }

    /// Reads straight to memory of the caller, through the cache.
    pub fn read_plain(&self, input: &Input, at: u64, out: &mut [u8]) -> Result<()> {
        input.read(at, out)?;
        self.read.fetch_add(out.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    /// None where the file system refuses direct reads after all.
    #[cfg(unix)]
    fn read_direct(
        &self,
        input: &Input,
        at: u64,
        length: usize,
        buffer: &mut Buffer,
    ) -> Result<Option<usize>> {
        use std::os::unix::fs::FileExt;
        let Some(file) = &self.direct else { return Ok(None) };
        let first = at / PAGE as u64 * PAGE as u64;
        let offset = (at - first) as usize;
        let wanted = (offset + length).next_multiple_of(PAGE);
        let mut done = 0;
        while done < offset + length {
            match file.read_at(&mut buffer.bytes()[done..wanted], first + done as u64) {
                // A direct read that ends within a page ends where the file does.
                Ok(got)
                    if got == 0 || (!(done + got).is_multiple_of(PAGE) && done + got < offset + length) =>
                {
                    let what = "it became shorter while it was read";
                    let source = std::io::Error::new(std::io::ErrorKind::UnexpectedEof, what);
                    return Err(Error::Read { path: input.path.clone(), source }.into());
                }
                Ok(got) => done += got,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                // EINVAL: an alignment that this file system wants and we do not know.
                Err(error) if error.kind() == std::io::ErrorKind::InvalidInput => return Ok(None),
                Err(source) => return Err(Error::Read { path: input.path.clone(), source }.into()),
            }
        }
        self.read.fetch_add(length as u64, Ordering::Relaxed);
        self.cold.fetch_add(length as u64, Ordering::Relaxed);
        Ok(Some(offset))
    }

    #[cfg(not(unix))]
    fn read_direct(&self, _: &Input, _: u64, _: usize, _: &mut Buffer) -> Result<Option<usize>> {
        Ok(None)
    }
}

#[cfg(target_os = "linux")]
fn is_same(a: &File, b: &File) -> bool {
    use std::os::unix::fs::MetadataExt;
    match (a.metadata(), b.metadata()) {
        (Ok(a), Ok(b)) => (a.dev(), a.ino()) == (b.dev(), b.ino()),
        _ => false,
    }
}

/// Pages that are not known to be cached count as cached: those are read through the cache.
#[cfg(target_os = "linux")]
fn is_cached(at: usize, length: usize, pages: &mut [u8]) {
    // SAFETY: the range lies in a mapping that is alive, and `pages` has a byte for each of its pages.
    if unsafe { libc::mincore(at as *mut libc::c_void, length, pages.as_mut_ptr()) } != 0 {
        pages.fill(1);
    }
}

#[cfg(not(target_os = "linux"))]
fn is_cached(_: usize, _: usize, pages: &mut [u8]) {
    pages.fill(1);
}

impl Drop for Map {
    fn drop(&mut self) {
        #[cfg(target_os = "linux")]
        // SAFETY: the mapping is this value's own.
        unsafe {
            libc::munmap(self.at as *mut libc::c_void, self.length);
        }
    }
}
