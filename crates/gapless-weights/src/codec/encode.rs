//! A chunk of values to bytes: a sample estimates the size of each plane, and exact counts decide if codings are close.

use super::ahead::Ahead;
use super::cascade::{self, Cascade, huffman};
use super::path::Path;
use super::{ALIGN, Coding, HEADER, Kind, Mode, Split, aligned, counts, mask, rans, three_bits};

/// rANS takes the place of a cascade if the cascade wastes more than this share of a bit for each value. The margin
/// is wide because rANS decodes at half the speed.
const CASCADE_WASTE: f64 = 0.13;
/// Cascades may take so many bits a value more than Huffman's code would, in the mean of the chunks since
/// [`Encoder::begin`]: half a point of the ratio, less the bytes of a chunk beside its planes.
const HUFFMAN_WASTE: f64 = 0.064;
/// rANS takes the place of plain bytes if it saves at least this share of the plane.
const PLAIN_GAIN: f64 = 0.005;
/// The same for the low bytes of bf16 beside a cascade. It is larger because rANS makes the chunk take three times as
/// long, and a GPU then leaves the chunk to the host.
const LOW_GAIN: f64 = 0.02;
/// A sample misjudged its chunk if its cascade costs this many bits a value more than the best one.
const MISJUDGED: f64 = 0.005;
/// Bits a value that rANS takes for its tables and states in a whole chunk with many symbols.
const TABLE_BITS: f64 = 0.07;
/// Bytes that frequencies of a quarter of a plane seem to save only because they fit that quarter: 1 / ln 2 bits for
/// each symbol of it, four times.
const TUNED: usize = 184;
/// Zeros are taken out if at least this share of a sample is zero.
const ZEROS: f64 = 0.15;
/// Up to this share of zeros, a bit for each value costs less than zeros in both planes do in any coding. So only
/// the mask is tried.
const CERTAIN_ZEROS: f64 = 0.8;
/// The longest period of a repeated pattern.
const PERIOD: usize = 1024;

/// Encodes chunks of one kind. Holds the tables that a chunk needs, so that chunks after the first allocate nothing.
#[derive(Debug)]
pub struct Encoder {
    kind: Kind,
    path: Path,
    tables: [Vec<u8>; 3],
    /// Upper halves of words, or halves in another order of bits.
    halves: Vec<u8>,
    low: Vec<u8>,
    high: Vec<u8>,
    /// A cascade, until its place in the chunk is known.
    planes: Vec<u8>,
    words: Vec<u16>,
    kept: Vec<u8>,
    inner: Vec<u8>,
    room: Vec<u8>,
    /// Bits by which the chunks until now are better than [`HUFFMAN_WASTE`] requires.
    spare: f64,
}

impl Encoder {
    /// An encoder for values of `kind`.
    pub fn new(kind: Kind, path: Path) -> Encoder {
        Encoder {
            kind,
            path: path.checked(),
            tables: [const { Vec::new() }; 3],
            halves: Vec::new(),
            low: Vec::new(),
            high: Vec::new(),
            planes: Vec::new(),
            words: Vec::new(),
            kept: Vec::new(),
            inner: Vec::new(),
            room: Vec::new(),
            spare: 0.0,
        }
    }

    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Forgets the chunks until now, so that the next one is encoded as if it came first.
    pub fn begin(&mut self) {
        self.spare = 0.0;
    }

    /// The room that `chunk` needs for `bytes` of values: sections are written before the encoder chooses between them.
    pub fn room(kind: Kind, bytes: usize) -> usize {
        let planes = kind.width() + 1;
        HEADER + planes * (aligned(rans::most(bytes / kind.width())) + ALIGN) + 2 * bytes
    }

    /// Encodes `values`, at most `MOST_VALUES` of them, at the head of `out`, which has `room`; returns the length.
    ///
    /// # Panics
    /// If the values are not whole, too many, or `out` is too short.
    pub fn chunk(&mut self, values: &[u8], out: &mut [u8]) -> usize {
        self.chunk_before(values, out, &[])
    }

