//! A compressed tensor: a directory, then chunks. Any range of it can be read and checked alone.
//!
//! ```text
//! stream   0  4  "GWS1"
//!          4  1  kind of the values: 0 bf16, 1 fp16, 2 fp32, 3 to 6 others of 1, 2, 4, 8 bytes
//!          5  3  zero
//!          8  8  bytes of the tensor
//!         16  4  values in a chunk; the last one may have fewer
//!         20  4  number of chunks
//!         24  8  XXH3 of the 24 bytes before it and of the directory
//!         32     directory, for each chunk: where it begins (u32) and how long it is (u32), both in units of 64 bytes,
//!                and its XXH3 (u64); then zero up to a multiple of 64
//!                chunks, one after another without a hole
//! ```

use crate::checksum::checksum;
use crate::codec::{Damage, Decoder, Encoder, Kind, MOST_VALUES, Path, settle};
use std::ops::Range;

const MAGIC: &[u8; 4] = b"GWS1";
/// Length of the head before the directory.
pub const HEAD: usize = 32;
const UNIT: usize = 64;
const ENTRY: usize = 16;

/// The damage of a stream.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    #[error("the stream does not begin with GWS1")]
    Magic,
    #[error("the stream's header is damaged: {0}")]
    Header(&'static str),
    #[error("the stream has {there} bytes, its directory needs {needed}")]
    Short { there: u64, needed: u64 },
    #[error(
        "bytes {} to {} of the tensor are damaged: the checksum of chunk {chunk} differs", bytes.start, bytes.end
    )]
    Checksum { chunk: usize, bytes: Range<u64> },
    #[error("bytes {} to {} of the tensor are damaged: chunk {chunk}: {damage}", bytes.start, bytes.end)]
    Chunk { chunk: usize, bytes: Range<u64>, damage: Damage },
}

/// The place of a chunk in its stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Bytes from the stream's beginning.
    pub start: u64,
    /// Bytes of the chunk.
    pub length: usize,
    /// XXH3 of those bytes.
    pub checksum: u64,
}

/// The head and directory of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Directory {
    /// The split of its values.
    pub kind: Kind,
    /// Bytes of the tensor.
    pub bytes: u64,
    /// Values in a chunk.
    pub chunk: usize,
    /// The chunks in order.
    pub entries: Vec<Entry>,
}

const KINDS: [Kind; 7] = [Kind::Bf16, Kind::Fp16, Kind::Fp32, Kind::One, Kind::Two, Kind::Four, Kind::Eight];

/// Bytes before the first chunk of a stream of `chunks`.
pub fn directory_bytes(chunks: usize) -> usize {
    (HEAD + ENTRY * chunks).next_multiple_of(UNIT)
}

/// The number of chunks of `bytes` of a kind.
pub fn chunks_of(kind: Kind, bytes: u64) -> usize {
    bytes.div_ceil((kind.chunk() * kind.width()) as u64) as usize
}

impl Directory {
    /// An empty directory for a tensor of `bytes`.
    pub fn new(kind: Kind, bytes: u64) -> Directory {
        Directory { kind, bytes, chunk: kind.chunk(), entries: Vec::new() }
    }

    /// The stream's length so far.
    pub fn length(&self) -> u64 {
        self.entries
            .last()
            .map_or(directory_bytes(self.entries.len()) as u64, |last| last.start + last.length as u64)
    }

    /// The bytes before the first chunk.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; directory_bytes(self.entries.len())];
        bytes[..4].copy_from_slice(MAGIC);
        bytes[4] = KINDS.iter().position(|kind| *kind == self.kind).unwrap_or_default() as u8;
        bytes[8..16].copy_from_slice(&self.bytes.to_le_bytes());
        bytes[16..20].copy_from_slice(&(self.chunk as u32).to_le_bytes());
        bytes[20..24].copy_from_slice(&(self.entries.len() as u32).to_le_bytes());
        for (to, entry) in bytes[HEAD..].as_chunks_mut::<ENTRY>().0.iter_mut().zip(&self.entries) {
            to[..4].copy_from_slice(&((entry.start / UNIT as u64) as u32).to_le_bytes());
            to[4..8].copy_from_slice(&((entry.length / UNIT) as u32).to_le_bytes());
            to[8..].copy_from_slice(&entry.checksum.to_le_bytes());
        }
        let sum = sum_of(&bytes);
        bytes[24..32].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// The number of bytes of the stream that `parse` needs, from its first 32; `length` is the whole stream's.
    pub fn size_of(head: &[u8], length: u64) -> Result<usize, StreamError> {
        let head =
            head.first_chunk::<HEAD>().ok_or(StreamError::Short { there: length, needed: HEAD as u64 })?;
        if &head[..4] != MAGIC {
            return Err(StreamError::Magic);
        }
        let needed = (HEAD as u64 + ENTRY as u64 * u64::from(u32_at(head, 20))).next_multiple_of(UNIT as u64);
        if needed > length {
            return Err(StreamError::Short { there: length, needed });
        }
        Ok(needed as usize)
    }

