//! A model's folder: shards, their index, and the small files beside them.

use crate::error::{Error, Result};
use crate::input::Input;
use crate::output::Output;
use crate::packed::Packed;
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

/// What a folder has.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Folder {
    /// The `.safetensors` files, by name.
    pub shards: Vec<PathBuf>,
    /// Other regular files that are copied.
    pub others: Vec<PathBuf>,
    /// What is neither: folders, and files too large to be settings.
    pub left_out: Vec<PathBuf>,
}

/// Looks through a folder. Its index, where it has one, must name shards that are there and hold what it says.
pub fn read(path: &Path) -> Result<Folder> {
    let fail = |source| Error::Read { path: path.to_owned(), source };
    let mut folder = Folder::default();
    let mut entries: Vec<PathBuf> = Vec::new();
    for entry in fs::read_dir(path).map_err(fail)? {
        entries.push(entry.map_err(fail)?.path());
    }
    entries.sort();
    for entry in entries {
        let name = entry.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let meta = fs::metadata(&entry).map_err(|source| Error::Read { path: entry.clone(), source })?;
        if name.ends_with(".part") && name.starts_with('.') {
            continue;
        } else if meta.is_file() && name.ends_with(".safetensors") {
            folder.shards.push(entry);
        } else if meta.is_file() && meta.len() <= SMALL {
            folder.others.push(entry);
        } else {
            folder.left_out.push(entry);
        }
    }
    if folder.shards.is_empty() {
        return Error::refused(
            path,
            "the folder has no .safetensors file",
            "name a folder with .safetensors files, or one file",
        );
    }
    for index in folder.others.iter().filter(|other| other.to_string_lossy().ends_with(INDEX)) {
        check_index(path, index)?;
    }
    Ok(folder)
}

/// Which shard holds each tensor, by an index.
pub fn weight_map(index: &Path) -> Result<BTreeMap<String, String>> {
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
        // A name that leaves the folder would read, and for `pack` write, somewhere else.
        if shard.is_empty() || shard.contains(['/', '\\']) || shard == ".." {
            return refuse(format!("the shard {shard:?} of tensor {tensor:?} is not a file of this folder"));
        }
        map.insert(tensor.clone(), shard.to_owned());
    }
    Ok(map)
}

fn check_index(folder: &Path, index: &Path) -> Result<()> {
    let map = weight_map(index)?;
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
    }
    Ok(())
}

/// Whether `packed` was made from the file at `from`: it is whole (it has its final name), its original header is this
/// one, and it is not older.
pub fn is_done(from: &Path, packed: &Path) -> bool {
    let done = || -> Result<bool> {
        let (source, made) = (Input::open(from)?, Input::open(packed)?);
        if made.modified() < source.modified() {
            return Ok(false);
        }
        let header: Header = source.header()?;
        Ok(match Packed::read(packed, made.header()?)? {
            Some(made) => made.original.text == header.text,
            None => false,
        })
    };
    done().unwrap_or(false)
}

/// Copies a small file; it appears whole or not at all.
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

/// The shards that a folder's indexes name, by name; empty where it has no index.
pub fn indexed(path: &Path) -> Result<Vec<PathBuf>> {
    let mut shards = BTreeSet::new();
    for other in read(path)?.others {
        if other.to_string_lossy().ends_with(INDEX) {
            shards.extend(weight_map(&other)?.into_values().map(|shard| path.join(shard)));
        }
    }
    Ok(shards.into_iter().collect())
}
