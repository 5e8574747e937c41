//! A verdict and its subject as issues for code scanners: each with a rule, a level, a sentence, a file and a
//! fingerprint. SARIF and GitLab's format are two spellings of this list.

use super::subject::{Noticed, Subject};
use super::verdict::{Row, Unknown, Verdict};
use super::words::{sentence, unknown_sentence};
use crate::explain;
use crate::finding::Severity;
use std::collections::BTreeMap;

/// A rule: a limit or a finding that issues refer to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rule {
    /// `peak-reserved`, or a finding's code.
    pub(super) id: String,
    pub(super) title: String,
    /// Its meaning and the next step, in Markdown.
    pub(super) help: String,
}

/// Something that a person should look at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Issue {
    pub(super) rule: Rule,
    pub(super) level: Severity,
    pub(super) message: String,
    /// The file that it is about: of many ranks, that of its rank.
    pub(super) file: String,
    /// Equal for the same issue of the same file in every run, because no figures enter it.
    pub(super) fingerprint: String,
}

/// The place of an issue: a rank of many, and a device.
type Place = (Option<u32>, Option<u32>);

/// Figures over their limits first, then limits that could not be checked, then findings.
pub(super) fn issues(verdict: &Verdict, subject: &Subject) -> Vec<Issue> {
    let mut list = Vec::new();
    let mut seen: BTreeMap<String, u32> = BTreeMap::new();
    let mut add = |rule: Rule, (rank, device): Place, level: Severity, against: &str, message: String| {
        let number = |number: Option<u32>| number.map_or_else(String::new, |number| number.to_string());
        let mut parts = vec![verdict.path.clone(), rule.id.clone(), number(device), against.to_owned()];
        // A single run has no rank. Its key then has no part for one, so that its fingerprint stays as it was.
        parts.extend(rank.map(|rank| format!("rank {rank}")));
        let key = parts.join("\0");
        // Two findings may have one code and one device: `nth` tells them apart.
        let nth = seen.entry(key.clone()).or_default();
        let fingerprint = fingerprint(&format!("{key}\0{nth}"));
        *nth += 1;
        let file = subject.file(rank, &verdict.path).to_owned();
        list.push(Issue { rule, level, message, file, fingerprint });
    };
    for row in verdict.rows.iter().filter(|row| !row.passed) {
        let place = (row.rank, Some(row.device));
        add(figure(row.figure), place, Severity::Error, kind_of_limit(row), over(row, verdict));
    }
    for unknown in &verdict.unknown {
        let place = (unknown.rank, Some(unknown.device));
        add(figure(unknown.figure), place, Severity::Error, "unknown", unknown_message(unknown));
    }
    for noticed in &subject.noticed {
        let finding = &noticed.finding;
        let place = (noticed.rank, finding.device);
        add(coded(&finding.code), place, finding.severity, "finding", found(noticed));
    }
    list
}

/// The rule behind a limit.
fn figure(name: &str) -> Rule {
    let meaning = match name {
        "peak reserved" => "The most device memory that the allocator held.",
        "peak allocated" => "The most memory that was allocated at once.",
        "fragmentation" => {
            "1 - peak allocated / peak reserved: the share that was held and never needed at once."
        }
        "growth per step" => "By how much live memory grows from step to step.",
        "spread" => "Highest peak / mean peak - 1 among ranks that do the same.",
        "every figure" => "The trace of every rank can be read.",
        _ => "The peaks of an earlier run, with a tolerance.",
    };
    Rule {
        id: name.replace(' ', "-"),
        title: format!("{name} is within its limit"),
        help: format!(
            "{meaning} `gapless report` shows what holds the memory at the peak, and `gapless diff` what changed since \
             another run."
        ),
    }
}

fn coded(code: &str) -> Rule {
    match explain::find(code) {
        Some(known) => {
            Rule { id: code.to_owned(), title: known.title().to_owned(), help: known.text.to_owned() }
        }
        // Every code has an explanation; a test says so.
        None => {
            Rule { id: code.to_owned(), title: code.to_owned(), help: format!("`gapless explain {code}`") }
        }
    }
}

/// A changed tolerance must not change the fingerprint, so only the kind of limit enters it.
fn kind_of_limit(row: &Row) -> &'static str {
    if row.against.starts_with("baseline") { "baseline" } else { "budget" }
}

fn over(row: &Row, verdict: &Verdict) -> String {
    let mut message = sentence(row);
    for holder in &verdict.holders {
        message.push_str("\nat the peak: ");
        message.push_str(holder);
    }
    plain(&message)
}

fn unknown_message(unknown: &Unknown) -> String {
    plain(&format!("{}; {}", unknown_sentence(unknown), unknown.help))
}

fn found(Noticed { place, finding, .. }: &Noticed) -> String {
    let on = if place.is_empty() { String::new() } else { format!("{place}: ") };
    let help = if finding.help.is_empty() { String::new() } else { format!("\n{}", finding.help) };
    plain(&format!("{on}{}{help}", finding.headline))
}

/// Names come from untrusted files, and these texts are read in terminals too.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\n' { '\u{fffd}' } else { c }).collect()
}

/// FNV-1a with 128 bits, as hexadecimal digits. It identifies an issue; nothing relies on its secrecy.
fn fingerprint(key: &str) -> String {
    const OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    let hash = key.bytes().fold(OFFSET, |hash, byte| (hash ^ u128::from(byte)).wrapping_mul(PRIME));
    format!("{hash:032x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fingerprints_are_those_of_fnv_1a() {
        // The vectors that the authors of FNV publish.
        assert_eq!(fingerprint(""), "6c62272e07bb014262b821756295c58d");
        assert_eq!(fingerprint("a"), "d228cb696f1a8caf78912b704e4a8964");
    }

    const FIGURES: [&str; 7] = [
        "peak reserved",
        "peak allocated",
        "fragmentation",
        "growth per step",
        "spread",
        "every figure",
        "baseline",
    ];

    #[test]
    fn every_limit_has_a_rule_with_a_meaning() {
        for name in FIGURES {
            let rule = figure(name);
            assert!(!rule.id.contains(' ') && rule.help.contains("gapless report"), "{rule:?}");
        }
    }
}
