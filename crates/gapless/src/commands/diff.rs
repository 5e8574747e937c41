//! `gapless diff`: two runs, aligned by their steps; of many ranks, rank by rank.

use crate::cli::diff::{DiffArgs, DiffFormat};
use crate::failure::Failure;
use crate::ranks::{self, Inputs};
use crate::{Answer, load, output};
use anyhow::Result;
use gapless_report::ranks::Run;
use gapless_report::{Analysis, diff, markdown};
use std::io::IsTerminal;
use std::path::Path;

pub(crate) fn run(args: &DiffArgs) -> Result<Answer> {
    if args.before.as_os_str() == "-" && args.after.as_os_str() == "-" {
        return Err(
            Failure::new("only one run can come from standard input", "name a file for one of them").into()
        );
    }
    let sides = [&args.before, &args.after];
    let inputs = [
        Inputs::of(std::slice::from_ref(&args.before), args.output.as_deref())?,
        Inputs::of(std::slice::from_ref(&args.after), args.output.as_deref())?,
    ];
    if args.rank.is_none() && inputs.iter().any(|inputs| inputs.many) {
        return many(args, &inputs);
    }
    let file = |side: usize| match args.rank {
        Some(rank) if inputs[side].many => inputs[side].rank(rank),
        _ => Ok(sides[side].as_path()),
    };
    let (first, second) = (file(0)?, file(1)?);
    let before = load::trace_of(first, args.device)?;
    let after = load::trace_of(second, args.device)?;
    let (before_run, after_run) = (load::analyse(&before, first)?, load::analyse(&after, second)?);
    for (run, path) in [(&before_run, first), (&after_run, second)] {
        if run.devices.is_empty() {
            return Err(load::no_device(path, "there is nothing to compare"));
        }
    }
    let names = [first, second].map(|path| path.display().to_string());
    let diff = diff::compare(&before_run, &names[0], &after_run, &names[1]);
    if diff.devices.is_empty() {
        let devices = |run: &Analysis<'_>| {
            let all: Vec<String> = run.devices.iter().map(|d| d.device.device.to_string()).collect();
            all.join(", ")
        };
        return Err(Failure::new(
            format!("{} and {} have no device in common", names[0], names[1]),
            format!("the first has {}, the second {}", devices(&before_run), devices(&after_run)),
        )
        .into());
    }
    match args.format {
        DiffFormat::Text => output::write_text(args.output.as_deref(), &diff::text(&diff, args.top))?,
        DiffFormat::Markdown => {
            let text = markdown::diff(&diff, args.top);
            output::write_to(args.output.as_deref(), |out| Ok(out.write_all(text.as_bytes())?))?;
        }
        DiffFormat::Json => {
            let json = diff::json(&diff)?;
            output::write_to(args.output.as_deref(), |out| Ok(out.write_all(json.as_bytes())?))?;
        }
        DiffFormat::Html => {
            write_page(args, &diff::page(&diff, &before_run, &after_run))?;
        }
    }
    Ok(Answer::Yes)
}

fn write_page(args: &DiffArgs, page: &str) -> Result<()> {
    // HTML in a terminal cannot be read, so it goes to a file.
    let named = args.output.is_none() && std::io::stdout().is_terminal();
    let path = if named { Some(Path::new("diff.html")) } else { args.output.as_deref() };
    output::write_to(path, |out| Ok(out.write_all(page.as_bytes())?))?;
    if named {
        eprintln!("wrote diff.html");
    }
    Ok(())
}

/// Two runs of many ranks.
fn many(args: &DiffArgs, inputs: &[Inputs; 2]) -> Result<Answer> {
    if inputs.iter().any(|inputs| !inputs.many) {
        return Err(Failure::new(
            "one side is a folder of ranks and the other is one file",
            "give two folders, or add --rank N to compare one rank with the file",
        )
        .into());
    }
    let [before, after] = [ranks::read(&inputs[0], args.device)?, ranks::read(&inputs[1], args.device)?];
    let diff = gapless_report::ranks::diff::compare(&before, &after);
    if diff.ranks.is_empty() {
        return Err(Failure::new(
            format!("{} and {} have no rank in common that could be read", before.path, after.path),
            "ranks are matched by their numbers: `gapless report FOLDER` shows which ones a folder has",
        )
        .into());
    }
    match args.format {
        DiffFormat::Text => {
            output::write_text(args.output.as_deref(), &gapless_report::ranks::diff::text(&diff, args.top))?;
        }
        DiffFormat::Json => {
            let json = gapless_report::ranks::diff::json(&diff)?;
            output::write_to(args.output.as_deref(), |out| Ok(out.write_all(json.as_bytes())?))?;
        }
        DiffFormat::Markdown => {
            let text = gapless_report::ranks::markdown::diff(&diff, args.top);
            output::write_to(args.output.as_deref(), |out| Ok(out.write_all(text.as_bytes())?))?;
        }
        DiffFormat::Html => {
            let shown = diff.shown().map(|(rank, _)| one_rank(args, rank, &before, &after));
            let rank = shown.transpose()?.unwrap_or_default();
            write_page(args, &gapless_report::ranks::diff_page::page(&diff, &rank))?;
        }
    }
    Ok(Answer::Yes)
}

/// The difference of one rank, as markup. Its two files are read again, because only their summaries were kept.
fn one_rank(args: &DiffArgs, rank: u32, before: &Run, after: &Run) -> Result<String> {
    let file = |run: &Run| run.files.iter().find(|file| file.rank == rank).map(|file| file.file.clone());
    let (Some(old), Some(new)) = (file(before), file(after)) else { return Ok(String::new()) };
    let traces =
        [load::trace_of(Path::new(&old), args.device)?, load::trace_of(Path::new(&new), args.device)?];
    let runs = [load::analyse(&traces[0], Path::new(&old))?, load::analyse(&traces[1], Path::new(&new))?];
    Ok(diff::body(&diff::compare(&runs[0], &old, &runs[1], &new), &runs[0], &runs[1]))
}
