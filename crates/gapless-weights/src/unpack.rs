//! Unpacks one file into the bytes that were packed, header included; and checks one without writing.

use crate::codec::{Decoder, Kind, Path as Instructions};
use crate::error::{Error, Result};
use crate::input::Input;
use crate::output::Output;
use crate::packed::Stored;
use crate::reader::Reader;
use crate::stream::{Directory, StreamError};
use crate::work::Work;
use std::path::Path;
use std::sync::Arc;

/// Approximate bytes of a tensor in one job.
const JOB: u64 = 1 << 20;

/// The result of unpacking or checking.
#[derive(Debug, Default)]
pub struct Checked {
    /// True if the file is packed. Other files have no checksums.
    pub is_packed: bool,
    pub tensors: usize,
    pub streams: usize,
    /// Bytes of the packed file, and of the original.
    pub packed: u64,
    pub original: u64,
    /// The damage found, if the caller asked to go on.
    pub damage: Vec<Error>,
}

/// Unpacks `from` as `to`, which appears whole or not at all. With `keep_going`, damaged parts become zeros and are
/// reported; without it, the first one is the error. A file that is not packed is copied.
pub fn unpack(from: &Path, to: &Path, work: impl Into<Work>, keep_going: bool) -> Result<Checked> {
    let work = work.into();
    let mut reader = Reader::open(from)?;
    reader.input.pace = work.pace;
    let output = Output::create(to)?;
    output.write(0, &(reader.header.text.len() as u64).to_le_bytes())?;
    output.write(8, &reader.header.text)?;
    let data = reader.header.data();
    let checked = walk(&reader, work.threads, keep_going, |at, bytes| output.write(data + at, bytes))?;
    output.set_length(checked.original)?;
    reader.input.check_unchanged()?;
    output.put_in_place()?;
    Ok(checked)
}

/// Reads every tensor of `path`, checks every chunk and decodes it; writes nothing. All damage is reported.
pub fn verify(path: &Path, work: impl Into<Work>) -> Result<Checked> {
    let work = work.into();
    let mut reader = Reader::open(path)?;
    reader.input.pace = work.pace;
    let checked = walk(&reader, work.threads, true, |_, _| Ok(()))?;
    reader.input.check_unchanged()?;
    Ok(checked)
}

/// True if `packed` unpacks to the bytes of `original`. Damage counts as a difference.
pub(crate) fn is_equal(packed: &Path, original: &Input, work: Work) -> Result<bool> {
    let mut reader = Reader::open(packed)?;
    reader.input.pace = work.pace;
    let (data, mut there, mut is_equal) = (reader.header.data(), Vec::new(), true);
    let different = || Error::refused(packed, "it differs from the original", "pack the original again");
    let walked = walk(&reader, work.threads, false, |at, bytes| {
        there.resize(bytes.len(), 0);
        original.read(data + at, &mut there)?;
        is_equal = there == bytes;
        // The first difference ends the walk.
        if is_equal { Ok(()) } else { different() }
    });
    Ok(is_equal && walked?.original == original.size)
}

enum Job {
    /// Some chunks of a stream: encoded bytes, each with its number.
    Chunks { tensor: usize, directory: Arc<Directory>, chunks: Vec<(usize, Vec<u8>)> },
    /// A part of a tensor that is stored as it is; true at the tensor's end.
    Plain { tensor: usize, bytes: Vec<u8>, is_last: bool },
    /// A tensor of which nothing can be read.
    Lost { tensor: usize, damage: Error },
}

enum Given {
    Values { tensor: usize, bytes: Vec<u8>, damage: Vec<StreamError> },
    Plain { tensor: usize, bytes: Vec<u8>, is_last: bool },
    Lost { tensor: usize, damage: Error },
}

