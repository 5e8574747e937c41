//! One rank's rows of every tensor of a file, as a plain safetensors file.
//!
//! Rows are cut as `torch.chunk` cuts: the last ranks may have fewer rows, or none. A tensor without dimensions goes to
//! each rank whole. Of a packed file only the chunks that hold the rows are read; of a plain one, only the rows.

use crate::codec::{Decoder, Kind, Path as Instructions};
use crate::error::{Error, Result};
use crate::output::Output;
use crate::packed::Stored;
use crate::reader::Reader;
use crate::stream::{Directory, StreamError};
use crate::work::Work;
use gapless_formats::safetensors::Tensor;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// Bytes of a plain tensor that one job reads.
const JOB: u64 = 1 << 20;

/// A rank among `world` of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rank {
    rank: u64,
    world: u64,
}

impl Rank {
    /// `None` unless `rank` is below `world`.
    pub fn new(rank: u64, world: u64) -> Option<Rank> {
        (rank < world).then_some(Rank { rank, world })
    }

    /// The rows of a dimension.
    pub fn rows(&self, length: u64) -> Range<u64> {
        let each = length.div_ceil(self.world);
        let begin = self.rank.saturating_mul(each).min(length);
        begin..begin.saturating_add(each).min(length)
    }

    /// The bytes of a tensor.
    fn bytes(&self, tensor: &Tensor) -> Range<u64> {
        match tensor.shape.first() {
            None => 0..tensor.bytes(),
            Some(0) => 0..0,
            Some(length) => {
                let (rows, row) = (self.rows(*length), tensor.bytes() / length);
                rows.start * row..rows.end * row
            }
        }
    }
}

/// The result of [`unpack_rows`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cut {
    pub tensors: usize,
    /// Bytes of the input that were read, header and directories included, and of the file that was written.
    pub read: u64,
    pub written: u64,
    /// Bytes of the tensors that were written.
    pub data: u64,
}

enum Job {
    /// A chunk of a stream, of which the bytes `wanted` of the tensor go to `at` of the data.
    Chunk {
        tensor: usize,
        directory: Arc<Directory>,
        chunk: usize,
        bytes: Vec<u8>,
        wanted: Range<u64>,
        at: u64,
    },
    Plain {
        bytes: Vec<u8>,
        at: u64,
    },
}

/// Writes the rank's rows of `from` as `to`, which appears whole or not at all. The metadata names the rank.
pub fn unpack_rows(from: &Path, to: &Path, rank: Rank, work: impl Into<Work>) -> Result<Cut> {
    let work = work.into();
    let mut reader = Reader::open(from)?;
    reader.input.pace = work.pace;
    let tensors = &reader.header.tensors;
    for tensor in tensors {
        check_rows(&reader, tensor)?;
    }
    let mut begins = Vec::with_capacity(tensors.len());
    let mut end = 0;
    for tensor in tensors {
        begins.push(end);
        let bytes = rank.bytes(tensor);
        end += bytes.end - bytes.start;
    }
    let header = header_text(&reader, rank, &begins);
    let output = Output::create(to)?;
    output.write(0, &(header.len() as u64).to_le_bytes())?;
    output.write(8, &header)?;
    let data = 8 + header.len() as u64;
    let jobs = (0..tensors.len()).flat_map(|index| jobs_of(&reader, index, rank, begins[index]));
    let failed = |tensor: usize, damage| reader.damaged(&tensors[tensor], damage);
    gapless_threads::ordered("rows", work.threads, jobs, Worker::default, Worker::decode, |given| {
        let (bytes, at) = given.map_err(|(tensor, damage)| failed(tensor, damage))?;
        output.write(data + at, &bytes)
    })?;
    output.set_length(data + end)?;
    reader.input.check_unchanged()?;
    let (count, read) = (tensors.len(), reader.input.bytes_read() + reader.header.data());
    output.put_in_place()?;
    Ok(Cut { tensors: count, read, written: data + end, data: end })
}

/// An error if a tensor's rows end within a byte, as those of 4 and 6 bits may, because they then cannot be cut.
fn check_rows(reader: &Reader, tensor: &Tensor) -> Result<()> {
    match tensor.shape.first() {
        Some(length) if *length > 0 && !tensor.bytes().is_multiple_of(*length) => Error::refused(
            &reader.input.path,
            format!(
                "tensor {:?}: {length} rows of {} bytes end within a byte and cannot be cut",
                tensor.name,
                tensor.bytes()
            ),
            "unpack the whole file, and cut that tensor after it is converted",
        ),
        _ => Ok(()),
    }
}

