//! `gapless weights`: one function a verb, over files and over folders of shards.

mod info;
mod quantize;

use crate::cli::weights::{PackArgs, UnpackArgs, VerifyArgs, WeightsArgs, WeightsCommand};
use crate::failure::{self, Failure};
use crate::{Answer, sizes};
use anyhow::Result;
use gapless_trace::Bytes;
use gapless_trace::numbers::plural;
use gapless_weights::pace::Pace;
use gapless_weights::rows::{self, Rank};
use gapless_weights::whole::{Unfinished, check_apart};
use gapless_weights::{Checked, Error, folder};
use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub(crate) fn run(args: &WeightsArgs) -> Result<Answer> {
    match &args.command {
        WeightsCommand::Info(args) => info::run(args),
        WeightsCommand::Pack(args) => pack(args),
        WeightsCommand::Unpack(args) => unpack(args),
        WeightsCommand::Verify(args) => verify(args),
        WeightsCommand::Quantize(args) => quantize::run(args),
    }
}

pub(super) fn failed(error: &Error) -> anyhow::Error {
    Failure::new(error.to_string(), error.help()).into()
}

fn threads(asked: Option<u16>) -> usize {
    asked.map_or_else(|| std::thread::available_parallelism().map_or(1, usize::from), usize::from)
}

/// Threads, and the limit on the speed of reading.
fn manner(asked: Option<u16>, limit: Option<&str>) -> Result<gapless_weights::Work> {
    let rate = limit.map(|text| sizes::positive("--limit-rate", text, "500MB")).transpose()?;
    let pace = rate.map(|rate| Arc::new(Pace::new(rate.0)));
    Ok(gapless_weights::Work { threads: threads(asked), pace })
}

/// The input of a verb: files with their outputs, and files that are copied beside them.
struct Work {
    files: Vec<(PathBuf, PathBuf)>,
    copies: Vec<(PathBuf, PathBuf)>,
    is_folder: bool,
    /// The output folders until they are complete.
    unfinished: Option<Unfinished>,
}

impl Work {
    /// Marks the output folders as complete.
    fn finish(self) -> Result<()> {
        self.unfinished.map_or(Ok(()), Unfinished::end).map_err(|error| failed(&error))
    }
}

/// The files of `input` and their places below `output`, which is made if `input` is a folder.
fn work(input: &Path, output: Option<&Path>) -> Result<Work> {
    if !input.is_dir() {
        let to = output.unwrap_or(input).to_owned();
        return Ok(Work {
            files: vec![(input.to_owned(), to)],
            copies: Vec::new(),
            is_folder: false,
            unfinished: None,
        });
    }
    if let Some(output) = output {
        check_apart(input, output).map_err(|error| failed(&error))?;
    }
    let found = folder::read_tree(input).map_err(|error| failed(&error))?;
    if let Some(output) = output {
        if output.exists() && !output.is_dir() {
            let what = format!("cannot write {}: it is a file, and the input is a folder", output.display());
            return Err(Failure::new(what, "name a folder with -o").into());
        }
        fs::create_dir_all(output)
            .map_err(|source| failed(&Error::Write { path: output.to_owned(), source }))?;
        refuse_older_indexes(input, output, &found)?;
        for path in &found.left_out {
            failure::note(&format!("{} is not copied: it is a hidden folder, or no file", path.display()));
        }
    }
    let placed = |path: &PathBuf| -> Result<(PathBuf, PathBuf)> {
        let place = output.unwrap_or(input).join(path.strip_prefix(input).unwrap_or(path));
        if let (Some(_), Some(folder)) = (output, place.parent()) {
            fs::create_dir_all(folder)
                .map_err(|source| failed(&Error::Write { path: folder.to_owned(), source }))?;
        }
        Ok((path.clone(), place))
    };
    let files: Vec<(PathBuf, PathBuf)> = found.shards.iter().map(placed).collect::<Result<_>>()?;
    let copies: Vec<(PathBuf, PathBuf)> = found.others.iter().map(placed).collect::<Result<_>>()?;
    let mut unfinished = None;
    if output.is_some() {
        refuse_own_files(&files, &copies)?;
        let folders = files.iter().filter_map(|(_, to)| Some(to.parent()?.to_owned())).collect();
        unfinished = Some(Unfinished::begin(folders).map_err(|error| failed(&error))?);
    }
    Ok(Work { files, copies, is_folder: true, unfinished })
}

