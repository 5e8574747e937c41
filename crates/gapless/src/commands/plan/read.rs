//! Where buffers come from: MiniMalloc CSV, JSON, an ONNX model, or the allocations of a trace.

use crate::cli::PlanArgs;
use crate::commands::export::{chosen, parse_steps};
use crate::failure::Failure;
use crate::load;
use anyhow::{Context, Result};
use gapless_plan::csv::{self, OffsetColumn};
use gapless_plan::{Buffer, Problem, Shares, json, onnx};
use gapless_trace::Bytes;
use std::collections::HashMap;
use std::io::Read;
use std::path::Path;

/// The buffers, and the text of the CSV where they come from one: further questions have their columns there.
pub(super) fn problem(args: &PlanArgs) -> Result<(Problem, Option<String>)> {
    let path = &args.file;
    let wrong = |error: gapless_plan::Error| wrong_file(path, &error);
    if let Some(text) = csv_text(path)? {
        let problem = csv::read(&text, OffsetColumn::Fixed).map_err(wrong)?;
        return Ok((problem, Some(text)));
    }
    let named =
        |ending: &str| path.extension().is_some_and(|e| e.eq_ignore_ascii_case(ending)) && path.is_file();
    if named("onnx") {
        let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        return Ok((onnx::read(&bytes, &dims(&args.dims)?).map_err(wrong)?, None));
    }
    // A snapshot may be JSON too; a list of buffers is a list, or has one under `buffers`.
    if named("json") {
        let text =
            std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        let start = text.trim_start();
        let is_list = start.starts_with('[') && text.contains("\"lower\"");
        if is_list || start.starts_with('{') && text.contains("\"buffers\"") && text.contains("\"lower\"") {
            return Ok((json::read(&text).map_err(wrong)?, None));
        }
    }
    Ok((of_trace(args)?, None))
}

/// Whose place each buffer may take: the CSV's column `shares`, by id.
pub(super) fn shares(text: &str, problem: &Problem) -> Result<Option<Shares>> {
    let help = "the column `shares` names the buffer whose place may be taken: it must end where this one begins, or overlap it once";
    let wrong = |error: gapless_plan::Error| Failure::new(error.to_string(), help);
    let Some(cells) = csv::column(text, "shares").map_err(wrong)? else { return Ok(None) };
    let by_name: HashMap<String, usize> =
        (0..problem.len()).map(|index| (problem.name(index), index)).collect();
    let mut shares = Vec::with_capacity(problem.len());
    for (index, cell) in cells.iter().enumerate() {
        shares.push(match cell.trim() {
            "" => None,
            name => Some(*by_name.get(name).ok_or_else(|| {
                Failure::new(
                    format!("buffer {}: shares {name:?}, which is no buffer", problem.name(index)),
                    help,
                )
            })?),
        });
    }
    Ok(Some(Shares::new(problem, shares).map_err(wrong)?))
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

pub(super) fn wrong_file(path: &Path, error: &gapless_plan::Error) -> anyhow::Error {
    Failure::new(
        format!("{}: {error}", path.display()),
        "`gapless plan --help` shows the columns; lifetimes are half-open, sizes are in bytes",
    )
    .into()
}

/// The text of `path` where it is a list of buffers: its first line names the column `lower`.
fn csv_text(path: &Path) -> Result<Option<String>> {
    const HEAD: u64 = 4096;
    if path.as_os_str() == "-" {
        // A trace on standard input would have to be read twice to find out: buffers only.
        let mut text = String::new();
        std::io::stdin().lock().read_to_string(&mut text).context("cannot read standard input as text")?;
        return Ok(Some(text));
    }
    let Ok(file) = std::fs::File::open(path) else { return Ok(None) };
    if !file.metadata().is_ok_and(|m| m.is_file()) {
        return Ok(None);
    }
    let mut head = Vec::new();
    file.take(HEAD).read_to_end(&mut head).with_context(|| format!("cannot read {}", path.display()))?;
    let head = String::from_utf8_lossy(&head);
    let first = head.lines().find(|line| !line.trim().is_empty()).unwrap_or_default().to_ascii_lowercase();
    if !first.split(',').any(|column| column.trim().trim_matches('"') == "lower") {
        return Ok(None);
    }
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(Some(text))
}

fn of_trace(args: &PlanArgs) -> Result<Problem> {
    let trace = load::trace(&args.file)?;
    let analysis = load::analyse(&trace, &args.file)?;
    let device = chosen(&analysis, args.device)?[0];
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
