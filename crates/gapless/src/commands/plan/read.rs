//! Sources of buffers: MiniMalloc CSV, JSON, an ONNX model, or the allocations of a trace.
//!
//! The content decides, after decompression, so a file, its `.gz`, its `.zst` and a pipe give the same problem. Only an
//! ONNX model is known by its name, because its bytes have no mark.

use crate::cli::plan::PlanArgs;
use crate::commands::export::{chosen, parse_steps};
use crate::failure::{self, Failure};
use crate::load;
use anyhow::{Context, Result};
use gapless_ingest::{Content, Format};
use gapless_plan::{Buffer, Problem, Shares};
use gapless_problems::csv::{self, Buffers, OffsetColumn};
use gapless_problems::{json, onnx};
use gapless_trace::{Bytes, Trace};
use std::collections::HashMap;
use std::io::Read;
use std::path::Path;

/// Columns of the CSV that further questions need.
const FURTHER: &[&str] = &["shares", "accesses", "spaces"];
/// Bytes of a JSON file that are read to tell a list of buffers from a snapshot.
const JSON_HEAD: usize = 1 << 20;
/// The largest list of buffers in JSON.
const JSON_MOST: u64 = 4 << 30;

/// The buffers, with the cells of further columns if they come from a CSV.
pub(super) fn buffers(args: &PlanArgs) -> Result<Buffers> {
    let path = &args.file;
    if path.extension().is_some_and(|e| e.eq_ignore_ascii_case("onnx")) && path.is_file() {
        let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        let problem = onnx::read(&bytes, &dims(&args.dims)?).map_err(|error| wrong_file(path, &error))?;
        return Ok(problem.into());
    }
    load::content(path, |mut content| match content.format()? {
        Format::MiniMallocCsv => of_rows(&mut content, path, OffsetColumn::Fixed),
        Format::Json if is_list(content.peek(JSON_HEAD)?) => Ok(of_json(&mut content, path)?.into()),
        _ => Ok(of_trace(args, &content.trace()?)?.into()),
    })
}

/// An earlier plan: its offsets are hints.
pub(super) fn earlier(path: &Path) -> Result<Problem> {
    load::content(path, |mut content| match content.format()? {
        Format::MiniMallocCsv => Ok(of_rows(&mut content, path, OffsetColumn::Hint)?.problem),
        _ => Err(Failure::new(
            format!("{}: this is not a plan in CSV", path.display()),
            "give a plan that `gapless plan --format csv` wrote",
        )
        .into()),
    })
}

fn of_rows(content: &mut Content<'_>, path: &Path, offsets: OffsetColumn) -> Result<Buffers> {
    let buffers = csv::read(&mut *content, offsets, FURTHER).map_err(|error| match error {
        gapless_problems::Error::Format(error) => {
            Failure::new(content.error(error).to_string(), COLUMNS).into()
        }
        error => wrong_file(path, &error),
    })?;
    if !buffers.ignored().is_empty() {
        // A constraint under a misspelt name would be dropped in silence, and the plan called optimal.
        failure::note(&format!(
            "{}: columns that the planner does not know were left out: {}",
            path.display(),
            buffers.ignored().join(", ")
        ));
    }
    Ok(buffers)
}

/// A snapshot may be JSON too; a list of buffers is a list, or has one under `buffers`.
fn is_list(head: &[u8]) -> bool {
    let head = String::from_utf8_lossy(head);
    let start = head.trim_start_matches('\u{feff}').trim_start();
    let has = |member: &str| head.contains(member);
    let snapshot = has("\"device_traces\"") || has("\"segments\"");
    !snapshot && has("\"lower\"") && (start.starts_with('[') || has("\"buffers\""))
}

fn of_json(content: &mut Content<'_>, path: &Path) -> Result<Problem> {
    let mut text = String::new();
    let read = (&mut *content).take(JSON_MOST + 1).read_to_string(&mut text);
    read.with_context(|| format!("cannot read {}", path.display()))?;
    if text.len() as u64 > JSON_MOST {
        let what = format!("{}: a list of buffers in JSON of more than 4 GiB", path.display());
        return Err(Failure::new(what, "give the buffers as CSV, which is read line by line").into());
    }
    json::read(&text).map_err(|error| wrong_file(path, &error))
}

/// The buffer whose place each buffer may take: the CSV's column `shares`, by id.
pub(super) fn shares(cells: &[Box<str>], problem: &Problem) -> Result<Shares> {
    let help = "the column `shares` names the buffer whose place may be taken: it must end where this one begins, or overlap it once";
    let wrong = |error: gapless_plan::Error| Failure::new(error.to_string(), help);
    let by_name: HashMap<String, usize> =
        (0..problem.len()).map(|index| (problem.name(index), index)).collect();
    let mut shares = Vec::with_capacity(problem.len());
    for (index, cell) in cells.iter().enumerate() {
        shares.push(match cell.trim() {
            "" => None,
            name => Some(*by_name.get(name).ok_or_else(|| {
                Failure::new(
                    format!(
                        "buffer {}: invalid name {name:?} in its shares: no buffer has it",
                        problem.name(index)
                    ),
                    help,
                )
            })?),
        });
    }
    Ok(Shares::new(problem, shares).map_err(wrong)?)
}

/// `batch=8` and the like.
fn dims(given: &[String]) -> Result<Vec<(String, u64)>> {
    let parse = |text: &String| {
        let (name, value) = text.split_once('=')?;
        Some((name.trim().to_owned(), value.trim().parse().ok()?))
    };
    let wrong = |text: &String| Failure::new(format!("--dim {text}: no dimension"), "write --dim batch=8");
    given.iter().map(|text| parse(text).ok_or_else(|| wrong(text).into())).collect()
}

const COLUMNS: &str = "`gapless plan --help` shows the columns; lifetimes are half-open, sizes are in bytes";

fn wrong_file(path: &Path, error: &dyn std::fmt::Display) -> anyhow::Error {
    Failure::new(format!("{}: {error}", path.display()), COLUMNS).into()
}

fn of_trace(args: &PlanArgs, trace: &Trace) -> Result<Problem> {
    let analysis = load::analyse(trace, &args.file)?;
    let device = chosen(&analysis, &args.file, args.device)?[0];
    let history = &device.history;
    let (from, to) = match &args.steps {
        Some(text) => {
            let spans = &device.steps.spans[parse_steps(text, device.steps.spans.len())?];
            spans.first().zip(spans.last()).map_or((0, 0), |(first, last)| (first.start.0, last.end.0))
        }
        None => (0, history.forever().0),
    };
    let mut buffers = Vec::new();
    let mut names: Vec<Box<str>> = Vec::new();
    for id in history.allocations.ids() {
        let a = history.allocations.get(id);
        let (start, end) = (a.start.0.max(from), a.end.0.min(to));
        if start < end && a.requested > Bytes::ZERO {
            buffers.push(Buffer::new(i64::from(start), i64::from(end), a.requested.0));
            names.push(id.0.to_string().into());
        }
    }
    Problem::with_names(buffers, names).map_err(|error| wrong_file(&args.file, &error))
}
