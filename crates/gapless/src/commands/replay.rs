//! `gapless replay`: a run's requests on other allocators and settings.

use crate::cli::replay::{ReplayArgs, ReplayFormat};
use crate::commands::report::page_name;
use crate::failure::Failure;
use crate::progress::Counter;
use crate::{Answer, load, output, sweep};
use anyhow::Result;
use gapless_replay::machine::SpecError;
use gapless_replay::{Machine, Question, Script, Spec, outcome};
use gapless_report::DeviceAnalysis;
use gapless_report::replay::{self, Replay, Replayed, RunInfo};
use gapless_trace::Trace;
use std::io::IsTerminal;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Allocators that are compared if the user names none: the run's own, the setting that helps most runs, and the floor.
const USUAL: [&str; 3] = ["torch", "torch:expandable_segments:True", "plan"];
/// The same for a run that had expandable segments already.
const EXPANDABLE: [&str; 3] = ["torch", "torch:default", "plan"];

pub(crate) fn run(args: &ReplayArgs) -> Result<Answer> {
    let question =
        Question { capacity: sweep::capacity(args.capacity.as_deref())?, min_capacity: args.min_capacity };
    let given = specs(&args.with)?;
    let trace = load::trace(&args.file)?;
    let had = trace.settings.as_ref().is_some_and(|s| s.expandable_segments);
    let specs = if given.is_empty() { specs(&if had { EXPANDABLE } else { USUAL })? } else { given };
    let analysis = load::analyse(&trace, &args.file)?;
    let path = args.file.display().to_string();
    let machines = specs.iter().map(|(text, spec)| spec.machine(&trace).map_err(|e| wrong(text, &e)));
    let machines: Vec<Machine> = machines.collect::<Result<_>>()?;
    let wanted: Vec<Option<u32>> =
        if args.devices.is_empty() { vec![None] } else { args.devices.iter().map(|&d| Some(d)).collect() };
    let devices: Vec<&DeviceAnalysis<'_>> =
        wanted.iter().map(|&d| sweep::device(&analysis, &path, d)).collect::<Result<_>>()?;
    let mut replayed = devices.iter().map(|d| replayed(&trace, d, &specs, &machines, &question));
    // `chosen` returns at least one device or an error.
    let Some(first) = replayed.next() else { return Ok(Answer::Yes) };
    let more = replayed.collect();
    let replay = Replay::new(&analysis, &path, question.capacity, first, more);
    write(args, &replay)?;
    Ok(Answer::Yes)
}

fn specs(texts: &[impl AsRef<str>]) -> Result<Vec<(String, Spec)>> {
    let read = |text: &str| match text.parse::<Spec>() {
        Ok(spec) => Ok((text.to_owned(), spec)),
        Err(error) => Err(wrong(text, &error)),
    };
    texts.iter().map(|text| read(text.as_ref())).collect()
}

fn wrong(text: &str, error: &SpecError) -> anyhow::Error {
    let help = match error {
        SpecError::Version(_) => {
            "put the version after the name, and the settings after the version: torch@2.6:expandable_segments:True"
        }
        SpecError::Conf(_) => {
            "settings are written as in PYTORCH_ALLOC_CONF: torch:expandable_segments:True,max_split_size_mb:128"
        }
        SpecError::Settings(_) => "`gapless replay --help` shows the settings of each allocator",
        SpecError::NoSettings(_) => "remove the settings after the name",
        SpecError::MallocAsync => "compare with --with torch:default instead",
        SpecError::Unknown { .. } if format!("torch:{text}").parse::<Spec>().is_ok() => {
            return Failure::new(format!("--with {text}: {error}"), format!("write --with torch:{text}"))
                .into();
        }
        SpecError::Unknown { .. } => {
            "`gapless replay --help` shows what a SPEC is: torch, torch:default, torch:expandable_segments:True, torch@2.6, plan"
        }
    };
    Failure::new(format!("--with {text}: {error}"), help).into()
}

/// Every allocator on one device, side by side, in the order asked for.
fn replayed(
    trace: &Trace,
    device: &DeviceAnalysis<'_>,
    specs: &[(String, Spec)],
    machines: &[Machine],
    question: &Question,
) -> Replayed {
    let script: Script = sweep::script(trace, device);
    let counter = Counter::new("replaying", machines.len());
    let done = AtomicUsize::new(0);
    let pairs: Vec<(&Machine, &String)> = machines.iter().zip(specs.iter().map(|(text, _)| text)).collect();
    let work = |at: usize| {
        let (machine, text) = pairs[at];
        let run = RunInfo::of(text, machine, &outcome(&script, machine, question));
        counter.update(done.fetch_add(1, Ordering::Relaxed) + 1);
        run
    };
    let threads = sweep::threads(None).unwrap_or(1);
    Replayed::of(device, gapless_threads::each("replays", threads, pairs.len(), work))
}

fn write(args: &ReplayArgs, replay: &Replay) -> Result<()> {
    let to = args.output.as_deref();
    let plain =
        |to: Option<&Path>, text: &str| output::write_to(to, |out| Ok(out.write_all(text.as_bytes())?));
    match args.format {
        ReplayFormat::Text => output::write_text(to, &replay::text::render(replay)),
        ReplayFormat::Json => plain(to, &replay::json(replay)?),
        // HTML in a terminal cannot be read, so it goes to a file named after the trace.
        ReplayFormat::Html if to.is_none() && std::io::stdout().is_terminal() => {
            let named = page_name(&args.file).with_extension("replay.html");
            plain(Some(&named), &replay::html::page(replay))?;
            eprintln!("wrote {}", named.display());
            Ok(())
        }
        ReplayFormat::Html => plain(to, &replay::html::page(replay)),
    }
}
