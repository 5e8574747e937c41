//! Many ranks of one run: their figures side by side, the odd one out and its cause, and their first divergence.
//!
//! [`Summary`] holds one device of one rank in bounded size, whatever the size of the trace. [`Run`] has the
//! summaries of all files. [`report`] groups replicas ([`groups`]), compares each rank with its peers ([`odd`]) and
//! gives the JSON contract `gapless.ranks/1`. [`text`] and [`markdown`] show it, [`findings`] names the odd ranks.
//! [`diff`] compares two such runs ([`diff_page`] shows that), [`check`] holds one against budgets, [`advice`] finds
//! one setting for all, [`shown`] the ranks that a page has whole. File names become rank numbers in [`names`].

pub mod advice;
pub mod check;
pub mod diff;
pub mod diff_page;
pub mod findings;
pub mod groups;
pub mod markdown;
pub mod model;
pub mod names;
pub mod odd;
pub mod summary;

mod assemble;
mod cut;
mod divergence;
mod evidence;
mod excess;
mod held;
mod replicas;
mod robust;
mod shown;
mod sizes;
mod stretches;
mod text;

pub use assemble::report;
pub use model::Ranks;
pub use shown::shown;
pub use summary::Summary;
pub use text::text;

/// The contents of one file: its rank and the summaries of its devices.
#[derive(Clone, Debug, Default)]
pub struct RankFile {
    /// The user's name of the file.
    pub file: String,
    /// From the file's name, its content, or its position.
    pub rank: u32,
    /// In the order of the trace; empty if the file could not be read.
    pub devices: Vec<Summary>,
    /// The reason why the file could not be read.
    pub error: Option<String>,
}

/// All files of a run, by rank.
#[derive(Clone, Debug, Default)]
pub struct Run {
    /// The user's name of the run.
    pub path: String,
    pub files: Vec<RankFile>,
    /// The number of ranks by the files.
    pub world_size: Option<u32>,
    /// The way in which ranks got their numbers, in a sentence.
    pub numbering: String,
    /// Files of a folder that were left out: no traces, or the older part of a recording.
    pub skipped: Vec<String>,
}

/// The ranks as JSON: schema `gapless.ranks/1`.
///
/// # Errors
/// Never for ranks; serde's signature.
pub fn json(ranks: &Ranks) -> serde_json::Result<String> {
    serde_json::to_string(ranks).map(|text| text + "\n")
}
