//! Odd ranks as findings: code scanners and summaries of pull requests show them.

use super::model::{OddRank, Ranks};
use super::odd::Why;
use crate::finding::{Finding, Severity};
use crate::text::bytes;

const CODE: &str = "GAP601";

/// A finding for each odd rank, in the order of the report: the most bytes first.
#[must_use]
pub fn findings(ranks: &Ranks) -> Vec<(u32, Finding)> {
    ranks.odd_ranks.iter().map(|odd| (odd.rank, finding(ranks, odd))).collect()
}

fn finding(ranks: &Ranks, odd: &OddRank) -> Finding {
    let beyond = |holder: &super::model::OddHolder| {
        let (more, peers) = (bytes(holder.bytes), bytes(holder.peer_bytes));
        format!("{more} more than its peers ({peers}): {}, {}", holder.kind, holder.label)
    };
    let mut evidence: Vec<String> = odd.holders.iter().map(beyond).collect();
    evidence.extend(odd.also.iter().map(|why| format!("also: {}", why.word())));
    Finding {
        code: CODE.to_owned(),
        severity: if odd.why == Why::OutOfMemory { Severity::Error } else { Severity::Warning },
        headline: format!("{}: {}", odd.why.word(), odd.sentence),
        evidence,
        help: help(ranks, odd),
        suggestion: None,
        device: Some(odd.device),
        bytes: odd.bytes,
    }
}

/// The next step for this cause.
fn help(ranks: &Ranks, odd: &OddRank) -> String {
    let row = ranks.ranks.iter().find(|row| row.rank == odd.rank && row.device == Some(odd.device));
    let file = row.map_or("FILE", |row| row.file.as_str());
    match odd.why {
        Why::OutOfMemory => format!("`gapless oom {file}` shows why the request failed"),
        Why::Settings => "give every rank the same PYTORCH_ALLOC_CONF".to_owned(),
        Why::Leak => format!("`gapless report {file}` names the line whose memory grows"),
        Why::ExtraBuffer => {
            "free it before the steps, or move it to the host; rank 0 often gathers, logs or evaluates"
                .to_owned()
        }
        Why::LargerBatch => {
            "distribute samples by their length, so that every rank gets about as many tokens".to_owned()
        }
        Why::Straggler => {
            "profile this rank: its memory is that of the others, so look at its input and its GPU".to_owned()
        }
        Why::FewerSteps => "read the log of this rank: it stopped, or was recorded, earlier".to_owned(),
    }
}