/// Hands all data of the original to `write`, in order, each with its place.
fn walk(
    reader: &Reader,
    threads: usize,
    keep_going: bool,
    mut write: impl FnMut(u64, &[u8]) -> Result<()>,
) -> Result<Checked> {
    let count = reader.header.tensors.len();
    let is_stream = |index: &usize| reader.place(*index).1 == Some(Stored::Stream);
    let data: u64 = reader.header.tensors.iter().map(|tensor| tensor.bytes()).sum();
    let mut checked = Checked {
        is_packed: reader.is_packed(),
        tensors: count,
        streams: (0..count).filter(is_stream).count(),
        packed: reader.input.size,
        original: reader.header.data() + data,
        damage: Vec::new(),
    };
    let mut sum = xxhash_rust::xxh3::Xxh3Default::new();
    let mut at = 0;
    let jobs = (0..count).flat_map(|index| jobs_of(reader, index));
    gapless_threads::ordered("unpack", threads, jobs, Worker::default, Worker::decode, |given| {
        let mut told = |error: Error| {
            if !keep_going {
                return Err(error);
            }
            checked.damage.push(error);
            Ok(())
        };
        match given {
            Given::Values { tensor, bytes, damage } => {
                for damage in damage {
                    told(reader.damaged(&reader.header.tensors[tensor], damage))?;
                }
                write(at, &bytes)?;
                at += bytes.len() as u64;
            }
            Given::Plain { tensor, bytes, is_last } => {
                sum.update(&bytes);
                write(at, &bytes)?;
                at += bytes.len() as u64;
                if is_last {
                    let found = sum.digest();
                    sum.reset();
                    if let (_, Some(Stored::Plain(wanted))) = reader.place(tensor)
                        && wanted != found
                    {
                        let tensor = &reader.header.tensors[tensor];
                        told(
                            reader.damaged(
                                tensor,
                                StreamError::Checksum { chunk: 0, bytes: 0..tensor.bytes() },
                            ),
                        )?;
                    }
                }
            }
            Given::Lost { tensor, damage } => {
                told(damage)?;
                // Zeros take the tensor's place.
                let zeros = vec![0; JOB as usize];
                let mut left = reader.header.tensors[tensor].bytes();
                while left > 0 {
                    let part = &zeros[..JOB.min(left) as usize];
                    write(at, part)?;
                    at += part.len() as u64;
                    left -= part.len() as u64;
                }
            }
        }
        Ok(())
    })?;
    Ok(checked)
}

/// The jobs of one tensor.
fn jobs_of(reader: &Reader, index: usize) -> Box<dyn Iterator<Item = Result<Job>> + '_> {
    let tensor = &reader.header.tensors[index];
    let (place, stored) = reader.place(index);
    if stored != Some(Stored::Stream) {
        let parts = tensor.bytes().div_ceil(JOB).max(1);
        return Box::new((0..parts).map(move |part| {
            let length = JOB.min(tensor.bytes() - part * JOB) as usize;
            let bytes = reader.input.bytes(place.start + part * JOB, length)?;
            Ok(Job::Plain { tensor: index, bytes, is_last: part + 1 == parts })
        }));
    }
    let directory = match reader.directory(index) {
        Ok(directory) => Arc::new(directory),
        Err(damage @ Error::Damaged { .. }) => {
            return Box::new(std::iter::once(Ok(Job::Lost { tensor: index, damage })));
        }
        Err(error) => return Box::new(std::iter::once(Err(error))),
    };
    let step = (JOB / (directory.chunk * directory.kind.width()) as u64).max(1) as usize;
    let firsts = (0..directory.entries.len()).step_by(step);
    Box::new(firsts.map(move |first| {
        let mut chunks = Vec::with_capacity(step);
        for chunk in first..(first + step).min(directory.entries.len()) {
            let entry = directory.entries[chunk];
            chunks.push((chunk, reader.input.bytes(place.start + entry.start, entry.length)?));
        }
        Ok(Job::Chunks { tensor: index, directory: Arc::clone(&directory), chunks })
    }))
}

/// One thread's decoder, kept while the kind stays the same.
#[derive(Default)]
struct Worker {
    decoder: Option<(Kind, Decoder)>,
}

impl Worker {
    fn decode(&mut self, job: Job) -> Given {
        let (tensor, directory, chunks) = match job {
            Job::Chunks { tensor, directory, chunks } => (tensor, directory, chunks),
            Job::Plain { tensor, bytes, is_last } => return Given::Plain { tensor, bytes, is_last },
            Job::Lost { tensor, damage } => return Given::Lost { tensor, damage },
        };
        let kind = directory.kind;
        let decoder = match &mut self.decoder {
            Some((known, decoder)) if *known == kind => decoder,
            other => &mut other.insert((kind, Decoder::new(kind, Instructions::best(), false))).1,
        };
        let length = |chunk: usize| (directory.range(chunk).end - directory.range(chunk).start) as usize;
        let mut bytes = vec![0; chunks.iter().map(|(chunk, _)| length(*chunk)).sum()];
        let (mut damage, mut rest) = (Vec::new(), &mut bytes[..]);
        for (chunk, packed) in &chunks {
            let (out, after) = rest.split_at_mut(length(*chunk));
            rest = after;
            if let Err(error) = directory.decode(*chunk, packed, decoder, out) {
                out.fill(0);
                damage.push(error);
            }
        }
        Given::Values { tensor, bytes, damage }
    }
}
