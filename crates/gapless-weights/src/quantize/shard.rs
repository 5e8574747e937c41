//! One file: places for all tensors of the result are known from the header, so rows are written as they are ready.
//!
//! Tensors with longer elements come first, so that each begins at a multiple of its elements' size, as safetensors
//! writes them. A matrix whose values cannot be quantised is noticed while it is written: then it becomes one that is
//! left, and the file is begun again.

use super::choice::{self, Choice, Matrix};
use super::matrix::{self, Fault, Kind};
use super::scheme::{BLOCK, Scheme};
use super::{File, Layer, Options};
use crate::error::{Error, Result};
use crate::input::Input;
use crate::output::Output;
use crate::pipeline;
use gapless_formats::safetensors::{Header, bits};
use std::path::Path;

/// Bytes of a matrix that one job reads, about.
const JOB: u64 = 1 << 20;
/// The longest header that readers of the format take.
const LONGEST: usize = 100_000_000;

/// A tensor of the result.
struct Placed {
    name: String,
    dtype: String,
    shape: Vec<u64>,
    /// The tensor that it comes from, and which of its parts it is.
    source: usize,
    part: usize,
    bytes: u64,
    /// Where its data begins, counted from the beginning of the data.
    begin: u64,
}

/// Some rows of a matrix.
struct Job<'a> {
    source: usize,
    matrix: &'a Matrix,
    first: u64,
    bytes: Vec<u8>,
}

/// What writing a matrix found.
enum End {
    Whole(Vec<Layer>),
    /// The tensor that must be left.
    Fault(usize, Fault),
}

/// Writes the file `to`. Gives the name and the bytes of each tensor that it holds.
pub(super) fn write(
    file: &mut File,
    to: &Path,
    options: &Options,
    layers: &mut Vec<Layer>,
) -> Result<Vec<(String, u64)>> {
    loop {
        let placed = place(&file.header, &file.choices, options.scheme);
        let header = header_text(&file.header, &placed);
        if header.len() > LONGEST {
            let what =
                format!("the result's header would have {} bytes: the limit is {LONGEST}", header.len());
            return Error::refused(&file.input.path, what, "split the file into shards with fewer tensors");
        }
        let output = Output::create(to)?;
        output.write(0, &(header.len() as u64).to_le_bytes())?;
        output.write(8, &header)?;
        let writer = Writer { file, output: &output, placed: &placed, data: 8 + header.len() as u64 };
        match writer.matrices(options)? {
            End::Fault(source, fault) => {
                file.choices[source] = Choice::Left(choice::why(fault));
                continue;
            }
            End::Whole(found) => layers.extend(found),
        }
        writer.others()?;
        let bytes: u64 = placed.iter().map(|placed| placed.bytes).sum();
        output.set_length(8 + header.len() as u64 + bytes)?;
        file.input.check_unchanged()?;
        output.put_in_place()?;
        return Ok(placed.into_iter().map(|placed| (placed.name, placed.bytes)).collect());
    }
}

/// The largest magnitude of a tensor.
pub(super) fn largest(
    input: &Input,
    header: &Header,
    index: usize,
    kind: Kind,
) -> Result<std::result::Result<f32, Fault>> {
    let tensor = &header.tensors[index];
    let (mut at, mut most) = (0, 0f32);
    while at < tensor.bytes() {
        let length = JOB.min(tensor.bytes() - at);
        let bytes = input.bytes(header.data() + tensor.begin + at, length as usize)?;
        match matrix::largest(kind, &bytes) {
            Ok(found) => most = most.max(found),
            Err(fault) => return Ok(Err(fault)),
        }
        at += length;
    }
    Ok(Ok(most))
}

/// How many values of a matrix `sparse-bitmask` stores.
pub(super) fn stored(
    input: &Input,
    header: &Header,
    index: usize,
    matrix: &Matrix,
) -> Result<std::result::Result<u64, Fault>> {
    let tensor = &header.tensors[index];
    let row = matrix.columns * matrix.kind.width() as u64;
    let step = (JOB / row).max(1) * row;
    let (mut at, mut sum) = (0, 0);
    while at < tensor.bytes() {
        let length = step.min(tensor.bytes() - at);
        let bytes = input.bytes(header.data() + tensor.begin + at, length as usize)?;
        match matrix::stored(matrix.kind, &bytes, matrix.columns as usize) {
            Ok(found) => sum += found,
            Err(fault) => return Ok(Err(fault)),
        }
        at += length;
    }
    Ok(Ok(sum))
}

