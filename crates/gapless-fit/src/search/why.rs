//! The equations behind a plan's numbers: each component of its account as a term, each part of its cost.

use super::cost::{Cost, CostModel};
use super::memory::RankAccount;
use super::profile::Profile;
use super::space::Config;
use crate::formulas::Term;

const SOURCE: &str = "the plan's degrees over the closed forms";

/// The components of an account, on its worst rank.
#[must_use]
pub fn account(profile: &Profile, config: &Config, account: &RankAccount) -> Vec<Term> {
    let widths = config.held();
    let parameters = ("P", profile.parameters() as f64);
    let ranks = ("N", (config.data * config.context) as f64);
    let (w, g, k) = config.sharding.divisors(config.data * config.context);
    let degrees = [
        ("t", config.tensor as f64),
        ("p", config.pipeline as f64),
        ("c", config.context as f64),
        ("q", config.expert as f64),
    ];
    let term = |name, value: f64, equation, inputs: &[(&'static str, f64)]| {
        let inputs: Vec<(&'static str, f64)> = inputs.iter().copied().chain(degrees).collect();
        Term::bytes(name, value, equation, &inputs, SOURCE)
    };
    let batch = [
        ("b", config.micro_batch as f64),
        ("s", config.length as f64),
        ("m", config.accumulation as f64),
        ("stage", account.stage as f64),
    ];
    vec![
        term(
            "weights",
            account.weights,
            "w (P_cut / t + P_whole + P_experts / q) of the stage / N_w",
            &[("w", widths.weight as f64), parameters, ranks, ("N_w", w as f64)],
        ),
        term(
            "gradients",
            account.gradients,
            "g P_trained of the stage / N_g",
            &[("g", widths.gradient as f64), parameters, ranks, ("N_g", g as f64)],
        ),
        term(
            "optimizer states and master copies",
            account.states,
            "(master + states) P_trained of the stage / N_k",
            &[
                ("master", widths.master as f64),
                ("states", config.optimizer.state_bytes(widths.state)),
                parameters,
                ranks,
                ("N_k", k as f64),
            ],
        ),
        term(
            "gathered units and buckets",
            account.gathered,
            "R x + 3 U x + U r (fsdp; R: outside of the blocks); 2 buckets and the partition's gradients (zero)",
            &[ranks],
        ),
        term("activations", account.activations, "in flight x sum over blocks of what each retains", &batch),
        term("working set", account.working, "the worst block's, with what it recomputes", &batch),
        term(
            "loss head",
            account.head,
            "b s / c (x V / t + 5 h) on the last stage",
            &[("V", profile.vocab as f64), ("h", profile.hidden as f64), batch[0], batch[1]],
        ),
        term(
            "optimizer step",
            account.optimizer_step,
            "what torch.optim needs on top, while activations are gone",
            &[("x", config.optimizer.transient(widths.state).0), parameters],
        ),
        term("context, workspaces, communicators", account.overhead, "constants of the runtime", &[]),
        term(
            "peak",
            account.peak,
            "overhead + max(loss, backward, the end of backward, the optimizer's step, its setup)",
            &batch,
        ),
    ]
}

/// The parts of a cost in seconds, each with its equation; the constants are the model's.
#[must_use]
pub fn cost(cost: &Cost, model: &CostModel) -> Vec<(&'static str, f64, String)> {
    let speed =
        format!("at {} of the dense peak, T / (T + {}) of that", model.efficiency, model.half_speed_tokens);
    let hidden = format!("beyond what {} of the computing time hides", model.overlap);
    vec![
        ("compute", cost.compute, format!("3 x forward of the slowest stage, {speed}")),
        ("recompute", cost.recompute, format!("forward again of what is not kept, {speed}")),
        ("bubble", cost.bubble, "(p - 1) / (m v) of computing".to_owned()),
        ("tensor", cost.tensor, "4 all-reduces of T h a block: 2 (t - 1) / t over the link".to_owned()),
        (
            "pipeline",
            cost.pipeline,
            "T h over the network, forward and backward, each micro-batch and chunk".to_owned(),
        ),
        ("context", cost.context, "keys and values around the ring, 3 times".to_owned()),
        ("expert", cost.expert, "4 exchanges of T e h a block: (q - 1) / q over the link".to_owned()),
        (
            "data",
            cost.data,
            format!(
                "2 gradients (ddp, zero 1), gradients m + weights (zero 2), m (gradients + 2 weights) (zero 3), {hidden}"
            ),
        ),
        ("offload", cost.offload, format!("bytes over PCIe, {hidden}")),
        (
            "optimizer",
            cost.optimizer,
            format!(
                "states read and written, on the host at {} GB/s with the weights' way back",
                model.host_bytes / 1e9
            ),
        ),
    ]
}