fn header_text(reader: &Reader, rank: Rank, begins: &[u64]) -> Vec<u8> {
    let quoted = |text: &str| serde_json::Value::from(text).to_string();
    let mine = ("gapless_rank".to_owned(), format!("{} of {}", rank.rank, rank.world));
    let pairs = reader.header.metadata.iter().filter(|(key, _)| *key != mine.0).chain(std::iter::once(&mine));
    let pairs: Vec<String> = pairs.map(|(key, value)| format!("{}:{}", quoted(key), quoted(value))).collect();
    let mut entries = vec![format!("\"__metadata__\":{{{}}}", pairs.join(","))];
    for (tensor, begin) in reader.header.tensors.iter().zip(begins) {
        let bytes = rank.bytes(tensor);
        let mut shape = tensor.shape.clone();
        if let Some(first) = shape.first_mut() {
            let rows = rank.rows(*first);
            *first = rows.end - rows.start;
        }
        entries.push(format!(
            "{}:{{\"dtype\":{},\"shape\":{shape:?},\"data_offsets\":[{begin},{}]}}",
            quoted(&tensor.name),
            quoted(&tensor.dtype),
            begin + bytes.end - bytes.start
        ));
    }
    let mut text = format!("{{{}}}", entries.join(",")).into_bytes();
    text.resize(text.len().next_multiple_of(8), b' ');
    text
}

fn jobs_of<'a>(
    reader: &'a Reader,
    index: usize,
    rank: Rank,
    begin: u64,
) -> Box<dyn Iterator<Item = Result<Job>> + 'a> {
    let wanted = rank.bytes(&reader.header.tensors[index]);
    if wanted.is_empty() {
        return Box::new(std::iter::empty());
    }
    let (place, stored) = reader.place(index);
    if stored != Some(Stored::Stream) {
        let parts = (wanted.end - wanted.start).div_ceil(JOB);
        return Box::new((0..parts).map(move |part| {
            let from = wanted.start + part * JOB;
            let length = JOB.min(wanted.end - from) as usize;
            let bytes = reader.input.bytes(place.start + from, length)?;
            Ok(Job::Plain { bytes, at: begin + part * JOB })
        }));
    }
    let directory = match reader.directory(index) {
        Ok(directory) => Arc::new(directory),
        Err(error) => return Box::new(std::iter::once(Err(error))),
    };
    Box::new(directory.chunks(&wanted).map(move |chunk| {
        let (entry, held) = (directory.entries[chunk], directory.range(chunk));
        let bytes = reader.input.bytes(place.start + entry.start, entry.length)?;
        let part = held.start.max(wanted.start)..held.end.min(wanted.end);
        let at = begin + (part.start - wanted.start);
        Ok(Job::Chunk { tensor: index, directory: Arc::clone(&directory), chunk, bytes, wanted: part, at })
    }))
}

/// One thread's decoder, kept while the kind stays the same.
#[derive(Default)]
struct Worker {
    decoder: Option<(Kind, Decoder)>,
}

type Given = std::result::Result<(Vec<u8>, u64), (usize, StreamError)>;

impl Worker {
    fn decode(&mut self, job: Job) -> Given {
        let (tensor, directory, chunk, packed, wanted, at) = match job {
            Job::Plain { bytes, at } => return Ok((bytes, at)),
            Job::Chunk { tensor, directory, chunk, bytes, wanted, at } => {
                (tensor, directory, chunk, bytes, wanted, at)
            }
        };
        let kind = directory.kind;
        let decoder = match &mut self.decoder {
            Some((known, decoder)) if *known == kind => decoder,
            other => &mut other.insert((kind, Decoder::new(kind, Instructions::best(), false))).1,
        };
        let held = directory.range(chunk);
        let mut values = vec![0; (held.end - held.start) as usize];
        directory.decode(chunk, &packed, decoder, &mut values).map_err(|damage| (tensor, damage))?;
        values.truncate((wanted.end - held.start) as usize);
        values.drain(..(wanted.start - held.start) as usize);
        Ok((values, at))
    }
}

/// Writes an index again, with the `total_size` of the rows.
pub fn write_index(from: &Path, to: &Path, data: u64) -> Result<()> {
    let input = crate::input::Input::open(from)?;
    let text = input.bytes(0, input.size as usize)?;
    let wrong = |error: serde_json::Error| Error::Refused {
        path: from.to_owned(),
        what: format!("the index is not JSON: {error}"),
        help: "copy or download the file again",
    };
    let mut index: serde_json::Value = serde_json::from_slice(&text).map_err(wrong)?;
    if let Some(total) = index.get_mut("metadata").and_then(|metadata| metadata.get_mut("total_size")) {
        *total = data.into();
    }
    let output = Output::create(to)?;
    let text = format!("{index:#}\n");
    output.write(0, text.as_bytes())?;
    output.put_in_place()
}
