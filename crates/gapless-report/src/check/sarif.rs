//! A verdict as SARIF 2.1.0, the format that code scanners exchange: rules with help, results with levels and places.

use super::issues::{Issue, Rule, issues};
use super::subject::Subject;
use super::verdict::Verdict;
use crate::finding::Severity;
use crate::model::Tool;
use serde_json::{Value, json};

const SCHEMA: &str = "https://json.schemastore.org/sarif-2.1.0.json";

/// One run, with a result for each figure over its limit, each limit that could not be checked, and each finding.
///
/// # Errors
/// Never for a verdict; serde's signature.
pub fn sarif(verdict: &Verdict, subject: &Subject) -> serde_json::Result<String> {
    let issues = issues(verdict, subject);
    let mut rules: Vec<&Rule> = Vec::new();
    // The file or folder that was checked, then the files of ranks with an issue.
    let mut files: Vec<&str> = vec![&verdict.path];
    for issue in &issues {
        if !rules.iter().any(|known| known.id == issue.rule.id) {
            rules.push(&issue.rule);
        }
        if !files.contains(&issue.file.as_str()) {
            files.push(&issue.file);
        }
    }
    let results: Vec<Value> = issues
        .iter()
        .map(|issue| {
            let rule = rules.iter().position(|rule| rule.id == issue.rule.id).unwrap_or_default();
            let file = files.iter().position(|file| *file == issue.file).unwrap_or_default();
            result(issue, rule, file)
        })
        .collect();
    let tool = Tool::this();
    let driver = json!({
        "name": tool.name,
        "version": tool.version,
        "semanticVersion": tool.version,
        "rules": rules.iter().map(|rule| descriptor(rule, &issues)).collect::<Vec<_>>(),
    });
    let log = json!({
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [{
            "tool": { "driver": driver },
            "invocations": [{ "executionSuccessful": true }],
            "artifacts": files.iter().map(|f| json!({ "location": { "uri": uri(f) } })).collect::<Vec<_>>(),
            "results": results,
            "properties": { "passed": verdict.passed },
        }],
    });
    serde_json::to_string_pretty(&log).map(|text| text + "\n")
}

fn descriptor(rule: &Rule, issues: &[Issue]) -> Value {
    let worst = issues.iter().filter(|issue| issue.rule.id == rule.id).map(|issue| issue.level).max();
    json!({
        "id": rule.id,
        "shortDescription": { "text": rule.title },
        "fullDescription": { "text": rule.title },
        "help": { "text": rule.help, "markdown": rule.help },
        "defaultConfiguration": { "level": level(worst.unwrap_or(Severity::Warning)) },
    })
}

fn result(issue: &Issue, rule: usize, file: usize) -> Value {
    json!({
        "ruleId": issue.rule.id,
        "ruleIndex": rule,
        "level": level(issue.level),
        "message": { "text": issue.message },
        "locations": [{
            "physicalLocation": {
                "artifactLocation": { "uri": uri(&issue.file), "index": file },
                "region": { "startLine": 1 },
            },
        }],
        "partialFingerprints": { "gaplessIssue/v1": issue.fingerprint },
    })
}

fn level(severity: Severity) -> &'static str {
    match severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
        Severity::Info => "note",
    }
}

/// A file's name as a URI: reserved characters (RFC 3986) are percent-encoded, and an absolute path is a file URI.
fn uri(path: &str) -> String {
    let mut out = String::new();
    if path == "-" {
        return "stdin".to_owned();
    }
    if path.starts_with('/') {
        out.push_str("file://");
    }
    for byte in path.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => {
                out.push(byte as char);
            }
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::uri;

    #[test]
    fn names_of_files_become_uri_references() {
        assert_eq!(uri("runs/a b:c.pickle.gz"), "runs/a%20b%3Ac.pickle.gz");
        assert_eq!(uri("/tmp/ü.json"), "file:///tmp/%C3%BC.json");
        assert_eq!(uri("-"), "stdin");
    }
}
