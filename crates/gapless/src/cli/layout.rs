//! How the texts below the options of `--help` are laid out.
//!
//! In the source, a paragraph has lines of the source's width, and an example has its comment behind it, after two
//! spaces or more. Shown, a paragraph is one line, which clap wraps at the terminal's width, and a comment that does
//! not fit into [`WIDTH`] columns goes below its example. Lines that begin with a space are never joined.

use clap::Command;

/// The columns of a small terminal.
const WIDTH: usize = 80;

/// The command and all below it, with their texts laid out.
pub(super) fn tidy(command: Command) -> Command {
    let command = match command.get_after_help().map(ToString::to_string) {
        Some(text) => command.after_help(lay_out(&text)),
        None => command,
    };
    let command = super::formats::explain(command);
    let verbs: Vec<String> = command.get_subcommands().map(|verb| verb.get_name().to_owned()).collect();
    verbs.iter().fold(command, |command, verb| command.mut_subcommand(verb, tidy))
}

fn lay_out(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut in_paragraph = false;
    for line in text.lines() {
        let is_prose = !line.is_empty() && !line.starts_with(' ');
        if !out.is_empty() {
            out.push(if in_paragraph && is_prose { ' ' } else { '\n' });
        }
        in_paragraph = is_prose;
        match comment(line).filter(|_| line.chars().count() > WIDTH) {
            Some((example, comment)) => {
                out.push_str(example);
                out.push_str("\n      ");
                out.push_str(comment);
            }
            None => out.push_str(line),
        }
    }
    out
}

/// An example, which begins with a space, and its comment.
fn comment(line: &str) -> Option<(&str, &str)> {
    let start = line.len() - line.trim_start().len();
    let gap = start + line[start..].find("  ")?;
    (start > 0).then(|| (&line[..gap], line[gap..].trim_start()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paragraphs_are_joined_and_wide_comments_go_below() {
        let wide = "a comment that is far too long to stand behind its example on a line";
        let text = format!(
            "Examples:\n  gapless x          short\n  gapless y a b     {wide}\n\nOne\ntwo.\n\nThree."
        );
        let shown = format!(
            "Examples:\n  gapless x          short\n  gapless y a b\n      {wide}\n\nOne two.\n\nThree."
        );
        assert_eq!(lay_out(&text), shown);
    }

    #[test]
    fn examples_of_every_command_fit_a_small_terminal() {
        fn check(command: &Command) {
            let text = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            for line in text.lines().filter(|line| line.starts_with(' ')) {
                assert!(line.chars().count() <= WIDTH, "{}: {line}", command.get_name());
            }
            command.get_subcommands().for_each(check);
        }
        check(&super::super::command());
    }

    #[test]
    fn every_command_teaches_by_example() {
        fn check(command: &Command) {
            let text = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let is_shown = !command.is_hide_set() && command.get_name() != "help";
            assert!(!is_shown || text.starts_with("Examples:\n"), "{}: {text:?}", command.get_name());
            command.get_subcommands().for_each(check);
        }
        check(&super::super::command());
    }
}
