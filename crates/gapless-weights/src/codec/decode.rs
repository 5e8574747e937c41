//! Bytes to a chunk of values. The bytes are untrusted: every length is compared with the bytes present, every count
//! with the items decoded.

use super::ahead::{Ahead, settle};
use super::cascade::{self, Cascade, LEVELS, SYMBOLS};
use super::path::Path;
use super::{HEADER, Kind, MOST_VALUES, aligned, mask, rans, three_bits};

/// The reason why a chunk cannot be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Damage(pub &'static str);

type Result<T> = std::result::Result<T, Damage>;

const SHORT: Damage = Damage("the chunk ends within a section");

/// Decodes chunks of one kind. Holds the tables that a chunk needs, so that chunks after the first allocate nothing.
#[derive(Debug)]
pub struct Decoder {
    kind: Kind,
    path: Path,
    stream: bool,
    tables: [Vec<u8>; 2],
    halves: Vec<u8>,
    low: Vec<u8>,
    high: Vec<u8>,
    slots: Box<rans::Table>,
    kept: Vec<u8>,
}

/// A plane: bytes of the chunk itself, or decoded ones.
enum Plane<'a> {
    There(&'a [u8]),
    Decoded,
}

impl Decoder {
    /// A decoder for values of `kind`. With `stream`, large outputs go past the caches if their memory is aligned:
    /// faster if they are not read soon.
    pub fn new(kind: Kind, path: Path, stream: bool) -> Decoder {
        Decoder {
            kind,
            path: path.checked(),
            stream,
            tables: [Vec::new(), Vec::new()],
            halves: Vec::new(),
            low: Vec::new(),
            high: Vec::new(),
            slots: Box::new([0; 4096]),
            kept: Vec::new(),
        }
    }

    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Decodes the chunk at the head of `bytes` into `out`, whose length must be the chunk's. After an error the
    /// contents of `out` are undefined.
    pub fn chunk(&mut self, bytes: &[u8], out: &mut [u8]) -> Result<()> {
        let result = self.any(bytes, out, true, &mut Ahead::new(&[]));
        self.settle();
        result
    }

    /// Waits until all threads can see stores that went past the caches.
    pub(crate) fn settle(&self) {
        if self.stream {
            settle();
        }
    }

    /// As `chunk`, of exactly one chunk; returns its checksum too, even after an error. Meanwhile it prefetches the
    /// lines of `next`, the chunk that is decoded after it. The caller calls `settle` behind the last chunk.
    pub(crate) fn chunk_and_sum(&mut self, bytes: &[u8], out: &mut [u8], next: &[u8]) -> (Result<()>, u64) {
        let mut ahead = Ahead::summing(bytes, next);
        let result = self.any(bytes, out, true, &mut ahead);
        (result, ahead.finish())
    }

    fn any(&mut self, bytes: &[u8], out: &mut [u8], may_be_masked: bool, ahead: &mut Ahead) -> Result<()> {
        let width = self.kind.width();
        let head = bytes.first_chunk::<HEADER>().ok_or(Damage("the chunk is shorter than its header"))?;
        let count = u32_at(head, 4);
        if count > MOST_VALUES || count * width != out.len() {
            return Err(Damage("the chunk has another number of values than its tensor says"));
        }
        let body = &bytes[HEADER..];
        match head[0] {
            0 => out.copy_from_slice(body.get(..out.len()).ok_or(SHORT)?),
            1 => {
                let period = u32_at(head, 16);
                if period == 0 || period > count {
                    return Err(Damage("a repeated pattern has an impossible length"));
                }
                let pattern = body.get(..period * width).ok_or(SHORT)?;
                for part in out.chunks_mut(pattern.len()) {
                    part.copy_from_slice(&pattern[..part.len()]);
                }
            }
            2 if may_be_masked && width > 1 => {
                let kept = u32_at(head, 16);
                let bits = body.get(..count.div_ceil(8)).ok_or(SHORT)?;
                let ones: usize = bits.iter().map(|byte| byte.count_ones() as usize).sum();
                let is_past_end =
                    !count.is_multiple_of(8) && bits.last().is_some_and(|last| last >> (count % 8) != 0);
                if ones != kept || is_past_end {
                    return Err(Damage("the mask has another number of values than the header says"));
                }
                let inner = body.get(aligned(bits.len())..).ok_or(SHORT)?;
                let mut values = std::mem::take(&mut self.kept);
                values.resize(kept * width + mask::SLACK, 0);
                let result = self.any(inner, &mut values[..kept * width], false, ahead);
                if result.is_ok() {
                    mask::put(bits, &values, width, out, self.path);
                }
                self.kept = values;
                result?;
            }
            3 => self.planes(head, body, out, ahead)?,
            _ => return Err(Damage("the chunk's mode is not known")),
        }
        Ok(())
    }

