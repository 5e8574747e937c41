//! An answer for people: the verdict first, then the account, then the step over time, then plans.

use super::paint::{
    BOLD, CYAN, DIM, GREEN, RED, RESET, YELLOW, bar_width, billions, clean, paragraph, seconds, style, words,
};
use super::{streamed, why};
use crate::text::{plural, shorten, visible, width};
use gapless_fit::ask::{Answer, Estimate, Method, Plans, Question, Row, Shape, at_batch};
use gapless_fit::formulas::Term;
use gapless_fit::settings::Engine;
use gapless_fit::simulated::Verdict;
use gapless_fit::tune::LargestBatch;
use gapless_trace::Bytes;
use std::fmt::Write;

/// The answer as styled text. `terms` come last; if there are none, `hint` adds further options to try.
#[must_use]
pub fn text(q: &Question, answer: &Answer, terms: Option<&[Term]>, hint: bool) -> String {
    let mut out = String::new();
    let parameters = answer
        .estimate
        .as_ref()
        .map(|e| e.parameters)
        .or_else(|| gapless_fit::parameters::count(&q.architecture))
        .unwrap_or(0);
    let shown = match &answer.largest {
        Some(Some(largest)) => at_batch(q, largest.batch),
        _ => q.clone(),
    };
    head(&mut out, &shown, parameters, answer.estimate.as_ref().map_or(0, |e| e.blocks));
    if let Some(largest) = &answer.largest {
        largest_batch(&mut out, q, largest.as_ref());
    }
    if let Some(estimate) = &answer.estimate {
        account(&mut out, &shown, estimate, answer);
    } else {
        let reason = no_layout(q, answer);
        let _ = writeln!(out, "\n  {RED}does not fit{RESET} on {BOLD}{}{RESET}: {reason}", q.gpu_name);
        instead(&mut out, answer);
    }
    if let Some(found) = &answer.streamed {
        streamed::text(&mut out, q, found);
    }
    if let Some(found) = &answer.plans {
        plans(&mut out, found);
    }
    if let Some(terms) = terms {
        why::text(&mut out, terms);
    } else if hint {
        out.push('\n');
        paragraph(&mut out, "", "", next(q, answer), DIM);
    }
    out
}

/// Options to try next.
fn next(q: &Question, answer: &Answer) -> &'static str {
    let is_one = q.cluster.gpus() == 1 && !q.is_paged();
    match &answer.plans {
        _ if answer.streamed.is_some() => {
            "--why shows where numbers come from, --stream SIZE the same within another budget"
        }
        Some(plans) if !q.trains() && is_one && !answer.fits && !plans.rows.is_empty() => {
            "--emit vllm writes the first plan down; --stream answers for weights that stream from the host"
        }
        _ if !q.trains() && is_one && !answer.fits => {
            "--stream answers for weights that stream from the host"
        }
        Some(plans) if plans.rows.iter().any(|row| row.config.is_some()) => {
            "--emit torch|fsdp|deepspeed|accelerate writes the first plan down; --why shows where numbers come from"
        }
        Some(plans) if !plans.rows.is_empty() => "--emit vllm writes the first plan down",
        _ if !q.trains() => "--why shows where numbers come from, --max-batch the largest batch",
        _ => {
            "--why shows where numbers come from, --optimize looks for cheaper plans, --max-batch for the largest batch"
        }
    }
}

fn head(out: &mut String, q: &Question, parameters: u64, blocks: u64) {
    let mut facts = vec![format!("{} parameters", billions(parameters))];
    if blocks > 0 {
        facts.push(plural(blocks, "block"));
    }
    let room = width().saturating_sub(facts.iter().map(|fact| visible(fact) + 3).sum());
    let lead = format!("{BOLD}{}{RESET}  ", shorten(&clean(&q.model.name), room));
    crate::text::facts(out, &lead, &facts);
    paragraph(out, "", "  ", &q.headline(), "");
    for note in &q.notes {
        paragraph(out, "", "      ", &format!("note: {}", clean(note)), DIM);
    }
}

