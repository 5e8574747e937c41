//! `gapless check`: compares a run, of one rank or of many, with budgets from flags and from `gapless.toml`; flags win.

use crate::cli::check::{CheckArgs, CheckFormat};
use crate::failure::Failure;
use crate::ranks::{self, Inputs};
use crate::{Answer, load, output, sizes};
use anyhow::{Context, Result};
use gapless_ingest::{Problem, ReadError};
use gapless_report::Report;
use gapless_report::check::{self, Budgets, CheckError, Subject, Verdict};
use gapless_report::ranks::check::{self as ranks_check, Baseline, SavedRun};
use gapless_report::ranks::markdown;
use gapless_report::ranks::model::SCHEMA;
use gapless_trace::Bytes;
use serde::Deserialize;
use std::io::Read;
use std::path::{Path, PathBuf};

const CONFIG: &str = "gapless.toml";
/// The largest file that may be a saved report. Larger files are traces, which need not be searched for a schema.
const LARGEST_REPORT: u64 = 256 << 20;

pub(crate) fn run(args: &CheckArgs) -> Result<Answer> {
    let (budgets, baseline) = budgets(args)?;
    let inputs = Inputs::of(&args.files, args.output.as_deref())?;
    let checked = match (args.rank, inputs.files.as_slice()) {
        (Some(rank), _) => one(args, inputs.rank(rank)?, &budgets, baseline)?,
        (None, [only]) if !inputs.many => one(args, &only.path, &budgets, baseline)?,
        _ => many(args, &inputs, &budgets, baseline)?,
    };
    checked.map_or(Ok(Answer::Yes), |checked| show(args, &checked))
}

/// A verdict and its subject.
struct Checked {
    name: String,
    verdict: Verdict,
    subject: Subject,
}

/// One rank, or a run of one; `None` if only a baseline was asked for.
fn one(
    args: &CheckArgs,
    file: &Path,
    budgets: &Budgets,
    baseline: Option<PathBuf>,
) -> Result<Option<Checked>> {
    if args.max_spread.is_some() && args.rank.is_none() {
        let what = "--max-spread compares ranks, and there is only one file";
        return Err(Failure::new(what, "give the files or the folder of all ranks").into());
    }
    let report = report_of(file, args.device)?;
    let baseline = baseline.map(|path| baseline_report(&path)).transpose()?;
    let verdict = check::check(&report, budgets, baseline.as_ref());
    // Written after the old baseline was read, which may be the same file, and for any verdict, as the user asked.
    if let Some(path) = &args.write_baseline {
        write_baseline(path, &report)?;
        if verdict == Err(CheckError::NoBudget) {
            return Ok(None);
        }
    }
    let verdict =
        verdict.map_err(|error| Failure::new(format!("{}: {error}", file.display()), error.help()))?;
    Ok(Some(Checked { name: file.display().to_string(), verdict, subject: Subject::of(&report) }))
}

/// Every rank against every budget, and the spread among them.
fn many(
    args: &CheckArgs,
    inputs: &Inputs,
    budgets: &Budgets,
    baseline: Option<PathBuf>,
) -> Result<Option<Checked>> {
    let run = ranks::read(inputs, args.device)?;
    let failed = |error: check::CheckError| Failure::new(format!("{}: {error}", inputs.path), error.help());
    let verdict = match baseline {
        None => ranks_check::check(&run, budgets, None),
        Some(path) if path.is_dir() => {
            let base = ranks::read(&Inputs::of(&[path], None)?, None)?;
            ranks_check::check(&run, budgets, Some(Baseline::Run(&base)))
        }
        Some(path) => match saved_ranks(&path)? {
            Some(base) => ranks_check::check(&run, budgets, Some(Baseline::Saved(&base))),
            None => {
                let base = baseline_report(&path)?;
                ranks_check::check(&run, budgets, Some(Baseline::Report(&base)))
            }
        },
    };
    let ranks = gapless_report::ranks::report(&run);
    // As for one rank: written after the old baseline was read, for any verdict.
    if let Some(path) = &args.write_baseline {
        if verdict == Err(CheckError::NoDevice) {
            return Err(failed(CheckError::NoDevice).into());
        }
        write_figures(path, &gapless_report::ranks::json(&ranks)?)?;
        if verdict == Err(CheckError::NoBudget) {
            return Ok(None);
        }
    }
    let verdict = verdict.map_err(failed)?;
    Ok(Some(Checked { name: inputs.path.clone(), verdict, subject: markdown::subject(&ranks) }))
}

