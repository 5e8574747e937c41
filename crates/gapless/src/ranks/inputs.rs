//! From FILE arguments to the files of the ranks. A folder stands for the traces in it.

use crate::failure::Failure;
use crate::{load, output};
use anyhow::{Context, Result};
use gapless_ingest::{Format, Problem, ReadError};
use gapless_report::ranks::names::{self, Numbering};
use gapless_trace::Trace;
use std::cmp::Ordering;
use std::path::{Path, PathBuf};

/// The files of a run.
#[derive(Debug, Default)]
pub(crate) struct Inputs {
    /// The user's name of them.
    pub(crate) path: String,
    pub(crate) files: Vec<Input>,
    /// True if they are many ranks: several files, or a folder.
    pub(crate) many: bool,
    /// Files of a folder that are not traces, or the older part of a recording.
    pub(crate) skipped: Vec<String>,
    pub(crate) numbering: Option<Numbering>,
}

/// One file, and its rank by its name or position.
#[derive(Clone, Debug)]
pub(crate) struct Input {
    pub(crate) path: PathBuf,
    pub(crate) rank: u32,
}

impl Inputs {
    /// The files behind `arguments`, by rank. `output` must not be one of them.
    pub(crate) fn of(arguments: &[PathBuf], output: Option<&Path>) -> Result<Inputs> {
        let mut inputs = Inputs { many: arguments.len() > 1, ..Inputs::default() };
        let mut paths = Vec::new();
        for argument in arguments {
            // The modules of a dump are one run.
            if argument.is_dir() && !gapless_ingest::is_dump(argument) {
                inputs.many = true;
                let found = inputs.folder(argument)?;
                if found.is_empty() {
                    return Err(Failure::new(
                        format!("{}: no file in this folder is a trace", argument.display()),
                        what_folder(argument).unwrap_or_else(|| {
                            "give the folder with the snapshots or recordings of the ranks, or the files themselves"
                                .to_owned()
                        }),
                    )
                    .into());
                }
                paths.extend(found);
            } else {
                paths.push(argument.clone());
            }
        }
        if inputs.many && paths.iter().any(|path| path.as_os_str() == "-") {
            return Err(Failure::new(
                "only one run can come from standard input",
                "name a file for every rank",
            )
            .into());
        }
        if let Some((first, second)) = output::first_repeated(&paths) {
            return Err(Failure::new(
                format!("{} and {} are the same file", first.display(), second.display()),
                "give the file of each rank once",
            )
            .into());
        }
        if let Some(output) = output {
            output::refuse_input_as_output(output, &paths.iter().map(PathBuf::as_path).collect::<Vec<_>>())?;
        }
        let names: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
        let (ranks, numbering) = names::ranks(&names);
        inputs.numbering = Some(numbering);
        inputs.files = paths.into_iter().zip(ranks).map(|(path, rank)| Input { path, rank }).collect();
        // The sort is stable, so files of one rank keep the order of the arguments.
        inputs.files.sort_by_key(|input| input.rank);
        inputs.path = match arguments {
            [one] => one.display().to_string(),
            [first, .., last] => {
                format!("{} … {} ({} arguments)", first.display(), last.display(), arguments.len())
            }
            [] => String::new(),
        };
        Ok(inputs)
    }

    /// The file of rank `wanted`.
    pub(crate) fn rank(&self, wanted: u32) -> Result<&Path> {
        // A recording holds its own rank. If the names have it too, no file needs to be read.
        let by_name = self.numbering == Some(Numbering::Word);
        let rank =
            |input: &Input| if by_name { input.rank } else { recorded(&input.path).unwrap_or(input.rank) };
        let ranks: Vec<(u32, &Path)> =
            self.files.iter().map(|input| (rank(input), input.path.as_path())).collect();
        let found: Vec<&Path> =
            ranks.iter().filter(|(rank, _)| *rank == wanted).map(|(_, path)| *path).collect();
        match found.as_slice() {
            [one] => Ok(one),
            [] => {
                let least = ranks.iter().map(|(rank, _)| *rank).min().unwrap_or(0);
                let most = ranks.iter().map(|(rank, _)| *rank).max().unwrap_or(0);
                let what = format!("{}: no file is rank {wanted}", self.path);
                let help = format!("there are {} files, ranks {least} to {most}", ranks.len());
                Err(Failure::new(what, help).into())
            }
            several => {
                let names: Vec<String> = several.iter().map(|path| path.display().to_string()).collect();
                let what = format!("{}: {} files are rank {wanted}", self.path, several.len());
                Err(Failure::new(what, format!("give one of them: {}", names.join(", "))).into())
            }
        }
    }

    /// The traces of a folder, or of the folders in it if it has no files of its own.
    fn folder(&mut self, folder: &Path) -> Result<Vec<PathBuf>> {
        let (files, folders) = entries(folder)?;
        let mut candidates = files;
        if candidates.is_empty() {
            for folder in folders {
                candidates.extend(entries(&folder)?.0);
            }
        }
        let mut traces = Vec::new();
        for path in &candidates {
            // Reading a pipe in the folder would block for ever.
            let is_file = std::fs::metadata(path).is_ok_and(|metadata| metadata.is_file());
            if is_file && is_trace(path) && !candidates.iter().any(|newer| is_older_part(path, newer)) {
                traces.push(path.clone());
            } else {
                self.skipped.push(path.display().to_string());
            }
        }
        Ok(traces)
    }
}

