//! What a stream of bytes is, by its first bytes, and the bytes inside where it is compressed.
//!
//! Decompression runs on a thread of its own, a few pieces ahead of the parser; a plain file is read directly.

use crate::error::{Fault, Problem};
use std::io::{self, Read};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

/// A format that there is a reader for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Pickle,
    Json,
    Gtrace,
    RmmCsv,
    MiniMallocCsv,
}

/// How bytes are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Packing {
    Gzip,
    Zstd,
}

/// How many first bytes decide.
pub(crate) const HEAD: usize = 4096;
/// Bytes that the decompressor hands over at a time.
const PIECE: usize = 256 << 10;
/// Pieces under way between the threads.
const AHEAD: usize = 3;

pub(crate) fn packing(head: &[u8]) -> Option<Packing> {
    if head.starts_with(&[0x1f, 0x8b]) {
        Some(Packing::Gzip)
    } else if head.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) {
        Some(Packing::Zstd)
    } else {
        None
    }
}

/// The format of uncompressed bytes.
pub(crate) fn format(head: &[u8]) -> Result<Format, Fault> {
    let no = |looks_like: &str, help| {
        Err(Box::new(Problem::NotATrace { looks_like: looks_like.to_owned(), help }))
    };
    const SNAPSHOT: &str = "give a file from torch.cuda.memory._dump_snapshot(PATH)";
    if head.is_empty() {
        return Err(Box::new(Problem::EmptyFile));
    }
    if head.starts_with(b"GTRACE") {
        return Ok(Format::Gtrace);
    }
    if let [0x80, protocol, ..] = *head {
        return match protocol {
            2..=5 => Ok(Format::Pickle),
            _ => no(
                &format!("a pickle of protocol {protocol}"),
                "load it in Python and dump it again with pickle.dump(snapshot, file, protocol=4)",
            ),
        };
    }
    let text = head.strip_prefix("\u{feff}".as_bytes()).unwrap_or(head).trim_ascii_start();
    if let [b'{' | b'[', ..] = text {
        return Ok(Format::Json);
    }
    let line = text.split(|&b| b == b'\n' || b == b'\r').next().unwrap_or_default();
    if let Ok(line) = std::str::from_utf8(line)
        && let Some(format) = csv_format(line)
    {
        return Ok(format);
    }
    for (magic, looks_like, help) in [
        (
            &b"PK\x03\x04"[..],
            "a zip archive, such as a checkpoint of torch.save (.pt)",
            "checkpoints hold weights, not memory events: give a file from torch.cuda.memory._dump_snapshot(PATH)",
        ),
        (b"\x89PNG", "a PNG image", SNAPSHOT),
        (b"\xff\xd8\xff", "a JPEG image", SNAPSHOT),
        (b"GIF8", "a GIF image", SNAPSHOT),
        (b"%PDF", "a PDF document", SNAPSHOT),
        (b"\x7fELF", "an ELF program or library", SNAPSHOT),
        (b"MZ", "a Windows program", SNAPSHOT),
        (b"BZh", "a bzip2 archive", "decompress it first (bunzip2); gzip and zstd are read directly"),
        (b"\xfd7zXZ", "an xz archive", "decompress it first (unxz); gzip and zstd are read directly"),
        (b"7z\xbc\xaf", "a 7z archive", "unpack it first; gzip and zstd are read directly"),
        (
            b"SQLite format 3",
            "an SQLite database",
            "export Nsight or profiler data as a torch snapshot instead",
        ),
        (b"\x89HDF", "an HDF5 file", SNAPSHOT),
        (b"PAR1", "a Parquet file", "give the trace that it was exported from"),
        (b"<", "HTML or XML", "a report is made from a trace: give the trace itself"),
    ] {
        if head.starts_with(magic) {
            return no(looks_like, help);
        }
    }
    if text.iter().all(|&b| b == b'\t' || b == b'\n' || b == b'\r' || b >= b' ') {
        let shown: String = String::from_utf8_lossy(line).chars().take(60).collect();
        return no(
            &format!("text that begins with {shown:?}"),
            "formats: torch snapshot (pickle or JSON), .gtrace, RMM's CSV log, MiniMalloc CSV; gzip or zstd around them",
        );
    }
    no(
        "binary data of no kind that Gapless knows",
        "formats: torch snapshot (pickle or JSON), .gtrace, RMM's CSV log, MiniMalloc CSV; gzip or zstd around them",
    )
}

/// The CSV format with this header.
fn csv_format(header: &str) -> Option<Format> {
    let columns: Vec<String> =
        header.split(',').map(|c| c.trim().trim_matches('"').to_ascii_lowercase()).collect();
    let has = |name: &str| columns.iter().any(|c| c == name);
    if ["action", "pointer", "size", "stream"].iter().all(|c| has(c)) {
        return Some(Format::RmmCsv);
    }
    let from = has("lower") || has("start") || has("begin");
    let to = has("upper") || has("end");
    (from && to && has("size")).then_some(Format::MiniMallocCsv)
}

/// Runs `parse` over the decompressed bytes of `input`.
pub(crate) fn unpacked<T>(
    packing: Packing,
    input: &mut (dyn Read + Send),
    parse: impl FnOnce(&mut (dyn Read + Send)) -> T,
) -> T {
    let (full_sender, full) = sync_channel::<io::Result<Vec<u8>>>(AHEAD);
    let (empty, empty_receiver) = sync_channel::<Vec<u8>>(AHEAD + 2);
    std::thread::scope(|scope| {
        scope.spawn(move || pump(packing, input, &full_sender, &empty_receiver));
        let mut pieces = Pieces { full, empty, piece: Vec::new(), at: 0 };
        let result = parse(&mut pieces);
        // The other thread ends when it can hand over no more.
        drop(pieces);
        result
    })
}

fn pump(
    packing: Packing,
    input: &mut (dyn Read + Send),
    full: &SyncSender<io::Result<Vec<u8>>>,
    empty: &Receiver<Vec<u8>>,
) {
    let opened: io::Result<Box<dyn Read + '_>> = match packing {
        Packing::Gzip => Ok(Box::new(flate2::read::MultiGzDecoder::new(input))),
        Packing::Zstd => zstd::Decoder::new(input).map(|mut decoder| {
            // 128 MiB, the most that `zstd` itself takes without being told to.
            let _ = decoder.window_log_max(27);
            Box::new(decoder) as Box<dyn Read>
        }),
    };
    let mut decoder = match opened {
        Ok(decoder) => decoder,
        Err(error) => {
            let _ = full.send(Err(error));
            return;
        }
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
