//! The subject of a verdict, beyond its figures: the file of each rank, the findings, and the holders of the peak.
//!
//! One report gives a subject here; a run of many ranks gives one in `ranks`, which depends on this module. This
//! module does not depend on it.

use crate::finding::Finding;
use crate::markdown;
use crate::model::Report;
use std::collections::BTreeMap;
use std::fmt::Write;

/// The run that was checked.
#[derive(Clone, Debug, Default)]
pub struct Subject {
    /// The file of each rank; empty for one file, which the verdict names.
    pub(crate) files: BTreeMap<u32, String>,
    pub(crate) noticed: Vec<Noticed>,
    /// The Markdown below the figures in a summary.
    pub(crate) details: String,
}

/// A finding and its place.
#[derive(Clone, Debug)]
pub(crate) struct Noticed {
    pub(crate) rank: Option<u32>,
    /// "device 1", "rank 3"; empty if there is only one place.
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

    /// The file that an issue of `rank` is about; `whole` if the rank has no file of its own.
    pub(crate) fn file<'a>(&'a self, rank: Option<u32>, whole: &'a str) -> &'a str {
        rank.and_then(|rank| self.files.get(&rank)).map_or(whole, String::as_str)
    }
}
