//! `--compare A B`: two settings, or two models, and the components in which they differ.
//!
//! A side is `batch=8,precision=fp32`: flags without their dashes, over those of the command line; a word without `=`
//! is a model.

use super::{failure, question, wishes};
use crate::cli::fit::{FitArgs, FitFormat, Settings};
use crate::failure::Failure;
use crate::{Answer, output};
use anyhow::Result;
use clap::{Args, FromArgMatches};
use gapless_fit::ask::{Question, ask};
use gapless_report::fit::{Comparison, Side};

pub(super) fn run(args: &FitArgs, a: &str, b: &str) -> Result<Answer> {
    let (qa, qb) = (side(args, a)?, side(args, b)?);
    let wishes = wishes(args);
    let (fa, fb) = (ask(&qa, &wishes).map_err(failure)?, ask(&qb, &wishes).map_err(failure)?);
    let (Some(ea), Some(eb)) = (&fa.estimate, &fb.estimate) else {
        return Err(Failure::new(
            "one of the two has no account to compare",
            "ask for each of them alone to see why",
        )
        .into());
    };
    let comparison = Comparison {
        a: Side { asked: a, question: &qa, estimate: ea, fits: fa.fits },
        b: Side { asked: b, question: &qb, estimate: eb, fits: fb.fits },
    };
    match args.format {
        FitFormat::Html => {
            let help = "use --format text or json, or ask for each of the two alone";
            return Err(Failure::new("a comparison comes as text or JSON, not as a page", help).into());
        }
        FitFormat::Json => {
            let text = comparison.json()?;
            output::write_to(args.output.as_deref(), |out| Ok(out.write_all(text.as_bytes())?))?;
        }
        FitFormat::Text => output::write_text(args.output.as_deref(), &comparison.text())?,
    }
    Ok(if fa.fits && fb.fits { Answer::Yes } else { Answer::No })
}

/// One side's question.
fn side(args: &FitArgs, text: &str) -> Result<Question> {
    let mut settings: Settings = args.settings.clone();
    let mut model = args.model.clone();
    let mut flags = Vec::new();
    let mut parts: Vec<String> = Vec::new();
    for part in text.split(',') {
        // A comma within a value: lora=r=16,base=nf4 or offload=optimizer,params.
        let continues = (part.starts_with("base=") || part.starts_with("targets="))
            || matches!(part, "optimizer" | "params" | "activations");
        match parts.last_mut() {
            Some(last) if continues && last.contains('=') => *last = format!("{last},{part}"),
            _ => parts.push(part.to_owned()),
        }
    }
    for part in parts.iter().map(|part| part.trim()).filter(|part| !part.is_empty()) {
        match part.split_once('=') {
            Some((key, value)) => {
                flags.push(format!("--{}", key.trim().trim_start_matches("--")));
                flags.push(value.trim().to_owned());
            }
            None if matches!(part, "train" | "infer") => flags.push(format!("--{part}")),
            None => model = Some(part.to_owned()),
        }
    }
    let command = Settings::augment_args_for_update(
        clap::Command::new("compare").no_binary_name(true).disable_help_flag(true),
    );
    let matches = command.try_get_matches_from(flags).map_err(|error| {
        let line = error.to_string();
        let line = line.lines().next().unwrap_or_default().trim_start_matches("error: ");
        Failure::new(
            format!("--compare {text}: {line}"),
            "flags without their dashes, as in batch=8,precision=fp32; or a model",
        )
    })?;
    settings.update_from_arg_matches(&matches).map_err(|error| {
        Failure::new(
            format!("--compare {text}: {error}"),
            "flags without their dashes, as in batch=8,precision=fp32",
        )
    })?;
    let Some(model) = model else {
        return Err(Failure::new(
            format!("--compare {text}: of which model?"),
            "gapless fit MODEL --compare batch=8 batch=16",
        )
        .into());
    };
    question(&model, &settings)
}
