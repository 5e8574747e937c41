//! `gapless weights info`: the contents of a file or folder of weights, as a table or as JSON.

use super::failed;
use crate::Answer;
use crate::cli::PlainFormat;
use crate::cli::weights::InfoArgs;
use crate::{failure, output};
use anyhow::Result;
use gapless_trace::Bytes;
use gapless_trace::numbers::{plural, verb};
use gapless_weights::listing::{Listing, list};
use gapless_weights::survey::{Survey, check_listing, survey};
use serde_json::{Value, json};
use std::fmt::Write;

pub(crate) fn run(args: &InfoArgs) -> Result<Answer> {
    let listing = list(&args.input).map_err(|error| failed(&error))?;
    check_listing(&listing).map_err(|error| failed(&error))?;
    let survey = survey(&listing, args.full).map_err(|error| failed(&error))?;
    let output = args.output.as_deref();
    match args.format {
        PlainFormat::Json => {
            let text = serde_json::to_string_pretty(&as_json(&listing, &survey, args.full))?;
            output::write_to(output, |out| Ok(writeln!(out, "{text}")?))?;
        }
        PlainFormat::Text => {
            output::write_text(output, &as_text(&listing, &survey, args))?;
            for note in &listing.notes {
                failure::note(note);
            }
        }
    }
    Ok(Answer::Yes)
}

fn total(listing: &Listing) -> u64 {
    listing.tensors.iter().map(|tensor| tensor.bytes).sum()
}

/// Bytes that packing would leave: those of types that could be sampled, the rest as they are.
fn packed(survey: &Survey) -> u64 {
    survey.types.iter().map(|of| of.packed.map_or(of.bytes, |share| (of.bytes as f64 * share) as u64)).sum()
}

/// A name as a terminal may show it: names come from untrusted files and may hold codes that move the cursor.
fn shown(name: &str) -> String {
    const LONGEST: usize = 200;
    let mut text = String::new();
    for letter in name.chars() {
        if text.len() >= LONGEST {
            text.push_str("...");
            break;
        }
        if letter.is_control() { text.extend(letter.escape_default()) } else { text.push(letter) }
    }
    text
}

