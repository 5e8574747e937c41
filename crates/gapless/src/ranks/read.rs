//! Reads the files of many ranks, one on each core; only a summary of each stays in memory.

use super::inputs::{Inputs, rank_of};
use crate::failure::Failure;
use crate::load;
use crate::progress::Counter;
use anyhow::Result;
use gapless_report::Analysis;
use gapless_report::ranks::names::Numbering;
use gapless_report::ranks::{RankFile, Run, Summary};
use gapless_trace::Trace;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The results of one file.
struct Read {
    devices: Vec<Summary>,
    recorded: Option<(u32, Option<u32>)>,
}

/// Reads every file; one that cannot be read becomes a row with its error. With `device`, only that device of each.
///
/// # Errors
/// When no file could be read.
pub(crate) fn read(inputs: &Inputs, device: Option<u32>) -> Result<Run> {
    let results = each(inputs, device, |at, analysis| {
        let (devices, recorded) = (Summary::of(analysis), rank_of(analysis.trace));
        if devices.is_empty() {
            return Err(no_device(&inputs.files[at].path, analysis.trace));
        }
        Ok(Read { devices, recorded })
    });
    if let (true, Some(Err(first))) =
        (results.iter().all(Result::is_err), results.iter().find(|r| r.is_err()))
    {
        let what = match results.len() {
            1 => first.clone(),
            n => format!("none of the {n} files could be read; the first: {first}"),
        };
        return Err(Failure::new(what, "give the snapshots or recordings of the ranks").into());
    }
    let mut run = Run {
        path: inputs.path.clone(),
        skipped: inputs.skipped.clone(),
        numbering: match inputs.numbering {
            Some(Numbering::Word) => "ranks from the file names",
            Some(Numbering::Differing) => "ranks from the number in which the file names differ",
            _ => "ranks in the order of the files",
        }
        .to_owned(),
        ..Run::default()
    };
    // The rank in a recording is certain. A rank from a name is a guess unless the name says "rank".
    let by_name = inputs.numbering == Some(Numbering::Word);
    let mut from_content = 0;
    for (input, result) in inputs.files.iter().zip(results) {
        let mut file =
            RankFile { file: input.path.display().to_string(), rank: input.rank, ..RankFile::default() };
        match result {
            Ok(read) => {
                if let Some((rank, world)) = read.recorded {
                    run.world_size = run.world_size.max(world);
                    if !by_name {
                        file.rank = rank;
                        from_content += 1;
                    }
                }
                file.devices = read.devices;
            }
            Err(error) => file.error = Some(error),
        }
        run.files.push(file);
    }
    if from_content > 0 {
        run.numbering = "ranks from the recordings".to_owned();
    }
    run.files.sort_by_key(|file| file.rank);
    Ok(run)
}

/// Calls `then` with the analysis of every file, on all cores, and frees each file before the next. Results are in
/// the order of the files.
pub(crate) fn each<T: Send>(
    inputs: &Inputs,
    device: Option<u32>,
    then: impl Fn(usize, &Analysis<'_>) -> Result<T> + Sync,
) -> Vec<Result<T, String>> {
    let files = &inputs.files;
    // The largest files go first, so that no large one is left for the end, when the other cores are idle.
    let size = |at: &usize| std::fs::metadata(&files[*at].path).map_or(0, |metadata| metadata.len());
    let mut order: Vec<usize> = (0..files.len()).collect();
    order.sort_by_cached_key(|at| std::cmp::Reverse(size(at)));
    let done = AtomicUsize::new(0);
    let counter = Counter::new("reading ranks", files.len());
    let work = |number: usize| {
        let at = order[number];
        let result = one(&files[at].path, device, |analysis| then(at, analysis));
        counter.update(done.fetch_add(1, Ordering::Relaxed) + 1);
        (at, result.map_err(|error| in_one_line(&error)))
    };
    let threads = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let mut results = gapless_threads::each("ranks", threads, files.len(), work);
    results.sort_unstable_by_key(|(at, _)| *at);
    results.into_iter().map(|(_, result)| result).collect()
}

fn one<T>(path: &Path, device: Option<u32>, then: impl FnOnce(&Analysis<'_>) -> Result<T>) -> Result<T> {
    let mut trace: Trace = load::trace_quietly(path)?;
    if let Some(device) = device {
        load::only_device(&mut trace, path, device)?;
    }
    let analysis = load::analyse(&trace, path)?;
    then(&analysis)
}

/// The error for a trace without devices, most likely a recording that ended before its first block was whole.
fn no_device(path: &Path, trace: &Trace) -> anyhow::Error {
    let notes: Vec<&str> = trace.source.notes.iter().map(|note| note.text.as_str()).collect();
    let why = if notes.is_empty() { String::new() } else { format!(" ({})", notes.join("; ")) };
    let what = format!("{}: the trace has no device{why}", path.display());
    Failure::new(what, "record again, and let it run longer").into()
}

/// An error with its causes and its next step.
fn in_one_line(error: &anyhow::Error) -> String {
    let mut text = error.chain().map(ToString::to_string).collect::<Vec<_>>().join(": ");
    if let Some(failure) = error.chain().find_map(|cause| cause.downcast_ref::<Failure>()) {
        text = format!("{text}; {}", failure.help);
    }
    text
}
