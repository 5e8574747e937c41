//! Replays for a terminal: a row of figures and a row of bars for each allocator, and remarks below them.

use super::model::{Replay, Replayed, RunInfo};
use crate::text::layout::{facts, width};
use crate::text::table::{Align, Table};
use crate::text::{
    BOLD, CYAN, DIM, GREEN, RED, RESET, YELLOW, bars, bytes, clean, count, indent, percent, plural, shorten,
};
use std::fmt::Write;

use Align::{Left, Right};

/// Said below a table that has driver times.
pub(super) const TIMES: &str = "Driver time is an estimate, from calls measured on one H200.";
/// Said below a table that has stranded bytes.
pub(super) const STRANDED: &str = "Stranded bytes are those at peak allocated.";

/// The replays as text.
#[must_use]
pub fn render(replay: &Replay) -> String {
    let mut out = String::new();
    crate::text::source::render(&mut out, &replay.source, None);
    for device in replay.devices() {
        one(&mut out, replay, device);
    }
    out
}

fn one(out: &mut String, replay: &Replay, d: &Replayed) {
    let mut known = vec![plural(d.events, "event"), plural(d.allocations, "allocation")];
    known.push(match replay.capacity {
        Some(capacity) => format!("on a card of {}", bytes(capacity)),
        None => "on a card of unlimited size".to_owned(),
    });
    out.push('\n');
    facts(out, &format!("{BOLD}Device {}{RESET}  ", d.device), &known);
    out.push('\n');
    let hints = table(out, d);
    let _ = writeln!(out);
    for run in &d.runs {
        let who = if d.runs.len() > 1 { format!("{}: ", shorten(&label(run), 60)) } else { String::new() };
        for remark in remarks(run, replay.capacity.is_some()) {
            let style = match remark.tone {
                Tone::Good => GREEN,
                Tone::Care => YELLOW,
                Tone::Bad => RED,
            };
            indent(
                out,
                "  ",
                &format!("{style}{}{RESET} {}", remark.mark, clean(&format!("{who}{}", remark.text))),
                "",
            );
        }
    }
    indent(out, "  ", &hints, DIM);
}

/// Columns that are shown only if some allocator has a value in them.
struct Columns {
    retries: bool,
    oom: bool,
    min_capacity: bool,
}

/// Writes the table; the words to put below it.
fn table(out: &mut String, d: &Replayed) -> String {
    let columns = Columns {
        retries: d.runs.iter().any(|r| r.retries > 0),
        oom: d.runs.iter().any(|r| r.oom.is_some()),
        min_capacity: d.runs.iter().any(|r| r.min_capacity.is_some()),
    };
    let mut align = vec![Left];
    align.resize(12, Right);
    // Segments, stranded bytes and the driver's time are details, so narrow terminals leave them out;
    // --format json has them.
    let mut table = Table::new(&align).names(0, 10).spare(&[5, 4, 7]);
    let heads = |first: [&str; 8], retries: &str, oom: &str, least: &str| {
        let mut cells: Vec<String> = first.iter().map(|&c| c.to_owned()).collect();
        for (shown, text) in [(columns.retries, retries), (columns.oom, oom), (columns.min_capacity, least)] {
            if shown {
                cells.push(text.to_owned());
            }
        }
        cells
    };
    let top = ["", "peak", "peak", "frag-", "", "", "device", "driver"];
    let head = ["allocator", "reserved", "allocated", "mented", "stranded", "segments", "calls", "time"];
    table.row(DIM, heads(top, "", "out of", "smallest"));
    table.row(DIM, heads(head, "retries", "memory", "card"));
    let most = d.runs.iter().map(|r| r.peak_reserved).max().unwrap_or(0);
    let mut below = Vec::new();
    for run in &d.runs {
        let figures = [
            &clean(&run.allocator) as &str,
            &bytes(run.peak_reserved),
            &bytes(run.peak_allocated),
            &percent(run.fragmentation),
            &bytes(run.stranded),
            &count(run.segments),
            &format!("{}/{}", count(run.device_allocs), count(run.device_frees)),
            &driver_time(run.driver_time_ms),
        ];
        let oom =
            run.oom.map_or_else(|| "no".to_owned(), |oom| format!("event {}", count(u64::from(oom.event))));
        let least = run.min_capacity.map_or_else(String::new, bytes);
        table.row("", heads(figures, &count(run.retries), &oom, &least));
        // The curve has three tenths of the line, the settings the rest.
        let columns = width() * 3 / 10;
        let curve = bars(&run.curve.reserved, most, columns);
        let words = shorten(&clean(&settings(run)), width() - columns - 6);
        below.push(format!("{CYAN}{curve}{RESET}  {DIM}{words}{RESET}"));
    }
    // Settings are longer than any column: they stand under the figures, beside the curve.
    let mut rows = String::new();
    table.render(&mut rows, "  ");
    let mut below = below.into_iter();
    for (i, row) in rows.lines().enumerate() {
        let _ = writeln!(out, "{row}");
        if i >= 2 {
            let _ = writeln!(out, "    {}", below.next().unwrap_or_default());
        }
    }
    let shown = table.shown("  ");
    let is_shown = |column: usize| shown.get(column).copied().unwrap_or(false);
    let mut hints = Vec::new();
    if is_shown(7) {
        hints.push(TIMES.to_owned());
    }
    if is_shown(4) {
        hints.push(STRANDED.to_owned());
    }
    let left_out: Vec<&str> = [(5, "segments"), (4, "stranded bytes"), (7, "driver time")]
        .into_iter()
        .filter(|(column, _)| !is_shown(*column))
        .map(|(_, name)| name)
        .collect();
    if !left_out.is_empty() {
        hints.push(format!("No room for {}: --format json has all figures.", left_out.join(", ")));
    }
    hints.join(" ")
}

