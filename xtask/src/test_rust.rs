//! The Rust tests: all of them, or those of a newcomer, which leave out the long ones of [`LONG`].

use crate::shell::{self, command};
use crate::skips::Skips;
use crate::tools;
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// Long files of tests: their crate, the file, and their subject. `cargo xtask test` leaves them out, and
/// `cargo xtask ci` runs them. Together they take as long as all others.
pub(crate) const LONG: &[(&str, &str, &str)] = &[
    ("gapless", "prometheus", "metrics in Debian's Prometheus"),
    ("gapless", "weights_kills", "saves that are killed"),
    ("gapless", "width", "every answer of `fit`, `explain` and `advise` in narrow terminals"),
    ("gapless-fit", "read_hostile", "hostile descriptions of models"),
    ("gapless-fleet", "experiment", "the published experiment"),
    ("gapless-ingest", "host_mutants", "mutants of a recording of host memory"),
    ("gapless-ledger", "promises", "all interleavings of bookings"),
    ("gapless-loader", "mutants", "files that are damaged at random"),
    ("gapless-loader", "ways", "every way to load a file"),
    ("gapless-malloc", "record", "recordings of host memory, of programs that run as before"),
    ("gapless-malloc", "strangers", "programs of strangers on the host's allocator"),
    ("gapless-malloc", "table", "every entry point of malloc, by size and state"),
    ("gapless-plan", "spaces", "random problems with several spaces"),
    ("gapless-report", "ranks", "odd ranks of many runs"),
    ("gapless-report", "verdicts", "2,000 random questions to `fit`"),
];

/// All Rust tests.
pub(crate) fn all(skips: &mut Skips) -> Result<()> {
    // --no-fail-fast, so that one run shows the failures of all crates.
    let mut tests = command(".", "cargo", &["test", "--workspace", "--locked", "--no-fail-fast"]);
    if let Some(folder) = tools::prometheus() {
        tests.env("PROMETHEUS", folder);
    }
    shell::watch(tests, skips)
}

/// All but the long ones. Cargo cannot leave out files, so each program of tests is started here, as cargo would.
pub(crate) fn quick(skips: &mut Skips) -> Result<()> {
    let mut failed = Vec::new();
    for program in programs()? {
        if LONG.iter().any(|(package, file, _)| program.is(package, file)) {
            continue;
        }
        // Cargo's own words: skips are named by them.
        let line = format!("     Running {} ({})", program.source, program.executable);
        println!("{line}");
        skips.see(&line);
        let folder = Path::new(&program.manifest).parent().context("a manifest lies in a folder")?;
        let mut tests = Command::new(&program.executable);
        tests.current_dir(folder).env("CARGO_MANIFEST_DIR", folder);
        failed.extend(shell::watch(tests, skips).err().map(|error| error.to_string()));
    }
    eprintln!("\nleft to `cargo xtask ci`:");
    for (package, file, subject) in LONG {
        eprintln!("  {package}/tests/{file}.rs  {subject}");
    }
    if failed.is_empty() { Ok(()) } else { bail!("{}", failed.join("\n")) }
}

/// A program of tests.
struct Program {
    manifest: String,
    /// The file it is built from, as cargo names it: `tests/x.rs`.
    source: String,
    name: String,
    executable: String,
}

impl Program {
    fn is(&self, package: &str, file: &str) -> bool {
        self.name == file
            && Path::new(&self.manifest).parent().is_some_and(|folder| folder.ends_with(package))
    }
}

/// Builds all tests. What they start is built too: programs, libraries, examples.
fn programs() -> Result<Vec<Program>> {
    let words = ["test", "--workspace", "--locked", "--no-run", "--message-format=json-render-diagnostics"];
    let told = shell::output_beside(command(".", "cargo", &words))?;
    let mut found: Vec<Program> = told.lines().filter_map(program).collect();
    if found.len() <= LONG.len() {
        bail!("cargo named no programs of tests");
    }
    found.sort_by(|a, b| (&a.manifest, &a.source, &a.name).cmp(&(&b.manifest, &b.source, &b.name)));
    Ok(found)
}

fn program(line: &str) -> Option<Program> {
    let artefact: Value = serde_json::from_str(line).ok()?;
    if artefact["profile"]["test"] != true {
        return None;
    }
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let (manifest, path) = (text(&artefact["manifest_path"])?, text(&artefact["target"]["src_path"])?);
    let source = Path::new(&path).strip_prefix(Path::new(&manifest).parent()?).ok()?.display().to_string();
    let is_unit = source.starts_with("src");
    Some(Program {
        source: if is_unit { format!("unittests {source}") } else { source },
        name: text(&artefact["target"]["name"])?,
        executable: text(&artefact["executable"])?,
        manifest,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_long_file_is_there() {
        for (package, file, _) in LONG {
            let path = shell::root().join(format!("crates/{package}/tests/{file}.rs"));
            assert!(path.is_file(), "{}", path.display());
        }
    }

    #[test]
    fn a_program_of_tests_is_told_from_other_artefacts() {
        let line = r#"{"reason":"compiler-artifact","manifest_path":"/x/crates/gapless-fit/Cargo.toml",
            "target":{"name":"eager","src_path":"/x/crates/gapless-fit/tests/eager.rs"},
            "profile":{"test":true},"executable":"/x/target/debug/deps/eager-0123456789abcdef"}"#;
        let found = program(line).expect("a program of tests");
        assert_eq!((found.source.as_str(), found.name.as_str()), ("tests/eager.rs", "eager"));
        assert!(found.is("gapless-fit", "eager") && !found.is("gapless-fit", "ranks"));
        assert!(!found.is("gapless", "eager"));
        assert!(program(&line.replace("\"test\":true", "\"test\":false")).is_none());
        assert!(program("warning: unused").is_none());
    }
}
