//! Tests that did not run. In CI (if CI is set) each must be on the list `.ci/skips.txt`, with its reason, because a
//! suite can also pass by skipping half of its tests.
//!
//! `see` reads the skipped tests from the runners' output, which differs by runner. An entry whose test runs again is
//! an error too, so that it cannot hide the next skip.

use crate::shell;
use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;
use std::path::Path;

/// The tests that one part skipped.
pub(crate) struct Skips {
    part: &'static str,
    /// The test binary that cargo runs at the moment, because names of tests are only unique within one.
    binary: String,
    /// By test, the reason that the runner gave.
    found: BTreeMap<String, String>,
}

/// A line of the list: `always | rust | nvml::child_card | why that is fine`.
#[derive(Debug, PartialEq)]
struct Entry {
    /// True if it is skipped on every machine; else only on some.
    always: bool,
    part: String,
    test: String,
}

impl Skips {
    pub(crate) fn of(part: &'static str) -> Skips {
        // The quick tests are some of those of `rust`, so its entries count.
        let part = if part == "quick" { "rust" } else { part };
        Skips { part, binary: String::new(), found: BTreeMap::new() }
    }

    pub(crate) fn count(&self) -> usize {
        self.found.len()
    }

    /// Adds a skip of something that is not a test.
    pub(crate) fn add(&mut self, what: &str, why: &str) {
        eprintln!("\n********  SKIPPED: {what}: {why}  ********\n");
        self.found.insert(what.to_owned(), why.to_owned());
    }

    /// Reads a line of a runner's output.
    pub(crate) fn see(&mut self, line: &str) {
        let line = line.trim();
        if let Some(rest) = line.strip_prefix("Running ").or_else(|| line.strip_prefix("Doc-tests ")) {
            self.binary = binary(rest);
        } else if let Some((test, why)) = cargo(line) {
            self.found.insert(format!("{}::{test}", self.binary), why.to_owned());
        } else if let Some((test, why)) = pytest(line).or_else(|| node(line)) {
            self.found.insert(test.to_owned(), why.to_owned());
        }
    }

    /// In CI, an error for each skip that is not on the list and each entry that is no longer true. Outside of CI
    /// they are only printed.
    pub(crate) fn judge(&self) -> Result<()> {
        let path = shell::root().join(".ci/skips.txt");
        let wrong = self.against(&read(&path)?);
        if wrong.is_empty() {
            return Ok(());
        }
        let text = wrong.join("\n");
        if std::env::var_os("CI").is_some() {
            bail!("{text}");
        }
        eprintln!("\nnote: this would fail in CI:\n{text}");
        Ok(())
    }

    fn against(&self, list: &[Entry]) -> Vec<String> {
        let listed: Vec<&Entry> = list.iter().filter(|entry| entry.part == self.part).collect();
        let mut wrong = Vec::new();
        for (test, why) in &self.found {
            if !listed.iter().any(|entry| entry.test == *test) {
                wrong.push(format!("{test} was skipped ({why}) and is not in .ci/skips.txt"));
            }
        }
        for entry in listed.iter().filter(|entry| entry.always && !self.found.contains_key(&entry.test)) {
            wrong.push(format!(
                "{} is in .ci/skips.txt and was not skipped: take it off the list",
                entry.test
            ));
        }
        wrong
    }
}

/// The name of a test binary, from `tests/nvml.rs (target/debug/deps/nvml-0123456789abcdef)`.
fn binary(rest: &str) -> String {
    let path = rest.rsplit_once('(').map_or(rest, |(_, path)| path.trim_end_matches(')'));
    let file = path.rsplit('/').next().unwrap_or(path);
    file.rsplit_once('-').map_or(file, |(name, _)| name).to_owned()
}

/// `test child_card ... ignored, run by the tests above`
fn cargo(line: &str) -> Option<(&str, &str)> {
    let (test, end) = line.strip_prefix("test ")?.split_once(" ... ignored")?;
    Some((test, end.strip_prefix(", ").unwrap_or("no reason")))
}

/// `SKIPPED [1] python/tests/test_top.py:26: STANDIN_GAPLESS is not set`; the line changes with every edit.
fn pytest(line: &str) -> Option<(&str, &str)> {
    let (place, why) = line.strip_prefix("SKIPPED [")?.split_once("] ")?.1.split_once(": ")?;
    Some((place.rsplit_once(':').map_or(place, |(file, _)| file), why))
}

/// `ok 3 - the name # SKIP why`, or `﹣ the name (0.1ms) # SKIP`
fn node(line: &str) -> Option<(&str, &str)> {
    let (test, why) = line.split_once(" # SKIP").or_else(|| line.split_once(" # TODO"))?;
    let test = test.split_once(" - ").map_or(test, |(_, name)| name).trim_start_matches("﹣ ");
    Some((test, if why.trim().is_empty() { "no reason" } else { why.trim() }))
}

