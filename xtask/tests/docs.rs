//! Docs stay readable: lines of docs and comments end by column 120, links in the docs lead somewhere, guides are
//! short and tell no history, and the places that CONTRIBUTING.md names exist.

#[path = "support/texts.rs"]
mod texts;

use std::collections::BTreeSet;
use texts::{comment_sign, docstrings, files, read, root};

/// The longest line of prose, in columns.
const WIDTH: usize = 120;

/// The lines of a Markdown file that are prose: no rows of tables, no code, no lone link or picture.
fn prose(text: &str) -> Vec<(usize, &str)> {
    let mut is_code = false;
    let mut lines = Vec::new();
    for (number, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        } else if !is_code && !line.starts_with('|') {
            lines.push((number + 1, line));
        }
    }
    lines
}

fn is_too_long(line: &str) -> bool {
    // Addresses and rows of tables cannot be broken.
    let is_row = line.trim_end().ends_with('|');
    line.chars().count() > WIDTH && !line.contains("https://") && !is_row
}

#[test]
fn lines_of_docs_and_comments_end_by_column_120() {
    let mut wrong = Vec::new();
    for name in files() {
        if name.contains("/dist/") || name.contains("/templates/") || name.starts_with("testdata/") {
            continue;
        }
        if name.ends_with(".md") {
            let text = read(&name);
            let long = prose(&text).into_iter().filter(|(_, line)| is_too_long(line));
            wrong.extend(long.map(|(number, _)| format!("{name}:{number}")));
        } else if let Some(signs) = comment_sign(&name) {
            let text = read(&name);
            let told = if name.ends_with(".py") { docstrings(&text) } else { Vec::new() };
            for (number, line) in text.lines().enumerate() {
                let is_comment = signs.iter().any(|sign| line.trim_start().starts_with(sign))
                    || told.get(number).is_some_and(|is_told| *is_told);
                if is_comment && is_too_long(line) {
                    wrong.push(format!("{name}:{}", number + 1));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} lines are longer than {WIDTH} columns:\n{}", wrong.len(), wrong.join("\n"));
}

/// A line of a comment or of prose: the part before its text, and the text.
fn told<'a>(name: &str, line: &'a str) -> Option<(&'a str, &'a str)> {
    if name.ends_with(".md") {
        let is_prose = !line.trim_start().starts_with(['|', '#', '`', '<']);
        return Some(("", line.trim())).filter(|(_, text)| is_prose && !text.is_empty());
    }
    let sign = ["//! ", "/// ", "// ", "# "].into_iter().find(|sign| line.trim_start().starts_with(sign))?;
    let at = line.len() - line.trim_start().len() + sign.len();
    Some((&line[..at], &line[at..])).filter(|(_, text)| !text.trim().is_empty())
}

/// True if a line is a stub that a mechanical wrap left: short, within a paragraph, after a full line, and the next
/// word would fit behind it.
fn is_stub(name: &str, [before, line, after]: [&str; 3]) -> bool {
    let (Some((sign, text)), Some((_, next))) = (told(name, line), told(name, after)) else { return false };
    let is_same = |line: &str| told(name, line).is_some_and(|(other, _)| other == sign);
    let begins_anew = |text: &str| {
        text.starts_with(['-', '*', '|', '`', '#', '[', ' ']) || text.starts_with(char::is_numeric)
    };
    let ends = text.trim_end().ends_with([':', '.', ';', ',', '|', '{', '}', ')']);
    let next_word = next.split_whitespace().next().unwrap_or_default();
    let fits = line.chars().count() + 1 + next_word.chars().count() <= WIDTH - 35;
    is_same(before) && is_same(after) && fits && !ends && !begins_anew(next) && before.chars().count() > 95
}

#[test]
fn no_paragraph_has_a_line_that_a_wrap_left_short() {
    let mut wrong = Vec::new();
    for name in files() {
        let is_read = name.ends_with(".md") || comment_sign(&name).is_some();
        if !is_read || name.contains("/dist/") || name.starts_with("testdata/") {
            continue;
        }
        let text = read(&name);
        let mut is_code = false;
        let lines: Vec<&str> = text.lines().collect();
        for (at, window) in lines.windows(3).enumerate() {
            if window[0].trim_start_matches(['/', '!', '#', ' ']).starts_with("```") {
                is_code = !is_code;
            }
            if !is_code && is_stub(&name, [window[0], window[1], window[2]]) {
                wrong.push(format!("{name}:{}: {}", at + 2, window[1].trim()));
            }
        }
    }
    assert!(wrong.is_empty(), "wrap these paragraphs again:\n{}", wrong.join("\n"));
}

#[test]
fn a_stub_is_told_from_the_end_of_a_sentence_and_from_a_list() {
    let full = format!("//! {}", "word ".repeat(20));
    let is_stub = |line: &str, after: &str| is_stub("a.rs", [&full, line, after]);
    assert!(is_stub("//! So", "//! a thread that only frees feeds one that only allocates."));
    assert!(!is_stub("//! It ends here.", "//! Another sentence."));
    assert!(!is_stub("//! A list", "//! * has rows."));
    assert!(!is_stub("//! So", "//!"));
}

/// A heading's anchor, as GitHub makes it.
fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect()
}

fn anchors(text: &str) -> BTreeSet<String> {
    let lines = prose(text);
    let headings = lines.iter().filter(|(_, line)| line.starts_with('#'));
    headings.map(|(_, line)| anchor(line.trim_start_matches('#').trim())).collect()
}

/// The targets of `](target)`, `src="target"` and `srcset="target"`.
fn links(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    for (begin, end) in [("](", ')'), ("src=\"", '"'), ("srcset=\"", '"')] {
        for part in text.split(begin).skip(1) {
            found.extend(part.split(end).next());
        }
    }
    found
}

#[test]
fn links_in_the_docs_lead_somewhere() {
    let mut wrong = Vec::new();
    for name in files().iter().filter(|name| name.ends_with(".md")) {
        let text = read(name);
        let folder = root().join(name).parent().expect("a folder").to_owned();
        for link in links(&text) {
            if link.contains("://") || link.contains(['\n', ' ']) || link.is_empty() {
                continue;
            }
            let (path, wanted) = link.split_once('#').unwrap_or((link, ""));
            let target = if path.is_empty() { root().join(name) } else { folder.join(path) };
            let has_anchor = || {
                let text = std::fs::read_to_string(&target).unwrap_or_default();
                wanted.is_empty() || anchors(&text).contains(wanted)
            };
            if !target.exists() || !has_anchor() {
                wrong.push(format!("{name}: {link}"));
            }
        }
    }
    assert!(wrong.is_empty(), "links that lead nowhere:\n{}", wrong.join("\n"));
}

#[test]
fn every_page_of_docs_is_in_the_index() {
    let index = read("docs/README.md");
    for name in files() {
        if let Some(page) = name.strip_prefix("docs/").filter(|page| page.ends_with(".md")) {
            let is_listed = page == "README.md" || index.contains(&format!("]({page})"));
            assert!(is_listed, "docs/README.md does not list {page}");
        }
    }
}

/// The most words of a guide, counted as `wc -w` does.
const GUIDE_WORDS: usize = 1_500;

/// Phrases that tell history. A guide describes the present; `CHANGELOG.md` has the rest.
const HISTORY: &[&str] = &[
    "used to",
    "no longer",
    "any more",
    "at first it",
    "before this",
    "was found",
    "were found by",
    "found by running",
    "errors found",
    "earlier version",
    "earlier versions",
    "where it was",
    "it was before",
    "than before",
    "(it was",
    "(before:",
    "has since",
    "in the past",
    "previously",
    "formerly",
    "originally",
    "turned out",
    "was fixed",
    "were fixed",
    "was changed",
    "were widened",
    "we noticed",
];

/// The guides: the README, and the pages directly in `docs/`.
fn guides() -> Vec<String> {
    let is_guide = |name: &String| {
        let in_docs =
            name.strip_prefix("docs/").is_some_and(|page| page.ends_with(".md") && !page.contains('/'));
        in_docs || name == "README.md"
    };
    files().into_iter().filter(is_guide).collect()
}

#[test]
fn no_guide_is_longer_than_1500_words() {
    let counted = guides().into_iter().map(|name| (read(&name).split_whitespace().count(), name));
    let long = counted.filter(|(words, _)| *words > GUIDE_WORDS);
    let wrong: Vec<String> = long.map(|(words, name)| format!("{name}: {words} words")).collect();
    let help = "move figures to docs/measured/ and workings to docs/internals/, or split the page";
    assert!(wrong.is_empty(), "a guide has at most {GUIDE_WORDS} words; {help}:\n{}", wrong.join("\n"));
}

/// The phrases of history in a page, with the lines that they begin on. A phrase may go over the end of a line.
fn history(text: &str) -> Vec<(usize, &'static str)> {
    let prose = prose(text);
    let mut found = Vec::new();
    let words = |line: &str| line.to_lowercase().split_whitespace().collect::<Vec<_>>().join(" ");
    for (at, (number, line)) in prose.iter().enumerate() {
        let line = words(line);
        let next = prose.get(at + 1).map(|(_, next)| words(next)).unwrap_or_default();
        let joined = format!(" {line} {next} ");
        let begins = |phrase: &&&str| {
            let is_word = |at: usize| !joined[at + phrase.len()..].starts_with(|c: char| c.is_alphanumeric());
            joined.match_indices(**phrase).any(|(at, _)| at <= line.len() && is_word(at))
        };
        found.extend(HISTORY.iter().filter(begins).map(|phrase| (*number, *phrase)));
    }
    found
}

#[test]
fn guides_tell_no_history() {
    let mut wrong = Vec::new();
    for name in guides().iter().filter(|name| *name != "docs/style.md") {
        let text = read(name);
        wrong.extend(history(&text).iter().map(|(line, phrase)| format!("{name}:{line}: \"{phrase}\"")));
    }
    assert!(
        wrong.is_empty(),
        "a guide describes the present; say what is, or move it:\n{}",
        wrong.join("\n")
    );
}

#[test]
fn history_is_found_over_the_end_of_a_line_and_not_within_words() {
    assert_eq!(history("It used\nto wait.\n"), [(1, "used to")]);
    assert_eq!(history("A page\nno longer waits.\n"), [(2, "no longer")]);
    assert_eq!(history("Memory is used together.\n```text\nused to\n```\n"), []);
}

#[test]
fn the_places_that_contributing_names_exist() {
    let text = read("CONTRIBUTING.md");
    let roots =
        ["crates/", "python/", "torch-bench/", "web/", "schema/", "testdata/", "fuzz/", "docs/", "xtask/"];
    let is_path = |word: &&str| !word.contains(' ') && roots.iter().any(|root| word.starts_with(root));
    let mut seen = 0;
    for path in text.split('`').skip(1).step_by(2).filter(is_path) {
        let exists = root().join(path).exists();
        assert!(exists, "CONTRIBUTING.md names {path}, which does not exist");
        seen += 1;
    }
    assert!(seen > 30, "only {seen} places were found: the page or this test has changed its form");
}