/// The command for a folder that has a model instead of traces.
fn what_folder(folder: &Path) -> Option<String> {
    let (files, _) = entries(folder).ok()?;
    let has = |ending: &str| files.iter().any(|path| path.extension().is_some_and(|found| found == ending));
    let name = folder.display();
    if files.iter().any(|path| path.file_name().is_some_and(|name| name == "config.json")) {
        return Some(format!("it has a model: `gapless fit {name}` says what that will take"));
    }
    let has_weights = ["safetensors", "gguf", "bin", "pt", "pth", "onnx"].iter().any(|ending| has(ending));
    has_weights.then(|| format!("it has weights: `gapless weights info {name}` lists them"))
}

/// Files and folders in `folder`, in natural order (2 before 10); hidden ones are left out.
fn entries(folder: &Path) -> Result<(Vec<PathBuf>, Vec<PathBuf>)> {
    let cannot = || format!("cannot read the folder {}", folder.display());
    let (mut files, mut folders) = (Vec::new(), Vec::new());
    for entry in std::fs::read_dir(folder).with_context(cannot)? {
        let entry = entry.with_context(cannot)?;
        if entry.file_name().to_string_lossy().starts_with('.') {
            continue;
        }
        let path = entry.path();
        if path.is_dir() { folders.push(path) } else { files.push(path) }
    }
    for list in [&mut files, &mut folders] {
        list.sort_by(|a, b| natural(&a.to_string_lossy(), &b.to_string_lossy()));
    }
    Ok((files, folders))
}

/// True if the file may be a trace. A torn or empty file counts, so that its error is shown; a README does not.
fn is_trace(path: &Path) -> bool {
    const HEAD: usize = 1 << 16;
    // Members of a snapshot, one of which comes early. Settings, metrics and notes on a run lie beside traces too.
    const MEMBERS: [&str; 4] =
        ["\"segments\"", "\"device_traces\"", "\"allocator_settings\"", "\"external_annotations\""];
    let looked = load::content_quietly(path, |mut content| -> Result<bool, ReadError> {
        if content.format()? != Format::Json {
            return Ok(true);
        }
        // Our own reports are JSON too, and lie beside traces.
        let head = String::from_utf8_lossy(content.peek(HEAD)?).into_owned();
        let is_ours = head.contains("\"schema\":\"gapless.") || head.contains("\"schema\": \"gapless.");
        let is_torn = head.trim_end().len() < 2;
        Ok(!is_ours && (is_torn || MEMBERS.iter().any(|member| head.contains(member))))
    });
    match looked.and_then(|inner| inner) {
        Ok(is_trace) => is_trace,
        Err(error) => !matches!(error.problem, Problem::NotATrace { .. }),
    }
}

/// True if `path` is the older part of a recording, which was cut at its limit: `run.older.gtrace` beside `run.gtrace`.
fn is_older_part(path: &Path, newer: &Path) -> bool {
    let (Some(name), Some(stem), Some(kind)) = (path.file_name(), newer.file_stem(), newer.extension())
    else {
        return false;
    };
    let name = name.to_string_lossy();
    let older = || format!("{}.older.{}", stem.to_string_lossy(), kind.to_string_lossy());
    name.contains(".older.") && path.parent() == newer.parent() && name == older()
}

/// The rank that a recording by Gapless holds.
fn recorded(path: &Path) -> Option<u32> {
    let is_ours = load::content_quietly(path, |content| content.format().ok()).ok()? == Some(Format::Gtrace);
    is_ours
        .then(|| load::trace_quietly(path).ok())
        .flatten()
        .and_then(|trace| rank_of(&trace))
        .map(|(rank, _)| rank)
}

/// The rank and the number of ranks in the recording.
pub(super) fn rank_of(trace: &Trace) -> Option<(u32, Option<u32>)> {
    let number = |value: u64| u32::try_from(value).ok();
    Some((trace.process.rank.and_then(number)?, trace.process.world.and_then(number)))
}

/// rank2 before rank10.
fn natural(a: &str, b: &str) -> Ordering {
    let (mut a, mut b) = (a, b);
    loop {
        match (a.is_empty(), b.is_empty()) {
            (true, true) => return Ordering::Equal,
            (true, false) => return Ordering::Less,
            (false, true) => return Ordering::Greater,
            (false, false) => {}
        }
        let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
        let (m, n) = (digits(a), digits(b));
        if m > 0 && n > 0 {
            let (x, y) = (a[..m].trim_start_matches('0'), b[..n].trim_start_matches('0'));
            let order = x.len().cmp(&y.len()).then_with(|| x.cmp(y)).then(m.cmp(&n));
            if order != Ordering::Equal {
                return order;
            }
            (a, b) = (&a[m..], &b[n..]);
        } else {
            let first = |text: &str| text.chars().next().map_or(0, char::len_utf8);
            let (i, j) = (first(a), first(b));
            let order = a[..i].cmp(&b[..j]);
            if order != Ordering::Equal {
                return order;
            }
            (a, b) = (&a[i..], &b[j..]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_sorted_as_people_count() {
        let mut names = ["rank10", "rank2", "rank1", "rank02", "a", "rank2b", "é"];
        names.sort_by(|a, b| natural(a, b));
        assert_eq!(names, ["a", "rank1", "rank2", "rank2b", "rank02", "rank10", "é"]);
    }
}
