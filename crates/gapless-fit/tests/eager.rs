//! Promises of a run beside its figures: settings do what they say, parts add up, bad sizes are refused.

use gapless_fit::account::{Component, PeakAccount};
use gapless_fit::eager::{Mode, Phase, Recomputed, Run, Steps, simulate};
use gapless_fit::model::{Architecture, Attention};
use gapless_fit::read;
use gapless_fit::settings::{Lora, LoraTargets, Optimizer, Precision};
use gapless_fit::simulated_blocks::simulate_blocks;

fn model(name: &str) -> Architecture {
    read::open(name).expect("a preset").architecture.expect("an architecture")
}

/// Small enough to run in no time, and of every part that a Llama has.
fn llama() -> Architecture {
    let config = r#"{"model_type": "llama", "hidden_size": 1024, "num_hidden_layers": 6, "num_attention_heads": 16,
        "num_key_value_heads": 4, "intermediate_size": 2816, "vocab_size": 8000, "tie_word_embeddings": false}"#;
    read::config("llama", config.as_bytes()).expect("a configuration").architecture.expect("an architecture")
}

fn run() -> Run {
    Run { batch: 2, length: 1024, precision: Precision::Bf16, ..Run::default() }
}

fn peak(run: &Run) -> u64 {
    simulate(&llama(), run).expect("a run").figures().peak_allocated.0
}

/// Live bytes at the end of a phase, as requests.
fn live(steps: &Steps, step: u32, phase: Phase) -> u64 {
    let end =
        steps.log.marks.iter().find(|m| m.step == step && m.phase == phase).expect("a mark").event as usize;
    let mut sum = 0;
    for event in &steps.log.events[..end] {
        let bytes = gapless_fit::eager::Log::rounded(steps.log.allocations[event.slot() as usize].bytes);
        if event.is_free() { sum -= bytes } else { sum += bytes }
    }
    sum
}

#[test]
fn every_allocation_is_freed_at_most_once_and_steps_leave_nothing_behind() {
    for recomputed in [Recomputed::None, Recomputed::All] {
        let steps = simulate(&llama(), &Run { recomputed, steps: 4, ..run() }).expect("a run");
        let mut state = vec![0u8; steps.log.allocations.len()];
        for event in &steps.log.events {
            let seen = &mut state[event.slot() as usize];
            assert_eq!(*seen, u8::from(event.is_free()));
            *seen += 1;
        }
        let ends: Vec<u64> = (1..4).map(|step| live(&steps, step, Phase::Zero)).collect();
        assert!(ends.windows(2).all(|pair| pair[0] == pair[1]), "{ends:?}");
    }
}

#[test]
fn each_further_block_that_is_recomputed_keeps_less() {
    let after_forward = |count: usize| {
        let flags = (0..6).map(|at| at < count).collect();
        let steps =
            simulate(&llama(), &Run { recomputed: Recomputed::Blocks(flags), ..run() }).expect("a run");
        live(&steps, 1, Phase::Forward)
    };
    let kept: Vec<u64> = (0..=6).map(after_forward).collect();
    assert!(kept.windows(2).all(|pair| pair[0] > pair[1]), "{kept:?}");
    let none = peak(&Run { recomputed: Recomputed::Blocks(Vec::new()), ..run() });
    assert_eq!(none, peak(&run()));
    let all = peak(&Run { recomputed: Recomputed::Blocks(vec![true; 6]), ..run() });
    assert_eq!(all, peak(&Run { recomputed: Recomputed::All, ..run() }));
}

#[test]
fn accumulation_keeps_gradients_through_the_next_forward_pass() {
    let account = |accumulation| {
        let steps = simulate(&llama(), &Run { accumulation, ..run() }).expect("a run");
        let figures = steps.figures();
        (figures.peak_allocated.0, PeakAccount::at_peak(&steps, &figures))
    };
    let (once, _) = account(1);
    let (twice, at) = account(2);
    assert!(twice > once);
    assert_eq!(account(3).0, twice, "a third pass adds nothing");
    assert!(at.of(Component::Gradients).0 > 0);
}

