//! Compressed streams: recognised by their first bytes, and read as the bytes inside.
//!
//! Decompression runs on a thread of its own, a few pieces ahead of the reader.

use crate::zstd::Frames;
use std::io::{self, BufRead, BufReader, Read};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

/// The compression of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packing {
    Gzip,
    Zstd,
}

impl Packing {
    /// The compression of a stream that begins with `head`.
    pub fn of(head: &[u8]) -> Option<Packing> {
        if head.starts_with(&[0x1f, 0x8b]) {
            Some(Packing::Gzip)
        } else if head.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) {
            Some(Packing::Zstd)
        } else {
            None
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Packing::Gzip => "gzip",
            Packing::Zstd => "zstd",
        }
    }
}

/// Bytes that the decompressor hands over at a time.
const PIECE: usize = 256 << 10;
/// Pieces under way between the threads.
const AHEAD: usize = 3;

/// Runs `parse` over the decompressed bytes of `input`.
pub fn unpacked<T>(
    packing: Packing,
    input: &mut (dyn Read + Send),
    parse: impl FnOnce(&mut (dyn Read + Send)) -> T,
) -> T {
    let (full_sender, full) = sync_channel::<io::Result<Vec<u8>>>(AHEAD);
    let (empty, empty_receiver) = sync_channel::<Vec<u8>>(AHEAD + 2);
    // The other thread ends when it can hand over no more.
    let mut pieces = Pieces { full, empty, piece: Vec::new(), at: 0 };
    let parse = move || parse(&mut pieces);
    let pump = move || pump(packing, input, &full_sender, &empty_receiver);
    gapless_threads::alongside("decompression", parse, pump).0
}

fn pump(
    packing: Packing,
    input: &mut (dyn Read + Send),
    full: &SyncSender<io::Result<Vec<u8>>>,
    empty: &Receiver<Vec<u8>>,
) {
    let mut decoder: Box<dyn Read + '_> = match packing {
        Packing::Gzip => Box::new(Members::new(input)),
        Packing::Zstd => Box::new(Frames::new(input)),
    };
    loop {
        let mut piece = empty.try_recv().unwrap_or_default();
        piece.resize(PIECE, 0);
        let mut length = 0;
        let mut result = Ok(());
        while length < PIECE {
            match decoder.read(&mut piece[length..]) {
                Ok(0) => break,
                Ok(n) => length += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    result = Err(error);
                    break;
                }
            }
        }
        piece.truncate(length);
        if length > 0 && full.send(Ok(piece)).is_err() {
            return;
        }
        if let Err(error) = result {
            let _ = full.send(Err(error));
            return;
        }
        if length < PIECE {
            return;
        }
    }
}

/// The members of a gzip stream, one after the other. Zeros that fill up a block may follow the last one, as `gzip`
/// itself allows; anything else is an error that names it.
struct Members<R: Read> {
    /// `None` behind the last member.
    member: Option<flate2::bufread::GzDecoder<BufReader<R>>>,
}

impl<R: Read> Members<R> {
    fn new(input: R) -> Members<R> {
        let input = BufReader::with_capacity(1 << 16, input);
        Members { member: Some(flate2::bufread::GzDecoder::new(input)) }
    }
}

impl<R: Read> Read for Members<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        while let Some(mut member) = self.member.take() {
            let read = member.read(out);
            if out.is_empty() || !matches!(read, Ok(0)) {
                self.member = Some(member);
                return read;
            }
            let mut input = member.into_inner();
            loop {
                let next = input.fill_buf()?;
                match next.first() {
                    None => return Ok(0),
                    Some(0) => input.consume(1),
                    // The first byte of a member; its decoder checks the rest.
                    Some(0x1f) => break,
                    Some(_) => {
                        let what = "the compressed data ends, and something else follows it in the file";
                        return Err(io::Error::new(io::ErrorKind::InvalidData, what));
                    }
                }
            }
            self.member = Some(flate2::bufread::GzDecoder::new(input));
        }
        Ok(0)
    }
}

/// The receiving end, as a stream.
struct Pieces {
    full: Receiver<io::Result<Vec<u8>>>,
    empty: SyncSender<Vec<u8>>,
    piece: Vec<u8>,
    at: usize,
}

impl Read for Pieces {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.at == self.piece.len() {
            let used = std::mem::take(&mut self.piece);
            self.at = 0;
            if used.capacity() > 0 {
                let _ = self.empty.try_send(used);
            }
            match self.full.recv() {
                Ok(piece) => self.piece = piece?,
                Err(_) => return Ok(0),
            }
        }
        let n = out.len().min(self.piece.len() - self.at);
        out[..n].copy_from_slice(&self.piece[self.at..self.at + n]);
        self.at += n;
        Ok(n)
    }
}
