//! The recording's file: records one after the other, written through a mapping of the file.
//!
//! ```text
//!   "GAPHOST1"
//!   record*     u32: kind in the low byte, bytes of the body in the other three; then the body, padded to 4 bytes
//!   0           no record follows
//! ```
//!
//! The body is written before its header, so the file of a killed process has whole records, and zeros behind them.
//! Blocks of the disk are reserved before they are mapped, so a full disk is an error of a call and not a signal.
//! Numbers are little-endian. `gapless-ingest` (`host_run/`) reads the file, and shares no code with this.

use crate::sys::{self, FileId, OwnFile};
use std::ffi::CStr;
use std::sync::atomic::{AtomicU32, Ordering};

pub const MAGIC: &[u8; 8] = b"GAPHOST1";

/// Kinds of records. The reader has the same list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// version u32, pid u32, parent u32, python u32 (its version, or 0), realtime µs u64, monotonic µs u64, fixed
    /// interval u64 (0: it adapts), exact from u64, program u32 + text, host u32 + text
    Head = 1,
    /// start u64, end u64, offset u64, file size u64, modified ns u64, path
    Module = 2,
    /// number u32, first line u32, length of name u32, of file u32, of the line table u32; then these three
    Code = 3,
    /// number u32, native u32, python u32; then native u64 each, (code u32, instruction u32) each
    Stack = 4,
    /// address u64, size u64, interval u64 (0: every one is recorded), time µs u64, stack u32, thread u32
    Alloc = 5,
    /// address u64, time µs u64
    Free = 6,
    /// time µs u64
    Step = 7,
    /// time µs u64, large live u64, large kept u64, small held u64, resident u64, interval u64, lost u64
    State = 8,
    /// code u32
    Note = 9,
    /// time µs u64: the process ended by itself
    End = 10,
}

/// Bytes of the file that are mapped at once.
const WINDOW: usize = 1 << 20;
const PAGE: usize = 4096;
/// The longest name of the file.
const NAME: usize = 4200;
/// The longest body.
pub const LONGEST: usize = 128 << 10;

#[derive(Debug)]
pub struct Journal {
    /// The file is opened again for each window, because the program may close every descriptor, or use its number.
    name: [u8; NAME],
    id: FileId,
    /// The mapping, and its offset in the file.
    window: *mut u8,
    origin: u64,
    /// The offset of the next record in the file.
    at: u64,
    /// The error because of which no more records are written.
    failed: Option<i32>,
}

// SAFETY: only the journal uses its mapping.
unsafe impl Send for Journal {}

/// A body while it is being written.
#[derive(Debug)]
pub struct Body<'a> {
    place: &'a mut [u8],
    length: usize,
}

impl Body<'_> {
    pub fn bytes(&mut self, bytes: &[u8]) {
        let taken = bytes.len().min(self.place.len() - self.length);
        self.place[self.length..self.length + taken].copy_from_slice(&bytes[..taken]);
        self.length += taken;
    }

    pub fn u32(&mut self, value: u32) {
        self.bytes(&value.to_le_bytes());
    }

    pub fn u64(&mut self, value: u64) {
        self.bytes(&value.to_le_bytes());
    }
}

impl Journal {
    /// Makes a new file in place of an old one. An error is the kernel's number.
    pub fn create(path: &CStr) -> Result<Journal, i32> {
        // The old file may still be written by another process: it only loses its name, and is not cut under a mapping.
        // SAFETY: `path` ends in a zero.
        unsafe { libc::unlink(path.as_ptr()) };
        let mut name = [0; NAME];
        let bytes = path.to_bytes_with_nul();
        name.get_mut(..bytes.len()).ok_or(libc::ENAMETOOLONG)?.copy_from_slice(bytes);
        let (id, window) = sys::privately(|| {
            let file = OwnFile::create(path, 0o644)?;
            Ok::<_, i32>((file.id, file.map(0, WINDOW)?))
        })?;
        let mut journal = Journal { name, id, window, origin: 0, at: 0, failed: None };
        journal.place(MAGIC.len()).copy_from_slice(MAGIC);
        journal.at = MAGIC.len() as u64;
        Ok(journal)
    }

    fn file(&self) -> Result<OwnFile, i32> {
        OwnFile::open(CStr::from_bytes_until_nul(&self.name).unwrap_or(c""), self.id)
    }

    /// Reserves and maps the window that begins at the page of `at`.
    fn map(&mut self, at: u64) -> Result<(), i32> {
        let origin = at / PAGE as u64 * PAGE as u64;
        let window = sys::privately(|| self.file()?.map(origin, WINDOW))?;
        self.unmap();
        self.window = window;
        self.origin = origin;
        Ok(())
    }

    fn unmap(&mut self) {
        if !self.window.is_null() {
            sys::unmap(self.window, WINDOW);
            self.window = std::ptr::null_mut();
        }
    }

    /// The next `length` bytes of the file, inside of the window.
    fn place(&mut self, length: usize) -> &mut [u8] {
        let offset = (self.at - self.origin) as usize;
        debug_assert!(offset + length <= WINDOW);
        // SAFETY: `offset + length <= WINDOW`, and only the journal uses the mapping, which is borrowed with `self`.
        unsafe { std::slice::from_raw_parts_mut(self.window.add(offset), length) }
    }

    /// Writes a record whose body has at most `most` bytes. False if the file is full or gone.
    pub fn write(&mut self, kind: Kind, most: usize, fill: impl FnOnce(&mut Body<'_>)) -> bool {
        let most = most.min(LONGEST);
        let room = 4 + most.next_multiple_of(4) + 4;
        if self.failed.is_some() {
            return false;
        }
        let is_outside = self.window.is_null() || (self.at - self.origin) as usize + room > WINDOW;
        if is_outside && let Err(wrong) = self.map(self.at) {
            self.failed = Some(wrong);
            return false;
        }
        let place = self.place(4 + most);
        let mut body = Body { place: &mut place[4..], length: 0 };
        fill(&mut body);
        let length = body.length;
        let header = (length as u32) << 8 | kind as u32;
        // SAFETY: four bytes of the window, at a multiple of four, because every record has a multiple of four bytes.
        unsafe { (*place.as_mut_ptr().cast::<AtomicU32>()).store(header, Ordering::Release) };
        self.at += (4 + length.next_multiple_of(4)) as u64;
        true
    }

    #[must_use]
    pub fn written(&self) -> u64 {
        self.at
    }

    /// The error because of which no more records are written, as the kernel's number.
    #[must_use]
    pub fn failed(&self) -> Option<i32> {
        self.failed
    }

    /// Cuts the file to its true length.
    pub fn end(&mut self) {
        self.unmap();
        sys::privately(|| {
            if let Ok(file) = self.file() {
                file.cut(self.at);
            }
        });
        self.failed = Some(libc::EBADF);
    }

    /// Called in a forked child: leaves the parent's file alone.
    pub fn leave(&mut self) {
        self.unmap();
        self.failed = Some(libc::EBADF);
    }
}