    /// As `chunk`, and prefetches `next`, the values after these, meanwhile.
    ///
    /// # Panics
    /// As `chunk`.
    pub fn chunk_before(&mut self, values: &[u8], out: &mut [u8], next: &[u8]) -> usize {
        self.any(values, out, &mut Ahead::new(next))
    }

    /// As `chunk_before`, into `out`, which has `most` bytes or more; returns the length and the checksum. The chunk
    /// is made in memory that stays in a core's cache, and moved to `out` in one pass; with `past_caches` directly to
    /// memory, if `out` is aligned. The caller then calls `settle` behind the last chunk.
    ///
    /// # Panics
    /// As `chunk`.
    pub(crate) fn chunk_to(
        &mut self,
        values: &[u8],
        out: &mut [u8],
        next: &[u8],
        past_caches: bool,
    ) -> (usize, u64) {
        let room = Encoder::room(self.kind, values.len());
        let mut own = std::mem::take(&mut self.room);
        if own.len() < room + ALIGN {
            own = vec![0; room + ALIGN];
        }
        let begin = own.as_ptr().align_offset(ALIGN).min(ALIGN);
        let ahead = &mut Ahead::new(next);
        let length = self.any(values, &mut own[begin..], ahead);
        let chunk = &own[begin..begin + length];
        let sum = ahead.move_out(chunk, &mut out[..length], past_caches);
        self.room = own;
        (length, sum)
    }

    /// The most bytes that a chunk of `bytes` of values takes.
    pub fn most(bytes: usize) -> usize {
        HEADER + aligned(bytes)
    }

    fn any(&mut self, values: &[u8], out: &mut [u8], ahead: &mut Ahead) -> usize {
        let width = self.kind.width();
        let count = values.len() / width;
        assert!(
            values.len().is_multiple_of(width) && count <= super::MOST_VALUES,
            "whole values, not too many"
        );
        assert!(out.len() >= Encoder::room(self.kind, values.len()), "room for a chunk");
        self.make_room(aligned(count));
        if let Some(period) = period(values, width) {
            let pattern = &values[..period * width];
            header(out, Mode::Repeat, Split::Bytes, count);
            out[16..20].copy_from_slice(&(period as u32).to_le_bytes());
            out[HEADER..HEADER + pattern.len()].copy_from_slice(pattern);
            return close(out, HEADER + pattern.len());
        }
        let has_zeros = width > 1 && zeros(values, width) >= ZEROS;
        let mut length =
            if has_zeros { self.masked(values, out, ahead) } else { self.planes(values, out, ahead) };
        if length >= HEADER + values.len() {
            header(out, Mode::Raw, Split::Bytes, count);
            out[HEADER..HEADER + values.len()].copy_from_slice(values);
            length = close(out, HEADER + values.len());
        }
        length
    }

    /// Room for a chunk of `items` values, a multiple of 64. All buffers are for the same number, so that the length
    /// of `low` tells for all of them.
    fn make_room(&mut self, items: usize) {
        if self.low.len() < items {
            // Fresh vectors get zeroed pages without writing them, and a kind does not use all of these.
            (self.low, self.high) = (vec![0; items], vec![0; items]);
            (self.halves, self.planes) = (vec![0; 2 * items], vec![0; cascade::most(items)]);
            self.tables = std::array::from_fn(|_| vec![0; items + cascade::SLACK]);
        }
    }

