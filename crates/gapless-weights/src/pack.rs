//! Packs one safetensors file: every tensor that compresses becomes a stream.
//!
//! The input is read once and never held: memory is a few megabytes for each thread. The output's header comes first
//! but is known last, so its longest form is reserved and padded with spaces.

use crate::checksum::checksum;
use crate::codec::{Encoder, Kind, Path as Instructions};
use crate::dtype::kind_of;
use crate::error::{Error, Result};
use crate::input::Input;
use crate::output::Output;
use crate::packed::{self, LONGEST, Placed, Written};
use crate::stream::{Directory, Entry, chunks_of, directory_bytes};
use crate::work::Work;
use gapless_formats::safetensors::{Header, Tensor};
use std::collections::HashMap;
use std::path::Path;

/// Tensors of fewer bytes are stored as they are.
const SMALL: u64 = 1024;
/// A stream must be at most this share of its tensor, or the tensor is stored as it is.
const WORTH: f64 = 0.985;
/// Bytes of a tensor that one job holds, about.
const JOB: usize = 1 << 20;
/// Bytes of a plain copy's buffer.
const COPY: usize = 1 << 20;

/// The result of packing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    pub tensors: usize,
    /// Tensors that became streams.
    pub streams: usize,
    /// Tensors whose bytes another tensor has, which are stored once.
    pub same: usize,
    /// Bytes of the file before and after.
    pub before: u64,
    pub after: u64,
}

/// The bytes of a safetensors file, header included, which may not be a file yet.
pub trait Source {
    /// The path that errors name.
    fn path(&self) -> &Path;
    /// Bytes in all.
    fn size(&self) -> u64;
    /// Reads exactly `out.len()` bytes from `at`.
    fn read(&self, at: u64, out: &mut [u8]) -> Result<()>;
}

impl Source for Input {
    fn path(&self) -> &Path {
        &self.path
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn read(&self, at: u64, out: &mut [u8]) -> Result<()> {
        Input::read(self, at, out)
    }
}

fn bytes_of(input: &dyn Source, at: u64, length: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![0; length];
    input.read(at, &mut bytes)?;
    Ok(bytes)
}

/// Packs `from` as `to`, which appears whole or not at all. A file that does not get smaller is copied as it is.
pub fn pack(from: &Path, to: &Path, work: impl Into<Work>) -> Result<Done> {
    let work = work.into();
    let mut input = Input::open(from)?;
    input.pace = work.pace;
    let header = input.header()?;
    if packed::is_packed(&header) {
        return Error::refused(from, "this file is packed already", "unpack it first, or use it as it is");
    }
    let (done, output) = pack_to(&input, &header, to, work.threads)?;
    input.check_unchanged()?;
    output.put_in_place()?;
    Ok(done)
}

/// Packs `input`, or copies it, to `to`, which appears whole or not at all. `header` is the one at its head.
pub fn save(input: &dyn Source, header: &Header, to: &Path, threads: usize, is_packed: bool) -> Result<Done> {
    let (done, output) = if is_packed {
        pack_to(input, header, to, threads)?
    } else {
        let output = Output::create(to)?;
        copy(input, &output)?;
        let (size, tensors) = (input.size(), header.tensors.len());
        (Done { tensors, streams: 0, same: 0, before: size, after: size }, output)
    };
    output.put_in_place()?;
    Ok(done)
}

fn pack_to(input: &dyn Source, header: &Header, to: &Path, threads: usize) -> Result<(Done, Output)> {
    let compressed =
        packed::pack_text(&header.text).map_err(|source| Error::Write { path: to.to_owned(), source })?;
    if let Some((key, _)) = header.metadata.iter().find(|(key, _)| packed::is_ours(key)) {
        let what = format!("the metadata key {key:?} cannot be packed: gapless.* are keys of packed files");
        return Error::refused(to, what, "choose another key, or save with pack=False");
    }
    let output = Output::create(to)?;
    let mut writer = Writer::new(input, header, &output, &compressed)?;
    writer.streams(threads)?;
    writer.plain()?;
    let streams = writer.placed.iter().filter(|placed| matches!(placed.1, Written::Stream(_))).count();
    let same = writer.placed.iter().filter(|placed| matches!(placed.1, Written::Same(_))).count();
    let after = writer.finish(&compressed)?;
    let mut done = Done { tensors: header.tensors.len(), streams, same, before: input.size(), after };
    if streams + same == 0 || after >= input.size() {
        copy(input, &output)?;
        done = Done { streams: 0, same: 0, after: input.size(), ..done };
    }
    Ok((done, output))
}

/// The input, byte for byte.
fn copy(input: &dyn Source, output: &Output) -> Result<()> {
    let mut buffer = vec![0; COPY];
    let mut at = 0;
    while at < input.size() {
        let part = &mut buffer[..COPY.min((input.size() - at) as usize)];
        input.read(at, part)?;
        output.write(at, part)?;
        at += part.len() as u64;
    }
    output.set_length(input.size())
}

/// Some chunks of one tensor.
struct Job {
    tensor: usize,
    kind: Kind,
    bytes: Vec<u8>,
}

/// The encoded chunks of a job: their bytes, and the length and the checksum of each.
struct Batch {
    tensor: usize,
    kind: Kind,
    bytes: Vec<u8>,
    chunks: Vec<(usize, u64)>,
}

struct Writer<'a> {
    input: &'a dyn Source,
    header: &'a Header,
    output: &'a Output,
    /// The reserved length of the header.
    reserved: u64,
    /// The place of the next tensor, counted from the beginning of the data.
    at: u64,
    placed: Vec<Placed>,
    /// Tensors that are stored as they are.
    plain: Vec<usize>,
    /// Tensors that were written, by a checksum of their stored bytes.
    written: HashMap<u64, Vec<usize>>,
}

