//! Models from files and names: a Hugging Face `config.json` or its folder, `.safetensors`, `.gguf`, `.pt2`, `.onnx`,
//! or a built-in name.
//!
//! Every file is hostile until parsed: lengths are compared with the bytes that are there before anything is allocated,
//! nesting and counts have limits, and an error names the file and the byte. Weights themselves are never read, only
//! their headers.

mod config;
mod error;
mod fields;
mod folder;
mod gguf;
mod gguf_model;
mod nearest;
mod onnx;
mod presets;
mod pt2;
mod pt2_graph;
mod safetensors;

pub use error::{Problem, ReadError};
pub use presets::{names, preset_config};

/// Every `model_type` that a `config.json` may have.
pub fn model_types() -> impl Iterator<Item = &'static str> {
    config::types()
}

use crate::model::{Graph, Model};
use error::{Fault, Named, unsupported};
use gapless_formats::{json, protobuf, source, zip};
use std::fs::{self, File};
use std::io::{Cursor, Read};
use std::path::Path;

/// Values that a description may leave open.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Stands for the symbolic dimensions of an ONNX file; 1 if it is not given.
    pub batch: Option<u64>,
}

/// The model that `text` is the path or the name of.
///
/// # Errors
/// The file cannot be read or is not a model's description, or no model has that name.
pub fn open(text: &str) -> Result<Model, ReadError> {
    open_with(text, &Options::default())
}

/// The same, with values that a description may leave open.
///
/// # Errors
/// As `open`.
pub fn open_with(text: &str, options: &Options) -> Result<Model, ReadError> {
    if text.trim().is_empty() {
        return unsupported("the name of the model is empty", "give a model's file, its folder, or a name")
            .named("MODEL");
    }
    let path = Path::new(text);
    let Ok(about) = fs::metadata(path) else { return named(text) };
    if about.is_dir() {
        let model = folder::read(path);
        return match (model, presets::preset(text)) {
            // A folder that happens to have the name of a model.
            (Err(ReadError { problem: Problem::Unsupported { .. }, .. }), Some(mut preset))
                if !text.contains('/') =>
            {
                preset
                    .notes
                    .push(format!("the folder {text} holds no model: the built-in one of that name is used"));
                Ok(preset)
            }
            (model, _) => model,
        };
    }
    if !about.is_file() {
        return unsupported(
            "this is neither a file nor a folder",
            "give a model's file, its folder, or a name",
        )
        .named(text);
    }
    let mut start = [0; 8];
    let filled = || -> Result<usize, Fault> {
        let mut file = File::open(path).map_err(Problem::Open)?;
        let mut filled = 0;
        while filled < start.len() {
            match file.read(&mut start[filled..]).map_err(|source| Problem::Io { offset: 0, source })? {
                0 => break,
                more => filled += more,
            }
        }
        Ok(filled)
    };
    let mut filled = filled;
    let filled = filled().named(text)?;
    match kind(path, &start[..filled]) {
        Some(Kind::Config) => folder::read_config(path),
        Some(Kind::Safetensors) => folder::read_safetensors(path),
        Some(Kind::Gguf) => {
            let read = || gguf_model::model(stem(path), gguf::read(File::open(path).map_err(Problem::Open)?)?);
            read().named(text)
        }
        Some(Kind::Pt2) => {
            let read = || pt2::read(stem(path), File::open(path).map_err(Problem::Open)?);
            read().named(text)
        }
        Some(Kind::Onnx) => {
            let read = || onnx::read(stem(path), File::open(path).map_err(Problem::Open)?, options.batch);
            read().named(text)
        }
        None if filled == 0 => {
            unsupported("the file is empty", "was the process that wrote it stopped before it was done?").named(text)
        }
        None => unsupported(
            "this is not the description of a model",
            "give a config.json or its folder, a .safetensors, .gguf, .pt2 or .onnx file, or a built-in model's name; `gapless report` reads the recording of a run",
        )
        .named(text),
    }
}

/// Formats by the names of their files and their first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Config,
    Safetensors,
    Gguf,
    Pt2,
    Onnx,
}

fn kind(path: &Path, start: &[u8]) -> Option<Kind> {
    if start.starts_with(b"GGUF") {
        return Some(Kind::Gguf);
    }
    if start.starts_with(b"PK\x03\x04") {
        return Some(Kind::Pt2);
    }
    let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
    Some(match extension.to_ascii_lowercase().as_str() {
        "json" => Kind::Config,
        "safetensors" => Kind::Safetensors,
        "gguf" => Kind::Gguf,
        "pt2" => Kind::Pt2,
        "onnx" => Kind::Onnx,
        _ => return None,
    })
}