    /// The chunk as a mask and a chunk of the kept values, or as planes if that is shorter.
    fn masked(&mut self, values: &[u8], out: &mut [u8], ahead: &mut Ahead) -> usize {
        let width = self.kind.width();
        let count = values.len() / width;
        let (mut kept, mut inner) = (std::mem::take(&mut self.kept), std::mem::take(&mut self.inner));
        kept.resize(values.len() + mask::SLACK, 0);
        let mut bits = vec![0; count.div_ceil(8)];
        let number = mask::take(values, width, &mut bits, &mut kept, self.path);
        let zeros = 1.0 - number as f64 / count as f64;
        let is_certain = (ZEROS..CERTAIN_ZEROS).contains(&zeros);
        let plain = if is_certain { usize::MAX } else { self.planes(values, out, ahead) };
        let values = &kept[..number * width];
        inner.resize(Encoder::room(self.kind, values.len()), 0);
        let mut length = self.planes(values, &mut inner, ahead);
        if length >= HEADER + values.len() {
            header(&mut inner, Mode::Raw, Split::Bytes, number);
            inner[HEADER..HEADER + values.len()].copy_from_slice(values);
            length = close(&mut inner, HEADER + values.len());
        }
        let at = HEADER + aligned(bits.len());
        let whole = at + length;
        let result = if whole < plain {
            header(out, Mode::Masked, Split::Bytes, count);
            out[16..20].copy_from_slice(&(number as u32).to_le_bytes());
            out[HEADER..HEADER + bits.len()].copy_from_slice(&bits);
            close(out, HEADER + bits.len());
            out[at..whole].copy_from_slice(&inner[..length]);
            whole
        } else {
            plain
        };
        (self.kept, self.inner) = (kept, inner);
        result
    }

    fn planes(&mut self, values: &[u8], out: &mut [u8], ahead: &mut Ahead) -> usize {
        let width = self.kind.width();
        let count = values.len() / width;
        header(out, Mode::Planes, self.kind.split(), count);
        match self.kind.split() {
            Split::Halves => {
                let (at, codings, cascade) = self.half_planes(values, out, HEADER, ahead);
                self.finish(out, &codings, cascade, at)
            }
            Split::Words => {
                let mut halves = std::mem::take(&mut self.halves);
                let (mut at, mut codings) = (HEADER, Vec::with_capacity(4));
                for byte in 0..2 {
                    let words = values.as_chunks::<4>().0;
                    self.high.iter_mut().zip(words).for_each(|(to, word)| *to = word[byte]);
                    codings.push(self.byte_plane(count, out, &mut at, ahead));
                }
                for (half, word) in halves.as_chunks_mut::<2>().0.iter_mut().zip(values.as_chunks::<4>().0) {
                    *half = [word[2], word[3]];
                }
                let (at, more, cascade) = self.half_planes(&halves[..2 * count], out, at, ahead);
                self.halves = halves;
                codings.extend(more);
                self.finish(out, &codings, cascade, at)
            }
            Split::Fp16 => {
                let mut halves = std::mem::take(&mut self.halves);
                // The exponent gets a byte of its own; the three bits of mantissa beside it become a plane.
                let pairs = halves.as_chunks_mut::<2>().0.iter_mut().zip(values.as_chunks::<2>().0);
                for ((half, value), three) in pairs.zip(&mut self.high) {
                    let [high, low] = u16::from_le_bytes(*value).rotate_left(1).to_be_bytes();
                    *three = high & 7;
                    *half = u16::from_be_bytes([high >> 3, low]).rotate_right(1).to_le_bytes();
                }
                let mut at = HEADER;
                let three = self.three_bits(count, out, &mut at, ahead);
                let (at, more, cascade) = self.half_planes(&halves[..2 * count], out, at, ahead);
                self.halves = halves;
                let codings = [&[three], &more[..]].concat();
                self.finish(out, &codings, cascade, at)
            }
            Split::Bytes => {
                let (mut at, mut codings) = (HEADER, Vec::with_capacity(width));
                for byte in 0..width {
                    self.high
                        .iter_mut()
                        .zip(values.chunks_exact(width))
                        .for_each(|(to, value)| *to = value[byte]);
                    codings.push(self.byte_plane(count, out, &mut at, ahead));
                }
                self.finish(out, &codings, None, at)
            }
        }
    }

    fn finish(&self, out: &mut [u8], codings: &[Coding], cascade: Option<Cascade>, length: usize) -> usize {
        for (byte, coding) in out[8..16].iter_mut().zip(codings) {
            *byte = *coding as u8;
        }
        if let Some(cascade) = cascade {
            let mut at = 32;
            for level in 0..cascade.levels {
                let (bits, symbols) = (cascade.bits[level], (1usize << cascade.bits[level]) - 1);
                out[2 + level / 2] |= bits << (4 * (level % 2));
                out[16 + 4 * level..20 + 4 * level].copy_from_slice(&cascade.escapes[level].to_le_bytes());
                out[at..at + symbols].copy_from_slice(&cascade.palettes[level][..symbols]);
                at += symbols;
            }
        }
        length
    }

