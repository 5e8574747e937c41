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
        ErrorKind::InvalidValue => choice(words, error),
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
    let name = std::iter::once("gapless").chain(verbs(&root, &all[..at])).collect::<Vec<_>>().join(" ");
    if !word.starts_with('-') {
        return Some(Failure::new(
            format!("`{name}`: {word:?} is one argument too many"),
            format!("it takes {}; a name with spaces needs quotes", positionals(command)),
        ));
    }
    // `--html` of `--format html`, `--bf16` of `--precision bf16`.
    let value = if long == "md" { "markdown" } else { long };
    let takes = |arg: &&clap::Arg| {
        arg.get_long().is_some()
            && !arg.is_hide_set()
            && arg.get_possible_values().iter().any(|known| known.matches(value, true))
    };
    let what = format!("`{name}` has no flag {word}");
    let flags: Vec<String> = command
        .get_arguments()
        .filter(takes)
        .filter_map(clap::Arg::get_long)
        .map(|flag| format!("--{flag} {value}"))
        .collect();
    if !flags.is_empty() {
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        return Some(Failure::new(what, format!("did you mean {}?", alternatives(&flags))));
    }
    // Clap's own guess may have no letter in common, and its other advice is `-- --flag`.
    let known: Vec<&str> =
        command.get_arguments().filter(|arg| !arg.is_hide_set()).filter_map(clap::Arg::get_long).collect();
    let nearest: Vec<String> = near(long, known).iter().map(|flag| format!("--{flag}")).collect();
    let help = if nearest.is_empty() {
        format!("`{name} --help` lists its flags")
    } else {
        format!("did you mean {}?", alternatives(&nearest.iter().map(String::as_str).collect::<Vec<_>>()))
    };
    Some(Failure::new(what, help))
}

/// The commands among the words, from the outermost.
fn verbs<'a>(root: &'a Command, words: &[&str]) -> Vec<&'a str> {
    let (mut command, mut found) = (root, Vec::new());
    for word in words {
        if let Some(below) = command.find_subcommand(word) {
            found.push(below.get_name());
            command = below;
        }
    }
    found
}

/// The arguments without a flag, as the help has them.
fn positionals(command: &Command) -> String {
    let names: Vec<String> = command.get_positionals().map(ToString::to_string).collect();
    if names.is_empty() { "no argument".to_owned() } else { names.join(" ") }
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
        "invalid socket address syntax" => Some(Failure::new(
            format!("{flag}: invalid address {given:?}"),
            "use an address and a port, such as 127.0.0.1:9754",
        )),
        _ => None,
    }
}

/// A value that is none of those that the flag takes, or no value.
fn choice(words: &[OsString], error: &clap::Error) -> Option<Failure> {
    let arg = text(error, ContextKind::InvalidArg)?;
    // `--memory <SIZE>`, `--tree[=<BRANCHES>]` or `<FILE>...`.
    let flag = arg.split([' ', '=']).next().unwrap_or(&arg).trim_matches(['<', '>', '.', '[', ']']);
    let given = text(error, ContextKind::InvalidValue).unwrap_or_default();
    let known: Vec<&str> = match error.get(ContextKind::ValidValue) {
        Some(ContextValue::Strings(known)) => known.iter().map(String::as_str).collect(),
        _ => Vec::new(),
    };
    let all = format!("use one of {}", known.join(", "));
    if given.is_empty() {
        if words.iter().any(|word| word.is_empty() || word.to_string_lossy().ends_with('=')) {
            let help = "give a value; is a variable of the shell empty?";
            return Some(Failure::new(format!("{flag}: the value is empty"), help));
        }
        let takes = arg.split(['<', '>']).nth(1).unwrap_or("VALUE");
        let help = if known.is_empty() { format!("write {flag} {takes}") } else { all };
        return Some(Failure::new(format!("{flag} needs a value"), help));
    }
    if known.is_empty() {
        return None;
    }
    let help = match near(&given, known.iter().copied()).as_slice() {
        [] => all,
        found => format!("did you mean {}? {all}", alternatives(found)),
    };
    Some(Failure::new(format!("{flag}: invalid value {given:?}"), help))
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

    /// Every flag of every command that takes one of some words.
    fn choices(command: &Command, above: &str, found: &mut Vec<(String, String, Vec<String>)>) {
        for arg in command.get_arguments().filter(|arg| !arg.is_hide_set() && arg.get_action().takes_values())
        {
            let known: Vec<String> =
                arg.get_possible_values().iter().map(|value| value.get_name().to_owned()).collect();
            if let Some(long) = arg.get_long().filter(|_| !known.is_empty()) {
                found.push((above.to_owned(), long.to_owned(), known));
            }
        }
        for verb in command.get_subcommands() {
            choices(verb, &format!("{above}{} ", verb.get_name()), found);
        }
    }

    #[test]
    fn every_word_of_every_flag_is_found_as_a_flag_in_capitals_and_misspelt() {
        let mut flags = Vec::new();
        choices(&super::super::command(), "", &mut flags);
        assert!(flags.len() > 25, "{}", flags.len());
        for (above, flag, known) in flags.into_iter().filter(|(above, ..)| above != "run ") {
            if let Some(word) = known.last() {
                // In capitals the word is taken, whatever else the line lacks.
                let line = format!("{above}--{flag}={}", word.to_uppercase());
                let words: Vec<OsString> =
                    std::iter::once("gapless").chain(line.split(' ')).map(OsString::from).collect();
                if let Err(super::super::Misread::Failure(failure)) = super::super::parse(&words) {
                    assert!(!failure.what.contains("invalid value"), "{line}: {}", failure.what);
                }
            }
            let strange = told(&format!("{above}--{flag}=qqqqqqqqqq"));
            assert_eq!(strange.what, format!("--{flag}: invalid value \"qqqqqqqqqq\""));
            assert!(known.iter().all(|word| strange.help.contains(word.as_str())), "{}", strange.help);
            let empty = told(&format!("{above}--{flag}="));
            assert_eq!(empty.what, format!("--{flag}: the value is empty"));
        }
        for (line, help) in [
            ("report a --html", "did you mean --format html?"),
            ("report a --json", "did you mean --format json?"),
            ("report a --md", "did you mean --format markdown?"),
            ("check a --sarif", "did you mean --format sarif?"),
            ("fit gpt2 --bf16", "did you mean --precision bf16?"),
            ("fit gpt2 --adafactor", "did you mean --optimizer adafactor?"),
            ("fit gpt2 --vllm", "--engine vllm"),
            ("export a --parquet", "did you mean --to parquet?"),
            ("fit gpt2 --dim batch=8", "`gapless fit --help` lists its flags"),
            ("fit gpt2 --bacth 8", "did you mean --batch"),
            ("report a --zzz", "`gapless report --help` lists its flags"),
            ("fleet sim --zzz", "`gapless fleet sim --help` lists its flags"),
            ("fit gpt2 --optimizer adamv8bit", "did you mean adamw8bit"),
            ("metrics --listen 9754", "use an address and a port, such as 127.0.0.1:9754"),
        ] {
            assert!(told(line).help.contains(help), "{line}: {}", told(line).help);
        }
        assert_eq!(told("fit gpt2 --optimizer").what, "--optimizer needs a value");
        let many = told("fit llama 3 8b");
        assert_eq!(many.what, "`gapless fit`: \"3\" is one argument too many");
        assert!(many.help.contains("MODEL") && many.help.contains("quotes"), "{}", many.help);
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
