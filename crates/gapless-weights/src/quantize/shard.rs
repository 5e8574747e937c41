//! One file: the header gives the places of all tensors of the result, so rows are written as they are ready.
//!
//! Tensors with longer elements come first, so that each begins at a multiple of its elements' size, as safetensors
//! writes them. The writer notices a matrix whose values cannot be quantised only while it writes. It then leaves
//! that matrix as it is and begins the file again.

use super::choice::{self, Choice, Matrix};
use super::matrix::{self, Fault};
use super::scheme::{BLOCK, Scheme};
use super::view::{JOB, Reader, Rows};
use super::{File, Layer, Options};
use crate::error::{Error, Result};
use crate::output::Output;
use gapless_formats::safetensors::{Header, bits};
use std::collections::HashMap;
use std::path::Path;

/// The longest header that readers of the format take.
const LONGEST: usize = 100_000_000;

/// A tensor of the result.
struct Placed {
    name: String,
    dtype: String,
    shape: Vec<u64>,
    /// Its source tensor, the piece of that, and the stored part of the piece.
    source: usize,
    piece: usize,
    part: usize,
    bytes: u64,
    /// The beginning of its data, counted from the first tensor's.
    begin: u64,
}

/// Some rows of a matrix.
struct Job<'a> {
    /// Its place among the file's matrices.
    at: usize,
    matrix: &'a Matrix,
    first: u64,
    rows: Rows,
}

/// The outcome of writing all matrices.
enum End {
    Whole(Vec<Layer>),
    /// The tensor and the piece of it that must be left.
    Fault(usize, usize, Fault),
}

