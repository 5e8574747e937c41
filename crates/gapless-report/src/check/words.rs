//! Sentences on a figure that every format of a verdict shares.

use super::verdict::{Row, Unit, Unknown};
use crate::text::{bytes, percent};

pub(super) fn title(row: &Row) -> String {
    format!("{} {}", place(row.rank, row.device), row.figure)
}

pub(super) fn unknown_title(unknown: &Unknown) -> String {
    format!("{} {}", place(unknown.rank, unknown.device), unknown.figure)
}

/// "rank 3", or "device 0" if there is only one rank.
fn place(rank: Option<u32>, device: u32) -> String {
    rank.map_or_else(|| format!("device {device}"), |rank| format!("rank {rank}"))
}

/// The sentence on a limit that could not be checked.
#[must_use]
pub fn unknown_sentence(unknown: &Unknown) -> String {
    let place = place(unknown.rank, unknown.device);
    format!("{place}: {} is not known, because {}", unknown.figure, unknown.why)
}

pub(super) fn sentence(row: &Row) -> String {
    format!(
        "{}: {} against a limit of {} ({}){}",
        title(row),
        value(row.unit, row.value),
        value(row.unit, row.limit),
        row.against,
        excess(row)
    )
}

pub(super) fn excess(row: &Row) -> String {
    match row.unit {
        Unit::Bytes if !row.passed => format!(", {} too much", bytes((row.value - row.limit).ceil() as u64)),
        _ => String::new(),
    }
}

pub(super) fn value(unit: Unit, value: f64) -> String {
    match unit {
        Unit::Bytes => bytes(value as u64),
        Unit::Share => percent(value),
    }
}