/// Refuses to write over a file of the input, which an output folder that contains the input could cause.
fn refuse_own_files(files: &[(PathBuf, PathBuf)], copies: &[(PathBuf, PathBuf)]) -> Result<()> {
    let all = || files.iter().chain(copies);
    // Writing replaces a link itself, not its target, so only the parent is resolved.
    let real = |path: &Path| Some(fs::canonicalize(path.parent()?).ok()?.join(path.file_name()?));
    let inputs: BTreeSet<PathBuf> =
        all().flat_map(|(from, _)| [real(from), fs::canonicalize(from).ok()]).flatten().collect();
    match all().find(|(_, to)| real(to).is_some_and(|to| inputs.contains(&to))) {
        None => Ok(()),
        Some((_, to)) => {
            let what = format!("cannot write {}: it is a file of the input", to.display());
            Err(Failure::new(what, "name another folder with -o").into())
        }
    }
}

/// Refuses to write beside an index that the input does not have: readers would follow that index to the shards
/// of an earlier model.
fn refuse_older_indexes(input: &Path, output: &Path, found: &folder::Folder) -> Result<()> {
    let folders: BTreeSet<&Path> = found.shards.iter().filter_map(|shard| shard.parent()).collect();
    for from in folders {
        let to = output.join(from.strip_prefix(input).unwrap_or(from));
        for entry in fs::read_dir(&to).into_iter().flatten().flatten() {
            let name = entry.file_name();
            if name.to_string_lossy().ends_with(".safetensors.index.json") && !from.join(&name).exists() {
                let what = format!("cannot write to {}: it has the index of another model", to.display());
                let help =
                    format!("name a new folder with -o, or remove {} and its shards", entry.path().display());
                return Err(Failure::new(what, &help).into());
            }
        }
    }
    Ok(())
}

/// Copies the files beside the shards. It runs last, so that an index exists only after its shards.
fn copy_others(copies: &[(PathBuf, PathBuf)]) -> Result<()> {
    for (from, to) in copies {
        folder::copy(from, to).map_err(|error| failed(&error))?;
    }
    Ok(())
}

/// The name of a file: its path below the folder that was named.
fn name(input: &Path, path: &Path) -> String {
    let below = path.strip_prefix(input).ok().filter(|below| !below.as_os_str().is_empty());
    let shown = below.unwrap_or_else(|| Path::new(path.file_name().unwrap_or_default()));
    shown.display().to_string()
}

fn say(line: &str) -> Result<()> {
    crate::output::write_text(None, &format!("{line}\n"))
}

fn shrunk(before: u64, after: u64) -> String {
    let share = if before == 0 { 100.0 } else { 100.0 * after as f64 / before as f64 };
    format!("{} to {}, {share:.1} %", Bytes(before), Bytes(after))
}

/// Ends a verb over several files: each failure was printed when it happened.
fn end(failures: usize, of: usize) -> Result<Answer> {
    if failures == 0 {
        return Ok(Answer::Yes);
    }
    Err(anyhow::anyhow!("{failures} of {} failed, as listed above", plural(of as u64, "file")))
}

fn pack(args: &PackArgs) -> Result<Answer> {
    let manner = manner(args.threads, args.limit_rate.as_deref())?;
    let work = work(&args.input, Some(&args.output))?;
    let (mut before, mut after, mut failures) = (0, 0, 0);
    for (from, to) in &work.files {
        if work.is_folder && folder::is_done(from, to, manner.clone()) {
            say(&format!("{}  packed before", name(&args.input, from)))?;
            continue;
        }
        match gapless_weights::pack(from, to, manner.clone()) {
            Ok(done) => {
                let what = shrunk(done.before, done.after);
                let same = if done.same > 0 {
                    format!(", {} equal to others and stored once", done.same)
                } else {
                    String::new()
                };
                say(&format!(
                    "{}  {what}  {} of {} compressed{same}",
                    name(&args.input, from),
                    done.streams,
                    plural(done.tensors as u64, "tensor")
                ))?;
                before += done.before;
                after += done.after;
            }
            Err(error) if args.keep_going => {
                failures += 1;
                failure::print(&failed(&error));
            }
            Err(error) => return Err(failed(&error)),
        }
    }
    copy_others(&work.copies)?;
    let of = work.files.len();
    if of > 1 && before > 0 {
        say(&format!("in all  {}", shrunk(before, after)))?;
    }
    if failures == 0 {
        work.finish()?;
    }
    end(failures, of)
}

