//! Quantises the matrices of a model without data, and writes them as compressed-tensors does.
//!
//! [`quantize()`] works on a file or on a folder with shards. [`matrix`] is the arithmetic, `sparse` what drops values,
//! [`scheme`] what each scheme stores, `choice` which tensors are taken, `shard` one file. A model is read once (for
//! `nvfp4` and `sparse-bitmask` twice: they need the largest value of a matrix first, or how many are not zero), some
//! rows at a time. A folder is written beside its place and renamed when it is complete.

mod choice;
pub mod matrix;
mod number;
pub mod scheme;
mod settings;
mod shard;
mod sparse;

use crate::error::{Error, Result};
use crate::folder;
use crate::input::Input;
use crate::output::{PartFolder, is_same};
use crate::packed;
use choice::{Choice, Matrix, Patterns};
use gapless_formats::safetensors::Header;
use matrix::Kind;
use scheme::Scheme;
use serde_json::Value as Json;
use settings::Settings;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::{Path, PathBuf};

/// What to do.
#[derive(Clone, Debug)]
pub struct Options {
    pub scheme: Scheme,
    /// Modules to leave as they are: names, in which `*` stands for any characters.
    pub ignore: Vec<String>,
    pub threads: usize,
}

/// A matrix that was quantised.
#[derive(Clone, Debug, PartialEq)]
pub struct Layer {
    pub name: String,
    pub dtype: &'static str,
    pub rows: u64,
    pub columns: u64,
    /// Root of the mean square of the error, over that of the values; 0 where all values are zero.
    pub error: f64,
}

/// A matrix that was left as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Left {
    pub name: String,
    pub why: String,
}

/// What was done.
#[derive(Clone, Debug)]
pub struct Done {
    pub layers: Vec<Layer>,
    pub left: Vec<Left>,
    /// Tensors that no scheme is for: norms, biases, integers.
    pub others: usize,
    /// Bytes of all tensors before and after.
    pub before: u64,
    pub after: u64,
    pub shards: usize,
    /// What config.json got; for a file alone, what its config.json needs.
    pub config: Json,
    pub has_config: bool,
    /// Patterns that match no tensor.
    pub unmatched: Vec<String>,
    /// Folders and large files that were not copied.
    pub not_copied: Vec<PathBuf>,
}

impl Done {
    /// The layer with the largest error.
    pub fn worst(&self) -> Option<&Layer> {
        self.layers.iter().reduce(|worst, layer| if layer.error > worst.error { layer } else { worst })
    }
}

/// One file of the model, and what becomes of its tensors.
struct File {
    input: Input,
    header: Header,
    choices: Vec<Choice>,
}

/// What a tensor of this name, type and shape takes as `scheme` without patterns of the user; `None`: it stays as it
/// is. `sparse-bitmask` stores what is not zero, so this is the most that it takes.
pub fn size(tensor: (&str, &str, &[u64]), scheme: Scheme) -> Option<u64> {
    match choice::decide(tensor, scheme, None) {
        Choice::Taken(Matrix { kind, rows, columns, .. }) => {
            Some(scheme.bytes(kind.name(), rows, columns, rows * columns.div_ceil(2)))
        }
        Choice::Left(_) | Choice::Other => None,
    }
}

/// Quantises `from`, a file or a folder with shards, as `to`, which appears whole or not at all.
pub fn quantize(from: &Path, to: &Path, options: &Options) -> Result<Done> {
    let is_folder = from.is_dir();
    let found = if is_folder {
        folder::read(from)?
    } else {
        folder::Folder { shards: vec![from.to_owned()], ..folder::Folder::default() }
    };
    let place = if is_folder { Some(PartFolder::check(from, to)?) } else { None };
    if !is_folder && is_same(from, to) {
        return Error::refused(to, "this is the input", "name another file with -o");
    }
    let settings = Settings::read(&found)?;
    let patterns = Patterns::new(&options.ignore, from)?;
    let mut files = open(&found.shards, options.scheme, &patterns)?;
    let unmatched = patterns.unmatched();
    match options.scheme {
        Scheme::Nvfp4 => whole_scales(&mut files)?,
        Scheme::SparseBitmask => stored_values(&mut files)?,
        _ => {}
    }
    if !files.iter().flat_map(|file| &file.choices).any(Choice::is_taken) {
        let what = format!("no tensor can be quantised as {}", options.scheme.name());
        let help = "weights of Linear layers are 2-D floats named *.weight; `gapless weights info` lists the tensors";
        return Error::refused(from, what, help);
    }
    let part = place.map(PartFolder::create).transpose()?;
    let target = |path: &Path| match &part {
        Some(part) => part.path().join(path.file_name().unwrap_or_default()),
        None => to.to_owned(),
    };
    let mut done = Done {
        layers: Vec::new(),
        left: Vec::new(),
        others: 0,
        before: 0,
        after: 0,
        shards: files.len(),
        config: Json::Null,
        has_config: settings.has_config(),
        unmatched,
        not_copied: found.left_out.clone(),
    };
    let mut written: BTreeMap<String, Vec<(String, u64)>> = BTreeMap::new();
    for file in &mut files {
        let tensors = shard::write(file, &target(&file.input.path), options, &mut done.layers)?;
        done.before += file.header.tensors.iter().map(|tensor| tensor.bytes()).sum::<u64>();
        done.after += tensors.iter().map(|(_, bytes)| bytes).sum::<u64>();
        let name = file.input.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        written.insert(name, tensors);
    }
    let mut ignore: BTreeSet<String> = BTreeSet::from(["lm_head".to_owned()]);
    for (tensor, choice) in files.iter().flat_map(|file| file.header.tensors.iter().zip(&file.choices)) {
        match choice {
            Choice::Left(why) => {
                ignore.insert(choice::module(&tensor.name).to_owned());
                done.left.push(Left { name: tensor.name.clone(), why: why.clone() });
            }
            Choice::Other => done.others += 1,
            Choice::Taken(_) => {}
        }
    }
    let ignore: Vec<String> = ignore.into_iter().collect();
    done.config = options.scheme.config(&ignore, sparsity(&files, options.scheme));
    if let Some(part) = part {
        settings.write(part.path(), &done.config, &written)?;
        part.put_in_place()?;
    }
    Ok(done)
}