fn as_text(listing: &Listing, survey: &Survey, args: &InfoArgs) -> String {
    let mut text = String::new();
    let name = |index: &usize| shown(&listing.tensors[*index].name);
    let total = total(listing);
    let how = if args.full { "every byte read" } else { "from headers and a sample" };
    // Writing to a string cannot fail.
    let _ = writeln!(
        text,
        "{}  {} in {}, {}  ({how})",
        listing.format,
        Bytes(total),
        plural(listing.tensors.len() as u64, "tensor"),
        plural(listing.files.len() as u64, "file")
    );
    let _ = writeln!(text, "\n  type         tensors       bytes  packed  entropy by component, bits");
    for of in &survey.types {
        let share = of.packed.map_or("unknown".to_owned(), |share| format!("{:.1} %", 100.0 * share));
        let parts: Vec<String> = if of.parts.len() > 3 {
            let (has, needs) = of.parts.iter().fold((0.0, 0.0), |sum, part| (sum.0 + part.1, sum.1 + part.2));
            vec![format!("all bytes {needs:.2} of {has:.0}")]
        } else {
            of.parts.iter().map(|(part, has, needs)| format!("{part} {needs:.2} of {has:.0}")).collect()
        };
        let _ = writeln!(
            text,
            "  {:12} {:>7} {:>11} {share:>7}  {}",
            of.dtype,
            of.tensors,
            Bytes(of.bytes).to_string(),
            parts.join(", ")
        );
    }
    let saved = packed(survey);
    let whose =
        if listing.format.ends_with("safetensors") { "" } else { ", of the same tensors as .safetensors," };
    let _ = writeln!(
        text,
        "\n  `gapless weights pack`{whose} would leave about {}, {:.1} %",
        Bytes(saved),
        100.0 * saved as f64 / total.max(1) as f64
    );
    for (why, count) in &survey.unread {
        let _ = writeln!(
            text,
            "  {} {} not sampled: {why}",
            plural(*count as u64, "tensor"),
            verb(*count as u64, "was", "were")
        );
    }
    let mut order: Vec<usize> = (0..listing.tensors.len()).collect();
    order.sort_by_key(|index| (std::cmp::Reverse(listing.tensors[*index].bytes), *index));
    let _ = writeln!(text, "\n  largest tensors");
    for index in order.iter().take(args.top) {
        let tensor = &listing.tensors[*index];
        let shape: Vec<String> = tensor.shape.iter().map(u64::to_string).collect();
        let share =
            survey.packed[*index].map_or("unknown".to_owned(), |share| format!("{:.1} %", 100.0 * share));
        let _ = writeln!(
            text,
            "  {:>11} {:>7}  {:8} [{}]  {}",
            Bytes(tensor.bytes).to_string(),
            share,
            tensor.dtype,
            shape.join(", "),
            shown(&tensor.name)
        );
    }
    for (what, groups) in
        [("tied: one storage", &survey.tied), ("equal bytes, stored apart", &survey.duplicates)]
    {
        for group in groups.iter().take(args.top) {
            let names: Vec<String> = group.iter().map(name).collect();
            let _ = writeln!(text, "\n  {what}: {}", names.join(", "));
        }
        if groups.len() > args.top {
            let _ = writeln!(text, "  and {} more groups", groups.len() - args.top);
        }
    }
    let _ = writeln!(text, "\n  quantised, matrices alone (no embeddings, no output layer)");
    for row in &survey.quantised {
        let share = 100.0 * row.bytes as f64 / total.max(1) as f64;
        let _ = writeln!(
            text,
            "  {:10} {:>11}  {share:>5.1} %  {} changed",
            row.scheme,
            Bytes(row.bytes).to_string(),
            plural(row.tensors as u64, "tensor")
        );
    }
    text
}

fn as_json(listing: &Listing, survey: &Survey, full: bool) -> Value {
    let names = |groups: &[Vec<usize>]| -> Value {
        groups
            .iter()
            .map(|group| group.iter().map(|index| json!(listing.tensors[*index].name)).collect::<Value>())
            .collect()
    };
    let types: Vec<Value> = survey
        .types
        .iter()
        .map(|of| {
            let parts: Vec<Value> = of
                .parts
                .iter()
                .map(|(part, has, needs)| json!({"component": part, "bits": has, "entropy_bits": needs}))
                .collect();
            json!({
                "dtype": of.dtype, "tensors": of.tensors, "bytes": of.bytes, "sampled_bytes": of.sampled,
                "packed_ratio": of.packed, "components": parts,
            })
        })
        .collect();
    let tensors: Vec<Value> = listing
        .tensors
        .iter()
        .zip(&survey.packed)
        .map(|(tensor, share)| {
            json!({
                "name": tensor.name, "dtype": tensor.dtype, "shape": tensor.shape, "bytes": tensor.bytes,
                "file": tensor.file, "packed_ratio": share,
            })
        })
        .collect();
    let quantised: Vec<Value> = survey
        .quantised
        .iter()
        .map(|row| json!({"scheme": row.scheme, "tensors": row.tensors, "bytes": row.bytes}))
        .collect();
    let files: Vec<String> = listing.files.iter().map(|file| file.display().to_string()).collect();
    json!({
        "schema": "gapless.weights/1",
        "format": listing.format,
        "files": files,
        "bytes": total(listing),
        "packed_bytes_estimate": packed(survey),
        "sampled": !full,
        "types": types,
        "tensors": tensors,
        "duplicates": names(&survey.duplicates),
        "tied": names(&survey.tied),
        "quantized": quantised,
        "notes": listing.notes,
    })
}
