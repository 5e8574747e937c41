//! Members of a zip archive by its central directory, stored or deflated, 64-bit sizes included. Only the members asked
//! for are read. A member that inflates to more than it declares, or to more than two hundred times its size, is
//! refused.

use crate::fault::{Fault, Problem, malformed, unsupported};
use crate::json::brief;
use crate::source::Source;
use flate2::Crc;
use flate2::read::DeflateDecoder;
use std::io::{Read, Seek};

const END: &[u8] = b"PK\x05\x06";
const END_64: &[u8] = b"PK\x06\x06";
const LOCATOR_64: &[u8] = b"PK\x06\x07";
const ENTRY: &[u8] = b"PK\x01\x02";
const LOCAL: &[u8] = b"PK\x03\x04";
/// A directory of a million members with long names.
const LARGEST_DIRECTORY: u64 = 256 << 20;
/// Text of graphs shrinks to a tenth or a fortieth; text that shrinks further is made for an attack.
const RATIO: u64 = 200;
/// Below this, a ratio means nothing.
const SMALL: u64 = 1 << 20;

/// One member, as the directory tells.
#[derive(Clone, Debug)]
pub struct Member {
    pub name: String,
    method: u16,
    encrypted: bool,
    crc: u32,
    packed: u64,
    pub size: u64,
    header: u64,
}

/// An archive whose directory is read.
#[derive(Debug)]
pub struct Zip<R> {
    source: Source<R>,
    pub members: Vec<Member>,
}

fn u16_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 2).map_or(0, |bytes| u64::from(u16::from_le_bytes([bytes[0], bytes[1]])))
}

fn u32_at(bytes: &[u8], at: usize) -> u64 {
    u16_at(bytes, at) | u16_at(bytes, at + 2) << 16
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u32_at(bytes, at) | u32_at(bytes, at + 4) << 32
}

impl<R: Read + Seek> Zip<R> {
    pub fn open(file: R) -> Result<Zip<R>, Fault> {
        let mut source = Source::new(file)?;
        let size = source.size();
        // The end record is 22 bytes and a comment of at most 65535; before it, 20 bytes if sizes are 64-bit.
        let tail_at = size.saturating_sub(22 + 65535 + 20);
        source.seek(tail_at, "the end of the archive")?;
        let tail = source.bytes(size - tail_at, 70_000, "the end of the archive")?;
        let end = (0..tail.len().saturating_sub(21)).rev().find(|at| {
            tail[*at..].starts_with(END) && *at as u64 + 22 + u16_at(&tail, at + 20) <= tail.len() as u64
        });
        let Some(end) = end else {
            return Err(Box::new(Problem::Truncated {
                offset: size,
                reading: "a zip archive: its directory is missing".into(),
            }));
        };
        let (mut count, mut length, mut start) =
            (u16_at(&tail, end + 10), u32_at(&tail, end + 12), u32_at(&tail, end + 16));
        if end >= 20 && tail[end - 20..].starts_with(LOCATOR_64) {
            let at = u64_at(&tail, end - 20 + 8);
            source.seek(at, "the directory's 64-bit end record")?;
            let record = source.bytes(56, 56, "the directory's 64-bit end record")?;
            if !record.starts_with(END_64) {
                return malformed(at, "the directory's 64-bit end record is not one");
            }
            (count, length, start) = (u64_at(&record, 32), u64_at(&record, 40), u64_at(&record, 48));
        }
        source.seek(start, "the directory")?;
        let directory = source.bytes(length, LARGEST_DIRECTORY, "the directory")?;
        let members = members(&directory, start, count)?;
        Ok(Zip { source, members })
    }

    /// The place of a member's content in the file, if it is stored as it is.
    pub fn place(&mut self, member: &Member) -> Result<Option<std::ops::Range<u64>>, Fault> {
        let start = self.content(member)?;
        if member.method != 0 || member.encrypted {
            return Ok(None);
        }
        if member.packed != member.size || member.size > self.source.size().saturating_sub(start) {
            let reading = format!("the member \"{}\"", brief(&member.name));
            return Err(Box::new(Problem::Truncated { offset: self.source.size(), reading }));
        }
        Ok(Some(start..start + member.size))
    }

    /// The first bytes of a member, at most `length`; no checksum is compared.
    pub fn head(&mut self, member: &Member, length: usize) -> Result<Vec<u8>, Fault> {
        self.content(member)?;
        if member.encrypted || !matches!(member.method, 0 | 8) {
            return unsupported(
                format!(
                    "the member \"{}\" is encrypted or compressed by an unknown method",
                    brief(&member.name)
                ),
                "save the file again without that",
            );
        }
        // Deflate never grows its input by more than a few bytes in each block.
        let packed = member.packed.min(self.source.left()).min(2 * length as u64 + 1024);
        let packed = self.source.bytes(packed, packed, "a member of the archive")?;
        let mut content = Vec::new();
        if member.method == 0 {
            content.extend_from_slice(&packed[..packed.len().min(length)]);
        } else if let Err(error) =
            DeflateDecoder::new(&packed[..]).take(length as u64).read_to_end(&mut content)
        {
            // The end of the bytes that were read is not the end of the member.
            if content.is_empty() {
                let what = format!("the member \"{}\" is damaged: {error}", brief(&member.name));
                return malformed(member.header, what);
            }
        }
        Ok(content)
    }

