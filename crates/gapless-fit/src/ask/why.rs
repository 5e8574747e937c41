//! `--why`: each number of the account with its equation, its inputs and its source. Closed forms stand beside the
//! simulated numbers.

use super::error::AskError;
use super::question::Question;
use super::{Answer, Streamed, plans};
use crate::formulas::head::{self, Loss};
use crate::formulas::{Term, activations, cache, overhead, parameters, states, weights};
use crate::model::{Architecture, DecoderStyle};
use crate::search;
use crate::settings::Precision;

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
            let (equation, inputs) = match e.simulated.as_ref().filter(|answer| answer.run.lora.is_some()) {
                Some(answer) => adapted(name, q, answer.steps.trained, e.parameters)
                    .unwrap_or_else(|| equation(name, q, e.parameters)),
                None => equation(name, q, e.parameters),
            };
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
        if let Some(streamed) = &answer.streamed {
            all.extend(of_stream(e.peak_allocated.0, streamed));
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
        if q.trains() && q.run.lora.is_some() {
            let trained =
                answer.estimate.as_ref().and_then(|e| e.simulated.as_ref()).map(|s| s.steps.trained);
            if let (Some(lora), Some(trained)) = (q.run.lora, trained) {
                all.push(states::adapters(trained, lora.rank));
            }
            all.push(head::peak(tokens, d.vocab, 1, q.run.precision, Loss::Released));
        } else if q.trains() {
            all.push(states::model_states(count, q.run.precision, q.run.optimizer));
            all.push(activations::eager_total(d, q.run.precision, q.run.batch, q.run.length));
            all.push(head::peak(tokens, d.vocab, 1, q.run.precision, Loss::Released));
            all.push(states::step_transient(count, d.vocab * d.hidden, q.run.precision, q.run.optimizer));
        } else {
            if q.stored.is_none() {
                all.push(weights::stored(count, q.format, q.sparse));
            }
            all.push(cache::per_token(d, 2.0, 1));
            let held = q.kv_tokens.map_or((q.run.batch, q.run.length), |tokens| (1, tokens));
            all.push(cache::total(d, held.0, held.1, 2.0, 1, 1));
        }
    }
    all.push(overhead::cublas_workspace(q.gpu().compute_capability));
    Ok(all)
}

/// The memory of a pass whose weights stream.
fn of_stream(peak: u64, streamed: &Streamed) -> [Term; 2] {
    let [budget, weights, tables] =
        [streamed.budget, streamed.weights, streamed.tables].map(|bytes| bytes.0 as f64);
    let kept = budget.min(weights - tables);
    [
        Term::bytes(
            "weights on the card",
            kept,
            "min(budget, W - T)",
            &[("budget", budget), ("W", weights), ("T", tables)],
            "weights W, of which tables T stay on the host; `gapless.stream` never exceeds its budget",
        ),
        Term::bytes(
            "peak allocated",
            peak as f64,
            "peak with all weights - W + weights on the card",
            &[("peak with all weights", peak as f64 + weights - kept), ("W", weights)],
            SIMULATED,
        ),
    ]
}

/// The same with adapters: A parameters of adapters are trained, and S of modules that are trained whole, which keep
/// the model's own type. The others have neither gradients nor states.
fn adapted(
    name: &str,
    q: &Question,
    trained: u64,
    parameters: u64,
) -> Option<(&'static str, Vec<(&'static str, f64)>)> {
    let lora = q.run.lora?;
    let own = q.run.precision.bytes();
    let widths = if lora.narrow { own } else { Precision::Fp32.bytes() };
    let whole = crate::parameters::parameters(&q.architecture);
    let saved: u64 = whole.iter().filter(|p| lora.saves(p.role)).map(crate::model::Parameter::elements).sum();
    let saved = saved.min(trained);
    let mut inputs = vec![("A", (trained - saved) as f64)];
    if saved > 0 {
        inputs.push(("S", saved as f64));
    }
    let mut with = |symbols: [&'static str; 2], values: [f64; 2]| {
        inputs.push((symbols[0], values[0]));
        if saved > 0 {
            inputs.push((symbols[1], values[1]));
        }
    };
    let equation = match name {
        "weights" => {
            let frozen = (parameters - trained + saved) as f64;
            let bytes = q.stored.as_ref().map_or(frozen * own.weight as f64, |stored| {
                stored.bytes(&q.architecture, own.weight) as f64
            });
            with(["w", "w_S"], [widths.weight as f64, own.weight as f64]);
            inputs.push(("frozen", bytes));
            "w A (+ w_S S) + the frozen weights as they are kept, each tensor on its own"
        }
        "gradients" => {
            with(["g", "g_S"], [widths.gradient as f64, own.gradient as f64]);
            "g A (+ g_S S), of those whose gradients exist then"
        }
        "optimizer_state" => {
            let k = |state| q.run.optimizer.state_bytes(state);
            with(["k", "k_S"], [k(widths.state), k(own.state)]);
            "k A (+ k_S S) and a step counter for each tensor"
        }
        "optimizer_temporaries" => {
            let x = |state| q.run.optimizer.transient(state).0;
            with(["x", "x_S"], [x(widths.state), x(own.state)]);
            "what the optimizer's step makes and drops: x A (+ x_S S)"
        }
        _ => return None,
    };
    Some((equation, inputs))
}

/// The sum that a simulated component is.
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