    /// The two planes of 16-bit values at `at`.
    ///
    /// A sample chooses a cascade, and shows if low bytes may compress; if not, they are stored at once. All levels
    /// are encoded, and their planes give the exact counts of the chunk. By these, the cascade is kept, or replaced
    /// by another one or by rANS.
    fn half_planes(
        &mut self,
        values: &[u8],
        out: &mut [u8],
        mut at: usize,
        ahead: &mut Ahead,
    ) -> (usize, [Coding; 2], Option<Cascade>) {
        let (count, path) = (values.len() / 2, self.path);
        let (high, low) = counts::of_sample(values, ahead);
        let mut cascade = Cascade::choose(&cascade::by_count(&high)).0;
        let low_is_close = counts::is_below(&low, 8.0 * (1.0 - LOW_GAIN) - TABLE_BITS);
        let (low_room, section) = if low_is_close {
            (&mut self.low[..aligned(count)], &mut self.planes[..])
        } else {
            out[at..].split_at_mut(aligned(count))
        };
        let low_room = low_room.as_chunks_mut::<64>().0;
        let tables = &mut self.tables;
        let mut length = cascade::encode(values, &mut cascade, low_room, section, tables, (path, ahead));
        let counts = cascade.counts(count, &section[..length], path);
        let order = cascade::by_count(&counts);
        let (best, least) = Cascade::choose(&order);
        let allowed = huffman(&order) as f64 + HUFFMAN_WASTE * count as f64;
        let excess = |bits: f64| bits - allowed;
        let wasted = least as f64 / count.max(1) as f64 - counts::entropy(&counts);
        let high_plan = match &order[..] {
            [] => Some(Plan::Constant(0)),
            [(_, byte)] => Some(Plan::Constant(*byte)),
            _ if excess(least as f64) > self.spare => better_by_rans(&counts, least, count, 0.0),
            _ if wasted > CASCADE_WASTE => better_by_rans(&counts, least, count, CASCADE_WASTE),
            _ => None,
        };
        self.spare -= match &high_plan {
            Some(Plan::Rans(_, bytes)) => excess(8.0 * *bytes as f64),
            Some(Plan::Constant(_)) => 0.0,
            None => excess(least as f64),
        };
        let limit = least as f64 + MISJUDGED * count as f64;
        if high_plan.is_none() && cascade.bits_of(count) as f64 > limit {
            let first = cascade.places(count)[1];
            let (rest, bits) = cascade.choose_rest(&order);
            if bits as f64 <= limit {
                // The first level is right, as almost always. Only later levels change, because a sample shows
                // rare symbols badly.
                let escapes = cascade.escapes[0];
                cascade = rest;
                cascade.escapes[0] = escapes;
                length =
                    first + cascade::encode_rest(&mut cascade, &mut section[first..], tables, (path, ahead));
            } else {
                // The sample misjudged the chunk, as happens if it has many small tensors.
                cascade = best;
                length = cascade::encode(values, &mut cascade, low_room, section, tables, (path, ahead));
            }
        }
        let low_coding = if low_is_close {
            self.low_plane(count, out, &mut at, ahead)
        } else {
            at += aligned(count);
            Coding::Raw
        };
        if low_coding == Coding::Rans {
            // Later chunks must compensate for the tables of this one.
            self.spare -= TABLE_BITS * count as f64;
        }
        let high_coding = match high_plan {
            Some(Plan::Constant(byte)) => put_constant(byte, out, &mut at),
            Some(Plan::Rans(frequencies, _)) => {
                counts::exponents(values, &mut self.high, path);
                let high = &self.high[..count];
                put_rans(high, &frequencies, &mut self.words, out, &mut at, (path, ahead))
            }
            None => {
                if low_is_close {
                    out[at..at + length].copy_from_slice(&self.planes[..length]);
                }
                at = close(out, at + length);
                return (at, [low_coding, Coding::Cascade], Some(cascade));
            }
        };
        (at, [low_coding, high_coding], None)
    }

