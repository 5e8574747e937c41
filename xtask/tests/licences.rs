//! Checks `cargo metadata` against deny.toml: licences, bans and sources, on every machine. `cargo deny`, if
//! installed, reads the same file and also checks the texts of the licences.

use serde_json::Value;
use std::path::Path;
use std::process::Command;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the repository")
}

fn packages() -> Vec<Value> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--locked", "--all-features"])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    metadata["packages"].as_array().expect("packages").clone()
}

/// The strings of a list of deny.toml, which has one a line: all of `allow = [...]`, the crates of `deny = [...]`.
fn list(name: &str) -> Vec<String> {
    let text = std::fs::read_to_string(root().join("deny.toml")).expect("deny.toml");
    let body =
        text.split(&format!("\n{name} = [\n")).nth(1).expect("a list").split("\n]").next().expect("its end");
    body.lines().filter_map(|line| line.split('"').nth(1)).map(str::to_owned).collect()
}

/// True if allowed licences can meet a licence's expression: AND binds before OR, and older crates write / for OR.
fn is_allowed(expression: &str, allowed: &[String]) -> bool {
    let plain = expression.replace('/', " OR ");
    let tokens = plain.replace('(', " ( ").replace(')', " ) ");
    let tokens: Vec<&str> = tokens.split_whitespace().collect();
    let mut at = 0;
    let met = any(&tokens, &mut at, allowed);
    met && at == tokens.len()
}

fn any(tokens: &[&str], at: &mut usize, allowed: &[String]) -> bool {
    let mut met = all(tokens, at, allowed);
    while tokens.get(*at) == Some(&"OR") {
        *at += 1;
        met |= all(tokens, at, allowed);
    }
    met
}

fn all(tokens: &[&str], at: &mut usize, allowed: &[String]) -> bool {
    let mut met = one(tokens, at, allowed);
    while tokens.get(*at) == Some(&"AND") {
        *at += 1;
        met &= one(tokens, at, allowed);
    }
    met
}

fn one(tokens: &[&str], at: &mut usize, allowed: &[String]) -> bool {
    let Some(first) = tokens.get(*at) else { return false };
    *at += 1;
    if *first == "(" {
        let met = any(tokens, at, allowed);
        *at += 1;
        return met;
    }
    let mut name = (*first).to_owned();
    if tokens.get(*at) == Some(&"WITH") {
        name = format!("{name} WITH {}", tokens.get(*at + 1).copied().unwrap_or_default());
        *at += 2;
    }
    allowed.contains(&name)
}

#[test]
fn every_dependency_has_a_licence_that_is_allowed() {
    let allowed = list("allow");
    assert!(allowed.contains(&"MIT".to_owned()) && allowed.len() >= 5, "{allowed:?}");
    for package in packages() {
        let licence = package["license"].as_str().unwrap_or("none");
        assert!(is_allowed(licence, &allowed), "{} is under {licence}: see deny.toml", package["name"]);
    }
}

#[test]
fn nothing_banned_and_nothing_from_elsewhere_comes_in() {
    let banned = list("deny");
    assert!(banned.contains(&"tokio".to_owned()), "{banned:?}");
    for package in packages() {
        let name = package["name"].as_str().expect("a name");
        assert!(!banned.iter().any(|ban| ban == name), "{name} is banned: deny.toml says why");
        // A crate of ours has no source.
        if let Some(source) = package["source"].as_str() {
            assert!(source.starts_with("registry+"), "{name} comes from {source}");
        }
    }
}

#[test]
fn expressions_are_read_as_they_are_meant() {
    let allowed = ["MIT", "Apache-2.0", "Apache-2.0 WITH LLVM-exception"].map(str::to_owned);
    for fine in [
        "MIT",
        "MIT/Apache-2.0",
        "GPL-3.0 OR MIT",
        "Apache-2.0 WITH LLVM-exception",
        "(MIT OR X) AND Apache-2.0",
    ] {
        assert!(is_allowed(fine, &allowed), "{fine}");
    }
    for wrong in ["none", "GPL-3.0", "MIT AND GPL-3.0", "MIT WITH X", "X OR (MIT AND Y)", "", "MIT MIT"] {
        assert!(!is_allowed(wrong, &allowed), "{wrong}");
    }
}
