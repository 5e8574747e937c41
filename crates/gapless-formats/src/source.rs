//! A file that is read forwards by parts and never wholly: every length that it claims is compared with the bytes that
//! are left before anything is allocated.

use crate::fault::{Fault, Problem};
use std::io::{BufReader, ErrorKind, Read, Seek, SeekFrom};

/// A file of known size, and the reader's offset in it.
#[derive(Debug)]
pub struct Source<R> {
    inner: BufReader<R>,
    at: u64,
    size: u64,
}

impl<R: Read + Seek> Source<R> {
    pub fn new(mut inner: R) -> Result<Source<R>, Fault> {
        let size = inner.seek(SeekFrom::End(0)).and_then(|size| inner.rewind().map(|()| size));
        let size = size.map_err(|source| Problem::Io { offset: 0, source })?;
        Ok(Source { inner: BufReader::with_capacity(16 << 10, inner), at: 0, size })
    }

    pub fn at(&self) -> u64 {
        self.at
    }

    pub fn size(&self) -> u64 {
        self.size
    }

    pub fn left(&self) -> u64 {
        self.size - self.at
    }

    fn short(&self, reading: &str) -> Fault {
        Box::new(Problem::Truncated { offset: self.size, reading: reading.to_owned() })
    }

    pub fn fill(&mut self, buffer: &mut [u8], reading: &str) -> Result<(), Fault> {
        if buffer.len() as u64 > self.left() {
            return Err(self.short(reading));
        }
        self.inner.read_exact(buffer).map_err(|source| match source.kind() {
            ErrorKind::UnexpectedEof => self.short(reading),
            _ => Box::new(Problem::Io { offset: self.at, source }),
        })?;
        self.at += buffer.len() as u64;
        Ok(())
    }

    /// The next `length` bytes, of which the caller accepts `limit`.
    pub fn bytes(&mut self, length: u64, limit: u64, reading: &str) -> Result<Vec<u8>, Fault> {
        if length > self.left() {
            return Err(self.short(reading));
        }
        if length > limit {
            let what = format!("{reading} of {length} bytes");
            return Err(Box::new(Problem::TooLarge { offset: self.at, what, limit }));
        }
        let mut bytes = vec![0; length as usize];
        self.fill(&mut bytes, reading)?;
        Ok(bytes)
    }

    pub fn skip(&mut self, length: u64, reading: &str) -> Result<(), Fault> {
        if length > self.left() {
            return Err(self.short(reading));
        }
        // A file is never longer than i64::MAX.
        self.inner
            .seek_relative(length as i64)
            .map_err(|source| Box::new(Problem::Io { offset: self.at, source }))?;
        self.at += length;
        Ok(())
    }

    pub fn seek(&mut self, to: u64, reading: &str) -> Result<(), Fault> {
        if to > self.size {
            return Err(self.short(reading));
        }
        self.inner
            .seek(SeekFrom::Start(to))
            .map_err(|source| Box::new(Problem::Io { offset: to, source }))?;
        self.at = to;
        Ok(())
    }

    pub fn u8(&mut self, reading: &str) -> Result<u8, Fault> {
        let mut bytes = [0];
        self.fill(&mut bytes, reading)?;
        Ok(bytes[0])
    }

    pub fn u32(&mut self, reading: &str) -> Result<u32, Fault> {
        let mut bytes = [0; 4];
        self.fill(&mut bytes, reading)?;
        Ok(u32::from_le_bytes(bytes))
    }

    pub fn u64(&mut self, reading: &str) -> Result<u64, Fault> {
        let mut bytes = [0; 8];
        self.fill(&mut bytes, reading)?;
        Ok(u64::from_le_bytes(bytes))
    }
}
