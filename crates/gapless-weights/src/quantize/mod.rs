//! Quantises the matrices of a model without data, and writes them as compressed-tensors does.
//!
//! [`quantize()`] works on a file or on a folder with shards. [`matrix`] is the arithmetic, `sparse` drops values,
//! [`scheme`] lists the stored tensors of each scheme, `choice` selects tensors, `architecture` has facts from
//! config.json, [`experts`] splits fused experts, `shard` writes one file, `view` reads the bytes of a matrix. A
//! model is read once (for `nvfp4` and `sparse-bitmask` twice: they need the largest value of a matrix first, or the
//! number of values that are not zero), some rows at a time, or one expert if experts are stored transposed. A folder
//! is written beside its place and renamed when it is complete.

mod architecture;
mod choice;
pub mod experts;
mod layout;
pub mod matrix;
mod number;
pub mod scheme;
mod settings;
mod shard;
mod sparse;
mod view;

use crate::error::{Error, Result};
use crate::folder;
use crate::input::Input;
use crate::output::{PartFolder, is_same};
use crate::packed;
use crate::work::Work;
use architecture::Architecture;
use choice::{Choice, Fate, Patterns, Piece};
use experts::{Described, Experts, Role};
use gapless_formats::safetensors::{Header, Tensor};
use matrix::Kind;
use scheme::Scheme;
use serde_json::Value as Json;
use settings::Settings;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::{Path, PathBuf};

/// The options of [`quantize()`].
#[derive(Clone, Debug)]
pub struct Options {
    pub scheme: Scheme,
    /// Modules to leave as they are: names, in which `*` stands for any characters.
    pub ignore: Vec<String>,
    pub experts: Experts,
    pub work: Work,
}

/// A matrix that was quantised.
#[derive(Clone, Debug, PartialEq)]
pub struct Layer {
    pub name: String,
    pub dtype: &'static str,
    pub rows: u64,
    pub columns: u64,
    /// Root of the mean square of the error, over that of the values; 0 if all values are zero.
    pub error: f64,
}

/// A matrix that was left as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Left {
    pub name: String,
    pub why: String,
}

/// The result of [`quantize()`].
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
    /// The part that config.json got; for a single file, the part that its config.json needs.
    pub config: Json,
    pub has_config: bool,
    /// Patterns that match no tensor.
    pub unmatched: Vec<String>,
    /// Folders and large files that were not copied.
    pub not_copied: Vec<PathBuf>,
    /// Known problems of engines with the result.
    pub notes: Vec<String>,
}

impl Done {
    /// The layer with the largest error.
    pub fn worst(&self) -> Option<&Layer> {
        self.layers.iter().reduce(|worst, layer| if layer.error > worst.error { layer } else { worst })
    }
}

/// One file of the model, and the fate of its tensors.
struct File {
    input: Input,
    header: Header,
    choices: Vec<Choice>,
}

impl File {
    /// Every piece of the result that is quantised: its tensor, its place among the tensor's pieces, and itself.
    fn matrices(&self) -> impl Iterator<Item = (usize, usize, &Piece, &choice::Matrix)> {
        self.choices.iter().enumerate().flat_map(|(source, choice)| {
            let pieces = choice.pieces().iter().enumerate();
            pieces.filter_map(move |(at, piece)| piece.matrix().map(|matrix| (source, at, piece, matrix)))
        })
    }
}

/// Bytes that tensors take as `scheme`, without patterns of the user and without a config.json; `None`: the tensor
/// stays as it is. For `sparse-bitmask` this is an upper bound, because it stores no zeros. Fused experts count as
/// split, because their layout does not change the size.
pub fn sizes(tensors: &[(&str, &str, &[u64])], scheme: Scheme) -> Vec<Option<u64>> {
    let nothing = Architecture::default();
    let mut choices: Vec<Choice> =
        tensors.iter().map(|tensor| choice::decide(*tensor, scheme, &nothing, None)).collect();
    choice::leave_conv1d(
        &tensors.iter().map(|(name, _, shape)| (*name, *shape)).collect::<Vec<_>>(),
        &mut choices,
    );
    let described: Vec<Described<'_>> =
        tensors.iter().map(|(name, dtype, shape)| Described { name, dtype, shape }).collect();
    let Ok(patterns) = Patterns::new(&[], Path::new("")) else { return vec![None; tensors.len()] };
    let said = Experts::Split(experts::Halves::Halves);
    for (at, choice) in split(&described, scheme, said, &nothing, &patterns) {
        choices[at] = choice;
    }
    let size = |piece: &Piece, dtype: &str| match piece.matrix() {
        Some(matrix) => {
            let (rows, columns) = (matrix.rows, matrix.columns);
            scheme.bytes(matrix.kind.name(), rows, columns, rows * columns.div_ceil(2))
        }
        None => {
            piece.shape.iter().product::<u64>() * gapless_formats::safetensors::bits(dtype).unwrap_or(8) / 8
        }
    };
    choices
        .iter()
        .zip(tensors)
        .map(|(choice, (_, dtype, _))| match choice {
            Choice::Taken(pieces) if pieces.iter().any(|piece| piece.matrix().is_some()) => {
                Some(pieces.iter().map(|piece| size(piece, dtype)).sum())
            }
            _ => None,
        })
        .collect()
}

