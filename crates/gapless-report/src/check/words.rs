//! What every format of a verdict says of a figure.

use super::verdict::{Row, Unit, Unknown};
use crate::text::{bytes, percent};

pub(super) fn title(row: &Row) -> String {
    format!("device {} {}", row.device, row.figure)
}

pub(super) fn unknown_title(unknown: &Unknown) -> String {
    format!("device {} {}", unknown.device, unknown.figure)
}

/// Why a limit could not be checked.
#[must_use]
pub fn unknown_sentence(unknown: &Unknown) -> String {
    format!("device {}: {} is not known, because {}", unknown.device, unknown.figure, unknown.why)
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
