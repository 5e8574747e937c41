//! A post-mortem for a terminal, on one screen: the request, the cause of the failure, the free memory by pool, the
//! holders of the rest, and settings that would have served it.

use super::{Autopsy, CauseInfo, LimitKind};
use crate::text::layout::{command, shorten, width};
use crate::text::table::{Align, Table};
use crate::text::{
    BOLD, CYAN, DIM, GREEN, RED, RESET, YELLOW, bytes, clean, count, duration, indent, plural,
};
use std::fmt::Write;

use Align::{Left, Right};

/// Rows of the table of free memory.
const POOLS: usize = 6;

/// The post-mortem as text.
#[must_use]
pub fn render(a: &Autopsy) -> String {
    let mut out = String::new();
    crate::text::source::render(&mut out, &a.source, None);
    asked(&mut out, a);
    why(&mut out, a);
    free(&mut out, a);
    if !a.holders.is_empty() {
        let _ = writeln!(out, "\n  {BOLD}Who held the rest{RESET}");
        crate::advice::table_of_holders(&mut out, &a.holders);
    }
    if let Some(batch) = &a.batch {
        crate::advice::batch_share(&mut out, batch);
    }
    survivors(&mut out, a);
    out
}

fn asked(out: &mut String, a: &Autopsy) {
    let mut when = format!("event {}", count(u64::from(a.event)));
    if let Some(us) = a.when.time_us {
        let _ = write!(when, ", {}", duration(us));
    }
    if let Some(step) = a.when.step {
        let _ = write!(when, ", step {step}");
    }
    let _ = writeln!(
        out,
        "\n{RED}Out of memory{RESET} {BOLD}{} asked for{RESET}  {DIM}device {}, {when}{RESET}",
        bytes(a.asked),
        a.device
    );
    if !a.asked_by.is_empty() {
        let _ = writeln!(out, "  by {}", shorten(&clean(&a.asked_by), width() - 5));
    }
    if a.earlier > 0 {
        indent(out, "  ", &format!("{} failed before; this is the last", plural(a.earlier, "request")), DIM);
    }
}

fn why(out: &mut String, a: &Autopsy) {
    let usable = bytes(a.limit.usable);
    let limit = match (a.limit.kind, a.limit.below) {
        (LimitKind::Card, _) => format!("the process could use {usable} of the card"),
        (LimitKind::Given, _) => format!("the process could use {usable}, as given with --capacity"),
        (LimitKind::Cap, Some(below)) if below > a.limit.usable => format!(
            "{} was free on the device, so a cap of the process refused (set_per_process_memory_fraction, or another limit): it lies between {usable} and {}",
            bytes(a.device_free),
            bytes(below)
        ),
        (LimitKind::Cap, _) => {
            format!(
                "{} was free on the device, so a cap of the process refused: {usable}",
                bytes(a.device_free)
            )
        }
    };
    let _ = writeln!(out, "\n  {BOLD}Why{RESET}");
    let cause = match a.cause {
        CauseInfo::TooLarge { at_least: 0, at_most } => format!(
            "too much at once, as far as the cap is known: {} in use and {} more, up to {} over it even with every gap closed",
            bytes(a.active),
            bytes(a.asked),
            bytes(at_most)
        ),
        CauseInfo::TooLarge { at_least, at_most } => {
            let missing = if at_least == at_most {
                bytes(at_most)
            } else {
                format!("{} to {}", bytes(at_least), bytes(at_most))
            };
            format!(
                "too much at once: {} in use and {} more; with every gap closed {missing} would still be missing",
                bytes(a.active),
                bytes(a.asked)
            )
        }
        CauseInfo::Fragmented { free, largest } => format!(
            "fragmentation: {} was held and free, in pieces; the largest where the request could go was {}, and no {} more could be taken",
            bytes(free),
            bytes(largest),
            bytes(a.segment)
        ),
        CauseInfo::Elsewhere { largest } => format!(
            "a free block of {} existed, but it belonged to another stream, pool or size class",
            bytes(largest)
        ),
    };
    indent(out, "    ", &cause, "");
    indent(out, "    ", &limit, "");
    let _ = writeln!(
        out,
        "    {DIM}{} reserved, {} in use, {} free on the device{RESET}",
        bytes(a.reserved),
        bytes(a.active),
        bytes(a.device_free)
    );
}

fn free(out: &mut String, a: &Autopsy) {
    if a.cached.is_empty() {
        return;
    }
    let aside = "<- marks where the request had to go";
    let _ = writeln!(out, "\n  {BOLD}What was free where{RESET}  {DIM}{aside}{RESET}");
    let align = [Left, Left, Right, Right, Right, Right, Left];
    let mut table = Table::new(&align).names(0, 12).names(1, 8);
    let head = ["pool", "stream", "reserved", "in use", "free", "largest free", ""];
    table.row(DIM, head.iter().map(|&h| h.to_owned()).collect());
    for p in a.cached.iter().take(POOLS) {
        let own = p.pool == a.pool && p.class == a.class && p.stream == a.stream;
        table.row(
            "",
            vec![
                format!("{} {}", p.pool, p.class),
                gapless_trace::StreamId(p.stream).to_string(),
                bytes(p.reserved),
                bytes(p.active),
                bytes(p.losses.external),
                bytes(p.losses.largest_gap),
                if own { "<-".to_owned() } else { String::new() },
            ],
        );
    }
    table.render(out, "    ");
    if a.cached.len() > POOLS {
        let more = a.cached.len() - POOLS;
        let _ = writeln!(out, "    {DIM}and {more} more: --format json lists all{RESET}");
    }
}

fn survivors(out: &mut String, a: &Autopsy) {
    let _ = writeln!(out, "\n  {BOLD}What would have served it{RESET}");
    for s in &a.survivors {
        command(out, "    ", &clean(&s.line), CYAN);
        let retries = plural(s.retries, "retry");
        let needs = s.needs.as_ref().map_or_else(String::new, |v| format!(", needs torch {v} or later"));
        let _ = writeln!(out, "      {DIM}peak reserved {}, {retries}{needs}{RESET}", bytes(s.peak_reserved));
    }
    if a.survivors.is_empty() {
        let others = a.tried.saturating_sub(1);
        let text = format!("none of {} replayed under the same limit", plural(others, "other setting"));
        indent(
            out,
            "    ",
            &format!("{RED}nothing{RESET}: {text}; hold less at once, or raise the limit"),
            "",
        );
    }
    if a.tried < a.planned {
        let text = format!("stopped after {} of {} settings", count(a.tried), count(a.planned));
        indent(out, "    ", &text, YELLOW);
    }
    let (mark, style, text) = if a.reproduced {
        (
            "reproduced",
            GREEN,
            "the model, with the run's own settings under the same limit, fails at the same request",
        )
    } else {
        (
            "not reproduced",
            YELLOW,
            "the model serves the request with the run's own settings: another process may have held memory, or the limit was lower; \
             --capacity BYTES names it",
        )
    };
    indent(out, "    ", &format!("{style}{mark}{RESET}: {text}"), "");
}
