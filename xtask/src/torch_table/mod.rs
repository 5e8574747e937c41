//! `cargo xtask torch-table VERSION`: the overlay's facts on a release of PyTorch, made from its wheel.
//!
//! The release's headers, compiled over the stand-in for CUDA's, give the places of functions in the allocator's
//! table and the layout of structures ([`headers`]). Its library gives the places of all functions that it exports
//! ([`elf`]). If both agree, and each structure is as in an earlier release, a row for
//! `crates/gapless-torch/src/overlay/rows/` is written, and its news are printed ([`text`]).
//!
//! A structure that changed stops this: `overlay/layout.rs` has to learn it first. Then `--new-layout` writes the
//! row, and the tests of gapless-torch compare it with the layouts. `--from FOLDER` takes an unpacked wheel, or the
//! folder of an environment's packages, instead of a download.

mod elf;
mod headers;
#[path = "../../../crates/gapless-torch/src/overlay/rows/mod.rs"]
#[allow(dead_code, unreachable_pub, reason = "the overlay uses more of it")]
mod rows;
mod text;

use crate::shell;
use crate::wheels;
use anyhow::{Context, Result, bail};
use elf::Word;
use headers::{Headers, Shape};
use rows::{HEADER, ROWS};
use std::path::{Path, PathBuf};

/// The files that are needed of a wheel.
const KEPT: [&str; 3] = ["torch/include/", "torch/version.py", "torch/lib/libtorch_cuda.so"];

const CLASS: &str = "N5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocatorE";

/// Structures that cross the border, with their names in the headers; a long name is cut.
const STRUCTURES: [(&str, &[&str]); 16] = [
    ("Stat", &["c10::CachingAllocator::Stat"]),
    ("DeviceStats", &["c10::CachingDeviceAllocator::DeviceStats"]),
    ("PoolMap", &["ska::detailv3::sherwood_v3_table<std::pair<std::pair<long long unsigned int, long long "]),
    (
        "PoolEntry",
        &["ska::detailv3::sherwood_v3_entry<std::pair<std::pair<long long unsigned int, long long "],
    ),
    ("BlockInfo", &["c10::CachingDeviceAllocator::BlockInfo", "c10::cuda::CUDACachingAllocator::BlockInfo"]),
    (
        "SegmentInfo",
        &["c10::CachingDeviceAllocator::SegmentInfo", "c10::cuda::CUDACachingAllocator::SegmentInfo"],
    ),
    (
        "TraceEntry",
        &["c10::CachingDeviceAllocator::TraceEntry", "c10::cuda::CUDACachingAllocator::TraceEntry"],
    ),
    (
        "AnnotationEntry",
        &["c10::CachingDeviceAllocator::AnnotationEntry", "c10::cuda::CUDACachingAllocator::AnnotationEntry"],
    ),
    ("AllocatorConfigInfo", &["c10::cuda::CUDACachingAllocator::AllocatorConfigInfo"]),
    ("SnapshotInfo", &["c10::cuda::CUDACachingAllocator::SnapshotInfo"]),
    ("CheckpointDelta", &["c10::cuda::CUDACachingAllocator::CheckpointDelta"]),
    ("ShareableHandle", &["c10::cuda::CUDACachingAllocator::ShareableHandle"]),
    ("StreamSegmentSize", &["c10::cuda::CUDACachingAllocator::StreamSegmentSize"]),
    ("DataPtr", &["c10::DataPtr"]),
    ("UniqueVoidPtr", &["c10::detail::UniqueVoidPtr"]),
    ("CUDAStream", &["c10::cuda::CUDAStream"]),
];

/// Structures that only newer releases have.
const NEWER: [&str; 3] = ["PoolMap", "PoolEntry", "StreamSegmentSize"];