fn place(header: &Header, choices: &[Choice], scheme: Scheme) -> Vec<Placed> {
    let mut all = Vec::new();
    for (source, (tensor, choice)) in header.tensors.iter().zip(choices).enumerate() {
        match choice {
            Choice::Taken(matrix) => {
                let parts = scheme.parts(matrix.kind.name(), matrix.rows, matrix.columns, matrix.kept);
                for (part, of) in parts.into_iter().enumerate() {
                    all.push(Placed {
                        name: choice::part_name(&tensor.name, of.name),
                        dtype: of.dtype.to_owned(),
                        // About as large as the tensor that it comes from, whose bytes were counted, at most.
                        bytes: of.bytes(),
                        shape: of.shape,
                        source,
                        part,
                        begin: 0,
                    });
                }
            }
            Choice::Left(_) | Choice::Other => all.push(Placed {
                name: tensor.name.clone(),
                dtype: tensor.dtype.clone(),
                shape: tensor.shape.clone(),
                source,
                part: 0,
                bytes: tensor.bytes(),
                begin: 0,
            }),
        }
    }
    all.sort_by(|a, b| bits(&b.dtype).cmp(&bits(&a.dtype)).then_with(|| a.name.cmp(&b.name)));
    let mut at = 0;
    for placed in &mut all {
        placed.begin = at;
        at += placed.bytes;
    }
    all
}

/// The header's JSON, filled with spaces to a multiple of 8.
fn header_text(header: &Header, placed: &[Placed]) -> Vec<u8> {
    let quoted = |text: &str| serde_json::Value::from(text).to_string();
    let mut entries = Vec::with_capacity(placed.len() + 1);
    if !header.metadata.is_empty() {
        let pairs: Vec<String> =
            header.metadata.iter().map(|(key, value)| format!("{}:{}", quoted(key), quoted(value))).collect();
        entries.push(format!("\"__metadata__\":{{{}}}", pairs.join(",")));
    }
    for tensor in placed {
        let shape: Vec<String> = tensor.shape.iter().map(u64::to_string).collect();
        entries.push(format!(
            "{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}",
            quoted(&tensor.name),
            tensor.dtype,
            shape.join(","),
            tensor.begin,
            tensor.begin + tensor.bytes
        ));
    }
    let mut text = format!("{{{}}}", entries.join(",")).into_bytes();
    text.resize(text.len().next_multiple_of(8), b' ');
    text
}

struct Writer<'a> {
    file: &'a File,
    output: &'a Output,
    placed: &'a [Placed],
    data: u64,
}