impl<'a> Writer<'a> {
    fn new(
        input: &'a dyn Source,
        header: &'a Header,
        output: &'a Output,
        compressed: &str,
    ) -> Result<Writer<'a>> {
        // No offset has more digits than the file's size, because streams never add up to more than their tensors.
        let longest = packed::longest_header(header, compressed, input.size());
        let reserved = (8 + longest).next_multiple_of(64) - 8;
        if reserved > LONGEST {
            return Error::refused(
                input.path(),
                format!(
                    "the packed file's header would have {reserved} bytes, more than the format's {LONGEST}"
                ),
                "split the file into shards with fewer tensors",
            );
        }
        Ok(Writer {
            input,
            header,
            output,
            reserved,
            at: 0,
            placed: Vec::new(),
            plain: Vec::new(),
            written: HashMap::new(),
        })
    }

    fn data(&self) -> u64 {
        8 + self.reserved
    }

    /// All streams, one after another.
    fn streams(&mut self, threads: usize) -> Result<()> {
        let (input, header) = (self.input, self.header);
        let mut wanted = Vec::new();
        for (index, tensor) in header.tensors.iter().enumerate() {
            if tensor.bytes() < SMALL || !promises(input, header, tensor)? {
                self.plain.push(index);
            } else {
                wanted.push(index);
            }
        }
        let jobs = wanted.iter().flat_map(|index| {
            let tensor = &header.tensors[*index];
            let kind = kind_of(&tensor.dtype);
            let chunk = (kind.chunk() * kind.width()) as u64;
            let step = chunk * (JOB as u64 / chunk).max(1);
            (0..tensor.bytes().div_ceil(step)).map(move |part| {
                let length = step.min(tensor.bytes() - part * step) as usize;
                let bytes = bytes_of(input, header.data() + tensor.begin + part * step, length)?;
                Ok(Job { tensor: *index, kind, bytes })
            })
        });
        let mut open: Option<Directory> = None;
        gapless_threads::ordered("pack", threads, jobs, Worker::default, Worker::encode, |batch| {
            self.take(&mut open, &batch)
        })
    }

    /// Writes the next chunks of a stream; ends it after its last.
    fn take(&mut self, open: &mut Option<Directory>, batch: &Batch) -> Result<()> {
        let tensor = &self.header.tensors[batch.tensor];
        let chunks = chunks_of(batch.kind, tensor.bytes());
        let directory = open.get_or_insert_with(|| Directory::new(batch.kind, tensor.bytes()));
        let mut start =
            if directory.entries.is_empty() { directory_bytes(chunks) as u64 } else { directory.length() };
        self.output.write(self.data() + self.at + start, &batch.bytes)?;
        for (length, checksum) in &batch.chunks {
            directory.entries.push(Entry { start, length: *length, checksum: *checksum });
            start += *length as u64;
        }
        if directory.entries.len() < chunks {
            return Ok(());
        }
        let length = directory.length();
        if length as f64 > WORTH * tensor.bytes() as f64 || length / 64 > u64::from(u32::MAX) {
            // The next stream is written over this one.
            self.plain.push(batch.tensor);
        } else {
            let head = directory.to_bytes();
            let sum = checksum(&head);
            if let Some(other) = self.same(batch.tensor, sum)? {
                // The next stream is written over this one too.
                self.placed.push((batch.tensor, Written::Same(other), self.at, self.at));
            } else {
                self.output.write(self.data() + self.at, &head)?;
                self.placed.push((batch.tensor, Written::Stream(sum), self.at, self.at + length));
                self.at += length;
            }
        }
        *open = None;
        Ok(())
    }

    /// The tensor with the same type, shape and bytes that was written before; `sum` is the checksum of the
    /// stored bytes of both.
    fn same(&mut self, index: usize, sum: u64) -> Result<Option<usize>> {
        let tensor = &self.header.tensors[index];
        for other in self.written.get(&sum).into_iter().flatten() {
            let first = &self.header.tensors[*other];
            if (&first.dtype, &first.shape) == (&tensor.dtype, &tensor.shape)
                && self.is_equal(first, tensor)?
            {
                return Ok(Some(*other));
            }
        }
        self.written.entry(sum).or_default().push(index);
        Ok(None)
    }

    fn is_equal(&self, a: &Tensor, b: &Tensor) -> Result<bool> {
        let (data, mut at) = (self.header.data(), 0);
        while at < a.bytes() {
            let length = COPY.min((a.bytes() - at) as usize);
            if bytes_of(self.input, data + a.begin + at, length)?
                != bytes_of(self.input, data + b.begin + at, length)?
            {
                return Ok(false);
            }
            at += length as u64;
        }
        Ok(true)
    }

    /// Writes the tensors that are stored as they are.
    fn plain(&mut self) -> Result<()> {
        self.plain.sort_unstable();
        let mut buffer = vec![0; COPY];
        for index in std::mem::take(&mut self.plain) {
            let tensor = &self.header.tensors[index];
            let mut sum = xxhash_rust::xxh3::Xxh3Default::new();
            let mut done = 0;
            while done < tensor.bytes() {
                let part = &mut buffer[..COPY.min((tensor.bytes() - done) as usize)];
                self.input.read(self.header.data() + tensor.begin + done, part)?;
                sum.update(part);
                self.output.write(self.data() + self.at + done, part)?;
                done += part.len() as u64;
            }
            let sum = sum.digest();
            if done > 0
                && let Some(other) = self.same(index, sum)?
            {
                self.placed.push((index, Written::Same(other), self.at, self.at));
                continue;
            }
            self.placed.push((index, Written::Plain(sum), self.at, self.at + done));
            self.at += done;
        }
        Ok(())
    }

    /// The header; returns the file's length.
    fn finish(&mut self, compressed: &str) -> Result<u64> {
        let mut text = packed::header_text(self.header, compressed, &self.placed);
        if text.len() as u64 > self.reserved {
            return Error::refused(
                self.input.path(),
                "the packed header is longer than was foreseen",
                "this is a bug: please report it with the file's header",
            );
        }
        text.resize(self.reserved as usize, b' ');
        self.output.write(0, &self.reserved.to_le_bytes())?;
        self.output.write(8, &text)?;
        self.output.set_length(self.data() + self.at)?;
        Ok(self.data() + self.at)
    }
}

