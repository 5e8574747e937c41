//! `gapless fit-into`: what a recorded training step keeps and makes again within a budget.

use super::plan::duration;
use crate::cli::fit_into::{FitIntoArgs, FitIntoFormat};
use crate::failure::Failure;
use crate::{Answer, load, output, sizes};
use anyhow::Result;
use gapless_ingest::Problem;
use gapless_train::{Options, Step, frontier, solve, told};
use std::io::Read;
use std::path::Path;

/// No recorded step is longer.
const LONGEST: u64 = 1 << 30;
const HELP: &str =
    "write the file with fitted.save(\"step.json\") after a step was recorded: docs/fit-into.md";

pub(crate) fn run(args: &FitIntoArgs) -> Result<Answer> {
    let budget = args.budget.as_deref().map(|text| sizes::parse("--budget", text, "12GiB")).transpose()?;
    let step = Step::read(&bytes(&args.file)?)
        .map_err(|error| Failure::new(format!("{}: {error}", args.file.display()), HELP))?;
    let budget = budget.map_or(step.peak(), |bytes| bytes.0);
    let options = Options { seed: args.seed, time_limit: duration(&args.time_limit)?, ..Options::default() };
    let points = if args.frontier > 0 { frontier(&step, args.frontier, &options) } else { Vec::new() };
    let plan = solve(&step, budget, &options);
    let answer = told(&step, budget, &plan, &points);
    let path = args.output.as_deref();
    match args.format {
        FitIntoFormat::Text => output::write_text(path, &answer.text)?,
        FitIntoFormat::Json => output::write_to(path, |out| {
            serde_json::to_writer(&mut *out, &answer)?;
            Ok(writeln!(out)?)
        })?,
    }
    Ok(if plan.fits { Answer::Yes } else { Answer::No })
}

/// The bytes of a recorded step, decompressed.
fn bytes(path: &Path) -> Result<Vec<u8>> {
    let no_step = |what: &str| Failure::new(format!("{}: {what}", path.display()), HELP);
    load::content(path, |mut content| {
        match content.peek(1)? {
            [] => return Err(content.error(Problem::EmptyFile).into()),
            [b'{'] => {}
            _ => return Err(no_step("this is not a recorded step, which is a JSON object").into()),
        }
        let mut bytes = Vec::new();
        let read = (&mut content).take(LONGEST + 1).read_to_end(&mut bytes);
        read.map_err(|source| content.error(Problem::Io { offset: 0, source }))?;
        if bytes.len() as u64 > LONGEST {
            return Err(no_step("more than 1 GiB: no recorded step is that long").into());
        }
        Ok(bytes)
    })
}