    fn planes(&mut self, head: &[u8; HEADER], body: &[u8], out: &mut [u8], ahead: &mut Ahead) -> Result<()> {
        if head[1] != self.kind.split() as u8 {
            return Err(Damage("the chunk is split in another way than its tensor's type is"));
        }
        let width = self.kind.width();
        let count = out.len() / width;
        if self.low.len() < aligned(count) {
            // Fresh vectors get zeroed pages without writing them, and few chunks use all of these.
            (self.low, self.high) = (vec![0; aligned(count)], vec![0; aligned(count)]);
            self.tables = std::array::from_fn(|_| vec![0; aligned(count) + cascade::SLACK]);
        }
        let codings = &head[8..16];
        let mut at = 0;
        match self.kind {
            Kind::Bf16 => self.halves(head, &codings[..2], body, &mut at, out, (self.stream, ahead)),
            Kind::Fp16 => {
                let mut halves = self.take_halves(2 * count);
                // The upper three bits of mantissa wait in `kept` while the tables are used.
                let mut three = std::mem::take(&mut self.kept);
                three.resize(count, 0);
                let done = self
                    .plane(codings[0], body, &mut at, count, ahead)
                    .map(|plane| match plane {
                        Plane::There(bytes) => three.copy_from_slice(bytes),
                        Plane::Decoded => three.copy_from_slice(&self.high[..count]),
                    })
                    .and_then(|()| {
                        self.halves(head, &codings[1..3], body, &mut at, &mut halves, (false, ahead))
                    });
                if done.is_ok() {
                    let pairs = out.as_chunks_mut::<2>().0.iter_mut().zip(halves.as_chunks::<2>().0);
                    for ((value, half), three) in pairs.zip(&three) {
                        let [high, low] = u16::from_le_bytes(*half).rotate_left(1).to_be_bytes();
                        *value =
                            u16::from_be_bytes([high << 3 | three & 7, low]).rotate_right(1).to_le_bytes();
                    }
                }
                (self.halves, self.kept) = (halves, three);
                done
            }
            Kind::Fp32 => {
                for byte in 0..2 {
                    let words = out.as_chunks_mut::<4>().0;
                    match self.plane(codings[byte], body, &mut at, count, ahead)? {
                        Plane::There(plane) => {
                            words.iter_mut().zip(plane).for_each(|(to, from)| to[byte] = *from)
                        }
                        Plane::Decoded => {
                            words.iter_mut().zip(&self.high).for_each(|(to, from)| to[byte] = *from)
                        }
                    }
                }
                let mut halves = self.take_halves(2 * count);
                let done = self.halves(head, &codings[2..4], body, &mut at, &mut halves, (false, ahead));
                for (word, half) in out.as_chunks_mut::<4>().0.iter_mut().zip(halves.as_chunks::<2>().0) {
                    [word[2], word[3]] = *half;
                }
                self.halves = halves;
                done
            }
            Kind::One => {
                match self.plane(codings[0], body, &mut at, count, ahead)? {
                    Plane::There(plane) => out.copy_from_slice(plane),
                    Plane::Decoded => out.copy_from_slice(&self.high[..count]),
                }
                Ok(())
            }
            Kind::Two | Kind::Four | Kind::Eight => {
                for byte in 0..width {
                    let plane = match self.plane(codings[byte], body, &mut at, count, ahead)? {
                        Plane::There(plane) => plane,
                        Plane::Decoded => &self.high,
                    };
                    out.chunks_exact_mut(width).zip(plane).for_each(|(to, from)| to[byte] = *from);
                }
                Ok(())
            }
        }
    }

    fn take_halves(&mut self, length: usize) -> Vec<u8> {
        let mut halves = std::mem::take(&mut self.halves);
        halves.resize(length, 0);
        halves
    }

