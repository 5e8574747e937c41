//! Decisions of `ask`, held against small questions.

use super::*;
use crate::emit::Target;
use crate::formulas::weights::Format;
use crate::settings::{Lora, Optimizer, Precision};
use crate::simulated::{CLOSED_FORM_ERROR, context};
use gapless_trace::Bytes;

const GIB: u64 = 1 << 30;

fn gpt2(asked: Asked) -> Question {
    Question::read("gpt2", &Asked { seq: Some(128), ..asked }).expect("a question")
}

fn with(memory: u64, asked: Asked) -> Question {
    gpt2(Asked { memory: Some(Bytes(memory)), ..asked })
}

fn plain(q: &Question) -> Answer {
    ask(q, &Wishes::default()).expect("an answer")
}

fn estimate(answer: &Answer) -> &Estimate {
    answer.estimate.as_ref().expect("an estimate")
}

#[test]
fn what_is_not_said_is_chosen() {
    let q = Question::read("gpt2", &Asked::default()).expect("a question");
    assert_eq!((q.run.batch, q.run.length, q.run.accumulation), (1, 1024, 1), "its learned positions");
    assert_eq!((q.run.precision, q.run.optimizer), (Precision::Bf16, Optimizer::AdamW));
    assert_eq!((q.checkpointing, q.format), (Checkpointing::None, Format::Half));
    assert_eq!(q.gpu_name, "h200");
    let llama = Question::read("llama-3-8b", &Asked::default()).expect("a question");
    assert_eq!(llama.run.length, policy::USUAL_LENGTH);
}

#[test]
fn learned_positions_end_and_rotary_ones_are_noted() {
    let long = Asked { seq: Some(1025), ..Asked::default() };
    let error = Question::read("gpt2", &long).expect_err("refused");
    assert!(error.what.contains("1024 positions") && error.help == "give --seq 1024 or less");
    let q =
        Question::read("llama-3-8b", &Asked { seq: Some(16_384), ..Asked::default() }).expect("a question");
    assert!(q.notes.iter().any(|note| note.contains("8192")), "{:?}", q.notes);
}

#[test]
fn one_gpu_in_a_plain_precision_is_simulated_and_its_components_add_up() {
    let q = gpt2(Asked::default());
    assert!(q.is_simulated());
    let answer = plain(&q);
    let e = estimate(&answer);
    assert!(answer.fits && answer.plans.is_none());
    assert_eq!((e.method, e.blocks), (Method::Simulated, 12));
    assert_eq!(e.components.iter().map(|(_, bytes)| bytes).sum::<u64>(), e.peak_allocated.0);
    assert_eq!(e.process_total(), e.peak_reserved + context(q.gpu()));
}

#[test]
fn master_copies_take_closed_forms_with_their_own_bar_and_allowance() {
    let q = gpt2(Asked { precision: Some(Precision::Mixed), ..Asked::default() });
    assert!(!q.is_simulated());
    let answer = plain(&q);
    let e = estimate(&answer);
    assert_eq!((e.method, e.error), (Method::ClosedForms, CLOSED_FORM_ERROR));
    assert_eq!(e.peak_reserved, policy::typically_reserved(e.peak_allocated));
    assert!(e.components.iter().any(|(name, _)| *name == "master_copies"));
}

#[test]
fn closed_forms_are_trusted_less_for_pictures() {
    let asked = Asked { precision: Some(Precision::Mixed), image: Some(64), ..Asked::default() };
    let q = Question::read("resnet18", &asked).expect("a question");
    assert_eq!(estimate(&plain(&q)).error, CLOSED_FORM_ERROR * policy::PICTURE_ERROR_FACTOR);
}

#[test]
fn weights_in_another_format_are_counted_and_widen_the_bar() {
    let served = |quantize| plain(&gpt2(Asked { infer: true, quantize, ..Asked::default() }));
    let (half, int8) = (served(None), served(Some(Format::Int8)));
    let weights = |a: &Answer| {
        let parts = &estimate(a).components;
        parts.iter().find(|(name, _)| *name == "weights").map_or(0, |(_, bytes)| *bytes)
    };
    assert_eq!((estimate(&half).method, estimate(&int8).method), (Method::Simulated, Method::Simulated));
    assert_eq!(estimate(&int8).error, crate::account::STORED_ERROR);
    // Half of the blocks' weights go.
    let less = weights(&half) - weights(&int8);
    assert!(less > weights(&half) / 4 && less < weights(&half) / 2);
    let saved = estimate(&half).peak_allocated.0 - estimate(&int8).peak_allocated.0;
    // The allocator rounds blocks of other sizes differently.
    assert!(saved.abs_diff(less) * 10 < less, "{saved} of {less}: the rest of the pass is the same");
}

