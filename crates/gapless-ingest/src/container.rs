//! The format of a stream of bytes, by its first bytes.

use crate::error::{Fault, Problem};
use crate::strangers;
use gapless_formats::{csv, minimalloc};

/// A format that there is a reader for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Pickle,
    Json,
    Gtrace,
    /// A recording of host memory.
    HostRun,
    RmmCsv,
    MiniMallocCsv,
    /// A compiled module of XLA.
    Hlo,
    /// All modules of a folder.
    HloFolder,
    /// A profile of JAX's devices.
    Pprof,
}

/// Number of first bytes that decide.
pub(crate) const HEAD: usize = 4096;

/// The format of uncompressed bytes of the file `name`.
pub(crate) fn format(head: &[u8], name: &str) -> Result<Format, Fault> {
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
    if head.starts_with(b"GAPHOST1") {
        return Ok(Format::HostRun);
    }
    if head.starts_with(crate::hlo::folder::MAGIC) {
        return Ok(Format::HloFolder);
    }
    if gapless_formats::hlo::is_hlo(head) {
        return Ok(Format::Hlo);
    }
    if gapless_formats::pprof::is_pprof(head) {
        return Ok(Format::Pprof);
    }
    if let Some((looks_like, help)) = strangers::known(head, name) {
        return no(looks_like, help);
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
    let line = csv::first_line(head);
    if let Ok(line) = std::str::from_utf8(line)
        && let Some(format) = csv_format(line)
    {
        return Ok(format);
    }
    for (magic, looks_like, help) in [
        (&b"\x89PNG"[..], "a PNG image", SNAPSHOT),
        (b"\xff\xd8\xff", "a JPEG image", SNAPSHOT),
        (b"GIF8", "a GIF image", SNAPSHOT),
        (b"%PDF", "a PDF document", SNAPSHOT),
        (b"\x7fELF", "an ELF program or library", SNAPSHOT),
        (b"MZ", "a Windows program", SNAPSHOT),
        (b"BZh", "a bzip2 archive", "decompress it first (bunzip2); gzip and zstd are read directly"),
        (b"\xfd7zXZ", "an xz archive", "decompress it first (unxz); gzip and zstd are read directly"),
        (b"7z\xbc\xaf", "a 7z archive", "unpack it first; gzip and zstd are read directly"),
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
    if minimalloc::is_header(header) {
        return Some(Format::MiniMallocCsv);
    }
    let columns = csv::columns(1, header).ok()?;
    let has = |name: &str| columns.iter().any(|c| c == name);
    ["action", "pointer", "size", "stream"].iter().all(|c| has(c)).then_some(Format::RmmCsv)
}
