//! The contents of a listing's tensors: duplicates, entropy by component, and the sizes after quantisation.
//!
//! Figures come from a sample of each tensor, or from every byte on request. Duplicates are always compared whole.

use crate::checksum::checksum;
use crate::codec::{Encoder, Path as Instructions, entropy};
use crate::dtype::kind_of;
use crate::error::{Error, Result};
use crate::input::Input;
use crate::listing::{Listed, Listing, Place};
use crate::quantize::{self, scheme::Scheme};
use crate::reader::Reader;
use std::collections::{BTreeMap, HashMap, HashSet};

/// Parts of a tensor that a sample reads, each a quarter of a chunk.
const PARTS: u64 = 4;
/// Smaller tensors do not count as duplicates, because biases and norms are often all ones.
const TELLING: u64 = 1024;

/// Tensors of one type.
#[derive(Clone, Debug, PartialEq)]
pub struct OfType {
    pub dtype: String,
    pub tensors: usize,
    pub bytes: u64,
    /// Bytes that were read for the figures below.
    pub sampled: u64,
    /// Component, its bits, and the bits that its frequencies need: a mean of the tensors' samples, by their bytes.
    pub parts: Vec<(&'static str, f64, f64)>,
    /// Share that packing leaves, by encoding the samples: a mean of the tensors by their bytes.
    /// `None` without samples.
    pub packed: Option<f64>,
}

/// A quantisation, and the bytes of the whole model in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quantised {
    pub scheme: &'static str,
    /// Tensors that it changes.
    pub tensors: usize,
    pub bytes: u64,
}

/// All figures.
#[derive(Clone, Debug)]
pub struct Survey {
    pub types: Vec<OfType>,
    /// For each tensor of the listing, the share that packing leaves of its sample.
    pub packed: Vec<Option<f64>>,
    /// Groups of equal tensors, by their numbers; the first of each group comes first.
    pub duplicates: Vec<Vec<usize>>,
    /// Equal tensors in the same place: one storage under several names.
    pub tied: Vec<Vec<usize>>,
    pub quantised: Vec<Quantised>,
    /// Reasons for which tensors were not sampled, with counts.
    pub unread: BTreeMap<&'static str, usize>,
}

struct Files {
    inputs: Vec<Input>,
    readers: Vec<Option<Reader>>,
}

impl Files {
    fn open(listing: &Listing) -> Result<Files> {
        let mut files = Files { inputs: Vec::new(), readers: Vec::new() };
        for (at, path) in listing.files.iter().enumerate() {
            files.inputs.push(Input::open(path)?);
            let is_ours = |tensor: &Listed| tensor.file == at && matches!(tensor.place, Place::Packed(_));
            files.readers.push(listing.tensors.iter().any(is_ours).then(|| Reader::open(path)).transpose()?);
        }
        Ok(files)
    }

    /// Bytes of a tensor; false if they cannot be read.
    fn read(&self, tensor: &Listed, at: u64, out: &mut [u8]) -> Result<bool> {
        match &tensor.place {
            Place::Range(range) => self.inputs[tensor.file].read(range.start + at, out)?,
            Place::Packed(index) => {
                let Some(reader) = &self.readers[tensor.file] else { return Ok(false) };
                reader.read(*index, at..at + out.len() as u64, out)?;
            }
            Place::Elsewhere(_) => return Ok(false),
        }
        Ok(true)
    }
}