fn show(args: &CheckArgs, checked: &Checked) -> Result<Answer> {
    let Checked { name, verdict, subject } = checked;
    // A limit that is exceeded is an answer, even if other limits are unknown.
    let unanswered = verdict.unknown.first().filter(|_| !verdict.exceeded()).map(|unknown| {
        let what = format!("{name}: {}", check::unknown_sentence(unknown));
        anyhow::Error::from(Failure::new(what, unknown.help))
    });
    if verdict.rows.is_empty()
        && let Some(failure) = unanswered
    {
        return Err(failure);
    }
    let path = args.output.as_deref();
    match args.format {
        CheckFormat::Text => output::write_text(path, &check::text(verdict))?,
        CheckFormat::Json => write(path, &check::json(verdict)?)?,
        CheckFormat::Github => write(path, &check::github(verdict))?,
        CheckFormat::Junit => write(path, &check::junit(verdict))?,
        CheckFormat::Markdown => write(path, &check::markdown(verdict, subject))?,
        CheckFormat::Sarif => write(path, &check::sarif(verdict, subject)?)?,
        CheckFormat::Gitlab => write(path, &check::gitlab(verdict, subject)?)?,
    }
    match unanswered {
        Some(failure) => Err(failure),
        None => Ok(if verdict.passed { Answer::Yes } else { Answer::No }),
    }
}

fn write(path: Option<&Path>, text: &str) -> Result<()> {
    output::write_to(path, |out| Ok(out.write_all(text.as_bytes())?))
}

/// Keeps the figures of this run. The file appears whole or not at all.
fn write_baseline(path: &Path, report: &Report) -> Result<()> {
    if report.devices.is_empty() {
        let what = format!("{}: the trace has no device, so it makes no baseline", report.source.path);
        return Err(Failure::new(what, CheckError::NoDevice.help()).into());
    }
    write_figures(path, &gapless_report::json(report)?)
}

fn write_figures(path: &Path, json: &str) -> Result<()> {
    write(Some(path), json)?;
    if path.as_os_str() != "-" {
        eprintln!("wrote {}", path.display());
    }
    Ok(())
}

fn report_of(path: &Path, device: Option<u32>) -> Result<Report> {
    let trace = load::trace_of(path, device)?;
    Ok(load::analyse(&trace, path)?.report(&path.display().to_string(), 10))
}

/// The saved figures of many ranks, if the file has them.
fn saved_ranks(path: &Path) -> Result<Option<SavedRun>> {
    if !is_small_file(path) || !begins_with_schema(path, "\"gapless.ranks/") {
        return Ok(None);
    }
    let text = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let saved: SavedRun = serde_json::from_slice(&text).map_err(|error| {
        let what = format!("{}: a damaged report of many ranks: {error}", path.display());
        Failure::new(what, "make the baseline again: gapless check ... --write-baseline FILE")
    })?;
    if saved.schema == SCHEMA {
        return Ok(Some(saved));
    }
    let what = format!("{}: a report of schema {:?}", path.display(), saved.schema);
    Err(Failure::new(what, format!("this version reads {SCHEMA:?}: make the baseline again")).into())
}

fn is_small_file(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|m| m.is_file() && m.len() <= LARGEST_REPORT)
}

/// A baseline is a saved JSON report, or a trace to make one from.
fn baseline_report(path: &Path) -> Result<Report> {
    let is_json = path.extension().is_some_and(|e| e.eq_ignore_ascii_case("json"));
    if is_small_file(path) && begins_with_schema(path, "\"gapless.ranks/") {
        let what = format!("{}: the figures of many ranks", path.display());
        return Err(Failure::new(what, "check all ranks with it, or write a baseline of one").into());
    }
    let looks_like_report = is_small_file(path) && (is_json || begins_with_schema(path, "\"gapless.report/"));
    if looks_like_report {
        let text = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        if let Ok(report) = serde_json::from_slice::<Report>(&text) {
            if report.schema == gapless_report::model::SCHEMA {
                return Ok(report);
            }
            return Err(Failure::new(
                format!("{}: a report of schema {:?}", path.display(), report.schema),
                format!("this version reads {:?}: make the baseline again", gapless_report::model::SCHEMA),
            )
            .into());
        }
    }
    report_of(path, None).map_err(|error| {
        match error.downcast_ref::<ReadError>().map(|error| &error.problem) {
            Some(Problem::NotATrace { .. }) => {
                error.context("the baseline is neither a saved JSON report nor a trace")
            }
            _ => error.context("the baseline cannot be read"),
        }
    })
}

/// True if a schema stands near the top, under any file name.
fn begins_with_schema(path: &Path, schema: &str) -> bool {
    let mut head = Vec::new();
    let read = std::fs::File::open(path).and_then(|file| file.take(256).read_to_end(&mut head));
    read.is_ok() && String::from_utf8_lossy(&head).contains(schema)
}

/// `[check]` of gapless.toml.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct CheckTable {
    peak_reserved: Option<Amount>,
    peak_allocated: Option<Amount>,
    fragmentation: Option<Amount>,
    growth_per_step: Option<Amount>,
    spread: Option<Amount>,
    baseline: Option<PathBuf>,
    tolerance: Option<Amount>,
}