    /// The directory at the head of a stream of `length` bytes. All ranges lie in the stream, in order, without holes.
    pub fn parse(bytes: &[u8], length: u64) -> Result<Directory, StreamError> {
        let size = Directory::size_of(bytes, length)?;
        let bytes =
            bytes.get(..size).ok_or(StreamError::Short { there: bytes.len() as u64, needed: size as u64 })?;
        let mut sum = [0; 8];
        sum.copy_from_slice(&bytes[24..32]);
        if sum_of(bytes) != u64::from_le_bytes(sum) {
            return Err(StreamError::Header("its checksum differs"));
        }
        let kind =
            KINDS.get(usize::from(bytes[4])).copied().ok_or(StreamError::Header("its kind is not known"))?;
        let mut eight = [0; 8];
        eight.copy_from_slice(&bytes[8..16]);
        let tensor = u64::from_le_bytes(eight);
        let (chunk, chunks) = (u32_at(bytes, 16) as usize, u32_at(bytes, 20) as usize);
        if chunk == 0 || chunk > MOST_VALUES {
            return Err(StreamError::Header("its chunks are too long"));
        }
        if !tensor.is_multiple_of(kind.width() as u64)
            || tensor.div_ceil((chunk * kind.width()) as u64) != chunks as u64
        {
            return Err(StreamError::Header("its chunks do not add up to the tensor"));
        }
        let (mut entries, mut end) = (Vec::with_capacity(chunks), size as u64);
        for from in bytes[HEAD..].as_chunks::<ENTRY>().0.iter().take(chunks) {
            let start = u64::from(u32_at(from, 0)) * UNIT as u64;
            let length = u32_at(from, 4) as usize * UNIT;
            if start != end {
                return Err(StreamError::Header("its chunks overlap or leave a hole"));
            }
            let mut sum = [0; 8];
            sum.copy_from_slice(&from[8..]);
            entries.push(Entry { start, length, checksum: u64::from_le_bytes(sum) });
            end += length as u64;
        }
        if end != length {
            return Err(StreamError::Short { there: length, needed: end });
        }
        Ok(Directory { kind, bytes: tensor, chunk, entries })
    }

    /// The bytes of the tensor that a chunk holds.
    pub fn range(&self, chunk: usize) -> Range<u64> {
        let whole = (self.chunk * self.kind.width()) as u64;
        let start = chunk as u64 * whole;
        start..(start + whole).min(self.bytes)
    }

    /// The chunks that hold a range of the tensor's bytes.
    pub fn chunks(&self, bytes: &Range<u64>) -> Range<usize> {
        let whole = (self.chunk * self.kind.width()) as u64;
        if bytes.is_empty() {
            return 0..0;
        }
        (bytes.start / whole) as usize..(bytes.end.div_ceil(whole) as usize).min(self.entries.len())
    }

    /// Compares a chunk's bytes with its checksum.
    pub fn check(&self, chunk: usize, bytes: &[u8]) -> Result<(), StreamError> {
        self.compare(chunk, bytes, checksum(bytes))
    }

    fn compare(&self, chunk: usize, bytes: &[u8], sum: u64) -> Result<(), StreamError> {
        if bytes.len() == self.entries[chunk].length && sum == self.entries[chunk].checksum {
            Ok(())
        } else {
            Err(StreamError::Checksum { chunk, bytes: self.range(chunk) })
        }
    }

    /// Checks a chunk and decodes it into `out`, which is as long as its `range`. After an error `out` is undefined.
    pub fn decode(
        &self,
        chunk: usize,
        bytes: &[u8],
        decoder: &mut Decoder,
        out: &mut [u8],
    ) -> Result<(), StreamError> {
        let result = self.decode_before(chunk, bytes, decoder, out, &[]);
        decoder.settle();
        result
    }

