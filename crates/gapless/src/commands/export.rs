//! `gapless export`: a run in another format.

use crate::cli::export::{ExportArgs, ExportFormat};
use crate::failure::{self, Failure};
use crate::{Answer, load, output, sizes};
use anyhow::Result;
use clap::ValueEnum;
use gapless_export::{DeviceView, View, csv, gtrace, minimalloc, parquet, perfetto};
use gapless_report::{Analysis, DeviceAnalysis};
use std::io::IsTerminal;
use std::ops::Range;
use std::path::Path;

pub(crate) fn run(args: &ExportArgs) -> Result<Answer> {
    let format = args.to.map_or_else(|| format_of(args.output.as_deref()), Ok)?;
    if let (Some(to), Some(path)) = (args.to, args.output.as_deref())
        && let Ok(named) = format_of(Some(path))
        && named != to
        && !(named == ExportFormat::Csv && to == ExportFormat::Minimalloc)
    {
        let name = |format: ExportFormat| {
            format.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
        };
        failure::note(&format!(
            "{} gets {}, as --to says, and its name asks for {}",
            path.display(),
            name(to),
            name(named)
        ));
    }
    if is_binary(format) && args.output.is_none() && std::io::stdout().is_terminal() {
        return Err(Failure::new(
            "cannot write a binary format to a terminal",
            "name a file with -o, or send it through a pipe",
        )
        .into());
    }
    let trace = load::trace(&args.file)?;
    if format == ExportFormat::Gtrace {
        output::write_to(args.output.as_deref(), |out| Ok(gtrace::write(&trace, out)?))?;
        return Ok(Answer::Yes);
    }
    let analysis = load::analyse(&trace, &args.file)?;
    let devices = chosen(&analysis, &args.file, args.device)?;
    let kinds: Vec<Vec<&str>> =
        devices.iter().map(|d| d.kinds.by_allocation.iter().map(|kind| kind.name()).collect()).collect();
    let view = View {
        trace: &trace,
        devices: devices
            .iter()
            .zip(&kinds)
            .map(|(d, kinds)| DeviceView {
                device: d.device,
                history: &d.history,
                kinds: Some(kinds),
                steps: &d.steps.spans,
            })
            .collect(),
    };
    let perfetto_options = perfetto_options(args)?;
    let minimalloc_options = minimalloc_options(args, devices[0])?;
    output::write_to(args.output.as_deref(), |out| {
        match format {
            ExportFormat::Csv => csv::write(&view, out)?,
            ExportFormat::Parquet => parquet::write(&view, out)?,
            ExportFormat::Perfetto => perfetto::write(&view, &perfetto_options, out)?,
            ExportFormat::Minimalloc => minimalloc::write(&devices[0].history, &minimalloc_options, out)?,
            ExportFormat::Gtrace => gtrace::write(&trace, out)?,
        }
        Ok(())
    })?;
    Ok(Answer::Yes)
}

/// True for formats that a terminal cannot show.
fn is_binary(format: ExportFormat) -> bool {
    match format {
        ExportFormat::Parquet | ExportFormat::Gtrace => true,
        ExportFormat::Csv | ExportFormat::Perfetto | ExportFormat::Minimalloc => false,
    }
}

/// The endings of files in a format. If two formats share an ending, it means the first one in the help.
fn endings(format: ExportFormat) -> &'static [&'static str] {
    match format {
        ExportFormat::Csv => &["csv"],
        ExportFormat::Parquet => &["parquet", "pq"],
        ExportFormat::Perfetto => &["json"],
        ExportFormat::Minimalloc => &[],
        ExportFormat::Gtrace => &["gtrace"],
    }
}

