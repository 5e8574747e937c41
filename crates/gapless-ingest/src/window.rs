//! A sliding window over a stream: the parser sees a slice, the stream is read in large pieces, and the file as a whole
//! is never in memory.

use crate::error::{Fault, Problem};
use std::io::{ErrorKind, Read};

/// Bytes read at a time. 256 KiB stay in the second-level cache between being read and being parsed.
const PIECE: usize = 256 << 10;

/// Unread bytes are `bytes[start .. end]`; `bytes[0]` is byte `base` of the stream.
pub(crate) struct Window<'a> {
    input: &'a mut dyn Read,
    bytes: Vec<u8>,
    start: usize,
    end: usize,
    base: u64,
    at_end: bool,
    limit: u64,
}

impl<'a> Window<'a> {
    pub(crate) fn new(input: &'a mut dyn Read, limit: u64) -> Window<'a> {
        Window { input, bytes: vec![0; PIECE * 2], start: 0, end: 0, base: 0, at_end: false, limit }
    }

    /// Offset of the next unread byte in the stream.
    #[inline]
    pub(crate) fn offset(&self) -> u64 {
        self.base + self.start as u64
    }

    /// The unread bytes at hand.
    #[inline]
    pub(crate) fn rest(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    #[inline]
    pub(crate) fn skip(&mut self, bytes: usize) {
        debug_assert!(bytes <= self.end - self.start);
        self.start += bytes;
    }

    /// Tries to have `wanted` bytes at hand; fewer only if the stream ends. Memory grows with the bytes that are there,
    /// not with `wanted`.
    #[inline]
    pub(crate) fn fill(&mut self, wanted: usize) -> Result<(), Fault> {
        if self.end - self.start >= wanted || self.at_end { Ok(()) } else { self.fill_slowly(wanted) }
    }

    #[cold]
    fn fill_slowly(&mut self, wanted: usize) -> Result<(), Fault> {
        self.bytes.copy_within(self.start..self.end, 0);
        self.base += self.start as u64;
        self.end -= self.start;
        self.start = 0;
        while self.end < wanted {
            if self.bytes.len() - self.end < PIECE {
                let longer = self.bytes.len() * 2;
                self.bytes.resize(longer, 0);
            }
            match self.input.read(&mut self.bytes[self.end..self.end + PIECE]) {
                Ok(0) => {
                    self.at_end = true;
                    break;
                }
                Ok(n) => self.end += n,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(source) => {
                    let offset = self.base + self.end as u64;
                    return Err(Box::new(Problem::Io { offset, source }));
                }
            }
            if self.base + self.end as u64 > self.limit {
                let (offset, limit) = (self.base + self.end as u64, self.limit);
                return Err(Box::new(Problem::TooMany { offset, what: "bytes", limit }));
            }
        }
        Ok(())
    }

    /// True if the stream has another byte.
    pub(crate) fn has_more(&mut self) -> Result<bool, Fault> {
        self.fill(1)?;
        Ok(self.end > self.start)
    }
}