    /// Goes to a member's content and gives its place.
    fn content(&mut self, member: &Member) -> Result<u64, Fault> {
        self.source.seek(member.header, "a member of the archive")?;
        let local = self.source.bytes(30, 30, "a member of the archive")?;
        if !local.starts_with(LOCAL) {
            let shown = brief(&member.name);
            return malformed(
                member.header,
                format!("the member \"{shown}\" does not begin where the directory says"),
            );
        }
        self.source.skip(u16_at(&local, 26) + u16_at(&local, 28), "a member of the archive")?;
        Ok(self.source.at())
    }

    /// The content of one member, of at most `limit` bytes.
    pub fn read(&mut self, member: &Member, limit: u64) -> Result<Vec<u8>, Fault> {
        let shown = brief(&member.name);
        if member.encrypted {
            return unsupported(
                format!("the member \"{shown}\" is encrypted"),
                "save the model again without a password",
            );
        }
        if member.size > limit {
            let what = format!("the member \"{shown}\" of {} bytes", member.size);
            return Err(Box::new(Problem::TooLarge { offset: member.header, what, limit }));
        }
        self.content(member)?;
        let packed = self.source.bytes(member.packed, limit, "a member of the archive")?;
        let content = match member.method {
            0 => packed,
            8 => inflate(&packed, member, &shown)?,
            other => {
                let what = format!("the member \"{shown}\" is compressed by method {other}");
                return unsupported(
                    what,
                    "only stored and deflated members are read: save the file again without that method",
                );
            }
        };
        if content.len() as u64 != member.size {
            let what = format!(
                "the member \"{shown}\" has {} bytes, the directory says {}",
                content.len(),
                member.size
            );
            return malformed(member.header, what);
        }
        let mut crc = Crc::new();
        crc.update(&content);
        if crc.sum() != member.crc {
            return malformed(
                member.header,
                format!("the member \"{shown}\" is damaged: its checksum differs; copy the file again"),
            );
        }
        Ok(content)
    }
}

fn inflate(packed: &[u8], member: &Member, shown: &str) -> Result<Vec<u8>, Fault> {
    if member.size > SMALL && member.size / RATIO > packed.len() as u64 {
        return malformed(
            member.header,
            format!(
                "the member \"{shown}\" claims to inflate {} bytes to {}: refused as a zip bomb",
                packed.len(),
                member.size
            ),
        );
    }
    let mut content = Vec::new();
    // One byte more than declared is enough to see that the declaration is false.
    match DeflateDecoder::new(packed).take(member.size + 1).read_to_end(&mut content) {
        Ok(_) => Ok(content),
        Err(error) => malformed(member.header, format!("the member \"{shown}\" is damaged: {error}")),
    }
}

fn members(directory: &[u8], start: u64, count: u64) -> Result<Vec<Member>, Fault> {
    let mut members = Vec::new();
    let mut at = 0;
    while members.len() as u64 != count {
        let place = start + at as u64;
        let entry = directory.get(at..).unwrap_or_default();
        if entry.len() < 46 || !entry.starts_with(ENTRY) {
            return malformed(
                place,
                format!("the directory ends after {} of {count} members", members.len()),
            );
        }
        let (name, extra, comment) =
            (u16_at(entry, 28) as usize, u16_at(entry, 30) as usize, u16_at(entry, 32) as usize);
        let Some(name_bytes) = entry.get(46..46 + name) else {
            return malformed(place, "the directory ends within a name");
        };
        let mut member = Member {
            name: String::from_utf8_lossy(name_bytes).into_owned(),
            method: u16_at(entry, 10) as u16,
            encrypted: u16_at(entry, 8) & 1 != 0,
            crc: u32_at(entry, 16) as u32,
            packed: u32_at(entry, 20),
            size: u32_at(entry, 24),
            header: u32_at(entry, 42),
        };
        wide(entry.get(46 + name..46 + name + extra).unwrap_or_default(), &mut member);
        members.push(member);
        at += 46 + name + extra + comment;
    }
    Ok(members)
}

/// Sizes that 32 bits do not hold stand in an extra field of their own, those alone and in this order.
fn wide(mut extra: &[u8], member: &mut Member) {
    while extra.len() >= 4 {
        let length = u16_at(extra, 2) as usize;
        if u16_at(extra, 0) == 1 {
            let mut at = 4;
            for size in [&mut member.size, &mut member.packed, &mut member.header] {
                if *size == 0xffff_ffff && at + 8 <= (4 + length).min(extra.len()) {
                    *size = u64_at(extra, at);
                    at += 8;
                }
            }
        }
        extra = extra.get(4 + length..).unwrap_or_default();
    }
}