/// The headers of all files, and a choice for each tensor.
fn open(shards: &[PathBuf], scheme: Scheme, patterns: &Patterns) -> Result<Vec<File>> {
    let mut files = Vec::new();
    let mut names: HashSet<String> = HashSet::new();
    for path in shards {
        let input = Input::open(path)?;
        let header = input.header()?;
        if packed::is_packed(&header) {
            return Error::refused(
                path,
                "this file is packed",
                "run `gapless weights unpack` first, then quantise the result",
            );
        }
        for tensor in &header.tensors {
            if !names.insert(tensor.name.clone()) {
                let what = format!("tensor {:?} is in another file of the folder too", tensor.name);
                return Error::refused(path, what, "leave one set of weights in the folder");
            }
        }
        let choices = header.tensors.iter().map(|tensor| choice::of(tensor, scheme, patterns)).collect();
        files.push(File { input, header, choices });
    }
    for file in &files {
        for (tensor, choice) in file.header.tensors.iter().zip(&file.choices) {
            let Choice::Taken(matrix) = choice else { continue };
            for part in scheme.parts(matrix.kind.name(), matrix.rows, matrix.columns, matrix.kept) {
                let name = choice::part_name(&tensor.name, part.name);
                if name != tensor.name && names.contains(&name) {
                    let what = format!("tensor {name:?} is there already, so the model is quantised already");
                    return Error::refused(&file.input.path, what, "give the model before it was quantised");
                }
            }
        }
    }
    Ok(files)
}

/// The share of all values that a sparse scheme drops.
fn sparsity(files: &[File], scheme: Scheme) -> f64 {
    let (mut dropped, mut all) = (0, 0);
    for (tensor, choice) in files.iter().flat_map(|file| file.header.tensors.iter().zip(&file.choices)) {
        all += tensor.shape.iter().product::<u64>();
        if let Choice::Taken(matrix) = choice {
            let values = matrix.rows * matrix.columns;
            dropped += if scheme == Scheme::SparseBitmask { values - matrix.kept } else { values / 2 };
        }
    }
    dropped as f64 / all.max(1) as f64
}

/// Reads all matrices for the number of values that are stored of each.
fn stored_values(files: &mut [File]) -> Result<()> {
    for file in files {
        for index in 0..file.choices.len() {
            let Choice::Taken(matrix) = &mut file.choices[index] else { continue };
            match shard::stored(&file.input, &file.header, index, matrix)? {
                Ok(kept) => matrix.kept = kept,
                Err(fault) => file.choices[index] = Choice::Left(choice::why(fault)),
            }
        }
    }
    Ok(())
}

/// Reads all matrices for the scale of each. Those that engines fuse into one matrix share a scale.
fn whole_scales(files: &mut [File]) -> Result<()> {
    let mut groups: BTreeMap<(String, usize), Vec<(usize, usize)>> = BTreeMap::new();
    let mut most: BTreeMap<(usize, usize), f32> = BTreeMap::new();
    for (at, file) in files.iter_mut().enumerate() {
        for index in 0..file.choices.len() {
            let Choice::Taken(matrix) = &file.choices[index] else { continue };
            match shard::largest(&file.input, &file.header, index, matrix.kind)? {
                Ok(largest) => {
                    most.insert((at, index), largest);
                    if let Some(group) = choice::fused(&file.header.tensors[index].name) {
                        groups.entry(group).or_default().push((at, index));
                    }
                }
                Err(fault) => file.choices[index] = Choice::Left(choice::why(fault)),
            }
        }
    }
    for members in groups.values() {
        let kinds: Vec<Kind> =
            members.iter().filter_map(|(at, index)| files[*at].choices[*index].kind()).collect();
        if kinds.windows(2).any(|pair| pair[0] != pair[1]) {
            for (at, index) in members {
                let why = "it is fused with matrices of another type, and they must share a scale";
                files[*at].choices[*index] = Choice::Left(why.to_owned());
            }
            continue;
        }
        let shared = members.iter().map(|member| most[member]).fold(0.0, f32::max);
        for member in members {
            most.insert(*member, shared);
        }
    }
    for ((at, index), largest) in most {
        if let Choice::Taken(matrix) = &mut files[at].choices[index] {
            matrix.whole = matrix::whole_scale(matrix.kind, largest);
        }
    }
    Ok(())
}
