//! Comments say why, with a subject: none says that no one acts or that some person does, and few begin with "What".

#[path = "support/texts.rs"]
mod texts;

use texts::{comment_sign, docstrings, files, read};

/// Comments of shipped and tested code that begin with "What", at most.
const WHAT_HEADS: usize = 100;

/// The text of a comment's line; `None` if it is no comment.
fn comment<'a>(name: &str, line: &'a str, is_docstring: bool) -> Option<&'a str> {
    let line = line.trim();
    if is_docstring {
        return Some(line.trim_start_matches("\"\"\""));
    }
    let sign = comment_sign(name)?.iter().find(|sign| line.starts_with(**sign))?;
    Some(line[sign.len()..].trim_start_matches(['/', '!', '*', ' ']))
}

/// Each first line of a comment (true) and each other line of one, with its place.
fn comments(name: &str, text: &str) -> Vec<(usize, bool, String)> {
    let told = if name.ends_with(".py") { docstrings(text) } else { Vec::new() };
    let (mut found, mut was_comment) = (Vec::new(), false);
    for (number, line) in text.lines().enumerate() {
        let said = comment(name, line, told.get(number).is_some_and(|is_told| *is_told));
        if let Some(said) = said {
            found.push((number + 1, !was_comment, said.to_owned()));
        }
        was_comment = said.is_some();
    }
    found
}

fn says(text: &str, word: &str) -> bool {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').any(|found| found.eq_ignore_ascii_case(word))
}

fn is_source(name: &str) -> bool {
    !name.contains("/dist/") && !name.starts_with("testdata/") && comment_sign(name).is_some()
}

#[test]
fn comments_name_who_acts() {
    let mut wrong = Vec::new();
    let mut heads = 0;
    for name in files().into_iter().filter(|name| is_source(name)) {
        for (number, is_first, text) in comments(&name, &read(&name)) {
            if says(&text, "nobody") || says(&text, "somebody") {
                wrong.push(format!("{name}:{number}: {text}"));
            }
            heads += usize::from(is_first && text.starts_with("What "));
        }
    }
    println!("nobody and somebody: {}; comments that begin with What: {heads}", wrong.len());
    assert!(
        wrong.is_empty(),
        "name who it is (the program, the driver, another thread):\n{}",
        wrong.join("\n")
    );
    assert!(
        heads <= WHAT_HEADS,
        "{heads} comments begin with What: begin with the noun (at most {WHAT_HEADS})"
    );
}

#[test]
fn comments_are_told_from_code_and_text() {
    let rust = "//! What is here.\n//! Nobody knows.\nlet nobody = 1;\n/// A thing of somebody.\nfn f() {}\n";
    let found = comments("a.rs", rust);
    let firsts: Vec<bool> = found.iter().map(|(_, is_first, _)| *is_first).collect();
    assert_eq!(firsts, [true, false, true]);
    assert_eq!(found.iter().filter(|(.., text)| says(text, "nobody") || says(text, "somebody")).count(), 2);
    let python = "def f():\n    \"\"\"What it is.\"\"\"\n    x = 'nobody'  # fine\n    # Somebody\n";
    let found: Vec<String> = comments("a.py", python).into_iter().map(|(.., text)| text).collect();
    assert_eq!(found, ["What it is.\"\"\"", "Somebody"]);
    assert!(!says("an anybody_else", "nobody"));
}
