//! The terms behind an answer: each number with its equation, its inputs and its source.

use super::paint::{BOLD, DIM, RESET, billions, paragraph, words};
use gapless_fit::formulas::{Term, Unit};
use gapless_trace::Bytes;
use std::fmt::Write;

pub(super) fn text(out: &mut String, terms: &[Term]) {
    out.push('\n');
    let title = format!("  {BOLD}Where the numbers come from{RESET}  ");
    paragraph(out, &title, "    ", "simulated first, closed forms beside them", DIM);
    for term in terms {
        let value = match term.unit {
            Unit::Bytes => Bytes(term.value).to_string(),
            _ => billions(term.value),
        };
        let _ = writeln!(out, "    {BOLD}{}{RESET}  {value}", words(term.name));
        paragraph(out, "      = ", "        ", term.equation, "");
        if !term.inputs.is_empty() {
            let inputs: Vec<String> =
                term.inputs.iter().map(|(symbol, value)| format!("{symbol} = {value}")).collect();
            paragraph(out, "        ", "        ", &inputs.join(", "), "");
        }
        paragraph(out, "        ", "        ", term.source, DIM);
    }
}
