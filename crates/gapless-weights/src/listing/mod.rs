//! The tensors of any file of weights, from its headers: names, types, shapes, and places of their bytes.
//!
//! Read: safetensors (packed or not, one file or a folder of shards), GGUF, PyTorch's zip archives (`.pt`, `.pth`,
//! `.bin`; our own reader of pickles, which runs no code), NumPy's `.npz` and `.npy`, ONNX.

mod npz;
mod onnx;
mod pickle;
mod torch;

use crate::error::{Error, Result};
use crate::folder;
use crate::input::Input;
use crate::reader::Reader;
use gapless_formats::fault::{Fault, Problem};
use gapless_formats::gguf::{self, Meta};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// The place of a tensor's bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// These bytes of the file.
    Range(Range<u64>),
    /// The tensor of this number in a file of ours.
    Packed(usize),
    /// Not known from the header: compressed in an archive, or in another file. The text has the reason.
    Elsewhere(&'static str),
}

/// One tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    pub name: String,
    /// As safetensors or ggml names it: "BF16", "Q4_K".
    pub dtype: String,
    pub shape: Vec<u64>,
    pub bytes: u64,
    /// The index of its file in the listing.
    pub file: usize,
    pub place: Place,
}

/// A file's or a folder's tensors.
#[derive(Debug, Default)]
pub struct Listing {
    /// "safetensors", "packed safetensors", "GGUF", "PyTorch", "NumPy", "ONNX" or "several formats".
    pub format: &'static str,
    pub files: Vec<PathBuf>,
    pub tensors: Vec<Listed>,
    /// Notes for the reader: parts that were left out, with reasons.
    pub notes: Vec<String>,
}

const SPLIT: &str = "this is part";
/// Endings of files of other formats, which are listed in a folder without shards.
const OTHERS: [&str; 8] = ["gguf", "bin", "pt", "pth", "ckpt", "npz", "npy", "onnx"];

/// Lists the tensors of a file or folder.
pub fn list(path: &Path) -> Result<Listing> {
    if !path.is_dir() {
        return file(path);
    }
    let shards = match folder::read_tree(path) {
        Ok(found) => found.shards,
        Err(error) => {
            let is_none = matches!(&error, Error::Refused { what, .. } if what == folder::NONE);
            let others = if is_none { other_files(path) } else { Vec::new() };
            if others.is_empty() {
                return Err(error);
            }
            others
        }
    };
    let mut all = Listing { format: "safetensors", ..Listing::default() };
    for shard in &shards {
        let one = file(shard)?;
        let at = all.files.len();
        all.format = match all.format {
            _ if all.files.is_empty() => one.format,
            same if same == one.format => same,
            same if same.ends_with("safetensors") => "safetensors",
            _ => "several formats",
        };
        // Models in different folders have tensors of the same names, so names begin with the folder.
        let below = shard.strip_prefix(path).ok().and_then(Path::parent).map(Path::to_string_lossy);
        let below =
            below.filter(|below| !below.is_empty()).map_or(String::new(), |below| format!("{below}/"));
        all.files.extend(one.files);
        all.tensors.extend(one.tensors.into_iter().map(|tensor| Listed {
            name: format!("{below}{}", tensor.name),
            file: at,
            ..tensor
        }));
        let of = shard.file_name().unwrap_or_default().to_string_lossy();
        // The note on a split model is left out, because the other parts are here too.
        let notes = one.notes.into_iter().filter(|note| !note.starts_with(SPLIT));
        all.notes.extend(notes.map(|note| format!("{of}: {note}")));
    }
    Ok(all)
}

/// The files of a folder that have another format than safetensors, by name.
fn other_files(path: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = entries
        .map(|entry| entry.path())
        .filter(|path| {
            let is_known = |extension: &std::ffi::OsStr| OTHERS.iter().any(|known| extension == *known);
            path.is_file() && path.extension().is_some_and(is_known)
        })
        .collect();
    found.sort();
    found
}

