//! The Rust tests: all of them, or those of a newcomer, which leave out the long ones of [`LONG`].

use crate::shell::{self, command};
use crate::skips::Skips;
use crate::tools;
use anyhow::{Result, bail};
use serde_json::Value;
use std::num::NonZero;
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::sync::{Mutex, PoisonError};
use std::vec::IntoIter;

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
    let mut programs = programs()?;
    // The longest first: then no core is left without work at the end.
    programs.sort_by_key(|program| !program.is_long());
    run(programs, skips)
}

/// All but the long ones.
pub(crate) fn quick(skips: &mut Skips) -> Result<()> {
    let mut programs = programs()?;
    programs.retain(|program| !program.is_long());
    let result = run(programs, skips);
    eprintln!("\nleft to `cargo xtask ci`:");
    for (package, file, subject) in LONG {
        eprintln!("  {package}/tests/{file}.rs  {subject}");
    }
    result
}

/// Runs programs of tests, as many at a time as there are cores: most of them spend their end in one long test. Cargo
/// would run them one after another. What a program prints comes as a whole when it has ended.
fn run(programs: Vec<Program>, skips: &mut Skips) -> Result<()> {
    let prometheus = tools::prometheus();
    let left = Mutex::new(programs.into_iter());
    let ends = Mutex::new((skips, Vec::new()));
    let work = || {
        while let Some(program) = next(&left) {
            // If it hangs, this is its only line.
            eprintln!("  starts {}", program.executable);
            let ended = program.run(prometheus.as_deref());
            let (skips, failed) = &mut *ends.lock().unwrap_or_else(PoisonError::into_inner);
            failed.extend(ended.show(&program, skips));
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, NonZero::get) {
            scope.spawn(work);
        }
    });
    let (_, failed) = ends.into_inner().unwrap_or_else(PoisonError::into_inner);
    if failed.is_empty() { Ok(()) } else { bail!("{}", failed.join("\n")) }
}

fn next(left: &Mutex<IntoIter<Program>>) -> Option<Program> {
    left.lock().unwrap_or_else(PoisonError::into_inner).next()
}

/// What a program printed, and how it ended.
struct Ended {
    printed: Vec<u8>,
    status: std::io::Result<ExitStatus>,
}

impl Ended {
    /// Prints it, and returns the failure if it is one.
    fn show(&self, program: &Program, skips: &mut Skips) -> Option<String> {
        // Cargo's own words: skips are named by them.
        let line = format!("     Running {} ({})", program.source, program.executable);
        println!("{line}");
        skips.see(&line);
        let text = String::from_utf8_lossy(&self.printed);
        print!("{text}");
        text.lines().for_each(|line| skips.see(line));
        match &self.status {
            Ok(status) if status.success() => None,
            Ok(status) => Some(format!("`{}` failed with {status}", program.executable)),
            Err(error) => Some(format!("cannot run `{}`: {error}", program.executable)),
        }
    }
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
    fn is_long(&self) -> bool {
        LONG.iter().any(|(package, file, _)| self.is(package, file))
    }

    /// Runs it as cargo would.
    fn run(&self, prometheus: Option<&Path>) -> Ended {
        let folder = Path::new(&self.manifest).parent().expect("a manifest lies in a folder");
        let mut tests = Command::new(&self.executable);
        tests.current_dir(folder).env("CARGO_MANIFEST_DIR", folder);
        if let Some(folder) = prometheus {
            tests.env("PROMETHEUS", folder);
        }
        let mut printed = Vec::new();
        let status = shell::captured(tests, &mut printed);
        Ended { printed, status }
    }

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

    /// Cargo does not look for tests in a crate with `autotests = false`: a file that its `all.rs` forgets never runs.
    #[test]
    fn every_file_of_tests_is_run() {
        let mut joined = 0;
        for folder in std::fs::read_dir(shell::root().join("crates")).expect("the crates") {
            let folder = folder.expect("a crate").path();
            let manifest = std::fs::read_to_string(folder.join("Cargo.toml")).expect("a manifest");
            if !manifest.contains("autotests = false") {
                continue;
            }
            joined += 1;
            let all = std::fs::read_to_string(folder.join("tests/all.rs")).expect("the file of all tests");
            for file in std::fs::read_dir(folder.join("tests")).expect("a folder of tests") {
                let file = file.expect("a file").path();
                let name = file.file_stem().expect("a name").to_string_lossy().into_owned();
                let is_run =
                    all.contains(&format!("mod {name};")) || manifest.contains(&format!("name = \"{name}\""));
                assert!(is_run, "{} is in neither tests/all.rs nor Cargo.toml", file.display());
            }
        }
        assert!(joined > 0, "a crate has its tests in one program");
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
