//! One file of native code: from an offset in it to functions and lines.

use addr2line::Loader;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::time::UNIX_EPOCH;

/// A frame of native code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NativeFrame {
    pub(super) name: String,
    /// The source, or the file of the code if the source is not known.
    pub(super) file: String,
    pub(super) line: u32,
}

pub(super) struct Program {
    path: String,
    size: u64,
    modified: u64,
    state: State,
}

enum State {
    New,
    Unread(&'static str),
    Open(Box<Open>),
}

struct Open {
    loader: Loader,
    segments: Vec<Segment>,
}

/// A part of the file and the address that it is linked for.
struct Segment {
    offset: u64,
    size: u64,
    address: u64,
}

impl Program {
    pub(super) fn new(path: String, size: u64, modified: u64) -> Program {
        Program { path, size, modified, state: State::New }
    }

    fn short(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or(&self.path)
    }

    pub(super) fn is_python(&self) -> bool {
        self.short().starts_with("python3") || self.short().starts_with("libpython3")
    }

    pub(super) fn is_recorder(&self) -> bool {
        self.short() == "libgapless_malloc.so"
    }

    pub(super) fn unread(&self) -> Option<(&str, &'static str)> {
        match self.state {
            State::Unread(why) => Some((&self.path, why)),
            _ => None,
        }
    }

    fn open(&self) -> Result<Open, &'static str> {
        let file = std::fs::symlink_metadata(&self.path).map_err(|_| "it is not on this machine")?;
        if !file.is_file() {
            return Err("it is not a regular file");
        }
        let modified = file.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        let modified = modified.map_or(0, |time| time.as_nanos() as u64);
        if (file.len(), modified) != (self.size, self.modified) {
            return Err("the file was changed since");
        }
        let segments = segments(&self.path).ok_or("it is not an ELF file of this machine")?;
        let loader = Loader::new(&self.path).map_err(|_| "it cannot be read")?;
        Ok(Open { loader, segments })
    }

    /// The frames at an offset of the file, innermost first: at least one.
    pub(super) fn frames(&mut self, offset: u64) -> Vec<NativeFrame> {
        if matches!(self.state, State::New) {
            self.state = match self.open() {
                Ok(open) => State::Open(Box::new(open)),
                Err(why) => State::Unread(why),
            };
        }
        let found = match &self.state {
            State::Open(open) => open.frames(offset, &self.path),
            _ => Vec::new(),
        };
        if !found.is_empty() {
            return found;
        }
        vec![NativeFrame { name: format!("+{offset:#x}"), file: self.path.clone(), line: 0 }]
    }
}

impl Open {
    fn frames(&self, offset: u64, path: &str) -> Vec<NativeFrame> {
        let inside = |segment: &&Segment| offset.wrapping_sub(segment.offset) < segment.size;
        let Some(segment) = self.segments.iter().find(inside) else { return Vec::new() };
        let address = segment.address.wrapping_add(offset - segment.offset);
        let mut found = Vec::new();
        if let Ok(mut frames) = self.loader.find_frames(address) {
            while let Ok(Some(frame)) = frames.next() {
                let name = frame
                    .function
                    .as_ref()
                    .and_then(|name| name.demangle().ok().map(std::borrow::Cow::into_owned));
                let place = frame.location.as_ref();
                let file = place.and_then(|place| place.file);
                let line = place.and_then(|place| place.line).unwrap_or(0);
                let Some(name) = name.or_else(|| self.symbol(address)) else { continue };
                let file = file.map_or_else(|| path.to_owned(), str::to_owned);
                found.push(NativeFrame { name, line: if file == path { 0 } else { line }, file });
            }
        }
        if found.is_empty() {
            let named = self.symbol(address).map(|name| NativeFrame { name, file: path.to_owned(), line: 0 });
            found.extend(named);
        }
        found
    }

    fn symbol(&self, address: u64) -> Option<String> {
        let name = self.loader.find_symbol(address)?;
        Some(addr2line::demangle_auto(name.into(), None).into_owned())
    }
}

/// Reads the loaded parts of an ELF file of 64 bits, little-endian.
fn segments(path: &str) -> Option<Vec<Segment>> {
    let mut file = File::open(path).ok()?;
    let mut head = [0; 64];
    file.read_exact(&mut head).ok()?;
    if head[..6] != *b"\x7fELF\x02\x01" {
        return None;
    }
    let word = |bytes: &[u8], at: usize| bytes.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes);
    let half = |bytes: &[u8], at: usize| bytes.get(at..at + 2)?.try_into().ok().map(u16::from_le_bytes);
    let (start, size, count) = (word(&head, 32)?, half(&head, 54)?, half(&head, 56)?);
    file.seek(SeekFrom::Start(start)).ok()?;
    let mut table = vec![0; usize::from(size) * usize::from(count)];
    file.read_exact(&mut table).ok()?;
    let loaded = |part: &&[u8]| part.starts_with(&[1, 0, 0, 0]);
    table
        .chunks_exact(usize::from(size).max(56))
        .filter(loaded)
        .map(|part| Some(Segment { offset: word(part, 8)?, address: word(part, 16)?, size: word(part, 32)? }))
        .collect()
}
