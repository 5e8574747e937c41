//! Runs with known steps.

use super::*;
use crate::testing::{Optimizer, Run, Training, Truth, inference, noise, serving};
use crate::trace::Stage;

fn steps_of(run: Run) -> Steps {
    let (trace, history) = run.finish();
    detect(&trace, &trace.devices[0], &history)
}

/// Asserts that the steps are the truth's, boundaries within `slack` events.
#[track_caller]
fn assert_steps(steps: &Steps, truth: &Truth, slack: u32) {
    assert_eq!(steps.spans.len(), truth.cuts.len() - 1, "{} {:?}", steps.sentence(), steps.spans);
    for (i, span) in steps.spans.iter().enumerate() {
        let (start, end) = (truth.cuts[i], truth.cuts[i + 1]);
        assert!(span.start.0.abs_diff(start.0) <= slack, "step {i} begins at {start}, found {span:?}");
        assert!(span.end.0.abs_diff(end.0) <= slack, "step {i} ends at {end}, found {span:?}");
    }
    assert_eq!(steps.warmup, steps.spans[0].start);
}

fn training(training: Training) -> (Steps, Truth) {
    let mut run = Run::new();
    let truth = training.run(&mut run);
    (steps_of(run), truth)
}

#[test]
fn training_with_fixed_shapes_shows_its_steps_without_annotations() {
    for optimizer in [Optimizer::Sgd, Optimizer::Momentum, Optimizer::Adam] {
        for steps in [3, 4, 5, 10, 50] {
            let (found, truth) = training(Training { optimizer, steps, ..Training::default() });
            assert_steps(&found, &truth, 2);
            assert!(matches!(found.evidence, StepEvidence::Recurring { .. }));
        }
    }
}

#[test]
fn training_with_varying_shapes_shows_its_steps_without_annotations() {
    for optimizer in [Optimizer::Sgd, Optimizer::Momentum, Optimizer::Adam] {
        for steps in [5, 12, 40] {
            let (found, truth) = training(Training { optimizer, steps, rows: 0, ..Training::default() });
            assert_steps(&found, &truth, 2);
        }
    }
}

#[test]
fn training_with_stacks_shows_its_steps() {
    let (found, truth) = training(Training { stacks: true, rows: 0, ..Training::default() });
    assert_steps(&found, &truth, 2);
}

#[test]
fn annotations_of_the_optimizer_end_steps() {
    for (steps, zero_first) in [(1, false), (2, false), (10, false), (10, true)] {
        let options = Training { annotate: true, steps, zero_first, rows: 0, ..Training::default() };
        let (found, truth) = training(options);
        // With zero_grad first, the gradients of the step before go with its boundary.
        assert_steps(&found, &truth, if zero_first { 60 } else { 0 });
        assert!(found.sentence().ends_with("from the Optimizer.step annotations"), "{}", found.sentence());
    }
}

#[test]
fn scopes_named_as_steps_are_the_steps() {
    let mut run = Run::new();
    let mut truth = Truth::default();
    run.alloc(1 << 20);
    for step in 0..7u64 {
        truth.cuts.push(run.now());
        run.mark(&format!("ProfilerStep#{step}"), Stage::Start);
        for i in 0..5 {
            run.touch(1000 * (step + i));
        }
        run.mark(&format!("ProfilerStep#{step}"), Stage::End);
    }
    truth.cuts.push(run.now());
    let steps = steps_of(run);
    assert_steps(&steps, &truth, 0);
    assert_eq!(steps.sentence(), "7 steps, from the ProfilerStep annotations");
}

#[test]
fn passes_that_accumulate_gradients_are_one_step() {
    for optimizer in [Optimizer::Sgd, Optimizer::Adam] {
        for annotate in [false, true] {
            let options = Training { accumulate: 4, optimizer, annotate, ..Training::default() };
            let (found, truth) = training(options);
            assert_steps(&found, &truth, 2);
        }
    }
}

#[test]
fn gradients_that_stay_to_the_next_step_do_not_hide_steps() {
    let (found, truth) = training(Training { zero_first: true, ..Training::default() });
    assert_steps(&found, &truth, 60);
}