#[test]
fn adapters_are_all_that_is_trained() {
    let lora =
        |rank, targets| Run { lora: Some(Lora { rank, targets, narrow: true, ..Lora::default() }), ..run() };
    let of = |run: &Run| {
        let steps = simulate(&llama(), run).expect("a run");
        let figures = steps.figures();
        let kept = steps.log.allocations.iter().filter(|a| a.kind == gapless_fit::eager::Kind::Optimizer);
        (steps.parameters, figures.peak_allocated, kept.map(|a| a.bytes).sum::<u64>())
    };
    let (whole, plain, _) = of(&run());
    for recomputed in [Recomputed::None, Recomputed::All] {
        for (targets, adapters) in [
            // Queries 1024 to 1024 and values 1024 to 256; then keys, output and three of the feed-forward block.
            (LoraTargets::QueryValue, 2048 + 1280),
            (LoraTargets::All, 2048 + 1280 + 1280 + 2048 + 3 * (1024 + 2816)),
        ] {
            let run = Run { recomputed: recomputed.clone(), ..lora(8, targets) };
            let (parameters, peak, states) = of(&run);
            assert_eq!(parameters - whole, 6 * 8 * adapters);
            assert_eq!(states, 2 * 2 * 6 * 8 * adapters, "two states in 16 bits");
            assert!(peak < plain);
        }
    }
}

#[test]
fn optimizers_keep_what_their_formulas_say() {
    let states = |optimizer| {
        let steps = simulate(&llama(), &Run { optimizer, ..run() }).expect("a run");
        let kept = steps.log.allocations.iter().filter(|a| a.kind == gapless_fit::eager::Kind::Optimizer);
        kept.map(|a| a.bytes).sum::<u64>() as f64 / steps.parameters as f64
    };
    // Muon updates blocks alone: embedding and head are AdamW's.
    let ends = 2.0 * 8000.0 * 1024.0 / simulate(&llama(), &run()).expect("a run").parameters as f64;
    for (optimizer, bytes) in [
        (Optimizer::AdamW, 4.0),
        (Optimizer::AdamWFused, 4.0),
        (Optimizer::Sgd, 0.0),
        (Optimizer::SgdMomentum, 2.0),
        (Optimizer::RmsProp, 2.0),
        (Optimizer::Adagrad, 2.0),
        (Optimizer::Lion, 2.0),
        (Optimizer::Muon, 2.0 + 2.0 * ends),
        (Optimizer::AdamW8bit, 2.0 + 8.0 / 256.0),
        (Optimizer::Adafactor, 0.0),
    ] {
        let kept = states(optimizer);
        assert!((kept - bytes).abs() < 0.01, "{optimizer:?}: {kept} bytes a parameter");
    }
}

#[test]
fn blocks_of_convolutional_networks_are_run_again_as_well() {
    for name in [
        "resnet50",
        "convnext_tiny",
        "vit_b_16",
        "mobilenet_v2",
        "mobilenet_v3_small",
        "efficientnet_b0",
        "densenet121",
    ] {
        let base = Run { batch: 64, length: 64, optimizer: Optimizer::Sgd, ..Run::default() };
        let at = |recomputed| {
            let steps = simulate(&model(name), &Run { recomputed, ..base.clone() }).expect("a run");
            let again = steps.log.allocations.iter().any(|a| a.phase == Phase::Recompute);
            (live(&steps, 2, Phase::Forward), steps.figures().peak_allocated, again)
        };
        let (kept, whole, none) = at(Recomputed::None);
        let (some, _, _) = at(Recomputed::Blocks(vec![true, false, true]));
        let (least, recomputed, again) = at(Recomputed::All);
        assert!(least < some && some < kept && recomputed < whole, "{name}: {least} {some} {kept}");
        assert!(again && !none, "{name}");
    }
}

/// Live bytes after a forward pass, as torch 2.11 and torchvision 0.26 leave them on a CPU with
/// `torch.utils.checkpoint` around these blocks: the difference is the recomputed bytes.
#[test]
fn a_recomputed_block_leaves_what_torch_leaves() {
    for (name, batch, length, blocks, difference) in [
        ("resnet50", 4, 64, &[0, 1, 2, 5, 9, 15][..], 130_791_424 - 121_427_968),
        ("convnext_tiny", 2, 64, &[0, 1, 4, 9, 17], 132_227_584 - 125_996_544),
        ("mobilenet_v2", 4, 96, &[1, 2, 9], 71_910_400 - 48_855_040),
        ("mobilenet_v3_large", 4, 96, &[0, 3, 7, 14], 54_898_176 - 49_399_808),
        ("efficientnet_b0", 4, 96, &[0, 2, 3, 15], 86_696_448 - 65_181_696),
        ("densenet121", 2, 64, &[0, 2], 54_016_000 - 42_705_920),
    ] {
        let after = |blocks: &[usize]| {
            let chosen = (0..64).map(|at| blocks.contains(&at)).collect();
            let recomputed = Recomputed::Blocks(chosen);
            let run = Run { batch, length, recomputed, optimizer: Optimizer::Sgd, ..Run::default() };
            live(&simulate(&model(name), &run).expect("a run"), 1, Phase::Forward)
        };
        assert_eq!(after(&[]) - after(blocks), difference, "{name}");
    }
}