/// Reads a sample of every tensor, or all of them with `full`.
pub fn survey(listing: &Listing, full: bool) -> Result<Survey> {
    let files = Files::open(listing)?;
    let mut types: BTreeMap<String, (OfType, Means)> = BTreeMap::new();
    let mut packed = Vec::with_capacity(listing.tensors.len());
    let mut unread = BTreeMap::new();
    let mut prints: HashMap<(u64, u64), Vec<usize>> = HashMap::new();
    for (index, tensor) in listing.tensors.iter().enumerate() {
        let (of_type, means) = types.entry(tensor.dtype.clone()).or_insert_with(|| {
            let (dtype, parts) = (tensor.dtype.clone(), Vec::new());
            (OfType { dtype, tensors: 0, bytes: 0, sampled: 0, parts, packed: None }, Means::default())
        });
        of_type.tensors += 1;
        of_type.bytes += tensor.bytes;
        if let Place::Elsewhere(why) = tensor.place {
            *unread.entry(why).or_insert(0) += 1;
            packed.push(None);
            continue;
        }
        let found = sample(&files, tensor, full)?;
        packed.push((found.bytes > 0).then(|| found.coded / found.bytes as f64));
        if tensor.bytes >= TELLING {
            prints.entry((tensor.bytes, found.print)).or_default().push(index);
        }
        of_type.sampled += found.bytes;
        means.add(tensor.bytes, &found);
    }
    let types = types.into_values().map(|(mut of_type, means)| {
        of_type.packed = (means.bytes > 0.0).then(|| means.packed / means.bytes);
        of_type.parts = means.parts();
        of_type
    });
    let mut types: Vec<OfType> = types.collect();
    types.sort_by(|a, b| b.bytes.cmp(&a.bytes).then(a.dtype.cmp(&b.dtype)));
    let (duplicates, tied) = groups(listing, &files, prints)?;
    for input in &files.inputs {
        input.check_unchanged()?;
    }
    Ok(Survey { types, packed, duplicates, tied, quantised: quantised(listing), unread })
}

/// The figures of a sample of one tensor.
struct Sample {
    bytes: u64,
    /// Bytes of its chunks, encoded.
    coded: f64,
    /// Sums over the bytes: bits that each component needs.
    parts: Vec<(&'static str, f64, f64)>,
    /// Equal for equal tensors.
    print: u64,
}

/// Sums over the tensors of a type, each weighted by its bytes, as small tensors are sampled as much as large ones.
#[derive(Default)]
struct Means {
    bytes: f64,
    packed: f64,
    parts: Vec<(&'static str, f64, f64)>,
}

impl Means {
    fn add(&mut self, bytes: u64, found: &Sample) {
        if found.bytes == 0 {
            return;
        }
        let weight = bytes as f64 / found.bytes as f64;
        self.bytes += bytes as f64;
        self.packed += found.coded * weight;
        if self.parts.is_empty() {
            self.parts = found.parts.iter().map(|(name, has, _)| (*name, *has, 0.0)).collect();
        }
        for (sum, (_, _, needs)) in self.parts.iter_mut().zip(&found.parts) {
            sum.2 += needs * weight;
        }
    }