/// The reason why there is no estimate: the recipe fits no layout of these GPUs.
pub(super) fn no_layout(q: &Question, answer: &Answer) -> String {
    let gpus = plural(q.cluster.gpus(), "GPU");
    let refused = format!("no layout over {gpus} holds what was asked");
    let Some(plans) = &answer.plans else { return refused };
    let Some(least) = least(plans) else { return refused };
    let Some(share) = plans.share else {
        return format!("{refused} in {} each; {least}", q.memory());
    };
    let taken = format!("an engine that takes {:.1} % of {} each", share.taken * 100.0, q.memory());
    let instead = match share.enough {
        Some(enough) if q.is_paged() => format!("--utilization {enough:.2} is enough here"),
        Some(enough) => format!("{:.0} % is enough here", enough * 100.0),
        None => "no larger share would hold it here".to_owned(),
    };
    format!("{refused} in {taken}; {least}; {instead}")
}

/// The plan that needs least if none fits, and the card that it needs.
pub(super) fn least(plans: &Plans) -> Option<String> {
    let needed = Bytes(plans.least_needed?);
    let card =
        plans.least_card.map(Bytes).map_or_else(String::new, |card| format!(": a card of {card} is enough"));
    Some(format!("the least that any needs is {needed}{card}"))
}

/// The first plan that fits, in one line.
pub(super) fn alternative(answer: &Answer) -> Option<String> {
    let row = answer.fits_with()?;
    let keeps = answer.plans.as_ref().is_some_and(|plans| plans.keeps_recipe);
    let how = if keeps { "the same recipe fits with plan 1" } else { "only another recipe fits, plan 1" };
    Some(format!("{how}: {}", row.words))
}

fn instead(out: &mut String, answer: &Answer) {
    if let Some(words) = alternative(answer) {
        paragraph(out, "  ", "    ", &words, YELLOW);
    }
}

fn account(out: &mut String, q: &Question, e: &Estimate, answer: &Answer) {
    verdict(out, q, e, if answer.is_plan { " with plan 1 below" } else { "" });
    instead(out, answer);
    peaks(out, q, e);
    components(out, e);
    shape(out, e);
}

/// The reason for a "no" that the figures alone do not show.
pub(super) fn short_of(q: &Question, e: &Estimate) -> String {
    if e.host.0 > q.cluster.host_memory {
        let there = Bytes(q.cluster.host_memory);
        return format!("\n  the host would need {} for each GPU and has {there}: --host-memory", e.host);
    }
    if e.process_total() > q.memory() {
        return String::new();
    }
    let room = gapless_fit::simulated::room(q.memory(), e.error);
    format!("\n  with ± {:.0} % and 2 % left free, at most {room} would be safe", e.error * 100.0)
}

