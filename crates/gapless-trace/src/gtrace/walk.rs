//! Finding the blocks of a file that lies in memory (or is mapped), without unpacking any: header by header, or at once
//! by the index that a finished file carries.

use super::GtraceError;
use super::layout::{
    BLOCK_MAGIC, BlockHeader, END_ENTRY_LEN, END_MAGIC, FILE_HEADER_LEN, HEADER_LEN, Kind, MAGIC, MAX_RAW,
    VERSION, checksum,
};

/// One block where it lies in the file.
#[derive(Clone, Copy, Debug)]
pub struct BlockRef<'a> {
    pub header: BlockHeader,
    /// Offset of the block in the file.
    pub offset: u64,
    /// As stored, with its padding.
    pub(super) padded: &'a [u8],
}

/// The way in which a file ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tail {
    /// With an end block: the writer finished.
    Finished,
    /// After a whole block, without an end block.
    Unfinished,
    /// In the middle of block `block`, which begins at `offset`.
    Torn { block: u64, offset: u64 },
}

/// Walks the blocks in order. After the last, [`Blocks::tail`] says how the file ends. After an error nothing more
/// comes.
#[derive(Clone, Debug)]
pub struct Blocks<'a> {
    bytes: &'a [u8],
    at: usize,
    number: u64,
    tail: Option<Tail>,
}

impl<'a> Blocks<'a> {
    /// # Errors
    /// When the first eight bytes are not those of a `.gtrace` file of a version that this build reads.
    pub fn new(bytes: &'a [u8]) -> Result<Blocks<'a>, GtraceError> {
        check_file_header(&bytes[..bytes.len().min(FILE_HEADER_LEN)])?;
        Ok(Blocks { bytes, at: FILE_HEADER_LEN, number: 0, tail: None })
    }

    /// How the file ends; `None` before the walk is over.
    #[must_use]
    pub fn tail(&self) -> Option<Tail> {
        self.tail
    }

    fn step(&mut self) -> Result<Option<BlockRef<'a>>, GtraceError> {
        let rest = &self.bytes[self.at..];
        let (block, offset) = (self.number, self.at as u64);
        let Some((header, after)) = rest.split_first_chunk::<HEADER_LEN>() else {
            self.tail = Some(short_tail(rest, block, offset)?);
            return Ok(None);
        };
        let header = match check_header(header, block, offset) {
            Ok(header) => header,
            // A file grown in advance ends in zeros that the writer has not overwritten yet.
            Err(_) if rest.iter().all(|&b| b == 0) => {
                self.tail = Some(Tail::Torn { block, offset });
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        let padded_len = header.block_len() - HEADER_LEN as u64;
        if padded_len > after.len() as u64 {
            self.tail = Some(Tail::Torn { block, offset });
            return Ok(None);
        }
        let padded = &after[..padded_len as usize];
        self.at += HEADER_LEN + padded.len();
        self.number += 1;
        if header.kind == Kind::End as u8 {
            let more = self.bytes.len() - self.at;
            if more > 0 {
                return Err(after_end(self.number, self.at as u64));
            }
            self.tail = Some(Tail::Finished);
        }
        Ok(Some(BlockRef { header, offset, padded }))
    }
}

impl<'a> Iterator for Blocks<'a> {
    type Item = Result<BlockRef<'a>, GtraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.tail.is_some() {
            return None;
        }
        let step = self.step();
        if step.is_err() {
            self.tail = Some(Tail::Torn { block: self.number, offset: self.at as u64 });
        }
        step.transpose()
    }
}

impl<'a> BlockRef<'a> {
    /// The payload as stored.
    ///
    /// # Errors
    /// When its checksum differs.
    pub fn payload(&self) -> Result<&'a [u8], GtraceError> {
        check_payload(&self.header, self.offset, self.padded)
    }
}

