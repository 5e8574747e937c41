//! The tensors of a file, or of a folder with shards.

use crate::error::Result;
use crate::file::{Cached, Reading};
use gapless_formats::safetensors::Tensor;
use gapless_weights::packed::Stored;
use gapless_weights::stream::Directory;
use gapless_weights::whole::{SAVE, check_saves};
use gapless_weights::{Error, Reader, folder};
use serde_json::{Value, json};
use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::sync::Arc;

/// One open file.
#[derive(Debug)]
pub struct Shard {
    pub reader: Reader,
    pub cached: Cached,
}

/// A tensor: its shard, and its place in the shard's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub shard: usize,
    pub index: usize,
}

/// The metadata key of a checkpoint of several ranks: the files hold parts of tensors, with their offsets.
const SHARDED: &str = "DCP_SHARDING_INFO";

/// All tensors of a model. Invariant: names are unique, except for parts of tensors in the files of several ranks.
#[derive(Debug)]
pub struct Catalogue {
    pub shards: Vec<Shard>,
    pub tensors: Vec<Place>,
}

impl Catalogue {
    /// Opens a file, a folder, or the shards that an index names. If a folder has an index, only its shards are opened.
    pub fn open(path: &Path) -> Result<Catalogue> {
        let is_index = path.is_file() && path.extension().is_some_and(|extension| extension == "json");
        let mut files = if path.is_dir() { folder::read(path)?.shards } else { vec![path.to_owned()] };
        if is_index {
            // One of several variants in a folder: model.safetensors.index.fp16.json.
            let shards: BTreeSet<String> = folder::weight_map(path)?.into_values().collect();
            let beside = path.parent().unwrap_or(Path::new(""));
            folder::check_index(beside, path)?;
            files = shards.iter().map(|shard| beside.join(shard)).collect();
        } else if path.is_dir() {
            let listed = folder::indexed(path)?;
            if !listed.is_empty() {
                files = listed;
            }
        }
        let (mut shards, mut tensors, mut seen) = (Vec::new(), Vec::new(), HashMap::new());
        for (shard, file) in files.iter().enumerate() {
            let reader = Reader::open(file)?;
            let is_parts = reader.header.value(SHARDED).is_some();
            for (index, tensor) in reader.header.tensors.iter().enumerate() {
                if let Some((first, are_parts)) = seen.insert(tensor.name.clone(), (shard, is_parts))
                    && !(is_parts && are_parts)
                {
                    let first: &Path = &files[first];
                    return Err(Error::Refused {
                        path: file.clone(),
                        what: format!(
                            "tensor {:?} is here and in {} too: the folder holds two models",
                            tensor.name,
                            first.display()
                        ),
                        help: "name one file, or the index of one model, or keep one model in the folder",
                    }
                    .into());
                }
                tensors.push(Place { shard, index });
            }
            shards.push(Shard { cached: Cached::new(&reader.input), reader });
        }
        // The folder was searched before these files were opened, and a save may have happened in between.
        let of_folder = path.is_dir() || is_index;
        let save = |shard: &Shard| shard.reader.header.value(SAVE).map(str::to_owned);
        let saves: Vec<Option<String>> = shards.iter().map(save).collect();
        let files: Vec<_> = shards.iter().map(|shard| shard.reader.input.path.as_path()).collect();
        if of_folder {
            let saves: Vec<_> = files.into_iter().zip(saves.iter().map(Option::as_deref)).collect();
            check_saves(&saves, None)?;
        }
        Ok(Catalogue { shards, tensors })
    }

    pub fn tensor(&self, place: Place) -> &Tensor {
        &self.shards[place.shard].reader.header.tensors[place.index]
    }

    /// The directory of a tensor that is stored as a stream; `None` if its bytes are stored as they are.
    pub fn directory(&self, place: Place) -> Result<Option<Arc<Directory>>> {
        let reader = &self.shards[place.shard].reader;
        Ok(match reader.place(place.index).1 {
            Some(Stored::Stream) => Some(Arc::new(reader.directory(place.index)?)),
            _ => None,
        })
    }

    /// True if most of a file is cold, and if it can be read past the page cache.
    pub fn is_cold(&self, reading: &Reading) -> bool {
        self.shards.iter().any(|shard| shard.cached.is_mostly_cold(&shard.reader.input, reading))
    }

    /// Names, types, shapes, and the files with their metadata.
    pub fn to_json(&self) -> Value {
        let tensors: Vec<Value> = self
            .tensors
            .iter()
            .map(|place| {
                let tensor = self.tensor(*place);
                let (range, stored) = self.shards[place.shard].reader.place(place.index);
                json!({
                    "name": tensor.name,
                    "dtype": tensor.dtype,
                    "shape": tensor.shape,
                    "bytes": tensor.bytes(),
                    "stored": range.end - range.start,
                    "packed": stored == Some(Stored::Stream),
                    "at": range.start,
                    "file": place.shard,
                })
            })
            .collect();
        let files: Vec<Value> = self
            .shards
            .iter()
            .map(|shard| {
                json!({
                    "path": shard.reader.input.path.display().to_string(),
                    "bytes": shard.reader.input.size,
                    "packed": shard.reader.is_packed(),
                    "metadata": shard.reader.header.metadata,
                })
            })
            .collect();
        json!({"files": files, "tensors": tensors})
    }
}
