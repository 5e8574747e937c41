//! Kinds of made-up runs whose truth is known.

use super::*;
use crate::testing::{Optimizer, Run, Training, Truth, inference, noise, serving};

fn inferred((trace, history): (Trace, History)) -> (Trace, History, Kinds) {
    let device = &trace.devices[0];
    let steps = steps::detect(&trace, device, &history);
    let kinds = infer(&trace, device, &history, &steps);
    assert_eq!(kinds.by_allocation.len(), history.allocations.len());
    (trace, history, kinds)
}

/// The most requested bytes of each kind at once.
fn peaks(history: &History, kinds: &Kinds) -> ByKind {
    let mut changes: Vec<(Tick, i64, Kind)> = Vec::new();
    for id in history.allocations.ids() {
        let a = history.allocations.get(id);
        changes.push((a.start, a.requested.0 as i64, kinds.of(id)));
        changes.push((a.freed, -(a.requested.0 as i64), kinds.of(id)));
    }
    changes.sort();
    let (mut now, mut peaks) = ([0i64; Kind::ALL.len()], ByKind::default());
    for (_, bytes, kind) in changes {
        now[kind as usize] += bytes;
        peaks[kind as usize] = peaks[kind as usize].max(Bytes(now[kind as usize] as u64));
    }
    peaks
}

#[track_caller]
fn assert_truth(peaks: &ByKind, truth: &Truth, what: &dyn std::fmt::Debug) {
    let expected = [truth.weights, truth.gradients, truth.state];
    let found = [Kind::Weights, Kind::Gradients, Kind::OptimizerState].map(|k| peaks[k as usize].0);
    assert_eq!(found, expected, "weights, gradients, state of {what:?}");
}

#[test]
fn weights_gradients_and_state_of_training_are_told_to_the_byte() {
    for optimizer in [Optimizer::Sgd, Optimizer::Momentum, Optimizer::Adam] {
        for (rows, stacks, annotate, accumulate) in [
            (32, false, false, 1),
            (0, false, false, 1),
            (0, true, true, 1),
            (32, false, false, 4),
            (0, false, true, 4),
        ] {
            let options = Training { optimizer, rows, stacks, annotate, accumulate, ..Training::default() };
            let mut run = Run::new();
            let truth = options.run(&mut run);
            let (_, history, kinds) = inferred(run.finish());
            let peaks = peaks(&history, &kinds);
            assert_truth(&peaks, &truth, &options);
            assert!(peaks[Kind::Activations as usize] > Bytes::ZERO);
            assert_eq!(peaks[Kind::Unexplained as usize], Bytes::ZERO, "{options:?}");
            let at_peak = kinds.active_at(&history, history.usage.active.peak_at);
            assert_eq!(at_peak.into_iter().sum::<Bytes>(), history.usage.active.peak);
        }
    }
}

#[test]
fn gradients_that_go_in_the_next_step_or_never_are_gradients() {
    for (zero_first, keep_gradients) in [(true, false), (false, true)] {
        for optimizer in [Optimizer::Sgd, Optimizer::Momentum, Optimizer::Adam] {
            let options =
                Training { zero_first, keep_gradients, optimizer, annotate: true, ..Training::default() };
            let mut run = Run::new();
            let truth = options.run(&mut run);
            let (_, history, kinds) = inferred(run.finish());
            assert_truth(&peaks(&history, &kinds), &truth, &options);
        }
    }
}

#[test]
fn a_recording_that_begins_late_tells_weights_from_state() {
    let mut run = Run::new();
    let truth = Training { steps: 12, ..Training::default() }.run(&mut run);
    let dropped = (truth.cuts[3].0 + truth.cuts[4].0) / 2;
    let (_, history, kinds) = inferred(run.finish_ring(dropped as usize));
    assert_truth(&peaks(&history, &kinds), &truth, &"a ring");
}

#[test]
fn inference_has_weights_and_passing_tensors_only() {
    for rows in [16, 0] {
        let mut run = Run::new();
        let truth = inference(&mut run, 15, rows);
        let (_, history, kinds) = inferred(run.finish());
        let peaks = peaks(&history, &kinds);
        assert_truth(&peaks, &truth, &rows);
        assert!(peaks[Kind::Temporaries as usize] > Bytes::ZERO);
        assert_eq!(peaks[Kind::Unexplained as usize], Bytes::ZERO);
    }
}

#[test]
fn a_growing_cache_is_no_weight_and_no_gradient() {
    let mut run = Run::new();
    let truth = serving(&mut run, 3, 40);
    let (_, history, kinds) = inferred(run.finish());
    assert_truth(&peaks(&history, &kinds), &truth, &"serving");
}

#[test]
fn a_leak_is_unexplained() {
    let mut run = Run::new();
    let truth = Training { leak: 4 << 20, ..Training::default() }.run(&mut run);
    let (_, history, kinds) = inferred(run.finish());
    let peaks = peaks(&history, &kinds);
    assert_truth(&peaks, &truth, &"a leak");
    assert!(peaks[Kind::Unexplained as usize] >= Bytes(9 * (4 << 20)), "{peaks:?}");
}

#[test]
fn without_steps_nothing_is_guessed() {
    let mut run = Run::new();
    noise(&mut run, 3000, 0, 5);
    let (_, history, kinds) = inferred(run.finish());
    let peaks = peaks(&history, &kinds);
    assert_truth(&peaks, &Truth::default(), &"noise");
    assert_eq!(peaks[Kind::Activations as usize], Bytes::ZERO);
    assert_eq!(kinds.evidence, "without steps, kinds cannot be told");
}

#[test]
fn without_steps_stacks_still_speak() {
    let mut run = Run::new();
    run.set_stack(&[("reset_parameters", "torch/nn/modules/linear.py", 3), ("main", "t.py", 1)]);
    run.alloc(1000);
    run.set_stack(&[("_init_group", "/x/torch/optim/adam.py", 3), ("main", "t.py", 2)]);
    run.alloc(2000);
    run.set_stack(&[("main", "t.py", 3)]);
    run.alloc(3000);
    let (_, _, kinds) = inferred(run.finish());
    assert_eq!(kinds.by_allocation, [Kind::Weights, Kind::OptimizerState, Kind::Unexplained]);
}