/// The headers of all blocks of a finished file, found through its end block: three places of the file are touched,
/// however long it is. `None` if there is no index (the writer was killed, is still writing, or left it out): walk
/// then.
///
/// # Errors
/// When the end block is damaged or its entries lie outside the file.
pub fn index(bytes: &[u8]) -> Result<Option<Vec<(u64, BlockHeader)>>, GtraceError> {
    check_file_header(&bytes[..bytes.len().min(FILE_HEADER_LEN)])?;
    let Some((rest, magic)) = bytes.split_last_chunk::<8>() else { return Ok(None) };
    let Some((_, offset)) = rest.split_last_chunk::<8>() else { return Ok(None) };
    if *magic != END_MAGIC {
        return Ok(None);
    }
    let offset = u64::from_le_bytes(*offset);
    // Ordinary data can end in these eight bytes too: only a sound header makes it the end block.
    let Some(end) = block_at(bytes, offset).filter(|b| b.header.kind == Kind::End as u8) else {
        return Ok(None);
    };
    let payload = end.payload()?;
    if end.header.count == 0 {
        return Ok(None);
    }
    let malformed =
        |what: &str| GtraceError::Malformed { block: end.header.number, offset, what: what.to_owned() };
    let (entries, _) = payload
        .split_at_checked(end.header.count as usize * END_ENTRY_LEN)
        .ok_or_else(|| malformed("its index is longer than the block"))?;
    let found: Option<Vec<(u64, BlockHeader)>> = entries
        .chunks_exact(END_ENTRY_LEN)
        .zip(0..)
        .map(|(entry, number)| {
            let (at, _) = entry.split_first_chunk::<8>()?;
            let at = u64::from_le_bytes(*at);
            block_at(bytes, at).filter(|b| b.header.number == number).map(|b| (at, b.header))
        })
        .collect();
    found.map(Some).ok_or_else(|| malformed("its index names a block that does not exist"))
}

fn block_at(bytes: &[u8], offset: u64) -> Option<BlockRef<'_>> {
    let rest = bytes.get(usize::try_from(offset).ok()?..)?;
    let (header, after) = rest.split_first_chunk::<HEADER_LEN>()?;
    let header = BlockHeader::decode(header).ok()?;
    let padded = after.get(..usize::try_from(header.block_len()).ok()? - HEADER_LEN)?;
    Some(BlockRef { header, offset, padded })
}

pub(super) fn check_file_header(front: &[u8]) -> Result<(), GtraceError> {
    let known = front.len().min(MAGIC.len());
    if front[..known] != MAGIC[..known] {
        return Err(GtraceError::NotGtrace);
    }
    let [.., low, high] = front else { return Err(GtraceError::TooShort { len: front.len() as u64 }) };
    if front.len() < FILE_HEADER_LEN {
        return Err(GtraceError::TooShort { len: front.len() as u64 });
    }
    let version = u16::from_le_bytes([*low, *high]);
    if version != VERSION {
        return Err(GtraceError::Version { found: version });
    }
    Ok(())
}

pub(super) fn check_header(
    bytes: &[u8; HEADER_LEN],
    block: u64,
    offset: u64,
) -> Result<BlockHeader, GtraceError> {
    let corrupt = |what| GtraceError::Corrupt { block, offset, what };
    let header = BlockHeader::decode(bytes).map_err(corrupt)?;
    if header.number != block {
        return Err(corrupt("it carries the number of another block: blocks are missing or doubled"));
    }
    // Packed or not, a payload is never longer than its unpacked form.
    if header.payload_len > MAX_RAW {
        return Err(GtraceError::TooLarge { block, offset, limit: u64::from(MAX_RAW) });
    }
    Ok(header)
}

pub(super) fn check_payload<'a>(
    header: &BlockHeader,
    offset: u64,
    padded: &'a [u8],
) -> Result<&'a [u8], GtraceError> {
    if checksum(padded) != header.payload_sum {
        return Err(GtraceError::Corrupt {
            block: header.number,
            offset,
            what: "the checksum of its content differs",
        });
    }
    Ok(&padded[..header.payload_len as usize])
}

/// The end of a file that has no room for another header.
pub(super) fn short_tail(rest: &[u8], block: u64, offset: u64) -> Result<Tail, GtraceError> {
    let known = rest.len().min(BLOCK_MAGIC.len());
    if rest.is_empty() {
        Ok(Tail::Unfinished)
    } else if rest[..known] == BLOCK_MAGIC[..known] || rest.iter().all(|&b| b == 0) {
        Ok(Tail::Torn { block, offset })
    } else {
        Err(GtraceError::Corrupt { block, offset, what: "no block begins here" })
    }
}

pub(super) fn after_end(block: u64, offset: u64) -> GtraceError {
    GtraceError::Corrupt { block, offset, what: "something follows the end block" }
}
