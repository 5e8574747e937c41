//! `gapless fit`: what a model will take on a device before it runs, and a configuration that fits.

mod emit;
mod estimate;
mod json;
mod page;
mod plans;
mod question;
mod show;
mod versus;
mod why;

use crate::cli::DiffFormat;
use crate::cli::fit::FitArgs;
use crate::failure::Failure;
use crate::{Answer, output};
use anyhow::Result;
use estimate::Estimate;
use gapless_fit::tune;
use plans::Plans;
use question::Question;

pub(crate) fn run(args: &FitArgs) -> Result<Answer> {
    take_small_pages();
    if args.list {
        let names: String = gapless_fit::read::names().iter().map(|name| format!("{name}\n")).collect();
        output::write_to(args.output.as_deref(), |out| Ok(out.write_all(names.as_bytes())?))?;
        return Ok(Answer::Yes);
    }
    if let Some(pair) = &args.compare {
        return versus::run(args, &pair[0], &pair[1]);
    }
    let Some(path) = &args.model else {
        return Err(Failure::new(
            "which model?",
            "give a config.json, its folder, a file, or a built-in name; `gapless fit --list` prints those",
        )
        .into());
    };
    let q = Question::read(path, &args.settings)?;
    let found = answer(&q, args)?;
    if args.html.is_some() {
        page::write(args, &q, found.estimate.as_ref())?;
    }
    if let Some(target) = args.emit {
        emit::write(args, &q, &found, target)?;
        if args.out.is_none() {
            return Ok(if found.fits { Answer::Yes } else { Answer::No });
        }
    }
    let terms = if args.why { Some(why::terms(&q, &found)?) } else { None };
    let parts = json::Parts {
        plans: found.plans.as_ref(),
        largest: found.largest.as_ref().map(Option::as_ref),
        why: terms.as_deref(),
    };
    match args.format {
        DiffFormat::Json => {
            let value = json::value(&q, found.estimate.as_ref(), found.fits, &parts);
            let text = serde_json::to_string_pretty(&value)? + "\n";
            output::write_to(args.output.as_deref(), |out| Ok(out.write_all(text.as_bytes())?))?;
        }
        DiffFormat::Text => {
            output::write_text(args.output.as_deref(), &text(&q, args, &found, terms.as_deref()))?;
        }
    }
    let fits = found.fits;
    // The process ends here: nobody waits for a log of a hundred thousand events to be taken apart.
    std::mem::forget(found);
    Ok(if fits { Answer::Yes } else { Answer::No })
}

/// An answer takes milliseconds and a few megabytes, in vectors of many sizes: of huge pages, two megabytes would be zeroed for each
/// of these, a quarter of all its time. It is no more than time that is lost where this cannot be set.
fn take_small_pages() {
    #[cfg(target_os = "linux")]
    let _ = rustix::thread::disable_transparent_huge_pages(true);
}

/// All that was found out.
struct Found {
    estimate: Option<Estimate>,
    plans: Option<Plans>,
    largest: Option<Option<tune::LargestBatch>>,
    fits: bool,
    /// The configuration of the estimate, where it is not simulated.
    config: Option<gapless_fit::search::space::Config>,
    /// Whether the estimate is the first plan's.
    is_plan: bool,
}