fn read(path: &Path) -> Result<Vec<Entry>> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    parse(&text).with_context(|| path.display().to_string())
}

fn parse(text: &str) -> Result<Vec<Entry>> {
    let mut entries = Vec::new();
    for (number, line) in text.lines().enumerate() {
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        let columns: Vec<&str> = line.splitn(4, '|').map(str::trim).collect();
        let [when @ ("always" | "sometimes"), part, test, reason] = columns[..] else {
            bail!("line {}: not `always | PART | TEST | REASON` (or sometimes)", number + 1);
        };
        if reason.len() < 10 {
            bail!("line {}: {test} is skipped without a reason", number + 1);
        }
        entries.push(Entry { always: when == "always", part: part.to_owned(), test: test.to_owned() });
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "     Running tests/nvml.rs (target/debug/deps/nvml-5f3e8f6a0a2f2a41)
test child_card ... ignored, run by the tests above
test a_card_is_told ... ok
     Running unittests src/lib.rs (target/debug/deps/gapless_pool-1111111111111111)
test pages::tests::slow ... ignored
SKIPPED [2] python/tests/test_top.py:26: STANDIN_GAPLESS is not set: run it
ok 3 - the page is shown # SKIP no browser
ok 4 - it says # of things
test result: ok. 3 passed; 0 failed; 2 ignored";

    fn seen() -> Skips {
        let mut skips = Skips::of("rust");
        OUTPUT.lines().for_each(|line| skips.see(line));
        skips
    }

    #[test]
    fn every_runners_words_are_read() {
        let found: Vec<(String, String)> = seen().found.into_iter().collect();
        let expected = [
            ("gapless_pool::pages::tests::slow", "no reason"),
            ("nvml::child_card", "run by the tests above"),
            ("python/tests/test_top.py", "STANDIN_GAPLESS is not set: run it"),
            ("the page is shown", "no browser"),
        ];
        assert_eq!(found, expected.map(|(test, why)| (test.to_owned(), why.to_owned())));
    }

    #[test]
    fn a_skip_that_is_not_listed_and_an_entry_that_runs_are_both_told() {
        let list = parse(
            "# a comment\n\
             always | rust | nvml::child_card | run as a process of its own by the tests above it\n\
             always | rust | nvml::gone | this one runs again since today\n\
             sometimes | rust | nvml::other | machines without a card do not have it\n\
             always | web | the other part | is not looked at when rust is judged\n",
        )
        .expect("a list");
        let wrong = seen().against(&list);
        assert_eq!(wrong.len(), 4, "{wrong:?}");
        assert!(wrong[0].starts_with("gapless_pool::pages::tests::slow was skipped (no reason)"));
        assert!(wrong[3].starts_with("nvml::gone is in .ci/skips.txt and was not skipped"));
    }

    #[test]
    fn an_entry_needs_a_reason() {
        assert!(parse("always | rust | nvml::child_card | ").is_err());
        assert!(parse("always | rust | nvml::child_card").is_err());
        assert!(parse("now and then | rust | nvml::child_card | a long enough reason").is_err());
    }

    #[test]
    fn the_committed_list_can_be_read() {
        read(&shell::root().join(".ci/skips.txt")).expect("the list");
    }

    /// The runner checks this only in CI. This test reads the sources, so it works everywhere and before a run.
    #[test]
    fn every_test_that_is_ignored_is_on_the_list() {
        let list = read(&shell::root().join(".ci/skips.txt")).expect("the list");
        let listed: Vec<&str> =
            list.iter().filter(|entry| entry.part == "rust").map(|entry| &*entry.test).collect();
        let mut ignored = Vec::new();
        for folder in std::fs::read_dir(shell::root().join("crates")).expect("crates") {
            let Ok(tests) = std::fs::read_dir(folder.expect("a crate").path().join("tests")) else {
                continue;
            };
            for file in tests.map(|file| file.expect("a file").path()) {
                let Ok(text) = std::fs::read_to_string(&file) else { continue };
                let binary = file.file_stem().and_then(|stem| stem.to_str()).expect("a name");
                ignored.extend(ignored_in(&text).map(|test| format!("{binary}::{test}")));
            }
        }
        assert!(ignored.len() > 5, "too few to be true: {ignored:?}");
        let missing: Vec<&String> = ignored.iter().filter(|test| !listed.contains(&&***test)).collect();
        assert!(missing.is_empty(), "not in .ci/skips.txt: {missing:?}");
    }

    fn ignored_in(text: &str) -> impl Iterator<Item = &str> {
        text.split("\n#[ignore").skip(1).filter_map(|rest| {
            let name = rest.split_once("\nfn ")?.1;
            name.split_once('(').map(|(name, _)| name)
        })
    }
}
