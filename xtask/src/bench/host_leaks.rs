//! Programs that leak and programs that do not, recorded and reported: the lines that are found, and false findings
//! in clean programs. They are in `host-bench/leaks.py` and `leaks.c`.
//!
//! Half of the programs were set aside while the rules were made: they have a star.

use crate::shell::{self, command};
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

const LEAKS: [(&str, &[&str]); 2] = [
    (
        "py",
        &[
            "arrays", "texts", "small", "closures", "cycles", "*threads", "*buffer", "*views", "*memo",
            "*errors",
        ],
    ),
    (
        "c",
        &[
            "forgotten",
            "errorpath",
            "list",
            "grows",
            "names",
            "*served",
            "*frames",
            "*deep",
            "*aligned",
            "*slow",
        ],
    ),
];
const CLEAN: [(&str, &[&str]); 2] = [
    (
        "py",
        &[
            "churn",
            "fills",
            "bounded",
            "ring",
            "pool",
            "*warm",
            "*collected",
            "*sawtooth",
            "*replaces",
            "*batches",
        ],
    ),
    (
        "c",
        &[
            "churn",
            "arena",
            "freelist",
            "fills",
            "evicts",
            "*builds",
            "*workers",
            "*doubles",
            "*sawtooth",
            "*large",
        ],
    ),
];

/// Programs that keep 3,000 objects of some 100 bytes, in a run of any length, so that their lines grow.
const PACED_LEAKS: [(&str, &[&str]); 2] = [
    ("py", &["handlers", "waiting", "extension", "ended", "suspended", "keys"]),
    ("c", &["list", "names", "served"]),
];
/// Programs that keep 300, whose lines are among those that were never freed.
const PACED_FEW: [(&str, &[&str]); 2] = [
    ("py", &["handlers_few", "waiting_few", "extension_few", "ended_few"]),
    ("c", &["list_few", "names_few", "served_few"]),
];
const PACED_CLEAN: [(&str, &[&str]); 2] = [
    (
        "py",
        &[
            "lru",
            "recent",
            "rebuilt",
            "executor",
            "cyclic",
            "resized",
            "extension_frees",
            "memo",
            "threads_end",
        ],
    ),
    ("c", &["replaced", "ring", "workers", "waves", "filled"]),
];

/// The required finding for a program.
#[derive(Clone, Copy, PartialEq)]
enum Wanted {
    /// Its line grows.
    Grows,
    /// Its line was never freed.
    Kept,
    /// No line grows.
    Nothing,
}

/// The lines that a report names.
struct Found {
    growing: Vec<String>,
    kept: Vec<String>,
}

pub(super) struct Bench<'a> {
    folder: &'a Path,
    python: &'a str,
    library: &'a Path,
    gapless: String,
}