    /// As `decode`, and prefetches `next`, the chunk that is decoded after it.
    fn decode_before(
        &self,
        chunk: usize,
        bytes: &[u8],
        decoder: &mut Decoder,
        out: &mut [u8],
        next: &[u8],
    ) -> Result<(), StreamError> {
        // A decoder accepts hostile bytes, so the checksum may be taken while it decodes, and the bytes are read once.
        let (result, sum) = decoder.chunk_and_sum(bytes, out, next);
        self.compare(chunk, bytes, sum)?;
        result.map_err(|damage| StreamError::Chunk { chunk, bytes: self.range(chunk), damage })
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut four = [0; 4];
    four.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(four)
}

fn sum_of(bytes: &[u8]) -> u64 {
    let mut sum = xxhash_rust::xxh3::Xxh3Default::new();
    sum.update(&bytes[..24]);
    sum.update(&bytes[HEAD..]);
    sum.digest()
}

/// The most bytes that the stream of `bytes` of a kind takes.
pub fn most(kind: Kind, bytes: usize) -> usize {
    let chunk = kind.chunk() * kind.width();
    let chunks = bytes / chunk * Encoder::most(chunk);
    let last = if bytes.is_multiple_of(chunk) { 0 } else { Encoder::most(bytes % chunk) };
    directory_bytes(chunks_of(kind, bytes as u64)) + chunks + last
}

/// The stream of a tensor that is in memory.
pub fn encode(kind: Kind, values: &[u8], path: Path) -> Vec<u8> {
    let mut out = vec![0; most(kind, values.len())];
    let length = encode_into(kind, values, &mut out, path, false);
    out.truncate(length);
    out.shrink_to_fit();
    out
}

/// As `encode`, into the caller's memory of `most` bytes or more; returns the stream's length. With `past_caches`,
/// and if `out` begins on a boundary of 64 bytes, the stream goes directly to memory, faster if it is not read soon.
///
/// # Panics
/// If the values are not whole, or `out` is too short.
pub fn encode_into(kind: Kind, values: &[u8], out: &mut [u8], path: Path, past_caches: bool) -> usize {
    encode_with(&mut Encoder::new(kind, path), values, out, past_caches)
}

/// As `encode_into`, with an encoder that the caller keeps, because fresh tables cost as much time as a few chunks.
///
/// # Panics
/// As `encode_into`.
pub fn encode_with(encoder: &mut Encoder, values: &[u8], out: &mut [u8], past_caches: bool) -> usize {
    let kind = encoder.kind();
    encoder.begin();
    let mut directory = Directory::new(kind, values.len() as u64);
    let mut at = directory_bytes(chunks_of(kind, values.len() as u64));
    let mut parts = values.chunks(kind.chunk() * kind.width()).peekable();
    while let Some(part) = parts.next() {
        let next = parts.peek().copied().unwrap_or_default();
        let (length, checksum) = encoder.chunk_to(part, &mut out[at..], next, past_caches);
        directory.entries.push(Entry { start: at as u64, length, checksum });
        at += length;
    }
    if past_caches {
        settle();
    }
    let head = directory.to_bytes();
    out[..head.len()].copy_from_slice(&head);
    at
}

/// Bytes that are encoded on trial to find the best kind, and the number of places that they come from.
const TRIED: usize = 8 << 10;
const PLACES: usize = 3;

/// The stream of bytes of an unknown type: of the kinds whose width divides their number, the one that
/// makes samples smallest.
pub fn encode_any(values: &[u8], path: Path) -> Vec<u8> {
    let mut sample = Vec::with_capacity(PLACES * TRIED);
    for place in 0..PLACES {
        // The place is a multiple of the largest width.
        let from = values.len().saturating_sub(TRIED) / (PLACES - 1) * place / 8 * 8;
        sample.extend_from_slice(&values[from..(from + TRIED).min(values.len())]);
    }
    let kinds = [Kind::Bf16, Kind::Fp32, Kind::Fp16, Kind::One];
    let suits = |kind: &Kind| values.len().is_multiple_of(kind.width());
    let length = |kind: Kind| {
        let whole = sample.len() / kind.width() * kind.width();
        encode(kind, &sample[..whole], path).len()
    };
    let kind = kinds.into_iter().filter(suits).min_by_key(|kind| length(*kind)).unwrap_or(Kind::One);
    encode(kind, values, path)
}

/// The values of a stream that is in memory, into the caller's memory.
pub fn decode_into(stream: &[u8], out: &mut [u8], path: Path, past_caches: bool) -> Result<(), StreamError> {
    let directory = Directory::parse(stream, stream.len() as u64)?;
    decode_all(&directory, &mut Decoder::new(directory.kind, path, past_caches), stream, out)
}

/// As `decode_into`, with a decoder that the caller keeps. It must be for the stream's kind.
pub fn decode_with(decoder: &mut Decoder, stream: &[u8], out: &mut [u8]) -> Result<(), StreamError> {
    let directory = Directory::parse(stream, stream.len() as u64)?;
    if directory.kind != decoder.kind() {
        return Err(StreamError::Header("the tensor has another type"));
    }
    decode_all(&directory, decoder, stream, out)
}

fn decode_all(
    directory: &Directory,
    decoder: &mut Decoder,
    stream: &[u8],
    out: &mut [u8],
) -> Result<(), StreamError> {
    if directory.bytes != out.len() as u64 {
        return Err(StreamError::Header("the tensor has another length"));
    }
    // `parse` checked that all ranges lie in the stream, so indexing cannot panic.
    let bytes_of = |entry: &Entry| &stream[entry.start as usize..entry.start as usize + entry.length];
    let parts = out.chunks_mut(directory.chunk * directory.kind.width());
    let result = parts.zip(&directory.entries).enumerate().try_for_each(|(chunk, (part, entry))| {
        let next = directory.entries.get(chunk + 1).map(bytes_of).unwrap_or_default();
        directory.decode_before(chunk, bytes_of(entry), decoder, part, next)
    });
    decoder.settle();
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    fn random(seed: u64, count: usize) -> impl Iterator<Item = u64> {
        let mut state = seed;
        std::iter::repeat_with(move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state >> 33
        })
        .take(count)
    }