fn verdict(out: &mut String, q: &Question, e: &Estimate, how: &str) {
    let (total, memory) = (e.process_total(), q.memory());
    let share = total.share_of(memory) * 100.0;
    let each = if q.cluster.gpus() > 1 { " each" } else { "" };
    let _ = match e.verdict {
        Verdict::Fits if e.taken.is_some() => {
            let taken = e.taken.unwrap_or_default();
            let engine = q.engine.map_or("the engine", Engine::name);
            writeln!(
                out,
                "\n  {GREEN}fits{RESET} on {BOLD}{}{RESET}{how}: {engine} takes {taken} of {memory}{each}, {:.0} %\n  \
                 {DIM}weights, cache for what was asked, and the rest of the process need {total} of it{RESET}",
                q.gpu_name,
                taken.share_of(memory) * 100.0
            )
        }
        Verdict::Fits => writeln!(
            out,
            "\n  {GREEN}fits{RESET} on {BOLD}{}{RESET}{how}: {total} of {memory}{each}, {share:.0} %",
            q.gpu_name
        ),
        Verdict::FitsTightly => writeln!(
            out,
            "\n  {YELLOW}fits tightly{RESET} on {BOLD}{}{RESET}: {total} of {memory}, {share:.0} %; the allocator has to give cached memory back",
            q.gpu_name
        ),
        Verdict::DoesNotFit => writeln!(
            out,
            "\n  {RED}does not fit{RESET} on {BOLD}{}{RESET}: {total} of {memory}{each}, {share:.0} %{}",
            q.gpu_name,
            short_of(q, e)
        ),
    };
    let columns = bar_width();
    // The bar covers the card and any bytes beyond it.
    let scale = total.0.max(memory.0).max(1);
    let cells = |bytes: u64| (bytes as f64 / scale as f64 * columns as f64).round() as usize;
    let mut bar = String::new();
    let mut used = 0;
    let mut sum = 0;
    let beyond = e.process_total().0.saturating_sub(e.peak_allocated.0);
    let parts = e.components.iter().map(|(name, bytes)| (style(name), '█', *bytes));
    for (style, letter, bytes) in parts.chain([("\x1b[90m", '▒', beyond)]) {
        sum += bytes;
        let to = cells(sum);
        if to > used {
            let _ = write!(bar, "{style}{}{RESET}", letter.to_string().repeat(to - used));
            used = to;
        }
    }
    let left = columns.saturating_sub(used);
    let _ = writeln!(out, "  {bar}{DIM}{}{RESET}", "·".repeat(left));
    if total > memory {
        let at = cells(memory.0).min(columns.saturating_sub(1));
        let words = "the card ends here";
        let _ = if at + 4 + words.len() <= width() {
            writeln!(out, "  {}{RED}▲ {words}{RESET}", " ".repeat(at))
        } else {
            writeln!(out, "  {}{RED}{words} ▲{RESET}", " ".repeat(at.saturating_sub(words.len() + 1)))
        };
    }
}

fn peaks(out: &mut String, q: &Question, e: &Estimate) {
    let _ = writeln!(out);
    let row = |out: &mut String, name: &str, bytes: Bytes, aside: String| {
        // A width applies to text, so the value becomes text first.
        let lead = format!("  {name:<16} {:>9}  ", bytes.to_string());
        let below = " ".repeat(if width() < 70 { 6 } else { visible(&lead) });
        paragraph(out, &lead, &below, &aside, DIM);
    };
    let bar = format!("± {:.0} %: {}{}", e.error * 100.0, source(e.method), rests_on(q, e));
    row(out, "peak allocated", e.peak_allocated, bar);
    let ours =
        e.gapless_reserved.map_or_else(String::new, |bytes| format!("; Gapless' own would hold {bytes}"));
    let how = match (e.method, e.verdict) {
        (Method::ClosedForms, _) => "as PyTorch's allocator typically holds",
        (_, Verdict::FitsTightly) => "PyTorch's allocator, replayed over the step on a card of this size",
        _ => "PyTorch's allocator, replayed over the step",
    };
    row(out, "peak reserved", e.peak_reserved, format!("{how}{ours}"));
    let mut beside = format!("with {} of context and libraries", e.context);
    if e.outside > Bytes::ZERO {
        let _ = write!(beside, ", {} of communication buffers", e.outside);
    }
    if q.cluster.gpus() > 1 {
        beside += ", on the worst GPU";
    }
    row(out, "process total", e.process_total(), beside);
    if e.host > Bytes::ZERO {
        row(out, "host memory", e.host, "for each GPU, pinned".to_owned());
    }
    if let Some(taken) = e.taken {
        let aside = "the engine fills its share of the card with cache, asked for or not";
        row(out, "engine takes", taken, aside.to_owned());
    }
    if !e.recomputed.is_empty() && e.blocks > 0 {
        let count = format!("{} of {}", e.recomputed.len(), e.blocks);
        let lead = format!("  {:<16} {count:>9}  ", "recomputed");
        let below = " ".repeat(if width() < 70 { 6 } else { visible(&lead) });
        paragraph(out, &lead, &below, "blocks under gradient checkpointing: they run forward again", DIM);
    }
}

