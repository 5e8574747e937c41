//! `gapless advise`: settings that use less memory, or that work on a smaller card; of many ranks, one for all.

mod many;

use crate::cli::PlainFormat;
use crate::cli::advise::AdviseArgs;
use crate::failure::Failure;
use crate::ranks::Inputs;
use crate::{Answer, load, output, sweep};
use anyhow::Result;
use gapless_replay::advise;
use gapless_report::advice::{self, Advice, Word};
use gapless_report::{Analysis, DeviceAnalysis};
use gapless_trace::{Action, Bytes};
use std::path::Path;

pub(crate) fn run(args: &AdviseArgs) -> Result<Answer> {
    let capacity = sweep::capacity(args.capacity.as_deref())?;
    let threads = sweep::threads(args.threads)?;
    let inputs = Inputs::of(&args.files, args.output.as_deref())?;
    match (args.rank, inputs.files.as_slice()) {
        (Some(rank), _) => one(args, inputs.rank(rank)?, capacity, threads),
        (None, [only]) if !inputs.many => one(args, &only.path, capacity, threads),
        _ => many::run(args, &inputs, capacity, threads),
    }
}

fn one(args: &AdviseArgs, file: &Path, capacity: Option<Bytes>, threads: usize) -> Result<Answer> {
    let trace = load::trace(file)?;
    let analysis = load::analyse(&trace, file)?;
    let path = file.display().to_string();
    let device = sweep::device(&analysis, &path, args.device)?;
    let answer = answer(&analysis, device, &path, capacity, threads)?;
    if answer.stopped && answer.verdict != Word::TooLarge && answer.suggestions.is_empty() {
        let what = format!(
            "stopped after {} of {} settings, before any was found that helps",
            answer.tried, answer.planned
        );
        return Err(Failure::new(what, "let it finish, or use more --threads").into());
    }
    let fits = answer.survives();
    let advice = Advice::new(&analysis, &path, answer);
    let to = args.output.as_deref();
    match args.format {
        PlainFormat::Text => output::write_text(to, &advice::render(&advice))?,
        PlainFormat::Json => {
            let json = advice::json(&advice)?;
            output::write_to(to, |out| Ok(out.write_all(json.as_bytes())?))?;
        }
    }
    Ok(if fits { Answer::Yes } else { Answer::No })
}

/// Advice for every device that allocated something, for a report.
pub(crate) fn answers(analysis: &Analysis<'_>, path: &str) -> Result<Vec<advice::Answer>> {
    let threads = sweep::threads(None)?;
    let devices = analysis.devices.iter().filter(|d| d.device.events.count(Action::Alloc) > 0);
    devices.map(|d| answer(analysis, d, path, None, threads)).collect()
}

fn answer(
    analysis: &Analysis<'_>,
    device: &DeviceAnalysis<'_>,
    path: &str,
    capacity: Option<Bytes>,
    threads: usize,
) -> Result<advice::Answer> {
    let (settings, version) = sweep::recorded(analysis.trace, path)?;
    let script = sweep::script(analysis.trace, device);
    let planned = advise::candidates(&script, &settings, version).len();
    let found = sweep::watched(planned, |progress| {
        advise::advise(&script, &settings, version, capacity, threads, progress)
    });
    Ok(advice::Answer::of(analysis, device, &found, planned))
}