/// The format that a file's name asks for.
fn format_of(path: Option<&Path>) -> Result<ExportFormat> {
    let all = ExportFormat::value_variants();
    let ending = path.and_then(Path::extension).map(|e| e.to_string_lossy().to_ascii_lowercase());
    let found = ending
        .as_ref()
        .and_then(|ending| all.iter().find(|format| endings(**format).contains(&ending.as_str())));
    found.copied().ok_or_else(|| {
        let names: Vec<String> = all
            .iter()
            .filter_map(|format| format.to_possible_value().map(|value| value.get_name().to_owned()))
            .collect();
        let endings: Vec<String> = all
            .iter()
            .filter_map(|format| endings(*format).first())
            .map(|ending| format!(".{ending}"))
            .collect();
        let help =
            format!("use --to {}, or an -o file name that ends in {}", names.join("|"), endings.join(", "));
        match ending {
            Some(ending) => Failure::new(format!("no output format has the ending .{ending}"), help).into(),
            None => Failure::new("no output format was given", help).into(),
        }
    })
}

/// The devices asked for, all of them if none was named: at least one.
pub(crate) fn chosen<'a, 't>(
    analysis: &'a Analysis<'t>,
    path: &Path,
    device: Option<u32>,
) -> Result<Vec<&'a DeviceAnalysis<'t>>> {
    if analysis.devices.is_empty() {
        return Err(load::no_device(path, "there is nothing to show"));
    }
    let Some(wanted) = device else { return Ok(analysis.devices.iter().collect()) };
    match analysis.devices.iter().find(|d| d.device.device == wanted) {
        Some(found) => Ok(vec![found]),
        None => {
            let there: Vec<String> = analysis.devices.iter().map(|d| d.device.device.to_string()).collect();
            let what = format!("the trace has no device {wanted}");
            Err(Failure::new(what, format!("it has: {}", there.join(", "))).into())
        }
    }
}

fn perfetto_options(args: &ExportArgs) -> Result<perfetto::Options> {
    let mut options = perfetto::Options::default();
    if let Some(text) = &args.min_size {
        options.min_size = sizes::parse("--min-size", text, "1MiB")?;
    }
    Ok(options)
}

fn minimalloc_options(args: &ExportArgs, device: &DeviceAnalysis<'_>) -> Result<minimalloc::Options> {
    let mut options = minimalloc::Options::default();
    if let Some(text) = &args.steps {
        let steps = parse_steps(text, device.steps.spans.len())?;
        let spans = &device.steps.spans[steps];
        if let (Some(first), Some(last)) = (spans.first(), spans.last()) {
            options.ticks = Some(first.start..last.end);
        }
    }
    Ok(options)
}

/// `3`, `3..5`, `3..` or `..5`, within the `count` steps there are.
pub(crate) fn parse_steps(text: &str, count: usize) -> Result<Range<usize>> {
    let wrong = || {
        Failure::new(
            format!("--steps {text}: no such steps"),
            if count == 0 {
                "no steps were found in this trace: leave --steps out".to_owned()
            } else {
                format!("there are {count}, from 0: write 0..{count}, 2.., ..3 or 1")
            },
        )
    };
    let number = |part: &str, default: usize| if part.is_empty() { Ok(default) } else { part.trim().parse() };
    let range = match text.split_once("..") {
        Some((from, to)) => number(from, 0).map_err(|_| wrong())?..number(to, count).map_err(|_| wrong())?,
        None => {
            let step: usize = text.trim().parse().map_err(|_| wrong())?;
            step..step.saturating_add(1)
        }
    };
    if range.start < range.end && range.end <= count { Ok(range) } else { Err(wrong().into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_half_open_ranges_within_those_there_are() {
        assert_eq!(parse_steps("3", 6).unwrap(), 3..4);
        assert_eq!(parse_steps("1..3", 6).unwrap(), 1..3);
        assert_eq!(parse_steps("..3", 6).unwrap(), 0..3);
        assert_eq!(parse_steps("4..", 6).unwrap(), 4..6);
        for text in ["6", "3..3", "5..9", "x", "..", "-1"] {
            let expected_whole = text == "..";
            assert_eq!(parse_steps(text, 6).is_ok(), expected_whole, "{text}");
        }
        assert!(parse_steps("0", 0).is_err());
    }
}
