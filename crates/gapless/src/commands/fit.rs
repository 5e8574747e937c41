//! `gapless fit`: the memory that a model will take on a device, and a configuration that fits.
//!
//! Flags become a question ([`flags`]), `gapless_fit::ask` answers it, `gapless_report::fit` has the words. With
//! `--run` the question is one for `gapless estimate` ([`estimated`]).

mod emit;
mod estimated;
pub(super) mod flags;
mod lists;
mod page;
mod versus;

use crate::cli::fit::{FitArgs, FitFormat};
use crate::failure::Failure;
use crate::{Answer, output};
use anyhow::Result;
use gapless_fit::ask::{self, AskError, Asked, Question, Wishes};

pub(crate) fn run(args: &FitArgs) -> Result<Answer> {
    if args.run {
        return super::estimate::run(&estimated::args(args)?);
    }
    if !args.arguments.is_empty() {
        let help = "add --run to run a script: `gapless fit --run train.py -- --batch 8`";
        return Err(Failure::new("arguments after `--` are for a script", help).into());
    }
    crate::small_pages::take();
    if let Some(filter) = &args.list {
        return lists::models(args, filter);
    }
    if args.gpus_list {
        return lists::gpus(args);
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
    let emits = args.emit.map(flags::emit);
    let asked = Asked { emit: emits, ..flags::asked(&args.settings)? };
    let q = Question::read(path, &asked).map_err(|error| estimated::refused(error, path, args))?;
    let found = ask::ask(&q, &wishes(args)).map_err(failure)?;
    let verdict = if found.fits { Answer::Yes } else { Answer::No };
    if let Some(path) = &args.html {
        page::write(Some(path), &q, &found)?;
        if path.as_os_str() != "-" {
            eprintln!("wrote {}", path.display());
        }
    }
    if let Some(target) = args.emit {
        emit::write(args, &q, &found, target)?;
        if args.out.is_none() {
            return Ok(verdict);
        }
    }
    let terms = if args.why { Some(ask::terms(&q, &found).map_err(failure)?) } else { None };
    match args.format {
        FitFormat::Html => page::write(args.output.as_deref(), &q, &found)?,
        FitFormat::Json => {
            let text = gapless_report::fit::json(&q, &found, terms.as_deref())?;
            output::write_to(args.output.as_deref(), |out| Ok(out.write_all(text.as_bytes())?))?;
        }
        FitFormat::Text => {
            let text = gapless_report::fit::text(&q, &found, terms.as_deref(), args.emit.is_none());
            output::write_text(args.output.as_deref(), &text)?;
        }
    }
    // The process ends here, so freeing a log of a hundred thousand events would only cost time.
    std::mem::forget(found);
    Ok(verdict)
}

fn question(path: &str, settings: &crate::cli::fit::Settings) -> Result<Question> {
    Ok(Question::read(path, &flags::asked(settings)?).map_err(failure)?)
}

fn wishes(args: &FitArgs) -> Wishes {
    Wishes {
        optimize: args.optimize,
        max_batch: args.max_batch,
        top: args.top,
        emit: args.emit.map(flags::emit),
    }
}

fn failure(error: AskError) -> Failure {
    Failure::new(error.what, error.help)
}