    /// A plane of `count` bytes at `at`; decoded bytes go to `self.high`.
    fn plane<'a>(
        &mut self,
        coding: u8,
        body: &'a [u8],
        at: &mut usize,
        count: usize,
        ahead: &mut Ahead,
    ) -> Result<Plane<'a>> {
        let bytes = body.get(*at..).ok_or(SHORT)?;
        match coding {
            0 => {
                *at += aligned(count);
                Ok(Plane::There(bytes.get(..count).ok_or(SHORT)?))
            }
            1 => {
                *at += aligned(1);
                self.high[..count].fill(*bytes.first().ok_or(SHORT)?);
                Ok(Plane::Decoded)
            }
            2 => {
                let length = rans::length(bytes).ok_or(SHORT)?;
                *at += aligned(length);
                let high = &mut self.high[..count];
                if rans::decode(&bytes[..length], high, &mut self.slots, self.path, ahead) {
                    Ok(Plane::Decoded)
                } else {
                    Err(Damage("a plane coded by rANS does not end where it should"))
                }
            }
            4 => {
                let planes = bytes.get(..three_bits(count)).ok_or(SHORT)?.as_chunks::<24>().0;
                *at += aligned(three_bits(count));
                for (block, planes) in self.high[..count].chunks_mut(64).zip(planes) {
                    let word = |k: usize| {
                        let mut bytes = [0; 8];
                        bytes.copy_from_slice(&planes[8 * k..8 * k + 8]);
                        u64::from_le_bytes(bytes)
                    };
                    let words = [word(0), word(1), word(2)];
                    for (k, three) in block.iter_mut().enumerate() {
                        *three =
                            (words[0] >> k & 1 | (words[1] >> k & 1) << 1 | (words[2] >> k & 1) << 2) as u8;
                    }
                }
                Ok(Plane::Decoded)
            }
            _ => Err(Damage("the coding of a plane is not known")),
        }
    }

    /// Values of 16 bits from their two planes at `at`.
    fn halves(
        &mut self,
        head: &[u8; HEADER],
        codings: &[u8],
        body: &[u8],
        at: &mut usize,
        out: &mut [u8],
        (stream, ahead): (bool, &mut Ahead),
    ) -> Result<()> {
        let count = out.len() / 2;
        // The low plane: in place if it is stored in whole blocks, else decoded and moved to `self.low`.
        let in_place = codings[0] == 0;
        let low_at = *at;
        match self.plane(codings[0], body, at, count, ahead)? {
            Plane::There(_) => {}
            Plane::Decoded => std::mem::swap(&mut self.low, &mut self.high),
        }
        let low = if in_place {
            let whole = body.get(low_at..low_at + aligned(count)).ok_or(SHORT)?;
            whole.as_chunks::<64>().0
        } else {
            &[]
        };
        if codings[1] == 3 {
            let cascade = read_cascade(head, count)?;
            let length = cascade.places(count)[cascade.levels] + cascade.raw();
            let section = body.get(*at..*at + length).ok_or(SHORT)?;
            *at += aligned(length);
            let low = if in_place { low } else { self.low[..aligned(count)].as_chunks::<64>().0 };
            let is_whole =
                cascade::decode(&cascade, low, section, out, &mut self.tables, (self.path, stream), ahead);
            return if is_whole {
                Ok(())
            } else {
                Err(Damage("a cascade has other escapes than its header counts"))
            };
        }
        let high = match self.plane(codings[1], body, at, count, ahead)? {
            Plane::There(plane) => plane,
            Plane::Decoded => &self.high[..count],
        };
        let low = if in_place { low } else { self.low.as_chunks::<64>().0 };
        cascade::join(low, high, out, (self.path, stream), ahead);
        Ok(())
    }
}

fn u32_at(bytes: &[u8; HEADER], at: usize) -> usize {
    let mut four = [0; 4];
    four.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(four) as usize
}

/// The cascade of a header, with every invariant checked.
pub(super) fn read_cascade(head: &[u8; HEADER], count: usize) -> Result<Cascade> {
    let mut cascade = Cascade::default();
    let (mut at, mut items) = (32, count);
    for level in 0..LEVELS {
        let bits = head[2 + level / 2] >> (4 * (level % 2)) & 15;
        if bits == 0 {
            break;
        }
        if bits > 3 || cascade.levels != level {
            return Err(Damage("a cascade has a level of impossible width"));
        }
        let symbols = (1usize << bits) - 1;
        let escapes = u32_at(head, 16 + 4 * level);
        if at + symbols > 32 + SYMBOLS || escapes > items {
            return Err(Damage("a cascade passes on more items than it has"));
        }
        cascade.levels += 1;
        cascade.bits[level] = bits;
        cascade.palettes[level][..symbols].copy_from_slice(&head[at..at + symbols]);
        cascade.escapes[level] = escapes as u32;
        items = escapes;
        at += symbols;
    }
    if cascade.levels == 0 { Err(Damage("a cascade has no level")) } else { Ok(cascade) }
}