    /// The plane of low bytes in `self.low` at `at`.
    fn low_plane(&mut self, count: usize, out: &mut [u8], at: &mut usize, ahead: &mut Ahead) -> Coding {
        let low = &self.low[..count];
        // A quarter of the bytes shows if rANS pays. Its frequencies are used for all if no symbol is missing and
        // the size comes out as expected.
        let begin = *at;
        let quarter = counts::of_quarter(low);
        let guess = plan_of(&quarter, count - TUNED.min(count), LOW_GAIN);
        let coded = match guess {
            None => Some(put_raw(low, out, at)),
            Some(Plan::Rans(frequencies, bytes)) if !quarter.contains(&0) => {
                let coding = put_rans(low, &frequencies, &mut self.words, out, at, (self.path, ahead));
                (*at - begin <= aligned(bytes + TUNED + count / 256)).then_some(coding)
            }
            Some(_) => None,
        };
        coded.unwrap_or_else(|| {
            *at = begin;
            match plan_of(&counts::of_bytes(low, true), count, LOW_GAIN) {
                Some(Plan::Constant(byte)) => put_constant(byte, out, at),
                Some(Plan::Rans(frequencies, _)) => {
                    put_rans(low, &frequencies, &mut self.words, out, at, (self.path, ahead))
                }
                None => put_raw(low, out, at),
            }
        })
    }

    /// The plane in `self.high` at `at`.
    fn byte_plane(&mut self, count: usize, out: &mut [u8], at: &mut usize, ahead: &mut Ahead) -> Coding {
        let plane = &self.high[..count];
        if counts::entropy(&counts::of_bytes(plane, false)) < 8.0 * (1.0 - PLAIN_GAIN) {
            match plan_of(&counts::of_bytes(plane, true), count, PLAIN_GAIN) {
                Some(Plan::Constant(byte)) => return put_constant(byte, out, at),
                Some(Plan::Rans(frequencies, _)) => {
                    return put_rans(plane, &frequencies, &mut self.words, out, at, (self.path, ahead));
                }
                None => {}
            }
        }
        put_raw(plane, out, at)
    }

    /// The plane of values below 8 in `self.high` at `at`.
    fn three_bits(&mut self, count: usize, out: &mut [u8], at: &mut usize, ahead: &mut Ahead) -> Coding {
        let plane = &self.high[..count];
        if counts::entropy(&counts::of_bytes(plane, false)) < 3.0 - 8.0 * PLAIN_GAIN {
            let counts = counts::of_bytes(plane, true);
            if let Some(byte) = only(&counts) {
                return put_constant(byte, out, at);
            }
            if let Some((frequencies, bytes)) = rans::plan(&counts)
                && (bytes as f64) < three_bits(count) as f64 - PLAIN_GAIN * count as f64
            {
                return put_rans(plane, &frequencies, &mut self.words, out, at, (self.path, ahead));
            }
        }
        for (block, planes) in plane.chunks(64).zip(out[*at..].as_chunks_mut::<24>().0) {
            let mut words = [0u64; 3];
            for (k, three) in block.iter().enumerate() {
                for (bit, word) in words.iter_mut().enumerate() {
                    *word |= u64::from(three >> bit & 1) << k;
                }
            }
            for (bytes, word) in planes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
                *bytes = word.to_le_bytes();
            }
        }
        *at = close(out, *at + three_bits(count));
        Coding::ThreeBits
    }
}

/// rANS, if it is better than a cascade of `bits` bits by more than `waste` bits a value.
fn better_by_rans(counts: &[u32; 256], bits: u64, count: usize, waste: f64) -> Option<Plan> {
    let waste = (waste * count as f64 / 8.0) as usize;
    let (frequencies, bytes) = rans::plan(counts)?;
    (bytes + waste < bits as usize / 8).then(|| Plan::Rans(Box::new(frequencies), bytes))
}

