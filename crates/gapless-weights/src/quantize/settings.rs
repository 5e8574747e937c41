//! The small files of a model: config.json gets a `quantization_config`, an index is written again, all else is copied.

use super::architecture::Architecture;
use crate::error::{Error, Result};
use crate::folder::{self, Folder};
use crate::input::Input;
use crate::output::Output;
use serde_json::{Value as Json, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The longest config.json or index that is read.
const LONGEST: u64 = 100_000_000;

/// The files beside the shards, read and checked before anything is written.
#[derive(Debug)]
pub(super) struct Settings {
    config: Option<Json>,
    /// Each index: its file name, its JSON, and the shards that it names.
    indexes: Vec<(String, Json, BTreeSet<String>)>,
    copies: Vec<PathBuf>,
}

impl Settings {
    pub(super) fn read(folder: &Folder) -> Result<Settings> {
        let mut settings = Settings { config: None, indexes: Vec::new(), copies: Vec::new() };
        for path in &folder.others {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if name == "config.json" {
                let config = object(path)?;
                if config.get("quantization_config").is_some_and(|config| !config.is_null()) {
                    return Error::refused(
                        path,
                        "it has a quantization_config, so the model is quantised already",
                        "give the model before it was quantised",
                    );
                }
                settings.config = Some(config);
            } else if name.ends_with(".safetensors.index.json") {
                let shards = folder::weight_map(path)?.into_values().collect();
                settings.indexes.push((name, object(path)?, shards));
            } else {
                settings.copies.push(path.clone());
            }
        }
        Ok(settings)
    }

    pub(super) fn has_config(&self) -> bool {
        self.config.is_some()
    }

    /// The facts on the model in config.json.
    pub(super) fn architecture(&self) -> Architecture {
        self.config.as_ref().map(Architecture::read).unwrap_or_default()
    }

    /// Writes all of them; `shards` has each shard's tensors and their bytes.
    pub(super) fn write(
        self,
        to: &Path,
        config: &Json,
        shards: &BTreeMap<String, Vec<(String, u64)>>,
    ) -> Result<()> {
        for path in &self.copies {
            folder::copy(path, &to.join(path.file_name().unwrap_or_default()))?;
        }
        for (name, mut index, named) in self.indexes {
            let (mut map, mut total) = (serde_json::Map::new(), 0);
            for (shard, tensors) in shards.iter().filter(|(shard, _)| named.contains(*shard)) {
                for (tensor, bytes) in tensors {
                    map.insert(tensor.clone(), json!(shard));
                    total += bytes;
                }
            }
            if !index["metadata"].is_object() {
                index["metadata"] = json!({});
            }
            index["metadata"]["total_size"] = json!(total);
            index["weight_map"] = Json::Object(map);
            put(&to.join(name), &index)?;
        }
        if let Some(mut whole) = self.config {
            whole["quantization_config"] = config.clone();
            put(&to.join("config.json"), &whole)?;
        }
        Ok(())
    }
}

fn object(path: &Path) -> Result<Json> {
    let input = Input::open(path)?;
    let refuse = |what: String| Error::refused(path, what, "copy or download the file again");
    if input.size > LONGEST {
        return refuse(format!("the file has {} bytes: the limit is {LONGEST}", input.size));
    }
    let bytes = input.bytes(0, input.size as usize)?;
    match serde_json::from_slice::<Json>(&bytes) {
        Ok(json) if json.is_object() => Ok(json),
        Ok(_) => refuse("the file is not a JSON object".to_owned()),
        Err(error) => refuse(format!("the file is not JSON: {error}")),
    }
}

fn put(path: &Path, json: &Json) -> Result<()> {
    let mut text = serde_json::to_string_pretty(json)
        .map_err(|source| Error::Write { path: path.to_owned(), source: source.into() })?;
    text.push('\n');
    let output = Output::create(path)?;
    output.write(0, text.as_bytes())?;
    output.put_in_place()
}
