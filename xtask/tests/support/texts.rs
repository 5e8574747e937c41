//! The texts of the repository: its files, and which of their lines are comments.

use std::path::{Path, PathBuf};
use std::process::Command;

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the repository").to_owned()
}

/// The files of the repository, tracked or new, without files from third parties or generators.
pub(crate) fn files() -> Vec<String> {
    let output = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .current_dir(root())
        .output()
        .expect("git runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let names = String::from_utf8(output.stdout).expect("names in UTF-8");
    names.lines().filter(|name| root().join(name).is_file()).map(str::to_owned).collect()
}

pub(crate) fn read(name: &str) -> String {
    std::fs::read_to_string(root().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The beginnings of comment lines in this kind of file.
pub(crate) fn comment_sign(name: &str) -> Option<&'static [&'static str]> {
    if SCRIPTS.contains(&name) {
        return Some(&["# "]);
    }
    match Path::new(name).extension()?.to_str()? {
        "rs" | "ts" | "mjs" | "js" | "c" | "cc" | "cpp" | "cu" | "h" | "hpp" | "css" => {
            Some(&["//", "* ", "/*"])
        }
        "py" | "toml" | "sh" | "yaml" | "yml" => Some(&["# "]),
        _ => None,
    }
}

/// For each line of a Python file, true if it is within a docstring: a string in triple quotes that begins the file,
/// or follows a line that ends with a colon.
pub(crate) fn docstrings(text: &str) -> Vec<bool> {
    const QUOTES: &str = "\"\"\"";
    let (mut is_open, mut may_begin) = (false, true);
    let mut lines = Vec::new();
    for line in text.lines() {
        let begins = may_begin && line.trim_start().starts_with(QUOTES);
        let rest = if begins { &line.trim_start()[QUOTES.len()..] } else { line };
        lines.push(is_open || begins);
        is_open = (is_open || begins) && !rest.contains(QUOTES);
        if !line.trim().is_empty() && !line.starts_with('#') {
            may_begin = line.trim_end().ends_with(':');
        }
    }
    lines
}

/// The scripts without an ending that have comments.
const SCRIPTS: &[&str] = &[".ci/run"];
