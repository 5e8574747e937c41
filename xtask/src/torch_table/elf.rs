//! The table of a class in a shared library, read from the file without loading it.
//!
//! The loader fills the words of a table, so in the file each is a relocation: against a symbol if the function is
//! exported, else against an address inside of the library.

use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

/// The value of a word after loading.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Word {
    /// It stays 0.
    Zero,
    Symbol(String),
    /// An address without an exported name.
    Inside,
}

const SECTION: u64 = 64;
const SYMBOL: usize = 24;
const RELOCATION: usize = 24;
const TYPE_RELA: u32 = 4;
const TYPE_DYNSYM: u32 = 11;

struct Section {
    kind: u32,
    offset: u64,
    size: u64,
    link: u32,
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> Result<u64> {
    let part = bytes.get(at..at + N).context("the file ends too early")?;
    Ok(part.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte)))
}

struct Library {
    file: File,
    sections: Vec<Section>,
}

impl Library {
    fn open(path: &Path) -> Result<Library> {
        let mut file = File::open(path)?;
        let mut head = [0; 64];
        file.read_exact(&mut head)?;
        if !head.starts_with(b"\x7fELF\x02\x01") {
            bail!("{} is not a 64-bit ELF library: name the libtorch_cuda.so of a wheel", path.display());
        }
        let (table, count) = (number::<8>(&head, 40)?, number::<2>(&head, 60)?);
        let mut library = Library { file, sections: Vec::new() };
        let headers = library.read(table, count * SECTION)?;
        for header in headers.chunks_exact(SECTION as usize) {
            library.sections.push(Section {
                kind: number::<4>(header, 4)? as u32,
                offset: number::<8>(header, 24)?,
                size: number::<8>(header, 32)?,
                link: number::<4>(header, 40)? as u32,
            });
        }
        Ok(library)
    }

    fn read(&mut self, at: u64, size: u64) -> Result<Vec<u8>> {
        let mut bytes = vec![0; usize::try_from(size)?];
        self.file.seek(SeekFrom::Start(at))?;
        self.file.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn section(&mut self, at: usize) -> Result<Vec<u8>> {
        let section = self.sections.get(at).context("there is no such section")?;
        let (offset, size) = (section.offset, section.size);
        self.read(offset, size)
    }
}

/// The words of the table that `library` exports as `symbol`.
pub(super) fn table(library: &Path, symbol: &str) -> Result<Vec<Word>> {
    let mut library = Library::open(library)?;
    let dynsym = library.sections.iter().position(|section| section.kind == TYPE_DYNSYM);
    let dynsym = dynsym.context("the library exports nothing")?;
    let names = library.section(library.sections[dynsym].link as usize)?;
    let symbols = library.section(dynsym)?;
    let name_of = |index: usize| -> Result<&str> {
        let at = number::<4>(&symbols, index * SYMBOL)? as usize;
        let name = names.get(at..).context("a name lies outside of the file")?;
        let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
        Ok(std::str::from_utf8(&name[..end])?)
    };
    let mut found = None;
    for index in 0..symbols.len() / SYMBOL {
        if name_of(index)? == symbol {
            found = Some((
                number::<8>(&symbols, index * SYMBOL + 8)?,
                number::<8>(&symbols, index * SYMBOL + 16)?,
            ));
        }
    }
    let (start, size) = found.with_context(|| format!("the library does not export {symbol}"))?;
    let mut words = BTreeMap::new();
    for at in 0..library.sections.len() {
        if library.sections[at].kind != TYPE_RELA {
            continue;
        }
        for entry in library.section(at)?.chunks_exact(RELOCATION) {
            let place = number::<8>(entry, 0)?;
            if (start..start + size).contains(&place) {
                let index = number::<4>(entry, 12)? as usize;
                let word = if index == 0 { Word::Inside } else { Word::Symbol(name_of(index)?.to_owned()) };
                words.insert((place - start) / 8, word);
            }
        }
    }
    Ok((0..size / 8).map(|at| words.remove(&at).unwrap_or(Word::Zero)).collect())
}