impl Writer<'_> {
    /// All matrices, by jobs of some rows; the jobs do not depend on the number of threads, nor do sums of errors.
    fn matrices(&self, options: &Options) -> Result<End> {
        let scheme = options.scheme;
        let (input, header) = (&self.file.input, &self.file.header);
        let taken: Vec<(usize, &Matrix)> = self
            .file
            .choices
            .iter()
            .enumerate()
            .filter_map(|(source, choice)| match choice {
                Choice::Taken(matrix) => Some((source, matrix)),
                _ => None,
            })
            .collect();
        let jobs = taken.iter().flat_map(|&(source, matrix)| {
            let row = matrix.columns * matrix.kind.width() as u64;
            let mut step = (JOB / row).max(1);
            if scheme == Scheme::Fp8Block {
                step = step.next_multiple_of(BLOCK);
            }
            (0..matrix.rows.div_ceil(step)).map(move |at| {
                let (first, count) = (at * step, step.min(matrix.rows - at * step));
                let begin = header.data() + header.tensors[source].begin + first * row;
                Ok(Job { source, matrix, first, bytes: input.bytes(begin, (count * row) as usize)? })
            })
        });
        let mut sums = vec![(0.0f64, 0.0f64); self.file.choices.len()];
        // Values that were stored of each matrix so far: rows come in order.
        let mut stored = vec![0u64; self.file.choices.len()];
        let mut fault = None;
        let work = |_: &mut (), job: Job<'_>| {
            let matrix = job.matrix;
            let rows = matrix::rows(scheme, matrix.kind, &job.bytes, matrix.columns as usize, matrix.whole);
            (job.source, job.first, rows)
        };
        let places = self.places();
        pipeline::ordered(
            options.threads,
            jobs,
            || (),
            work,
            |(source, first, rows)| {
                if fault.is_some() {
                    return Ok(());
                }
                let rows = match rows {
                    Ok(rows) => rows,
                    Err(found) => {
                        fault = Some((source, found));
                        return Ok(());
                    }
                };
                let [weights, scales] = [0, 1].map(|part| &self.placed[places[source][part]]);
                if scheme == Scheme::SparseBitmask {
                    let width = bits(&weights.dtype).unwrap_or(8) / 8;
                    // A file that changes meanwhile may keep more: nothing is written beside its place.
                    let room = weights.bytes.saturating_sub(stored[source] * width);
                    let length = rows.weights.len().min(room as usize);
                    self.put(weights, stored[source] * width, &rows.weights[..length])?;
                    let mut offsets = Vec::with_capacity(8 * rows.kept.len());
                    for kept in &rows.kept {
                        offsets.extend_from_slice(&stored[source].to_le_bytes());
                        stored[source] += kept;
                    }
                    self.put(&self.placed[places[source][3]], first * 8, &offsets)?;
                } else {
                    self.put(weights, first * row_bytes(weights), &rows.weights)?;
                }
                let first = if scheme == Scheme::Fp8Block { first / BLOCK } else { first };
                self.put(scales, first * row_bytes(scales), &rows.scales)?;
                sums[source].0 += rows.error;
                sums[source].1 += rows.values;
                Ok(())
            },
        )?;
        if let Some((source, fault)) = fault {
            return Ok(End::Fault(source, fault));
        }
        let mut layers = Vec::new();
        for (source, matrix) in taken {
            let whole = match scheme {
                Scheme::W4a16 | Scheme::Sparse24 | Scheme::SparseBitmask => {
                    [matrix.rows.to_le_bytes(), matrix.columns.to_le_bytes()].concat()
                }
                Scheme::Nvfp4 => matrix.whole.to_le_bytes().to_vec(),
                _ => Vec::new(),
            };
            if let Some(part) = places[source].get(2) {
                self.put(&self.placed[*part], 0, &whole)?;
            }
            let (error, values) = sums[source];
            layers.push(Layer {
                name: header.tensors[source].name.clone(),
                dtype: matrix.kind.name(),
                rows: matrix.rows,
                columns: matrix.columns,
                error: if values == 0.0 { 0.0 } else { (error / values).sqrt() },
            });
        }
        Ok(End::Whole(layers))
    }

    /// For each tensor of the input, the numbers of its parts in the result, in their order.
    fn places(&self) -> Vec<Vec<usize>> {
        let mut places = vec![Vec::new(); self.file.choices.len()];
        for (at, placed) in self.placed.iter().enumerate() {
            places[placed.source].push((placed.part, at));
        }
        places
            .into_iter()
            .map(|mut parts| {
                parts.sort_unstable();
                parts.into_iter().map(|(_, at)| at).collect()
            })
            .collect()
    }

    fn put(&self, placed: &Placed, at: u64, bytes: &[u8]) -> Result<()> {
        self.output.write(self.data + placed.begin + at, bytes)
    }

    /// What is copied.
    fn others(&self) -> Result<()> {
        let header = &self.file.header;
        for placed in self.placed.iter().filter(|placed| !self.file.choices[placed.source].is_taken()) {
            let from = header.data() + header.tensors[placed.source].begin;
            let mut at = 0;
            while at < placed.bytes {
                let length = JOB.min(placed.bytes - at);
                self.put(placed, at, &self.file.input.bytes(from + at, length as usize)?)?;
                at += length;
            }
        }
        Ok(())
    }
}

/// Bytes of a row of a part.
fn row_bytes(placed: &Placed) -> u64 {
    placed.bytes / placed.shape.first().copied().unwrap_or(1).max(1)
}
