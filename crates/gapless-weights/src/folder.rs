//! A model's folder: shards, their index, and the small files beside them.

use crate::error::{Error, Result};
use crate::input::Input;
use crate::output::Output;
use crate::packed::Packed;
use crate::unpack;
use crate::whole::{self, SAVE, check_finished, check_saves};
use crate::work::Work;
use gapless_formats::json::Json;
use gapless_formats::safetensors::Header;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The longest index that is read.
const LONGEST: u64 = 100_000_000;
/// Files beside the shards up to this size are copied.
const SMALL: u64 = 256 << 20;
const INDEX: &str = ".safetensors.index.json";
/// The error for a folder without shards.
pub(crate) const NONE: &str = "the folder has no .safetensors file";

/// The contents of a folder.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Folder {
    /// The `.safetensors` files, by name.
    pub shards: Vec<PathBuf>,
    /// Other regular files that are copied.
    pub others: Vec<PathBuf>,
    /// All else: folders, and files too large to be settings.
    pub left_out: Vec<PathBuf>,
}

/// Looks through a folder. Its index, if it has one, must name shards that exist and hold the tensors it lists.
pub fn read(path: &Path) -> Result<Folder> {
    let mut folder = Folder::default();
    for (entry, name, meta) in entries(path)? {
        if meta.is_file() && name.ends_with(".safetensors") {
            folder.shards.push(entry);
        } else if meta.is_file() && meta.len() <= SMALL {
            folder.others.push(entry);
        } else {
            folder.left_out.push(entry);
        }
    }
    if folder.shards.is_empty() {
        return none(path);
    }
    check_indexes(path, &folder)?;
    Ok(folder)
}

/// Looks through a folder and the folders in it, as pipelines of several models have them. All files that are not
/// shards are `others`, of any size. Left out: hidden folders (`.git`, `.cache`), and entries that are neither a
/// file nor a folder.
pub fn read_tree(path: &Path) -> Result<Folder> {
    if is_cache(path) {
        return none(path);
    }
    let mut folder = Folder::default();
    // Folders to visit, each with those that contain it, because a link to one of these would never end.
    let mut open = vec![(path.to_owned(), Vec::new())];
    while let Some((at, mut within)) = open.pop() {
        let real = fs::canonicalize(&at).map_err(|source| Error::Read { path: at.clone(), source })?;
        if within.contains(&real) {
            folder.left_out.push(at);
            continue;
        }
        within.push(real);
        let (mut one, mut below) = (Folder::default(), Vec::new());
        for (entry, name, meta) in entries(&at)? {
            if meta.is_dir() && !name.starts_with('.') {
                below.push((entry, within.clone()));
            } else if meta.is_file() && name.ends_with(".safetensors") {
                one.shards.push(entry);
            } else if meta.is_file() {
                one.others.push(entry);
            } else {
                one.left_out.push(entry);
            }
        }
        check_indexes(&at, &one)?;
        folder.shards.extend(one.shards);
        folder.others.extend(one.others);
        folder.left_out.extend(one.left_out);
        open.extend(below.into_iter().rev());
    }
    if folder.shards.is_empty() {
        return none(path);
    }
    Ok(folder)
}

/// Entries of a folder, by name, without leftovers of writers: path, name, and metadata with links followed.
fn entries(path: &Path) -> Result<Vec<(PathBuf, String, fs::Metadata)>> {
    let fail = |source| Error::Read { path: path.to_owned(), source };
    let mut paths: Vec<PathBuf> = Vec::new();
    for entry in fs::read_dir(path).map_err(fail)? {
        paths.push(entry.map_err(fail)?.path());
    }
    paths.sort();
    let mut entries = Vec::with_capacity(paths.len());
    for entry in paths {
        let name = entry.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.ends_with(".part") && name.starts_with('.') || whole::is_mark(&name) {
            continue;
        }
        match fs::metadata(&entry) {
            Ok(meta) => entries.push((entry, name, meta)),
            Err(_) if entry.is_symlink() => {
                let what = "this is a link to a file that is not there: the folder is not complete";
                return Error::refused(&entry, what, "download the model again, or remove the link");
            }
            Err(source) => return Err(Error::Read { path: entry, source }),
        }
    }
    Ok(entries)
}

/// True if a folder is one model of a hub's cache, which has its files in `snapshots/COMMIT`.
fn is_cache(path: &Path) -> bool {
    path.join("snapshots").is_dir() && path.join("blobs").is_dir()
}

/// The error for a folder without shards.
fn none<T>(path: &Path) -> Result<T> {
    let help = if is_cache(path) {
        "this is a hub's cache: name the folder of one commit, snapshots/COMMIT in it"
    } else if folders_with_shards(path) {
        "the folders in it have some: name one of them"
    } else {
        "name a folder with .safetensors files, or one file"
    };
    Error::refused(path, NONE, help)
}

fn folders_with_shards(path: &Path) -> bool {
    let below = entries(path).unwrap_or_default().into_iter().filter(|(_, _, meta)| meta.is_dir());
    let mut names = below.flat_map(|(folder, _, _)| entries(&folder).unwrap_or_default());
    names.any(|(_, name, meta)| meta.is_file() && name.ends_with(".safetensors"))
}

