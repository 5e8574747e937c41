//! `--list` and `--gpus-list`: what can be asked about by name.

use crate::cli::fit::{FitArgs, FitFormat};
use crate::failure::Failure;
use crate::{Answer, output};
use anyhow::Result;
use gapless_fit::{hardware, parameters, read, simulated};
use gapless_trace::Bytes;
use std::fmt::Write;

/// Built-in models whose name contains `filter`: the name first, so that a script can cut it off.
pub(super) fn models(args: &FitArgs, filter: &str) -> Result<Answer> {
    let wanted = filter.to_lowercase();
    let mut text = String::new();
    for name in read::names().into_iter().filter(|name| name.to_lowercase().contains(&wanted)) {
        let count = read::open(name).ok().and_then(|model| parameters::count(model.architecture.as_ref()?));
        let Some(count) = count else { continue };
        let _ = writeln!(
            text,
            "{name:<28} {:>16} parameters {:>10}",
            grouped(count),
            Bytes(2 * count).to_string()
        );
    }
    if text.is_empty() {
        return Err(Failure::new(
            format!("--list {filter}: no built-in model has that in its name"),
            "`gapless fit --list` prints all of them",
        )
        .into());
    }
    show(args, "--list", &text)
}

/// Known GPUs.
pub(super) fn gpus(args: &FitArgs) -> Result<Answer> {
    let mut text = String::new();
    for gpu in hardware::GPUS {
        let memory = Bytes(gpu.memory());
        let error = gapless_fit::account::SIMULATED_ERROR;
        let room = simulated::room(memory, error);
        let _ = writeln!(
            text,
            "{:<14} {:>9}  a simulated run fits up to {:>9}",
            gpu.name,
            memory.to_string(),
            room.to_string()
        );
    }
    show(args, "--gpus-list", &text)
}

fn show(args: &FitArgs, flag: &str, text: &str) -> Result<Answer> {
    if args.format != FitFormat::Text {
        return Err(Failure::new(format!("{flag} is text"), "leave out --format").into());
    }
    output::write_to(args.output.as_deref(), |out| Ok(out.write_all(text.as_bytes())?))?;
    Ok(Answer::Yes)
}

/// A count with a comma after every third digit.
fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let mut out = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::grouped;

    #[test]
    fn digits_come_in_threes() {
        assert_eq!([0, 999, 1000, 8_030_261_248].map(grouped), ["0", "999", "1,000", "8,030,261,248"]);
    }
}