impl<'a> Bench<'a> {
    pub(super) fn new(folder: &'a Path, python: &'a str, library: &'a Path) -> Result<Bench<'a>> {
        shell::run(command(".", "cargo", &["build", "--locked", "--package", "gapless"]))?;
        let gapless = shell::target().join("debug/gapless").display().to_string();
        Ok(Bench { folder, python, library, gapless })
    }

    /// Compiles a program of `host-bench/`.
    fn compile(&self, name: &str, out: &str, more: &[&str]) -> Result<String> {
        let out = self.folder.join(out).display().to_string();
        let code = shell::root().join(format!("host-bench/{name}.c")).display().to_string();
        let flags = ["-O1", "-g", "-w", "-fno-builtin", "-pthread"];
        shell::run(command(".", "cc", &[&flags[..], more, &["-o", &out, &code, "-ldl"]].concat()))?;
        Ok(out)
    }

    pub(super) fn leaks(&self) -> Result<()> {
        let program = self.compile("leaks", "leaks", &[])?;
        println!(
            "leaks: a program, the lines that leak, and what is reported; * was set aside while the rules were made"
        );
        let found = self.all("leaks", &LEAKS, Wanted::Grows, &program, &[])?;
        let clean = self.all("leaks", &CLEAN, Wanted::Nothing, &program, &[])?;
        println!("leaks found with their line: {} of {} (wanted all)", found.0, found.1);
        println!("clean programs without a finding: {} of {} (wanted all)\n", clean.0, clean.1);
        Ok(())
    }

    /// Programs that run for 0.1, 2 and 30 seconds of CPU. `GAPLESS_BENCH_SECONDS` names other lengths.
    pub(super) fn paced(&self) -> Result<()> {
        let program = self.compile("paced", "paced", &[])?;
        let library = self.compile("paced", "libpaced.so", &["-shared", "-fPIC"])?;
        let lengths = std::env::var("GAPLESS_BENCH_SECONDS").unwrap_or("0.1 2 30".into());
        for seconds in lengths.split_whitespace() {
            println!("paced: programs of {seconds} s, the lines that leak, and what is reported");
            let words = [seconds, &library];
            let found = self.all("paced", &PACED_LEAKS, Wanted::Grows, &program, &words)?;
            let few = self.all("paced", &PACED_FEW, Wanted::Kept, &program, &words)?;
            let clean = self.all("paced", &PACED_CLEAN, Wanted::Nothing, &program, &words)?;
            println!("{seconds} s: leaks of 3,000 objects found with their line: {} of {}", found.0, found.1);
            println!("{seconds} s: leaks of 300 objects listed with their line: {} of {}", few.0, few.1);
            println!("{seconds} s: clean programs without a finding: {} of {}\n", clean.0, clean.1);
        }
        Ok(())
    }

    /// Runs the programs of `FILE.py` and `FILE.c`. Returns the numbers of correct findings and of all programs.
    fn all(
        &self,
        file: &str,
        cases: &[(&str, &[&str])],
        wanted: Wanted,
        program: &str,
        more: &[&str],
    ) -> Result<(usize, usize)> {
        let (mut right, mut count) = (0, 0);
        let source = |kind: &str| shell::root().join(format!("host-bench/{file}.{kind}"));
        let script = source("py").display().to_string();
        for (kind, names) in cases {
            for name in *names {
                let case = name.trim_start_matches('*');
                let mut words =
                    if *kind == "py" { vec![self.python, script.as_str()] } else { vec![program] };
                words.push(case);
                words.extend(more);
                let found = self.record(&words)?;
                let mut lines = Vec::new();
                for kind in ["py", "c"] {
                    lines.extend(marked(&std::fs::read_to_string(source(kind))?, file, kind, case));
                }
                let names_one = |labels: &[String]| {
                    labels.iter().any(|label| lines.iter().any(|line| label.starts_with(line)))
                };
                let is_right = match wanted {
                    Wanted::Grows => names_one(&found.growing),
                    Wanted::Kept => names_one(&found.kept),
                    Wanted::Nothing => found.growing.is_empty(),
                };
                right += usize::from(is_right);
                count += 1;
                let verdict = if is_right { "ok" } else { "WRONG" };
                let lines = if wanted == Wanted::Nothing { "-".to_owned() } else { lines.join(", ") };
                println!("{kind:3} {name:16} {lines:16} {verdict:6} {}", found.growing.join(" | "));
            }
        }
        Ok((right, count))
    }

    fn record(&self, words: &[&str]) -> Result<Found> {
        let file = self.folder.join("leaks.gtrace");
        let (program, args) = words.split_first().context("a program")?;
        let mut started = Command::new(program);
        started.args(args).env("LD_PRELOAD", self.library).env("GAPLESS_HOST_RECORD", &file);
        if !started.status()?.success() {
            bail!("{words:?} failed");
        }
        let file = file.display().to_string();
        let report = ["report", &file, "--format", "json", "--top", "1000"];
        let report: Value = serde_json::from_str(&shell::output(command(".", &self.gapless, &report))?)?;
        let labels = |list: &str| -> Result<Vec<String>> {
            let lines = report["host_run"][list].as_array().context("a recording of host memory")?;
            Ok(lines.iter().filter_map(|line| line["label"].as_str().map(str::to_owned)).collect())
        };
        Ok(Found { growing: labels("growing")?, kept: labels("never_freed")? })
    }
}

/// The beginnings of labels of the lines that a comment marks as leaks of this program.
fn marked(text: &str, file: &str, kind: &str, case: &str) -> Vec<String> {
    let is_marked = |line: &str| {
        line.split_once(" LEAK ").is_some_and(|(_, names)| names.split_whitespace().any(|name| name == case))
    };
    let lines = text.lines().enumerate().filter(|(_, line)| is_marked(line));
    lines.map(|(at, _)| format!("{file}.{kind}:{} ", at + 1)).collect()
}
