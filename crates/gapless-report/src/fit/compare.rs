//! Two answers, and the components in which they differ: the contract `gapless.fit-compare/1` and its text.

use super::model::Fit;
use super::paint::{BOLD, DIM, RESET, clean, paragraph, words};
use super::{COMPARE_SCHEMA, sorted};
use crate::text::{shorten, width};
use gapless_fit::ask::{Estimate, Question};
use gapless_trace::Bytes;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;

/// One of the two answers.
#[derive(Clone, Copy, Debug)]
pub struct Side<'a> {
    /// The options as the user gave them.
    pub asked: &'a str,
    pub question: &'a Question,
    pub estimate: &'a Estimate,
    pub fits: bool,
}

/// Two answers to compare.
#[derive(Clone, Copy, Debug)]
pub struct Comparison<'a> {
    pub a: Side<'a>,
    pub b: Side<'a>,
}

#[derive(Serialize)]
struct Contract {
    schema: &'static str,
    a: Fit,
    b: Fit,
    difference: BTreeMap<&'static str, i64>,
}

impl Comparison<'_> {
    /// As JSON: schema `gapless.fit-compare/1`.
    ///
    /// # Errors
    /// Never for two answers; serde's signature.
    pub fn json(&self) -> serde_json::Result<String> {
        let of = |side: &Side<'_>| Fit::of_estimate(side.question, Some(side.estimate), side.fits);
        let rows = rows(self.a.estimate, self.b.estimate);
        sorted(&Contract {
            schema: COMPARE_SCHEMA,
            a: of(&self.a),
            b: of(&self.b),
            difference: rows.iter().map(|(name, a, b)| (*name, *b as i64 - *a as i64)).collect(),
        })
    }

    /// As styled text.
    #[must_use]
    pub fn text(&self) -> String {
        let Comparison { a, b } = self;
        let rows = rows(a.estimate, b.estimate);
        let mut out = String::new();
        for (letter, side) in [("A", a), ("B", b)] {
            let (q, e) = (side.question, side.estimate);
            let lead = format!("{BOLD}{letter}  {}{RESET}  ", clean(side.asked));
            paragraph(&mut out, &lead, "   ", &clean(&q.model.name), DIM);
            paragraph(&mut out, "   ", "     ", &q.headline(), "");
            let fits = if e.verdict.fits() { "fits" } else { "does not fit" };
            let where_ = format!("{fits} on {}; the peak is in {}", q.gpu_name, clean(&e.peak_at.words()));
            paragraph(&mut out, "   ", "     ", &where_, "");
        }
        let names = width().saturating_sub(38).clamp(12, 26);
        let _ = writeln!(out, "\n  {BOLD}{:<names$} {:>10} {:>10} {:>11}{RESET}", "", "A", "B", "B - A");
        let line = |out: &mut String, name: &str, a: u64, b: u64, style: &str| {
            let name = shorten(name, names);
            let _ = writeln!(
                out,
                "  {style}{name:<names$} {:>10} {:>10} {:>11}{RESET}",
                Bytes(a).to_string(),
                Bytes(b).to_string(),
                signed(a, b)
            );
        };
        line(&mut out, "process total", a.estimate.process_total().0, b.estimate.process_total().0, BOLD);
        line(&mut out, "peak reserved", a.estimate.peak_reserved.0, b.estimate.peak_reserved.0, "");
        line(&mut out, "peak allocated", a.estimate.peak_allocated.0, b.estimate.peak_allocated.0, "");
        for (name, x, y) in &rows {
            line(&mut out, &format!("  {}", words(name)), *x, *y, if x == y { DIM } else { "" });
        }
        let moved = b.estimate.peak_allocated.0 as i64 - a.estimate.peak_allocated.0 as i64;
        if let Some((name, x, y)) = rows.first().filter(|(_, x, y)| x != y) {
            let total = signed(0, moved.unsigned_abs()).replace('+', if moved < 0 { "-" } else { "+" });
            let text = format!("Of {total} at the peak, {} is {}.", signed(*x, *y), words(name));
            out.push('\n');
            paragraph(&mut out, "  ", "  ", &text, DIM);
        }
        if a.estimate.peak_at.phase != b.estimate.peak_at.phase {
            let text = format!(
                "The peak moves from {} to {}: components are those alive at each one's own peak.",
                a.estimate.peak_at.phase, b.estimate.peak_at.phase
            );
            paragraph(&mut out, "  ", "  ", &text, DIM);
        }
        out
    }
}

/// Components of both, the largest difference first.
fn rows(a: &Estimate, b: &Estimate) -> Vec<(&'static str, u64, u64)> {
    let mut rows: Vec<(&'static str, u64, u64)> =
        a.components.iter().map(|(name, bytes)| (*name, *bytes, 0)).collect();
    for (name, bytes) in &b.components {
        match rows.iter_mut().find(|(n, ..)| n == name) {
            Some(row) => row.2 = *bytes,
            None => rows.push((name, 0, *bytes)),
        }
    }
    rows.sort_by_key(|(_, a, b)| std::cmp::Reverse(a.abs_diff(*b)));
    rows
}

fn signed(a: u64, b: u64) -> String {
    match b.cmp(&a) {
        std::cmp::Ordering::Equal => "same".to_owned(),
        std::cmp::Ordering::Greater => format!("+{}", Bytes(b - a)),
        std::cmp::Ordering::Less => format!("-{}", Bytes(a - b)),
    }
}
