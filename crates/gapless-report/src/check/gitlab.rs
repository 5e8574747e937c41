//! A verdict as GitLab's code quality report: a list that a merge request compares with the list of its target.

use super::issues::issues;
use super::subject::Subject;
use super::verdict::Verdict;
use crate::finding::Severity;
use serde_json::{Value, json};

/// An entry for each figure over its limit, each limit that could not be checked, and each finding; an empty list if
/// there is none.
///
/// # Errors
/// Never for a verdict; serde's signature.
pub fn gitlab(verdict: &Verdict, subject: &Subject) -> serde_json::Result<String> {
    let entries: Vec<Value> = issues(verdict, subject)
        .into_iter()
        .map(|issue| {
            // GitLab takes paths from the root of the repository, without a leading dot.
            let path = issue.file.strip_prefix("./").unwrap_or(&issue.file);
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