    #[test]
    fn kept_encoders_and_decoders_do_what_new_ones_do() {
        let normal = |seed: u64, scale: f32| {
            let sum = move |bits: u64| (0..8).map(|k| (bits >> (3 * k) & 15) as f32 - 7.5).sum::<f32>();
            random(seed, 70_000).flat_map(move |bits| {
                let value = sum(bits) * scale * (bits as f32 + 0.37);
                value.to_le_bytes()[2..].to_vec()
            })
        };
        let tensors: Vec<Vec<u8>> = vec![
            normal(1, 1e-12).collect(),
            random(2, 150_001).flat_map(|bits| [bits as u8, 0x3c + (bits % 3) as u8]).collect(),
            vec![0; 99_998],
            normal(3, 1e-3).collect(),
            Vec::new(),
            normal(4, 1e-25).chain(vec![0; 60_000]).collect(),
        ];
        for path in Path::all() {
            let mut encoder = Encoder::new(Kind::Bf16, path);
            let mut decoder = Decoder::new(Kind::Bf16, path, false);
            for values in tensors.iter().chain(tensors.iter().rev()) {
                let mut out = vec![0; most(Kind::Bf16, values.len())];
                let length = encode_with(&mut encoder, values, &mut out, false);
                assert!(out[..length] == encode(Kind::Bf16, values, path), "{path:?}");
                let mut again = vec![1; values.len()];
                decode_with(&mut decoder, &out[..length], &mut again).unwrap();
                assert!(again == *values, "{path:?}");
            }
            let other = encode(Kind::Fp16, &[1, 2, 3, 4], path);
            assert!(decode_with(&mut decoder, &other, &mut [0; 4]).is_err());
        }
    }

    #[test]
    fn bytes_of_an_unknown_type_come_back_about_as_small_as_with_the_best_kind() {
        // Around a few exponents, with signs, as weights are.
        let value = |bits: u64| {
            let (sign, exponent) = (bits as u32 & 1, 112 + (bits % 9) as u32);
            f32::from_bits(sign << 31 | exponent << 23 | (bits as u32 & 0x007f_ffff))
        };
        let floats: Vec<f32> = random(1, 300_000).map(value).collect();
        let bf16: Vec<u8> = floats.iter().flat_map(|value| value.to_le_bytes()[2..].to_vec()).collect();
        let fp32: Vec<u8> = floats.iter().flat_map(|value| value.to_le_bytes()).collect();
        let was_bf16: Vec<u8> = bf16.chunks(2).flat_map(|two| [0, 0, two[0], two[1]]).collect();
        let noise: Vec<u8> = random(2, 100_001).map(|bits| bits as u8).collect();
        for bytes in [bf16, fp32, was_bf16, noise, vec![0; 777_777], vec![5], Vec::new()] {
            for path in Path::all() {
                let stream = encode_any(&bytes, path);
                let suits = |kind: &Kind| bytes.len().is_multiple_of(kind.width());
                let kinds = [Kind::Bf16, Kind::Fp16, Kind::Fp32, Kind::One].into_iter().filter(suits);
                let best = kinds.map(|kind| encode(kind, &bytes, path).len()).min().expect("One suits");
                let most = best + best / 50;
                assert!(stream.len() <= most, "{} bytes: {} for {best}", bytes.len(), stream.len());
                let mut out = vec![1; bytes.len()];
                decode_into(&stream, &mut out, path, false).expect("decoded");
                assert!(out == bytes, "{} bytes", bytes.len());
            }
        }
    }
}