/// Prints a line for one file that was read.
fn told(input: &Path, path: &Path, checked: &Checked, verb: &str) -> Result<()> {
    let counts =
        format!("{}, {} of them compressed", plural(checked.tensors as u64, "tensor"), checked.streams);
    let sizes = format!("{} in {}", Bytes(checked.original), Bytes(checked.packed));
    say(&format!("{}  {verb}  {counts}  {sizes}", name(input, path)))
}

/// The rows of one rank: each file's tensors keep their names, and the index its entries.
fn unpack_rows(args: &UnpackArgs, rank: u64, world: u64) -> Result<Answer> {
    let Some(cut) = Rank::new(rank, world) else {
        let what = format!("invalid --rank {rank} with --world {world}");
        return Err(Failure::new(what, "ranks are 0 to world - 1").into());
    };
    let manner = manner(args.threads, args.limit_rate.as_deref())?;
    let work = work(&args.input, Some(&args.output))?;
    // Each folder of a pipeline has an index of its own.
    let mut data: HashMap<Option<&Path>, u64> = HashMap::new();
    for (from, to) in &work.files {
        let done = rows::unpack_rows(from, to, cut, manner.clone()).map_err(|error| failed(&error))?;
        *data.entry(from.parent()).or_default() += done.data;
        let what = format!("{} written, {} read", Bytes(done.written), Bytes(done.read));
        say(&format!(
            "{}  rank {rank} of {world}  {}  {what}",
            name(&args.input, from),
            plural(done.tensors as u64, "tensor")
        ))?;
    }
    let (indexes, others): (Vec<_>, Vec<_>) = work
        .copies
        .iter()
        .cloned()
        .partition(|(from, _)| from.to_string_lossy().ends_with(".safetensors.index.json"));
    for (from, to) in &indexes {
        let total = data.get(&from.parent()).copied().unwrap_or(0);
        rows::write_index(from, to, total).map_err(|error| failed(&error))?;
    }
    copy_others(&others)?;
    work.finish()?;
    Ok(Answer::Yes)
}

fn unpack(args: &UnpackArgs) -> Result<Answer> {
    if let (Some(rank), Some(world)) = (args.rank, args.world) {
        return unpack_rows(args, rank, world);
    }
    let manner = manner(args.threads, args.limit_rate.as_deref())?;
    let work = work(&args.input, Some(&args.output))?;
    let (mut failures, mut is_whole) = (0, true);
    for (from, to) in &work.files {
        match gapless_weights::unpack(from, to, manner.clone(), args.keep_going) {
            Ok(checked) if checked.damage.is_empty() => told(&args.input, from, &checked, "restored")?,
            Ok(checked) => {
                failures += 1;
                for error in &checked.damage {
                    failure::print(&failed(error));
                }
                told(&args.input, from, &checked, "restored with zeros for what is damaged")?;
            }
            Err(error) if args.keep_going && work.is_folder => {
                (failures, is_whole) = (failures + 1, false);
                failure::print(&failed(&error));
            }
            Err(error) => return Err(failed(&error)),
        }
    }
    copy_others(&work.copies)?;
    let of = work.files.len();
    if is_whole {
        work.finish()?;
    }
    end(failures, of)
}

fn verify(args: &VerifyArgs) -> Result<Answer> {
    let manner = manner(args.threads, args.limit_rate.as_deref())?;
    let work = work(&args.input, None)?;
    let mut failures = 0;
    for (path, _) in &work.files {
        match gapless_weights::verify(path, manner.clone()) {
            Ok(checked) if checked.damage.is_empty() && checked.is_packed => {
                told(&args.input, path, &checked, "whole")?;
            }
            Ok(checked) if checked.damage.is_empty() => {
                told(
                    &args.input,
                    path,
                    &checked,
                    "not packed: the header is sound, but there are no checksums",
                )?;
            }
            Ok(checked) => {
                failures += 1;
                for error in &checked.damage {
                    failure::print(&failed(error));
                }
                told(&args.input, path, &checked, &format!("damaged in {} places", checked.damage.len()))?;
            }
            Err(error) => {
                failures += 1;
                failure::print(&failed(&error));
            }
        }
    }
    end(failures, work.files.len())
}