fn file(path: &Path) -> Result<Listing> {
    let input = Input::open(path)?;
    let start = input.bytes(0, 512.min(input.size as usize))?;
    let named = |problem: Fault| Error::Format { path: path.to_owned(), problem };
    let (format, tensors, notes) = if start.starts_with(b"GGUF") {
        let (tensors, notes) = of_gguf(&input).map_err(named)?;
        ("GGUF", tensors, notes)
    } else if start.starts_with(b"\x93NUMPY") {
        let (tensors, notes) = npz::read_one(&input).map_err(named)?;
        ("NumPy", tensors, notes)
    } else if start.starts_with(b"PK\x03\x04") || start.starts_with(b"PK\x05\x06") {
        archive(&input).map_err(named)?
    } else if let Some(what) = trace(&start) {
        return Error::refused(
            path,
            what,
            "`gapless report` reads recordings of memory, compressed or not; weights must not be compressed as a whole",
        );
    } else if start.starts_with(b"\x80\x02")
        || start.starts_with(b"\x80\x04")
        || start.starts_with(b"\x80\x05")
    {
        return Error::refused(
            path,
            "this is a bare pickle, as torch.save wrote before 1.6, and is not read",
            "load it in torch and save it again: torch.save writes a zip archive now",
        );
    } else if is_onnx(path, &start) {
        let (tensors, notes) = onnx::read(&input).map_err(named)?;
        ("ONNX", tensors, notes)
    } else {
        let reader = Reader::open(path)?;
        let format = if reader.is_packed() { "packed safetensors" } else { "safetensors" };
        (format, of_safetensors(&reader), Vec::new())
    };
    input.check_unchanged()?;
    Ok(Listing { format, files: vec![path.to_owned()], tensors, notes })
}

/// The description of a file that `gapless report` may read.
fn trace(start: &[u8]) -> Option<&'static str> {
    let has = |part: &[u8]| start.windows(part.len()).any(|window| window == part);
    if start.starts_with(b"GTRACE") || has(b"device_traces") || start.starts_with(b"\x80") && has(b"segments")
    {
        return Some("this is a recording of memory, not weights");
    }
    let is_compressed = start.starts_with(b"\x1f\x8b") || start.starts_with(b"\x28\xb5\x2f\xfd");
    is_compressed.then_some("this file is compressed, with gzip or zstd")
}

/// An ONNX file has no magic number: its first field is the version, or it has the name.
fn is_onnx(path: &Path, start: &[u8]) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("onnx"))
        || (start.len() > 2 && start[0] == 8 && start[1] < 32 && matches!(start[2], 0x12 | 0x3a))
}

fn of_safetensors(reader: &Reader) -> Vec<Listed> {
    let listed = |(index, tensor): (usize, &gapless_formats::safetensors::Tensor)| Listed {
        name: tensor.name.clone(),
        dtype: tensor.dtype.clone(),
        shape: tensor.shape.clone(),
        bytes: tensor.bytes(),
        file: 0,
        place: match reader.place(index) {
            (range, None) => Place::Range(range),
            _ => Place::Packed(index),
        },
    };
    reader.header.tensors.iter().enumerate().map(listed).collect()
}

fn of_gguf(input: &Input) -> std::result::Result<(Vec<Listed>, Vec<String>), Fault> {
    let listed = |tensor: gguf::Tensor| Listed {
        place: Place::Range(tensor.start..tensor.start + tensor.bytes),
        name: tensor.name,
        dtype: tensor.kind.name.to_owned(),
        shape: tensor.shape,
        bytes: tensor.bytes,
        file: 0,
    };
    let found = gguf::read(input.file())?;
    let mut notes = Vec::new();
    if let (Some(Meta::Int(part)), Some(Meta::Int(parts))) =
        (found.meta.get("split.no"), found.meta.get("split.count"))
        && *parts > 1
    {
        notes.push(format!("{SPLIT} {} of {parts} of a model: the others are files of their own", part + 1));
    }
    Ok((found.tensors.into_iter().map(listed).collect(), notes))
}

type Found = (&'static str, Vec<Listed>, Vec<String>);

fn archive(input: &Input) -> std::result::Result<Found, Fault> {
    let mut zip = gapless_formats::zip::Zip::open(input.file())?;
    let has = |end: &str| zip.members.iter().any(|member| member.name.ends_with(end));
    if has("/data.pkl") || has("data.pkl") {
        let (tensors, notes) = torch::read(&mut zip)?;
        return Ok(("PyTorch", tensors, notes));
    }
    if has(".npy") {
        let (tensors, notes) = npz::read(&mut zip)?;
        return Ok(("NumPy", tensors, notes));
    }
    Err(Box::new(Problem::Unsupported {
        what: "a zip archive with neither data.pkl (PyTorch) nor .npy members (NumPy)".into(),
        help: "give a file that torch.save or numpy.savez wrote".into(),
    }))
}

/// The product of a shape, if it can be counted.
fn elements(shape: &[u64]) -> Option<u64> {
    shape.iter().try_fold(1u64, |product, size| product.checked_mul(*size))
}