#[test]
fn a_profile_adds_up_to_the_run_it_describes() {
    for precision in [Precision::Bf16, Precision::AmpBf16, Precision::Fp32] {
        let run = Run { precision, steps: 1, ..run() };
        let tied = simulate_blocks(&model("gpt2"), &run).expect("a profile");
        assert_eq!(tied.parts().map(|p| p.parameters).sum::<u64>(), 124_439_808);
        let profile = simulate_blocks(&llama(), &run).expect("a profile");
        assert_eq!(profile.blocks.len(), 6);
        let steps = simulate(&llama(), &run).expect("a run");
        assert_eq!(profile.parts().map(|p| p.parameters).sum::<u64>(), steps.parameters);
        let kept: u64 = profile.parts().map(|p| p.saved).sum();
        let weights: u64 = profile.parts().map(|p| p.weight_bytes).sum();
        let base = 66 * (1 << 20) + 512;
        let after = live(&steps, 0, Phase::Forward);
        // Tensors that a block leaves to the next are freed after it began: within a few tensors of the hidden states.
        let slack = 8 * 2 * 1024 * 1024 * 4;
        assert!(
            (base + weights + kept).abs_diff(after) <= slack + profile.head.forward_peak,
            "{precision:?}"
        );
        for (at, block) in profile.blocks.iter().enumerate() {
            assert!(block.saved > block.input, "{precision:?}, block {at}");
            assert!(block.forward_peak >= block.saved, "{precision:?}, block {at}");
            assert!(block.recompute_peak > block.backward_peak, "{precision:?}, block {at}");
            // Products of a block: two for each weight and token, and both of attention.
            let products = 2 * 2048 * (block.parameters - 2048) + 4 * 2 * 16 * 1024 * 1024 * 64;
            assert_eq!(block.flops, products, "{precision:?}, block {at}");
        }
    }
}

#[test]
fn presets_of_every_family_run_with_the_parameters_they_have() {
    let (mut followed, mut counted) = (0, 0);
    for name in read::names() {
        let architecture = model(name);
        if matches!(architecture, Architecture::Counted(_)) {
            assert!(simulate(&architecture, &run()).is_err(), "{name} has no activations that are known");
            counted += 1;
            continue;
        }
        followed += 1;
        let vision = matches!(architecture, Architecture::Vision(_));
        let run =
            Run { batch: 1, length: if vision { 224 } else { 64 }, steps: 1, mode: Mode::Infer, ..run() };
        let steps = simulate(&architecture, &run).unwrap_or_else(|error| panic!("{name}: {error}"));
        let count = gapless_fit::parameters::count(&architecture).expect("a number");
        assert_eq!(steps.parameters, count, "{name}");
    }
    assert!(followed >= 130 && counted >= 50, "{followed} {counted}");
}

#[test]
fn every_preset_trains_under_every_setting() {
    for name in read::names() {
        let architecture = model(name);
        if matches!(architecture, Architecture::Counted(_)) {
            continue;
        }
        let length = if matches!(architecture, Architecture::Vision(_)) { 224 } else { 96 };
        for precision in [Precision::Bf16, Precision::AmpBf16, Precision::Fp32] {
            for recomputed in [Recomputed::None, Recomputed::All] {
                for attention in [None, Some(Attention::Eager)] {
                    for lora in [None, Some(Lora::all(4))] {
                        let run = Run {
                            length,
                            precision,
                            recomputed: recomputed.clone(),
                            attention,
                            lora,
                            steps: 1,
                            ..run()
                        };
                        let steps =
                            simulate(&architecture, &run).unwrap_or_else(|error| panic!("{name}: {error}"));
                        let left = live(&steps, 0, Phase::Zero);
                        let held: u64 = steps
                            .log
                            .allocations
                            .iter()
                            .filter(|a| matches!(a.op, "parameter" | "frozen" | "state"))
                            .map(|a| gapless_fit::eager::Log::rounded(a.bytes))
                            .sum();
                        // Workspaces, the batch, the last loss, running figures: nothing else outlives a step.
                        assert!(
                            left >= held && left < held + (80 << 20),
                            "{name}, {run:?}: {left} left, {held} held"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn sizes_that_cannot_be_run_are_refused() {
    let refused = |run: Run| simulate(&llama(), &run).expect_err("refused").to_string();
    assert!(refused(Run { batch: 0, ..run() }).contains("at least 1"));
    assert!(refused(Run { length: 0, ..run() }).contains("at least 1"));
    assert!(refused(Run { batch: u64::MAX, ..run() }).contains("at most"));
    assert!(refused(Run { length: 1 << 40, ..run() }).contains("at most"));
    let image = Run { length: 225, ..run() };
    assert!(
        simulate(&model("vit_b_16"), &image).expect_err("refused").to_string().contains("multiple of 16")
    );
}
