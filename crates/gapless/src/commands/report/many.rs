//! `gapless report` of many files: all ranks side by side.

use super::Target;
use crate::cli::report::{ReportArgs, ReportFormat};
use crate::failure::{self, Failure};
use crate::ranks::{self, Inputs};
use crate::{Answer, load, output};
use anyhow::Result;
use gapless_report::ranks::names::Numbering;
use gapless_report::ranks::{Ranks, Run, markdown};
use std::io::Write;
use std::path::{Path, PathBuf};

pub(super) fn run(args: &ReportArgs, inputs: &Inputs, target: &Target) -> Result<Answer> {
    let one_rank = "for one rank, add --rank N to the same command";
    if args.advise {
        let what = "--advise works on one rank";
        return Err(
            Failure::new(what, format!("use `gapless advise` with the same files; {one_rank}")).into()
        );
    }
    if args.tree.is_some() {
        return Err(Failure::new("--tree shows one rank", one_rank).into());
    }
    let run = ranks::read(inputs, args.device)?;
    let report = gapless_report::ranks::report(&run);
    if let [first, second] = args.files.as_slice()
        && !first.is_dir()
        && !second.is_dir()
        && !run.numbering.contains("recording")
        && inputs.numbering != Some(Numbering::Word)
    {
        failure::note(&format!(
            "the two files are taken for two ranks of one run; to compare two runs: gapless diff {} {}",
            first.display(),
            second.display()
        ));
    }
    let path = target.path.as_deref();
    match target.format {
        ReportFormat::Text => output::write_text(path, &gapless_report::ranks::text(&report))?,
        ReportFormat::Json => super::plain(path, &gapless_report::ranks::json(&report)?)?,
        ReportFormat::Markdown => super::plain(path, &markdown::markdown(&report))?,
        ReportFormat::Html => output::write_to(path, |out| write_page(out, args, &run, &report))?,
    }
    target.tell();
    Ok(Answer::Yes)
}

/// Writes the page. The ranks that it shows whole are read again, one after the other.
fn write_page(out: &mut dyn Write, args: &ReportArgs, run: &Run, report: &Ranks) -> Result<()> {
    let json = gapless_report::ranks::json(report)?;
    let title = title(&args.files, run.files.len());
    let mut page = gapless_page::ranks::Writer::new(out, &title, &json)?;
    for rank in gapless_report::ranks::shown(report) {
        let Some(file) = run.files.iter().find(|file| file.rank == rank && file.error.is_none()) else {
            continue;
        };
        let path = Path::new(&file.file);
        let trace = load::trace_of(path, args.device)?;
        let analysis = load::analyse(&trace, path)?;
        let own = serde_json::to_string(&analysis.report(&file.file, args.top))?;
        page.rank(rank, &analysis.page(&title, &own))?;
    }
    Ok(page.finish()?)
}

/// The run's name: of its folder, or of its first and last file.
fn title(given: &[PathBuf], ranks: usize) -> String {
    let name = |path: &PathBuf| {
        // `.` and `..` have no name of their own.
        let whole = path.canonicalize().unwrap_or_else(|_| path.clone());
        whole.file_name().map_or_else(|| path.display().to_string(), |n| n.to_string_lossy().into_owned())
    };
    match given {
        [] => "ranks".to_owned(),
        [one] => name(one),
        [first, .., last] => format!("{ranks} ranks, {} … {}", name(first), name(last)),
    }
}