#[test]
fn forward_passes_are_steps_too() {
    for rows in [16, 0] {
        let mut run = Run::new();
        let truth = inference(&mut run, 15, rows);
        let found = steps_of(run);
        assert_steps(&found, &truth, 2);
    }
}

#[test]
fn tokens_of_a_server_are_steps_though_its_cache_grows() {
    let mut run = Run::new();
    let truth = serving(&mut run, 1, 40);
    let found = steps_of(run);
    let tokens = truth.cuts.len() - 1;
    assert!(found.spans.len().abs_diff(tokens) <= 2, "{} of {tokens}", found.sentence());
}

#[test]
fn random_allocations_have_no_steps() {
    for seed in 1..20 {
        for sizes in [0, 3, 10, 100, 3000] {
            let mut run = Run::new();
            noise(&mut run, 4000, sizes, seed);
            let found = steps_of(run);
            assert!(found.spans.is_empty(), "seed {seed}, {sizes} sizes: {}", found.sentence());
            assert_eq!(found.evidence, StepEvidence::None);
        }
    }
}

#[test]
fn too_little_has_no_steps() {
    let empty = steps_of(Run::new());
    assert!(empty.spans.is_empty());
    let mut run = Run::new();
    for _ in 0..5 {
        run.touch(512);
    }
    assert!(steps_of(run).spans.is_empty());
    let mut run = Run::new();
    for _ in 0..5000 {
        run.touch(512);
    }
    assert!(steps_of(run).spans.is_empty(), "one size over and over has no shape");
}

#[test]
fn a_ring_that_begins_in_a_step_shows_the_whole_ones() {
    let mut run = Run::new();
    let truth = Training { steps: 12, rows: 0, ..Training::default() }.run(&mut run);
    let dropped = (truth.cuts[3].0 + truth.cuts[4].0) / 2;
    let (trace, history) = run.finish_ring(dropped as usize);
    assert!(history.preexisting > 0);
    let found = detect(&trace, &trace.devices[0], &history);
    let whole = Truth { cuts: truth.cuts[4..].iter().map(|c| Tick(c.0 - dropped)).collect(), ..truth };
    assert_steps(&found, &whole, 2);
}

#[test]
fn a_step_that_the_end_cuts_off_is_unfinished() {
    for annotate in [false, true] {
        let mut run = Run::new();
        let truth = Training { steps: 9, annotate, ..Training::default() }.run(&mut run);
        let (trace, _) = run.finish();
        let cut = (truth.cuts[7].0 + truth.cuts[8].0) / 2;
        let mut short = Run::new();
        for event in trace.devices[0].events.iter().take(cut as usize) {
            short.device.events.push(event);
        }
        let last = trace.devices[0].events.time_at(Tick(cut));
        short.trace.strings = trace.strings.clone();
        short.trace.annotations = trace.annotations.iter().filter(|a| a.time <= last).copied().collect();
        let found = steps_of(short);
        let whole = Truth { cuts: truth.cuts[..8].to_vec(), ..truth };
        assert_steps(&found, &whole, 2);
        let unfinished = found.unfinished.expect("a step had begun");
        assert!(unfinished.start.0.abs_diff(whole.cuts[7].0) <= 2);
        assert_eq!(unfinished.end, Tick(cut));
    }
}

#[test]
fn the_same_run_gives_the_same_steps() {
    let options = Training { rows: 0, steps: 15, ..Training::default() };
    assert_eq!(training(options).0, training(options).0);
}

#[test]
fn a_leak_does_not_hide_steps() {
    for optimizer in [Optimizer::Sgd, Optimizer::Momentum, Optimizer::Adam] {
        for (leak, rows) in [(512, 32), (4 << 20, 32), (4 << 20, 0)] {
            let (found, truth) = training(Training { leak, rows, optimizer, ..Training::default() });
            assert_steps(&found, &truth, 6);
        }
    }
}

#[test]
fn layers_are_not_taken_for_steps_in_deep_networks() {
    for layers in [12, 40] {
        for (rows, optimizer) in [(0, Optimizer::Sgd), (64, Optimizer::Momentum), (0, Optimizer::Adam)] {
            let (found, truth) =
                training(Training { layers, rows, optimizer, steps: 6, ..Training::default() });
            assert_steps(&found, &truth, 2);
        }
    }
}