/// The basis of the error bar of a simulated run, if it is not the usual measurements.
pub(super) fn rests_on(q: &Question, e: &Estimate) -> &'static str {
    let Some(run) = e.simulated.as_ref().map(|simulated| &simulated.run) else { return "" };
    match (run.lora.is_some(), run.stored.is_some() || q.stored.is_some()) {
        (_, true) => "; kernels for stored weights follow their code, and were not measured",
        (true, false) => "; 24 runs with adapters were measured",
        (false, false) => "",
    }
}

pub(super) fn source(method: Method) -> &'static str {
    match method {
        Method::Simulated => "simulated operator by operator",
        Method::ClosedForms => "closed forms over simulated blocks",
    }
}

fn components(out: &mut String, e: &Estimate) {
    section(out, "Alive at the peak", &clean(&e.peak_at.words()));
    let longest = width().saturating_sub(52).clamp(8, 36);
    let total = e.peak_allocated.0.max(1);
    let mut rows = e.components.clone();
    rows.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    let largest = rows.first().map_or(1, |(_, bytes)| (*bytes).max(1));
    // Components below a thousandth share one row.
    let is_small = |bytes: u64| u128::from(bytes) * 1000 < u128::from(total);
    let small: u64 = rows.iter().map(|(_, bytes)| *bytes).filter(|bytes| is_small(*bytes)).sum();
    if rows.iter().filter(|(_, bytes)| is_small(*bytes)).count() > 1 {
        rows.retain(|(_, bytes)| !is_small(*bytes));
        rows.push(("all else", small));
    }
    for (name, bytes) in rows {
        let cells = (bytes as f64 / largest as f64 * longest as f64).round() as usize;
        let _ = writeln!(
            out,
            "    {:<26} {:>9}  {:>5.1} %  {}{}{RESET}",
            words(name),
            Bytes(bytes).to_string(),
            bytes as f64 / total as f64 * 100.0,
            style(name),
            "█".repeat(cells)
        );
    }
}

fn shape(out: &mut String, e: &Estimate) {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let Some(shape) = e.shape.as_ref().filter(|s| !s.most.is_empty()) else { return };
    // Serving has one phase: a picture of it shows nothing.
    if shape.phases.len() < 2 || shape.phases.len() > 9 {
        return;
    }
    let top = shape.most.iter().copied().max().unwrap_or(1).max(1);
    section(out, "One step over time", "allocated bytes, allocation by allocation");
    let shape = &narrowed(shape, width().saturating_sub(4));
    for row in [1u64, 0] {
        let line: String = shape
            .most
            .iter()
            .map(|&bytes| {
                let eighths = (bytes as f64 / top as f64 * 16.0).round() as u64;
                match eighths.saturating_sub(row * 8).min(8) {
                    0 => ' ',
                    n => BARS[n as usize - 1],
                }
            })
            .collect();
        let _ = writeln!(out, "    {CYAN}{}{RESET}", line.trim_end());
    }
    match labels(shape, width().saturating_sub(4)) {
        Some([names, peaks]) => {
            let _ = writeln!(out, "    {DIM}{names}{RESET}");
            let _ = writeln!(out, "    {DIM}{peaks}{RESET}");
        }
        None => {
            let all: Vec<String> =
                shape.phases.iter().map(|(name, _, peak)| format!("{name} {}", Bytes(*peak))).collect();
            paragraph(out, "    ", "    ", &all.join(" · "), DIM);
        }
    }
}

/// The names of the phases and their peaks, each below where its phase begins, or further left if there is no room;
/// `None` if they do not fit in `columns` at all.
fn labels(shape: &Shape, columns: usize) -> Option<[String; 2]> {
    let cells: Vec<[String; 2]> = shape
        .phases
        .iter()
        .map(|(name, _, peak)| [format!("└ {name}"), format!("  {}", Bytes(*peak))])
        .collect();
    let mut starts: Vec<usize> = Vec::new();
    let mut at = 0;
    for (_, wide, _) in &shape.phases {
        starts.push(at);
        at += wide;
    }
    let mut end = columns;
    for (start, cell) in starts.iter_mut().zip(&cells).rev() {
        let wide = cell.iter().map(|text| visible(text)).max().unwrap_or(0);
        *start = (*start).min(end.checked_sub(wide)?);
        end = start.saturating_sub(1);
    }
    let line = |row: usize| {
        let mut line = String::new();
        for (start, cell) in starts.iter().zip(&cells) {
            line.push_str(&" ".repeat(start.saturating_sub(visible(&line))));
            line.push_str(&cell[row]);
        }
        line
    };
    Some([line(0), line(1)])
}

