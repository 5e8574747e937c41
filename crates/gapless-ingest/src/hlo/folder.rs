//! A folder of XLA's dumps as one stream, so that everything that reads a file reads a folder:
//!
//! ```text
//! GAPXLA1\n, then for each module:
//! u64 length of the name, the name, u64 length of the module, the module (an HloProto)
//! ```

use super::Modules;
use crate::error::{Fault, Problem};
use crate::options::Limits;
use gapless_formats::packing::{Packing, unpacked};
use gapless_trace::Trace;
use std::collections::VecDeque;
use std::io::{self, Cursor, Read};
use std::path::{Path, PathBuf};

pub(crate) const MAGIC: &[u8] = b"GAPXLA1\n";

/// The stream of a folder's modules. A module is read when the stream gets there.
pub(crate) struct Folder {
    files: VecDeque<PathBuf>,
    part: Cursor<Vec<u8>>,
}

impl Folder {
    /// The modules of the folder at `path`; `None` if there are none. A dump has several files of each module: the
    /// compiled ones have the buffers, and those of the GPU go before those of the CPU.
    pub(crate) fn of(path: &Path) -> Option<Folder> {
        let entries = std::fs::read_dir(path).ok()?;
        let name = |path: &PathBuf| {
            path.file_name().map_or(String::new(), |name| name.to_string_lossy().into_owned())
        };
        let is_module = |path: &PathBuf| {
            let name = name(path);
            let plain = name.strip_suffix(".gz").or(name.strip_suffix(".zst")).unwrap_or(&name);
            plain.ends_with(".hlo.pb")
        };
        let all: Vec<PathBuf> =
            entries.filter_map(|entry| Some(entry.ok()?.path())).filter(is_module).collect();
        let having = |text: &str| -> Vec<PathBuf> {
            all.iter().filter(|path| name(path).contains(text)).cloned().collect()
        };
        let of_gpus = having("gpu_after_optimizations");
        let compiled = having("after_optimizations");
        let mut files = [of_gpus, compiled, all.clone()].into_iter().find(|files| !files.is_empty())?;
        files.sort();
        Some(Folder { files: files.into(), part: Cursor::new(MAGIC.to_vec()) })
    }
}

impl Read for Folder {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        loop {
            let read = self.part.read(out)?;
            if read > 0 || out.is_empty() {
                return Ok(read);
            }
            let Some(path) = self.files.pop_front() else { return Ok(0) };
            let of_file =
                |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
            let module = whole(&path).map_err(of_file)?;
            let name = path.file_name().map_or(String::new(), |name| name.to_string_lossy().into_owned());
            let mut part = Vec::with_capacity(module.len() + name.len() + 16);
            for bytes in [name.as_bytes(), &module] {
                part.extend((bytes.len() as u64).to_le_bytes());
                part.extend(bytes);
            }
            self.part = Cursor::new(part);
        }
    }
}

/// A file without its compression.
fn whole(path: &Path) -> io::Result<Vec<u8>> {
    let bytes = std::fs::read(path)?;
    let Some(packing) = Packing::of(&bytes) else { return Ok(bytes) };
    unpacked(packing, &mut &bytes[..], |inner| {
        let mut whole = Vec::new();
        inner.take(super::LONGEST).read_to_end(&mut whole).map(|_| whole)
    })
}

/// The modules of a stream, which run one after the other.
pub(crate) fn read(input: &mut (dyn Read + Send), format: String, limits: Limits) -> Result<Trace, Fault> {
    let mut modules = Modules::new(limits);
    let (mut at, mut bare) = (MAGIC.len() as u64, 0);
    part(input, MAGIC.len() as u64, &mut 0)?;
    while let Some(name) = length(input, &mut at)? {
        part(input, name, &mut at)?;
        let Some(module) = length(input, &mut at)? else { break };
        let hlo = super::parse(&mut part(input, module, &mut at)?.as_slice(), limits)?;
        // Modules before their compilation have no buffers.
        if hlo.assignment.is_none() {
            bare += 1;
            continue;
        }
        modules.add(&hlo, &hlo.module.name.replace('.', "_"))?;
    }
    if modules.count == 0 && bare > 0 {
        return Err(super::without_buffers());
    }
    modules.finish(format)
}

fn length(input: &mut (dyn Read + Send), at: &mut u64) -> Result<Option<u64>, Fault> {
    let bytes = upto(input, 8, *at)?;
    *at += bytes.len() as u64;
    Ok(<[u8; 8]>::try_from(bytes.as_slice()).ok().map(u64::from_le_bytes))
}

/// The next `length` bytes. Memory grows with what the file has, and not with what it claims.
fn part(input: &mut (dyn Read + Send), length: u64, at: &mut u64) -> Result<Vec<u8>, Fault> {
    let bytes = upto(input, length.min(super::LONGEST), *at)?;
    *at += bytes.len() as u64;
    if bytes.len() as u64 != length {
        return Err(Box::new(Problem::Truncated { offset: *at, reading: "a module".to_owned() }));
    }
    Ok(bytes)
}

fn upto(input: &mut (dyn Read + Send), length: u64, offset: u64) -> Result<Vec<u8>, Fault> {
    let mut bytes = Vec::new();
    let read = input.take(length).read_to_end(&mut bytes);
    read.map_err(|source| Box::new(Problem::Io { offset, source }))?;
    Ok(bytes)
}
