//! What a verdict is about, beyond its figures: the file of each rank, what was noticed, and what holds the peak.
//!
//! One report gives a subject here; a run of many ranks gives one in `ranks`, which knows this module and is not known
//! to it.

use crate::finding::Finding;
use crate::markdown;
use crate::model::Report;
use std::collections::BTreeMap;
use std::fmt::Write;

/// What was checked.
#[derive(Clone, Debug, Default)]
pub struct Subject {
    /// The file of each rank; empty for one file, which the verdict names.
    pub(crate) files: BTreeMap<u32, String>,
    pub(crate) noticed: Vec<Noticed>,
    /// What stands below the figures in a summary, in Markdown.
    pub(crate) details: String,
}

/// A finding, and where it was made.
#[derive(Clone, Debug)]
pub(crate) struct Noticed {
    pub(crate) rank: Option<u32>,
    /// "device 1", "rank 3"; empty where there is only one place.
    pub(crate) place: String,
    pub(crate) finding: Finding,
}

impl Subject {
    /// One run.
    #[must_use]
    pub fn of(report: &Report) -> Subject {
        let many = report.devices.len() > 1;
        let noticed = |finding: &Finding| Noticed {
            rank: None,
            place: finding.device.filter(|_| many).map_or_else(String::new, |d| format!("device {d}")),
            finding: finding.clone(),
        };
        let mut details = String::new();
        for d in &report.devices {
            let _ = write!(details, "\n{}", markdown::holders(d, many));
        }
        let title = match report.findings.len() {
            0 => "No findings".to_owned(),
            1 => "1 finding".to_owned(),
            many => format!("{many} findings"),
        };
        let _ = write!(details, "\n{}", markdown::details(&title, &markdown::findings(report)));
        Subject { files: BTreeMap::new(), noticed: report.findings.iter().map(noticed).collect(), details }
    }

    /// The file that an issue of `rank` is about; `whole` where there is no file of that rank.
    pub(crate) fn file<'a>(&'a self, rank: Option<u32>, whole: &'a str) -> &'a str {
        rank.and_then(|rank| self.files.get(&rank)).map_or(whole, String::as_str)
    }
}
