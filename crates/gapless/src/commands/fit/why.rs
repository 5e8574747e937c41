//! `--why`: each number of the account with its equation, its inputs and its source; closed forms stand beside what was simulated.

use super::question::Question;
use super::show::{BOLD, DIM, RESET, paragraph, words};
use super::{Found, plans};
use anyhow::Result;
use gapless_fit::formulas::head::{self, Loss};
use gapless_fit::formulas::{Term, Unit, activations, cache, overhead, parameters, states};
use gapless_fit::model::{Architecture, DecoderStyle};
use gapless_trace::Bytes;
use std::fmt::Write;

const SIMULATED: &str =
    "the step simulated operator by operator, as PyTorch's eager execution allocates and frees";

pub(super) fn terms(q: &Question, found: &Found) -> Result<Vec<Term>> {
    let mut all = Vec::new();
    if let Some(e) = &found.estimate {
        for (name, bytes) in &e.components {
            let (equation, inputs) = equation(name, q, e.parameters);
            if e.answer.is_some() {
                all.push(Term::bytes(name, *bytes as f64, equation, &inputs, SIMULATED));
            }
        }
        if e.answer.is_some() {
            let sum: &[(&'static str, f64)] = &[("components", e.components.len() as f64)];
            all.push(Term::bytes(
                "peak allocated",
                e.peak_allocated.0 as f64,
                "the sum of the components",
                sum,
                SIMULATED,
            ));
            let replayed = "PyTorch's caching allocator, replayed over the simulated step without a limit";
            all.push(Term::bytes(
                "peak reserved",
                e.peak_reserved.0 as f64,
                "the most segments held at once",
                &[],
                replayed,
            ));
        }
        all.push(Term::bytes(
            "context",
            e.context.0 as f64,
            "a constant of device, driver and libraries",
            &[("compute capability", f64::from(q.gpu().compute_capability) / 10.0)],
            "measured with torch 2.11: 767 to 811 MiB on an H200, 426 MiB on an RTX 6000 Ada",
        ));
    }
    if let Some(config) = found.config {
        let profile = plans::profile(q)?;
        let account = gapless_fit::search::train::account(&profile, &q.cluster, &config);
        all.extend(gapless_fit::search::why::account(&profile, &config, &account));
    }
    if let Architecture::Decoder(d) = &q.architecture {
        let learned = matches!(d.style, DecoderStyle::Gpt2);
        if d.moe.is_none()
            && d.mla.is_none()
            && matches!(
                d.style,
                DecoderStyle::Llama | DecoderStyle::Mistral | DecoderStyle::Qwen2 | DecoderStyle::Qwen3
            )
        {
            all.push(parameters::llama(d));
        } else if learned {
            all.push(parameters::gpt(d.layers, d.hidden, d.vocab, d.max_positions));
        }
        let count = parameters::decoder(d);
        let tokens = q.run.batch * q.run.length;
        if q.trains() {
            all.push(states::model_states(count, q.precision, q.optimizer));
            all.push(activations::eager_total(d, q.precision, q.run.batch, q.run.length));
            all.push(head::peak(tokens, d.vocab, 1, q.precision, Loss::Released));
            all.push(states::step_transient(count, d.vocab * d.hidden, q.precision, q.optimizer));
        } else {
            all.push(gapless_fit::formulas::weights::stored(count, q.format, q.sparse));
            all.push(cache::per_token(d, 2.0, 1));
            let held = q.kv_tokens.map_or((q.run.batch, q.run.length), |tokens| (1, tokens));
            all.push(cache::total(d, held.0, held.1, 2.0, 1, 1));
        }
    }
    all.push(overhead::cublas_workspace(q.gpu().compute_capability));
    Ok(all)
}

/// What a simulated component is the sum of.
fn equation(name: &str, q: &Question, parameters: u64) -> (&'static str, Vec<(&'static str, f64)>) {
    let widths = q.precision.bytes();
    let p = ("P", parameters as f64);
    let tokens = [("b", q.run.batch as f64), ("s", q.run.length as f64)];
    match name {
        "weights" => ("w P, each tensor on its own", vec![("w", widths.weight as f64), p]),
        "gradients" => {
            ("g P of the parameters whose gradients exist then", vec![("g", widths.gradient as f64), p])
        }
        "optimizer_state" => {
            ("k P and a step counter for each tensor", vec![("k", q.optimizer.state_bytes(widths.state)), p])
        }
        "optimizer_temporaries" => (
            "what the optimizer's step makes and drops",
            vec![("x", q.optimizer.transient(widths.state).0), p],
        ),
        "loss_head" => {
            ("logits, their fp32 copy, log-probabilities and their gradients alive then", tokens.to_vec())
        }
        "temporaries" => ("what the operator at the peak and its neighbours hold", tokens.to_vec()),
        "kv_cache" => ("keys and values of all layers", tokens.to_vec()),
        "workspaces" => ("cuBLAS and cuBLASLt, for the forward and the backward thread", vec![]),
        "rounding" => ("requests rounded to 512 bytes, and blocks not split", vec![]),
        "inputs" => ("tokens or pictures, positions, masks, buffers", tokens.to_vec()),
        "autocast_weights" => ("16-bit copies of weights that autocast keeps", vec![p]),
        _ => ("tensors saved for backward and alive then, over all blocks", tokens.to_vec()),
    }
}

pub(super) fn text(out: &mut String, terms: &[Term]) {
    let _ = writeln!(
        out,
        "\n  {BOLD}Where the numbers come from{RESET}  {DIM}simulated first, closed forms beside them{RESET}"
    );
    for term in terms {
        let value = match term.unit {
            Unit::Bytes => Bytes(term.value).to_string(),
            _ => super::show::billions(term.value),
        };
        let _ = writeln!(out, "    {BOLD}{}{RESET}  {value}", words(term.name));
        let _ = writeln!(out, "      = {}", term.equation);
        if !term.inputs.is_empty() {
            let inputs: Vec<String> =
                term.inputs.iter().map(|(symbol, value)| format!("{symbol} = {value}")).collect();
            paragraph(out, "        ", "        ", &inputs.join(", "), "");
        }
        paragraph(out, "        ", "        ", term.source, DIM);
    }
}
