//! `--list` and `--gpus-list`: the names that `fit` knows.

use crate::cli::fit::{FitArgs, FitFormat};
use crate::failure::Failure;
use crate::{Answer, output};
use anyhow::Result;
use gapless_fit::{hardware, parameters, read, simulated};
use gapless_report::text;
use gapless_trace::Bytes;
use std::fmt::Write;

/// Built-in models whose name contains `filter`: the name first, so that a script can cut it off.
pub(super) fn models(args: &FitArgs, filter: &str) -> Result<Answer> {
    let wanted = filter.to_lowercase();
    let mut out = String::new();
    for name in read::names().into_iter().filter(|name| name.to_lowercase().contains(&wanted)) {
        let count = read::open(name).ok().and_then(|model| parameters::count(model.architecture.as_ref()?));
        let Some(count) = count else { continue };
        let _ = writeln!(
            out,
            "{name:<28} {:>16} parameters {:>10}",
            text::count(count),
            Bytes(2 * count).to_string()
        );
    }
    if out.is_empty() {
        return Err(Failure::new(
            format!("--list {filter}: no built-in model has that in its name"),
            "`gapless fit --list` prints all of them",
        )
        .into());
    }
    show(args, "--list", &out)
}

/// Known GPUs.
pub(super) fn gpus(args: &FitArgs) -> Result<Answer> {
    let mut out = String::new();
    for gpu in hardware::GPUS {
        let memory = Bytes(gpu.memory());
        let error = gapless_fit::account::SIMULATED_ERROR;
        let room = simulated::room(memory, error);
        let _ = writeln!(
            out,
            "{:<14} {:>9}  a simulated run fits up to {:>9}",
            gpu.name,
            memory.to_string(),
            room.to_string()
        );
    }
    show(args, "--gpus-list", &out)
}

fn show(args: &FitArgs, flag: &str, text: &str) -> Result<Answer> {
    if args.format != FitFormat::Text {
        return Err(Failure::new(
            format!("{flag} is text"),
            "leave out --format, and name a file that ends in .txt",
        )
        .into());
    }
    output::write_text(args.output.as_deref(), text)?;
    Ok(Answer::Yes)
}