fn answer(q: &Question, args: &FitArgs) -> Result<Found> {
    let mut found =
        Found { estimate: None, plans: None, largest: None, fits: false, config: None, is_plan: false };
    let target = args.emit.and_then(emit::target);
    let serves = !q.trains();
    if args.max_batch {
        if !q.is_simulated() {
            return Err(Failure::new(
                "--max-batch is found by simulating one GPU",
                "leave out the degrees and offloading; every plan of a search names its own largest batch",
            )
            .into());
        }
        if q.is_graph() {
            return Err(Failure::new(
                "--max-batch needs a batch to vary, and an exported graph has its shapes",
                "export it with other shapes, or give its config.json",
            )
            .into());
        }
        let full = q.checkpointing == crate::cli::fit::CheckpointingArg::Auto;
        let run = if full {
            gapless_fit::eager::Run { checkpointing: gapless_fit::eager::Checkpointing::All, ..q.run.clone() }
        } else {
            q.run.clone()
        };
        let largest = tune::largest_batch(&q.architecture, &run, q.gpu(), q.memory()).map_err(|error| {
            Failure::new(format!("{}: {error}", q.path), "give a model whose steps are followed")
        })?;
        found.fits = largest.is_some();
        found.estimate =
            largest.as_ref().map(|l| Estimate::of(&at_batch(q, l.batch), l.answer.clone(), None));
        found.largest = Some(largest);
        if found.fits {
            return Ok(found);
        }
    }
    if serves && (q.cluster.gpus() > 1 || args.emit.is_some()) {
        let plans = plans::serve(q, args.top)?;
        found.fits = !plans.rows.is_empty();
        found.estimate = plans.rows.first().and_then(|row| row.estimate.clone());
        found.is_plan = true;
        found.plans = Some(plans);
        return Ok(found);
    }
    if q.is_simulated() {
        let estimate = Estimate::simulated(q)?;
        found.fits = estimate.verdict.fits();
        found.estimate = Some(estimate);
    } else if q.is_laid_out() {
        let profile = plans::profile(q)?;
        let config = plans::given(q, &profile)?;
        let account = gapless_fit::search::train::account(&profile, &q.cluster, &config);
        let estimate = Estimate::closed(q, &config, &account, profile.parameters(), Vec::new());
        found.fits = estimate.verdict.fits();
        found.estimate = Some(estimate);
        found.config = Some(config);
    }
    // There is nothing to vary in an exported graph.
    if found.fits && !args.optimize || q.is_graph() {
        return Ok(found);
    }
    let plans = if serves {
        if !matches!(q.architecture, gapless_fit::model::Architecture::Decoder(_)) {
            return Ok(found);
        }
        plans::serve(q, args.top)?
    } else {
        plans::train(q, target, args.top)?
    };
    if found.estimate.is_none() {
        // Only the number of GPUs was given: the answer is the best layout's.
        found.fits = !plans.rows.is_empty();
        found.estimate = plans.rows.first().and_then(|row| row.estimate.clone());
        found.config = plans.rows.first().and_then(|row| row.config);
        found.is_plan = true;
    }
    found.plans = Some(plans);
    Ok(found)
}

fn at_batch(q: &Question, batch: u64) -> Question {
    let mut q = q.clone();
    q.run.batch = batch;
    q
}

fn text(
    q: &Question,
    args: &FitArgs,
    found: &Found,
    terms: Option<&[gapless_fit::formulas::Term]>,
) -> String {
    let mut out = String::new();
    let parameters = found
        .estimate
        .as_ref()
        .map(|e| e.parameters)
        .or_else(|| gapless_fit::parameters::count(&q.architecture))
        .unwrap_or(0);
    let shown = match &found.largest {
        Some(Some(largest)) => at_batch(q, largest.batch),
        _ => q.clone(),
    };
    show::head(&mut out, &shown, parameters, found.estimate.as_ref().map_or(0, |e| e.blocks));
    if let Some(largest) = &found.largest {
        show::largest_batch(&mut out, q, largest.as_ref());
    }
    if let Some(estimate) = &found.estimate {
        show::account(&mut out, &shown, estimate, found.is_plan);
    }
    if let Some(plans) = &found.plans {
        show::plans(&mut out, plans);
    }
    if let Some(terms) = terms {
        why::text(&mut out, terms);
    } else if args.emit.is_none() {
        let hint = match &found.plans {
            Some(plans) if plans.rows.iter().any(|row| row.config.is_some()) => {
                "--emit torch|fsdp|deepspeed|accelerate writes the first plan down; --why shows where numbers come from"
            }
            Some(plans) if !plans.rows.is_empty() => "--emit vllm writes the first plan down",
            _ if !q.trains() => "--why shows where numbers come from, --max-batch the largest batch",
            _ => {
                "--why shows where numbers come from, --optimize looks for cheaper plans, --max-batch for the largest batch"
            }
        };
        out += &format!("\n{}{hint}{}\n", show::DIM, show::RESET);
    }
    out
}
