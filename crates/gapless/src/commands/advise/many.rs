//! One setting for many ranks: the settings that help the heaviest rank of each group are replayed on every rank.

use crate::cli::PlainFormat;
use crate::cli::advise::AdviseArgs;
use crate::failure::Failure;
use crate::ranks::{self, Inputs};
use crate::{Answer, output, sweep};
use anyhow::Result;
use gapless_replay::Script;
use gapless_replay::advise::{self, environment_line};
use gapless_replay::answer::ENDLESS;
use gapless_replay::device::Placement;
use gapless_replay::sweep::{Candidate, trial};
use gapless_replay::torch::{TorchSettings, TorchVersion};
use gapless_report::ranks::Run;
use gapless_report::ranks::advice::{self, Failed, Outcome, Tried};
use gapless_report::ranks::groups::groups;
use gapless_report::{Analysis, DeviceAnalysis};
use gapless_trace::{Action, Bytes};

/// Groups whose heaviest rank is swept.
const SWEPT: usize = 4;
/// Settings that are replayed on every rank.
const CANDIDATES: usize = 6;

pub(super) fn run(
    args: &AdviseArgs,
    inputs: &Inputs,
    capacity: Option<Bytes>,
    threads: usize,
) -> Result<Answer> {
    let run = ranks::read(inputs, args.device)?;
    let (candidates, producer) = candidates(inputs, &run, args.device, capacity, threads)?;
    let tried = ranks::each(inputs, args.device, |at, analysis| {
        let path = inputs.files[at].path.display().to_string();
        let busy = analysis.devices.iter().filter(|d| d.device.events.count(Action::Alloc) > 0);
        busy.map(|d| try_all(analysis, d, &path, inputs.files[at].rank, &candidates, capacity)).collect()
    });
    let (mut rows, mut errors): (Vec<Tried>, Vec<Failed>) = (Vec::new(), Vec::new());
    for (input, result) in inputs.files.iter().zip(tried) {
        let rank = rank_of(&run, &input.path.display().to_string()).unwrap_or(input.rank);
        let result: Result<Vec<Tried>, String> = result;
        match result {
            Ok(of_rank) => rows.extend(of_rank.into_iter().map(|tried| Tried { rank, ..tried })),
            Err(error) => errors.push(Failed { rank, error }),
        }
    }
    if rows.is_empty() {
        let what = format!("{}: no rank could be replayed", inputs.path);
        let help = errors.first().map_or_else(
            || "no allocation was recorded: start the memory history before the steps".to_owned(),
            |failed| format!("the first: {}", failed.error),
        );
        return Err(Failure::new(what, help).into());
    }
    let line = |conf: &str| environment_line(conf, &producer);
    let advice = advice::choose(&inputs.path, capacity.map(|c| c.0), &candidates, &rows, errors, line);
    let to = args.output.as_deref();
    match args.format {
        PlainFormat::Text => output::write_text(to, &advice::text(&advice))?,
        PlainFormat::Json => {
            let json = advice::json(&advice)?;
            output::write_to(to, |out| Ok(out.write_all(json.as_bytes())?))?;
        }
    }
    Ok(if advice.survives() { Answer::Yes } else { Answer::No })
}

fn rank_of(run: &Run, file: &str) -> Option<u32> {
    run.files.iter().find(|read| read.file == file).map(|read| read.rank)
}

/// The settings that help the heaviest rank of each of the largest groups, and the producer of the traces.
fn candidates(
    inputs: &Inputs,
    run: &Run,
    device: Option<u32>,
    capacity: Option<Bytes>,
    threads: usize,
) -> Result<(Vec<String>, String)> {
    let members: Vec<(&str, &gapless_report::ranks::Summary)> =
        run.files.iter().flat_map(|file| file.devices.iter().map(|d| (file.file.as_str(), d))).collect();
    let summaries: Vec<_> = members.iter().map(|(_, summary)| *summary).collect();
    let mut heaviest: Vec<usize> = groups(&summaries)
        .into_iter()
        .filter_map(|group| group.into_iter().rev().max_by_key(|&at| summaries[at].peak()))
        .collect();
    heaviest.sort_by_key(|&at| std::cmp::Reverse(summaries[at].peak()));
    heaviest.truncate(SWEPT);
    let (mut found, mut producer) = (Vec::<String>::new(), String::new());
    for at in heaviest {
        let (file, summary) = members[at];
        let input = inputs.files.iter().find(|input| input.path.display().to_string() == file);
        let Some(path) = input.map(|input| input.path.as_path()) else { continue };
        let trace = crate::load::trace_of(path, device)?;
        let analysis = crate::load::analyse(&trace, path)?;
        let d = sweep::device(&analysis, file, Some(summary.device))?;
        let (settings, version) = sweep::recorded(&trace, file)?;
        let script = sweep::script(&trace, d);
        let planned = advise::candidates(&script, &settings, version).len();
        let answer = sweep::watched(planned, |progress| {
            advise::advise(&script, &settings, version, capacity, threads, progress)
        });
        producer.clone_from(&trace.source.producer);
        for suggestion in answer.suggestions {
            if !found.contains(&suggestion.tried.conf) {
                found.push(suggestion.tried.conf);
            }
        }
    }
    found.truncate(CANDIDATES);
    Ok((found, producer))
}

/// One device of a rank, as it was set and under each candidate.
fn try_all(
    analysis: &Analysis<'_>,
    d: &DeviceAnalysis<'_>,
    path: &str,
    rank: u32,
    candidates: &[String],
    capacity: Option<Bytes>,
) -> Result<Tried> {
    let (settings, version) = sweep::recorded(analysis.trace, path)?;
    let script = sweep::script(analysis.trace, d);
    let card = capacity.unwrap_or(ENDLESS);
    let outcome = |settings: &TorchSettings| replayed(&script, version, settings, card);
    let outcomes = candidates.iter().map(|conf| {
        let settings = TorchSettings::parse(conf, version)?;
        Ok(outcome(&settings))
    });
    Ok(Tried {
        rank,
        device: d.device.device,
        as_it_was: outcome(&settings),
        candidates: outcomes.collect::<Result<_>>()?,
    })
}

/// The worse of two placements, because the driver's order of addresses is not known.
fn replayed(script: &Script, version: TorchVersion, settings: &TorchSettings, card: Bytes) -> Outcome {
    let candidate = Candidate { settings: settings.clone(), changes: 0 };
    let of = |placement| trial(script, version, &candidate, card, placement);
    let (low, high) = (of(Placement::Lowest), of(Placement::Highest));
    // If a request failed in the recording itself, a replay survives only if it serves that request too.
    let failed_then = script.ops.iter().any(|op| matches!(op, gapless_replay::Op::Failed { .. }));
    let survives = |t: &gapless_replay::sweep::Trial| t.survived() && (!failed_then || t.served_last);
    Outcome {
        survives: survives(&low) && survives(&high),
        peak_reserved: low.stats.reserved.peak.max(high.stats.reserved.peak),
    }
}
