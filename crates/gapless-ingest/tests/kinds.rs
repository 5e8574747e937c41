//! Steps and kinds of the recorded runs, against known figures: the number of steps from the scripts that ran, and the
//! bytes of weights, gradients and optimizer state from the number of parameters.

use gapless_ingest::{ReadOptions, open};
use gapless_trace::kinds::{self, Kind, Kinds};
use gapless_trace::steps::{self, Steps};
use gapless_trace::{History, Tick, Trace};
use std::path::Path;

/// Parameters of GPT-2 124M, its head tied to the embedding.
const GPT2: u64 = 124_439_808;
/// ResNet-50.
const RESNET50: u64 = 25_557_032;

fn llama() -> u64 {
    let (hidden, inner, vocabulary, layers, heads, groups) = (2048, 5632, 32_000, 16, 32, 8);
    let attention = 2 * hidden * hidden + 2 * hidden * (hidden / heads * groups);
    2 * vocabulary * hidden + layers * (attention + 3 * hidden * inner + 2 * hidden) + hidden
}

fn mixtral() -> u64 {
    let (hidden, inner, vocabulary, layers, heads, groups, experts) = (1024, 2816, 32_000, 8, 16, 4, 8);
    let attention = 2 * hidden * hidden + 2 * hidden * (hidden / heads * groups);
    let layer = attention + experts * 3 * hidden * inner + hidden * experts + 2 * hidden;
    2 * vocabulary * hidden + layers * layer + hidden
}

struct Run {
    name: &'static str,
    steps: usize,
    /// Bytes of weights, gradients and state.
    bytes: [u64; 3],
}

fn runs() -> [Run; 7] {
    let (gpt2, llama, resnet, mixtral) = (4 * GPT2, 2 * llama(), 4 * RESNET50, 2 * mixtral());
    [
        Run { name: "gpt2_train", steps: 6, bytes: [gpt2, gpt2, 2 * gpt2] },
        Run { name: "gpt2_train_stacks", steps: 3, bytes: [gpt2, gpt2, 2 * gpt2] },
        Run { name: "llama1b_varlen_ckpt", steps: 24, bytes: [llama, llama, 2 * llama] },
        // Gradients are dropped as they come, so that one or two are there at once, and the state is on the host.
        Run { name: "llama_offload", steps: 12, bytes: [llama, 0, 0] },
        Run { name: "resnet_varbatch", steps: 20, bytes: [resnet, resnet, resnet] },
        Run { name: "mixtral_moe", steps: 10, bytes: [mixtral, mixtral, 2 * mixtral] },
        Run { name: "mixtral_moe_expandable", steps: 4, bytes: [mixtral, mixtral, 2 * mixtral] },
    ]
}

fn read(name: &str) -> (Trace, History) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../testdata/traces/{name}.pickle.gz"));
    let trace = open(&path, &ReadOptions::default()).expect("a recorded trace");
    let history = History::rebuild(&trace, &trace.devices[0]).expect("a sound trace");
    (trace, history)
}

fn infer(trace: &Trace, history: &History) -> (Steps, Kinds) {
    let device = &trace.devices[0];
    let steps = steps::detect(trace, device, history);
    let kinds = kinds::infer(trace, device, history, &steps);
    (steps, kinds)
}

/// The most requested bytes at once of `kind`.
fn most(history: &History, kinds: &Kinds, kind: Kind) -> u64 {
    let mut changes: Vec<(Tick, i64)> = Vec::new();
    for id in history.allocations.ids().filter(|&id| kinds.of(id) == kind) {
        let a = history.allocations.get(id);
        changes.push((a.start, a.requested.0 as i64));
        changes.push((a.freed, -(a.requested.0 as i64)));
    }
    changes.sort_unstable();
    let (mut now, mut most) = (0, 0);
    for (_, bytes) in changes {
        now += bytes;
        most = most.max(now);
    }
    most as u64
}

#[test]
fn recorded_runs_have_their_steps_and_kinds_with_and_without_annotations() {
    for run in runs() {
        let (mut trace, history) = read(run.name);
        let mut seen: Vec<Steps> = Vec::new();
        for annotated in [true, false] {
            if !annotated {
                trace.annotations.clear();
            }
            let (steps, kinds) = infer(&trace, &history);
            assert_eq!(steps.spans.len(), run.steps, "{}: {}", run.name, steps.sentence());
            for (kind, bytes) in
                [Kind::Weights, Kind::Gradients, Kind::OptimizerState].into_iter().zip(run.bytes)
            {
                let found = most(&history, &kinds, kind);
                let off = found.abs_diff(bytes) as f64 / run.bytes[0] as f64;
                let allowed = if run.name == "llama_offload" && kind == Kind::Gradients { 0.2 } else { 0.02 };
                assert!(off <= allowed, "{}: {} of {}, {bytes} known", run.name, found, kind.name());
            }
            let at_peak = kinds.active_at(&history, history.usage.active.peak_at);
            assert_eq!(at_peak.iter().map(|b| b.0).sum::<u64>(), history.usage.active.peak.0, "{}", run.name);
            seen.push(steps);
        }
        // Without annotations, boundaries lie within a hundredth of a step of the end by the optimizer.
        for (a, b) in seen[0].spans.iter().zip(&seen[1].spans) {
            let slack = (a.end.0 - a.start.0) / 100;
            assert!(a.start.0.abs_diff(b.start.0) <= slack, "{}: {a:?} and {b:?}", run.name);
            assert!(a.end.0.abs_diff(b.end.0) <= slack, "{}: {a:?} and {b:?}", run.name);
        }
    }
}

#[test]
fn a_recorded_run_without_structure_has_no_steps_and_no_guessed_kinds() {
    let (trace, history) = read("multistream");
    let (steps, kinds) = infer(&trace, &history);
    assert!(steps.spans.is_empty(), "{}", steps.sentence());
    assert!(kinds.by_allocation.iter().all(|k| matches!(k, Kind::Temporaries | Kind::Unexplained)));
}
