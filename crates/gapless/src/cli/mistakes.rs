//! Mistakes on the command line that clap tells in words of its own: a number below 0 reads as a flag there, and a
//! number with a letter as a digit that was not found.

use crate::failure::Failure;
use crate::near::{alternatives, near};
use crate::shortcut;
use clap::Command;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use std::error::Error;
use std::ffi::OsString;

/// Better words for a mistake; `None` where clap's own are good.
pub(super) fn words_for(words: &[OsString], error: &clap::Error) -> Option<Failure> {
    match error.kind() {
        ErrorKind::InvalidSubcommand => subcommand(words, error),
        ErrorKind::UnknownArgument => unknown(words, error),
        ErrorKind::ValueValidation => value(error),
        _ => None,
    }
}

fn text(error: &clap::Error, kind: ContextKind) -> Option<String> {
    match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        _ => None,
    }
}

/// No such command: after `gapless`, after `gapless help`, or after a command that has commands.
fn subcommand(words: &[OsString], error: &clap::Error) -> Option<Failure> {
    let wrong = text(error, ContextKind::InvalidSubcommand)?;
    let first = shortcut::first(words)?;
    let at = words.iter().rposition(|word| *word == *wrong)?;
    if at == first {
        return shortcut::missing_file(words, error);
    }
    let root = super::command();
    let above: Vec<&str> =
        words[first..at].iter().filter_map(|word| word.to_str()).filter(|word| *word != "help").collect();
    let command = walk(&root, &above);
    let names: Vec<&str> = command.get_subcommands().map(Command::get_name).collect();
    let what = match above.as_slice() {
        [] => format!("there is no command {wrong:?}"),
        above => format!("`gapless {}` has no command {wrong:?}", above.join(" ")),
    };
    let help = match (near(&wrong, names.iter().copied()).as_slice(), names.as_slice()) {
        ([], []) => format!("`gapless help {}` shows its flags", above.join(" ")),
        ([], names) => format!("the commands are {}", names.join(", ")),
        (found, _) => format!("did you mean {}? `gapless help` lists all commands", alternatives(found)),
    };
    Some(Failure::new(what, help))
}

/// The deepest command that the words name.
fn walk<'a>(root: &'a Command, words: &[&str]) -> &'a Command {
    let mut command = root;
    for word in words {
        if let Some(below) = command.find_subcommand(word) {
            command = below;
        }
    }
    command
}

fn unknown(words: &[OsString], error: &clap::Error) -> Option<Failure> {
    let wrong = text(error, ContextKind::InvalidArg)?;
    let all: Vec<&str> = words.iter().filter_map(|word| word.to_str()).collect();
    let root = super::command();
    let at = all.iter().position(|word| word.starts_with(&wrong))?;
    let command = walk(&root, &all[..at]);
    if let Some(failure) = below_zero(command, &all, at) {
        return Some(failure);
    }
    let word = all[at].split('=').next().unwrap_or_default();
    // `-batch`: clap reads letters of its own.
    let long = word.trim_start_matches('-');
    let has = |command: &Command| {
        command.get_arguments().any(|arg| {
            arg.get_long() == Some(long)
                || arg.get_visible_aliases().is_some_and(|aliases| aliases.contains(&long))
        })
    };
    if !word.starts_with("--") && long.len() > 1 && (has(command) || matches!(long, "help" | "version")) {
        return Some(Failure::new(
            format!("{word}: flags of more than one letter begin with two dashes"),
            format!("write --{long}"),
        ));
    }
    // `--max-peak` of `--max-peak-reserved` and its like: clap's guess is the flag that is nearest by letters.
    if let Some(beginning) = word.strip_prefix("--").filter(|beginning| beginning.len() > 2) {
        let flags: Vec<String> = command
            .get_arguments()
            .filter(|arg| !arg.is_hide_set())
            .filter_map(clap::Arg::get_long)
            .filter(|flag| flag.starts_with(beginning))
            .map(|flag| format!("--{flag}"))
            .collect();
        if !flags.is_empty() {
            let what = format!("`gapless {}` has no flag {word}", command.get_name());
            return Some(Failure::new(
                what,
                format!(
                    "did you mean {}?",
                    alternatives(&flags.iter().map(String::as_str).collect::<Vec<_>>())
                ),
            ));
        }
    }
    // A flag of a command, before the command.
    let verb = all[at..].iter().find_map(|word| root.find_subcommand(word));
    if let Some(verb) = verb.filter(|verb| std::ptr::eq(command, &raw const root) && has(verb)) {
        let name = verb.get_name();
        return Some(Failure::new(
            format!("{word} is a flag of `gapless {name}`, and stands before that command"),
            format!("write it behind: gapless {name} ... {word} ..."),
        ));
    }
    None
}

/// A value that begins with a dash, behind a flag that takes a number.
fn below_zero(command: &Command, all: &[&str], at: usize) -> Option<Failure> {
    let given = all[at];
    let is_number = given.strip_prefix('-')?.starts_with(|c: char| c.is_ascii_digit() || c == '.');
    let flag = *all.get(at.checked_sub(1)?)?;
    let name = flag.strip_prefix("--")?;
    let arg = command.get_arguments().find(|arg| arg.get_long() == Some(name))?;
    let takes = arg.get_value_names()?.first()?.to_string();
    if !is_number || !arg.get_action().takes_values() {
        return None;
    }
    Some(Failure::new(format!("{flag}: invalid value {given:?}: it is below 0"), example(&takes)))
}