/// True if a tensor is short or a sample of its chunks gets smaller. Others are not worth encoding.
fn promises(input: &dyn Source, header: &Header, tensor: &Tensor) -> Result<bool> {
    let kind = kind_of(&tensor.dtype);
    if !tensor.bytes().is_multiple_of(kind.width() as u64) {
        return Ok(false);
    }
    let chunk = (kind.chunk() * kind.width()) as u64;
    let chunks = tensor.bytes().div_ceil(chunk);
    if chunks < 16 {
        return Ok(true);
    }
    let mut worker = Worker::default();
    for part in [0, chunks / 3, 2 * chunks / 3, chunks - 2] {
        let bytes = bytes_of(input, header.data() + tensor.begin + part * chunk, chunk as usize)?;
        let batch = worker.encode(Job { tensor: 0, kind, bytes });
        if (batch.bytes.len() as f64) < WORTH * chunk as f64 {
            return Ok(true);
        }
    }
    Ok(false)
}

/// One thread's encoder, kept while the kind stays the same.
#[derive(Default)]
struct Worker {
    encoder: Option<(Kind, Encoder)>,
    room: Vec<u8>,
}

impl Worker {
    fn encode(&mut self, job: Job) -> Batch {
        let kind = job.kind;
        let encoder = match &mut self.encoder {
            Some((known, encoder)) if *known == kind => encoder,
            other => &mut other.insert((kind, Encoder::new(kind, Instructions::best()))).1,
        };
        let chunk = kind.chunk() * kind.width();
        let room = Encoder::room(kind, chunk);
        if self.room.len() < room {
            self.room.resize(room, 0);
        }
        let mut batch = Batch {
            tensor: job.tensor,
            kind,
            bytes: Vec::with_capacity(job.bytes.len()),
            chunks: Vec::with_capacity(job.bytes.len().div_ceil(chunk)),
        };
        // Each job starts afresh, so that the output does not depend on the threads.
        encoder.begin();
        let mut parts = job.bytes.chunks(chunk).peekable();
        while let Some(values) = parts.next() {
            let next = parts.peek().copied().unwrap_or_default();
            let length = encoder.chunk_before(values, &mut self.room, next);
            batch.chunks.push((length, checksum(&self.room[..length])));
            batch.bytes.extend_from_slice(&self.room[..length]);
        }
        batch
    }
}
