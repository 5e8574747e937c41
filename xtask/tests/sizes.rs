//! Shipped files have at most 600 lines, and their functions at most 100: a longer one has a second purpose.

#[path = "support/texts.rs"]
#[allow(dead_code)] // its words on comments are for other tests
mod texts;

use texts::{files, read};

/// Lines of a file, and of a function, at most.
const FILE: usize = 600;
const FUNCTION: usize = 100;

/// Files that are longer, each with the reason why it stays. Rows go; adding one is a decision.
const LONG_FILES: &[(&str, &str)] = &[];

/// Functions that are longer: their file, their name, and the reason why they stay.
const LONG_FUNCTIONS: &[(&str, &str, &str)] = &[
    ("crates/gapless-checker/src/run.rs", "step", "one arm for each operation of a program"),
    ("crates/gapless-fleet/src/check.rs", "check", "one condition after the other"),
    ("python/gapless/_session.py", "enable", "its keywords and what each means are its documentation"),
];

/// Files that users run or import: no tests, benches and examples.
fn is_shipped(name: &str) -> bool {
    let is_test = name.contains("/tests/") || name.ends_with("/tests.rs") || name.contains("/dist/");
    let is_code = [".rs", ".ts", ".py", ".c", ".cu"].iter().any(|ending| name.ends_with(ending));
    let (top, rest) = name.split_once('/').unwrap_or(("", name));
    let is_ours = match top {
        "crates" => rest.contains("/src/"),
        "web" => rest.starts_with("src/"),
        "python" => rest.starts_with("gapless/"),
        "card" => true,
        _ => false,
    };
    is_ours && is_code && !is_test
}

/// The name of the function whose first line this is.
fn head(name: &str, line: &str) -> Option<String> {
    let line = line.trim();
    let is_lead = |before: &str, known: &[&str]| before.split_whitespace().all(|word| known.contains(&word));
    let rest = match name.rsplit_once('.')?.1 {
        "rs" => {
            const LEAD: &[&str] = &[
                "pub",
                "pub(crate)",
                "pub(super)",
                "const",
                "async",
                "unsafe",
                "extern",
                "\"C\"",
                "default",
            ];
            let (before, rest) = line.split_once("fn ")?;
            is_lead(before, LEAD).then_some(rest)?
        }
        "py" => {
            let (before, rest) = line.split_once("def ")?;
            is_lead(before, &["async"]).then_some(rest)?
        }
        "ts" => {
            let (before, _) = line.split_once('(').filter(|_| line.ends_with('{'))?;
            let found = before.split_whitespace().last()?;
            Some(found).filter(|found| !["if", "for", "while", "switch", "catch"].contains(found))?
        }
        _ => return None,
    };
    Some(rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect())
        .filter(|found: &String| !found.is_empty())
}

fn depth(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

/// The functions of a file, each with its lines: up to the closing bracket below its head, as formatters put it, or in
/// Python to the last line that is deeper than the head.
fn functions(name: &str, text: &str) -> Vec<(String, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let Some(function) = head(name, line) else { continue };
        let (deep, rest) = (depth(line), &lines[at + 1..]);
        let length = if name.ends_with(".py") {
            let is_inner = |line: &str| depth(line) > deep || line.trim_start().starts_with(')');
            let after = rest.iter().position(|line| !line.trim().is_empty() && !is_inner(line));
            let body = &rest[..after.unwrap_or(rest.len())];
            1 + body.iter().rposition(|line| !line.trim().is_empty()).map_or(0, |last| last + 1)
        } else if line.ends_with(['}', ';']) {
            1
        } else {
            let ends = |line: &&str| {
                let text = line.trim_start();
                depth(line) == deep && (text.starts_with('}') || text.starts_with(')') && text.ends_with(';'))
            };
            2 + rest.iter().position(ends).unwrap_or(rest.len())
        };
        found.push((function, length));
    }
    found
}

#[test]
fn shipped_files_and_functions_are_short() {
    let (mut long_files, mut long_functions) = (Vec::new(), Vec::new());
    for name in files().into_iter().filter(|name| is_shipped(name)) {
        let text = read(&name);
        let lines = text.lines().count();
        if lines > FILE {
            long_files.push((name.clone(), lines));
        }
        let long = functions(&name, &text).into_iter().filter(|(_, lines)| *lines > FUNCTION);
        long_functions.extend(long.map(|(function, lines)| (name.clone(), function, lines)));
    }
    println!(
        "files above {FILE} lines: {}; functions above {FUNCTION}: {}",
        long_files.len(),
        long_functions.len()
    );
    let is_excused = |file: &str| LONG_FILES.iter().any(|(known, _)| *known == file);
    let is_known = |file: &str, function: &str| {
        LONG_FUNCTIONS.iter().any(|(known, name, _)| (*known, *name) == (file, function))
    };
    let mut wrong: Vec<String> = Vec::new();
    for (file, lines) in long_files.iter().filter(|(file, _)| !is_excused(file)) {
        wrong.push(format!("{file}: {lines} lines"));
    }
    for (file, function, lines) in long_functions.iter().filter(|(file, name, _)| !is_known(file, name)) {
        wrong.push(format!("{file}: {function} has {lines} lines"));
    }
    assert!(
        wrong.is_empty(),
        "at most {FILE} lines a file and {FUNCTION} a function: look for a second purpose\n{}",
        wrong.join("\n")
    );
    for (file, _) in LONG_FILES {
        assert!(long_files.iter().any(|(long, _)| long == file), "{file} is short now: remove its row");
    }
    for (file, name, _) in LONG_FUNCTIONS {
        let is_long = long_functions.iter().any(|(long, function, _)| long == file && function == name);
        assert!(is_long, "{name} of {file} is short now: remove its row");
    }
}

#[test]
fn functions_are_measured_from_head_to_end() {
    let of = |name: &str, text: &str| functions(name, text);
    let rust = "impl A {\n    pub(super) fn b(\n        c: u8,\n    ) -> u8 {\n        if c {\n        }\n        1\n    }\n\n    fn d();\n}\n";
    assert_eq!(of("a.rs", rust), [("b".to_owned(), 7), ("d".to_owned(), 1)]);
    let python = "def a(\n    b,\n):\n    c = 1\n\n    return c\n\n\nd = 2\n";
    assert_eq!(of("a.py", python), [("a".to_owned(), 6)]);
    let page = "class A {\n  private b(): void {\n    if (c(1)) {\n    }\n  }\n}\n";
    assert_eq!(of("a.ts", page), [("b".to_owned(), 4)]);
    assert!(is_shipped("crates/a/src/b.rs") && is_shipped("python/gapless/weights/_load.py"));
    assert!(!is_shipped("crates/a/tests/b.rs") && !is_shipped("crates/a/src/b/tests.rs"));
}
