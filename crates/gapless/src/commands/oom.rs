//! `gapless oom`: the cause of the last failed request, and settings that would have prevented it.

use crate::cli::PlainFormat;
use crate::cli::oom::OomArgs;
use crate::failure::Failure;
use crate::{Answer, load, output, sweep};
use anyhow::Result;
use gapless_replay::post_mortem;
use gapless_replay::sweep::candidates;
use gapless_report::oom::xla::{self, XlaOom};
use gapless_report::oom::{self, Autopsy};
use gapless_report::{Analysis, DeviceAnalysis};
use gapless_trace::{Action, Trace};
use std::io::Read as _;

pub(crate) fn run(args: &OomArgs) -> Result<Answer> {
    let capacity = sweep::capacity(args.capacity.as_deref())?;
    let threads = sweep::threads(args.threads)?;
    let to = args.output.as_deref();
    let trace = match read(args)? {
        Read::Trace(trace) => *trace,
        Read::OfXla(error) => {
            let text = match args.format {
                PlainFormat::Text => {
                    return output::write_text(to, &xla::render(&error)).map(|()| Answer::Yes);
                }
                PlainFormat::Json => xla::json(&error)?,
            };
            output::write_to(to, |out| Ok(out.write_all(text.as_bytes())?))?;
            return Ok(Answer::Yes);
        }
    };
    let analysis = load::analyse(&trace, &args.file)?;
    if analysis.devices.is_empty() {
        return Err(load::no_device(&args.file, "whether a request failed is not known"));
    }
    let path = args.file.display().to_string();
    let device = failed(&analysis, &path, args.device)?;
    let (settings, version) = sweep::recorded(&trace, &path)?;
    let script = sweep::script(&trace, device);
    let planned = candidates(&settings, version).len();
    let found = sweep::watched(planned, |progress| {
        let (device, history) = (device.device, &device.history);
        post_mortem::examine(device, history, &script, &settings, version, capacity, threads, progress)
    });
    let found = found.ok_or_else(|| no_failure(&path))?;
    let autopsy = Autopsy::of(&analysis, device, &path, &found, planned);
    match args.format {
        PlainFormat::Text => output::write_text(to, &oom::render(&autopsy))?,
        PlainFormat::Json => {
            let json = oom::json(&autopsy)?;
            output::write_to(to, |out| Ok(out.write_all(json.as_bytes())?))?;
        }
    }
    Ok(Answer::Yes)
}

/// The content of a file: a run, or the text of an error.
enum Read {
    Trace(Box<Trace>),
    OfXla(Box<XlaOom>),
}

/// The longest log that is searched for an error.
const LONGEST_LOG: u64 = 256 << 20;

fn read(args: &OomArgs) -> Result<Read> {
    load::content(&args.file, |content| {
        let Err(error) = content.format() else { return Ok(Read::Trace(Box::new(content.trace()?))) };
        let mut bytes = Vec::new();
        content.take(LONGEST_LOG).read_to_end(&mut bytes)?;
        let text = String::from_utf8_lossy(&bytes);
        match XlaOom::read(&text, &args.file.display().to_string()) {
            Some(own) => Ok(Read::OfXla(Box::new(own))),
            None => Err(error.into()),
        }
    })
}

/// The device asked for, or the one on which a request failed.
fn failed<'a, 't>(
    analysis: &'a Analysis<'t>,
    path: &str,
    wanted: Option<u32>,
) -> Result<&'a DeviceAnalysis<'t>> {
    let fails = |d: &&DeviceAnalysis<'_>| d.device.events.count(Action::Oom) > 0;
    let found = match wanted {
        Some(_) => Some(sweep::device(analysis, path, wanted)?).filter(fails),
        None => analysis.devices.iter().find(fails),
    };
    found.ok_or_else(|| no_failure(path).into())
}

fn no_failure(path: &str) -> Failure {
    Failure::new(
        format!("{path}: no request failed in it"),
        format!(
            "`gapless advise {path} --capacity BYTES` says whether it would have on a smaller card, and what would have helped"
        ),
    )
}
