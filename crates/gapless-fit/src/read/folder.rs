//! A folder as the Hugging Face hub lays it out: `config.json`, and the weights in one `.safetensors` file or in shards
//! with an index. The index names files of the folder itself: a name that leads out of it is refused.

use super::error::{Fault, Named, Problem, ReadError, malformed, unsupported};
use super::json::{Json, brief};
use super::{config, safetensors, stem};
use crate::model::{Architecture, Model, Weight};
use crate::parameters;
use crate::stored::Stored;
use crate::weigh;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// Said of an unknown method if headers are there.
const HEADERS_TELL: &str = "the files say what their tensors take";
const INDEX: &str = "model.safetensors.index.json";
/// The index of the largest models is some megabytes.
const LARGEST_INDEX: u64 = 256 << 20;

/// A small file, wholly.
pub(crate) fn text(path: &Path, limit: u64) -> Result<Vec<u8>, ReadError> {
    let name = path.display().to_string();
    let read = || -> Result<Vec<u8>, Fault> {
        let file = File::open(path).map_err(Problem::Open)?;
        let mut source = super::source::Source::new(file)?;
        let size = source.size();
        source.bytes(size, limit, "the file")
    };
    read().named(&name)
}

/// The model in `folder`; its name is the folder's.
pub(crate) fn read(folder: &Path) -> Result<Model, ReadError> {
    let config = folder.join("config.json");
    let weights = weights(folder)?;
    combine(name_of(folder), config.is_file().then_some(config.as_path()), weights, folder)
}

/// One `.safetensors` file, with the `config.json` beside it if there is one.
pub(crate) fn read_safetensors(path: &Path) -> Result<Model, ReadError> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let config = folder.join("config.json");
    let weights = Weights { list: Some(one(path)?), notes: Vec::new() };
    combine(stem(path), config.is_file().then_some(config.as_path()), weights, folder)
}

/// A configuration by its own path. The folder's weights belong to a `config.json`, which has the folder's name; any
/// other file has its own.
pub(crate) fn read_config(path: &Path) -> Result<Model, ReadError> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if path.file_name().is_none_or(|name| name != "config.json") {
        return combine(stem(path), Some(path), Weights { list: None, notes: Vec::new() }, folder);
    }
    combine(name_of(folder), Some(path), weights(folder)?, folder)
}

/// The name of a model in a folder.
fn name_of(folder: &Path) -> String {
    let whole = fs::canonicalize(folder).ok();
    let name = whole.and_then(|path| path.file_name().map(|name| name.to_string_lossy().into_owned()));
    name.unwrap_or_else(|| folder.display().to_string())
}

struct Weights {
    list: Option<Vec<Weight>>,
    notes: Vec<String>,
}

fn combine(name: String, config: Option<&Path>, weights: Weights, folder: &Path) -> Result<Model, ReadError> {
    let Weights { list, mut notes } = weights;
    let architecture = match config {
        Some(path) => {
            let text = text(path, config::LARGEST)?;
            config::read(&text, list.is_some(), &mut notes).named(&path.display().to_string())?
        }
        None if list.is_some() => {
            notes.push("there is no config.json beside the weights: only they are known".into());
            None
        }
        None => {
            return unsupported(
                "the folder holds neither config.json nor .safetensors files",
                "give a model's folder, a file, or the name of a built-in model",
            )
            .named(&folder.display().to_string());
        }
    };
    if let (Some(architecture), Some(list)) = (&architecture, &list) {
        compare(architecture, list, &mut notes);
    }
    let mut stored = match config {
        Some(path) => stored(path, list.is_some(), &mut notes)?,
        None => None,
    };
    if let (Some(list), Some(architecture)) = (&list, &architecture) {
        let bytes: u64 = list.iter().map(|weight| weight.bytes).sum();
        let count = parameters::count(architecture).unwrap_or(0);
        match &mut stored {
            Some(own) => {
                // Files may hold a head twice, or layers that no model loads.
                let counted = own.bytes(architecture, weigh::width(architecture));
                own.total = (counted.abs_diff(bytes) * 50 < bytes).then_some(bytes);
            }
            None if notes.iter().any(|note| note.contains(HEADERS_TELL)) => {
                stored = Some(Stored::listed("as its files are", bytes, count));
            }
            None => {}
        }
    }
    Ok(Model { name, architecture, weights: list, stored, notes })
}

