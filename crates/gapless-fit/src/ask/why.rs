//! `--why`: each number of the account with its equation, its inputs and its source; closed forms stand beside what
//! was simulated.

use super::error::AskError;
use super::question::Question;
use super::{Answer, plans};
use crate::formulas::head::{self, Loss};
use crate::formulas::{Term, activations, cache, overhead, parameters, states, weights};
use crate::model::{Architecture, DecoderStyle};
use crate::search;

const SIMULATED: &str =
    "the step simulated operator by operator, as PyTorch's eager execution allocates and frees";

/// Every number of `answer`, simulated ones first.
///
/// # Errors
/// When the model's steps cannot be followed.
pub fn terms(q: &Question, answer: &Answer) -> Result<Vec<Term>, AskError> {
    let mut all = Vec::new();
    if let Some(e) = &answer.estimate {
        for (name, bytes) in &e.components {
            let (equation, inputs) = equation(name, q, e.parameters);
            if e.simulated.is_some() {
                all.push(Term::bytes(name, *bytes as f64, equation, &inputs, SIMULATED));
            }
        }
        if e.simulated.is_some() {
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
    if let Some(config) = answer.config {
        let profile = plans::profile(q)?;
        let account = plans::account(q, &profile, &config);
        all.extend(search::why::account(&profile, &config, &account));
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
            all.push(states::model_states(count, q.run.precision, q.run.optimizer));
            all.push(activations::eager_total(d, q.run.precision, q.run.batch, q.run.length));
            all.push(head::peak(tokens, d.vocab, 1, q.run.precision, Loss::Released));
            all.push(states::step_transient(count, d.vocab * d.hidden, q.run.precision, q.run.optimizer));
        } else {
            all.push(weights::stored(count, q.format, q.sparse));
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
    let widths = q.run.precision.bytes();
    let p = ("P", parameters as f64);
    let tokens = [("b", q.run.batch as f64), ("s", q.run.length as f64)];
    match name {
        "weights" => ("w P, each tensor on its own", vec![("w", widths.weight as f64), p]),
        "gradients" => {
            ("g P of the parameters whose gradients exist then", vec![("g", widths.gradient as f64), p])
        }
        "optimizer_state" => (
            "k P and a step counter for each tensor",
            vec![("k", q.run.optimizer.state_bytes(widths.state)), p],
        ),
        "optimizer_temporaries" => (
            "what the optimizer's step makes and drops",
            vec![("x", q.run.optimizer.transient(widths.state).0), p],
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