fn example(takes: &str) -> String {
    match takes {
        "SIZE" => "use a size, such as 24GiB",
        "SHARE" => "use a share, such as 0.15 or 15%",
        "SECONDS" => "use a number of seconds",
        "TIME" => "use a number and a unit, such as 500ms, 10s or 2min",
        _ => "use a whole number, 0 or more",
    }
    .to_owned()
}

/// A value that is no number, or one that the flag does not take.
fn value(error: &clap::Error) -> Option<Failure> {
    let arg = text(error, ContextKind::InvalidArg)?;
    let given = text(error, ContextKind::InvalidValue)?;
    let flag = arg.split(' ').next().unwrap_or(&arg);
    let why = error.source()?.to_string();
    let takes = arg.split(['<', '>']).nth(1).unwrap_or("N");
    if given.parse::<f64>().is_ok_and(|number| number < 0.0) {
        return Some(Failure::new(format!("{flag}: invalid value {given:?}: it is below 0"), example(takes)));
    }
    let what = format!("{flag}: invalid number {given:?}");
    if let Some((_, range)) = why.split_once(" is not in ") {
        return Some(Failure::new(format!("{flag}: {given} is out of range"), in_words(range)));
    }
    match why.as_str() {
        "invalid digit found in string" | "cannot parse integer from empty string" => {
            Some(Failure::new(what, "use a whole number, without a unit"))
        }
        "invalid float literal" | "cannot parse float from empty string" => {
            Some(Failure::new(what, "use a number, such as 0.5 or 10"))
        }
        "number too large to fit in target type" => {
            Some(Failure::new(format!("{flag}: {given} is too large"), "use a smaller number"))
        }
        _ => None,
    }
}

/// `1..=64` and `0..64` as people say them.
fn in_words(range: &str) -> String {
    let Some((from, to)) = range.split_once("..") else { return format!("use a number in {range}") };
    let last = match to.strip_prefix('=') {
        Some(last) => last.parse::<u64>().ok(),
        None => to.parse::<u64>().ok().map(|end| end.saturating_sub(1)),
    };
    match last {
        Some(last) if last < u64::from(u32::MAX) => format!("use {from} to {last}"),
        _ => format!("use {from} or more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(line: &str) -> Failure {
        let words: Vec<OsString> =
            std::iter::once("gapless").chain(line.split(' ')).map(OsString::from).collect();
        match super::super::parse(&words) {
            Err(super::super::Misread::Failure(failure)) => failure,
            Err(super::super::Misread::Told(error)) => panic!("{line}: {error}"),
            Ok(_) => panic!("{line} is fine"),
        }
    }

    /// Every flag of every command that takes a number, as the words before it.
    fn numeric(command: &Command, above: &str, found: &mut Vec<(String, String)>) {
        for arg in command.get_arguments() {
            let Some(takes) = arg.get_value_names().and_then(|names| names.first()) else { continue };
            let is_number =
                ["N", "M", "TOKENS", "PIXELS", "SIZE", "SECONDS", "SHARE", "PID", "MOVES", "LEVEL"];
            if let Some(long) = arg.get_long().filter(|_| is_number.contains(&takes.as_str()))
                && !arg.is_allow_negative_numbers_set()
            {
                found.push((above.to_owned(), long.to_owned()));
            }
        }
        for verb in command.get_subcommands() {
            numeric(verb, &format!("{above}{} ", verb.get_name()), found);
        }
    }

    #[test]
    fn every_numeric_flag_tells_a_number_below_zero() {
        let mut flags = Vec::new();
        numeric(&super::super::command(), "", &mut flags);
        assert!(flags.len() > 60, "{}", flags.len());
        // `gapless run` has a command of its own behind its flags, and reads such a number as the size.
        for (above, flag) in flags.into_iter().filter(|(above, _)| above != "run ") {
            for given in ["-1", "-0.5", "-5GiB"] {
                let failure = told(&format!("{above}--{flag} {given}"));
                assert!(
                    failure.what.contains(&format!("--{flag}: invalid value"))
                        && failure.what.contains(given),
                    "{above}--{flag} {given}: {}",
                    failure.what
                );
                assert!(failure.help.starts_with("use "), "{}", failure.help);
            }
        }
    }

    #[test]
    fn numbers_that_are_none_are_told_as_numbers() {
        assert_eq!(told("fit gpt2 --batch eight").what, "--batch: invalid number \"eight\"");
        assert_eq!(told("fit gpt2 --batch=-1").what, "--batch: invalid value \"-1\": it is below 0");
        assert_eq!(
            told("fit gpt2 --batch 99999999999999999999").what,
            "--batch: 99999999999999999999 is too large"
        );
        assert_eq!(told("fit gpt2 --utilization half").help, "use a number, such as 0.5 or 10");
        assert_eq!(told("estimate t.py --nproc 65").help, "use 1 to 64");
        assert_eq!(told("keep a.safetensors --device 64").help, "use 0 to 63");
        assert_eq!(told("estimate t.py --steps 0").help, "use 1 or more");
    }

    #[test]
    fn commands_and_flags_in_the_wrong_place_are_led_to_the_right_one() {
        assert_eq!(told("help nosuch").what, "there is no command \"nosuch\"");
        assert!(told("help nosuch").help.contains("report, diff"));
        assert!(told("help reprot").help.contains("did you mean report?"));
        assert!(told("fleet simm").help.contains("did you mean sim?"));
        assert_eq!(told("fleet nosuch").what, "`gapless fleet` has no command \"nosuch\"");
        assert!(told("help fleet nosuch").help.contains("check-log"));
        assert_eq!(told("fit gpt2 -batch 4").help, "write --batch");
        assert!(told("--batch 4 fit gpt2").what.contains("a flag of `gapless fit`"));
    }
}