/// The format of quantised weights: by the configuration, or by a file that AutoGPTQ or modelopt wrote beside it. A
/// method that is not known is an error, unless `headers` tell the bytes of each tensor.
fn stored(config: &Path, headers: bool, notes: &mut Vec<String>) -> Result<Option<Stored>, ReadError> {
    let read = |path: &Path| text(path, config::LARGEST);
    let found = config::stored(&read(config)?).named(&config.display().to_string());
    let mut stored = match found {
        Ok(stored) => stored,
        Err(error) if headers => {
            notes.push(format!("{}: {HEADERS_TELL}", error.problem));
            None
        }
        Err(error) => return Err(error),
    };
    for name in ["quantize_config.json", "quant_config.json", "hf_quant_config.json"] {
        let beside = config.with_file_name(name);
        if stored.is_none() && beside.is_file() {
            stored = Some(config::stored_beside(&read(&beside)?).named(&beside.display().to_string())?);
        }
    }
    Ok(stored)
}

/// Notes a file that stores another number of elements than the architecture has: a head stored twice, an adapter,
/// packed weights.
fn compare(architecture: &Architecture, weights: &[Weight], notes: &mut Vec<String>) {
    let stored: u128 = weights
        .iter()
        .map(|weight| weight.shape.iter().map(|size| u128::from(*size)).product::<u128>())
        .sum();
    let counted = parameters::count(architecture).map_or(0, u128::from);
    if stored != counted {
        notes.push(format!("the files store {stored} elements, the architecture has {counted} parameters"));
    }
}

/// Whatever weights the folder holds.
fn weights(folder: &Path) -> Result<Weights, ReadError> {
    let index = folder.join(INDEX);
    if index.is_file() {
        return shards(folder, &index);
    }
    let single = folder.join("model.safetensors");
    if single.is_file() {
        return Ok(Weights { list: Some(one(&single)?), notes: Vec::new() });
    }
    let mut others: Vec<PathBuf> = fs::read_dir(folder)
        .map_err(|error| Box::new(Problem::Open(error)))
        .named(&folder.display().to_string())?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "safetensors") && path.is_file())
        .collect();
    others.sort();
    if others.is_empty() {
        return Ok(Weights { list: None, notes: Vec::new() });
    }
    let mut seen: BTreeMap<String, PathBuf> = BTreeMap::new();
    let mut list = Vec::new();
    for path in others {
        for weight in one(&path)? {
            if let Some(other) = seen.insert(weight.name.clone(), path.clone()) {
                let what = format!("tensor \"{}\" is in {} too", brief(&weight.name), other.display());
                return malformed(8, what).named(&path.display().to_string());
            }
            list.push(weight);
        }
    }
    Ok(Weights { list: Some(list), notes: Vec::new() })
}

fn one(path: &Path) -> Result<Vec<Weight>, ReadError> {
    let read = || safetensors::read(File::open(path).map_err(Problem::Open)?);
    read().named(&path.display().to_string())
}

fn shards(folder: &Path, index: &Path) -> Result<Weights, ReadError> {
    let name = index.display().to_string();
    let text = text(index, LARGEST_INDEX)?;
    let json = Json::parse(&text, 5_000_000).named(&name)?;
    let Some(map) = json.get("weight_map").and_then(Json::object) else {
        return malformed(json.at, "the index has no weight_map").named(&name);
    };
    let mut files: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (tensor, file) in map {
        let Some(file_name) = file.text() else {
            return malformed(file.at, format!("tensor \"{}\" has no file name", brief(tensor))).named(&name);
        };
        let plain = !file_name.is_empty()
            && !file_name.contains(['/', '\\', '\0', ':'])
            && !file_name.starts_with('.');
        if !plain {
            let what = format!(
                "\"{}\" is not the name of a file in this folder, so it is not opened",
                brief(file_name)
            );
            return malformed(file.at, what).named(&name);
        }
        files.entry(file_name).or_default().insert(tensor);
    }
    let missing: Vec<&str> = files.keys().copied().filter(|file| !folder.join(file).is_file()).collect();
    if missing.len() == files.len() {
        let note = "the index of the weights is there but none of its files: weights are computed, not read";
        return Ok(Weights { list: None, notes: vec![note.into()] });
    }
    if let Some(first) = missing.first() {
        let problem = Problem::Missing {
            help: "it is named in the index: download the missing files, or remove the index",
        };
        return Err(Box::new(problem)).named(&folder.join(first).display().to_string());
    }
    let mut list = Vec::new();
    for (file, mut expected) in files {
        let path = folder.join(file);
        for weight in one(&path)? {
            if !expected.remove(weight.name.as_str()) {
                let what = format!("tensor \"{}\" is here, but not in the index", brief(&weight.name));
                return malformed(8, what).named(&path.display().to_string());
            }
            list.push(weight);
        }
        if let Some(tensor) = expected.first() {
            let what = format!("tensor \"{}\" is in the index, but not here", brief(tensor));
            return malformed(8, what).named(&path.display().to_string());
        }
    }
    Ok(Weights { list: Some(list), notes: Vec::new() })
}
