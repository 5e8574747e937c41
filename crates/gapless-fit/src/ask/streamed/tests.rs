use super::*;
use crate::ask::{Answer, Asked, Wishes, ask};
use crate::settings::Engine;

const GIB: u64 = 1 << 30;

fn asked(length: u64, budget: StreamBudget, memory: u64) -> Asked {
    Asked {
        infer: true,
        seq: Some(length),
        gpu: Some("h200".to_owned()),
        memory: Some(Bytes(memory)),
        stream: Some(budget),
        ..Asked::default()
    }
}

fn answer(model: &str, asked: &Asked) -> (Answer, Estimate, Streamed) {
    let q = Question::read(model, asked).expect("a question");
    let answer = ask(&q, &Wishes::default()).expect("an answer");
    let (estimate, streamed) = (answer.estimate.clone(), answer.streamed.clone());
    (answer, estimate.expect("an estimate"), streamed.expect("streamed"))
}

/// docs/measured/streaming.md: the least times of Llama 3 8B on an H200, from the work and the link that were measured.
#[test]
fn the_least_times_are_those_that_were_measured() {
    for (budget, length, measured) in [
        (2, 1, 0.232),
        (2, 2048, 0.232),
        (2, 16_384, 0.538),
        (4, 2048, 0.199),
        (4, 16_384, 0.528),
        (8, 1, 0.116),
        (8, 2048, 0.116),
        (8, 16_384, 0.538),
        (12, 2048, 0.0516),
    ] {
        let asked = asked(length, StreamBudget::Given(Bytes(budget * GIB)), 140 * GIB);
        let (_, _, streamed) = answer("llama-3-8b", &asked);
        let least = streamed.passes[0].least();
        assert!(
            (least / measured - 1.0).abs() < 0.06,
            "{budget} GiB, {length} tokens: {least} for {measured}"
        );
    }
}

#[test]
fn memory_adds_up_and_time_falls_with_the_budget() {
    let models = ["llama-3.2-1b", "gpt2", "bert-base", "resnet50", "t5-small", "mixtral-8x7b"];
    for model in models {
        let length = if model == "resnet50" { None } else { Some(128) };
        let at = |budget, memory| answer(model, &Asked { seq: length, ..asked(1, budget, memory) });
        let plain = Asked { seq: length, stream: None, ..asked(1, StreamBudget::Largest, 140 * GIB) };
        let q = Question::read(model, &plain).expect("a question");
        let resident = ask(&q, &Wishes::default()).expect("an answer").estimate.expect("an estimate");
        let mut before: Option<(f64, Bytes)> = None;
        let weights = at(StreamBudget::Largest, 140 * GIB).2.weights.0;
        for share in 0..=10u64 {
            let budget = Bytes((weights * share / 8).max(1 << 20));
            let (_, e, streamed) = at(StreamBudget::Given(budget), 140 * GIB);
            assert_eq!(
                e.components.iter().map(|(_, bytes)| bytes).sum::<u64>(),
                e.peak_allocated.0,
                "{model}"
            );
            let shape = e.shape.as_ref().expect("a shape");
            assert!(shape.phases.iter().all(|(_, _, peak)| *peak <= e.peak_allocated.0), "{model}");
            let kept = e.components.iter().find(|(name, _)| *name == "weights").expect("weights").1;
            assert!(kept <= budget.0 && e.host == streamed.weights);
            assert_eq!(resident.peak_allocated.0 - e.peak_allocated.0, weights - kept, "{model}");
            for pass in &streamed.passes {
                assert_eq!(pass.moved.0 + kept + streamed.tables.0, weights.max(kept + streamed.tables.0));
            }
            let pass = streamed.passes[0];
            if let Some((least, peak)) = before {
                assert!(pass.least() <= least && e.peak_allocated >= peak, "{model}: {share}");
            }
            before = Some((pass.least(), e.peak_allocated));
            // From that budget on a pass takes no longer than its work.
            if let Some(enough) = pass.hidden_from.filter(|enough| enough.0 > 1 << 20) {
                let pass = at(StreamBudget::Given(enough), 140 * GIB).2.passes[0];
                assert!(pass.least() <= pass.work.expect("work") * 1.001, "{model}");
            }
        }
        assert_eq!(
            before.map(|(_, peak)| peak),
            Some(resident.peak_allocated - at_tables(model, &at)),
            "{model}"
        );
    }
}

/// Bytes of tables, which never come to the card.
fn at_tables(model: &str, at: &dyn Fn(StreamBudget, u64) -> (Answer, Estimate, Streamed)) -> Bytes {
    let tables = at(StreamBudget::Largest, 140 * GIB).2.tables;
    assert_eq!(tables == Bytes::ZERO, matches!(model, "resnet50" | "gpt2" | "llama-3.2-1b"), "{model}");
    tables
}

#[test]
fn the_largest_budget_is_the_largest_that_fits() {
    for memory in [2 * GIB, 3 * GIB, 6 * GIB, 12 * GIB, 24 * GIB] {
        let (largest, _, streamed) = answer("llama-3-8b", &asked(512, StreamBudget::Largest, memory));
        let given = |bytes| answer("llama-3-8b", &asked(512, StreamBudget::Given(bytes), memory)).0.fits;
        assert_eq!(
            largest.fits,
            given(Bytes(1 << 20)) || given(streamed.budget.max(Bytes(1 << 20))),
            "{memory}"
        );
        if largest.fits && streamed.budget.0 > 0 {
            assert!(given(streamed.budget), "{memory}");
            let all = streamed.budget >= streamed.weights.saturating_sub(streamed.tables);
            assert!(all || !given(streamed.budget + Bytes(ROUND)), "{memory}");
        }
    }
}

#[test]
fn what_does_not_stream_is_refused() {
    let budget = StreamBudget::Given(Bytes(GIB));
    let plain = asked(128, budget, 24 * GIB);
    for (wrong, word) in [
        (Asked { infer: false, ..plain.clone() }, "forward passes alone"),
        (Asked { engine: Some(Engine::Vllm), ..plain.clone() }, "modules of PyTorch"),
        (Asked { gpus: Some(2), ..plain.clone() }, "one GPU"),
    ] {
        let error = Question::read("gpt2", &wrong).expect_err("refused");
        assert!(error.what.contains(word), "{}", error.what);
    }
    let q = Question::read("gpt2", &plain).expect("a question");
    for wishes in
        [Wishes { max_batch: true, ..Wishes::default() }, Wishes { optimize: true, ..Wishes::default() }]
    {
        assert!(ask(&q, &wishes).is_err());
    }
}

#[test]
fn a_host_that_cannot_hold_the_weights_is_a_no() {
    let asked = Asked { host_memory: Some(Bytes(8 * GIB)), ..asked(128, StreamBudget::Largest, 24 * GIB) };
    let (answer, _, _) = answer("llama-3-8b", &asked);
    assert!(!answer.fits);
}
