//! A verdict as GitLab's code quality report: a list that a merge request compares with the list of its target.

use super::issues::issues;
use super::verdict::Verdict;
use crate::finding::Severity;
use crate::model::Report;
use serde_json::{Value, json};

/// An entry for each figure over its limit, each limit that could not be checked, and each finding; an empty list if
/// there is none.
///
/// # Errors
/// Never for a verdict; serde's signature.
pub fn gitlab(verdict: &Verdict, report: &Report) -> serde_json::Result<String> {
    // GitLab takes paths from the root of the repository, without a leading dot.
    let path = verdict.path.strip_prefix("./").unwrap_or(&verdict.path);
    let entries: Vec<Value> = issues(verdict, report)
        .into_iter()
        .map(|issue| {
            json!({
                "description": issue.message.lines().next().unwrap_or_default(),
                "check_name": issue.rule.id,
                "fingerprint": issue.fingerprint,
                "severity": match issue.level {
                    Severity::Error => "critical",
                    Severity::Warning => "minor",
                    Severity::Info => "info",
                },
                "location": { "path": path, "lines": { "begin": 1 } },
                "content": { "body": format!("{}\n\n{}", issue.message, issue.rule.help) },
            })
        })
        .collect();
    serde_json::to_string_pretty(&entries).map(|text| text + "\n")
}
