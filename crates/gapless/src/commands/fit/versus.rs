//! `--compare A B`: two settings, or two models, and what makes the difference between them.
//!
//! A side is `batch=8,precision=fp32`: flags without their dashes, over those of the command line; a word without `=` is a model.

use super::estimate::Estimate;
use super::question::Question;
use super::show::{BOLD, DIM, RESET, clean, words};
use super::{answer, json};
use crate::cli::DiffFormat;
use crate::cli::fit::{FitArgs, Settings};
use crate::failure::Failure;
use crate::{Answer, output};
use anyhow::Result;
use clap::{Args, FromArgMatches};
use gapless_trace::Bytes;
use serde_json::json;
use std::fmt::Write;

pub(super) fn run(args: &FitArgs, a: &str, b: &str) -> Result<Answer> {
    let (qa, qb) = (side(args, a)?, side(args, b)?);
    let (fa, fb) = (answer(&qa, args)?, answer(&qb, args)?);
    let fits = fa.fits && fb.fits;
    let (Some(ea), Some(eb)) = (&fa.estimate, &fb.estimate) else {
        return Err(Failure::new(
            "one of the two has no account to compare",
            "ask for each of them alone to see why",
        )
        .into());
    };
    let rows = rows(ea, eb);
    match args.format {
        DiffFormat::Json => {
            let none = json::Parts { plans: None, largest: None, why: None };
            let value = json!({
                "schema": "gapless.fit-compare/1",
                "a": json::value(&qa, Some(ea), fa.fits, &none),
                "b": json::value(&qb, Some(eb), fb.fits, &none),
                "difference": rows.iter().map(|(name, a, b)| ((*name).to_owned(), json!(*b as i64 - *a as i64))).collect::<serde_json::Map<_, _>>(),
            });
            let text = serde_json::to_string_pretty(&value)? + "\n";
            output::write_to(args.output.as_deref(), |out| Ok(out.write_all(text.as_bytes())?))?;
        }
        DiffFormat::Text => {
            let text = text((a, &qa, ea), (b, &qb, eb), &rows);
            output::write_text(args.output.as_deref(), &text)?;
        }
    }
    Ok(if fits { Answer::Yes } else { Answer::No })
}

/// One side's question.
fn side(args: &FitArgs, text: &str) -> Result<Question> {
    let mut settings: Settings = args.settings.clone();
    let mut model = args.model.clone();
    let mut flags = Vec::new();
    let mut parts: Vec<String> = Vec::new();
    for part in text.split(',') {
        // A comma within a value: lora=r=16,base=nf4 or offload=optimizer,params.
        let continues = (part.starts_with("base=") || part.starts_with("targets="))
            || matches!(part, "optimizer" | "params" | "activations");
        match parts.last_mut() {
            Some(last) if continues && last.contains('=') => *last = format!("{last},{part}"),
            _ => parts.push(part.to_owned()),
        }
    }
    for part in parts.iter().map(|part| part.trim()).filter(|part| !part.is_empty()) {
        match part.split_once('=') {
            Some((key, value)) => {
                flags.push(format!("--{}", key.trim().trim_start_matches("--")));
                flags.push(value.trim().to_owned());
            }
            None if matches!(part, "train" | "infer") => flags.push(format!("--{part}")),
            None => model = Some(part.to_owned()),
        }
    }
    let command = Settings::augment_args_for_update(
        clap::Command::new("compare").no_binary_name(true).disable_help_flag(true),
    );
    let matches = command.try_get_matches_from(flags).map_err(|error| {
        let line = error.to_string();
        let line = line.lines().next().unwrap_or_default().trim_start_matches("error: ");
        Failure::new(
            format!("--compare {text}: {line}"),
            "flags without their dashes, as in batch=8,precision=fp32; or a model",
        )
    })?;
    settings.update_from_arg_matches(&matches).map_err(|error| {
        Failure::new(
            format!("--compare {text}: {error}"),
            "flags without their dashes, as in batch=8,precision=fp32",
        )
    })?;
    let Some(model) = model else {
        return Err(Failure::new(
            format!("--compare {text}: of which model?"),
            "gapless fit MODEL --compare batch=8 batch=16",
        )
        .into());
    };
    Question::read(&model, &settings)
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

fn text(
    a: (&str, &Question, &Estimate),
    b: (&str, &Question, &Estimate),
    rows: &[(&'static str, u64, u64)],
) -> String {
    let mut out = String::new();
    for (letter, (asked, q, e)) in [("A", a), ("B", b)] {
        let _ =
            writeln!(out, "{BOLD}{letter}  {}{RESET}  {DIM}{}{RESET}", clean(asked), clean(&q.model.name));
        let _ = writeln!(out, "   {}", q.headline());
        let fits = if e.verdict.fits() { "fits" } else { "does not fit" };
        let _ = writeln!(out, "   {fits} on {}; the peak is in {}", q.gpu_name, clean(&e.peak_at.words()));
    }
    let _ = writeln!(out, "\n  {BOLD}{:<26} {:>10} {:>10} {:>11}{RESET}", "", "A", "B", "B - A");
    let line = |out: &mut String, name: &str, a: u64, b: u64, style: &str| {
        let _ = writeln!(
            out,
            "  {style}{name:<26} {:>10} {:>10} {:>11}{RESET}",
            Bytes(a).to_string(),
            Bytes(b).to_string(),
            signed(a, b)
        );
    };
    line(&mut out, "process total", a.2.process_total().0, b.2.process_total().0, BOLD);
    line(&mut out, "peak reserved", a.2.peak_reserved.0, b.2.peak_reserved.0, "");
    line(&mut out, "peak allocated", a.2.peak_allocated.0, b.2.peak_allocated.0, "");
    for (name, x, y) in rows {
        line(&mut out, &format!("  {}", words(name)), *x, *y, if x == y { DIM } else { "" });
    }
    let moved = b.2.peak_allocated.0 as i64 - a.2.peak_allocated.0 as i64;
    if let Some((name, x, y)) = rows.first().filter(|(_, x, y)| x != y) {
        let _ = writeln!(
            out,
            "\n  {DIM}Of {} at the peak, {} is {}.{RESET}",
            signed(0, moved.unsigned_abs()).replace('+', if moved < 0 { "-" } else { "+" }),
            signed(*x, *y),
            words(name)
        );
    }
    if a.2.peak_at.phase != b.2.peak_at.phase {
        let _ = writeln!(
            out,
            "  {DIM}The peak moves from {} to {}: components are those alive at each one's own peak.{RESET}",
            a.2.peak_at.phase, b.2.peak_at.phase
        );
    }
    out
}
