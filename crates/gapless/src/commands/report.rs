//! `gapless report`: where the memory of a run went, on one rank or on all.

mod many;

use crate::cli::{ReportArgs, ReportFormat};
use crate::commands::advise;
use crate::ranks::Inputs;
use crate::{Answer, load, output};
use anyhow::Result;
use gapless_report::{Analysis, Report, html, text};
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};

pub(crate) fn run(args: &ReportArgs) -> Result<Answer> {
    let inputs = Inputs::of(&args.files, args.output.as_deref())?;
    match (args.rank, inputs.files.as_slice()) {
        (Some(rank), _) => one(args, inputs.rank(rank)?),
        (None, [only]) if !inputs.many => one(args, &only.path),
        _ => many::run(args, &inputs),
    }
}

fn one(args: &ReportArgs, file: &Path) -> Result<Answer> {
    let trace = load::trace_of(file, args.device)?;
    let analysis = load::analyse(&trace, file)?;
    let path = file.display().to_string();
    if args.tree {
        output::write_text(args.output.as_deref(), &text::render_tree(&analysis, &path))?;
        return Ok(Answer::Yes);
    }
    let report = if args.advise {
        let answers = advise::answers(&analysis, &path)?;
        analysis.advised_report(&path, args.top, answers)
    } else {
        analysis.report(&path, args.top)
    };
    match args.format {
        ReportFormat::Text => output::write_text(args.output.as_deref(), &text::render(&report))?,
        ReportFormat::Json => {
            let json = gapless_report::json(&report)?;
            output::write_to(args.output.as_deref(), |out| Ok(out.write_all(json.as_bytes())?))?;
        }
        ReportFormat::Html => {
            // A page in the terminal helps nobody: name a file after the trace instead.
            let named = args.output.is_none() && std::io::stdout().is_terminal();
            let path = if named { Some(page_name(file)) } else { args.output.clone() };
            output::write_to(path.as_deref(), |out| write_page(out, &analysis, &report))?;
            if let Some(path) = path.filter(|_| named) {
                eprintln!("wrote {}", path.display());
            }
        }
    }
    // The process ends here: taking a hundred megabytes of columns apart first would be for nobody.
    std::mem::forget(analysis);
    std::mem::forget(trace);
    Ok(Answer::Yes)
}

/// Writes the HTML report.
pub(crate) fn write_page(out: &mut dyn Write, analysis: &Analysis<'_>, report: &Report) -> Result<()> {
    let json = serde_json::to_string(report)?;
    let path = &report.source.path;
    let title = path.rsplit('/').next().filter(|name| !name.is_empty()).unwrap_or(path);
    Ok(html::write(out, &analysis.page(title, &json))?)
}

/// `run.pickle.gz` becomes `run.html`, in the current folder.
pub(crate) fn page_name(trace: &Path) -> PathBuf {
    let name = trace.file_name().map_or_else(|| "report".to_owned(), |n| n.to_string_lossy().into_owned());
    let stem = name.split('.').find(|part| !part.is_empty() && *part != "-").unwrap_or("report");
    PathBuf::from(format!("{stem}.html"))
}