/// The settings, or a description of an allocator that has none.
pub(super) fn settings(run: &RunInfo) -> String {
    let is_torch = run.allocator.starts_with("torch");
    match (run.allocator.as_str(), run.settings.as_str()) {
        (_, "") if run.recorded => "as recorded: the defaults".to_owned(),
        (_, settings) if run.recorded => format!("as recorded: {settings}"),
        (_, "") if is_torch => "the defaults".to_owned(),
        ("plan", _) => "the floor: the run packed, every lifetime known".to_owned(),
        ("gapless", "") => "the Gapless allocator, on a simulated card".to_owned(),
        (name, "") => {
            let model = gapless_replay::models::MODELS.iter().find(|model| model.name == name);
            model.map_or(String::new(), |model| model.what.to_owned())
        }
        (_, settings) => settings.to_owned(),
    }
}

/// The name of `run` in a sentence.
pub(super) fn label(run: &RunInfo) -> String {
    match run.settings.as_str() {
        "" => run.allocator.clone(),
        settings => format!("{}:{settings}", run.allocator),
    }
}

/// An estimate, so it is marked as one.
pub(crate) fn driver_time(ms: f64) -> String {
    format!("~{}", crate::text::duration((ms * 1000.0) as u64))
}

/// A remark on a run that no figure shows.
pub(super) struct Remark {
    pub(super) mark: &'static str,
    pub(super) tone: Tone,
    pub(super) text: String,
}

#[derive(Clone, Copy)]
pub(super) enum Tone {
    Good,
    Care,
    Bad,
}

/// `carded`: on a card of a given size.
pub(super) fn remarks(run: &RunInfo, carded: bool) -> Vec<Remark> {
    let mut all = Vec::new();
    let mut say = |mark, tone, text| all.push(Remark { mark, tone, text });
    if let Some(e) = &run.exactness {
        let right = count(e.placed - e.misplaced);
        let mut text =
            format!("replayed {right} of {} placements at their recorded addresses", count(e.placed));
        if run.exact == Some(true) {
            say("exact", Tone::Good, text + ", and every device call");
        } else {
            if let Some(event) = e.first_event {
                let _ = write!(text, ", the first elsewhere at event {}", count(u64::from(event)));
            }
            if e.call_differences > 0 {
                let calls = plural(e.call_differences, "device call");
                let _ = write!(text, "; {calls} made by only one of the two");
            }
            say("not exact", Tone::Care, text + ": the figures are those of a simulation");
        }
    }
    if run.takes_a_share && run.oom.is_none() && !carded {
        let text = "it takes a share of the card at once, so it was replayed on the smallest card that serves the run";
        say("note", Tone::Care, text.to_owned());
    }
    if let Some(oom) = run.oom.filter(|oom| oom.requested == 0) {
        let text =
            format!("it takes its memory before the first request, and the card has {}", bytes(oom.free));
        say("out of memory", Tone::Bad, text);
    } else if let Some(oom) = &run.oom {
        let text = format!(
            "event {} asked for {}, which takes {} from the device: {} free on it, the largest hole {} of {} held",
            count(u64::from(oom.event)),
            bytes(oom.requested),
            bytes(oom.asked),
            bytes(oom.free),
            bytes(oom.largest_hole),
            bytes(oom.reserved)
        );
        say("out of memory", Tone::Bad, text);
    }
    if run.served > 0 {
        say("served", Tone::Good, format!("{} that failed in the recording", plural(run.served, "request")));
    }
    all
}