fn check_indexes(path: &Path, folder: &Folder) -> Result<()> {
    check_finished(path)?;
    let mut has_index = false;
    for index in folder.others.iter().filter(|other| other.to_string_lossy().ends_with(INDEX)) {
        check_index(path, index)?;
        has_index = true;
    }
    if has_index {
        return Ok(());
    }
    // Errors within a file are reported when it is read.
    let header = |shard: &PathBuf| Some((shard.clone(), Input::open(shard).ok()?.header().ok()?));
    let headers: Vec<(PathBuf, Header)> = folder.shards.iter().filter_map(header).collect();
    let saves: Vec<_> = headers.iter().map(|(path, header)| (path.as_path(), header.value(SAVE))).collect();
    check_saves(&saves, None)
}

/// The shard of each tensor, by an index.
pub fn weight_map(index: &Path) -> Result<BTreeMap<String, String>> {
    Ok(read_index(index)?.0)
}

/// The shard of each tensor, and the save of the index.
fn read_index(index: &Path) -> Result<(BTreeMap<String, String>, Option<String>)> {
    let file = Input::open(index)?;
    let refuse = |what: String| Error::refused(index, what, "copy or download the file again");
    if file.size > LONGEST {
        return refuse(format!("an index of {} bytes: the limit is {LONGEST}", file.size));
    }
    let text = file.bytes(0, file.size as usize)?;
    let json =
        Json::parse(&text, 5_000_000).map_err(|problem| Error::Format { path: index.to_owned(), problem })?;
    let Some(entries) = json.get("weight_map").and_then(Json::object) else {
        return refuse("it has no weight_map, so it is not an index of shards".into());
    };
    let mut map = BTreeMap::new();
    for (tensor, shard) in entries {
        let Some(shard) = shard.text() else {
            return refuse(format!("the shard of tensor {tensor:?} is {}, not a name", shard.kind()));
        };
        // A name that leaves the folder would make a command read, and `pack` write, outside of it.
        if shard.is_empty() || shard.contains(['/', '\\']) || shard == ".." {
            return refuse(format!("the shard {shard:?} of tensor {tensor:?} is not a file of this folder"));
        }
        map.insert(tensor.clone(), shard.to_owned());
    }
    let save = json.get("metadata").and_then(|metadata| metadata.get(SAVE)).and_then(Json::text);
    Ok((map, save.map(str::to_owned)))
}

/// An error unless the shards of an index of `folder` exist and hold the tensors that it lists.
pub fn check_index(folder: &Path, index: &Path) -> Result<()> {
    check_finished(folder)?;
    let (map, save) = read_index(index)?;
    let mut saves: Vec<(PathBuf, Option<String>)> = Vec::new();
    let mut shards: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (tensor, shard) in &map {
        shards.entry(shard).or_default().push(tensor);
    }
    for (shard, tensors) in shards {
        let path = folder.join(shard);
        if !path.is_file() {
            return Error::refused(
                index,
                format!(
                    "the shard {shard} is missing; it holds {} tensors, the first is {:?}",
                    tensors.len(),
                    tensors[0]
                ),
                "download the missing shard",
            );
        }
        let header = Input::open(&path)?.header()?;
        let there: HashSet<&str> = header.tensors.iter().map(|tensor| tensor.name.as_str()).collect();
        if let Some(missing) = tensors.iter().find(|tensor| !there.contains(**tensor)) {
            return Error::refused(
                &path,
                format!(
                    "tensor {missing:?} should be in this shard and is not: it is a shard of another model"
                ),
                "download the shard again, or the index",
            );
        }
        saves.push((path, header.value(SAVE).map(str::to_owned)));
    }
    let saves: Vec<_> = saves.iter().map(|(path, save)| (path.as_path(), save.as_deref())).collect();
    check_saves(&saves, save.as_deref().map(|save| (index, save)))
}

/// True if `packed` holds the file at `from`, byte for byte. It compares bytes because another model of the same
/// architecture has the same header, and its files may be older than the packed one.
pub fn is_done(from: &Path, packed: &Path, work: impl Into<Work>) -> bool {
    let work = work.into();
    let done = || -> Result<bool> {
        let (source, made) = (Input::open(from)?, Input::open(packed)?);
        let header: Header = source.header()?;
        Ok(match Packed::read(packed, made.header()?)? {
            Some(made) if made.original.text == header.text => unpack::is_equal(packed, &source, work)?,
            _ => false,
        })
    };
    done().unwrap_or(false)
}

/// Copies a small file; the copy appears whole or not at all.
pub fn copy(from: &Path, to: &Path) -> Result<()> {
    let input = Input::open(from)?;
    let output = Output::create(to)?;
    let mut at = 0;
    while at < input.size {
        let bytes = input.bytes(at, (1 << 20).min((input.size - at) as usize))?;
        output.write(at, &bytes)?;
        at += bytes.len() as u64;
    }
    output.put_in_place()
}

/// The shards that a folder's indexes name, by name; empty if it has no index.
pub fn indexed(path: &Path) -> Result<Vec<PathBuf>> {
    let mut shards = BTreeSet::new();
    for other in read(path)?.others {
        if other.to_string_lossy().ends_with(INDEX) {
            shards.extend(weight_map(&other)?.into_values().map(|shard| path.join(shard)));
        }
    }
    Ok(shards.into_iter().collect())
}