    fn parts(&self) -> Vec<(&'static str, f64, f64)> {
        self.parts.iter().map(|&(name, has, sum)| (name, has, sum / self.bytes)).collect()
    }
}

fn sample(files: &Files, tensor: &Listed, full: bool) -> Result<Sample> {
    let kind = kind_of(&tensor.dtype);
    let whole = (kind.chunk() * kind.width()) as u64;
    let part = if full { whole } else { whole / 4 };
    let count = tensor.bytes.div_ceil(part);
    let picked: Vec<u64> = if full || count <= PARTS {
        (0..count).collect()
    } else {
        (0..PARTS).map(|k| k * (count - 1) / (PARTS - 1)).collect()
    };
    let mut encoder = Encoder::new(kind, Instructions::best());
    let mut room = vec![0; Encoder::room(kind, part.min(tensor.bytes) as usize)];
    let mut sample = Sample { bytes: 0, coded: 0.0, parts: Vec::new(), print: tensor.bytes };
    let mut bytes = Vec::new();
    for k in picked {
        bytes.resize(part.min(tensor.bytes - k * part) as usize, 0);
        if !files.read(tensor, k * part, &mut bytes)? {
            break;
        }
        sample.print = sample.print.rotate_left(5).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ checksum(&bytes);
        let values = &bytes[..bytes.len() / kind.width() * kind.width()];
        if values.is_empty() {
            continue;
        }
        // A sampled chunk is shorter than a real one, so its header would count too much.
        let overhead = if full { 0.0 } else { 96.0 };
        let coded = (encoder.chunk(values, &mut room) as f64 - overhead).max(1.0);
        sample.coded += coded.min(values.len() as f64);
        sample.bytes += values.len() as u64;
        let found = entropy(kind, values).parts;
        if sample.parts.is_empty() {
            sample.parts = found.iter().map(|(name, has, _)| (*name, *has, 0.0)).collect();
        }
        for (sum, (_, _, needs)) in sample.parts.iter_mut().zip(&found) {
            sum.2 += needs * values.len() as f64;
        }
    }
    Ok(sample)
}

type Groups = Vec<Vec<usize>>;

/// Groups of equal tensors among those with equal prints, compared whole.
fn groups(
    listing: &Listing,
    files: &Files,
    prints: HashMap<(u64, u64), Vec<usize>>,
) -> Result<(Groups, Groups)> {
    let (mut duplicates, mut tied) = (Vec::new(), Vec::new());
    for (_, group) in prints.into_iter().filter(|(_, group)| group.len() > 1) {
        let mut left = group;
        while let Some(&first) = left.first() {
            let mut same = Vec::new();
            for index in &left {
                if equal(files, &listing.tensors[first], &listing.tensors[*index])? {
                    same.push(*index);
                }
            }
            let found: HashSet<usize> = same.iter().copied().collect();
            left.retain(|index| !found.contains(index));
            if same.len() > 1 {
                let place = |index: &usize| (listing.tensors[*index].file, &listing.tensors[*index].place);
                let is_one = same.iter().all(|index| place(index) == place(&same[0]));
                if is_one { tied.push(same) } else { duplicates.push(same) }
            }
        }
    }
    duplicates.sort();
    tied.sort();
    Ok((duplicates, tied))
}

fn equal(files: &Files, a: &Listed, b: &Listed) -> Result<bool> {
    if (a.file, &a.place) == (b.file, &b.place) {
        return Ok(true);
    }
    let (mut left, mut right) = (vec![0; 1 << 20], vec![0; 1 << 20]);
    let mut at = 0;
    while at < a.bytes {
        let length = (1 << 20).min(a.bytes - at) as usize;
        let (left, right) = (&mut left[..length], &mut right[..length]);
        if !files.read(a, at, left)? || !files.read(b, at, right)? || left != right {
            return Ok(false);
        }
        at += length as u64;
    }
    Ok(true)
}

/// The sizes of a model under the schemes of `quantize` that every engine knows, with scales.
fn quantised(listing: &Listing) -> Vec<Quantised> {
    let schemes = Scheme::ALL.into_iter().filter(|scheme| !scheme.is_sparse());
    let tensors: Vec<(&str, &str, &[u64])> =
        listing.tensors.iter().map(|tensor| (&*tensor.name, &*tensor.dtype, &*tensor.shape)).collect();
    let rows = schemes.map(|scheme| {
        let mut row = Quantised { scheme: scheme.name(), tensors: 0, bytes: 0 };
        for (tensor, size) in listing.tensors.iter().zip(quantize::sizes(&tensors, scheme)) {
            row.tensors += usize::from(size.is_some());
            row.bytes += size.unwrap_or(tensor.bytes);
        }
        row
    });
    rows.collect()
}

/// An error if a listing has no tensor, because its survey would be empty.
pub fn check_listing(listing: &Listing) -> Result<()> {
    if listing.tensors.is_empty() {
        let path = listing.files.first().cloned().unwrap_or_default();
        return Error::refused(&path, "the file holds no tensor", "name a file with weights");
    }
    Ok(())
}