/// Writes the file `to`. Returns the name and the bytes of each tensor in it.
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
            End::Fault(source, piece, fault) => {
                file.choices[source].leave(piece, choice::why(fault));
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

fn place(header: &Header, choices: &[Choice], scheme: Scheme) -> Vec<Placed> {
    let mut all = Vec::new();
    for (source, (tensor, choice)) in header.tensors.iter().zip(choices).enumerate() {
        for (at, piece) in choice.pieces().iter().enumerate() {
            let mut add = |name: String, dtype: &str, shape: Vec<u64>, part| {
                let values: u64 = shape.iter().product();
                // At most about as large as its source tensor, so the product cannot overflow.
                let bytes = values * bits(dtype).unwrap_or(8) / 8;
                all.push(Placed {
                    name,
                    dtype: dtype.to_owned(),
                    shape,
                    source,
                    piece: at,
                    part,
                    bytes,
                    begin: 0,
                });
            };
            match piece.matrix() {
                Some(matrix) => {
                    let parts = scheme.parts(matrix.kind.name(), matrix.rows, matrix.columns, matrix.kept);
                    for (part, of) in parts.into_iter().enumerate() {
                        add(choice::part_name(&piece.name, of.name), of.dtype, of.shape, part);
                    }
                }
                None => add(piece.name.clone(), &tensor.dtype, piece.shape.clone(), 0),
            }
        }
        if choice.pieces().is_empty() {
            all.push(Placed {
                name: tensor.name.clone(),
                dtype: tensor.dtype.clone(),
                shape: tensor.shape.clone(),
                source,
                piece: 0,
                part: 0,
                bytes: tensor.bytes(),
                begin: 0,
            });
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
    /// All matrices, by jobs of some rows; jobs, and so the sums of errors, do not depend on the number of threads.
    fn matrices(&self, options: &Options) -> Result<End> {
        let scheme = options.scheme;
        let header = &self.file.header;
        let taken: Vec<_> = self.file.matrices().collect();
        let mut reader = Reader::new(&self.file.input, header);
        // The place among `taken`, the first row, and the number of rows.
        let ranges = taken.iter().enumerate().flat_map(|(at, (_, _, _, matrix))| {
            let row = matrix.columns * matrix.kind.width() as u64;
            let mut step = (JOB / row).max(1);
            if scheme == Scheme::Fp8Block {
                step = step.next_multiple_of(BLOCK);
            }
            let range = move |k: u64| (at, k * step, step.min(matrix.rows - k * step));
            (0..matrix.rows.div_ceil(step)).map(range)
        });
        let jobs = ranges.map(|(at, first, count)| {
            let (source, _, piece, matrix) = taken[at];
            Ok(Job { at, matrix, first, rows: reader.rows(source, piece, first, count)? })
        });
        let mut sums = vec![(0.0f64, 0.0f64); taken.len()];
        // Values stored so far of each matrix, because rows come in order.
        let mut stored = vec![0u64; taken.len()];
        let mut fault = None;
        let work = |_: &mut (), job: Job<'_>| {
            let matrix = job.matrix;
            let bytes = job.rows.bytes();
            let rows = matrix::rows(scheme, matrix.kind, &bytes, matrix.columns as usize, matrix.whole);
            (job.at, job.first, rows)
        };
        let places = self.places(taken.iter().map(|&(source, at, _, _)| (source, at)));
        gapless_threads::ordered(
            "quantize",
            options.work.threads,
            jobs,
            || (),
            work,
            |(at, first, rows)| {
                if fault.is_some() {
                    return Ok(());
                }
                let rows = match rows {
                    Ok(rows) => rows,
                    Err(found) => {
                        fault = Some((at, found));
                        return Ok(());
                    }
                };
                let [weights, scales] = [0, 1].map(|part| &self.placed[places[at][part]]);
                if scheme == Scheme::SparseBitmask {
                    let width = bits(&weights.dtype).unwrap_or(8) / 8;
                    // A file that changes meanwhile may keep more values than its place has room for.
                    let room = weights.bytes.saturating_sub(stored[at] * width);
                    let length = rows.weights.len().min(room as usize);
                    self.put(weights, stored[at] * width, &rows.weights[..length])?;
                    let mut offsets = Vec::with_capacity(8 * rows.kept.len());
                    for kept in &rows.kept {
                        offsets.extend_from_slice(&stored[at].to_le_bytes());
                        stored[at] += kept;
                    }
                    self.put(&self.placed[places[at][3]], first * 8, &offsets)?;
                } else {
                    self.put(weights, first * row_bytes(weights), &rows.weights)?;
                }
                let first = if scheme == Scheme::Fp8Block { first / BLOCK } else { first };
                self.put(scales, first * row_bytes(scales), &rows.scales)?;
                sums[at].0 += rows.error;
                sums[at].1 += rows.values;
                Ok(())
            },
        )?;
        if let Some((at, fault)) = fault {
            let (source, piece, _, _) = taken[at];
            return Ok(End::Fault(source, piece, fault));
        }
        let mut layers = Vec::new();
        for (at, (_, _, piece, matrix)) in taken.into_iter().enumerate() {
            let whole = match scheme {
                Scheme::W4a16 | Scheme::Sparse24 | Scheme::SparseBitmask => {
                    [matrix.rows.to_le_bytes(), matrix.columns.to_le_bytes()].concat()
                }
                Scheme::Nvfp4 => matrix.whole.to_le_bytes().to_vec(),
                _ => Vec::new(),
            };
            if let Some(part) = places[at].get(2) {
                self.put(&self.placed[*part], 0, &whole)?;
            }
            let (error, values) = sums[at];
            layers.push(Layer {
                name: piece.name.clone(),
                dtype: matrix.kind.name(),
                rows: matrix.rows,
                columns: matrix.columns,
                error: if values == 0.0 { 0.0 } else { (error / values).sqrt() },
            });
        }
        Ok(End::Whole(layers))
    }

    /// For each matrix, the numbers of its parts in the result, in their order.
    fn places(&self, matrices: impl Iterator<Item = (usize, usize)>) -> Vec<Vec<usize>> {
        let numbers: HashMap<(usize, usize), usize> =
            matrices.enumerate().map(|(number, place)| (place, number)).collect();
        let mut places = vec![Vec::new(); numbers.len()];
        for (at, placed) in self.placed.iter().enumerate() {
            if let Some(number) = numbers.get(&(placed.source, placed.piece)) {
                places[*number].push((placed.part, at));
            }
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

    /// Copies whole tensors, and pieces that are not quantised.
    fn others(&self) -> Result<()> {
        let (input, header) = (&self.file.input, &self.file.header);
        let mut reader = Reader::new(input, header);
        // In the order of the input, so that each expert is read once.
        let mut copied: Vec<&Placed> = self.placed.iter().collect();
        copied.sort_by_key(|placed| (placed.source, placed.piece, placed.part));
        for placed in copied {
            match self.file.choices[placed.source].piece(placed.piece) {
                Some(piece) if piece.matrix().is_some() => {}
                Some(piece) => {
                    let rows = piece.shape[0];
                    let row = (placed.bytes / rows.max(1)).max(1);
                    let (step, mut first) = ((JOB / row).max(1), 0);
                    while first < rows {
                        let count = step.min(rows - first);
                        let bytes = reader.rows(placed.source, piece, first, count)?.bytes();
                        self.put(placed, first * row, &bytes)?;
                        first += count;
                    }
                }
                None => {
                    let from = header.data() + header.tensors[placed.source].begin;
                    let mut at = 0;
                    while at < placed.bytes {
                        let length = JOB.min(placed.bytes - at);
                        self.put(placed, at, &input.bytes(from + at, length as usize)?)?;
                        at += length;
                    }
                }
            }
        }
        Ok(())
    }
}

/// Bytes of a row of a part.
fn row_bytes(placed: &Placed) -> u64 {
    placed.bytes / placed.shape.first().copied().unwrap_or(1).max(1)
}
