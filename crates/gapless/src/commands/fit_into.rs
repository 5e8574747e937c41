//! `gapless fit-into`: what a recorded training step keeps and makes again within a budget.

use super::plan::duration;
use crate::cli::fit_into::{FitIntoArgs, FitIntoFormat};
use crate::failure::Failure;
use crate::{Answer, output, sizes};
use anyhow::{Context, Result};
use gapless_train::{Options, Step, frontier, solve, told};

pub(crate) fn run(args: &FitIntoArgs) -> Result<Answer> {
    let budget = args.budget.as_deref().map(|text| sizes::parse("--budget", text, "12GiB")).transpose()?;
    let name = args.file.display();
    let text = std::fs::read(&args.file).with_context(|| name.to_string())?;
    let step = Step::read(&text).map_err(|error| {
        let help =
            "write the file with fitted.save(\"step.json\") after a step was recorded: docs/fit-into.md";
        Failure::new(format!("{name}: {error}"), help)
    })?;
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