enum Plan {
    Constant(u8),
    /// rANS by these frequencies, and its bytes.
    Rans(Box<[u32; 256]>, usize),
}

/// The coding that replaces plain bytes, if it saves this share of them.
fn plan_of(counts: &[u32; 256], count: usize, gain: f64) -> Option<Plan> {
    if let Some(byte) = only(counts) {
        return Some(Plan::Constant(byte));
    }
    let (frequencies, bytes) = rans::plan(counts)?;
    let gain = (gain * count as f64) as usize;
    (bytes + gain < count).then(|| Plan::Rans(Box::new(frequencies), bytes))
}

/// The one symbol that occurs, if there is only one.
fn only(counts: &[u32; 256]) -> Option<u8> {
    let mut there = counts.iter().zip(0..=255).filter(|(count, _)| **count > 0);
    let (_, byte) = there.next()?;
    there.next().is_none().then_some(byte)
}

fn put_constant(byte: u8, out: &mut [u8], at: &mut usize) -> Coding {
    out[*at] = byte;
    *at = close(out, *at + 1);
    Coding::Constant
}

fn put_raw(plane: &[u8], out: &mut [u8], at: &mut usize) -> Coding {
    out[*at..*at + plane.len()].copy_from_slice(plane);
    *at = close(out, *at + plane.len());
    Coding::Raw
}

fn put_rans(
    plane: &[u8],
    frequencies: &[u32; 256],
    words: &mut Vec<u16>,
    out: &mut [u8],
    at: &mut usize,
    path: (Path, &mut Ahead),
) -> Coding {
    let length = rans::encode(plane, frequencies, &mut out[*at..], words, path);
    *at = close(out, *at + length);
    Coding::Rans
}

fn header(out: &mut [u8], mode: Mode, split: Split, count: usize) {
    out[..HEADER].fill(0);
    out[0] = mode as u8;
    out[1] = split as u8;
    out[4..8].copy_from_slice(&(count as u32).to_le_bytes());
}

/// Zeros up to the next boundary; returns that boundary.
fn close(out: &mut [u8], length: usize) -> usize {
    let end = aligned(length);
    out[length..end].fill(0);
    end
}

/// The period of a chunk that is one pattern over and over; at most half of the chunk.
fn period(values: &[u8], width: usize) -> Option<usize> {
    let first = values.first_chunk::<8>()?;
    let most = (values.len() / width / 2).min(PERIOD);
    if !comes_again(values, width, most) {
        return None;
    }
    // Eight bytes rule out almost every chunk that does not repeat; the rest is compared whole.
    let may_repeat = |at: usize| values[at * width..].first_chunk::<8>() == Some(first);
    (1..=most)
        .filter(|at| may_repeat(*at))
        .find(|at| values[at * width..] == values[..values.len() - at * width])
}

/// True if the first four bytes come again at one of the next `most` values. It looks at all places without an early
/// end, so that the compiler can use vectors.
fn comes_again(values: &[u8], width: usize, most: usize) -> bool {
    let Some(first) = values.first_chunk::<4>() else { return false };
    (width..=width.max(4)).step_by(width).any(|from| {
        let there = values[from..].as_chunks::<4>().0;
        let there = &there[..there.len().min(most * width / 4 + 1)];
        there.iter().map(|four| u32::from(four == first)).sum::<u32>() > 0
    })
}

/// The share of zeros in a sample.
fn zeros(values: &[u8], width: usize) -> f64 {
    fn count<const W: usize>(run: &[u8]) -> usize {
        // 16 bits hold the count of a run, and a vector holds more of them.
        let zero = |value: &[u8; W]| u16::from(*value == [0; W]);
        usize::from(run.as_chunks::<W>().0.iter().map(zero).sum::<u16>())
    }
    let run = 512 * width;
    let step = if values.len() < 64 * run { 1 } else { 16 };
    let (mut zero, mut all) = (0, 0);
    for run in values.chunks(run).step_by(step) {
        all += run.len() / width;
        zero += match width {
            2 => count::<2>(run),
            4 => count::<4>(run),
            _ => count::<8>(run),
        };
    }
    zero as f64 / all.max(1) as f64
}