/// The fate of fused experts, by the places of their tensors: each layer's are split, or left with a reason.
fn split(
    tensors: &[Described<'_>],
    scheme: Scheme,
    experts: Experts,
    architecture: &Architecture,
    patterns: &Patterns,
) -> Vec<(usize, Choice)> {
    let mut layers: BTreeMap<&str, BTreeMap<Role, usize>> = BTreeMap::new();
    for (at, tensor) in tensors.iter().enumerate() {
        if let Some((parent, role)) = experts::role(*tensor) {
            layers.entry(parent).or_default().insert(role, at);
        }
    }
    let mut choices = Vec::new();
    for (parent, members) in layers {
        let member = |role| members.get(&role).map(|at| tensors[*at]);
        let ignored = members.values().find_map(|at| patterns.find(tensors[*at].name));
        let pair = (member(Role::GateUp), member(Role::Down));
        if pair.0.is_none() && pair.1.is_none() {
            continue;
        }
        let found = match ignored {
            Some(pattern) => Err(format!("--ignore {pattern}")),
            None => experts::layer(pair, experts, architecture),
        };
        let found = found.and_then(|layer| {
            let narrow =
                [layer.hidden, layer.inner].into_iter().find_map(|size| choice::too_narrow(size, scheme));
            if let Some(why) = narrow {
                return Err(format!("fused experts: a matrix of theirs stays, so all do: {why}"));
            }
            for role in [Role::GateUpBias, Role::DownBias] {
                let (Some(gate_up), Some(bias)) = (pair.0, member(role)) else { continue };
                if !layer.takes_bias(role, bias.shape) || gate_up.dtype != bias.dtype {
                    let why = "fused experts: the shape or type of their bias is not that of the matrices";
                    return Err(why.to_owned());
                }
            }
            Ok(layer)
        });
        for (role, at) in members {
            choices.push(match (&found, role) {
                (Ok(layer), _) => {
                    let kind = Kind::of(tensors[at].dtype);
                    let pieces = layer.split(parent, role).into_iter();
                    (at, Choice::Taken(pieces.map(|of| Piece::split(of, kind, patterns)).collect()))
                }
                (Err(_), Role::GateUpBias | Role::DownBias) => (at, Choice::Other),
                (Err(why), _) => (at, Choice::Left(why.clone())),
            });
        }
    }
    choices
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
    let architecture = settings.architecture();
    let mut files = open(&found.shards, options, &architecture, &patterns)?;
    let unmatched = patterns.unmatched();
    match options.scheme {
        Scheme::Nvfp4 => whole_scales(&mut files)?,
        Scheme::SparseBitmask => stored_values(&mut files)?,
        _ => {}
    }
    if files.iter().all(|file| file.matrices().next().is_none()) {
        let why = most_common(&files).map(|why| format!("; most often: {why}")).unwrap_or_default();
        let what = format!("no tensor can be quantised as {}{why}", options.scheme.name());
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
        notes: notes(&files, options.scheme, &architecture),
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
    ignore.extend(architecture.outputs().map(str::to_owned));
    for (tensor, choice) in files.iter().flat_map(|file| file.header.tensors.iter().zip(&file.choices)) {
        match choice {
            Choice::Left(why) => {
                ignore.insert(choice::module(&tensor.name).to_owned());
                if let Some((parent, _)) = experts::role(described(tensor)) {
                    ignore.insert(experts::ignored(parent));
                }
                done.left.push(Left { name: tensor.name.clone(), why: why.clone() });
            }
            Choice::Other => done.others += 1,
            Choice::Taken(pieces) => {
                for piece in pieces {
                    match &piece.fate {
                        Fate::Left(why) => {
                            ignore.insert(choice::module(&piece.name).to_owned());
                            done.left.push(Left { name: piece.name.clone(), why: why.clone() });
                        }
                        Fate::Copied => done.others += 1,
                        Fate::Quantised(_) => {}
                    }
                }
            }
        }
    }
    if architecture.has_parts() {
        let taken: HashSet<&str> =
            files.iter().flat_map(File::matrices).filter_map(|found| choice::tail(&found.2.name)).collect();
        let tails = done.left.iter().filter_map(|left| choice::tail(&left.name));
        ignore.extend(tails.filter(|tail| !taken.contains(tail)).map(choice::under_any_prefix));
    }
    if ignore.iter().any(|name| name.contains("shared_transf")) {
        ignore.insert("re:.*shared_transf.*".to_owned());
    }
    let ignore: Vec<String> = ignore.into_iter().collect();
    done.config = options.scheme.config(&ignore, sparsity(&files, options.scheme));
    if let Some(part) = part {
        settings.write(part.path(), &done.config, &written)?;
        part.put_in_place()?;
    }
    Ok(done)
}

fn described(tensor: &Tensor) -> Described<'_> {
    Described { name: &tensor.name, dtype: &tensor.dtype, shape: &tensor.shape }
}

/// Known problems of engines with this model.
fn notes(files: &[File], scheme: Scheme, architecture: &Architecture) -> Vec<String> {
    let all = || files.iter().flat_map(File::matrices);
    let is_of_expert = |name: &str| {
        name.split_once(".experts.")
            .is_some_and(|(_, rest)| rest.starts_with(|next: char| next.is_ascii_digit()))
    };
    if !all().any(|(_, _, piece, _)| is_of_expert(&piece.name)) {
        return Vec::new();
    }
    let was_split = all().any(|(_, at, ..)| at > 0);
    architecture.notes(scheme, was_split).map(str::to_owned).into_iter().collect()
}

/// The most common reason for which matrices are left.
fn most_common(files: &[File]) -> Option<String> {
    let mut reasons: BTreeMap<&str, usize> = BTreeMap::new();
    for choice in files.iter().flat_map(|file| &file.choices) {
        if let Choice::Left(why) = choice {
            *reasons.entry(why).or_default() += 1;
        }
    }
    reasons.into_iter().max_by_key(|(_, count)| *count).map(|(why, _)| why.to_owned())
}

/// The headers of all files, and a choice for each tensor.
fn open(
    shards: &[PathBuf],
    options: &Options,
    architecture: &Architecture,
    patterns: &Patterns,
) -> Result<Vec<File>> {
    let scheme = options.scheme;
    let mut files = Vec::new();
    let mut names: HashSet<String> = HashSet::new();
    for path in shards {
        let mut input = Input::open(path)?;
        let header = input.header()?;
        input.pace = options.work.pace.clone();
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
        let choose = |tensor: &Tensor| {
            let parts = (&*tensor.name, &*tensor.dtype, &*tensor.shape);
            choice::decide(parts, scheme, architecture, patterns.find(&tensor.name))
        };
        let mut choices: Vec<Choice> = header.tensors.iter().map(choose).collect();
        let shapes: Vec<(&str, &[u64])> =
            header.tensors.iter().map(|tensor| (&*tensor.name, &*tensor.shape)).collect();
        choice::leave_conv1d(&shapes, &mut choices);
        files.push(File { input, header, choices });
    }
    // Experts of a layer may be in several files.
    let places: Vec<(usize, usize)> = files
        .iter()
        .enumerate()
        .flat_map(|(at, file)| (0..file.choices.len()).map(move |source| (at, source)))
        .collect();
    let all: Vec<Described<'_>> =
        files.iter().flat_map(|file| file.header.tensors.iter().map(described)).collect();
    for (at, choice) in split(&all, scheme, options.experts, architecture, patterns) {
        let (file, source) = places[at];
        files[file].choices[source] = choice;
    }
    for file in &files {
        for (tensor, choice) in file.header.tensors.iter().zip(&file.choices) {
            for piece in choice.pieces() {
                for name in stored_names(piece, scheme) {
                    if name != tensor.name && names.contains(&name) {
                        let what =
                            format!("tensor {name:?} is there already, so the model is quantised already");
                        return Error::refused(
                            &file.input.path,
                            what,
                            "give the model before it was quantised",
                        );
                    }
                }
            }
        }
    }
    Ok(files)
}

/// The names of the tensors that are stored for a piece.
fn stored_names(piece: &Piece, scheme: Scheme) -> Vec<String> {
    match piece.matrix() {
        Some(matrix) => scheme
            .parts(matrix.kind.name(), matrix.rows, matrix.columns, matrix.kept)
            .iter()
            .map(|part| choice::part_name(&piece.name, part.name))
            .collect(),
        None => vec![piece.name.clone()],
    }
}

/// The share of all values that a sparse scheme drops.
fn sparsity(files: &[File], scheme: Scheme) -> f64 {
    let (mut dropped, mut all) = (0, 0);
    for (tensor, choice) in files.iter().flat_map(|file| file.header.tensors.iter().zip(&file.choices)) {
        all += tensor.shape.iter().product::<u64>();
        for matrix in choice.pieces().iter().filter_map(Piece::matrix) {
            let values = matrix.rows * matrix.columns;
            dropped += if scheme == Scheme::SparseBitmask { values - matrix.kept } else { values / 2 };
        }
    }
    dropped as f64 / all.max(1) as f64
}

/// Reads all matrices to count the stored values of each.
fn stored_values(files: &mut [File]) -> Result<()> {
    for file in files {
        let mut found = Vec::new();
        let mut reader = view::Reader::new(&file.input, &file.header);
        for (source, at, piece, matrix) in file.matrices() {
            let stored = reader.fold(source, piece, matrix, 0, |sum, bytes| {
                Ok(sum + matrix::stored(matrix.kind, bytes, matrix.columns as usize)?)
            })?;
            found.push((source, at, stored));
        }
        for (source, at, stored) in found {
            match (stored, file.choices[source].matrix_mut(at)) {
                (Ok(kept), Some(matrix)) => matrix.kept = kept,
                (Err(fault), _) => file.choices[source].leave(at, choice::why(fault)),
                (Ok(_), None) => {}
            }
        }
    }
    Ok(())
}

/// Reads all matrices to find the scale of each. Those that engines fuse into one matrix share a scale.
fn whole_scales(files: &mut [File]) -> Result<()> {
    type Place = (usize, usize, usize);
    let mut groups: BTreeMap<(String, usize), Vec<Place>> = BTreeMap::new();
    let mut most: BTreeMap<Place, f32> = BTreeMap::new();
    for (of, file) in files.iter_mut().enumerate() {
        let mut faults = Vec::new();
        let mut reader = view::Reader::new(&file.input, &file.header);
        for (source, at, piece, matrix) in file.matrices() {
            let largest = reader.fold(source, piece, matrix, 0f32, |most, bytes| {
                Ok(most.max(matrix::largest(matrix.kind, bytes)?))
            })?;
            match largest {
                Ok(largest) => {
                    most.insert((of, source, at), largest);
                    if let Some(group) = choice::fused(&piece.name) {
                        groups.entry(group).or_default().push((of, source, at));
                    }
                }
                Err(fault) => faults.push((source, at, fault)),
            }
        }
        for (source, at, fault) in faults {
            file.choices[source].leave(at, choice::why(fault));
        }
    }
    for members in groups.values() {
        let kind = |place: &Place| {
            files[place.0].choices[place.1].piece(place.2)?.matrix().map(|matrix| matrix.kind)
        };
        let kinds: Vec<Kind> = members.iter().filter_map(kind).collect();
        if kinds.windows(2).any(|pair| pair[0] != pair[1]) {
            for (of, source, at) in members {
                let why = "it is fused with matrices of another type, and they must share a scale";
                files[*of].choices[*source].leave(*at, why.to_owned());
            }
            continue;
        }
        let shared = members.iter().map(|member| most[member]).fold(0.0, f32::max);
        for member in members {
            most.insert(*member, shared);
        }
    }
    for ((of, source, at), largest) in most {
        if let Some(matrix) = files[of].choices[source].matrix_mut(at) {
            matrix.whole = matrix::whole_scale(matrix.kind, largest);
        }
    }
    Ok(())
}
