//! `gapless FILE` means `gapless report FILE`: the verb is left out if the first argument is a file.
//!
//! A verb wins over a file of the same name. For a word that is neither, the message names the nearest verb. A name
//! that can only be a file's gets a message that the file does not exist.

use crate::cli::Args;
use crate::failure::Failure;
use crate::near::{alternatives, near};
use clap::CommandFactory;
use clap::error::ErrorKind;
use std::ffi::OsString;
use std::path::Path;

/// The arguments, with `report` before a first argument that is a file or `-`.
pub(crate) fn expand(mut args: Vec<OsString>) -> Vec<OsString> {
    // `gapless help --help` means `gapless help`.
    if let [_, help, flag] = args.as_slice()
        && help == "help"
        && (flag == "-h" || flag == "--help")
    {
        args.pop();
    }
    if let Some(at) = first(&args)
        && !is_verb(&args[at])
        && (args[at] == "-" || Path::new(&args[at]).exists())
    {
        args.insert(at, "report".into());
    }
    args
}

/// The failure for a first argument that is neither a verb nor a file; `None` if clap's own message is better.
pub(crate) fn missing_file(args: &[OsString], error: &clap::Error) -> Option<Failure> {
    if error.kind() != ErrorKind::InvalidSubcommand {
        return None;
    }
    let name = args[first(args)?].to_string_lossy().into_owned();
    let is_path = name.contains(['/', '.', '\\']);
    let command = Args::command();
    let verbs: Vec<&str> = command.get_subcommands().map(clap::Command::get_name).collect();
    if name.eq_ignore_ascii_case("version") {
        return Some(Failure::new(format!("there is no command {name:?}"), "write gapless --version"));
    }
    let nearest = near(&name, verbs.iter().copied());
    if !is_path && !nearest.is_empty() {
        return Some(Failure::new(
            format!("there is no command {name:?}"),
            format!("did you mean {}? `gapless help` lists all commands", alternatives(&nearest)),
        ));
    }
    Some(Failure::new(
        format!("{name:?}: there is no such file, and no command of that name"),
        format!("check the path, or use one of the commands: {}", verbs.join(", ")),
    ))
}

/// The position of the verb: the first argument that is not a flag of the whole program.
pub(crate) fn first(args: &[OsString]) -> Option<usize> {
    let mut at = 1;
    while let Some(arg) = args.get(at).and_then(|arg| arg.to_str().or(Some("name"))) {
        match arg {
            "--color" => at += 2,
            _ if arg.starts_with("--color=") => at += 1,
            "-" => return Some(at),
            _ if arg.starts_with('-') => return None,
            _ => return Some(at),
        }
    }
    None
}

fn is_verb(arg: &OsString) -> bool {
    let named = |command: &clap::Command| {
        arg == command.get_name() || command.get_all_aliases().any(|alias| arg == alias)
    };
    arg == "help" || Args::command().get_subcommands().any(named)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expanded(line: &str) -> String {
        let args = std::iter::once("gapless").chain(line.split(' ')).map(OsString::from).collect();
        let args: Vec<String> =
            expand(args).iter().skip(1).map(|arg| arg.to_string_lossy().into_owned()).collect();
        args.join(" ")
    }

    #[test]
    fn a_file_is_reported_on_and_a_verb_stays_a_verb() {
        assert_eq!(expanded("Cargo.toml --top 3"), "report Cargo.toml --top 3");
        assert_eq!(expanded("- --format json"), "report - --format json");
        assert_eq!(expanded("--color never Cargo.toml"), "--color never report Cargo.toml");
        assert_eq!(expanded("--color=never Cargo.toml"), "--color=never report Cargo.toml");
        for same in
            ["report Cargo.toml", "help report", "--help", "--version", "reprot Cargo.toml", "no.pickle"]
        {
            assert_eq!(expanded(same), same);
        }
    }

    #[test]
    fn a_missing_file_is_told_and_a_misspelt_verb_is_led_to_the_nearest() {
        use clap::Parser;
        let told = |name: &str| {
            let args = vec![OsString::from("gapless"), name.into()];
            missing_file(&args, &Args::try_parse_from(&args).expect_err("no such verb"))
        };
        for (name, verb) in [("reprot", "report"), ("OOM", "oom"), ("Fit", "fit"), ("fitt", "fit")] {
            let failure = told(name).expect(name);
            assert!(failure.what.contains("no command"), "{}", failure.what);
            assert!(failure.help.starts_with(&format!("did you mean {verb}")), "{name}: {}", failure.help);
        }
        assert_eq!(told("version").expect("told").help, "write gapless --version");
        for name in ["report.pickle", "runs/step", "zzzzzz"] {
            let failure = told(name).expect(name);
            assert!(failure.what.contains("no such file") && failure.help.contains("report, diff"), "{name}");
        }
    }
}