#[test]
fn what_does_not_fit_gets_plans_with_the_same_recipe() {
    let q = with(2 * GIB, Asked { batch: Some(8), ..Asked::default() });
    let answer = plain(&q);
    assert!(!answer.fits && !answer.is_plan);
    let plans = answer.plans.as_ref().expect("plans");
    assert_eq!(plans.title, "Plans that keep the recipe");
    assert!(!plans.rows.is_empty() && plans.rows.is_sorted_by(|a, b| a.seconds <= b.seconds));
    for row in &plans.rows {
        assert!(row.process_total <= q.memory(), "{}", row.words);
        let config = row.config.expect("a configuration");
        assert_eq!(config.global_batch(), 8);
        assert_eq!(config.optimizer, policy::PLAN_OPTIMIZER, "none was asked for");
    }
}

#[test]
fn an_optimizer_that_was_asked_for_is_kept() {
    let asked = Asked { batch: Some(8), optimizer: Some(Optimizer::AdamW), ..Asked::default() };
    let answer = plain(&with(2 * GIB, asked));
    for row in &answer.plans.as_ref().expect("plans").rows {
        assert_eq!(row.config.map(|c| c.optimizer), Some(Optimizer::AdamW));
    }
}

#[test]
fn where_the_recipe_does_not_fit_other_optimizers_and_adapters_are_tried() {
    let host = Some(Bytes(1 << 20));
    let asked = Asked { host_memory: host, ..Asked::default() };
    let answer = plain(&with(1300 << 20, asked));
    let plans = answer.plans.as_ref().expect("plans");
    assert!(plans.title.starts_with("Nothing fits that keeps the recipe"), "{}", plans.title);
    assert!(!plans.rows.is_empty());
    for row in &plans.rows {
        let config = row.config.expect("a configuration");
        let adapters = config.lora == Some(Lora::all(policy::FALLBACK_RANK));
        assert!(adapters || policy::FALLBACK_OPTIMIZERS.contains(&config.optimizer), "{}", row.words);
    }
}

#[test]
fn the_number_of_plans_is_what_was_wished() {
    let q = gpt2(Asked { batch: Some(8), ..Asked::default() });
    for (top, most) in [(0, 1), (2, 2)] {
        let wishes = Wishes { optimize: true, top, ..Wishes::default() };
        let answer = ask(&q, &wishes).expect("an answer");
        assert_eq!(answer.plans.expect("plans").rows.len(), most);
    }
}

#[test]
fn the_largest_batch_fits_and_one_more_does_not() {
    let q = with(3 * GIB, Asked::default());
    let answer = ask(&q, &Wishes { max_batch: true, ..Wishes::default() }).expect("an answer");
    let batch = answer.largest.flatten().expect("one fits").batch;
    assert!(Estimate::simulated(&at_batch(&q, batch)).is_ok_and(|e| e.verdict.fits()));
    assert!(Estimate::simulated(&at_batch(&q, batch + 1)).is_ok_and(|e| !e.verdict.fits()));
}

#[test]
fn only_a_number_of_gpus_is_answered_by_the_first_plan() {
    let answer = plain(&gpt2(Asked { gpus: Some(2), ..Asked::default() }));
    let first = &answer.plans.as_ref().expect("plans").rows[0];
    assert!(answer.is_plan && answer.fits);
    assert_eq!(answer.config, first.config);
    assert_eq!(estimate(&answer).process_total(), first.process_total);
}

#[test]
fn a_degree_is_the_account_of_just_that() {
    let degrees = Degrees { data: Some(2), ..Degrees::default() };
    let answer = plain(&gpt2(Asked { degrees, ..Asked::default() }));
    assert!(!answer.is_plan && answer.plans.is_none());
    assert_eq!(answer.config.map(|c| (c.data, c.tensor)), Some((2, 1)));
}

#[test]
fn fp16_autocast_keeps_its_name_and_is_not_written_down_as_bf16() {
    let q = gpt2(Asked { precision: Some(Precision::AmpFp16), ..Asked::default() });
    assert!(q.headline().contains("amp-fp16"));
    let emit = Emit::Train(Target::Torch);
    let answer = ask(&q, &Wishes { emit: Some(emit), ..Wishes::default() }).expect("an answer");
    let error = files(&q, &answer, emit).expect_err("no script has a scaler of gradients");
    assert!(error.what.contains("amp-fp16"), "{}", error.what);
}