/// The same picture in at most so many columns.
fn narrowed(shape: &Shape, columns: usize) -> Shape {
    let all = shape.most.len();
    if all <= columns {
        return shape.clone();
    }
    let most = (0..columns)
        .map(|column| {
            let (from, to) = (column * all / columns, (column + 1) * all / columns);
            shape.most[from..to.max(from + 1)].iter().copied().max().unwrap_or(0)
        })
        .collect();
    let phases = shape.phases.iter().map(|&(name, wide, peak)| (name, (wide * columns / all).max(1), peak));
    Shape { most, phases: phases.collect() }
}

/// A title, and a note beside it.
fn section(out: &mut String, title: &str, aside: &str) {
    out.push('\n');
    if visible(title) + visible(aside) + 4 <= width() {
        let _ = writeln!(out, "  {BOLD}{title}{RESET}  {DIM}{aside}{RESET}");
        return;
    }
    paragraph(out, "  ", "  ", title, BOLD);
    paragraph(out, "    ", "    ", aside, DIM);
}

fn largest_batch(out: &mut String, q: &Question, found: Option<&LargestBatch>) {
    match found {
        None => {
            let _ = writeln!(out, "\n  {RED}no batch fits{RESET}: not even 1 on {}", q.gpu_name);
        }
        Some(found) => {
            let tight = if found.verdict == Verdict::FitsTightly { ", tightly" } else { "" };
            out.push('\n');
            let lead = format!(
                "  largest batch on {BOLD}{}{RESET}: {GREEN}{}{RESET}{tight}  ",
                q.gpu_name, found.batch
            );
            let aside = format!(
                "{} would take {}; {}, no trial run",
                found.batch + 1,
                found.next,
                plural(found.looked_at, "simulation")
            );
            paragraph(out, &lead, "    ", &aside, DIM);
        }
    }
}

fn plans(out: &mut String, plans: &Plans) {
    section(out, &plans.title, "cheapest first");
    if plans.rows.is_empty() {
        let least = least(plans).map_or_else(String::new, |least| format!(": {least}"));
        paragraph(out, &format!("    {RED}none{RESET}"), "    ", &least, "");
    }
    for (place, row) in plans.rows.iter().enumerate() {
        plan(out, place + 1, row);
    }
    paragraph(out, "    ", "    ", &plans.proof, DIM);
    for note in &plans.notes {
        paragraph(out, "    ", "    ", note, DIM);
    }
}

fn plan(out: &mut String, place: usize, row: &Row) {
    paragraph(out, &format!("   {BOLD}{place:>2}{RESET}  "), "       ", &row.words, "");
    let exact = if row.exact { "" } else { "~" };
    let batch = row.largest_batch.map_or_else(String::new, |b| format!(" · up to batch {b}"));
    let lead = format!(
        "       {GREEN}{exact}{}{RESET} of memory{batch} · {CYAN}{}{RESET} ",
        row.process_total,
        seconds(row.seconds)
    );
    let terms: Vec<String> = row.cost.iter().map(|(name, s)| format!("{name} {}", seconds(*s))).collect();
    let cost = if terms.is_empty() { String::new() } else { format!(": {}", terms.join(", ")) };
    let aside = format!("{}{cost}", row.unit);
    // The figures stay on one line; the parts of the time go below.
    if visible(&lead) + visible(&aside) <= width() {
        let _ = writeln!(out, "{lead}{}{DIM}{cost}{RESET}", row.unit);
    } else {
        let _ = writeln!(out, "{lead}{}", row.unit);
        paragraph(out, "         ", "         ", cost.trim_start_matches(": "), DIM);
    }
}
