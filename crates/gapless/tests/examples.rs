//! Examples in the README and the docs are true: each `$ gapless ...` whose input is in the repository is run, and
//! prints the lines that the page shows, in their order.
//!
//! A line `...` stands for any lines, and `...` within a line for any text. What an example needs beyond the repository
//! is in [`ELSEWHERE`], with the reason.

mod support;

use std::collections::BTreeMap;
use std::path::Path;
use support::{repo, run_in};

/// Examples that cannot run here: how they begin, and why.
const ELSEWHERE: &[(&str, &str)] = &[
    ("gapless run ", "needs the Python package, and a GPU or a program of the reader"),
    ("gapless estimate ", "needs torch"),
    ("gapless keep ", "needs a GPU"),
    ("gapless fleet agent ", "shows the GPUs of a machine"),
    ("gapless fleet place ", "reads the lines below it"),
    ("gapless fit ./hubert ", "a folder of the reader"),
    ("gapless weights ", "a model of the reader"),
    ("gapless report traces", "a run that `cargo xtask bench ranks` makes"),
    ("gapless report run.gtrace", "a recording of the reader"),
];

/// Files that examples name as the reader's own, and what stands for them: by page, as they are read.
const STAND_INS: &[(&str, &str, &str)] = &[
    ("README.md", "gapless report snapshot.pickle", "gpt2_train_stacks"),
    ("README.md", "gapless replay snapshot.pickle", "llama1b_varlen_ckpt"),
    ("docs/style.md", "gapless check run.pickle", "gpt2_train"),
];

/// A command and the lines shown below it.
struct Example {
    line: usize,
    command: String,
    shown: Vec<String>,
}

/// The commands in the code blocks of a page. A backslash at its end continues a command on the next line.
fn examples(page: &str) -> Vec<Example> {
    let mut found: Vec<Example> = Vec::new();
    let (mut in_block, mut in_command, mut is_shown) = (false, false, false);
    for (number, line) in page.lines().enumerate() {
        if line.starts_with("```") {
            (in_block, in_command, is_shown) = (!in_block, false, false);
        } else if let Some(command) = line.strip_prefix("$ ").filter(|_| in_block) {
            found.push(Example { line: number + 1, command: command.to_owned(), shown: Vec::new() });
            (in_command, is_shown) = (command.ends_with('\\'), true);
        } else if let Some(last) = found.last_mut().filter(|_| in_command) {
            last.command = format!("{} {}", last.command.trim_end_matches('\\').trim_end(), line.trim());
            in_command = line.ends_with('\\');
        } else if let Some(last) = found.last_mut().filter(|_| is_shown) {
            last.shown.push(line.to_owned());
        }
    }
    found
}

/// Whether `line` is what `shown` says, in which `...` stands for any text. Figures are aligned to the right: with more
/// digits they have fewer spaces in front.
fn is_same(shown: &str, line: &str) -> bool {
    let mut shown = shown.to_owned();
    while shown.contains("  ...") {
        shown = shown.replace("  ...", " ...");
    }
    let mut parts = shown.split("...");
    let Some(mut rest) = line.strip_prefix(parts.next().unwrap_or_default()) else { return false };
    let parts: Vec<&str> = parts.collect();
    for (index, part) in parts.iter().enumerate() {
        if index + 1 == parts.len() {
            return rest.ends_with(part);
        }
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.is_empty()
}

/// Runs the example in `folder`, and gives the first line shown that it does not print.
fn missing(page: &str, example: &Example, folder: &Path) -> Option<String> {
    let command = example.command.split("  #").next().unwrap_or_default().trim();
    let command = command.strip_suffix("; echo $?").unwrap_or(command);
    for (_, _, trace) in STAND_INS.iter().filter(|(on, start, _)| *on == page && command.starts_with(start)) {
        let name = command.split(' ').nth(2).expect("a file");
        std::fs::copy(repo(&format!("testdata/traces/{trace}.pickle.gz")), folder.join(name))
            .expect("copied");
    }
    let words: Vec<String> = command.split_whitespace().skip(1).map(in_repository).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let done = run_in(folder, &words, None);
    let printed = format!("{}{}{}\n", done.out, done.err, done.code);
    let mut lines = printed.lines();
    let shown = example.shown.iter().filter(|line| !line.is_empty() && *line != "...");
    let mut lost = shown.filter(|shown| !lines.any(|line| is_same(shown.trim_end(), line.trim_end())));
    lost.next().map(|line| format!("{page}:{}: {command}\n  does not print: {line}\n{printed}", example.line))
}

fn in_repository(word: &str) -> String {
    match word.starts_with("testdata/") {
        true => repo(word).display().to_string(),
        false => word.to_owned(),
    }
}

fn pages() -> BTreeMap<String, String> {
    let docs =
        std::fs::read_dir(repo("docs")).expect("docs").map(|entry| entry.expect("an entry").file_name());
    let names = docs.map(|name| format!("docs/{}", name.to_string_lossy()));
    let names = names.filter(|name| name.ends_with(".md")).chain(["README.md".to_owned()]);
    names.map(|name| (name.clone(), std::fs::read_to_string(repo(&name)).expect("a page"))).collect()
}

#[test]
fn examples_print_what_the_pages_show() {
    let mut run = 0;
    let mut wrong = Vec::new();
    for (page, text) in pages() {
        let folder = tempfile::tempdir().expect("a folder");
        // Files that examples of this page wrote.
        let mut own: Vec<String> = Vec::new();
        for example in examples(&text) {
            let command = example.command.as_str();
            if let Some(name) = command.strip_prefix("cat ") {
                std::fs::write(folder.path().join(name), example.shown.join("\n")).expect("written");
                continue;
            }
            let is_own = own.iter().any(|file| command.contains(file.as_str()));
            let elsewhere = ELSEWHERE.iter().any(|(start, _)| command.starts_with(start));
            if !command.starts_with("gapless ") || (elsewhere && !is_own) {
                continue;
            }
            run += 1;
            let written = command.split(" -o ").nth(1).and_then(|rest| rest.split_whitespace().next());
            own.extend(written.map(str::to_owned));
            wrong.extend(missing(&page, &example, folder.path()));
        }
    }
    assert!(run >= 14, "only {run} examples were found");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn dots_stand_for_any_text() {
    assert!(is_same("a ... c", "a b c") && is_same("a ...", "a b") && is_same("a", "a"));
    assert!(is_same("a     ...", "a 1,000") && is_same("a     ...", "a     10") && !is_same("a   ...", "a"));
    assert!(!is_same("a ... c", "a b") && !is_same("a", "a b") && !is_same("... c", "c d"));
}
