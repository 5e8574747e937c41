//! A plan for people: at most 80 columns.

use crate::answer::{Answer, Group};
use crate::solve::Plan;
use crate::step::Step;
use gapless_trace::Bytes;
use std::fmt::Write;

const ROWS: usize = 12;

/// A plan as an answer, with its text.
#[must_use]
pub fn told(step: &Step, budget: u64, plan: &Plan, frontier: &[(u64, Plan)]) -> Answer {
    let mut answer = Answer::new(step, budget, plan, frontier);
    answer.text = text(&answer);
    answer
}

fn text(answer: &Answer) -> String {
    let mut out = String::new();
    let verdict = match (answer.fits, answer.bound_us) {
        (true, _) => "fits",
        (false, Some(_)) => "no plan found, and no proof that there is none",
        (false, None) => "does not fit, and no plan of this kind does",
    };
    let _ = writeln!(out, "budget {}: {verdict}", Bytes(answer.budget));
    let _ = writeln!(
        out,
        "  peak      {:<10} {} with everything kept; at least {}",
        Bytes(answer.peak).to_string(),
        Bytes(answer.kept.peak),
        Bytes(answer.least)
    );
    let more = share(answer.time_us - answer.kept.time_us, answer.kept.time_us);
    let _ = writeln!(
        out,
        "  step      {:<10} {} with everything kept: {more} more",
        millis(answer.time_us),
        millis(answer.kept.time_us)
    );
    if let Some(bound) = answer.bound_us {
        let _ = writeln!(
            out,
            "  bound     {:<10} no such plan is faster: at most {} is to be had",
            millis(bound),
            share(answer.time_us - bound, answer.time_us)
        );
    }
    let can: u64 = answer.groups.iter().filter(|group| group.stays.is_none()).map(|group| group.bytes).sum();
    let _ = writeln!(
        out,
        "  dropped   {:<10} of {} that can be; {} operators run again",
        Bytes(answer.dropped_bytes).to_string(),
        Bytes(can),
        answer.replays.len()
    );
    rows(&mut out, "Dropped, and made again in backward", answer, |group| group.dropped > 0);
    rows(&mut out, "Kept", answer, |group| group.dropped == 0);
    if !answer.frontier.is_empty() {
        let _ = writeln!(
            out,
            "\n  Other budgets\n    {:>10}  {:>10}  {:>9}  {:>9}",
            "budget", "peak", "step", "bound"
        );
        for point in &answer.frontier {
            let bound = point.bound_us.map_or("-".to_owned(), millis);
            let time = if point.fits { millis(point.time_us) } else { "-".to_owned() };
            let (budget, peak) = (Bytes(point.budget).to_string(), Bytes(point.peak).to_string());
            let _ = writeln!(out, "    {budget:>10}  {peak:>10}  {time:>9}  {bound:>9}");
        }
    }
    out
}

fn rows(out: &mut String, title: &str, answer: &Answer, of: impl Fn(&Group) -> bool) {
    let found: Vec<&Group> = answer.groups.iter().filter(|group| of(group)).collect();
    if found.is_empty() {
        return;
    }
    let _ = writeln!(out, "\n  {title}  most memory first");
    let _ = writeln!(out, "    {:>10}  {:>9}  {:>11}  made by", "memory", "tensors", "per GiB");
    for group in found.iter().take(ROWS) {
        let (bytes, count) = match group.dropped {
            0 => (group.bytes, group.values.to_string()),
            dropped => (group.dropped_bytes, format!("{dropped} of {}", group.values)),
        };
        let price = group.stays.map_or_else(
            || millis(group.us_per_gib),
            |why| {
                if why == "too small" { "small".to_owned() } else { "cannot".to_owned() }
            },
        );
        let name = group.op.trim_start_matches("aten.").trim_end_matches(".default");
        let place = if group.place.is_empty() { "the model" } else { &group.place };
        let mut made = format!("{name} in {place}");
        if made.len() > 38 {
            made.truncate(
                made.char_indices().map(|(at, _)| at).take_while(|&at| at <= 35).last().unwrap_or(0),
            );
            made.push_str("...");
        }
        let _ = writeln!(out, "    {:>10}  {count:>9}  {price:>11}  {made}", Bytes(bytes).to_string());
    }
    if found.len() > ROWS {
        let rest: u64 = found[ROWS..].iter().map(|group| group.bytes).sum();
        let _ = writeln!(
            out,
            "    {:>10}  in {} more kinds: --format json lists all",
            Bytes(rest).to_string(),
            found.len() - ROWS
        );
    }
}

fn millis(us: f64) -> String {
    let ms = us / 1e3;
    if ms >= 100.0 {
        format!("{ms:.0} ms")
    } else {
        format!("{ms:.3} ms").chars().take(5).collect::<String>() + " ms"
    }
}

fn share(part: f64, whole: f64) -> String {
    if whole > 0.0 { format!("{:.1} %", part / whole * 100.0) } else { "0 %".to_owned() }
}