/// The file as a whole. Other tables are refused, because a limit outside `[check]` would not be checked.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct ConfigFile {
    #[serde(default)]
    check: CheckTable,
}

/// A number, or a number with its unit.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
enum Amount {
    Whole(u64),
    Real(f64),
    Text(String),
}

impl Amount {
    fn bytes(&self, name: &str) -> Result<Bytes> {
        let text = match self {
            Amount::Whole(n) => n.to_string(),
            Amount::Real(n) => n.to_string(),
            Amount::Text(text) => text.clone(),
        };
        sizes::parse(name, &text, "20GiB")
    }

    fn share(&self, name: &str) -> Result<f64> {
        let value = match self {
            Amount::Whole(n) => *n as f64,
            Amount::Real(n) => *n,
            Amount::Text(text) => parse_share(text).ok_or_else(|| wrong_share(name, text))?,
        };
        let given = match self {
            Amount::Text(text) => text.clone(),
            Amount::Whole(_) | Amount::Real(_) => value.to_string(),
        };
        if (0.0..=1.0).contains(&value) { Ok(value) } else { Err(wrong_share(name, &given)) }
    }
}

fn wrong_share(name: &str, text: &str) -> anyhow::Error {
    Failure::new(format!("{name}: invalid share {text:?}"), "use a value from 0 to 1, such as 0.15 or 15%")
        .into()
}

fn parse_share(text: &str) -> Option<f64> {
    let text = text.trim();
    match text.strip_suffix('%') {
        Some(hundredths) => hundredths.trim().parse::<f64>().ok().map(|value| value / 100.0),
        None => text.parse().ok(),
    }
}

/// The budgets and the baseline's path: flags first, then the configuration file.
fn budgets(args: &CheckArgs) -> Result<(Budgets, Option<PathBuf>)> {
    let config = match args.config.clone().or_else(find_config) {
        Some(path) => read_config(&path)?,
        None => CheckTable::default(),
    };
    // A flag wins over the file, and an error names the one that is wrong.
    let pick = |flag: &str, given: &Option<String>, table: Option<Amount>| match given {
        Some(text) => Some((flag.to_owned(), Amount::Text(text.clone()))),
        None => table.map(|amount| {
            (format!("gapless.toml, {}", flag[2..].replace('-', "_").replace("max_", "")), amount)
        }),
    };
    let bytes = |flag: &str, given: &Option<String>, table: Option<Amount>| {
        pick(flag, given, table).map(|(name, amount)| amount.bytes(&name)).transpose()
    };
    let share = |flag: &str, given: &Option<String>, table: Option<Amount>| {
        pick(flag, given, table).map(|(name, amount)| amount.share(&name)).transpose()
    };
    let budgets = Budgets {
        peak_reserved: bytes("--max-peak-reserved", &args.max_peak_reserved, config.peak_reserved)?,
        peak_allocated: bytes("--max-peak-allocated", &args.max_peak_allocated, config.peak_allocated)?,
        fragmentation: share("--max-fragmentation", &args.max_fragmentation, config.fragmentation)?,
        growth_per_step: bytes("--max-growth-per-step", &args.max_growth_per_step, config.growth_per_step)?,
        spread: share("--max-spread", &args.max_spread, config.spread)?,
        tolerance: share("--tolerance", &args.tolerance, config.tolerance)?.unwrap_or(0.0),
    };
    let baseline = args.baseline.clone().or(config.baseline);
    if args.tolerance.is_some() && baseline.is_none() {
        let what = "--tolerance is about a baseline, and none was given";
        return Err(Failure::new(what, "add --baseline FILE; other limits are exact").into());
    }
    Ok((budgets, baseline))
}

/// gapless.toml in the current folder or the nearest parent that has one.
fn find_config() -> Option<PathBuf> {
    let here = std::env::current_dir().ok()?;
    here.ancestors().map(|folder| folder.join(CONFIG)).find(|path| path.is_file())
}

fn read_config(path: &Path) -> Result<CheckTable> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut file: ConfigFile = toml::from_str(&text).map_err(|error| {
        Failure::new(
            format!("{}: {}", path.display(), error.to_string().trim_end()),
            "`gapless check --help` shows a whole gapless.toml",
        )
    })?;
    // A relative baseline lies beside the file that names it.
    if let (Some(baseline), Some(folder)) = (&file.check.baseline, path.parent()) {
        file.check.baseline = Some(folder.join(baseline));
    }
    Ok(file.check)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_read_as_people_write_them() {
        let share = |text: &str| Amount::Text(text.to_owned()).share("x");
        assert_eq!(share("15%").unwrap(), 0.15);
        assert_eq!(share(" 2.5 % ").unwrap(), 0.025);
        assert_eq!(share("0.2").unwrap(), 0.2);
        for text in ["15", "-1%", "many", "NaN", "101%"] {
            assert!(share(text).is_err(), "{text}");
        }
    }
}