fn stem(path: &Path) -> String {
    path.file_stem().map_or_else(String::new, |name| name.to_string_lossy().into_owned())
}

fn named(text: &str) -> Result<Model, ReadError> {
    if let Some(model) = presets::preset(text) {
        return Ok(model);
    }
    let extension = Path::new(text).extension().and_then(|extension| extension.to_str()).unwrap_or_default();
    let path = text.starts_with(['.', '/', '~'])
        || matches!(extension, "json" | "safetensors" | "gguf" | "pt2" | "onnx")
        || matches!(extension, "pickle" | "pkl" | "gz" | "zst" | "pt" | "pth" | "bin" | "py" | "gtrace");
    let problem = if text.contains("://") {
        Problem::Missing { help: "this is an address: download the file first, and give its path" }
    } else if path {
        Problem::Missing { help: "check the path" }
    } else if let Some((owner, name)) = hub(text) {
        let help = format!(
            "if it is on the Hugging Face hub, run `hf download {owner}/{name} config.json --local-dir {name}`, then \
             `gapless fit {name}`; the nearest built-in names are {}",
            presets::nearest(text).join(", ")
        );
        Problem::Unknown { help }
    } else {
        Problem::Unknown { help: format!("the nearest names are {}", presets::nearest(text).join(", ")) }
    };
    Err(Box::new(problem)).named(text)
}

/// Owner and name of a text that has the form of an id of the Hugging Face hub.
fn hub(text: &str) -> Option<(&str, &str)> {
    let (owner, name) = text.split_once('/')?;
    let plain = |part: &str| {
        !part.is_empty()
            && part.len() <= 96
            && !part.starts_with(['-', '.'])
            && part.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
    };
    (plain(owner) && plain(name)).then_some((owner, name))
}

/// Refuses a graph whose tensors together have more bytes than can be counted.
fn bounded(graph: &Graph) -> Result<(), Fault> {
    let bytes = graph.tensors.iter().try_fold(0u64, |sum, tensor| {
        let elements = tensor.shape.iter().try_fold(1u64, |product, side| product.checked_mul(*side))?;
        sum.checked_add(elements.checked_mul(tensor.dtype.bytes())?).filter(|sum| *sum < 1 << 60)
    });
    match bytes {
        Some(_) => Ok(()),
        None => {
            unsupported("the graph's tensors have more than 2^60 bytes together", "check the file's sizes")
        }
    }
}

/// The text of a `config.json`, without its folder.
///
/// # Errors
/// It is not a configuration, or not one of a known model.
pub fn config(name: &str, text: &[u8]) -> Result<Model, ReadError> {
    let mut notes = Vec::new();
    let architecture = config::read(text, false, &mut notes).named(name)?;
    let stored = config::stored(text).named(name)?;
    Ok(Model { name: name.to_owned(), architecture, weights: None, stored, notes })
}

/// The bytes of a `.safetensors` file.
///
/// # Errors
/// The header is not one.
pub fn safetensors(name: &str, bytes: &[u8]) -> Result<Model, ReadError> {
    let weights = safetensors::read(Cursor::new(bytes)).named(name)?;
    Ok(Model {
        name: name.to_owned(),
        architecture: None,
        weights: Some(weights),
        stored: None,
        notes: Vec::new(),
    })
}

/// The bytes of a `.gguf` file.
///
/// # Errors
/// The header is not one, or describes an impossible model.
pub fn gguf(name: &str, bytes: &[u8]) -> Result<Model, ReadError> {
    gguf::read(Cursor::new(bytes)).and_then(|gguf| gguf_model::model(name.to_owned(), gguf)).named(name)
}

/// The bytes of a `.pt2` archive.
///
/// # Errors
/// It is not an archive, or holds no exported program.
pub fn pt2(name: &str, bytes: &[u8]) -> Result<Model, ReadError> {
    pt2::read(name.to_owned(), Cursor::new(bytes)).named(name)
}

/// The bytes of an ONNX file.
///
/// # Errors
/// It is not one, or the shape of a tensor cannot be told.
pub fn onnx(name: &str, bytes: &[u8], options: &Options) -> Result<Model, ReadError> {
    onnx::read(name.to_owned(), Cursor::new(bytes), options.batch).named(name)
}
