//! The format that the name of the output file asks for: `-o page.html` needs no `--format html`.
//!
//! Works on the command's definition, so that it holds for every command with `--format` and `-o`.

use crate::failure::Failure;
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command};
use std::path::{Path, PathBuf};

/// Endings of file names, and the format that each asks for.
const ENDINGS: [(&str, &str); 13] = [
    ("html", "html"),
    ("htm", "html"),
    ("json", "json"),
    ("csv", "csv"),
    ("md", "markdown"),
    ("markdown", "markdown"),
    ("svg", "svg"),
    ("sarif", "sarif"),
    ("xml", "junit"),
    ("txt", "text"),
    ("text", "text"),
    ("log", "text"),
    ("prom", "prometheus"),
];

/// Endings of formats that no command with `--format` writes: text in such a file would not open.
const OTHERS: [&str; 18] = [
    "pdf", "png", "jpg", "jpeg", "gif", "webp", "doc", "docx", "xls", "xlsx", "yaml", "yml", "parquet",
    "pickle", "pkl", "gz", "zst", "zip",
];

/// Formats that are JSON too: a file of theirs may well be called `.json`.
const JSON: [&str; 2] = ["sarif", "gitlab"];

/// What a command's name for its output says about the format.
pub(super) enum Asked {
    Nothing,
    /// This format, for the command with these names below `gapless`.
    Format(Vec<String>, &'static str),
    /// `--format` wins, and this is what to tell.
    Contradiction(String),
    /// The command has no such format.
    Unknown(Failure),
}

/// Whether the format of `command` can follow from the name of its output. The output of `weights quantize` is a model,
/// and its `--format` is for what it prints.
fn follows(command: &Command) -> Option<&Arg> {
    let named = |name: &str| command.get_arguments().find(|arg| arg.get_id() == name);
    named("output").filter(|_| command.get_name() != "quantize")?;
    named("format")
}

/// Says in the help of `--format` how it is chosen.
pub(super) fn explain(command: Command) -> Command {
    if follows(&command).is_none() {
        return command;
    }
    command.mut_arg("format", |arg| {
        arg.help("The output format [default: by the ending of the -o file, else text]")
            .hide_default_value(true)
    })
}

/// What the words of a command line ask for.
pub(super) fn asked(mut command: &Command, mut matches: &ArgMatches) -> Asked {
    let mut names = Vec::new();
    while let Some((name, below)) = matches.subcommand() {
        let Some(found) = command.find_subcommand(name) else { return Asked::Nothing };
        (command, matches) = (found, below);
        names.push(name.to_owned());
    }
    let Some(format) = follows(command) else { return Asked::Nothing };
    let Ok(Some(path)) = matches.try_get_one::<PathBuf>("output") else { return Asked::Nothing };
    let Some(wanted) = of(path) else { return Asked::Nothing };
    let known: Vec<String> =
        format.get_possible_values().iter().map(|value| value.get_name().to_owned()).collect();
    let given = matches
        .get_raw("format")
        .and_then(|mut raw| raw.next())
        .map(|raw| raw.to_string_lossy().to_ascii_lowercase());
    if matches.value_source("format") == Some(ValueSource::CommandLine) {
        let given = given.unwrap_or_default();
        let is_json = wanted == "json" && JSON.contains(&given.as_str());
        let is_same = given == wanted || (given == "md" && wanted == "markdown");
        if is_same || is_json {
            return Asked::Nothing;
        }
        return Asked::Contradiction(format!(
            "{} gets {given}, as --format says, and its name asks for {wanted}",
            path.display()
        ));
    }
    if known.iter().any(|name| name == wanted) {
        return Asked::Format(names, wanted);
    }
    Asked::Unknown(Failure::new(
        format!(
            "cannot write {}: its name asks for {wanted}, and `gapless {}` writes {}",
            path.display(),
            names.join(" "),
            known.join(", ")
        ),
        "use another ending, or say the format with --format",
    ))
}

/// The format that the ending of a file's name asks for.
fn of(path: &Path) -> Option<&'static str> {
    let ending = path.extension()?.to_str()?.to_ascii_lowercase();
    let found = ENDINGS.iter().find(|(known, _)| *known == ending).map(|(_, format)| *format);
    found.or_else(|| OTHERS.into_iter().find(|other| *other == ending))
}

/// The same command, with `format` for the one below these names where none is given.
pub(super) fn with_default(command: Command, names: &[String], format: &'static str) -> Command {
    match names.split_first() {
        None => command.mut_arg("format", |arg| arg.default_value(format)),
        Some((name, below)) => command.mut_subcommand(name, |verb| with_default(verb, below, format)),
    }
}