/// The facts on a release.
struct Found {
    version: String,
    commit: String,
    /// Each with true if the library exports it.
    functions: Vec<(String, bool)>,
    structures: Vec<(&'static str, Shape)>,
}

pub(crate) fn run(args: &[&str]) -> Result<()> {
    let (version, mut rest) = match args {
        [version, rest @ ..] if !version.starts_with('-') => (*version, rest),
        _ => bail!("which release? Such as `cargo xtask torch-table 2.15.0`"),
    };
    let (mut from, mut new_layout) = (None, false);
    loop {
        rest = match rest {
            [] => break,
            ["--from", folder, rest @ ..] => {
                from = Some(PathBuf::from(folder));
                rest
            }
            ["--new-layout", rest @ ..] => {
                new_layout = true;
                rest
            }
            [other, ..] => bail!("unknown argument {other:?}: there are --from FOLDER and --new-layout"),
        };
    }
    let work = shell::target().join(format!("torch-bench/table-{version}"));
    std::fs::create_dir_all(&work)?;
    let unpacked = work.join("wheel");
    let folder = match from {
        Some(folder) => folder,
        None => {
            wheels::fetch(version, &KEPT, &unpacked)?;
            unpacked
        }
    };
    let found = look(version, &folder, &work)?;
    // The library alone is 400 MB and more.
    std::fs::remove_dir_all(&work)?;
    print!("{}", text::difference(&found, ROWS));
    let unknown = unknown_structures(&found);
    if !unknown.is_empty() && !new_layout {
        bail!(
            "torch {version} lays out structures in a way that overlay/layout.rs does not know: {}.\nTeach it the \
             new layout, then write the row with --new-layout.",
            unknown.join(", ")
        );
    }
    text::write(&found, ROWS, &shell::root().join("crates/gapless-torch/src/overlay/rows"))
}

/// Reads the wheel in `folder`, and compares its headers with its library.
fn look(version: &str, folder: &Path, work: &Path) -> Result<Found> {
    let said = std::fs::read_to_string(folder.join("torch/version.py"))
        .with_context(|| format!("{} holds no torch", folder.display()))?;
    let value = |name: &str| {
        let line = said.lines().find(|line| line.split([' ', ':', '=']).next() == Some(name))?;
        line.split('\'').nth(1).map(str::to_owned)
    };
    let own = value("__version__").context("version.py names no version")?;
    if own.split('+').next() != Some(version) {
        bail!("{} holds torch {own}, not {version}", folder.display());
    }
    let commit = value("git_version").context("version.py names no commit")?;
    let cuda = value("cuda").with_context(|| format!("torch {own} was built without CUDA"))?;
    let (major, minor) = cuda.split_once('.').context("CUDA's version has two parts")?;
    let cuda = major.parse::<u32>()? * 1000 + minor.parse::<u32>()? * 10;
    let headers = headers::read(&folder.join("torch/include"), cuda, work)?;
    let words = elf::table(&folder.join("torch/lib/libtorch_cuda.so"), &format!("_ZTV{CLASS}"))?;
    let functions = agree(&headers, &words)?;
    let structures = structures(&headers)?;
    Ok(Found { version: version.to_owned(), commit, functions, structures })
}

/// The functions, if headers and library agree.
fn agree(headers: &Headers, words: &[Word]) -> Result<Vec<(String, bool)>> {
    let (header, words) = words.split_at(HEADER.min(words.len()));
    if header != [Word::Zero, Word::Symbol(format!("_ZTI{CLASS}"))] {
        bail!("the library's table begins with {header:?} instead of the words of CUDAPluggableAllocator");
    }
    if words.len() != headers.functions.len() {
        bail!("the library's table has {} functions, the headers {}", words.len(), headers.functions.len());
    }
    let mut list = Vec::new();
    for (at, (word, symbol)) in words.iter().zip(&headers.functions).enumerate() {
        match word {
            Word::Zero => bail!("function {at} of the library's table is missing ({symbol})"),
            Word::Symbol(name) if name != symbol => {
                bail!("function {at} is {name} in the library, and {symbol} in the headers");
            }
            Word::Symbol(_) => list.push((symbol.clone(), true)),
            Word::Inside => list.push((symbol.clone(), false)),
        }
    }
    Ok(list)
}

fn structures(headers: &Headers) -> Result<Vec<(&'static str, Shape)>> {
    let mut list = Vec::new();
    for (name, places) in STRUCTURES {
        let exact = places.iter().find_map(|place| headers.structures.get(*place));
        let long = || {
            // The shortest name with this beginning, because the others are its parts.
            let begins =
                |path: &&String| places.iter().any(|place| place.contains('<') && path.starts_with(place));
            let path = headers.structures.keys().filter(begins).min_by_key(|path| path.len())?;
            headers.structures.get(path)
        };
        match exact.or_else(long) {
            Some(shape) => list.push((name, shape.clone())),
            None if NEWER.contains(&name) => {}
            None => bail!("the headers have no {name}"),
        }
    }
    Ok(list)
}

/// The structures whose layout no release in the table has, each with its size.
fn unknown_structures(found: &Found) -> Vec<String> {
    let is_known = |name: &str, shape: &Shape| {
        ROWS.iter().flat_map(|row| row.structures).any(|s| s.name == name && text::is_same(shape, s))
    };
    let unknown = found.structures.iter().filter(|(name, shape)| !is_known(name, shape));
    unknown.map(|(name, shape)| format!("{name} ({} bytes)", shape.size)).collect()
}
