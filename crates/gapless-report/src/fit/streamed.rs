//! Weights that stream, in words: the call that runs it, and the least time of each pass.

use super::paint::{BOLD, DIM, RESET, paragraph, seconds};
use crate::headline::List;
use crate::text::{visible, width};
use gapless_fit::ask::{Question, Streamed, StreamedPass};
use gapless_trace::Bytes;
use gapless_trace::numbers::plural;
use std::fmt::Write;

const COLUMNS: [&str; 5] = ["pass", "over the link", "link", "work", "at least"];

/// The section of a text.
pub(super) fn text(out: &mut String, q: &Question, streamed: &Streamed) {
    let _ = writeln!(out, "\n  {BOLD}Weights that stream{RESET}");
    paragraph(out, "    ", "      ", &placed(streamed), "");
    let rows: Vec<[String; 5]> = streamed.passes.iter().map(|pass| row(q, pass)).collect();
    let wide = |column: usize| {
        let cells = rows.iter().map(|row| row[column].as_str()).chain([COLUMNS[column]]);
        cells.map(visible).max().unwrap_or(0)
    };
    let line = |cells: [&str; 5]| {
        let mut line = format!("    {:<1$}", cells[0], wide(0));
        for (column, cell) in cells.into_iter().enumerate().skip(1) {
            let _ = write!(line, "  {cell:>0$}", wide(column));
        }
        line
    };
    if visible(&line(COLUMNS)) <= width() {
        let _ = writeln!(out, "{DIM}{}{RESET}", line(COLUMNS));
        for row in &rows {
            let _ = writeln!(out, "{}", line(row.each_ref().map(String::as_str)));
        }
    } else {
        for row in &rows {
            let cells = COLUMNS.iter().zip(row).skip(1).map(|(name, cell)| format!("{name} {cell}"));
            let cells: Vec<String> = cells.collect();
            paragraph(out, "    ", "      ", &format!("{}: {}", row[0], cells.join(", ")), "");
        }
    }
    for note in notes(q, streamed) {
        paragraph(out, "    ", "      ", &note, DIM);
    }
}

/// The table of a page.
pub(super) fn table(q: &Question, streamed: &Streamed) -> List {
    List {
        title: "Weights that stream".to_owned(),
        columns: COLUMNS.map(str::to_owned).to_vec(),
        rows: streamed.passes.iter().map(|pass| row(q, pass).to_vec()).collect(),
    }
}

/// Where the weights are.
pub(super) fn placed(streamed: &Streamed) -> String {
    let Streamed { budget, weights, tables, .. } = streamed;
    let rest = if *tables > Bytes::ZERO {
        format!(", of which tables of {tables} stay there")
    } else {
        String::new()
    };
    let moves = weights.saturating_sub(*tables);
    if *budget >= moves {
        return format!("{weights} of weights{rest}: the card has room for {moves}, so nothing streams");
    }
    let call = format!("gapless.stream(model, budget=\"{}\")", written(*budget));
    format!("{call}: {weights} of weights in pinned host memory{rest}, at most {budget} on the card")
}

/// A size as `budget=` reads it.
fn written(size: Bytes) -> String {
    let units = [("GiB", 1u64 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    let unit = units.iter().find(|(_, unit)| size.0 >= *unit && size.0.is_multiple_of(*unit));
    unit.map_or_else(|| size.0.to_string(), |(name, unit)| format!("{}{name}", size.0 / unit))
}

fn row(q: &Question, pass: &StreamedPass) -> [String; 5] {
    let each = if q.is_picture() {
        format!("{} of {} pixels", plural(q.run.batch, "picture"), pass.length)
    } else {
        format!("{} x {}", q.run.batch, plural(pass.length, "token"))
    };
    let work = pass.work.map_or_else(|| "unknown".to_owned(), seconds);
    [each, pass.moved.to_string(), seconds(pass.link), work, seconds(pass.least())]
}

/// The basis of the figures, and the budget from which a pass loses nothing.
pub(super) fn notes(q: &Question, streamed: &Streamed) -> Vec<String> {
    let mut notes = Vec::new();
    let Streamed { budget, weights, tables, widest, link, passes } = streamed;
    let streams = *budget < weights.saturating_sub(*tables);
    for pass in passes.iter().take(usize::from(streams)) {
        match pass.hidden_from {
            Some(enough) if enough > *budget => {
                notes.push(format!(
                    "the work of {} hides the link from a budget of {enough} on",
                    row(q, pass)[0]
                ));
            }
            Some(_) => notes.push(format!("the work of {} hides the link", row(q, pass)[0])),
            None => {}
        }
    }
    if streams && widest > budget {
        notes.push(format!(
            "the largest weight has {widest}, more than the budget: the card reads it from the host in each pass"
        ));
    }
    if weights.0 > q.cluster.host_memory {
        let host = Bytes(q.cluster.host_memory);
        notes.push(format!("the host has {host} for the weights: --host-memory says how much yours has"));
    }
    let mut times = format!("times are lower bounds, the link at {:.0} GB/s", link / 1e9);
    times += if passes.iter().any(|pass| pass.work.is_some()) {
        ", the work at 60 % of the card's peak or 70 % of its memory's speed"
    } else {
        "; the work of this kind of model is not modelled"
    };
    notes.push(times);
    notes
}
